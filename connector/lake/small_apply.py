"""Merges few changes into a table without Spark: reads the rows that they touch, merges them, and
writes their new files and deletion vectors (TBL-13).

Most rows are merged together (`column_merge`), the others one by one with `tables.merge`.

Nothing is committed here. Files that no commit names are removed later, as those of any writer that
failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connector.engine.schema import OF_CHANGE
from connector.engine.values import Flags, Numbers, arrow_type
from connector.lake.changelog_changes import change_of
from connector.lake.checks import table_error
from connector.lake.column_merge import MergedRows, Registers, Unfit
from connector.lake.folds import Fold, fold, fold_tombstones
from connector.lake.kept import Kept
from connector.lake.small_files import (
    Add,
    FileRows,
    Key,
    LeftToSpark,
    WantedKeys,
    adds_of,
    check_size,
    fields_of,
    keys_with_statistics,
    opened,
    plain,
    read,
    remove,
    rows_with_keys,
    write,
)
from connector.lake.stores import files_at
from connector.records.ordering import OrderBy, Rank, sections_of
from connector.state import apply_level as limits
from connector.state.apply_level import Merged, SmallApply
from connector.state.maintenance_schedule import ATTEMPTS
from connector.state.table_state import TableState
from connector.tables.column_names import BUCKET, STATE, UNMAPPED
from connector.tables.definition import TableDefinition
from connector.tables.merge import EMPTY, RowState, expire, join, visible
from connector.tables.row import RowReader
from connector.tables.stored_definition import NO_IDS, tolerated
from connector.tables.stored_state import StateForm
from connector.tables.values import Unreadable
from connector.warehouse import bucket_of

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_BUCKET: Final = pa.field(BUCKET, pa.int32())
_NEWEST: Final = pa.field("_newest", pa.int64())
_NOTHING: Final = Merged(
    changes=0,
    highest=0,
    deferred_from=None,
    has_residual=False,
    misfits={},
    table=(),
    tombstones=(),
)
_APPLY, _ATTEMPT = "_apply_number", "_attempt_id"
_MOST_ATTEMPTS: Final = 2_000
_ATTEMPTS: Final = Kept[list[tuple[int, str]]](20_000_000)
"""The newest attempts that the tombstones of a file are of, so many at most."""
_OF_RANK: Final = ("commit_timestamp", "tie_breaker", "transaction", "change_sequence_number")
_NO_SEQUENCE: Final = {"record_sequence": 0}


def merge_few(task: SmallApply) -> Merged | None:
    """Merge the changes and write the files. None: Spark must do it, and nothing was written.

    That is so for large changes, rows or files (`MAX_BYTES` and its neighbours), for a value or a
    key that does not fit, and for dates of another calendar. Raises `TableError`.
    """
    try:
        return _merge(task)
    except (LeftToSpark, Unfit):
        return None
    except (OSError, ValueError, pa.ArrowException) as error:
        read_only = (task.changelog, task.tombstones)
        path = next((path for path in read_only if f"{path}/" in str(error)), task.table)
        raise table_error(path, "read or written", error) from error


def _merge(task: SmallApply) -> Merged:
    changelog, table, tombstones = map(adds_of, (task.changes, task.rows, task.removed))
    if not changelog:
        return _NOTHING
    always = _size(add for add in changelog if add["path"] not in task.held) + _size(tombstones)
    sizes = Counter[str | None]()
    for add in table:
        sizes[_bucket_of(add)] += add["size"]
    check_size(always + min(sizes[str(n)] for n in range(task.buckets)), limits.MAX_BYTES)
    changes, deferred_from = _new_changes(task, changelog)
    reader = RowReader(task.definition, tolerated(task.definition, task.ids or NO_IDS))
    keys = _keys_of(task, reader, changes)
    touched = {None, *map(str, set(keys.buckets.tolist()))}
    table = [add for add in table if _bucket_of(add) in touched]
    check_size(always + _size(table), limits.MAX_BYTES)

    old, merged, folded = list[FileRows](), list[_Rows](), Fold()
    wanted = WantedKeys(task.definition, keys.values)
    if len(changes):
        old, merged = _merged(task, reader, changes, keys, table, tombstones, wanted)
        if task.may_fold:
            folded = fold(task.table, task.definition, table, old)
    removed = remove(task.table, old, folded.adds)
    added = _write_rows(task, wanted, [*(rows.live for rows in merged), *folded.rows])
    return Merged(
        changes=len(changes),
        highest=pc.max(plain(changes["commit_timestamp"])).as_py() or 0,
        deferred_from=deferred_from,
        has_residual=any(rows.has_residual for rows in merged),
        misfits=dict(sum((rows.misfits for rows in merged), Counter())),
        table=(*removed, *added),
        tombstones=tuple(
            _write_tombstones(task, wanted, [rows.tombstones for rows in merged], tombstones)
        ),
        bytes_read=always + _size(table),
        folded=len(folded.adds),
        all_count=len(task.before.attempt_ids) >= ATTEMPTS and _all_count(task, tombstones),
    )


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows as the files have them, with their bucket. `tombstones` have `_NEWEST`, no values."""

    live: pa.Table
    tombstones: pa.Table
    has_residual: bool
    misfits: Counter[str] = field(default_factory=Counter)


