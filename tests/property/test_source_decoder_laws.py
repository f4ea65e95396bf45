"""The decoders of a source, whatever the bytes (SRC-3, SRC-4, SRC-6)."""

from __future__ import annotations

import json
from decimal import Context, Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from connector.sources.changes import Changes
from connector.sources.columns import Shown, SourceTable, merged
from connector.sources.debezium import DebeziumDecoder
from connector.sources.model import (
    Decoder,
    End,
    Event,
    ForeignRecord,
    Poison,
    Released,
    Row,
    Skipped,
    TruncatedTable,
)
from connector.sources.records import AvroFormat, JsonFormat
from connector.sources.tables import KnownTables
from connector.sources.upsert import UpsertDecoder
from connector.sources.values import clock_text, day_text, decimal_text
from connector.tables.nested import type_of
from connector.tables.values import DataType, Encoding, read_value
from tests.examples import examples
from tests.foreign_records import (
    TIME,
    Typed,
    Writer,
    decimal,
    definition_of,
    number,
    raw,
    text,
    to_json,
)
from tests.recorded_topics import recording

RECORDED = {name: recording(name) for name in ("json", "json-schema", "avro")}
texts = st.text(st.characters(exclude_categories=["Cs"]))
numbers = st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def decoders(name: str) -> list[tuple[Decoder, KnownTables]]:
    read = AvroFormat(RECORDED["avro"].registry.get) if name == "avro" else JsonFormat()
    tables = KnownTables(), KnownTables()
    debezium = DebeziumDecoder(read, tables[0], transactions="t", heartbeats="public.beat")
    return [(debezium, tables[0]), (UpsertDecoder(read, tables[1]), tables[1])]


def check(record: ForeignRecord, event: Event, tables: KnownTables) -> None:
    """The event is one of the contract, and becomes a change or poison."""
    assert isinstance(event, Row | TruncatedTable | End | Skipped | Poison)
    assert all(isinstance(part, int) for part in event.commit.after)
    if isinstance(event, Row | TruncatedTable | Poison):
        table = tables.tables.get(event.table)
        maker = Changes(lambda _: None if table is None else definition_of(table))
        maker.change(Released(record, event, TIME, 0, 0))
    for table in tables.tables.values():
        assert SourceTable.from_section(json.loads(json.dumps(table.section()))) == table


@pytest.mark.parametrize("name", RECORDED)
@given(data=st.data())
@examples(1_000)
def test_any_bytes_are_an_event(name: str, data: st.DataObject) -> None:
    """SRC-6, poison_is_contained: recorded records with other bytes in them, or any bytes."""
    recorded = data.draw(st.sampled_from(RECORDED[name].records))

    def damaged(given: bytes | None) -> bytes | None:
        match data.draw(st.integers(0, 5)):
            case 0:
                return data.draw(st.none() | st.binary(max_size=40))
            case 1 if given:
                at = data.draw(st.integers(0, len(given) - 1))
                return given[:at] + data.draw(st.binary(max_size=3)) + given[at + 1 :]
            case 2 if given:
                return given[: data.draw(st.integers(0, len(given)))]
        return given

    topic = data.draw(st.sampled_from(["t", recorded.topic]))
    record = recorded._replace(
        topic=topic, key=damaged(recorded.key), value=damaged(recorded.value)
    )
    for decoder, tables in decoders(name):
        check(record, decoder.decode(record), tables)


@given(key=values, value=values, field=st.sampled_from(["op", "after", "source", "transaction"]))
@examples(1_000)
def test_any_json_is_an_event(key: Any, value: Any, field: str) -> None:
    """SRC-6, poison_is_contained."""
    envelope = {
        "op": "c",
        "after": value,
        "source": {"table": "t", "schema": "public"},
        field: value,
    }
    for payload in (value, envelope, {"schema": value, "payload": envelope}):
        record = ForeignRecord("x", 0, 1, TIME, to_json(key), to_json(payload))
        for decoder, tables in decoders("json"):
            check(record, decoder.decode(record), tables)


@given(schema=values)
@examples(500)
def test_any_schema_is_read_or_named(schema: Any) -> None:
    """SRC-6: a schema of the registry may be anything."""
    decoder = UpsertDecoder(AvroFormat(lambda _: json.dumps(schema)), KnownTables())
    event = decoder.decode(ForeignRecord("x", 0, 1, TIME, b"k", b"\x00\x00\x00\x00\x01\x02\x02a"))
    assert isinstance(event, Poison | Row)


@given(after=st.dictionaries(texts, values, max_size=5))
@examples(500)
def test_json_without_a_schema_loses_nothing(after: dict[str, Any]) -> None:
    """SRC-4, nothing_lost, nothing_invented: each field is a cell with its text."""
    event = UpsertDecoder(JsonFormat(), KnownTables()).decode(
        ForeignRecord("x", 0, 1, TIME, b"k", to_json(after))
    )
    after.pop("\x00row", None)
    assert isinstance(event, Row)
    assert event.cells.keys() - {"key"} == after.keys() - {"key"}
    for name, cell in event.cells.items():
        value = after[name]
        if isinstance(value, str) or value is None:
            assert cell == (None if value is None else value.encode())
        else:
            assert cell is not None
            assert json.loads(cell) == value


