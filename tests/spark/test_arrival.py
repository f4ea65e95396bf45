"""Record timestamps that no broker wrote: a client can write any number (REC-25)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession

from connector.clock import now_us
from connector.config.settings import KafkaConfig
from connector.kafka import client
from connector.kafka.dead_letters.topic import read_letters
from connector.records import codec
from connector.records.model import kafka_key
from connector.records.rejection import Position, Reason
from connector.spark.ingest import ingest, source
from connector.spark.storage.logged_batch import BatchRange, same
from connector.validation import KafkaRecord
from tests.spark.live import Live
from tests.spark.streams import CrashError, account
from tests.unit.test_validation import ABSURD_MS

S = 1_000_000

ANY_TIME = {
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.after.max.ms": str(2**63 - 1),
}
"""A topic with these settings takes any record timestamp. They were the default before Kafka 4."""


@pytest.fixture
def live(
    spark: SparkSession, kafka: KafkaConfig, admin: AdminClient, tmp_path: Path
) -> Iterator[Live]:
    topic = f"test.{uuid.uuid4().hex[:12]}"
    new = NewTopic(topic, num_partitions=2, replication_factor=1, config=ANY_TIME)
    client.wait_for(admin.create_topics([new])[topic], kafka, f"create {topic}")
    with ExitStack() as stack:
        yield Live(spark, kafka, topic, tmp_path / "warehouse", stack)


@pytest.mark.long
def test_records_with_absurd_times_are_like_others(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """poison_is_contained, nothing_lost, REC-25: whatever a client wrote as record timestamp, the
    record and its neighbours get through, a rejected one keeps its coordinates and its reason, and
    a commit timestamp in the future is refused. By default, `test_both_forms_of_the_rule_agree`
    shows it.
    """
    monkeypatch.setattr(source, "PIECE_RECORDS", 12)
    begun = now_us()
    times = {"good": begun // 1000} | ABSURD_MS
    good = [account(name, begun - S, name=name) for name in times]
    ahead = [account(f"{name} ahead", begun + 3600 * S, name=name) for name in times]
    producer = Producer({"bootstrap.servers": live.kafka.bootstrap_servers})
    for changes in zip(good, ahead, strict=True):
        for k, change in enumerate(changes):
            at = times[change.row_key.decode().removesuffix(" ahead")]
            value = codec.framed(change, 2)
            # librdkafka takes 0 for the present time.
            producer.produce(live.topic, value, kafka_key(change), k, timestamp=at)
    assert producer.flush(30) == 0
    live.pipeline().run_once()
    assert live.logged_offsets() == live.offsets()
    assert set(live.table()) == set(times)
    letters = [letter for letter, _ in read_letters(live.kafka, live.topic)]
    places = sorted((one.position.kafka_partition, one.position.offset) for one in letters)
    assert places == [(1, offset) for offset in range(len(times))]
    assert {one.reason for one in letters} == {Reason.COMMIT_TIMESTAMP_IN_FUTURE}
    shown = live.changelog().rows().select("record_timestamp").collect()
    assert all(abs(row[0].timestamp() * S - begun) < 600 * S for row in shown)
    # A later batch without such records is read by Spark, and continues.
    live.publish(account("later", begun, name="later"), at=0)
    live.pipeline().run_once()
    assert "later" in live.table()


def test_after_a_crash_between_two_pieces_ingest_continues(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """resumable, REC-25: a batch that Spark cannot read becomes several, and each is complete."""
    monkeypatch.setattr(source, "PIECE_RECORDS", 3)
    monkeypatch.setattr(ingest, "FEW_OFFSETS", 0)
    producer = Producer({"bootstrap.servers": live.kafka.bootstrap_servers})
    for number in range(6):
        change = account(f"r{number}", 1_000_000 + number, name="x")
        producer.produce(
            live.topic, codec.framed(change, 2), kafka_key(change), 0, timestamp=2**63 - 1
        )
    assert producer.flush(30) == 0
    logged = count()

    def crash(step: str) -> None:
        if step.endswith("logged") and next(logged) == 1:
            raise CrashError(step)

    with pytest.raises(CrashError):
        live.pipeline(crash).run_once()
    live.pipeline().run_once()
    assert live.logged_offsets() == live.offsets()
    assert len(live.table()) == 6


@pytest.mark.parametrize("limit", ["PIECE_RECORDS", "PIECE_BYTES"])
@pytest.mark.parametrize("seed", range(20))
def test_pieces_are_the_batch(limit: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """nothing_lost, REC-25: each record is in the range of one piece, each piece continues the one
    before, and markers of transactions are in a range, too.
    """
    random = Random(seed)
    monkeypatch.setattr(source, limit, random.randrange(1, 30))
    offsets = BatchRange({0: 5, 1: 0}, {0: 5 + random.randrange(30), 1: 30, 2: 3})
    visible = [
        (k, n) for k, end in offsets.end.items() for n in range(offsets.start.get(k, 0), end)
    ]
    kept = [at for at in visible if random.random() < 0.7]
    kept.sort(key=lambda at: (at[1] + 7 * at[0], at))  # interleaved, in order within each
    records = [KafkaRecord(Position("t", "id", *at), 1, b"k", b"v") for at in kept]
    found = list(source.pieces(records, offsets))
    assert [record for piece in found for record in piece.records] == records
    reached = offsets.start
    for piece in found:
        assert same(piece.offsets.start, reached)
        for record in piece.records:
            k, n = record.position.kafka_partition, record.position.offset
            assert piece.offsets.start.get(k, 0) <= n < piece.offsets.end[k]
        reached = piece.offsets.end
    assert same(reached, offsets.end)
