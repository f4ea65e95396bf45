"""The events of upsert topics (SRC-4)."""

from __future__ import annotations

import pytest

from connector.sources.model import Commit, Event, ForeignRecord, Poison, Row, Skipped
from connector.sources.records import AvroFormat, JsonFormat
from connector.sources.tables import KnownTables
from connector.sources.upsert import UpsertDecoder
from connector.tables.definition import TableDefinition
from connector.tables.keys import Key, KeyPart
from connector.tables.values import DataType
from tests.foreign_records import TIME, Registry, to_json

COMMIT = Commit(time=TIME)


def decode(
    key: bytes | None, value: bytes | None, tables: KnownTables | None = None, topic: str = "users"
) -> Event:
    decoder = UpsertDecoder(JsonFormat(), tables or KnownTables())
    return decoder.decode(ForeignRecord(topic, 0, 1, TIME, key, value))


def row(key: dict[str, object], cells: dict[str, bytes | None]) -> Row:
    return Row(table="users", commit=COMMIT, key=key, cells=cells)


def test_a_value_is_a_whole_row_and_no_value_deletes_it():
    """SRC-4."""
    assert decode(b'{"id":7}', b'{"id":7,"name":"Ann","n":null}') == row(
        {"id": 7}, {"name": b"Ann", "n": None}
    )
    assert decode(b'{"id":7}', None) == Row(
        table="users", commit=COMMIT, key={"id": 7}, deleted=True
    )
    assert decode(b'{"id":7}', b"null") == decode(b'{"id":7}', None)


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"a-1", "a-1"), (b'"a-1"', "a-1"), (b"17", "17"), (b"true", "true"), ("é#".encode(), "é#")],
)
def test_a_key_without_fields_is_one_column(key, value):
    """SRC-4: keys are text in most topics."""
    tables = KnownTables()
    event = decode(key, b"{}", tables)
    assert isinstance(event, Row)
    (part,) = tables.tables["users"].key
    assert part.name == "key"
    assert str(event.key["key"]).lower() == value


def test_a_key_without_fields_has_the_name_and_the_type_of_the_declared_column():
    """SRC-4."""
    definition = TableDefinition(
        name="users",
        stream="shop",
        source="users",
        key=Key((KeyPart("user_id", DataType.INT64),)),
    )
    event = decode(b"17", b"{}", KnownTables(declared=[definition]))
    assert isinstance(event, Row)
    assert event.key == {"user_id": 17}


def test_a_composite_key_is_read_by_name():
    """SRC-4, newest_wins: the order of the fields of an object says nothing."""
    tables = KnownTables()
    first = decode(b'{"a":1,"b":2}', b"{}", tables)
    second = decode(b'{"b":2,"a":1}', b"{}", tables)
    assert isinstance(first, Row)
    assert isinstance(second, Row)
    assert first.key == second.key


@pytest.mark.parametrize("key", [b'{"e-mail":1}', b'{"e-mail":1,"b":2}'])
def test_a_field_may_have_the_name_of_the_column_of_a_key_field(key):
    """SRC-4, nothing_lost: it is another field, not a key column that the key lacks."""
    event = decode(key, b'{"e_mail":"x"}')
    assert isinstance(event, Row)
    assert (event.key["e_mail"], event.cells) == (1, {"e_mail": b"x"})


def test_a_value_without_fields_is_one_cell():
    """SRC-4."""
    assert decode(b"k", b"1.50") == row({"key": "k"}, {"value": b"1.50"})


def test_json_with_its_schema():
    """SRC-4, SRC-5: Connect's Timestamp is a moment, unlike in Debezium's records."""
    schema = {
        "type": "struct",
        "fields": [
            {"field": "at", "type": "int64", "name": "org.apache.kafka.connect.data.Timestamp"},
        ],
    }
    tables = KnownTables()
    event = decode(b"k", to_json({"schema": schema, "payload": {"at": 1_000}}), tables)
    assert event == row({"key": "k"}, {"at": b"1970-01-01T00:00:01.000000Z"})
    (column,) = tables.tables["users"].columns
    assert column.type == DataType.TIMESTAMP


def test_columns_named_schema_and_payload_are_columns():
    """SRC-4: a record has its schema only if it has both, and the first one is a schema."""
    assert decode(b"k", b'{"schema":1}') == row({"key": "k"}, {"schema": b"1"})
    both = decode(b"k", b'{"schema":"public","payload":{"a":1}}')
    assert both == row({"key": "k"}, {"schema": b"public", "payload": b'{"a":1}'})


def test_avro_with_the_logical_types_of_avro():
    """SRC-4, SRC-5."""
    registry = Registry()
    schema = {
        "type": "record",
        "name": "User",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {
                "name": "price",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            },
            {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["A", "B"]}},
            {"name": "any", "type": ["null", "string", "long"]},
            {"name": "again", "type": ["null", "K"]},
        ],
    }
    datum = {"id": 7, "at": 1, "local": 1, "day": 1, "price": b"\x01\x00", "kind": "B"}
    datum |= {"any": 5, "again": "A"}
    tables = KnownTables()
    decoder = UpsertDecoder(AvroFormat(registry.schema_of), tables)
    for key, values in (
        (
            registry.framed(
                {"type": "record", "name": "Key", "fields": [schema["fields"][0]]}, {"id": 7}
            ),
            {"id": 7},
        ),
        (registry.framed("long", 7), {"key": "7"}),
        (b"seven", {"key": "seven"}),
    ):
        decoder = UpsertDecoder(AvroFormat(registry.schema_of), KnownTables())
        event = decoder.decode(
            ForeignRecord("users", 0, 1, TIME, key, registry.framed(schema, datum))
        )
        assert isinstance(event, Row), event
        assert event.key == values
        assert event.cells["at"] == b"1970-01-01T00:00:00.000001Z"
        assert event.cells["local"] == b"1970-01-01T00:00:00.001000"
        assert event.cells["day"] == b"1970-01-02"
        assert event.cells["price"] == b"2.56"
        assert (event.cells["kind"], event.cells["again"]) == (b"B", b"A")
        assert event.cells["any"] == b"5"
        text = registry.framed(schema, {**datum, "any": "five"})
        event = decoder.decode(ForeignRecord("users", 0, 1, TIME, key, text))
        assert isinstance(event, Row)
        assert event.cells["any"] == b"five"


