"""A bridge on a real broker: the records of foreign topics become changes (SRC-1)."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from connector.config.settings import ConnectorConfig, KafkaConfig
from connector.kafka import topics
from connector.kafka.client import records_between
from connector.records.codec import ChangeRecord, Schemas, decode
from connector.records.model import MAX_INT, DataChange, Heartbeat, Record, SetCell
from connector.services import load_config, run_bridge
from tests.broker import NewTopic
from tests.documents import ROOT
from tests.integration.bridge_process import STEPS
from tests.integration.foreign_topics import START_US, ForeignTopics, foreign_topics


@pytest.fixture
def source(kafka: KafkaConfig, admin: AdminClient) -> Iterator[ForeignTopics]:
    with foreign_topics(kafka, admin) as made:
        for table in ("a", "b"):
            made.create(f"public.{table}", 2)
        made.create("public.beat")
        made.create("transaction")
        yield made


@pytest.fixture
def config(source: ForeignTopics, new_topic: NewTopic, tmp_path: Path) -> ConnectorConfig:
    return config_of(source, new_topic(kafka_partitions=2).topic, tmp_path)


def config_of(source: ForeignTopics, topic: str, folder: Path) -> ConnectorConfig:
    """The configuration of a bridge, also as `connector.toml` of the folder."""
    folder.mkdir(exist_ok=True)
    (folder / "connector.toml").write_text(
        f"""warehouse = "w"
[kafka]
bootstrap_servers = "{source.kafka.bootstrap_servers}"
"fetch.wait.max.ms" = "10"
[streams.shop]
topic = "{topic}"
[streams.shop.source]
format = "debezium-json"
topics = ["{source.prefix}.public.*"]
transactions = "{source.prefix}.transaction"
heartbeats = "public.beat"
"""
    )
    return load_config(folder / "connector.toml", {})


def sent(config: ConnectorConfig) -> list[ChangeRecord]:
    """All records of the change topic. A control record is in each Kafka partition."""
    facts = topics.describe(config.kafka, config.streams["shop"].topic)
    ends = topics.end_offsets(config.kafka, facts)
    read = records_between(
        config.kafka, facts.topic, facts.topic_id, {k: (0, end) for k, end in ends.items()}
    )
    decoded = [decode(r.value, Schemas(), kafka_partitions=MAX_INT) for r in read]
    return [record for record in decoded if isinstance(record, ChangeRecord)]


def records(config: ConnectorConfig) -> list[Record]:
    return [record.record for record in sent(config)]


def changes(config: ConnectorConfig) -> list[DataChange]:
    return sorted(
        (record for record in records(config) if isinstance(record, DataChange)),
        key=lambda change: (change.commit_timestamp, change.tie_breaker),
    )


def cells(change: DataChange) -> dict[str, str]:
    return {
        entry.qualifier.decode(): entry.value.decode()
        for entry in change.entries
        if isinstance(entry, SetCell) and entry.value
    }


def test_transactions_of_a_source_become_changes(
    source: ForeignTopics, config: ConnectorConfig
) -> None:
    """SRC-1, SRC-2: with the initial snapshot before them, and one commit timestamp each."""
    source.snapshot("a", [{"id": 1, "n": "one"}, {"id": 2, "n": "two"}])
    source.commit(("a", 1, {"n": "uno"}), ("b", 7, {"m": 1}))
    source.commit(("a", 2, None))
    source.commit(("beat", 1, {"at": "x"}))
    counts = run_bridge(config, "shop", once=True)
    made = changes(config)
    assert counts.changes == len(made) == 5
    assert [change.table[-1] for change in made] == ["a", "a", "a", "b", "a"]
    assert {cells(change)["n"] for change in made[:2]} == {"one", "two"}
    first, second = made[2:4]
    assert (cells(first), cells(second)) == ({"n": "uno"}, {"m": "1"})
    assert first.commit_timestamp == second.commit_timestamp == START_US + 1_000_000
    assert first.transaction is not None
    assert first.transaction.number_of_records_in_transaction == 2
    assert not cells(made[4])
    newest = max(r.timestamp for r in records(config) if isinstance(r, Heartbeat))
    assert newest == START_US + 3_000_000

    assert run_bridge(config, "shop", once=True).changes == 0
    source.commit(("b", 8, {"m": 2}))
    assert run_bridge(config, "shop", once=True).changes == 1


def test_a_bridge_that_is_killed_anywhere_publishes_the_same_changes(
    source: ForeignTopics, config: ConnectorConfig, new_topic: NewTopic, tmp_path: Path, seed: int
) -> None:
    """resumable, nothing_lost, nothing_invented: killed after any kind of step, and run again,
    it publishes what a bridge publishes that was never killed. SRC-1.
    """
    chosen = random.Random(seed)
    source.snapshot("a", [{"id": number, "n": "s"} for number in range(5)])
    for number in range(12):
        rows = [
            (chosen.choice("ab"), chosen.randrange(6), {"n": str(number)})
            for _ in range(chosen.randint(1, 4))
        ]
        source.commit(*{(table, id_): (table, id_, row) for table, id_, row in rows}.values())
        if number % 4 == 3:
            source.commit(("beat", 1, {"at": str(number)}))
    assert run(tmp_path, "never", 1) == 0
    expected = {change_of(change): change for change in changes(config)}

    for step in STEPS:
        folder = tmp_path / step
        other = config_of(source, new_topic(kafka_partitions=3).topic, folder)
        assert run(folder, step, 1) == -signal.SIGKILL, step
        run(folder, step, chosen.randint(2, 20))
        assert run(folder, "never", 1) == 0
        assert {change_of(change): change for change in changes(other)} == expected, step


def run(folder: Path, step: str, count: int) -> int:
    """The exit code of a bridge that is killed after so many such steps."""
    command = [sys.executable, "-m", "tests.integration.bridge_process"]
    arguments = [str(folder / "connector.toml"), step, str(count)]
    ended = subprocess.run([*command, *arguments], cwd=ROOT, timeout=120, check=False)
    return ended.returncode


def change_of(change: DataChange) -> tuple[str, bytes, int, int]:
    return change.table, change.row_key, change.commit_timestamp, change.tie_breaker
