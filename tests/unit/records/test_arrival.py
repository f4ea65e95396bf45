"""The rule for times of arrival (REC-25). A test of Spark compares it with its twin there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.records.model import MAX_TIMESTAMP
from connector.validation import EARLIEST_ARRIVAL, MAX_AHEAD_US, arrival

READ_AT = 1_795_653_500_413_362
LONG = st.integers(-(2**63), 2**63 - 1)
ABSURD_MS = {
    "none": -1,
    "zero": 0,
    "negative": -62_135_596_800_001,
    "seconds": READ_AT // 1_000_000,
    "microseconds": READ_AT,
    "nanoseconds": READ_AT * 1000,
    "far future": READ_AT // 1000 + 10**11,
    "greatest": 2**63 - 1,
    "least": -(2**63),
}


@pytest.mark.parametrize("milliseconds", ABSURD_MS.values(), ids=ABSURD_MS)
def test_an_absurd_time_is_not_believed(milliseconds: int) -> None:
    """REC-25: a number that a client wrote in another unit, or for no time at all."""
    assert arrival(milliseconds, by_broker=False, read_at=READ_AT) is None


@given(LONG, st.booleans())
def test_a_time_that_is_believed_is_possible(milliseconds: int, by_broker: bool) -> None:
    """REC-25: it is the record timestamp, and every later step can compute with it."""
    found = arrival(milliseconds, by_broker=by_broker, read_at=READ_AT)
    assert found in (None, milliseconds * 1000)
    assert found is None or EARLIEST_ARRIVAL <= found <= MAX_TIMESTAMP
    assert found is None or by_broker or found <= READ_AT + MAX_AHEAD_US


@given(st.integers(EARLIEST_ARRIVAL // 1000, (READ_AT + MAX_AHEAD_US) // 1000), st.booleans())
def test_a_possible_time_is_believed(milliseconds: int, by_broker: bool) -> None:
    """REC-25: also a minute ahead, because clocks differ."""
    assert arrival(milliseconds, by_broker=by_broker, read_at=READ_AT) == milliseconds * 1000


def test_the_clock_of_a_broker_may_be_ahead() -> None:
    """REC-25: a reader whose clock is an hour behind believes the brokers."""
    ahead = READ_AT // 1000 + 3_600_000
    assert arrival(ahead, by_broker=True, read_at=READ_AT) == ahead * 1000
    assert arrival(ahead, by_broker=False, read_at=READ_AT) is None
