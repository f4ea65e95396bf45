"""Schemas that cannot be used, and types that Debezium does not write (SRC-5, SRC-6)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from connector.records.avro_plan import UnreadableSchemaError
from connector.sources import schemas
from connector.sources.model import ForeignRecord, Poison, Row
from connector.sources.records import AvroFormat, JsonFormat
from connector.sources.schemas import avro_type, connect_field
from connector.sources.tables import KnownTables
from connector.sources.upsert import UpsertDecoder
from connector.sources.values import MISFITS, decimal_text, decimal_type, natural_text
from tests.foreign_records import TIME, Registry, to_json


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    declared = [{"name": f"f{index}", "type": type_} for index, type_ in enumerate(fields)]
    return {"type": "record", "name": name, "fields": declared}


def nested(depth: int) -> Any:
    schema: Any = "int"
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


WRONG_AVRO: dict[str, Any] = {
    "a type that contains itself": record(["null", "R"]),
    "a name without a definition": record("Missing"),
    "an enum without symbols": record({"type": "enum", "name": "E"}),
    "a fixed type without a size": record({"type": "fixed", "name": "F"}),
    "a fixed type of a negative size": record({"type": "fixed", "name": "F", "size": -1}),
    "a list whose items have no bytes": record({"type": "array", "items": "null"}),
    "a list of empty records": record({"type": "map", "values": record(name="Empty")}),
    "a record without fields": {"type": "record", "name": "R"},
    "a field without a name": {"type": "record", "name": "R", "fields": [{"type": "int"}]},
    "a number": 5,
    "another kind": {"schemaType": "PROTOBUF"},
    "too deep": nested(60),
}


@pytest.mark.parametrize("case", WRONG_AVRO)
def test_a_schema_of_avro_that_cannot_be_used_is_poison(case: str) -> None:
    """SRC-6, poison_is_contained."""
    text = json.dumps(WRONG_AVRO[case])
    with pytest.raises(UnreadableSchemaError):
        avro_type(text)
    decoder = UpsertDecoder(AvroFormat(lambda _: text), KnownTables())
    event = decoder.decode(ForeignRecord("t", 0, 1, TIME, b"k", b"\x00\x00\x00\x00\x01\x00"))
    assert isinstance(event, Poison)
    assert event.rule == "UNKNOWN_SCHEMA"
    assert event.detail.startswith("the schema ")


def test_a_schema_that_is_not_json_cannot_be_used() -> None:
    with pytest.raises(UnreadableSchemaError):
        avro_type("{")


def deep(depth: int) -> dict[str, Any]:
    return {"type": "array", "items": deep(depth - 1)} if depth else {"type": "int8"}


def boxed(depth: int) -> dict[str, Any]:
    """Structs within each other."""
    inner = {"type": "int8"} if depth == 1 else boxed(depth - 1)
    return {"type": "struct", "fields": [{**inner, "field": "f"}]}


def test_types_within_each_other_have_a_limit() -> None:
    """SRC-6: 32 of Connect, whether they are lists or structs."""
    for made in (deep, boxed):
        assert connect_field(made(32)).parts
        with pytest.raises(UnreadableSchemaError, match="more than 32 types"):
            connect_field(made(33))


WRONG_CONNECT: dict[str, Any] = {
    "a struct without fields": {"type": "struct"},
    "a field without a name": {"type": "struct", "fields": [{"type": "int8"}]},
    "no type": {"fields": []},
    "too deep": {"type": "struct", "fields": [{**deep(60), "field": "f"}]},
}


@pytest.mark.parametrize("case", WRONG_CONNECT)
def test_a_schema_of_connect_that_cannot_be_used_is_poison(case: str) -> None:
    """SRC-6, poison_is_contained."""
    with pytest.raises(UnreadableSchemaError):
        connect_field(WRONG_CONNECT[case])
    value = to_json({"schema": WRONG_CONNECT[case], "payload": {"a": 1}})
    event = UpsertDecoder(JsonFormat(), KnownTables()).decode(
        ForeignRecord("t", 0, 1, TIME, b"k", value)
    )
    assert isinstance(event, Poison)
    assert event.rule == "UNKNOWN_SCHEMA"


def test_types_of_avro_that_debezium_does_not_write() -> None:
    """SRC-4: fixed, maps, records in records, and a type that is used by its short name."""
    registry = Registry()
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "float"}]}
    schema = {
        "type": "record",
        "name": "Outer",
        "namespace": "a.b",
        "fields": [
            {"name": "fixed", "type": {"type": "fixed", "name": "F", "size": 2}},
            {"name": "map", "type": {"type": "map", "values": "long"}},
            {"name": "inner", "type": inner},
            {"name": "again", "type": ["null", "Inner"]},
            {"name": "list", "type": {"type": "array", "items": "a.b.Inner"}},
            {"name": "wrapped", "type": {"type": "string"}},
        ],
    }
    inside = {"x": 0.5}
    datum: dict[str, Any] = {"fixed": b"\x00\xff", "map": {"a": 1}, "inner": inside}
    datum |= {"again": inside, "list": [inside], "wrapped": "w"}
    tables = KnownTables()
    event = UpsertDecoder(AvroFormat(registry.schema_of), tables).decode(
        ForeignRecord("t", 0, 1, TIME, b"k", registry.framed(schema, datum))
    )
    assert isinstance(event, Row), event
    assert event.cells == {
        "fixed": b"\x00\xff",
        "map": b'{"a":1}',
        "inner": b'{"x":0.5}',
        "again": b'{"x":0.5}',
        "list": b'[{"x":0.5}]',
        "wrapped": b"w",
    }
    types = {column.name: str(column.type) for column in tables.tables["t"].columns}
    assert types == {
        "fixed": "BYTES",
        "map": "JSON",
        "inner": "JSON",
        "again": "JSON",
        "list": "JSON",
        "wrapped": "STRING",
    }


def test_a_key_of_avro_without_fields_is_no_key_of_debezium() -> None:
    """SRC-6."""
    registry = Registry()
    format_ = AvroFormat(registry.schema_of)
    with pytest.raises(MISFITS):
        format_.fields(registry.framed("long", 7))
    assert format_.fields(registry.framed("null", None)) is None
    with pytest.raises(MISFITS):
        format_.fields(b"no framing")
    with pytest.raises(MISFITS):
        JsonFormat().fields(b"7")


@pytest.mark.parametrize(
    "text",
    [
        '{"payload":{"schema":1},"id":7}',
        '{"schema":{"type":"int8"},"id":7}',
        '{"schema":5,"payload":{"id":1}}',
    ],
)
def test_a_row_may_have_columns_with_the_names_of_the_framing(text: str) -> None:
    """SRC-3: only a record with both, whose schema is an object or null, has a schema."""
    row = JsonFormat().fields(text.encode())
    assert row is not None
    assert {name: json.loads(bytes(raw)) for name, raw in row.values.items()} == json.loads(text)


def test_decimals_and_texts_beyond_all_types() -> None:
    """SRC-3: a scale that no database has is refused, and its value is its text."""
    assert str(decimal_type(None, 2)) == "BIGNUMERIC"
    assert str(decimal_type(10, 60)) == "STRING"
    with pytest.raises(ValueError, match="30000"):
        decimal_text(1, 30_000)
    assert decimal_text(-12, -2) == b"-1200"
    assert natural_text(b"\xff") == b"/w=="
    assert natural_text([1, "a"]) == b'[1,"a"]'


def test_a_schema_has_a_limited_number_of_types() -> None:
    """SRC-5, poison_is_contained: however flat it is."""
    most = record(*["long"] * (schemas.MAX_TYPES - 1))
    assert len(avro_type(json.dumps(most)).parts) == schemas.MAX_TYPES - 1
    with pytest.raises(UnreadableSchemaError, match="too many types"):
        avro_type(json.dumps(record(*["long"] * schemas.MAX_TYPES)))
