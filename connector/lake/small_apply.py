"""Merges few changes into a table without Spark: reads the rows that they touch, merges them with
`connector.tables.merge`, and writes their new files and deletion vectors (TBL-13).

Nothing is committed here. Files that no commit names are removed later, as those of any writer that
failed.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from connector.lake.changelog_changes import change_of
from connector.lake.checks import trouble
from connector.lake.deletion_vectors import read_vector, write_vectors
from connector.lake.stores import files_at
from connector.records.ordering import OrderBy
from connector.state.changelog_slots import SEED, xxh64
from connector.state.small_apply import MAX_CHANGES, Merged, SmallApply
from connector.tables.column_names import BUCKET, STATE, UNMAPPED
from connector.tables.definition import TableDefinition
from connector.tables.merge import EMPTY, RowState, Tombstone, expire, join, visible
from connector.tables.row import read_change, row_of, state_of
from connector.tables.stored_state import families_of, read_state, write_state
from connector.tables.values import DataType

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileSystem
    from pyroaring import BitMap64

Key = tuple[object, ...]

_CHANGE_COLUMNS: Final = (
    *("table", "row_key", "commit_timestamp", "tie_breaker", "transaction"),
    *("change_sequence_number", "entries", "order_position", "stream_partition", "change_type"),
    *("source_cluster_id", "ingest_batch", "kind"),
)
_OF_CHANGE: Final = 11
_STATISTICS: Final = frozenset({DataType.INT64, DataType.STRING})
_MAX_TEXT: Final = 32
"""Delta's file statistics have the first characters of a text. A longer one is left out."""


def merge_few(task: SmallApply) -> Merged | None:
    """Merge the changes and write the files. None: Spark must do it, and nothing was written.

    Spark does it if there are more than `MAX_CHANGES`, or if a value or a key does not fit the
    table. Raises `TableError` if a file cannot be read or written.
    """
    try:
        return _merge(task)
    except (OSError, ValueError) as error:  # those of Arrow are one of them
        raise trouble(task.table, "read or written", error) from error


def _merge(task: SmallApply) -> Merged | None:
    changes = _read_changes(task)
    if changes is None:
        return None
    keys = changes.keys
    rows = _Rows(task.definition, files_at(task.table), task.rows)
    buckets = {key: _bucket(row_key, task.buckets) for key, row_key in keys.items()}
    old = rows.of(keys, set(buckets.values()), with_states=not changes.overwrite)
    states = dict(changes.states)
    for one in old:
        if one.state is not None:
            states[one.key] = join(states[one.key], one.state)
    if not changes.overwrite:
        for key, state in _tombstones(task, keys):
            states[key] = join(states[key], state)
    live, gone = list[dict[str, Any]](), list[dict[str, Any]]()
    for key, state in states.items():
        state = expire(state, task.horizon)
        row = row_of(task.definition, keys[key], visible(state))
        stored = {STATE: write_state(task.definition, state), BUCKET: buckets[key]}
        if row is not None:
            live.append({**row, UNMAPPED: row[UNMAPPED] or None, **stored})
        elif state != EMPTY:
            names = [part.name for part in task.definition.key.parts]
            gone.append({**dict(zip(names, key, strict=True)), **stored, "_newest": _newest(state)})
    has_residual = any(one[STATE]["residual"] for one in (*live, *gone))
    return Merged(
        changes=changes.count,
        highest=changes.highest,
        deferred_from=changes.deferred_from,
        has_residual=has_residual,
        table=(*rows.without(old), *_write_rows(task, live)),
        tombstones=tuple(_write_tombstones(task, gone)),
    )


def _newest(state: RowState) -> int:
    orders = [*(cell.order for cell in state.cells.values()), *state.tombstones.values()]
    return max(order.age for order in orders)


def _bucket(row_key: bytes, buckets: int) -> int:
    """The bucket of a row, as Spark's `pmod(xxhash64(row_key), buckets)`. It is a power of two."""
    return xxh64(row_key, SEED) % buckets if buckets > 1 else 0


@dataclass(frozen=True, slots=True)
class _Changes:
    """The changes to merge: the state of each row with them alone, and its row key.

    `overwrite`: the state of the rows before does not matter.
    """

    states: Mapping[Key, RowState]
    keys: Mapping[Key, bytes]
    count: int
    highest: int
    deferred_from: int | None
    overwrite: bool


