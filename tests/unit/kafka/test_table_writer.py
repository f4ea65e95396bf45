"""Rows through a producer and a write stream, on librdkafka's mock cluster (EVO-4, EVO-5)."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from connector.clock import now_us
from connector.config.settings import KafkaConfig
from connector.errors import ConfigError, InvalidChangeError, RowErrors
from connector.errors.kafka import broker_unreachable
from connector.kafka import (
    ChangeConsumer,
    ChangeProducer,
    TableWriter,
    WriteSession,
    table_writer,
    topics,
)
from connector.kafka.tables import publish_tables
from connector.records.model import DataChange, DeleteFamily, SetCell
from connector.tables.definition import Column, TableDefinition
from connector.tables.keys import Key, KeyPart
from connector.tables.presence import PRESENCE_QUALIFIER, presence_mark
from connector.tables.published import PublishedTable, tables_topic
from connector.tables.row_entries import Unknown
from connector.tables.values import DataType
from connector.write_streams.model import catalog_topic
from tests.unit.mock_cluster import FACTS, MockCluster, answer_topic_requests

CATALOG = replace(FACTS, topic=catalog_topic("t"), kafka_partitions=1, cleanup_policy="compact")
TABLES = replace(CATALOG, topic=tables_topic("t"))
TABLE = TableDefinition(
    name="orders",
    stream="s",
    source="shop.orders",
    key=Key((KeyPart("id", DataType.STRING),)),
    columns=(Column("total", "f", b"t", DataType.NUMERIC),),
)


@pytest.fixture
def topic(cluster: MockCluster, monkeypatch: pytest.MonkeyPatch) -> KafkaConfig:
    cluster.create_topic(CATALOG.topic, 1)
    answer_topic_requests(FACTS, CATALOG, patch=monkeypatch.setattr)
    return cluster.kafka


def changes(kafka: KafkaConfig) -> list[DataChange]:
    """The changes of the topic, in the order of their times."""
    with ChangeConsumer(kafka, "t", bounded=True) as consumer:
        records = [received.record for received in consumer]
    found = [record for record in records if isinstance(record, DataChange)]
    return sorted(found, key=lambda change: change.commit_timestamp)


def test_rows_become_changes_of_a_producer(topic: KafkaConfig) -> None:
    """EVO-4, EVO-12: cells, the presence mark, and times that rise."""
    before = now_us()
    with ChangeProducer(topic, FACTS) as producer:
        writer = TableWriter(producer, TABLE, stream_partition="p")
        first = writer.upsert({"id": "a", "total": 1.5})
        second = writer.append([{"id": "b", "total": None}, {"id": "c"}], tie_breaker=3)
        third = writer.delete("a")
        fourth = writer.upsert({"id": "a"}, commit_timestamp=third + 10)
        assert before <= first < second < third < fourth == third + 10
        producer.reached("p", fourth)
    upsert, *both, delete, last = changes(topic)
    assert (upsert.table, upsert.row_key, upsert.commit_timestamp) == ("shop.orders", b"a", first)
    assert upsert.entries == (SetCell("f", b"t", b"1.5", first), presence_mark("f"))
    assert {change.row_key for change in both} == {b"b", b"c"}
    assert {(change.commit_timestamp, change.tie_breaker) for change in both} == {(second, 3)}
    assert (delete.row_key, delete.entries) == (b"a", (DeleteFamily("f"),))
    assert last.entries == (presence_mark("f"),)


def test_a_refused_row_refuses_its_batch(topic: KafkaConfig) -> None:
    """EVO-4, EVO-5, EVO-6, `poison_is_contained`: each bad row is named; nothing is sent."""
    rows: list[Any] = [{"id": "a"}, {"id": "b", "colour": "red"}, {"id": "c", "total": "x"}, {}]
    rows += [7, None, [("id", "a")], {"id": "d", "total": [10**5_000]}]
    with ChangeProducer(topic, FACTS) as producer:
        writer = TableWriter(producer, TABLE, stream_partition="p")
        with pytest.raises(RowErrors) as caught:
            writer.append(rows)
        errors = caught.value.errors
        assert {index: error.field for index, error in errors.items()} == {
            1: "colour",
            2: "total",
            3: "id",
            4: "row",
            5: "row",
            6: "row",
            7: "total",
        }
        assert "at index 2 is invalid: total is 'x', but must be NUMERIC: " in str(caught.value)
        with pytest.raises(RowErrors, match="colour is 'red'"):
            writer.upsert(rows[1])
        with pytest.raises(RowErrors, match="total is 'x'"):
            writer.upsert(rows[2])
        dropping = TableWriter(producer, TABLE, stream_partition="p", unknown="drop")
        dropping.upsert(rows[1])
        assert dropping.unknown_fields == {"colour": 1}
    assert [change.row_key for change in changes(topic)] == [b"b"]


def test_rows_become_rows_of_a_write_stream(topic: KafkaConfig) -> None:
    """EVO-4, WRS-5, `exactly_once`: at an offset, a repeated append changes nothing."""
    rows = [{"id": "a", "total": 1}, {"id": "b"}]
    with WriteSession(topic, FACTS, "job") as session:
        writer = TableWriter(session.stream("rows", kind="committed"), TABLE)
        assert writer.append(rows, offset=0, commit_timestamp=5).result(10).rows == 2
        assert writer.append(rows, offset=0, commit_timestamp=5).result(10).repeated == 2
        assert writer.upsert(rows[0]).result(10).offset == 2
        assert writer.delete("a").result(10).offset == 3
        pending = TableWriter(session.stream("later", kind="pending"), TABLE)
        pending.append(rows).result(10)
        with pytest.raises(ConfigError, match="commit_timestamp"):
            pending.upsert(rows[0], commit_timestamp=5)
        with pytest.raises(RowErrors, match="total is 'x'"):
            writer.append([{"id": "a", "total": "x"}])


def test_wrong_arguments(topic: KafkaConfig) -> None:
    """EVO-4: with what is allowed."""
    with ChangeProducer(topic, FACTS) as producer, WriteSession(topic, FACTS, "job") as session:
        stream = session.stream("rows", kind="committed")
        wrong: list[tuple[Any, dict[str, Any]]] = [
            (producer, {}),
            (stream, {"stream_partition": "p"}),
            (producer, {"stream_partition": "p", "missing": "skip"}),
            (producer, {"stream_partition": "p", "unknown": "ignore"}),
        ]
        for target, arguments in wrong:
            with pytest.raises(ConfigError):
                TableWriter(target, TABLE, **arguments)
        with pytest.raises(ConfigError, match="offset"):
            TableWriter(producer, TABLE, stream_partition="p").append([{"id": "a"}], offset=0)


def test_a_limit_of_records_is_an_error_of_the_row(topic: KafkaConfig) -> None:
    """REC-14: for example a negative time."""
    with ChangeProducer(topic, FACTS) as producer:
        writer = TableWriter(producer, TABLE, stream_partition="p")
        with pytest.raises(RowErrors) as caught:
            writer.upsert({"id": "a"}, commit_timestamp=-1)
        assert isinstance(caught.value.errors[0], InvalidChangeError)


FIRST = Column("first", "g", b"1", DataType.STRING)
SECOND = Column("second", "f", b"2", DataType.INT64)
MADE = PublishedTable(
    "id-1", 3, replace(TABLE, columns=(FIRST, *TABLE.columns, SECOND), presence_family="g")
)
"""The table was made with another first column, which the configuration of the program lacks."""


@pytest.fixture
def made(cluster: MockCluster, monkeypatch: pytest.MonkeyPatch) -> KafkaConfig:
    """The topics of a table whose definition is published."""
    for facts in (TABLES, CATALOG):
        cluster.create_topic(facts.topic, 1)
    answer_topic_requests(FACTS, TABLES, CATALOG, patch=monkeypatch.setattr)
    monkeypatch.setattr(topics, "create_tables_topic", lambda *_: TABLES)
    publish_tables(cluster.kafka, "t", [MADE])
    return cluster.kafka


def test_a_writer_uses_the_families_that_the_table_has(
    made: KafkaConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EVO-4, EVO-12: the mark stays in the family of the table, and a delete is in its families,
    too.
    """
    with ChangeProducer(made, FACTS) as producer:
        writer = TableWriter(producer, TABLE, stream_partition="p")
        writer.upsert({"id": "a"})
        monkeypatch.setattr(ChangeProducer, "published_tables", pytest.fail)
        writer.delete("a")
        assert (writer.updated_schema, writer.table.columns) == (None, TABLE.columns)
    upsert, delete = changes(made)
    assert upsert.entries == (presence_mark("g"),)
    assert delete.entries == (DeleteFamily("f"), DeleteFamily("g"))


