"""The audit of a source, over a world of a database, Debezium and a bridge that all die (SRC-7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pytest

from connector.sources.audit import SourceAudit, SourceTopicAudit
from connector.sources.by_partition import ByPartition
from connector.sources.by_transaction import ByTransaction
from connector.sources.compact import Order, Orders
from connector.sources.finished import Finished
from connector.sources.model import (
    LSN,
    Commit,
    End,
    Event,
    ForeignRecord,
    Poison,
    Released,
    Row,
    Skipped,
    TopicPartition,
    TruncatedTable,
)
from connector.sources.position import SourcePosition
from connector.sources.queues import Arrived, Entry
from tests.examples import draws, tries
from tests.property.source_bridge import Bridge
from tests.property.source_world import ENDS, START, Topics, make, poison
from tests.property.test_source_laws import LOGS, by_transaction, check, leaves_out_an_end

TRUNCATED = {"uuid": ("4238365763 26",)}
"""Worlds in which a killed bridge once read a truncation of MySQL too late, because it had read a
later copy of it first.
"""


def audit_of(topics: Topics, bridge: Bridge, transactions: str = ENDS) -> list[SourceTopicAudit]:
    changes, letters = Orders(), Orders()
    for sent in bridge.sent:
        orders = letters if isinstance(sent.event, Poison) else changes
        order = Order(sent.commit_timestamp, sent.tie_breaker, sent.count)
        orders.add(sent.record.partition, sent.record.offset, order)
    position = bridge.position

    def read(topic: str, *, is_on: bool = False) -> Iterator[tuple[ForeignRecord, Event]]:
        for partition, records in topics.records.items():
            at = position.get(partition, 0)
            if partition[0] == topic:
                yield from records[at:] if is_on else records[:at]

    audit = SourceAudit(
        read, partial(read, is_on=True), changes, letters, transactions=transactions
    )
    return list(audit.results({topic for topic, _ in topics.records}))


def faults(audits: list[SourceTopicAudit]) -> dict[str, tuple[str, ...]]:
    """The kinds of faults that were found, with examples."""
    found = dict[str, tuple[str, ...]]()
    for audit in audits:
        total = audit.changes + audit.letters + audit.marks + sum(audit.left_out.values())
        assert audit.records == total + audit.missing, audit
        for kind, examples in (
            ("missing", audit.examples),
            ("doubled", audit.doubled_examples),
            ("disordered", audit.disordered_examples),
        ):
            if getattr(audit, kind):
                found[kind] = found.get(kind, ()) + examples
    return found


@pytest.mark.parametrize("log", [*LOGS, "none"])
def test_the_audit_of_a_bridge_finds_nothing(log: str, seed: int) -> None:
    """SRC-7, `nothing_lost`, `newest_wins`: Debezium and the bridge die, topics have several
    tables, and grow. The log may begin again. Also while the bridge waits, or has stopped.
    """
    for number in tries(250, 40):
        random = Random(f"{seed} {number}")
        again = (log == LSN and random.random() < 0.3,) * (random.random() < 0.3)
        database, topics = make(
            random,
            random.randrange(5, 40),
            kind=log,
            deaths=random.randrange(4),
            added=0 if again else random.randrange(3),
            begins_again=again,
            topics_of=random.choice((None, {"a": "t.ab", "b": "t.ab"})),
        )
        most = random.choice((2, 10, 1000)) if log == LSN else random.choice((10, 1000))
        made = by_transaction(ByTransaction, most, random.choice((5, 20, 100)))
        bridge = Bridge(topics, made, random)
        bridge.run(random.randrange(4))
        audits = audit_of(topics, bridge)
        found = faults(audits)
        is_whole = bridge.waiting is None and bridge.error is None
        if again and not is_whole:
            continue  # before it said so, it may have left out events, or released them alone
        if found and is_whole:
            with pytest.raises(AssertionError):  # the bridge is wrong, as other laws say, too
                check(database, bridge)
        else:
            assert not found, f"{seed} {number}: {found}"
        assert not any(audit.unverified for audit in audits), f"{seed} {number}"


@pytest.mark.parametrize("log", LOGS)
def test_letters_and_ends_that_are_not_there_are_no_faults(log: str, seed: int) -> None:
    """SRC-6, SRC-7: poison, and an end that was left out."""
    for drawn in draws(seed, tries(250, 30), *TRUNCATED.get(log, ())):
        random = Random(drawn)
        is_readable = random.random() < 0.5  # all copies of a record are poison, or none
        _, topics = make(
            random,
            random.randrange(5, 40),
            kind=log,
            deaths=random.randrange(3) * is_readable,
            change=leaves_out_an_end(random) if random.random() < 0.3 else list,
        )
        poison(topics, random, is_readable=is_readable)
        bridge = Bridge(topics, by_transaction(ByTransaction, 1000), random)
        bridge.run(random.randrange(4))
        assert not faults(audit_of(topics, bridge)), drawn


class ReleasesRepetitions(ByPartition):
    """Nothing is held."""

    def add(self, record: ForeignRecord, event: Event) -> None:
        super().add(record, event)
        for lane in self._lanes.values():
            lane.newest = None


@pytest.mark.parametrize("kind", [ByPartition, ReleasesRepetitions])
def test_the_audit_of_a_source_without_transactions(kind: type[ByPartition], seed: int) -> None:
    """SRC-4, SRC-7: it finds nothing, and notices repetitions that are published."""
    is_right, found = kind is ByPartition, dict[str, tuple[str, ...]]()
    for number in tries(250, 40):
        random = Random(f"{seed} {number}")
        _, topics = make(random, random.randrange(3, 30), deaths=random.randrange(3))
        del topics.records[ENDS, 0], topics.visible_after[ENDS, 0], topics.created_at[ENDS, 0]
        for records in topics.records.values():  # a truncation sent again has another partition
            records[:] = [
                (record, Skipped("T") if isinstance(event, TruncatedTable) else event)
                for record, event in records
            ]
        made = partial(kind, max_clock_skew_s=600)
        bridge = Bridge(topics, made, random)
        bridge.run(random.randrange(4))
        found = faults(audit_of(topics, bridge, ""))
        assert not (is_right and found), f"{seed} {number}: {found}"
        if found:
            return
    assert is_right, "the audit has found nothing"


class TakesRepeatedOnesAsNew(ByTransaction):
    """1: what was finished is not remembered, so its events and its ends are new."""

    def _is_finished(self, commit: Commit) -> bool:
        return False

    def _finish(self, event: End, arrived: Arrived, time: int) -> None:
        super()._finish(event, arrived, time)
        self._finished = Finished()


class RemembersNothingAfterADeath(ByTransaction):
    """1: the memory is not in the resume token."""

    def __init__(self, transactions: str, position: SourcePosition | None, **rest: Any) -> None:
        if position is not None:
            position = replace(
                position, recent=(), floors={}, floor_time=0, newest=(0, ()), ends={}
            )
        super().__init__(transactions, position, **rest)


class RemembersIdsAlone(ByTransaction):
    """2: an id that was seen is a repetition, although the log began again."""

    def _is_finished(self, commit: Commit) -> bool:
        return any(known.transaction == commit.transaction for known in self._finished.recent)

    def _add_end(self, record: ForeignRecord, event: Event) -> None:
        if isinstance(event, End) and self._is_finished(event.commit):
            self._end_next = record.offset + 1
        else:
            super()._add_end(record, event)


class DropsSmallerPositions(ByTransaction):
    """2: what is not behind the greatest position is a repetition."""

    def _is_finished(self, commit: Commit) -> bool:
        return commit.after < self._ends.get(commit.log, ())

    def _add_end(self, record: ForeignRecord, event: Event) -> None:
        if isinstance(event, End) and event.commit.after <= self._ends.get(event.commit.log, ()):
            self._end_next = record.offset + 1
        else:
            super()._add_end(record, event)


class CountsOneTableATopic(ByTransaction):
    """3: of several tables of a topic, the first one counts."""

    def _expected(self, end: End) -> End:
        names = [next(iter(sorted(tables)), "") for tables in self._tables.values()]
        counts = {table: number for table, number in end.counts.items() if table in names}
        return replace(end, count=sum(counts.values()), counts=counts)


class CountsTooFew(ByTransaction):
    """3: a transaction with several events is complete without its last one."""

    def _expected(self, end: End) -> End:
        end = super()._expected(end)
        return replace(end, count=max(1, end.count - 1), counts={})


class TruncatesOnArrival(ByTransaction):
    """4: a truncation of MySQL has the place where it was read."""

    def _as_transaction(self, record: ForeignRecord, event: TruncatedTable) -> TruncatedTable:
        return replace(event, commit=replace(event.commit, transaction=""))


class ForgetsThatTopicsGrew(ByTransaction):
    """5: neither the resume token nor the sequencer knows it."""

    def ends(self, offsets: Mapping[TopicPartition, int]) -> None:
        super().ends(offsets)
        self._grown_to.clear()

    def _is_behind_sent(self, entry: Entry) -> bool:
        return True


class WaitsForNoEvents(ByTransaction):
    """6: a transaction is released when its end was read."""

    def _fill(self, *_: object) -> bool:
        return True


class TakesContradictions(ByTransaction):
    """6: events that contradict their end are released with it."""

    def _reason_to_wait(
        self, record: ForeignRecord, event: End, arrived: Arrived, ahead: int
    ) -> str:
        reason = super()._reason_to_wait(record, event, arrived, ahead)
        return "" if reason == "count" else reason


class NeedsNoEnds(ByTransaction):
    """6: the events of a transaction without an end are released one by one."""

    def _may_lack_end(self, entry: Entry) -> bool:
        return True


class ReleasesAlone(ByTransaction):
    """Each event is released in the order of reading, without a transaction."""

    def add(self, record: ForeignRecord, event: Event) -> None:
        if not isinstance(event, Skipped | End):
            event = replace(event, commit=replace(event.commit, transaction=""))
        super().add(record, event)


class StandingClock(ByTransaction):
    """Several transactions get one commit timestamp."""

    def _next_time(self, record: ForeignRecord, commit: Commit) -> int:
        return max(self._time, commit.time)


class Altered(ByTransaction):
    """Changes what is released: `alter` receives what was released before, and what is released."""

    def __init__(self, *args: Any, **rest: Any) -> None:
        super().__init__(*args, **rest)
        self._before: Released | None = None

    def released(self, now: int) -> Iterator[Released]:
        for one in super().released(now):
            yield from self.alter(self._before, one)
            self._before = one

    def alter(self, before: Released | None, one: Released) -> Iterable[Released]:
        raise NotImplementedError


class DropsEvents(Altered):
    """A change is lost on its way."""

    def alter(self, before: Released | None, one: Released) -> Iterable[Released]:
        return () if one.count > 1 and one.tie_breaker == 2 else (one,)


class PublishesTwice(Altered):
    """An event is published again, with the next commit timestamp."""

    def alter(self, before: Released | None, one: Released) -> Iterable[Released]:
        yield one
        if one.count and one.tie_breaker == 1:
            yield replace(one, commit_timestamp=one.commit_timestamp + 1)


class SwapsTransactions(Altered):
    """Each transaction has the time of another one."""

    def alter(self, before: Released | None, one: Released) -> Iterable[Released]:
        time = one.commit_timestamp
        yield replace(one, commit_timestamp=START + 10**9 - time % 10**9) if one.count else one


class SplitsTransactions(Altered):
    """A transaction has several commit timestamps."""

    def alter(self, before: Released | None, one: Released) -> Iterable[Released]:
        late = one.count > 1 and one.tie_breaker == 2
        yield replace(one, commit_timestamp=one.commit_timestamp + late)


class DeclaresTooFew(Altered):
    """The changes of a transaction declare one less."""

    def alter(self, before: Released | None, one: Released) -> Iterable[Released]:
        yield replace(one, count=one.count - (one.count > 1))


class ForgetsSequences(Altered):
    """All events of a transaction have one tie breaker."""

    def alter(self, before: Released | None, one: Released) -> Iterable[Released]:
        yield replace(one, tie_breaker=1 if one.count else one.tie_breaker)


class SnapshotsFirst(Altered):
    """Rows of snapshots are before all transactions."""

    def alter(self, before: Released | None, one: Released) -> Iterable[Released]:
        yield one if one.count else replace(one, commit_timestamp=START - 1)


MUTANTS = (
    *(TakesRepeatedOnesAsNew, RemembersNothingAfterADeath, RemembersIdsAlone),
    *(DropsSmallerPositions, CountsOneTableATopic, CountsTooFew, TruncatesOnArrival),
    *(ForgetsThatTopicsGrew, WaitsForNoEvents, TakesContradictions, NeedsNoEnds, ReleasesAlone),
    *(StandingClock, DropsEvents, PublishesTwice, SwapsTransactions, SplitsTransactions),
    *(DeclaresTooFew, ForgetsSequences, SnapshotsFirst),
)


class UncheckedBridge(Bridge):
    """A bridge whose producer sends what it gets."""

    def check_time(self, released: Released) -> None:
        pass


def mutant_world(random: Random, kind: type[ByTransaction]) -> Topics:
    """A world in which a mutant does harm."""
    begins_again = kind in (RemembersIdsAlone, DropsSmallerPositions)
    _, topics = make(
        random,
        30,
        kind=random.choice(LOGS[kind is TruncatesOnArrival :]),
        deaths=3,
        added=0 if begins_again else 2,
        begins_again=(False,) * begins_again,
        topics_of={"a": "t.ab", "b": "t.ab"} if kind is CountsOneTableATopic else None,
        is_old=kind is TakesContradictions,
        change=leaves_out_an_end(random) if kind is NeedsNoEnds else list,
    )
    return topics


@pytest.mark.parametrize("kind", MUTANTS)
def test_the_audit_notices_a_wrong_sequencer(kind: type[ByTransaction], seed: int) -> None:
    """SRC-7, `nothing_lost`, `newest_wins`: within some worlds."""
    for number in range(600):
        random = Random(f"{seed} {number}")
        audits = audit_of(*mutant_run(random, kind))
        if faults(audits) or any(audit.unverified for audit in audits):
            return
    pytest.fail("the audit has found nothing")


def mutant_run(random: Random, kind: type[ByTransaction]) -> tuple[Topics, Bridge]:
    topics = mutant_world(random, kind)
    bridge = UncheckedBridge(topics, by_transaction(kind, 1000), random)
    bridge.run(3)
    return topics, bridge


@pytest.mark.parametrize(
    "kind",
    [
        *(TruncatesOnArrival, ForgetsThatTopicsGrew, NeedsNoEnds, StandingClock, PublishesTwice),
        *(SwapsTransactions, SplitsTransactions, DeclaresTooFew, ForgetsSequences, SnapshotsFirst),
    ],
)
def test_an_audit_of_ids_alone_notices_nothing(kind: type[ByTransaction], seed: int) -> None:
    """SRC-7: the mutants need an audit of the order. Each event has a change, or one with its id
    and sequence has.
    """
    for number in tries(200, 10):
        topics, bridge = mutant_run(Random(f"{seed} {number}"), kind)
        sent = {released.record[:3] for released in bridge.sent}
        read = [
            (record[:3] in sent, (event.table, event.commit.transaction, event.commit.sequence))
            for partition, records in topics.records.items()
            for record, event in records[: bridge.position.get(partition, 0)]
            if isinstance(event, Row | Poison) and event.commit.transaction
        ]
        known = {identity for is_sent, identity in read if is_sent}
        assert all(identity in known for _, identity in read), number
