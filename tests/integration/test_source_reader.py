"""The reader of foreign topics on a real broker (SRC-1, SRC-8)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from confluent_kafka.cimpl import NewTopic

from connector.config.settings import KafkaConfig, SourceConfig
from connector.errors import BrokerError, TopicError
from connector.kafka.bridge import reader as readers
from connector.kafka.bridge.reader import SourceReader
from connector.sources.model import ForeignRecord, SourceFormat, TopicPartition


class Source:
    """Foreign topics below a prefix of their own."""

    def __init__(self, kafka: KafkaConfig, admin: AdminClient) -> None:
        self.kafka, self._admin, self.prefix = kafka, admin, f"src{uuid.uuid4().hex[:8]}"
        self.config = SourceConfig(
            format=SourceFormat.DEBEZIUM_JSON,
            topics=(f"{self.prefix}.public.*",),
            transactions=f"{self.prefix}.transaction",
        )
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

    def create(self, name: str, kafka_partitions: int = 1, **settings: str) -> str:
        topic = f"{self.prefix}.{name}"
        new = NewTopic(topic, num_partitions=kafka_partitions, config=settings)
        self._admin.create_topics([new])[topic].result(30)
        until(lambda: topic in self._admin.list_topics(timeout=10).topics)
        return topic

    def delete(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(30)
        until(lambda: topic not in self._admin.list_topics(timeout=10).topics)

    def add_partitions(self, topic: str, total: int) -> None:
        self._admin.create_partitions([NewPartitions(topic, total)])[topic].result(30)

    def send(self, topic: str, *values: str, kafka_partition: int = 0) -> None:
        for value in values:
            self._producer.produce(topic, value.encode(), b"k", kafka_partition)
        self._producer.flush(30)

    def reader(
        self,
        starts: dict[TopicPartition, int] | None = None,
        topic_ids: dict[str, str] | None = None,
    ) -> SourceReader:
        return SourceReader(self.kafka, self.config, starts or {}, topic_ids or {})


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def source(kafka: KafkaConfig, admin: AdminClient) -> Iterator[Source]:
    made = Source(kafka, admin)
    yield made
    names = [n for n in admin.list_topics(timeout=30).topics if n.startswith(made.prefix)]
    for deleted in admin.delete_topics(names).values() if names else ():
        deleted.exception(30)


def read(reader: SourceReader, count: int) -> list[ForeignRecord]:
    records: list[ForeignRecord] = []
    deadline = time.monotonic() + 30
    while len(records) < count:
        records += reader.poll(0.2)
        assert time.monotonic() < deadline, records
    assert not reader.poll(0.2)
    return records


def values(records: list[ForeignRecord], topic: str, number: int = 0) -> list[str]:
    return [(r.value or b"").decode() for r in records if r.partition == (topic, number)]


def test_all_topics_of_a_source_are_read_in_the_order_of_their_kafka_partitions(
    source: Source,
) -> None:
    """SRC-1: from the beginning, and again from stored positions."""
    first, second = source.create("public.a", 2), source.create("public.b")
    ends, other = source.create("transaction"), source.create("crm.c")
    source.send(first, "1", "2")
    source.send(first, "3", kafka_partition=1)
    for topic in (second, ends, other):
        source.send(topic, topic)
    reader = source.reader()
    records = read(reader, 5)
    assert values(records, first) == ["1", "2"]
    assert values(records, first, 1) == ["3"]
    assert values(records, second) + values(records, ends) == [second, ends]
    assert {record.topic for record in records} == {first, second, ends}
    assert all(abs(record.timestamp / 1e6 - time.time()) < 600 for record in records)
    until(lambda: not reader.poll(0.1) and reader.positions == reader.end_offsets())
    ids = dict(reader.topic_ids)
    reader.close()

    reader = source.reader({(first, 0): 1, (first, 1): 1, (second, 0): 1, (ends, 0): 1}, ids)
    assert values(read(reader, 1), first) == ["2"]
    reader.close()


def test_topics_and_kafka_partitions_that_appear_later_are_read(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SRC-8."""
    monkeypatch.setattr(readers, "REFRESH_S", 0.2)
    first = source.create("public.a")
    reader = source.reader()
    source.send(first, "1")
    assert values(read(reader, 1), first) == ["1"]
    second = source.create("public.b")
    source.send(second, "2")
    source.add_partitions(first, 2)
    assert values(read(reader, 1), second) == ["2"]
    until(lambda: not reader.poll(0.2) and len(reader.partitions) == 3)
    source.send(first, "3", kafka_partition=1)
    assert values(read(reader, 1), first, 1) == ["3"]
    reader.close()


def test_a_source_topic_that_was_made_again_is_an_error(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SRC-8: while it is read, and after a restart."""
    monkeypatch.setattr(readers, "REFRESH_S", 0.2)
    topic = source.create("public.a")
    source.send(topic, "1", "2")
    reader = source.reader()
    read(reader, 2)
    source.delete(topic)
    source.create("public.a")
    with pytest.raises(TopicError, match="is not the topic that the bridge has read") as raised:
        for _ in range(100):
            reader.poll(0.1)
    assert "snapshot" in raised.value.remedy
    ids = dict(reader.topic_ids)
    reader.close()
    with pytest.raises(TopicError, match="is not the topic that the bridge has read"):
        source.reader({(topic, 0): 2}, ids)


def test_records_that_were_deleted_before_they_were_read_are_an_error(source: Source) -> None:
    """nothing_lost."""
    topic = source.create("public.a")
    source.send(topic, "1", "2", "3")
    reader = source.reader({(topic, 0): 7})
    with pytest.raises(TopicError, match="ends before the stored position"):
        for _ in range(100):
            reader.poll(0.1)
    reader.close()


def test_a_full_kafka_partition_waits_while_others_are_read(source: Source) -> None:
    """SRC-8."""
    topic = source.create("public.a", 2)
    reader = source.reader()
    reader.pause([(topic, 0)])
    source.send(topic, "1")
    source.send(topic, "2", kafka_partition=1)
    assert values(read(reader, 1), topic, 1) == ["2"]
    reader.pause([])
    assert values(read(reader, 1), topic) == ["1"]
    reader.close()


def test_no_broker_is_an_error_at_the_start() -> None:
    config = SourceConfig(format=SourceFormat.UPSERT_JSON, topics=("a",))
    with pytest.raises(BrokerError):
        SourceReader(KafkaConfig("127.0.0.1:1"), config, {}, {})
