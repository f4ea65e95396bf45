"""How old a state is (TBL-16); the laws are in tests/property/test_freshness_laws.py."""

from __future__ import annotations

from connector.freshness import MAX_CONTAINED, NONE_ASKED, Asked, Moments


def test_a_moment_counts_once_all_that_had_arrived_is_read() -> None:
    """TBL-16: by high watermarks, of every Kafka partition, also of those that were added since."""
    first = NONE_ASKED.after(1, {0: 5}, Asked(100, {0: 5}))
    assert (first.of(1), first.behind, first.of(0)) == (100, 0, None)
    behind = first.after(2, {0: 7}, Asked(200, {0: 9, 1: 1}))
    assert (behind.of(2), behind.behind, behind.newest) == (100, 3, 200)
    reached = behind.after(3, {0: 9, 1: 1}, Asked(300, {0: 10, 1: 1}))
    assert (reached.of(3), reached.of(2), reached.behind) == (200, 100, 1)


def test_an_older_state_keeps_its_moment_as_long_as_it_is_remembered() -> None:
    """TBL-16"""
    moments = NONE_ASKED
    for batch in range(1, MAX_CONTAINED + 3):
        moments = moments.after(batch, {0: batch}, Asked(batch * 10, {0: batch}))
    assert moments.of(MAX_CONTAINED + 2) == (MAX_CONTAINED + 2) * 10
    assert moments.of(3) == 30
    assert moments.of(2) is None
    assert Moments.from_json(moments.to_json()) == moments
