"""Typed values survive being written, and no bytes make reading fail."""

from __future__ import annotations

import json
import math
import re
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.errors import InvalidChangeError
from connector.tables.values import (
    BIGNUMERIC_MAX,
    BIGNUMERIC_MIN,
    BINARY_TYPES,
    CANONICAL_PATTERN,
    TEXT_PATTERN,
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
    DataType,
    Encoding,
    Unreadable,
    read_value,
    write_value,
)
from tests.examples import examples

NUMERICS = st.builds(
    lambda unscaled: Decimal(unscaled).scaleb(-9),
    st.one_of(st.integers(-(10**27), 10**27), st.integers(-(10**4), 10**4)),
)
JSONS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
BIGNUMERICS = st.builds(
    lambda unscaled, decimals: read_value(
        *(DataType.BIGNUMERIC, Encoding.TEXT, f"{Decimal(unscaled).scaleb(-decimals):f}".encode())
    ),
    st.integers(-(10**27), 10**27),
    st.integers(0, 27),
)
TIMES = st.times().map(lambda time: time.isoformat(timespec="microseconds"))
VALUES: dict[DataType, st.SearchStrategy[Any]] = {
    DataType.STRING: st.text(),
    DataType.BYTES: st.binary(),
    DataType.BOOL: st.booleans(),
    DataType.INT64: st.integers(-(2**63), 2**63 - 1),
    DataType.FLOAT64: st.floats(),
    DataType.NUMERIC: NUMERICS,
    DataType.BIGNUMERIC: BIGNUMERICS
    | st.sampled_from([BIGNUMERIC_MIN, BIGNUMERIC_MAX, "0", f"0.{'0' * 37}1"]),
    DataType.DATE: st.dates(),
    DataType.DATETIME: st.integers(TIMESTAMP_MIN, TIMESTAMP_MAX),
    DataType.TIME: TIMES,
    DataType.TIMESTAMP: st.integers(TIMESTAMP_MIN, TIMESTAMP_MAX),
    DataType.JSON: JSONS.map(lambda document: json.dumps(document, ensure_ascii=False)),
}
FORMS = [
    (type_, encoding)
    for type_ in DataType
    for encoding in Encoding
    if encoding is Encoding.TEXT or type_ in BINARY_TYPES
]
TYPED = st.sampled_from(FORMS).flatmap(
    lambda form: st.tuples(st.just(form[0]), st.just(form[1]), VALUES[form[0]])
)
# Mostly text that looks right and is not: the alphabet of all the grammars, and whole values with
# something wrong.
LOOKALIKES = st.one_of(
    st.binary(max_size=10),
    st.text("-+0123456789.:eEtTzZ _,#truefalsNaInfity\n\u0661", max_size=26).map(
        lambda text: text.encode()
    ),
    st.tuples(TYPED, st.sampled_from((b"", b" ", b"\n", b"0", b"Z", b"\x00", b"e5"))).map(
        lambda it: write_value(*it[0]) + it[1]
    ),
)


@examples(400)
@given(TYPED)
def test_reading_gives_what_was_written(typed: tuple[DataType, Encoding, object]) -> None:
    """TBL-7: for every type in both encodings."""
    type_, encoding, value = typed
    read = read_value(type_, encoding, write_value(type_, encoding, value))
    assert read == value or (
        isinstance(value, float)
        and math.isnan(value)
        and isinstance(read, float)
        and math.isnan(read)
    )
    assert type(read) is type(value)


@examples(600)
@given(st.sampled_from(FORMS), LOOKALIKES)
def test_no_bytes_make_reading_fail(form: tuple[DataType, Encoding], value: bytes) -> None:
    """TBL-9: a value or `Unreadable`, never an exception; what is read can be written, and reads
    the same again.
    """
    type_, encoding = form
    read = read_value(type_, encoding, value)
    if isinstance(read, Unreadable):
        assert read.value == value
        assert read.detail.startswith("expected ")
        return
    again = read_value(type_, encoding, write_value(type_, encoding, read))
    assert again == read or (read != read and again != again)


@examples(600)
@given(st.sampled_from(list(CANONICAL_PATTERN)), LOOKALIKES)
def test_the_canonical_pattern_is_what_is_written(type_: DataType, value: bytes) -> None:
    """TBL-7: bytes match it and are readable exactly when writing what they mean gives the same
    bytes.
    """
    read = read_value(type_, Encoding.TEXT, value)
    matches = (
        re.fullmatch(CANONICAL_PATTERN[type_], value.decode("utf-8", "replace"), re.ASCII)
        is not None
    )
    if isinstance(read, Unreadable):
        return
    assert matches == (write_value(type_, Encoding.TEXT, read) == value)


@given(st.sampled_from(list(CANONICAL_PATTERN)), st.data())
def test_canonical_values_are_readable_text(type_: DataType, data: st.DataObject) -> None:
    """TBL-7: one grammar contains the other."""
    text = write_value(type_, Encoding.TEXT, data.draw(VALUES[type_])).decode()
    assert re.fullmatch(CANONICAL_PATTERN[type_], text)
    assert re.fullmatch(TEXT_PATTERN[type_], text)


@given(st.dates(), st.dates())
def test_dates_as_text_lie_in_the_order_of_dates(one: date, other: date) -> None:
    """A canonical date may be compared as text."""
    texts = [write_value(DataType.DATE, Encoding.TEXT, value) for value in (one, other)]
    assert (texts[0] < texts[1]) == (one < other)


@given(TYPED, st.sampled_from(list(DataType)))
def test_a_value_of_another_python_type_is_refused(
    typed: tuple[DataType, Encoding, object], other: DataType
) -> None:
    """Writing checks the Python type exactly: True is no INT64."""
    same = {
        **dict.fromkeys((DataType.JSON, DataType.BIGNUMERIC, DataType.TIME), DataType.STRING),
        **dict.fromkeys((DataType.TIMESTAMP, DataType.DATETIME), DataType.INT64),
    }
    if same.get(other, other) != same.get(typed[0], typed[0]):
        with pytest.raises(InvalidChangeError):
            write_value(other, Encoding.TEXT, typed[2])
