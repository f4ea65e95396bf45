"""The status of write streams and their releases: what ingest knows of them, joined with the
catalog (WRS-18, WRS-21, WRS-23).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final

from connector.records.views import Named, OrNull, Time, TimeOrNull, Viewed, view_of_time
from connector.text import FEW, counted, duration, summarize_names
from connector.watermarks.frontier import Frontier
from connector.write_streams.model import (
    Catalog,
    StreamKind,
    release_partition_of,
    stream_partition_of,
)
from connector.write_streams.releases import OpenRelease, ReleaseProgress, StagedStream, Withheld
from connector.write_streams.rules import is_expired


@dataclass(frozen=True, slots=True)
class ReleaseStatus(Viewed):
    """A release that is not complete. Times are microseconds.

    - `since` and `since_batch` are the time (0: unknown) and the batch that read its first copy.
    - `withheld` is the reason. `NO`: it waits for rows that ingest has not read yet.
    - `is_late`: it was below the low watermark when it arrived.
    - `is_requested`: an operator requested its release without the rejected rows.
    """

    commit_timestamp: Time
    stream_partition: str
    write_streams: tuple[str, ...]
    rows: int
    since: TimeOrNull
    since_batch: int
    withheld: OrNull[Withheld]
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


def release_status(release: OpenRelease) -> ReleaseStatus:
    return ReleaseStatus(
        release.commit_timestamp,
        release.stream_partition,
        release.write_streams,
        sum(part.upto - part.first for part in release.ranges),
        release.since,
        release.since_batch,
        release.withheld,
        release.is_late,
        release.without_rejected,
    )


@dataclass(frozen=True, slots=True)
class WriteStreamStatus(Viewed):
    """A write stream of the catalog, as ingest knows it. Times are microseconds.

    - `state` is that of the catalog, or `expired`.
    - `end` is the number of its rows, and `flushed` of the flushed ones (None: it is not buffered).
    - `expires_at` is the time at which it expires without another append. None: it does not.
    - `commit_timestamp` is 0 if it is not committed.
    - `first_batch` is the first ingest batch with one of its staged rows. None: ingest has none.
    - `released_rows` has no value for a committed write stream, whose rows need no release.
    - `releases` are those that are not complete.
    """

    name: Annotated[str, Named("write_stream")]
    kind: StreamKind
    state: str
    end: int
    flushed: int | None
    last_append: Time | None
    expires_at: Time | None
    commit_timestamp: TimeOrNull
    first_batch: int | None
    released_rows: int | None
    releases: tuple[ReleaseStatus, ...]


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """A session whose stream partition has not moved for `stall_after`, so that it delays the low
    watermark: its process has probably died. To finalize one of its write streams ends the stream
    partition.

    `low_watermark` is that of the stream partition (µs; 0: there is no claim). It advanced at
    `since` (µs).
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
    open_releases = [release_status(release) for release in releases.open]
    statuses = []
    for name, entry in sorted(catalog.streams.items()):
        staged = releases.streams.get(name)
        statuses.append(
            WriteStreamStatus(
                name,
                entry.kind,
                "expired" if is_expired(entry, now, retention) else str(entry.state),
                entry.end,
                entry.flushed if entry.kind is StreamKind.BUFFERED else None,
                None if entry.last is None else entry.last.at,
                entry.changed_at + retention if entry.is_staging and entry.changed_at else None,
                entry.commit_timestamp,
                None if staged is None else staged.first_batch,
                None if entry.kind is StreamKind.COMMITTED else _released_rows(staged),
                tuple(release for release in open_releases if name in release.write_streams),
            )
        )
    return statuses


def _released_rows(staged: StagedStream | None) -> int:
    return 0 if staged is None else sum(upto - first for first, upto in staged.released)