def _read_changes(task: SmallApply) -> _Changes | None:
    """None: there are too many, or one does not fit the table."""
    definition, before = task.definition, task.before
    states, keys = dict[Key, RowState](), dict[Key, bytes]()
    count, highest, deferred_from = 0, 0, None
    deletions = [Tombstone(family, None, 0, 0) for family in families_of(definition)]
    overwrite = bool(deletions) and not before.has_residual
    applied = before.apply_watermark if before.complete_to_batch < before.to_batch else None
    for row in _change_rows(task):
        batch, committed = row[_OF_CHANGE], row[2]
        if task.below is not None and committed >= task.below:
            deferred_from = batch if deferred_from is None else min(deferred_from, batch)
            continue
        if applied is not None and batch <= before.to_batch and committed < applied:
            continue
        change, position = change_of(row[:_OF_CHANGE])
        if read_change(definition, change) is not None or count == MAX_CHANGES:
            return None
        key = definition.key.read_key(change.row_key)
        assert isinstance(key, tuple)
        state = state_of(definition, [(change, position)])
        known = states.get(key)
        states[key] = state if known is None else join(known, state)
        keys[key] = change.row_key
        count, highest = count + 1, max(highest, committed)
        overwrite = (
            overwrite
            and definition.order is OrderBy.COMMIT
            and committed > before.highest_applied
            and all(one in state.tombstones for one in deletions)
            and len(state.tombstones) == len(deletions)
        )
    return _Changes(states, keys, count, highest, deferred_from, overwrite)


def _change_rows(task: SmallApply) -> Iterator[tuple[Any, ...]]:
    """The changes of the source table in the files: the columns of `change_of`, and the batch."""
    import pyarrow.compute as pc

    files = files_at(task.changelog)
    for action in task.changes:
        table = _read(files, json.loads(action)["add"], _CHANGE_COLUMNS)
        is_ours = pc.and_(
            pc.equal(table["kind"], "change"), pc.equal(table["table"], task.definition.source)
        )
        table = table.filter(is_ours)
        columns = [_plain(table[name]).to_pylist() for name in _CHANGE_COLUMNS[:-1]]
        yield from zip(*columns, strict=True)


def _read(files: FileSystem, add: Mapping[str, Any], columns: Iterable[str]) -> pa.Table:
    """These columns of all rows of a file. Partition columns are not in it."""
    from pyarrow import parquet

    source = files.open_input_file(unquote(add["path"]))
    with parquet.ParquetFile(source, coerce_int96_timestamp_unit="us") as file:
        return file.read(columns=list(columns), use_threads=False)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column whose times are microseconds."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    return column


@dataclass(frozen=True, slots=True)
class _OldRow:
    """A row of the table that a change touches. `state` None: it was not read."""

    key: Key
    file: int
    row: int
    state: RowState | None


class _Rows:
    """The rows of a table in some of its files."""

    def __init__(
        self, definition: TableDefinition, files: FileSystem, actions: Sequence[str]
    ) -> None:
        self._definition, self._files = definition, files
        self._adds = [json.loads(action)["add"] for action in actions]
        self._vectors: dict[int, BitMap64] = {}

    def of(
        self, keys: Mapping[Key, bytes], buckets: set[int], *, with_states: bool
    ) -> list[_OldRow]:
        """The rows with these keys, which are in these buckets."""
        found = list[_OldRow]()
        names = [part.name for part in self._definition.key.parts]
        values = [column.name for column in self._definition.columns]
        for number, add in enumerate(self._adds):
            bucket = add["partitionValues"].get(BUCKET)
            if bucket is not None and int(bucket) not in buckets:
                continue
            indexes = _indexes(_read(self._files, add, names), self._definition, keys)
            if descriptor := add.get("deletionVector"):
                vector = read_vector(self._files, descriptor)
                self._vectors[number] = vector
                indexes = {index: key for index, key in indexes.items() if index not in vector}
            if not indexes:
                continue
            states: Iterable[RowState | None] = [None] * len(indexes)
            if with_states:
                table = _read(self._files, add, [*values, STATE])
                states = _states(_taken(table, indexes), self._definition, values)
            found += (
                _OldRow(key, number, index, state)
                for (index, key), state in zip(indexes.items(), states, strict=True)
            )
        return found

    def without(self, rows: Iterable[_OldRow]) -> Iterator[str]:
        """Write the deletion vectors of these rows. Returns the actions that remove the rows."""
        from pyroaring import BitMap64

        marked = defaultdict[int, list[int]](list)
        for row in rows:
            marked[row.file].append(row.row)
        vectors = {}
        for number, indexes in marked.items():
            vector = self._vectors.get(number, BitMap64()) | BitMap64(indexes)
            if len(vector) < json.loads(self._adds[number]["stats"])["numRecords"]:
                vectors[str(number)] = vector
        named = write_vectors(self._files, vectors) if vectors else {}
        now = time.time_ns() // 1_000_000
        for number in marked:
            add = self._adds[number]
            yield json.dumps({"remove": _removed(add, now)})
            if (descriptor := named.get(str(number))) is not None:
                statistics = {**json.loads(add["stats"]), "tightBounds": False}
                changed = {"stats": json.dumps(statistics), "deletionVector": descriptor}
                yield json.dumps({"add": {**add, "dataChange": True, **changed}})


