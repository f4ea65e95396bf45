from __future__ import annotations

import math
import struct
from datetime import date, datetime
from decimal import Decimal

import pytest

from connector.errors import InvalidChangeError
from connector.tables.values import (
    BINARY_TYPES,
    MAX_JSON_DEPTH,
    MAX_JSON_NAME_LENGTH,
    TEXT_PATTERN,
    DataType,
    Encoding,
    Unreadable,
    read_value,
    write_value,
)

BOOL, INT64, FLOAT64, NUMERIC = DataType.BOOL, DataType.INT64, DataType.FLOAT64, DataType.NUMERIC
DATE, TIMESTAMP, JSON, STRING, BYTES = (
    DataType.DATE,
    DataType.TIMESTAMP,
    DataType.JSON,
    DataType.STRING,
    DataType.BYTES,
)

DAY_US = 86_400_000_000
READABLE_TEXT = [
    (STRING, "", ""),
    (STRING, "ä\x00\n", "ä\x00\n"),
    (BOOL, "true", True),
    (BOOL, "false", False),
    (INT64, "0", 0),
    (INT64, "-0", 0),
    (INT64, "007", 7),
    (INT64, "9223372036854775807", 2**63 - 1),
    (INT64, "-9223372036854775808", -(2**63)),
    (INT64, "0" * 10_000 + "1", 1),
    (FLOAT64, "1", 1.0),
    (FLOAT64, "-0.5", -0.5),
    (FLOAT64, "1e3", 1000.0),
    (FLOAT64, "1.5E-3", 0.0015),
    (FLOAT64, "1e-999", 0.0),
    (FLOAT64, "Infinity", math.inf),
    (FLOAT64, "-Infinity", -math.inf),
    (NUMERIC, "0", Decimal(0)),
    (NUMERIC, "-12.50", Decimal("-12.5")),
    (NUMERIC, "0.000000001", Decimal("1E-9")),
    (NUMERIC, "0.10000000000000000000", Decimal("0.1")),
    (NUMERIC, "0" * 50 + "9" * 29 + "." + "9" * 9, Decimal("9" * 29 + "." + "9" * 9)),
    (DATE, "2024-02-29", date(2024, 2, 29)),
    (DATE, "0001-01-01", date(1, 1, 1)),
    (DATE, "9999-12-31", date(9999, 12, 31)),
    (TIMESTAMP, "1970-01-01T00:00:00Z", 0),
    (TIMESTAMP, "1970-01-02T00:00:00.000001Z", DAY_US + 1),
    (TIMESTAMP, "1969-12-31T23:59:59.999999Z", -1),
    (TIMESTAMP, "1970-01-01T01:00:00.5+01:00", 500_000),
    (TIMESTAMP, "1969-12-31T18:30:00-05:30", 0),
    (TIMESTAMP, "1970-01-01T00:00:00.1234569Z", 123_456),
    (TIMESTAMP, "1969-12-31T23:59:59.9999999Z", -1),
    (TIMESTAMP, "0001-01-01T00:00:00Z", -62_135_596_800_000_000),
    (TIMESTAMP, "9999-12-31T23:59:59.999999Z", 253_402_300_799_999_999),
    (JSON, ' {"a": [1, 2.5e999, null], "a": 2} ', ' {"a": [1, 2.5e999, null], "a": 2} '),
    (JSON, "3", "3"),
    (JSON, '"[[[["', '"[[[["'),
    (JSON, "-" + "1" * 1_000, "-" + "1" * 1_000),
    (
        JSON,
        "[" * MAX_JSON_DEPTH + "]" * MAX_JSON_DEPTH,
        "[" * MAX_JSON_DEPTH + "]" * MAX_JSON_DEPTH,
    ),
    *(
        (JSON, text, text)
        for text in (
            f'{{"{letter * (MAX_JSON_NAME_LENGTH // units)}": 1}}'
            for letter, units in (("n", 1), ("😀", 2))
        )
    ),
    (JSON, '["' + "[" * 2000 + '\\""]', '["' + "[" * 2000 + '\\""]'),
]
UNREADABLE_TEXT = [
    *((STRING, value) for value in (b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"a\xe2\x82")),
    *(
        (BOOL, value)
        for value in (b"", b"True", b"TRUE", b"1", b"0", b"yes", b"true ", b"true\n", b"\x01")
    ),
    *(
        (INT64, value)
        for value in (
            b"",
            b"-",
            b"+1",
            b" 1",
            b"1 ",
            b"1\n",
            b"1.0",
            b"1_0",
            b"0x1",
            b"9223372036854775808",
            b"-9223372036854775809",
        )
    ),
    *((INT64, value) for value in ("\u0661".encode(), b"1" * 10_000, b"\xff1")),
    *(
        (FLOAT64, value)
        for value in (
            b"",
            b".5",
            b"5.",
            b"+1",
            b"1e",
            b"nan",
            b"inf",
            b"+Infinity",
            b"-NaN",
            b"1e999",
            b"-1e999",
            b"1f",
            b"1d",
            b"0x1p3",
        )
    ),
    *(
        (NUMERIC, value)
        for value in (
            b"",
            b"1e3",
            b"NaN",
            b"Infinity",
            b"0.0000000001",
            b"1" + b"0" * 29,
            b".5",
            b"5.",
            b"+1",
        )
    ),
    *(
        (DATE, value)
        for value in (
            b"",
            b"2023-02-29",
            b"0000-01-01",
            b"2024-1-1",
            b"20240101",
            b"2024-13-01",
            b"2024-00-01",
            b"2024-01-01 ",
            b"10000-01-01",
        )
    ),
    *(
        (TIMESTAMP, value)
        for value in (
            b"",
            b"1970-01-01",
            b"1970-01-01T00:00:00",
            b"1970-01-01 00:00:00Z",
            b"1970-01-01T00:00Z",
        )
    ),
    *(
        (TIMESTAMP, value)
        for value in (
            b"1970-01-01T24:00:00Z",
            b"1970-01-01T00:00:60Z",
            b"1970-01-01T00:00:00.Z",
            b"1970-01-01T00:00:00,5Z",
        )
    ),
    *(
        (TIMESTAMP, value)
        for value in (
            b"1970-01-01t00:00:00z",
            b"1970-01-01T00:00:00+0100",
            b"1970-01-01T00:00:00+19:00",
            b"1970-01-01T00:00:00+18:01",
        )
    ),
    *(
        (TIMESTAMP, value)
        for value in (
            b"1970-02-30T00:00:00Z",
            b"0001-01-01T00:00:00+00:01",
            b"9999-12-31T23:59:59-00:01",
            b"0",
        )
    ),
    *(
        (JSON, value)
        for value in (
            b"",
            b"{",
            b"NaN",
            b"[Infinity]",
            b"{'a': 1}",
            b"01",
            b"[1,]",
            b'"\x01"',
            b"\xef\xbb\xbf1",
            b"1 2",
            b'"\xff"',
        )
    ),
    (JSON, b"[" * (MAX_JSON_DEPTH + 1) + b"]" * (MAX_JSON_DEPTH + 1)),
    *((JSON, b"[" + number + b"]") for number in (b"1" * 1_001, b"-0." + b"1" * 1_000)),
    *(
        (JSON, b'[{"%s": 1}]' % (letter.encode() * (MAX_JSON_NAME_LENGTH // units + 1)))
        for letter, units in (("n", 1), ("😀", 2))
    ),
    (JSON, b"[" * 1_000_000),
    (JSON, b'{"a":' * 100_000),
    (JSON, b"[" * 600 + b'"' + rb"\"" * 500_000),
]
BINARY = [
    (BOOL, b"\x00", False),
    (BOOL, b"\xff", True),
    (INT64, b"\xff" * 8, -1),
    (INT64, b"\x80" + b"\x00" * 7, -(2**63)),
    (FLOAT64, struct.pack(">d", -1.5), -1.5),
    (DATE, b"\x00\x00\x00\x01", date(1970, 1, 2)),
    (DATE, b"\xff\xff\xff\xff", date(1969, 12, 31)),
    (TIMESTAMP, b"\xff" * 8, -1),
    (STRING, "ä".encode(), "ä"),
    (BYTES, b"\xff", b"\xff"),
]


def brief(value: object) -> str:
    return repr(value)[:40]


def brief_of_number(value: object) -> str:
    return f"{value.bit_length()} bits" if isinstance(value, int) else f"{value:.3}"


@pytest.mark.parametrize(("type_", "text", "value"), READABLE_TEXT, ids=brief)
def test_readable_text(type_: DataType, text: str, value: object) -> None:
    """TBL-7: the text forms."""
    assert read_value(type_, Encoding.TEXT, text.encode()) == value


@pytest.mark.parametrize(("type_", "value"), UNREADABLE_TEXT, ids=brief)
def test_unreadable_text(type_: DataType, value: bytes) -> None:
    """TBL-9: a value, with what was expected and what came, not too long."""
    read = read_value(type_, Encoding.TEXT, value)
    assert isinstance(read, Unreadable)
    assert type_ in read.detail
    assert len(read.detail) < 500


def test_nan_is_read_and_bytes_are_anything() -> None:
    """TBL-7."""
    read = read_value(FLOAT64, Encoding.TEXT, b"NaN")
    assert isinstance(read, float)
    assert math.isnan(read)
    assert read_value(BYTES, Encoding.TEXT, b"\xff\x00") == b"\xff\x00"


@pytest.mark.parametrize(("type_", "value", "read"), BINARY, ids=brief)
def test_binary_as_hbase_writes_it(type_: DataType, value: bytes, read: object) -> None:
    """TBL-7: in both directions."""
    assert read_value(type_, Encoding.BINARY, value) == read
    assert write_value(type_, Encoding.BINARY, read) == value


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        *(
            (type_, value)
            for type_ in (BOOL, INT64, FLOAT64, DATE, TIMESTAMP)
            for value in (b"", b"\x00" * 3, b"\x00" * 9)
        ),
        (BOOL, b"\x02"),
        (BOOL, b"1"),
        (DATE, b"\x7f\xff\xff\xff"),
        (DATE, b"\x80\x00\x00\x00"),
        (TIMESTAMP, b"\x7f" + b"\xff" * 7),
        (TIMESTAMP, b"\x80" + b"\x00" * 7),
        (STRING, b"\xff"),
    ],
    ids=brief,
)
def test_unreadable_binary(type_: DataType, value: bytes) -> None:
    """TBL-9: another length, a bool that is neither, a day or a moment beyond the calendar."""
    assert isinstance(read_value(type_, Encoding.BINARY, value), Unreadable)


def test_the_byte_one_is_true() -> None:
    """TBL-7: other writers use 01; HBase's own form is written."""
    assert read_value(BOOL, Encoding.BINARY, b"\x01") is True
    assert write_value(BOOL, Encoding.BINARY, True) == b"\xff"


@pytest.mark.parametrize(
    ("type_", "value", "text"),
    [
        (BOOL, True, b"true"),
        (INT64, -7, b"-7"),
        (FLOAT64, 0.1, b"0.1"),
        (FLOAT64, math.nan, b"NaN"),
        (FLOAT64, -math.inf, b"-Infinity"),
        (NUMERIC, Decimal("12.500"), b"12.5"),
        (NUMERIC, Decimal("1E+3"), b"1000"),
        (NUMERIC, Decimal("-0.00"), b"0"),
        (NUMERIC, Decimal("0E-9"), b"0"),
        (NUMERIC, Decimal(100), b"100"),
        (DATE, date(33, 4, 3), b"0033-04-03"),
        (TIMESTAMP, 0, b"1970-01-01T00:00:00.000000Z"),
        (TIMESTAMP, -1, b"1969-12-31T23:59:59.999999Z"),
    ],
)
def test_canonical_text(type_: DataType, value: object, text: bytes) -> None:
    """TBL-7: one form, that of which keys are made."""
    assert write_value(type_, Encoding.TEXT, value) == text


@pytest.mark.parametrize(
    ("type_", "encoding", "value"),
    [
        (INT64, Encoding.TEXT, 2**63),
        (INT64, Encoding.BINARY, 2**63),
        (INT64, Encoding.TEXT, True),
        (NUMERIC, Encoding.TEXT, Decimal("1E-10")),
        (NUMERIC, Encoding.TEXT, Decimal("1E+29")),
        (NUMERIC, Encoding.TEXT, Decimal("1E+999999")),
        (NUMERIC, Encoding.TEXT, Decimal("NaN")),
        (NUMERIC, Encoding.TEXT, 1),
        (DATE, Encoding.TEXT, datetime(2024, 1, 1)),  # noqa: DTZ001
        (TIMESTAMP, Encoding.TEXT, 2**62),
        (TIMESTAMP, Encoding.BINARY, 2**62),
        (STRING, Encoding.TEXT, "\ud800"),
        (STRING, Encoding.BINARY, "\ud800"),
        (JSON, Encoding.TEXT, "{"),
        (BYTES, Encoding.TEXT, "text"),
        (FLOAT64, Encoding.BINARY, 1),
    ],
)
def test_a_value_that_the_type_does_not_have_is_not_written(
    type_: DataType, encoding: Encoding, value: object
) -> None:
    """TBL-7: the writer of the value gets an exception."""
    with pytest.raises(InvalidChangeError):
        write_value(type_, encoding, value)


@pytest.mark.parametrize("encoding", Encoding)
@pytest.mark.parametrize("type_", DataType)
@pytest.mark.parametrize(
    "value",
    [
        10**5000,
        -(10**5000),
        Decimal(10) ** 5000,
        Decimal("1E-999999999"),
        Decimal("-1E+999999999"),
        Decimal("sNaN"),
    ],
    ids=brief_of_number,
)
def test_a_number_of_any_size_is_refused_as_others_are(
    type_: DataType, encoding: Encoding, value: object
) -> None:
    """TBL-7: Python writes no integer of more than 4,300 digits; a few characters may stand for a
    billion of them.
    """
    if encoding is Encoding.BINARY and type_ not in BINARY_TYPES:
        encoding = Encoding.TEXT
    with pytest.raises(InvalidChangeError, match="but must be") as caught:
        write_value(type_, encoding, value)
    assert len(str(caught.value)) < 300


def test_a_zero_of_any_exponent_is_written_as_zero() -> None:
    """TBL-7."""
    assert (
        write_value(NUMERIC, Encoding.TEXT, Decimal("0E-999999999"))
        == write_value(NUMERIC, Encoding.TEXT, Decimal("-0E+999999999"))
        == b"0"
    )


@pytest.mark.parametrize("type_", [INT64, FLOAT64, NUMERIC, DATE, TIMESTAMP, JSON])
@pytest.mark.parametrize(
    "text", ["{}", "-{}", "{}.5", "0.{}", "1e{}", "1e-{}", "1970-01-01T00:00:00.{}Z", "{}-01-01"]
)
def test_digits_beyond_any_number_are_read_or_unreadable(type_: DataType, text: str) -> None:
    """TBL-9: reading never raises."""
    for digits in ("9" * 5000, "0" * 5000, "1" * 100_000):
        read = read_value(type_, Encoding.TEXT, text.format(digits).encode())
        if not isinstance(read, Unreadable):
            assert not isinstance(
                read_value(type_, Encoding.TEXT, write_value(type_, Encoding.TEXT, read)),
                Unreadable,
            )


def test_patterns_are_ascii_and_have_no_anchors() -> None:
    """They are handed to Java as they stand; every other type says in words what it takes."""
    for pattern in TEXT_PATTERN.values():
        assert pattern.isascii()
        assert not set(pattern) & set("^$")
    assert set(DataType) - set(TEXT_PATTERN) == {STRING, BYTES, JSON}
    without = {NUMERIC, DataType.BIGNUMERIC, DataType.DATETIME, DataType.TIME, JSON}
    assert set(DataType) - BINARY_TYPES == without