@pytest.mark.parametrize("through", ["producer", "write stream"])
@pytest.mark.parametrize("unknown", Unknown)
def test_a_field_of_a_definition_that_was_read_is_never_unknown(
    made: KafkaConfig, monkeypatch: pytest.MonkeyPatch, unknown: Unknown, through: str
) -> None:
    """EVO-5, nothing_lost: in every order of rows, within the second in which the definition is not
    read again.
    """
    monkeypatch.setattr(table_writer, "LOOK_EVERY_S", 3600.0)
    rows: list[dict[str, Any]] = [{}, {"first": "x"}, {"second": 7}, {"first": "y", "second": 8}]
    orders = list(permutations(rows))
    with ExitStack() as stack:
        producer = stack.enter_context(ChangeProducer(made, FACTS))
        session = stack.enter_context(WriteSession(made, FACTS, "job"))
        for number, order in enumerate(orders):
            writer: TableWriter[Any]
            if through == "producer":
                writer = TableWriter(producer, TABLE, stream_partition="p", unknown=unknown)
            else:
                stream = session.stream(f"rows-{number}", kind="committed")
                writer = TableWriter(stream, TABLE, unknown=unknown)
            for row in order:
                writer.upsert({"id": str(number), **row})
            assert (writer.updated_schema, writer.unknown_fields) == (3, {})
    found = Counter(
        (change.row_key, entry.family, entry.qualifier, entry.value)
        for change in changes(made)
        for entry in change.entries
        if isinstance(entry, SetCell) and entry.qualifier != PRESENCE_QUALIFIER
    )
    values = [("g", b"1", b"x"), ("f", b"2", b"7"), ("g", b"1", b"y"), ("f", b"2", b"8")]
    keys = [str(number).encode() for number in range(len(orders))]
    assert found == Counter((key, *value) for key in keys for value in values)


def test_a_definition_that_was_not_read_is_asked_for_again(
    made: KafkaConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """EVO-4, EVO-12: a row without unknown fields asks again, too, but not each row."""
    reads = list[str]()

    def published(producer: ChangeProducer) -> dict[str, PublishedTable]:
        reads.append("")
        if len(reads) == 1:
            raise broker_unreachable("broker:9092", "it does not answer")
        return {} if len(reads) == 2 else {"orders": MADE}

    monkeypatch.setattr(ChangeProducer, "published_tables", published)
    with ChangeProducer(made, FACTS) as producer:
        writer = TableWriter(producer, TABLE, stream_partition="p")
        writer.delete("a")
        writer.delete("a")
        assert len(reads) == 1
        monkeypatch.setattr(table_writer, "RETRY_EVERY_S", 0.0)
        for _ in range(3):
            writer.delete("a")
        assert len(reads) == 3
    assert [record.levelname for record in caplog.records if "not read" in record.message] == [
        "WARNING"
    ]
    families = [len(change.entries) for change in changes(made)]
    assert families == [1, 1, 1, 2, 2]
