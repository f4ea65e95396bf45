"""Ranges of offsets, read with one lasting client from a real broker (ENG-4)."""

from __future__ import annotations

import random
import uuid
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Producer

from connector.config.settings import KafkaConfig
from connector.errors import BrokerError
from connector.kafka import ranges, topics
from connector.kafka.client import records_between
from connector.kafka.ranges import RangeReader
from tests.broker import NewTopic
from tests.integration.changes import send_raw

AT = 1_900_000_000_000_000


@pytest.fixture
def transactional(kafka: KafkaConfig) -> Producer:
    id_ = uuid.uuid4().hex
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": id_})
    producer.init_transactions(30)
    return producer


def send(producer: Producer, topic: str, records: list[tuple[int, bytes]], *, commit: bool) -> None:
    """Send records as one transaction: the Kafka partition and the value of each."""
    producer.begin_transaction()
    for kafka_partition, value in records:
        producer.produce(topic, value, value, kafka_partition, headers=[("h", value), ("n", None)])
    producer.flush(30)
    (producer.commit_transaction if commit else producer.abort_transaction)(30)


def as_records(columns: dict[str, list[Any]] | None) -> list[tuple[Any, ...]]:
    assert columns is not None
    return list(zip(*columns.values(), strict=True))


def expected(kafka: KafkaConfig, topic: str, wanted: dict[int, tuple[int, int]]) -> list[Any]:
    """What another client reads, which begins anew for each range."""
    return [
        (
            *(record.position.kafka_partition, record.position.offset, record.record_timestamp),
            *(record.key, record.value),
            [{"key": name, "value": value} for name, value in record.headers] or None,
        )
        for number, ends in sorted(wanted.items())
        for record in records_between(kafka, topic, "", {number: ends})
    ]


def test_ranges_have_exactly_their_committed_records(
    kafka: KafkaConfig, new_topic: NewTopic, transactional: Producer
) -> None:
    """ENG-4: with markers and aborted records at every place, ranges that end inside of what was
    fetched, ranges without records, and a Kafka partition that joins later.
    """
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng, topic = random.Random(seed), new_topic(kafka_partitions=3).topic
    with closing(RangeReader(kafka, topic)) as reader:
        at = dict.fromkeys(range(3), 0)
        for number in range(12):
            for _ in range(rng.randrange(4)):
                records = [
                    (rng.randrange(3), b"%d" % rng.randrange(100)) for _ in range(rng.randrange(5))
                ]
                if rng.random() < 0.3:
                    send_raw(kafka, topic, [(value, value) for _, value in records])
                else:
                    send(transactional, topic, records, commit=rng.random() < 0.7)
            ends = topics.TopicLooks(kafka, topic).committed_ends()
            to = {k: rng.randint(at[k], end) for k, end in ends.items()}
            to = ends if number % 3 == 2 else to
            wanted = {k: (at[k], to[k]) for k in to if k < 2 or number > 3}
            assert as_records(reader.read(wanted, AT)) == expected(kafka, topic, wanted)
            at |= {k: end for k, (_, end) in wanted.items()}
        wanted = {0: (0, at[0])}
        assert as_records(reader.read(wanted, AT)) == expected(kafka, topic, wanted)


def test_a_range_that_ends_in_an_open_transaction_is_read_when_it_ends(
    kafka: KafkaConfig,
    new_topic: NewTopic,
    transactional: Producer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TBL-1: nothing of an open transaction is read, and no range is taken for complete without
    proof. The reader goes on after an error.
    """
    monkeypatch.setattr(ranges, "READ_TIMEOUT_S", 1.0)
    topic = new_topic(kafka_partitions=1).topic
    send_raw(kafka, topic, [(b"a", b"a")])
    transactional.begin_transaction()
    transactional.produce(topic, b"b", b"b")
    transactional.flush(30)
    with closing(RangeReader(kafka, topic)) as reader:
        with pytest.raises(BrokerError):
            reader.read({0: (0, 2)}, AT)
        transactional.commit_transaction(30)
        assert [row[1] for row in as_records(reader.read({0: (0, 2)}, AT))] == [0, 1]


def test_deleted_offsets_and_large_records_are_read_by_spark(
    kafka: KafkaConfig, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REC-4, RUN-7: Spark's source stops, and says what is lost."""
    topic = new_topic(kafka_partitions=1).topic
    send_raw(kafka, topic, [(b"k", b"v" * 1000)] * 6)
    with closing(RangeReader(kafka, topic)) as reader:
        assert len(as_records(reader.read({0: (0, 2)}, AT))) == 2
        monkeypatch.setattr(ranges, "MAX_BYTES", 1500)
        assert reader.read({0: (2, 6)}, AT) is None
        monkeypatch.undo()
        topics.delete_before(kafka, topic, {0: 3})
        assert reader.read({0: (2, 6)}, AT) is None
        assert len(as_records(reader.read({0: (3, 6)}, AT))) == 3
