"""Merges few changes into a table without Spark: reads the rows that they touch, merges them with
`connector.tables.merge`, and writes their new files and deletion vectors (TBL-13).

Nothing is committed here. Files that no commit names are removed later, as those of any writer that
failed.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from connector.lake.changelog_changes import change_of
from connector.lake.checks import trouble
from connector.lake.deletion_vectors import read_vector, write_vectors
from connector.lake.stores import files_at
from connector.records.ordering import OrderBy
from connector.state.changelog_slots import SEED, xxh64
from connector.state.small_apply import MAX_BYTES, MAX_ENTRIES, MAX_IN_MEMORY, Merged, SmallApply
from connector.tables.column_names import BUCKET, STATE, UNMAPPED
from connector.tables.definition import TableDefinition
from connector.tables.merge import EMPTY, RowState, Tombstone, expire, join, visible
from connector.tables.row import RowReader
from connector.tables.stored_state import StateForm, families_of
from connector.tables.values import DataType

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileSystem
    from pyarrow.parquet import ParquetFile
    from pyroaring import BitMap64

Key = tuple[object, ...]
Add = Mapping[str, Any]

_OF_CHANGE: Final = (
    *("table", "row_key", "commit_timestamp", "tie_breaker", "transaction"),
    *("change_sequence_number", "entries", "order_position", "stream_partition", "change_type"),
    "source_cluster_id",
)
_STATISTICS: Final = frozenset({DataType.INT64, DataType.STRING})
_MAX_TEXT: Final = 32
"""Delta's file statistics have the first characters of a text. A longer one is left out."""
_REBASED: Final = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
"""The marks of Parquet files whose old dates are those of another calendar. Spark reads them."""


class _LeftToSpark(Exception):  # noqa: N818, no fault
    """Spark must do this apply. No file was written."""


def merge_few(task: SmallApply) -> Merged | None:
    """Merge the changes and write the files. None: Spark must do it, and nothing was written.

    Spark does it if the changes, their rows, or the files with them are large (`MAX_BYTES` and its
    neighbours), if a value or a key does not fit the table, or if a file has dates of another
    calendar. Raises `TableError` if a file cannot be read or written.
    """
    import pyarrow as pa

    try:
        return _merge(task)
    except _LeftToSpark:
        return None
    except (OSError, ValueError, pa.ArrowException) as error:
        raise trouble(task.table, "read or written", error) from error


def _merge(task: SmallApply) -> Merged:
    changelog, table, tombstones = map(_adds, (task.changes, task.rows, task.removed))
    always = _size(changelog) + _size(tombstones)
    sizes = Counter[str | None]()
    for add in table:
        sizes[_bucket_of(add)] += add["size"]
    _check_size(always + min(sizes[str(bucket)] for bucket in range(task.buckets)))
    new = _new_changes(task, changelog)
    row_keys = {key for rows in new.rows for key in rows["row_key"].to_pylist()}
    buckets = {key: _bucket(key, task.buckets) for key in row_keys}
    touched = {None, *map(str, set(buckets.values()))}
    table = [add for add in table if _bucket_of(add) in touched]
    _check_size(always + _size(table))

    reader = RowReader(task.definition)
    changes = _lifted(task, new, reader)
    old, states = _with_old_states(task, changes, table, tombstones)
    live, gone = list[dict[str, Any]](), list[dict[str, Any]]()
    form, names = StateForm(task.definition), [part.name for part in task.definition.key.parts]
    for key, joined in states.items():
        state = expire(joined, task.horizon)
        row = reader.row(key, visible(state))
        if row is None and state == EMPTY:
            continue
        stored: dict[str, Any] = {STATE: form.write(state), BUCKET: buckets[changes.keys[key]]}
        if row is not None:
            live.append({**row, UNMAPPED: row[UNMAPPED] or None, **stored})
        else:
            gone.append({**dict(zip(names, key, strict=True)), **stored, "_newest": _newest(state)})
    return Merged(
        changes=changes.count,
        highest=changes.highest,
        deferred_from=new.deferred_from,
        has_residual=any(one[STATE]["residual"] for one in (*live, *gone)),
        table=(*_without(files_at(task.table), old), *_write_rows(task, live)),
        tombstones=tuple(_write_tombstones(task, gone)),
    )


