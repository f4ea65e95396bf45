"""Consuming from a real broker (REC-4, REC-21, SUB-1 to SUB-3)."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator
from itertools import islice

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from connector.config.settings import KafkaConfig, RegistryConfig
from connector.errors import BrokerError, ConfigError, OutOfRangeError, TopicError
from connector.kafka import (
    ChangeConsumer,
    ChangeProducer,
    CommitRange,
    ConsumerRecord,
    Group,
    Late,
    Rejected,
    StreamSettings,
    TransactionConsumer,
    Watermark,
    WatermarkConsumer,
    WholeTransaction,
    topics,
)
from connector.kafka.consume import reader
from connector.kafka.probe_offsets import first_arrivals
from connector.kafka.produce.producer import CopyingProducer
from connector.records.codec import SCHEMA, encode, frame
from connector.records.model import CONTROL_KEY, DataChange, Heartbeat
from connector.records.rejection import Position, Reason, Rejection
from connector.records.views import view_of_time
from connector.validation import Limits
from tests.broker import NewTopic
from tests.integration.changes import change, changes, send_raw
from tests.unit.registry_stub import running_registry


def fill(kafka: KafkaConfig, topic: str, count: int, start: int = 0) -> None:
    with CopyingProducer(kafka, topic) as producer:
        for number in range(start, start + count):
            producer.send(change(number))


def timestamps(consumer: ChangeConsumer, count: int | None = None) -> list[int]:
    return sorted(
        r.record.commit_timestamp - 1_000_000
        for r in islice(consumer, count)
        if isinstance(r.record, DataChange)
    )


def test_a_bounded_reader_ends_though_nothing_comes(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    topic = new_topic(kafka_partitions=3).topic
    with ChangeConsumer(kafka, topic, bounded=True) as consumer:
        assert list(consumer) == []
        assert consumer.finished
        assert consumer.poll(1) is None
    fill(kafka, topic, 3)
    with ChangeConsumer(kafka, topic, start="end", bounded=True) as consumer:
        assert list(consumer) == []


def test_a_bounded_reader_ends_where_the_end_was_when_it_began(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    topic = new_topic(kafka_partitions=2).topic
    fill(kafka, topic, 10)
    with ChangeConsumer(kafka, topic, bounded=True) as consumer:
        fill(kafka, topic, 10, start=10)
        assert timestamps(consumer) == list(range(10))


def test_positions_are_handed_out_with_each_record_in_order(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    facts = new_topic(kafka_partitions=2)
    fill(kafka, facts.topic, 50)
    with ChangeConsumer(kafka, facts.topic, bounded=True) as consumer:
        received = list(consumer)
    for number in (0, 1):
        offsets = [r.position.offset for r in received if r.position.kafka_partition == number]
        assert offsets == list(range(len(offsets)))
    assert {(r.position.topic, r.position.topic_id) for r in received} == {
        (facts.topic, facts.topic_id)
    }


def test_a_reader_of_the_end_sees_what_comes_after(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    topic = new_topic(kafka_partitions=2).topic
    fill(kafka, topic, 5)
    with ChangeConsumer(kafka, topic, start="end") as consumer:
        assert consumer.poll(0.2) is None
        fill(kafka, topic, 5, start=5)
        assert timestamps(consumer, 5) == list(range(5, 10))


def test_a_reader_can_start_at_a_time(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    topic = new_topic(kafka_partitions=2).topic
    fill(kafka, topic, 5)
    time.sleep(0.05)
    between = time.time_ns() // 1000
    fill(kafka, topic, 5, start=5)
    with ChangeConsumer(kafka, topic, start=between, bounded=True) as consumer:
        assert timestamps(consumer) == list(range(5, 10))


def test_stored_positions_go_on_where_they_ended(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    topic = new_topic(kafka_partitions=3).topic
    fill(kafka, topic, 30)
    with ChangeConsumer(kafka, topic) as consumer:
        first = timestamps(consumer, 11)
        stored = consumer.positions
    assert {p.kafka_partition for p in stored} == {0, 1, 2}
    with ChangeConsumer(kafka, topic, start=stored, bounded=True) as consumer:
        assert sorted(first + timestamps(consumer)) == list(range(30))


def test_explicit_kafka_partitions_are_all_that_is_read(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    topic = new_topic(kafka_partitions=3).topic
    fill(kafka, topic, 30)
    with ChangeConsumer(kafka, topic, kafka_partitions=[1], bounded=True) as consumer:
        assert {r.position.kafka_partition for r in consumer} == {1}
    with pytest.raises(ConfigError, match="a Kafka partition of"):
        ChangeConsumer(kafka, topic, kafka_partitions=[3])


def test_a_topic_created_again_is_an_error(admin: AdminClient, kafka: KafkaConfig) -> None:
    """REC-4: never a silent gap, even when the new topic has grown past the stored position."""
    name = f"test.again.{uuid.uuid4().hex[:12]}"
    topics.create_topic(kafka, name, kafka_partitions=1)
    fill(kafka, name, 3)
    with ChangeConsumer(kafka, name, bounded=True) as consumer:
        list(consumer)
        stored = consumer.positions
    admin.delete_topics([name])[name].result(30)
    recreate(kafka, name)
    fill(kafka, name, 10)
    with pytest.raises(TopicError, match="not the topic that was read before"):
        ChangeConsumer(kafka, name, start=stored)


def recreate(kafka: KafkaConfig, name: str) -> None:
    """Deletion is under way for a moment."""
    for _ in range(50):
        try:
            topics.create_topic(kafka, name, kafka_partitions=1)
        except TopicError:
            time.sleep(0.1)
        else:
            return


def test_a_topic_deleted_under_a_reader_is_an_error(
    admin: AdminClient, kafka: KafkaConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "REFRESH_S", 1.0)
    name = f"test.gone.{uuid.uuid4().hex[:12]}"
    topics.create_topic(kafka, name, kafka_partitions=1)
    with ChangeConsumer(kafka, name) as consumer:
        fill(kafka, name, 1)
        assert timestamps(consumer, 1) == [0]
        admin.delete_topics([name])[name].result(30)
        began = time.monotonic()
        with pytest.raises(TopicError):
            while time.monotonic() < began + 45:
                consumer.poll(0.2)


def test_records_that_retention_took_are_an_error(
    admin: AdminClient, kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """RUN-7: it names their offsets, and when they arrived."""
    facts = new_topic()
    fill(kafka, facts.topic, 10)
    with ChangeConsumer(kafka, facts.topic) as consumer:
        timestamps(consumer, 3)
        stored = consumer.positions
    for deleted in admin.delete_records([TopicPartition(facts.topic, 0, 6)]).values():
        deleted.result(30)
    with pytest.raises(TopicError, match="read: Kafka partition 0, offsets 3 to 5") as caught:
        ChangeConsumer(kafka, facts.topic, start=stored)
    (left,) = first_arrivals(kafka, facts, {0: 6}).values()
    assert caught.value.cause.endswith(f"They had arrived before {view_of_time(left)}")
    with ChangeConsumer(kafka, facts.topic, bounded=True) as consumer:
        assert timestamps(consumer) == [6, 7, 8, 9]


def test_a_compacted_topic_is_refused(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    with pytest.raises(TopicError, match="is compacted"):
        ChangeConsumer(kafka, f"{new_topic().topic}.dead-letters.ledger")


@pytest.mark.long
def test_an_unreachable_broker_is_a_clear_error() -> None:
    """By default, `tests/unit/kafka/test_client_settings.py` shows it."""
    with pytest.raises(BrokerError, match="No Kafka broker answers"):
        ChangeConsumer(KafkaConfig("127.0.0.1:1"), "t")


def transaction(
    kafka: KafkaConfig, topic: str, numbers: Iterator[int] | range, *, commit: bool
) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "transactional.id": uuid.uuid4().hex,
            "log_level": 0,
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in numbers:
        producer.produce(topic, frame(encode(change(number), 1), None), change(number).row_key, 0)
    producer.flush(30)
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)
    return producer


def test_aborted_transactions_are_invisible(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    """Also where they are all that is left before the end: the reader must not wait for what it may
    not see.
    """
    topic = new_topic().topic
    transaction(kafka, topic, range(3), commit=False)
    with ChangeConsumer(kafka, topic, bounded=True) as consumer:
        assert list(consumer) == []
    transaction(kafka, topic, range(3, 6), commit=True)
    transaction(kafka, topic, range(6, 9), commit=False)
    with ChangeConsumer(kafka, topic, bounded=True) as consumer:
        assert timestamps(consumer) == [3, 4, 5]
        stored = consumer.positions
    with ChangeConsumer(kafka, topic, start=stored, bounded=True) as consumer:
        assert list(consumer) == []


def test_an_open_transaction_is_not_read(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    topic = new_topic().topic
    fill(kafka, topic, 1)
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "transactional.id": uuid.uuid4().hex,
            "log_level": 0,
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, frame(encode(change(1), 1), None), change(1).row_key, 0)
    producer.flush(30)
    with ChangeConsumer(kafka, topic, bounded=True) as consumer:
        assert timestamps(consumer) == [0]
    producer.commit_transaction(30)
    with ChangeConsumer(kafka, topic, bounded=True) as consumer:
        assert timestamps(consumer) == [0, 1]


def test_bad_records_are_rejections_in_the_stream(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    topic = new_topic().topic
    good = frame(encode(change(1), 1), None)
    now = time.time_ns() // 1000
    future = frame(encode(change(2, timestamp=now + 3_600_000_000), 1), None)
    late_heartbeat = frame(encode(Heartbeat("p", now + 3_600_000_000), 1), None)
    poison = [
        (b"row-1", good, None),
        (b"row-1", None, Reason.UNKNOWN_FRAMING),
        (b"row-1", b"", Reason.UNKNOWN_FRAMING),
        (b"row-1", b"{}", Reason.UNKNOWN_FRAMING),
        (b"row-1", b"\x00\x00\x00\x00\x09" + good[10:], Reason.UNKNOWN_SCHEMA),
        (b"row-1", good[:-3], Reason.UNDECODABLE),
        (b"row-1", good + b"x", Reason.UNDECODABLE),
        (b"row-2", good, Reason.KEY_MISMATCH),
        (None, good, Reason.KEY_MISMATCH),
        (b"row-2", future, Reason.COMMIT_TIMESTAMP_IN_FUTURE),
        (CONTROL_KEY, late_heartbeat, Reason.WATERMARK_IN_FUTURE),
        (b"row-1", frame(encode(change(1), 2), None), Reason.INVALID),
        (b"row-1", good + b"x" * 5000, Reason.TOO_LARGE),
        (b"row-1", good, None),
    ]
    send_raw(kafka, topic, [(key, value) for key, value, _ in poison])
    with ChangeConsumer(
        kafka, topic, bounded=True, stream=StreamSettings(limits=Limits(max_record_bytes=5000))
    ) as consumer:
        received = list(consumer)
    assert [r.record.reason if isinstance(r.record, Rejection) else None for r in received] == [
        reason for _, _, reason in poison
    ]
    assert [(r.source.key, r.source.value) for r in received] == [
        (key, value) for key, value, _ in poison
    ]
    with ChangeConsumer(
        kafka, topic, bounded=True, stream=StreamSettings(tables=frozenset({"other"}))
    ) as consumer:
        assert isinstance(first := next(iter(consumer)).record, Rejection)
        assert first.reason is Reason.UNKNOWN_TABLE


def test_a_registry_is_asked_and_an_unreachable_one_makes_no_rejection(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    topic = new_topic().topic
    send_raw(
        kafka,
        topic,
        [(b"row-1", frame(encode(change(1), 1), 5)), (b"row-1", frame(encode(change(1), 1), 6))],
    )
    with running_registry() as registry:
        registry.add(SCHEMA, 5)
        with ChangeConsumer(
            kafka, topic, bounded=True, stream=StreamSettings(registry=RegistryConfig(registry.url))
        ) as consumer:
            registry.failures = [(500, "down")] * 3
            with pytest.raises(BrokerError):
                next(iter(consumer))
            first, second = list(consumer)
    assert (first.record, first.position.offset) == (change(1), 0)
    assert isinstance(second.record, Rejection)
    assert second.record.reason is Reason.UNKNOWN_SCHEMA


def test_a_group_goes_on_from_what_it_committed(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    facts = new_topic(kafka_partitions=2)
    group = f"test.{facts.topic}"
    fill(kafka, facts.topic, 20)
    with ChangeConsumer(kafka, facts.topic, start=Group(group)) as consumer:
        first = timestamps(consumer, 12)
        consumer.commit()
        not_committed = timestamps(consumer, 3)
    with ChangeConsumer(kafka, facts.topic, start=Group(group), bounded=True) as consumer:
        second = timestamps(consumer)
        consumer.commit()
    assert sorted(first + second) == list(range(20))
    assert set(not_committed) <= set(second)
    with ChangeConsumer(kafka, facts.topic, start=Group(group), bounded=True) as consumer:
        assert list(consumer) == []


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"group.protocol": "consumer"}, marks=pytest.mark.systems),
        pytest.param(
            {"partition.assignment.strategy": "cooperative-sticky"}, marks=pytest.mark.long
        ),
    ],
)
def test_members_of_a_group_share_the_kafka_partitions(
    kafka: KafkaConfig, new_topic: NewTopic, settings: dict[str, str]
) -> None:
    kafka = KafkaConfig(kafka.bootstrap_servers, settings)
    topic = new_topic(kafka_partitions=4).topic
    group = f"test.{topic}"
    with (
        ChangeConsumer(kafka, topic, start=Group(group)) as one,
        ChangeConsumer(kafka, topic, start=Group(group)) as other,
    ):
        deadline = time.monotonic() + 60
        while {p.kafka_partition for p in one.positions} | {
            p.kafka_partition for p in other.positions
        } != {0, 1, 2, 3} or not (one.positions and other.positions):
            assert time.monotonic() < deadline, (one.positions, other.positions)
            assert one.poll(0.1) is None
            assert other.poll(0.1) is None
        fill(kafka, topic, 40)
        seen: Counter[int] = Counter()
        while seen.total() < 40:
            assert time.monotonic() < deadline
            for consumer in (one, other):
                if (received := consumer.poll(0.1)) is not None and isinstance(
                    received.record, DataChange
                ):
                    seen[received.record.commit_timestamp - 1_000_000] += 1
    assert seen == dict.fromkeys(range(40), 1)


def test_a_group_notices_that_the_topic_was_created_again(
    admin: AdminClient, kafka: KafkaConfig
) -> None:
    """The topic's id is committed with the positions (REC-4)."""
    name = f"test.group.{uuid.uuid4().hex[:12]}"
    facts = topics.create_topic(kafka, name, kafka_partitions=1)
    fill(kafka, name, 3)
    with ChangeConsumer(kafka, name, start=Group(name), bounded=True) as consumer:
        list(consumer)
        consumer.commit()
        consumer._reader._client.commit(
            offsets=[TopicPartition(name, 0, 3, "AAAAAAAAAAAAAAAAAAAAAA")], asynchronous=False
        )
    assert facts.topic_id != "AAAAAAAAAAAAAAAAAAAAAA"
    with (
        ChangeConsumer(kafka, name, start=Group(name)) as consumer,
        pytest.raises(TopicError, match="not the topic that was read before"),
    ):
        next(iter(consumer))