def dead_sessions(
    catalog: Catalog, frontier: Frontier, now: int, stall_after: int
) -> list[SessionStatus]:
    """Return the stalled sessions, the longest first (WRS-10). `stall_after` is in microseconds."""
    stalls = {stall.stream_partition: stall for stall in frontier.stalls(now, stall_after)}
    sessions = []
    for name, entry in sorted(catalog.sessions.items()):
        partitions = {
            stream_partition_of(name, entry.number),
            release_partition_of(name, entry.number),
            *entry.announced,
        }
        stalled = [stalls[partition] for partition in sorted(partitions) if partition in stalls]
        if stalled:
            first = min(stalled, key=lambda stall: stall.since)
            streams = sorted(
                stream for stream in catalog.streams if stream.rpartition("/")[0] == name
            )
            sessions.append(
                SessionStatus(
                    *(name, first.stream_partition, first.watermark, first.since), tuple(streams)
                )
            )
    return sorted(sessions, key=lambda session: session.since)


@dataclass(frozen=True, slots=True)
class ReleaseReport(Viewed):
    """The staged rows of a stream and their releases, as ingest knows them (WRS-17, WRS-18).

    - `unreleased` are the write streams with staged rows of which none is released.
    - `releases` are those that are not complete, the oldest commit timestamp first.
    - `late_releases` were below the low watermark when they arrived, `repeated_releases` were of
      rows that were released before.
    - `expired_rows` were never released, and their payload is removed.
    """

    staged_rows: int = 0
    released_rows: int = 0
    unreleased: tuple[str, ...] = ()
    releases: tuple[ReleaseStatus, ...] = ()
    late_releases: int = 0
    repeated_releases: int = 0
    expired_rows: int = 0

    @property
    def is_withheld(self) -> bool:
        """Whether only a replay or an operator completes one of the releases."""
        return any(release.withheld is not Withheld.NO for release in self.releases)

    def hints(self, now: int) -> list[str]:
        """Return a hint for each reason why releases are withheld, with the remedy."""
        hints = []
        for reason in (Withheld.ROWS, Withheld.TOO_LATE):
            withheld = [release for release in self.releases if release.withheld is reason]
            if withheld:
                first = withheld[0]
                hints.append(
                    f"{counted(len(withheld), 'release is', 'releases are')} withheld, that of"
                    f" {named(first)}{_age(first, now)}:"
                    f" {first.problem}; {first.remedy}"
                )
        return hints

    def facts(self, now: int) -> Iterable[tuple[str, str]]:
        """Yield lines about staged rows and releases for people: a name and a text."""
        if not (self.staged_rows or self.released_rows or self.unreleased or self.releases):
            return
        counts = f"{counted(self.staged_rows, 'staged row')} ingested"
        parts = [f"{counts}, {self.released_rows:,} released"]
        if self.unreleased:
            parts.append(f"nothing is released of {summarize_names(self.unreleased)}")
        if self.late_releases:
            parts.append(counted(self.late_releases, "late release"))
        if self.repeated_releases:
            repeated = counted(self.repeated_releases, "release")
            parts.append(f"{repeated} of rows that were released before")
        if self.expired_rows:
            parts.append(counted(self.expired_rows, "expired row"))
        yield "write streams", "; ".join(parts)
        for release in self.releases[:FEW]:
            state = "incomplete" if release.withheld is Withheld.NO else "withheld"
            yield state, f"release of {named(release)}{_age(release, now)}: {release.problem}"


NONE_RELEASED: Final = ReleaseReport()


def release_report(staged: int, releases: ReleaseProgress) -> ReleaseReport:
    """Return the report on `staged` ingested rows and on their releases."""
    return ReleaseReport(
        staged_rows=staged,
        released_rows=releases.released_rows,
        unreleased=tuple(
            sorted(name for name, stream in releases.streams.items() if not stream.released)
        ),
        releases=tuple(map(release_status, releases.open)),
        late_releases=releases.late,
        repeated_releases=releases.repeated,
        expired_rows=releases.expired,
    )


def named(release: ReleaseStatus) -> str:
    """Return the commit timestamp and the write streams of a release, for people."""
    names = summarize_names(release.write_streams)
    return f"{view_of_time(release.commit_timestamp)} ({names})"


def _age(release: ReleaseStatus, now: int) -> str:
    if not release.since:
        return ""
    return f", for {duration(max(0, now - release.since) / 1_000_000)}"
