"""The merge rule: how changes become the state of a row, whatever the order in which they arrive (MRG-4 to MRG-11).

Theory. A row's state is two maps, from names to what was last said about them: cells and tombstones. A change is lifted
to the state that it alone would make. Two states join by taking, for each name, what has the greater order; the greatest
of a set does not depend on how the set was put together, so join is commutative, associative and idempotent, and the
order of arrival, duplicates and batches cannot matter (`newest_wins`).
A delete is not an act but a fact that stays: a tombstone hides every cell that it covers and that has a smaller order, by
commit order and not by cell timestamp. Entries of one change apply in order because their index is part of their order.
A normal state leaves out what can never be seen again; what is visible, now or after any join, stays the same.
Forgetting is the only rule that arrival could break. It has two halves, side by side at the end of this file: a tombstone
is forgotten below the horizon, and nothing below the horizon is merged (`deletes_stay_deleted`).
What a cell is, a column or one version of it, lies in its name alone; only `_covers_all_of` asks which.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from connector.records.model import DataChange, DeleteCells, DeleteFamily, SetCell
from connector.records.ordering import ChangeOrder, OrderBy, OrderPosition, change_order
from connector.tables.definition import Versions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class CellName(NamedTuple):
    """What a cell of a row is called: with `versions = latest` the timestamp is None, and the name means the column."""

    family: str
    qualifier: bytes
    cell_timestamp: int | None


class Cell(NamedTuple):
    """What was last written under a name. `value` is None once a tombstone hid it: the cell still beats older writes."""

    order: ChangeOrder
    cell_timestamp: int
    value: bytes | None


class Tombstone(NamedTuple):
    """What was deleted: a whole family (`qualifier` None), or a column's cell timestamps in `[start, end)`; an `end` of 0 is unbounded."""

    family: str
    qualifier: bytes | None
    start: int
    end: int

    def covers(self, name: CellName, cell_timestamp: int) -> bool:
        """Is a cell of this name and this timestamp among what was deleted? Orders are another question."""
        if self.family != name.family or self.qualifier not in (None, name.qualifier):
            return False
        return self.start <= cell_timestamp and (self.end == 0 or cell_timestamp < self.end)

    def contains(self, other: Tombstone) -> bool:
        """Was everything deleted that the other deletes?"""
        if self.family != other.family or self.qualifier not in (None, other.qualifier):
            return False
        return self.start <= other.start and (self.end == 0 or 0 < other.end <= self.end)


@dataclass(frozen=True, slots=True)
class RowState:
    """All that later merges need to know of a row. Nobody changes the maps of a state that exists."""

    cells: Mapping[CellName, Cell] = field(default_factory=dict)
    tombstones: Mapping[Tombstone, ChangeOrder] = field(default_factory=dict)


EMPTY: Final = RowState()


def lift(change: DataChange, position: OrderPosition, order_by: OrderBy, versions: Versions) -> RowState:
    """The state of a row that has seen this change only. `position` is that of the change's first delivery (MRG-3)."""
    cells: dict[CellName, Cell] = {}
    tombstones: dict[Tombstone, ChangeOrder] = {}
    first = change_order(change, position, order_by)
    for index, entry in enumerate(change.entries):
        order = first._replace(entry_index=index)
        match entry:
            case SetCell():
                name = CellName(entry.family, entry.qualifier, entry.cell_timestamp if versions is Versions.ALL else None)
                cells[name] = Cell(order, entry.cell_timestamp, entry.value)
            case DeleteCells():
                tombstones[Tombstone(entry.family, entry.qualifier, entry.range_start, entry.range_end)] = order
            case DeleteFamily():
                tombstones[Tombstone(entry.family, None, 0, 0)] = order
    return RowState(cells, tombstones)


def join(one: RowState, other: RowState) -> RowState:
    """What both states know: under each name what has the greater order (MRG-5, MRG-7). Not normal, even if both were."""
    cells = dict(one.cells)
    for name, cell in other.cells.items():
        known = cells.get(name)
        cells[name] = cell if known is None else _newer(known, cell)
    tombstones = dict(one.tombstones)
    for tombstone, order in other.tombstones.items():
        tombstones[tombstone] = max(order, tombstones.get(tombstone, order))
    return RowState(cells, tombstones)


