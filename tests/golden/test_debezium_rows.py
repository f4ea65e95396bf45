"""The events of a real Debezium are the rows that PostgreSQL had (SRC-3, SRC-5)."""

from __future__ import annotations

import csv
import struct
from collections.abc import Iterator
from decimal import Decimal
from functools import cache

import pytest

from connector.sources.columns import SourceTable
from connector.sources.debezium import DebeziumDecoder
from connector.sources.model import End, Event, Poison, Row, Skipped, TruncatedTable
from connector.sources.records import AvroFormat, JsonFormat
from connector.sources.tables import KnownTables
from connector.tables.conversions import converted
from connector.tables.nested import ArrayType
from connector.tables.values import DataType, Encoding, Unreadable, read_value
from tests.recorded_topics import Texts, recording, states

FORMATS = ("json", "json-schema", "avro")
TRANSACTIONS = "dbz.transaction"
BEAT = "public.beat"
OTHER_TEXTS = {"dur", "net", "code"}
"""Columns that PostgreSQL's text and Debezium's value show differently."""
ARRAYS = {"tags", "numbers"}
UNTYPED = {"born", "created_at", "local_at", "open_at", "at", "photo", "tags", "numbers"}
"""Columns with another text in JSON without a schema, where their type is not known."""


def decoder(name: str, tables: KnownTables | None = None) -> DebeziumDecoder:
    registry = recording(name).registry
    format_ = AvroFormat(registry.get) if name == "avro" else JsonFormat()
    tables = KnownTables() if tables is None else tables
    return DebeziumDecoder(format_, tables, transactions=TRANSACTIONS, heartbeats=BEAT)


@cache
def decoded(name: str) -> tuple[list[Event], dict[str, SourceTable]]:
    tables = KnownTables()
    reader = decoder(name, tables)
    return [reader.decode(record) for record in recording(name).records], tables.tables


def transactions(name: str) -> dict[str, dict[int, Event]]:
    """The events of each transaction by their sequence. Repetitions are equal."""
    found: dict[str, dict[int, Event]] = {}
    for event in decoded(name)[0]:
        if isinstance(event, Row | TruncatedTable | Skipped) and event.commit.transaction:
            of_transaction = found.setdefault(event.commit.transaction, {})
            before = of_transaction.setdefault(event.commit.sequence, event)
            assert before == event
    return found


@pytest.mark.parametrize("name", FORMATS)
def test_every_record_is_read(name: str) -> None:
    """SRC-3: no record of Debezium is poison, and tables without a key are named."""
    events = decoded(name)[0]
    assert not [event for event in events if isinstance(event, Poison)]
    left_out = {(e.rule, e.table) for e in events if isinstance(e, Skipped)}
    assert left_out == {
        *(("BEGIN", ""), ("TOMBSTONE", ""), ("HEARTBEAT", BEAT), ("NO_KEY", "public.logs"))
    }
    assert sum(isinstance(event, TruncatedTable) for event in events) == 2


@pytest.mark.parametrize("name", FORMATS)
def test_a_transaction_has_as_many_events_as_its_end_says(name: str) -> None:
    """SRC-3: rows, truncations, and what is left out."""
    of_transactions = transactions(name)
    for event in decoded(name)[0]:
        if isinstance(event, End):
            events = of_transactions.get(event.commit.transaction, {})
            assert sorted(events) == list(range(1, event.count + 1))
            assert sum(event.counts.values()) == event.count


@pytest.mark.parametrize("name", FORMATS)
def test_positions_tell_what_was_sent_again(name: str) -> None:
    """SRC-3: an event is before the end of its transaction, and not before the one before it."""
    ends = {e.commit.transaction: e.commit.after for e in decoded(name)[0] if isinstance(e, End)}
    order = sorted(ends, key=ends.__getitem__)
    for number, earlier in zip(order[1:], order, strict=False):
        for event in transactions(name).get(number, {}).values():
            assert isinstance(event, Row | TruncatedTable | Skipped)
            assert ends[earlier] <= event.commit.after < ends[number]


def rows_after(name: str) -> Iterator[tuple[Row, Texts | None]]:
    """The last event of each row in each transaction, and the row that PostgreSQL had then."""
    of_transactions = transactions(name)
    for state in states(name):
        last: dict[object, Row] = {}
        for _, event in sorted(of_transactions.get(state.transaction, {}).items()):
            if isinstance(event, Row) and event.table in state.tables:
                last[event.table, *map(str, event.key.values())] = event
            if isinstance(event, TruncatedTable):
                last = {key: row for key, row in last.items() if row.table != event.table}
        for row in last.values():
            key = tuple(str(row.key[name]) for name in state.keys[row.table])
            yield row, state.tables[row.table].get(key)


