"""Programs that end without `close`, as processes of their own (PUB-8)."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest

from connector.kafka import ChangeProducer, unclosed
from connector.kafka.produce.producer import CopyingProducer
from connector.kafka.topics import TopicFacts
from connector.kafka.unclosed import EXIT_TIMEOUT_S
from tests.changes import part
from tests.unit.kafka.unclosed_process import CATALOG, FACTS, LETTERS, ROWS
from tests.unit.mock_cluster import PRODUCE, MockCluster, offsets

MESSAGE_TOO_LARGE = 10


def end(servers: str, what: str, how: str, tmp_path: Path) -> tuple[int, str, float]:
    """Run the program, and return its exit code, its standard error, and its duration."""
    began = time.monotonic()
    program = [sys.executable, "-m", "tests.unit.kafka.unclosed_process", servers, what, how]
    environment = {**os.environ, "OUTBOX": str(tmp_path / "outbox")}
    ended = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60)
    return ended.returncode, ended.stderr, time.monotonic() - began


SYSTEMS = pytest.mark.systems
LONG = pytest.mark.long
ENDS = ["last line", "dropped", "thread", "worker", "exception", "sys.exit"]
DEAD = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("what", "facts", "how"),
    [
        ("producer", FACTS, "last line"),
        pytest.param("producer", FACTS, "dropped", marks=SYSTEMS),
        pytest.param("session", FACTS, "last line", marks=SYSTEMS),
        pytest.param("dead letters", LETTERS, "exception", marks=SYSTEMS),
        *(pytest.param("producer", FACTS, how, marks=LONG) for how in ENDS[2:]),
        *(pytest.param("session", FACTS, how, marks=LONG) for how in ("dropped", "exception")),
        pytest.param("dead letters", LETTERS, "last line", marks=LONG),
    ],
)
def test_sent_records_are_in_the_topic_however_the_program_ends(
    cluster: MockCluster, tmp_path: Path, what: str, facts: TopicFacts, how: str
) -> None:
    """PUB-8, nothing_lost: without `close`, the records would wait for a full batch or a pause."""
    cluster.create_topic(CATALOG.topic, 1)
    cluster.create_topic(LETTERS.topic, 2)
    code, stderr, _ = end(cluster.bootstrap_servers, what, how, tmp_path)
    assert sum(offsets(cluster.kafka, facts)[1].values()) >= ROWS, stderr
    assert "without `close`" not in stderr
    assert (code, "LookupError" in stderr) == ((1, True) if how == "exception" else (0, False)), (
        stderr
    )


@SYSTEMS
@pytest.mark.parametrize(
    "how",
    [
        "exception",
        *(pytest.param(how, marks=LONG) for how in ("last line", "dropped", "worker", "sys.exit")),
    ],
)
def test_a_program_that_loses_records_reports_their_number_and_exits_with_1(
    cluster: MockCluster, tmp_path: Path, how: str
) -> None:
    """PUB-8: Kafka refuses them. An exception of the program is still shown."""
    cluster.answer_with(PRODUCE, *[MESSAGE_TOO_LARGE] * 10)
    code, stderr, _ = end(cluster.bootstrap_servers, "producer", how, tmp_path)
    assert f"{ROWS} records were not delivered to t" in stderr, stderr
    assert stderr.count("without `close`") == 1
    assert (code, "LookupError" in stderr) == (1, how == "exception")


@SYSTEMS
def test_a_program_that_was_interrupted_ends_as_one(cluster: MockCluster, tmp_path: Path) -> None:
    """PUB-8: its own exit code stays, also if records are lost."""
    cluster.answer_with(PRODUCE, *[MESSAGE_TOO_LARGE] * 10)
    code, stderr, _ = end(cluster.bootstrap_servers, "producer", "interrupted", tmp_path)
    assert f"{ROWS} records were not delivered to t" in stderr, stderr
    assert code in (-signal.SIGINT, 128 + signal.SIGINT)


class Nothing:
    """An open object that has nothing to finish."""

    def finish(self, timeout_s: float) -> str:
        return ""

    def dropped(self) -> bool:
        return True

    def is_finished(self) -> bool:
        time.sleep(0.001)
        return True


def test_threads_may_open_close_and_drop_while_the_program_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PUB-8: otherwise nothing would be finished, or opening would fail."""
    monkeypatch.setattr(unclosed, "_watched", {})
    monkeypatch.setattr(unclosed, "_dropped", [])
    until, errors = time.monotonic() + 0.5, list[BaseException]()
    kept = Nothing()

    def work(*, closes: bool) -> None:
        try:
            while time.monotonic() < until:
                closed = unclosed.watch(kept if closes else Nothing(), Nothing())
                if closes:
                    closed()
        except BaseException as error:  # noqa: BLE001, the test reports it
            errors.append(error)

    threads = [
        threading.Thread(target=work, kwargs={"closes": number % 2 == 0}) for number in range(6)
    ]
    for thread in threads:
        thread.start()
    while time.monotonic() < until:
        assert unclosed._finish()
    for thread in threads:
        thread.join()
    assert errors == []