def _with_old_states(
    task: SmallApply, changes: _Changes, table: Sequence[Add], tombstones: Sequence[Add]
) -> tuple[list[_Found], Mapping[Key, RowState]]:
    """The rows of the table with these keys, and the states of the changes joined with theirs."""
    form, states = StateForm(task.definition), dict(changes.states)
    if not states:
        return [], states
    files, wanted = files_at(task.table), _Wanted(task.definition, changes.states)
    if changes.overwrite:
        return list(_found(files, table, wanted, ())), states
    values = [column.name for column in task.definition.columns]
    old = list(_found(files, table, wanted, [*values, STATE]))
    for one in old:
        columns = [_plain(one.columns[name]).to_pylist() for name in (STATE, *values)]
        for key, (stored, *row) in zip(one.rows.values(), zip(*columns, strict=True), strict=True):
            states[key] = join(states[key], form.read(stored, row))
    for key, stored in _tombstones(task, tombstones, wanted):
        states[key] = join(states[key], form.read(stored, [None] * len(values)))
    return old, states


def _adds(actions: Iterable[str]) -> list[Add]:
    return [json.loads(action)["add"] for action in actions]


def _size(adds: Iterable[Add]) -> int:
    return sum(add["size"] for add in adds)


def _check_size(size: int) -> None:
    if size > MAX_BYTES:
        raise _LeftToSpark


def _bucket_of(add: Add) -> str | None:
    bucket = add["partitionValues"].get(BUCKET)
    return None if bucket is None else str(bucket)


def _newest(state: RowState) -> int:
    orders = [*(cell.order for cell in state.cells.values()), *state.tombstones.values()]
    return max(order.age for order in orders)


def _bucket(row_key: bytes, buckets: int) -> int:
    """The bucket of a row, as Spark's `pmod(xxhash64(row_key), buckets)`. It is a power of two."""
    return xxh64(row_key, SEED) % buckets if buckets > 1 else 0


@dataclass(frozen=True, slots=True)
class _New:
    """The rows of the changelog with the changes to merge, and the oldest batch with a deferred
    change.
    """

    rows: Sequence[pa.Table]
    deferred_from: int | None


def _new_changes(task: SmallApply, changelog: Iterable[Add]) -> _New:
    """The changes of the source table that are below the low watermark and not merged yet."""
    import pyarrow.compute as pc

    definition, before = task.definition, task.before
    found: list[pa.Table] = []
    files, deferred, entries = files_at(task.changelog), list[int](), 0
    for add in changelog:
        with _opened(files, add) as file:
            table = _read(file, [*_OF_CHANGE, "ingest_batch", "kind"])
        is_ours = pc.and_(
            pc.equal(table["kind"], "change"), pc.equal(table["table"], definition.source)
        )
        table = table.filter(is_ours)
        places = list[int]()
        of_row = (_plain(table[name]).to_pylist() for name in ("ingest_batch", "commit_timestamp"))
        for place, (batch, committed) in enumerate(zip(*of_row, strict=True)):
            if task.below is not None and committed >= task.below:
                deferred.append(batch)
            elif not before.covers(batch, committed):
                places.append(place)
        found.append(_taken(table, places))
        entries += pc.sum(pc.list_value_length(found[-1]["entries"])).as_py() or 0
        if entries > MAX_ENTRIES:
            raise _LeftToSpark
        _check_memory(found)
    return _New(found, min(deferred, default=None))


@dataclass(frozen=True, slots=True)
class _Changes:
    """The changes to merge: the state of each row with them alone, and its row key.

    `overwrite`: the state of the rows before does not matter.
    """

    states: Mapping[Key, RowState]
    keys: Mapping[Key, bytes]
    count: int
    highest: int
    overwrite: bool


def _lifted(task: SmallApply, new: _New, reader: RowReader) -> _Changes:
    definition, before = task.definition, task.before
    states, keys = dict[Key, RowState](), dict[Key, bytes]()
    count, highest = 0, 0
    deletions = {Tombstone(family, None, 0, 0) for family in families_of(definition)}
    overwrite = bool(deletions) and not before.has_residual and definition.order is OrderBy.COMMIT
    for table in new.rows:
        columns = [_plain(table[name]).to_pylist() for name in _OF_CHANGE]
        for row in zip(*columns, strict=True):
            change, position = change_of(row)
            if reader.fault(change) is not None:
                raise _LeftToSpark
            key = reader.key(change.row_key)
            assert isinstance(key, tuple)
            state = reader.state([(change, position)])
            known = states.get(key)
            states[key] = state if known is None else join(known, state)
            keys[key] = change.row_key
            count, highest = count + 1, max(highest, change.commit_timestamp)
            overwrite = (
                overwrite
                and change.commit_timestamp > before.highest_applied
                and state.tombstones.keys() == deletions
            )
    return _Changes(states, keys, count, highest, overwrite)


