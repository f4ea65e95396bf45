"""What a producer may claim of a stream partition, from what the brokers have acknowledged (REC-18).

A heartbeat at *t* promises that every change up to *t* has been delivered. So it must be known, per stream partition, which
commit timestamps are under way, which records failed, and what was promised last. Plain values; the producer asks them.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from connector.records.model import DataChange, Record


@dataclass(slots=True)
class _Times:
    """Some times, equal ones too, and the least of them. O(log n): one in the middle of the heap is only marked, and leaves at the top."""

    _heap: list[int] = field(default_factory=list)
    _gone: dict[int, int] = field(default_factory=dict)

    def add(self, time: int) -> None:
        heapq.heappush(self._heap, time)

    def remove(self, time: int) -> None:
        heap, gone = self._heap, self._gone
        if heap[0] != time:
            gone[time] = gone.get(time, 0) + 1
            return
        heapq.heappop(heap)
        while gone and heap[0] in gone:
            top = heapq.heappop(heap)
            gone[top] -= 1
            if not gone[top]:
                del gone[top]

    def least(self) -> int | None:
        return self._heap[0] if self._heap else None


@dataclass(slots=True)
class Delivery:
    """One stream partition. Every change goes through `sent` once, then through `acknowledged` or `lost`.

    These, and `set_aside`, return by how many records `failed` has grown: 1, 0 or -1.
    """

    promised: int = 0
    under_way: int = 0
    failed: dict[Record, str] = field(default_factory=dict)
    _open: _Times = field(default_factory=_Times)
    _failed: _Times = field(default_factory=_Times)

    def sent(self, change: DataChange) -> int:
        """A change that failed is under way again."""
        self._open.add(change.commit_timestamp)
        self.under_way += 1
        return self._mend(change) if self.failed else 0

    def acknowledged(self, record: Record) -> int:
        """A record equal to one that failed mends it."""
        self._settle(record)
        return self._mend(record) if self.failed else 0

    def lost(self, record: Record, why: str) -> int:
        """It was not delivered, or nobody knows whether it was."""
        self._settle(record)
        is_new = record not in self.failed
        if is_new and isinstance(record, DataChange):
            self._failed.add(record.commit_timestamp)
        self.failed[record] = why
        return int(is_new)

    def set_aside(self, change: DataChange) -> int:
        """A change that failed is somewhere else, and to be waited for no longer."""
        return self._mend(change)

    def oldest_open(self) -> int | None:
        """The smallest commit timestamp of a change that is under way or failed; None if there is none."""
        return min((time for time in (self._open.least(), self._failed.least()) if time is not None), default=None)

    def oldest_failed(self) -> int | None:
        return self._failed.least()

    def _settle(self, record: Record) -> None:
        if isinstance(record, DataChange):
            self.under_way -= 1
            assert self.under_way >= 0, "more changes were settled than sent"
            self._open.remove(record.commit_timestamp)

    def _mend(self, record: Record) -> int:
        if self.failed.pop(record, None) is None:
            return 0
        if isinstance(record, DataChange):
            self._failed.remove(record.commit_timestamp)
        return -1
