"""The outbox of a producer, on librdkafka's mock cluster (PUB-3, REC-17, REC-18)."""

from __future__ import annotations

import gc
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Self
from unittest import mock

import pytest
from confluent_kafka import Consumer, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from connector.config.settings import KafkaConfig
from connector.errors import (
    BrokerError,
    ConfigError,
    ConnectorError,
    DeliveryError,
    InvalidChangeError,
    OutboxError,
    QueueFullError,
    TopicError,
)
from connector.kafka import client, topics
from connector.kafka.produce import heartbeats, outbox, record_bytes
from connector.kafka.produce.outbox import Outbox
from connector.kafka.produce.outbox_file import OutboxFile
from connector.kafka.produce.producer import ChangeProducer, CopyingProducer
from connector.records.codec import ChangeRecord, Schemas, decode
from connector.records.model import (
    ChildPartition,
    ChildPartitions,
    DataChange,
    Heartbeat,
    Record,
    Truncate,
)
from tests.unit import mock_cluster
from tests.unit.kafka.outbox_process import FACTS, STEPS, change
from tests.unit.kafka.test_producer_errors import figures
from tests.unit.mock_cluster import QUICK_FETCH, MockCluster, running_cluster

SETTINGS = {"reconnect.backoff.max.ms": "100", "linger.ms": "5"}
ROOT = Path(__file__).parents[3]
Open = Callable[..., ChangeProducer]


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with running_cluster() as running:
        running.create_topic("t", FACTS.kafka_partitions)
        yield running


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "outbox.db"


@pytest.fixture
def new(cluster: MockCluster, path: Path) -> Open:
    """Opens a producer that announces nothing, so that a test knows each record."""

    def producer(**arguments: object) -> ChangeProducer:
        given = {"outbox": path, "settings": SETTINGS} | arguments
        return CopyingProducer(KafkaConfig(cluster.bootstrap_servers), FACTS, **given)  # type: ignore[arg-type]

    return producer


def read(cluster: MockCluster) -> list[list[Record]]:
    """All records, by Kafka partition."""
    stored_records = []
    for kafka_partition in range(FACTS.kafka_partitions):
        consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": "g",
                "enable.partition.eof": True,
                **QUICK_FETCH,
            }
        )
        consumer.assign([TopicPartition("t", kafka_partition, 0)])
        records: list[Record] = []
        while (message := consumer.poll(10)) is not None and message.error() is None:
            decoded = decode(message.value(), Schemas())
            assert isinstance(decoded, ChangeRecord)
            records.append(decoded.record)
        consumer.close()
        stored_records.append(records)
    return stored_records


def check_topic(cluster: MockCluster, changes: int) -> None:
    """nothing_lost, newest_wins, watermark: each change is there. An older one is only behind a
    newer one of its key if it is there before, and all newer ones are behind it again. What a
    heartbeat covers is before it.
    """
    partitions = read(cluster)
    assert {
        one.commit_timestamp for some in partitions for one in some if isinstance(one, DataChange)
    } == set(range(1, changes + 1))
    for records in partitions:
        by_key: dict[bytes, list[int]] = {}
        first_at: dict[int, int] = {}
        for at, record in enumerate(records):
            if isinstance(record, DataChange):
                by_key.setdefault(record.row_key, []).append(record.commit_timestamp)
                first_at.setdefault(record.commit_timestamp, at)
        for versions in by_key.values():
            assert versions == in_order_again(versions)
        for at, record in enumerate(records):
            if isinstance(record, Heartbeat):
                assert all(
                    first < at for time, first in first_at.items() if time <= record.timestamp
                )


def in_order_again(versions: list[int]) -> list[int]:
    """The versions, if each one that is older than the one before begins a repetition of all."""
    all_ = sorted(set(versions))
    expected: list[int] = []
    for version in versions:
        at = all_.index(version)
        is_next = expected and at == all_.index(expected[-1]) + 1
        is_again = version in expected
        if not (is_next or is_again or (not expected and at == 0)):
            return []
        expected.append(version)
    return expected if versions[-1] == all_[-1] else []


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def send_all(producer: ChangeProducer, numbers: range) -> None:
    for number in numbers:
        producer.send(change(number))


