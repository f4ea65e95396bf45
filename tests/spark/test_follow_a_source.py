"""A bridge and a running pipeline: the tables of a source follow it (SRC-1, SRC-5)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
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
from connector.services import ConfigFile, load_config, run, run_bridge, status
from connector.warehouse import table as table_path
from tests.broker import NewTopic
from tests.integration.foreign_topics import ForeignTopics, foreign_topics

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