def _newer(one: Cell, other: Cell) -> Cell:
    if one.order != other.order:
        return max(one, other, key=lambda cell: cell.order)
    # One entry, known twice. A state that was normalised may have lost its value, and has the tombstone that took it.
    assert one.cell_timestamp == other.cell_timestamp, (one, other)
    assert one.value == other.value or None in (one.value, other.value), (one, other)
    return one if one.value is None else other


def normal(state: RowState) -> RowState:
    """The same state without what can never be seen again (MRG-9).

    Gone are tombstones inside newer, wider ones; cells under a tombstone that covers all their name can stand for; the
    values, but not the orders, of other covered cells. Changes nothing that is visible, now or after any join with states
    that expired by the same horizon at most.
    """
    index = _by_column(state.tombstones)
    tombstones = {
        tombstone: order
        for tombstone, order in state.tombstones.items()
        if not any(order < newer and wider.contains(tombstone) for wider, newer in _over(index, tombstone.family, tombstone.qualifier))
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
    """The value of each column that has one, by family and qualifier: of several versions that with the greatest cell timestamp.

    A column that is absent has no value; nothing is known of it being null (MRG-8).
    """
    newest: dict[tuple[str, bytes], Cell] = {}
    for name, cell in shown(state).items():
        column = (name.family, name.qualifier)
        if column not in newest or newest[column].cell_timestamp < cell.cell_timestamp:
            newest[column] = cell
    return {column: cell.value for column, cell in newest.items() if cell.value is not None}


def shown(state: RowState) -> dict[CellName, Cell]:
    """The cells that have a value, and that no tombstone hides."""
    index = _by_column(state.tombstones)
    return {name: cell for name, cell in state.cells.items() if cell.value is not None and not _covering(index, name, cell)}


def exists(state: RowState) -> bool:
    """A row exists if it has a visible cell (MRG-7)."""
    return bool(shown(state))


_Index = dict[tuple[str, bytes | None], list[tuple[Tombstone, ChangeOrder]]]


def _by_column(tombstones: Mapping[Tombstone, ChangeOrder]) -> _Index:
    index: _Index = {}
    for tombstone, order in tombstones.items():
        index.setdefault((tombstone.family, tombstone.qualifier), []).append((tombstone, order))
    return index


def _over(index: _Index, family: str, qualifier: bytes | None) -> Iterable[tuple[Tombstone, ChangeOrder]]:
    """The tombstones that can touch a column (or, without a qualifier, a whole family)."""
    yield from index.get((family, None), ())
    if qualifier is not None:
        yield from index.get((family, qualifier), ())


def _covering(index: _Index, name: CellName, cell: Cell) -> list[Tombstone]:
    over = _over(index, name.family, name.qualifier)
    return [tombstone for tombstone, order in over if order > cell.order and tombstone.covers(name, cell.cell_timestamp)]


def _covers_all_of(tombstone: Tombstone, name: CellName) -> bool:
    """Does a tombstone that covers a cell cover every cell that could bear its name?"""
    return name.cell_timestamp is not None or (tombstone.start, tombstone.end) == (0, 0)


# Both halves say "below the horizon", strictly, of the same horizon or a smaller one on the side that forgets. So what a
# forgotten tombstone would have hidden, being older than the tombstone, is itself below the horizon, and never merged.


def expire(state: RowState, horizon: int | None) -> RowState:
    """The normal form of a state without the tombstones and valueless cells older than the horizon (MRG-10).

    Changes nothing that is visible, now or after any join with changes that are not too late. `horizon` is a commit
    timestamp (µs); in a table ordered by sequence number it is an ingest batch (MRG-12). None: nothing is known, nothing expires.
    """
    state = normal(state)
    if horizon is None:
        return state
    return RowState(
        {name: cell for name, cell in state.cells.items() if cell.value is not None or cell.order.age >= horizon},
        {tombstone: order for tombstone, order in state.tombstones.items() if order.age >= horizon},
    )
