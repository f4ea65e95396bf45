"""When maintenance is due (TBL-15)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from connector.upkeep import CLEAN_EVERY, COMPACT_EVERY, COMPACT_TABLE_EVERY, Mark

HOUR = 3_600_000_000


def test_files_are_put_together_every_hundred_commits_and_removed_every_ten_at_the_earliest() -> None:
    """TBL-15: at the multiples, and for removal on another day (UTC)."""
    assert [number for number in range(1, 301) if Mark(number - 1, 0).compacts(Mark(number, 0))] == [100, 200, 300]
    assert [number for number in range(1, 61) if Mark(number - 1, 0).compacts(Mark(number, 0), COMPACT_TABLE_EVERY)] == [25, 50]
    day = 24 * HOUR
    assert [number for number in range(31) if Mark(9, day - 1).cleans(Mark(number, day))] == list(range(10, 31))
    assert not Mark(9, day).cleans(Mark(30, 2 * day - 1))


def test_nothing_is_due_where_nothing_happened() -> None:
    stood = Mark(COMPACT_EVERY, 0)
    assert not stood.compacts(Mark(COMPACT_EVERY, 1000 * HOUR))
    assert not stood.cleans(Mark(COMPACT_EVERY, 1000 * HOUR))


@given(st.lists(st.integers(1, 30), min_size=1, max_size=300))
def test_files_are_put_together_once_in_a_hundred_commits_however_many_processes_make_them(steps: list[int]) -> None:
    number = times = 0
    for step in steps:
        times += Mark(number, 0).compacts(Mark(number + step, 0))
        number += step
    assert times == number // COMPACT_EVERY


def test_old_files_are_removed_once_a_day() -> None:
    last, times = Mark(0, 0), 0
    for number in range(1, 24 * 10 * CLEAN_EVERY):
        after = Mark(number, number * HOUR // CLEAN_EVERY)
        if last.cleans(after):
            last, times = after, times + 1
    assert times == 9