def leave(cluster: MockCluster, new: Open, changes: int = 100) -> None:
    """Leave changes and a position in the outbox."""
    with pytest.raises(DeliveryError, match="in the outbox"), new() as producer:
        cluster.stop()
        send_all(producer, range(changes))
        producer.reached("p", changes, b"token")
        producer.close(0.1)


def rows(path: Path, query: str = "SELECT count(*) FROM records") -> int:
    with closing(sqlite3.connect(path)) as database:
        ((count,),) = database.execute(query)
    return int(count)


# ── while Kafka answers, and while it does not ────────────────────────────────────────────────────


def test_each_record_is_stored_before_it_is_sent_and_deleted_when_kafka_has_it(
    cluster: MockCluster, new: Open, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PUB-3, nothing_lost: also a batch, which is stored in one transaction."""
    steps: list[tuple[str, int]] = []
    append, offer = OutboxFile.append, outbox.OutboxQueue._offer

    def stored(file, rows):  # type: ignore[no-untyped-def]
        cause = append(file, rows)
        steps.append(("stored", len(rows)))
        return cause

    def sent(queue, row):  # type: ignore[no-untyped-def]
        steps.append(("sent", 1))
        return offer(queue, row)

    monkeypatch.setattr(OutboxFile, "append", stored)
    monkeypatch.setattr(outbox.OutboxQueue, "_offer", sent)
    with new() as producer:
        producer.send(change(0))
        producer.send_many([change(1), change(2)])
        producer.flush()
        assert producer.delivered == 3
    assert steps == [("stored", 1), ("sent", 1), ("stored", 2), ("sent", 1), ("sent", 1)]
    assert rows(path) == 0
    check_topic(cluster, 3)


def test_records_that_are_sent_during_an_outage_arrive_in_order(
    cluster: MockCluster, new: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PUB-3, nothing_lost, newest_wins: longer than the client's time-out, and
    with more records than the client takes. `send` does not wait, also not for a heartbeat.
    """
    monkeypatch.setattr(outbox, "MAX_AHEAD", 20)
    monkeypatch.setattr(outbox, "READ_AT_ONCE", 30)
    results: Counter[Record] = Counter()

    def on_delivery(record: Record, error: str | None) -> None:
        assert error is None
        results[record] += 1

    small = {"queue.buffering.max.messages": "100", "message.timeout.ms": "300"}
    with new(settings=SETTINGS | small) as producer:
        records: list[Record] = [change(number) for number in range(600)]
        for number in (150, 300, 450, 600):
            records.insert(records.index(change(number - 1)) + 1, Heartbeat("p", number))
        for number, record in enumerate(records):
            if number == 200:
                producer.flush()
                cluster.stop()
            began = time.monotonic()
            producer.send(record, on_delivery=on_delivery)
            assert time.monotonic() - began < 3
        assert producer.undelivered() == {}
        with pytest.raises(DeliveryError, match="404 records for t are in the outbox") as caught:
            producer.flush(1.0)
        assert caught.value.code == "RECORDS_IN_OUTBOX"
        cluster.start()
        producer.flush()
        assert producer.delivered == len(records)
        assert results == Counter(records)
    check_topic(cluster, 600)


def test_automatic_heartbeats_wait_in_the_outbox(
    cluster: MockCluster, new: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PUB-3, PUB-1, watermark_is_honest: an outage is no error of the application."""
    now = [1000.0]
    monkeypatch.setattr(heartbeats, "clock", lambda: now[0])
    with new(heartbeat_s=1) as producer:
        producer.send(change(0))
        producer.reached("p", 1)
        producer.flush()
        cluster.stop()
        send_all(producer, range(1, 50))
        now[0] += 1.5
        producer.reached("p", 50, b"50")
        producer.send(change(50))
        assert producer._results.delivery("p").heartbeat_at == 50, "it is in the outbox"
        assert producer._results.delivery("p").oldest_open() == 2
        cluster.start()
        producer.flush()
    check_topic(cluster, 51)
    assert Heartbeat("p", 50, b"50") in read(cluster)[0]


def test_no_estimate_is_above_a_change_in_the_outbox(cluster: MockCluster, new: Open) -> None:
    """PUB-3, REC-18, watermark_is_honest: also above those of an earlier process, whose times are
    not known.
    """
    leave(cluster, new, 20)
    with new(heartbeat_s=300) as producer:
        producer.send(replace(change(30), estimated_low_watermark=25))
        producer.reached("p", 31)
        cluster.start()
        producer.flush()
        cluster.stop()
        producer.send(change(40))
        producer.reached("p", 45)
        producer.send(change(50))
        cluster.start()
        producer.flush()
        producer.send(change(60))
    estimates = {
        one.commit_timestamp: one.estimated_low_watermark
        for records in read(cluster)
        for one in records
        if isinstance(one, DataChange) and one.commit_timestamp > 30
    }
    assert estimates == {31: 0, 41: 32, 51: 41, 61: 46}


def test_the_outbox_says_how_many_records_wait_and_for_how_long(
    cluster: MockCluster, new: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MET-1: also those of an earlier process, from the start of this one."""
    now, real = [0.0], time.monotonic
    monkeypatch.setattr(outbox, "time", SimpleNamespace(monotonic=lambda: real() + now[0]))

    def waits(producer: ChangeProducer) -> tuple[object, object]:
        values = figures(producer)
        return values["outbox_records"], values["outbox_oldest_age_seconds"]

    leave(cluster, new, 5)
    cluster.stop()
    with new() as producer:
        assert waits(producer) == (6, pytest.approx(0, abs=5)), "with the last heartbeat"
        now[0] += 1000
        send_all(producer, range(5, 10))
        assert waits(producer) == (11, pytest.approx(1000, abs=5))
        cluster.start()
        producer.flush()
        assert waits(producer) == (0, 0)
        cluster.stop()
        now[0] += 1000
        for number in range(10, 20):
            producer.send(change(number))
            now[0] += 100
        assert waits(producer) == (10, pytest.approx(1000, abs=5))
        cluster.start()
        producer.flush()
        values = figures(producer)
    assert values["outbox_records"] == values["queued_messages"] == 0
    assert values["delivered_records"] == 15, "those of this process"


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0, 200)), min_size=1, max_size=300))
def test_the_age_of_a_record_in_the_outbox_is_hardly_too_high(
    batches: list[tuple[int, float]],
) -> None:
    """MET-1: by the distance of two marks, which are few."""
    now, stored_at, number = [0.0], dict[int, float](), 1
    with mock.patch.object(outbox, "time", SimpleNamespace(monotonic=lambda: now[0])):
        arrivals = outbox._Arrivals(1)
        for count, pause_s in batches:
            for _ in range(count):
                arrivals.add(number)
                stored_at[number] = now[0]
                number += 1
            now[0] += pause_s
        for each, at in stored_at.items():
            too_high = arrivals.age_of(each) - (now[0] - at)
            assert -1e-6 <= too_high <= max(0.1, at / 100) + 1e-6
        oldest = number // 2
        if oldest:
            age = arrivals.age_of(oldest)
            arrivals.forget_below(oldest)
            assert arrivals.age_of(oldest) == age


