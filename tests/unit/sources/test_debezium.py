"""The events of Debezium's records (SRC-3)."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import replace
from uuid import UUID

import pytest

from connector.sources.debezium import DebeziumDecoder
from connector.sources.model import (
    Commit,
    End,
    Event,
    ForeignRecord,
    Poison,
    Row,
    Skipped,
    TruncatedTable,
)
from connector.sources.records import AvroFormat, JsonFormat
from connector.sources.tables import KnownTables
from connector.sources.unsent import PLACEHOLDER
from connector.tables.definition import Column, TableDefinition
from connector.tables.keys import Key, KeyPart
from connector.tables.nested import ArrayType
from connector.tables.values import DataType
from tests.foreign_records import (
    LSN,
    TIME,
    TRANSACTION,
    Typed,
    Writer,
    number,
    payload,
    raw,
    text,
    to_json,
)

FORMATS = ["json", "json with schema", "avro"]
TABLE = "public.customers"
COMMIT = Commit(
    time=TIME,
    transaction="571",
    sequence=1,
    log="lsn",
    after=(LSN - 8,),
    at=(LSN,),
    log_position="0/16E9060",
)
KEY = [number("id", 7)]
FIELDS = [number("id", 7), text("name", "Ann"), text("email", None), number("n", 3)]


class Bench:
    """A writer and a decoder of one format."""

    def __init__(self, format_: str, fields: list[Typed] | None = None, **settings: object) -> None:
        self.writer = Writer(format_, KEY, FIELDS if fields is None else fields)
        self.tables = KnownTables()
        read = AvroFormat(self.writer.registry.schema_of) if format_ == "avro" else JsonFormat()
        self.decoder = DebeziumDecoder(read, self.tables, **settings)  # type: ignore[arg-type]

    def event(self, op: str, changed: dict[str, object] | None = None, **more: object) -> Event:
        return self.decoder.decode(self.writer.event(op, changed, **more))


@pytest.fixture(params=FORMATS)
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(request.param)


@pytest.mark.parametrize("op", ["c", "u"])
def test_an_insert_and_an_update_are_whole_rows(bench, op):
    """SRC-3: the cells of all columns but those of the key. NULL has no bytes."""
    assert bench.event(op) == Row(
        table=TABLE,
        commit=COMMIT,
        key={"id": 7},
        cells={"name": b"Ann", "email": None, "n": b"3"},
    )


def test_a_deleted_row_has_its_key_and_no_cells(bench):
    """SRC-3."""
    assert bench.event("d") == Row(table=TABLE, commit=COMMIT, key={"id": 7}, deleted=True)


@pytest.mark.parametrize(
    "snapshot", ["first", "first_in_data_collection", "true", "last", "incremental"]
)
def test_a_row_of_a_snapshot_has_no_transaction(bench, snapshot):
    """SRC-3: initial and incremental snapshots."""
    for transaction in (None, TRANSACTION):
        event = bench.event("r", snapshot=snapshot, transaction=transaction)
        assert isinstance(event, Row)
        assert event.is_snapshot
        assert (event.commit.transaction, event.commit.sequence) == ("", 0)
        assert (event.commit.time, event.commit.after) == (TIME, (LSN - 8,))
        assert event.commit.log_position == COMMIT.log_position


def test_an_update_without_a_toast_value_keeps_it(bench):
    """SRC-3, newest_wins: the placeholder is no value, so the row is partial."""
    event = bench.event("u", {"email": PLACEHOLDER})
    assert isinstance(event, Row)
    assert (event.whole, event.missing) == (False, ())
    assert event.cells == {"name": b"Ann", "n": b"3"}


def test_a_new_row_names_the_values_that_are_in_no_event(bench):
    """SRC-3: a key change sends the placeholder in an insert."""
    event = bench.event("c", {"email": PLACEHOLDER})
    assert isinstance(event, Row)
    assert (event.whole, event.missing) == (True, ("email",))
    assert event.cells == {"name": b"Ann", "n": b"3"}


def test_a_text_that_only_contains_the_placeholder_is_a_value(bench):
    """SRC-3, nothing_lost."""
    event = bench.event("u", {"email": f"see {PLACEHOLDER}"})
    assert isinstance(event, Row)
    assert event.whole
    assert event.cells["email"] == f"see {PLACEHOLDER}".encode()


PLACED = [
    raw("doc", PLACEHOLDER.encode()),
    Typed(
        "tags",
        {"type": "array", "items": {"type": "string"}},
        {"type": "array", "items": "string"},
        [PLACEHOLDER],
    ),
    Typed(
        "numbers",
        {"type": "array", "items": {"type": "int32"}},
        {"type": "array", "items": "int"},
        list(PLACEHOLDER.encode()),
    ),
    Typed(
        "more_numbers",
        {"type": "array", "items": {"type": "int64", "optional": True}},
        {"type": "array", "items": ["long", "null"]},
        list(PLACEHOLDER.encode()),
    ),
    Typed(
        "refs",
        {"type": "array", "items": {"type": "string", "name": "io.debezium.data.Uuid"}},
        {"type": "array", "items": ["null", "string"]},
        [str(UUID(bytes=hashlib.md5(PLACEHOLDER.encode()).digest(), version=3))],
    ),
    Typed(
        "pairs",
        {"type": "map", "keys": {"type": "string"}, "values": {"type": "string"}},
        {"type": "map", "values": "string"},
        {PLACEHOLDER: PLACEHOLDER},
    ),
    text(
        "ref",
        str(UUID(bytes=hashlib.md5(PLACEHOLDER.encode()).digest(), version=3)),
        "io.debezium.data.Uuid",
    ),
]


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("field", PLACED, ids=[field.name for field in PLACED])
def test_placeholders_of_other_types_are_no_values(format_, field):
    """SRC-3: bytes, arrays and maps have placeholders of their own."""
    event = Bench(format_, [*FIELDS, field]).event("u")
    assert isinstance(event, Row)
    assert not event.whole
    assert field.name not in event.cells
    assert event.cells["name"] == b"Ann"


@pytest.mark.parametrize("value", [b"", None])
@pytest.mark.parametrize("format_", ["json with schema", "avro"])
def test_bits_that_were_not_sent(format_, value):
    """SRC-3: a column that cannot be NULL has no bits then. A short one has always its own."""
    for length, missing in (("24000", ("v",)), ("2147483647", ("v",)), ("128", ())):
        bits = raw("v", b"\x05", "io.debezium.data.Bits", {"length": length})
        given = value.decode() if value is not None and format_ != "avro" else value
        event = Bench(format_, [number("id", 7), bits]).event("u", {"v": given})
        assert isinstance(event, Row)
        assert event.missing == missing
        assert event.cells["v"] is None or length == "128"


def test_null_of_an_array_without_a_schema_is_a_missing_value():
    """SRC-3: a column that had lists, or is declared as an array."""
    update = Writer("json", KEY, [number("id", 7), text("tags", None), text("name", None)])
    for tables in (KnownTables(), KnownTables(declared=[ARRAYS])):
        decoder = DebeziumDecoder(JsonFormat(), tables)
        if not tables.declared:
            event = decoder.decode(update.event("u"))
            assert isinstance(event, Row)
            assert event.missing == ()
            decoder.decode(update.event("c", {"tags": ["x"]}))
        event = decoder.decode(update.event("u"))
        assert isinstance(event, Row)
        assert event.missing == ("tags",)
        (doubt,) = tables.take_doubts()
        assert "null for tags" in doubt


ARRAYS = TableDefinition(
    name="customers",
    stream="shop",
    source=TABLE,
    key=Key((KeyPart("id", DataType.INT64),)),
    columns=(Column("tags", "c", b"tags", ArrayType(DataType.STRING)),),
)


def test_mysql_sends_all_values():
    """SRC-3: null is NULL there."""
    field = PLACED[1]
    event = Bench("json with schema", [number("id", 7), field]).event(
        "u", {field.name: None}, **MYSQL
    )
    assert isinstance(event, Row)
    assert (event.whole, event.missing) == (True, ())


def test_a_row_without_a_field_that_the_table_has_is_doubted_once():
    """SRC-5, SRC-8: PostgreSQL does not send generated columns, which a snapshot has."""
    for format_ in ("json with schema", "avro"):
        bench = Bench(format_, [number("id", 7), number("n", 3), number("g", 6)])
        bench.event("r")
        assert not bench.tables.take_doubts()
        plain = Writer(
            format_, KEY, [number("id", 7), number("n", 4)], registry=bench.writer.registry
        )
        for _ in range(2):
            event = bench.decoder.decode(plain.event("u"))
            assert isinstance(event, Row)
            assert event.cells == {"n": b"4"}
        (doubt,) = bench.tables.take_doubts()
        assert "rows of public.customers have no g, so it is NULL in them" in doubt


@pytest.mark.parametrize(
    ("version", "counts_again"),
    [("3.6.1.Final", False), ("3.10.0.Beta1", False), ("3.6.0.Final", True), ("2.7", True)],
)
def test_a_debezium_before_3_6_1_may_count_events_again(version: str, counts_again: bool) -> None:
    """SRC-2: also an event that cannot be read."""
    decoder = Bench("json").decoder
    value = to_json(payload("c", {"id": 7}, version=version))
    for sent in (value, value.replace(b'"op":"c"', b'"op":c')):
        event = decoder.decode(ForeignRecord("t", 0, 1, TIME, b'{"id":7}', sent))
        assert event.commit.transaction == "571"
        assert event.commit.counts_again is counts_again


def test_a_table_without_a_key_is_left_out_by_name(bench):
    """SRC-3: the event counts in its transaction."""
    record = bench.writer.event("c")._replace(key=None)
    assert bench.decoder.decode(record) == Skipped("NO_KEY", COMMIT, TABLE)


def test_a_truncated_table(bench):
    """SRC-3."""
    record = bench.writer.event("t")._replace(key=None)
    assert bench.decoder.decode(record) == TruncatedTable(TABLE, COMMIT)


def test_records_without_an_event(bench):
    """SRC-3: tombstones count in no transaction. Messages and rows of the heartbeat table do."""
    writer = bench.writer
    assert bench.decoder.decode(writer.record(b"{}", None)) == Skipped("TOMBSTONE")
    assert bench.event("m") == Skipped("MESSAGE", COMMIT)
    beating = Bench(writer.format, heartbeats=TABLE)
    assert beating.event("u") == Skipped("HEARTBEAT", COMMIT, TABLE)


def test_the_heartbeat_topic_and_the_topic_of_ddl_have_no_events():
    """SRC-3: they may be among the topics of a source."""
    decoder = Bench("json").decoder
    beat = ForeignRecord("__debezium-heartbeat.dbz", 0, 0, 1, b"{}", b'{"ts_ms":1}')
    assert decoder.decode(beat) == Skipped("HEARTBEAT")
    ddl = {"source": {"connector": "mysql"}, "databaseName": "shop", "ddl": "ALTER", "ts_ms": 1}
    assert decoder.decode(beat._replace(topic="dbz", value=to_json(ddl))) == Skipped(
        "SCHEMA_CHANGE"
    )


END = {
    "status": "END",
    "id": f"571:{LSN + 40}",
    "event_count": 3,
    "data_collections": [
        {"data_collection": "public.customers", "event_count": 2},
        {"data_collection": "public.my orders", "event_count": 1},
    ],
    "ts_ms": TIME // 1000,
}
BEGIN = {**END, "status": "BEGIN", "event_count": None, "data_collections": None}
_COUNT = {
    "type": "record",
    "name": "ConnectDefault",
    "fields": [
        {"name": "data_collection", "type": "string"},
        {"name": "event_count", "type": "long"},
    ],
}
BOUNDARY = {
    "type": "record",
    "name": "TransactionMetadataValue",
    "fields": [
        {"name": "status", "type": "string"},
        {"name": "id", "type": "string"},
        {"name": "event_count", "type": ["null", "long"]},
        {"name": "data_collections", "type": ["null", {"type": "array", "items": _COUNT}]},
        {"name": "ts_ms", "type": "long"},
    ],
}


@pytest.mark.parametrize("format_", FORMATS)
def test_the_transaction_topic(format_):
    """SRC-3: only the part of the id before the colon is the same in all events."""
    bench = Bench(format_, transactions="dbz.transaction")

    def decode(boundary: dict[str, object]) -> Event:
        value = to_json(boundary)
        if format_ == "json with schema":
            value = to_json({"schema": {"type": "struct", "fields": []}, "payload": boundary})
        if format_ == "avro":
            value = bench.writer.registry.framed(BOUNDARY, boundary)
        return bench.decoder.decode(ForeignRecord("dbz.transaction", 0, 1, TIME, b"", value))

    assert decode(BEGIN) == Skipped("BEGIN")
    end = decode(END)
    assert isinstance(end, End)
    assert end.commit == Commit(
        time=TIME, transaction="571", log="lsn", after=(LSN + 40,), log_position="0/16E9088"
    )
    assert end.count == 3
    assert list(end.counts.values()) == [2, 1]
    assert next(iter(end.counts)) == "public.customers"


def test_a_transaction_topic_that_is_not_set_is_left_out():
    """SRC-3: a pattern of topics may have it."""
    record = ForeignRecord("dbz.transaction", 0, 1, TIME, b"", to_json(END))
    assert Bench("json").decoder.decode(record) == Skipped("TRANSACTION")


def test_a_key_that_is_null_is_no_key():
    """SRC-3: Connect's converter writes a null with its schema."""
    record = Writer("json", KEY, FIELDS).event("c")
    for key in (b"null", b'{"schema":null,"payload":null}'):
        event = Bench("json").decoder.decode(record._replace(key=key))
        assert event == Skipped("NO_KEY", COMMIT, TABLE)


