"""The order of a source without a transaction topic: that of each Kafka partition (SRC-2, SRC-4).

Theory. Each Kafka partition has its own clock, which rises strictly with its records. All changes
of a key are in one partition, so the newest one wins. Changes of different partitions have no
common order, so there is no consistent cut.

Debezium sends events again after a restart, in the same order, from any place to the newest one. An
event that is before the newest one of its partition, by position and by commit time, is held until
that is known. If the newest one follows, with its position, its key and its own commit time, those
that are held are repetitions. If one behind it follows, they are not: the log began again, so they
are released.

`reached` is the least clock. The clock of a partition that was read to its end is set to the time
before its end offset was asked. Such a step depends on when it was made, and so does the first
value of the clock of a partition that appears later. So both are claims: later records are released
when Kafka has a resume token with them, and get the same commit timestamps after a restart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final

from connector.errors.sources import source_log_began_again
from connector.records.model import MAX_LONG
from connector.sources.model import (
    End,
    Event,
    ForeignRecord,
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
from connector.sources.position import Placed, SourcePosition, by_number, by_partition, placed

ASK_EVERY_US: Final = 1_000_000
MOST_RECORDS: Final = 10_000
_Entry = tuple[ForeignRecord, Row | TruncatedTable | Poison]


class _Lane:
    """A Kafka partition: what was not released of it, what is held, its clock, its newest event.

    `held_from` is the offset of the first event that is held, or None. `are_dropped`: too many were
    held, so the first ones were dropped.
    """

    __slots__ = ("are_dropped", "clock", "entries", "held", "held_from", "newest", "next")

    def __init__(self, start: int, clock: int, newest: Placed | None = None) -> None:
        self.next, self.clock, self.newest = start, clock, newest
        self.entries = deque[_Entry]()
        self.held = deque[_Entry](maxlen=MOST_RECORDS)
        self.held_from: int | None = None
        self.are_dropped = False

    @property
    def start(self) -> int:
        """The offset from which the partition is read after a restart."""
        waiting = self.entries[0][0].offset if self.entries else self.next
        return waiting if self.held_from is None else min(waiting, self.held_from)

    def add(self, record: ForeignRecord, event: Row | TruncatedTable | Poison) -> int:
        """Take an event. Return how many repetitions were found."""
        commit, newest = event.commit, self.newest
        is_placed = bool(commit.after) and not (isinstance(event, Row) and event.is_snapshot)
        repetitions = 0
        if is_placed and newest is not None and newest.log == commit.log:
            position, newest_position = (commit.after, commit.at), (newest.after, newest.at)
            own_time = commit.time if newest.own_time else 0
            is_newest = placed(commit, newest, record.key)._replace(own_time=own_time) == newest
            is_old = commit.time <= newest.time
            # Without positions of their own, a transaction may have several such events.
            if is_newest or (is_old and not commit.at and position == newest_position):
                repetitions, self.held_from = len(self.held), None
                self.held.clear()
                self.are_dropped = False
                if commit.at:
                    return repetitions + 1
            # Several events may have one position.
            elif is_old and (
                position < newest_position or (self.held and position == newest_position)
            ):
                self.are_dropped |= len(self.held) == MOST_RECORDS
                self.held.append((record, event))
                if self.held_from is None:
                    self.held_from = record.offset
                return 0
        if is_placed:
            if self.are_dropped:
                raise source_log_began_again(record.topic, str(self.held_from), str(record.offset))
            self.entries += self.held
            self.held.clear()
            self.held_from, self.newest = None, placed(commit, newest, record.key)
        self.entries.append((record, event))
        return repetitions


class ByPartition(Sequencer):
    """Releases each event at once."""

    def __init__(self, position: SourcePosition | None = None, *, max_clock_skew_s: int) -> None:
        """Begin at the position of a resume token. None: there was no bridge before."""
        super().__init__(max_clock_skew_s)
        at = position or SourcePosition(starts={})
        starts, clocks = by_partition(at.starts), by_partition(at.clocks)
        newest = by_partition(at.afters)
        self._lanes = {p: _Lane(starts[p], clocks[p], newest.get(p)) for p in starts}
        self._is_begun, self._asked_at, self.wants_ends = position is not None, 0, True

    def add(self, record: ForeignRecord, event: Event) -> None:
        lane = self._lanes.get(record.partition) or self._begin(record.partition, record.offset)
        lane.next = record.offset + 1
        if isinstance(event, Skipped | End):
            return
        self.repetitions += lane.add(record, event)

    def _begin(self, partition: TopicPartition, start: int) -> _Lane:
        """Return the lane of a partition that appears: behind all that was reached."""
        reached = self.reached
        lane = self._lanes[partition] = _Lane(start, reached)
        # Without a clock that was reached, there is nothing to claim, and no heartbeat.
        self.has_claim |= reached > 0
        return lane

    def read_to(self, partition: TopicPartition, offset: int) -> None:
        lane = self._lanes.get(partition) or self._begin(partition, offset)
        lane.next = max(lane.next, offset)

    def released(self, now: int) -> Iterator[Released]:
        self.waiting, self._now = None, now
        self.wants_ends = not self._is_begun or now >= self._asked_at + ASK_EVERY_US
        if self.has_claim or not self._is_begun:
            return
        for lane in self._lanes.values():
            while lane.entries:
                record, event = lane.entries[0]
                time = max(lane.clock + 1, least_time(record, event.commit))
                if time > now + self._skew_us:
                    self.waiting = Waiting("clock", event.commit.transaction, record.timestamp)
                    break
                lane.entries.popleft()
                lane.clock = time
                yield Released(record, event, time, record.offset, 0)
            if lane.held and self.waiting is None:
                record, event = lane.held[0]
                what = event.commit.log_position or f"{record.topic}/{record.kafka_partition}"
                self.waiting = Waiting("again", what, record.timestamp)

    @property
    def starts(self) -> dict[TopicPartition, int]:
        return {partition: lane.start for partition, lane in self._lanes.items()}

    @property
    def reached(self) -> int:
        if not self._is_begun:
            return 0
        return min((lane.clock for lane in self._lanes.values()), default=0)

    def token(self, topic_ids: Mapping[str, str]) -> bytes:
        # Events that wait are read again.
        afters = {
            p: n for p, lane in self._lanes.items() if (n := lane.newest) and not lane.entries
        }
        return SourcePosition(
            starts=by_number(self.starts),
            topic_ids=topic_ids,
            time=self.reached,
            clocks=by_number({p: lane.clock for p, lane in self._lanes.items()}),
            afters=by_number(afters),
        ).token()

    @property
    def full(self) -> list[TopicPartition]:
        return [p for p, lane in self._lanes.items() if len(lane.entries) >= MOST_RECORDS]

    def ends(self, offsets: Mapping[TopicPartition, int]) -> None:
        for partition in offsets:
            if partition not in self._lanes:
                self._begin(partition, 0)
        idle = {
            partition
            for partition, lane in self._lanes.items()
            if lane.next >= offsets.get(partition, MAX_LONG)
            and not lane.entries
            and lane.held_from is None
        }
        # Until each partition has released something or was read to its end, nothing is reached.
        if all(lane.clock or partition in idle for partition, lane in self._lanes.items()):
            for partition in idle:
                if self._lanes[partition].clock < self._now:
                    self._lanes[partition].clock, self.has_claim = self._now, True
        self._is_begun, self._asked_at, self.wants_ends = True, self._now, False
