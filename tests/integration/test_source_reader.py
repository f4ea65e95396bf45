"""The reader of foreign topics on a real broker (SRC-1, SRC-8)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient

from connector.config.settings import KafkaConfig, SourceConfig
from connector.errors import BrokerError, TopicError
from connector.kafka.bridge import reader as readers
from connector.kafka.bridge.reader import SourceReader
from connector.sources.model import ForeignRecord, SourceFormat, TopicPartition
from tests.integration.foreign_topics import ForeignTopics, foreign_topics, until


@pytest.fixture
def source(kafka: KafkaConfig, admin: AdminClient) -> Iterator[ForeignTopics]:
    with foreign_topics(kafka, admin) as made:
        yield made


def reader_of(
    source: ForeignTopics,
    starts: dict[TopicPartition, int] | None = None,
    topic_ids: dict[str, str] | None = None,
) -> SourceReader:
    return SourceReader(source.kafka, source.config, starts or {}, topic_ids or {})


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
    source: ForeignTopics,
) -> None:
    """SRC-1: from the beginning, and again from stored positions."""
    first, second = source.create("public.a", 2), source.create("public.b")
    ends, other = source.create("transaction"), source.create("crm.c")
    source.send(first, "1", "2", kafka_partition=0)
    source.send(first, "3", kafka_partition=1)
    for topic in (second, ends, other):
        source.send(topic, topic)
    reader = reader_of(source)
    records = read(reader, 5)
    assert values(records, first) == ["1", "2"]
    assert values(records, first, 1) == ["3"]
    assert values(records, second) + values(records, ends) == [second, ends]
    assert {record.topic for record in records} == {first, second, ends}
    assert all(abs(record.timestamp / 1e6 - time.time()) < 600 for record in records)
    until(lambda: not reader.poll(0.1) and reader.positions == reader.end_offsets())
    ids = dict(reader.topic_ids)
    reader.close()

    reader = reader_of(source, {(first, 0): 1, (first, 1): 1, (second, 0): 1, (ends, 0): 1}, ids)
    assert values(read(reader, 1), first) == ["2"]
    reader.close()


def test_topics_and_kafka_partitions_that_appear_later_are_read(
    source: ForeignTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SRC-8."""
    monkeypatch.setattr(readers, "REFRESH_S", 0.2)
    first = source.create("public.a")
    reader = reader_of(source)
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
    source: ForeignTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SRC-8: while it is read, and after a restart."""
    monkeypatch.setattr(readers, "REFRESH_S", 0.2)
    topic = source.create("public.a")
    source.send(topic, "1", "2")
    reader = reader_of(source)
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
        reader_of(source, {(topic, 0): 2}, ids)


def test_records_that_were_deleted_before_they_were_read_are_an_error(
    source: ForeignTopics,
) -> None:
    """nothing_lost."""
    topic = source.create("public.a")
    source.send(topic, "1", "2", "3")
    reader = reader_of(source, {(topic, 0): 7})
    with pytest.raises(TopicError, match="Name a new change topic"):
        for _ in range(100):
            reader.poll(0.1)
    reader.close()


def test_a_full_kafka_partition_waits_while_others_are_read(source: ForeignTopics) -> None:
    """SRC-8."""
    topic = source.create("public.a", 2)
    reader = reader_of(source)
    reader.pause([(topic, 0)])
    source.send(topic, "1", kafka_partition=0)
    source.send(topic, "2", kafka_partition=1)
    assert values(read(reader, 1), topic, 1) == ["2"]
    reader.pause([])
    assert values(read(reader, 1), topic) == ["1"]
    reader.close()


def test_a_full_kafka_partition_whose_topic_is_hidden_for_a_while_is_read_on(
    source: ForeignTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SRC-8, nothing_lost: for example, a right is withdrawn and given back."""
    topic, other = source.create("public.a"), source.create("public.b")
    reader = reader_of(source)
    source.send(topic, "1")
    source.send(other, "2")
    assert len(read(reader, 2)) == 2
    source.send(topic, "3")
    time.sleep(1)  # the client has fetched it
    reader.pause([(topic, 0)])
    assert reader.poll(0.2) == []
    with monkeypatch.context() as patch:
        patch.setattr(readers, "existing_topics", lambda *_: {other})
        reader.refresh()
        assert reader.poll(0.2) == []
    reader.pause([])
    reader.refresh()
    source.send(topic, "4")
    assert values(read(reader, 2), topic) == ["3", "4"]
    reader.close()


def test_no_broker_is_an_error_at_the_start() -> None:
    config = SourceConfig(format=SourceFormat.UPSERT_JSON, topics=("a",))
    with pytest.raises(BrokerError):
        SourceReader(KafkaConfig("127.0.0.1:1"), config, {}, {})