@pytest.mark.parametrize("name", FORMATS)
def test_an_event_is_the_row_that_postgresql_had(name: str) -> None:
    """SRC-3, SRC-5, nothing_lost, nothing_invented."""
    tables, compared, kept, unknown = decoded(name)[1], 0, 0, 0
    for row, truth in rows_after(name):
        assert row.deleted is (truth is None)
        if truth is None:
            continue
        columns = {column.cell: column for column in tables[row.table].columns}
        rest = set(truth) - set(row.key)
        for cell, value in row.cells.items():
            column = columns.get(cell)
            field = cell if column is None else column.field
            rest.discard(field)
            text = truth[field]
            assert value is None or text is not None, (field, value)
            assert value is not None or text is None or is_lost(text), (field, text)
            if value is not None and column is not None and text is not None:
                assert is_value(column.type, value, text, field), (field, value, text)
                compared += 1
        hidden = {name for name in row.missing if name in row.cells}
        assert hidden <= ARRAYS, "NULL, or a large array that did not change"
        assert rest == set(row.missing) - hidden or not row.whole, (row, rest)
        kept += not row.whole
        unknown += bool(hidden)
    assert compared > 300
    assert kept
    assert unknown


def is_lost(text: str) -> bool:
    """Debezium writes NULL for NaN in a numeric column, unless decimals are text."""
    return text in ("NaN", "Infinity", "-Infinity")


def is_value(type_: object, cell: bytes, text: str, field: str) -> bool:
    """Whether a cell has the value that PostgreSQL shows as this text."""
    if field in OTHER_TEXTS or (field in UNTYPED and type_ in (DataType.STRING, DataType.JSON)):
        return True
    if type_ is DataType.STRING and cell.decode() == text:
        return True
    assert isinstance(type_, DataType | ArrayType)
    value = read_value(type_, Encoding.TEXT, cell)
    if isinstance(value, Unreadable):
        beyond = ("infinity", "BC", "NaN", "Infinity", "24:00", "20000-")
        return any(what in text for what in beyond)
    if isinstance(type_, ArrayType):
        return [None if item is None else str(item) for item in value] == elements(text)  # type: ignore[attr-defined]
    if type_ is DataType.BYTES:
        return value == bytes.fromhex(text.removeprefix("\\x"))
    if type_ is DataType.JSON:
        return value == text
    if type_ in (DataType.NUMERIC, DataType.BIGNUMERIC):
        return Decimal(str(value)) == Decimal(text)
    if type_ is DataType.STRING:
        return cell in (b"NAN", b"POSITIVE_INFINITY") or Decimal(cell.decode()) == Decimal(text)
    if field == "weight":  # a number of four bytes
        return struct.pack("<f", value) == struct.pack("<f", float(text))
    return str(value) == str(converted(type_, text))


def elements(text: str) -> list[str | None]:
    """The elements of an array as PostgreSQL writes it."""
    if text == "{}":
        return []
    (items,) = csv.reader([text[1:-1]], escapechar="\\")
    return [None if item == "NULL" else item for item in items]


def test_json_with_a_schema_and_avro_have_the_same_tables() -> None:
    """SRC-5."""
    assert decoded("json-schema")[1] == decoded("avro")[1]


def test_the_types_of_the_columns_of_postgresql() -> None:
    """SRC-5: 24 columns of 20 types."""
    table = decoded("avro")[1]["public.customers"]
    types = {column.name: str(column.type) for column in table.columns}
    assert types == {
        **dict.fromkeys(("name", "email", "mood", "ref", "bio", "net", "code"), "STRING"),
        "credit": "NUMERIC",
        "ratio": "BIGNUMERIC",
        "born": "DATE",
        "created_at": "TIMESTAMP",
        "local_at": "DATETIME",
        "open_at": "TIME",
        "active": "BOOL",
        "small": "INT64",
        **dict.fromkeys(("score", "weight"), "FLOAT64"),
        "tags": "ARRAY<STRING>",
        "numbers": "ARRAY<INT64>",
        "photo": "BYTES",
        "dur": "INT64",
        **dict.fromkeys(("prefs", "raw"), "JSON"),
    }


def test_a_column_with_a_default_and_a_changed_type_are_news() -> None:
    """SRC-5: `ALTER TABLE` while it runs."""
    for name in ("json-schema", "avro"):
        tables = KnownTables()
        reader = decoder(name, tables)
        for record in recording(name).records:
            reader.decode(record)
        news = {each.table.source: each for each in tables.take_news()}
        assert news["public.words"].with_default == ("note",)
        (warning,) = news["public.wiped"].warnings
        assert "field v was STRING, is INT64" in warning
