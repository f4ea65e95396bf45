"""The values of columns: types from text, and the bytes of a cell from a Python value (EVO-6)."""

from __future__ import annotations

from connector.tables.conversions import convert, refusal
from connector.tables.nested import ArrayType, RangeType, RecordType, ValueType, type_of
from connector.tables.values import DataType, Encoding, write_value

__all__ = [
    "ArrayType",
    "DataType",
    "Encoding",
    "RangeType",
    "RecordType",
    "ValueType",
    "cell_bytes",
    "type_of",
]


def cell_bytes(type_: ValueType | str, value: object, encoding: Encoding = Encoding.TEXT) -> bytes:
    """Return the bytes of a cell that a column of this type reads as this value.

    `str` is not enough: it makes `0E-9` of a Decimal, `True` of a bool and `1e+22` of a float.

    Example:
        cell_bytes("NUMERIC", Decimal("0E-9"))  # b"0"

    Args:
        type_: The type, or its text, for example `ARRAY<INT64>`.
        value: The value. None is not one: delete the cell instead.
        encoding: The encoding of the column.

    Returns:
        The canonical bytes.

    Raises:
        ConfigError: There is no such type.
        InvalidChangeError: The type does not accept the value.
    """
    kind = type_of(type_) if not isinstance(type_, DataType) and isinstance(type_, str) else type_
    if value is None:
        raise refusal(kind, value, "value")
    return write_value(kind, encoding, convert(kind, value))
