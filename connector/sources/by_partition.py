"""The order of a source without a transaction topic: that of each Kafka partition (SRC-2, SRC-4).

Theory. Each Kafka partition has its own clock, which rises strictly with its records. All changes
of a key are in one partition, so the newest one wins. Changes of different partitions have no
common order, so there is no consistent cut.

`reached` is the least clock. The clock of a partition that was read to its end is set to the time
before its end offset was asked. Such a step depends on when it was made, and so does the first
value of the clock of a partition that appears later. So both are claims: later records are released
when Kafka has a resume token with them, and get the same commit timestamps after a restart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final

from connector.records.model import MAX_LONG
from connector.sources.model import (
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

ASK_EVERY_US: Final = 1_000_000
MOST_RECORDS: Final = 10_000


class _Lane:
    """A Kafka partition: what was not released of it, and its clock."""

    __slots__ = ("after", "clock", "entries", "next")

    def __init__(self, start: int, clock: int, after: LogPosition = ()) -> None:
        self.next, self.clock, self.after = start, clock, after
        self.entries = deque[tuple[ForeignRecord, Row | TruncatedTable | Poison]]()


class ByPartition(Sequencer):
    """Releases each event at once."""

    def __init__(self, position: SourcePosition | None = None, *, max_clock_skew_s: int) -> None:
        """Begin at the position of a resume token. None: there was no bridge before."""
        super().__init__(max_clock_skew_s)
        at = position or SourcePosition(starts={})
        starts, clocks = by_partition(at.starts), by_partition(at.clocks)
        afters = by_partition(at.afters)
        self._lanes = {p: _Lane(starts[p], clocks[p], afters.get(p, ())) for p in starts}
        self._is_begun, self._asked_at, self.wants_ends = position is not None, 0, True

    def add(self, record: ForeignRecord, event: Event) -> None:
        lane = self._lanes.get(record.partition) or self._begin(record.partition, record.offset)
        lane.next = record.offset + 1
        if isinstance(event, Skipped | End):
            return
        if not isinstance(event, Row) or not event.is_snapshot:
            after = event.commit.after
            if after and after < lane.after:
                self.repetitions += 1
                return
            lane.after = after or lane.after
        lane.entries.append((record, event))

    def _begin(self, partition: TopicPartition, start: int) -> _Lane:
        """Return the lane of a partition that appears: behind all that was reached."""
        lane = self._lanes[partition] = _Lane(start, self.reached)
        self.has_claim |= self._is_begun
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

    @property
    def starts(self) -> dict[TopicPartition, int]:
        return {
            partition: lane.entries[0][0].offset if lane.entries else lane.next
            for partition, lane in self._lanes.items()
        }

    @property
    def reached(self) -> int:
        if not self._is_begun:
            return 0
        return min((lane.clock for lane in self._lanes.values()), default=0)

    def token(self, topic_ids: Mapping[str, str]) -> bytes:
        # Events that wait are read again.
        afters = {p: lane.after for p, lane in self._lanes.items() if not lane.entries}
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
            if lane.next >= offsets.get(partition, MAX_LONG) and not lane.entries
        }
        # Until each partition has released something or was read to its end, nothing is reached.
        if all(lane.clock or partition in idle for partition, lane in self._lanes.items()):
            for partition in idle:
                if self._lanes[partition].clock < self._now:
                    self._lanes[partition].clock, self.has_claim = self._now, True
        self._is_begun, self._asked_at, self.wants_ends = True, self._now, False
