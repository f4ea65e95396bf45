"""The values that a writer accepts for each type, and those that it refuses (EVO-6)."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from connector.errors import InvalidChangeError
from connector.services.rows.values import of_arrow, of_json
from connector.tables.conversions import convert
from connector.tables.nested import ValueType, type_of
from connector.tables.row import is_same_row
from connector.tables.values import (
    BIGNUMERIC_MAX,
    BINARY_TYPES,
    DataType,
    Encoding,
    Unreadable,
    read_value,
    write_value,
)
from connector.values import cell_bytes
from tests.examples import examples
from tests.property.test_nested_laws import NESTED
from tests.property.test_values_roundtrip import TYPED

CEST = timezone(timedelta(hours=2))

ACCEPTED: dict[str, list[tuple[Any, bytes]]] = {
    "BOOL": [(True, b"true"), (False, b"false"), ("TRUE", b"true"), ("False", b"false")],
    "INT64": [(7, b"7"), (-(2**63), b"-9223372036854775808"), ("007", b"7"), (np.int32(5), b"5")],
    "FLOAT64": [
        *((1, b"1.0"), (1.5, b"1.5"), ("1e3", b"1000.0"), (math.nan, b"NaN")),
        *((-math.inf, b"-Infinity"), (Decimal("0.1"), b"0.1"), (np.float32(0.5), b"0.5")),
        *((number, b"9007199254740992.0") for number in (2**53 + 1, "9007199254740993")),
    ],
    "NUMERIC": [
        *((5, b"5"), (Decimal("0E-9"), b"0"), (Decimal("1E+3"), b"1000"), ("1.50", b"1.5")),
        *(
            ("1.5e-3", b"0.0015"),
            (0.1, b"0.1"),
            (0.0000000005, b"0.000000001"),
            (1e22, b"1" + b"0" * 22),
        ),
        *((-0.0000000005, b"-0.000000001"), (0.00000000049, b"0"), ("1.0000000000", b"1")),
    ],
    "BIGNUMERIC": [
        *((5, b"5"), (Decimal("0E-999999"), b"0"), ("5.7E+38", b"57" + b"0" * 37)),
        *((1e-38, b"0." + b"0" * 37 + b"1"), (BIGNUMERIC_MAX, BIGNUMERIC_MAX.encode())),
        (Decimal("1.50"), b"1.5"),
    ],
    "STRING": [("é", "é".encode()), (7, b"7"), (True, b"true"), ("", b"")],
    "BYTES": [(b"\xff", b"\xff"), (bytearray(b"a"), b"a"), (memoryview(b"a"), b"a")],
    "DATE": [
        (date(2026, 1, 31), b"2026-01-31"),
        ("2026-01-31", b"2026-01-31"),
        (-1, b"1969-12-31"),
    ],
    "DATETIME": [
        (datetime(2026, 1, 31, 9), b"2026-01-31T09:00:00.000000"),  # noqa: DTZ001, without a zone
        ("2026-01-31 09:00:00.5", b"2026-01-31T09:00:00.500000"),
        ("2026-01-31T09:00:00", b"2026-01-31T09:00:00.000000"),
        (date(2026, 1, 31), b"2026-01-31T00:00:00.000000"),
        ("2026-01-31", b"2026-01-31T00:00:00.000000"),
    ],
    "TIME": [
        (time(9, 5), b"09:05:00.000000"),
        ("09:05:03.25", b"09:05:03.250000"),
        ("9:5:3", b"09:05:03.000000"),
        ("9:5:3.5", b"09:05:03.500000"),
    ],
    "TIMESTAMP": [
        (1, b"1970-01-01T00:00:00.000001Z"),
        (datetime(2026, 1, 31, 9, tzinfo=UTC), b"2026-01-31T09:00:00.000000Z"),
        (datetime(2026, 1, 31, 9, tzinfo=CEST), b"2026-01-31T07:00:00.000000Z"),
        ("2026-01-31T09:00:00", b"2026-01-31T09:00:00.000000Z"),
        ("2026-01-31 09:00:00.5+02", b"2026-01-31T07:00:00.500000Z"),
        ("2026-01-31T09:00:00-0130", b"2026-01-31T10:30:00.000000Z"),
    ],
    "JSON": [
        ("[1, 2]", b"[1, 2]"),
        ({"a": [1, None]}, b'{"a":[1,null]}'),
        ([], b"[]"),
        ("5", b"5"),
    ],
    "ARRAY<INT64>": [([1, None, "2"], b"[1,null,2]"), ("[1, 2]", b"[1,2]"), ((), b"[]")],
    "ARRAY<BYTES>": [([b"\xff"], b'["/w=="]'), ('["/w=="]', b'["/w=="]')],
    "ARRAY<NUMERIC>": [([Decimal("1.50")], b'["1.5"]'), ("[1.50, 1e2]", b'["1.5","100"]')],
    "RECORD<a DATE, b ARRAY<BOOL>>": [
        ({"a": date(2026, 1, 31)}, b'{"a":"2026-01-31","b":null}'),
        ('{"b": [true, "FALSE"]}', b'{"a":null,"b":[true,false]}'),
    ],
    "RANGE<DATE>": [
        ({"start": date(2026, 1, 31)}, b'{"start":"2026-01-31","end":null}'),
        (
            {"start": "2026-01-31", "end": "2026-02-01"},
            b'{"start":"2026-01-31","end":"2026-02-01"}',
        ),
        ({}, b'{"start":null,"end":null}'),
    ],
}

REFUSED: dict[str, list[Any]] = {
    "BOOL": [1, 0, "yes", "", b"true", np.int64(1)],
    "INT64": [1.5, 1.0, True, 2**63, "1.0", "1e3", "", " 1", Decimal(1)],
    "FLOAT64": [True, 10**400, Decimal("1e400"), np.longdouble("1e4000"), "x", "1e400", "", b"1"],
    "NUMERIC": [
        "1.0000000001",
        "NaN",
        math.nan,
        math.inf,
        True,
        10**29,
        "",
        Decimal("1E-10"),
        "1_0",
    ],
    "BIGNUMERIC": [
        "NaN",
        math.nan,
        Decimal("NaN"),
        "5.8E38",
        f"0.{'0' * 38}1",
        True,
        "1e9999",
        1e39,
    ],
    "STRING": [1.5, Decimal(1), b"a", ["a"], "\ud800"],
    "BYTES": ["a", 1, [1]],
    "DATE": [
        datetime(2026, 1, 31, tzinfo=UTC),
        *("2026-02-30", "2026-1-1", "", 10**9, True, 1.0),
    ],
    "DATETIME": [
        datetime(2026, 1, 31, tzinfo=UTC),
        *("2026-01-31T09:00:00Z", "2026-01-31 09:00:00+02", 0, 1.0, "2026-01-31T24:00:00"),
    ],
    "TIME": [time(9, tzinfo=UTC), "09:00:00Z", "24:00:00", "09:00", "9:60:0", 9, ""],
    "TIMESTAMP": [
        *(1.0, True, date(2026, 1, 31), "2026-01-31", "2026-01-31T09:00:00 Europe/Berlin"),
        *("2026-01-31T09:00:00 UTC", datetime(2026, 1, 31), 2**63, "2026-01-31T09:00:00+25:00"),  # noqa: DTZ001
    ],
    "JSON": ["{", "x", "NaN", [math.nan], {"a": {1, 2}}, 5, b"{}"],
    "ARRAY<INT64>": [[1.5], [[1]], "[1", "[1.5]", '{"a":1}', 5, {"a": 1}, "[1] x", "null", [2**63]],
    "RECORD<a DATE, b ARRAY<BOOL>>": [{"c": 1}, {"b": [1]}, [1], '{"a":1,"a":1}', '{"A":null}', 5],
    "RANGE<DATE>": [
        *({"start": "2026-01-31", "end": "2026-01-31"}, {"start": 2, "end": 1}, {"from": 1}),
        *('{"start":"2026-02-01","end":"2026-01-31"}', ["2026-01-31", None], "[,)"),
    ],
}


@pytest.mark.parametrize("text", ACCEPTED)
def test_accepted_values(text: str) -> None:
    """EVO-6: the canonical bytes, which the column reads."""
    for value, expected in ACCEPTED[text]:
        assert cell_bytes(text, value) == expected, value
        assert not isinstance(read_value(type_of(text), Encoding.TEXT, expected), Unreadable)


@pytest.mark.parametrize("text", REFUSED)
def test_refused_values(text: str) -> None:
    """EVO-6: with the field, the type and the value."""
    for value in [*REFUSED[text], None, object()]:
        with pytest.raises(InvalidChangeError) as caught:
            convert(type_of(text), value, "colour")
        assert caught.value.problem.startswith("colour"), value
        assert "but must be " in caught.value.problem
        assert caught.value.limit.partition(":")[0] in (text, *DataType)
        assert caught.value.value in caught.value.problem
        with pytest.raises(InvalidChangeError):
            cell_bytes(text, value)


def test_every_type_is_in_both_tables() -> None:
    """EVO-6."""
    assert set(DataType) <= set(ACCEPTED) & set(REFUSED)


def test_a_refusal_names_the_part() -> None:
    """EVO-6: one bad element refuses its row, and is named."""
    type_ = type_of("ARRAY<RECORD<a ARRAY<INT64>>>")
    with pytest.raises(InvalidChangeError, match=r"^tags\[1\]\.a\[0\] is 'x', but must be INT64"):
        convert(type_, [None, {"a": ["x"]}], "tags")
    with pytest.raises(InvalidChangeError, match=r"^tags\[0\]\.b is 1, but must be RECORD<a"):
        convert(type_, [{"b": 1}], "tags")


def python_value(type_: ValueType, value: Any) -> Any:
    """A value as a program has it: times are Python's."""
    match type_:
        case DataType.DATETIME:
            return datetime(1970, 1, 1) + timedelta(microseconds=value)  # noqa: DTZ001
        case DataType.BIGNUMERIC:
            return Decimal(value)
        case DataType.TIME:
            return time.fromisoformat(value)
        case _:
            return value


