"""A bridge and a running pipeline: the tables of a source follow it (SRC-1, SRC-5)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from connector.config.settings import KafkaConfig
from connector.errors import TableError
from connector.events import Event
from connector.kafka.bridge import reader
from connector.lake.plain_table import open_table
from connector.services import ConfigFile, audit, load_config, run, run_bridge, status
from connector.warehouse import table as table_path
from tests.broker import NewTopic
from tests.integration.foreign_topics import ForeignTopics, foreign_topics
from tests.spark.conftest import QUICK_PROCESS

pytestmark = [pytest.mark.systems, pytest.mark.timeout(600)]

WAIT_S = 240
CONFIG = """
warehouse = "w"
[kafka]
bootstrap_servers = "{servers}"
"fetch.wait.max.ms" = "10"
[streams.shop]
topic = "{topic}"
trigger = "300ms"
[streams.shop.source]
format = "debezium-json"
topics = ["{prefix}.public.*"]
transactions = "{prefix}.transaction"
heartbeats = "public.beat"
[tables.renamed]
stream = "shop"
source = "public.b"
max_staleness = "3s"
columns = [{{ name = "amount", qualifier = "m" }}]
"""


@pytest.fixture
def source(kafka: KafkaConfig, admin: AdminClient) -> Iterator[ForeignTopics]:
    with foreign_topics(kafka, admin) as made:
        made.create("public.a", 2)
        made.create("public.b")
        made.create("public.beat")
        made.create("transaction")
        yield made


def rows(warehouse: str, table: str) -> dict[int, dict[str, Any]]:
    """The rows of a table by id. Empty: it does not exist."""
    try:
        opened = open_table(table_path(warehouse, table))
    except TableError:
        return {}
    found = (dict(zip(opened.types, row, strict=True)) for row in opened.rows())
    return {row["id"]: {k: v for k, v in row.items() if k != "_unmapped"} for row in found}


def test_tables_and_columns_of_a_source_appear_while_the_pipeline_runs(
    spark: SparkSession,
    source: ForeignTopics,
    new_topic: NewTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SRC-5, EVO-3, EVO-8: no restart, and no wait for the next look at the file."""
    monkeypatch.setattr(import_module("connector.services.run"), "READ_EVERY_S", 3600)
    monkeypatch.setattr(reader, "REFRESH_S", 0.5)
    file = tmp_path / "connector.toml"
    topic = new_topic(kafka_partitions=2).topic
    servers = source.kafka.bootstrap_servers
    file.write_text(CONFIG.format(servers=servers, topic=topic, prefix=source.prefix))
    config = load_config(file, {})
    assert config.tables == {}
    source.snapshot("a", [{"id": 1, "n": "one"}])
    source.commit(("a", 2, {"n": "two"}), ("b", 1, {"m": 5}))

    stop, failures, events = threading.Event(), list[BaseException](), list[Event]()

    def work(do: Any) -> None:
        try:
            do()
        except BaseException as error:  # noqa: BLE001, raised below
            failures.append(error)
            stop.set()

    def pipeline() -> None:
        run(ConfigFile(file, {}), spark=spark, stop=stop, on_event=events.append)

    def bridge() -> None:
        bare = load_config(file, {}, source_tables=False)
        run_bridge(bare, stop=stop, on_event=events.append)

    def wait_for(table: str, expected: dict[int, dict[str, Any]]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not failures and (found := rows(config.warehouse, table)) != expected:
            assert time.monotonic() < deadline, (found, events)
            time.sleep(0.2)

    threads = [threading.Thread(target=work, args=(do,)) for do in (pipeline, bridge)]
    for thread in threads:
        thread.start()
    try:
        wait_for("a", source.tables["a"])
        wait_for("renamed", {1: {"id": 1, "amount": 5}})
        source.commit(("a", 1, {"n": "one", "note": "new"}), ("a", 2, None))
        source.create("public.c")
        source.commit(("c", 7, {"x": True}))
        wait_for("a", source.tables["a"])
        wait_for("c", source.tables["c"])
    finally:
        stop.set()
        for thread in threads:
            thread.join(WAIT_S)
    assert not failures, failures
    report = status(load_config(file, {}))
    assert set(report.tables) == {"a", "c", "renamed"}
    assert report.reload_refused == []
    shop = report.streams["shop"].bridge
    assert shop is not None
    assert shop.lag == 0
    assert any(event.code == "RELOADED" for event in events)


@contextmanager
def run_with_bridge(folder: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """`connector run --bridge` as a command, in a process group of its own."""
    entry = "from connector.cli import main; main()"
    arguments = ("run", "--bridge", "--cores", "1", "--memory", "1g", *options)
    with (folder / "run.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", entry, "--config", str(folder / "connector.toml"), *arguments],
            env=os.environ | QUICK_PROCESS,
            stdin=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_run_with_its_bridge_is_killed_and_goes_on(
    source: ForeignTopics, new_topic: NewTopic, tmp_path: Path
) -> None:
    """SRC-1, resumable, nothing_lost: one process ends by SIGKILL, the next by itself."""
    topic, servers = new_topic(kafka_partitions=2).topic, source.kafka.bootstrap_servers
    file = tmp_path / "connector.toml"
    file.write_text(CONFIG.format(servers=servers, topic=topic, prefix=source.prefix))
    source.snapshot("a", [{"id": number, "n": "s"} for number in range(5)])
    source.commit(("a", 1, {"n": "one"}), ("b", 1, {"m": 5}))
    warehouse = load_config(file, {}).warehouse
    with run_with_bridge(tmp_path) as process:
        deadline = time.monotonic() + WAIT_S
        while rows(warehouse, "a") != source.tables["a"]:
            assert process.poll() is None, (tmp_path / "run.log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "run.log").read_text()
            time.sleep(0.1)
        for number in range(10):
            source.commit(("a", number, {"n": str(number)}), ("a", number + 1, None))
            source.commit(("b", 1, {"m": number}))
            if number == 5:
                process.kill()
    with run_with_bridge(tmp_path, "--once") as process:
        assert process.wait(WAIT_S) == 0, (tmp_path / "run.log").read_text()
    assert rows(warehouse, "a") == source.tables["a"]
    assert rows(warehouse, "renamed") == {1: {"id": 1, "amount": 9}}
    assert [proof.fault() for proof in audit(load_config(file, {}))] == [None]
