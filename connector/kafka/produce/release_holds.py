"""The releases that another client sends in a stream partition of a producer (WRS-15).

A release counts as a change in flight: until it is acknowledged, the producer sends no heartbeat at
or above its commit timestamp.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from connector.clock import now_us
from connector.errors import ErrorCode, WriteStreamError
from connector.write_streams.rules import release_timestamp

if TYPE_CHECKING:
    from connector.kafka.produce.control_records import ControlRecords
    from connector.kafka.produce.results import Results
    from connector.kafka.produce.send_queue import HeaderList


class HeldRelease(NamedTuple):
    """The stream partition and the commit timestamp (µs) of a release, and its headers."""

    stream_partition: str
    commit_timestamp: int
    headers: HeaderList


class ReleaseHolds:
    """The releases in flight of one producer."""

    def __init__(self, control: ControlRecords, results: Results) -> None:
        self._control, self._results = control, results
        self._lock = threading.Lock()

    def begin(self, stream_partition: str | None) -> HeldRelease:
        """Choose a commit timestamp, and hold the heartbeats below it. Call it in a turn.

        Raises `WriteStreamError` if there is no such live stream partition.
        """
        live = self._control.announcements.live()
        name = stream_partition if stream_partition is not None else next(iter(live), "")
        if name not in live:
            raise WriteStreamError(
                ErrorCode.PRODUCER_WITHOUT_PARTITION,
                f"The producer has no live stream partition {name}".rstrip(),
                "A release gets its commit timestamp from a stream partition that the producer has"
                " announced",
                "Send a change or a heartbeat with the producer first",
            )
        delivery = self._results.delivery(name)
        time = release_timestamp(
            now_us(), max(delivery.promised, delivery.reached), delivery.last_release
        )
        delivery.last_release = time
        with self._lock:
            delivery.held |= {time}
        return HeldRelease(name, time, self._control.epoch.on([]))

    def end(self, held: HeldRelease) -> None:
        """Let the heartbeats go on. It needs no turn, because a turn may wait for it."""
        delivery = self._results.delivery(held.stream_partition)
        with self._lock:
            delivery.held -= {held.commit_timestamp}
