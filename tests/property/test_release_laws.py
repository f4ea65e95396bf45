"""Staged rows become visible together, beside a world with open transactions, batches that end
anywhere, and Kafka partitions that are added (WRS-15, WRS-17, WRS-18, WRS-20, `all_or_nothing`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector.records.model import ChildPartitions, Heartbeat, OffsetRange, Release
from connector.state.stream_progress import BatchCounts, Progress
from connector.tables.retention import Retention, is_too_late
from connector.watermarks.freshness import EndOffsets
from connector.watermarks.frontier import BatchClaims, LineageRecord
from connector.write_streams.releases import ReleasedRange, ReleaseProgress, Withheld
from tests.property.release_world import LIVE, ReleaseWorld, Row

RETENTION_S = 3
STEPS = 160
NEVER_STALLED_S = 10**9
UNRELIABLE = pytest.mark.parametrize("unreliable", [0.0, 0.05])
# As in `test_watermark_laws`: a world is drawn from one seed.
rngs = st.integers(0, 2**64 - 1).map(Random)

Changelog = Mapping[Row, int]
"""The staged rows of the changelog, with the first batch of each."""
Count = Callable[[ReleaseProgress, Changelog], Mapping[int, int]]
"""The counts of `ReleaseProgress.completed`."""


def count_rows(releases: ReleaseProgress, changelog: Changelog) -> dict[int, int]:
    """How many offsets inside the ranges are there, from the first batch that ingest reads."""
    first = releases.first_batch()
    if first is None:
        return {}
    return {
        n: sum(changelog.get(row, 0) >= first for one in wanted for row in rows_of(one))
        for n, wanted in enumerate(releases.wanted())
    }


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

    world: ReleaseWorld
    count: Count = count_rows
    progress: Progress = field(default_factory=Progress)
    ends: dict[int, int] = field(default_factory=dict)
    changelog: dict[Row, int] = field(default_factory=dict)
    visible: dict[Row, int] = field(default_factory=dict)
    rows_end: dict[int, EndOffsets] = field(default_factory=dict)
    """The end offsets when the first copy of a release was read, by its commit timestamp."""

    def ingest(self, share: Callable[[], float], *, goes_on: bool) -> None:
        """Read some part of each Kafka partition, and check the laws. If the world `goes_on`, there
        is an event between the choice of the offsets and the question for the end offsets.
        """
        start = dict(self.ends)
        for k in range(len(self.world.logs)):
            first = start.get(k, 0)
            self.ends[k] = first + round((self.world.stable(k, first) - first) * share())
        if all(end == start.get(k, 0) for k, end in self.ends.items()):
            return
        kafka_partitions = len(self.world.logs)
        if goes_on:
            self.world.step()
        asked = EndOffsets(self.world.clock, {k: len(log) for k, log in enumerate(self.world.logs)})
        number = self.progress.ingest_batch + 1
        counts = self._counted(number, start, kafka_partitions)
        batch = Batch(number, counts, dict(self.ends), asked)
        for release in counts.releases:
            self.rows_end.setdefault(release.commit_timestamp, asked)
        before = self.progress
        self.progress, ranges = self._after(before, batch)
        if number % 4 == 0:
            # A process that was killed reads the stored progress, and repeats the batch.
            stored: dict[str, Any] = json.loads(json.dumps(before.to_json()))
            again = Progress.from_json(stored, before.frontier)
            assert again == before, "read back"
            assert self._after(again, batch) == (self.progress, ranges), "not the same again"
        self._show(ranges, before.horizon or 0)
        self.check(before)

    def _counted(self, number: int, start: Mapping[int, int], width: int) -> BatchCounts:
        claims: dict[str, dict[int, int]] = defaultdict(dict)
        lineage, streams, releases = list[LineageRecord](), set[str](), list[Release]()
        staged = rejected = 0
        for k, end in self.ends.items():
            for sent in self.world.logs[k][start.get(k, 0) : end]:
                if not sent.is_committed:
                    continue
                match sent.record:
                    case Row() as row if sent.valid:
                        self.changelog.setdefault(row, number)
                        streams.add(row.stream)
                        staged += 1
                    case Row() as row:
                        self.world.rejected(row)
                        rejected += 1
                    case Release() as release:
                        if is_too_late(release, self.progress.horizon):
                            rejected += 1
                        else:
                            releases.append(release)
                    case Heartbeat(name, at):
                        claims[name][k] = max(claims[name].get(k, 0), at + 1)
                    case ChildPartitions() as record:
                        lineage.append(LineageRecord(k, width, record))
        return BatchCounts(
            heard=BatchClaims(width, claims, tuple(lineage)),
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
            Retention(RETENTION_S),
            frozenset(),
            releases=releases,
        )
        return after, ranges

    def _show(self, ranges: list[ReleasedRange], horizon: int) -> None:
        for one in ranges:
            assert one.commit_timestamp >= horizon, f"{one} is below the horizon"
            for row in rows_of(one):
                if row in self.changelog:
                    assert self.changelog[row] >= one.first_batch, f"no read finds {row}"
                    assert row not in self.visible, f"{row} has two commit timestamps"
                    self.visible[row] = one.commit_timestamp

    def check(self, before: Progress) -> None:
        """The laws that hold after each batch. `before` is the progress before it."""
        progress, complete_to = self.progress, self.progress.consistent_to
        cut = progress.cut(self.world.clock, NEVER_STALLED_S)
        assert cut.low_watermark == complete_to, "two answers"
        assert (complete_to or 0) <= (progress.low_watermark or 0), "above the low watermark"
        assert (complete_to or 0) >= (before.consistent_to or 0), "the cut went back"
        for one in progress.releases.open:
            is_read = self.rows_end[one.commit_timestamp].is_contained(self.ends)
            if one.withheld is not Withheld.TOO_LATE:
                assert (one.withheld is Withheld.ROWS) == is_read, f"{one} is wrongly withheld"
        fresh_to = progress.freshness.of(progress.ingest_batch) or 0
        shown_at = set(self.visible.values())
        for release in self.world.committed:
            at, rows = release.commit_timestamp, rows_of_release(release)
            if self.is_visible(rows):
                continue
            assert at not in shown_at, f"only a part of {release} is visible"
            if release.stream_partition == LIVE and self.world.rejected_rows.isdisjoint(rows):
                assert complete_to is None or complete_to <= at, f"{complete_to} passes {release}"
                assert fresh_to < self.world.arrived_at[at], f"{fresh_to} is too fresh: {release}"
        without_rows = sum(one.commit_timestamp not in shown_at for one in self.world.committed)
        assert progress.releases.repeated <= without_rows, "a copy was counted as repeated"
        for release in self.world.unacknowledged:
            assert complete_to is None or complete_to <= release.commit_timestamp, (
                f"{complete_to} passes {release}, which is still to come"
            )

    def is_visible(self, rows: list[Row]) -> bool:
        return all(row in self.visible for row in rows)

    def finish(self) -> None:
        """Everything is read and replayed. The laws of the end."""
        self.world.finish()
        self.ingest(lambda: 1, goes_on=False)
        assert self.progress.consistent_to == self.progress.low_watermark, "withheld, and it holds"
        while self.world.to_replay:
            self.world.replay_all()
            self.ingest(lambda: 1, goes_on=False)
        progress = self.progress
        horizon = progress.horizon or 0
        for release in self.world.committed:
            rows = rows_of_release(release)
            is_live = release.stream_partition == LIVE
            if is_live and self.world.rejected_rows.isdisjoint(rows):
                assert self.is_visible(rows), f"{release} is not visible"
            elif release.commit_timestamp >= horizon:
                assert self.is_visible(rows), f"{release} is above the horizon and not visible"
        assert {one.withheld for one in progress.releases.open} <= {Withheld.TOO_LATE}, "rows"
        assert all(one.commit_timestamp < horizon for one in progress.releases.open), "not late"
        assert progress.consistent_to == progress.low_watermark == self.world.last_heartbeat + 1
        assert progress.freshness.of(progress.ingest_batch) == progress.freshness.newest


def run(world: ReleaseWorld, count: Count = count_rows, steps: int = STEPS) -> Reader:
    reader, rng = Reader(world, count), world.rng

    def share() -> float:
        return rng.choice((0, 0, 1, rng.random()))

    for _ in range(steps):
        world.step()
        if rng.random() < 0.3:
            reader.ingest(share, goes_on=rng.random() < 0.3)
    reader.finish()
    return reader


@UNRELIABLE
@settings(max_examples=150)
@given(rng=rngs)
def test_the_rows_of_a_release_become_visible_together(unreliable: float, rng: Random) -> None:
    """WRS-15, WRS-17, WRS-18, WRS-20: all of them or none, once, and no cut passes a release that
    is still to come. A batch that runs again has the same result.
    """
    run(ReleaseWorld(rng, unreliable=unreliable))


def test_the_worlds_have_what_the_laws_are_about(seed: int) -> None:
    """Without these cases, the laws would say nothing."""
    seen: set[str] = set()
    for number in range(60):
        rng = Random(f"{seed}/{number}")
        world = ReleaseWorld(rng, unreliable=0.05 if number % 2 else 0)
        reader = run(world)
        releases = reader.progress.releases
        seen |= {one.withheld for one in releases.open}
        seen |= {"repeated"} if releases.repeated else set()
        seen |= {"rejected"} if world.rejected_rows else set()
        seen |= {"added"} if len(world.logs) > 2 else set()
        seen |= {one.stream_partition for one in world.committed}
        seen |= {"several"} if any(len(one.ranges) > 1 for one in world.committed) else set()
        seen |= {"visible"} if reader.visible else set()
    assert seen >= {Withheld.TOO_LATE, "repeated", "rejected", "added", LIVE, "several", "visible"}


# ── the checks themselves are tried ───────────────────────────────────────────────────────────────


def not_counted(releases: ReleaseProgress, changelog: Changelog) -> dict[int, int]:
    """Each release is complete when its first copy is read."""
    return {
        n: sum(one.upto - one.first for one in wanted) for n, wanted in enumerate(releases.wanted())
    }


def counted_by_write_stream(releases: ReleaseProgress, changelog: Changelog) -> dict[int, int]:
    """The rows of the write streams count, inside the ranges or not."""
    return {
        n: sum(row.stream in {one.stream for one in wanted} for row in changelog)
        for n, wanted in enumerate(releases.wanted())
    }


def is_noticed(law: str, seed: int, *, count: Count = count_rows, holds: bool = True) -> bool:
    """Whether the law fails in one of 300 worlds. Most need three."""
    for number in range(300):
        try:
            run(ReleaseWorld(Random(f"{seed}/{number}"), holds=holds), count)
        except AssertionError as error:
            if law in str(error):
                return True
    return False


@pytest.mark.parametrize("count", [not_counted, counted_by_write_stream])
def test_a_release_that_is_not_counted_row_by_row_is_noticed(count: Count, seed: int) -> None:
    """WRS-18: a canary."""
    assert is_noticed("only a part of", seed, count=count)


def test_a_heartbeat_that_does_not_wait_for_a_release_is_noticed(seed: int) -> None:
    """WRS-15: a canary."""
    assert is_noticed("passes", seed, holds=False)