def _merged(
    task: SmallApply,
    reader: RowReader,
    changes: pa.Table,
    keys: _Keys,
    table: Iterable[Add],
    tombstones: Iterable[Add],
    wanted: WantedKeys,
) -> tuple[list[FileRows], list[_Rows]]:
    """The rows of the table that go, and those that come."""
    definition, before = task.definition, task.before
    registers, uneven = Registers(definition, task.ids), np.zeros(len(keys.values), np.bool_)
    new = registers.of_changes(changes, keys.of_change)
    writes = [new.writes]
    uneven[new.uneven] = True
    replaces = new.replaces and not before.has_residual and definition.order is OrderBy.COMMIT
    if replaces:
        oldest = pc.min(plain(changes["commit_timestamp"])).as_py()
        replaces = oldest > before.highest_applied
    _check_uneven(task, changes, keys, uneven)
    columns = [column.name for column in definition.columns]
    names = () if replaces else (*columns, STATE)
    file_rows = list(rows_with_keys(task.table, table, wanted, names))
    old = list[_Old]()
    if not replaces:
        old = [*_of_rows(definition, file_rows), *_of_tombstones(task, tombstones, wanted)]
    for stored in old:
        of_states, others = registers.of_states(stored.states, stored.values, stored.keys)
        writes.append(of_states)
        uneven[others] = True
    _check_uneven(task, changes, keys, uneven)
    rows = list[_Rows]()
    if not uneven.all():
        rows.append(_even_rows(task, keys, wanted, registers.merged(writes, uneven, task.horizon)))
    if uneven.any():
        rows.append(_uneven_rows(task, reader, changes, keys, uneven, old))
    return file_rows, rows


def _check_uneven(task: SmallApply, changes: pa.Table, keys: _Keys, uneven: Flags) -> None:
    """Raises `LeftToSpark` if too many changes must be merged row by row."""
    entries = changes["entries"].filter(pa.array(uneven[keys.of_change]))
    count = pc.sum(pc.list_value_length(entries)).as_py() or 0
    columns = len(task.definition.columns)
    if not limits.are_few_by_row(len(entries), count, columns, task.cores):
        raise LeftToSpark


def _size(adds: Iterable[Add]) -> int:
    return sum(add["size"] for add in adds)


def _bucket_of(add: Add) -> str | None:
    bucket = add["partitionValues"].get(BUCKET)
    return None if bucket is None else str(bucket)


