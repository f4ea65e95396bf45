"""A limit for a second holds in every second, without bursts (PUB-7)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from connector.state.pace import SMOOTH_S, RateLimit

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
