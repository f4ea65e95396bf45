"""SUB-6: a key as text is the row key, or the values of the key columns."""

from __future__ import annotations

from decimal import Decimal

import pytest

from connector.errors import InvalidChangeError
from connector.services.rows.values import row_key_of
from connector.tables.keys import KEY_TYPES, Key, KeyForm, KeyPart
from connector.tables.values import DataType

ORDER = Key((KeyPart("id", DataType.INT64), KeyPart("day", DataType.DATE)), form=KeyForm.DELIMITED)
NAME = Key((KeyPart("name", DataType.STRING),), KeyForm.ROW_KEY)
MANY = Key(
    (
        KeyPart("raw", DataType.BYTES),
        KeyPart("paid", DataType.BOOL),
        KeyPart("amount", DataType.NUMERIC),
        KeyPart("at", DataType.TIMESTAMP),
    ),
    form=KeyForm.ORDERED,
)


@pytest.mark.parametrize(
    ("key", "text", "row_key"),
    [
        (ORDER, "7#2024-04-30", b"7#2024-04-30"),
        (ORDER, '[7, "2024-04-30"]', b"7#2024-04-30"),
        (ORDER, "base64:AAE=", b"\x00\x01"),
        (ORDER, '["7", "2024-04-30"]', b"7#2024-04-30"),
        (NAME, "Ada", b"Ada"),
        (NAME, '["[x]"]', b"[x]"),
        (NAME, "base64:W3hd", b"[x]"),
    ],
)
def test_a_key_is_read(key: Key, text: str, row_key: bytes) -> None:
    assert row_key_of(key, text) == row_key


def test_values_of_every_type_are_read() -> None:
    text = '["base64:AP8=", true, 1.50, "2024-04-30T11:19:44.000000Z"]'
    found = MANY.read_key(row_key_of(MANY, text))
    assert isinstance(found, tuple)
    assert found[:2] == (b"\x00\xff", True)
    assert found[2] == Decimal("1.5")


@pytest.mark.parametrize(
    "text",
    [
        "[7]",
        "[7, ",
        '[true, "2024-04-30"]',
        '[7, "30 April"]',
        "[7, null]",
        "base64:!",
        '[7, {"base64": "AA=="}]',
    ],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidChangeError):
        row_key_of(ORDER, text)


@pytest.mark.parametrize("type_", KEY_TYPES)
@pytest.mark.parametrize("text", [r'["\ud800"]', "\ud800", '["base64:!"]', "base64:\ud800"])
def test_text_that_is_not_utf_8_or_base_64_is_no_key(type_: DataType, text: str) -> None:
    """SUB-6: whatever the type of the key column, the error is that of a key."""
    if type_ is DataType.STRING and text == '["base64:!"]':
        return  # it is the text
    key = Key((KeyPart("id", type_),), form=KeyForm.ORDERED)
    with pytest.raises(InvalidChangeError):
        row_key_of(key, text)