def _new_changes(task: SmallApply, changelog: Iterable[Add]) -> tuple[pa.Table, int | None]:
    """The new changes below the low watermark, and the oldest batch with a change above it."""
    definition, before = task.definition, task.before
    tables: list[pa.Table] = []
    files, deferred, entries, size = files_at(task.changelog), list[int](), 0, 0
    for add in changelog:
        table = _changes_in(task, files, add)
        if before.truncated is not None:
            table = _not_truncated(table, definition, before.truncated)
        of_row = (plain(table[name]).to_numpy() for name in ("ingest_batch", "commit_timestamp"))
        batches, committed = of_row
        is_new = batches > before.complete_to_batch
        if before.apply_watermark is not None:
            is_new &= (batches > before.to_batch) | (committed >= before.apply_watermark)
        if task.below is not None and (is_deferred := committed >= task.below).any():
            deferred.append(int(batches[is_deferred].min()))
            is_new &= ~is_deferred
        tables.append(table.filter(pa.array(is_new)))
        entries += pc.sum(pc.list_value_length(tables[-1]["entries"])).as_py() or 0
        size += tables[-1].nbytes
        check_size(size, limits.MAX_IN_MEMORY)
        check_size(entries, limits.MAX_ENTRIES)
    if any(table.schema != tables[0].schema for table in tables):
        raise LeftToSpark
    return pa.concat_tables(tables), min(deferred, default=None)


def _changes_in(task: SmallApply, files: FileSystem, add: Add) -> pa.Table:
    """The changes of the source table in a file of the changelog."""
    if (held := task.held.get(add["path"])) is not None:
        return held
    with opened(files, add) as file:
        table = read(file, [*OF_CHANGE, "kind"])
    is_change = pc.equal(table["kind"], "change")
    is_ours = pc.and_(is_change, pc.equal(table["table"], task.definition.source))
    return table.filter(is_ours).select(OF_CHANGE)


def _not_truncated(table: pa.Table, definition: TableDefinition, rank: Rank) -> pa.Table:
    """The changes that no truncation with this rank deletes (EVO-13)."""
    if definition.order is OrderBy.COMMIT:
        oldest = pc.min(plain(table["commit_timestamp"])).as_py()
        if oldest is None or oldest > rank[0]:
            return table
    columns = [plain(table[name]).to_pylist() for name in _OF_RANK]
    kept = [
        number is None or sections_of(number) >= rank
        if definition.order is OrderBy.SEQUENCE_NUMBER
        else (committed, tie_breaker, (transaction or _NO_SEQUENCE)["record_sequence"]) >= rank
        for committed, tie_breaker, transaction, number in zip(*columns, strict=True)
    ]
    return table.filter(pa.array(kept, pa.bool_()))


@dataclass(frozen=True, slots=True)
class _Keys:
    """The keys of the changed rows, each once: values of the key columns, and buckets.

    `of_change` is the number of the key of each change.
    """

    of_change: Numbers
    values: Sequence[Key]
    buckets: Numbers


def _keys_of(task: SmallApply, reader: RowReader, changes: pa.Table) -> _Keys:
    encoded = changes["row_key"].combine_chunks().dictionary_encode()
    row_keys, values = encoded.dictionary.to_pylist(), list[Key]()
    for row_key in row_keys:
        key = reader.key(row_key)
        if isinstance(key, Unreadable):
            raise LeftToSpark
        values.append(key)
    buckets = [bucket_of(row_key, task.buckets) for row_key in row_keys]
    of_change = np.asarray(encoded.indices.to_numpy(zero_copy_only=False), np.int64)
    return _Keys(of_change, values, np.array(buckets, np.int64))


@dataclass(frozen=True, slots=True)
class _Old:
    """The stored states of rows, with their keys and the values of their columns."""

    keys: Numbers
    states: pa.StructArray
    values: Sequence[pa.Array]


def _of_rows(definition: TableDefinition, file_rows: Iterable[FileRows]) -> Iterator[_Old]:
    for rows in file_rows:
        names = set(rows.columns.column_names)  # an older file lacks a column that was added later
        values = [
            rows.columns[column.name].cast(arrow_type(column.type)).combine_chunks()
            if column.name in names
            else pa.nulls(len(rows.columns), arrow_type(column.type))
            for column in definition.columns
        ]
        yield _Old(rows.keys, rows.columns[STATE].combine_chunks(), values)


