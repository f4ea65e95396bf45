"""Reads and writes the files of an apply without Spark: finds rows by their keys, and writes rows
and deletion vectors.

A file is named by the action of Delta's log that adds it.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet
from pyroaring import BitMap64

from connector.lake.deletion_vectors import read_vector, write_vectors
from connector.lake.stores import files_at
from connector.lake.table_fields import ARROW_TYPES, Numbers, plain
from connector.state import apply_level as limits
from connector.tables.definition import TableDefinition
from connector.tables.values import DataType

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

Key = tuple[object, ...]
Add = Mapping[str, Any]

_MAX_TEXT: Final = 32
"""Delta's file statistics have the first characters of a text. A longer one is left out."""
_REBASED: Final = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
"""The marks of Parquet files whose old dates are those of another calendar. Spark reads them."""


class LeftToSpark(Exception):  # noqa: N818, no fault
    """Spark must do this apply. No file was written."""


def adds_of(actions: Iterable[str]) -> list[Add]:
    return [json.loads(action)["add"] for action in actions]


def check_size(size: int) -> None:
    """Raises `LeftToSpark` if files of this size are too large to read."""
    if size > limits.MAX_BYTES:
        raise LeftToSpark


def check_memory(size: int) -> None:
    """Raises `LeftToSpark` if tables of this size are too large to keep."""
    if size > limits.MAX_IN_MEMORY:
        raise LeftToSpark


@contextmanager
def opened(files: FileSystem, add: Add) -> Iterator[parquet.ParquetFile]:
    """A file to read. Raises `LeftToSpark` if it is large, or has dates of another calendar."""
    source = files.open_input_file(unquote(add["path"]))
    with parquet.ParquetFile(source, coerce_int96_timestamp_unit="us") as file:
        content = file.metadata
        check_memory(
            sum(content.row_group(n).total_byte_size for n in range(content.num_row_groups))
        )
        if any(mark in (content.metadata or {}) for mark in _REBASED):
            raise LeftToSpark
        yield file


def read(file: parquet.ParquetFile, columns: Sequence[str]) -> pa.Table:
    """These columns of all rows of a file. Partition columns are not in it."""
    return file.read(columns=columns, use_threads=False)


class Wanted:
    """Keys that are looked for in files. They are different ones, and are named by their number."""

    def __init__(self, definition: TableDefinition, keys: Sequence[Key]) -> None:
        self.names = [part.name for part in definition.key.parts]
        parts = zip(*keys, strict=True) if keys else ((),) * len(self.names)
        types = [ARROW_TYPES[part.type] for part in definition.key.parts]
        self.columns = [pa.array(part, type_) for part, type_ in zip(parts, types, strict=True)]

    def rows_of(self, table: pa.Table) -> tuple[Numbers, Numbers]:
        """The numbers of the rows with one of the keys, in order, and the keys.

        After each part, a row and a wanted key have the number of their parts so far, so that no
        more than the wanted combinations are looked for.
        """
        found = known = None
        for name, part in zip(self.names, self.columns, strict=True):
            part = plain(part)
            column = plain(table[name]).cast(part.type)
            if found is not None and known is not None:
                found, known = _numbered(found, known)
                column, part = _numbered(column, part)
                size = len(part.unique())
                column = pc.add(pc.multiply(found.cast("int64"), size), column.cast("int64"))
                part = pc.add(pc.multiply(known.cast("int64"), size), part.cast("int64"))
            found, known = column, part
        assert found is not None
        assert known is not None
        places = pc.index_in(found, known)
        rows = pc.indices_nonzero(pc.is_valid(places))
        return (
            np.asarray(rows.to_numpy(), np.int64),
            np.asarray(places.take(rows).to_numpy(), np.int64),
        )


def _numbered(column: pa.ChunkedArray, wanted: pa.Array) -> tuple[pa.ChunkedArray, pa.Array]:
    """Both with a number for each of the wanted values, null for any other value."""
    values = wanted.unique()
    return pc.index_in(column, values), pc.index_in(wanted, values)


