"""Merges few changes into a table without Spark: reads the rows that they touch, merges them, and
writes their new files and deletion vectors (TBL-13).

Most rows are merged together (`column_merge`), the others one by one with `tables.merge`.

Nothing is committed here. Files that no commit names are removed later, as those of any writer that
failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connector.lake.changelog_changes import change_of
from connector.lake.checks import trouble
from connector.lake.column_merge import Flags, MergedRows, Registers, Unfit, Writes
from connector.lake.small_files import (
    Add,
    Found,
    Key,
    LeftToSpark,
    Wanted,
    adds_of,
    check_memory,
    check_size,
    find,
    keys_with_statistics,
    opened,
    read,
    remove,
    write,
)
from connector.lake.stores import files_at
from connector.lake.table_fields import ARROW_TYPES, Numbers, fields_of, plain
from connector.records.ordering import OrderBy
from connector.state import apply_level as limits
from connector.state.apply_level import Merged, SmallApply
from connector.tables.column_names import BUCKET, STATE, UNMAPPED
from connector.tables.definition import TableDefinition
from connector.tables.merge import EMPTY, RowState, expire, join, visible
from connector.tables.row import RowReader
from connector.tables.stored_state import StateForm
from connector.tables.values import Unreadable
from connector.warehouse import bucket_of

_BUCKET: Final = pa.field(BUCKET, pa.int32())
_NEWEST: Final = pa.field("_newest", pa.int64())
_NOTHING: Final = Merged(
    changes=0, highest=0, deferred_from=None, has_residual=False, table=(), tombstones=()
)
_OF_CHANGE: Final = (
    *("table", "row_key", "commit_timestamp", "tie_breaker", "transaction"),
    *("change_sequence_number", "entries", "order_position", "stream_partition", "change_type"),
    "source_cluster_id",
)


def merge_few(task: SmallApply) -> Merged | None:
    """Merge the changes and write the files. None: Spark must do it, and nothing was written.

    Spark does it if the changes, their rows, or the files with them are large (`MAX_BYTES` and its
    neighbours), if a value or a key does not fit the table, or if a file has dates of another
    calendar. Raises `TableError` if a file cannot be read or written.
    """
    try:
        return _merge(task)
    except (LeftToSpark, Unfit):
        return None
    except (OSError, ValueError, pa.ArrowException) as error:
        raise trouble(task.table, "read or written", error) from error


def _merge(task: SmallApply) -> Merged:
    changelog, table, tombstones = map(adds_of, (task.changes, task.rows, task.removed))
    if not changelog:
        return _NOTHING
    always = _size(changelog) + _size(tombstones)
    sizes = Counter[str | None]()
    for add in table:
        sizes[_bucket_of(add)] += add["size"]
    check_size(always + min(sizes[str(bucket)] for bucket in range(task.buckets)))
    changes, deferred_from = _new_changes(task, changelog)
    reader = RowReader(task.definition)
    keys = _keys_of(task, reader, changes)
    touched = {None, *map(str, set(keys.buckets.tolist()))}
    table = [add for add in table if _bucket_of(add) in touched]
    check_size(always + _size(table))

    found, merged = list[Found](), list[_Rows]()
    if len(changes):
        wanted = Wanted(task.definition, keys.values)
        found, merged = _merged(task, reader, changes, keys, table, tombstones, wanted)
    removed = remove(files_at(task.table), found)
    added = _write_rows(task, [rows.live for rows in merged])
    return Merged(
        changes=len(changes),
        highest=pc.max(plain(changes["commit_timestamp"])).as_py() or 0,
        deferred_from=deferred_from,
        has_residual=any(rows.has_residual for rows in merged),
        table=(*removed, *added),
        tombstones=tuple(_write_tombstones(task, [rows.gone for rows in merged])),
    )


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows as the files have them, with their bucket. `gone` has the time of the newest deletion of
    each row instead of values.
    """

    live: pa.Table
    gone: pa.Table
    has_residual: bool


