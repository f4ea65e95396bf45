"""Accounts for every event of a source: that it came out once, at its place (SRC-7).

Theory. The change of a record has an order: a commit timestamp, a tie breaker, and the number of
changes of its transaction. The events of a source, and the ends of its transactions, say which
order is right. So an audit needs no sequencer, and compares:

- Each event was published, is a dead letter, is left out by a rule, or is a repetition: an event
  with the same table, transaction, positions, time and key was published, or will be. Without a
  position, the sequence counts. An id and a sequence alone prove nothing, because a log that begins
  again uses them again.
- No event has two orders. Without a transaction, it may: a bridge that was killed sends it again.
- A transaction has one commit timestamp. They rise in the order of the first ends. The events of a
  transaction that has an end are published in it, unless all of their topic came later.
- The count that changes declare is that of the end, as far as the topics are read.
- An event without a transaction is behind those before it in its partition. A row of a snapshot is
  above the earlier events of its key, and below the later ones. A truncation of MySQL is between
  the transactions between which it is in the log. Positions tell it, and if the log began again or
  there are none, commit times that are clearly apart. If the clock went back, it is not known.
- Without ends, the orders of each partition rise.

The topics are read once, and again if there is something to compare: at most three times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from connector.records.views import Viewed
from connector.sources.changes import location_of
from connector.sources.compact import Ended, Line, Order, Orders, place_of
from connector.sources.model import (
    LSN,
    End,
    Event,
    ForeignRecord,
    Poison,
    Row,
    Skipped,
    TopicPartition,
    TruncatedTable,
)
from connector.sources.position import Placed, placed

FEW: Final = 5
_TIE: Final = 0xFFFF_FFFF
_NEVER: Final = 1 << 62
_APART_MS: Final = 10_000
"""What is apart by more has the order of the commit times."""
Read = Callable[[str], Iterator[tuple[ForeignRecord, Event]]]
"""Yields events of a topic, in the order of each Kafka partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTopicAudit(Viewed):
    """The records of a topic of a source up to the position of the bridge, each counted once
    (SRC-7).

    - `changes`, `letters` and `marks` are published changes, dead letters, and ends of
      transactions.
    - `left_out` are those without a change by rule, for example `TOMBSTONE`. `REPETITION`: the
      source sent an event again.
    - `missing` have no change and no dead letter. `unverified`: the same, but Kafka may have
      deleted the evidence; or no end in Kafka, and no earlier transaction, shows that they belong
      where they were published. `examples` names some.
    - `doubled` were published at several places of the order. `disordered` are events and ends of
      transactions that were published at a place which is not that of the source.
    """

    topic: str
    records: int = 0
    changes: int = 0
    letters: int = 0
    marks: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)
    missing: int = 0
    unverified: int = 0
    examples: tuple[str, ...] = ()
    doubled: int = 0
    doubled_examples: tuple[str, ...] = ()
    disordered: int = 0
    disordered_examples: tuple[str, ...] = ()


class _Doubt(NamedTuple):
    """A row of a snapshot that may have a wrong place: its position (0: not known), its commit time
    (ms), and the commit timestamp that was assigned to it.
    """

    point: int
    record: ForeignRecord
    ms: int
    commit_timestamp: int


class _Account:
    """The account of a topic: a number and the first few locations of each kind of fault."""

    def __init__(self) -> None:
        self.counts, self.left_out = Counter[str](), Counter[str]()
        self.examples: dict[str, list[str]] = {}
        self.absent: dict[int, list[tuple[int, int]]] = {}
        self.late: dict[int, list[tuple[int, str]]] = {}
        self.first = _NEVER
        self.has_snapshot = False

    def fault(self, kind: str, location: str, number: int = 1) -> None:
        self.counts[kind] += number
        examples = self.examples.setdefault(kind, [])
        if len(examples) < FEW:
            examples.append(location)