DAY_US = 86_400_000_000
fields = st.one_of(
    st.tuples(st.integers(-(2**63), 2**63 - 1).map(lambda v: number("f", v)), st.just("INT64")),
    st.tuples(texts.map(lambda v: text("f", v)), st.just("STRING")),
    st.tuples(st.binary(max_size=20).map(lambda v: raw("f", v)), st.just("BYTES")),
    st.tuples(
        st.booleans().map(lambda v: Typed("f", {"type": "boolean"}, "boolean", v)), st.just("BOOL")
    ),
    st.tuples(
        st.floats(allow_nan=False, allow_infinity=False).map(
            lambda v: Typed("f", {"type": "double"}, "double", v)
        ),
        st.just("FLOAT64"),
    ),
    st.tuples(
        st.integers(-(10**38) + 1, 10**38 - 1).map(lambda v: decimal("f", v, 38, 9)),
        st.just("NUMERIC"),
    ),
    st.tuples(
        st.integers(-719_162, 2_932_896).map(lambda v: number("f", v, "io.debezium.time.Date", 32)),
        st.just("DATE"),
    ),
    st.tuples(
        st.integers(-719_162 * DAY_US, 2_932_897 * DAY_US - 1).map(
            lambda v: number("f", v, "io.debezium.time.MicroTimestamp")
        ),
        st.just("DATETIME"),
    ),
)


@given(given_field=fields, format_=st.sampled_from(["json with schema", "avro"]))
@examples(2_000)
def test_a_value_comes_back(given_field: tuple[Typed, str], format_: str) -> None:
    """SRC-5, nothing_lost, nothing_invented: value → cell → value of the column's type."""
    field, type_ = given_field
    writer = Writer(format_, [number("id", 7)], [number("id", 7), field])
    read = AvroFormat(writer.registry.schema_of) if format_ == "avro" else JsonFormat()
    tables = KnownTables()
    event = DebeziumDecoder(read, tables).decode(writer.event("c"))
    assert isinstance(event, Row), event
    (column,) = tables.tables["public.customers"].columns
    assert column.type == type_of(type_)
    cell = event.cells["f"]
    if field.json == "__debezium_unavailable_value":
        return
    assert cell is not None
    value: Any = read_value(column.type, Encoding.TEXT, cell)
    if column.type is DataType.DATE:
        value = value.toordinal() - 719_163
    if column.type is DataType.NUMERIC:
        value = int(value.scaleb(9, _EXACT)).to_bytes(17, "big", signed=True)
        expected = int.from_bytes(field.raw, "big", signed=True).to_bytes(17, "big", signed=True)
        assert value == expected
    else:
        assert value == field.avro_value


_EXACT = Context(prec=60)


@given(unscaled=st.integers(), scale=st.integers(-30, 60))
@examples(500)
def test_a_decimal_is_its_text(unscaled: int, scale: int) -> None:
    """SRC-5: without zeros at its ends."""
    written = decimal_text(unscaled, scale).decode()
    assert Decimal(written) == Decimal((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -scale))
    assert written == "0" or not written.startswith(("0", "-0")) or "." in written


@given(days=st.integers(-(2**40), 2**40))
@examples(500)
def test_days_are_in_order(days: int) -> None:
    """SRC-5: each day has a text of its own, also beyond the years of a DATE."""
    today, tomorrow = day_text(days), day_text(days + 1)
    assert today != tomorrow
    assert day_text(days + 146_097)[-5:] == today[-5:]


@given(micros=st.integers(-(2**63), 2**63))
@examples(500)
def test_clocks_are_read_back(micros: int) -> None:
    written = clock_text(micros)
    hours, minutes, seconds = written.lstrip("-").split(":")
    total = (int(hours) * 60 + int(minutes)) * 60_000_000 + int(seconds.replace(".", ""))
    assert total == abs(micros)
    assert written.startswith("-") is (micros < 0)


Step = list[tuple[str, str, bool]]
colliding = st.lists(st.sampled_from(["n", "N", "_", "é", "2", "__2", "__3", "__02"]), max_size=4)
"""Names that the cells and columns of other fields may have, too."""
schemas = st.lists(
    st.tuples(
        texts | colliding.map("".join),
        st.sampled_from(["INT64", "STRING", "DATE", "ARRAY<INT64>"]),
        st.booleans(),
    ),
    max_size=6,
)


@given(st.lists(schemas, max_size=6))
@example([[("n", "INT64", False)], [("n", "STRING", False), ("n__2", "STRING", False)]])
@example([[("n", "INT64", False), ("n__2", "STRING", False)], [("n__2", "DATE", False)]])
@example([[("n__2", "INT64", True), ("n", "STRING", True)], [("n", "DATE", False)]])
@examples(500)
def test_a_field_and_a_type_have_one_column_for_ever(steps: list[Step]) -> None:
    """SRC-5, resumable: whatever comes later, and after a restart from the section."""
    table: SourceTable | None = None
    cells: dict[tuple[str, str], str] = {}
    for step in steps:
        fields = {field: (type_of(type_), is_guess) for field, type_, is_guess in step}
        shown = [Shown(field, *of_field) for field, of_field in fields.items()]
        table = merged(table, "t", [Shown("id", DataType.INT64)], shown).table
        for each in shown:
            column = table.column(each.field, each.type)
            if column is not None and not column.is_guess:
                assert cells.setdefault((each.field, str(each.type)), column.cell) == column.cell
        assert len(set(cells.values())) == len(cells)
        names = {column.name.lower() for column in table.columns}
        assert len(names) == len(table.columns)
        again = SourceTable.from_section(table.section())
        assert again == table
        assert merged(again, "t", [Shown("id", DataType.INT64)], shown).table == table
        definition_of(table)