def _of_tombstones(task: SmallApply, adds: Iterable[Add], wanted: WantedKeys) -> Iterator[_Old]:
    """The stored states of the removed rows that count at the commit `before`."""
    columns, before = [_APPLY, _ATTEMPT, STATE], task.before
    for rows in rows_with_keys(task.tombstones, adds, wanted, columns):
        attempts = zip(*(rows.columns[name].to_pylist() for name in columns[:2]), strict=True)
        counts = np.array([_counts(before, *of_row) for of_row in attempts], np.bool_)
        states = rows.columns[STATE].combine_chunks().filter(pa.array(counts))
        types = (arrow_type(column.type) for column in task.definition.columns)
        yield _Old(rows.keys[counts], states, [pa.nulls(len(states), type_) for type_ in types])


def _counts(before: TableState, apply: int, attempt: str) -> bool:
    """Whether a tombstone of this attempt counts at the commit `before` (TBL-12)."""
    return apply <= before.vacuumed_to or before.attempt_ids.get(apply) == attempt


def _all_count(task: SmallApply, adds: Iterable[Add]) -> bool:
    """Whether all tombstones of applies up to `before` count. False: also if a file is large, or it
    has too many attempts.
    """
    before, files = task.before, files_at(task.tombstones)
    for add in adds:
        name = f"{task.tombstones}/{add['path']}"
        if (attempts := _ATTEMPTS.get(name)) is None:
            try:
                attempts = _attempts_in(files, add)
            except LeftToSpark:
                return False
            _ATTEMPTS.keep(name, attempts, 100 * len(attempts))
        if len(attempts) == _MOST_ATTEMPTS and before.vacuumed_to < attempts[-1][0]:
            return False
        for apply, attempt in attempts:
            if apply <= before.apply_number and not _counts(before, apply, attempt):
                return False
    return True


def _attempts_in(files: FileSystem, add: Add) -> list[tuple[int, str]]:
    """The applies and attempts that the tombstones of a file are of, the newest ones first."""
    with opened(files, add) as file:
        rows = read(file, [_APPLY, _ATTEMPT])
    of_rows = rows.group_by([_APPLY, _ATTEMPT]).aggregate([]).sort_by([(_APPLY, "descending")])
    columns = (column.to_pylist() for column in of_rows[:_MOST_ATTEMPTS].columns)
    return list(zip(*columns, strict=True))


def _even_rows(task: SmallApply, keys: _Keys, wanted: WantedKeys, merged: MergedRows) -> _Rows:
    fields = fields_of(task.definition)
    of_keys, state, unmapped = len(wanted.columns), fields[-1], fields[-2]

    def table_of(rows: Numbers, columns: Sequence[pa.Array], names: Sequence[pa.Field]) -> pa.Table:
        arrays = [
            *(part.take(pa.array(rows)) for part in wanted.columns),
            *columns,
            merged.states(rows, state.type),
            pa.array(keys.buckets[rows], pa.int32()),
        ]
        schema = pa.schema([*fields[:of_keys], *names, state, _BUCKET])
        return pa.Table.from_arrays(arrays, schema=schema)

    live, deleted = merged.live, merged.deleted
    values = [*merged.values(live), pa.nulls(len(live), unmapped.type)]
    return _Rows(
        table_of(live, values, fields[of_keys:-1]),
        table_of(deleted, [pa.array(merged.newest(deleted))], [_NEWEST]),
        has_residual=False,
    )


