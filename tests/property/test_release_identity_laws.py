"""Times and contents are not identities: what an operator asks about one commit of write streams
depends on that commit only, also if others have its commit timestamp (WRS-14, WRS-18, WRS-20,
WRS-23).
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.config.settings import StreamConfig
from connector.errors import ConfigError, ErrorCode, WriteStreamError
from connector.records.model import OffsetRange, Release
from connector.services.wait import check_not_withheld
from connector.services.write_streams import committed_with, find_withheld
from connector.state.stream_progress import Progress
from connector.write_streams.model import StreamEntry, StreamKind, StreamState
from connector.write_streams.releases import NO_RELEASES, ReleaseProgress, ReleaseRows, Withheld
from connector.write_streams.rules import commit

ROWS = 10
END = {0: 1}
TIMES = (100, 101)


@dataclass(frozen=True)
class Committed:
    """A commit of write streams that no other commit has. `lacks` says which of its releases ingest
    withholds, because a row was rejected.
    """

    names: tuple[str, ...]
    at: int
    lacks: bool

    @property
    def release(self) -> Release:
        ranges = tuple(OffsetRange(name, 0, ROWS) for name in self.names)
        return Release(f"write-commit/{self.names[0]}", self.at, ranges)


@st.composite
def commits(draw: st.DrawFn) -> list[Committed]:
    """At most two commit timestamps, so that most commits share theirs."""
    sizes = draw(st.lists(st.integers(1, 2), min_size=1, max_size=5))
    return [
        Committed(
            tuple(f"w{n}/{m}" for m in range(size)),
            draw(st.sampled_from(TIMES)),
            draw(st.booleans()),
        )
        for n, size in enumerate(sizes)
    ]


def ingested(found: list[Committed], horizon: int | None = None) -> ReleaseProgress:
    staged = [name for one in found for name in one.names]
    known = NO_RELEASES.logged(1, 1, staged, [one.release for one in found], END, None)
    lacking = {one.release.ranges for one in found if one.lacks}
    counts = {
        n: ROWS * len(one.ranges) - (one.ranges in lacking) for n, one in enumerate(known.open)
    }
    return known.completed(1, counts, END, horizon)[0]


def catalog(found: list[Committed]) -> dict[str, StreamEntry]:
    final = StreamEntry(StreamKind.PENDING, StreamState.FINALIZED, ROWS)
    streams = {name: final for one in found for name in one.names} | {"w/other": final}
    for one in found:
        streams |= commit(streams, one.names, one.at)[0]
    return streams


@given(commits(), st.data())
def test_a_request_releases_the_one_release_that_it_names(
    found: list[Committed], data: st.DataObject
) -> None:
    """WRS-18: any of its write streams names it. All others stay as they were."""
    known = ingested(found)
    for one in found:
        name = data.draw(st.sampled_from(one.names))
        if not one.lacks:
            with pytest.raises(ConfigError) as unknown:
                find_withheld("s", known, name, None, Withheld.ROWS)
            assert unknown.value.code == ErrorCode.RELEASE_UNKNOWN
            continue
        named = find_withheld(
            "s", known, name, data.draw(st.sampled_from((None, one.at))), Withheld.ROWS
        )
        assert named.id == (one.at, one.release.ranges)
        request = ReleaseRows(1, "s", named.commit_timestamp, "x", 1, "ann", name)
        after = known.requested([request])
        assert [two.without_rejected for two in after.open] == [two == named for two in known.open]
        visible, ranges = after.completed(2, {}, END, None)
        assert {range_.stream for range_ in ranges} == set(one.names)
        assert visible.open == tuple(two for two in known.open if two != named)


@given(commits(), st.data())
def test_a_release_that_is_too_late_is_released_again_alone(
    found: list[Committed], data: st.DataObject
) -> None:
    """WRS-20: whether ingest withholds it, or it became a dead letter. Both know a commit by its
    write streams.
    """
    known, streams = ingested(found, max(TIMES) + 1), catalog(found)
    for one in found:
        name = data.draw(st.sampled_from(one.names))
        assert committed_with(streams, name).keys() == set(one.names)
        if not one.lacks:
            named = find_withheld("s", known, name, None, Withheld.TOO_LATE)
            assert named.ranges == one.release.ranges
    assert committed_with(streams, "w/other") == committed_with(streams, "w/none") == {}


@given(commits(), st.none() | st.just(max(TIMES) + 1))
def test_a_wait_ends_for_its_own_commit_only(found: list[Committed], horizon: int | None) -> None:
    """WRS-23: not because a commit of the same time is withheld."""
    progress = Progress(ingest_batch=1, releases=ingested(found, horizon), horizon=horizon)
    streams = catalog(found)
    for one in found:
        entries = {name: streams[name] for name in one.names}
        try:
            check_not_withheld(
                StreamConfig(name="s", topic="t"), progress, entries, one.at, is_read=True
            )
        except WriteStreamError as error:
            assert error.code == (
                ErrorCode.RELEASE_WITHHELD if one.lacks else ErrorCode.RELEASE_TOO_LATE
            )
        else:
            assert not one.lacks
            assert horizon is None
