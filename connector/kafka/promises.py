"""What a producer may claim of a stream partition, from what the brokers have acknowledged (REC-18).

A heartbeat at *t* promises that every change up to *t* has been delivered. So it must be known, per stream partition, which
commit timestamps are under way, which records failed, and what was promised last. Plain values; the producer asks them.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from connector.model import DataChange, Record


@dataclass(slots=True)
class Delivery:
    """One stream partition. Every change goes through `sent` once, then through `acknowledged` or `lost`."""

    promised: int = 0
    under_way: int = 0
    failed: dict[Record, str] = field(default_factory=dict)
    _timestamps: list[int] = field(default_factory=list)
    _settled: dict[int, int] = field(default_factory=dict)
    _oldest_failed: int | None = None

    def sent(self, change: DataChange) -> None:
        heapq.heappush(self._timestamps, change.commit_timestamp)
        self.under_way += 1

    def acknowledged(self, record: Record) -> None:
        """A record equal to one that failed mends it."""
        self._settle(record)
        if self.failed and self.failed.pop(record, None) is not None:
            self._look_for_oldest_failed()

    def lost(self, record: Record, why: str) -> None:
        """It was not delivered, or nobody knows whether it was."""
        self._settle(record)
        self.failed[record] = why
        if isinstance(record, DataChange) and (self._oldest_failed is None or record.commit_timestamp < self._oldest_failed):
            self._oldest_failed = record.commit_timestamp

    def oldest_open(self) -> int | None:
        """The smallest commit timestamp of a change that is under way or failed; None if there is none."""
        return min((*self._timestamps[:1], *(() if self._oldest_failed is None else (self._oldest_failed,))), default=None)

    def oldest_failed(self) -> int | None:
        return self._oldest_failed

    def _settle(self, record: Record) -> None:
        """O(log n): an entry in the middle of the heap is only marked, and leaves when it comes to the top."""
        if not isinstance(record, DataChange):
            return
        self.under_way -= 1
        assert self.under_way >= 0, "more changes were settled than sent"
        timestamps, settled = self._timestamps, self._settled
        settled[record.commit_timestamp] = settled.get(record.commit_timestamp, 0) + 1
        while timestamps and timestamps[0] in settled:
            top = heapq.heappop(timestamps)
            settled[top] -= 1
            if not settled[top]:
                del settled[top]

    def _look_for_oldest_failed(self) -> None:
        self._oldest_failed = min((record.commit_timestamp for record in self.failed if isinstance(record, DataChange)), default=None)
