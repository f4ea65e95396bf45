"""The decisions about write streams, against a model that keeps every row in a list (WRS-4, WRS-7,
WRS-12 to WRS-15, WRS-21).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from connector.records.model import DataChange, OffsetRange, Release, SetCell, WriteStreamOffset
from connector.stored import from_text
from connector.tables.retention import is_too_late
from connector.write_streams.model import (
    Catalog,
    LastAppend,
    SessionEntry,
    StreamEntry,
    StreamKind,
    StreamState,
    catalog_topic,
    check_stream_names,
    commit_id,
    digest_of_names,
    digest_of_rows,
    session_id,
    to_value,
    topic_of_catalog,
)
from connector.write_streams.rules import (
    Fault,
    Placing,
    append_fault,
    commit,
    commit_fault,
    discard_fault,
    is_expired,
    placing_of,
    recorded_commit,
    release_timestamp,
)

RETENTION = 1_000
TIMES = st.integers(1, 10**6)
NAMES = st.from_regex(r"\A[-_.a-zA-Z0-9]{1,64}/[-_.a-zA-Z0-9]{1,64}\Z")
ROWS = st.lists(st.binary(min_size=1, max_size=2), min_size=1, max_size=4)
ENTRIES = st.builds(
    StreamEntry,
    kind=st.sampled_from(StreamKind),
    state=st.sampled_from(StreamState),
    end=st.integers(0, 5),
    flushed=st.integers(0, 5),
    changed_at=st.integers(0, 3_000),
    commit_timestamp=TIMES,
    commit_set=st.text("ab", max_size=2),
    last=st.none() | st.builds(LastAppend, st.integers(0, 5), st.integers(1, 5), st.text(), TIMES),
)


@dataclass
class Model:
    """A write stream as the list of its rows. `last` is the offset of the last append."""

    rows: list[bytes] = field(default_factory=list)
    last: int = 0

    def expected(self, offset: int | None, rows: list[bytes]) -> Placing:
        if offset is None or offset == len(self.rows):
            return Placing.TAKEN
        if offset > len(self.rows):
            return Placing.OUT_OF_RANGE
        there = self.rows[offset : offset + len(rows)]
        if len(there) < len(rows):
            return Placing.OVERLAP
        is_last = offset == self.last and offset + len(rows) == len(self.rows)
        return Placing.DIFFERENT if is_last and there != rows else Placing.REPEATED


@given(st.lists(st.tuples(st.none() | st.integers(0, 12), ROWS), max_size=12))
def test_an_append_is_taken_once_at_its_offset(
    appends: list[tuple[int | None, list[bytes]]],
) -> None:
    """WRS-7: what is taken continues at the end, so there is no gap and no double."""
    model, entry = Model(), StreamEntry(StreamKind.PENDING)
    for at, (offset, rows) in enumerate(appends):
        start = entry.end if offset is None else offset
        digest = digest_of_rows(b"%d:" % len(row) + row for row in rows)
        placing = placing_of(entry.end, entry.last, offset, len(rows), digest)
        assert placing is model.expected(offset, rows)
        if placing is Placing.TAKEN:
            assert start == len(model.rows)
            model.last = start
            model.rows += rows
            after = entry.appended(LastAppend(start, len(rows), digest, at))
            assert after.covers(entry)
            assert not entry.covers(after)
            entry = after
        assert entry.end == len(model.rows)


@given(ENTRIES, st.integers(0, 5_000))
def test_a_write_stream_that_takes_no_rows_has_one_reason(entry: StreamEntry, now: int) -> None:
    """WRS-12, WRS-13, WRS-21."""
    fault = append_fault(entry, now, RETENTION)
    expected = {
        StreamState.COMMITTED: Fault.ALREADY_COMMITTED,
        StreamState.DISCARDED: Fault.DISCARDED,
        StreamState.FINALIZED: Fault.FINALIZED,
        StreamState.OPEN: Fault.EXPIRED if is_expired(entry, now, RETENTION) else None,
    }
    assert fault is expected[entry.state]
    if entry.kind is StreamKind.COMMITTED:
        assert not is_expired(entry, now, RETENTION), "its rows wait for nothing"
    if is_expired(entry, now, RETENTION):
        assert is_expired(entry, now + 1, RETENTION), "time does not undo it"


@given(st.none() | ENTRIES, st.integers(0, 5_000))
def test_a_write_stream_is_committed_or_discarded_once(entry: StreamEntry | None, now: int) -> None:
    """WRS-14."""
    committing = commit_fault(entry, now, RETENTION)
    discarding = discard_fault(entry, now, RETENTION)
    if entry is None:
        assert committing is discarding is Fault.NOT_FOUND
        return
    if committing is None:
        assert (entry.kind, entry.state) == (StreamKind.PENDING, StreamState.FINALIZED)
        committed = replace(entry, state=StreamState.COMMITTED)
        assert commit_fault(committed, now, RETENTION) is Fault.ALREADY_COMMITTED
        assert discard_fault(committed, now, RETENTION) is Fault.ALREADY_COMMITTED
    if discarding is None:
        assert append_fault(entry, now, RETENTION) is not None, "its session cannot go on"
        discarded = replace(entry, state=StreamState.DISCARDED)
        assert discard_fault(discarded, now, RETENTION) is None
        if entry.kind is StreamKind.PENDING:
            assert commit_fault(discarded, now, RETENTION) is Fault.DISCARDED


@given(
    st.dictionaries(NAMES, st.integers(0, 3), min_size=1, max_size=4),
    st.sets(NAMES, max_size=2),
    TIMES,
)
def test_only_the_same_set_gets_the_recorded_commit_timestamp(
    ends: dict[str, int], others: set[str], at: int
) -> None:
    """WRS-14, examples 4 and 5: the release has each row of each write stream once."""
    streams = {
        name: StreamEntry(StreamKind.PENDING, StreamState.FINALIZED, end, changed_at=1)
        for name, end in ends.items()
    }
    names = check_stream_names(ends)
    assert recorded_commit(streams, names) is None
    committed, ranges = commit(streams, names, at)
    assert ranges == [OffsetRange(name, 0, ends[name]) for name in names if ends[name]]
    assert recorded_commit(committed, reversed(names)) == at
    for other in (set(names) | others, set(names[1:]), others):
        if other and other != set(names):
            assert recorded_commit(committed, other) is None
    assert all(committed[name].covers(streams[name]) for name in names)


@given(st.lists(st.tuples(st.booleans(), TIMES), max_size=10))
def test_releases_and_heartbeats_of_a_stream_partition_increase(
    steps: list[tuple[bool, int]],
) -> None:
    """WRS-15. Example: now 50, last heartbeat 60, no release: 61."""
    assert release_timestamp(50, 60, 0) == 61
    heartbeat = release = 0
    for is_release, time in steps:
        if is_release:
            at = release_timestamp(time, heartbeat, release)
            assert at >= time
            assert at > max(heartbeat, release)
            release = at
        else:
            heartbeat = max(heartbeat, time)


@given(ENTRIES, st.builds(SessionEntry, st.text("ab"), TIMES, st.lists(st.text()).map(tuple)))
def test_records_of_the_catalog_are_read_back(entry: StreamEntry, session: SessionEntry) -> None:
    """WRS-3."""
    entry = replace(entry, end=max(entry.end, entry.flushed))
    assert from_text(StreamEntry, to_value(entry).decode()) == entry
    assert from_text(SessionEntry, to_value(session).decode()) == session
    catalog = Catalog()
    catalog.add("job/rows", to_value(entry))
    catalog.add("job", to_value(session))
    assert catalog.streams == {"job/rows": entry}
    assert catalog.sessions == {"job": session}
    assert catalog.owner_of("job") == session.owner
    assert catalog.owner_of("other") == ""


@given(st.lists(st.tuples(st.sampled_from(["a", "b", ""]), st.integers(1, 9)), max_size=12))
def test_the_records_before_another_owner_are_kept(steps: list[tuple[str, int]]) -> None:
    """WRS-3, WRS-8: they have the outcome of the last transaction of a session that was ended."""
    catalog, rows = Catalog("job", "a"), StreamEntry(StreamKind.PENDING)
    mine, was_mine, expected = dict[str, StreamEntry](), False, None
    for owner, count in steps:
        if owner:
            catalog.add("job", to_value(SessionEntry(owner)))
            was_mine = was_mine or owner == "a"
            if was_mine and owner != "a" and expected is None:
                expected = dict(mine)
        else:
            rows = replace(rows, end=rows.end + count)
            catalog.add("job/p", to_value(rows))
            mine["job/p"] = rows
    assert catalog.before == expected


def test_the_catalog_of_a_topic_is_named_after_it() -> None:
    """WRS-3, WRS-2."""
    assert catalog_topic("shop") == "shop.write-streams"
    assert topic_of_catalog("shop.write-streams") == topic_of_catalog("shop") == "shop"
    assert session_id("shop", "job") == "lowmark.shop/session/job"
    assert commit_id("shop") == "lowmark.shop/commit"


@given(st.sets(NAMES, min_size=1, max_size=4), st.sets(NAMES, min_size=1, max_size=4))
def test_a_digest_of_names_is_that_of_a_set(one: set[str], other: set[str]) -> None:
    """WRS-14."""
    assert (digest_of_names(one) == digest_of_names(other)) == (one == other)


@given(TIMES, TIMES)
def test_a_release_below_the_horizon_is_too_late_and_a_staged_change_never_is(
    at: int, horizon: int
) -> None:
    """WRS-20, WRS-11."""
    release = Release("p", at, (OffsetRange("job/rows", 0, 1),))
    assert is_too_late(release, horizon) == (at < horizon)
    staged = DataChange(
        stream_partition="p",
        table="t",
        row_key=b"k",
        commit_timestamp=0,
        entries=(SetCell("f", b"q", b"v"),),
        write_stream=WriteStreamOffset("job/rows", 0),
    )
    assert not is_too_late(staged, horizon)