def _check_memory(tables: Iterable[pa.Table]) -> None:
    if sum(table.nbytes for table in tables) > MAX_IN_MEMORY:
        raise _LeftToSpark


@contextmanager
def _opened(files: FileSystem, add: Add) -> Iterator[ParquetFile]:
    from pyarrow import parquet

    source = files.open_input_file(unquote(add["path"]))
    with parquet.ParquetFile(source, coerce_int96_timestamp_unit="us") as file:
        content = file.metadata
        sizes = (content.row_group(n).total_byte_size for n in range(content.num_row_groups))
        if any(mark in (content.metadata or {}) for mark in _REBASED) or sum(sizes) > MAX_IN_MEMORY:
            raise _LeftToSpark
        yield file


def _read(file: ParquetFile, columns: Sequence[str]) -> pa.Table:
    """These columns of all rows of a file. Partition columns are not in it."""
    return file.read(columns=columns, use_threads=False)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column whose times are microseconds."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    return column


def _taken(table: pa.Table, rows: Iterable[int]) -> pa.Table:
    import pyarrow as pa

    return table.take(pa.array(rows, pa.int64()))


class _Wanted:
    """Keys that are looked for in files. The keys are different ones."""

    def __init__(self, definition: TableDefinition, keys: Iterable[Key]) -> None:
        import pyarrow as pa

        self._keys = list(keys)
        self.names = [part.name for part in definition.key.parts]
        parts = zip(*self._keys, strict=True) if self._keys else ((),) * len(self.names)
        types = (field.type for field in _fields(definition))
        self._parts = [
            pa.array(part, pa.int64() if pa.types.is_timestamp(type_) else type_)
            for part, type_ in zip(parts, types, strict=False)
        ]

    def rows_of(self, table: pa.Table) -> dict[int, Key]:
        """The numbers of the rows with one of the keys.

        After each part, a row and a wanted key have the number of their parts so far, so that no
        more than the wanted combinations are looked for.
        """
        import pyarrow.compute as pc

        found = known = None
        for name, part in zip(self.names, self._parts, strict=True):
            column = _plain(table[name]).cast(part.type)
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
        keys = places.take(rows).to_pylist()
        return {row: self._keys[key] for row, key in zip(rows.to_pylist(), keys, strict=True)}


def _numbered(column: pa.ChunkedArray, wanted: pa.Array) -> tuple[pa.ChunkedArray, pa.Array]:
    """Both with a number for each of the wanted values, null for any other value."""
    import pyarrow.compute as pc

    values = wanted.unique()
    return pc.index_in(column, values), pc.index_in(wanted, values)


@dataclass(frozen=True, slots=True)
class _Found:
    """The rows of a file that have a wanted key, in order, and the columns that were asked for.

    `deleted` is the deletion vector of the file.
    """

    add: Add
    rows: Mapping[int, Key]
    deleted: BitMap64
    columns: pa.Table


def _found(
    files: FileSystem, adds: Iterable[Add], wanted: _Wanted, columns: Sequence[str]
) -> Iterator[_Found]:
    """The rows with a wanted key in each of the files that has some."""
    from pyroaring import BitMap64

    taken: list[pa.Table] = []
    for add in adds:
        with _opened(files, add) as file:
            rows = wanted.rows_of(_read(file, wanted.names))
            deleted = BitMap64()
            if rows and (descriptor := add.get("deletionVector")):
                deleted = read_vector(files, descriptor)
                rows = {row: key for row, key in rows.items() if row not in deleted}
            if rows:
                taken.append(_taken(_read(file, columns), rows))
                _check_memory(taken)
                yield _Found(add, rows, deleted, taken[-1])


def _tombstones(
    task: SmallApply, adds: Iterable[Add], wanted: _Wanted
) -> Iterator[tuple[Key, Mapping[str, Any]]]:
    """The stored states of the removed rows that count at the commit `before`."""
    columns, before = ["_apply_number", "_attempt_id", STATE], task.before
    for one in _found(files_at(task.tombstones), adds, wanted, columns):
        rows = zip(*(one.columns[name].to_pylist() for name in columns), strict=True)
        for key, (apply, attempt, stored) in zip(one.rows.values(), rows, strict=True):
            if apply <= before.vacuumed_to or before.attempt_ids.get(apply) == attempt:
                yield key, stored


