"""The spool of a producer, on librdkafka's mock cluster (PUB-3, REC-17, REC-18)."""

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
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from connector.config.settings import KafkaConfig
from connector.errors import (
    BrokerError,
    ConfigError,
    ConnectorError,
    DeliveryError,
    SpoolError,
    SpoolFullError,
)
from connector.kafka import topics
from connector.kafka.produce import spool_file, spool_queue, spool_repair
from connector.kafka.produce.producer import ChangeProducer
from connector.kafka.produce.spool_file import Loss, SpoolFile, Write
from connector.records.codec import ChangeRecord, Schemas, decode
from connector.records.model import (
    ChildPartition,
    ChildPartitions,
    DataChange,
    Heartbeat,
    Record,
    SetCell,
)
from tests.unit import mock_cluster
from tests.unit.kafka.spool_process import FACTS, STEPS, change
from tests.unit.mock_cluster import MockCluster, running_cluster

SETTINGS = {"message.timeout.ms": "500", "reconnect.backoff.max.ms": "100", "linger.ms": "5"}
ROOT = Path(__file__).parents[3]
Open = Callable[..., ChangeProducer]


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with running_cluster() as running:
        running.create_topic("t", FACTS.kafka_partitions)
        yield running


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool.db"


@pytest.fixture
def new(cluster: MockCluster, path: Path) -> Open:
    def producer(**arguments: object) -> ChangeProducer:
        given = {"spool": path, "spool_after_s": 0.1, "settings": SETTINGS} | arguments
        return ChangeProducer(KafkaConfig(cluster.bootstrap_servers), FACTS, **given)  # type: ignore[arg-type]

    return producer


def read(cluster: MockCluster) -> list[list[Record]]:
    """All records, by Kafka partition."""
    found = []
    for kafka_partition in range(FACTS.kafka_partitions):
        consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": "g",
                "enable.partition.eof": True,
            }
        )
        consumer.assign([TopicPartition("t", kafka_partition, 0)])
        records: list[Record] = []
        while (message := consumer.poll(10)) is not None and message.error() is None:
            decoded = decode(message.value(), Schemas())
            assert isinstance(decoded, ChangeRecord)
            records.append(decoded.record)
        consumer.close()
        found.append(records)
    return found


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


def spooled(producer: ChangeProducer) -> int:
    return producer._queue.backlog


# ── while Kafka answers, and while it does not ────────────────────────────────────────────────────


