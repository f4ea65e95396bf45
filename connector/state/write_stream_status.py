"""The status of write streams and their releases: what ingest knows of them, joined with the
catalog (WRS-18, WRS-21, WRS-23).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from connector.records.views import view_of_time
from connector.state.status_json import FEW, summarize_names
from connector.text import counted, duration
from connector.watermarks.frontier import Frontier
from connector.write_streams.model import (
    Catalog,
    StreamEntry,
    StreamKind,
    release_partition_of,
    stream_partition_of,
)
from connector.write_streams.releases import OpenRelease, ReleaseProgress, StagedStream, Withheld
from connector.write_streams.rules import is_expired


@dataclass(frozen=True, slots=True)
class ReleaseStatus:
    """A release that is not complete.

    Attributes:
        commit_timestamp: Its commit timestamp, in microseconds.
        stream_partition: The stream partition of the release.
        write_streams: The names of its write streams.
        rows: The number of its rows.
        since: When its first copy was ingested, in microseconds. 0: unknown.
        since_batch: The ingest batch of its first copy.
        withheld: Why it is withheld. `NO`: it waits for rows that ingest has not read yet.
        is_late: It was below the low watermark when it arrived.
        is_requested: An operator asked to release it without the rejected rows.
    """

    commit_timestamp: int
    stream_partition: str
    write_streams: tuple[str, ...]
    rows: int
    since: int
    since_batch: int
    withheld: Withheld
    is_late: bool
    is_requested: bool

    @property
    def problem(self) -> str:
        """Why its rows are not visible."""
        match self.withheld:
            case Withheld.ROWS:
                return "some of its rows were rejected, or were never sent"
            case Withheld.TOO_LATE:
                return "its commit timestamp is below the horizon"
        return "ingest has not read all its rows"

    @property
    def remedy(self) -> str:
        """The action that makes its rows visible."""
        match self.withheld:
            case Withheld.ROWS:
                return "repair and replay the dead letters, or release it without the rejected rows"
            case Withheld.TOO_LATE:
                return "release it again, with a new commit timestamp"
        return "check that ingest runs"

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values. Names are stable, and times are ISO 8601."""
        return {
            "commit_timestamp": view_of_time(self.commit_timestamp),
            "stream_partition": self.stream_partition,
            "write_streams": list(self.write_streams),
            "rows": self.rows,
            "since": view_of_time(self.since) if self.since else None,
            "since_batch": self.since_batch,
            "withheld": str(self.withheld) or None,
            "is_late": self.is_late,
            "is_requested": self.is_requested,
        }


def release_status(release: OpenRelease) -> ReleaseStatus:
    """Return the status of a release that is not complete."""
    return ReleaseStatus(
        release.commit_timestamp,
        release.stream_partition,
        release.write_streams,
        sum(one.upto - one.first for one in release.ranges),
        release.since,
        release.since_batch,
        release.withheld,
        release.is_late,
        release.without_rejected,
    )