@SYSTEMS
@pytest.mark.parametrize(
    ("what", "how", "lost"),
    [
        ("producer", "last line", "50 records were not delivered to t"),
        pytest.param(
            *("producer with an outbox", "last line", "50 records for t are in the outbox"),
            marks=LONG,
        ),
    ],
)
def test_the_end_of_a_program_waits_for_kafka_for_a_limited_time(
    tmp_path: Path, what: str, how: str, lost: str
) -> None:
    """PUB-8, PUB-3: no broker answers. The records of an outbox are not lost."""
    code, stderr, duration = end(DEAD, what, how, tmp_path)
    assert lost in stderr, stderr
    assert code == 1
    assert EXIT_TIMEOUT_S < duration < EXIT_TIMEOUT_S + 25


@SYSTEMS
def test_an_open_transaction_is_lost_and_counted(cluster: MockCluster, tmp_path: Path) -> None:
    """PUB-8, REC-17: it is not committed without the end of its block."""
    code, stderr, _ = end(cluster.bootstrap_servers, "transaction", "last line", tmp_path)
    assert f"{ROWS} records were not delivered to t" in stderr, stderr
    assert code == 1


@SYSTEMS
@pytest.mark.parametrize(
    "how", ["exception", *(pytest.param(how, marks=LONG) for how in ("last line", "dropped"))]
)
def test_a_consumer_reports_how_many_records_its_group_reads_again(
    cluster: MockCluster, tmp_path: Path, how: str
) -> None:
    """PUB-8: it commits nothing, because it does not know what was handled. Nothing is lost."""
    code, stderr, _ = end(cluster.bootstrap_servers, "reader", how, tmp_path)
    assert "The group g reads up to 7 records of t again" in stderr, stderr
    assert code == (1 if how == "exception" else 0)


@SYSTEMS
def test_a_closed_producer_is_quiet(cluster: MockCluster, tmp_path: Path) -> None:
    """PUB-8: after `close`, nothing is left to do."""
    assert end(cluster.bootstrap_servers, "closed producer", "last line", tmp_path)[:2] == (0, "")


@SYSTEMS
def test_a_forked_process_finishes_nothing_of_its_parent(
    cluster: MockCluster, tmp_path: Path
) -> None:
    """PUB-8: the parent ends without exit handlers, so that all records would be its child's."""
    code, stderr, _ = end(cluster.bootstrap_servers, "producer", "forked", tmp_path)
    assert (code, stderr) == (0, "")
    assert sum(offsets(cluster.kafka, FACTS)[1].values()) == 0


def test_a_producer_is_not_kept_alive_nor_what_it_has_delivered(cluster: MockCluster) -> None:
    """PUB-8: a program that makes many producers and closes none does not grow."""
    for _ in range(3):
        producer = CopyingProducer(cluster.kafka, FACTS)
        producer.send(part(1))
        found = weakref.ref(producer)
        del producer
        gc.collect()
        assert found() is None
        deadline = time.monotonic() + 10
        while not all(one.is_finished() for one in unclosed._dropped):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    ChangeProducer(cluster.kafka, FACTS).close()
    assert not unclosed._dropped
