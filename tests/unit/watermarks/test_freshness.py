"""How old a state is (TBL-16); the laws are in tests/property/test_freshness_laws.py."""

from __future__ import annotations

from connector.stored import from_stored, to_stored
from connector.watermarks.freshness import (
    MAX_CONTAINED,
    MAX_PENDING,
    NONE_ASKED,
    EndOffsets,
    FreshnessLog,
)


def test_a_moment_counts_once_all_that_had_arrived_is_read() -> None:
    """TBL-16: by high watermarks, of every Kafka partition, also of those that were added since."""
    first = NONE_ASKED.after(1, {0: 5}, EndOffsets(100, {0: 5}))
    assert (first.time_of(1), first.behind, first.time_of(0)) == (100, 0, None)
    behind = first.after(2, {0: 7}, EndOffsets(200, {0: 9, 1: 1}))
    assert (behind.time_of(2), behind.behind, behind.newest) == (100, 3, 200)
    reached = behind.after(3, {0: 9, 1: 1}, EndOffsets(300, {0: 10, 1: 1}))
    assert (reached.time_of(3), reached.time_of(2), reached.behind) == (200, 100, 1)


def test_an_older_state_has_its_freshness_as_long_as_it_is_stored() -> None:
    """TBL-16"""
    freshness = NONE_ASKED
    for batch in range(1, MAX_CONTAINED + 3):
        freshness = freshness.after(batch, {0: batch}, EndOffsets(batch * 10, {0: batch}))
    assert freshness.time_of(MAX_CONTAINED + 2) == (MAX_CONTAINED + 2) * 10
    assert freshness.time_of(3) == 30
    assert freshness.time_of(2) is None
    assert from_stored(FreshnessLog, to_stored(freshness)) == freshness


def test_an_empty_kafka_partition_that_a_batch_does_not_name_lacks_nothing() -> None:
    """TBL-16: it counts as read up to offset 0."""
    empty = NONE_ASKED.after(1, {0: 5}, EndOffsets(100, {0: 5, 1: 0}))
    assert (empty.time_of(1), empty.behind, empty.pending) == (100, 0, ())
    filled = empty.after(2, {0: 5}, EndOffsets(200, {0: 5, 1: 1}))
    assert (filled.time_of(2), filled.behind, filled.newest) == (100, 1, 200)


def test_of_many_times_that_no_batch_has_reached_the_newest_and_some_older_ones_stay() -> None:
    """TBL-16: ingest that lags keeps asking; what it asked is bounded, and whatever it reaches says
    some age, never too young a one.
    """
    freshness = NONE_ASKED
    for asked in range(1, 4 * MAX_PENDING):
        freshness = freshness.after(1, {0: 0}, EndOffsets(asked, {0: asked}))
        assert len(freshness.pending) <= MAX_PENDING
        assert freshness.pending[-1] == EndOffsets(asked, {0: asked})
        assert (freshness.newest, freshness.behind, freshness.time_of(1)) == (asked, asked, None)
    assert len(freshness.pending) >= MAX_PENDING // 2
    for read_to in range(1, 4 * MAX_PENDING):
        reached = freshness.after(2, {0: read_to}, EndOffsets(1_000, {0: 1_000})).time_of(2)
        assert reached == max(asked.at for asked in freshness.pending if asked.at <= read_to)
    assert from_stored(FreshnessLog, to_stored(freshness)) == freshness


def test_sixteen_times_are_stored_before_some_are_dropped() -> None:
    """TBL-16"""
    freshness = NONE_ASKED
    for asked in range(1, MAX_PENDING + 2):
        assert [moment.at for moment in freshness.pending] == list(range(1, asked))
        freshness = freshness.after(1, {0: 0}, EndOffsets(asked, {0: asked}))
    assert (MAX_PENDING, [moment.at for moment in freshness.pending]) == (
        16,
        [1, 3, 5, 7, 9, 11, 13, 15, 17],
    )


def test_ends_that_fell_back_are_not_behind() -> None:
    """OPS-5: a Kafka partition that was read beyond what Kafka tells hides no lag of another
    one.
    """
    assert NONE_ASKED.after(1, {0: 9, 1: 3}, EndOffsets(100, {0: 5, 1: 7})).behind == 4


def test_a_moment_of_a_batch_gives_way_to_a_newer_one_only() -> None:
    """TBL-16: also if a clock went back between two questions."""
    one = NONE_ASKED.after(1, {0: 5}, EndOffsets(200, {0: 5}))
    assert one.after(1, {0: 5}, EndOffsets(300, {0: 5})).contained == ((1, 300),)
    assert one.after(1, {0: 5}, EndOffsets(100, {0: 5})).time_of(1) == 200