def _removed(add: Mapping[str, Any], now: int) -> dict[str, Any]:
    kept = ("path", "partitionValues", "size", "deletionVector", "tags", "stats")
    known = {name: add[name] for name in kept if add.get(name) is not None}
    return {**known, "deletionTimestamp": now, "dataChange": True, "extendedFileMetadata": True}


def _indexes(
    table: pa.Table, definition: TableDefinition, keys: Mapping[Key, bytes]
) -> dict[int, Key]:
    """The indexes of the rows with one of the keys."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = [_plain(table[part.name]) for part in definition.key.parts]
    is_any = None
    for n, column in enumerate(columns):
        wanted = pa.array(list({key[n] for key in keys}), column.type)
        is_in = pc.is_in(column, value_set=wanted)
        is_any = is_in if is_any is None else pc.and_(is_any, is_in)
    indexes = pc.indices_nonzero(is_any)
    candidates = [column.take(indexes).to_pylist() for column in columns]
    return {
        index: key
        for index, *parts in zip(indexes.to_pylist(), *candidates, strict=True)
        if (key := tuple(parts)) in keys
    }


def _taken(table: pa.Table, indexes: Iterable[int]) -> pa.Table:
    import pyarrow as pa

    return table.take(pa.array(indexes, pa.int64()))


def _states(table: pa.Table, definition: TableDefinition, values: Sequence[str]) -> list[RowState]:
    columns = [_plain(table[name]).to_pylist() for name in values]
    stored = table[STATE].to_pylist()
    rows = zip(*columns, strict=True) if columns else ((),) * len(stored)
    return [read_state(definition, one, row) for one, row in zip(stored, rows, strict=True)]


def _tombstones(task: SmallApply, keys: Mapping[Key, bytes]) -> Iterator[tuple[Key, RowState]]:
    """The tombstones of the rows that count at the commit `before`."""
    files, before = files_at(task.tombstones), task.before
    columns = [*(part.name for part in task.definition.key.parts), STATE]
    columns += ["_apply_number", "_attempt_id"]
    for action in task.removed:
        add = json.loads(action)["add"]
        table = _read(files, add, columns)
        indexes = _indexes(table, task.definition, keys)
        if descriptor := add.get("deletionVector"):
            vector = read_vector(files, descriptor)
            indexes = {index: key for index, key in indexes.items() if index not in vector}
        found = _taken(table.select(columns[-3:]), indexes)
        for key, (stored, apply, attempt) in zip(
            indexes.values(), zip(*(c.to_pylist() for c in found.columns), strict=True), strict=True
        ):
            if apply <= before.vacuumed_to or before.attempt_ids.get(apply) == attempt:
                yield (
                    key,
                    read_state(task.definition, stored, [None] * len(task.definition.columns)),
                )


def _write_rows(task: SmallApply, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    by_bucket = defaultdict[int, list[Mapping[str, Any]]](list)
    for row in rows:
        by_bucket[row[BUCKET]].append(row)
    fields = _fields(task.definition)
    for bucket, of_bucket in sorted(by_bucket.items()):
        parts = {BUCKET: str(bucket)}
        yield _written(task, task.table, f"{BUCKET}={bucket}/", parts, fields, of_bucket)


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