@pytest.mark.parametrize("key", [None, b"null"])
def test_a_record_without_a_key_is_left_out(key):
    """SRC-4: there is no row that it could be."""
    assert decode(key, b"{}") == Skipped("NO_KEY", COMMIT, "users")


@pytest.mark.parametrize(("key", "value"), [(b"k", b"{"), (b"k", b""), (b"\xff", b"{}")])
def test_bytes_that_cannot_be_read_are_poison(key, value):
    """SRC-6."""
    event = decode(key, value)
    assert isinstance(event, Poison)
    assert (event.rule, event.commit, event.table) == ("UNREADABLE", COMMIT, "users")


def test_a_topic_with_a_long_name_has_a_table():
    """SRC-5."""
    event = decode(b"k", b"{}", topic="t" * 249)
    assert isinstance(event, Row)
    assert len(event.table) <= 128


# Two keys are one row only if they are the same value.

QUOTED, TEXT, FIELDS, NUMBER = b'"abc"', b"abc", b'{"id":7}', b"7"


@pytest.mark.parametrize(
    ("first", "second", "outcome"),
    [
        (QUOTED, b'"\\u0061bc"', "one row"),
        (FIELDS, b'{ "id": 7 }', "one row"),
        (b'{"a":1,"b":2}', b'{"b":2,"a":1}', "one row"),
        (b'{"schema":{"type":"string"},"payload":"abc"}', QUOTED, "one row"),
        (QUOTED, b'"abd"', "two rows"),
        (TEXT, b"abc ", "two rows"),
        (TEXT, b" abc", "two rows"),
        (NUMBER, b"8", "two rows"),
        (NUMBER, b"7\n", "one row"),
        (QUOTED, b'"abc"\n', "one row"),
        (TEXT, QUOTED, "poison"),
        (QUOTED, TEXT, "doubt"),
        (NUMBER, b"07", "poison"),
        (NUMBER, FIELDS, "poison"),
        (FIELDS, NUMBER, "poison"),
        (TEXT, b'{"id":"abc"}', "poison"),
        (b'{"id":"abc"}', TEXT, "poison"),
        (b'{"id":"abc"}', QUOTED, "poison"),
    ],
)
@pytest.mark.parametrize("value", [b'{"n":1}', None])
def test_two_keys_are_one_row_only_if_they_are_the_same_value(first, second, outcome, value):
    """SRC-4, nothing_lost: two rows are never one in silence, and one row is never two."""
    tables = KnownTables()
    decoder = UpsertDecoder(JsonFormat(), tables)
    events = [
        decoder.decode(ForeignRecord("users", 0, n, TIME, key, value))
        for n, key in enumerate((first, second))
    ]
    assert isinstance(events[0], Row)
    keys = [event.key for event in events if isinstance(event, Row)]
    doubts = tables.take_doubts()
    if outcome == "poison":
        assert len(keys) == 1
    elif outcome == "doubt":
        assert keys[0] == keys[1]
        assert "were one row so far" in doubts[0]
        again = decoder.decode(ForeignRecord("users", 0, 9, TIME, first, value))
        assert isinstance(again, Poison)
    else:
        assert (keys[0] == keys[1]) is (outcome == "one row")
    assert len(doubts) == (outcome == "doubt")


def test_keys_of_avro_have_one_form():
    """SRC-4: text, and a text in Confluent's framing."""
    registry = Registry()
    framed = registry.framed("string", "abc")
    row = registry.framed({"type": "record", "name": "R", "fields": []}, {})
    for first, second, has_doubt in ((b"abc", framed, False), (framed, b"abc", True)):
        tables = KnownTables()
        decoder = UpsertDecoder(AvroFormat(registry.schema_of), tables)
        events = [
            decoder.decode(ForeignRecord("users", 0, n, TIME, key, row))
            for n, key in enumerate((first, second, framed))
        ]
        assert isinstance(events[0], Row)
        assert isinstance(events[1], Row) is has_doubt
        assert isinstance(events[2], Poison)
        assert len(tables.take_doubts()) == has_doubt


def test_a_deleted_row_that_a_transform_has_written_is_doubted():
    """SRC-4, SRC-8: `ExtractNewRecordState` with `rewrite`."""
    tables = KnownTables()
    for deleted in (b"false", b"true", b"true"):
        event = decode(b"7", b'{"id":7,"__deleted":"%s"}' % deleted, tables)
        assert isinstance(event, Row)
        assert not event.deleted
    (doubt,) = tables.take_doubts()
    assert "users has rows with __deleted = true" in doubt
