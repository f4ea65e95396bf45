"""What a replay would do to a row, by examples (DLQ-10, DLQ-13)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connector.dead_letters.effect import Effect, at_low_watermark, difference, effect
from connector.records.model import MAX_LONG, DataChange, DeleteCells, ModType, RowImage, SetCell
from connector.records.ordering import OrderBy, OrderPosition
from connector.tables.definition import Column, TableDefinition, Versions
from connector.tables.keys import Key, KeyForm, KeyPart
from connector.tables.merge import EMPTY, RowState, join, lift
from connector.tables.values import DataType
from tests.changes import change, delete_cells, delete_family, put

COLUMNS = (Column("q", "f", b"q", DataType.STRING),)
TABLE = TableDefinition(
    name="t",
    stream="s",
    source="t",
    key=Key((KeyPart("id", DataType.STRING),), KeyForm.ROW_KEY),
    columns=COLUMNS,
)
PLACE = OrderPosition(1, 0, 0)


def known(*changes: DataChange, versions: Versions = Versions.LATEST) -> RowState:
    state = EMPTY
    for number, one in enumerate(changes):
        state = join(state, lift(one, OrderPosition(2, 0, number), OrderBy.COMMIT, versions))
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
def test_the_effect_is_what_readers_would_see(
    before: RowState, late: DataChange, expected: Effect
) -> None:
    assert effect(TABLE, before, late, PLACE) is expected


def test_the_difference_says_only_what_would_change() -> None:
    """DLQ-13: what a newer change wrote stays; the new change claims nothing of its stream
    partition.
    """
    before = known(
        change(put("kept", qualifier=b"a"), at=9),
        change(put("old", qualifier=b"b"), put("gone", qualifier=b"c"), at=3),
    )
    late = change(
        delete_family(),
        put("late", qualifier=b"a"),
        put("late", qualifier=b"b", cell_timestamp=4),
        at=5,
        resume_token=b"r",
    )
    entries = difference(TABLE, before, late, PLACE)
    assert entries == (DeleteCells("f", b"c"), SetCell("f", b"b", b"late", 4))
    today = at_low_watermark(late, entries, 70)
    assert (
        today.commit_timestamp,
        today.row_key,
        today.resume_token,
        today.estimated_low_watermark,
    ) == (70, late.row_key, b"", 0)


def test_the_difference_of_a_table_with_all_versions_deletes_only_removed_versions() -> None:
    """DLQ-13: each by its own cell timestamp; behind the greatest one there is no end."""
    table = replace(TABLE, versions=Versions.ALL)
    puts = (
        put("a", cell_timestamp=3),
        put("b", cell_timestamp=4),
        put("c", cell_timestamp=5),
        put("d", cell_timestamp=MAX_LONG),
    )
    before = known(change(*puts, at=3), versions=Versions.ALL)
    late = change(
        delete_cells(4, 5), delete_cells(6, 0), put("b", qualifier=b"r", cell_timestamp=9), at=5
    )
    assert difference(table, before, late, PLACE) == (
        DeleteCells("f", b"q", 4, 5),
        DeleteCells("f", b"q", MAX_LONG, 0),
        SetCell("f", b"r", b"b", 9),
    )


def test_a_value_that_the_row_has_is_not_repeated() -> None:
    """DLQ-13: nothing changes, so nothing is to be said."""
    before = known(change(put("same"), at=3))
    assert difference(TABLE, before, change(put("same"), at=5), PLACE) == ()
    assert difference(TABLE, before, change(put("other"), at=5), PLACE) == (
        SetCell("f", b"q", b"other", 0),
    )
    assert difference(TABLE, before, change(put("other"), at=2), PLACE) == ()


def test_the_change_of_today_keeps_what_names_the_row_and_drops_what_dates_it() -> None:
    """DLQ-13: the number of a table that is ordered by it stays."""
    image = RowImage(
        mod_type=ModType.UPDATE, value_capture_type="NEW_ROW", column_types=(), old_cells=()
    )
    dated = {
        "tie_breaker": 3,
        "estimated_low_watermark": 4,
        "resume_token": b"r",
        "record_sequence": 6,
        "row_image": image,
    }
    late = change(put("x"), at=5, row_key=b"k", change_sequence_number="FF", **dated)  # type: ignore[arg-type]
    entries = (SetCell("f", b"q", b"y"),)
    assert at_low_watermark(late, entries, 70) == change(
        *entries, at=70, row_key=b"k", change_sequence_number="FF"
    )