@dataclass(frozen=True, slots=True)
class Found:
    """The rows of a file that have a wanted key, in order, their keys, and the columns that were
    asked for.

    `deleted` is the deletion vector of the file.
    """

    add: Add
    rows: Numbers
    keys: Numbers
    deleted: BitMap64
    columns: pa.Table


def find(
    files: FileSystem, adds: Iterable[Add], wanted: Wanted, columns: Sequence[str]
) -> Iterator[Found]:
    """The rows with a wanted key in each of the files that has some. Raises `LeftToSpark`."""
    size = 0
    for add in adds:
        with opened(files, add) as file:
            rows, keys = wanted.rows_of(read(file, wanted.names))
            deleted = BitMap64()
            if len(rows) and (descriptor := add.get("deletionVector")):
                deleted = read_vector(files, descriptor)
                there = ~np.isin(rows, np.array(deleted & BitMap64(rows), np.int64))
                rows, keys = rows[there], keys[there]
            if len(rows):
                taken = read(file, columns).take(pa.array(rows))
                size += taken.nbytes
                check_memory(size)
                yield Found(add, rows, keys, deleted, taken)


def remove(files: FileSystem, found: Iterable[Found]) -> Iterator[str]:
    """Write the deletion vectors of these rows. Returns the actions that remove the rows."""
    now, marked = time.time_ns() // 1_000_000, list(found)
    vectors = {one.add["path"]: one.deleted | BitMap64(one.rows) for one in marked}
    named = write_vectors(
        files,
        {
            one.add["path"]: vectors[one.add["path"]]
            for one in marked
            if len(vectors[one.add["path"]]) < json.loads(one.add["stats"])["numRecords"]
        },
    )
    for one in marked:
        yield json.dumps({"remove": _removed(one.add, now)})
        if (descriptor := named.get(one.add["path"])) is not None:
            statistics = {**json.loads(one.add["stats"]), "tightBounds": False}
            changed = {"stats": json.dumps(statistics), "deletionVector": descriptor}
            yield json.dumps({"add": {**one.add, "dataChange": True, **changed}})


def _removed(add: Add, now: int) -> dict[str, Any]:
    kept = ("path", "partitionValues", "size", "deletionVector", "tags", "stats")
    known = {name: add[name] for name in kept if add.get(name) is not None}
    return {**known, "deletionTimestamp": now, "dataChange": True, "extendedFileMetadata": True}


def write(folder: str, rows: pa.Table, known: Iterable[str], **parts: int) -> str:
    """Write rows to a file of a table, with statistics of the `known` columns. `parts` are the
    values of the partition columns. Returns the action that adds the file.
    """
    # Readers take the calendar of old dates from this key.
    rows = rows.replace_schema_metadata({"org.apache.spark.version": "4.1.1"})
    place = "".join(f"{name}={value}/" for name, value in parts.items())
    files, path = files_at(folder), f"{place}part-{uuid.uuid4()}.parquet"
    files.create_dir(place or ".", recursive=True)
    with files.open_output_stream(path) as sink:
        parquet.write_table(rows, sink, compression="snappy", write_statistics=False)
        size = sink.tell()
    add = {
        "path": quote(path, safe="/="),
        "partitionValues": {name: str(value) for name, value in parts.items()},
        "size": size,
        "modificationTime": time.time_ns() // 1_000_000,
        "dataChange": True,
        "stats": json.dumps(_statistics(rows, known)),
    }
    return json.dumps({"add": add})


def _statistics(rows: pa.Table, names: Iterable[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"numRecords": len(rows), "tightBounds": True}
    for name in names:
        least, most = pc.min_max(rows[name]).as_py().values()
        if not any(isinstance(one, str) and len(one) > _MAX_TEXT for one in (least, most)):
            found.setdefault("minValues", {})[name] = least
            found.setdefault("maxValues", {})[name] = most
            found.setdefault("nullCount", {})[name] = 0
    return found


def keys_with_statistics(definition: TableDefinition) -> list[str]:
    of_keys = definition.key.parts
    return [part.name for part in of_keys if part.type in (DataType.INT64, DataType.STRING)]
