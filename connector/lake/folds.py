"""Copies the rows of small files into the file that a small apply writes anyway (TBL-15, ENG-8)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from connector.lake.kept import Kept
from connector.lake.small_files import (
    Add,
    FileRows,
    LeftToSpark,
    check_size,
    fields_of,
    opened,
    read,
    vector_of,
)
from connector.lake.stores import files_at
from connector.state import apply_level as limits
from connector.state.maintenance_schedule import DataFile, to_fold
from connector.tables.column_names import BUCKET, STATE, UNMAPPED
from connector.tables.definition import TableDefinition

_ODD: Final = Kept[bool](100_000)
"""The files that cannot be copied, or are too large, by path. They are not looked at again."""


class _OddFileError(Exception):
    """The file has what cannot be copied exactly."""


@dataclass(frozen=True, slots=True)
class Fold:
    """Files to remove, and their live rows with their bucket."""

    adds: Sequence[Add] = ()
    rows: Sequence[pa.Table] = ()


def fold(
    folder: str, definition: TableDefinition, adds: Iterable[Add], removed: Iterable[FileRows]
) -> Fold:
    """The small files of one bucket of a table, if there are many, without the rows that the apply
    removes.

    `adds` are the files of the buckets to which the apply writes. A file that cannot be copied
    exactly, or read, or is large in memory, stays as it is, and so do the others this time. Never
    raises.
    """
    by_bucket = dict[str, list[tuple[Add, DataFile]]]()
    for add in adds:
        bucket = add["partitionValues"].get(BUCKET)
        if bucket is not None and (file := _foldable(folder, add)) is not None:
            by_bucket.setdefault(str(bucket), []).append((add, file))
    most = max(map(_chosen, by_bucket.values()), key=len, default=[])
    rows_removed = {rows.add["path"]: rows for rows in removed}
    fields = fields_of(definition)
    needed = {*(part.name for part in definition.key.parts), UNMAPPED, STATE}

    def rows_of(add: Add) -> pa.Table:
        table = _live_rows(folder, fields, needed, add, rows_removed.get(add["path"]))
        bucket = np.full(len(table), int(add["partitionValues"][BUCKET]))
        return table.append_column(pa.field(BUCKET, pa.int32()), pa.array(bucket, pa.int32()))

    return _copied(folder, most, rows_of)


def fold_tombstones(folder: str, fields: Sequence[pa.Field], adds: Iterable[Add]) -> Fold:
    """As `fold`, for the files of a tombstone table with these columns."""
    files = [(add, file) for add in adds if (file := _foldable(folder, add)) is not None]
    needed = {field.name for field in fields}
    return _copied(
        folder, _chosen(files), lambda add: _live_rows(folder, fields, needed, add, None)
    )


def _foldable(folder: str, add: Add) -> DataFile | None:
    file = DataFile.from_add(add)
    return file if file.rows and _ODD.get(f"{folder}/{add['path']}") is None else None


def _chosen(files: Sequence[tuple[Add, DataFile]]) -> list[Add]:
    return [files[number][0] for number in to_fold([file for _, file in files])]


def _copied(folder: str, adds: Sequence[Add], rows_of: Callable[[Add], pa.Table]) -> Fold:
    """A fold of these files. Empty: one of them cannot be copied exactly, or read."""
    rows, size = list[pa.Table](), 0
    for add in adds:
        try:
            table = rows_of(add)
            size += table.nbytes
            check_size(size, limits.MAX_IN_MEMORY // 4)
        except OSError:
            return Fold()
        except (_OddFileError, LeftToSpark, ValueError, KeyError, pa.ArrowException):
            _ODD.keep(f"{folder}/{add['path']}", value=True, size=1)
            return Fold()
        rows.append(table)
    return Fold(adds, rows)


def _live_rows(
    folder: str,
    fields: Sequence[pa.Field],
    needed: AbstractSet[str],
    add: Add,
    removed: FileRows | None,
) -> pa.Table:
    """Raises `_OddFileError`, `LeftToSpark`, or an error of the file."""
    with opened(files_at(folder), add) as file:
        # A column that was added later is null. One that is not in the table any more stays.
        names = [name for name in file.schema_arrow.names if name not in add["partitionValues"]]
        if not needed <= set(names) <= {field.name for field in fields}:
            raise _OddFileError(add["path"])
        table = read(file, names)
    is_live = np.ones(len(table), np.bool_)
    if (descriptor := add.get("deletionVector")) is not None:
        is_live[np.array(vector_of(folder, descriptor), np.int64)] = False
    if removed is not None:
        is_live[removed.rows] = False
    table = table.filter(pa.array(is_live))
    columns = list[Any]()
    for field in fields:
        if field.name not in names:
            columns.append(pa.nulls(len(table), field.type))
        elif _shape(table[field.name].type) != _shape(field.type):
            raise _OddFileError(add["path"])
        else:
            columns.append(table[field.name].cast(field.type))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _shape(type_: pa.DataType) -> Any:
    """A type without the names of the elements of lists, the order of fields, and whether a part
    can be null. A value can be moved between two types with the same shape.
    """
    if pa.types.is_list(type_):
        return ("list", _shape(type_.value_type))
    if pa.types.is_map(type_):
        return ("map", _shape(type_.key_type), _shape(type_.item_type))
    if pa.types.is_struct(type_):
        return {field.name: _shape(field.type) for field in type_}
    return type_
