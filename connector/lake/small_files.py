"""The files of a table without Spark: their columns, their rows with given keys, and their deletion
vectors. A file is named by the action of Delta's log that adds it.

A deletion vector has the numbers of the rows of a file that do not count, in the form of Delta's
protocol. It is in a file of the table, or as text in the commit.
"""

from __future__ import annotations

import json
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet
from pyroaring import BitMap64

from connector.delta_log.actions import decoded, encoded, vector_file
from connector.engine.keys import FileKeys, join_keys
from connector.engine.schema import STATISTICS
from connector.engine.values import Numbers, arrow_type
from connector.lake.checks import table_error
from connector.lake.kept import Kept
from connector.lake.stores import files_at, options_of, remember
from connector.records.model import MAX_TIMESTAMP
from connector.records.ordering import OrderBy
from connector.state import apply_level as limits
from connector.tables.column_names import STATE, UNMAPPED
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


_TABLE_FORM: Final = {"compression": "snappy", "write_statistics": False}
_CHANGELOG_FORM: Final = {
    "compression": "zstd",
    "compression_level": 1,
    "row_group_size": 32_000,
    "write_statistics": ["_hash"],
    "use_dictionary": [
        *("kind", "table", "topic", "topic_id", "stream_partition", "change_type"),
        *("source_cluster_id", "entries.list.element.kind"),
        *("entries.list.element.family", "entries.list.element.qualifier"),
    ],
}
"""Options of a Parquet writer. Rows of a changelog are sorted by hash, so that a group of rows has
a range of hashes.
"""
KEYS: Final = Kept[FileKeys](400_000_000)
"""The keys of files, by their path. A file never changes, and its name has a random number."""
VECTORS: Final = Kept[BitMap64](20_000_000)
"""Deletion vectors, by the folder of their table, their file, and their offset in it."""


class LeftToSpark(Exception):  # noqa: N818, no fault
    """Spark must do this apply. No file was written."""


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column, or an array, whose times are microseconds, also in its parts."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    if pa.types.is_nested(column.type) and (numbers := _with_numbers(column.type)) != column.type:
        return column.cast(numbers)
    return column


def _with_numbers(type_: pa.DataType) -> pa.DataType:
    """A type with numbers in place of times in microseconds."""
    if pa.types.is_timestamp(type_) and type_.unit == "us":
        return pa.int64()
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(_with_numbers(type_.value_type)))
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_with_numbers(field.type)) for field in type_])
    return type_


def fields_of(definition: TableDefinition) -> list[pa.Field]:
    """The columns of a file of the table, as Arrow has them."""
    rank = (
        [(name, pa.int64()) for name in ("commit_timestamp", "tie_breaker", "record_sequence")]
        if definition.order is OrderBy.COMMIT
        else [("sequence_number", pa.binary())]
    )
    position = [("ingest_batch", pa.int64()), ("kafka_partition", pa.int32())]
    position += [("offset", pa.int64()), ("attempt", pa.int32())]
    change = pa.struct([*rank, *position])
    element = pa.struct(
        [
            ("family", pa.string()),
            ("qualifier", pa.binary()),
            ("range_start", pa.int64()),
            ("range_end", pa.int64()),
            ("order", pa.struct([("change", change), ("entry_index", pa.int32())])),
            ("cell_timestamp", pa.int64()),
            ("value", pa.binary()),
        ]
    )
    state = pa.struct(
        [
            ("orders", pa.list_(change)),
            ("column_orders", pa.list_(pa.int32())),
            ("column_entries", pa.list_(pa.int32())),
            ("cell_timestamps", pa.list_(pa.int64())),
            ("mark_order", pa.int32()),
            ("mark_entry", pa.int32()),
            ("mark_timestamp", pa.int64()),
            ("family_orders", pa.list_(pa.int32())),
            ("family_entries", pa.list_(pa.int32())),
            ("residual", pa.list_(element)),
        ]
    )
    return [
        *(pa.field(part.name, arrow_type(part.type)) for part in definition.key.parts),
        *(pa.field(column.name, arrow_type(column.type)) for column in definition.columns),
        pa.field(UNMAPPED, pa.map_(pa.string(), pa.binary())),
        pa.field(STATE, state),
    ]


