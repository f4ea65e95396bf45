"""Types of decimals, and texts of floats, of foreign records (SRC-3, SRC-5)."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from connector.sources.schemas import Field
from connector.sources.values import decimal_text, kind_of

CONNECT, TIME = "org.apache.kafka.connect.data.", "io.debezium.time."


@pytest.mark.parametrize(
    ("base", "named", "type_", "cell"),
    [
        ("string", "NUMERIC 12 2", "NUMERIC", b"12.5"),
        ("string", "DECIMAL 12 2", "NUMERIC", b"12.5"),
        ("string", "DECIMAL 65 30", "BIGNUMERIC", b"12.5"),
        ("string", "DECIMAL 65 2", "STRING", b"12.5"),
        ("string", "DECIMAL", "BIGNUMERIC", b"12.5"),
        ("string", "VARCHAR 12 2", "STRING", None),
        ("string", "", "STRING", None),
        ("float64", "DECIMAL 12 2", "FLOAT64", b"12.5"),
    ],
)
def test_a_decimal_as_text_has_the_type_that_debezium_names(
    base: str, named: str, type_: str, cell: bytes | None
) -> None:
    """SRC-5: NUMERIC of PostgreSQL and DECIMAL of MySQL, and no other text. None: the value is the
    cell.
    """
    names = (f"__debezium.source.column.{name}" for name in ("type", "length", "scale"))
    parameters = dict(zip(names, named.split(), strict=False))
    kind = kind_of(Field("credit", base, "", parameters), has_zone=False)
    assert str(kind.type) == type_
    assert (kind.of_text and kind.of_text(b"012.50")) == cell


def _of_four_bytes(number: float) -> bytes:
    try:
        return struct.pack("<f", number)
    except OverflowError:  # it was rounded up, and is too large
        return b""


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
@example(1.100000023841858)
@example(16777216.0)
@example(8.47053949887041e-22)  # 8.47054e-22 is its shortest text, and not 8.470539e-22
@example(-8.47053949887041e-22)
@example(0.10000000894069672)  # nine digits
@example(2.0**-126)
@example(-(2.0**-149))
@example(2.0**-149 * 7)
@example(0.0)
@example(3.4025001647762064e38)
@example(-(2.0**128 - 2.0**104))
def test_a_float_of_four_bytes_has_its_shortest_text(number: float) -> None:
    """SRC-3, nothing_invented: read back, it is the same number, and no text has fewer digits."""
    convert = kind_of(Field("f", "float32"), has_zone=False).of_value
    assert convert is not None
    read = float(convert(number))
    texts = (float(f"{number:.{digits}g}") for digits in range(1, 10))
    shortest = next(text for text in texts if _of_four_bytes(text) == _of_four_bytes(number))
    assert (read, math.copysign(1, read)) == (shortest, math.copysign(1, number))


@pytest.mark.parametrize(
    ("number", "cell"), [(math.nan, b"NaN"), (math.inf, b"Infinity"), (-math.inf, b"-Infinity")]
)
@pytest.mark.parametrize("base", ["float32", "float64"])
def test_a_float_that_is_no_number_has_its_name(base: str, number: float, cell: bytes) -> None:
    """SRC-3."""
    convert = kind_of(Field("f", base), has_zone=False).of_value
    assert convert is not None
    assert convert(number) == cell


HOUR_S = 3_600
MOMENTS = [
    (f"{CONNECT}Timestamp", 1_000, "DATETIME", "1970-01-02T01:00:00.000000"),
    (f"{TIME}Timestamp", 1_000, "DATETIME", "1970-01-02T01:00:00.000000"),
    (f"{TIME}MicroTimestamp", 1_000_000, "DATETIME", "1970-01-02T01:00:00.000000"),
    (f"{TIME}NanoTimestamp", 1_000_000_000, "DATETIME", "1970-01-02T01:00:00.000000"),
    ("timestamp-millis", 1_000, "TIMESTAMP", "1970-01-02T01:00:00.000000Z"),
    ("timestamp-micros", 1_000_000, "TIMESTAMP", "1970-01-02T01:00:00.000000Z"),
    ("timestamp-nanos", 1_000_000_000, "TIMESTAMP", "1970-01-02T01:00:00.000000Z"),
    (f"{CONNECT}Time", 1_000, "TIME", "25:00:00.000000"),
    (f"{TIME}Time", 1_000, "TIME", "25:00:00.000000"),
    (f"{TIME}MicroTime", 1_000_000, "TIME", "25:00:00.000000"),
    (f"{TIME}NanoTime", 1_000_000_000, "TIME", "25:00:00.000000"),
]


@pytest.mark.parametrize(("logical", "per_second", "type_", "cell"), MOMENTS)
def test_each_unit_of_time_is_read(logical: str, per_second: int, type_: str, cell: str) -> None:
    """SRC-5: as a number of Avro, and as one of JSON."""
    kind, number = kind_of(Field("at", "int64", logical), has_zone=False), 25 * HOUR_S * per_second
    assert str(kind.type) == type_
    assert kind.of_value is not None
    assert kind.of_text is not None
    assert (kind.of_value(number), kind.of_text(b"%d" % number)) == (cell.encode(),) * 2


TEXTS = [
    (f"{TIME}IsoDate", "DATE", "2026-03-04Z", "2026-03-04"),
    (f"{TIME}IsoTime", "TIME", "03:04Z", "03:04:00.000000"),
    (f"{TIME}IsoTime", "TIME", "03:04:05.1234567Z", "03:04:05.123456"),
    (f"{TIME}IsoTimestamp", "DATETIME", "2026-03-04T03:04:05Z", "2026-03-04T03:04:05.000000"),
    (f"{TIME}ZonedTimestamp", "TIMESTAMP", "2026-03-04T03:04:05.5Z", "2026-03-04T03:04:05.500000Z"),
]
OTHER_TEXTS = [
    (f"{TIME}IsoDate", "03:04Z"),
    (f"{TIME}IsoTime", "2026-03-04T03:04Z"),
    (f"{TIME}IsoTimestamp", "03:04Z"),
    (f"{TIME}ZonedTimestamp", "03:04Z"),
    (f"{TIME}ZonedTimestamp", "2026-03-04T03:04"),
]


@pytest.mark.parametrize(("logical", "type_", "text", "cell"), TEXTS)
def test_each_time_as_text_is_read(logical: str, type_: str, text: str, cell: str) -> None:
    """SRC-5."""
    kind = kind_of(Field("at", "string", logical), has_zone=False)
    assert str(kind.type) == type_
    assert kind.of_value is not None
    assert kind.of_value(text.encode()) == cell.encode()


@pytest.mark.parametrize(("logical", "text"), OTHER_TEXTS)
def test_a_text_that_is_another_time_does_not_fit(logical: str, text: str) -> None:
    """SRC-6: its natural text is the cell."""
    kind = kind_of(Field("at", "string", logical), has_zone=False)
    assert kind.of_value is not None
    with pytest.raises(ValueError, match=text):
        kind.of_value(text.encode())


@pytest.mark.parametrize(("has_zone", "type_"), [(True, "TIMESTAMP"), (False, "DATETIME")])
def test_a_timestamp_of_connect_is_a_moment_where_it_has_a_zone(has_zone: bool, type_: str) -> None:
    """SRC-5: Debezium uses it for local times."""
    field = Field("at", "int64", f"{CONNECT}Timestamp")
    assert str(kind_of(field, has_zone=has_zone).type) == type_


def test_a_decimal_has_at_most_the_digits_that_a_database_has() -> None:
    """SRC-3: PostgreSQL has up to 16,383 decimals."""
    assert [decimal_text(n, 2) for n in (5, 50, -123, 0)] == [b"0.05", b"0.5", b"-1.23", b"0"]
    assert decimal_text(5, 20_000) == b"0." + b"0" * 19_999 + b"5"
    assert decimal_text(-5, -20_000) == b"-5" + b"0" * 20_000
    for scale in (20_001, -20_001):
        with pytest.raises(ValueError, match=str(scale)):
            decimal_text(5, scale)


LOGICAL = {
    **{logical: ("int64", "int32") for logical, *_ in MOMENTS},
    **{logical: ("string",) for logical, *_ in TEXTS},
    f"{CONNECT}Date": ("int32", "int64"),
    f"{TIME}Date": ("int32", "int64"),
    f"{CONNECT}Decimal": ("bytes",),
    "io.debezium.data.Json": ("string",),
    "io.debezium.data.VariableScaleDecimal": ("struct",),
}
BASES = ("int32", "int64", "float32", "float64", "boolean", "string", "bytes", "struct", "array")


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("logical", LOGICAL)
def test_a_logical_type_of_another_base_has_the_kind_of_its_base(logical: str, base: str) -> None:
    """SRC-3, nothing_invented: a converter of the user may make a number or a text of a value."""
    for has_zone in (True, False):
        kind = kind_of(Field("f", base, logical), has_zone=has_zone)
        is_plain = kind == kind_of(Field("f", base), has_zone=has_zone)
        assert is_plain is (base not in LOGICAL[logical])


@pytest.mark.parametrize("base", BASES)
def test_only_an_int64_is_an_unsigned_number(base: str) -> None:
    """SRC-5."""
    named = {"__debezium.source.column.type": "BIGINT UNSIGNED"}
    kind = kind_of(Field("f", base, "", named), has_zone=False)
    assert (kind == kind_of(Field("f", base), has_zone=False)) is (base != "int64")
