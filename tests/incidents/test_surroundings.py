"""Incidents of what a pipeline stands on: Kafka, the disk, the process, and the warehouse."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import Producer

from connector import warehouse as paths
from connector.config.settings import KafkaConfig
from connector.kafka import topics
from connector.kafka.local.broker import LocalBroker
from connector.reports import reasons
from connector.services import process as process_records
from tests.golden.make_warehouse import EXPECTED, FOLDER, as_json
from tests.incidents.desk import Desk, until
from tests.spark.conftest import QUICK_PROCESS
from tests.spark.streams import account
from tests.spark.test_backup import shell
from tests.spark.test_pipeline import small_disk
from tests.spark.test_process import ENTRY, jvm_of

__all__ = ["small_disk"]
AGES = ("lowmark_stream_refresh_age", "lowmark_stream_lag_seconds", "lowmark_table_age")
DOWN = "PIPELINE_DOWN stream s"
WAITS = "PIPELINE_WAITS stream s"


def of(desk: Desk, broker: LocalBroker) -> Desk:
    return replace(desk, kafka=KafkaConfig(broker.bootstrap_servers), topic="orders")


@contextmanager
def process(desk: Desk, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`connector run` in a process of its own. Its log is its standard error."""
    command = [sys.executable, "-c", ENTRY, "--config", str(desk.write()), "run", *options]
    environment = os.environ | QUICK_PROCESS
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


def files_of(folder: Path | str) -> dict[Path, bytes]:
    """The files of a warehouse, without the history of jobs."""
    files = (
        file for file in Path(folder).rglob("*") if file.is_file() and "jobs" not in file.parts
    )
    return {file.relative_to(folder): file.read_bytes() for file in files}