def adds_of(actions: Iterable[str]) -> list[Add]:
    return [json.loads(action)["add"] for action in actions]


def check_size(size: int, most: int) -> None:
    """Raises `LeftToSpark` if something is larger than `most`."""
    if size > most:
        raise LeftToSpark


@contextmanager
def opened(files: FileSystem, add: Add) -> Iterator[parquet.ParquetFile]:
    """A file to read. Raises `LeftToSpark` if it is large, or has dates of another calendar."""
    source = files.open_input_file(unquote(add["path"]))
    with parquet.ParquetFile(source, coerce_int96_timestamp_unit="us") as file:
        content = file.metadata
        sizes = (content.row_group(n).total_byte_size for n in range(content.num_row_groups))
        check_size(sum(sizes), limits.MAX_IN_MEMORY)
        if any(mark in (content.metadata or {}) for mark in _REBASED):
            raise LeftToSpark
        yield file


def read(file: parquet.ParquetFile, columns: Sequence[str]) -> pa.Table:
    """These columns of all rows of a file. Partition columns are not in it."""
    return file.read(columns=columns, use_threads=False)


class WantedKeys:
    """Keys that are looked for in files. They are different ones, and are named by their number."""

    def __init__(self, definition: TableDefinition, keys: Sequence[Key]) -> None:
        self.names = [part.name for part in definition.key.parts]
        parts = zip(*keys, strict=True) if keys else ((),) * len(self.names)
        types = [arrow_type(part.type) for part in definition.key.parts]
        self.columns = [pa.array(part, type_) for part, type_ in zip(parts, types, strict=True)]

        self.joined = join_keys([plain(column) for column in self.columns])

    def of_table(self, table: pa.Table) -> FileKeys:
        """The keys of the rows of a table."""
        return FileKeys(
            join_keys(
                [
                    plain(table[name]).cast(plain(wanted).type).combine_chunks()
                    for name, wanted in zip(self.names, self.columns, strict=True)
                ]
            )
        )


@dataclass(frozen=True, slots=True)
class FileRows:
    """The rows of a file that have a wanted key, in order, their keys, and some of their columns.

    `deleted` is the deletion vector of the file.
    """

    add: Add
    rows: Numbers
    keys: Numbers
    deleted: BitMap64
    columns: pa.Table


def rows_with_keys(
    folder: str, adds: Iterable[Add], wanted: WantedKeys, columns: Sequence[str]
) -> Iterator[FileRows]:
    """The rows with a wanted key in each of the files of a table that has some. Raises
    `LeftToSpark`.
    """
    size, files = 0, files_at(folder)
    for add in adds:
        name = f"{folder}/{unquote(add['path'])}"
        if (keys_of_file := KEYS.get(name)) is None:
            with opened(files, add) as file:
                keys_of_file = wanted.of_table(read(file, wanted.names))
            KEYS.keep(name, keys_of_file, keys_of_file.nbytes)
        rows, keys = keys_of_file.rows_of(wanted.joined)
        deleted = BitMap64()
        if len(rows) and (descriptor := add.get("deletionVector")):
            deleted = vector_of(folder, descriptor)
            is_there = ~np.isin(rows, np.array(deleted & BitMap64(rows), np.int64))
            rows, keys = rows[is_there], keys[is_there]
        if len(rows):
            table = pa.table({})
            if columns:
                with opened(files, add) as file:
                    table = read(file, columns).take(pa.array(rows))
            size += table.nbytes
            check_size(size, limits.MAX_IN_MEMORY)
            yield FileRows(add, rows, keys, deleted, table)


