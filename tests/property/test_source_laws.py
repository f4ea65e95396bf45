"""Laws of the sequencers, in a world of a database, Debezium and a bridge that all die (SRC-2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random

import pytest

from connector.sources.by_partition import ByPartition
from connector.sources.by_transaction import ByTransaction
from connector.sources.model import (
    BINLOG,
    LSN,
    Commit,
    End,
    Event,
    ForeignRecord,
    Poison,
    Row,
    Skipped,
    TopicPartition,
    TruncatedTable,
)
from connector.sources.position import SourcePosition
from tests.examples import draws, tries
from tests.property.source_bridge import Bridge, key_text, states_by_time, without_empty
from tests.property.source_world import ENDS, Database, Emit, Topics, make, poison

MakeOne = Callable[..., ByTransaction]


LOGS = (LSN, BINLOG, "uuid", "domain")
"""PostgreSQL, MySQL, and GTIDs of MySQL and of MariaDB."""


LATE = "TRUNCATION_LATE"
FOUND = {BINLOG: ("1 15", "350107344/5"), "uuid": ("2286409200 11",)}
"""Worlds whose log begins again, and in which a truncation of MySQL once had a wrong place."""
GROWN = {
    LSN: ("2", "5", "249", "1000", "last/134"),
    BINLOG: ("0", "15", "2182", "1047912678/11"),
    "uuid": ("0", "16"),
    "domain": ("8",),
}
"""Worlds in which a row of a second snapshot was once released too early, or an event of the old
log in a transaction of the new one, or a transaction of the new log was dropped.
"""
DROPPED = {LSN: ("23",), BINLOG: ("30", "111"), "uuid": ("30",), "domain": ("9", "1/10")}
"""Worlds in which a transaction once waited for events that had been dropped."""
COUNTED = {LSN: ("377", "1179", "1203", "lt/94"), BINLOG: ("630",), "domain": ("630",)}
"""Worlds in which an event that was counted again was once dropped."""
SKIPPED = {
    LSN: ("26", "49"),
    BINLOG: ("43", "91", "148", "242"),
    "uuid": ("scanC/173",),
    "domain": ("52", "148"),
}
"""Worlds in which an operator once could not publish a transaction, or did so twice, or in which a
late truncation took the time of a transaction that was published in parts.
"""


def by_transaction(
    kind: MakeOne, most_records: int, most_recent: int = 100
) -> Callable[..., ByTransaction]:
    def made(position: SourcePosition | None) -> ByTransaction:
        return kind(
            ENDS,
            position,
            max_clock_skew_s=600,
            reads={"other": False}.get,  # of the others it is not known
            most_records=most_records,
            most_recent=most_recent,
        )

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
    orders = dict[tuple[str, int, int], tuple[int, int]]()
    times = dict[tuple[str, int], int]()
    for released in bridge.sent:
        commit = released.event.commit
        if commit.transaction and released.count:
            name = commit.transaction, commit.time  # a log that began again has the same ids
            order = released.commit_timestamp, released.tie_breaker
            assert orders.setdefault((*name, commit.sequence), order) == order, name
            time = released.commit_timestamp
            assert times.setdefault(name, time) == time, name
    assert len(set(times.values())) == len(times), "two transactions have one time"


def check_counts(bridge: Bridge) -> None:
    """What is declared is what was sent, with all that was skipped left out (ING-2)."""
    declared, sent = dict[tuple[str, int], int](), dict[tuple[str, int], set[int]]()
    for released in bridge.sent:
        commit = released.event.commit
        name = commit.transaction, commit.time
        if released.count:
            declared[name] = max(released.count, declared.get(name, 0))
            sent.setdefault(name, set()).add(commit.sequence)
    assert {name: len(sequences) for name, sequences in sent.items()} == declared


def world(random: Random, log: str = LSN) -> tuple[Database, Topics]:
    return make(
        random,
        random.randrange(5, 40),
        kind=log,
        deaths=random.randrange(3),
        added=random.randrange(3),
        topics_of=random.choice((None, {"a": "t.ab", "b": "t.ab"})),
    )


def run(
    random: Random, kind: MakeOne = ByTransaction, log: str = LSN, least: int = 0
) -> tuple[Database, Bridge]:
    database, topics = world(random, log)
    # In small queues, rows of an incremental snapshot without a position may be in the way.
    most = random.choice((2, 3, 10, 1000)) if log == LSN else random.choice((10, 1000))
    recent = random.choice((5, 20, 100))
    bridge = Bridge(topics, by_transaction(kind, max(most, least), recent), random)
    bridge.run(random.randrange(4))
    return database, bridge


def check(database: Database, bridge: Bridge) -> None:
    assert bridge.error is None, bridge.error
    assert bridge.waiting is None, bridge.waiting
    assert not has_letter(bridge, "EVENT_LATE"), "a repetition"
    check_cuts(database, bridge)
    check_times(bridge)
    check_counts(bridge)


def check_or_says(database: Database, bridge: Bridge) -> str:
    """The stream is that of the source, or the bridge has stopped or waits. Return for what."""
    if bridge.error is not None:
        return bridge.error.code
    if bridge.waiting is not None:
        return bridge.waiting.reason
    if has_letter(bridge, LATE):  # Kafka had lost it, and got it again behind later transactions
        return LATE
    check(database, bridge)
    return ""


def has_letter(bridge: Bridge, rule: str = "") -> bool:
    return any(isinstance(r.event, Poison) and rule in ("", r.event.rule) for r in bridge.sent)


@pytest.mark.parametrize("log", LOGS)
def test_prefixes_are_states_of_the_source_whatever_dies(log: str, seed: int) -> None:
    """SRC-2, `cut_is_consistent`, `resumable`, `newest_wins`: partitions are read in any order,
    get more, have the rows of several tables, and repeat records from any place on. Debezium and
    the bridge die. An event that is sent again far behind a later transaction may be out of the
    reach of a small queue: then the bridge waits for it, and a larger queue has it.
    """
    for drawn in draws(seed, tries(250, 30), "1/578"):
        database, bridge = run(Random(drawn), log=log)
        try:
            said = check_or_says(database, bridge)
            if said == "events":
                said = check_or_says(*run(Random(drawn), log=log, least=1000))
            assert said in ("", LATE)
        except AssertionError as error:
            raise AssertionError(f"{drawn}: {error}") from error


@pytest.mark.parametrize("log", LOGS)
def test_a_log_that_begins_again_loses_nothing(log: str, seed: int) -> None:
    """SRC-2, `nothing_lost`: the positions are smaller, and the ids may be used again. The stream
    is that of the source, or the bridge waits or stops. It does not, if the clock goes on, the
    bridge had read all of the old log, and no transaction is repeated that it has forgotten.
    """
    for drawn in draws(seed, tries(250, 20), *FOUND.get(log, ())):
        random = Random(drawn)
        is_back, recent = random.random() < 0.3, random.choice((5, 100))
        follows = not is_back and random.random() < 0.5
        database, bridge = begun_again(
            random, log, is_back=is_back, follows=follows, most_recent=recent
        )
        try:
            said = check_or_says(database, bridge)
            assert not follows or recent < 100 or said in ("", LATE), said
        except AssertionError as error:
            raise AssertionError(f"{drawn}: {error}") from error


@pytest.mark.parametrize("log", LOGS)
def test_a_second_snapshot_of_topics_that_grow_has_its_place(log: str, seed: int) -> None:
    """SRC-2, `newest_wins`: Debezium reads the tables again, and older changes of a row are in
    another Kafka partition. If the log goes on, the bridge neither waits nor stops.
    """
    for drawn in draws(seed, tries(250, 40), *GROWN.get(log, ())):
        random = Random(drawn)
        goes_on, added = random.random() < 0.3, random.randrange(1, 4)
        is_back = not goes_on and random.random() < 0.3
        follows = random.random() < 0.3
        database, bridge = begun_again(
            random, log, is_back=is_back, follows=follows, added=added, goes_on=goes_on
        )
        try:
            said = check_or_says(database, bridge)
            assert not goes_on or said in ("", LATE), said
        except AssertionError as error:
            raise AssertionError(f"{drawn}: {error}") from error


@pytest.mark.parametrize("log", LOGS)
def test_a_transaction_does_not_wait_for_events_that_were_dropped(log: str, seed: int) -> None:
    """SRC-2, `nothing_lost`: the log begins again under a clock that goes back, and the bridge has
    forgotten older transactions. It stops, or waits for one that it remembers. It never advises to
    publish a transaction without the events that it dropped.
    """
    for drawn in draws(seed, tries(250, 20), *DROPPED.get(log, ())):
        random = Random(drawn)
        most_recent, follows = random.choice((3, 5, 20)), random.random() < 0.5
        _, bridge = begun_again(random, log, is_back=True, follows=follows, most_recent=most_recent)
        waiting = bridge.waiting if bridge.error is None else None
        assert waiting is None or waiting.reason != "events", drawn


def begun_again(
    random: Random,
    log: str,
    *,
    is_back: bool,
    follows: bool,
    added: int = 0,
    goes_on: bool = False,
    most_recent: int = 100,
) -> tuple[Database, Bridge]:
    """A world whose log begins again, or goes on behind another snapshot, and its bridge. If it
    follows, it had read all that was before.
    """
    bridge = Bridge(Topics(), by_transaction(ByTransaction, 1000, most_recent), random)

    def read(topics: Topics) -> None:
        bridge.topics = topics
        if follows:
            bridge.run(random.randrange(3))

    database, _ = make(
        random,
        random.randrange(5, 40),
        kind=log,
        deaths=random.randrange(3),
        added=added,
        begins_again=(is_back,) * random.randrange(1, 3),
        goes_on=goes_on,
        after_each=read,
    )
    bridge.run(random.randrange(4))
    return database, bridge


@pytest.mark.parametrize("log", LOGS)
def test_a_transaction_that_is_never_whole_waits(log: str, seed: int) -> None:
    """SRC-2, `nothing_lost`: an end is left out, or an old Debezium counts again from 1."""
    found = Counter[str]()
    for drawn in draws(seed, tries(250, 20)):
        random = Random(drawn)
        is_old = random.random() < 0.5
        _, topics = make(
            random,
            random.randrange(5, 40),
            kind=log,
            deaths=random.randrange(1, 3),
            is_old=is_old,
            change=list if is_old else leaves_out_an_end(random),
        )
        bridge = Bridge(topics, by_transaction(ByTransaction, random.choice((5, 1000))), random)
        bridge.run(random.randrange(4))
        if bridge.waiting is None:
            check_all_are_sent(topics, bridge)
        found["" if bridge.waiting is None else bridge.waiting.reason] += 1
    assert found["end"] or found["count"]


@pytest.mark.parametrize("log", LOGS)
def test_events_that_are_counted_again_are_never_dropped(log: str, seed: int) -> None:
    """SRC-2, `nothing_lost`: an old Debezium counts again from 1, and some tables are not read. All
    else is sent, also if an operator publishes each transaction that waits. An event that comes
    behind its transaction is a dead letter.
    """
    for drawn in draws(seed, tries(250, 40), *COUNTED.get(log, ())):
        random = Random(drawn)
        database, topics = make(
            random,
            random.randrange(5, 40),
            kind=log,
            deaths=random.randrange(1, 4),
            added=random.choice((0, 0, 1)),
            is_old=True,
        )
        made = by_transaction(ByTransaction, random.choice((5, 1000)), random.choice((5, 100)))
        bridge = Bridge(topics, made, random, skips=random.random() < 0.7)
        bridge.run(random.randrange(4))
        try:
            if bridge.error is None and bridge.waiting is None:
                check_all_are_sent(topics, bridge)
                if not bridge.skipped and not has_letter(bridge):
                    check(database, bridge)
        except AssertionError as error:
            raise AssertionError(f"{drawn}: {error}") from error


def leaves_out_an_end(random: Random) -> Callable[[list[Emit]], list[Emit]]:
    """The end of one transaction is not sent. It is not the first one: that could be deleted."""

    def change(emits: list[Emit]) -> list[Emit]:
        ends = [i for i, e in enumerate(emits) if isinstance(e.event, End) and e.event.count]
        if len(ends) < 2:
            return emits
        left_out = random.choice(ends[1:])
        return emits[:left_out] + emits[left_out + 1 :]

    return change


def check_all_are_sent(topics: Topics, bridge: Bridge) -> None:
    """Each event was sent, by its key and its position."""
    sent = {identity(released.record, released.event) for released in bridge.sent}
    for records in topics.records.values():
        for record, event in records:
            if isinstance(event, Row | TruncatedTable) and event.commit.transaction:
                assert identity(record, event) in sent, (record, event)


def identity(record: ForeignRecord, event: Event) -> tuple[object, ...]:
    return record.topic, record.key, event.commit.at


def test_the_order_of_reading_changes_no_commit_timestamp(seed: int) -> None:
    """SRC-2, `resumable`: two bridges give a transaction the same time, if they began alike."""
    for number in tries(250, 20):
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
    for number in tries(250, 40):
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


@pytest.mark.parametrize("log", LOGS)
def test_an_operator_publishes_what_waits_in_small_queues(log: str, seed: int) -> None:
    """SRC-2, `nothing_lost`, `newest_wins`: an end or an event never comes, and Debezium and the
    bridge die. All else is sent, and what Debezium sends again changes nothing.
    """
    for drawn in draws(seed, tries(250, 40), *SKIPPED.get(log, ())):
        random = Random(drawn)
        what = random.choice(("end", "event", ""))
        database, topics = make(
            random,
            random.randrange(5, 40),
            kind=log,
            deaths=random.randrange(3),
            added=random.choice((0, 0, 1)),
            change=leaves_out_an_end(random) if what == "end" else list,
        )
        if what == "event":
            lose_an_event(topics, random)
        made = by_transaction(ByTransaction, random.choice((2, 3, 4, 5)), random.choice((5, 100)))
        bridge = Bridge(topics, made, random, skips=True)
        bridge.run(random.randrange(4))
        try:
            assert bridge.error is None, bridge.error
            assert bridge.waiting is None or not bridge.waiting.can_be_skipped, bridge.waiting
            if bridge.waiting is None:
                check_all_are_sent(topics, bridge)
            if bridge.waiting is None and not has_letter(bridge):
                check_times(bridge)
                # In a topic that grows, an event may come behind a later one of its row.
                is_ordered = not any(number > 1 for _, number in topics.created_at)
                if what != "event" and is_ordered and not truncates_without_an_end(topics):
                    states = states_by_time(bridge.sent)
                    shown = states[max(states)] if states else {}
                    assert without_empty(shown) == without_empty(database.states[-1])
        except AssertionError as error:
            raise AssertionError(f"{drawn}: {error}") from error


def lose_an_event(topics: Topics, random: Random) -> None:
    """No copy of one event is a row."""
    rows = [
        (event.commit.transaction, event.commit.sequence)
        for records in topics.records.values()
        for _, event in records
        if isinstance(event, Row) and event.commit.transaction
    ]
    lost = random.choice(rows or [("", 0)])
    for records in topics.records.values():
        for index, (record, event) in enumerate(records):
            is_row = isinstance(event, Row) and bool(event.commit.transaction)
            if is_row and (event.commit.transaction, event.commit.sequence) == lost:
                records[index] = record, Skipped("LOST")


def truncates_without_an_end(topics: Topics) -> bool:
    """Whether a truncation is in a transaction without an end: its place among the other events is
    not known.
    """
    ended = {event.commit.transaction for _, event in topics.records.get((ENDS, 0), ())}
    return any(
        isinstance(event, TruncatedTable) and event.commit.transaction not in {"", *ended}
        for records in topics.records.values()
        for _, event in records
    )


def test_a_partition_is_an_order_without_a_transaction_topic(seed: int) -> None:
    """SRC-4, `newest_wins`, `resumable`: in each partition, times rise, and are the same after each
    death. All is sent, also if topics get Kafka partitions while the first rows are read. The
    newest event of each key wins, if the key stays in its partition.
    """
    for number in tries(250, 40):
        random = Random(f"{seed} {number}")
        _, topics = make(random, random.randrange(3, 30), added=random.choice((0, 1, 3)))
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
            assert not released.count, number
            time = times.setdefault(released.record[:3], released.commit_timestamp)
            assert time == released.commit_timestamp, number
        for partition, records in topics.records.items():
            ordered = [times[record[:3]] for record, event in records if isinstance(event, Row)]
            assert ordered == sorted(set(ordered)), (number, partition)
        newest = dict[tuple[str, str], Row]()
        partitions = dict[tuple[str, str], set[TopicPartition]]()
        for partition in sorted(topics.records):
            for _, event in topics.records[partition]:
                if isinstance(event, Row):
                    key = event.table, key_text(event)
                    newest[key] = event
                    partitions.setdefault(key, set()).add(partition)
        states = states_by_time(bridge.sent)
        shown = states[max(states)] if states else {}
        for (table, name), event in newest.items():
            if len(partitions[table, name]) == 1:
                assert (name in shown.get(table, {})) == (not event.deleted), number