def test_kafka_is_away_at_the_start(
    desk: Desk, own_broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/howto/on-call.md#lowmarknotrunning"""
    monkeypatch.setattr(reasons, "WAITS_LONG_US", 1)
    desk = of(desk, own_broker)
    desk.publish(account("a", 1, name="Ada"))
    own_broker.kill()
    with desk.running():
        not_made = [f"TABLE_STALE table {name}" for name in ("accounts", "copies")]
        desk.shows(WAITS, *not_made, alerts={"LowmarkNotRunning"}, log="WAITING")
        assert desk.does("connector validate") == 1
        assert "No Kafka broker answers" in desk.err
        own_broker.restart()
        until(lambda: desk.applied("accounts", "copies"))
        assert desk.has_logged("GOES_ON")
        assert desk.table() == desk.truth()
        desk.is_well()
    assert desk.error is None


@pytest.mark.long
def test_kafka_is_away_later(
    desk: Desk, own_broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/howto/on-call.md#lowmarkkafkasilent"""
    monkeypatch.setattr(reasons, "WAITS_LONG_US", 1)
    desk = of(desk, own_broker)
    desk.publish(account("a", 1, name="Ada"))
    with desk.running():
        until(lambda: desk.applied("accounts", "copies"))
        desk.is_well()
        own_broker.kill()
        expected = {"LowmarkKafkaSilent", "LowmarkLag", "LowmarkTableStale"}
        until(lambda: desk.alerts(*AGES) == expected)
        until(lambda: desk.has_logged("WAITING"), 300)
        assert desk.does("connector status --check") == 1
        assert WAITS in desk.out
        assert desk.does("connector read accounts --allow-stale") == 0
        own_broker.restart()
        desk.publish(account("b", 2, name="Bob"))
        until(lambda: desk.has_logged("GOES_ON"))
        until(lambda: desk.applied("accounts", "copies"))
        assert desk.table() == desk.truth()
        desk.is_well()
    assert desk.error is None


def test_a_full_disk(desk: Desk, small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/howto/on-call.md#lowmarkdiskfull"""
    desk = replace(desk, warehouse=small_disk / "warehouse")
    desk.publish(account("a", 1, name="Ada"))
    ballast = small_disk / "ballast"
    with desk.running():
        until(lambda: desk.applied("accounts", "copies"))
        desk.is_well("LowmarkDiskFull")
        with pytest.raises(OSError, match="No space"), ballast.open("wb") as file:
            while True:
                file.write(os.urandom(4096))
                file.flush()
        desk.publish(*(account(row, 2, name=row * 2000) for row in "abcdefgh"))
        until(desk.has_ended)
    assert desk.error is not None
    assert desk.error.code == "DISK_FULL"
    with monkeypatch.context() as patch:  # the process of the test lives on
        patch.setattr(process_records, "_is_alive", lambda pid: False)
        desk.shows(DOWN, alerts={"LowmarkDown"})
    assert desk.does("connector read accounts --allow-stale") == 0
    ballast.unlink()
    assert desk.does("connector run --once") == 0
    assert desk.table() == desk.truth()
    assert desk.does("connector status --check") == 0


@pytest.mark.long
def test_a_heap_that_is_too_small(desk: Desk) -> None:
    """docs/howto/on-call.md#lowmarkdown"""
    del desk.sections[1:]
    desk.publish(*(account(f"k{n}", n + 1, name=os.urandom(350_000).hex()) for n in range(400)))
    with process(desk, "--once", "--memory", "512m", "--cores", "1") as small:
        _, log = small.communicate(timeout=300)
    assert small.returncode == 1
    assert "code:   SPARK_SESSION_ENDED" in log
    assert "with a larger heap (driver_memory in [spark])" in log
    assert desk.alerts() == {"LowmarkDown"}
    assert desk.does("connector status --check") == 1
    assert DOWN in desk.out
    assert "SPARK_SESSION_ENDED" in desk.out
    with process(desk, "--once", "--memory", "2g") as large:
        assert large.wait(300) == 0
    table = paths.table(str(desk.warehouse), "accounts")
    assert desk.spark.read.format("delta").load(table).count() == 400
    assert desk.does("connector status --check") == 0


@pytest.mark.long
def test_two_pipelines(desk: Desk) -> None:
    """docs/howto/on-call.md#two-pipelines"""
    desk.publish(account("a", 1, name="Ada"))
    with desk.running():
        until(lambda: desk.applied("accounts", "copies"))
        desk.is_well()
        with process(desk, "--memory", "1g", "--cores", "1") as second:
            assert second.stderr is not None
            assert any("running; stop with" in line for line in second.stderr)
            both, numbers = (second.pid, jvm_of(second)), count(2)
            while second.poll() is None:  # it may not read yet
                for pid in both:
                    os.kill(pid, signal.SIGSTOP)
                desk.publish(account("b", next(numbers), name="Bob"))
                until(lambda: desk.applied("accounts", "copies"))
                for pid in both:
                    os.kill(pid, signal.SIGCONT)
                with suppress(subprocess.TimeoutExpired):
                    second.wait(20)
            log = second.stderr.read()
        assert second.returncode == 1
        assert "Two processes use the same warehouse" in log
        desk.publish(account("c", next(numbers), name="Cid"))
        until(lambda: desk.applied("accounts", "copies"))
        assert desk.table() == desk.truth()
        desk.is_well()
    assert desk.error is None


@pytest.mark.long
def test_an_old_backup(desk: Desk, tmp_path: Path) -> None:
    """docs/howto/on-call.md#a-restored-warehouse"""
    desk.publish(account("a", 1, name="Ada"))
    desk.send([(0, b"x", b"rubbish")])
    with desk.running():
        until(lambda: desk.applied("accounts", "copies"))
        until(Path(paths.jobs(str(desk.warehouse))).exists)
        shell(0, tmp_path)
        desk.publish(account("a", 2, name="Anna"), account("b", 3, name="Bob"))
        until(lambda: desk.applied("accounts", "copies"))
    truth, letters = desk.truth(), desk.letters()
    shutil.move(tmp_path / "warehouse", tmp_path / "lost")
    shell(1, tmp_path)
    assert desk.table() != truth
    desk.shows(DOWN, "DEAD_LETTERS stream s", alerts={"LowmarkDown"})
    with desk.running():
        until(lambda: desk.applied("accounts", "copies"))
        assert desk.table() == truth
    assert desk.letters() == letters
    assert desk.does("connector audit") == 0
    assert desk.error is None


def test_an_upgrade(desk: Desk) -> None:
    """docs/howto/on-call.md#a-new-version"""
    kept = json.loads(EXPECTED.read_text())
    facts = topics.create_topic(desk.kafka, f"{desk.topic}.golden", kafka_partitions=2)
    desk = replace(desk, topic=facts.topic)
    producer = Producer({"bootstrap.servers": desk.kafka.bootstrap_servers})
    for number, end in kept["read"].items():
        for _ in range(end):
            producer.produce(desk.topic, b"was read by the old version", b"k", int(number))
    assert producer.flush(30) == 0
    shutil.copytree(FOLDER, desk.warehouse)
    for log in Path(desk.warehouse).rglob("_delta_log/*.json"):
        log.write_text(log.read_text().replace("id-1", facts.topic_id))
    backup = shutil.copytree(desk.warehouse, desk.folder / "backup")
    desk.sections = desk.sections[:1]
    assert desk.does("connector read accounts --allow-stale") == 0
    assert files_of(desk.warehouse) == files_of(backup), "a read adds only a job"
    with desk.running():
        until(lambda: desk.applied("accounts"))
        assert as_json(desk.table()) == kept["merged"]
    assert desk.error is None

    newest = max(Path(paths.table(str(desk.warehouse), "accounts")).glob("_delta_log/*.json"))
    later = re.sub(r'(\\"to_batch\\":)\d+', r'\1\\"in a later form\\"', newest.read_text())
    newest.write_text(later)
    (newest.parent / f".{newest.name}.crc").unlink()  # Hadoop's checksum
    assert desk.does("connector read accounts --allow-stale") == 1
    assert "Use the release of lowmark that wrote the commit" in " ".join(desk.err.split())
    with desk.running():
        until(lambda: desk.stopped() == {"accounts": "COMMIT_UNREADABLE"})
        until(lambda: "LowmarkTableStopped" in desk.alerts())
        stopped = "TABLE_STOPPED table accounts: COMMIT_UNREADABLE"
        until(lambda: desk.does("connector status --check") == 1 and stopped in desk.out)
