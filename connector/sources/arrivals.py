"""The ends of transactions of a source in their order, and their events in queues, as they are
read (SRC-2).

An event or an end that is sent again is left out here. `by_transaction` has the theory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from connector.errors.sources import source_log_began_again, source_log_unknown
from connector.sources.finished import RECENT, TRUNCATION, Finished, Past, keep_newest
from connector.sources.model import (
    BINLOG,
    LSN,
    Commit,
    End,
    Event,
    ForeignRecord,
    LogPosition,
    Poison,
    Row,
    Sequencer,
    Skipped,
    TopicPartition,
    TruncatedTable,
    least_time,
)
from connector.sources.places import SILENT_US, is_earlier
from connector.sources.position import ReadUpTo, SourcePosition, by_number, by_partition
from connector.sources.queues import (
    ALONE,
    UNKNOWN,
    Arrived,
    Entry,
    PartitionQueue,
    fingerprint_of,
    position_of,
)

MOST_RECORDS: Final = 10_000
MOST_BYTES: Final = 4 * 1024 * 1024
MOST_UNFILLED: Final = 8
MOST_UNFILLED_BYTES: Final = 16 * 1024
"""How much of a resume token finished transactions take that lacked events. The oldest ones are
forgotten.
"""
MOST_KEYS: Final = 16
"""Of how many events at one position of a log a resume token has the keys."""
_LATE: Final = "later transactions were sent before it, so its place among them is not known"
_TRUNCATION_LATE: Final = "TRUNCATION_LATE"


def is_late_truncation(event: Event) -> bool:
    """Return whether an event is a truncation of MySQL that has no place among the transactions."""
    is_late = isinstance(event, Poison) and event.rule == _TRUNCATION_LATE
    return is_late and event.commit.transaction.startswith(TRUNCATION)


def next_position(commit: Commit) -> LogPosition:
    """Return the position behind that at which the transaction of an event begins."""
    return (*commit.after[:-1], *(number + 1 for number in commit.after[-1:]))


class _Again(NamedTuple):
    """The first end that was read again, of those that the newest one has not followed yet.

    `newest` is the transaction of the newest one. `is_old`: it is not proved that the transaction
    of the last one is finished.
    """

    record: ForeignRecord
    transaction: str
    newest: str
    is_old: bool


class Arrivals(Sequencer):
    """Takes the records of a source with a transaction topic. `ByTransaction` releases them."""

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
        up_to = by_partition(at.read_up_to)
        self._queues = {
            p: PartitionQueue(p, n, up_to.get(p, ReadUpTo())) for p, n in starts.items()
        }
        self._tables = dict[str, set[str]]()
        self._grown = set(at.grown)
        self._grown_to = dict(at.grown_to)
        self._end_records = deque[tuple[ForeignRecord, End | Poison]]()
        self._ended = dict[str, End]()
        self._again: _Again | None = None
        self._truncations = dict[str, tuple[ForeignRecord, End]]()
        self._arrived = dict[str, Arrived]()
        self._open = set[str]()
        self._base, self._time, self._ends = 0, at.time, dict(at.ends)
        self._finished = Finished(at.recent, at.floors, at.floor_time, most=most_recent)
        self._newest = at.newest
        self._joined, self._passed = set(at.joined), set(at.passed)
        self._unfilled = {name: Arrived(bits) for name, bits in at.unfilled.items()}
        self._has_finished = bool(at.recent)
        self._is_truncated = at.is_truncated
        self._snapshot_at = at.snapshot_at
        self._dropped = dict(at.dropped)
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
        if not self._has_finished and not queue.next and record.offset:
            self._is_truncated = True
        queue.next = record.offset + 1
        if isinstance(event, End):
            return
        if isinstance(event, TruncatedTable) and commit.at and commit.log != LSN:
            event = self._as_transaction(record, event)
        commit = event.commit
        is_alone = is_late_truncation(event) or (isinstance(event, Row) and event.is_snapshot)
        transaction = "" if is_alone else commit.transaction
        if not transaction:
            if isinstance(event, Skipped):
                return
            transaction = UNKNOWN if isinstance(event, Poison) and not is_alone else ALONE
        elif self._is_not_of_end(commit) and self._is_finished(commit):
            late = self._late(record, event)
            if late is not event:
                self._dropped_at(commit)
            if late is None:
                self.repetitions += 1
                return
            transaction, event = ALONE, late
        elif not self._count(transaction, event, record):
            self.repetitions += 1
            return
        queue.append(Entry(record, event, transaction), self._limits)

    @property
    def snapshots(self) -> Collection[str]:
        topics = {topic for topic, _ in self._queues} if self._has_finished else set()
        return topics - self._joined

    def _is_not_of_end(self, commit: Commit) -> bool:
        """Return whether no end was read that an event may have. If the log began again, an end
        that is clearly later is of another transaction with the same id.
        """
        end = self._ended.get(commit.transaction)
        return end is None or 0 < commit.time < end.commit.time - SILENT_US

    def _is_finished(self, commit: Commit) -> bool:
        """Return whether an event is of a finished transaction. If it is of another one, the end of
        that lacks it, and waits.
        """
        return self._finished.of_event(commit) is not Past.NOT_FINISHED

    def _dropped_at(self, commit: Commit) -> None:
        """Remember that an event is not released. The end of its transaction proves that it is of
        a finished one.
        """
        name = commit.transaction
        keep_newest(self._dropped, name, max(commit.time, self._dropped.get(name, 0)), RECENT)

    def _add_end(self, record: ForeignRecord, event: Event) -> None:
        self._end_next = record.offset + 1
        if isinstance(event, Poison):
            self._end_records.append((record, event))
        if not isinstance(event, End):
            return
        transaction = event.commit.transaction
        if (earlier := self._ended.get(transaction)) is not None:
            if (earlier.count, earlier.commit) != (event.count, event.commit):
                self._arrived.setdefault(transaction, Arrived()).contradicts = True
            self._add_repeated(record, event.commit, Past.FINISHED)
            return
        if not event.commit.log:
            raise source_log_unknown(self._end_partition[0], transaction)
        past = self._finished.of_end(event.commit)
        dropped_at = self._dropped.get(transaction)
        if past is Past.NOT_FINISHED:
            are_dropped = dropped_at is not None and event.commit.time <= dropped_at + SILENT_US
            if are_dropped or self._is_behind_gap(event.commit):
                first = self._again.transaction if self._again is not None else transaction
                raise source_log_began_again(self._end_partition[0], first, transaction)
            if event.commit.after > self._ends.get(event.commit.log, ()):
                self._again = None
            self._first_end_at = self._first_end_at or record.timestamp
            self._ended[transaction] = event
            self._open.discard(transaction)
            self._end_records.append((record, event))
            return
        self._add_repeated(record, event.commit, past)

    def _add_repeated(self, record: ForeignRecord, commit: Commit, past: Past) -> None:
        """Take the end of a transaction that is read or finished, or old."""
        self.repetitions += 1
        again, name, is_old = self._again, commit.transaction, past is Past.OLD
        ends = (end for _, end in reversed(self._end_records) if isinstance(end, End))
        pending = next(ends, None)
        if again is not None:
            is_newest = name == again.newest
        elif pending is not None:
            is_newest = name == pending.commit.transaction
        else:
            is_newest = self._finished.is_newest(name)
        if not is_old and (commit.log == LSN or is_newest):
            self._again = None
        elif again is not None:
            self._again = again._replace(is_old=is_old)
        else:
            newest = pending.commit if pending is not None else self._finished.newest
            self._again = _Again(record, name, newest.transaction if newest else "", is_old)

    def _is_behind_gap(self, commit: Commit) -> bool:
        """Return whether a new transaction shows that the log began again, so that those before it
        need not be repetitions. A replica may commit GTIDs in another order: then only an id that
        is used again shows it.
        """
        if self._again is None:
            return False
        is_used_again = self._finished.has(commit.transaction)
        return self._again.is_old or commit.log == BINLOG or is_used_again

    def _begin(self, partition: TopicPartition, start: int) -> PartitionQueue:
        """Return the queue of a partition that is new."""
        topic = partition[0]
        if self._has_finished and not any(topic == name for name, _ in self._queues):
            self._joined.add(topic)
        queue = self._queues[partition] = PartitionQueue(partition, start)
        self._grown.add(topic)
        return queue

    def _keep_unfilled(self, transaction: str, arrived: Arrived) -> None:
        """Remember the events of a transaction that is finished, and may lack some."""
        keep_newest(self._unfilled, transaction, arrived, MOST_UNFILLED)

    def _late(
        self, record: ForeignRecord, event: Row | TruncatedTable | Skipped | Poison
    ) -> Row | TruncatedTable | Skipped | Poison | None:
        """Return an event of a finished transaction, if it was never released. If the source may
        count events again, the number of an event does not prove that it was released. Then it is
        a dead letter, unless its partition had it before. An event without a key may be sent again
        to another partition, so that does not prove it if its transaction lacked an event.
        """
        commit = event.commit
        has_place = record.key is not None or commit.transaction not in self._unfilled
        up_to = self._queues[record.partition].added_up_to
        if commit.counts_again and has_place and up_to.has(commit, record.key):
            return None
        is_late = self._is_late(record, commit)
        if isinstance(event, TruncatedTable) and (is_late or commit.counts_again):
            return Poison(_TRUNCATION_LATE, _LATE, commit, event.table)
        if isinstance(event, Row) and commit.counts_again and not is_late:
            return Poison("EVENT_LATE", _LATE, commit, event.table)
        is_unread = isinstance(event, Poison) and commit.counts_again
        return event if is_late or is_unread else None

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
        fingerprint = fingerprint_of(record, commit.time, commit.at)
        if not arrived.take(commit.sequence, fingerprint, position_of(record, commit)):
            if partition not in arrived.queued:
                self._keep_place(record, event, arrived)
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

    def _keep_place(
        self,
        record: ForeignRecord,
        event: Row | TruncatedTable | Skipped | Poison,
        arrived: Arrived,
    ) -> None:
        """Keep the place of a repetition that is the first event of its transaction in its
        partition, if it was sent before the copy that was counted, and that waits elsewhere: after
        a restart, that copy may be read behind later transactions. An event that is left out needs
        no place.
        """
        commit, topic = event.commit, record.topic
        if isinstance(event, Skipped) or not any(
            number and name == topic and self._queues[name, k].has_behind(commit, record)
            for (name, k), number in arrived.queued.items()
        ):
            return
        arrived.queued[record.partition] += 1
        kept = Skipped("REPETITION", replace(commit, counts_again=False), event.table)
        entry = Entry(record, kept, commit.transaction)
        self._queues[record.partition].append(entry, self._limits)

    def _as_transaction(
        self, record: ForeignRecord, event: TruncatedTable
    ) -> TruncatedTable | Poison:
        """Make a transaction of its own of a truncation that has no end."""
        commit = event.commit
        # A log that began again uses positions again.
        name = f"{TRUNCATION}{commit.transaction or commit.log_position} at {commit.time}"
        commit = replace(commit, transaction=name, sequence=1, counts_again=False)
        past = self._finished.of_event(commit)
        is_behind = self._is_behind_later(record, commit)
        if name in self._ended or past is Past.FINISHED:
            first = self._truncations.get(name)
            if first is not None and not is_behind and record.timestamp < first[0].timestamp:
                self._truncations[name] = record, first[1]
            return replace(event, commit=commit)
        time, at = self._newest
        is_late = past is Past.OLD or (commit.at < at and commit.time // 1000 <= time)
        if is_behind or is_late:
            return Poison(_TRUNCATION_LATE, _LATE, commit, event.table)
        self._ended[name] = End(replace(commit, after=next_position(commit)), 1)
        self._truncations[name] = record, self._ended[name]
        return replace(event, commit=commit)

    def _is_behind_later(self, record: ForeignRecord, commit: Commit) -> bool:
        """Return whether an event of a later transaction is in front of a truncation of MySQL in
        its Kafka partition. So that transaction may be released before the truncation is read.
        """
        queue = self._queues[record.partition]
        others = [
            (entry.record, entry.event.commit.time, entry.event.commit.at)
            for entry in queue.entries
            if entry.transaction not in (ALONE, UNKNOWN)
        ]
        if queue.pinned is not None:  # a part of the next transaction is released
            next_record, next_ = self._end_records[0]
            others.append((next_record, next_.commit.time, self._at_of_next()))
        return any(
            bool(at)
            and is_earlier(commit.time, commit.at, time, at)
            and not self._is_read_again(other, record)
            for other, time, at in others
        )

    def _leave_place(self, transaction: str) -> None:
        """Make a dead letter of a truncation of MySQL that has no place among the transactions."""
        del self._truncations[transaction], self._ended[transaction]
        for partition in +self._arrived.pop(transaction).queued:
            entries = self._queues[partition].entries
            for index, (record, event, name) in enumerate(entries):
                if name == transaction:
                    if isinstance(event, TruncatedTable):
                        event = Poison(_TRUNCATION_LATE, _LATE, event.commit, event.table)
                    entries[index] = Entry(record, event, ALONE)

    def _at_of_next(self) -> LogPosition:
        """Return where the transaction of the next end is in a binary log, if that is known."""
        if not self._end_records:
            return ()
        commit = self._end_records[0][1].commit
        arrived = self._arrived.get(commit.transaction)
        if arrived is not None and arrived.at:
            return arrived.at
        return commit.after if commit.log == BINLOG else ()

    def read_to(self, partition: TopicPartition, offset: int) -> None:
        if partition == self._end_partition:
            self._end_next = max(self._end_next, offset)
            return
        queue = self._queues.get(partition) or self._begin(partition, offset)
        queue.next = max(queue.next, offset)

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

    def _is_grown(self, topic: str) -> bool:
        """Return whether a topic got a Kafka partition, and older events may be unread."""
        return topic in self._grown or topic in self._grown_to

    def _has_events_behind(self, record: ForeignRecord, transaction: str) -> bool:
        """Return whether a transaction has events behind a record, which is the head of a queue."""
        arrived = self._arrived.get(transaction)
        return arrived is not None and arrived.queued[record.partition] > 0

    def _is_read_again(self, before: ForeignRecord, behind: ForeignRecord) -> bool:
        """Return whether Debezium has read the tables between two records, as it does if the log
        begins again.
        """
        times = self._snapshot_times()
        return any(before.timestamp < time <= behind.timestamp for time in times)

    def _snapshot_times(self) -> Iterator[int]:
        """Yield Kafka's times of rows of snapshots that are not incremental: of the newest one that
        was released, and of those in queues.
        """
        yield self._snapshot_at
        for queue in self._queues.values():
            yield from queue.snapshot_times

    def _has_asked(self) -> bool:
        """Return whether the end offsets are known as they were after the next end was read."""
        if not self._end_records:  # a truncation without an end: `_is_silent_since` has asked
            return True
        is_unknown = self._end_records[0][0].offset >= self._asked_before
        self.wants_ends |= is_unknown
        return not is_unknown

    def _are_rows_read(self) -> bool:
        """Return whether all events are read that there were, as far as the queues have room."""
        ends = ((self._queues.get(partition), end) for partition, end in self._offsets.items())
        return all(queue is None or queue.next >= end or queue.is_full for queue, end in ends)

    def _has_read_all(self, transaction: str) -> bool:
        """Return whether no partition can have a further event of the transaction."""
        for partition, end in self._offsets.items():
            if partition != self._end_partition:
                queue = self._queues[partition]
                if queue.next < end and queue.last_transaction() in (ALONE, transaction):
                    return False
        return True

    @property
    def full(self) -> list[TopicPartition]:
        full = [partition for partition, queue in self._queues.items() if queue.is_full]
        is_waited_for = self.waiting is not None and self.waiting.reason == "end"
        is_full = len(self._end_records) >= self._limits[0] and not is_waited_for
        return [*full, self._end_partition] if is_full else full

    @property
    def starts(self) -> dict[TopicPartition, int]:
        waiting = [self._end_next, *(record.offset for record, _ in list(self._end_records)[:1])]
        if self._again is not None:
            waiting.append(self._again.record.offset)
        starts = {partition: queue.start for partition, queue in self._queues.items()}
        return starts | {self._end_partition: min(waiting)}

    def token(self, topic_ids: Mapping[str, str]) -> bytes:
        late = [
            (queue.partition, entry.event.commit)
            for queue in (self._queues.values() if self._joined or self._unfilled else ())
            for entry in queue.entries
            if entry.transaction == ALONE
            and entry.event.commit.transaction
            and not is_late_truncation(entry.event)
        ]
        # What waits in a queue is read again after a restart.
        passed = self._passed - {partition for partition, _ in late}
        unfilled: dict[str, dict[int, bytes]] = {}
        room = MOST_UNFILLED_BYTES
        for name, arrived in reversed(self._unfilled.items()):
            bits = arrived.sequences({c.sequence for _, c in late if c.transaction == name})
            if name not in self._ended and (room := room - sum(map(len, bits.values()))) >= 0:
                unfilled[name] = bits
        read_up_to = {
            partition: up_to._replace(keys=frozenset(sorted(up_to.keys)[:MOST_KEYS]))
            for partition, queue in self._queues.items()
            if (up_to := queue.taken_up_to).position
        }
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
            snapshot_at=self._snapshot_at,
            dropped=self._dropped,
            read_up_to=by_number(read_up_to),
            unfilled=dict(reversed(unfilled.items())),
        ).token()
