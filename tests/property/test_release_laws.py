"""Staged rows become visible together, beside a simulation with open transactions, batches that end
anywhere, Kafka partitions that are added, and rows that expire (WRS-15, WRS-17, WRS-18, WRS-20,
WRS-21, `all_or_nothing`).
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.watermarks import stream_partition
from connector.write_streams.releases import ReleaseProgress, Withheld
from tests.examples import draws, examples
from tests.property.release_reader import (
    Changelog,
    Count,
    Expiry,
    Reader,
    count_rows,
    expire_rows,
    rows_of,
)
from tests.property.release_simulation import LIVE, ReleaseSimulation, Row

STEPS = 160
UNRELIABLE = pytest.mark.parametrize("unreliable", [0.0, 0.05])
# As in `test_watermark_laws`: a simulation is drawn from one seed.
rngs = st.integers(0, 2**64 - 1).map(Random)


def run(
    simulation: ReleaseSimulation,
    count: Count = count_rows,
    expiry: Expiry = expire_rows,
    steps: int = STEPS,
    before: int = 0,
) -> Reader:
    """A reader begins after `before` steps."""
    reader, rng = Reader(simulation, count, expiry), simulation.rng
    for _ in range(before):
        simulation.step()

    def share() -> float:
        return rng.choice((0, 0, 1, rng.random()))

    for _ in range(steps):
        simulation.step()
        if rng.random() < 0.3:
            reader.ingest(share, goes_on=rng.random() < 0.3)
        if rng.random() < 0.1:
            reader.expire()
    reader.finish()
    return reader


@UNRELIABLE
@examples(150, quick=10)
@given(rng=rngs, before=st.sampled_from((0, 0, 60)))
def test_the_rows_of_a_release_become_visible_together(
    unreliable: float, rng: Random, before: int
) -> None:
    """WRS-15, WRS-17, WRS-18, WRS-20, WRS-21: all of them or none, once, and no cut passes a
    release that is still to come. A batch that runs again has the same result. Rows that expire
    before their release never become visible, and those that are visible stay so. In the end, the
    low watermark is where the heartbeats are, whatever commits ended before Kafka partitions were
    added (WMK-7).
    """
    run(ReleaseSimulation(rng, unreliable=unreliable), before=before)


def test_the_simulations_have_all_cases_of_the_laws(seed: int) -> None:
    """Without these cases, the laws would say nothing."""
    seen: set[str] = set()
    for number, drawn in enumerate(draws(seed, range(60), "2051766974/9"), 1):
        simulation = ReleaseSimulation(Random(drawn), unreliable=0.05 if number % 2 else 0)
        reader = run(simulation)
        releases = reader.progress.releases
        seen |= {one.withheld for one in releases.open}
        seen |= {"repeated"} if releases.repeated else set()
        seen |= {"rejected"} if simulation.rejected_rows else set()
        seen |= {"added"} if len(simulation.logs) > 2 else set()
        seen |= {one.stream_partition for one in simulation.committed}
        seen |= {"several"} if any(len(one.ranges) > 1 for one in simulation.committed) else set()
        seen |= {"visible"} if reader.visible else set()
        seen |= {"refused"} if simulation.refused else set()
        rows = [
            {row for one in release.ranges for row in rows_of(one)}
            for release in simulation.committed
        ]
        expired = {row for row, batches in reader.changelog.expired.items() if batches}
        seen |= {"expired"} if any(one & expired for one in rows) else set()
        seen |= (
            {"partly expired"} if any(one & expired and one - expired for one in rows) else set()
        )
    assert seen >= {Withheld.TOO_LATE, "repeated", "rejected", "added", LIVE, "several", "visible"}
    assert seen >= {Withheld.ROWS, "refused", "expired", "partly expired"}


# ── the checks themselves are tried ───────────────────────────────────────────────────────────────


def not_counted(releases: ReleaseProgress, changelog: Changelog) -> dict[int, int]:
    """Each release is complete when its first copy is read."""
    return {
        n: sum(one.upto - one.first for one in wanted) for n, wanted in enumerate(releases.wanted())
    }


def counted_by_write_stream(releases: ReleaseProgress, changelog: Changelog) -> dict[int, int]:
    """The rows of the write streams count, inside the ranges or not."""
    return {
        n: sum(
            bool(batches) and row.stream in {one.stream for one in wanted}
            for row, batches in changelog.staged.items()
        )
        for n, wanted in enumerate(releases.wanted())
    }


def counted_with_expired_rows(releases: ReleaseProgress, changelog: Changelog) -> dict[int, int]:
    """The offsets of rows whose payload was removed count, too."""
    return {
        n: sum(
            bool(changelog.staged.get(row) or changelog.expired.get(row))
            for one in wanted
            for row in rows_of(one)
        )
        for n, wanted in enumerate(releases.wanted())
    }


def counted_with_forgotten_rows(releases: ReleaseProgress, changelog: Changelog) -> dict[int, int]:
    """Rows count that were read before ingest forgot their write stream."""
    return {
        n: sum(bool(changelog.staged.get(row)) for one in wanted for row in rows_of(one))
        for n, wanted in enumerate(releases.wanted())
    }


def expired_in_part(
    releases: ReleaseProgress, before: int, changelog: Changelog
) -> tuple[AbstractSet[str], AbstractSet[tuple[Row, int]]]:
    """Some rows of a release that is complete expire, too."""
    streams, removed = expire_rows(releases, before, changelog)
    odd = {
        (row, batch)
        for row, batches in changelog.staged.items()
        if row.stream in streams and row.offset % 2
        for batch in batches
    }
    return streams, removed | odd


def expired_with_forgotten_rows(
    releases: ReleaseProgress, before: int, changelog: Changelog
) -> tuple[AbstractSet[str], AbstractSet[tuple[Row, int]]]:
    """Rows expire that were released before ingest forgot their write stream."""
    gone = releases.forgettable(before)
    return gone.keys(), {
        (row, batch)
        for row, batches in changelog.staged.items()
        if row.stream in gone
        and not any(first <= row.offset < upto for first, upto in gone[row.stream].released)
        for batch in batches
    }


def expired_beside_releases(
    releases: ReleaseProgress, before: int, changelog: Changelog
) -> tuple[AbstractSet[str], AbstractSet[tuple[Row, int]]]:
    """Rows expire while their release waits for others."""
    return expire_rows(replace(releases, open=()), before, changelog)


def is_noticed(
    law: str,
    seed: int,
    *,
    count: Count = count_rows,
    expiry: Expiry = expire_rows,
    holds: bool = True,
    unreliable: float = 0.0,
) -> bool:
    """Whether the law fails in one of 300 simulations. Most need three."""
    for drawn in draws(seed, range(300)):
        simulation = ReleaseSimulation(Random(drawn), unreliable=unreliable, holds=holds)
        try:
            run(simulation, count, expiry)
        except AssertionError as error:
            if law in str(error):
                return True
    return False


@pytest.mark.parametrize("count", [not_counted, counted_by_write_stream, counted_with_expired_rows])
def test_a_release_that_is_not_counted_row_by_row_is_noticed(count: Count, seed: int) -> None:
    """WRS-18, WRS-21: a canary."""
    assert is_noticed("only a part of", seed, count=count)


def test_a_count_of_rows_that_ingest_forgot_is_noticed(seed: int) -> None:
    """WRS-18, WRS-21: a canary. A release of such rows would show them twice."""
    assert is_noticed("no read finds", seed, count=counted_with_forgotten_rows)


@pytest.mark.parametrize(
    ("expiry", "law"),
    [
        (expired_in_part, "a rebuild is not the table"),
        (expired_with_forgotten_rows, "a rebuild is not the table"),
        (expired_beside_releases, "an open release"),
    ],
)
def test_an_expiry_of_other_rows_is_noticed(expiry: Expiry, law: str, seed: int) -> None:
    """WRS-21: a canary."""
    assert is_noticed(law, seed, expiry=expiry, unreliable=0.05)


def test_a_commit_that_is_waited_for_in_added_kafka_partitions_is_noticed(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WMK-7: a canary."""
    monkeypatch.setattr(
        stream_partition, "is_read_everywhere", lambda read_in: read_in.keys() >= set(range(4))
    )
    assert is_noticed("does not reach", seed)


def test_a_heartbeat_that_does_not_wait_for_a_release_is_noticed(seed: int) -> None:
    """WRS-15: a canary."""
    assert is_noticed("passes", seed, holds=False)
