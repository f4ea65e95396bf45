"""The rows of files as upserts: the row key and the entries of a change (REC-23, PUB-6).

A reader of files yields the values of a row as the file has them. A `Convert` makes values of
columns of them (`connector.tables.values`). A value that does not fit is a `Misfit`, not an
exception.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any, Final

import msgspec

from connector.dead_letters.filter import bytes_of_text
from connector.errors import InvalidChangeError
from connector.records.model import SERVER_TIME, DeleteFamily, Entry, Rule, SetCell
from connector.records.views import view_of_bytes
from connector.tables.column_names import UNMAPPED
from connector.tables.conversions import convert, converted
from connector.tables.definition import TableDefinition
from connector.tables.keys import Key
from connector.tables.nested import ValueType
from connector.tables.presence import presence_mark
from connector.tables.values import (
    DataType,
    Encoding,
    Unreadable,
    read_value,
    view_of_value,
    write_value,
)

Convert = Callable[[ValueType, object], object]
"""Returns the value of a column, or `Unreadable`. It never gets None."""

_EPOCH: Final = date(1970, 1, 1)
_NUMBERS: Final = (DataType.INT64, DataType.FLOAT64, DataType.NUMERIC, DataType.BIGNUMERIC)
_JSON: Final = msgspec.json.Encoder(decimal_format="number")
_KEY_FORMS: Final = (
    "the row key as text, base64:…, or a JSON array with the values of the key columns"
)


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why a row cannot be published. `column` is empty if it is not one column alone."""

    column: str
    detail: str


UNMAPPED_MISFIT: Final = Misfit(UNMAPPED, "cells without a column cannot be loaded")


class RowMaker:
    """Makes the row key and the entries of a row from its values.

    - `names` are the columns: the key columns, then the others. Values come in this order.
    - `key_names` are the key columns.
    """

    def __init__(self, definition: TableDefinition, as_of: int | None) -> None:
        """`as_of` is the timestamp of the cells (µs). None: that of the append."""
        self._key = definition.key
        self._columns = definition.columns
        self._cell_timestamp = SERVER_TIME if as_of is None else as_of
        families = sorted({definition.marks, *(column.family for column in definition.columns)})
        self._first: tuple[Entry, ...] = (
            *(DeleteFamily(family) for family in families),
            presence_mark(definition.marks),
        )
        self.key_names = tuple(part.name for part in definition.key.parts)
        self.names = (*self.key_names, *(column.name for column in definition.columns))
        self.types = (
            *(part.type for part in definition.key.parts),
            *(column.type for column in definition.columns),
        )

    def make(
        self, values: Sequence[object], convert: Convert
    ) -> tuple[bytes, list[Entry]] | Misfit:
        """Return the row key and the entries of a row, or why it cannot be published.

        The entries delete each family that the definition names, and then set the presence mark and
        each column that has a value. So the row is replaced as a whole, and exists without a value.
        """
        read = self.read(values, convert)
        if isinstance(read, Misfit):
            return read
        row_key, cells = read
        entries: list[Entry] = list(self._first)
        for column, cell in zip(self._columns, cells, strict=True):
            if cell is not None:
                entries.append(SetCell(column.family, column.qualifier, cell, self._cell_timestamp))
        return row_key, entries

    def read(
        self, values: Sequence[object], convert: Convert
    ) -> tuple[bytes, tuple[bytes | None, ...]] | Misfit:
        """Return the row key, and the canonical bytes of each other column or None, or why the row
        cannot be published.
        """
        key = []
        for name, type_, value in zip(self.key_names, self.types, values, strict=False):
            if value is None:
                return Misfit(name, "a key column has no value")
            converted = convert(type_, value)
            if isinstance(converted, Unreadable):
                return Misfit(name, converted.detail)
            key.append(converted)
        cells: list[bytes | None] = []
        for column, value in zip(self._columns, values[len(key) :], strict=True):
            if value is None:
                cells.append(None)
                continue
            converted = convert(column.type, value)
            if isinstance(converted, Unreadable):
                return Misfit(column.name, converted.detail)
            try:
                cells.append(write_value(column.type, column.encoding, converted))
            except InvalidChangeError as error:
                return Misfit(column.name, error.problem)
        try:
            return self._key.write_key(tuple(key)), tuple(cells)
        except InvalidChangeError as error:
            return Misfit(", ".join(self.key_names), error.problem)

    def view(self, values: Sequence[object], convert: Convert) -> dict[str, Any]:
        """Return values as JSON that can be loaded again once it is corrected."""
        return {
            name: _view(type_, value, convert)
            for name, type_, value in zip(self.names, self.types, values, strict=True)
        }


