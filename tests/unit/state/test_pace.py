"""When tables are applied, on a clock that is moved by hand (JOB-2); the laws are in
tests/property/test_pace_laws.py.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.errors import ConfigError
from connector.state.pace import (
    APPLY_EVERY_S,
    MIN_APPLY_EVERY_S,
    SMOOTH_S,
    ApplySchedule,
    RateLimit,
    check_rate,
    pace_s,
)

PACES = {"fast": 5.0, "slow": 60.0}


def applied(schedule: ApplySchedule, *names: str) -> None:
    for name in names:
        schedule.ended(name, applied=True)


def test_the_pace_is_what_is_set_or_a_quarter_of_the_bound() -> None:
    """JOB-2: at least a quarter of a second; 0 is no bound."""
    assert pace_s(None, 600) == 150
    assert pace_s(None, 5) == 1.25
    assert pace_s(3600, 600) == 3600
    assert pace_s(7, None) == 7
    assert (pace_s(None, None), pace_s(None, 0)) == (APPLY_EVERY_S, APPLY_EVERY_S)
    assert pace_s(None, 1) == MIN_APPLY_EVERY_S


def test_a_pace_counts_from_start_to_start() -> None:
    """JOB-2: what an apply takes is part of it; one that takes longer is followed by the next at
    once.
    """
    schedule = ApplySchedule()
    assert schedule.take({"t": 10.0}, 100, 1) == ("t",)
    assert schedule.take({"t": 10.0}, 200, 2) == (), "it is at work"
    assert schedule.ready_at({"t": 10.0}) == math.inf
    applied(schedule, "t")
    assert schedule.ready_at({"t": 10.0}) == 110
    assert schedule.take({"t": 10.0}, 109.9, 3) == ()
    assert schedule.take({"t": 10.0}, 110, 3) == ("t",)
    applied(schedule, "t")
    assert schedule.take({"t": 10.0}, 135, 4) == ("t",)


@pytest.mark.parametrize("moves_every", [1, 2, 5, 30])
def test_all_tables_reach_the_cut_of_the_longest_pace(moves_every: int) -> None:
    """JOB-2, TBL-10: also if batches come while the low watermark does not move."""
    schedule, paces, at = ApplySchedule(), {"fast": 1.0, "slow": 47.3}, dict[str, object]()
    slow = common = 0
    for number in range(24_000):
        now = number / 10
        batch = int(now)
        cut = batch // moves_every
        if now < schedule.ready_at(paces):
            continue
        taken = schedule.take(paces, now, cut, batch)
        for name in taken:
            at[name] = cut, batch
            schedule.ended(name, applied=True)
        if "slow" in taken:
            slow += 1
            common += at["fast"] == at["slow"]
    assert slow == common >= 2400 // (47.3 + moves_every)


def test_a_table_rests_after_a_small_apply() -> None:
    """JOB-2: three times its length from start to start, within twice the pace; a large apply is
    one of Spark, and needs no rest.
    """
    schedule, paces, started = ApplySchedule(), {"t": 1.0}, 100.0
    for number, (lasted, gap) in enumerate(((0.1, 1.0), (0.5, 1.5), (9.0, 2.0), (0.0, 1.0))):
        assert schedule.take(paces, started, number) == ("t",)
        schedule.ended("t", applied=True, lasted=lasted)
        assert schedule.ready_at(paces) == started + gap
        assert schedule.take(paces, started + gap - 0.01, number + 1) == ()
        started += gap


def test_a_short_pace_applies_its_table_alone_and_the_longest_applies_all() -> None:
    """JOB-2, TBL-10: all go to the cut of the table with the longest pace."""
    schedule = ApplySchedule()
    assert schedule.take(PACES, 0, 0) == ("fast", "slow")
    applied(schedule, "fast", "slow")
    for at in range(5, 60, 5):
        assert schedule.take(PACES, at, at) == ("fast",)
        applied(schedule, "fast")
    assert schedule.take(PACES, 59, 59) == ()
    assert schedule.take(PACES, 61, 61) == (
        "fast",
        "slow",
    ), "though the fast one was not due for itself"


def test_tables_with_the_same_pace_are_applied_together() -> None:
    """TBL-10: whenever they began, from the first of them that is due on."""
    schedule, paces = ApplySchedule(), {"one": 10.0, "other": 10.0}
    schedule.take({"one": 10.0}, 0, 0)
    applied(schedule, "one")
    schedule.take({"other": 10.0}, 5, 5)
    applied(schedule, "other")
    assert schedule.take(paces, 10, 10) == ("one", "other")


def test_a_long_apply_delays_no_other_table() -> None:
    """JOB-2: others go on at their pace while it is at work."""
    schedule = ApplySchedule()
    assert schedule.take(PACES, 0, 0) == ("fast", "slow")
    applied(schedule, "fast")
    assert schedule.take(PACES, 5, 5) == ("fast",)
    applied(schedule, "fast")
    schedule.ended("slow", applied=True)
    assert schedule.take(PACES, 61, 61) == ("fast", "slow")


def test_a_table_without_changes_is_applied_with_the_next_cut() -> None:
    """JOB-2: its time has passed; new changes do not wait for another one."""
    schedule = ApplySchedule()
    schedule.take(PACES, 0, 0)
    schedule.ended("fast", applied=True)
    schedule.ended("slow", applied=False)
    assert schedule.take(PACES, 1, 0) == (), "nothing is new"
    assert schedule.take(PACES, 2, 1) == ("fast", "slow")


def test_a_table_at_the_cut_is_checked_again_after_its_pace() -> None:
    """DLQ-3: rows may wait for a letter that is discarded, which no batch tells."""
    schedule = ApplySchedule()
    schedule.take({"t": 10.0}, 0, 0)
    applied(schedule, "t")
    assert schedule.take({"t": 10.0}, 9, 0) == ()
    assert schedule.take({"t": 10.0}, 10, 0) == ("t",)
    schedule.ended("t", applied=False)
    assert schedule.take({"t": 10.0}, 19, 0) == ()
    assert schedule.take({"t": 10.0}, 20, 0) == ("t",)


def test_a_table_at_the_cut_of_another_batch_waits_for_twice_its_pace() -> None:
    """JOB-2: only the batch is new, not the cut."""
    schedule = ApplySchedule()
    schedule.take({"t": 4.0}, 0, 0, 1)
    applied(schedule, "t")
    assert schedule.take({"t": 4.0}, 7.9, 0, 1) == ()
    assert schedule.take({"t": 4.0}, 7.9, 0, 2) == ()
    assert schedule.take({"t": 4.0}, 8, 0, 1) == (), "nothing is new"
    assert schedule.take({"t": 4.0}, 8, 0, 2) == ("t",)


def test_a_pace_that_is_set_meanwhile_counts_at_once() -> None:
    """JOB-2, TBL-20: from the start of the last apply, too."""
    schedule = ApplySchedule()
    schedule.take({"t": 3600.0}, 0, 0)
    applied(schedule, "t")
    assert schedule.ready_at({"t": 3600.0}) > 30
    assert schedule.ready_at({"t": 30.0}) <= 30


RATES = st.floats(0.5, 5000)
PAUSES = st.lists(st.floats(0, 3) | st.just(0.0), min_size=1, max_size=300)


@given(RATES, PAUSES, st.integers(1, 5))
def test_no_second_has_more_actions_than_the_limit(
    per_second: float, pauses: list[float], count: int
) -> None:
    """PUB-7: also after a pause, which is not made up for."""
    limit, now = RateLimit(per_second), 1000.0
    taken: list[float] = []
    for pause in pauses:
        now += pause
        now += limit.wait_s(now, count)
        taken.append(now)
    for first in range(len(taken)):
        within = sum(count for at in taken[first:] if at < taken[first] + 1)
        assert within <= per_second * (1 + SMOOTH_S) + count


@given(RATES, st.integers(2, 300))
def test_a_busy_program_gets_the_whole_rate(per_second: float, number: int) -> None:
    """PUB-7: the waits are no longer than the limit needs."""
    limit, now = RateLimit(per_second), 0.0
    for _ in range(number):
        now += limit.wait_s(now)
    assert now <= (number - 1) / per_second + 1e-6
    assert now > (number - 1) / per_second - SMOOTH_S - 1e-6


def test_actions_are_grouped_by_a_tenth_of_a_second() -> None:
    """PUB-7: a replay sends so many dead letters in a transaction."""
    assert [RateLimit(rate).at_once for rate in (0.5, 9, 50, 20_000)] == [1, 1, 5, 2000]


@pytest.mark.parametrize("per_second", [None, 0.001, 1, 1_000_000])
def test_a_rate_within_the_limits_is_allowed(per_second: float | None) -> None:
    """PUB-7: None is no limit."""
    check_rate(per_second)


@pytest.mark.parametrize("per_second", [-1, 0, 0.000_999, 1_000_000.1, math.inf, math.nan])
def test_a_rate_beyond_the_limits_is_refused(per_second: float) -> None:
    """PUB-7."""
    with pytest.raises(ConfigError, match=r"max_changes_per_s.*from 0\.001 to 1,000,000, or None"):
        check_rate(per_second)
