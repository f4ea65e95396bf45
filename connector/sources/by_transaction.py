"""The order of a source with a transaction topic (SRC-2).

Theory. In each Kafka partition, the events are in commit order, and so are the ends of the
transactions in their topic. So the next transaction is that of the next end. It is released when
all its events were read: as many as its end says, each sequence once. Then everything before them
in their partitions was released, too. Only a transaction that does not fit into the queues is
released in parts. After a restart, its partitions are read again from its first event.

A transaction has one commit timestamp, at least 2 after the one before. The slot between belongs to
events without a transaction, such as rows of snapshots. They are released when they are at the
head of their partition: behind each transaction that has an event before them there or was sent
before them, and before each one that has an event behind them.

The rows of an incremental snapshot have the end of the newest transaction before them. Those of
another snapshot have no such position, and the log may begin again before them. Kafka's times of
the row and of an end tell which one was sent first. Debezium takes such a snapshot when it starts,
so Kafka has all that was sent before. If PostgreSQL's log begins again, Debezium reads the tables:
so a row of an incremental snapshot is of the old log if it was sent before rows of that snapshot.

Debezium sends events again after a restart, in the same order. An event is a repetition if its
transaction is finished, which `finished` proves, or if its sequence was counted before.

A truncation of MySQL is no part of a transaction, and has no end. It is a transaction of its own,
before the first one whose events have a greater position in the binary log. That one may be out
already if Kafka has the truncation behind its end, or behind an event that waits. Then it is late.

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

A transaction waits, and the bridge says so, if it does not fit together: its events contradict its
end or each other, or it has no end although a later one has. If its events were written before the
first end that Kafka has, its end may be deleted, so they are released without one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Final

from connector.errors.sources import source_row_without_place, source_truncations_unplaced
from connector.records.model import MAX_LONG
from connector.sources.arrivals import Arrivals, is_late_truncation, next_position
from connector.sources.finished import Past
from connector.sources.model import (
    BINLOG,
    LSN,
    Commit,
    End,
    ForeignRecord,
    Poison,
    Released,
    Row,
    Skipped,
    TopicPartition,
    Waiting,
    least_time,
)
from connector.sources.places import RESTART_US, SILENT_US, SORT_KEY, is_earlier
from connector.sources.position import by_partition
from connector.sources.queues import ALONE, UNKNOWN, Arrived, Entry, PartitionQueue, is_read_row

POISON_WAITS_US: Final = 60_000_000
"""After this time, poison that no transaction lacks is released without one."""


class ByTransaction(Arrivals):
    """Releases each transaction when it is whole and its predecessors are out."""

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
                is_skipped = event.commit.transaction == self._skipped
                declared = 0 if is_skipped else event.count
                count = max(declared, arrived.count) - arrived.skipped
            elif waiting.reason != "events" or not self._fills_a_queue(event.commit, arrived):
                self.waiting = waiting
                return
            yield from self._rows(event.commit, arrived, time, count)
            if count is None:
                self.waiting = waiting
                return
            self._finish(event, arrived, time)
        self.waiting = self._waiting_for_end()

    def _next(self) -> tuple[ForeignRecord, End | Poison] | None:
        """Return the end of the next transaction, with its record. None: it is not known."""
        head = self._end_records[0] if self._end_records else None
        if not self._truncations or (head is not None and isinstance(head[1], Poison)):
            return head
        truncations = sorted(self._truncations.values(), key=SORT_KEY)
        if head is not None:
            before = [each for each in truncations if self._precedes(each, head)]
            late = [each for each in before if each[0].timestamp > head[0].timestamp + RESTART_US]
            for _, end in late:
                self._leave_place(end.commit.transaction)
            truncations = sorted(self._truncations.values(), key=SORT_KEY)
            return truncations[0] if len(before) > len(late) else head
        record, end = truncations[0]
        others = (a.at for name, a in self._arrived.items() if name not in self._truncations)
        is_next = not any(at and at < end.commit.at for at in others)
        return (record, end) if is_next and self._is_silent_since(record) else None

    def _precedes(
        self, truncation: tuple[ForeignRecord, End], next_: tuple[ForeignRecord, End | Poison]
    ) -> bool:
        """Return whether a truncation of MySQL comes before the transaction of an end. Its position
        is smaller, unless the log began again between them: their times show it, or rows of a
        snapshot that were sent between them.
        """
        (record, own), (next_record, end) = truncation, next_
        if self._is_read_again(record, next_record):
            return True
        if self._is_read_again(next_record, record):
            return False
        at, commit, truncated = self._at_of_next(), end.commit, own.commit
        arrived = self._arrived.get(commit.transaction)
        if isinstance(end, End) and arrived is not None and arrived.contradicts_end(end):
            return False
        if not at and commit.log == truncated.log:  # the numbers of GTIDs
            return is_earlier(truncated.time, truncated.after, commit.time, commit.after)
        return bool(at) and is_earlier(truncated.time, truncated.at, commit.time, at)

    def _fills_a_queue(self, commit: Commit, arrived: Arrived) -> bool:
        """Return whether a transaction does not fit into a queue: no later one follows there."""
        own = ALONE, commit.transaction
        queues = (self._queues[partition] for partition in +arrived.queued)
        return any(queue.is_full and queue.last_transaction() in own for queue in queues)

    def _is_silent_since(self, record: ForeignRecord) -> bool:
        """Return whether all was read some time after a record, and no end is left to release."""
        silent_at = record.timestamp + SILENT_US
        if self._now < silent_at or self._end_records:
            return False
        self.wants_ends |= self._asked_at < silent_at
        is_read = self._end_next >= self._offsets.get(self._end_partition, MAX_LONG)
        return self._asked_at >= silent_at and is_read and self._are_rows_read()

    def _expected(self, end: End) -> End:
        """Return an end without the events of tables whose topics are not read."""
        if not end.counts:
            return end
        tables = self._tables.values()
        counts = {
            table: number
            for table, number in end.counts.items()
            if self._reads(table) is not False or any(table in shown for shown in tables)
        }
        return replace(end, count=sum(counts.values()), counts=counts)

    def _next_time(self, record: ForeignRecord, commit: Commit) -> int:
        """Return the commit timestamp of the next transaction. A slot before it stays free."""
        return max(self._time + 2, least_time(record, commit))

    def _is_alone(self, queue: PartitionQueue) -> bool:
        """Return whether the event at the head belongs to no transaction that will be released.

        A row of a snapshot waits for the transactions that were sent before it. Poison belongs to
        none if all transactions before the event behind it are released.
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
            if not isinstance(entry.event, Row) or not entry.event.is_snapshot:
                return True
            is_incremental, is_lsn = entry.event.is_incremental, entry.event.commit.log == LSN
            needs_times = is_lsn or not is_incremental or self._is_grown(entry.record.topic)
            if needs_times and not self._is_sent_next(entry):
                return False
            return not is_incremental or self._is_behind_sent(entry)
        if entry.transaction == self._skipped and entry.transaction in self._open:
            at = entry.event.commit.at
            return all(at < end.commit.at for _, end in self._truncations.values())
        return self._lacks_end(entry) and self._may_lack_end(entry)

    def _is_sent_next(self, entry: Entry) -> bool:
        """Return whether all transactions are released that were sent before a row of a snapshot.
        Kafka's times tell: the log may have begun again between them.
        """
        record, event, _ = entry
        for next_record, next_ in (*islice(self._end_records, 1), *self._truncations.values()):
            is_behind = next_record.timestamp < record.timestamp
            if is_behind and not self._has_events_behind(record, next_.commit.transaction):
                return False
        if self._end_records:
            return True
        is_known = self._offsets.get(record.partition, 0) > record.offset
        self.wants_ends |= not is_known
        if not is_known or self._end_next < self._offsets.get(self._end_partition, 0):
            return False
        if isinstance(event, Row) and event.is_incremental and self._is_grown(record.topic):
            return self._is_silent_since(record)
        return True

    def _is_of_old_log(self, entry: Entry, next_: tuple[ForeignRecord, End | Poison]) -> bool:
        """Return whether PostgreSQL's log began again between a row of an incremental snapshot and
        the next transaction: Debezium read the tables in between.
        """
        record, transaction = entry.record, next_[1].commit
        if record.timestamp >= next_[0].timestamp:
            return False
        if self._is_read_again(record, next_[0]):
            return True
        if entry.event.commit.time + SILENT_US <= transaction.time:
            return True
        is_read = self._has_asked() and self._are_rows_read()
        if is_read and self._has_events_behind(record, transaction.transaction):
            raise source_row_without_place(record.topic, record.offset, transaction.transaction)
        return False

    def _is_behind_sent(self, entry: Entry) -> bool:
        """Return whether all transactions are released that were sent before a row of an
        incremental snapshot. Without a position in the log of commits, that matters only if the
        topic got a Kafka partition, so that an older event may be in another one.
        """
        record, commit = entry.record, entry.event.commit
        if commit.log == LSN:
            is_sent = commit.after <= self._ends.get(LSN, ())
            next_ = self._end_records[0] if self._end_records else None
            if is_sent and next_ is not None and () < next_[1].commit.after <= commit.after:
                return self._is_of_old_log(entry, next_)
            return is_sent or self._is_before_next(commit)
        if not self._is_grown(record.topic):
            return True
        if commit.after <= self._ends.get(commit.log, ()) and commit.log not in ("", BINLOG):
            return True
        time, at = self._newest
        if commit.at <= at or is_earlier(commit.time, commit.at, 1000 * time, at):
            return True
        if self._is_before_next(commit):
            return True
        if (next_ := self._next()) is not None:
            at = next_[1].commit.at or self._at_of_next()
            if at and is_earlier(commit.time, commit.at, next_[1].commit.time, at):
                return True
            if self._is_read_again(record, next_[0]):
                return True
        # The next transaction may wait for an event behind it.
        if self._queues[record.partition].is_full and self._end_records:
            return self._has_asked() and self._are_rows_read()
        return self._is_silent_since(record)

    def _is_before_next(self, commit: Commit) -> bool:
        """Return whether an event is before the end of the next transaction, if that is known."""
        if not self._end_records or not commit.after:
            return False
        if commit.has_gtid:
            at = self._at_of_next()
            return bool(at) and commit.at < at
        end = self._end_records[0][1].commit
        return end.log == commit.log and commit.after < end.after

    def _lacks_end(self, entry: Entry) -> bool:
        """Return whether the transaction of an event has no end, although a later one has."""
        commit = entry.event.commit
        if entry.transaction not in self._open or not commit.after:
            return False
        if commit.has_gtid:
            return commit.at < self._newest[1] or self._is_before_next(commit)
        newest = self._finished.newest
        is_behind = newest is not None and newest.log == commit.log and commit.after < newest.end
        return is_behind or self._is_before_next(commit)

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
                if transaction == self._skipped:
                    end = replace(
                        event.commit, time=arrived.time, after=next_position(event.commit)
                    )
                    self._finished.add(end, has_end=False)
                    self._keep_unfilled(transaction, arrived)
        if is_late_truncation(event):
            if self._finished.of_event(event.commit) is Past.FINISHED:
                self.repetitions += 1
                return
            self._finished.add(replace(event.commit, after=next_position(event.commit)))
        if is_read_row(event):
            self._snapshot_at = max(self._snapshot_at, record.timestamp)
        if not isinstance(event, Skipped):
            yield Released(record, event, time + 1, record.offset, 0)

    def _finish(self, event: End, arrived: Arrived, time: int) -> None:
        commit = event.commit
        for partition in arrived.queued:
            self._queues[partition].pinned = None
        is_truncation = self._truncations.pop(commit.transaction, None) is not None
        if not is_truncation:
            self._end_records.popleft()
        del self._ended[commit.transaction]
        self._arrived.pop(commit.transaction, None)
        self._time = time
        newest = self._ends.get(commit.log, ())
        self._ends[commit.log] = commit.after if commit.log == LSN else max(newest, commit.after)
        if arrived.at:
            self._newest = commit.time // 1000, arrived.at
        self._finished.add(commit)
        self._has_finished = True

    def _waiting_for(
        self, record: ForeignRecord, event: End, arrived: Arrived, ahead: int
    ) -> Waiting | None:
        """Return what a transaction waits for, or None: it can be released."""
        transaction = event.commit.transaction
        reason = self._reason_to_wait(record, event, arrived, ahead)
        if reason and reason != "events":
            return Waiting(reason, transaction, record.timestamp)
        waiting = self._waiting_without_end(self._lacks_end) if self._open else None
        if waiting is not None:
            return waiting
        for partition in +arrived.queued:
            for entry in self._queues[partition].entries:
                if entry.transaction == transaction:
                    break
                if self._is_in_front(entry, event.commit) and not self._may_lack_end(entry):
                    return Waiting("end", entry.transaction, entry.record.timestamp)
        return arrived.waiting_for_events(record, event) if reason else None

    def _reason_to_wait(
        self, record: ForeignRecord, event: End, arrived: Arrived, ahead: int
    ) -> str:
        """Return the reason why a transaction is not released yet, or an empty text."""
        commit = event.commit
        self._check_truncations(commit, arrived)
        if ahead > self._skew_us:
            return "clock"
        if self._grown or not self._offsets:
            self.wants_ends = True
            return "snapshot"
        begins_again = commit.log == LSN and commit.after < self._ends.get(LSN, ())
        if begins_again and not (self._has_asked() and self._are_rows_read()):
            return "snapshot"
        if begins_again or not self._has_finished:
            if not (self._has_asked() and self._has_read_snapshots(self._offsets)):
                return "snapshot"
            if self._is_truncated:
                self._lost_before, self._is_truncated = self._asked_before, False
        if commit.log != LSN and not (self._has_asked() and self._has_read_truncations()):
            return "snapshot"
        if self._skipped != commit.transaction and arrived.contradicts_end(event):
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

    def _check_truncations(self, commit: Commit, arrived: Arrived) -> None:
        """Raise `TopicError` if the log began again with a transaction, and its time does not prove
        which truncations are of the old log.
        """
        time, at = self._newest
        if (
            () < arrived.at < at
            and commit.time <= 1000 * time + SILENT_US
            and (self._truncations or self._finished.has_truncations)
        ):
            raise source_truncations_unplaced(self._end_partition[0], commit.transaction)

    def _waiting_for_end(self) -> Waiting | None:
        """Return what is waited for when no end is left to release."""
        if self._again is not None:
            return Waiting("again", self._again.transaction, self._again.record.timestamp)
        waiting = None
        if self._open:
            waiting = self._waiting_without_end(lambda entry: self._is_silent_since(entry.record))
        for record, end in self._truncations.values():
            return waiting or Waiting("snapshot", end.commit.transaction, record.timestamp)
        return waiting or self._waiting_row()

    def _waiting_row(self) -> Waiting | None:
        """Return what is waited for if a row of a snapshot waits at the head of a partition."""
        for queue in self._queues.values():
            if queue.entries and queue.entries[0].transaction == ALONE:
                record = queue.entries[0].record
                if not self._is_alone(queue):
                    name = f"{record.topic}/{record.kafka_partition}/{record.offset}"
                    return Waiting("row", name, record.timestamp)
        return None

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
        transaction: each partition is read, or an event at its head waits.
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
                of_tables = (event.counts.get(t, 0) - arrived.tables[t] for t in tables)
                lacking = sum(of_tables) if event.counts and tables else 1
                if arrived.count < event.count and lacking > 0:
                    self._assign(queue, index, event.commit, arrived)
                    arrived.tables[next(iter(tables), "")] += 1
            if is_lost:
                self._skipped = transaction
        if arrived.count < event.count and self._skipped != transaction:
            return False
        self._keep_unfilled(transaction, arrived)
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

    @property
    def reached(self) -> int:
        return self._time

    def skip(self, transaction: str) -> bool:
        """Release a transaction as it is, at the wish of an operator: without the events that it
        lacks, or without an end. False if it is not the one that waits, or if the events may come:
        something was not read.
        """
        waiting = self.waiting
        if waiting is None or waiting.transaction != transaction or not waiting.can_be_skipped:
            return False
        has_read = self._has_read_all(transaction) or self._are_rows_read()
        if waiting.reason == "events" and not (self._has_asked() and has_read):
            return False
        self._skipped = transaction
        return True
