"""Merges the changes of many rows at once, as columns. The result is what `tables.merge` defines.

A row has registers: one for each column of the table, one for the presence mark, and one for the
newest deletion of each of its families. A *write* is what one entry of a change does to one
register: it sets a value or it deletes. The newest write of a register stays, and a newer deletion
of the family removes it.

Rows with other entries or stored states, such as ranges, are *uneven*: `tables.merge` merges them
row by row. Arrays of numbers are int64. A row is the number of its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connector.engine.values import Flags, Numbers, flags_of, typed
from connector.lake.small_files import plain
from connector.records.ordering import SECTIONS, OrderBy, OrderPosition, sections_of
from connector.tables.definition import TableDefinition
from connector.tables.stored_definition import NO_IDS, ColumnIds, assign_ids, families_of, tolerated

if TYPE_CHECKING:
    from numpy.typing import NDArray

_Kind = TypeVar("_Kind", bound=np.generic)

_RANK: Final = ("commit_timestamp", "tie_breaker", "record_sequence")
_SIGN: Final = np.uint64(2**63)
_NO_NUMBER: Final = bytes(8 * SECTIONS)
_SET, _DELETE_CELLS, _DELETE_FAMILY = range(3)
_KINDS: Final = ("SET_CELL", "DELETE_CELLS", "DELETE_FAMILY")
_NONE: Final = -1
_NO_TIME: Final = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class Writes:
    """Writes to registers, one for each element of the arrays.

    `order` is the number of the change in `orders`, which has a line for each: its rank and its
    order position. `value` is an index into `values` of the column, if the write sets a value.
    """

    row: Numbers
    register: Numbers
    order: Numbers
    entry: Numbers
    is_set: Flags
    cell_timestamp: Numbers
    value: Numbers
    orders: Numbers
    values: Sequence[pa.Array]


@dataclass(frozen=True, slots=True)
class NewWrites:
    """The writes of changes, and their uneven rows. `replaces`: each change deletes every family,
    so it needs no older state of its row if it is newer than all of it.
    """

    writes: Writes
    uneven: Numbers
    replaces: bool


class Unfit(Exception):  # noqa: N818, no fault
    """A value does not fit its column, or a change lacks its sequence number."""


class Registers:
    """The registers of a table that keeps the latest version of a cell."""

    def __init__(self, definition: TableDefinition, ids: ColumnIds | None = None) -> None:
        """`ids` None: those of a new table."""
        # The last one is the presence mark.
        self._columns, self._families = definition.registered, families_of(definition)
        ids = ids or assign_ids(NO_IDS, definition)
        self._since = tolerated(definition, ids)
        self._column_slots = [ids.by_name[column.name] for column in definition.columns]
        self._family_slots = [ids.families[family] for family in self._families]
        self._keeps_unmapped, self._order_by = definition.keep_unmapped, definition.order
        self._qualifiers = list(dict.fromkeys(column.qualifier for column in self._columns))
        # The last line and the last column are those of unknown names.
        self._of_cell = np.full((len(self._families) + 1, len(self._qualifiers) + 1), _NONE)
        for number, column in enumerate(self._columns):
            cell = self._families.index(column.family), self._qualifiers.index(column.qualifier)
            self._of_cell[cell] = number
        families = [self._families.index(column.family) for column in self._columns]
        self._family_of = np.array(families, np.int64)

    @property
    def _width(self) -> int:
        return len(self._columns) + len(self._families)

    def of_changes(self, changes: pa.Table, rows: Numbers) -> NewWrites:
        """The writes of changes, as a changelog has them, with the rows that they belong to.

        A row with a value that may not fit, and does not, is uneven. Raises `Unfit`.
        """
        entries = changes["entries"].combine_chunks()
        change, flat = _numbers(pc.list_parent_indices(entries)), pc.list_flatten(entries)
        count = _numbers(pc.list_value_length(entries))
        entry = np.arange(len(flat)) - (np.cumsum(count) - count)[change]
        kind = _codes(pc.struct_field(flat, "kind"), _KINDS)
        family = _codes(pc.struct_field(flat, "family"), self._families)
        qualifier = _codes(pc.struct_field(flat, "qualifier"), self._qualifiers)
        deletes_family = kind == _DELETE_FAMILY
        register = self._of_cell[family, qualifier]
        of_family = np.where(family >= 0, len(self._columns) + family, _NONE)
        register[deletes_family] = of_family[deletes_family]
        start, end, at = (
            _numbers(pc.struct_field(flat, name))
            for name in ("range_start", "range_end", "cell_timestamp")
        )
        is_range = (kind == _DELETE_CELLS) & ((start != 0) | (end != 0))
        is_even = (kind >= 0) & ~is_range & (register >= 0)
        if not self._keeps_unmapped:
            is_even |= (kind >= 0) & (register < 0)
        is_write = is_even & (register >= 0)
        is_set = is_write & (kind == _SET)
        values, of_column = pc.struct_field(flat, "value"), []
        value = np.zeros(len(flat), np.int64)
        for number, column in enumerate(self._columns):
            indexes = np.nonzero(is_set & (register == number))[0]
            value[indexes] = np.arange(len(indexes))
            read, misfits = typed(column, values.take(pa.array(indexes)))
            if len(misfits):
                batches = _numbers(changes["ingest_batch"])[change[indexes[misfits]]]
                if (batches > self._since[number]).any():
                    raise Unfit(column.name)
                is_even[indexes[misfits]] = False
            of_column.append(read)
        orders = _orders(
            _rank_of_changes(self._order_by, changes), changes["order_position"].combine_chunks()
        )
        kept = np.nonzero(is_write)[0]
        writes = Writes(
            *(rows[change[kept]], register[kept], change[kept], entry[kept], is_set[kept]),
            *(at[kept], value[kept], orders, of_column),
        )
        named = deletes_family & (register >= 0)
        whole = np.unique(change[named] * self._width + register[named])
        deleted = np.bincount(whole // self._width, minlength=len(changes))
        is_other = (kind == _DELETE_CELLS) | (deletes_family & (register < 0))
        replaces = bool(self._families) and not is_other.any() and is_even.all()
        replaces = replaces and bool((deleted == len(self._families)).all())
        return NewWrites(writes, np.unique(rows[change[~is_even]]), replaces)

    def of_states(
        self, states: pa.StructArray, values: Sequence[pa.Array], rows: Numbers
    ) -> tuple[Writes, Numbers]:
        """The writes of stored states with the values of their columns, and the uneven rows."""
        is_even = _lengths(states, "residual") == 0
        uneven = rows[~is_even]
        kept = pa.array(np.nonzero(is_even)[0])
        states, rows = states.take(kept), rows[is_even]
        marks = pc.struct_field(states, "mark_timestamp")
        mark = pc.if_else(marks.is_valid(), pa.scalar(b""), pa.scalar(None, pa.binary()))
        values = [*(array.take(kept) for array in values), mark]

        first = np.cumsum(_lengths(states, "orders")) - _lengths(states, "orders")
        of_columns, of_families = self._column_slots, self._family_slots
        order = _matrix(states, "column_orders", of_columns)
        entry = _matrix(states, "column_entries", of_columns)
        at = _matrix(states, "cell_timestamps", of_columns, _NO_TIME)
        has_time = at != _NO_TIME
        at = np.where(has_time, at, 0)
        has_value = np.array([flags_of(array.is_valid()) for array in values], np.bool_)
        has_value = has_value.reshape(len(values), len(rows)).T
        hidden = ((entry >= 0) & ~has_value[:, :-1] & has_time).any(axis=1)
        mark_order, mark_entry = (_column(states, f"mark_{name}") for name in ("order", "entry"))
        deletions = _matrix(states, "family_orders", of_families)
        deletion_entry = _matrix(states, "family_entries", of_families)
        everything = np.hstack([entry, mark_entry, deletion_entry])
        row, register = np.nonzero(everything >= 0)
        wide = np.hstack([has_value, np.zeros_like(deletions, np.bool_)])
        times = np.hstack([at, _numbers(marks, 0)[:, None], np.zeros_like(deletions)])
        number = np.hstack([order, mark_order, deletions]) + first[:, None]
        at_writes = (row, register)
        return (
            Writes(
                *(rows[row], register, number[at_writes], everything[at_writes], wide[at_writes]),
                *(times[at_writes], row, self._orders_of(_elements(states, "orders"))),
                values,
            ),
            np.concatenate([uneven, rows[hidden]]),
        )

    def _orders_of(self, stored: pa.StructArray) -> Numbers:
        """A line for each stored order. An order that no register has may be null."""
        if self._order_by is OrderBy.COMMIT:
            return _orders([pc.struct_field(stored, name) for name in _RANK], stored)
        numbers = pc.struct_field(stored, "sequence_number").fill_null(_NO_NUMBER).to_pylist()
        sections = np.frombuffer(b"".join(numbers), ">u8").reshape(-1, SECTIONS)
        return _orders(_as_rank(sections), stored)

    def merged(self, writes: Sequence[Writes], uneven: Flags, horizon: int | None) -> MergedRows:
        """The newest write of each register of even rows, without deletions below the `horizon`."""
        columns, width, rows = len(self._columns), self._width, len(uneven)
        age = 0 if self._order_by is OrderBy.COMMIT else SECTIONS
        every = _joined(writes, width)
        rank, example = _ranked(every.orders)
        span = 1 + int(every.entry.max(initial=0))
        weight = rank[every.order] * span + every.entry
        register = every.row * width + every.register
        best = np.full(rows * width, _NONE)
        np.maximum.at(best, register, weight)
        winner = np.full(rows * width, _NONE)
        wins = np.nonzero(best[register] == weight)[0]
        winner[register[wins]] = wins
        newest, of_row = best.reshape(rows, width), winner.reshape(rows, width)
        of_row[:, :columns][newest[:, columns:][:, self._family_of] > newest[:, :columns]] = _NONE
        of_row[uneven] = _NONE
        is_set = (of_row >= 0) & _at(every.is_set, of_row, absent=False)
        if horizon is not None:
            is_old = _at(every.orders[every.order, age], of_row, horizon) < horizon
            of_row[is_old & ~is_set] = _NONE
        slots = self._column_slots, self._family_slots
        return MergedRows(every, of_row, is_set, rank, example, slots, age)


@dataclass(frozen=True, slots=True)
class MergedRows:
    """The newest write of each register of each row: its number, or -1. `is_set` marks those that
    set a value.

    `rank` is that of each order, and `example` is one order of each rank. `slots` are the positions
    of columns and of families in a stored state. `age` is the place of the age in an order.
    """

    writes: Writes
    winner: Numbers
    is_set: Flags
    rank: Numbers
    example: Numbers
    slots: tuple[Sequence[int], Sequence[int]]
    age: int

    @property
    def live(self) -> Numbers:
        """The rows that readers see."""
        return np.nonzero(self.is_set.any(axis=1))[0]

    @property
    def deleted(self) -> Numbers:
        """The rows of which only deletions are left."""
        return np.nonzero((self.winner >= 0).any(axis=1) & ~self.is_set.any(axis=1))[0]

    def newest(self, rows: Numbers) -> Numbers:
        """The age of the newest deletion of each row."""
        ages = self.writes.orders[self.writes.order, self.age]
        return np.asarray(_at(ages, self.winner[rows], _NONE).max(axis=1, initial=_NONE))

    def values(self, rows: Numbers) -> list[pa.Array]:
        """The values of each column."""
        columns = []
        for number, values in enumerate(self.writes.values[:-1]):
            index = _at(self.writes.value, self.winner[rows, number], 0)
            columns.append(values.take(pa.array(index, mask=~self.is_set[rows, number])))
        return columns

    def states(self, rows: Numbers, type_: pa.StructType) -> pa.StructArray:
        """The stored states, as `stored_state` defines them."""
        winner, mark = self.winner[rows], len(self.writes.values) - 1
        ranks = _at(self.rank[self.writes.order], winner, _NONE)
        lined = np.argsort(ranks, axis=1, kind="stable")
        rising = np.take_along_axis(ranks, lined, axis=1)
        is_first = rising >= 0
        is_first[:, 1:] &= rising[:, 1:] != rising[:, :-1]
        index = np.empty_like(ranks)
        np.put_along_axis(index, lined, np.cumsum(is_first, axis=1) - 1, axis=1)
        used = self.writes.orders[self.example[rising[is_first]]]
        orders = _stored_orders(used, type_.field("orders").type.value_type)
        entry = _at(self.writes.entry, winner, _NONE)
        at = _at(self.writes.cell_timestamp, winner, 0)
        none = winner < 0
        deletes = ~self.is_set[rows]
        of_columns, of_families = self.slots
        columns, families = np.s_[:, :mark], np.s_[:, mark + 1 :]
        parts = {
            "orders": _lists(orders, is_first.sum(axis=1)),
            "column_orders": _rows(index[columns], none[columns], pa.int32(), of_columns),
            "column_entries": _rows(entry[columns], none[columns], pa.int32(), of_columns),
            "cell_timestamps": _rows(at[columns], deletes[columns], pa.int64(), of_columns),
            "mark_order": pa.array(index[:, mark], mask=none[:, mark]),
            "mark_entry": pa.array(entry[:, mark], mask=none[:, mark]),
            "mark_timestamp": pa.array(at[:, mark], mask=deletes[:, mark]),
            "family_orders": _rows(index[families], none[families], pa.int32(), of_families),
            "family_entries": _rows(entry[families], none[families], pa.int32(), of_families),
            "residual": pa.nulls(len(rows), type_.field("residual").type),
        }
        return pa.StructArray.from_arrays(
            [parts[name].cast(type_.field(name).type) for name in type_.names], fields=list(type_)
        )


def _rank_of_changes(order_by: OrderBy, changes: pa.Table) -> Sequence[Any]:
    """The parts of the ranks of changes, each for all of them. Raises `Unfit`."""
    if order_by is OrderBy.COMMIT:
        sequence = pc.struct_field(changes["transaction"].combine_chunks(), _RANK[-1])
        return [*(changes[name].combine_chunks() for name in _RANK[:-1]), sequence]
    numbers = changes["change_sequence_number"]
    if numbers.null_count:
        raise Unfit("change_sequence_number")
    sections = [sections_of(number) for number in numbers.to_pylist()]
    return _as_rank(np.array(sections, np.uint64).reshape(-1, SECTIONS))


def _as_rank(sections: NDArray[Any]) -> Sequence[Any]:
    """Sections as the parts of ranks. Their order is that of numbers with a sign."""
    signed = (sections.astype(np.uint64) ^ _SIGN).view(np.int64)
    return [pa.array(part) for part in signed.T]


def _orders(rank: Sequence[Any], positions: pa.StructArray) -> Numbers:
    """A line for each order: the parts of its rank and of its position. A part may be null."""
    of_position = (pc.struct_field(positions, name) for name in OrderPosition._fields)
    return np.stack([_numbers(part, 0) for part in (*rank, *of_position)], axis=1)


def _stored_orders(orders: Numbers, type_: pa.StructType) -> pa.StructArray:
    """The stored forms of orders, of this type."""
    rank, position = np.hsplit(orders, [-len(OrderPosition._fields)])
    if type_.names[0] == _RANK[0]:
        parts = [pa.array(part) for part in rank.T]
    else:
        numbers = (rank.view(np.uint64) ^ _SIGN).astype(">u8").tobytes()
        size = len(_NO_NUMBER)
        parts = [
            pa.array([numbers[n : n + size] for n in range(0, len(numbers), size)], pa.binary())
        ]
    parts += [pa.array(part) for part in position.T]
    arrays = [part.cast(field.type) for part, field in zip(parts, type_, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=list(type_))


def _ranked(orders: Numbers) -> tuple[Numbers, Numbers]:
    """The rank of each order from 0 on, equal for equal orders, and one order of each rank."""
    line = np.lexsort(orders.T[::-1])
    rising = orders[line]
    is_first = np.ones(len(orders), np.bool_)
    is_first[1:] = (rising[1:] != rising[:-1]).any(axis=1)
    rank = np.empty(len(orders), np.int64)
    rank[line] = np.cumsum(is_first) - 1
    return rank, line[is_first]


def _joined(several: Sequence[Writes], registers: int) -> Writes:
    """All of them together. The numbers of orders and values follow those of the writes before."""
    order, value, count_of_orders = [], [], 0
    count_of_values = np.zeros(registers, np.int64)
    for writes in several:
        order.append(writes.order + count_of_orders)
        count_of_orders += len(writes.orders)
        value.append(writes.value + count_of_values[writes.register])
        count_of_values[: len(writes.values)] += [len(values) for values in writes.values]

    def joined(name: str) -> Any:
        return np.concatenate([getattr(writes, name) for writes in several])

    of_columns = zip(*(writes.values for writes in several), strict=True)
    return Writes(
        order=np.concatenate(order),
        value=np.concatenate(value),
        values=[pa.concat_arrays(parts) for parts in of_columns],
        **{
            name: joined(name)
            for name in ("row", "register", "entry", "is_set", "cell_timestamp", "orders")
        },
    )


def _numbers(array: pa.Array, absent: int = _NONE) -> Numbers:
    return np.asarray(
        plain(array).cast(pa.int64()).fill_null(absent).to_numpy(zero_copy_only=False)
    )


def _codes(array: pa.Array, names: Sequence[str] | Sequence[bytes]) -> Numbers:
    """The index of each element in `names`, or -1."""
    return _numbers(pc.index_in(array, pa.array(names, array.type)))


def _at(array: NDArray[_Kind], indexes: Numbers, absent: int | bool) -> NDArray[_Kind]:
    """The elements at these indexes, `absent` at -1."""
    if not len(array):
        return np.full(indexes.shape, absent, array.dtype)
    return np.where(indexes >= 0, array[indexes], array.dtype.type(absent))


def _lengths(states: pa.StructArray, name: str) -> Numbers:
    return _numbers(pc.list_value_length(pc.struct_field(states, name)), 0)


def _elements(states: pa.StructArray, name: str) -> pa.Array:
    return pc.list_flatten(pc.struct_field(states, name))


def _matrix(
    states: pa.StructArray, name: str, slots: Sequence[int], absent: int = _NONE
) -> Numbers:
    """The elements of each list at these positions, as a line. A short list lacks the last ones."""
    lengths, elements = _lengths(states, name), _numbers(_elements(states, name), absent)
    width = int(lengths.max(initial=0))
    if (lengths == width).all() and list(slots) == list(range(width)):
        return elements.reshape(len(states), width)
    first, at = np.cumsum(lengths) - lengths, np.array(slots, np.int64)
    index = np.where(at < lengths[:, None], first[:, None] + at, _NONE)
    return _at(elements, index, absent)


def _column(states: pa.StructArray, name: str) -> Numbers:
    """A line of one number for each state."""
    return _numbers(pc.struct_field(states, name))[:, None]


def _lists(values: pa.Array, lengths: Numbers) -> pa.ListArray:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def _rows(
    matrix: Numbers, is_null: Flags, type_: pa.DataType, slots: Sequence[int]
) -> pa.ListArray:
    """A list for each line, with its elements at these positions."""
    width = max(slots, default=-1) + 1
    if list(slots) != list(range(width)):
        shape = (len(matrix), width)
        wide, is_empty = np.zeros(shape, np.int64), np.ones(shape, np.bool_)
        wide[:, slots], is_empty[:, slots] = matrix, is_null
        matrix, is_null = wide, is_empty
    values = pa.array(matrix.ravel(), pa.int64(), mask=is_null.ravel()).cast(type_, safe=False)
    return _lists(values, np.full(len(matrix), matrix.shape[1]))