def vector_of(folder: str, descriptor: Mapping[str, Any]) -> BitMap64:
    """As `read_vector`, for a table that is in a folder. The vector must not be changed."""
    if descriptor["storageType"] != "u":
        return read_vector(files_at(folder), descriptor)
    name = (folder, descriptor["pathOrInlineDv"], descriptor.get("offset") or 0)
    if (vector := VECTORS.get(name)) is None:
        vector = read_vector(files_at(folder), descriptor)
        VECTORS.keep(name, vector, descriptor["sizeInBytes"])
    return vector


def remove(folder: str, removed: Iterable[FileRows], whole: Iterable[Add] = ()) -> Iterator[str]:
    """Write the deletion vectors of these rows of a table. Returns the actions that remove them,
    and these whole files.
    """
    now, adds = time.time_ns() // 1_000_000, list(whole)
    vectors, are_gone = dict[str, BitMap64](), {add["path"] for add in adds}
    for rows in removed:
        if rows.add["path"] in are_gone:
            continue
        adds.append(rows.add)
        vector = rows.deleted | BitMap64(rows.rows)
        if len(vector) < json.loads(rows.add["stats"])["numRecords"]:
            vectors[rows.add["path"]] = vector
    descriptors = write_vectors(files_at(folder), vectors)
    for name, written in descriptors.items():
        of_file = (folder, written["pathOrInlineDv"], written["offset"])
        VECTORS.keep(of_file, vectors[name], written["sizeInBytes"])
    for add in adds:
        yield json.dumps({"remove": _removed(add, now)})
        if (descriptor := descriptors.get(add["path"])) is not None:
            statistics = {**json.loads(add["stats"]), "tightBounds": False}
            changed = {"stats": json.dumps(statistics), "deletionVector": descriptor}
            yield json.dumps({"add": {**add, "dataChange": True, **changed}})


def _removed(add: Add, now: int) -> dict[str, Any]:
    kept = ("path", "partitionValues", "size", "deletionVector", "tags", "stats")
    present = {name: add[name] for name in kept if add.get(name) is not None}
    return {**present, "deletionTimestamp": now, "dataChange": True, "extendedFileMetadata": True}


def write(
    folder: str,
    rows: pa.Table,
    statistics: Iterable[str],
    *,
    wanted: WantedKeys | None = None,
    form: Mapping[str, Any] = _TABLE_FORM,
    **parts: int,
) -> str:
    """Write rows to a file of a table, with `statistics` of these columns. `parts` are the values
    of the partition columns. The keys of the rows are kept, if they are of a table of `wanted`.
    Returns the action that adds the file.
    """
    # Readers take the calendar of old dates from this key.
    rows = rows.replace_schema_metadata({"org.apache.spark.version": "4.1.1"})
    folder_of_parts = "".join(f"{name}={value}/" for name, value in parts.items())
    files, path = files_at(folder), f"{folder_of_parts}part-{uuid.uuid4()}.parquet"
    files.create_dir(folder_of_parts or ".", recursive=True)
    with files.open_output_stream(path) as sink:
        parquet.write_table(rows, sink, **form)
        size = sink.tell()
    if wanted is not None:
        keys = wanted.of_table(rows)
        KEYS.keep(f"{folder}/{path}", keys, keys.nbytes)
    add = {
        "path": quote(path, safe="/="),
        "partitionValues": {name: str(value) for name, value in parts.items()},
        "size": size,
        "modificationTime": time.time_ns() // 1_000_000,
        "dataChange": True,
        "stats": json.dumps(_statistics(rows, statistics)),
    }
    return json.dumps({"add": add})


def write_to_slot(changelog: str, rows: pa.Table, slot: int) -> str:
    """Write rows to a file of a changelog. Returns the action that adds it."""
    return write(changelog, rows, STATISTICS, form=_CHANGELOG_FORM, slot=slot)


def row_writer(warehouse: str) -> Callable[[str, pa.Table, int], str]:
    """Return `write_rows` for the changelogs of a warehouse, with its options, also for another
    process.
    """
    options = options_of(warehouse)
    return write_rows if options is None else partial(_write_there, warehouse, options)