def test_a_boundary_that_is_neither_begin_nor_end_is_poison():
    """SRC-6."""
    bench = Bench("json", transactions="dbz.transaction")
    value = to_json({**END, "status": "MIDDLE"})
    event = bench.decoder.decode(ForeignRecord("dbz.transaction", 0, 1, TIME, b"", value))
    assert isinstance(event, Poison)


def test_bytes_behind_a_record_of_avro_are_poison():
    """SRC-6."""
    bench = Bench("avro")
    record = bench.writer.event("c")
    assert record.value is not None
    event = bench.decoder.decode(record._replace(value=record.value + b"x"))
    assert isinstance(event, Poison)
    assert "1 bytes behind the record" in event.detail
    short = bench.decoder.decode(record._replace(value=b"\x00\x00"))
    assert isinstance(short, Poison)


@pytest.mark.parametrize("format_", FORMATS)
def test_a_key_that_becomes_another_column_is_poison(format_: str):
    """SRC-3, nothing_invented: its values could be those of other rows. A key column that is
    renamed is not in the row any more.
    """
    old, new = number("id", 7), number("number", 9)
    bench = Bench(format_, [old])
    more = {"topic": bench.writer.topic, "registry": bench.writer.registry}
    renamed = Writer(format_, [new], [new], **more)
    other = Writer(format_, [new], [old, new], **more)
    events = [
        bench.event("c"),
        *(bench.decoder.decode(writer.event("c")) for writer in (renamed, other, other)),
    ]
    assert [getattr(event, "key", None) for event in events] == [{"id": 7}, {"id": 9}, None, None]
    assert isinstance(events[-1], Poison)
    assert "the key of the table is id" in events[-1].detail
    (news,) = bench.tables.take_news()
    assert len(news.warnings) == (format_ != "json"), "each warning is given once"


