"""Staged rows and their releases, as ingest sees them (WRS-17, WRS-18, WRS-20).

Theory. A release gives ranges of offsets one commit timestamp. The rows of these offsets arrived
before it in Kafka, but ingest may read them later: a batch ends anywhere in each Kafka partition.
So a release is *open* until the changelog has every offset of its ranges. Then it is *complete*,
and the batch that completed it makes all its rows visible. Offsets are counted inside the ranges.
A count of all rows of a write stream would be wrong: five rows may be the offsets 0, 1, 2, 5, 6.

All rows of a release are below the end offsets of the topic at the time when its first copy was
read. Once ingest has read up to there, a row that is still absent was rejected. Then the release is
*withheld*, until a replay brings the row.

A row is released once. Later releases of it have no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple

from connector.records.model import OffsetRange, Release


class Withheld(StrEnum):
    """Why a release is withheld. `NO`: it is not."""

    NO = ""
    ROWS = "rows"
    """A row was rejected, or never existed."""
    TOO_LATE = "too late"
    """Its commit timestamp is below the horizon."""


@dataclass(frozen=True, slots=True)
class StagedStream:
    """A write stream with staged rows.

    - `first_batch` is the first ingest batch with one of its rows.
    - `read_at` is when its newest row was read, in microseconds.
    - `released` are the ranges of offsets that were released: sorted, and none touches another.
    - `last_release` is the commit timestamp of the newest release, in microseconds.
    """

    first_batch: int
    read_at: int
    released: tuple[tuple[int, int], ...] = ()
    last_release: int = 0


@dataclass(frozen=True, slots=True)
class OpenRelease:
    """A release that was logged and is not complete.

    - `since_batch` is the ingest batch of its first copy, and `since` when it was read (µs).
    - `rows_end` are the end offsets of the topic at that time, by Kafka partition.
    - `is_late`: it was below the low watermark then.
    - `without_rejected`: an operator releases the rows that are there (WRS-18).
    """

    stream_partition: str
    commit_timestamp: int
    ranges: tuple[OffsetRange, ...]
    since_batch: int
    rows_end: Mapping[int, int]
    is_late: bool = False
    withheld: Withheld = Withheld.NO
    without_rejected: bool = False
    since: int = 0

    @property
    def id(self) -> tuple[int, tuple[OffsetRange, ...]]:
        """It is equal for all copies of a release."""
        return self.commit_timestamp, self.ranges

    @property
    def write_streams(self) -> tuple[str, ...]:
        """The names of its write streams, each once."""
        return tuple(range_.stream for range_ in self.ranges)


@dataclass(frozen=True, slots=True)
class ReleaseRows:
    """An operator's request to release the rows of a withheld release that are there, without those
    that were rejected (WRS-18).

    `write_stream` and `commit_timestamp` (µs) identify the release in its `stream`: several
    releases may have one commit timestamp, and several may have rows of one write stream. In a
    warehouse, numbers increase in the order in which they were made. `made_at` is in microseconds.
    """

    number: int
    stream: str
    commit_timestamp: int
    reason: str
    made_at: int
    made_by: str
    write_stream: str | None = None
    """None: a request of an earlier version, which has no effect."""


class ReleasedRange(NamedTuple):
    """Offsets `[first, upto)` of a write stream that became visible with `commit_timestamp` (µs).

    Their rows are in the ingest batches from `first_batch` on. They belong to the stream partition
    of the release.
    """

    stream: str
    first: int
    upto: int
    commit_timestamp: int
    first_batch: int
    stream_partition: str


@dataclass(frozen=True, slots=True)
class ReleaseProgress:
    """The staged rows and releases of a stream up to a batch.

    - `streams` are the write streams with staged rows, by name.
    - `open` are the releases that are not complete, in the order of their commit timestamps.
    - `released_to` is the newest batch that completed a release. 0: no batch did.
    - `repeated` counts releases of rows that were released before.
    - `requests_to` is the greatest number of an operator's request that was taken.
    - `expired` counts the rows that were never released and whose payload is removed (WRS-21).
    - `late` counts the releases that were below the low watermark when they arrived (WMK-11).
    - `released_rows` counts the offsets that became visible.
    """

    streams: Mapping[str, StagedStream] = field(default_factory=dict)
    open: tuple[OpenRelease, ...] = ()
    released_to: int = 0
    repeated: int = 0
    requests_to: int = 0
    expired: int = 0
    late: int = 0
    released_rows: int = 0

    @property
    def withheld(self) -> tuple[OpenRelease, ...]:
        """The releases that only a replay or an operator completes."""
        return tuple(release for release in self.open if release.withheld is not Withheld.NO)

    def forgettable(self, before: int) -> dict[str, StagedStream]:
        """Return the write streams without a row since `before` (µs), except those of an open
        release (WRS-21).
        """
        open_ = {name for release in self.open for name in release.write_streams}
        return {
            name: stream
            for name, stream in self.streams.items()
            if stream.read_at < before and name not in open_
        }

    def without(self, streams: Iterable[str], expired: int) -> ReleaseProgress:
        """Return the progress without write streams, of which `expired` rows were not released."""
        removed = frozenset(streams)
        left = {name: stream for name, stream in self.streams.items() if name not in removed}
        return replace(self, streams=left, expired=self.expired + expired)

    def requested(self, requests: Iterable[ReleaseRows]) -> ReleaseProgress:
        """Return the progress with the requests of operators. A request counts for the release of
        its write stream and commit timestamp, if that is withheld now.
        """
        requests = list(requests)
        ids = {(request.commit_timestamp, request.write_stream) for request in requests}
        return replace(
            self,
            requests_to=max((self.requests_to, *(request.number for request in requests))),
            open=tuple(
                replace(release, without_rejected=True)
                if release.withheld is Withheld.ROWS
                and any((release.commit_timestamp, name) in ids for name in release.write_streams)
                else release
                for release in self.open
            ),
        )

    def logged(
        self,
        batch: int,
        read_at: int,
        staged: Iterable[str],
        releases: Iterable[Release],
        rows_end: Mapping[int, int],
        low_watermark: int | None,
    ) -> ReleaseProgress:
        """Return the progress with the staged rows and releases of a batch, read at `read_at` (µs).

        `staged` are the write streams of its staged rows. Releases may be copies of known ones.
        `rows_end` are the end offsets of the topic, asked after the batch was planned.
        `low_watermark` is that of the batch before.
        """
        streams = dict(self.streams)
        for name in staged:
            stream = streams.get(name) or StagedStream(batch, read_at)
            streams[name] = replace(stream, read_at=read_at)
        open_ = {release.id: release for release in self.open}
        repeated, late = self.repeated, self.late
        for release in sorted(set(releases), key=_in_order):
            new = OpenRelease(
                release.stream_partition,
                release.commit_timestamp,
                release.ranges,
                batch,
                rows_end,
                low_watermark is not None and release.commit_timestamp < low_watermark,
                since=read_at,
            )
            if new.id in open_:
                continue
            if _unreleased(new.ranges, streams):
                open_[new.id] = new
                late += new.is_late
            elif any(
                release.commit_timestamp > streams[range_.stream].last_release
                for range_ in release.ranges
            ):
                repeated += 1
                streams |= _passed(release, streams)
        in_order = sorted(open_.values(), key=lambda release: release.id)
        return replace(self, streams=streams, open=tuple(in_order), repeated=repeated, late=late)

    def wanted(self) -> list[list[OffsetRange]]:
        """Return the offsets that each open release lacks or has, without those that were released
        before, in the order of `open`.
        """
        return [_unreleased(release.ranges, self.streams) for release in self.open]

    def first_batch(self) -> int | None:
        """Return the first batch with rows of an open release. None: there are no such rows."""
        names = {name for release in self.open for name in release.write_streams}
        return min(
            (self.streams[name].first_batch for name in names if name in self.streams),
            default=None,
        )

    def completed(
        self,
        batch: int,
        counts: Mapping[int, int] | None,
        end: Mapping[int, int],
        horizon: int | None,
    ) -> tuple[ReleaseProgress, list[ReleasedRange]]:
        """Return the progress after the offsets of the open releases were counted, and the ranges
        that became visible.

        Args:
            batch: The newest batch.
            counts: How many different offsets of `wanted` the changelog has, by the number of the
                release in `open`. One that is absent has none. None: there is no new row and no
                new release, so nothing was counted.
            end: Up to where the batch was read.
            horizon: That of the batch before (µs). A release below it stays withheld (WRS-20).
        """
        streams, open_, ranges = dict(self.streams), list[OpenRelease](), list[ReleasedRange]()
        repeated = self.repeated
        for number, (release, wanted) in enumerate(zip(self.open, self.wanted(), strict=True)):
            left = _unreleased(wanted, streams)
            is_read = all(end.get(k, 0) >= rows_end for k, rows_end in release.rows_end.items())
            if counts is None:
                is_new = is_read and release.withheld is Withheld.NO
                open_.append(replace(release, withheld=Withheld.ROWS) if is_new else release)
                continue
            has_all = counts.get(number, 0) >= _offsets_in(wanted)
            if not left:
                repeated += 1
                streams |= _passed(release, streams)
            elif not has_all and not (release.without_rejected and is_read):
                withheld = Withheld.ROWS if is_read else release.withheld
                open_.append(replace(release, withheld=withheld))
            elif horizon is not None and release.commit_timestamp < horizon:
                open_.append(replace(release, withheld=Withheld.TOO_LATE))
            else:
                ranges += _released(release, left, streams, batch)
                streams |= _passed(release, streams)
        # A release of the same rows, with another commit timestamp, may have been completed.
        left_open = [release for release in open_ if _unreleased(release.ranges, streams)]
        return (
            replace(
                self,
                streams=streams,
                open=tuple(left_open),
                released_to=batch if ranges else self.released_to,
                released_rows=self.released_rows + _offsets_in(ranges),
                repeated=repeated + len(open_) - len(left_open),
            ),
            ranges,
        )

    def waits_below(self, low_watermark: int) -> int:
        """Return the time below which no release waits for rows. It is at most the low watermark.

        A release that is withheld, or that was late when it arrived, holds nothing.
        """
        waiting = (
            release.commit_timestamp
            for release in self.open
            if release.withheld is Withheld.NO and not release.is_late
        )
        return min((low_watermark, *waiting))

    @property
    def is_waiting(self) -> bool:
        """Whether a release lacks rows that are still to be read."""
        return any(release.withheld is Withheld.NO for release in self.open)


NO_RELEASES: Final = ReleaseProgress()


def _in_order(release: Release) -> tuple[int, tuple[OffsetRange, ...], str]:
    return release.commit_timestamp, release.ranges, release.stream_partition


def _passed(
    release: Release | OpenRelease, streams: Mapping[str, StagedStream]
) -> dict[str, StagedStream]:
    """The write streams of a release whose rows are all released, so that copies of it that are
    read later are not counted as repeated.
    """
    written = {range_.stream: streams[range_.stream] for range_ in release.ranges}
    return {
        name: replace(stream, last_release=max(stream.last_release, release.commit_timestamp))
        for name, stream in written.items()
    }


def _released(
    release: OpenRelease,
    ranges: Iterable[OffsetRange],
    streams: dict[str, StagedStream],
    batch: int,
) -> list[ReleasedRange]:
    """Release the ranges in `streams`, and return them."""
    released = []
    for range_ in ranges:
        stream = streams.get(range_.stream) or StagedStream(batch, 0)
        offsets = _joined(stream.released, (range_.first, range_.upto))
        streams[range_.stream] = replace(stream, released=offsets)
        released.append(
            ReleasedRange(
                range_.stream,
                range_.first,
                range_.upto,
                release.commit_timestamp,
                stream.first_batch,
                release.stream_partition,
            )
        )
    return released


def _offsets_in(ranges: Iterable[OffsetRange | ReleasedRange]) -> int:
    return sum(range_.upto - range_.first for range_ in ranges)


def _unreleased(
    ranges: Iterable[OffsetRange], streams: Mapping[str, StagedStream]
) -> list[OffsetRange]:
    """The ranges without what was released."""
    left = []
    for range_ in ranges:
        first = range_.first
        stream = streams.get(range_.stream)
        for start, end in stream.released if stream else ():
            if start > first and first < range_.upto:
                left.append(OffsetRange(range_.stream, first, min(start, range_.upto)))
            first = max(first, end)
        if first < range_.upto:
            left.append(OffsetRange(range_.stream, first, range_.upto))
    return [range_ for range_ in left if range_.first < range_.upto]


def _joined(
    released: Iterable[tuple[int, int]], new: tuple[int, int]
) -> tuple[tuple[int, int], ...]:
    """The union of disjoint ranges, sorted. Ranges that touch become one."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted([*released, new]):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return tuple(joined)