def _merged(
    task: SmallApply,
    reader: RowReader,
    changes: pa.Table,
    keys: _Keys,
    table: Iterable[Add],
    tombstones: Iterable[Add],
    wanted: Wanted,
) -> tuple[list[Found], list[_Rows]]:
    """The rows of the table that go, and those that come."""
    definition, before = task.definition, task.before
    replaces, uneven = False, np.ones(len(keys.values), np.bool_)
    registers, writes = Registers(definition), list[Writes]()
    if definition.order is OrderBy.COMMIT:
        new = registers.of_changes(changes, keys.of_change)
        writes.append(new.writes)
        uneven[:] = False
        uneven[new.uneven] = True
        oldest = pc.min(plain(changes["commit_timestamp"])).as_py()
        replaces = new.replaces and not before.has_residual and oldest > before.highest_applied
    _check_uneven(task, changes, keys, uneven)
    columns = [column.name for column in definition.columns]
    names = () if replaces else (*columns, STATE)
    found = list(find(files_at(task.table), table, wanted, names))
    old = [] if replaces else [*_of_rows(definition, found), *_of_gone(task, tombstones, wanted)]
    if writes:
        for one in old:
            of_states, others = registers.of_states(one.states, one.values, one.keys)
            writes.append(of_states)
            uneven[others] = True
        _check_uneven(task, changes, keys, uneven)
    rows = list[_Rows]()
    if writes and not uneven.all():
        rows.append(_even_rows(task, keys, wanted, registers.merged(writes, uneven, task.horizon)))
    if uneven.any():
        rows.append(_uneven_rows(task, reader, changes, keys, uneven, old))
    return found, rows


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
    """The changes of the source table that are below the low watermark and not merged yet, and the
    oldest batch with a change that is not below it.
    """
    definition, before = task.definition, task.before
    found: list[pa.Table] = []
    files, deferred, entries, size = files_at(task.changelog), list[int](), 0, 0
    for add in changelog:
        with opened(files, add) as file:
            table = read(file, [*_OF_CHANGE, "ingest_batch", "kind"])
        is_ours = pc.and_(
            pc.equal(table["kind"], "change"), pc.equal(table["table"], definition.source)
        )
        table = table.filter(is_ours)
        places = list[int]()
        of_row = (plain(table[name]).to_pylist() for name in ("ingest_batch", "commit_timestamp"))
        for place, (batch, committed) in enumerate(zip(*of_row, strict=True)):
            if task.below is not None and committed >= task.below:
                deferred.append(batch)
            elif not before.covers(batch, committed):
                places.append(place)
        found.append(table.take(pa.array(places, pa.int64())))
        entries += pc.sum(pc.list_value_length(found[-1]["entries"])).as_py() or 0
        size += found[-1].nbytes
        check_memory(size)
        if entries > limits.MAX_ENTRIES:
            raise LeftToSpark
    if any(table.schema != found[0].schema for table in found):
        raise LeftToSpark
    return pa.concat_tables(found), min(deferred, default=None)


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


def _of_rows(definition: TableDefinition, found: Iterable[Found]) -> Iterator[_Old]:
    for one in found:
        values = [
            one.columns[column.name].cast(ARROW_TYPES[column.type]).combine_chunks()
            for column in definition.columns
        ]
        yield _Old(one.keys, one.columns[STATE].combine_chunks(), values)


def _of_gone(task: SmallApply, adds: Iterable[Add], wanted: Wanted) -> Iterator[_Old]:
    """The stored states of the removed rows that count at the commit `before`."""
    columns, before = ["_apply_number", "_attempt_id", STATE], task.before
    for one in find(files_at(task.tombstones), adds, wanted, columns):
        attempts = zip(*(one.columns[name].to_pylist() for name in columns[:2]), strict=True)
        counts = np.array(
            [
                apply <= before.vacuumed_to or before.attempt_ids.get(apply) == attempt
                for apply, attempt in attempts
            ],
            np.bool_,
        )
        states = one.columns[STATE].combine_chunks().filter(pa.array(counts))
        types = (ARROW_TYPES[column.type] for column in task.definition.columns)
        yield _Old(one.keys[counts], states, [pa.nulls(len(states), type_) for type_ in types])