@pytest.mark.systems
def test_child_partitions_are_behind_the_changes_of_their_parent(
    cluster: MockCluster, new: Open
) -> None:
    """PUB-3, REC-18"""
    children = ChildPartitions("p", 11, 0, (ChildPartition("q", ("p",)),))
    child = replace(change(11), stream_partition="q")
    with new() as producer:
        producer.send(change(0))
        producer.flush()
        cluster.stop()
        send_all(producer, range(1, 10))
        producer.send(children)
        producer.send(child)
        cluster.start()
    for records in read(cluster):
        at = records.index(children)
        times = [one.commit_timestamp for one in records[:at] if isinstance(one, DataChange)]
        assert all(time < 12 for time in times)
        assert child not in records[:at]


def test_a_control_record_waits_until_the_changes_before_it_are_deleted(
    cluster: MockCluster, new: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PUB-3, watermark_is_honest: else a process that starts again would send them behind it."""
    left: list[int] = []
    offer = outbox.OutboxQueue._offer

    def sent(queue, row):  # type: ignore[no-untyped-def]
        if row.kind == outbox.Kind.HEARTBEAT:
            left.append(queue._file.first - row.number)
        return offer(queue, row)

    monkeypatch.setattr(outbox.OutboxQueue, "_offer", sent)
    with new() as producer:
        for number in range(50):
            producer.send(change(number))
            producer.send(Heartbeat("p", number + 1))
    assert left == [0] * 50
    check_topic(cluster, 50)


def test_a_truncation_goes_through_the_outbox_to_every_kafka_partition(
    cluster: MockCluster, new: Open, path: Path
) -> None:
    """EVO-13, PUB-3, REC-18: the heartbeat at its time is behind all of its copies."""
    reports: list[tuple[Record, str | None]] = []
    truncate = Truncate("p", "t", 20)
    with new() as producer:
        producer.send(change(10))
        producer.send(truncate, on_delivery=lambda *report: reports.append(report))
        with pytest.raises(InvalidChangeError, match="the last heartbeat"):
            producer.send(Heartbeat("p", 20))
            producer.send(Truncate("p", "t", 20, tie_breaker=1))
        producer.flush()
        assert producer.delivered == 3
    assert reports == [(truncate, None)]
    for records in read(cluster):
        controls = [record for record in records if not isinstance(record, DataChange)]
        assert controls == [truncate, Heartbeat("p", 20)]
    assert rows(path) == 0


def test_the_next_producer_sends_what_is_in_the_outbox_first(
    cluster: MockCluster, new: Open, path: Path
) -> None:
    """PUB-3, nothing_lost, resumable: its heartbeats wait for it, and `resume_token` knows the
    position.
    """
    leave(cluster, new)
    assert rows(path) == 101, "with the last heartbeat"
    with new() as producer:
        assert producer.resume_token("p") == b"token"
        producer.send(change(100))
        producer.send(Heartbeat("p", 101))
        cluster.start()
        producer.flush()
        assert producer.delivered == 2, "those of this process"
    check_topic(cluster, 101)


QUICK_STEPS = (
    "after a record is stored",
    "before an acknowledgement counts",
    "inside a transaction",
)
EACH_STEP = [
    step if step in QUICK_STEPS else pytest.param(step, marks=pytest.mark.long)
    for step in sorted(STEPS)
]


@pytest.mark.systems
@pytest.mark.parametrize("step", EACH_STEP)
def test_a_producer_that_is_killed_at_a_step_loses_nothing(
    cluster: MockCluster, path: Path, step: str
) -> None:
    """PUB-3, nothing_lost, newest_wins, watermark_is_honest: killed twice, and started again from
    its token.
    """
    rng = random.Random(step)
    changes = 120
    for life in range(3):
        count = str(rng.randint(1, 30) if life else 1)
        arguments = [cluster.bootstrap_servers, str(path), str(changes)]
        arguments += [step, count] if life < 2 else ["none", "0"]
        if life < 2:
            cluster.stop()
        with subprocess.Popen(
            [sys.executable, "-m", "tests.unit.kafka.outbox_process", *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line == "sent\n":
                    cluster.start()
        assert process.returncode in (0, -signal.SIGKILL)
        assert life or process.returncode == -signal.SIGKILL, "the step was not reached"
        cluster.start()
    assert process.returncode == 0
    check_topic(cluster, changes)


# ── errors of the client ──────────────────────────────────────────────────────────────────────────


def test_after_a_fatal_error_sending_goes_back(
    cluster: MockCluster, new: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PUB-3, REC-17, nothing_lost: the outcome is unknown, so the records are sent again, and each
    is reported once.
    """
    monkeypatch.setattr(outbox, "RETRY_S", 0.1)
    results: Counter[Record] = Counter()
    with new() as producer:
        producer.send(change(0))
        producer.flush()
        cluster.answer_with(mock_cluster.PRODUCE, *[mock_cluster.OUT_OF_ORDER_SEQUENCE] * 5)
        for number in range(1, 40):
            producer.send(change(number), on_delivery=lambda one, _: results.update([one]))
        producer.send(Heartbeat("p", 40))
        producer.flush(30)
        assert producer.undelivered() == {}
        assert producer.delivered == 41
    assert results == Counter(map(change, range(1, 40)))
    check_topic(cluster, 40)


def test_a_record_that_kafka_refuses_holds_the_others_until_it_is_set_aside(
    cluster: MockCluster, new: Open, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PUB-3, DLQ-2, watermark_is_honest: it is tried again, also by the next process, so it may
    also be delivered.
    """
    monkeypatch.setattr(outbox, "RETRY_S", 0.1)
    with new() as producer:
        cluster.answer_with(mock_cluster.PRODUCE, *[mock_cluster.MESSAGE_TOO_LARGE] * 9)
        producer.send_many(map(change, range(5)))
        producer.send(Heartbeat("p", 5))
        with pytest.raises(DeliveryError, match="1 records were not delivered") as caught:
            producer.flush(20)
        assert caught.value.code == "RECORDS_UNDELIVERED"
        refused = change(0)
        assert [*producer.undelivered()] == [refused]
        assert "too large" in producer.undelivered()[refused]
        cluster.answer_with(mock_cluster.PRODUCE)
        deadline = time.monotonic() + 20
        while producer._queue.backlog and time.monotonic() < deadline:
            producer.poll(0.1)
        assert producer.undelivered() == {}
    check_topic(cluster, 5)


def test_a_refused_record_that_is_set_aside_leaves_the_outbox(
    cluster: MockCluster, new: Open, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PUB-3, DLQ-2"""
    letters: list[object] = []

    class Publisher:
        def __init__(self, *_: object) -> None: ...

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...

        def publish(self, published: list[object]) -> None:
            letters.extend(published)

    monkeypatch.setattr("connector.kafka.produce.producer.DeadLetterPublisher", Publisher)
    monkeypatch.setattr(outbox, "RETRY_S", 60.0)
    with new() as producer:
        cluster.answer_with(mock_cluster.PRODUCE, *[mock_cluster.MESSAGE_TOO_LARGE] * 2)
        producer.send(change(0))
        producer.send(Heartbeat("p", 1))
        with pytest.raises(DeliveryError, match="1 records were not delivered"):
            producer.flush(20)
        producer.send_to_dead_letters(change(0))
        producer.flush()
        assert producer.undelivered() == {}
    assert len(letters) == 1
    assert [*read(cluster)[0], *read(cluster)[1]] == [Heartbeat("p", 1)] * 2
    assert rows(path) == 0


# ── a full disk ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.systems
def test_a_full_outbox_blocks_until_kafka_answers(
    cluster: MockCluster, new: Open, path: Path
) -> None:
    """PUB-3, nothing_lost"""
    with new(outbox=Outbox(path, max_bytes=100_000)) as producer:
        cluster.stop()
        send_all(producer, range(200))
        again = threading.Timer(0.5, cluster.start)
        again.start()
        began = time.monotonic()
        send_all(producer, range(200, 1_500))
        assert time.monotonic() - began > 0.4
        again.join()
        producer.flush()
    check_topic(cluster, 1_500)


def test_a_record_that_finds_no_space_is_undelivered(
    cluster: MockCluster, new: Open, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PUB-3, nothing_lost: heartbeats are refused, and no position is stored, until it is sent
    again.
    """
    monkeypatch.setattr(client, "QUEUE_TIMEOUT_S", 0.2)
    results: list[tuple[Record, str | None]] = []
    with new(outbox=Outbox(path, max_bytes=100_000)) as producer:
        cluster.stop()
        with pytest.raises(QueueFullError, match="has no space") as caught:
            for number in range(20_000):
                producer.send(change(number), on_delivery=lambda *result: results.append(result))
        assert (caught.value.code, caught.value.undelivered) == ("OUTBOX_FULL", 1)
        producer.poll()
        assert [record for record, _ in results] == [change(number)]
        assert [*producer.undelivered()] == [change(number)]
        with pytest.raises(DeliveryError, match="would claim more"):
            producer.send(Heartbeat("p", number + 1))
        producer.reached("p", number + 1, b"too far")
        assert producer._queue.token("p") is None  # type: ignore[union-attr]
        cluster.start()
        with pytest.raises(DeliveryError, match="1 records were not delivered"):
            producer.flush()
        producer.send(change(number))
        producer.flush()
    check_topic(cluster, number + 1)


@pytest.mark.systems
def test_a_disk_that_is_full_loses_nothing(cluster: MockCluster, path: Path) -> None:
    """PUB-3, nothing_lost: the file cannot grow, until there is space again."""
    cluster.stop()
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.unit.kafka.outbox_process", cluster.bootstrap_servers),
            *(str(path), "0", "full", "0"),
        ],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline().startswith("OUTBOX_FULL ")
        assert process.stdout.readline() == "undelivered: True\n"
        cluster.start()
        process.stdin.write("go on\n")
        process.stdin.flush()
        changes = int(process.stdout.readline().removeprefix("sent "))
    assert process.returncode == 0
    check_topic(cluster, changes)


def test_a_folder_that_cannot_be_written_is_an_error(new: Open, tmp_path: Path) -> None:
    """PUB-3"""
    with pytest.raises(OutboxError, match="cannot be used") as caught:
        new(outbox=tmp_path / "missing" / "outbox.db")
    assert caught.value.code == "OUTBOX_UNUSABLE"


# ── damage ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM records WHERE number BETWEEN 5 AND 7",
        "UPDATE records SET value = x'00' WHERE number = 9",
        *(
            pytest.param(statement, marks=pytest.mark.systems)
            for statement in (
                "UPDATE records SET key = 5 WHERE number = 3",
                "UPDATE records SET headers = NULL WHERE number = 2",
                "UPDATE records SET number = 4611686018427387904 WHERE number = 100",
            )
        ),
    ],
)
def test_nothing_is_sent_behind_a_damaged_or_missing_record(
    cluster: MockCluster, new: Open, path: Path, statement: str
) -> None:
    """PUB-3, watermark_is_honest: the remedy is a new file, and the token that Kafka has."""
    with pytest.raises(DeliveryError, match="in the outbox"), new() as producer:
        producer.send(Heartbeat("p", 1, b"in Kafka"))
        producer.flush()
        cluster.stop()
        send_all(producer, range(1, 120))
        producer.reached("p", 200, b"only in the outbox")
        producer.close(0.1)
    with closing(sqlite3.connect(path)) as database:
        database.execute(statement)
        database.commit()
    cluster.start()
    producer = new()
    with pytest.raises(OutboxError) as caught:
        producer.flush(20)
    assert caught.value.code == "OUTBOX_DAMAGED"
    assert caught.value.resume_tokens == {"p": b"in Kafka"}
    assert "start again with a new one" in caught.value.remedy
    with pytest.raises(OutboxError):
        producer.close()
    assert not any(
        isinstance(one, Heartbeat) and one.timestamp > 1 for some in read(cluster) for one in some
    )
    path.rename(path.with_name("away"))
    with new() as producer:
        send_all(producer, range(1, 120))
        producer.send(Heartbeat("p", 200))
    stored_records = {one for some in read(cluster) for one in some if isinstance(one, DataChange)}
    assert stored_records == set(map(change, range(1, 120)))


def test_a_file_that_is_cut_or_overwritten_is_refused(
    cluster: MockCluster, new: Open, path: Path
) -> None:
    """PUB-3: when it is opened."""
    leave(cluster, new, 600)
    content = path.read_bytes()
    for damaged in (
        content[: len(content) // 2 // 1024 * 1024],
        content[:20_000] + os.urandom(2_048) + content[22_048:],
    ):
        path.write_bytes(damaged)
        with pytest.raises(OutboxError) as caught:
            new()
        assert caught.value.code == "OUTBOX_DAMAGED"


def test_a_damaged_description_is_refused(cluster: MockCluster, new: Open, path: Path) -> None:
    """PUB-3"""
    leave(cluster, new, 5)
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE outbox SET checksum = 0")
        database.commit()
    with pytest.raises(OutboxError, match="its own description") as caught:
        new()
    assert caught.value.code == "OUTBOX_DAMAGED"


@pytest.mark.parametrize("what", ["folder", "text", "database", "another release"])
def test_something_else_at_the_path_is_not_touched(new: Open, path: Path, what: str) -> None:
    """PUB-3"""
    if what == "folder":
        (path / "below").mkdir(parents=True)
    elif what == "text":
        path.write_text("hi" * 1000)
    elif what == "database":
        with closing(sqlite3.connect(path)) as other:
            other.execute("CREATE TABLE t (x)")
    else:
        new().close()
        with closing(sqlite3.connect(path)) as newer:
            newer.execute("PRAGMA user_version = 99")
            newer.execute("PRAGMA journal_mode = DELETE")
    before = None if what == "folder" else path.read_bytes()
    with pytest.raises(OutboxError) as caught:
        new()
    assert caught.value.code == "OUTBOX_FOREIGN"
    assert before is None or path.read_bytes() == before


# ── how a producer ends ───────────────────────────────────────────────────────────────────────────


def test_close_reports_the_records_in_the_outbox(cluster: MockCluster, new: Open) -> None:
    """PUB-3"""
    with pytest.raises(DeliveryError) as caught, new() as producer:
        cluster.stop()
        send_all(producer, range(10))
        producer.close(0)
    assert (caught.value.code, caught.value.undelivered) == ("RECORDS_IN_OUTBOX", 10)
    assert producer.undelivered() == {}
    cluster.start()
    with new() as producer:
        producer.flush()
    check_topic(cluster, 10)


@pytest.mark.parametrize("is_away", [True, False])
def test_a_producer_that_is_dropped_without_close_leaves_its_outbox_to_the_next_one(
    cluster: MockCluster, new: Open, is_away: bool
) -> None:
    """PUB-3, PUB-8, nothing_lost"""
    producer = new()
    if is_away:
        cluster.stop()
    send_all(producer, range(10))
    producer.reached("p", 10)
    del producer
    gc.collect()
    cluster.start()
    with new() as producer:
        producer.flush()
    check_topic(cluster, 10)


@pytest.mark.systems
def test_a_forked_process_leaves_the_outbox_alone(cluster: MockCluster, new: Open) -> None:
    """PUB-3: the end of the child does not close the file of its parent."""
    gc.collect()  # a child cannot destroy the clients that earlier tests have left
    with new() as producer:
        cluster.stop()
        send_all(producer, range(10))
        if (child := os.fork()) == 0:
            del producer
            gc.collect()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        send_all(producer, range(10, 20))
        cluster.start()
    check_topic(cluster, 20)


def test_a_closed_producer_has_no_resume_token(new: Open) -> None:
    """PUB-3: the outbox may belong to another producer already."""
    with new() as producer:
        pass
    with pytest.raises(AssertionError, match="closed"):
        producer.resume_token("p")


# ── whose outbox it is ────────────────────────────────────────────────────────────────────────────


def test_an_outbox_belongs_to_one_producer_and_one_topic(
    cluster: MockCluster, new: Open, path: Path
) -> None:
    """PUB-3: also by a symbolic link."""
    link = path.with_name("link")
    link.symlink_to(path)
    with new() as producer:
        for other in (path, link):
            with pytest.raises(OutboxError, match="Another producer uses the outbox") as caught:
                new(outbox=other)
            assert caught.value.code == "OUTBOX_IN_USE"
        producer.send(change(0))
    kafka = KafkaConfig(cluster.bootstrap_servers)
    with pytest.raises(OutboxError, match="belongs to another topic") as caught:
        ChangeProducer(kafka, replace(FACTS, topic="u"), outbox=path)
    assert caught.value.code == "OUTBOX_FOREIGN"
    leave(cluster, new)
    with pytest.raises(OutboxError, match="of an earlier topic"):
        ChangeProducer(kafka, replace(FACTS, topic_id="B" * 22), outbox=path)


@pytest.mark.systems
def test_an_outbox_belongs_to_one_process(cluster: MockCluster, new: Open, path: Path) -> None:
    """PUB-3"""
    with new():
        process = subprocess.run(
            [
                *(sys.executable, "-m", "tests.unit.kafka.outbox_process"),
                *(cluster.bootstrap_servers, str(path), "1", "none", "0"),
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
    assert "Another producer uses the outbox" in process.stderr


def test_a_transactional_producer_has_no_outbox(new: Open) -> None:
    """PUB-3: committed would mean on my disk."""
    with pytest.raises(ConfigError, match="exclude each other"):
        new(transactional_id="x")


@pytest.mark.parametrize(
    "arguments",
    [
        {"path": "a\0b"},
        {"path": "a", "max_bytes": 1},
        {"path": "a", "sync": "off"},
    ],
)
def test_a_value_that_is_not_allowed_is_refused(arguments: dict[str, object]) -> None:
    """PUB-3"""
    with pytest.raises(ConfigError):
        Outbox(**arguments)  # type: ignore[arg-type]


def test_a_producer_starts_while_kafka_is_away_if_it_knows_the_topic(
    cluster: MockCluster, new: Open, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PUB-3: it sends only once Kafka has said that the topic is the same."""
    kafka = KafkaConfig(cluster.bootstrap_servers, SETTINGS)

    def describe(*_: object) -> topics.TopicFacts:
        raise BrokerError("BROKER_UNREACHABLE", "away")

    answers: list[tuple[str, list[object]]] = []

    def identity_of(*_: object) -> tuple[str, list[object]]:
        if not answers:
            raise BrokerError("BROKER_UNREACHABLE", "away")
        return answers[-1]

    monkeypatch.setattr(topics, "describe", describe)
    monkeypatch.setattr(topics, "identity_of", identity_of)
    # The mock cluster does not know this request, and would let the client wait.
    asked = Future[object]()
    asked.set_result(None)
    monkeypatch.setattr(topics, "ask_identity", lambda *_: asked)
    monkeypatch.setattr(record_bytes, "RETRY_S", 0.05)
    with pytest.raises(BrokerError):
        ChangeProducer(kafka, "t", outbox=path)
    with new(outbox=Outbox(path, sync="full")) as producer:
        producer.send(change(0))
    with CopyingProducer(kafka, "t", outbox=path) as producer:
        assert producer.kafka_partitions == FACTS.kafka_partitions
        producer.send(change(1))
        with pytest.raises(DeliveryError, match="in the outbox"):
            producer.flush(0.3)
        answers.append((FACTS.topic_id, [None] * FACTS.kafka_partitions))
        producer.flush()
    check_topic(cluster, 2)
    answers.append(("B" * 22, [None]))
    producer = CopyingProducer(kafka, "t", outbox=path)
    producer.send(change(2))
    with pytest.raises(TopicError, match="is not the topic"):
        producer.flush(20)
    with pytest.raises(ConnectorError):
        producer.close(1)


def test_the_check_of_order_can_fail() -> None:
    assert in_order_again([1, 2, 1, 2, 3]) == [1, 2, 1, 2, 3]
    assert in_order_again([1, 2, 1]) == []
    assert in_order_again([2, 1, 2]) == []
    assert in_order_again([1, 3, 2, 3]) == []