@examples(400)
@given(TYPED)
def test_a_value_is_read_as_it_was_given(typed: tuple[DataType, Encoding, object]) -> None:
    """EVO-6: each value of each type."""
    type_, encoding, value = typed
    written = cell_bytes(type_, python_value(type_, value), encoding)
    read = read_value(type_, encoding, written)
    assert is_same_row({"value": read}, {"value": value})


@examples(300)
@given(NESTED)
def test_a_value_with_parts_is_read_as_it_was_given(typed: tuple[Any, Any]) -> None:
    """EVO-6: also one without its fields that are NULL, or as text."""
    type_, value = typed
    texts: list[Any] = [write_value(type_, Encoding.TEXT, value).decode()]
    for given_value in (_with_naive_times(type_, value), *texts):
        read = read_value(type_, Encoding.TEXT, cell_bytes(type_, given_value))
        assert is_same_row({"value": read}, {"value": value})


def _with_naive_times(type_: Any, value: Any) -> Any:
    """The value with parts as a program has it."""
    if value is None or isinstance(type_, DataType):
        return None if value is None else python_value(type_, value)
    if hasattr(type_, "fields"):
        named = {name: _with_naive_times(part, value[name]) for name, part in type_.fields}
        return {name: part for name, part in named.items() if part is not None}
    if isinstance(value, dict):
        return {side: _with_naive_times(type_.element, part) for side, part in value.items()}
    return [_with_naive_times(type_.element, item) for item in value]


