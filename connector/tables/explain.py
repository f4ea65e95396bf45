"""Why a row is as it is: which entry gives each column its value, and what each other entry lost to
(SUB-6).

All comparisons are those of `connector.tables.merge`. `explain` lifts each entry alone, and looks
it up in the state of the row. So it cannot name another winner than the merge does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

from connector.records.json_view import view_of_entry
from connector.records.model import DataChange, DeleteCells, DeleteFamily, Entry, SetCell
from connector.records.ordering import ChangeOrder, OrderPosition, change_order
from connector.records.views import AsText, Hidden, Json, Mark, Named, Shown, Time
from connector.tables.merge import Cell, CellName, RowState, Tombstone, join, lift, winners

if TYPE_CHECKING:
    from collections.abc import Iterable

    from connector.tables.definition import TableDefinition

Column = tuple[str, bytes]
"""Family and qualifier."""
ROW_MARK: Final = "row mark"
"""The name of the presence mark (EVO-12). No column can have it."""


class Outcome(StrEnum):
    """The fate of an entry that sets a cell.

    - `WON`: the column shows its value.
    - `OVERWRITTEN`: a newer entry set the same cell.
    - `DELETED`: a newer deletion covers the cell.
    - `OLDER_VERSION`: the cell is kept, and the column shows a cell with a greater cell timestamp.
      Only a table with all versions has this outcome.
    - `REMOVED`: the row has no such cell, and the deletion that removed it is forgotten.
    """

    WON = "won"
    OVERWRITTEN = "overwritten"
    DELETED = "deleted"
    OLDER_VERSION = "older version"
    REMOVED = "removed"


class Delivery(NamedTuple):
    """A change and the order position of this delivery."""

    change: DataChange
    position: OrderPosition


@dataclass(frozen=True, slots=True)
class SetEntry:
    """An entry that sets a cell. `order` is unique within the row.

    `lost_to` is the order of the entry that it lost to. None: it won, or that entry is not known.
    """

    order: Annotated[AsText[ChangeOrder], Named("entry")]
    entry: Hidden[SetCell]
    outcome: Outcome
    lost_to: AsText[ChangeOrder] | None

    @property
    def value(self) -> Shown[bytes]:
        """The value that it writes."""
        return self.entry.value

    @property
    def cell_timestamp(self) -> Shown[Time]:
        """The timestamp of the cell that it writes (µs)."""
        return self.entry.cell_timestamp


@dataclass(frozen=True, slots=True)
class ColumnHistory:
    """The entries that set the cells of one column, the oldest first.

    - `column` is its name, or `ROW_MARK`. None: the table has no column for these cells.
    - `winner` is the cell that gives the column its value. None: the column has no value. The
      change of the winner may not be in `entries`: it may have left the changelog.
    """

    column: str | None
    family: str
    qualifier: bytes
    winner: Hidden[Cell | None]
    entries: tuple[SetEntry, ...]

    @property
    def value(self) -> Shown[bytes | None]:
        """The value that the column shows."""
        return self.winner and self.winner.value

    @property
    def won_by(self) -> Shown[AsText[ChangeOrder] | None]:
        """The entry that gives the column its value."""
        return self.winner and self.winner.order


@dataclass(frozen=True, slots=True)
class Deletion:
    """A deletion in the history of the row. `order` is that of the newest entry with it, and
    `hides` is the number of older entries that it covers.
    """

    order: Annotated[AsText[ChangeOrder], Named("entry")]
    tombstone: Hidden[Tombstone]
    hides: int

    @property
    def entry(self) -> Annotated[Json, Mark.SHOWN, Mark.FLAT]:
        """The entry of a change that makes this deletion, in the form of the JSON view."""
        family, qualifier, start, end = self.tombstone
        if qualifier is None:
            return view_of_entry(DeleteFamily(family))
        return view_of_entry(DeleteCells(family, qualifier, start, end))


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a row is as it is: the columns that an entry set or that have a value, by family and
    qualifier, and the deletions, the oldest first.
    """

    columns: tuple[ColumnHistory, ...]
    deletions: tuple[Deletion, ...]


class _Write(NamedTuple):
    """An entry, alone in a state, with its place in its change."""

    order: ChangeOrder
    entry: Entry
    state: RowState


