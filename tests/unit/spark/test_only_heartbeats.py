"""Ingest recognizes records that change no table, before they become a batch (TBL-24)."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connector.config.settings import StreamConfig
from connector.records import codec
from connector.records.model import ChildPartition, ChildPartitions, Heartbeat
from connector.records.rejection import Position
from connector.spark.ingest.ingest import MOST_HEARTBEATS, Ingest
from connector.spark.ingest.ports import IngestPorts
from connector.spark.storage.logged_batch import BatchRange
from connector.validation import KafkaRecord
from tests.changes import change

ANNOUNCED = ChildPartitions("p", 1, 0, (ChildPartition("c", ()),))
HEARTBEAT = codec.frame(codec.encode(Heartbeat("p", 1), 2), None)
CHANGE = codec.frame(codec.encode(change(), 2), None)
CHILDREN = codec.frame(codec.encode(ANNOUNCED, 2), None)


class Kafka:
    """One Kafka partition, and the offsets that were read."""

    def __init__(self) -> None:
        self.records, self.read_offsets, self.committed = list[bytes | None](), list[int](), 10**9

    def read(self, offsets: BatchRange) -> Iterator[KafkaRecord]:
        for offset in range(offsets.start.get(0, 0), offsets.end[0]):
            self.read_offsets.append(offset)
            yield KafkaRecord(Position("topic id", "t", 0, offset), 1, b"k", self.records[offset])

    def ingest(self) -> Ingest:
        ports: dict[str, Any] = dict.fromkeys(
            (
                "topic",
                "publish",
                "now",
                "high_watermarks",
                "count_rows",
                "count_table",
                "logged_positions",
                "write_rows",
                "fold_batches",
                "earliest",
            )
        )
        return Ingest(
            StreamConfig(name="s", topic="t"),
            cast(Any, SimpleNamespace()),
            IngestPorts(
                **ports,
                read=self.read,
                committed_ends=lambda: {0: min(len(self.records), self.committed)},
            ),
            known_tables=frozenset(),
            reject_unknown_tables=False,
        )


def test_each_heartbeat_is_read_once() -> None:
    """TBL-24"""
    kafka = Kafka()
    ingest = kafka.ingest()
    assert ingest.has_only_heartbeats({0: 0})
    for _ in range(3):
        kafka.records.append(HEARTBEAT)
        assert ingest.has_only_heartbeats({0: 0})
    assert kafka.read_offsets == [0, 1, 2]
    kafka.records.append(CHANGE)
    assert not ingest.has_only_heartbeats({0: 0})


@pytest.mark.parametrize("record", [CHANGE, CHILDREN, b"rubbish", None])
def test_every_other_record_is_news(record: bytes | None) -> None:
    """TBL-24, poison_is_contained"""
    kafka = Kafka()
    kafka.records = [HEARTBEAT, record, HEARTBEAT]
    ingest = kafka.ingest()
    assert not ingest.has_only_heartbeats({0: 0})
    assert ingest.has_only_heartbeats({0: 2})


def test_many_heartbeats_become_a_batch() -> None:
    """TBL-24: also where nothing can be read in Python."""
    kafka = Kafka()
    kafka.records = [HEARTBEAT] * (MOST_HEARTBEATS + 1)
    assert not kafka.ingest().has_only_heartbeats({0: 0})
    assert kafka.read_offsets == []
    assert kafka.ingest().has_only_heartbeats({0: 1})
