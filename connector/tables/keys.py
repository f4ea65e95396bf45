"""The key of a table: its columns, and their form in a row key (TBL-8).

`Key.read_key` and `Key.write_key` are inverses. Two different row keys are never the same row of a
table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from connector.errors import ConfigError, InvalidChangeError
from connector.errors.definitions import (
    delimiter_invalid,
    key_columns_invalid,
    key_type_invalid,
    row_key_invalid,
)
from connector.records.field_types import check_ranges
from connector.records.model import MAX_ROW_KEY_BYTES, Rule
from connector.tables.column_names import name_fault, repeated_names
from connector.tables.ordered_key import join_parts, read_part, split_parts, write_part
from connector.tables.values import (
    CANONICAL_PATTERN,
    DataType,
    Encoding,
    Unreadable,
    read_value,
    write_value,
)

MAX_KEY_COLUMNS: Final = 16
MAX_DELIMITER_LENGTH: Final = 8
DEFAULT_DELIMITER: Final = "#"
_canonical = {
    type_: re.compile(pattern, re.ASCII).fullmatch for type_, pattern in CANONICAL_PATTERN.items()
}

KEY_TYPES: Final = (
    *(DataType.STRING, DataType.BYTES, DataType.BOOL, DataType.INT64, DataType.NUMERIC),
    *(DataType.DATE, DataType.TIMESTAMP),
)
"""The types of key columns. A row key has an order-preserving form of these."""
ROW_KEY_TYPES: Final = (DataType.STRING, DataType.BYTES)
"""The types of a key column that is the row key."""

_LETTERS: Final = {
    DataType.BOOL: "truefals",
    DataType.INT64: "-0123456789",
    DataType.NUMERIC: "-.0123456789",
    DataType.DATE: "-0123456789",
    DataType.TIMESTAMP: "-:.TZ0123456789",
}
"""The characters of the canonical text of a type. A delimiter of only these characters could occur
inside a part.
"""


class KeyForm(StrEnum):
    """The form of the key columns in the row key. See `Key`."""

    ROW_KEY = "row_key"
    DELIMITED = "delimited"
    ORDERED = "ordered"


@dataclass(frozen=True, slots=True)
class KeyPart:
    """One key column. Raises `ConfigError` for a name that is not allowed."""

    name: str
    type: DataType

    def __post_init__(self) -> None:
        if fault := name_fault("key column", self.name):
            raise fault


@dataclass(frozen=True, slots=True)
class Key:
    """The key columns of a table, and their form in the row key.

    - `ORDERED`: bytes with the same order as the key columns (`connector.tables.ordered_key`). A
      part can have any value. One text without NUL characters is its UTF-8 bytes.
    - `DELIMITED`: each part in its canonical text, with the delimiter between the parts. The
      delimiter must not occur inside a part. For example, `7#2024-04-30`.
    - `ROW_KEY`: one part, BYTES or STRING. It is the row key.

    Raises:
        ConfigError: The number of parts, a type or the delimiter is not allowed (TBL-8).
    """

    parts: tuple[KeyPart, ...]
    form: KeyForm = KeyForm.ORDERED
    delimiter: str = DEFAULT_DELIMITER

    def __post_init__(self) -> None:
        check_ranges(self)
        types = [(part.name, part.type) for part in self.parts]
        for fault in key_faults(types, self.form, self.delimiter):
            raise fault
        for fault in repeated_names("key columns", (part.name for part in self.parts)):
            raise fault

    def read_key(self, row_key: bytes) -> tuple[object, ...] | Unreadable:
        """Split a row key into the values of the key columns. Never raises.

        Args:
            row_key: The row key of a change.

        Returns:
            One value for each part, or `Unreadable`. `write_key` of the values returns the same
            bytes.
        """
        if self.form is KeyForm.ROW_KEY:
            pieces, how = [row_key], ""
        elif self.form is KeyForm.ORDERED:
            pieces, how = split_parts(row_key, len(self.parts)), "in order-preserving form"
        else:
            pieces, how = row_key.split(self.delimiter.encode()), f"joined by {self.delimiter!r}"
        if len(pieces) != len(self.parts):
            return Unreadable(f"a key of {len(self.parts)} parts {how}", row_key)
        values = []
        for part, piece in zip(self.parts, pieces, strict=True):
            value = (read_part if self.form is KeyForm.ORDERED else _read_canonical)(
                part.type, piece
            )
            if isinstance(value, Unreadable):
                return Unreadable(f"{value.expected} as key column {part.name}", row_key)
            values.append(value)
        return tuple(values)

    def write_key(self, values: tuple[object, ...]) -> bytes:
        """Build the row key from the values of the key columns.

        Args:
            values: One value for each part, with the Python type of the column
                (`connector.tables.values`).

        Returns:
            The row key.

        Raises:
            InvalidChangeError: The number of values or a type is wrong, a part contains the
                delimiter, or the row key is too long.
        """
        if len(values) != len(self.parts):
            raise InvalidChangeError(
                Rule.ROW_KEY, "row_key", f"made of {len(self.parts)} key columns", values
            )
        typed = list(zip((part.type for part in self.parts), values, strict=True))
        if self.form is KeyForm.ORDERED:
            row_key = join_parts([write_part(*part) for part in typed])
        else:
            row_key = self.delimiter.encode().join(
                write_value(type_, Encoding.TEXT, value) for type_, value in typed
            )
        if not 1 <= len(row_key) <= MAX_ROW_KEY_BYTES:
            raise InvalidChangeError(
                Rule.ROW_KEY, "row_key", f"1 to {MAX_ROW_KEY_BYTES} bytes", row_key
            )
        # The order-preserving form of a value is always read as the value.
        if self.form is not KeyForm.ORDERED and self.read_key(row_key) != values:
            raise InvalidChangeError(
                Rule.ROW_KEY,
                "row_key",
                f"made of parts without {self.delimiter!r}",
                values,
            )
        return row_key


def key_faults(
    columns: Sequence[tuple[str, DataType | None]], form: KeyForm, delimiter: str
) -> Iterator[ConfigError]:
    """Yield what is wrong with a key (TBL-8). A remedy leads to no other fault.

    Args:
        columns: The names of the key columns, and their types. None: the type is not known.
        form: The form.
        delimiter: The delimiter.
    """
    if not 1 <= len(columns) <= MAX_KEY_COLUMNS:
        yield key_columns_invalid(len(columns), MAX_KEY_COLUMNS)
    types = key_types(form, delimiter)
    for name, type_ in columns:
        if type_ is not None and type_ not in KEY_TYPES:
            yield key_type_invalid(name, type_, f"{', '.join(types[:-1])} or {types[-1]}")
    typed = [(name, type_) for name, type_ in columns if type_ in KEY_TYPES]
    is_row_key = len(columns) == 1 and all(type_ in ROW_KEY_TYPES for _, type_ in typed)
    if form is KeyForm.ROW_KEY and columns and not is_row_key:
        declared = ", ".join(f"{name} {type_ or '(unknown)'}" for name, type_ in columns)
        yield row_key_invalid(declared, _forms_for(typed, delimiter))
    if form is not KeyForm.DELIMITED and delimiter != DEFAULT_DELIMITER:
        is_delimiter = _delimiter_fault(typed, delimiter) is None
        remedy = "Remove the delimiter" + (', or set form = "delimited"' if is_delimiter else "")
        yield delimiter_invalid(delimiter, f"The form {form} has no delimiter", remedy)
    if form is KeyForm.DELIMITED and (fault := _delimiter_fault(typed, delimiter)):
        yield fault


def key_types(form: KeyForm, delimiter: str) -> Sequence[DataType]:
    """Return the types that a key column can have in a form with this delimiter."""
    if form is KeyForm.ROW_KEY:
        return ROW_KEY_TYPES
    if form is KeyForm.ORDERED or not _is_delimiter(delimiter):
        return KEY_TYPES
    return [type_ for type_ in KEY_TYPES if not set(delimiter) <= set(_LETTERS.get(type_, ""))]


def _is_delimiter(text: str) -> bool:
    return 1 <= len(text) <= MAX_DELIMITER_LENGTH and text.isascii()


def _forms_for(columns: Sequence[tuple[str, DataType | None]], delimiter: str) -> str:
    forms = [KeyForm.ORDERED] if delimiter == DEFAULT_DELIMITER else []
    if _delimiter_fault(columns, delimiter) is None:
        forms.append(KeyForm.DELIMITED)
    return " or ".join(f'"{form}"' for form in forms) or '"ordered", without a delimiter'


def _delimiter_fault(
    columns: Sequence[tuple[str, DataType | None]], delimiter: str
) -> ConfigError | None:
    if not _is_delimiter(delimiter):
        cause = f"A delimiter has 1 to {MAX_DELIMITER_LENGTH} ASCII characters"
        return delimiter_invalid(delimiter, cause, 'Set delimiter = "#"')
    for name, type_ in columns:
        if type_ is not None and type_ not in key_types(KeyForm.DELIMITED, delimiter):
            cause = f"The values of {name}, which has the type {type_}, may contain it"
            return delimiter_invalid(delimiter, cause, 'Choose another delimiter, for example "#"')
    return None


def _read_canonical(type_: DataType, piece: bytes) -> object | Unreadable:
    """Read a part that must have its canonical form. For example, `01` is not a valid INT64 key.

    Otherwise, two different row keys would be the same row.
    """
    value = read_value(type_, Encoding.TEXT, piece)
    if (
        not isinstance(value, Unreadable)
        and type_ in _canonical
        and not _canonical[type_](piece.decode())
    ):
        return Unreadable(
            f"{type_} in its canonical form, {write_value(type_, Encoding.TEXT, value)!r},", piece
        )
    return value
