"""What a producer announces, and when (WMK-6, REC-17); tests/property/test_watermark_laws.py has
what readers make of it.
"""

from __future__ import annotations

import pytest

from connector.records.model import (
    ChildPartition,
    ChildPartitions,
    DataChange,
    DeleteFamily,
    Heartbeat,
    Record,
)
from connector.watermarks.advance import advance
from connector.watermarks.frontier import (
    UNKNOWN,
    BatchClaims,
    LineageRecord,
)
from connector.watermarks.lineage import COMPLETE_AFTER, Announcements

NOW = 1_000_000
RETENTION = 1000


def change(name: str, at: int) -> DataChange:
    return DataChange(
        stream_partition=name,
        table="t",
        row_key=b"k",
        commit_timestamp=at,
        entries=(DeleteFamily("f"),),
    )


def announcement(root: str, at: int, *live: str, sequence: int = 0) -> ChildPartitions:
    return ChildPartitions(root, at, sequence, tuple(ChildPartition(name) for name in live))


def ends(reporter: str, at: int, *children: str, parents: tuple[str, ...] = ()) -> ChildPartitions:
    return ChildPartitions(
        reporter, at, 0, tuple(ChildPartition(name, parents or (reporter,)) for name in children)
    )


def sends(announcements: Announcements, *records: Record, now: int = NOW) -> list[ChildPartitions]:
    """What is announced before and between these records."""
    due = []
    for record in records:
        due += announcements.due(record, now)
        if isinstance(record, ChildPartitions):
            announcements.sent(record, now)
    return due


def again(announcements: Announcements, now: int = NOW + RETENTION) -> list[ChildPartitions]:
    """What is announced the next time, by somebody who is known."""
    return announcements.due(announcement("nobody", 1), now)


def test_a_stream_partition_is_announced_as_a_root_before_its_first_record() -> None:
    """WMK-6."""
    announcements = Announcements(RETENTION)
    assert sends(announcements, change("p", 50), change("p", 60), Heartbeat("p", 70)) == [
        announcement("p", 49, "p")
    ]
    assert sends(announcements, Heartbeat("q", 20)) == [announcement("q", 19, "q")]


@pytest.mark.parametrize("first", [change("p", 1), change("p", NOW + 2), Heartbeat("p", 1)])
def test_an_announcement_is_dated_by_a_time_that_is_surely_over(first: Record) -> None:
    """REC-15: a time ahead of the clock may be a mistake; announced at the beginning of time, it
    ends no stream partition.
    """
    assert sends(Announcements(RETENTION), first) == [announcement("p", 1, "p")]


def test_all_are_announced_again_as_of_the_time_that_all_have_reached() -> None:
    """WMK-6, WMK-7: the end of a parent names its child, and the child replaces its parent."""
    announcements = Announcements(RETENTION)
    sends(announcements, change("p", 50), ends("p", 60, "a", "b"))
    assert sends(announcements, change("a", 90), change("b", 80), Heartbeat("b", 85)) == []
    assert again(announcements) == [announcement("p", 84, "a", "b")]


def test_announcements_of_a_root_never_go_back() -> None:
    """WMK-6: with nothing new from the source it is the same announcement."""
    announcements = Announcements(RETENTION)
    sends(announcements, announcement("root", 100, "a", "b", sequence=7), change("a", 400))
    assert again(announcements) == [announcement("root", 100, "a", "b", sequence=7)]
    sends(announcements, change("b", 300), now=NOW + RETENTION)
    assert again(announcements, NOW + 2 * RETENTION) == [announcement("root", 299, "a", "b")]


