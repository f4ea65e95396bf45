"""The rules of releases, one by one (WRS-17, WRS-18, WRS-20). Their laws are in
`tests/property/test_release_laws.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from connector.records.model import OffsetRange, Release
from connector.state.stream_progress import BatchCounts, Progress, StreamRules
from connector.watermarks.freshness import EndOffsets
from connector.watermarks.frontier import UNKNOWN
from connector.write_streams.releases import (
    NO_RELEASES,
    ReleasedRange,
    ReleaseProgress,
    StagedStream,
    Withheld,
)

C = 100
END = {0: 10, 1: 10}
PART = {0: 10, 1: 9}
NO_NEWS = None


def release(at: int, *ranges: tuple[str, int, int], by: str = "p") -> Release:
    return Release(by, at, tuple(OffsetRange(*one) for one in ranges))


def logged(
    before: ReleaseProgress,
    *releases: Release,
    batch: int = 1,
    staged: tuple[str, ...] = (),
    low: int | None = None,
    rows_end: Mapping[int, int] = END,
) -> ReleaseProgress:
    return before.logged(batch, 1000 + batch, staged, releases, rows_end, low)


def after(
    logged: ReleaseProgress,
    completed_progress: Mapping[int, int] | None,
    *,
    batch: int = 1,
    end: Mapping[int, int] = END,
    horizon: int | None = None,
) -> tuple[ReleaseProgress, list[ReleasedRange]]:
    return logged.completed(batch, completed_progress, end, horizon)


def waiting_for_a_row() -> ReleaseProgress:
    """Rows 0 to 9 of `w/a` at C. Nine of them are there, and the batch ended before the end
    offsets.
    """
    known = logged(NO_RELEASES, release(C, ("w/a", 0, 10)), staged=("w/a",), rows_end=END)
    return after(known, {0: 9}, end=PART)[0]


def all_visible() -> ReleaseProgress:
    """Rows 0 to 9 of `w/a`, released at C."""
    return after(waiting_for_a_row(), {0: 10}, batch=2)[0]


def withheld(releases: ReleaseProgress) -> list[Withheld]:
    return [one.withheld for one in releases.open]


def test_a_release_is_visible_once_all_its_offsets_are_there() -> None:
    """WRS-18: with the first batch of the rows, so that reads find them."""
    before = waiting_for_a_row()
    assert (withheld(before), before.is_waiting) == ([Withheld.NO], True)
    assert before.first_batch() == 1
    known = logged(before, batch=2, staged=("w/a",))
    complete, ranges = after(known, {0: 10}, batch=2)
    assert ranges == [ReleasedRange("w/a", 0, 10, C, 1, "p")]
    assert (complete.open, complete.released_to, complete.is_waiting) == ((), 2, False)
    assert complete.streams == {"w/a": StagedStream(1, 1002, ((0, 10),), C)}
    assert complete.first_batch() is None


def test_copies_are_one_release() -> None:
    """WRS-17: in one batch, in later ones, and after it was complete. The first copy decides
    since when it waits and for what.
    """
    copy = release(C, ("w/a", 0, 10))
    first = logged(NO_RELEASES, copy, copy, staged=("w/a",), rows_end=END)
    assert len(first.open) == 1
    second = logged(first, copy, batch=2, rows_end={0: 99, 1: 99}, low=C + 1)
    assert second.open == first.open
    complete, _ = after(second, {0: 10}, batch=2)
    third = logged(complete, copy, batch=3)
    assert (third, third.repeated) == (complete, 0)


def test_a_row_is_released_once_and_repeated_releases_are_counted_once() -> None:
    """WRS-18: a release without a new row is counted, and its later copies are not."""
    again = release(C + 1, ("w/a", 2, 5))
    known = all_visible()
    for batch in (3, 4):
        known, ranges = after(logged(known, again, batch=batch), {}, batch=batch)
        assert (ranges, known.open, known.repeated) == ([], (), 1)


def test_copies_of_a_release_that_was_released_in_part_before_are_not_counted() -> None:
    copy = release(C + 1, ("w/a", 0, 10), ("w/b", 0, 1))
    known, ranges = after(logged(all_visible(), copy, batch=3, staged=("w/b",)), {0: 1}, batch=3)
    assert ranges == [ReleasedRange("w/b", 0, 1, C + 1, 3, "p")]
    assert logged(known, copy, batch=4).repeated == 0


def test_releases_that_overlap_release_the_rest() -> None:
    """WRS-18: in one batch, the rows get the smaller commit timestamp."""
    one, other = release(C, ("w/a", 2, 4)), release(C + 1, ("w/a", 0, 6))
    inside = release(C + 2, ("w/a", 3, 5))
    known = logged(NO_RELEASES, inside, other, one, staged=("w/a",))
    assert [open_.commit_timestamp for open_ in known.open] == [C, C + 1, C + 2]
    complete, ranges = after(known, {0: 2, 1: 6, 2: 2})
    assert ranges == [
        ReleasedRange("w/a", 2, 4, C, 1, "p"),
        ReleasedRange("w/a", 0, 2, C + 1, 1, "p"),
        ReleasedRange("w/a", 4, 6, C + 1, 1, "p"),
    ]
    assert complete.streams["w/a"].released == ((0, 6),)
    assert (complete.open, complete.repeated) == ((), 1)


def test_rows_that_were_released_before_are_not_wanted_again() -> None:
    """WRS-18: the count is that of the remaining offsets."""
    first, _ = after(logged(NO_RELEASES, release(C, ("w/a", 2, 4)), staged=("w/a",)), {0: 2})
    known = logged(first, release(C + 1, ("w/a", 0, 6)), batch=2)
    assert known.wanted() == [[OffsetRange("w/a", 0, 2), OffsetRange("w/a", 4, 6)]]
    assert after(known, {0: 3}, batch=2)[1] == []
    assert len(after(known, {0: 4}, batch=2)[1]) == 2


def test_it_is_withheld_once_the_end_offsets_were_read() -> None:
    """WRS-18: only then a row that is absent was rejected. A batch without rows shows it, too."""
    known = waiting_for_a_row()
    assert withheld(after(known, {0: 9}, batch=2, end=PART)[0]) == [Withheld.NO]
    assert withheld(after(known, NO_NEWS, batch=2, end=PART)[0]) == [Withheld.NO]
    for completed_progress in ({0: 9}, NO_NEWS):
        rejected, ranges = after(known, completed_progress, batch=2)
        assert (withheld(rejected), ranges) == ([Withheld.ROWS], [])
        assert not rejected.is_waiting
        replayed, ranges = after(logged(rejected, batch=3, staged=("w/a",)), {0: 10}, batch=3)
        assert (replayed.open, [one.upto for one in ranges]) == ((), [10])


def test_an_operator_releases_the_rows_that_are_there() -> None:
    """WRS-18: without_rejected waits until the end offsets were read, like all releases."""
    known = waiting_for_a_row()
    known = replace(known, open=(replace(known.open[0], without_rejected=True),))
    early, ranges = after(known, {0: 9}, batch=2, end=PART)
    assert (withheld(early), ranges) == ([Withheld.NO], [])
    done, ranges = after(known, {0: 9}, batch=2)
    assert ranges == [ReleasedRange("w/a", 0, 10, C, 1, "p")]
    assert done.open == ()


def test_all_rows_of_a_write_stream_may_be_rejected() -> None:
    """WRS-18: the changelog does not know the write stream."""
    known = logged(NO_RELEASES, release(C, ("w/a", 0, 1)))
    assert known.first_batch() is None
    assert withheld(after(known, {})[0]) == [Withheld.ROWS]
    known = replace(known, open=(replace(known.open[0], without_rejected=True),))
    assert after(known, {}, batch=4)[1] == [ReleasedRange("w/a", 0, 1, C, 4, "p")]


@pytest.mark.parametrize(("horizon", "is_visible"), [(C, True), (C + 1, False), (None, True)])
def test_the_batch_that_completes_it_checks_the_horizon(
    horizon: int | None, is_visible: bool
) -> None:
    """WRS-20: it stays withheld if it is too late then."""
    known, ranges = after(waiting_for_a_row(), {0: 10}, batch=2, horizon=horizon)
    assert bool(ranges) == is_visible
    assert withheld(known) == ([] if is_visible else [Withheld.TOO_LATE])
    again, ranges = after(known, {0: 10}, batch=3, horizon=horizon)
    assert (again, ranges) == (known, [])


def test_the_cut_waits_for_a_release() -> None:
    """WRS-18: changes below its commit timestamp are complete. The cut never is above the low
    watermark.
    """
    known = waiting_for_a_row()
    assert [known.waits_below(low) for low in (C - 1, C, C + 1)] == [C - 1, C, C]
    assert all_visible().waits_below(C + 1) == C + 1
    rejected, _ = after(known, NO_NEWS, batch=2)
    assert rejected.waits_below(C + 1) == C + 1, "a dead letter holds no cut"


@pytest.mark.parametrize(("low", "is_late"), [(None, False), (C, False), (C + 1, True)])
def test_a_late_release_holds_no_cut(low: int | None, is_late: bool) -> None:
    """WRS-18, WMK-11: the cut has passed it already. It waits for its rows like the others."""
    known = logged(NO_RELEASES, release(C, ("w/a", 0, 10)), staged=("w/a",), low=low)
    known, _ = after(known, {0: 9}, end=PART)
    assert known.waits_below(C + 1) == (C + 1 if is_late else C)
    assert known.is_waiting


def test_releases_of_one_time_and_one_set_of_rows_have_one_order() -> None:
    """WRS-17: a batch that runs again has the same progress."""
    by = [release(C, ("w/a", 0, 1), by=name) for name in "abcdefgh"]
    known = logged(NO_RELEASES, *reversed(by), staged=("w/a",))
    assert [one.stream_partition for one in known.open] == ["a"]


@pytest.mark.parametrize("open_", [waiting_for_a_row(), all_visible(), NO_RELEASES])
def test_progress_with_releases_is_read_back(open_: ReleaseProgress) -> None:
    """WRS-17, TBL-5: as JSON, with open, complete, and no releases."""
    progress = Progress(staged=10, releases=open_)
    stored = json.loads(json.dumps(progress.to_json()))
    assert Progress.from_json(stored, UNKNOWN) == progress


def test_a_stream_without_write_streams_stores_nothing_of_them() -> None:
    """WRS-17."""
    stored = Progress().to_json()
    assert not {"staged", "releases"} & stored.keys()
    assert Progress.from_json(stored, UNKNOWN).releases == NO_RELEASES


def test_a_state_is_not_fresh_while_a_release_waits() -> None:
    """WRS-18, TBL-16: an incomplete release is a change that is lacking. A withheld one is not."""

    def progress(releases: ReleaseProgress) -> Progress:
        asked = EndOffsets(500, PART)
        counts = BatchCounts(staged=9)
        return Progress().after(1, counts, PART, asked, StreamRules(), releases=releases)

    waiting = progress(waiting_for_a_row())
    assert waiting.freshness.time_of(1) is None
    assert waiting.refreshed(PART, EndOffsets(600, PART)).freshness.time_of(1) is None
    rejected, _ = after(waiting_for_a_row(), NO_NEWS)
    assert progress(rejected).freshness.time_of(1) == 500
