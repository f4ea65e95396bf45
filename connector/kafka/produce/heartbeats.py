"""The heartbeats that a producer sends by itself (PUB-1). In an open transaction, they wait for its
end.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Final

from connector.clock import now_us
from connector.errors import BrokerError, ConnectorError, DeliveryError, InvalidChangeError
from connector.errors.producers import heartbeat_undelivered
from connector.kafka.produce.outbox import OutboxQueue
from connector.records.model import CONTROL_KEY, Heartbeat, Rule
from connector.watermarks.lineage import COMPLETE_AFTER

if TYPE_CHECKING:
    from connector.kafka.produce.control_records import ControlRecords
    from connector.kafka.produce.producer_transaction import Transactions
    from connector.kafka.produce.record_bytes import RecordBytes
    from connector.kafka.produce.results import Queue, Results
    from connector.watermarks.heartbeat_schedule import HeartbeatSchedule

_OF_ALL: Final = ""
"""The name of a failure that is not of one stream partition."""


def clock() -> float:
    """The clock of the heartbeats, in seconds. It never goes back."""
    return time.monotonic()


class AutomaticHeartbeats:
    """The automatic heartbeats of one producer. `count` is how many were sent."""

    def __init__(
        self,
        topic: str,
        schedule: HeartbeatSchedule,
        queue: Queue,
        results: Results,
        control: ControlRecords,
        record_bytes: RecordBytes,
        transactions: Transactions | None,
    ) -> None:
        self._topic, self._schedule = topic, schedule
        self._queue, self._results, self._control = queue, results, control
        self._bytes, self._transactions = record_bytes, transactions
        self._failures: dict[str, tuple[int, ConnectorError]] = {}
        self._largest_token = self.count = 0

    def reached(
        self, name: str, timestamp: int, resume_token: bytes, max_clock_skew_us: int
    ) -> None:
        """Register a position of the application. Raises as `ChangeProducer.reached` does."""
        heartbeat = _position_of(name, timestamp, resume_token, max_clock_skew_us)
        self._bytes.check_age(heartbeat)
        self._control.check_is_live(name)
        delivery = self._results.delivery(name)
        last = max(delivery.reached, delivery.heartbeat_at)
        if heartbeat.timestamp < last:
            raise InvalidChangeError(
                Rule.HEARTBEAT_TIMESTAMP,
                "timestamp",
                f"at or after {last}, which was reported for stream partition {name} before",
                heartbeat.timestamp,
                "Report positions in their order. Report a position after all of its changes were"
                " handed to send",
            )
        if len(heartbeat.resume_token) > self._largest_token:
            self._bytes.checked(heartbeat, CONTROL_KEY, [])
            self._largest_token = len(heartbeat.resume_token)
        delivery.reached = heartbeat.timestamp
        self._control.complete(COMPLETE_AFTER)
        self._schedule.reached(heartbeat, clock())
        if isinstance(self._queue, OutboxQueue):
            self._queue.store_position(heartbeat)

    def send_due(self) -> None:
        """Send the heartbeats and announcements that are due. Do not wait, except for the commit of
        a transaction. `check` raises what went wrong.
        """
        now = clock()
        if now < self._schedule.next_at:
            return
        if self._results.transaction is not None or self._results.is_calling:
            return
        try:
            self._control.refresh()
            self._queue.poll(0)
            self._schedule.keep(self._is_live)
            announces = self._schedule.announces(now)
            due = self._schedule.due(now, self._oldest_open)
            if due or announces:
                self._send(due, announces=announces, now=now)
        except ConnectorError as error:
            self._failures[_OF_ALL] = 0, error
        else:
            if isinstance(self._failures.get(_OF_ALL, (0, None))[1], BrokerError):
                del self._failures[_OF_ALL]

    def check(self) -> None:
        """Raise the error of a heartbeat that was not delivered, once. It is dropped if a later
        heartbeat of the stream partition was delivered.
        """
        failures, self._failures = self._failures, {}
        for _, error in failures.values():
            raise error

    def send_last(self) -> None:
        """Send a heartbeat at the last position of each stream partition, where it is true.

        Stream partitions that the last announcement omits end, because all its parts are sent
        (WMK-6).
        """
        announces = self._control.complete()
        self._schedule.keep(self._is_live)
        last = self._schedule.last(self._oldest_open)
        if last or announces:
            self._send(last, announces=announces, now=clock())

    def check_last(self) -> None:
        """Raises `DeliveryError` if the last heartbeat of a stream partition was not delivered."""
        open_ = [sent.record for sent in self._queue.items]
        for record in [*open_, *self._schedule.last(self._oldest_open)]:
            if isinstance(record, Heartbeat):
                cause = f"Kafka did not acknowledge it. {self._queue.last_error}"
                raise self._undelivered(record, cause.strip())

    def _send(self, heartbeats: list[Heartbeat], *, announces: bool, now: float) -> None:
        try:
            with nullcontext() if self._transactions is None else self._transactions.block():
                if announces and not self._control.repeat_announcements():
                    return  # the queue is full
                for heartbeat in heartbeats:
                    if not self._control.send_automatic(
                        heartbeat, partial(self._settled, heartbeat)
                    ):
                        return  # the queue is full
                    self._schedule.sent(heartbeat, now)
                    self.count += 1
        except DeliveryError as error:
            for heartbeat in heartbeats:
                self._settled(heartbeat, error.cause)
        except ConnectorError:
            for heartbeat in heartbeats:
                self._schedule.failed(heartbeat)
            raise

    def _settled(self, heartbeat: Heartbeat, error: str) -> None:
        name = heartbeat.stream_partition
        if error:
            self._schedule.failed(heartbeat)
            self._failures[name] = heartbeat.timestamp, self._undelivered(heartbeat, error)
        elif name in self._failures and self._failures[name][0] <= heartbeat.timestamp:
            del self._failures[name]

    def _undelivered(self, heartbeat: Heartbeat, cause: str) -> DeliveryError:
        name, cause = heartbeat.stream_partition, cause.removesuffix(".")
        return heartbeat_undelivered(self._topic, name, str(heartbeat.timestamp), cause)

    def _is_live(self, stream_partition: str) -> bool:
        return not self._control.announcements.has_ended(stream_partition)

    def _oldest_open(self, stream_partition: str) -> int | None:
        delivery = self._results.delivery(stream_partition)
        # In an outbox, it waits behind the changes that it covers.
        return delivery.oldest_unsent() if self._queue.stores else delivery.oldest_open()


def _position_of(
    stream_partition: str, timestamp: int, resume_token: bytes, max_clock_skew_us: int
) -> Heartbeat:
    """Return the heartbeat of a position. Readers reject a heartbeat that is too far in the future,
    and `send` refuses all changes up to it.
    """
    heartbeat = Heartbeat(stream_partition, timestamp, resume_token)
    if timestamp > now_us() + max_clock_skew_us:
        raise InvalidChangeError(
            Rule.HEARTBEAT_TIMESTAMP,
            "timestamp",
            f"at most {max_clock_skew_us // 1_000_000} s after the clock of this machine"
            " (max_clock_skew_s)",
            timestamp,
            "Report the time up to which the source was read, in microseconds",
        )
    return heartbeat
