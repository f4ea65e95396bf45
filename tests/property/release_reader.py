"""Ingest of a `ReleaseSimulation`, with the laws of releases and of expiry (WRS-17 to WRS-21)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

from connector.records.model import ChildPartitions, Heartbeat, OffsetRange, Release
from connector.state.stream_progress import BatchCounts, Progress, StreamRules
from connector.tables.retention import is_too_late
from connector.watermarks.freshness import EndOffsets
from connector.watermarks.frontier import BatchClaims, LineageRecord
from connector.write_streams.releases import ReleasedRange, ReleaseProgress, Withheld
from tests.property.release_simulation import LIVE, STAGING_RETENTION, ReleaseSimulation, Row

RETENTION_S = 3
NEVER_STALLED_S = 10**9


@dataclass
class Changelog:
    """The batches with a copy of each staged row, those of the copies whose payload was removed,
    and the released ranges with their batches.
    """

    staged: dict[Row, set[int]] = field(default_factory=lambda: defaultdict(set))
    expired: dict[Row, set[int]] = field(default_factory=lambda: defaultdict(set))
    released: list[tuple[int, ReleasedRange]] = field(default_factory=list)

    def is_found(self, row: Row, batch: int, of: ReleasedRange) -> bool:
        """Whether a read shows a row of a range that a batch released, as `released_rows` does."""
        return any(of.first_batch <= one <= batch for one in self.staged.get(row, ()))

    def rebuilt(self) -> dict[Row, set[int]]:
        """The commit timestamps of each row that a rebuild shows."""
        found: dict[Row, set[int]] = defaultdict(set)
        for batch, one in self.released:
            for row in rows_of(one):
                if self.is_found(row, batch, one):
                    found[row].add(one.commit_timestamp)
        return found


Count = Callable[[ReleaseProgress, Changelog], Mapping[int, int]]
"""The counts of `ReleaseProgress.completed`."""
Expiry = Callable[
    [ReleaseProgress, int, Changelog], tuple[AbstractSet[str], AbstractSet[tuple[Row, int]]]
]
"""The write streams without a row since a time (µs), and the copies whose payload is removed."""


def count_rows(releases: ReleaseProgress, changelog: Changelog) -> dict[int, int]:
    """How many offsets inside the ranges are there, each since the first batch of its stream."""
    since = {name: one.first_batch for name, one in releases.streams.items()}
    return {
        n: sum(
            one.stream in since
            and max(changelog.staged.get(row, ()), default=0) >= since[row.stream]
            for one in wanted
            for row in rows_of(one)
        )
        for n, wanted in enumerate(releases.wanted())
    }


def expire_rows(
    releases: ReleaseProgress, before: int, changelog: Changelog
) -> tuple[AbstractSet[str], AbstractSet[tuple[Row, int]]]:
    """The rows that were not released, since the first batch of their stream."""
    gone = releases.forgettable(before)
    removed = {
        (row, batch)
        for row, batches in changelog.staged.items()
        if row.stream in gone
        and not any(first <= row.offset < upto for first, upto in gone[row.stream].released)
        for batch in batches
        if batch >= gone[row.stream].first_batch
    }
    return gone.keys(), removed


def rows_of(one: OffsetRange | ReleasedRange) -> list[Row]:
    return [Row(one.stream, offset) for offset in range(one.first, one.upto)]


def rows_of_release(release: Release) -> list[Row]:
    return [row for one in release.ranges for row in rows_of(one)]


@dataclass(frozen=True)
class Batch:
    """The valid records of a batch, counted, and the facts that the changelog stores with it."""

    number: int
    counts: BatchCounts
    ends: Mapping[int, int]
    asked: EndOffsets


@dataclass
class Reader:
    """Ingest, and what fresh reads show after each batch. `check` has the laws."""

    simulation: ReleaseSimulation
    count: Count = count_rows
    expiry: Expiry = expire_rows
    progress: Progress = field(default_factory=Progress)
    ends: dict[int, int] = field(default_factory=dict)
    changelog: Changelog = field(default_factory=Changelog)
    visible: dict[Row, set[int]] = field(default_factory=lambda: defaultdict(set))
    """The commit timestamps of each visible row."""
    shown: int = 0
    """How often a row became visible."""
    forgotten: set[Row] = field(default_factory=set)
    """Rows that were read, of write streams that ingest forgot since. No release of them is sure
    to become complete.
    """
    read_at: dict[int, int] = field(default_factory=dict)
    """When each batch was read."""
    rows_end: dict[int, EndOffsets] = field(default_factory=dict)
    """The end offsets when the first copy of a release was read, by its commit timestamp."""

    def ingest(self, share: Callable[[], float], *, goes_on: bool) -> None:
        """Read some part of each Kafka partition, and check the laws. If the simulation `goes_on`,
        there is an event between the choice of the offsets and the question for the end offsets.
        """
        start = dict(self.ends)
        for k in range(len(self.simulation.logs)):
            first = start.get(k, 0)
            self.ends[k] = first + round((self.simulation.stable(k, first) - first) * share())
        if all(end == start.get(k, 0) for k, end in self.ends.items()):
            return
        kafka_partitions = len(self.simulation.logs)
        if goes_on:
            self.simulation.step()
        asked = EndOffsets(
            self.simulation.clock, {k: len(log) for k, log in enumerate(self.simulation.logs)}
        )
        number = self.progress.ingest_batch + 1
        counts = self._counted(number, start, kafka_partitions)
        batch = Batch(number, counts, dict(self.ends), asked)
        self.read_at[number] = asked.at
        before = self.progress
        known = {one.commit_timestamp for one in before.releases.open}
        for release in counts.releases:
            if release.commit_timestamp not in known:
                self.rows_end[release.commit_timestamp] = asked
        self.progress, ranges = self._after(before, batch)
        if number % 4 == 0:
            # A process that was killed reads the stored progress, and repeats the batch.
            stored: dict[str, Any] = json.loads(json.dumps(before.to_json()))
            again = Progress.from_json(stored, before.frontier)
            assert again == before, "read back"
            assert self._after(again, batch) == (self.progress, ranges), "not the same again"
        self._show(number, ranges, before.horizon or 0)
        self.check(before)

    def _counted(self, number: int, start: Mapping[int, int], width: int) -> BatchCounts:
        claims: dict[str, dict[int, int]] = defaultdict(dict)
        lineage, streams, releases = list[LineageRecord](), set[str](), list[Release]()
        staged = rejected = 0
        for k, end in self.ends.items():
            for sent in self.simulation.logs[k][start.get(k, 0) : end]:
                if not sent.is_committed:
                    continue
                match sent.record:
                    case Row() as row if sent.valid:
                        self.changelog.staged[row].add(number)
                        streams.add(row.stream)
                        staged += 1
                    case Row() as row:
                        self.simulation.rejected(row)
                        rejected += 1
                    case Release() as release:
                        if is_too_late(release, self.progress.horizon):
                            rejected += 1
                        else:
                            releases.append(release)
                    case Heartbeat(name, at):
                        claims[name][k] = max(claims[name].get(k, 0), at + 1)
                    case ChildPartitions() as record:
                        lineage.append(LineageRecord(k, sent.sent_to, record))
        return BatchCounts(
            claims=BatchClaims(width, claims, tuple(lineage)),
            staged=staged,
            streams=frozenset(streams),
            releases=tuple(releases),
            rejected={"INVALID": rejected} if rejected else {},
        )

    def _after(self, before: Progress, batch: Batch) -> tuple[Progress, list[ReleasedRange]]:
        """The same steps as `Ingest._releases_after`."""
        counts, logged, found = batch.counts, before.releases, None
        if counts.staged or counts.releases:
            logged = logged.logged(
                batch.number,
                batch.asked.at,
                counts.streams,
                counts.releases,
                batch.asked.ends,
                before.low_watermark,
            )
        if counts.releases or (counts.staged and before.releases.open):
            found = self.count(logged, self.changelog)
        releases, ranges = logged.completed(batch.number, found, batch.ends, before.horizon)
        after = before.after(
            batch.number,
            counts,
            batch.ends,
            batch.asked,
            StreamRules(RETENTION_S),
            releases=releases,
        )
        return after, ranges

    def _show(self, batch: int, ranges: list[ReleasedRange], horizon: int) -> None:
        for one in ranges:
            assert one.commit_timestamp >= horizon, f"{one} is below the horizon"
            self.changelog.released.append((batch, one))
            for row in rows_of(one):
                if self.changelog.staged.get(row):
                    assert self.changelog.is_found(row, batch, one), f"no read finds {row}"
                    is_known = row in self.visible and row not in self.forgotten
                    assert not is_known, f"{row} has two commit timestamps"
                    self.visible[row].add(one.commit_timestamp)
                    self.shown += 1  # a row that was forgotten may be shown again

    def expire(self) -> None:
        """Remove the payload of expired rows, as `Changelog.expire` does, and check the laws."""
        before = self.simulation.clock - 2 * STAGING_RETENTION
        streams, removed = self.expiry(self.progress.releases, before, self.changelog)
        held = {one.stream for release in self.progress.releases.open for one in release.ranges}
        assert held.isdisjoint(streams), f"an open release of {held & streams} loses rows"
        for row, batches in [*self.changelog.staged.items(), *self.changelog.expired.items()]:
            if row.stream in streams and batches:
                assert self.read_at[max(batches)] < before, f"{row} expires too early"
                self.forgotten.add(row)
        for row, batch in removed:
            self.changelog.expired[row].add(batch)
            self.changelog.staged[row].remove(batch)
        releases = self.progress.releases.without(streams, len(removed))
        self.progress = replace(self.progress, releases=releases)
        assert self.changelog.rebuilt() == self.visible, "a rebuild is not the table"

    def may_complete(self, rows: list[Row]) -> bool:
        """Whether a release of these rows becomes complete without a replay: ingest took all of
        them, and forgot none.
        """
        lost = self.simulation.rejected_rows | self.forgotten
        return lost.isdisjoint(rows)

    def check(self, before: Progress) -> None:
        """The laws that hold after each batch. `before` is the progress before it."""
        progress, complete_to = self.progress, self.progress.consistent_to
        cut = progress.cut(self.simulation.clock, NEVER_STALLED_S)
        assert cut.low_watermark == complete_to, "two answers"
        assert (complete_to or 0) <= (progress.low_watermark or 0), "above the low watermark"
        assert (complete_to or 0) >= (before.consistent_to or 0), "the cut went back"
        for one in progress.releases.open:
            is_read = self.rows_end[one.commit_timestamp].is_contained(self.ends)
            if one.withheld is not Withheld.TOO_LATE:
                assert (one.withheld is Withheld.ROWS) == is_read, f"{one} is wrongly withheld"
        fresh_to = progress.freshness.time_of(progress.ingest_batch) or 0
        shown_at = {at for times in self.visible.values() for at in times}
        for release in self.simulation.committed:
            at, rows = release.commit_timestamp, rows_of_release(release)
            if self.is_visible(rows):
                continue
            assert at not in shown_at, f"only a part of {release} is visible"
            if release.stream_partition == LIVE and self.may_complete(rows):
                assert complete_to is None or complete_to <= at, f"{complete_to} passes {release}"
                assert fresh_to < self.simulation.arrived_at[at], (
                    f"{fresh_to} is too fresh: {release}"
                )
        assert progress.releases.released_rows == self.shown, "not all visible rows are counted"
        without_rows = sum(
            one.commit_timestamp not in shown_at
            or not self.forgotten.isdisjoint(rows_of_release(one))
            for one in self.simulation.committed
        )
        assert progress.releases.repeated <= without_rows, "a copy was counted as repeated"
        for release in self.simulation.unacknowledged:
            assert complete_to is None or complete_to <= release.commit_timestamp, (
                f"{complete_to} passes {release}, which is still to come"
            )

    def is_visible(self, rows: list[Row]) -> bool:
        return all(row in self.visible for row in rows)

    def finish(self) -> None:
        """Everything is read and replayed. The laws of the end. Then everything expires, twice."""
        self.simulation.finish()
        self.ingest(lambda: 1, goes_on=False)
        assert self.progress.consistent_to == self.progress.low_watermark, "withheld, and it holds"
        while self.simulation.to_replay:
            self.simulation.replay_all()
            self.ingest(lambda: 1, goes_on=False)
        progress = self.progress
        horizon = progress.horizon or 0
        for release in self.simulation.committed:
            rows = rows_of_release(release)
            is_live = release.stream_partition == LIVE
            if is_live and self.may_complete(rows):
                assert self.is_visible(rows), f"{release} is not visible"
            elif release.commit_timestamp >= horizon and self.forgotten.isdisjoint(rows):
                assert self.is_visible(rows), f"{release} is above the horizon and not visible"
        for one in progress.releases.open:
            if one.withheld is Withheld.TOO_LATE:
                assert one.commit_timestamp < horizon, f"{one} is not late"
            else:
                assert one.withheld is Withheld.ROWS, f"{one} still waits"
                rows = [row for range_ in one.ranges for row in rows_of(range_)]
                assert not self.forgotten.isdisjoint(rows), f"{one} has all its rows"
        reached = self.simulation.last_heartbeat + 1
        assert progress.low_watermark == reached, f"{progress.frontier} does not reach {reached}"
        assert progress.consistent_to == progress.low_watermark
        assert progress.freshness.time_of(progress.ingest_batch) == progress.freshness.newest
        for _ in range(2):
            self.simulation.clock += 3 * STAGING_RETENTION
            self.expire()
            open_ = {
                one.stream for release in self.progress.releases.open for one in release.ranges
            }
            assert self.progress.releases.streams.keys() <= open_, "not forgotten"
            removed = sum(map(len, self.changelog.expired.values()))
            assert self.progress.releases.expired == removed, "not all are counted"
            self.simulation.replay_again()
            self.ingest(lambda: 1, goes_on=False)
