"""Publish changes, read streams, repair and replay dead letters, and run a local broker.

This is the only package that imports Kafka's client.
"""

from __future__ import annotations

from connector.dead_letters.filter import LetterFilter
from connector.kafka.consume.consumer import ChangeConsumer
from connector.kafka.consume.record import ConsumerRecord
from connector.kafka.dead_letters.topic import DeadLetterPublisher, read_letters
from connector.kafka.local.broker import LocalBroker
from connector.kafka.produce.outbox import Outbox
from connector.kafka.produce.producer import ChangeProducer
from connector.kafka.schema_registry import RegistryClient
from connector.kafka.topics import TopicFacts, create_group_topics, create_topic, describe
from connector.kafka.write_streams.commit import commit_streams, discard_streams
from connector.kafka.write_streams.results import Append, AppendResult
from connector.kafka.write_streams.session import WriteSession
from connector.kafka.write_streams.stream import WriteStream
from connector.watermarks.released import Released, Staged
from connector.watermarks.tracker import Watermark
from connector.watermarks.transactions import HeldBack, Late, Rejected, WholeTransaction
from connector.write_streams.model import StreamKind, StreamState

__all__ = [
    "Append",
    "AppendResult",
    "ChangeConsumer",
    "ChangeProducer",
    "ConsumerRecord",
    "DeadLetterPublisher",
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
    "StreamState",
    "TopicFacts",
    "Watermark",
    "WholeTransaction",
    "WriteSession",
    "WriteStream",
    "commit_streams",
    "create_group_topics",
    "create_topic",
    "describe",
    "discard_streams",
    "read_letters",
]
