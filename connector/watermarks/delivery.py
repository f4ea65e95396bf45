"""The claims that a producer may make for a stream partition, from the acknowledgements of the
brokers (REC-18).

A heartbeat at *t* means that every change up to *t* was delivered. Therefore this module stores,
for each stream partition, the commit timestamps in flight, the failed records, and the last
heartbeat. These are plain values that the producer uses.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from connector.errors import InvalidChangeError
from connector.records.model import Mutation, Record, Rule
from connector.watermarks.heartbeat_schedule import ClaimWatch


@dataclass(slots=True)
class Multiset:
    """A multiset of times or offsets with its minimum. All operations are O(log n).

    A number in the middle of the heap is only marked as removed. It is dropped when it reaches the
    top.
    """

    _heap: list[int] = field(default_factory=list)
    _removed: dict[int, int] = field(default_factory=dict)

    def add(self, time: int) -> None:
        heapq.heappush(self._heap, time)

    def remove(self, time: int) -> None:
        heap, removed = self._heap, self._removed
        if heap[0] != time:
            removed[time] = removed.get(time, 0) + 1
            return
        heapq.heappop(heap)
        while removed and heap[0] in removed:
            top = heapq.heappop(heap)
            removed[top] -= 1
            if not removed[top]:
                del removed[top]

    def least(self) -> int | None:
        return self._heap[0] if self._heap else None


@dataclass(slots=True)
class StoredTimes:
    """The least commit timestamp of the changes in an outbox (PUB-3).

    An outbox can have millions of changes, so their times are not stored one by one. They are in
    two generations. The older one counts with its least time until its last change is settled.
    Then the newer one becomes the older one. So `least` is never too high.
    """

    _older: tuple[int, int] | None = None
    _newer: tuple[int, int] | None = None
    """The greatest number of the changes of a generation, and their least time."""

    def add(self, number: int, time: int) -> None:
        """Register a change. Numbers ascend."""
        self._newer = number, time if self._newer is None else min(time, self._newer[1])

    def settled_below(self, number: int) -> None:
        """Forget the changes with smaller numbers, as far as whole generations are settled."""
        for _ in range(2):
            if self._older is None or self._older[0] < number:
                self._older, self._newer = self._newer, None

    def least(self) -> int | None:
        """Return a time at or below that of each change. None: there is no change."""
        times = (pair[1] for pair in (self._older, self._newer) if pair is not None)
        return min(times, default=None)


@dataclass(slots=True)
class Delivery:
    """The delivery state of one stream partition. Truncations count as changes.

    Each change goes through `sent` once, and then through `acknowledged` or `lost`. These methods
    and `forget_failure` return how many records were added to `failed`: 1, 0 or -1.

    `heartbeat_at` is the time of the last heartbeat. `reached` is the last position that the
    application reported. A new change must be after both.

    With an outbox, a change goes from `sent` to `stored` (PUB-3). `outbox` has the times of the
    changes there.

    `held` has the commit timestamps of the releases that are not acknowledged yet. They count as
    changes in flight (WRS-15). It is replaced, and never changed, because another client sends
    them. `last_release` is the time of the newest release.
    """

    heartbeat_at: int = 0
    reached: int = 0
    watch: ClaimWatch = field(default_factory=ClaimWatch)
    under_way: int = 0
    failed: dict[Record, str] = field(default_factory=dict)
    outbox: StoredTimes = field(default_factory=StoredTimes)
    held: frozenset[int] = frozenset()
    last_release: int = 0
    _open: Multiset = field(default_factory=Multiset)
    _failed: Multiset = field(default_factory=Multiset)

    def check_is_new(self, change: Mutation) -> None:
        """Raise `InvalidChangeError` if a change is not after the last heartbeat or the last
        reported position.

        A failed change may be sent again, also after a later heartbeat: it may have been delivered.
        """
        latest = max(self.heartbeat_at, self.reached)
        if change.commit_timestamp > latest or change in self.failed:
            return
        is_heartbeat = self.heartbeat_at == latest
        closed_by = "the last heartbeat" if is_heartbeat else "the position reported with reached"
        raise InvalidChangeError(
            Rule.COMMIT_TIMESTAMP,
            "commit_timestamp",
            f"after {latest}, {closed_by} of stream partition {change.stream_partition}",
            change.commit_timestamp,
            "Send all changes up to a time before you report it, or send a heartbeat at it",
        )

    def sent(self, change: Mutation) -> int:
        """Register a change that is sent. It may have failed before."""
        self._open.add(change.commit_timestamp)
        self.under_way += 1
        return self.forget_failure(change) if self.failed else 0

    def acknowledged(self, record: Record) -> int:
        """Register an acknowledgement. It also removes an equal record from `failed`."""
        self._settle(record)
        return self.forget_failure(record) if self.failed else 0

    def lost(self, record: Record, reason: str) -> int:
        """Register a record that was not delivered, or whose delivery is unknown."""
        self._settle(record)
        is_new = record not in self.failed
        if is_new and isinstance(record, Mutation):
            self._failed.add(record.commit_timestamp)
        self.failed[record] = reason
        return int(is_new)

    def stored(self, number: int, commit_timestamp: int) -> None:
        """Register that a change in flight is now in the outbox, with this number."""
        self.under_way -= 1
        self._open.remove(commit_timestamp)
        self.outbox.add(number, commit_timestamp)

    def oldest_open(self) -> int | None:
        """Return the least commit timestamp of the changes that are in flight, in the outbox or
        failed, or None. With changes in the outbox, it may be less.
        """
        times = self._open.least(), self.outbox.least(), self.oldest_unsent()
        return min((time for time in times if time is not None), default=None)

    def oldest_unsent(self) -> int | None:
        """Return the least commit timestamp of the failed changes and the held releases, or None.
        A heartbeat in an outbox must be below it: the others are before it there.
        """
        times = self._failed.least(), min(self.held, default=None)
        return min((time for time in times if time is not None), default=None)

    def oldest_failed(self) -> int | None:
        return self._failed.least()

    def _settle(self, record: Record) -> None:
        if isinstance(record, Mutation):
            self.under_way -= 1
            assert self.under_way >= 0, "more changes were settled than sent"
            self._open.remove(record.commit_timestamp)

    def forget_failure(self, record: Record) -> int:
        """Stop waiting for a failed record."""
        if self.failed.pop(record, None) is None:
            return 0
        if isinstance(record, Mutation):
            self._failed.remove(record.commit_timestamp)
        return -1
