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
from connector.kafka.table_writer import TableWriter
from connector.kafka.tables import published_tables
from connector.kafka.topics import create_group_topics, create_topic
from connector.kafka.write_streams.queue import Batching
from connector.kafka.write_streams.session import WriteSession
from connector.kafka.write_streams.stream import WriteStream
from connector.watermarks.tracker import Watermark
from connector.watermarks.transactions import (
    Late,
    Rejected,
    Released,
    Staged,
    WholeTransaction,
)

__all__ = [
    "Batching",
    "ChangeConsumer",
    "ChangeProducer",
    "CommitRange",
    "ConsumerRecord",
    "DeadLetterPublisher",
    "Group",
    "Late",
    "LetterFilter",
    "LocalBroker",
    "Outbox",
    "Rejected",
    "Released",
    "Staged",
    "StreamSettings",
    "TableWriter",
    "TransactionConsumer",
    "Watermark",
    "WatermarkConsumer",
    "WholeTransaction",
    "WriteSession",
    "WriteStream",
    "create_group_topics",
    "create_topic",
    "published_tables",
    "read_letters",
]
