"""The merge rule: changes become the state of a row, independent of their arrival order (MRG-4 to
MRG-11).

Theory. The state of a row is two maps: cells and tombstones. Each maps a name to the last write of
this name. `lift` converts one change to the state with only this change. `join` combines two
states: for each name, it takes the value with the greater order. The maximum of a set does not
depend on the order of its elements. So `join` is commutative, associative and idempotent. Arrival
order, duplicates and batch boundaries do not matter (`newest_wins`).
A delete is not an action but a fact that is kept: a tombstone. It hides every cell that it covers
and that has a smaller order. The order decides, not the cell timestamp. Entries of one change apply
in order, because their index is part of their order.
`normal` removes what no later join can make visible again. It does not change the visible cells,
now or after any join.
A truncation is the delete of everything that is older than its rank, in all rows of a table
(EVO-13). Its rank has no ingest position: at equality, a cell stays. The state of a table has only
the greatest rank, `TableState.truncated`. `truncate` removes what it deletes. It distributes over
`join`, so it does not matter whether changes come before or after the truncation. A rank is never
forgotten.
Only forgetting a tombstone could make arrival order matter. Therefore it has two rules: a tombstone
is forgotten only below the horizon (`expire`, at the end of this file), and a change below the
horizon is never merged (`deletes_stay_deleted`).
A cell is a column, or one version of a column. Only its name says which one, and only
`_covers_all_of` depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from connector.records.model import DataChange, DeleteCells, DeleteFamily, SetCell
from connector.records.ordering import ChangeOrder, OrderBy, OrderPosition, Rank, change_order
from connector.tables.definition import Versions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class CellName(NamedTuple):
    """The name of a cell of a row. The timestamp is `None` with `versions = latest`."""

    family: str
    qualifier: bytes
    cell_timestamp: int | None


class Cell(NamedTuple):
    """The last write of a name.

    `value` is `None` if a tombstone hid it and the value was removed. The cell still wins against
    older writes.
    """

    order: ChangeOrder
    cell_timestamp: int
    value: bytes | None


class Tombstone(NamedTuple):
    """A remembered delete of a whole family (`qualifier` is `None`), or of the cell timestamps
    `[start, end)` of a column.

    An `end` of 0 means that the range has no end.
    """

    family: str
    qualifier: bytes | None
    start: int
    end: int

    def covers(self, name: CellName, cell_timestamp: int) -> bool:
        """Return whether a cell is in the deleted range. Orders are not compared."""
        if self.family != name.family or self.qualifier not in (None, name.qualifier):
            return False
        return self.start <= cell_timestamp and (self.end == 0 or cell_timestamp < self.end)

    def contains(self, other: Tombstone) -> bool:
        """Return whether this delete covers everything that the other delete covers."""
        if self.family != other.family or self.qualifier not in (None, other.qualifier):
            return False
        return self.start <= other.start and (self.end == 0 or 0 < other.end <= self.end)


@dataclass(frozen=True, slots=True)
class RowState:
    """The data of a row that later merges need. Do not change the maps of a state."""

    cells: Mapping[CellName, Cell] = field(default_factory=dict)
    tombstones: Mapping[Tombstone, ChangeOrder] = field(default_factory=dict)


EMPTY: Final = RowState()


def lift(
    change: DataChange, position: OrderPosition, order_by: OrderBy, versions: Versions
) -> RowState:
    """Return the state with this change only. `position` is its first delivery (MRG-3)."""
    cells: dict[CellName, Cell] = {}
    tombstones: dict[Tombstone, ChangeOrder] = {}
    first = change_order(change, position, order_by)
    for index, entry in enumerate(change.entries):
        order = ChangeOrder(first.rank, first.position, index)
        match entry:
            case SetCell():
                name = CellName(
                    entry.family,
                    entry.qualifier,
                    entry.cell_timestamp if versions is Versions.ALL else None,
                )
                cells[name] = Cell(order, entry.cell_timestamp, entry.value)
            case DeleteCells():
                tombstones[
                    Tombstone(entry.family, entry.qualifier, entry.range_start, entry.range_end)
                ] = order
            case DeleteFamily():
                tombstones[Tombstone(entry.family, None, 0, 0)] = order
    return RowState(cells, tombstones)


def join(first: RowState, second: RowState) -> RowState:
    """Combine two states: for each name, take the value with the greater order (MRG-5, MRG-7).

    The result may not be normal, even if both states are.
    """
    cells = dict(first.cells)
    for name, cell in second.cells.items():
        earlier = cells.get(name)
        cells[name] = cell if earlier is None else _newer(earlier, cell)
    tombstones = dict(first.tombstones)
    for tombstone, order in second.tombstones.items():
        tombstones[tombstone] = max(order, tombstones.get(tombstone, order))
    return RowState(cells, tombstones)


def truncate(state: RowState, rank: Rank | None) -> RowState:
    """Return the state without the cells and tombstones that a truncation with this rank deletes:
    those with a smaller rank (EVO-13). With None, the table was never truncated.

    A removed tombstone hid only cells that are removed, too.
    """
    if rank is None:
        return state
    return RowState(
        {name: cell for name, cell in state.cells.items() if cell.order.rank >= rank},
        {tombstone: order for tombstone, order in state.tombstones.items() if order.rank >= rank},
    )


def greatest(*ranks: Rank | None) -> Rank | None:
    """Return the rank of the table after these truncations. None: it was never truncated."""
    return max((rank for rank in ranks if rank is not None), default=None)


def _newer(first: Cell, second: Cell) -> Cell:
    if first.order != second.order:
        return max(first, second, key=lambda cell: cell.order)
    # Both are the same entry. If one is from a normal state, its value may be gone. That state has
    # the tombstone that hid it. The cell of a column that was dropped has the canonical bytes of
    # its value (EVO-3).
    assert first.cell_timestamp == second.cell_timestamp, (first, second)
    if first.value is None or second.value is None:
        return first if first.value is None else second
    return max(first, second, key=lambda cell: cell.value or b"")


def normal(state: RowState) -> RowState:
    """Remove what can never be visible again (MRG-9).

    Three things are removed: a tombstone inside a newer and wider tombstone; a cell under a
    tombstone that covers every cell of its name; the value, but not the order, of any other covered
    cell. The visible cells do not change, now or after any join with states that were expired with
    the same horizon or a smaller one.
    """
    if not state.tombstones:
        return state
    index = _by_column(state.tombstones)
    tombstones = {
        tombstone: order
        for tombstone, order in state.tombstones.items()
        if not any(
            order < newer and wider.contains(tombstone)
            for wider, newer in _over(index, tombstone.family, tombstone.qualifier)
        )
    }
    cells: dict[CellName, Cell] = {}
    for name, cell in state.cells.items():
        covering = _covering(index, name, cell)
        if not covering:
            cells[name] = cell
        elif not any(_covers_all_of(tombstone, name) for tombstone in covering):
            cells[name] = cell._replace(value=None)
    return RowState(cells, tombstones)


def visible(state: RowState) -> dict[tuple[str, bytes], bytes]:
    """Return the value of each column, by family and qualifier. Of several versions, the one with
    the greatest cell timestamp.

    An absent column has no value. This does not mean that it is null (MRG-8).
    """
    return {
        (name.family, name.qualifier): cell.value
        for name, cell in winners(state).items()
        if cell.value is not None
    }


def winners(state: RowState) -> dict[CellName, Cell]:
    """Return the cell that gives each column its value, as in `visible`: one for each column."""
    newest: dict[tuple[str, bytes], tuple[CellName, Cell]] = {}
    for name, cell in shown(state).items():
        column = (name.family, name.qualifier)
        if column not in newest or newest[column][1].cell_timestamp < cell.cell_timestamp:
            newest[column] = name, cell
    return dict(newest.values())


def shown(state: RowState) -> dict[CellName, Cell]:
    """Return the cells that have a value and that no tombstone hides."""
    if not state.tombstones:
        return {name: cell for name, cell in state.cells.items() if cell.value is not None}
    index = _by_column(state.tombstones)
    return {
        name: cell
        for name, cell in state.cells.items()
        if cell.value is not None and not _covering(index, name, cell)
    }


def exists(state: RowState) -> bool:
    """Return whether the row exists: it has a visible cell (MRG-7)."""
    return bool(shown(state))


_Index = dict[tuple[str, bytes | None], list[tuple[Tombstone, ChangeOrder]]]


def _by_column(tombstones: Mapping[Tombstone, ChangeOrder]) -> _Index:
    index: _Index = {}
    for tombstone, order in tombstones.items():
        index.setdefault((tombstone.family, tombstone.qualifier), []).append((tombstone, order))
    return index


def _over(
    index: _Index, family: str, qualifier: bytes | None
) -> Iterable[tuple[Tombstone, ChangeOrder]]:
    """Return the tombstones that can cover a column. Without a qualifier: a whole family."""
    yield from index.get((family, None), ())
    if qualifier is not None:
        yield from index.get((family, qualifier), ())


def _covering(index: _Index, name: CellName, cell: Cell) -> list[Tombstone]:
    over = _over(index, name.family, name.qualifier)
    return [
        tombstone
        for tombstone, order in over
        if order > cell.order and tombstone.covers(name, cell.cell_timestamp)
    ]


def _covers_all_of(tombstone: Tombstone, name: CellName) -> bool:
    """Return whether a tombstone that covers a cell covers every cell that could have its name."""
    return name.cell_timestamp is not None or (tombstone.start, tombstone.end) == (0, 0)


# `expire` forgets tombstones strictly below the horizon, and `is_too_late` refuses changes strictly
# below it. The horizon of
# `expire` is never greater. A change that a forgotten tombstone would hide is older than the
# tombstone, so it is refused.


def expire(state: RowState, horizon: int | None) -> RowState:
    """Return the normal state without tombstones and empty cells that are older than the horizon
    (MRG-10).

    The visible cells do not change, now or after any join with changes that are not too late.
    `horizon` is a commit timestamp (µs). In a table ordered by sequence number, it is an ingest
    batch (MRG-12). With None, the horizon is not known and nothing expires.
    """
    state = normal(state)
    if horizon is None:
        return state
    return RowState(
        {
            name: cell
            for name, cell in state.cells.items()
            if cell.value is not None or cell.order.age >= horizon
        },
        {tombstone: order for tombstone, order in state.tombstones.items() if order.age >= horizon},
    )
