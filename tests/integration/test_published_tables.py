"""Definitions of tables on a real broker (EVO-1)."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace

import pytest

from connector.config.settings import KafkaConfig
from connector.errors import RowErrors, TopicError
from connector.kafka import (
    ChangeConsumer,
    ChangeProducer,
    TableWriter,
    WriteSession,
    published_tables,
    table_writer,
    topics,
)
from connector.kafka.tables import publish_tables
from connector.records.model import DataChange, SetCell
from connector.tables.definition import Column
from connector.tables.keys import Key, KeyPart
from connector.tables.published import PublishedTable
from connector.tables.values import DataType
from tests.broker import NewTopic
from tests.integration.test_topics import make_plain
from tests.spark.streams import definition

LOOK_EVERY_S = 4.0
"""Longer than a definition takes to be published on a busy machine."""


def published(
    kafka: KafkaConfig, topic: str, table: PublishedTable, *, take_over: bool = False
) -> bool:
    """Whether a call publishes the definition."""
    facts = topics.create_tables_topic(kafka, topic)
    before = topics.end_offsets(kafka, facts)
    for error in publish_tables(kafka, topic, [table], take_over=take_over).values():
        raise error
    return topics.end_offsets(kafka, facts) != before


def test_the_newest_definition_of_each_table_is_read(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """EVO-1: of two warehouses, the second one replaces nothing, unless it takes over."""
    topic = new_topic(kafka_partitions=2).topic
    assert topics.describe(kafka, f"{topic}.tables").cleanup_policy == "compact"
    assert published_tables(kafka, topic) == {}
    accounts, other = (
        definition(name, buckets=1, presence_family="f") for name in ("accounts", "other")
    )
    first = PublishedTable("id-1", 1, accounts)
    assert published(kafka, topic, first)
    assert published(kafka, topic, PublishedTable("id-2", 1, other))
    assert not published(kafka, topic, first)
    newer = replace(first, version=2, definition=replace(accounts, columns=accounts.columns[:1]))
    assert published(kafka, topic, newer)
    assert not published(kafka, topic, first), "an older one replaces nothing"
    assert published_tables(kafka, topic)["accounts"] == newer

    of_second = PublishedTable("id-3", 1, accounts)
    with pytest.raises(TopicError, match="another table accounts") as caught:
        published(kafka, topic, of_second)
    assert "take_over" in caught.value.remedy
    assert published_tables(kafka, topic)["accounts"] == newer
    assert published(kafka, topic, of_second, take_over=True)
    assert published_tables(kafka, topic) == {
        "accounts": of_second,
        "other": PublishedTable("id-2", 1, other),
    }


def test_a_missing_topic_is_created(kafka: KafkaConfig, admin) -> None:  # type: ignore[no-untyped-def]
    """EVO-1: a change topic that another tool created has none."""
    topic = make_plain(admin)
    with pytest.raises(TopicError):
        published_tables(kafka, topic)
    assert published(kafka, topic, PublishedTable("id-1", 1, definition()))
    assert published_tables(kafka, topic)["accounts"].version == 1


@pytest.mark.parametrize("through", ["producer", "write stream"])
def test_a_writer_takes_a_column_that_was_published(
    kafka: KafkaConfig, new_topic: NewTopic, through: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EVO-5, worked example 2: version 4 has the column `colour`. Before it is published, the row
    is refused and nothing is sent.
    """
    monkeypatch.setattr(table_writer, "LOOK_EVERY_S", LOOK_EVERY_S)
    topic = new_topic(kafka_partitions=2).topic
    table = replace(definition(buckets=1), key=Key((KeyPart("id", DataType.INT64),)))
    colour = Column("colour", "f", b"colour", DataType.STRING)
    newer = replace(table, columns=(*table.columns, colour))
    row = {"id": 7, "colour": "red"}
    with ExitStack() as stack:
        if through == "producer":
            producer = stack.enter_context(ChangeProducer(kafka, topic))
            writer = TableWriter(producer, table, stream_partition="p")
        else:
            session = stack.enter_context(WriteSession(kafka, topic, "rows"))
            writer = TableWriter(session.stream("committed", kind="committed"), table)  # type: ignore[assignment]
        with pytest.raises(RowErrors) as caught:
            writer.append([row])
        assert {index: error.field for index, error in caught.value.errors.items()} == {0: "colour"}
        publish_tables(kafka, topic, [PublishedTable("id-1", 4, newer)])
        with pytest.raises(RowErrors):
            writer.append([row])  # definitions are read once in `LOOK_EVERY_S`
        time.sleep(LOOK_EVERY_S)
        writer.append([row])
        assert (writer.updated_schema, writer.table.columns[-1]) == (4, colour)
        writer.upsert({"id": 8})
    with ChangeConsumer(kafka, topic, bounded=True) as consumer:
        changes = [item.record for item in consumer if isinstance(item.record, DataChange)]
    cells = {(c.row_key, e.qualifier) for c in changes for e in c.entries if isinstance(e, SetCell)}
    assert {key for key, qualifier in cells if qualifier == b"colour"} == {
        table.key.write_key((7,)),
    }
    assert {key for key, _ in cells} == {table.key.write_key((number,)) for number in (7, 8)}