def _write_there(
    warehouse: str, options: Mapping[str, str], changelog: str, rows: pa.Table, slot: int
) -> str:
    remember(warehouse, options)
    return write_rows(changelog, rows, slot)


def write_rows(changelog: str, rows: pa.Table, slot: int) -> str:
    """Write rows with the schema `engine.schema.CHANGELOG` to a file of a changelog. Returns the
    action that adds it. Raises `TableError`.
    """
    try:
        return write_to_slot(changelog, rows, slot)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise table_error(changelog, "written", error) from error


def _statistics(rows: pa.Table, names: Iterable[str]) -> dict[str, Any]:
    statistics: dict[str, Any] = {"numRecords": len(rows), "tightBounds": True}
    for name in names:
        column = plain(rows[name])
        least, most = pc.min_max(column).as_py().values()
        if pa.types.is_timestamp(rows[name].type) and least is not None:
            # Delta's statistics have milliseconds.
            least, most = _time(least // 1000), _time(-(-most // 1000))
        if not any(isinstance(value, str) and len(value) > _MAX_TEXT for value in (least, most)):
            of_name = (("minValues", least), ("maxValues", most), ("nullCount", column.null_count))
            for kind, value in of_name:
                if value is not None:
                    statistics.setdefault(kind, {})[name] = value
    return statistics


def _time(milliseconds: int) -> str | None:
    """A time as text. None: it is after the year 9999."""
    if milliseconds * 1000 > MAX_TIMESTAMP:
        return None
    seconds, rest = divmod(milliseconds, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:03}Z"


def keys_with_statistics(definition: TableDefinition) -> list[str]:
    of_keys = definition.key.parts
    return [part.name for part in of_keys if part.type in (DataType.INT64, DataType.STRING)]


_MAGIC: Final = (1681511377).to_bytes(4, "little")
_VERSION: Final = b"\x01"


def read_vector(files: FileSystem, descriptor: Mapping[str, Any]) -> BitMap64:
    """The numbers of the deleted rows that a vector has. `files` are those of the table.

    Raises `ValueError` if the vector is damaged.
    """
    text, kind = descriptor["pathOrInlineDv"], descriptor["storageType"]
    if kind == "i":
        data = decoded(text)[: descriptor["sizeInBytes"]]
    else:
        name, size = vector_file(text), descriptor["sizeInBytes"]
        with files.open_input_file(name) as file:
            file.seek(descriptor.get("offset") or 0)
            framed = bytes(file.read(size + 8))
        data = framed[4 : size + 4]
        if framed[:4] != size.to_bytes(4) or framed[size + 4 :] != zlib.crc32(data).to_bytes(4):
            raise ValueError(f"the deletion vector in {name} is damaged")
    if kind not in ("i", "u") or not data.startswith(_MAGIC):
        raise ValueError(f"the deletion vector {text!r} has an unknown form")
    vector = BitMap64.deserialize(data[len(_MAGIC) :])
    if len(vector) != descriptor["cardinality"]:
        raise ValueError(f"the deletion vector {text!r} is damaged")
    return vector


def write_vectors(files: FileSystem, vectors: Mapping[str, BitMap64]) -> dict[str, dict[str, Any]]:
    """Write vectors by name into one file of the table, if there are some. Returns descriptors."""
    if not vectors:
        return {}
    id_ = uuid.uuid4()
    content, descriptors = bytearray(_VERSION), dict[str, dict[str, Any]]()
    for name, rows in vectors.items():
        data = _MAGIC + rows.serialize()
        descriptors[name] = {
            "storageType": "u",
            "pathOrInlineDv": encoded(id_.bytes),
            "offset": len(content),
            "sizeInBytes": len(data),
            "cardinality": len(rows),
        }
        content += len(data).to_bytes(4) + data + zlib.crc32(data).to_bytes(4)
    with files.open_output_stream(f"deletion_vector_{id_}.bin") as file:
        file.write(bytes(content))
    return descriptors