@pytest.mark.parametrize("value", ["007", " 7", "+7", "1_0", "x"])
@pytest.mark.parametrize("format_", FORMATS)
def test_a_text_is_no_other_key_that_is_a_number(format_: str, value: str):
    """SRC-3, nothing_invented: the type of the key column has changed to text at the source."""
    bench = Bench(format_)
    assert isinstance(bench.event("c"), Row)
    writer = Writer(format_, [text("id", value)], FIELDS, registry=bench.writer.registry)
    assert isinstance(bench.decoder.decode(writer.event("c")), Poison)
    writer = Writer(format_, [text("id", "10")], FIELDS, registry=bench.writer.registry)
    event = bench.decoder.decode(writer.event("c"))
    assert isinstance(event, Row)
    assert event.key == {"id": 10}


def test_a_key_that_gets_another_column_is_poison():
    """SRC-6: a table keeps its key."""
    tables = KnownTables()
    first = Writer("json", [number("id", 7), number("line", 1)], FIELDS)
    decoder = DebeziumDecoder(JsonFormat(), tables)
    assert isinstance(decoder.decode(first.event("d")), Row)
    event = decoder.decode(Writer("json", KEY, FIELDS).event("d"))
    assert isinstance(event, Poison)
    assert event.detail == "the key has id: the table has id, line"
    decoder = DebeziumDecoder(JsonFormat(), KnownTables())
    assert isinstance(decoder.decode(Writer("json", KEY, FIELDS).event("d")), Row)
    assert isinstance(decoder.decode(first.event("d")), Poison)


