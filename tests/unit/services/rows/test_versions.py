"""SUB-6: which changes a version of a table has."""

from __future__ import annotations

import pytest

from connector.dead_letters.blocked_rows import BlockingLetter
from connector.lake.changelog_changes import Arrival, LoggedChange
from connector.records.ordering import OrderPosition
from connector.records.rejection import Position
from connector.services.rows.versions import blocking, is_applied
from connector.state.table_state import TableState
from tests.changes import change

CUT = TableState(to_batch=5, complete_to_batch=3, apply_watermark=50)


def logged(batch: int, at: int, offset: int = 1) -> LoggedChange:
    arrival = Arrival(Position("orders", "id-1", 0, offset), batch, 1_000)
    return LoggedChange(arrival, change(at=at, row_key=b"a"), OrderPosition(batch, 0, offset))


@pytest.mark.parametrize(
    ("batch", "at", "has"),
    [(3, 99, True), (4, 49, True), (4, 50, False), (5, 1, True), (6, 1, False)],
)
def test_a_version_has_the_changes_below_its_cut(batch: int, at: int, has: bool) -> None:
    """TBL-10: whole batches, and of later ones what is below the watermark."""
    assert CUT.covers(batch, at) is has
    assert is_applied(CUT, logged(batch, at)) is has


def test_without_a_watermark_a_version_has_whole_batches() -> None:
    """TBL-11"""
    assert is_applied(TableState(to_batch=5, complete_to_batch=5), logged(5, 99))
    assert not is_applied(TableState(to_batch=5, complete_to_batch=4), logged(5, 1))


def test_a_change_waits_for_an_earlier_dead_letter_of_its_row() -> None:
    """DLQ-3: later changes of the same row, also below the cut."""
    dead = BlockingLetter(b"a", 2, (0, 7), 2, (0, 7), table_letter=False, since=1)
    state = TableState(to_batch=5, complete_to_batch=5, blocked_rows=(dead,))
    assert blocking(state, logged(3, 10)) == dead
    assert not is_applied(state, logged(3, 10))
    assert is_applied(state, logged(2, 10, offset=6)), "it came before"
    assert is_applied(state, logged(1, 10))
