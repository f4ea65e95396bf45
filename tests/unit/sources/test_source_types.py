"""The types of a source, and the cells of its values (SRC-3, SRC-5)."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from decimal import Decimal

import pytest

from connector.sources.debezium import DebeziumDecoder
from connector.sources.model import Row
from connector.sources.records import AvroFormat, JsonFormat
from connector.sources.schemas import Field
from connector.sources.tables import KnownTables
from connector.sources.values import clock_text, day_text, kind_of
from connector.tables.nested import type_of
from connector.tables.values import Encoding, Unreadable, read_value
from tests.foreign_records import Typed, Writer, decimal, number, raw, text

TIME = "io.debezium.time."
CONNECT = "org.apache.kafka.connect.data."
ID = number("id", 7)
DAY = 86_400_000_000


def array(name: str, element: Typed, values: list[object]) -> Typed:
    return Typed(
        name,
        {"type": "array", "items": {**element.connect, "optional": True}},
        {"type": "array", "items": ["null", element.avro]},
        values,
    )


def structure(name: str, logical: str, fields: list[Typed]) -> Typed:
    connect = {
        "type": "struct",
        "name": logical,
        "fields": [{**f.connect, "field": f.name} for f in fields],
    }
    avro = {
        "type": "record",
        "name": "S" + name,
        "connect.name": logical,
        "fields": [{"name": f.name, "type": f.avro} for f in fields],
    }
    return Typed(
        name,
        connect,
        avro,
        {f.name: f.json for f in fields},
        {f.name: f.avro_value for f in fields},
    )


TYPES = [
    (number("int4", -5, bits=32), "INT64", -5),
    (number("int8", 2**63 - 1), "INT64", 2**63 - 1),
    (Typed("float8", {"type": "double"}, "double", 1e22), "FLOAT64", 1e22),
    (Typed("float4", {"type": "float"}, "float", 1.1), "FLOAT64", 1.1),
    (Typed("bool", {"type": "boolean"}, "boolean", True), "BOOL", True),
    (text("text", 'é"\n\\ \u2028'), "STRING", 'é"\n\\ \u2028'),
    (text("empty", ""), "STRING", ""),
    (raw("bytea", b"\x00\xff"), "BYTES", b"\x00\xff"),
    (raw("no_bytes", b""), "BYTES", b""),
    (raw("bits", b"\x05", "io.debezium.data.Bits", {"length": "3"}), "BYTES", b"\x05"),
    (decimal("money", -1250, 12, 2), "NUMERIC", Decimal("-12.5")),
    (decimal("zero", 0, 12, 2), "NUMERIC", Decimal(0)),
    (decimal("large", 10**37, 38, 0), "BIGNUMERIC", "1" + "0" * 37),
    (decimal("fine", 5, 38, 20), "BIGNUMERIC", "0.00000000000000000005"),
    (decimal("larger", 10**50, 60, 0), "STRING", "1" + "0" * 50),
    (
        structure(
            "numeric",
            "io.debezium.data.VariableScaleDecimal",
            [number("scale", 3, bits=32), raw("value", b"\x30\x39")],
        ),
        "BIGNUMERIC",
        "12.345",
    ),
    (number("date", 20_000, TIME + "Date", 32), "DATE", date(2024, 10, 4)),
    (number("connect_date", -1, CONNECT + "Date", 32), "DATE", date(1969, 12, 31)),
    (text("iso_date", "2024-10-04Z", TIME + "IsoDate"), "DATE", date(2024, 10, 4)),
    (number("time", 3_661_001, TIME + "Time", 32), "TIME", "01:01:01.001000"),
    (number("micro_time", DAY - 1, TIME + "MicroTime"), "TIME", "23:59:59.999999"),
    (number("nano_time", 1_500, TIME + "NanoTime"), "TIME", "00:00:00.000001"),
    (text("iso_time", "10:11:12.5Z", TIME + "IsoTime"), "TIME", "10:11:12.500000"),
    (number("ms", -1, TIME + "Timestamp"), "DATETIME", -1_000),
    (number("us", 1, TIME + "MicroTimestamp"), "DATETIME", 1),
    (number("ns", 1_999, TIME + "NanoTimestamp"), "DATETIME", 1),
    (number("connect_ms", 1_000, CONNECT + "Timestamp"), "DATETIME", 1_000_000),
    (text("iso", "1970-01-02T00:00:00Z", TIME + "IsoTimestamp"), "DATETIME", DAY),
    (text("zoned", "1970-01-02T00:00:00.1Z", TIME + "ZonedTimestamp"), "TIMESTAMP", DAY + 10**5),
    (text("json", '{"a": 1}', "io.debezium.data.Json"), "JSON", '{"a": 1}'),
    (text("uuid", "3f2a", "io.debezium.data.Uuid"), "STRING", "3f2a"),
    (text("mood", "sad", "io.debezium.data.Enum"), "STRING", "sad"),
    (text("timetz", "10:00:00Z", TIME + "ZonedTime"), "STRING", "10:00:00Z"),
    (text("interval", "P1Y", TIME + "Interval"), "STRING", "P1Y"),
    (number("year", 1999, TIME + "Year", 32), "INT64", 1999),
    (array("numbers", number("", 0, bits=32), [1, None, -3]), "ARRAY<INT64>", [1, None, -3]),
    (array("tags", text("", ""), ['a"', "é", None]), "ARRAY<STRING>", ['a"', "é", None]),
    (array("days", number("", 0, TIME + "Date", 32), [0]), "ARRAY<DATE>", [date(1970, 1, 1)]),
    (array("nothing", text("", ""), []), "ARRAY<STRING>", []),
    (
        replace(array("blobs", raw("", b""), ["AP8="]), raw=[b"\x00\xff"]),
        "ARRAY<BYTES>",
        [b"\x00\xff"],
    ),
    (
        structure("point", "io.debezium.data.geometry.Point", [number("x", 1, bits=32)]),
        "JSON",
        '{"x":1}',
    ),
]
"""A field, the type of its column, and its value there."""

FORMATS = ["json with schema", "avro"]


def decoder_of(writer: Writer) -> tuple[DebeziumDecoder, KnownTables]:
    tables = KnownTables()
    is_avro = writer.format == "avro"
    format_ = AvroFormat(writer.registry.schema_of) if is_avro else JsonFormat()
    return DebeziumDecoder(format_, tables), tables


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize(("field", "type_", "value"), TYPES, ids=[t[0].name for t in TYPES])
def test_a_value_of_a_column_is_read_as_the_value_of_the_source(format_, field, type_, value):
    """SRC-5, nothing_invented: value → cell → value of the type that follows from the schema."""
    writer = Writer(format_, [ID], [ID, field])
    decoder, tables = decoder_of(writer)
    row = decoder.decode(writer.event("c"))
    assert isinstance(row, Row), row
    assert row.key == {"id": 7}
    (column,) = tables.tables["public.customers"].columns
    assert (column.field, str(column.type)) == (field.name, type_)
    cell = row.cells[field.name]
    assert cell is not None
    assert read_value(type_of(type_), Encoding.TEXT, cell) == value


@pytest.mark.parametrize("field", [t[0] for t in TYPES], ids=[t[0].name for t in TYPES])
def test_json_and_avro_give_the_same_cells(field):
    """SRC-3: the format decides nothing about the values."""
    cells = []
    for format_ in FORMATS:
        writer = Writer(format_, [ID], [ID, field])
        row = decoder_of(writer)[0].decode(writer.event("c"))
        assert isinstance(row, Row)
        cells.append(row.cells)
    assert cells[0] == cells[1]


HOSTILE = [
    (text("date", "-5877611-06-21Z", TIME + "IsoDate"), b"-5877611-06-21Z"),
    (text("at", "+infinity", TIME + "ZonedTimestamp"), b"+infinity"),
    (number("us", 9223372036825200000, TIME + "MicroTimestamp"), b"infinity"),
    (number("before", -9223372036832400000, TIME + "MicroTimestamp"), b"-infinity"),
    (number("bc", -735_000, TIME + "Date", 32), b"-0043-08-22"),
    (number("far", -DAY * 735_000, TIME + "MicroTimestamp"), b"-0043-08-22T00:00:00.000000"),
    (number("long", 30 * 3_600_000_000, TIME + "MicroTime"), b"30:00:00.000000"),
    (number("negative", -1_000_000, TIME + "MicroTime"), b"-00:00:01.000000"),
]


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize(("field", "cell"), HOSTILE, ids=[each[0].name for each in HOSTILE])
def test_a_value_that_no_type_holds_is_its_text(format_, field, cell):
    """SRC-6, nothing_lost: the table decides what becomes of it, and the text says what it was."""
    writer = Writer(format_, [ID], [ID, field])
    decoder, tables = decoder_of(writer)
    row = decoder.decode(writer.event("c"))
    assert isinstance(row, Row)
    assert row.cells[field.name] == cell
    (column,) = tables.tables["public.customers"].columns
    assert isinstance(read_value(column.type, Encoding.TEXT, cell), Unreadable)


@pytest.mark.parametrize("text_", ["NaN", "Infinity", "-Infinity"])
def test_floats_that_are_no_numbers_are_values(text_):
    """SRC-3: Connect writes them as text in JSON, and Avro has them."""
    field = Typed("f", {"type": "double"}, "double", text_, float(text_.lower()))
    for format_ in FORMATS:
        writer = Writer(format_, [ID], [ID, field])
        row = decoder_of(writer)[0].decode(writer.event("c"))
        assert isinstance(row, Row)
        assert row.cells["f"] == text_.encode()


def test_a_decimal_as_text_has_the_type_of_its_column_if_debezium_names_it():
    """SRC-5: `decimal.handling.mode = string` with `datatype.propagate.source.type`."""
    names = ("type", "length", "scale")
    values = ("NUMERIC", "12", "2")
    parameters = {
        f"__debezium.source.column.{name}": value for name, value in zip(names, values, strict=True)
    }
    kind = kind_of(Field("credit", "string", "", parameters), has_zone=False)
    assert (str(kind.type), kind.of_text(b"012.50")) == ("NUMERIC", b"12.5")
    assert str(kind_of(Field("credit", "string"), has_zone=False).type) == "STRING"


@pytest.mark.parametrize(
    ("scale", "in_json", "cell"),
    [
        (0, 1234, b"1234"),  # four digits are base64, too
        (0, 12345678, b"12345678"),
        (0, "BNI=", b"1234"),
        (2, 12.50, b"12.5"),
        (7, 1e-7, b"0.0000001"),
        (-3, 1e30, b"1" + b"0" * 30),
    ],
)
def test_a_decimal_of_connect_is_base64_or_a_number(scale: int, in_json: object, cell: bytes):
    """SRC-3, nothing_invented: `decimal.format = NUMERIC` of the JSON converter."""
    one = replace(decimal("f", 0, 38, scale), json=in_json)
    several = array("several", one, [in_json, None])
    writer = Writer("json with schema", [ID], [ID, one, several])
    row = decoder_of(writer)[0].decode(writer.event("c"))
    assert isinstance(row, Row)
    assert row.cells == {"f": cell, "several": b'["' + cell + b'",null]'}


def test_days_and_clocks_of_any_number():
    assert day_text(-719_162) == "0001-01-01"
    assert day_text(-719_163) == "0000-12-31"
    assert day_text(2_932_896) == "9999-12-31"
    assert day_text(2_932_897) == "+10000-01-01"
    assert clock_text(-1) == "-00:00:00.000001"


MYSQL = {"connector": "mysql"}
DURATIONS = [
    (number("t", -3_020_399_000_000, TIME + "MicroTime"), b"-838:59:59.000000"),
    (number("t", 3_020_399_999_999, TIME + "MicroTime"), b"838:59:59.999999"),
    (number("t", -1, TIME + "MicroTime"), b"-00:00:00.000001"),
    (number("t", 86_400_000_000, TIME + "MicroTime"), b"24:00:00.000000"),
    (number("t", 36_672_000_000, TIME + "MicroTime"), b"10:11:12.000000"),
    (number("t", -363_723_500, CONNECT + "Time", bits=32), b"-101:02:03.500000"),
    (text("t", "10:11:12Z", TIME + "IsoTime"), b"10:11:12.000000"),
]


@pytest.mark.parametrize("format_", ["json with schema", "avro"])
@pytest.mark.parametrize(("field", "cell"), DURATIONS)
def test_a_time_of_mysql_is_a_duration(format_: str, field: Typed, cell: bytes) -> None:
    """SRC-5, nothing_lost: from -838:59:59 to 838:59:59, as text. Elsewhere it is a TIME."""
    for connector in ("mysql", "mariadb", "postgresql"):
        writer = Writer(format_, [ID], [ID, field])
        decoder, tables = decoder_of(writer)
        event = decoder.decode(writer.event("c", connector=connector))
        assert isinstance(event, Row), event
        (column,) = tables.tables["public.customers"].columns
        assert str(column.type) == ("TIME" if connector == "postgresql" else "STRING")
        if connector != "postgresql":
            assert event.cells["t"] == cell
            assert read_value(column.type, Encoding.TEXT, cell) == cell.decode()
        is_iso = connector != "postgresql" and field.connect["type"] == "string"
        assert len(tables.take_doubts()) == is_iso, "Debezium sends null for -838:59:59 then"


UNSIGNED = [(0, "0"), (2**63 - 1, "9223372036854775807"), (-(2**63), "9223372036854775808")]
UNSIGNED += [(-1, "18446744073709551615")]


@pytest.mark.parametrize("format_", ["json with schema", "avro"])
@pytest.mark.parametrize(("sent", "value"), UNSIGNED)
def test_an_unsigned_number_of_mysql(format_: str, sent: int, value: str) -> None:
    """SRC-5, SRC-8, nothing_invented: it is exact if its type in the source is known. Otherwise a
    negative number is doubted.
    """
    plain = number("n", sent)
    parameters = {"__debezium.source.column.type": "BIGINT UNSIGNED ZEROFILL"}
    known = Typed(
        "n",
        {"type": "int64", "parameters": parameters},
        {"type": "long", "connect.parameters": parameters},
        sent,
    )
    precise = decimal("n", int(value), 20, 0)
    for field, is_known in ((plain, False), (known, True), (precise, True)):
        writer = Writer(format_, [ID], [ID, field])
        decoder, tables = decoder_of(writer)
        events = [decoder.decode(writer.event("c", **MYSQL)) for _ in range(2)]
        assert isinstance(events[1], Row), events
        (column,) = tables.tables["public.customers"].columns
        doubts = tables.take_doubts()
        assert str(column.type) == ("NUMERIC" if is_known else "INT64")
        assert events[1].cells["n"] == (value if is_known else str(sent)).encode()
        assert len(doubts) == (sent < 0 and not is_known)
        assert all("precise" in doubt and "public.customers.n" in doubt for doubt in doubts)
        assert ("public.customers.n" in tables.unsigned) is not is_known


@pytest.mark.parametrize("format_", ["json with schema", "avro"])
def test_an_unsigned_key_of_mysql(format_: str) -> None:
    """SRC-5: the same for a key."""
    key = number("id", -2)
    writer = Writer(format_, [key], [key])
    decoder, tables = decoder_of(writer)
    for op in ("c", "d"):
        event = decoder.decode(writer.event(op, **MYSQL))
        assert isinstance(event, Row)
        assert event.key == {"id": -2}
    (doubt,) = tables.take_doubts()
    assert "public.customers.id has a negative number" in doubt
    assert isinstance(decoder.decode(writer.event("c")), Row)
    assert not tables.take_doubts(), "in PostgreSQL, it is a negative number"


@pytest.mark.parametrize("format_", ["json with schema", "avro"])
def test_an_array_of_arrays_is_no_array_of_java(format_: str) -> None:
    """SRC-5, nothing_invented: Debezium writes names of objects of Java for text[][]."""
    field = array(
        "words", text("e", "x"), ["[Ljava.lang.String;@194861d9", "[Ljava.lang.String;@1"]
    )
    writer = Writer(format_, [ID], [ID, field])
    decoder, tables = decoder_of(writer)
    event = decoder.decode(writer.event("c"))
    assert isinstance(event, Row)
    (column,) = tables.tables["public.customers"].columns
    cell = event.cells["words"]
    assert cell == b"[Ljava.lang.String;@194861d9"
    assert isinstance(read_value(column.type, Encoding.TEXT, cell), Unreadable)