MYSQL = {
    "connector": "mysql",
    "db": "shop",
    "schema": None,
    "lsn": None,
    "sequence": None,
    "ts_us": None,
    "file": "binlog.000003",
    "pos": 400,
    "row": 0,
    "gtid": None,
}


def test_positions_in_the_binary_log_of_mysql():
    """SRC-3: the rows of a transaction are behind its begin, and before its end."""
    decoder = Bench("json", transactions="dbz.transaction").decoder

    def row(position: int) -> Row:
        transaction = {"id": f"file=binlog.000003,pos={position}", "total_order": 2}
        value = payload("c", {"id": 7}, transaction=transaction, **MYSQL)
        event = decoder.decode(ForeignRecord("dbz.shop.c", 0, 1, TIME, b'{"id":7}', to_json(value)))
        assert isinstance(event, Row)
        return event

    def end(position: int) -> End:
        value = to_json({**END, "id": f"file=binlog.000003,pos={position}"})
        event = decoder.decode(ForeignRecord("dbz.transaction", 0, 1, TIME, b"", value))
        assert isinstance(event, End)
        return event

    first, second = row(157), row(900)
    assert first.table == "shop.customers"
    assert first.commit.transaction == "file=binlog.000003,pos=157" == end(157).commit.transaction
    assert (first.commit.time, first.commit.log_position) == (TIME, "binlog.000003:400")
    assert first.commit.after < end(157).commit.after <= second.commit.after < end(900).commit.after


