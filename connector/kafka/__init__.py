"""Publish changes, read streams, repair and replay dead letters, and run a local broker.

This is the only package that imports Kafka's client.
"""

from __future__ import annotations

from connector.dead_letters.filter import LetterFilter
from connector.kafka.consume.consumer import ChangeConsumer
from connector.kafka.consume.record import ConsumerRecord
from connector.kafka.dead_letters.queue import DeadLetterQueue
from connector.kafka.dead_letters.topic import DeadLetterPublisher, read_letters
from connector.kafka.local.broker import LocalBroker
from connector.kafka.produce.producer import ChangeProducer
from connector.kafka.schema_registry import RegistryClient
from connector.kafka.topics import TopicFacts, create_group_topics, create_topic, describe
from connector.watermarks.tracker import Watermark
from connector.watermarks.transactions import HeldBack, Late, Rejected, WholeTransaction

__all__ = [
    "ChangeConsumer",
    "ChangeProducer",
    "ConsumerRecord",
    "DeadLetterPublisher",
    "DeadLetterQueue",
    "HeldBack",
    "Late",
    "LetterFilter",
    "LocalBroker",
    "RegistryClient",
    "Rejected",
    "TopicFacts",
    "Watermark",
    "WholeTransaction",
    "create_group_topics",
    "create_topic",
    "describe",
    "read_letters",
]