@dataclass(frozen=True, slots=True)
class WriteStreamStatus:
    """A write stream of the catalog, with what ingest knows of it.

    Attributes:
        name: Its name, such as `job/rows`.
        entry: Its record in the catalog.
        expires_at: When it expires without another append, in microseconds. None: it does not.
        is_expired: Whether it is expired.
        first_batch: The first ingest batch with one of its staged rows. None: ingest has none.
        released_rows: How many of its staged rows are released, as far as ingest knows. None: it
            is a committed write stream, whose rows need no release.
        releases: Its releases that are not complete.
    """

    name: str
    entry: StreamEntry
    expires_at: int | None
    is_expired: bool
    first_batch: int | None
    released_rows: int | None
    releases: tuple[ReleaseStatus, ...]

    @property
    def state(self) -> str:
        """The state of the catalog, or `expired`."""
        return "expired" if self.is_expired else str(self.entry.state)

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values. Names are stable, and times are ISO 8601."""
        entry = self.entry
        return {
            "write_stream": self.name,
            "kind": str(entry.kind),
            "state": self.state,
            "end": entry.end,
            "flushed": entry.flushed if entry.kind is StreamKind.BUFFERED else None,
            "last_append": view_of_time(entry.last.at) if entry.last is not None else None,
            "expires_at": None if self.expires_at is None else view_of_time(self.expires_at),
            "commit_timestamp": (
                view_of_time(entry.commit_timestamp) if entry.commit_timestamp else None
            ),
            "first_batch": self.first_batch,
            "released_rows": self.released_rows,
            "releases": [one.to_json() for one in self.releases],
        }


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """A session whose stream partition has not moved for `stall_after`, so that it delays the low
    watermark: its process has probably died.

    Attributes:
        name: The name of the session.
        stream_partition: Its stream partition.
        low_watermark: How far the stream partition is, in microseconds. 0: there is no claim.
        since: When that last moved, in microseconds.
        write_streams: The write streams of the session. Finalizing one of them ends the stream
            partition.
    """

    name: str
    stream_partition: str
    low_watermark: int
    since: int
    write_streams: tuple[str, ...]


def write_stream_statuses(
    catalog: Catalog, releases: ReleaseProgress, now: int, retention: int
) -> list[WriteStreamStatus]:
    """Return the status of each write stream, sorted by name.

    Args:
        catalog: The catalog of the topic.
        releases: Those that ingest knows.
        now: The time (µs).
        retention: The staging retention (µs).
    """
    open_ = [release_status(one) for one in releases.open]
    found = []
    for name, entry in sorted(catalog.streams.items()):
        known = releases.streams.get(name)
        found.append(
            WriteStreamStatus(
                name,
                entry,
                entry.changed_at + retention if entry.is_staging and entry.changed_at else None,
                is_expired(entry, now, retention),
                None if known is None else known.first_batch,
                None if entry.kind is StreamKind.COMMITTED else _released_rows(known),
                tuple(one for one in open_ if name in one.write_streams),
            )
        )
    return found


def _released_rows(known: StagedStream | None) -> int:
    return 0 if known is None else sum(upto - first for first, upto in known.released)


def dead_sessions(
    catalog: Catalog, frontier: Frontier, now: int, stall_after: int
) -> list[SessionStatus]:
    """Return the sessions whose stream partitions are stalled, those first that stalled first
    (WRS-10). `stall_after` is in microseconds.
    """
    stalls = {one.stream_partition: one for one in frontier.stalls(now, stall_after)}
    found = []
    for name, entry in sorted(catalog.sessions.items()):
        partitions = {
            stream_partition_of(name, entry.number),
            release_partition_of(name, entry.number),
            *entry.announced,
        }
        stalled = [stalls[one] for one in sorted(partitions) if one in stalls]
        if stalled:
            first = min(stalled, key=lambda one: one.since)
            streams = tuple(
                one for one in sorted(catalog.streams) if one.rpartition("/")[0] == name
            )
            found.append(
                SessionStatus(name, first.stream_partition, first.watermark, first.since, streams)
            )
    return sorted(found, key=lambda one: one.since)


def release_hints(releases: ReleaseProgress, now: int) -> list[str]:
    """Return a hint for each reason why releases are withheld, with the remedy."""
    found = []
    for reason in (Withheld.ROWS, Withheld.TOO_LATE):
        withheld = [release_status(one) for one in releases.withheld if one.withheld is reason]
        if withheld:
            first = withheld[0]
            noun = "release is" if len(withheld) == 1 else "releases are"
            found.append(
                f"{len(withheld):,} {noun} withheld, that of {named(first)}{_age(first, now)}:"
                f" {first.problem}; {first.remedy}"
            )
    return found


def release_facts(staged: int, releases: ReleaseProgress, now: int) -> Iterable[tuple[str, str]]:
    """Yield lines about write streams for people: a name and a text. There are none if the stream
    has no staged rows and no releases.
    """
    if not staged and not releases.streams and not releases.open:
        return
    unreleased = unreleased_streams(releases)
    text = f"{counted(staged, 'staged row')} ingested, {releases.released_rows:,} released"
    if unreleased:
        text += f"; nothing is released of {summarize_names(unreleased)}"
    if releases.late:
        text += f"; {counted(releases.late, 'late release')}"
    if releases.repeated:
        text += f"; {counted(releases.repeated, 'release')} of rows that were released before"
    if releases.expired:
        text += f"; {counted(releases.expired, 'expired row')}"
    yield "write streams", text
    for one in map(release_status, releases.open[:FEW]):
        state = "incomplete" if one.withheld is Withheld.NO else "withheld"
        yield state, f"release of {named(one)}{_age(one, now)}: {one.problem}"


def view_of_releases(staged: int, releases: ReleaseProgress) -> dict[str, Any]:
    """Convert to JSON values. Names are stable, and times are ISO 8601."""
    return {
        "staged_rows": staged,
        "released_rows": releases.released_rows,
        "unreleased": unreleased_streams(releases),
        "releases": [release_status(one).to_json() for one in releases.open],
        "late_releases": releases.late,
        "repeated_releases": releases.repeated,
        "expired_rows": releases.expired,
    }


def unreleased_streams(releases: ReleaseProgress) -> list[str]:
    """Return the write streams with staged rows of which none is released, as far as ingest
    knows.
    """
    return sorted(name for name, one in releases.streams.items() if not one.released)


def named(release: ReleaseStatus) -> str:
    """Return the commit timestamp and the write streams of a release, for people."""
    names = summarize_names(release.write_streams)
    return f"{view_of_time(release.commit_timestamp)} ({names})"


def _age(release: ReleaseStatus, now: int) -> str:
    if not release.since:
        return ""
    return f", for {duration(max(0, now - release.since) / 1_000_000)}"
