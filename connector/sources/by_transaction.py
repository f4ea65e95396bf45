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
transaction is finished, which `finished` proves, or if its sequence was counted before.

A truncation of MySQL is no part of a transaction, and has no end. It is a transaction of its own,
before the first one whose events have a greater position in the binary log.

Some things need the end offsets of all partitions, as they are when it begins to wait. Kafka has a
row of a snapshot, and a truncation of MySQL, before the end of a transaction that was sent later.

- The first transaction waits until all rows of the initial snapshot are released.
- A transaction that truncates a table waits until the rows of snapshots that were written before
  it are released. So does each transaction of a topic that got another Kafka partition, until all
  is read that was written before: the new number of partitions moves keys, so that the older event
  may be in another partition.
- Each transaction of a log other than PostgreSQL's waits until all truncations before it are read.
- A transaction lacks events. When all partitions are read, poison without a readable commit takes
  their place. Events that Kafka had deleted before the first start are not waited for.

What does not fit together waits, and says so: events that contradict their end or each other, and a
transaction without an end before one that has ended. If its events were written before the first
end that Kafka has, its end may be deleted, so they are released without one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import cmp_to_key
from typing import Final

from connector.errors.kafka import source_log_began_again, source_log_unknown
from connector.records.model import MAX_LONG
from connector.sources.finished import RECENT, Finished, Past
from connector.sources.model import (
    BINLOG,
    LSN,
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
from connector.sources.queues import (
    ALONE,
    UNKNOWN,
    Arrived,
    Entry,
    PartitionQueue,
    fingerprint_of,
)

MOST_RECORDS: Final = 10_000
MOST_BYTES: Final = 4 * 1024 * 1024
MOST_UNFILLED: Final = 8
MOST_UNFILLED_BYTES: Final = 16 * 1024
"""How much of a resume token finished transactions take that lacked events. The oldest ones are
forgotten.
"""
POISON_WAITS_US: Final = 60_000_000
"""After this time, poison that no transaction lacks is released without one."""
SILENT_US: Final = 10_000_000
"""After this time, a truncation of MySQL that no transaction follows is released."""
_LATE: Final = "later transactions were published before it, so its place among them is not known"


class ByTransaction(Sequencer):
    """Releases each transaction when it is whole and its predecessors are out."""

    def __init__(
        self,
        transactions: str,
        position: SourcePosition | None = None,
        *,
        max_clock_skew_s: int,
        reads: Callable[[str], bool | None] = lambda table: True,
        most_records: int = MOST_RECORDS,
        most_bytes: int = MOST_BYTES,
        most_recent: int = RECENT,
    ) -> None:
        """Begin at a position, or at the beginning of the source.

        Args:
            transactions: The transaction topic. It has one Kafka partition.
            position: The position of a resume token. None: there was no bridge before.
            max_clock_skew_s: A commit time that is more than half of it ahead waits.
            reads: Whether the topic of a table is read. Events of other tables do not count. None:
                it is not known, so they are waited for.
            most_records: The length at which the queue of a partition is full.
            most_bytes: The size of its values at which it is full.
            most_recent: How many finished transactions are remembered one by one.
        """
        super().__init__(max_clock_skew_s)
        at = position or SourcePosition(starts={})
        self._end_partition, self._reads = (transactions, 0), reads
        self._limits = most_records, most_bytes
        starts = by_partition(at.starts)
        self._end_next = starts.pop(self._end_partition, 0)
        self._queues = {p: PartitionQueue(p, start) for p, start in starts.items()}
        self._tables = dict[str, set[str]]()
        self._grown = set(at.grown)
        self._grown_to = dict(at.grown_to)
        self._end_records = deque[tuple[ForeignRecord, End | Poison]]()
        self._ended = dict[str, End]()
        self._again: tuple[ForeignRecord, str] | None = None
        self._truncations = dict[str, tuple[ForeignRecord, End]]()
        self._arrived = dict[str, Arrived]()
        self._open = set[str]()
        self._base, self._time, self._ends = 0, at.time, dict(at.ends)
        self._finished = Finished(at.recent, at.floors, at.floor_time, most=most_recent)
        self._newest = at.newest
        self._joined, self._passed = set(at.joined), set(at.passed)
        self._unfilled = {name: Arrived(bits) for name, bits in at.unfilled.items()}
        self._is_begin = not at.recent
        self._is_truncated = at.is_truncated
        self._lost_before, self._skipped = at.lost_before, ""
        self._first_end_at, self._unread_ends = at.first_end_at, at.unread_ends
        self._part_time = self._asked_before = self._asked_at = 0
        self._offsets: Mapping[TopicPartition, int] = {}
        self._unread: list[TopicPartition] = []

    def add(self, record: ForeignRecord, event: Event) -> None:
        commit = event.commit
        if not self._base:
            self._base = least_time(record, commit)
        if record.partition == self._end_partition:
            self._add_end(record, event)
            return
        queue = self._queues.get(record.partition) or self._begin(record.partition, 0)
        if self._is_begin and not queue.next and record.offset:
            self._is_truncated = True
        queue.next = record.offset + 1
        if isinstance(event, End):
            return
        if isinstance(event, TruncatedTable) and commit.at and commit.log != LSN:
            event = self._as_transaction(record, event)
        commit = event.commit
        transaction = "" if isinstance(event, Row) and event.is_snapshot else commit.transaction
        if not transaction:
            if isinstance(event, Skipped):
                return
            transaction = UNKNOWN if isinstance(event, Poison) else ALONE
        elif transaction not in self._ended and self._is_finished(commit):
            if not self._is_late(record, commit):
                self.repetitions += 1
                return
            transaction = ALONE
            if isinstance(event, TruncatedTable):
                event = Poison("TRUNCATION_LATE", _LATE, commit, event.table)
        elif not self._count(transaction, event, record):
            self.repetitions += 1
            return
        queue.append(Entry(record, event, transaction), self._limits)

    def _is_finished(self, commit: Commit) -> bool:
        """Return whether an event is of a finished transaction. If it is of another one, the end of
        that lacks it, and waits.
        """
        return self._finished.of_event(commit) is not Past.NOT_FINISHED

    def _add_end(self, record: ForeignRecord, event: Event) -> None:
        self._end_next = record.offset + 1
        if isinstance(event, Poison):
            self._end_records.append((record, event))
        if not isinstance(event, End):
            return
        transaction = event.commit.transaction
        if (known := self._ended.get(transaction)) is not None:
            if (known.count, known.commit) != (event.count, event.commit):
                self._arrived.setdefault(transaction, Arrived()).contradicts = True
            self.repetitions += 1
            return
        if not event.commit.log:
            raise source_log_unknown(self._end_partition[0], transaction)
        past = self._finished.of_end(event.commit)
        if past is Past.NOT_FINISHED:
            if self._again is not None:
                raise source_log_began_again(self._end_partition[0], self._again[1], transaction)
            self._first_end_at = self._first_end_at or record.timestamp
            self._ended[transaction] = event
            self._open.discard(transaction)
            self._end_records.append((record, event))
            return
        self.repetitions += 1
        if past is Past.FINISHED:
            self._again = None
        elif self._again is None:
            self._again = record, transaction

    def _begin(self, partition: TopicPartition, start: int) -> PartitionQueue:
        """Return the queue of a partition that is new."""
        topic = partition[0]
        if not self._is_begin and not any(topic == name for name, _ in self._queues):
            self._joined.add(topic)
        queue = self._queues[partition] = PartitionQueue(partition, start)
        self._grown.add(topic)
        return queue

    def _is_late(self, record: ForeignRecord, commit: Commit) -> bool:
        """Return whether an event of a finished transaction was never released: the transaction
        lacked it, or its topic came later.
        """
        unfilled = self._unfilled.get(commit.transaction)
        if unfilled is not None:
            return bool(commit.sequence) and unfilled.take(commit.sequence)
        return record.topic in self._joined and record.partition not in self._passed

    def _count(
        self,
        transaction: str,
        event: Row | TruncatedTable | Skipped | Poison,
        record: ForeignRecord,
    ) -> bool:
        """Count an event of a transaction that is not finished. False: it is a repetition."""
        partition, commit = record.partition, event.commit
        if partition[0] in self._joined:
            self._passed.add(partition)
        arrived = self._arrived.get(transaction)
        if arrived is None:
            arrived = self._arrived[transaction] = Arrived()
            if transaction not in self._ended:
                self._open.add(transaction)
        if not arrived.take(commit.sequence, fingerprint_of(record, commit.at)):
            return False
        if commit.log != LSN and commit.at:
            arrived.at = min(arrived.at or commit.at, commit.at)
        arrived.time = max(arrived.time, commit.time)
        arrived.queued[partition] += 1
        arrived.tables[event.table] += 1
        if isinstance(event, Skipped):
            arrived.skipped += 1
        elif isinstance(event, TruncatedTable):
            arrived.truncated.add(partition[0])
        if event.table:
            self._tables.setdefault(partition[0], set()).add(event.table)
        return True

    def _as_transaction(
        self, record: ForeignRecord, event: TruncatedTable
    ) -> TruncatedTable | Poison:
        """Make a transaction of its own of a truncation that has no end."""
        commit = event.commit
        name = commit.transaction or f"truncation {commit.log_position}"
        commit = replace(commit, transaction=name, sequence=1)
        if name in self._ended or self._is_finished(commit):
            return replace(event, commit=commit)
        end = replace(commit, after=(*commit.after[:-1], *(n + 1 for n in commit.after[-1:])))
        self._ended[name] = End(end, 1)
        self._truncations[name] = record, self._ended[name]
        time, at = self._newest
        if commit.at < at and commit.time // 1000 <= time:
            return Poison("TRUNCATION_LATE", _LATE, commit, event.table)
        return replace(event, commit=commit)

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
        while (next_ := self._next()) is not None:
            record, event = next_
            if isinstance(event, Poison):
                yield Released(record, event, self._time + 1, record.offset, 0)
                self._end_records.popleft()
                self._unread_ends += 1
                continue
            event = self._expected(event)
            arrived = self._arrived.get(event.commit.transaction) or Arrived()
            time = self._next_time(record, event.commit)
            waiting, count = self._waiting_for(record, event, arrived, time - now), None
            if waiting is None:
                count = max(event.count, arrived.count) - arrived.skipped
            elif waiting.reason != "events" or not any(
                self._queues[p].is_full for p in +arrived.queued
            ):
                self.waiting = waiting
                return
            yield from self._rows(event.commit, arrived, time, count)
            if count is None:
                return
            self._finish(event, arrived, time)
        self.waiting = self._waiting_for_end()

    def _next(self) -> tuple[ForeignRecord, End | Poison] | None:
        """Return the end of the next transaction, with its record. None: it is not known."""
        head = self._end_records[0] if self._end_records else None
        if not self._truncations or (head is not None and isinstance(head[1], Poison)):
            return head
        truncations = sorted(self._truncations.values(), key=cmp_to_key(_order))
        if head is not None:
            return next((t for t in truncations if self._precedes(t[1].commit, head[1])), head)
        record, end = truncations[0]
        others = (a.at for name, a in self._arrived.items() if name not in self._truncations)
        is_next = not any(at and at < end.commit.at for at in others)
        return (record, end) if is_next and self._is_silent_since(record) else None

    def _precedes(self, truncation: Commit, end: End | Poison) -> bool:
        """Return whether a truncation of MySQL comes before the transaction of an end: its position
        is smaller, unless the log began again between them, as their times show.
        """
        at, commit = self._at_of_next(), end.commit
        arrived = self._arrived.get(commit.transaction)
        if isinstance(end, End) and arrived is not None and _contradicts(end, arrived):
            return False
        if not at and commit.log == truncation.log:
            return truncation.after < commit.after
        return bool(at) and _is_earlier(truncation, at, commit.time)

    def _is_silent_since(self, record: ForeignRecord) -> bool:
        """Return whether all was read some time after a record, and no end is left to release."""
        silent_at = record.timestamp + SILENT_US
        if self._now < silent_at or self._end_records:
            return False
        self.wants_ends |= self._asked_at < silent_at
        is_read = self._end_next >= self._offsets.get(self._end_partition, MAX_LONG)
        return self._asked_at >= silent_at and is_read and self._are_rows_read()

    def _are_rows_read(self) -> bool:
        """Return whether all events are read that there were, as far as the queues have room."""
        ends = ((self._queues.get(partition), end) for partition, end in self._offsets.items())
        return all(queue is None or queue.next >= end or queue.is_full for queue, end in ends)

    def _expected(self, end: End) -> End:
        """Return an end without the events of tables whose topics are not read."""
        if not end.counts:
            return end
        read = set[str]().union(*self._tables.values())
        counts = {t: n for t, n in end.counts.items() if t in read or self._reads(t) is not False}
        return replace(end, count=sum(counts.values()), counts=counts)

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
            return self._is_behind_sent(entry)
        return self._lacks_end(entry) and self._may_lack_end(entry)

    def _is_behind_sent(self, entry: Entry) -> bool:
        """Return whether all transactions are released that were sent before a row of an
        incremental snapshot. Without a position in the log of commits, that matters only if the
        topic got a Kafka partition, so that an older event may be in another one.
        """
        record, commit = entry.record, entry.event.commit
        if commit.log == LSN:
            return commit.after <= self._ends.get(LSN, ()) or self._is_before_next(commit)
        if record.topic not in self._grown and record.topic not in self._grown_to:
            return True
        if commit.after <= self._ends.get(commit.log, ()) and commit.log not in ("", BINLOG):
            return True
        time, at = self._newest
        if commit.at <= at or _is_earlier(commit, at, 1000 * time) or self._is_before_next(commit):
            return True
        if (next_ := self._next()) is not None:
            at = next_[1].commit.at or self._at_of_next()
            if at and _is_earlier(commit, at, next_[1].commit.time):
                return True
        # The next transaction may wait for an event behind it.
        if self._queues[record.partition].is_full and self._end_records:
            return self._has_asked() and self._are_rows_read()
        return self._is_silent_since(record)

    def _at_of_next(self) -> LogPosition:
        """Return where the transaction of the next end is in a binary log, if that is known."""
        if not self._end_records:
            return ()
        commit = self._end_records[0][1].commit
        arrived = self._arrived.get(commit.transaction)
        if arrived is not None and arrived.at:
            return arrived.at
        return commit.after if commit.log == BINLOG else ()

    def _is_before_next(self, commit: Commit) -> bool:
        """Return whether an event is before the end of the next transaction, if that is known."""
        if not self._end_records or not commit.after:
            return False
        end = self._end_records[0][1].commit
        return end.log == commit.log and commit.after < end.after

    def _lacks_end(self, entry: Entry) -> bool:
        """Return whether the transaction of an event has no end, although a later one has."""
        commit = entry.event.commit
        if entry.transaction not in self._open or not commit.after:
            return False
        return commit.after < self._ends.get(commit.log, ()) or self._is_before_next(commit)

    def _may_lack_end(self, entry: Entry) -> bool:
        """Return whether the end of a transaction is deleted or unreadable, or an operator wants
        its events without it.
        """
        is_old = entry.record.timestamp < self._first_end_at
        return is_old or self._unread_ends > 0 or entry.transaction == self._skipped

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
        """Return whether the event at the head was sent before the transaction of an end that is
        behind it.
        """
        entry = queue.entries[0]
        if entry.transaction == ALONE:
            return self._is_alone(queue)
        return entry.transaction == UNKNOWN or self._is_in_front(entry, end)

    def _is_in_front(self, entry: Entry, end: Commit) -> bool:
        """Return whether a transaction was committed before that of an end which is behind it in
        its partition, and has no end.
        """
        if (
            entry.transaction in (ALONE, UNKNOWN, end.transaction)
            or entry.transaction in self._ended
        ):
            return False
        commit = entry.event.commit
        return not commit.after or commit.log != end.log or commit.after < end.after

    def _take_alone(self, queue: PartitionQueue) -> Iterator[Released]:
        """Release the head of a partition without a transaction."""
        time = self._time if queue.pinned is None else self._part_time
        record, event, transaction = queue.take(0, self._limits)
        arrived = self._arrived.get(transaction)
        if arrived is not None:
            arrived.queued[queue.partition] -= 1
            if not +arrived.queued:
                del self._arrived[transaction]
                self._open.discard(transaction)
                self._unread_ends = max(0, self._unread_ends - 1)
        if not isinstance(event, Skipped):
            yield Released(record, event, time + 1, record.offset, 0)

    def _finish(self, event: End, arrived: Arrived, time: int) -> None:
        commit = event.commit
        for partition in arrived.queued:
            self._queues[partition].pinned = None
        if self._truncations.pop(commit.transaction, None) is None:
            self._end_records.popleft()
        del self._ended[commit.transaction]
        self._arrived.pop(commit.transaction, None)
        self._time = time
        self._ends[commit.log] = max(self._ends.get(commit.log, ()), commit.after)
        if arrived.at:
            self._newest = commit.time // 1000, arrived.at
        self._finished.add(commit)
        self._is_begin = False

    # The next transaction

    def _waiting_for(
        self, record: ForeignRecord, event: End, arrived: Arrived, ahead: int
    ) -> Waiting | None:
        """Return what a transaction waits for, or None: it can be released."""
        transaction = event.commit.transaction
        reason = self._reason_to_wait(record, event, arrived, ahead)
        if reason == "events":
            return _lacks_events(record, event, arrived)
        if reason:
            return Waiting(reason, transaction, record.timestamp)
        waiting = self._waiting_without_end(self._lacks_end) if self._open else None
        if waiting is not None or transaction in self._truncations:
            return waiting
        for partition in +arrived.queued:
            for entry in self._queues[partition].entries:
                if entry.transaction == transaction:
                    break
                if self._is_in_front(entry, event.commit) and not self._may_lack_end(entry):
                    return Waiting("end", entry.transaction, entry.record.timestamp)
        return None

    def _reason_to_wait(
        self, record: ForeignRecord, event: End, arrived: Arrived, ahead: int
    ) -> str:
        """Return the reason why a transaction is not released yet, or an empty text."""
        commit = event.commit
        if ahead > self._skew_us:
            return "clock"
        if self._grown or not self._asked_before:
            self.wants_ends = True
            return "snapshot"
        if self._is_begin:
            if not (self._has_asked() and self._has_read_snapshots(self._offsets)):
                return "snapshot"
            if self._is_truncated:
                self._lost_before, self._is_truncated = self._asked_before, False
        if commit.log != LSN and not (self._has_asked() and self._has_read_truncations()):
            return "snapshot"
        if self._skipped != commit.transaction and _contradicts(event, arrived):
            return "count"
        if arrived.count < event.count and not self._fill(record, event, arrived):
            return "events"
        if arrived.truncated and not (
            self._has_asked() and self._has_read_snapshots(self._offsets, arrived.truncated)
        ):
            return "snapshot"
        if self._grown_to and not self._has_read_grown({topic for topic, _ in arrived.queued}):
            return "snapshot"
        return ""

    def _waiting_for_end(self) -> Waiting | None:
        """Return what is waited for when no end is left to release."""
        if self._again is not None:
            record, transaction = self._again
            return Waiting("again", transaction, record.timestamp)
        for record, end in self._truncations.values():
            return Waiting("end", end.commit.transaction, record.timestamp)
        if not self._open:
            return None
        return self._waiting_without_end(lambda entry: self._is_silent_since(entry.record))

    def _waiting_without_end(self, lacks: Callable[[Entry], bool]) -> Waiting | None:
        """Return what is waited for if an event at the head of a partition lacks its end."""
        for queue in self._queues.values():
            if queue.entries and queue.entries[0].transaction in self._open:
                entry = queue.entries[0]
                if lacks(entry) and not self._may_lack_end(entry):
                    return Waiting("end", entry.transaction, entry.record.timestamp)
        return None

    def _has_read_truncations(self) -> bool:
        """Return whether all truncations without an end are read that come before the next
        transaction: each partition is read, or an event at its head waits for that one or a later one.
        """
        self._unread = [p for p in self._unread if self._queues[p].next < self._offsets[p]]
        queues = (self._queues[p] for p in self._unread)
        return all(queue.entries and not self._is_alone(queue) for queue in queues)

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
        if (is_lost or poison) and self._has_asked() and self._has_read_all(transaction):
            for queue, index in poison:
                tables = self._tables.get(queue.partition[0], ())
                lacking = event.count - arrived.count
                if event.counts and tables:
                    lacking = sum(event.counts.get(t, 0) - arrived.tables[t] for t in tables)
                if arrived.count < event.count and lacking > 0:
                    self._assign(queue, index, event.commit, arrived)
                    arrived.tables[next(iter(tables), "")] += 1
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

    def _has_asked(self) -> bool:
        """Return whether the end offsets are known as they were after the next end was read."""
        if not self._end_records:  # a truncation without an end: `_is_silent_since` has asked
            return True
        is_unknown = self._end_records[0][0].offset >= self._asked_before
        self.wants_ends |= is_unknown
        return not is_unknown

    # The state

    @property
    def starts(self) -> dict[TopicPartition, int]:
        waiting = [self._end_next, *(record.offset for record, _ in list(self._end_records)[:1])]
        if self._again is not None:
            waiting.append(self._again[0].offset)
        starts = {partition: queue.start for partition, queue in self._queues.items()}
        return starts | {self._end_partition: min(waiting)}

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
            ends=self._ends,
            recent=self._finished.recent,
            floors=self._finished.floors,
            floor_time=self._finished.floor_time,
            newest=self._newest,
            first_end_at=self._first_end_at,
            unread_ends=self._unread_ends,
            joined=tuple(sorted(self._joined)),
            passed=tuple(sorted(passed)),
            grown=tuple(sorted(self._grown)),
            grown_to=self._grown_to,
            lost_before=self._lost_before,
            is_truncated=self._is_truncated,
            unfilled=dict(reversed(unfilled.items())),
        ).token()

    @property
    def full(self) -> list[TopicPartition]:
        full = [partition for partition, queue in self._queues.items() if queue.is_full]
        is_waited_for = self.waiting is not None and self.waiting.reason == "end"
        is_full = len(self._end_records) >= self._limits[0] and not is_waited_for
        return [*full, self._end_partition] if is_full else full

    def ends(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._offsets, self._asked_before, self.wants_ends = offsets, self._end_next, False
        self._asked_at = self._now
        for partition in offsets:
            if partition not in self._queues and partition != self._end_partition:
                self._begin(partition, 0)
        self._unread = [partition for partition in offsets if partition != self._end_partition]
        for topic in self._grown:
            self._grown_to[topic] = {k: end for (name, k), end in offsets.items() if name == topic}
        self._grown.clear()

    def skip(self, transaction: str) -> bool:
        """Release a transaction as it is, at the wish of an operator: without the events that it
        lacks, or without an end. False if it is not the one that waits, or if the events may come:
        something was not read.
        """
        waiting = self.waiting
        if waiting is None or waiting.transaction != transaction:
            return False
        if waiting.reason not in ("events", "count", "end"):
            return False
        if waiting.reason == "events" and not (
            self._has_asked() and self._has_read_all(transaction)
        ):
            return False
        self._skipped = transaction
        return True


def _contradicts(end: End, arrived: Arrived) -> bool:
    """Return whether the events of a transaction are others than its end says. If the log began
    again, a later transaction may have the same id.
    """
    is_later = arrived.time // 1000 > end.commit.time // 1000
    if arrived.contradicts or arrived.highest > end.total or is_later:
        return True
    counts = end.counts
    return bool(counts) and any(
        number > counts[table] for table, number in arrived.tables.items() if table in counts
    )


def _is_earlier(commit: Commit, at: LogPosition, time: int) -> bool:
    """Return whether an event is before another position and time in binary logs. If the log began
    again between them, the times tell.
    """
    return commit.time <= time + (SILENT_US if commit.at < at else -SILENT_US)


def _order(one: tuple[ForeignRecord, End], other: tuple[ForeignRecord, End]) -> int:
    commit = other[1].commit
    return -1 if _is_earlier(one[1].commit, commit.at, commit.time) else 1


def _lacks_events(record: ForeignRecord, event: End, arrived: Arrived) -> Waiting:
    return Waiting(
        "events",
        event.commit.transaction,
        record.timestamp,
        missing=event.count - arrived.count,
        counts=event.counts,
        arrived={table: count for table, count in arrived.tables.items() if table},
    )
