"""The frontier beside a simulation that knows what is still on its way (WMK-13,
`watermark_is_honest`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count, pairwise, product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.records.model import ChildPartition, ChildPartitions, Record
from connector.watermarks import advance as rules
from connector.watermarks.advance import advance
from connector.watermarks.frontier import (
    UNKNOWN,
    Announcement,
    BatchClaims,
    Frontier,
    LineageRecord,
    join,
)
from connector.watermarks.lineage import Announcements
from connector.watermarks.stream_partition import UNBOUNDED, least
from tests.examples import draws, examples, tries
from tests.property import processes
from tests.property.deliveries import Begin, Simulation, batches
from tests.property.processes import ProcessSimulation

RETENTION = 20
omitted_in = rules._omitted_in
LONG, SHORT = 300, 150
"""Steps of a simulation. Two short ones find more than a long one and take less time; some faults
need many generations.
"""
# A seed of it, since a generator whose every number Hypothesis draws is slow, and what it shrinks
# to is no simpler to read.
rngs = st.integers(0, 2**64 - 1).map(Random)
from_where = pytest.mark.parametrize("begin", Begin, ids=lambda begin: begin.value)


def is_honest(
    simulation: Simulation,
    *,
    named: frozenset[str] = frozenset(),
    begin: Begin = Begin.FIRST,
    steps: int = SHORT,
    misheard: Callable[[BatchClaims], BatchClaims] = lambda heard: heard,
    ends: Callable[[Frontier], Iterable[str]] = lambda found: (),
) -> None:
    """No change arrives below the low watermark of the batch before, which never goes back and
    reaches the end, once the operator has closed what `ends` says.
    """
    found, horizon = UNKNOWN, None
    for changes, heard in batches(simulation.rng, simulation, steps=steps, begin=begin):
        low = found.low_watermark or 0
        found = advance(found, misheard(heard), now=0, horizon=horizon, roots=named)
        below = [change for change in changes if change.commit_timestamp < low]
        assert not below, f"{below} came below {low}"
        assert (found.low_watermark or 0) >= low, "the low watermark went back"
        horizon = None if found.low_watermark is None else found.low_watermark - RETENTION
    found = advance(
        found, BatchClaims(found.kafka_partitions), now=0, roots=named, ends=ends(found)
    )
    assert found.low_watermark == simulation.clock + 1, (
        f"{found} ends before {simulation.clock + 1}"
    )
    assert not found.undeclared, f"{found.undeclared} are undeclared"
    assert found.uncovered() is None
    assert Frontier.from_json(found.to_json()) == found


@from_where
@pytest.mark.parametrize("roots", [1, 2])
def test_watermark_is_honest(roots: int, begin: Begin, seed: int) -> None:
    """WMK-1 to WMK-9, WMK-13: whatever the interleaving of Kafka partitions, with splits, moves,
    merges, announcements in several parts, and Kafka partitions that are added before and after a
    reader begins.
    """
    late = begin is Begin.MIDDLE
    for number in tries(40, quick=4):
        simulation = Simulation(Random(f"{seed}/{number}"), roots=roots, steady=late)
        # One root that is read from the beginning need not be named.
        named = (
            frozenset(control.name for control in simulation.controls)
            if late or roots > 1
            else frozenset[str]()
        )
        is_honest(simulation, named=named, begin=begin, steps=SHORT if number % 4 else LONG)


@pytest.mark.parametrize(
    ("is_told", "dies", "begin"),
    # Not among them: who reads from the middle learns nothing of a root that no process knows of
    # any more (decision 0010).
    [
        case
        for case in product([False, True], [False, True], Begin)
        if case != (False, True, Begin.MIDDLE)
    ],
)
def test_watermark_is_honest_of_what_a_producer_announces(
    is_told: bool, dies: bool, begin: Begin, seed: int
) -> None:
    """WMK-6, REC-17: the low watermark becomes known, is honest and reaches the end, also where
    processes end and start again.

    A root that died with its process announces no more. Who reads from the middle may have missed
    the end of a stream partition below it, and waits until the operator closes it (decision 0010).
    """

    def of_dead_roots(found: Frontier) -> list[str]:
        live = {one.name for one in simulation.producers if not one.has_ended}
        return [
            name
            for name, partition in found.partitions.items()
            if name not in live and not partition.roots <= simulation.announced
        ]

    for drawn in draws(seed, tries(20, quick=2), "582313202/0"):
        simulation = ProcessSimulation(Random(drawn), is_told=is_told, dies=dies)
        is_honest(
            simulation,
            named=simulation.named if begin is Begin.MIDDLE else frozenset(),
            begin=begin,
            steps=SHORT if int(drawn.split("/")[1]) % 4 else LONG,
            ends=of_dead_roots if dies and begin is Begin.MIDDLE else lambda found: (),
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


def waits_for_added_kafka_partitions(heard: BatchClaims) -> BatchClaims:
    """An end counts when it was read in all Kafka partitions, however many it was sent to."""
    return replace(
        heard,
        lineage=tuple(
            replace(said, kafka_partitions=heard.kafka_partitions) for said in heard.lineage
        ),
    )


def merges_at_one_report(heard: BatchClaims) -> BatchClaims:
    """The first parent that reports a merge ends them all."""
    return replace(
        heard, lineage=tuple(replace(said, record=_by_nobody(said)) for said in heard.lineage)
    )


def _by_nobody(said: LineageRecord) -> ChildPartitions:
    is_end = any(child.parent_partition_tokens for child in said.record.children)
    return replace(said.record, stream_partition="nobody") if is_end else said.record


@pytest.mark.parametrize(
    ("misheard", "law"),
    [
        (claims_everywhere, "came below"),
        (ends_everywhere, "came below"),
        (overlooks_kafka_partitions, "came below"),
        (merges_at_one_report, "came below"),
        (waits_for_added_kafka_partitions, "ends before"),
    ],
)
def test_the_simulation_notices_a_wrong_watermark(
    misheard: Callable[[BatchClaims], BatchClaims], law: str, seed: int
) -> None:
    """The check is tried itself: each way to get it wrong must be found."""
    with pytest.raises(AssertionError, match=law):
        for drawn in draws(seed, range(1000)):
            is_honest(Simulation(Random(drawn)), misheard=misheard)


def omitted_once(
    name: str, introduced_at: int, newest_first: list[tuple[int, Announcement]]
) -> object:
    """A stream partition ends with the first part of an announcement that omits it."""
    later = Announcement(frozenset(["nobody"]), dict.fromkeys(range(9), 9))
    return omitted_in(name, introduced_at, [(UNBOUNDED, later), *newest_first])


def last_part(one: Announcement, other: Announcement) -> Announcement:
    """A part of an announcement takes the place of the others."""
    return Announcement(other.live, least(one.read_in, other.read_in))


@pytest.mark.parametrize(
    ("of", "rule", "wrong", "found"),
    [(rules, "_omitted_in", omitted_once, "1/12"), (Announcement, "join", last_part, "1/12")],
)
def test_the_simulation_notices_a_wrong_rule_of_parts(
    of: object,
    rule: str,
    wrong: Callable[..., object],
    found: str,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """WMK-6: a canary."""
    monkeypatch.setattr(of, rule, wrong)
    with pytest.raises(AssertionError, match=r"came below|ends before"):
        for drawn in draws(seed, range(1000), found):
            is_honest(Simulation(Random(drawn)))


class DatedByTheClock(Announcements):
    """Announces who lives now, as far as it knows."""

    def due(self, record: Record, now: int, *, is_automatic: bool = False) -> list[ChildPartitions]:
        # slots=True makes another class of it, which the short form of super() does not know.
        return [
            replace(announcement, start_timestamp=now)
            for announcement in Announcements.due(self, record, now, is_automatic=is_automatic)
        ]


class NamesOne(Announcements):
    """Names the first one only."""

    def due(self, record: Record, now: int, *, is_automatic: bool = False) -> list[ChildPartitions]:
        return [
            replace(announcement, children=announcement.children[:1])
            for announcement in Announcements.due(self, record, now, is_automatic=is_automatic)
        ]


@pytest.mark.parametrize(
    ("announces", "found"),
    [(DatedByTheClock, "1/4"), (NamesOne, "1/88")],  # of 300 simulations, one notices NamesOne
)
def test_the_simulation_notices_a_wrong_announcement(
    announces: type[Announcements], found: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WMK-6: a canary."""
    monkeypatch.setattr(processes, "Announcements", announces)
    with pytest.raises(AssertionError):
        for drawn in draws(seed, range(1000), found):
            is_honest(ProcessSimulation(Random(drawn), is_told=False, dies=False))


