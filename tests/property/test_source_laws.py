"""Laws of the sequencers, in a world of a database, Debezium and a bridge that all die (SRC-2)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from connector.sources.by_transaction import ByTransaction
from connector.sources.position import SourcePosition
from tests.examples import tries
from tests.property.source_bridge import Bridge, states_by_time, without_empty
from tests.property.source_world import ENDS, Database, Topics, make, poison

MakeOne = Callable[..., ByTransaction]


def by_transaction(kind: MakeOne, most_records: int) -> Callable[..., ByTransaction]:
    def made(position: SourcePosition | None) -> ByTransaction:
        return kind(ENDS, position, max_clock_skew_s=600, most_records=most_records)

    return made


def check_cuts(database: Database, bridge: Bridge) -> None:
    """Every prefix by commit timestamp up to a claim is a state that the source had, in their
    order, and the end is the newest one (`cut_is_consistent`).
    """
    known = [without_empty(state) for state in database.states]
    states = states_by_time(bridge.sent)
    at = 0
    for time, state in sorted(states.items()):
        if time > bridge.reached[-1] + 1:
            break
        shown = without_empty(state)
        while at < len(known) and known[at] != shown:
            at += 1
        assert at < len(known), f"the state at {time} is none of the source's, or an earlier one"
    assert known[-1] == (without_empty(states[max(states)]) if states else {}), "the end"


def check_times(bridge: Bridge) -> None:
    """Each event of a transaction has one order, and each transaction one time (`resumable`)."""
    orders = dict[tuple[str, int], tuple[int, int]]()
    times = dict[str, int]()
    for released in bridge.sent:
        commit = released.event.commit
        if commit.transaction and released.count:
            order = released.commit_timestamp, released.tie_breaker
            assert orders.setdefault((commit.transaction, commit.sequence), order) == order
            time = released.commit_timestamp
            assert times.setdefault(commit.transaction, time) == time
    assert len(set(times.values())) == len(times), "two transactions have one time"


def check_counts(bridge: Bridge) -> None:
    """What is declared is what was sent, with all that was skipped left out (ING-2)."""
    declared, sent = dict[str, int](), dict[str, set[int]]()
    for released in bridge.sent:
        commit = released.event.commit
        if released.count:
            declared[commit.transaction] = max(released.count, declared.get(commit.transaction, 0))
            sent.setdefault(commit.transaction, set()).add(commit.sequence)
    assert {name: len(sequences) for name, sequences in sent.items()} == declared


def world(random: Random) -> tuple[Database, Topics]:
    return make(
        random, random.randrange(5, 40), deaths=random.randrange(3), added=random.randrange(3)
    )


def run(random: Random, kind: MakeOne = ByTransaction) -> tuple[Database, Bridge]:
    database, topics = world(random)
    most = random.choice((2, 3, 10, 1000))
    bridge = Bridge(topics, by_transaction(kind, most), random)
    bridge.run(random.randrange(4))
    return database, bridge


def test_prefixes_are_states_of_the_source_whatever_dies(seed: int) -> None:
    """SRC-2, `cut_is_consistent`, `resumable`, `newest_wins`."""
    for number in tries(3000, 150):
        database, bridge = run(Random(f"{seed} {number}"))
        try:
            check_cuts(database, bridge)
            check_times(bridge)
            check_counts(bridge)
        except AssertionError as error:
            raise AssertionError(f"{seed} {number}: {error}") from error
