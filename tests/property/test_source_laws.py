"""Laws of the sequencers, in a world of a database, Debezium and a bridge that all die (SRC-2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random

import pytest

from connector.sources.by_partition import ByPartition
from connector.sources.by_transaction import ByTransaction
from connector.sources.model import (
    Commit,
    End,
    Event,
    ForeignRecord,
    Poison,
    Row,
    Skipped,
    TruncatedTable,
)
from connector.sources.position import SourcePosition
from tests.examples import tries
from tests.property.source_bridge import Bridge, key_text, states_by_time, without_empty
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


def check(database: Database, bridge: Bridge) -> None:
    check_cuts(database, bridge)
    check_times(bridge)
    check_counts(bridge)


def test_prefixes_are_states_of_the_source_whatever_dies(seed: int) -> None:
    """SRC-2, `cut_is_consistent`, `resumable`, `newest_wins`: partitions are read in any order,
    get more, and repeat records. Debezium and the bridge die.
    """
    for number in tries(4000, 120):
        database, bridge = run(Random(f"{seed} {number}"))
        try:
            check(database, bridge)
        except AssertionError as error:
            raise AssertionError(f"{seed} {number}: {error}") from error


def test_the_order_of_reading_changes_no_commit_timestamp(seed: int) -> None:
    """SRC-2, `resumable`: two bridges give a transaction the same time, if they began alike."""
    for number in tries(500, 20):
        random = Random(f"{seed} {number}")
        database, topics = world(random)
        times = list[dict[str, int]]()
        for _ in range(2):
            bridge = Bridge(topics, by_transaction(ByTransaction, 5), random)
            bridge.run(random.randrange(3))
            check(database, bridge)
            began = bridge.reached[0] if bridge.reached else 0
            found = {r.event.commit.transaction: r.commit_timestamp for r in bridge.sent if r.count}
            times.append({"began": began, **found})
        if times[0]["began"] == times[1]["began"]:
            assert times[0] == times[1], number


class WithoutCount(ByTransaction):
    """Releases a transaction as soon as its end is read."""

    def _fill(self, *_: object) -> bool:
        return True


class StandingClock(ByTransaction):
    """Gives transactions their commit times, which are neither unique nor in order."""

    def _next_time(self, record: ForeignRecord, commit: Commit) -> int:
        return max(self._time, commit.time)


class ByTopic(ByTransaction):
    """Releases events in the order in which they are read."""

    def add(self, record: ForeignRecord, event: Event) -> None:
        if not isinstance(event, Skipped | End):
            commit = replace(event.commit, transaction="")
            event = replace(event, commit=commit)
        super().add(record, event)


@pytest.mark.parametrize("kind", [WithoutCount, StandingClock, ByTopic])
def test_a_wrong_order_is_noticed(kind: type[ByTransaction], seed: int) -> None:
    """SRC-2: the checks can fail."""
    for number in range(60):
        random = Random(f"{seed} {number}")
        try:
            check(*run(random, kind))
        except AssertionError:
            return
    pytest.fail("no check has failed")


def replay(bridge: Bridge, rows: Mapping[tuple[object, ...], Row]) -> None:
    """Put the rows of poison in its place, with the times that were assigned."""
    for index, released in enumerate(bridge.sent):
        if isinstance(released.event, Poison):
            row = rows[released.record[:3]]
            order = row.commit.sequence if released.count else released.tie_breaker
            bridge.sent[index] = replace(released, event=row, tie_breaker=order)


def test_poison_takes_its_turn(seed: int) -> None:
    """SRC-6, `poison_is_contained`: rows that cannot be read are released with the times that they
    would have. If they are replayed, all prefixes are states of the source.
    """
    for number in tries(1000, 40):
        random = Random(f"{seed} {number}")
        is_readable = random.random() < 0.5
        # A copy that Debezium sends again cannot be told from another event.
        database, topics = make(random, 25, deaths=2 * is_readable, added=1)
        rows = poison(topics, random, is_readable=is_readable)
        bridge = Bridge(topics, by_transaction(ByTransaction, 1000), random, skips=not is_readable)
        bridge.run(random.randrange(3))
        replay(bridge, rows)
        states = states_by_time(bridge.sent)
        assert without_empty(states[max(states)]) == without_empty(database.states[-1]), number
        if is_readable:
            check(database, bridge)


def test_an_operator_publishes_a_transaction_that_lacks_events(seed: int) -> None:
    """SRC-2, `nothing_lost`: an event never comes. Without it, nothing of its transaction is
    released. If an operator skips it, all else is.
    """
    for number in tries(300, 15):
        random = Random(f"{seed} {number}")
        _, topics = make(random, 20)
        lost = [
            (partition, index)
            for partition, records in topics.records.items()
            for index, (_, event) in enumerate(records)
            if isinstance(event, Row) and event.commit.transaction
        ]
        if not lost:
            continue
        partition, index = random.choice(lost)
        record, event = topics.records[partition][index]
        topics.records[partition][index] = record, Skipped("LOST")
        waiting = Bridge(topics, by_transaction(ByTransaction, 1000), random)
        waiting.run(1)
        assert all(r.event.commit.transaction != event.commit.transaction for r in waiting.sent)
        bridge = Bridge(topics, by_transaction(ByTransaction, 1000), random, skips=True)
        bridge.run(2)
        assert bridge.skipped
        sent = {(r.record.partition, r.record.offset) for r in bridge.sent}
        for other, records in topics.records.items():
            for record, kept in records:
                is_sent = isinstance(kept, Row | TruncatedTable)
                assert ((other, record.offset) in sent) == is_sent, (number, other, record.offset)


def test_a_partition_is_an_order_without_a_transaction_topic(seed: int) -> None:
    """SRC-4, `newest_wins`, `resumable`: in each partition, times rise, and are the same after each
    death. The newest event of each key wins.
    """
    for number in tries(1000, 40):
        random = Random(f"{seed} {number}")
        _, topics = make(random, random.randrange(3, 30))
        del topics.records[ENDS, 0], topics.visible_after[ENDS, 0], topics.created_at[ENDS, 0]
        for records in topics.records.values():
            records[:] = [
                (record, Skipped("T") if isinstance(event, TruncatedTable) else event)
                for record, event in records
            ]

        def made(position: SourcePosition | None) -> ByPartition:
            return ByPartition(position, max_clock_skew_s=600)

        bridge = Bridge(topics, made, random)
        bridge.run(random.randrange(4))
        times = dict[tuple[object, ...], int]()
        for released in bridge.sent:
            time = times.setdefault(released.record[:3], released.commit_timestamp)
            assert time == released.commit_timestamp, number
        for partition, records in topics.records.items():
            ordered = [times[record[:3]] for record, event in records if isinstance(event, Row)]
            assert ordered == sorted(set(ordered)), (number, partition)
        newest = dict[tuple[str, str], Row]()
        for partition in sorted(topics.records):
            for _, event in topics.records[partition]:
                if isinstance(event, Row):
                    newest[event.table, key_text(event)] = event
        states = states_by_time(bridge.sent)
        shown = states[max(states)] if states else {}
        for (table, key), event in newest.items():
            assert (key in shown.get(table, {})) == (not event.deleted), number