class CompletedByTheTimer(Announcements):
    """A heartbeat of the timer means that all parts are sent."""

    def due(self, record: Record, now: int, *, is_automatic: bool = False) -> list[ChildPartitions]:
        if is_automatic:
            self.complete(now)
        return Announcements.due(self, record, now, is_automatic=is_automatic)


def test_the_simulation_notices_a_timer_that_completes_announcements(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WMK-6: a canary."""
    monkeypatch.setattr(processes, "Announcements", CompletedByTheTimer)
    with pytest.raises(AssertionError, match=r"came below|ends before"):
        for drawn in draws(seed, range(1000)):
            is_honest(ProcessSimulation(Random(drawn), is_told=True, dies=False))


def does_not_grow(rng: Random, *, ranged: bool) -> None:
    """Stream partitions split, move and merge between the lives of a producer. A life announces
    some of the live ones as roots of their own, and those that nobody has announced. In some
    simulations, most of them stay as they are for many lives.
    """
    found, live, k = UNKNOWN, [("n", 0, 256)], (0, 1, 2)
    again, fates = rng.choice((0.7, 0.1)), ("stay",) * rng.choice((1, 9))
    seen_at: dict[str, int] = {}

    def child(name: str, first: int, end: int, *parents: str) -> ChildPartition:
        keys = (bytes([first][:first]), bytes([end] if end < 256 else [])) if ranged else ()
        return ChildPartition(name, parents, *keys)

    def heard(claims: dict[str, int], records: list[ChildPartitions]) -> BatchClaims:
        of_all = {name: dict.fromkeys(k, claim) for name, claim in claims.items()}
        lineage = tuple(LineageRecord(one, len(k), record) for record in records for one in k)
        return BatchClaims(len(k), of_all, lineage)

    for life in range(40):
        at, horizon = 100 * (life + 1), (found.low_watermark or 0) - 500
        announced = [one for one in live if life == 0 or rng.random() < again]
        begins = [ChildPartitions(one[0], at, 0, (child(*one),)) for one in announced]
        seen_at |= {name: at for name, _, _ in announced}
        claims = {name: at + 50 for name, _, _ in live}
        found = advance(found, heard(claims, begins), now=0, horizon=horizon)
        assert found.low_watermark == at + 50, "the low watermark does not move"
        assert not found.undeclared, "nobody has announced a live one"
        left, live, ends, numbers = deque(live), [], list[ChildPartitions](), count()
        while left:
            parents = [left.popleft()]
            what = rng.choice((*fates, "move", "split", "merge"))
            if what == "merge" and left:
                parents.append(left.popleft())
            if what == "stay":
                live += parents
                continue
            first, end = parents[0][1], parents[-1][2]
            middle = (first + end) // 2
            edges = [first, middle, end] if what == "split" and middle > first else [first, end]
            children = [(f"{life}-{next(numbers)}", *keys) for keys in pairwise(edges)]
            live += children
            tokens = [name for name, _, _ in parents]
            said = tuple(child(*one, *tokens) for one in children)
            ends += [ChildPartitions(name, at + 60, 0, said) for name in tokens]
            seen_at |= dict.fromkeys(tokens, at + 60)
        found = advance(found, heard({}, ends), now=0, horizon=horizon)
        recent = sum(at >= horizon for at in seen_at.values())
        roots = {root for root, _ in found.announcements}
        assert len(roots) <= recent + 2 * len(live), "roots are kept for ever"


@pytest.mark.parametrize("ranged", [False, True])
@examples(10)
@given(rng=rngs)
def test_a_frontier_does_not_grow_with_the_lives_of_a_producer(ranged: bool, rng: Random) -> None:
    """WMK-9, WMK-13: its size depends on the live stream partitions and those since the horizon."""
    does_not_grow(rng, ranged=ranged)


def without_all_old_roots(facts: Frontier, horizon: int, roots: frozenset[str]) -> Frontier:
    gone = {root for root, start in dict(sorted(facts.announcements)).items() if start < horizon}
    return replace(
        facts,
        partitions={
            name: replace(one, roots=one.roots - gone) for name, one in facts.partitions.items()
        },
        announcements={
            said: one for said, one in facts.announcements.items() if said[0] not in gone
        },
    )


@pytest.mark.parametrize(
    ("rule", "wrong", "law"),
    [
        ("_without_old_roots", lambda facts, horizon, roots: facts, "kept for ever"),
        ("_without_old_roots", without_all_old_roots, "nobody has announced"),
        ("_connecting", lambda partitions, old, newest: set(), "does not move"),
    ],
)
def test_roots_that_are_wrongly_kept_or_forgotten_are_noticed(
    rule: str, wrong: Callable[..., object], law: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WMK-9: a canary."""
    monkeypatch.setattr(rules, rule, wrong)
    with pytest.raises(AssertionError, match=law):
        for drawn in draws(seed, range(1000)):
            does_not_grow(Random(drawn), ranged=True)


@examples(50)
@given(rng=rngs)
def test_neither_batches_nor_repetition_matter(rng: Random) -> None:
    """WMK-6, WMK-7: read in one go, or in many with some read again, the same is known."""
    piecemeal, heard_so_far = UNKNOWN, [BatchClaims(1)]
    for _, heard in batches(rng, Simulation(rng), steps=100):
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


@examples(50)
@given(rng=rngs)
def test_frontiers_join_in_any_order(rng: Random) -> None:
    """WMK-13: join is commutative, associative and idempotent."""
    frontier, seen = UNKNOWN, []
    for _, heard in batches(rng, Simulation(rng), steps=60):
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
