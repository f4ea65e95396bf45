"""How far tables are without a commit (ENG-7)."""

from __future__ import annotations

from dataclasses import asdict, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.state.positions import (
    COMMIT_AFTER_US,
    Position,
    from_text,
    position_after,
    to_text,
)
from connector.state.table_state import TableState

BEFORE = TableState(
    apply_number=4,
    attempt_id="a",
    to_batch=7,
    changelog_id="c",
    merged=9,
    apply_watermark=50,
    target_watermark=50,
    complete_to_batch=6,
)
AFTER = replace(
    BEFORE,
    apply_number=5,
    attempt_id="b",
    to_batch=9,
    complete_to_batch=9,
    apply_watermark=80,
    target_watermark=80,
    as_of=200,
    horizon=20,
)
POSITION = replace(Position.at(AFTER), attempt_id="a")


def test_an_apply_without_changes_is_a_position_of_the_apply_before() -> None:
    """ENG-7: readers get the state that a commit would have stored, with the apply before."""
    assert position_after(BEFORE, AFTER, committed_at=0, now=5) == POSITION
    expected = replace(AFTER, apply_number=4, attempt_id="a")
    assert POSITION.of_newest(BEFORE) == expected


@pytest.mark.parametrize(
    ("committed_at", "now", "is_position"),
    [
        (0, COMMIT_AFTER_US - 1, True),
        (0, COMMIT_AFTER_US, False),
        (COMMIT_AFTER_US, 5, True),
        (10 * COMMIT_AFTER_US, 5, False),  # the clock was ahead
    ],
)
def test_a_position_becomes_a_commit_in_the_end(
    committed_at: int, now: int, *, is_position: bool
) -> None:
    """ENG-7: every ten minutes, so that the changelog can lose rows."""
    assert (position_after(BEFORE, AFTER, committed_at, now) is not None) == is_position


_OTHERS = [field.name for field in fields(TableState) if field.name not in asdict(POSITION)]


@given(st.from_type(TableState), st.from_type(TableState))
def test_only_what_a_position_holds_may_differ(before: TableState, other: TableState) -> None:
    """ENG-7, nothing_lost: a state with other rows, letters or deletes is a commit."""
    position = position_after(before, other, committed_at=0, now=0)
    differing = {name for name in _OTHERS if getattr(before, name) != getattr(other, name)}
    if differing - {"apply_number"} or not before.apply_number:
        assert position is None
    moved = replace(other, **{name: getattr(before, name) for name in _OTHERS})
    position = position_after(before, moved, committed_at=0, now=0)
    assert (position is None) == (not before.apply_number or moved.to_batch <= before.to_batch)
    if position is not None:
        assert position.of_newest(before) == replace(moved, attempt_id=before.attempt_id)


def test_the_newer_one_of_commit_and_position_counts() -> None:
    """ENG-7: also where the file is old, or of another table."""
    for committed in (
        replace(BEFORE, attempt_id="another apply"),
        replace(BEFORE, to_batch=9, complete_to_batch=8),
        replace(BEFORE, to_batch=10),
    ):
        assert POSITION.of_newest(committed) == committed


@given(st.dictionaries(st.text(), st.from_type(Position), max_size=3))
def test_positions_are_read_as_they_were_written(positions: dict[str, Position]) -> None:
    assert from_text(to_text(positions)) == positions


@pytest.mark.parametrize("length", [0, 1, -1, -9])
def test_a_file_that_is_missing_or_damaged_has_no_positions(length: int) -> None:
    """ENG-7: a table then looks older than it is."""
    assert from_text(None) == {}
    assert from_text(to_text({"t": POSITION})[:length]) == {}
    assert from_text(to_text({"t": POSITION}).replace('"to_batch":9', '"to_batch":99')) == {}
