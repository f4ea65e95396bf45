"""RUN-7: how long Kafka keeps the records that ingest lacks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from connector.reports.headroom import DAY_US, Headroom, least

S = 1_000_000
TIMES = st.integers(0, 10**15)
RETENTIONS = st.integers(1000, 7 * DAY_US)
HEADROOMS = st.builds(
    lambda number, at, retention: Headroom(number, 7, at, at + retention),
    *(st.integers(0, 9), TIMES, RETENTIONS),
)


@given(HEADROOMS, st.integers(0, 8 * DAY_US), st.integers(0, DAY_US))
def test_it_only_shrinks_and_once_low_stays_low(first: Headroom, after: int, more: int) -> None:
    """The clock is an argument. It is never below 0, and a record is low before it is deleted."""
    now = first.arrived_at + after
    assert 0 <= first.left_s(now + more) <= first.left_s(now)
    assert first.is_low(now) <= first.is_low(now + more)
    assert not first.is_low(first.arrived_at), "a record that has just arrived"
    assert first.is_low(first.deleted_at)


@given(HEADROOMS, st.integers(0, 8 * DAY_US))
def test_a_day_is_the_limit_of_a_retention_of_two_days_or_more(it: Headroom, after: int) -> None:
    now = it.arrived_at + after
    if it.deleted_at - it.arrived_at >= 2 * DAY_US:
        assert it.is_low(now) == (it.deleted_at - now < DAY_US)
    else:
        assert it.is_low(now) <= (it.deleted_at - now < DAY_US)


@given(st.lists(HEADROOMS), TIMES)
def test_if_any_is_low_the_least_of_the_low_ones_is_the_first_to_go(
    headrooms: list[Headroom], now: int
) -> None:
    low = [it for it in headrooms if it.is_low(now)]
    first = least(low)
    assert (first is None) == (not low)
    assert first is None or all(first.deleted_at <= it.deleted_at for it in low)


def test_the_text_names_the_record_and_the_time() -> None:
    text = Headroom(2, 17, 0, 9000 * S).describe(0)
    assert "lacks in 2h30m (offset 17 of Kafka partition 2)" in text