@examples(600)
@given(
    st.sampled_from(list(DataType)),
    st.one_of(
        *(st.text(max_size=12), st.integers(), st.floats(), st.decimals(), st.dates(), st.times()),
        *(st.datetimes(), st.binary(max_size=4), st.booleans(), st.lists(st.floats(), max_size=2)),
        st.text("-+0123456789.:eETZ ", max_size=30),
    ),
)
def test_nothing_is_accepted_that_the_column_cannot_read(type_: DataType, value: Any) -> None:
    """EVO-6, `poison_is_contained`: bytes that the column reads, or a refusal; no other error."""
    for encoding in Encoding if type_ in BINARY_TYPES else [Encoding.TEXT]:
        try:
            written = cell_bytes(type_, value, encoding)
        except InvalidChangeError:
            continue
        assert not isinstance(read_value(type_, encoding, written), Unreadable)


_NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.integers(-(10**400), 10**400),
    st.decimals(allow_nan=False, allow_infinity=False, places=3),
)


def _bytes_or_refusal(type_: DataType, value: object) -> bytes | None:
    try:
        return cell_bytes(type_, value)
    except InvalidChangeError:
        return None


def _of_file(type_: DataType, value: object) -> bytes | None:
    found = of_json(type_, value)
    return None if isinstance(found, Unreadable) else _bytes_or_refusal(type_, found)


@examples(400)
@given(st.sampled_from([DataType.FLOAT64, DataType.NUMERIC, DataType.BIGNUMERIC]), _NUMBERS)
@example(DataType.FLOAT64, 2**53 + 1)
@example(DataType.FLOAT64, 10**400)
def test_a_number_is_one_value_in_every_form(type_: DataType, number: int | Decimal) -> None:
    """EVO-6, PUB-6: an int, a Decimal, text, and the same in a file: one value, or all refused."""
    forms = (number, Decimal(number), f"{number:f}" if isinstance(number, Decimal) else str(number))
    found = {_bytes_or_refusal(type_, form) for form in forms}
    found |= {_of_file(type_, form) for form in forms}
    if isinstance(number, int):
        of_parquet = of_arrow(type_, number)
        is_read = not isinstance(of_parquet, Unreadable)
        found.add(_bytes_or_refusal(type_, of_parquet) if is_read else None)
    assert len(found) == 1
