"""Publish changes, read streams, repair and replay dead letters, and run a local broker.

This is the only package that imports Kafka's client.
"""

from __future__ import annotations

from connector.dead_letters.filter import LetterFilter
from connector.kafka.consume.consumer import (
    ChangeConsumer,
    TransactionConsumer,
    WatermarkConsumer,
)
from connector.kafka.consume.decode import ConsumerRecord
from connector.kafka.consume.options import CommitRange, Group, StreamSettings
from connector.kafka.dead_letters.topic import DeadLetterPublisher, read_letters
from connector.kafka.local.broker import LocalBroker
from connector.kafka.produce.outbox import Outbox
from connector.kafka.produce.producer import ChangeProducer
from connector.kafka.schema_registry import RegistryClient
from connector.kafka.topics import TopicFacts, create_group_topics, create_topic, describe
from connector.kafka.write_streams.queue import Append, AppendResult, Batching
from connector.kafka.write_streams.session import WriteSession
from connector.kafka.write_streams.stream import WriteStream
from connector.watermarks.tracker import Watermark
from connector.watermarks.transactions import (
    HeldBack,
    Late,
    Rejected,
    Released,
    Staged,
    WholeTransaction,
)
from connector.write_streams.model import StreamKind, StreamState

__all__ = [
    "Append",
    "AppendResult",
    "Batching",
    "ChangeConsumer",
    "ChangeProducer",
    "CommitRange",
    "ConsumerRecord",
    "DeadLetterPublisher",
    "Group",
    "HeldBack",
    "Late",
    "LetterFilter",
    "LocalBroker",
    "Outbox",
    "RegistryClient",
    "Rejected",
    "Released",
    "Staged",
    "StreamKind",
    "StreamSettings",
    "StreamState",
    "TopicFacts",
    "TransactionConsumer",
    "Watermark",
    "WatermarkConsumer",
    "WholeTransaction",
    "WriteSession",
    "WriteStream",
    "create_group_topics",
    "create_topic",
    "describe",
    "read_letters",
]
