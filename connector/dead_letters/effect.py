"""The effect of a change on a row, and a new change with the same effect (DLQ-10, DLQ-13).

A late change would get its place in the order of the row: it would win against older cells, and
lose against newer cells and against deletes that are not forgotten. A new change can have the same
visible result with a new order: the *difference*. It is computed from the current state. A person
publishes it. Data that was deleted and forgotten may appear again.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING

from connector.records.model import MAX_LONG, DataChange, DeleteCells, SetCell
from connector.tables.definition import TableDefinition
from connector.tables.merge import join, shown, truncate, visible
from connector.tables.row import is_same_row, row_of, state_of

if TYPE_CHECKING:
    from connector.records.model import Entry
    from connector.records.ordering import OrderPosition, Rank
    from connector.tables.merge import RowState


class Effect(StrEnum):
    """The effect that readers see."""

    INSERTED = "inserted"
    CHANGED = "changed"
    DELETED = "deleted"
    IGNORED = "ignored"


def effect(
    definition: TableDefinition,
    before: RowState,
    change: DataChange,
    position: OrderPosition,
    truncated: Rank | None = None,
) -> Effect:
    """Return the effect of a change at this order position on its row. `before` is canonical, and
    `truncated` is the rank of the greatest truncation of the table (EVO-13).

    The table must be able to read the change (`tables.row.read_change`).
    """
    after = join(before, truncate(state_of(definition, [(change, position)]), truncated))
    was, is_ = (row_of(definition, change.row_key, visible(state)) for state in (before, after))
    if is_same_row(was, is_):
        return Effect.IGNORED
    return Effect.INSERTED if was is None else Effect.DELETED if is_ is None else Effect.CHANGED


def difference(
    definition: TableDefinition,
    before: RowState,
    change: DataChange,
    position: OrderPosition,
    truncated: Rank | None = None,
) -> tuple[Entry, ...]:
    """Return the entries of a new change with the same visible result. They are empty if nothing
    changes. `before` is canonical. Values keep the bytes that they have in `change`, because other
    tables may read them as another type.
    """
    after = shown(join(before, truncate(state_of(definition, [(change, position)]), truncated)))
    was = shown(before)
    entries: list[Entry] = []
    for name in sorted(was.keys() - after.keys()):
        at = name.cell_timestamp
        start, end = (0, 0) if at is None else (at, at + 1 if at < MAX_LONG else 0)
        entries.append(DeleteCells(name.family, name.qualifier, start, end))
    for name, cell in sorted(after.items()):
        if name not in was or was[name].value != cell.value:
            entry = change.entries[cell.order.entry_index]
            assert isinstance(entry, SetCell), (name, entry)
            entries.append(SetCell(name.family, name.qualifier, entry.value, cell.cell_timestamp))
    return tuple(entries)


def at_low_watermark(
    change: DataChange, entries: tuple[Entry, ...], low_watermark: int
) -> DataChange:
    """Return the change with these entries and the low watermark as its commit timestamp.

    No further changes below the low watermark are expected, and changes above it still win. The
    change makes no claim for its stream partition. In a table ordered by sequence number, the
    sequence number of the change still decides.
    """
    return replace(
        change,
        entries=entries,
        commit_timestamp=low_watermark,
        tie_breaker=0,
        estimated_low_watermark=0,
        resume_token=b"",
        transaction=None,
        row_image=None,
        write_stream=None,
    )