def _without(files: FileSystem, found: Iterable[_Found]) -> Iterator[str]:
    """Write the deletion vectors of these rows. Returns the actions that remove the rows."""
    from pyroaring import BitMap64

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


def _write_rows(task: SmallApply, rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Write the rows of each bucket to one file."""
    fields, by_bucket = _fields(task.definition), sorted(rows, key=itemgetter(BUCKET))
    for bucket, of_bucket in groupby(by_bucket, itemgetter(BUCKET)):
        parts = {BUCKET: str(bucket)}
        place = f"{BUCKET}={bucket}/"
        yield _written(task, task.table, place, parts, fields, list(of_bucket))


def _write_tombstones(task: SmallApply, gone: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    import pyarrow as pa

    if not gone:
        return
    number = {"_apply_number": task.before.apply_number + 1, "_attempt_id": task.attempt_id}
    fields = _fields(task.definition)
    keys = [fields[n] for n in range(len(task.definition.key.parts))]
    state = next(field for field in fields if field.name == STATE)
    others = [
        pa.field(BUCKET, pa.int32()),
        pa.field("_apply_number", pa.int64()),
        pa.field("_attempt_id", pa.string()),
        pa.field("_newest", pa.int64()),
    ]
    rows = [{**row, **number} for row in gone]
    files_at(task.tombstones).create_dir(".", recursive=True)  # there may be no tombstone table yet
    yield _written(task, task.tombstones, "", {}, [*keys, state, *others], rows, ["_newest"])


def _written(
    task: SmallApply,
    folder: str,
    place: str,
    parts: Mapping[str, str],
    fields: Sequence[pa.Field],
    rows: Sequence[Mapping[str, Any]],
    known: Sequence[str] | None = None,
) -> str:
    """Write rows to one file. Returns the action that adds it."""
    import pyarrow as pa
    from pyarrow import parquet

    columns = [pa.array([row[field.name] for row in rows], field.type) for field in fields]
    # Readers take the calendar of old dates from this key.
    schema = pa.schema(fields, metadata={"org.apache.spark.version": "4.1.1"})
    table = pa.Table.from_arrays(columns, schema=schema)
    files, path = files_at(folder), f"{place}part-{uuid.uuid4()}.parquet"
    if place:
        files.create_dir(place, recursive=True)
    with files.open_output_stream(path) as sink:
        parquet.write_table(table, sink, compression="snappy", write_statistics=False)
        size = sink.tell()
    if known is None:
        of_keys = task.definition.key.parts
        known = [part.name for part in of_keys if part.type in _STATISTICS]
    add = {
        "path": quote(path, safe="/="),
        "partitionValues": dict(parts),
        "size": size,
        "modificationTime": time.time_ns() // 1_000_000,
        "dataChange": True,
        "stats": json.dumps(_statistics(rows, known)),
    }
    return json.dumps({"add": add})


def _statistics(rows: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"numRecords": len(rows), "tightBounds": True}
    for name in names:
        values = [row[name] for row in rows]
        least, most = min(values), max(values)
        if not any(isinstance(one, str) and len(one) > _MAX_TEXT for one in (least, most)):
            found.setdefault("minValues", {})[name] = least
            found.setdefault("maxValues", {})[name] = most
            found.setdefault("nullCount", {})[name] = 0
    return found


def _fields(definition: TableDefinition) -> list[pa.Field]:
    """The columns of a file of the table, as Arrow has them."""
    import pyarrow as pa

    types = {
        DataType.STRING: pa.string(),
        DataType.BYTES: pa.binary(),
        DataType.BOOL: pa.bool_(),
        DataType.INT64: pa.int64(),
        DataType.FLOAT64: pa.float64(),
        DataType.NUMERIC: pa.decimal128(38, 9),
        DataType.DATE: pa.date32(),
        DataType.TIMESTAMP: pa.timestamp("us", "UTC"),
        DataType.JSON: pa.string(),
    }
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
            ("family_orders", pa.list_(pa.int32())),
            ("family_entries", pa.list_(pa.int32())),
            ("residual", pa.list_(element)),
        ]
    )
    return [
        *(pa.field(part.name, types[part.type]) for part in definition.key.parts),
        *(pa.field(column.name, types[column.type]) for column in definition.columns),
        pa.field(UNMAPPED, pa.map_(pa.string(), pa.binary())),
        pa.field(STATE, state),
    ]