@pytest.mark.parametrize(
    ("gtid", "log", "number"),
    [
        ("3e11fa47-71ca-11e1-9e33-c80aa9429562:23", "3e11fa47-71ca-11e1-9e33-c80aa9429562", 23),
        ("3e11fa47-71ca-11e1-9e33-c80aa9429562:a:7", "3e11fa47-71ca-11e1-9e33-c80aa9429562:a", 7),
        ("0-1-100", "0", 100),
    ],
)
def test_gtids_are_numbered_by_server_or_domain(gtid, log, number):
    """SRC-3: of MySQL, with a tag, and of MariaDB."""
    value = payload(
        "c", {"id": 7}, transaction={"id": gtid, "total_order": 1}, **{**MYSQL, "gtid": gtid}
    )
    record = ForeignRecord("dbz.shop.c", 0, 1, TIME, b'{"id":7}', to_json(value))
    event = Bench("json").decoder.decode(record)
    assert isinstance(event, Row)
    commit = event.commit
    assert (commit.transaction, commit.log, commit.after) == (gtid, log, (number,))
    assert (commit.at, commit.log_position) == ((3, 400, 0), gtid)
    decoder = Bench("json", transactions="dbz.transaction").decoder
    end = decoder.decode(
        ForeignRecord("dbz.transaction", 0, 1, TIME, b"", to_json({**END, "id": gtid}))
    )
    assert (end.commit.log, end.commit.after) == (log, (number + 1,))


def test_names_that_records_cannot_have():
    """SRC-5: two tables never get one name."""
    decoder = Bench("json").decoder
    names = set()
    for table in ("my orders", "my_orders", "my-orders", "möbel", "m bel"):
        value = to_json(payload("d", None, table=table))
        event = decoder.decode(ForeignRecord("t", 0, 1, TIME, b'{"id":7}', value))
        assert isinstance(event, Row)
        names.add(event.table)
    assert len(names) == 5
    assert {"public.my_orders", "public.my-orders"} <= names


# Poison


