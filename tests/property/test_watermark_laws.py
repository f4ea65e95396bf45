"""The frontier beside a world that knows what is still on its way (WMK-13,
`watermark_is_honest`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector.records.model import ChildPartitions, Record
from connector.watermarks.frontier import (
    UNKNOWN,
    BatchClaims,
    Frontier,
    LineageRecord,
    advance,
    join,
)
from connector.watermarks.lineage import Announcements
from tests.property import processes
from tests.property.deliveries import World, batches
from tests.property.processes import ProcessWorld

RETENTION = 20
LONG, SHORT = 300, 150
"""Steps of a world. Two short ones find more than a long one and take less time; some faults need
many generations.
"""
# A seed of it, since a generator whose every number Hypothesis draws is slow, and what it shrinks
# to is no simpler to read.
rngs = st.integers(0, 2**64 - 1).map(Random)
from_where = pytest.mark.parametrize(
    "late", [False, True], ids=["from the beginning", "from the middle"]
)


def is_honest(
    world: World,
    *,
    named: frozenset[str] = frozenset(),
    late: bool = False,
    steps: int = SHORT,
    misheard: Callable[[BatchClaims], BatchClaims] = lambda heard: heard,
) -> None:
    """No change arrives below the low watermark of the batch before, which never goes back and
    reaches the end.
    """
    frontier, horizon = UNKNOWN, None
    for changes, heard in batches(world.rng, world, steps=steps, late=late):
        low = frontier.low_watermark or 0
        frontier = advance(frontier, misheard(heard), now=0, horizon=horizon, roots=named)
        below = [change for change in changes if change.commit_timestamp < low]
        assert not below, f"{below} came below {low}"
        assert (frontier.low_watermark or 0) >= low, "the low watermark went back"
        horizon = None if frontier.low_watermark is None else frontier.low_watermark - RETENTION
    assert frontier.low_watermark == world.clock + 1, f"{frontier} ends before {world.clock + 1}"
    assert not frontier.undeclared
    assert frontier.uncovered() is None
    assert Frontier.from_json(frontier.to_json()) == frontier


@from_where
@pytest.mark.parametrize("roots", [1, 2])
def test_watermark_is_honest(roots: int, late: bool, seed: int) -> None:
    """WMK-1 to WMK-9, WMK-13: whatever the interleaving of Kafka partitions, with splits, merges
    and added Kafka partitions.
    """
    for number in range(40):
        world = World(Random(f"{seed}/{number}"), roots=roots)
        # One root that is read from the beginning need not be named.
        named = (
            frozenset(control.name for control in world.controls)
            if late or roots > 1
            else frozenset[str]()
        )
        is_honest(world, named=named, late=late, steps=SHORT if number % 8 else LONG)


@pytest.mark.parametrize(
    ("is_told", "dies", "late"),
    # Not among them: who reads from the middle learns nothing of a root that no process knows of
    # any more (decision 0010).
    [case for case in product([False, True], repeat=3) if case != (False, True, True)],
)
def test_watermark_is_honest_of_what_a_producer_announces(
    is_told: bool, dies: bool, late: bool, seed: int
) -> None:
    """WMK-6, REC-17: the low watermark becomes known, is honest and reaches the end, also where
    processes die and begin anew.
    """
    for number in range(16):
        world = ProcessWorld(Random(f"{seed}/{number}"), is_told=is_told, dies=dies)
        is_honest(
            world,
            named=world.named if late else frozenset(),
            late=late,
            steps=SHORT if number % 8 else LONG,
        )


def claims_everywhere(heard: BatchClaims) -> BatchClaims:
    """What is claimed in one Kafka partition is taken for true of all."""
    return replace(
        heard,
        claims={
            name: dict.fromkeys(range(9), max(claims.values()))
            for name, claims in heard.claims.items()
        },
    )


def ends_everywhere(heard: BatchClaims) -> BatchClaims:
    """An end that was read in one Kafka partition counts in all."""
    return replace(
        heard,
        lineage=tuple(replace(said, kafka_partition=k) for said in heard.lineage for k in range(9)),
    )


def overlooks_kafka_partitions(heard: BatchClaims) -> BatchClaims:
    """The low watermark is the least of those in the first Kafka partition."""
    return replace(heard, kafka_partitions=1)


def merges_at_one_report(heard: BatchClaims) -> BatchClaims:
    """The first parent that reports a merge ends them all."""
    return replace(
        heard, lineage=tuple(replace(said, record=_by_nobody(said)) for said in heard.lineage)
    )


def _by_nobody(said: LineageRecord) -> ChildPartitions:
    is_end = any(child.parent_partition_tokens for child in said.record.children)
    return replace(said.record, stream_partition="nobody") if is_end else said.record


@pytest.mark.parametrize(
    "misheard",
    [claims_everywhere, ends_everywhere, overlooks_kafka_partitions, merges_at_one_report],
)
def test_the_world_notices_a_watermark_that_lies(
    misheard: Callable[[BatchClaims], BatchClaims], seed: int
) -> None:
    """The check is tried itself: each way to get it wrong must be found."""
    with pytest.raises(AssertionError):
        for number in range(1000):
            is_honest(World(Random(f"{seed}/{number}")), misheard=misheard)


class DatedByTheClock(Announcements):
    """Announces who lives now, as far as it knows."""

    def due(self, record: Record, now: int) -> list[ChildPartitions]:
        # slots=True makes another class of it, which the short form of super() does not know.
        return [
            replace(announcement, start_timestamp=now)
            for announcement in Announcements.due(self, record, now)
        ]


class NamesOne(Announcements):
    """Names the first one only."""

    def due(self, record: Record, now: int) -> list[ChildPartitions]:
        return [
            replace(announcement, children=announcement.children[:1])
            for announcement in Announcements.due(self, record, now)
        ]


@pytest.mark.parametrize("announces", [DatedByTheClock, NamesOne])
def test_the_world_notices_an_announcement_that_lies(
    announces: type[Announcements], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "Announcements", announces)
    with pytest.raises(AssertionError):
        for number in range(1000):
            is_honest(ProcessWorld(Random(f"{seed}/{number}"), is_told=False, dies=False))


@settings(max_examples=50)
@given(rng=rngs)
def test_neither_batches_nor_repetition_matter(rng: Random) -> None:
    """WMK-6, WMK-7: read in one go, or in many with some read again, the same is known."""
    piecemeal, heard_so_far = UNKNOWN, [BatchClaims(1)]
    for _, heard in batches(rng, World(rng), steps=100):
        piecemeal = at_leisure(piecemeal, heard)
        assert at_leisure(piecemeal, rng.choice(heard_so_far)) == piecemeal
        heard_so_far.append(heard)
    at_once = at_leisure(UNKNOWN, together(heard_so_far))
    assert undated(at_once) == undated(piecemeal)


def undated(frontier: Frontier) -> Frontier:
    """Without the times of ends: an announcement may say as well as its own end when a stream
    partition ended.
    """
    return replace(
        frontier, ended={name: one._replace(at=0) for name, one in frontier.ended.items()}
    )


@settings(max_examples=50)
@given(rng=rngs)
def test_frontiers_join_in_any_order(rng: Random) -> None:
    """WMK-13: join is commutative, associative and idempotent."""
    frontier, seen = UNKNOWN, []
    for _, heard in batches(rng, World(rng), steps=60):
        frontier = at_leisure(frontier, heard)
        seen += [frontier, at_leisure(UNKNOWN, heard)]
    one, two, three = (rng.choice(seen) for _ in range(3))
    assert join(one, two) == join(two, one)
    assert join(one, join(two, three)) == join(join(one, two), three)
    assert join(one, one) == one


def at_leisure(frontier: Frontier, heard: BatchClaims) -> Frontier:
    return advance(frontier, heard, now=0)


def together(heard: list[BatchClaims]) -> BatchClaims:
    claims: dict[str, dict[int, int]] = {}
    for one in heard:
        for name, of_one in one.claims.items():
            known = claims.setdefault(name, {})
            known.update({k: max(known.get(k, 0), claim) for k, claim in of_one.items()})
    return BatchClaims(
        max(one.kafka_partitions for one in heard),
        claims,
        tuple(said for one in heard for said in one.lineage),
    )
