"""Values with parts survive being written, and no text makes reading them fail (EVO-6)."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.errors import ConfigError, InvalidChangeError
from connector.tables.nested import (
    MAX_DEPTH,
    RANGE_TYPES,
    ArrayType,
    RangeType,
    RecordType,
    ValueType,
    type_of,
)
from connector.tables.row import is_same_row
from connector.tables.values import DataType, Encoding, Unreadable, read_value, write_value
from tests.examples import examples
from tests.property.test_values_roundtrip import VALUES

NAMES = st.sampled_from(["a", "b2", "Name", "end", "start", "select", "_"]).filter(
    lambda name: name != "_"
)
SCALARS = st.sampled_from(list(DataType))
RANGES = st.sampled_from(RANGE_TYPES).map(RangeType)


def _records(inner: st.SearchStrategy[ValueType]) -> st.SearchStrategy[ValueType]:
    fields = st.lists(
        st.tuples(NAMES, inner), min_size=1, max_size=3, unique_by=lambda field: field[0].lower()
    )
    return fields.map(lambda given_fields: RecordType(tuple(given_fields)))


TYPES: st.SearchStrategy[Any] = st.recursive(
    SCALARS | RANGES, lambda inner: inner.map(ArrayType) | _records(inner), max_leaves=4
).filter(lambda type_: not isinstance(type_, DataType))


def values_of(type_: ValueType) -> st.SearchStrategy[Any]:
    """The values of a type, NULL left out."""
    match type_:
        case ArrayType():
            return st.lists(st.none() | values_of(type_.element), max_size=3)
        case RecordType():
            return st.fixed_dictionaries(
                {name: st.none() | values_of(part) for name, part in type_.fields}
            )
        case RangeType():
            sides = st.tuples(*(st.none() | VALUES[type_.element] for _ in range(2)))
            return sides.filter(
                lambda both: None in both or both[0] < both[1]  # type: ignore[operator]
            ).map(lambda both: {"start": both[0], "end": both[1]})
        case _:
            return VALUES[type_]


NESTED = TYPES.flatmap(lambda type_: st.tuples(st.just(type_), values_of(type_)))

PARTS = [
    *("null", "true", "1", "-0", "1.5", "1e400", '"1"', '"NaN"', '"Infinity"', '"x"', '""', "[]"),
    *("{}", '"2026-01-31"', '"2026-02-30"', '"\\ud800"', '"\\ud83d\\ude00"', '"\\u0000"', '"AA=="'),
    *('"AB=="', '"A"', "NaN", "01", "1.", '{"a":1}', "[1]", '"{}"', '"[1"', "/**/1", "'a'"),
    *('"2026-01-31T09:00:00"', '"2026-01-31T09:00:00Z"', '"24:00:00"', '"09:00:00"', "1 2", "nul"),
]
WHOLE = [
    "[{}]",
    "[{},{}]",
    '{{"a":{}}}',
    '{{"start":{},"end":{}}}',
    '{{"a":{},"a":{}}}',
    "{}",
    "[[{}]]",
]
WHOLE += ['{{"a":{},"b2":{}}}', '{{"x":{}}}', "[{}] 1", "[{},]", "[{}", " [ {} ]\n", "\ufeff[{}]"]


def damaged(rng: Random, text: str) -> str:
    """A text with another character somewhere, or without one, or with a part of JSON."""
    index = rng.randrange(len(text) + 1)
    new = rng.choice(["", "0", '"', ",", "]", "}", "[", "{", ":", " ", "\\", "\n", *PARTS])
    return text[:index] + new + text[index + rng.randrange(2) :]


def lookalikes(rng: Random) -> str:
    """Text that resembles a value with parts."""
    return rng.choice(WHOLE).format(*(rng.choice(PARTS) for _ in range(2)))


@examples(300)
@given(NESTED)
def test_reading_gives_what_was_written(typed: tuple[Any, Any]) -> None:
    """EVO-6: for every type with parts."""
    type_, value = typed
    written = write_value(type_, Encoding.TEXT, value)
    read = read_value(type_, Encoding.TEXT, written)
    assert is_same_row({"value": read}, {"value": value})
    assert write_value(type_, Encoding.TEXT, read) == written
    assert json.loads(written) == json.loads(json.dumps(type_.view(value)))


@examples(300)
@given(NESTED, st.randoms(use_true_random=False))
def test_no_text_makes_reading_fail(typed: tuple[Any, Any], rng: Random) -> None:
    """TBL-9, EVO-6: a value or `Unreadable`; what is read can be written, and reads the same."""
    type_, value = typed
    written = write_value(type_, Encoding.TEXT, value).decode()
    for text in (damaged(rng, written), lookalikes(rng)):
        read = read_value(type_, Encoding.TEXT, text.encode("utf-8", "surrogatepass"))
        if not isinstance(read, Unreadable):
            again = read_value(type_, Encoding.TEXT, write_value(type_, Encoding.TEXT, read))
            assert is_same_row({"value": again}, {"value": read})


@examples(300)
@given(TYPES)
def test_a_type_is_its_text(type_: Any) -> None:
    """EVO-6: as a configuration and a stored definition have it."""
    assert type_of(str(type_)) == type_
    assert type_of(str(type_).replace("<", " < ").replace(",", " ,").replace(">", "> ")) == type_
    assert hash(type_of(str(type_))) == hash(type_)


@pytest.mark.parametrize(
    "text",
    [
        *("", "INT", "ARRAY", "ARRAY<", "ARRAY<INT64", "ARRAY<INT64>>", "ARRAY<INT64, BOOL>"),
        *(
            "RECORD<>",
            "RECORD<a>",
            "RECORD<a INT64,>",
            "RECORD<a INT64, A BOOL>",
            "RECORD<_a BOOL>",
        ),
        *("RANGE<INT64>", "RANGE<ARRAY<DATE>>", "STRUCT<a INT64>", "ARRAY<INT64>x", "INT64 INT64"),
        "ARRAY<" * MAX_DEPTH + "INT64" + ">" * MAX_DEPTH,
        "ARRAY<" * 100_000,
    ],
)
def test_other_texts_are_refused_with_an_example(text: str) -> None:
    """EVO-6, TBL-8."""
    with pytest.raises(ConfigError) as caught:
        type_of(text)
    assert "Write for example" in caught.value.remedy


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("ARRAY<INT64>", (1, 2)),
        ("ARRAY<INT64>", [True]),
        ("RECORD<a INT64>", {"b": 1}),
        ("RECORD<a INT64>", [1]),
        ("RANGE<DATE>", {"start": 1}),
        ("RANGE<DATETIME>", {"start": 2, "end": 2}),
    ],
)
def test_a_value_that_the_type_does_not_have_is_not_written(type_: str, value: Any) -> None:
    """EVO-6."""
    with pytest.raises(InvalidChangeError, match="as JSON, for example"):
        write_value(type_of(type_), Encoding.TEXT, value)