def test_a_kafka_partition_that_is_added_is_read_from_its_beginning(
    admin: AdminClient, kafka: KafkaConfig, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REC-14: the records that name the new number are not rejected either."""
    monkeypatch.setattr(reader, "REFRESH_S", 0.5)
    topic = new_topic(kafka_partitions=1).topic
    with ChangeConsumer(kafka, topic, start="end") as consumer:
        assert consumer.poll(0.1) is None
        admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
        fill(kafka, topic, 30)
        received = list(islice(consumer, 30))
        stored = tuple(position for position in consumer.positions if position.kafka_partition == 0)
    assert all(isinstance(r.record, DataChange) for r in received)
    assert {r.position.kafka_partition for r in received} == {0, 1, 2}
    with ChangeConsumer(kafka, topic, start=stored, bounded=True) as consumer:
        assert {r.position.kafka_partition for r in consumer} == {1, 2}


def test_a_position_beyond_the_end_is_an_error(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    """nothing_lost: the brokers have lost what was read, or the position is wrong; waiting for it
    would skip what comes.
    """
    facts = new_topic(kafka_partitions=1)
    fill(kafka, facts.topic, 3)
    with pytest.raises(
        TopicError,
        match=(
            "ends before the stored position: Kafka partition 0 ends at offset 3, and the position"
            " is 9"
        ),
    ):
        ChangeConsumer(kafka, facts.topic, start=(Position(facts.topic, facts.topic_id, 0, 8),))


def test_a_topic_of_many_records_is_read_completely(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    topic = new_topic(kafka_partitions=4).topic
    sent = changes(5_000)
    with CopyingProducer(kafka, topic) as producer:
        for record in sent:
            producer.send(record)
        producer.send(Heartbeat("p", 2_000_000))
    with ChangeConsumer(kafka, topic, bounded=True) as consumer:
        assert Counter(r.record for r in consumer) == Counter(sent) + Counter(
            {Heartbeat("p", 2_000_000): 4}
        )


# ── watermarks, whole transactions, ranges of commit time (SUB-1 to SUB-3) ────────────────────────


def publish(kafka: KafkaConfig, topic: str, numbers: range) -> None:
    """Changes at 1,000,000 + number, and a heartbeat after each tenth one."""
    with ChangeProducer(kafka, topic) as producer:
        for number in numbers:
            producer.send(change(number))
            if number % 10 == 9:
                producer.flush()
                producer.send(Heartbeat("p", 1_000_000 + number))


def test_watermarks_of_a_real_producer(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    """SUB-2: no change comes below a watermark, and the last one is that of the last heartbeat."""
    topic = new_topic(kafka_partitions=3).topic
    publish(kafka, topic, range(100))
    low = 0
    with WatermarkConsumer(kafka, topic, bounded=True) as consumer:
        for item in consumer:
            if isinstance(item, Watermark):
                assert item.low_watermark > low
                low = item.low_watermark
            elif isinstance(item.record, DataChange):
                assert item.record.commit_timestamp >= low
    assert low == 1_000_100


def test_whole_transactions_of_a_real_topic_go_on_from_a_state(
    admin: AdminClient, kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """SUB-3: with an aborted Kafka transaction, a bad record, and a Kafka partition that is
    added.
    """
    topic = new_topic(kafka_partitions=2).topic
    publish(kafka, topic, range(50))
    transaction(kafka, topic, range(900, 903), commit=False)
    send_raw(kafka, topic, [(b"row-1", b"bad")])
    found: list[object] = []
    state = b""
    for round_ in range(4):
        with TransactionConsumer(kafka, topic, start=state or "beginning") as consumer:
            deadline = time.monotonic() + 30
            last, count = None, 0
            while count < 13 and time.monotonic() < deadline:
                item = consumer.poll(0.5)
                if isinstance(item, WholeTransaction | Late | Rejected):
                    found.append(item)
                    last, count = item, count + 1
                elif len(found) == 51:
                    break
            if last is not None:
                consumer.acknowledge(last)
            state = consumer.state()
        if round_ == 1:
            admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
    publish(kafka, topic, range(50, 100))
    with TransactionConsumer(kafka, topic, start=state, bounded=True) as consumer:
        found += consumer
    whole = [item for item in found if isinstance(item, WholeTransaction)]
    assert [one.commit_timestamp - 1_000_000 for one in whole] == list(range(100))
    assert [type(item) for item in found if not isinstance(item, WholeTransaction)] == [Rejected]


def test_a_range_of_commit_time_begins_near_its_first_change(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """SUB-1: commit timestamps of now, so that the place follows from the arrival."""
    topic = new_topic(kafka_partitions=2).topic
    marks: list[int] = []
    with ChangeProducer(kafka, topic) as producer:
        for number in range(6):
            time.sleep(0.8)
            marks.append(time.time_ns() // 1000)
            producer.send(change(number, timestamp=marks[-1]))
            producer.flush()
            producer.send(Heartbeat("p", marks[-1]))
    with WatermarkConsumer(
        kafka,
        topic,
        commits=CommitRange(marks[2], marks[4]),
        stream=StreamSettings(limits=Limits(max_clock_skew_s=1), roots=["p"]),
    ) as consumer:
        assert sum(position.offset + 1 for position in consumer.positions) > 0
        records = [item.record for item in consumer if isinstance(item, ConsumerRecord)]
    found = [record for record in records if isinstance(record, DataChange)]
    assert sorted(one.commit_timestamp for one in found) == marks[2:5]


def test_a_range_that_retention_took_is_refused(
    admin: AdminClient, kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """SUB-1: the error names the oldest possible start, which can be read."""
    facts = new_topic()
    fill(kafka, facts.topic, 10)
    for deleted in admin.delete_records([TopicPartition(facts.topic, 0, 6)]).values():
        deleted.result(30)
    with pytest.raises(OutOfRangeError, match="may not hold all changes") as caught:
        WatermarkConsumer(
            kafka,
            facts.topic,
            commits=CommitRange(1_000_000),
            stream=StreamSettings(limits=Limits(max_clock_skew_s=0)),
        )
    assert caught.value.code == "START_TOO_OLD"
    assert caught.value.oldest is not None
    time.sleep(0.01)
    WatermarkConsumer(
        kafka,
        facts.topic,
        commits=CommitRange(caught.value.oldest),
        stream=StreamSettings(limits=Limits(max_clock_skew_s=0)),
    ).close()
