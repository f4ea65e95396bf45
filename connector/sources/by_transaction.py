"""The order of a source with a transaction topic (SRC-2).

Theory. In each Kafka partition, the events are in commit order, and so are the ends of the
transactions in their topic. So the next transaction is that of the next end. It is released when
all its events were read: as many as its end says, each sequence once. Then everything before them
in their partitions was released, too. Only a transaction that does not fit into the queues is
released in parts. After a restart, its partitions are read again from its first event.

A transaction has one commit timestamp, at least 2 after the one before. The slot between belongs to
events without a transaction, such as rows of snapshots. They are released when they are at the
head of their partition: behind each transaction that has an event before them there, and before
each one that has an event behind them.

Debezium sends events again after a restart, in the same order. An event is a repetition if its
transaction is finished, or if its sequence was counted before.

Three things need the end offsets of all partitions, as they are when it begins to wait. Kafka has
a row of a snapshot before the end of a transaction that was sent later.

- The first transaction waits until all rows of the initial snapshot are released.
- A transaction that truncates a table waits until the rows of snapshots that were written before
  it are released. So does each transaction of a topic that got another Kafka partition, until all
  is read that was written before: the new number of partitions moves keys, so that the older event
  may be in another partition.
- A transaction lacks events. When all partitions are read, poison without a readable commit takes
  their place. Events that Kafka had deleted before the first start are not waited for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final

from connector.records.model import MAX_LONG
from connector.sources.model import (
    Commit,
    End,
    Event,
    ForeignRecord,
    LogPosition,
    Poison,
    Released,
    Row,
    Sequencer,
    Skipped,
    TopicPartition,
    TruncatedTable,
    Waiting,
    least_time,
)
from connector.sources.position import SourcePosition, by_number, by_partition
from connector.sources.queues import ALONE, UNKNOWN, Arrived, Entry, PartitionQueue

MOST_RECORDS: Final = 10_000
MOST_BYTES: Final = 4 * 1024 * 1024
RECENT: Final = 100
"""How many ids of finished transactions are kept, for events without positions."""
MOST_UNFILLED: Final = 8
MOST_UNFILLED_BYTES: Final = 16 * 1024
"""How much of a resume token finished transactions take that lacked events. The oldest ones are
forgotten.
"""
POISON_WAITS_US: Final = 60_000_000
"""After this time, poison that no transaction lacks is released without one."""


class ByTransaction(Sequencer):
    """Releases each transaction when it is whole and its predecessors are out."""

    def __init__(
        self,
        transactions: str,
        position: SourcePosition | None = None,
        *,
        max_clock_skew_s: int,
        reads: Callable[[str], bool] = lambda table: True,
        most_records: int = MOST_RECORDS,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        """Begin at a position, or at the beginning of the source.

        Args:
            transactions: The transaction topic. It has one Kafka partition.
            position: The position of a resume token. None: there was no bridge before.
            max_clock_skew_s: A commit time that is more than half of it ahead waits.
            reads: Whether the topic of a table is read. Events of other tables do not count.
            most_records: The length at which the queue of a partition is full.
            most_bytes: The size of its values at which it is full.
        """
        super().__init__(max_clock_skew_s)
        at = position or SourcePosition(starts={})
        self._end_partition, self._reads = (transactions, 0), reads
        self._limits = most_records, most_bytes
        starts = by_partition(at.starts)
        self._end_next = starts.pop(self._end_partition, 0)
        self._queues = {p: PartitionQueue(p, start) for p, start in starts.items()}
        self._tables = dict[str, str]()
        self._grown = set[str]()
        self._grown_to = dict(at.grown_to)
        self._end_records = deque[tuple[ForeignRecord, End | Poison]]()
        self._ended = set[str]()
        self._arrived = dict[str, Arrived]()
        self._base, self._time, self._end = 0, at.time, at.end
        self._recent = deque(at.recent, RECENT)
        self._joined, self._passed = dict(at.joined), set(at.passed)
        self._unfilled = {name: Arrived(bits) for name, bits in at.unfilled.items()}
        self._is_first = not at.recent
        self._is_truncated = at.is_truncated
        self._lost_before, self._skipped = at.lost_before, ""
        self._part_time = self._asked_before = 0
        self._offsets: Mapping[TopicPartition, int] = {}

    def add(self, record: ForeignRecord, event: Event) -> None:
        commit = event.commit
        if not self._base:
            self._base = least_time(record, commit)
        if record.partition == self._end_partition:
            self._add_end(record, event)
            return
        queue = self._queues.get(record.partition) or self._begin(record.partition, 0)
        if self._is_first and not queue.next and record.offset:
            self._is_truncated = True
        queue.next = record.offset + 1
        if isinstance(event, End):
            return
        transaction = "" if isinstance(event, Row) and event.is_snapshot else commit.transaction
        if not transaction:
            if isinstance(event, Skipped):
                return
            transaction = UNKNOWN if isinstance(event, Poison) else ALONE
        elif self._is_finished(commit):
            if not self._is_late(record, commit):
                self.repetitions += 1
                return
            transaction = ALONE
        elif not self._count(transaction, event, record.partition):
            self.repetitions += 1
            return
        queue.append(Entry(record, event, transaction), self._limits)

    def _add_end(self, record: ForeignRecord, event: Event) -> None:
        self._end_next = record.offset + 1
        if isinstance(event, End):
            commit = event.commit
            if commit.transaction in self._ended or self._is_finished(commit, is_end=True):
                self.repetitions += 1
                return
            self._ended.add(commit.transaction)
        if isinstance(event, End | Poison):
            self._end_records.append((record, event))

    def _begin(self, partition: TopicPartition, start: int) -> PartitionQueue:
        """Return the queue of a partition that is new."""
        topic = partition[0]
        if not self._is_first and not any(topic == name for name, _ in self._queues):
            self._joined[topic] = self._end
        queue = self._queues[partition] = PartitionQueue(partition, start)
        self._grown.add(topic)
        return queue

    def _is_finished(self, commit: Commit, *, is_end: bool = False) -> bool:
        if commit.transaction in self._ended:
            return False
        if not commit.after or not self._end:
            return commit.transaction in self._recent
        return commit.after <= self._end if is_end else commit.after < self._end

    def _is_late(self, record: ForeignRecord, commit: Commit) -> bool:
        """Return whether an event of a finished transaction was never released: the transaction
        lacked it, or its topic came later.
        """
        unfilled = self._unfilled.get(commit.transaction)
        if unfilled is not None:
            return bool(commit.sequence) and unfilled.take(commit.sequence)
        if record.partition not in self._passed and record.topic in self._joined:
            if commit.after < self._joined[record.topic]:
                return True
            self._passed.add(record.partition)
        return False

    def _count(self, transaction: str, event: Event, partition: TopicPartition) -> bool:
        """Count an event of a transaction that is not finished. False: it is a repetition."""
        assert not isinstance(event, End)
        if partition[0] in self._joined:
            self._passed.add(partition)
        arrived = self._arrived.get(transaction) or self._arrived.setdefault(transaction, Arrived())
        if not arrived.take(event.commit.sequence):
            return False
        arrived.queued[partition] += 1
        arrived.tables[event.table] += 1
        if isinstance(event, Skipped):
            arrived.skipped += 1
        elif isinstance(event, TruncatedTable):
            arrived.truncated.add(partition[0])
        if event.table:
            self._tables.setdefault(partition[0], event.table)
        return True

    def read_to(self, partition: TopicPartition, offset: int) -> None:
        if partition == self._end_partition:
            self._end_next = max(self._end_next, offset)
            return
        queue = self._queues.get(partition) or self._begin(partition, offset)
        queue.next = max(queue.next, offset)

    # Release

    def released(self, now: int) -> Iterator[Released]:
        self.waiting, self._now = None, now
        if not self._time and self._base:
            self._time, self.has_claim = min(self._base, now) - 2, True
        if self.has_claim or not self._time:
            return
        for queue in self._queues.values():
            while queue.entries and self._is_alone(queue):
                yield from self._take_alone(queue)
        while self._end_records:
            record, event = self._end_records[0]
            if isinstance(event, Poison):
                yield Released(record, event, self._time + 1, record.offset, 0)
                self._end_records.popleft()
                continue
            event = self._expected(event)
            arrived = self._arrived.get(event.commit.transaction) or Arrived()
            time = self._next_time(record, event.commit)
            reason, count = self._reason_to_wait(record, event, arrived, time - now), None
            if not reason:
                count = max(event.count, arrived.count) - arrived.skipped
            elif reason != "events" or not any(self._queues[p].is_full for p in +arrived.queued):
                self.waiting = _waiting(reason, record, event, arrived)
                return
            yield from self._rows(event.commit, arrived, time, count)
            if count is None:
                return
            self._finish(event, arrived, time)

    def _expected(self, end: End) -> End:
        """Return an end without the events of tables whose topics are not read."""
        if not end.counts:
            return end
        read = self._tables.values()
        counts = {t: n for t, n in end.counts.items() if self._reads(t) or t in read}
        return End(end.commit, sum(counts.values()), counts)

    def _next_time(self, record: ForeignRecord, commit: Commit) -> int:
        """Return the commit timestamp of the next transaction. A slot before it stays free."""
        return max(self._time + 2, least_time(record, commit))

    def _is_alone(self, queue: PartitionQueue) -> bool:
        """Return whether the event at the head belongs to no transaction that will be released.

        A row of an incremental snapshot waits for the transactions that were sent before it. Poison
        belongs to none if all transactions before the event behind it are released.
        """
        entry = queue.entries[0]
        if entry.transaction == UNKNOWN:
            behind = next((e for e in queue.entries if e.transaction != UNKNOWN), None)
            if behind is None:
                self.wants_ends = True
                is_all_read = self._end_next >= self._offsets.get(self._end_partition, MAX_LONG)
                is_old = entry.record.timestamp + POISON_WAITS_US < self._now
                return is_old and is_all_read and not self._end_records
            entry = behind
            if entry.transaction != ALONE:
                return False
        if entry.transaction == ALONE:
            if not isinstance(entry.event, Row) or not entry.event.is_incremental:
                return True
            after = entry.event.commit.after
            return after <= self._end or after < self._next_end()
        return self._is_without_end(entry, self._next_end() if self._is_first else self._end)

    def _next_end(self) -> LogPosition:
        """The end of the next transaction, if it is known."""
        return self._end_records[0][1].commit.after if self._end_records else ()

    def _rows(
        self, end: Commit, arrived: Arrived, time: int, count: int | None
    ) -> Iterator[Released]:
        """Release the events of a transaction that are in queues, and what is in front of them.

        Later events are in front only of an event that was sent again, and stay there. If `count`
        is not known, one row stays, so that it can declare the count.
        """
        self._part_time = time
        for partition in list(+arrived.queued):
            queue, index = self._queues[partition], 0
            while arrived.queued[partition]:
                entry = queue.entries[index]
                if entry.transaction == end.transaction:
                    event = entry.event
                    unreleased = arrived.count - arrived.skipped - arrived.released
                    if count is None and not isinstance(event, Skipped) and unreleased == 1:
                        break
                    if queue.pinned is None:
                        queue.pinned = entry.record.offset
                    arrived.queued[partition] -= 1
                    queue.take(index, self._limits)
                    if not isinstance(event, Skipped):
                        arrived.released += 1
                        order = event.commit.sequence or entry.record.offset
                        yield Released(entry.record, event, time, order, count or 1)
                elif not index and self._is_before(queue, end):
                    yield from self._take_alone(queue)
                else:
                    index += 1

    def _is_before(self, queue: PartitionQueue, end: Commit) -> bool:
        """Return whether the event at the head was sent before the transaction of an end."""
        entry = queue.entries[0]
        if entry.transaction == ALONE:
            return self._is_alone(queue)
        return entry.transaction == UNKNOWN or self._is_without_end(entry, end.after)

    def _take_alone(self, queue: PartitionQueue) -> Iterator[Released]:
        """Release the head of a partition without a transaction."""
        time = self._time if queue.pinned is None else self._part_time
        record, event, transaction = queue.take(0, self._limits)
        arrived = self._arrived.get(transaction)
        if arrived is not None:
            arrived.queued[queue.partition] -= 1
            if not +arrived.queued:
                del self._arrived[transaction]
        if not isinstance(event, Skipped):
            yield Released(record, event, time + 1, record.offset, 0)

    def _is_without_end(self, entry: Entry, passed: LogPosition) -> bool:
        """Return whether the end of a transaction is missing: all ends up to `passed` were read."""
        after = entry.event.commit.after
        return bool(after) and after < passed and entry.transaction not in self._ended

    def _finish(self, event: End, arrived: Arrived, time: int) -> None:
        transaction = event.commit.transaction
        for partition in arrived.queued:
            self._queues[partition].pinned = None
        self._end_records.popleft()
        self._ended.discard(transaction)
        self._arrived.pop(transaction, None)
        self._time, self._end = time, max(self._end, event.commit.after)
        self._recent.append(transaction)
        self._is_first = False

    # The next transaction

    def _reason_to_wait(
        self, record: ForeignRecord, event: End, arrived: Arrived, ahead: int
    ) -> str:
        """Return the reason why a transaction is not released yet, or an empty text."""
        if ahead > self._skew_us:
            return "clock"
        if self._grown or not self._asked_before:
            self.wants_ends = True
            return "snapshot"
        if self._is_first:
            if not (self._has_asked(record) and self._has_read_snapshots(self._offsets)):
                return "snapshot"
            if self._is_truncated:
                self._lost_before, self._is_truncated = self._asked_before, False
        if arrived.count < event.count and not self._fill(record, event, arrived):
            return "events"
        if arrived.truncated and not (
            self._has_asked(record) and self._has_read_snapshots(self._offsets, arrived.truncated)
        ):
            return "snapshot"
        if self._grown_to and not self._has_read_grown({topic for topic, _ in arrived.queued}):
            return "snapshot"
        return ""

    def _has_read_snapshots(
        self, ends: Mapping[TopicPartition, int], topics: Collection[str] = ()
    ) -> bool:
        """Return whether all rows of snapshots before these offsets are released, in these topics.
        Without any: in all topics.

        They are if an event at the head of a partition waits, or if the partition was read so far.
        """
        for partition, end in ends.items():
            if partition == self._end_partition or (topics and partition[0] not in topics):
                continue
            queue = self._queues[partition]
            if queue.entries and queue.entries[0].transaction in self._ended:
                continue
            if all(entry.transaction == UNKNOWN for entry in queue.entries):
                if queue.next < end:
                    return False
            elif self._is_alone(queue):
                return False
        return True

    def _has_read_grown(self, topics: Collection[str]) -> bool:
        """Return whether all rows of snapshots are released that were written before these topics
        got their newest partition.
        """
        for topic in self._grown_to.keys() & topics:
            ends = by_partition({topic: self._grown_to[topic]})
            if len(ends) == 1 or all(self._queues[p].start >= end for p, end in ends.items()):
                del self._grown_to[topic]
            elif not self._has_read_snapshots(ends):
                return False
        return True

    def _fill(self, record: ForeignRecord, event: End, arrived: Arrived) -> bool:
        """Return whether a transaction needs not wait for the events that it lacks."""
        transaction = event.commit.transaction
        self._arrived.setdefault(transaction, arrived)
        is_lost, poison = record.offset < self._lost_before, self._unread_poison(transaction)
        if (is_lost or poison) and self._has_asked(record) and self._has_read_all(transaction):
            for queue, index in poison:
                table = self._tables.get(queue.partition[0], "")
                expected = event.counts.get(table, 0) if event.counts and table else event.count
                if arrived.count < event.count and arrived.tables[table] < expected:
                    self._assign(queue, index, event.commit, arrived)
                    arrived.tables[table] += 1
            if is_lost:
                self._skipped = transaction
        if arrived.count < event.count and self._skipped != transaction:
            return False
        self._unfilled[transaction] = arrived
        while len(self._unfilled) > MOST_UNFILLED:
            del self._unfilled[next(iter(self._unfilled))]
        return True

    def _unread_poison(self, transaction: str) -> list[tuple[PartitionQueue, int]]:
        """Return the poison that can be of the transaction, the oldest first: no event of a later
        transaction precedes it.
        """
        poison = []
        for queue in self._queues.values():
            for index, entry in enumerate(queue.entries):
                if entry.transaction == UNKNOWN:
                    poison.append((queue, index))
                elif entry.transaction not in (ALONE, transaction):
                    break
        return sorted(poison, key=lambda at: at[0].entries[at[1]].record.timestamp)

    def _assign(self, queue: PartitionQueue, index: int, commit: Commit, arrived: Arrived) -> None:
        entry = queue.entries[index]
        event = replace(entry.event, commit=replace(commit, sequence=0, after=()))
        queue.entries[index] = Entry(entry.record, event, commit.transaction)
        arrived.count += 1
        arrived.queued[queue.partition] += 1

    def _has_read_all(self, transaction: str) -> bool:
        """Return whether no partition can have a further event of the transaction."""
        for partition, end in self._offsets.items():
            if partition != self._end_partition:
                queue = self._queues[partition]
                if queue.next < end and queue.last_transaction() in (ALONE, transaction):
                    return False
        return True

    def _has_asked(self, end: ForeignRecord) -> bool:
        """Return whether the end offsets are known as they were after an end was read."""
        self.wants_ends |= (is_unknown := end.offset >= self._asked_before)
        return not is_unknown

    # The state

    @property
    def starts(self) -> dict[TopicPartition, int]:
        end_start = self._end_records[0][0].offset if self._end_records else self._end_next
        starts = {partition: queue.start for partition, queue in self._queues.items()}
        return starts | {self._end_partition: end_start}

    @property
    def reached(self) -> int:
        return self._time

    def token(self, topic_ids: Mapping[str, str]) -> bytes:
        late = [
            (queue.partition, entry.event.commit)
            for queue in (self._queues.values() if self._joined or self._unfilled else ())
            for entry in queue.entries
            if entry.transaction == ALONE and entry.event.commit.transaction
        ]
        # What waits in a queue is read again after a restart.
        passed = self._passed - {partition for partition, _ in late}
        unfilled: dict[str, dict[int, bytes]] = {}
        room = MOST_UNFILLED_BYTES
        for name, arrived in reversed(self._unfilled.items()):
            bits = arrived.sequences({c.sequence for _, c in late if c.transaction == name})
            if name not in self._ended and (room := room - sum(map(len, bits.values()))) >= 0:
                unfilled[name] = bits
        return SourcePosition(
            starts=by_number(self.starts),
            topic_ids=topic_ids,
            time=self._time,
            end=self._end,
            recent=tuple(self._recent),
            joined=self._joined,
            passed=tuple(sorted(passed)),
            grown_to=self._grown_to,
            lost_before=self._lost_before,
            is_truncated=self._is_truncated,
            unfilled=dict(reversed(unfilled.items())),
        ).token()

    @property
    def full(self) -> list[TopicPartition]:
        full = [partition for partition, queue in self._queues.items() if queue.is_full]
        return [*full, self._end_partition] if len(self._end_records) >= self._limits[0] else full

    def ends(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._offsets, self._asked_before, self.wants_ends = offsets, self._end_next, False
        for partition in offsets:
            if partition not in self._queues and partition != self._end_partition:
                self._begin(partition, 0)
        for topic in self._grown:
            self._grown_to[topic] = {k: end for (name, k), end in offsets.items() if name == topic}
        self._grown.clear()

    def skip(self, transaction: str) -> bool:
        """Release a transaction without the events that it lacks, at the wish of an operator. False
        if it is not the one that waits for events, or if they may come: something was not read.
        """
        waiting = self.waiting
        if waiting is None or (waiting.reason, waiting.transaction) != ("events", transaction):
            return False
        if not (self._has_asked(self._end_records[0][0]) and self._has_read_all(transaction)):
            return False
        self._skipped = transaction
        return True


def _waiting(reason: str, record: ForeignRecord, event: End, arrived: Arrived) -> Waiting:
    waiting = Waiting(reason, event.commit.transaction, record.timestamp)
    if reason != "events":
        return waiting
    tables = {table: count for table, count in arrived.tables.items() if table}
    missing = event.count - arrived.count
    return replace(waiting, missing=missing, counts=event.counts, arrived=tables)


def reads_table(transactions: str, topics: Collection[str]) -> Callable[[str], bool]:
    """Return whether the topic of a table is one of `topics`, which may have `*` and `?`.

    Debezium's topic of `public.customers` is `dbz.public.customers` if the transaction topic is
    `dbz.transaction`. If topics have other names, all tables count as read.
    """
    prefix = transactions.removesuffix("transaction")
    if not all(topic.startswith(prefix) for topic in topics):
        return lambda table: True
    return lambda table: any(fnmatchcase(f"{prefix}{table}", topic) for topic in topics)
