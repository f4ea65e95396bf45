"""The key of a row as text: the row key itself, or a JSON array with the values of the key
columns.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Final

from connector.dead_letters.filter import bytes_of_text
from connector.errors import InvalidChangeError
from connector.records.model import Rule
from connector.tables.keys import Key
from connector.tables.values import DataType, Encoding, Unreadable, read_value

_WANTED: Final = "the row key as text, base64:…, or a JSON array with the values of the key columns"


def row_key_of(key: Key, text: str) -> bytes:
    """Read the key of a row from text.

    For example, `7#2024-04-30`, `base64:AAE=` and `[7, "2024-04-30"]`. In an array, bytes are text
    or `base64:…`, and a NUMERIC, DATE or TIMESTAMP is text. Text that begins with `[` is always an
    array.

    Args:
        key: The key of the table.
        text: The text.

    Returns:
        The row key.

    Raises:
        InvalidChangeError: The text is neither of these, or a value does not have the type of its
            column.
    """
    try:
        if not text.startswith("["):
            return bytes_of_text(text)
        values = json.loads(text, parse_float=str)
    except ValueError:
        raise InvalidChangeError(Rule.ROW_KEY, "row_key", _WANTED, text) from None
    if not isinstance(values, list) or len(values) != len(key.parts):
        names = ", ".join(part.name for part in key.parts)
        limit = f"an array of {len(key.parts)} values, for {names}"
        raise InvalidChangeError(Rule.ROW_KEY, "row_key", limit, text)
    return key.write_key(
        tuple(
            _typed(part.name, part.type, value)
            for part, value in zip(key.parts, values, strict=True)
        )
    )


def _typed(name: str, type_: DataType, value: object) -> object:
    found: object = None
    is_text = isinstance(value, str) and type_ is not DataType.INT64
    is_number = isinstance(value, int) and type_ in (DataType.INT64, DataType.NUMERIC)
    if type_ is DataType.BYTES and isinstance(value, str):
        with suppress(ValueError):
            found = bytes_of_text(value)
    elif isinstance(value, bool):
        found = value if type_ is DataType.BOOL else None
    elif is_text or is_number:
        text = str(value).encode("utf-8", "surrogatepass")  # a lone surrogate fits no type
        found = read_value(type_, Encoding.TEXT, text)
    if found is None or isinstance(found, Unreadable):
        raise InvalidChangeError(Rule.ROW_KEY, name, f"a value of the type {type_}", value)
    return found