def _uneven_rows(
    task: SmallApply,
    reader: RowReader,
    changes: pa.Table,
    keys: _Keys,
    uneven: Flags,
    old: Iterable[_Old],
) -> _Rows:
    """Merge the marked rows one by one."""
    form, states, misfits = (
        StateForm(task.definition, task.ids),
        dict[int, RowState](),
        Counter[str](),
    )

    def add(row: int, state: RowState) -> None:
        states[row] = join(states[row], state) if row in states else state

    of_change = keys.of_change[uneven[keys.of_change]]
    changes = changes.filter(pa.array(uneven[keys.of_change]))
    columns = [plain(changes[name]).to_pylist() for name in OF_CHANGE]
    for number, (*logged, batch) in zip(
        of_change.tolist(), zip(*columns, strict=True), strict=True
    ):
        change, position = change_of(tuple(logged))
        if reader.fault(change, batch) is not None:
            raise LeftToSpark
        misfits.update(reader.unreadable(change))
        add(number, reader.state([(change, position)]))
    for stored in old:
        is_uneven = uneven[stored.keys]
        mask = pa.array(is_uneven)
        arrays = (stored.states, *stored.values)
        rows = zip(*(plain(array.filter(mask)).to_pylist() for array in arrays), strict=True)
        numbers = stored.keys[is_uneven].tolist()
        for number, (state, *values) in zip(numbers, rows, strict=True):
            add(number, form.read(state, values))

    live, tombstones = list[dict[str, Any]](), list[dict[str, Any]]()
    names = [part.name for part in task.definition.key.parts]
    for number, joined in states.items():
        kept = expire(joined, task.horizon)
        row = reader.row(keys.values[number], visible(kept))
        others = {STATE: form.write(kept, reader.misfits(kept)), BUCKET: int(keys.buckets[number])}
        if row is not None:
            live.append({**row, UNMAPPED: row[UNMAPPED] or None, **others})
        elif kept != EMPTY:
            key = dict(zip(names, keys.values[number], strict=True))
            tombstones.append({**key, "_newest": _newest(kept), **others})
    fields = fields_of(task.definition)
    return _Rows(
        _table_of(live, [*fields, _BUCKET]),
        _table_of(tombstones, [*fields[: len(names)], _NEWEST, fields[-1], _BUCKET]),
        has_residual=any(row[STATE]["residual"] for row in (*live, *tombstones)),
        misfits=misfits,
    )


def _newest(state: RowState) -> int:
    orders = [*(cell.order for cell in state.cells.values()), *state.tombstones.values()]
    return max(order.age for order in orders)


def _table_of(rows: Sequence[Mapping[str, Any]], fields: Sequence[pa.Field]) -> pa.Table:
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in fields]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _write_rows(task: SmallApply, wanted: WantedKeys, tables: Sequence[pa.Table]) -> Iterator[str]:
    """Write the rows of each bucket to one file."""
    statistics = keys_with_statistics(task.definition)
    rows = pa.concat_tables(tables) if tables else _table_of((), [_BUCKET])
    for bucket in sorted(rows[BUCKET].unique().to_pylist()):
        of_bucket = rows.filter(pc.equal(rows[BUCKET], bucket)).drop_columns([BUCKET])
        yield write(task.table, of_bucket, statistics, wanted=wanted, **{BUCKET: bucket})


def _write_tombstones(
    task: SmallApply, wanted: WantedKeys, tables: Sequence[pa.Table], adds: Sequence[Add]
) -> Iterator[str]:
    """Write new tombstones to a file. If there are some, and many small files, put these together
    with them: their rows keep the apply and the attempt that they are of.
    """
    rows = pa.concat_tables(tables) if tables else _table_of((), [_BUCKET])
    if not len(rows):
        return
    number, attempt = task.before.apply_number + 1, task.attempt_id
    rows = rows.append_column(_APPLY, pa.array([number] * len(rows), pa.int64()))
    rows = rows.append_column(_ATTEMPT, pa.array([attempt] * len(rows), pa.string()))
    folded = fold_tombstones(task.tombstones, list(rows.schema), adds) if task.may_fold else Fold()
    yield from remove(task.tombstones, (), folded.adds)
    rows = pa.concat_tables([rows, *folded.rows])
    yield write(task.tombstones, rows, ["_newest"], wanted=wanted)