def test_while_kafka_answers_nothing_is_written(
    cluster: MockCluster, new: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PUB-3"""
    writes: list[object] = []
    write_ = SpoolFile.write

    def write(file: SpoolFile, what: Write) -> None:
        writes.append(what)
        write_(file, what)

    monkeypatch.setattr(SpoolFile, "write", write)
    with new(spool_after_s=20, settings={}) as producer:
        for number in range(500):
            producer.send(change(number))
        producer.send(Heartbeat("p", 500, b"token"))
        producer.flush()
        producer.flush(to_disk=True)
        assert writes == []
    check_topic(cluster, 500)


@pytest.mark.parametrize("message_timeout", ["300", "60000"])
def test_what_is_sent_during_an_outage_arrives_in_order(
    cluster: MockCluster, new: Open, message_timeout: str
) -> None:
    """PUB-3, nothing_lost, newest_wins, watermark: shorter and longer than the client's time-out;
    `send` does not wait, also not for a heartbeat.
    """
    told: Counter[Record] = Counter()

    def on_delivery(record: Record, error: str | None) -> None:
        assert error is None
        told[record] += 1

    settings = SETTINGS | {"message.timeout.ms": message_timeout}
    with new(settings=settings, queue_timeout_s=5) as producer:
        sent: list[Record] = [change(number) for number in range(600)]
        for number in (150, 300, 450, 600):
            sent.insert(sent.index(change(number - 1)) + 1, Heartbeat("p", number))
        for number, record in enumerate(sent):
            if number == 200:
                producer.flush()
                cluster.stop()
            began = time.monotonic()
            producer.send(record, on_delivery=on_delivery)
            assert time.monotonic() - began < 3
        producer.flush(to_disk=True)
        assert spooled(producer) == 404
        assert producer.undelivered() == {}
        with pytest.raises(DeliveryError, match="404 records for t are in the spool") as caught:
            producer.flush(1.0)
        assert caught.value.code == "RECORDS_IN_SPOOL"
        cluster.start()
        producer.flush()
        assert spooled(producer) == 0
        assert producer.delivered == len(sent)
        assert told == Counter(sent)
        numbers = producer._queue._writer._next  # type: ignore[attr-defined]
        producer.send(change(600))
        producer.flush()
        assert producer._queue._writer._next == numbers, "records go directly again"  # type: ignore[attr-defined]
    check_topic(cluster, 601)


def test_automatic_heartbeats_wait_for_spooled_records(cluster: MockCluster, new: Open) -> None:
    """PUB-3, PUB-1, watermark: an outage is no error of the application."""
    with new(heartbeat_s=1) as producer:
        producer.send(change(0))
        producer.reached("p", 1)
        until(lambda: producer._results.delivery("p").promised == 1)
        producer.flush()
        cluster.stop()
        for number in range(1, 50):
            producer.send(change(number))
        producer.reached("p", 50, b"50")
        time.sleep(1.2)
        producer.send(change(50))
        assert producer._results.delivery("p").promised == 1
        assert producer._results.delivery("p").oldest_open() == 2
        cluster.start()
        producer.flush()
    check_topic(cluster, 51)
    assert Heartbeat("p", 50, b"50") in read(cluster)[0]


def test_children_are_spooled_behind_the_changes_of_their_parent(
    cluster: MockCluster, new: Open
) -> None:
    """PUB-3, REC-18"""
    children = ChildPartitions("p", 11, 0, (ChildPartition("q", ("p",)),))
    child = DataChange(
        stream_partition="q",
        table="t",
        row_key=b"k0",
        commit_timestamp=12,
        entries=(SetCell("f", b"q", b"v"),),
    )
    with new() as producer:
        producer.send(change(0))
        producer.flush()
        cluster.stop()
        for number in range(1, 10):
            producer.send(change(number))
        producer.send(children)
        producer.send(child)
        producer.flush(to_disk=True)
        cluster.start()
    for records in read(cluster):
        at = records.index(children)
        assert all(
            record.commit_timestamp < 12
            for record in records[:at]
            if isinstance(record, DataChange)
        )
        assert child not in records[:at]


def test_the_next_producer_sends_what_is_in_the_spool_first(
    cluster: MockCluster, new: Open, path: Path
) -> None:
    """PUB-3, nothing_lost, watermark: its heartbeats wait for it."""
    with pytest.raises(DeliveryError) as caught, new() as producer:
        cluster.stop()
        for number in range(100):
            producer.send(change(number))
        producer.reached("p", 50, b"fifty")
        producer.close(0.3)
    assert caught.value.code == "RECORDS_IN_SPOOL"
    shown = spool_repair.status(path)
    assert (shown.topic, shown.records, shown.is_in_use) == ("t", 101, False)
    assert (shown.oldest, shown.newest, shown.losses) == (1, 100, ())
    with new() as producer:
        assert producer._spool.file.position("p") == (50, b"fifty")  # type: ignore[union-attr]
        assert producer._results.delivery("p").oldest_open() == 1
        producer.send(change(100))
        cluster.start()
        producer.flush()
        producer.send(Heartbeat("p", 101))
    check_topic(cluster, 101)


QUICK_STEPS = (
    "before a write",
    "after the move to the spool",
    "after a record was sent from the spool",
    "before an acknowledgement counts",
)
EACH_STEP = [
    step if step in QUICK_STEPS else pytest.param(step, marks=pytest.mark.long)
    for step in sorted(STEPS)
]


@pytest.mark.parametrize("step", EACH_STEP)
def test_a_producer_that_is_killed_at_a_step_loses_nothing(
    cluster: MockCluster, path: Path, step: str
) -> None:
    """PUB-3, nothing_lost, newest_wins, watermark: killed twice, and started again from its
    token.
    """
    rng = random.Random(step)
    changes = 120
    for life in range(3):
        most = 3 if "write" in step or "move" in step else 30
        count = str(rng.randint(1, most) if life else 1)
        arguments = [cluster.bootstrap_servers, str(path), str(changes)]
        arguments += [step, count] if life < 2 else ["none", "0"]
        if life < 2:
            cluster.stop()
        with subprocess.Popen(
            [sys.executable, "-m", "tests.unit.kafka.spool_process", *arguments],
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


# ── a full disk ───────────────────────────────────────────────────────────────────────────────────


def test_a_full_spool_blocks_until_kafka_answers(cluster: MockCluster, new: Open) -> None:
    """PUB-3, nothing_lost"""
    with new(spool_max_bytes=20_000, queue_timeout_s=20) as producer:
        cluster.stop()
        for number in range(50):
            producer.send(change(number))
        producer.flush(to_disk=True)
        again = threading.Timer(0.5, cluster.start)
        again.start()
        began = time.monotonic()
        for number in range(50, 300):
            producer.send(change(number))
        assert time.monotonic() - began > 0.4
        again.join()
        producer.flush()
    check_topic(cluster, 300)


@pytest.mark.parametrize("when_full", ["block", "raise"])
def test_a_record_that_finds_no_space_is_undelivered(
    cluster: MockCluster, new: Open, when_full: str
) -> None:
    """PUB-3, nothing_lost: heartbeats are refused until it is sent again."""
    told: list[tuple[Record, str | None]] = []
    with new(
        spool_max_bytes=20_000, spool_full=when_full, queue_timeout_s=0.3, announce=False
    ) as producer:
        cluster.stop()
        with pytest.raises(SpoolFullError, match="has no space") as caught:
            for number in range(20_000):
                producer.send(change(number), on_delivery=lambda *result: told.append(result))
                producer.poll(0.001)
        assert caught.value.undelivered == 1
        producer.poll()
        assert [record for record, _ in told] == [change(number)]
        assert change(number) in producer.undelivered()
        with pytest.raises(DeliveryError, match=r"has no space"):
            producer.send(Heartbeat("p", number + 1))
        producer.reached("p", number + 1, b"too far")
        cluster.start()
        failed = {change(number), Heartbeat("p", number + 1)}
        until(
            lambda: (
                producer.poll(0.05) >= 0
                and {*producer.undelivered()} == failed
                and spooled(producer) == 0
            )
        )
        assert producer._spool.file.position("p") is None  # type: ignore[union-attr]
        for record in producer.undelivered():
            producer.send(record)
        producer.flush()
    check_topic(cluster, number + 1)


def test_a_disk_that_is_full_loses_nothing(cluster: MockCluster, path: Path) -> None:
    """PUB-3, nothing_lost: the file cannot grow, and what is in memory is sent all the same."""
    cluster.stop()
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.unit.kafka.spool_process", cluster.bootstrap_servers),
            *(str(path), "0", "full", "0"),
        ],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline().startswith("SPOOL_FULL The spool is not writable: ")
        assert process.stdout.readline() == "all there: True\n"
        cluster.start()
        process.stdin.write("go on\n")
        process.stdin.flush()
        changes = int(process.stdout.readline().removeprefix("sent "))
    assert process.returncode == 0
    check_topic(cluster, changes)


def test_writes_that_fail_slowly_do_not_keep_records_from_kafka(
    cluster: MockCluster, new: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PUB-3, nothing_lost: each write takes longer than the time between two writes."""

    def write(_file: SpoolFile, _write: Write) -> None:
        time.sleep(2 * spool_queue.COMMIT_EVERY_S)
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(SpoolFile, "write", write)
    with new(announce=False) as producer:
        cluster.stop()
        for number in range(10):
            producer.send(change(number))
        until(lambda: producer.poll(0.05) >= 0 and bool(producer._queue._writer.error))  # type: ignore[attr-defined]
        cluster.start()
        producer.flush(20)
    check_topic(cluster, 10)


def test_records_that_wait_for_a_slow_disk_are_no_full_spool(
    cluster: MockCluster, new: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PUB-3: with `spool_full="raise"`, `send` waits for the disk, up to `queue_timeout_s`."""
    written = SpoolFile.write
    monkeypatch.setattr(spool_queue, "MAX_BUFFERED", 5)
    monkeypatch.setattr(SpoolFile, "write", lambda *given: (time.sleep(0.02), written(*given)))
    with new(spool_full="raise", queue_timeout_s=20, announce=False) as producer:
        cluster.stop()
        number = 0
        while spooled(producer) < 50:
            producer.send(change(number))
            number += 1
        cluster.start()
        producer.flush(20)
    check_topic(cluster, number)


def test_a_folder_that_cannot_be_written_is_an_error(new: Open, tmp_path: Path) -> None:
    with pytest.raises(SpoolError, match="cannot be used") as caught:
        new(spool=tmp_path / "missing" / "spool.db")
    assert caught.value.code == "SPOOL_UNREADABLE"


# ── records that Kafka refuses ────────────────────────────────────────────────────────────────────


def test_a_record_that_kafka_refuses_fails_alone_and_is_kept(
    cluster: MockCluster, new: Open, path: Path
) -> None:
    """PUB-3, nothing_lost, watermark: a heartbeat in the spool that covers it fails, too."""
    with new(announce=False) as producer:
        cluster.stop()
        for number in range(5):
            producer.send(change(number))
        producer.flush(to_disk=True)
        until(lambda: len(producer._queue._queue.items) <= 1)  # type: ignore[attr-defined]
        producer.send(Heartbeat("p", 5))
        producer.send(change(5))
        cluster.answer_with(mock_cluster.PRODUCE, *[mock_cluster.MESSAGE_TOO_LARGE] * 2)
        cluster.start()
        with pytest.raises(DeliveryError, match="2 records were not delivered"):
            producer.flush(20)
        assert set(producer.undelivered()) == {change(0), Heartbeat("p", 5)}
        with pytest.raises(DeliveryError):
            producer.close()
    assert spool_repair.status(path).refused == 2
    with new(announce=False) as producer:
        assert set(producer.undelivered()) == {change(0), Heartbeat("p", 5)}
        with pytest.raises(DeliveryError, match="would claim more"):
            producer.send(Heartbeat("p", 6))
        for record in producer.undelivered():
            producer.send(record)
        producer.flush()
    assert spool_repair.status(path).refused == 0


# ── damage ────────────────────────────────────────────────────────────────────────────────────────


def fill(cluster: MockCluster, new: Open, changes: int = 100) -> None:
    with pytest.raises(DeliveryError, match="in the spool"), new(announce=False) as producer:
        cluster.stop()
        for number in range(changes):
            producer.send(change(number))
        producer.reached("p", changes, b"token")
        producer.flush(to_disk=True)
        producer.close(0.1)


def damage(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute(statement)
        database.commit()
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


@pytest.mark.parametrize(
    ("statement", "lost", "how"),
    [
        (
            "DELETE FROM records WHERE number BETWEEN 5 AND 7",
            "3 records (numbers 5 to 7)",
            "missing",
        ),
        ("DELETE FROM records WHERE number > 98", "2 records (numbers 99 to 100)", "missing"),
        ("UPDATE records SET value = x'00' WHERE number = 9", "1 record (numbers 9)", "damaged"),
        ("UPDATE records SET key = 5 WHERE number = 1", "1 record (numbers 1)", "damaged"),
        ("UPDATE records SET stream_partition = x'ff' WHERE number = 2", "1 record", "damaged"),
    ],
)
def test_behind_a_damaged_or_missing_record_heartbeats_are_refused_until_the_loss_is_accepted(
    cluster: MockCluster, new: Open, path: Path, statement: str, lost: str, how: str
) -> None:
    """PUB-3, watermark: the changes arrive, and the resume token is not used."""
    fill(cluster, new)
    damage(path, statement)
    assert how in {loss.why for loss in spool_repair.status(path).losses}
    with new(announce=False) as producer:
        assert any(lost in warning for warning in producer.warnings)
        assert producer._spool.file.position("p") is None  # type: ignore[union-attr]
        cluster.start()
        until(lambda: producer.poll(0.05) >= 0 and spooled(producer) == 0)
        with pytest.raises(SpoolError) as caught:
            producer.send(Heartbeat("p", 200))
        assert caught.value.code == "SPOOL_DAMAGED"
        assert lost in caught.value.problem
        producer.send(
            DataChange(
                stream_partition="p",
                table="t",
                row_key=b"k0",
                commit_timestamp=101,
                entries=(SetCell("f", b"q", b"v"),),
                estimated_low_watermark=100,
            )
        )
        assert spool_repair.accept(path), "while the producer runs"
        producer.send(Heartbeat("p", 200))
        producer.flush()
    claims = [
        record.estimated_low_watermark
        for records in read(cluster)
        for record in records
        if isinstance(record, DataChange) and record.commit_timestamp == 101
    ]
    assert claims == [0]
    with new(announce=False) as producer:
        assert producer.warnings == []


def test_during_the_remedy_send_reports_a_loss_once_and_close_reports_it_again(
    cluster: MockCluster, new: Open, path: Path
) -> None:
    """PUB-3, watermark: the program sends again from its token, with `reached`. The error says that
    the record is queued, and no automatic heartbeat passes the loss, also not that of `close`.
    """
    fill(cluster, new)
    damage(path, "DELETE FROM records WHERE number = 5")
    cluster.start()
    raised = []
    with pytest.raises(SpoolError) as at_close, new(announce=False, heartbeat_s=1) as producer:
        producer.reached("p", 100)
        until(lambda: producer._heartbeats.has_failed)
        for number in range(100, 400):
            try:
                producer.send(change(number))
            except SpoolError as error:
                raised.append(error)
        producer.reached("p", 400)
        producer._heartbeats.tick(time.monotonic() + 60)
        producer.send(change(400))
        producer.flush()
    assert [error.code for error in (*raised, at_close.value)] == ["SPOOL_DAMAGED"] * 2
    assert "is queued" in raised[0].remedy
    found = [one for records in read(cluster) for one in records]
    assert not any(isinstance(one, Heartbeat) for one in found)
    assert {one.commit_timestamp for one in found if isinstance(one, DataChange)} == {
        *range(1, 402)
    } - {5}


def test_a_loss_that_is_found_while_sending_is_noticed(
    cluster: MockCluster, new: Open, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PUB-3, watermark: behind it, a spooled heartbeat is not sent before the loss is accepted."""
    with new(announce=False) as producer:
        cluster.stop()
        for number in range(20):
            producer.send(change(number))
        producer.send(Heartbeat("p", 20))
        producer.flush(to_disk=True)
        damage(path, "DELETE FROM records WHERE number = 8")
        until(lambda: len(producer._queue._queue.items) <= 1)  # type: ignore[attr-defined]
        cluster.start()
        until(lambda: producer.poll(0.05) >= 0 and spooled(producer) == 1)
        with pytest.raises(SpoolError, match=r"1 record \(numbers 8\)"):
            producer.send(Heartbeat("p", 20))
        assert not any(isinstance(one, Heartbeat) for records in read(cluster) for one in records)
        until(lambda: bool(spool_repair.accept(path)))
        producer._queue.check_may_claim()
        producer.flush()
    assert all(Heartbeat("p", 20) in records for records in read(cluster))


def test_a_file_that_is_cut_is_an_error_and_its_readable_records_can_be_kept(
    cluster: MockCluster, new: Open, path: Path
) -> None:
    """PUB-3"""
    fill(cluster, new, 600)
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2 // 4096 * 4096])
    with pytest.raises(SpoolError) as caught:
        new(announce=False)
    assert caught.value.code == "SPOOL_UNREADABLE"
    losses = spool_repair.accept(path)
    assert Path(f"{path}.damaged").exists()
    with new(announce=False) as producer:
        cluster.start()
        producer.send(Heartbeat("p", 600))
        producer.flush()
    lost = sum(loss.last - loss.first + 1 for loss in losses)
    found = {one for records in read(cluster) for one in records if isinstance(one, DataChange)}
    assert 0 < len(found) == 600 - lost < 600


def test_a_lost_log_of_the_database_is_noticed(cluster: MockCluster, new: Open, path: Path) -> None:
    """PUB-3: what `flush(to_disk=True)` has promised is missing."""
    with new(announce=False) as producer:
        cluster.stop()
        for number in range(10):
            producer.send(change(number))
        producer.flush(to_disk=True)
        copy = path.with_name("copy.db")
        copy.write_bytes(path.read_bytes())  # without the log
        Path(f"{copy}.lock").write_bytes(Path(f"{path}.lock").read_bytes())
        cluster.start()
    with pytest.raises(ConnectorError), new(spool=copy, announce=False) as producer:
        producer.send(Heartbeat("p", 20))
    assert spool_repair.accept(copy) == () or spool_repair.status(copy).losses == ()


def test_a_file_of_another_program_is_not_extended(path: Path) -> None:
    """PUB-3: the size in its header counts only for a database of SQLite."""
    content = b"x" * 16 + (512).to_bytes(2, "big") + b"x" * 10 + (100).to_bytes(4, "big") + b"xx"
    path.write_bytes(content)
    Path(f"{path}.lock").touch()
    assert describe(spool_repair.accept(path)) == [(0, 0, "unreadable")]
    assert Path(f"{path}.damaged").read_bytes() == content


def test_a_database_of_another_program_is_not_touched(new: Open, path: Path) -> None:
    """PUB-3: also with a lock file beside it."""
    damage(path, "CREATE TABLE theirs (x)")
    Path(f"{path}.lock").touch()
    content = path.read_bytes()
    for call in (spool_repair.accept, spool_repair.status, lambda _: new()):
        with pytest.raises(SpoolError) as caught:
            call(path)
        assert caught.value.code == "FILE_NOT_A_SPOOL"
    assert path.read_bytes() == content


# ── how a producer ends ───────────────────────────────────────────────────────────────────────────


def test_close_says_that_its_records_are_in_the_spool(cluster: MockCluster, new: Open) -> None:
    """PUB-3: also if they were only in memory when it was called."""
    with pytest.raises(DeliveryError) as caught, new(announce=False, spool_after_s=60) as producer:
        cluster.stop()
        for number in range(10):
            producer.send(change(number))
        producer.close(0)
    assert (caught.value.code, caught.value.undelivered) == ("RECORDS_IN_SPOOL", 10)
    assert producer.undelivered() == {}
    cluster.start()
    with new() as producer:
        producer.flush()
    check_topic(cluster, 10)


@pytest.mark.parametrize("is_away", [True, False])
def test_a_producer_that_is_dropped_without_close_unlocks_its_spool(
    cluster: MockCluster, new: Open, is_away: bool
) -> None:
    """PUB-3: its records are in the file, or in Kafka."""
    producer = new(announce=False)
    if is_away:
        cluster.stop()
    for number in range(10):
        producer.send(change(number))
    producer.reached("p", 10)
    del producer
    gc.collect()
    cluster.start()
    with new(announce=False) as producer:
        producer.flush()
    check_topic(cluster, 10)


def test_a_closed_producer_has_no_resume_token(cluster: MockCluster, new: Open) -> None:
    """PUB-3: the spool may belong to another producer already."""
    with new() as producer:
        pass
    with pytest.raises(AssertionError, match="closed"):
        producer.resume_token("p")


# ── whose spool it is ─────────────────────────────────────────────────────────────────────────────


def test_a_spool_belongs_to_one_producer_and_one_topic(
    cluster: MockCluster, new: Open, path: Path
) -> None:
    """PUB-3"""
    with new() as producer:
        with pytest.raises(SpoolError, match="Another producer uses the spool") as caught:
            new()
        assert caught.value.code == "SPOOL_IN_USE"
        producer.send(change(0))
    kafka = KafkaConfig(cluster.bootstrap_servers)
    other = topics.TopicFacts(*["u", *[getattr(FACTS, name) for name in FACTS.__slots__][1:]])
    with pytest.raises(SpoolError, match="belongs to another topic") as caught:
        ChangeProducer(kafka, other, spool=path)
    assert caught.value.code == "SPOOL_FOREIGN"
    fill(cluster, new)
    again = topics.TopicFacts(
        *["t", "BBBBBBBBBBBBBBBBBBBBBB", *[getattr(FACTS, name) for name in FACTS.__slots__][2:]]
    )
    with pytest.raises(SpoolError, match="of an earlier topic"):
        ChangeProducer(kafka, again, spool=path)


def test_a_symbolic_link_leads_to_the_same_lock(new: Open, path: Path) -> None:
    """PUB-3."""
    link = path.with_name("link")
    link.symlink_to(path)
    with new(), pytest.raises(SpoolError, match="Another producer uses"):
        new(spool=link)
    with new(spool=link):
        assert spool_repair.status(path).is_in_use
    path.unlink()
    path.symlink_to(link)
    with pytest.raises(SpoolError):
        new()


def test_a_lock_for_a_moment_does_not_keep_a_producer_out(new: Open, path: Path) -> None:
    """PUB-3: `connector spool show` looks whether a producer uses the spool."""
    new().close()
    lock = spool_file.lock_of(path)
    threading.Timer(0.03, os.close, (lock,)).start()
    new().close()


def test_a_row_with_a_damaged_number_is_a_missing_record(
    cluster: MockCluster, new: Open, path: Path
) -> None:
    """PUB-3: its number is that of no record, so it is not waited for."""
    fill(cluster, new)
    damage(path, f"UPDATE records SET number = {2**62} WHERE number = 100")
    assert describe(spool_repair.status(path).losses) == [(100, 100, "missing")]
    cluster.start()
    with new() as producer:
        producer.flush()
        assert spooled(producer) == 0
    assert describe(spool_repair.accept(path)) == [(100, 100, "missing")]
    new().close()


def test_a_transactional_producer_has_no_spool(new: Open) -> None:
    """PUB-3: committed would mean on my disk."""
    with pytest.raises(ConfigError, match="cannot have a spool"):
        new(transactional_id="x")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spool_max_bytes", 1),
        ("spool_after_s", 0),
        ("spool_full", "drop"),
        ("spool_sync", "off"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused(new: Open, name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        new(**{name: value})


def test_a_producer_starts_while_kafka_is_away_if_it_knows_the_topic(
    cluster: MockCluster, new: Open, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PUB-3: it sends only once Kafka has said that the topic is the same."""
    kafka = KafkaConfig(cluster.bootstrap_servers, SETTINGS)
    answers: list[topics.TopicFacts | BrokerError] = []

    def describe(*_: object) -> topics.TopicFacts:
        if not answers or isinstance(answers[-1], BrokerError):
            raise BrokerError("BROKER_UNREACHABLE", "away")
        return answers[-1]

    monkeypatch.setattr(topics, "describe", describe)
    monkeypatch.setattr("connector.kafka.produce.spool.VERIFY_EVERY_S", 0.05)
    with pytest.raises(BrokerError):
        ChangeProducer(kafka, "t", spool=path)
    with new(spool_sync="full") as producer:
        producer.send(change(0))
    with ChangeProducer(kafka, "t", spool=path, spool_after_s=0.1) as producer:
        assert producer.kafka_partitions == FACTS.kafka_partitions
        cluster.stop()
        producer.send(change(1))
        producer.flush(to_disk=True)
        answers.append(FACTS)
        cluster.start()
        producer.flush()
    check_topic(cluster, 2)


def test_the_check_of_order_can_fail() -> None:
    assert in_order_again([1, 2, 1, 2, 3]) == [1, 2, 1, 2, 3]
    assert in_order_again([1, 2, 1]) == []
    assert in_order_again([2, 1, 2]) == []
    assert in_order_again([1, 3, 2, 3]) == []


# ── files that are no spools, and damaged descriptions ────────────────────────────────────────────


def test_something_else_at_the_path_is_not_touched(new: Open, path: Path) -> None:
    """PUB-3: neither a folder, nor a file, nor a database of another program."""
    folder, text, database = (path.with_name(name) for name in ("folder", "text", "database"))
    (folder / "below").mkdir(parents=True)
    text.write_text("hi")
    with closing(sqlite3.connect(database)) as other:
        other.execute("CREATE TABLE t (x)")
    before = {one: one.read_bytes() for one in (text, database)}
    for other_path in (folder, text, database):
        for call in (spool_repair.accept, spool_repair.status, lambda at: new(spool=at)):
            with pytest.raises(SpoolError) as caught:
                call(other_path)
            assert caught.value.code == "FILE_NOT_A_SPOOL"
    assert {one: one.read_bytes() for one in (text, database)} == before
    assert sorted(one.name for one in path.parent.iterdir()) == ["database", "folder", "text"]


@pytest.mark.parametrize("number", [b"00000000000900000301", b"9" * 20, b"x"])
def test_a_damaged_number_in_the_lock_file_is_noticed(
    cluster: MockCluster, new: Open, path: Path, number: bytes
) -> None:
    """PUB-3: no loss is made of it, and `accept` keeps every record."""
    fill(cluster, new, 20)
    Path(f"{path}.lock").write_bytes(number)
    with pytest.raises(SpoolError, match=r"lock file|invalid literal"):
        new()
    assert spool_repair.accept(path) == ()
    assert spool_repair.status(path).records == 20


def test_a_damaged_description_costs_no_record(cluster: MockCluster, new: Open, path: Path) -> None:
    """PUB-3, nothing_lost: also a second time, and the first damaged file stays."""
    fill(cluster, new, 20)
    for names in ({"spool.db.damaged"}, {"spool.db.damaged", "spool.db.damaged-2"}):
        damage(path, "UPDATE spool SET checksum = 0")
        assert spool_repair.accept(path) == ()
        assert spool_repair.status(path).records == 20
        kept = {one.name for one in path.parent.glob("*.damaged*")}
        assert {name for name in kept if not name.endswith(("-wal", "-shm"))} == names


def test_a_spool_of_a_newer_release_is_left_alone(
    cluster: MockCluster, new: Open, path: Path
) -> None:
    """PUB-3: its records are whole."""
    fill(cluster, new, 5)
    with closing(sqlite3.connect(path)) as database:
        ((content,),) = database.execute("SELECT content FROM spool").fetchall()
        newer = content.replace('"format": 1', '"format": 2')
        assert newer != content
        given = (newer, zlib.crc32(newer.encode()))
        database.execute("UPDATE spool SET content = ?, checksum = ?", given)
        database.commit()
    for call in (spool_repair.accept, spool_repair.status, lambda _: new()):
        with pytest.raises(SpoolError) as caught:
            call(path)
        assert caught.value.code == "SPOOL_FORMAT_UNKNOWN"
    assert not list(path.parent.glob("*.damaged"))


def test_a_spool_that_is_gone_is_a_loss(cluster: MockCluster, new: Open, path: Path) -> None:
    """PUB-3: the lock file knows how many records were promised."""
    fill(cluster, new, 20)
    for name in ("spool.db", "spool.db-wal", "spool.db-shm"):
        path.with_name(name).unlink(missing_ok=True)
    path.touch()
    with closing(sqlite3.connect(path)) as database:
        database.executescript(spool_file._TABLES)
    assert describe(spool_repair.status(path).losses) == [(1, 20, "missing")]
    assert describe(spool_repair.accept(path)) == [(1, 20, "missing")]
    assert spool_repair.status(path).losses == ()


def describe(losses: Sequence[Loss]) -> list[tuple[int, int, str]]:
    return [(loss.first, loss.last, loss.why) for loss in losses]


def test_a_file_that_is_removed_while_it_is_used_is_no_safe_place(
    cluster: MockCluster, new: Open, path: Path
) -> None:
    """PUB-3: `flush(to_disk=True)` says so."""
    producer = new(announce=False)
    cluster.stop()
    producer.send(change(1))
    producer.flush(to_disk=True)
    path.rename(path.with_name("away"))
    producer.send(change(2))
    with pytest.raises(SpoolError, match=r"removed or replaced|No such file"):
        producer.flush(to_disk=True)
    path.with_name("away").rename(path)
    with pytest.raises(DeliveryError):
        producer.close(0.1)


@pytest.mark.parametrize(
    "arguments",
    [
        {"spool_after_s": "1"},
        {"spool_after_s": None},
        {"spool_max_bytes": "x"},
        {"spool_max_bytes": None},
        {"spool": "a\0b"},
        {"spool": 5},
    ],
)
def test_arguments_of_a_wrong_type_are_errors(new: Open, arguments: dict[str, object]) -> None:
    """PUB-3."""
    with pytest.raises(ConfigError):
        new(**arguments)