def test_a_damaged_record_is_poison_in_its_transaction():
    """SRC-6, poison_is_contained: the transaction is known although the row cannot be read."""
    writer = Writer("json", KEY, FIELDS)
    record = writer.event("c", {"name": "Ann"})
    assert record.value is not None
    damaged = record._replace(value=record.value.replace(b'"Ann"', b'"A\x00n"'))
    event = Bench("json").decoder.decode(damaged)
    assert isinstance(event, Poison)
    assert event.rule == "UNREADABLE"
    assert event.commit == replace(COMMIT, at=(), log_position="")


def test_no_text_of_a_row_is_taken_for_its_transaction():
    """SRC-6, nothing_invented: a text that looks like a transaction is escaped in JSON."""
    fake = '"transaction":{"id":"9:9","total_order":9}'
    value = payload("c", {"id": 7, "name": fake})
    damaged = to_json(value).replace(b'"op":"c"', b'"op":c')
    event = Bench("json").decoder.decode(ForeignRecord("t", 0, 1, TIME, b'{"id":7}', damaged))
    assert isinstance(event, Poison)
    assert (event.commit.transaction, event.commit.sequence) == ("571", 1)


POISON = {
    "an operation that is not known": lambda writer: writer.event("x"),
    "a key that cannot be read": lambda writer: writer.event("c")._replace(key=b"{"),
    "a key with a NULL": lambda writer: writer.event("c")._replace(key=b'{"id":null}'),
    "a key that is no object": lambda writer: writer.event("c")._replace(key=b"7"),
    "a key without fields": lambda writer: writer.event("c")._replace(key=b"{}"),
    "an insert without a row": lambda writer: ForeignRecord(
        "t", 0, 1, TIME, b'{"id":7}', to_json(payload("c", None))
    ),
}


@pytest.mark.parametrize("case", POISON)
def test_poison_has_its_commit_and_its_table(case):
    """SRC-6: as much as could be read."""
    event = Bench("json").decoder.decode(POISON[case](Writer("json", KEY, FIELDS)))
    assert isinstance(event, Poison), event
    assert (event.commit, event.table) == (COMMIT, TABLE)
    assert event.detail


@pytest.mark.parametrize(
    "value", [b"", b"null", b"[]", b"1", b'{"id":7,"name":"Ann"}', b"\x00\x01"]
)
def test_a_record_that_is_no_event_is_poison(value):
    """SRC-6: for example a topic that Debezium did not write."""
    event = Bench("json").decoder.decode(ForeignRecord("t", 0, 1, TIME, b'{"id":7}', value))
    assert isinstance(event, Poison)
    assert (event.rule, event.commit) == ("UNREADABLE", Commit())


def test_avro_with_a_schema_that_is_not_in_the_registry_is_poison():
    """SRC-6: the registry may have it later, and a replay reads it then."""
    bench = Bench("avro")
    record = bench.writer.event("c")
    assert record.value is not None
    unknown = record._replace(value=b"\x00\x00\x00\x00\x63" + record.value[5:])
    event = bench.decoder.decode(unknown)
    assert isinstance(event, Poison)
    assert (event.rule, event.detail) == (
        "UNKNOWN_SCHEMA",
        "the schema with the id 99 is not in the registry",
    )
    assert isinstance(bench.decoder.decode(record), Row)


def test_a_damaged_avro_record_says_where():
    """SRC-6."""
    bench = Bench("avro")
    record = bench.writer.event("c")
    assert record.value is not None
    event = bench.decoder.decode(record._replace(value=record.value[:-20]))
    assert isinstance(event, Poison)
    assert "byte" in event.detail


# Without a schema


def of_json(after: str, tables: KnownTables | None = None, key: str = '{"id":7}') -> Row:
    value = to_json(payload("c", {"after": 1})).replace(b'{"after":1}', after.encode())
    decoder = DebeziumDecoder(JsonFormat(), tables or KnownTables())
    event = decoder.decode(ForeignRecord("t", 0, 1, TIME, key.encode(), value))
    assert isinstance(event, Row), event
    return event