def _even_rows(task: SmallApply, keys: _Keys, wanted: Wanted, merged: MergedRows) -> _Rows:
    fields = fields_of(task.definition)
    of_keys, state, unmapped = len(wanted.columns), fields[-1], fields[-2]

    def table_of(rows: Numbers, columns: Sequence[pa.Array], names: Sequence[pa.Field]) -> pa.Table:
        places = pa.array(rows)
        arrays = [
            *(part.take(places) for part in wanted.columns),
            *columns,
            merged.states(rows, state.type),
            pa.array(keys.buckets[rows], pa.int32()),
        ]
        schema = pa.schema([*fields[:of_keys], *names, state, _BUCKET])
        return pa.Table.from_arrays(arrays, schema=schema)

    live, gone = merged.live, merged.gone
    values = [*merged.values(live), pa.nulls(len(live), unmapped.type)]
    return _Rows(
        table_of(live, values, fields[of_keys:-1]),
        table_of(gone, [pa.array(merged.newest(gone))], [_NEWEST]),
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
    form, states = StateForm(task.definition), dict[int, RowState]()

    def add(row: int, state: RowState) -> None:
        known = states.get(row)
        states[row] = state if known is None else join(known, state)

    of_change = keys.of_change[uneven[keys.of_change]]
    changes = changes.filter(pa.array(uneven[keys.of_change]))
    columns = [plain(changes[name]).to_pylist() for name in _OF_CHANGE]
    for number, logged in zip(of_change.tolist(), zip(*columns, strict=True), strict=True):
        change, position = change_of(logged)
        if reader.fault(change) is not None:
            raise LeftToSpark
        add(number, reader.state([(change, position)]))
    for one in old:
        is_here = uneven[one.keys]
        mask = pa.array(is_here)
        values = [plain(column.filter(mask)).to_pylist() for column in (one.states, *one.values)]
        stored = zip(*values, strict=True)
        for number, (state, *of_columns) in zip(one.keys[is_here].tolist(), stored, strict=True):
            add(number, form.read(state, of_columns))

    live, gone = list[dict[str, Any]](), list[dict[str, Any]]()
    names = [part.name for part in task.definition.key.parts]
    for number, joined in states.items():
        kept = expire(joined, task.horizon)
        row = reader.row(keys.values[number], visible(kept))
        others = {STATE: form.write(kept), BUCKET: int(keys.buckets[number])}
        if row is not None:
            live.append({**row, UNMAPPED: row[UNMAPPED] or None, **others})
        elif kept != EMPTY:
            key = dict(zip(names, keys.values[number], strict=True))
            gone.append({**key, "_newest": _newest(kept), **others})
    fields = fields_of(task.definition)
    return _Rows(
        _table_of(live, [*fields, _BUCKET]),
        _table_of(gone, [*fields[: len(names)], _NEWEST, fields[-1], _BUCKET]),
        has_residual=any(one[STATE]["residual"] for one in (*live, *gone)),
    )


def _newest(state: RowState) -> int:
    orders = [*(cell.order for cell in state.cells.values()), *state.tombstones.values()]
    return max(order.age for order in orders)


def _table_of(rows: Sequence[Mapping[str, Any]], fields: Sequence[pa.Field]) -> pa.Table:
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in fields]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _write_rows(task: SmallApply, tables: Sequence[pa.Table]) -> Iterator[str]:
    """Write the rows of each bucket to one file."""
    known = keys_with_statistics(task.definition)
    rows = pa.concat_tables(tables) if tables else _table_of((), [_BUCKET])
    for bucket in sorted(rows[BUCKET].unique().to_pylist()):
        of_bucket = rows.filter(pc.equal(rows[BUCKET], bucket)).drop_columns([BUCKET])
        yield write(task.table, of_bucket, known, **{BUCKET: bucket})


def _write_tombstones(task: SmallApply, tables: Sequence[pa.Table]) -> Iterator[str]:
    rows = pa.concat_tables(tables) if tables else _table_of((), [_BUCKET])
    if not len(rows):
        return
    number, attempt = task.before.apply_number + 1, task.attempt_id
    rows = rows.append_column("_apply_number", pa.array([number] * len(rows), pa.int64()))
    rows = rows.append_column("_attempt_id", pa.array([attempt] * len(rows), pa.string()))
    yield write(task.tombstones, rows, ["_newest"])
