"""What the demo publishes, through the real producer on librdkafka's mock cluster, and what a
reader's frontier makes of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from confluent_kafka import Consumer, TopicPartition

from connector.config.settings import KafkaConfig
from connector.demo import bank
from connector.demo.lineage import FILES_LAYOUTS
from connector.demo.publish import Publisher
from connector.demo.source import Source
from connector.kafka.produce.producer import ChangeProducer
from connector.kafka.topics import TopicFacts
from connector.records.codec import ChangeRecord, Schemas, decode
from connector.records.model import ChildPartitions, DataChange, Heartbeat, SetCell
from connector.watermarks.frontier import UNKNOWN, BatchClaims, Frontier, LineageRecord, advance
from tests.unit.demo.test_lineage import history
from tests.unit.mock_cluster import running_cluster

FACTS = TopicFacts("t", "AAAAAAAAAAAAAAAAAAAAAA", 2, 1, "delete", "LogAppendTime", 10**9, 1_000_000)
COMMITS = 40
OPENS = 1_000_000


class Reader:
    """Reads all that there is in the topic, and keeps the frontier."""

    def __init__(self, kafka: KafkaConfig) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": kafka.bootstrap_servers,
                "group.id": "g",
                "enable.auto.commit": False,
            }
        )
        self._consumer.assign([TopicPartition("t", k, 0) for k in range(FACTS.kafka_partitions)])
        self.changes: list[DataChange] = []
        self.rejected = 0
        self.records = 0
        self.frontier: Frontier = UNKNOWN

    def read(self, records: int) -> None:
        """Read on until so many were read in all, record by record; no change may lie behind the
        low watermark.
        """
        while self.records < records:
            message = self._consumer.poll(10)
            assert message is not None, f"{self.records} of {records} records are in the topic"
            self.records += 1
            read, k = decode(message.value(), Schemas()), message.partition()
            assert k is not None
            match read.record if isinstance(read, ChangeRecord) else None:
                case DataChange() as change if "poisoned" not in str(change.entries):
                    assert change.commit_timestamp >= (self.frontier.low_watermark or 0)
                    self.changes.append(change)
                case Heartbeat(name, at) if at < 2 * OPENS:
                    self._hear(BatchClaims(FACTS.kafka_partitions, {name: {k: at + 1}}))
                case ChildPartitions() as lineage:
                    self._hear(
                        BatchClaims(
                            FACTS.kafka_partitions,
                            lineage=(LineageRecord(k, FACTS.kafka_partitions, lineage),),
                        )
                    )

    def _hear(self, heard: BatchClaims) -> None:
        self.frontier = advance(self.frontier, heard, now=1, roots=frozenset(["files", "accounts"]))
        assert self.frontier.uncovered() is None
        assert not self.frontier.undeclared

    def low(self) -> int:
        assert self.frontier.low_watermark is not None
        return self.frontier.low_watermark


@pytest.fixture
def kafka() -> Iterator[KafkaConfig]:
    with running_cluster() as running:
        running.create_topic("t", FACTS.kafka_partitions)
        yield KafkaConfig(running.bootstrap_servers)


def sources(seed: int) -> list[Source]:
    operations = bank.operations(accounts=5, transfers=50, seed=seed)
    transfers = bank.transactions(operations, first=OPENS, last=2 * OPENS - 2)
    return [
        Source(
            "files",
            COMMITS,
            1,
            FILES_LAYOUTS,
            history(Random(seed), COMMITS),
            SetCell("f", b"size", b"many"),
        ),
        Source(
            "accounts",
            len(operations),
            OPENS,
            bank.LAYOUTS,
            transfers,
            SetCell("a", b"balance", b"7 bytes"),
        ),
    ]


def test_low_watermark_stands_at_each_mark_and_all_records_are_counted(
    kafka: KafkaConfig, seed: int
) -> None:
    """WMK-3, WMK-7, REC-18: also while one is silent, until it speaks again; and nothing_lost can
    be counted
    """
    said: list[str] = []
    files, accounts = sources(seed)
    with ChangeProducer(kafka, FACTS) as producer:
        publisher = Publisher(
            *(producer, kafka, FACTS, [files, accounts]),
            seed=seed,
            told=files,
            parts=(32, 36),
            window=4,
            say=said.append,
        )
        reader = Reader(kafka)
        publisher.begin()
        for mark in publisher.windows("files"):
            reader.read(publisher.done.records)
            assert reader.low() == mark.timestamp + 1
            if mark.is_all and len(publisher.done.commits["files"]) > 32:
                break
        assert len(reader.frontier.live) == len(FILES_LAYOUTS[-1]) + len(bank.STREAM_PARTITIONS)
        assert [line.split()[2] for line in said] == ["files-1", "files-0", "files-2", "files-4"]

        before, silence = reader.low(), publisher.fall_silent("files")
        mark = next(mark for mark in publisher.windows("files", silence) if mark.is_all)
        reader.read(publisher.done.records)
        assert reader.low() == before, "who is silent holds it"
        publisher.speak_again("files", silence)
        reader.read(publisher.done.records)
        assert reader.low() == mark.timestamp + 1

        publisher.rest(lambda _: None)
    publisher.finish()
    reader.read(publisher.done.records)
    assert producer.heartbeats >= len(reader.frontier.live)
    written = {(change.table, change.row_key, change.commit_timestamp) for change in reader.changes}
    assert written == {
        (change.table, change.row_key, change.commit_timestamp)
        for source in sources(seed)
        for transaction in source.transactions
        for change in transaction
    }
    assert publisher.done.changes.total() == len(written)
    assert publisher.done.poison