@pytest.mark.parametrize(
    ("written", "cell"),
    [
        ('"a\\"\\u00e9\\n"', 'a"é\n'.encode()),
        ('""', b""),
        ('"\\ud83d\\ude00"', "😀".encode()),
        ("1.10", b"1.10"),
        ("12345678901234567890.123456789", b"12345678901234567890.123456789"),
        ("-1E-7", b"-1E-7"),
        ("true", b"true"),
        ("false", b"false"),
        ('{"a":[1,null]}', b'{"a":[1,null]}'),
        ("[]", b"[]"),
        ("null", None),
    ],
)
def test_values_without_a_schema_are_their_natural_text(written, cell):
    """SRC-3, nothing_lost: no digit is lost."""
    assert of_json('{"id":7,"x":' + written + "}").cells == {"x": cell}


def test_columns_without_a_schema_follow_from_values():
    """SRC-5: a column appears with its first value, and a guess never refuses another value."""
    tables = KnownTables()
    of_json('{"id":7,"a":1,"b":null}', tables)
    of_json('{"id":7,"a":1.5,"b":"x","c":{},"d":true,"e":2e0}', tables)
    section = tables.tables[TABLE].section()
    shown = {c["name"]: (c["type"], c["on_unreadable"]) for c in section["columns"]}
    types = {"a": "INT64", "b": "STRING", "c": "JSON", "d": "BOOL", "e": "FLOAT64"}
    assert shown == {name: (type_, "null") for name, type_ in types.items()}
    assert section["key"]["columns"] == [{"name": "id", "type": "INT64"}]


def declared() -> TableDefinition:
    return TableDefinition(
        name="customers",
        stream="shop",
        source=TABLE,
        key=Key((KeyPart("id", DataType.BYTES),)),
        columns=(
            Column("photo", "f", b"photo", DataType.BYTES),
            Column("name", "f", b"name", DataType.STRING),
        ),
    )


def test_base64_is_read_where_the_table_has_bytes():
    """SRC-3: JSON without a schema has no other sign of them."""
    photo = base64.b64encode(b"\xff\x00").decode()
    row = of_json(
        json.dumps({"id": photo, "photo": photo, "name": photo}),
        KnownTables(declared=[declared()]),
        json.dumps({"id": photo}),
    )
    assert row.key == {"id": b"\xff\x00"}
    assert row.cells == {"photo": b"\xff\x00", "name": photo.encode()}


def test_a_field_with_the_name_of_a_renamed_column_is_no_base64():
    """SRC-3, SRC-5, nothing_invented: the cell says which field a column shows, not the name."""
    column = Column("photo", "f", b"picture", DataType.BYTES)
    tables = KnownTables(declared=[replace(declared(), columns=(column,))])
    key, text = (base64.b64encode(given).decode() for given in (b"7", b"\xff"))
    row = of_json(
        json.dumps({"id": key, "photo": text, "picture": text}), tables, json.dumps({"id": key})
    )
    assert row.cells == {"photo": text.encode(), "picture": b"\xff"}


def test_tables_that_are_not_declared_are_left_out_if_the_settings_say_so():
    """SRC-5."""
    writer = Writer("json", KEY, FIELDS)
    for tables, is_row in (
        (KnownTables(only_declared=True), False),
        (KnownTables(declared=[declared()], only_declared=True), True),
    ):
        event = DebeziumDecoder(JsonFormat(), tables).decode(writer.event("d"))
        assert isinstance(event, Row) is is_row
        if not is_row:
            assert event == Skipped("NOT_DECLARED", COMMIT, TABLE)


@pytest.mark.parametrize(("op", "is_counted"), [("c", True), ("t", False)])
def test_an_event_that_is_left_out_counts_in_the_transaction_whose_end_counts_it(op, is_counted):
    """SRC-2, SRC-5: the end of MariaDB does not count a truncation, which names a transaction."""
    tables = KnownTables(only_declared=True)
    of_source = {**MYSQL, "connector": "mariadb", "gtid": "0-1-100"}
    transaction = {"id": "0-1-100", "total_order": 2}
    value = to_json(payload(op, {"id": 7}, transaction=transaction, **of_source))
    record = ForeignRecord("dbz.shop.c", 0, 1, TIME, b'{"id":7}', value)
    event = DebeziumDecoder(JsonFormat(), tables).decode(record)
    assert isinstance(event, Skipped)
    assert (event.rule, event.table) == ("NOT_DECLARED", "shop.customers")
    assert event.commit.sequence == (2 if is_counted else 0)
    assert bool(event.commit.transaction) is is_counted
