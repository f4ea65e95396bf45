"""A row key has exactly one tuple of key columns, and a tuple exactly one row key."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from connector.errors import ConfigError, InvalidChangeError
from connector.tables.column_names import unmapped_name
from connector.tables.keys import KEY_TYPES, Key, KeyForm, KeyPart
from connector.tables.values import DataType, Unreadable
from tests.changes import unmapped_cell
from tests.examples import examples
from tests.property.test_values_roundtrip import VALUES

DELIMITERS = ("#", "|", "::", "\x00", "--x", "aa", "-", ".", "T")


@st.composite
def keys(draw: st.DrawFn) -> Key:
    types = draw(st.lists(st.sampled_from(KEY_TYPES), min_size=1, max_size=5))
    parts = tuple(KeyPart(f"k{place}", type_) for place, type_ in enumerate(types))
    if len(types) == 1 and types[0] in (DataType.BYTES, DataType.STRING) and draw(st.booleans()):
        return Key(parts, KeyForm.ROW_KEY)
    if draw(st.booleans()):
        return Key(parts, KeyForm.ORDERED)
    try:
        return Key(parts, KeyForm.DELIMITED, draw(st.sampled_from(DELIMITERS)))
    except ConfigError:
        return Key(parts, KeyForm.DELIMITED)


@st.composite
def keys_with_values(draw: st.DrawFn) -> tuple[Key, tuple[object, ...]]:
    key = draw(keys())
    return key, tuple(draw(VALUES[part.type]) for part in key.parts)


@examples(300)
@given(keys_with_values())
def test_reading_a_key_gives_what_was_written(given_: tuple[Key, tuple[object, ...]]) -> None:
    """TBL-7: key columns survive, or the key is refused because a part holds its delimiter or it is
    empty.
    """
    key, values = given_
    try:
        row_key = key.write_key(values)
    except InvalidChangeError:
        text = [
            value if isinstance(value, bytes) else value.encode()
            for value in values
            if isinstance(value, (str, bytes))
        ]
        assert text, "only text and bytes can hold a delimiter or be empty"
        assert key.form is not KeyForm.ORDERED, "which takes both"
    else:
        assert key.read_key(row_key) == values


@examples(500)
@given(
    keys(), st.text("0123456789-.:TZ#|\x00aäx", max_size=12).map(str.encode) | st.binary(max_size=8)
)
def test_a_key_that_is_read_is_written_the_same(key: Key, row_key: bytes) -> None:
    """TBL-7: each part encodes back to the same bytes, so two row keys never become one row of the
    table.
    """
    values = key.read_key(row_key)
    if not isinstance(values, Unreadable) and row_key:
        assert key.write_key(values) == row_key


@given(
    st.from_regex(r"[-_.a-zA-Z0-9]{1,8}", fullmatch=True),
    st.binary() | st.text("%4:25ä/").map(str.encode),
)
def test_a_cell_has_one_name(family: str, qualifier: bytes) -> None:
    """TBL-22: `family:qualifier` with escapes names one cell, and can be read back."""
    assert unmapped_cell(unmapped_name(family, qualifier)) == (family, qualifier)


@given(st.text("f:%0245FfgG\xe4\udcff", max_size=8))
def test_a_name_that_is_read_is_written_the_same(name: str) -> None:
    """TBL-22: two names never mean one cell; any other text is refused."""
    try:
        cell = unmapped_cell(name)
    except ValueError:
        return
    assert unmapped_name(*cell) == name
