"""Whether an apply replaces single rows or rewrites buckets (TBL-13)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.state.apply_level import MANY_CHANGES, MIN_BYTES, is_row_level
from connector.state.maintenance_schedule import DataFile

ROW_BYTES = 35


def table(rows: int, marked: int = 0, row_bytes: int = ROW_BYTES) -> list[DataFile]:
    """A bucket in two files, and rows that are marked as deleted in the first one."""
    first, second = rows // 2 + marked, rows - rows // 2
    return [
        DataFile("0", first * row_bytes, first, marked),
        DataFile("0", second * row_bytes, second),
    ]


@pytest.mark.parametrize(
    ("changes", "files", "is_row_by_row"),
    [
        (1, table(200_000), True),
        (27_377, table(200_000), True),
        (65_336, table(200_000), True),
        (100_000, table(200_000), True),
        (100_001, table(200_000), False),
        (100_001, table(200_000, marked=100_000), False),
        (100_001, table(200_000, row_bytes=10_000), False),
        (1, table(20_000), False),
        (1, table(20_000, row_bytes=100), True),
        (1, [], False),
        (MANY_CHANGES, None, True),
        (MANY_CHANGES + 1, None, False),
        (MANY_CHANGES + 1, table(100_000_000), False),
    ],
)
def test_rows_changed_are_compared_with_rows_that_a_rewrite_would_write(
    changes: int, files: list[DataFile] | None, *, is_row_by_row: bool
) -> None:
    """TBL-13: neither the size of a row nor a row that is marked as deleted counts. A small table
    is rewritten.
    """
    assert is_row_level(changes, files) is is_row_by_row


@given(st.integers(0, 2 * MANY_CHANGES), st.integers(0, 300_000), st.integers(1, 10_000))
def test_more_changes_never_make_it_row_level(changes: int, rows: int, row_bytes: int) -> None:
    """TBL-13: and a row-level apply leaves at least as many rows as it marks."""
    files = table(rows, row_bytes=row_bytes)
    if is_row_level(changes, files):
        assert is_row_level(changes // 2, files)
        assert changes <= rows - changes
        assert sum(file.size for file in files) >= MIN_BYTES


@given(st.integers(25, 3_000), st.integers(0, 60), st.integers(50_000, 1_000_000))
def test_a_table_that_fell_behind_catches_up(per_s: int, behind_s: int, rows: int) -> None:
    """TBL-13: an apply takes longer, the more it must write. Whatever it does, fewer changes wait
    after it than before, as long as the machine is fast enough for one way of applying them.
    """
    fixed_s, row_s = 1.0, 0.00005
    waiting = per_s * (behind_s + 1)
    for _ in range(400):
        level = is_row_level(waiting, table(rows))
        written = waiting if level else rows + waiting
        took = fixed_s + written * row_s
        waiting = int(per_s * max(1.0, took))
    assert is_row_level(waiting, table(rows)), waiting