def of_json(type_: ValueType, value: object) -> object:
    """The value of text, as in CSV, or of decoded JSON, in which a number with decimals is a
    Decimal.

    Bytes are text, `base64:` and that, or `{"base64": "…"}`. In a JSON column, other values than
    text are themselves. A value with parts is as in a cell, or the same as text.
    """
    if not isinstance(type_, DataType):
        text = value if isinstance(value, str) else _json_text(value)
        return read_value(type_, Encoding.TEXT, _shown(text)) if isinstance(text, str) else text
    if isinstance(value, str):
        if type_ is DataType.STRING:
            return value
        if type_ is not DataType.BYTES:
            return read_value(type_, Encoding.TEXT, _shown(value))
        try:
            return bytes_of_text(value)
        except ValueError:
            return Unreadable("text, or base64: and valid base64", _shown(value))
    if type_ is DataType.JSON:
        return _json_text(value)
    fits: object = None
    if isinstance(value, bool):
        fits = value if type_ is DataType.BOOL else None
    elif isinstance(value, int | Decimal):
        fits = converted(type_, value) if type_ in _NUMBERS else None
    elif type_ is DataType.BYTES and isinstance(value, dict) and value.keys() == {"base64"}:
        with suppress(TypeError, ValueError):
            fits = base64.b64decode(value["base64"], validate=True)
    return _misfit(type_, value) if fits is None else fits


def row_key_of(key: Key, text: str) -> bytes:
    """Read the key of a row from text: the row key itself, or a JSON array with the values of the
    key columns.

    For example, `7#2024-04-30`, `base64:AAE=` and `[7, "2024-04-30"]`. Text that begins with `[` is
    always an array. Its values are as in a file of JSON lines.

    Raises:
        InvalidChangeError: The text is neither of these, or a value does not have the type of its
            column.
    """
    try:
        if not text.startswith("["):
            return bytes_of_text(text)
        parts = json.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError):
        raise InvalidChangeError(Rule.ROW_KEY, "row_key", _KEY_FORMS, text) from None
    if not isinstance(parts, list) or len(parts) != len(key.parts):
        names = ", ".join(part.name for part in key.parts)
        limit = f"an array of {len(key.parts)} values, for {names}"
        raise InvalidChangeError(Rule.ROW_KEY, "row_key", limit, text)
    values = []
    for part, value in zip(key.parts, parts, strict=True):
        converted = None if value is None else of_json(part.type, value)
        if converted is None or isinstance(converted, Unreadable):
            limit = f"a value of the type {part.type}"
            raise InvalidChangeError(Rule.ROW_KEY, part.name, limit, value)
        values.append(converted)
    return key.write_key(tuple(values))


def of_arrow(type_: ValueType, value: object) -> object:
    """The value of an Arrow column that `connector.services.rows.parquet` has checked. A DATE is
    days, and a time with a day microseconds, since 1970-01-01 UTC. The parts of a value have
    Python's own types.
    """
    if not isinstance(type_, DataType) or type_ in (DataType.BIGNUMERIC, DataType.TIME):
        try:
            return convert(type_, value)
        except InvalidChangeError as error:
            return Unreadable(error.limit, _shown(value))
    if type_ is DataType.DATE and isinstance(value, int):
        try:
            return _EPOCH + timedelta(days=value)
        except OverflowError:
            return _misfit(type_, value)
    if isinstance(value, int) and type_ in (DataType.FLOAT64, DataType.NUMERIC):
        number = converted(type_, value)
        return _misfit(type_, value) if number is None else number
    return value


def _json_text(value: object) -> object:
    try:
        return _JSON.encode(value).decode()
    except (OverflowError, RecursionError, TypeError, ValueError) as error:
        return Unreadable(f"JSON ({error})", _shown(value))


def _misfit(type_: ValueType, value: object) -> Unreadable:
    return Unreadable(f"a value of the type {type_}", _shown(value))


def _shown(value: object) -> bytes:
    """Text as bytes. A lone surrogate becomes bytes that are not UTF-8."""
    return str(value).encode("utf-8", "surrogatepass")


def _view(type_: ValueType, value: object, convert: Convert) -> Any:
    if value is None or isinstance(value, str | bool):
        return value
    converted = convert(type_, value)
    if not isinstance(converted, Unreadable):
        with suppress(InvalidChangeError):
            return view_of_value(type_, converted)
    if isinstance(value, bytes):
        return view_of_bytes(value)
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return value if is_number else str(_json_text(value))
