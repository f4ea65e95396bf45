"""What readers get of write streams, on a real broker (WRS-22)."""

from __future__ import annotations

import uuid

from connector.config.settings import ConnectorConfig, KafkaConfig, StreamConfig
from connector.dead_letters.filter import LetterFilter
from connector.kafka import (
    ChangeConsumer,
    ChangeProducer,
    Group,
    Released,
    Staged,
    TransactionConsumer,
    WholeTransaction,
    WriteSession,
    WriteStream,
    create_group_topics,
)
from connector.records.model import DataChange, Heartbeat, OffsetRange, SetCell
from connector.services import commit_write_streams
from connector.services.dead_letters import DeadLetters
from connector.watermarks.transactions import Item
from tests.broker import NewTopic
from tests.integration.changes import change


def rows(stream: WriteStream, count: int) -> list[DataChange]:
    return [
        stream.row(table="t", row_key=b"row-%d" % n, entries=[SetCell("f", b"q", b"v")])
        for n in range(count)
    ]


def offsets(found: list[Item], stream: str) -> list[int]:
    return [
        item.change.write_stream.offset
        for item in found
        if isinstance(item, Staged)
        and item.change.write_stream
        and item.change.write_stream.stream == stream
    ]


def test_a_group_reads_releases_and_changes_in_order_of_commit(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """WRS-22, SUB-3: over three Kafka partitions, with a restart after each item. Each release is
    one transaction, after its rows.
    """
    topic, group = new_topic(kafka_partitions=3).topic, f"g-{uuid.uuid4().hex[:8]}"
    config = ConnectorConfig("w", kafka, streams={"s": StreamConfig(name="s", topic=topic)})
    with ChangeProducer(kafka, topic) as producer:
        producer.send(change(1))
        producer.send(Heartbeat("p", 1_000_001))
        producer.flush()
        with WriteSession(kafka, topic, "job") as session:
            staged = session.stream("rows", kind="pending")
            staged.append(rows(staged, 20)).result(30)
            staged.finalize()
            flushed = session.stream("buffer", kind="buffered")
            flushed.append(rows(flushed, 10)).result(30)
            flushed.flush_rows(4, through=producer)
            committed = commit_write_streams(config, "s", ["job/rows"], through=producer)
        producer.send(change(2, timestamp=committed + 1))
        producer.send(Heartbeat("p", committed + 1))
        producer.flush()

    found: list[Item] = []
    while True:
        with TransactionConsumer(
            kafka, topic, start=Group(group), staged=True, bounded=True
        ) as consumer:
            items: list[Item] = []
            for item in consumer:
                items.append(item)
                if not isinstance(item, Staged):
                    break
            if items:
                consumer.acknowledge(items[-1])
                consumer.commit()
        found += items
        if not items:
            break
    in_order = [item for item in found if not isinstance(item, Staged)]
    first, buffer, all_rows, last = in_order
    assert isinstance(first, WholeTransaction)
    assert isinstance(last, WholeTransaction)
    assert (first.commit_timestamp, last.commit_timestamp) == (1_000_001, committed + 1)
    assert isinstance(buffer, Released)
    assert isinstance(all_rows, Released)
    assert buffer.ranges == (OffsetRange("job/buffer", 0, 4),)
    assert all_rows.ranges == (OffsetRange("job/rows", 0, 20),)
    assert buffer.commit_timestamp < all_rows.commit_timestamp == committed
    assert not buffer.is_late
    assert not all_rows.is_late
    assert sorted(offsets(found, "job/rows")) == list(range(20))
    assert sorted(offsets(found, "job/buffer")) == list(range(10))
    before = found[: found.index(buffer)]
    assert set(offsets(before, "job/buffer")) >= set(range(4))
    before = found[: found.index(all_rows)]
    assert sorted(offsets(before, "job/rows")) == list(range(20))

    with ChangeConsumer(kafka, topic, bounded=True) as plain:
        releases = [one for one in plain if isinstance(one, Released)]
    assert [one.commit_timestamp for one in releases] == [buffer.commit_timestamp, committed]


def test_a_staged_row_can_be_set_aside(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    """WRS-22, SUB-4: its replay is the row again, and that of a release is the release."""
    topic, group = new_topic(kafka_partitions=2).topic, f"g-{uuid.uuid4().hex[:8]}"
    create_group_topics(kafka, topic, group)
    with WriteSession(kafka, topic, "job") as session:
        stream = session.stream("rows", kind="buffered")
        stream.append(rows(stream, 2)).result(30)
        stream.flush_rows(2)
    with ChangeConsumer(kafka, topic, start=Group(group), staged=True, bounded=True) as consumer:
        given = []
        for item in consumer:
            if isinstance(item, Staged | Released):
                given.append(item)
                consumer.set_aside(item, "not now")
            consumer.commit()
    assert len(given) == 3
    config = ConnectorConfig("w", kafka, streams={"s": StreamConfig(name="s", topic=topic)})
    DeadLetters(config, group=group, by="ada@desk").replay(LetterFilter(), why="again")
    with ChangeConsumer(
        kafka, topic, start=Group(group, replays=True), staged=True, bounded=True
    ) as consumer:
        again = [item for item in consumer if isinstance(item, Staged | Released)]
        consumer.commit()
    assert all(item.position.topic != topic for item in again)
    assert {one.change for one in again if isinstance(one, Staged)} == {
        one.change for one in given if isinstance(one, Staged)
    }
    assert [one.record for one in again if isinstance(one, Released)] == [
        one.record for one in given if isinstance(one, Released)
    ]
