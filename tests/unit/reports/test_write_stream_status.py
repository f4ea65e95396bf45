"""The status of write streams: the catalog joined with what ingest knows (WRS-18, WRS-21, WRS-23),
and the doubles and gaps that an audit counts.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.config.settings import StreamConfig
from connector.records.model import ChildPartition, ChildPartitions, OffsetRange, Release
from connector.reports.audit import Range, Run, WriteStreamAudit, faulty, warnings_of
from connector.reports.stream_status import stream_status
from connector.reports.table_status import table_status
from connector.reports.write_stream_status import (
    dead_sessions,
    release_report,
    release_status,
    write_stream_statuses,
)
from connector.state.stream_progress import Progress
from connector.state.table_state import TableState
from connector.watermarks.advance import advance
from connector.watermarks.frontier import (
    UNKNOWN,
    BatchClaims,
    LineageRecord,
)
from connector.write_streams.model import (
    Catalog,
    LastAppend,
    SessionEntry,
    StreamEntry,
    StreamKind,
    StreamState,
)
from connector.write_streams.releases import NO_RELEASES, ReleaseProgress, ReleaseRows, Withheld
from tests.unit.reports.test_status import TABLE

S = 1_000_000
NOW = 1_000 * S
DAY = 86_400 * S
C = 100


def withheld(reason: Withheld = Withheld.ROWS) -> ReleaseProgress:
    """Rows 0 to 9 of `w/a` at C, read 60 s ago. One was rejected, or all are too late."""
    release = Release("p", C, (OffsetRange("w/a", 0, 10),))
    known = NO_RELEASES.logged(1, NOW - 60 * S, ("w/a", "w/b"), (release,), {0: 5}, C + 1)
    horizon, rows = (None, 9) if reason is Withheld.ROWS else (C + 1, 10)
    return known.completed(1, {0: rows}, {0: 5}, horizon)[0]


def test_a_write_stream_has_its_catalog_record_and_its_state_in_ingest() -> None:
    """WRS-21, WRS-23: an expired one is one without an append for the staging retention."""
    last = LastAppend(0, 10, "d", NOW)
    streams = {
        "w/a": StreamEntry(StreamKind.PENDING, end=10, changed_at=NOW, last=last),
        "w/old": StreamEntry(StreamKind.BUFFERED, end=4, flushed=2, changed_at=1),
        "w/done": StreamEntry(StreamKind.COMMITTED, StreamState.FINALIZED, 5, changed_at=1),
    }
    now = NOW + DAY - 1
    first, done, old = write_stream_statuses(Catalog(streams=streams), withheld(), now, DAY)
    assert (first.name, first.state, first.last_append) == ("w/a", "open", NOW)
    assert (first.first_batch, first.released_rows) == (1, 0)
    assert [one.withheld for one in first.releases] == [Withheld.ROWS]
    assert first.expires_at == NOW + DAY
    assert (old.state, old.first_batch, old.releases) == ("expired", None, ())
    assert (done.state, done.expires_at) == ("finalized", None)
    assert done.released_rows is done.to_json()["released_rows"] is None
    assert first.to_json() == {
        "write_stream": "w/a",
        "kind": "pending",
        "state": "open",
        "end": 10,
        "flushed": None,
        "last_append": "1970-01-01T00:16:40.000000Z",
        "expires_at": "1970-01-02T00:16:40.000000Z",
        "commit_timestamp": None,
        "first_batch": 1,
        "released_rows": 0,
        "releases": [first.releases[0].to_json()],
    }


def test_released_rows_are_counted() -> None:
    """WRS-19, WRS-23"""
    release = Release("p", C, (OffsetRange("w/a", 0, 4),))
    known = NO_RELEASES.logged(1, NOW, ("w/a",), (release,), {0: 5}, None)
    known, _ = known.completed(1, {0: 4}, {0: 5}, None)
    streams = {"w/a": StreamEntry(StreamKind.BUFFERED, end=10, flushed=4, changed_at=NOW)}
    (status,) = write_stream_statuses(Catalog(streams=streams), known, NOW, DAY)
    assert (status.released_rows, status.releases) == (4, ())
    assert known.released_rows == 4
    assert (
        "10 staged rows ingested, 4 released" in dict(release_report(10, known).facts(NOW)).values()
    )
    assert release_report(10, known).to_json()["released_rows"] == 4


def test_a_session_that_died_is_named_if_it_delays_the_low_watermark() -> None:
    """WRS-10: only once its stream partition is stalled, with what can be finalized."""
    name = "write-session/job/1"
    announced = ChildPartitions(name, 1, 0, (ChildPartition(name),))
    lineage = (LineageRecord(0, 0, announced),)
    heard = BatchClaims(1, {name: {0: 50}}, lineage)
    frontier = advance(UNKNOWN, heard, now=NOW, horizon=None, roots=frozenset(), ends=[])
    catalog = Catalog(
        streams={"job/a": StreamEntry(StreamKind.COMMITTED), "job2/b": StreamEntry("committed")},  # type: ignore[arg-type]
        sessions={
            "job": SessionEntry("o", 1, (name,)),
            "job2": SessionEntry("o", 1),
        },
    )
    assert dead_sessions(catalog, frontier, NOW + 299 * S, 300 * S) == []
    (found,) = dead_sessions(catalog, frontier, NOW + 301 * S, 300 * S)
    assert (found.name, found.stream_partition, found.since) == ("job", name, NOW)
    assert found.write_streams == ("job/a",)


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [(Withheld.ROWS, "without the rejected rows"), (Withheld.TOO_LATE, "release it again")],
)
def test_the_status_shows_a_withheld_release_like_open_dead_letters(
    reason: Withheld, remedy: str
) -> None:
    """WRS-18, DLQ-7: since when, why, and what helps. Neither stream nor table is complete."""
    progress = Progress(ingest_batch=1, staged=10, releases=withheld(reason))
    status = stream_status(StreamConfig(name="s", topic="s", stall_after_s=300), progress, NOW)
    (hint,) = [one for one in status.hints if "withheld" in one]
    assert "w/a" in hint
    assert "for 1m" in hint
    assert remedy in hint
    shown = status.to_json()["write_streams"]
    assert [one["withheld"] for one in shown["releases"]] == [str(reason)]
    assert (shown["staged_rows"], shown["late_releases"]) == (10, 1)
    assert shown["unreleased"] == ["w/a", "w/b"]
    facts = dict(release_report(10, progress.releases).facts(NOW))
    assert "nothing is released of w/a, w/b" in facts["write streams"]
    assert "1 late release" in facts["write streams"]
    assert "for 1m" in facts["withheld"]


def test_a_table_is_not_complete_without_a_withheld_release() -> None:
    """WRS-18, DLQ-7"""
    table = TableState(
        apply_number=1, to_batch=1, complete_to_batch=1, apply_watermark=50, highest_applied=40
    )
    from connector.reports.stream_status import NONE_OPEN

    progress = Progress(ingest_batch=1)

    def status(withheld: int) -> tuple[bool, str]:
        found = table_status(
            TABLE, table, progress, NOW, dead_letters=replace(NONE_OPEN, withheld=withheld)
        )
        return found.is_complete, " ".join(found.hints)

    assert status(0)[0]
    is_complete, hints = status(1)
    assert not is_complete
    assert "1 withheld release" in hints


def test_a_stream_without_write_streams_has_no_line_about_them() -> None:
    assert [*release_report(0, NO_RELEASES).facts(NOW)] == []
    assert release_report(0, NO_RELEASES).hints(NOW) == []
    zeros = ["staged_rows", "released_rows", "late_releases", "repeated_releases", "expired_rows"]
    view: dict[str, object] = dict.fromkeys(zeros, 0)
    assert release_report(0, NO_RELEASES).to_json() == {**view, "unreleased": [], "releases": []}
    nothing = ("write streams", "0 staged rows ingested, 0 released")
    forgotten = ("write streams", "1 staged row ingested, 0 released")
    assert [*release_report(1, NO_RELEASES).facts(NOW)] == [forgotten]
    gone = NO_RELEASES.logged(1, NOW, (), (), {}, None)
    assert [*release_report(0, gone).facts(NOW)] == []
    known = NO_RELEASES.logged(1, NOW, ("w/a",), (), {}, None)
    assert [*release_report(0, known).facts(NOW)] == [
        (nothing[0], nothing[1] + "; nothing is released of w/a")
    ]
    release = Release("p", C, (OffsetRange("w/a", 0, 1),))
    waiting = NO_RELEASES.logged(1, 0, (), (release,), {0: 5}, None)
    assert [*release_report(0, waiting).facts(NOW)] == [
        nothing,
        (
            "incomplete",
            "release of 1970-01-01T00:00:00.000100Z (w/a): ingest has not read all its rows",
        ),
    ]


def test_the_counts_of_releases_are_facts() -> None:
    """WRS-18, WRS-21, WMK-11."""
    known = replace(withheld(), repeated=1, expired=2, late=3, released_rows=1_200)
    (streams, text), (state, of_release) = release_report(1_300, known).facts(NOW)
    assert streams == "write streams"
    assert text == (
        "1,300 staged rows ingested, 1,200 released; nothing is released of w/a, w/b; 3 late"
        " releases; 1 release of rows that were released before; 2 expired rows"
    )
    assert (state, of_release) == (
        "withheld",
        (
            "release of 1970-01-01T00:00:00.000100Z (w/a), for 1m: some of its rows were rejected,"
            " or were never sent"
        ),
    )
    view = release_report(1_300, known).to_json()
    assert (view["staged_rows"], view["released_rows"], view["late_releases"]) == (1_300, 1_200, 3)
    assert (view["repeated_releases"], view["expired_rows"]) == (1, 2)
    assert view["releases"] == [
        {
            "commit_timestamp": "1970-01-01T00:00:00.000100Z",
            "stream_partition": "p",
            "write_streams": ["w/a"],
            "rows": 10,
            "since": "1970-01-01T00:15:40.000000Z",
            "since_batch": 1,
            "withheld": "rows",
            "is_late": True,
            "is_requested": False,
        }
    ]


def test_a_few_releases_are_shown_and_each_reason_has_one_hint() -> None:
    """WRS-18, WRS-20: the oldest commit timestamp of each reason is named."""
    releases = [Release("p", C + n, (OffsetRange("w/a", n, n + 1),)) for n in range(5)]
    known = NO_RELEASES.logged(1, NOW - 60 * S, ("w/a",), releases, {0: 5}, None)
    known, _ = known.completed(1, {3: 1, 4: 1}, {0: 5}, C + 9)
    assert [one.withheld for one in known.open] == [Withheld.ROWS] * 3 + [Withheld.TOO_LATE] * 2
    assert [name for name, _ in release_report(5, known).facts(NOW)] == [
        "write streams",
        *["withheld"] * 3,
    ]
    assert release_report(0, known).hints(NOW) == [
        (
            "3 releases are withheld, that of 1970-01-01T00:00:00.000100Z (w/a), for 1m: some of"
            " its rows were rejected, or were never sent; repair and replay the dead letters, or"
            " release it without the rejected rows"
        ),
        (
            "2 releases are withheld, that of 1970-01-01T00:00:00.000103Z (w/a), for 1m: its commit"
            " timestamp is below the horizon; release it again, with a new commit timestamp"
        ),
    ]
    (one,) = release_report(0, withheld()).hints(NOW)
    assert one.startswith("1 release is withheld, that of")
    waiting = NO_RELEASES.logged(1, NOW, ("w/a",), releases[:1], {0: 5}, None)
    assert release_report(0, waiting).hints(NOW) == []
    assert release_status(waiting.open[0]).remedy == "check that ingest runs"


def test_a_release_with_a_new_commit_timestamp_replaces_the_one_that_was_too_late() -> None:
    """WRS-20: `release --again`. The old one is not open any more. Its copies change nothing."""
    known = withheld(Withheld.TOO_LATE)
    again = Release("q", C + 50, (OffsetRange("w/a", 0, 10),))
    known = known.logged(2, NOW, (), (again,), {0: 6}, C + 1)
    assert len(known.open) == 2
    known, ranges = known.completed(2, {0: 10, 1: 10}, {0: 6}, C + 1)
    assert [(one.first, one.upto, one.commit_timestamp) for one in ranges] == [(0, 10, C + 50)]
    assert known.open == ()
    copy = Release("p", C, (OffsetRange("w/a", 0, 10),))
    later = known.logged(3, NOW, (), (copy,), {0: 7}, C + 1)
    assert (later.open, later.repeated) == ((), known.repeated)


def test_a_request_releases_the_rows_that_are_there() -> None:
    """WRS-18, WRS example 8"""
    known = withheld().requested([ReleaseRows(1, "s", C, "no key", NOW, "ann", "w/a")])
    known, ranges = known.completed(2, {0: 9}, {0: 5}, None)
    assert (known.open, known.requests_to, len(ranges)) == ((), 1, 1)


# ── doubles and gaps ──────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.lists(st.integers(0, 30), max_size=20), max_size=5), st.booleans())
def test_doubles_and_gaps_are_those_of_the_offsets(
    batches: list[list[int]], is_whole: bool
) -> None:
    """WRS-23: against a count of each offset. Batches may repeat offsets of others."""
    found = WriteStreamAudit(is_whole=is_whole)
    for batch in batches:
        counts = {offset: batch.count(offset) for offset in batch}
        found = found.logged(
            Run(offset, offset + 1, times) for offset, times in sorted(counts.items())
        )
    every = [offset for batch in batches for offset in batch]
    assert found.rows == len(every)
    doubled = {offset for offset in every if every.count(offset) > 1}
    assert {o for one in found.doubled for o in range(*one)} == doubled
    first = 0 if is_whole else min(every, default=0)
    gaps = set(range(first, max(every, default=-1) + 1)) - set(every)
    assert {o for one in found.gaps for o in range(*one)} == gaps


def test_write_streams_with_doubles_and_gaps_are_named() -> None:
    found = {
        "w/good": WriteStreamAudit().logged([Run(0, 5, 1)]),
        "w/gap": WriteStreamAudit().logged([Run(0, 5, 1), Run(7, 9, 1)]),
        "w/twice": WriteStreamAudit().logged([Run(0, 3, 2)]),
    }
    assert [*faulty(found)] == ["w/gap", "w/twice"]
    assert found["w/gap"].gaps == (Range(5, 7),)
    assert warnings_of(found) == [
        "3 double offsets in 1 write stream: w/twice",
        "2 missing offsets in 1 write stream: w/gap",
    ]
