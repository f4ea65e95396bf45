"""What a change would do to a row as it stands, and the change that would do the same today (DLQ-10, DLQ-13).

A late change of long ago takes its place among what is remembered of the row: it wins against older cells, loses against newer ones,
and against deletions that are not forgotten. Whatever it would show in the end, a new change can say with today's order: the
*difference*. It is worked out from what is known now; what is deleted and forgotten may come back.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING

from connector.records.model import MAX_LONG, DataChange, DeleteCells, SetCell
from connector.tables.definition import TableDefinition
from connector.tables.merge import join, lift, shown, visible
from connector.tables.row import row_of

if TYPE_CHECKING:
    from connector.records.model import Entry
    from connector.records.ordering import OrderPosition
    from connector.tables.merge import RowState


class Effect(StrEnum):
    """What readers would see of it."""

    INSERTED = "inserted"
    CHANGED = "changed"
    DELETED = "deleted"
    IGNORED = "ignored"


def effect(definition: TableDefinition, before: RowState, change: DataChange, position: OrderPosition) -> Effect:
    """What a change at that position would do to its row in a table. The table must be able to read it (`tables.read_change`)."""
    after = join(before, lift(change, position, definition.order, definition.versions))
    was, is_ = (row_of(definition, change.row_key, visible(state)) for state in (before, after))
    if was == is_:
        return Effect.IGNORED
    return Effect.INSERTED if was is None else Effect.DELETED if is_ is None else Effect.CHANGED


def difference(definition: TableDefinition, before: RowState, change: DataChange, position: OrderPosition) -> tuple[Entry, ...]:
    """The entries of a newer change that makes of the row what this change would; none if that changes nothing."""
    after = shown(join(before, lift(change, position, definition.order, definition.versions)))
    was = shown(before)
    entries: list[Entry] = []
    for name in sorted(was.keys() - after.keys()):
        at = name.cell_timestamp
        start, end = (0, 0) if at is None else (at, at + 1 if at < MAX_LONG else 0)
        entries.append(DeleteCells(name.family, name.qualifier, start, end))
    for name, cell in sorted(after.items()):
        if name not in was or was[name].value != cell.value:
            assert cell.value is not None, name
            entries.append(SetCell(name.family, name.qualifier, cell.value, cell.cell_timestamp))
    return tuple(entries)


def as_of_today(change: DataChange, entries: tuple[Entry, ...], low_watermark: int) -> DataChange:
    """The change that says `entries` of the same row, dated by the low watermark: below it nothing is merged any more, above it others are.

    Of several of one row the last to be forced wins. It claims nothing of its stream partition. In a table that is ordered by number, the
    number of the change decides, as before.
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
    )