def explain(
    deliveries: Iterable[Delivery], state: RowState, definition: TableDefinition
) -> Explanation:
    """Name the entry that gives each column its value, and what each other entry lost to.

    Args:
        deliveries: The changes of the row that are known, in any order.
        state: The state of the row. It contains these changes, and may contain others.
        definition: The definition of the table.

    Returns:
        The explanation. The values of the winners are `merge.visible` of `state`.
    """
    # A copy of a replay has the same position, and is the same change (DLQ-10).
    once = {delivery.position: delivery for delivery in deliveries}
    writes = sorted(
        (write for delivery in once.values() for write in _writes(delivery, definition)),
        key=lambda write: write.order,
    )
    tombstones = _tombstones(state, writes)
    winning = {(name.family, name.qualifier): (name, cell) for name, cell in winners(state).items()}
    entries_by_column: dict[Column, list[SetEntry]] = {column: [] for column in winning}
    hides: dict[Tombstone, int] = dict.fromkeys(tombstones, 0)
    for order, entry, alone in writes:
        if not isinstance(entry, SetCell):
            continue
        ((name, cell),) = alone.cells.items()
        column = (name.family, name.qualifier)
        covering = _covering(tombstones, name, cell)
        for tombstone in covering:
            hides[tombstone] += 1
        outcome, lost_to = _outcome(state, winning.get(column), name, order)
        if outcome is Outcome.DELETED:
            lost_to = max((tombstones[tombstone] for tombstone in covering), default=None)
            outcome = Outcome.REMOVED if lost_to is None else outcome
        entries_by_column.setdefault(column, []).append(SetEntry(order, entry, outcome, lost_to))
    names = {column.cell: column.name for column in definition.columns}
    names[definition.presence.cell] = ROW_MARK
    columns = tuple(
        ColumnHistory(
            names.get(column),
            *column,
            winning[column][1] if column in winning else None,
            tuple(entries),
        )
        for column, entries in sorted(entries_by_column.items())
    )
    deletions = (
        Deletion(order, tombstone, hides[tombstone]) for tombstone, order in tombstones.items()
    )
    return Explanation(columns, tuple(sorted(deletions, key=lambda deletion: deletion.order)))


def _outcome(
    state: RowState, winner: tuple[CellName, Cell] | None, name: CellName, order: ChangeOrder
) -> tuple[Outcome, ChangeOrder | None]:
    """The outcome of one entry. `DELETED`: the caller finds the deletion."""
    if winner is not None and winner[1].order == order:
        return Outcome.WON, None
    newest = state.cells.get(name)
    if newest is not None and newest.order > order:
        return Outcome.OVERWRITTEN, newest.order
    if winner is not None and newest is not None and _is_shown(state, name):
        return Outcome.OLDER_VERSION, winner[1].order
    return Outcome.DELETED, None


def _is_shown(state: RowState, name: CellName) -> bool:
    alone = RowState({name: state.cells[name]}, state.tombstones)
    return name in winners(alone)


def _covering(
    tombstones: dict[Tombstone, ChangeOrder], name: CellName, cell: Cell
) -> list[Tombstone]:
    """The known deletions that are newer than a cell and cover it, by the rule of the merge."""
    return [
        tombstone
        for tombstone, order in tombstones.items()
        if not winners(RowState({name: cell}, {tombstone: order}))
    ]


def _tombstones(state: RowState, writes: Iterable[_Write]) -> dict[Tombstone, ChangeOrder]:
    """The deletions of a state, and those of entries that a state without superfluous deletions
    does not have.
    """
    joined = state
    for write in writes:
        joined = join(joined, RowState({}, write.state.tombstones))
    return dict(joined.tombstones)


def _writes(delivery: Delivery, definition: TableDefinition) -> Iterable[_Write]:
    """Each entry of a change, lifted alone and moved to its place in the change."""
    change, position = delivery
    order_by, versions = definition.order, definition.versions
    for index, entry in enumerate(change.entries):
        order = change_order(change, position, order_by, index)
        alone = lift(replace(change, entries=(entry,)), position, order_by, versions)
        yield _Write(
            order,
            entry,
            RowState(
                {name: cell._replace(order=order) for name, cell in alone.cells.items()},
                dict.fromkeys(alone.tombstones, order),
            ),
        )
