"""A bridge on a real broker: the records of foreign topics become changes (SRC-1)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from connector.config.settings import ConnectorConfig, KafkaConfig, StreamConfig
from connector.kafka import topics
from connector.kafka.client import records_between
from connector.records.codec import ChangeRecord, Schemas, decode
from connector.records.model import MAX_INT, DataChange, Heartbeat, Record, SetCell
from connector.services import run_bridge
from tests.broker import NewTopic
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
    topic = new_topic(kafka_partitions=2).topic
    stream = StreamConfig(name="shop", topic=topic, source=source.config)
    return ConnectorConfig(str(tmp_path), source.kafka, streams={"shop": stream})


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
