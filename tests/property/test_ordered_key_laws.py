"""Keys in order-preserving form lie in the order of their key columns, and no two of them are
one.
"""

from __future__ import annotations

import re
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from connector.tables.keys import KEY_TYPES, Key, KeyForm, KeyPart
from connector.tables.ordered_key import (
    NUMBER_RANGE,
    number_pattern,
    read_number,
    read_part,
    write_number,
)
from connector.tables.values import DataType, Unreadable
from tests.examples import examples
from tests.property.test_values_roundtrip import VALUES

NUMBER = st.integers(0, 135).flatmap(lambda bits: st.integers(-(2**bits), 2**bits))
SPECIAL = st.lists(st.sampled_from((0, 1, 0x40, 0x7F, 0x80, 0xC0, 0xFE, 0xFF)), max_size=12).map(
    bytes
)


def _numbers(type_: DataType) -> st.SearchStrategy[Any]:
    least, greatest = NUMBER_RANGE[type_]
    numbers = st.integers(0, max(-least, greatest).bit_length()).flatmap(
        lambda bits: st.integers(max(least, -(2**bits)), min(greatest, 2**bits))
    )
    return numbers.map(lambda number: read_part(type_, write_number(number)))


NEAR: dict[DataType, st.SearchStrategy[Any]] = {
    DataType.STRING: st.text("\x00\x01aä\uffff\U00010000", max_size=3),
    DataType.BYTES: SPECIAL,
    **{type_: _numbers(type_) for type_ in NUMBER_RANGE if type_ is not DataType.BOOL},
    DataType.BOOL: st.booleans(),
}
"""Values that begin alike, and about as often of each length."""


def ordered(types: list[DataType]) -> Key:
    return Key(
        tuple(KeyPart(f"k{place}", type_) for place, type_ in enumerate(types)), KeyForm.ORDERED
    )


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Key, tuple[Any, ...], tuple[Any, ...]]:
    """Two tuples of one key; parts of the second are often those of the first."""
    types = draw(st.lists(st.sampled_from(KEY_TYPES), min_size=1, max_size=4))
    one = tuple(draw(VALUES[type_] | NEAR[type_]) for type_ in types)
    other = tuple(
        value if draw(st.booleans()) else draw(NEAR[type_])
        for type_, value in zip(types, one, strict=True)
    )
    return ordered(types), one, other


@examples(600, quick=30)
@given(pairs())
def test_keys_lie_in_the_order_of_their_columns(
    pair: tuple[Key, tuple[Any, ...], tuple[Any, ...]],
) -> None:
    """TBL-7: compared as unsigned bytes."""
    key, one, other = pair
    assert (key.write_key(one) < key.write_key(other)) == (one < other)
    assert (key.write_key(one) == key.write_key(other)) == (one == other)


@examples(300, quick=20)
@given(NUMBER, NUMBER)
def test_numbers_lie_in_their_order(one: int, other: int) -> None:
    assert (write_number(one) < write_number(other)) == (one < other)
    assert read_number(write_number(one)) == one


@examples(600, quick=30)
@given(pairs(), st.integers(0, 40), st.integers(0, 2), SPECIAL)
def test_a_damaged_key_is_unreadable_or_another_key(
    pair: tuple[Key, tuple[Any, ...], tuple[Any, ...]], place: int, cut: int, inserted: bytes
) -> None:
    """TBL-7: whatever is read is written the same."""
    key, values, _ = pair
    row_key = key.write_key(values)
    damaged = row_key[:place] + inserted + row_key[place + cut :]
    read = key.read_key(damaged)
    assert isinstance(read, Unreadable) or key.write_key(read) == damaged
    assert (read == values) == (damaged == row_key)


@examples(600, quick=30)
@given(
    st.sampled_from(sorted(NUMBER_RANGE)),
    st.binary(max_size=20) | SPECIAL | NUMBER.map(write_number),
)
@example(DataType.INT64, b"")
def test_the_pattern_of_numbers_is_what_is_written(type_: DataType, piece: bytes) -> None:
    """TBL-7: between the least and the greatest, bytes match it exactly if they are the bytes of a
    number.
    """
    least, greatest = map(write_number, NUMBER_RANGE[type_])
    matches = (
        re.fullmatch(number_pattern(type_), piece.hex().upper()) is not None
        and least <= piece <= greatest
    )
    assert matches == (not isinstance(read_part(type_, piece), Unreadable))
