"""The heartbeats that a producer sends by itself: which positions, and when (PUB-1, PUB-2).

The application reports how far it has handed over each stream partition. In each interval, a stream
partition gets at most one heartbeat, at the newest reported position that is true: every change up
to it is acknowledged (REC-18). While a source is busy, the newest reported position is hardly ever
true, because its changes are still in flight. Therefore some earlier positions are kept, too. If
none is true, the heartbeat waits for a later call.

These are plain values that the producer uses. `now` is a clock in seconds that never goes back. All
other times are of the source, in microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from connector.errors import argument_invalid
from connector.records.model import Heartbeat

MIN_S: Final = 1
MAX_S: Final = 300

REPEAT_S: Final = 55.0
"""How often announcements, and heartbeats without a new position, are repeated. So a reader that
begins in the middle of the topic finds them within a minute.
"""

RETRY_S: Final = 0.05
"""How soon `due` looks again at a position that was not true."""

POSITIONS_PER_INTERVAL: Final = 10
MAX_POSITIONS: Final = 32
FORGOTTEN_S: Final = 60.0


@dataclass(slots=True)
class ClaimWatch:
    """Notices a stream partition that sends changes and makes no claim (PUB-2).

    Changes with one commit timestamp are not counted: they may be a backfill, whose low watermark
    must not advance (REC-23), or one long transaction. `since` is the time from which on changes
    count, or None.
    """

    since: float | None = None
    _first: int | None = None

    def changed(self, commit_timestamp: int, clock: Callable[[], float]) -> None:
        """Register a change without a claim."""
        if self._first is None:
            self._first = commit_timestamp
        elif self.since is None and commit_timestamp != self._first:
            self.since = clock()

    def claimed(self) -> None:
        """Register a heartbeat, an estimated low watermark, or the end of the stream partition."""
        self.since = self._first = None

    def is_forgotten(self, now: float) -> bool:
        return self.since is not None and now - self.since >= FORGOTTEN_S


@dataclass(slots=True)
class _Reported:
    """A reported position. `since` is when its place in the list began."""

    heartbeat: Heartbeat
    since: float


@dataclass(slots=True)
class _Positions:
    """The positions of a stream partition, oldest first. `sent` is the newest heartbeat, unless it
    failed.
    """

    reported: list[_Reported] = field(default_factory=list)
    sent: Heartbeat | None = None
    sent_at: float = -math.inf

    def add(self, heartbeat: Heartbeat, now: float, distance: float) -> None:
        positions = self.reported
        if positions and now - positions[-1].since < distance:
            positions[-1].heartbeat = heartbeat
            return
        positions.append(_Reported(heartbeat, now))
        if len(positions) > MAX_POSITIONS:
            # Keep the oldest and the newest, and half of the others.
            self.reported = [*positions[:-1:2], positions[-1]]

    def newest_true(self, oldest_open: int | None) -> Heartbeat | None:
        for position in reversed(self.reported):
            if oldest_open is None or position.heartbeat.timestamp < oldest_open:
                return position.heartbeat
        return None


class HeartbeatSchedule:
    """The reported positions of all stream partitions, and the times of the next heartbeats.

    `is_started` means that a position was reported. Set it if a stream partition needs heartbeats
    without one.
    """

    is_started = False

    def __init__(self, interval_s: float) -> None:
        """Raises `ConfigError` if the interval is not allowed."""
        if not MIN_S <= interval_s <= MAX_S:
            raise argument_invalid("heartbeat_s", interval_s, f"{MIN_S} to {MAX_S} seconds")
        self._interval_s = float(interval_s)
        self._positions: dict[str, _Positions] = {}
        self._next_due_at = 0.0
        self._announce_at = 0.0

    @property
    def next_at(self) -> float:
        """The time of the next call of `due`. It is infinite before the start."""
        return min(self._next_due_at, self._announce_at) if self.is_started else math.inf

    def reached(self, heartbeat: Heartbeat, now: float) -> None:
        """Register a position that the application reports. It is not before the last one."""
        self.is_started = True
        if not self._positions:
            self._announce_at = max(self._announce_at, now + REPEAT_S)
        positions = self._positions.setdefault(heartbeat.stream_partition, _Positions())
        positions.add(heartbeat, now, self._interval_s / POSITIONS_PER_INTERVAL)

    def keep(self, is_live: Callable[[str], bool]) -> None:
        """Forget the stream partitions that have ended."""
        self._positions = {
            name: positions for name, positions in self._positions.items() if is_live(name)
        }

    def announces(self, now: float) -> bool:
        """Return whether all announcements must be repeated now."""
        if now < self._announce_at:
            return False
        self._announce_at = now + REPEAT_S
        return True

    def due(self, now: float, oldest_open: Callable[[str], int | None]) -> list[Heartbeat]:
        """Return the heartbeats to send now.

        `oldest_open` returns the least commit timestamp of a stream partition that is not
        acknowledged. A stream partition without a true position gets its heartbeat at a later call.
        """
        if now < self._next_due_at:
            return []
        heartbeats: list[Heartbeat] = []
        next_at = now + self._interval_s
        for name, positions in self._positions.items():
            due_at = positions.sent_at + self._interval_s
            if now < due_at:
                next_at = min(next_at, due_at)
                continue
            heartbeat = positions.newest_true(oldest_open(name))
            if heartbeat is not None and (
                heartbeat != positions.sent or now + self._interval_s > positions.sent_at + REPEAT_S
            ):
                heartbeats.append(heartbeat)
            elif heartbeat is not positions.reported[-1].heartbeat:
                next_at = min(next_at, now + RETRY_S)
        self._next_due_at = next_at
        return heartbeats

    def last(self, oldest_open: Callable[[str], int | None]) -> list[Heartbeat]:
        """Return the heartbeats to send before the producer closes: those at new positions."""
        return [
            heartbeat
            for name, positions in self._positions.items()
            if (heartbeat := positions.newest_true(oldest_open(name))) is not None
            and heartbeat != positions.sent
        ]

    def sent(self, heartbeat: Heartbeat, now: float) -> None:
        """Register a heartbeat that was sent. Earlier positions are not needed any more."""
        positions = self._positions[heartbeat.stream_partition]
        positions.sent, positions.sent_at = heartbeat, now
        while positions.reported[0].heartbeat != heartbeat:
            del positions.reported[0]

    def failed(self, heartbeat: Heartbeat) -> None:
        """Register a heartbeat that was sent and not delivered. The next tick sends it again."""
        positions = self._positions.get(heartbeat.stream_partition)
        if positions is not None and positions.sent == heartbeat:
            positions.sent = None
