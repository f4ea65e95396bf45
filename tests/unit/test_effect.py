"""What a replay would do to a row, by examples (DLQ-10, DLQ-13)."""

from __future__ import annotations

import pytest

from connector.effect import Effect, as_of_today, difference, effect
from connector.merge import EMPTY, RowState, join, lift
from connector.model import DataChange, DeleteCells, SetCell
from connector.ordering import OrderBy, OrderPosition
from connector.tables import Column, Key, KeyPart, TableDefinition, Versions
from connector.values import ColumnType
from tests.changes import change, delete_family, put

COLUMNS = (Column("q", "f", b"q", ColumnType.STRING),)
TABLE = TableDefinition(name="t", stream="s", source="t", key=Key((KeyPart("id", ColumnType.STRING),)), columns=COLUMNS)
PLACE = OrderPosition(1, 0, 0)


def known(*changes: DataChange) -> RowState:
    state = EMPTY
    for number, one in enumerate(changes):
        state = join(state, lift(one, OrderPosition(2, 0, number), OrderBy.COMMIT, Versions.LATEST))
    return state


@pytest.mark.parametrize(
    ("before", "late", "expected"),
    [
        (EMPTY, change(at=5), Effect.INSERTED),
        (known(change(put("old"), at=3)), change(at=5), Effect.CHANGED),
        (known(change(put("new"), at=7)), change(at=5), Effect.IGNORED),
        (known(change(put("5"), at=3)), change(put("5"), at=5), Effect.IGNORED),
        (known(change(put("old"), at=3)), change(delete_family(), at=5), Effect.DELETED),
        (known(change(delete_family(), at=7)), change(at=5), Effect.IGNORED),
    ],
)
def test_the_effect_is_what_readers_would_see(before: RowState, late: DataChange, expected: Effect) -> None:
    assert effect(TABLE, before, late, PLACE) is expected


def test_the_difference_says_only_what_would_change() -> None:
    """DLQ-13: what a newer change wrote stays; the new change claims nothing of its stream partition."""
    before = known(change(put("kept", qualifier=b"a"), at=9), change(put("old", qualifier=b"b"), put("gone", qualifier=b"c"), at=3))
    late = change(delete_family(), put("late", qualifier=b"a"), put("late", qualifier=b"b", cell_timestamp=4), at=5, resume_token=b"r")
    entries = difference(TABLE, before, late, PLACE)
    assert entries == (DeleteCells("f", b"c"), SetCell("f", b"b", b"late", 4))
    today = as_of_today(late, entries, 70)
    assert (today.commit_timestamp, today.row_key, today.resume_token, today.estimated_low_watermark) == (70, late.row_key, b"", 0)