def test_at_least_four_times_in_the_retention() -> None:
    """WMK-6."""
    announcements = Announcements(RETENTION)
    sends(announcements, change("p", 50))
    told = [
        now
        for now in range(NOW, NOW + 5 * RETENTION, RETENTION // 25)
        if announcements.due(change("p", now), now)
    ]
    assert all(
        len([at for at in told if begin < at <= begin + RETENTION]) >= 4
        for begin in range(NOW, NOW + 4 * RETENTION, 10)
    )
    assert len(told) < 5 * 6


def test_a_stream_partition_that_the_caller_announces_is_not_announced_again() -> None:
    """WMK-6."""
    announcements = Announcements(RETENTION)
    assert (
        sends(announcements, announcement("root", 40, "p", "q"), change("p", 50), change("q", 60))
        == []
    )
    assert sends(announcements, announcement("root", 70, "q"), change("q", 90)) == []
    assert again(announcements) == [announcement("root", 70, "q")], "a part may still come"
    assert announcements.complete(NOW)
    assert again(announcements) == [announcement("root", 89, "q")]


def test_an_older_announcement_of_the_caller_changes_nothing() -> None:
    announcements = Announcements(RETENTION)
    assert (
        sends(
            announcements,
            announcement("root", 40, "p"),
            announcement("root", 30, "q"),
            announcement("root", 30),
        )
        == []
    )
    assert sends(announcements, change("q", 50)) == [announcement("q", 49, "q")]
    assert again(announcements) == [announcement("root", 40, "p"), announcement("q", 49, "q")]


@pytest.mark.parametrize("is_repeated", [False, True])
def test_records_of_one_start_timestamp_are_one_announcement(is_repeated: bool) -> None:
    """WMK-6: a repetition between two parts ends no stream partition."""
    announcements = Announcements(RETENTION)
    parts = [announcement("root", 40, "p", "q"), announcement("root", 40, "r", sequence=1)]
    sends(announcements, *parts, *(change(name, 60) for name in "pqr"))
    assert again(announcements) == [announcement("root", 59, "p", "q", "r")]
    sends(announcements, announcement("root", 70, "p", "q"), now=NOW + RETENTION)
    if is_repeated:
        announcements.again_soon()
    due = sends(announcements, announcement("root", 70, "r", sequence=1), now=NOW + RETENTION)
    assert due == [announcement("root", 70, "p", "q")] * is_repeated
    assert announcements.live() == ["p", "q", "r"]
    sends(announcements, *(change(name, 90) for name in "pqr"), now=NOW + RETENTION)
    assert again(announcements, NOW + 2 * RETENTION) == [announcement("root", 89, "p", "q", "r")]


@pytest.mark.parametrize("is_automatic", [True, False])
@pytest.mark.parametrize("between", [Heartbeat("p", 75), change("p", 75), Heartbeat("r", 75)])
def test_a_record_between_two_parts_ends_no_stream_partition(
    between: Record, is_automatic: bool
) -> None:
    """WMK-6, PUB-1: also a heartbeat of the timer, however long the second part waits for it."""
    announcements = Announcements(RETENTION)
    sends(announcements, announcement("root", 40, "p", "q", "r"))
    sends(announcements, announcement("root", 70, "p", "q"))
    now = NOW + (10 * COMPLETE_AFTER if is_automatic else COMPLETE_AFTER - 1)
    announcements.again_soon()
    assert announcements.due(between, now, is_automatic=is_automatic) == [
        announcement("root", 70, "p", "q")
    ]
    sends(announcements, announcement("root", 70, "r", sequence=1), now=now)
    announcements.complete(now)
    assert announcements.live() == ["p", "q", "r"]
    sends(announcements, *(change(name, 90) for name in "pqr"), now=now)
    assert announcements.repeated(now) == [announcement("root", 89, "p", "q", "r")]


def test_an_omitted_stream_partition_ends_when_all_parts_are_sent() -> None:
    """WMK-6: then a later announcement omits it, too, or the caller sends something else a minute
    later.
    """
    for last, after in (
        (announcement("root", 80, "p"), 0),
        (announcement("root", 80), 0),
        (Heartbeat("p", 80), COMPLETE_AFTER),
        (change("x", 80), COMPLETE_AFTER),
    ):
        announcements = Announcements(RETENTION)
        sends(announcements, announcement("root", 40, "p", "q"), announcement("root", 70, "p"))
        assert announcements.ended_by(announcement("root", 80, "p")) == {"q"}
        assert not announcements.has_ended("q")
        sends(announcements, last, now=NOW + after)
        assert announcements.has_ended("q")


@pytest.mark.parametrize("how", ["sends", "reached", "flush"])
def test_a_reader_ends_a_stream_partition_that_an_announcement_omits(how: str) -> None:
    """WMK-6: soon, and without a second announcement of the caller."""
    announcements, announced_names = Announcements(7 * 24 * 3600 * 1_000_000), UNKNOWN
    names = ("p", "q", "r")
    records = [announcement("root", NOW, *names), announcement("root", NOW + 50, "p", "q")]
    for record in records:
        records = [*announcements.due(record, NOW + 60), record]
        announcements.sent(record, NOW + 60)
        batch = BatchClaims(1, lineage=tuple(LineageRecord(0, 1, one) for one in records))
        announced_names = advance(announced_names, batch, now=0)
    assert sorted(announced_names.live) == [*names]
    later = NOW + 60 + COMPLETE_AFTER
    if how == "flush":
        later = NOW + 60
        announcements.complete(later)
    elif how == "reached":
        announcements.complete(later, COMPLETE_AFTER)
    due = announcements.due(Heartbeat("p", NOW + 90), later, is_automatic=how != "sends")
    assert due == [announcement("root", NOW + 51, "p", "q")]
    batch = BatchClaims(
        1,
        {name: {0: NOW + 80} for name in ("p", "q")},
        tuple(LineageRecord(0, 1, one) for one in due),
    )
    announced_names = advance(announced_names, batch, now=0)
    assert announced_names.low_watermark == NOW + 80
    assert sorted(announced_names.live) == ["p", "q"]
    assert announcements.due(Heartbeat("p", NOW + 95), later) == [], "it is said once"


def test_a_new_producer_does_not_omit_the_siblings() -> None:
    """WMK-6: a process that knows of a child only, split off before its time."""
    announcements = Announcements(RETENTION)
    assert sends(announcements, change("a", 80)) == [announcement("a", 79, "a")]
    assert sends(announcements, ends("a", 90, "c", "d"), change("c", 95)) == []
    assert again(announcements) == [announcement("a", 90, "c", "d")]


def test_an_end_announces_the_ended_stream_partitions_and_not_the_reporter() -> None:
    """WMK-7: the reporter of an end need not be a stream partition, and readers would
    wait for an announced name that is not a stream partition.
    """
    announcements = Announcements(RETENTION)
    assert sends(announcements, ends("coordinator", 90, "c", parents=("a", "b"))) == [
        announcement("a", 89, "a"),
        announcement("b", 89, "b"),
    ]
    assert again(announcements) == [announcement("a", 90, "c"), announcement("b", 90, "c")]


def test_a_merge_ends_the_parent_that_reports_it() -> None:
    """WMK-7."""
    announcements = Announcements(RETENTION)
    sends(announcements, change("a", 50), change("b", 50), ends("a", 60, "c", parents=("a", "b")))
    assert again(announcements) == [announcement("a", 60, "c"), announcement("b", 49, "b")]
    sends(announcements, ends("b", 60, "c", parents=("a", "b")), now=NOW + RETENTION)
    assert again(announcements, NOW + 2 * RETENTION) == [
        announcement("a", 60, "c"),
        announcement("b", 60, "c"),
    ]


def test_a_parent_whose_end_comes_after_that_of_its_child_has_its_descendants() -> None:
    """A source that is read again from several places tells of ends in another order."""
    announcements = Announcements(RETENTION)
    sends(
        announcements, change("a", 80), ends("a", 90, "c"), change("p", 50), ends("p", 60, "a", "b")
    )
    assert again(announcements) == [announcement("a", 90, "c"), announcement("p", 60, "a", "b")]
    sends(announcements, change("b", 101), change("c", 111), now=NOW + RETENTION)
    assert again(announcements, NOW + 2 * RETENTION) == [
        announcement("a", 110, "c"),
        announcement("p", 100, "b", "c"),
    ]


def test_an_announcement_names_the_stream_partitions_that_were_live_at_its_time() -> None:
    """`watermark_is_honest`: a child that is named before it began would be ended by another
    process that speaks of the time between.
    """
    announcements = Announcements(RETENTION)
    sends(
        announcements,
        announcement("root", 10, "a", "b"),
        change("a", 18),
        ends("b", 28, "c", "d"),
        Heartbeat("c", 30),
    )
    assert again(announcements) == [announcement("root", 17, "a", "b")]
    sends(announcements, change("a", 40), change("d", 50), now=NOW + RETENTION)
    assert again(announcements, NOW + 2 * RETENTION) == [announcement("root", 29, "a", "c", "d")]


def test_an_outdated_announcement_is_repeated_soon() -> None:
    """WMK-6: a new reader waits for the end of each stream partition that an outdated announcement
    names.
    """
    retention = 1_000_000
    announcements = Announcements(retention)
    sends(
        announcements,
        announcement("root", 10, "a", "b"),
        announcement("other", 10, "x"),
        ends("b", 28, "c"),
    )
    stale = [announcement("root", 10, "a", "b"), announcement("other", 10, "x")]
    assert again(announcements, NOW + retention) == stale
    assert again(announcements, NOW + retention + 999) == []
    assert again(announcements, NOW + retention + 1000) == stale[:1], "the other one is current"
    sends(announcements, change("a", 40), now=NOW + retention + 1000)
    assert again(announcements, NOW + retention + 2000) == [announcement("root", 28, "a", "c")]
    assert again(announcements, NOW + retention + 3000) == []


def test_a_stream_partition_with_live_descendants_is_not_forgotten() -> None:
    """WMK-6: a silent sibling keeps the announcement's time back, and with it those who are over
    since.
    """
    announcements = Announcements(RETENTION)
    sends(announcements, announcement("root", 10, "a", "b"), ends("b", 28, "c"), ends("c", 30, "d"))
    for number in range(1, 5):
        assert again(announcements, NOW + number * RETENTION) == [
            announcement("root", 10, "a", "b")
        ]
    sends(announcements, change("a", 40), now=NOW + 5 * RETENTION)
    assert again(announcements, NOW + 6 * RETENTION) == [announcement("root", 30, "a", "d")]


def test_known_key_ranges_are_announced() -> None:
    """WMK-9."""
    announcements = Announcements(RETENTION)
    children = (ChildPartition("a", ("p",), None, b"m"), ChildPartition("b", ("p",), b"m"))
    sends(announcements, change("p", 50), ChildPartitions("p", 60, 0, children))
    assert [child.start_key for child in again(announcements)[0].children] == [None, b"m"]
    assert [child.end_key for child in again(announcements, NOW + 2 * RETENTION)[0].children] == [
        b"m",
        None,
    ]


def test_open_key_ranges_are_announced_as_they_came() -> None:
    """ING-5: an empty end is the end of the key space."""
    announcements = Announcements(RETENTION)
    sends(
        announcements,
        change("p", 50),
        ChildPartitions("p", 60, 0, (ChildPartition("a", ("p",), b"", b""),)),
    )
    assert again(announcements)[0].children == (ChildPartition("a", (), b"", b""),)


def test_an_ended_stream_partition_is_forgotten_after_the_retention() -> None:
    """WMK-6: until then a reader may have read the beginning in one Kafka partition, and not the
    end in another.
    """
    announcements = Announcements(RETENTION)
    sends(
        announcements, change("p", 50), announcement("p", 60), change("q", 10), ends("q", 20, "r")
    )
    still = [announcement("p", 60), announcement("q", 20, "r")]
    assert [again(announcements, NOW + number * RETENTION) for number in (1, 2, 3)] == [
        still,
        still,
        still[1:],
    ]
    assert sends(announcements, Heartbeat("p", 95), now=NOW + 3 * RETENTION) == [
        announcement("p", 94, "p")
    ], "a name that comes back"


def test_a_copy_knows_nothing_of_what_came_later() -> None:
    announcements = Announcements(RETENTION)
    sends(announcements, change("p", 50))
    before = announcements.copy()
    sends(announcements, ends("p", 60, "a"), change("q", 70))
    assert again(before) == [announcement("p", 49, "p")]
