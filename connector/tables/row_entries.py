"""Makes the entries of a change from a row of Python values (EVO-4, EVO-5, EVO-12)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final, NamedTuple

from connector.errors import InvalidChangeError
from connector.records.model import DeleteCells, DeleteFamily, Entry, Rule, SetCell, with_data
from connector.tables.column_names import unmapped_name
from connector.tables.conversions import convert, converted, refusal
from connector.tables.definition import Column, TableDefinition
from connector.tables.nested import ValueType
from connector.tables.presence import presence_mark
from connector.tables.values import (
    INT64_MAX,
    INT64_MIN,
    DataType,
    Encoding,
    Unreadable,
    read_value,
    write_value,
)

UNKNOWN_FIELD: Final = "UNKNOWN_FIELD"
REQUIRED_FIELD: Final = "REQUIRED_FIELD"
"""The rules of the errors of a row: it has a field that is no column, or lacks a value."""


class Missing(StrEnum):
    """The effect of a row on a column whose field it lacks.

    - `KEEP`: it keeps its value.
    - `NULL`: it is NULL. The row is replaced as a whole, with its cells without a column.
    - `DEFAULT`: as `NULL`, but a column with a default gets it.
    """

    KEEP = "keep"
    NULL = "null"
    DEFAULT = "default"


class Unknown(StrEnum):
    """The effect of a field that is no column.

    - `ERROR`: the row is refused.
    - `KEEP`: it becomes a cell without a column, in the family of the presence mark.
    - `DROP`: it is left out.
    """

    ERROR = "error"
    KEEP = "keep"
    DROP = "drop"


class _Field(NamedTuple):
    """A column of the table as a row has it. `default` has the bytes of its default."""

    column: Column
    cell: SetCell
    deletion: DeleteCells
    default: bytes | None
    quick: Mapping[type, Callable[[Any], bytes]]


class RowEntries:
    """Makes row keys and entries for one table. `unknown_fields` counts the fields without a column
    that were kept or dropped, by name. A deletion is in the families of the definition, and in
    `families`.
    """

    def __init__(
        self,
        definition: TableDefinition,
        missing: Missing = Missing.KEEP,
        unknown: Unknown = Unknown.ERROR,
        families: Iterable[str] = (),
    ) -> None:
        self.definition, self._missing, self._unknown = definition, missing, unknown
        self._fields = {column.name: _field(column) for column in definition.columns}
        self._keys = {part.name: part.type for part in definition.key.parts}
        deleted = [*(column.family for column in definition.columns), definition.marks, *families]
        self._deletions = tuple(DeleteFamily(family) for family in dict.fromkeys(deleted))
        self._mark = presence_mark(definition.marks)
        self._cells = {column.cell: column.name for column in definition.columns}
        self._required = [column.name for column in definition.columns if column.required]
        self._names = {*self._keys, *self._fields}
        self.unknown_fields: Counter[str] = Counter()

    def with_definition(self, definition: TableDefinition, families: Iterable[str]) -> RowEntries:
        """Return the same for another definition and other `families`, with these counts."""
        other = RowEntries(definition, self._missing, self._unknown, families)
        other.unknown_fields = self.unknown_fields
        return other

    def unknown(self, rows: Iterable[Mapping[str, object]]) -> set[str]:
        """Return the fields of rows that are no columns."""
        return set[str]().union(*(row.keys() - self._names for row in rows))

    def upsert(
        self, row: Mapping[str, object], cell_timestamp: int
    ) -> tuple[bytes, tuple[Entry, ...]]:
        """Return the row key and the entries that write a row.

        Args:
            row: The values by the names of the columns. All key columns have a value. None is NULL.
            cell_timestamp: The timestamp of the cells, in microseconds, or `SERVER_TIME`.

        Raises:
            InvalidChangeError: The row is refused. `field` is the name of the field, or the path of
                a part of it.
        """
        if row.__class__ is not dict and not isinstance(row, Mapping):
            raise InvalidChangeError(Rule.ROW_KEY, "row", "a dict of values by column", row)
        row_key = self._row_key(row)
        replaces = self._missing is not Missing.KEEP
        entries: list[Entry] = [*self._deletions] if replaces else []
        unknown: list[str] = []
        for name, value in row.items():
            field = self._fields.get(name)
            if field is None:
                if name not in self._keys:
                    unknown.append(name)
            elif value is not None:
                try:
                    written = field.quick[value.__class__](value)
                except (KeyError, ValueError):  # the general way takes more, and says why not
                    column = field.column
                    written = _written(column.type, column.encoding, value, name)
                entries.append(with_data(field.cell, written, cell_timestamp))
            elif field.column.required:
                raise _without_value(field.column)
            elif not replaces:
                entries.append(field.deletion)
        if replaces:
            entries += self._absent(row, cell_timestamp)
        if unknown:
            entries += self._of_unknown(row, unknown, cell_timestamp, replaces=replaces)
        entries.append(self._mark)
        return row_key, tuple(entries)

    def delete(self, key: object) -> tuple[bytes, tuple[Entry, ...]]:
        """Return the row key and the entries that delete a row.

        Args:
            key: The values of the key columns: a mapping with their names, a tuple or list in their
                order, or the value of the only one.

        Raises:
            InvalidChangeError: The key is refused.
        """
        names = list(self._keys)
        if isinstance(key, Mapping):
            if unknown := [name for name in key if name not in names]:
                raise _not_allowed(unknown[0], f"a key column: {', '.join(names)}", key[unknown[0]])
            return self._row_key(key), self._deletions
        values = list(key) if isinstance(key, tuple | list) else [key]
        if len(values) != len(names):
            limit = f"a value for each of {', '.join(names)}"
            raise InvalidChangeError(Rule.ROW_KEY, "key", limit, key)
        return self._row_key(dict(zip(names, values, strict=True))), self._deletions

    def _row_key(self, row: Mapping[str, object]) -> bytes:
        values = []
        for name, type_ in self._keys.items():
            value = row.get(name)
            if value is None:
                limit = f"{type_}: a key column has a value"
                raise InvalidChangeError(REQUIRED_FIELD, name, limit, None)
            values.append(converted(type_, value))
        try:
            if None not in values:
                return self.definition.key.write_key(tuple(values))
        except InvalidChangeError:
            values = []
        # The general way says which column is at fault.
        typed = [convert(type_, row[name], name) for name, type_ in self._keys.items()]
        return self._written_key(tuple(typed))

    def _written_key(self, values: tuple[object, ...]) -> bytes:
        try:
            return self.definition.key.write_key(values)
        except InvalidChangeError as error:
            error.within(", ".join(self._keys))
            raise

    def _absent(self, row: Mapping[str, object], cell_timestamp: int) -> list[Entry]:
        """The entries for columns that a row lacks, if it is replaced."""
        entries: list[Entry] = []
        if self._missing is Missing.DEFAULT:
            for name, field in self._fields.items():
                if field.default is not None and name not in row:
                    entries.append(with_data(field.cell, field.default, cell_timestamp))
        for name in self._required:
            is_given = name in row or (
                self._missing is Missing.DEFAULT and self._fields[name].default is not None
            )
            if not is_given:
                raise _without_value(self._fields[name].column)
        return entries

    def _of_unknown(
        self,
        row: Mapping[str, object],
        names: Sequence[str],
        cell_timestamp: int,
        *,
        replaces: bool,
    ) -> list[Entry]:
        """The entries for fields that are no columns (EVO-5)."""
        entries: list[Entry] = []
        family = self.definition.marks
        for name in names:
            if self._unknown is Unknown.ERROR:
                raise _not_allowed(name, f"a column of table {self.definition.name}", row[name])
            if self._unknown is Unknown.DROP:
                continue
            qualifier = str(name).encode("utf-8", "surrogatepass")
            if (shown_by := self._cells.get((family, qualifier))) is not None:
                limit = f"another name: {unmapped_name(family, qualifier)} is column {shown_by}"
                raise _not_allowed(name, limit, row[name])
            value = row[name]
            if value is not None:
                cell = SetCell(family, qualifier, _untyped(name, value), cell_timestamp)
                entries.append(cell)
            elif not replaces:
                entries.append(DeleteCells(family, qualifier))
        self.unknown_fields.update(names)
        return entries


def _field(column: Column) -> _Field:
    default = None
    if column.default is not None:
        value = read_value(column.type, Encoding.TEXT, column.default.encode())
        assert not isinstance(value, Unreadable), value.detail
        default = write_value(column.type, column.encoding, value)
    quick = _QUICK.get((column.type, column.encoding), {})
    cell = SetCell(*column.cell, b"")
    return _Field(column, cell, DeleteCells(*column.cell), default, quick)


def _written(type_: ValueType, encoding: Encoding, value: object, name: str) -> bytes:
    converted = convert(type_, value, name)
    try:
        return write_value(type_, encoding, converted)
    except InvalidChangeError:
        raise refusal(type_, value, name) from None


def _untyped(name: str, value: object) -> bytes:
    """The bytes of a value without a column, in the form of the type that fits it."""
    type_ = next((type_ for kind, type_ in _TYPE_OF if isinstance(value, kind)), None)
    if isinstance(value, datetime) and value.utcoffset() is not None:
        type_ = DataType.TIMESTAMP
    if type_ is None:
        raise _not_allowed(name, "a value that has a type of a column", value)
    return _written(type_, Encoding.TEXT, value, name)


_TYPE_OF: Final = (
    (bool, DataType.BOOL),
    ((str, int), DataType.STRING),
    (float, DataType.FLOAT64),
    (Decimal, DataType.BIGNUMERIC),
    ((bytes, bytearray, memoryview), DataType.BYTES),
    (datetime, DataType.DATETIME),
    (date, DataType.DATE),
    (time, DataType.TIME),
    ((list, tuple, dict), DataType.JSON),
)


def _not_allowed(name: str, limit: str, value: object) -> InvalidChangeError:
    return InvalidChangeError(UNKNOWN_FIELD, str(name), limit, value)


def _without_value(column: Column) -> InvalidChangeError:
    limit = f"{column.type}: the column is required"
    return InvalidChangeError(REQUIRED_FIELD, column.name, limit, None)


def _int64(value: int) -> bytes:
    if not INT64_MIN <= value <= INT64_MAX:
        raise ValueError(value)
    return b"%d" % value


def _float64(value: float) -> bytes:
    if not math.isfinite(value):
        raise ValueError(value)
    return repr(value).encode()


_QUICK: Final[Mapping[tuple[ValueType, Encoding], Mapping[type, Callable[[Any], bytes]]]] = {
    **{(DataType.STRING, encoding): {str: str.encode} for encoding in Encoding},
    **{(DataType.BYTES, encoding): {bytes: bytes} for encoding in Encoding},
    (DataType.BOOL, Encoding.TEXT): {bool: lambda value: b"true" if value else b"false"},
    (DataType.INT64, Encoding.TEXT): {int: _int64},
    (DataType.FLOAT64, Encoding.TEXT): {float: _float64},
    (DataType.DATE, Encoding.TEXT): {date: lambda value: value.isoformat().encode()},
}
"""The bytes of frequent values, which the general way gives, too. `ValueError`: ask that one."""