class SourceAudit:
    """The audit of one source.

    Args:
        read: Reads the events of a topic, up to the position of the bridge. It is called up to
            three times for a topic.
        read_on: Reads those from there on.
        changes: The orders of the records that have changes.
        letters: The orders of those that have dead letters.
        transactions: The topic of transactions, or empty.
        truncated: The topics whose first records Kafka has deleted.
        is_whole: Whether Kafka has all changes.
    """

    def __init__(
        self,
        read: Read,
        read_on: Read,
        changes: Orders,
        letters: Orders,
        *,
        transactions: str = "",
        truncated: Collection[str] = (),
        is_whole: bool = True,
    ) -> None:
        self._read, self._read_on = read, read_on
        self._changes, self._letters = changes, letters
        self._transactions, self._truncated, self._is_whole = transactions, truncated, is_whole
        self._ended, self._unread_ends = Ended(), transactions in truncated
        self._accounts: dict[str, _Account] = {}
        self._tables: dict[str, int] = {}
        self._least_time = _NEVER
        self._by_place: Line | None = None
        self._by_time: Line | None = None
        self._newest: dict[TopicPartition, int] = {}
        self._lanes: dict[TopicPartition, Placed] = {}
        self._truncations: dict[int, tuple[str, str, int, int, int]] = {}
        self._twice: dict[int, dict[int, set[tuple[int, int]]]] = {}

    def results(self, topics: Collection[str]) -> tuple[SourceTopicAudit, ...]:
        """Return the account of each topic."""
        self._accounts = {topic: _Account() for topic in topics}
        for topic in sorted(topics, key=lambda topic: topic != self._transactions):
            for record, event in self._read(topic):
                self._take(self._accounts[topic], record, event)
        self._by_place, self._by_time = self._ended.by_place(), self._ended.by_time()
        for topic, account in self._accounts.items():
            self._check_late(account)
            if account.absent or self._twice or account.has_snapshot:
                self._read_again(topic, account)
        if self._by_place is not None:
            self._check_truncations(self._by_place)
        if self._transactions in self._accounts:
            self._check_ends(self._accounts[self._transactions])
        return tuple(self._result(topic, account) for topic, account in self._accounts.items())

    # The first reading

    def _take(self, account: _Account, record: ForeignRecord, event: Event) -> None:
        account.counts["records"] += 1
        kind, order = self._order(record)
        if isinstance(event, End):
            self._ended.add(event)
        elif record.topic == self._transactions and isinstance(event, Poison):
            self._unread_ends = True
        if order is not None:
            account.counts[kind] += 1
            at = record.partition, record.offset
            is_moved = at in self._changes.moved or at in self._letters.moved
            if is_moved and event.commit.transaction:  # poison may have none
                account.fault("doubled", location_of(record))
            elif order.is_known:
                self._check_order(account, record, event, order)
        elif isinstance(event, End):
            account.counts["marks"] += 1
        elif isinstance(event, Skipped):
            account.left_out[event.rule] += 1
            number = self._ended.of_event(event.commit) if event.commit.transaction else None
            if number is not None and self._ended.see(number, event.commit.sequence):
                self._ended.skipped[number] += 1
        else:
            where = record.kafka_partition, record.offset
            account.absent.setdefault(_identity(record, event), []).append(where)

    def _order(self, record: ForeignRecord) -> tuple[str, Order | None]:
        if (order := self._changes.order_of(record)) is not None:
            return "changes", order
        return "letters", self._letters.order_of(record)

    def _check_order(
        self, account: _Account, record: ForeignRecord, event: Event, order: Order
    ) -> None:
        """Compare the order of a published event with the source."""
        commit, partition, time = event.commit, record.partition, order.commit_timestamp
        if not self._transactions:
            self._place_in_lane(account, record, event, order)
        elif _is_truncation_of_mysql(event):
            self._add_truncation(account, record, event, time)
        elif not commit.transaction or (isinstance(event, Row) and event.is_snapshot):
            account.has_snapshot |= isinstance(event, Row) and event.is_snapshot
            is_poison = isinstance(event, Poison)  # it may take the place of an event
            if (order.declared and not is_poison) or (
                not order.declared and time <= self._newest.get(partition, 0)
            ):
                account.fault("disordered", location_of(record))
        elif (number := self._ended.of_event(commit)) is None:
            if not self._unread_ends:
                account.fault("disordered" if order.declared else "unverified", location_of(record))
        elif order.declared:
            self._place_in_transaction(account, record, event, order, number)
        else:
            if not self._ended.see(number, commit.sequence):
                self._twice.setdefault(hash((number, commit.sequence)), {})
            account.late.setdefault(number, []).append((time, location_of(record)))

    def _place_in_transaction(
        self, account: _Account, record: ForeignRecord, event: Event, order: Order, number: int
    ) -> None:
        ended, commit, time = self._ended, event.commit, order.commit_timestamp
        is_new = ended.see(number, commit.sequence)
        if not is_new:
            self._twice.setdefault(hash((number, commit.sequence)), {})
        tie_breaker = (commit.sequence or record.offset) & _TIE
        ended.times[number] = ended.times[number] or time
        if is_new and (time, tie_breaker) != (ended.times[number], order.tie_breaker):
            account.fault("disordered", location_of(record))
        ended.declared[number] = max(ended.declared[number], order.declared)
        if commit.log != LSN and (point := place_of(commit.at)):
            ended.points[number] = min(ended.points[number] or point, point)
        account.first = min(account.first, number)
        if isinstance(event, Row | TruncatedTable | Poison):
            self._tables[event.table] = min(self._tables.get(event.table, number), number)
        self._least_time = min(self._least_time, time)
        partition = record.partition
        self._newest[partition] = max(self._newest.get(partition, 0), time)

    def _place_in_lane(
        self, account: _Account, record: ForeignRecord, event: Event, order: Order
    ) -> None:
        partition, commit, time = record.partition, event.commit, order.commit_timestamp
        if time <= self._newest.get(partition, 0):
            account.fault("disordered", location_of(record))
        self._newest[partition] = time
        if not commit.after or (isinstance(event, Row) and event.is_snapshot):
            return
        newest = self._lanes.get(partition)
        is_back = newest is not None and (commit.log, commit.time <= newest.time) == (
            newest.log,
            True,
        )
        if newest is not None and is_back and commit.after < newest.after:
            self._twice.setdefault(_identity(record, event), {})
        else:
            self._lanes[partition] = placed(commit, newest)

    def _add_truncation(
        self, account: _Account, record: ForeignRecord, event: Event, time: int
    ) -> None:
        if isinstance(event, TruncatedTable) and self._letters.order_of(record) is None:
            where, identity = location_of(record), _identity(record, event)
            point, ms = place_of(event.commit.at), event.commit.time // 1000
            earlier = self._truncations.setdefault(identity, (record.topic, where, point, ms, time))
            if earlier[-1] != time:
                account.fault("doubled", where)

    # What is known when all topics are read

    def _check_late(self, account: _Account) -> None:
        """Find events that were published without their transaction, although their topic did not
        come later than that. If no transaction was published before, it is not sure: the bridge
        may have had no topic of transactions.
        """
        for number, events in account.late.items():
            for time, location in events:
                if number >= account.first or time <= self._ended.times[number]:
                    account.fault("disordered", location)
                elif time <= self._least_time:
                    account.fault("unverified", location)

    def _read_again(self, topic: str, account: _Account) -> None:
        """Find what is a repetition, what was published twice, and rows of snapshots that are not
        between the transactions before and after them.
        """
        doubtful: dict[int, list[_Doubt]] = {}
        for record, event in self._read(topic):
            order = self._order(record)[1]
            if order is None:
                continue
            identity = _identity(record, event)
            self._find_again(account, event, identity)
            if self._twice and order.is_known:
                self._compare(account, record, event, order, identity)
            if isinstance(event, Row) and (doubt := self._doubt(record, event, order)):
                doubtful.setdefault(_key(record, event), []).append(doubt)
        if account.absent:  # the first one may wait in a Kafka partition that is not read so far
            for record, event in self._read_on(topic):
                self._find_again(account, event, _identity(record, event))
        if doubtful:
            self._check_rows(topic, account, doubtful)

    def _find_again(self, account: _Account, event: Event, identity: int) -> None:
        if account.absent and _may_come_again(event):
            account.left_out["REPETITION"] += len(account.absent.pop(identity, ()))

    def _compare(
        self, account: _Account, record: ForeignRecord, event: Event, order: Order, identity: int
    ) -> None:
        """Compare events that have one sequence of one transaction."""
        key = identity
        if self._transactions:
            key = hash((self._ended.of_event(event.commit), event.commit.sequence))
        if (identities := self._twice.get(key)) is None:
            return
        orders = identities.setdefault(identity, set())
        point = order.commit_timestamp, order.tie_breaker
        if orders and point not in orders:
            account.fault("doubled", location_of(record))
        elif not orders and len(identities) > 1:
            account.fault("disordered", location_of(record))
        orders.add(point)

    def _doubt(self, record: ForeignRecord, event: Row, order: Order) -> _Doubt | None:
        """Return a row of a snapshot, if an earlier transaction was published above it, or a later
        one below it.
        """
        if not (event.is_snapshot and order.is_known):
            return None
        commit, time = event.commit, order.commit_timestamp
        point = place_of(commit.after if commit.log == LSN else commit.at)
        if not event.is_incremental or self._by_place is None:
            point = 0
        before = after = None
        if self._by_place is not None and point:
            before, after = self._by_place.around(point)
        elif self._by_time is not None and commit.time:
            before, after = self._by_time.around(commit.time // 1000, _APART_MS)
        if self._is_between(time, before, after):
            return None
        return _Doubt(point, record, commit.time // 1000, time)

    def _check_rows(
        self, topic: str, account: _Account, doubtful: Mapping[int, list[_Doubt]]
    ) -> None:
        wrong = set[str]()
        for record, event in self._read(topic):
            order = self._order(record)[1]
            if order is None or not order.declared or not isinstance(event, Row):
                continue
            for doubt in doubtful.get(_key(record, event), ()):
                is_below = order.commit_timestamp < doubt.commit_timestamp
                location = location_of(doubt.record)
                if self._is_later(record, event, doubt) is is_below and location not in wrong:
                    wrong.add(location)
                    account.fault("disordered", location)

    def _is_later(self, record: ForeignRecord, event: Row, doubt: _Doubt) -> bool | None:
        """Return whether an event is later in the source than a row. None: it is not sure."""
        number = self._ended.of_event(event.commit)
        if number is None:
            return None
        ms = self._ended.ms_of(number)
        is_earlier, is_later = ms + _APART_MS < doubt.ms, ms > doubt.ms + _APART_MS
        if not doubt.point:
            return is_later if is_earlier or is_later else None
        is_lsn = event.commit.log == LSN
        point = self._ended.points[number] if is_lsn else place_of(event.commit.at)
        if point > doubt.point:  # unless the log began again between them
            is_in_front = record.partition == doubt.record.partition
            is_in_front &= record.offset < doubt.record.offset
            return None if is_earlier or is_in_front else True
        return None if is_later or not point else False

    def _check_truncations(self, by_place: Line) -> None:
        for topic, location, point, ms, time in self._truncations.values():
            before, after = by_place.around(point)
            # The log may have begun again between them.
            if before is not None and self._ended.ms_of(before) > ms + _APART_MS:
                before = None
            if after is not None and self._ended.ms_of(after) + _APART_MS < ms:
                after = None
            if not self._is_between(time, before, after):
                self._accounts[topic].fault("disordered", location)

    def _is_between(self, time: int, before: int | None, after: int | None) -> bool:
        """Return whether a commit timestamp is between those of two transactions."""
        times = self._ended.times
        is_behind = before is None or times[before] < time
        return is_behind and (after is None or time < times[after])

    def _check_ends(self, account: _Account) -> None:
        """Find transactions whose commit timestamps do not rise, or whose changes declare another
        count than their ends.
        """
        newest = done = 0
        read = self._read(self._transactions)
        for record, end in ((record, event) for record, event in read if isinstance(event, End)):
            number = self._ended.of_end(end)
            if number is None or number < done:
                continue
            done = number + 1
            time, declared = self._ended.times[number], self._ended.declared[number]
            if not time:
                continue
            if time <= newest or not self._is_count_right(end, number, declared):
                account.fault("disordered", location_of(record))
            newest = max(newest, time)

    def _is_count_right(self, end: End, number: int, declared: int) -> bool:
        """Return whether the changes of a transaction declare what its end does. A part of its
        tables may not be read. That it lacks events is the matter of ING-2.
        """
        total = declared + self._ended.skipped[number]
        read = (n for table, n in end.counts.items() if self._tables.get(table, _NEVER) <= number)
        least = sum(read) if end.counts else end.count
        return total >= least or not self._ended.has(number, least)

    def _result(self, topic: str, account: _Account) -> SourceTopicAudit:
        missing = [where for offsets in account.absent.values() for where in offsets]
        is_whole = self._is_whole and topic not in self._truncated
        for kafka_partition, offset in missing:
            account.fault(
                "missing" if is_whole else "unverified", f"{topic}/{kafka_partition}/{offset}"
            )
        examples = account.examples
        return SourceTopicAudit(
            topic=topic,
            **account.counts,
            left_out=dict(+account.left_out),
            examples=tuple([*examples.get("missing", ()), *examples.get("unverified", ())][:FEW]),
            doubled_examples=tuple(examples.get("doubled", ())),
            disordered_examples=tuple(examples.get("disordered", ())),
        )


def _is_truncation_of_mysql(event: Event) -> bool:
    return isinstance(event, TruncatedTable) and event.commit.log != LSN and bool(event.commit.at)


def _may_come_again(event: Event) -> bool:
    """Return whether a bridge can know that the source sends an event again."""
    commit = event.commit
    if isinstance(event, Row) and event.is_snapshot:
        return False
    return bool(commit.after) or bool(commit.transaction and commit.sequence)


def _identity(record: ForeignRecord, event: Event) -> int:
    """The hash of what an event has in common with the same event, sent again."""
    commit = event.commit
    table = "" if isinstance(event, End) else event.table
    # A release of Debezium before 3.6.1 may count the events of a transaction again.
    sequence = 0 if commit.at else commit.sequence
    point = commit.transaction, sequence, commit.log, commit.after, commit.at, commit.time
    return hash((table, point, record.key))


def _key(record: ForeignRecord, event: Row) -> int:
    return hash((event.table, record.key))
