"""Sends the heartbeats of a producer by itself, in a thread of its own (PUB-1).

    heartbeats.reached(heartbeat)   the application reports a position. The first one starts the
                                    thread
    heartbeats.tick(now)            the thread calls it when heartbeats are due
    heartbeats.check()              raises the error of a heartbeat that was not delivered
    heartbeats.send_last(...)       sends the heartbeats at the last positions

The thread asks for the Kafka partitions of the topic before its turn, and sends in its turn without
waiting. Only the commit of a transaction waits. The thread calls no function of the application.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from connector.errors import (
    BrokerError,
    ConnectorError,
    DeliveryError,
    ErrorCode,
    InvalidChangeError,
    SpoolError,
)
from connector.kafka.produce.control_records import ControlRecords
from connector.kafka.produce.results import Results, Sent
from connector.records.model import CONTROL_KEY, Heartbeat, Rule
from connector.watermarks.heartbeat_schedule import MIN_S, HeartbeatSchedule
from connector.watermarks.lineage import COMPLETE_AFTER

if TYPE_CHECKING:
    from connector.kafka.produce.producer_transaction import Transactions
    from connector.kafka.produce.record_bytes import RecordBytes
    from connector.kafka.produce.send_queue import SendQueue
    from connector.kafka.produce.turns import Turns
    from connector.kafka.topics import TopicFacts

JOIN_S: Final = 1.0


class Timer:
    """Calls a method in a thread of its own: at once, and then at each time that it returns, until
    it returns infinity.

    The thread does not keep the object of the method alive, and does not delay the end of the
    process. It does not exist in a forked process.
    """

    def __init__(self, tick: Callable[[float], float], name: str = "connector-heartbeats") -> None:
        self._tick, self._name = weakref.WeakMethod(tick), name
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @staticmethod
    def clock() -> float:
        return time.monotonic()

    def start(self) -> None:
        """Start the thread, if it does not run."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=_run,
                args=(self._tick, self._stopped, self.clock),
                name=self._name,
                daemon=True,
            )
            self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in the thread."""
        return self._thread is threading.current_thread()

    def stop(self, timeout_s: float) -> None:
        """Stop the thread, and wait for its end, unless the caller runs in it."""
        self._stopped.set()
        if self._thread is not None and not self.is_current:
            self._thread.join(timeout_s)


def _run(
    method: weakref.WeakMethod[Callable[[float], float]],
    stopped: threading.Event,
    clock: Callable[[], float],
) -> None:
    wait_s = 0.0
    while not stopped.wait(wait_s):
        tick = method()
        if tick is None:
            return
        next_at = tick(clock())
        del tick
        if next_at == math.inf:
            return
        wait_s = max(0.0, next_at - clock())


class AutomaticHeartbeats:
    """The automatic heartbeats of one producer. `has_failed` means that `check` raises. `count` is
    how many were sent.
    """

    def __init__(
        self,
        topic: str,
        schedule: HeartbeatSchedule,
        turns: Turns,
        queue: SendQueue[Sent],
        results: Results,
        control: ControlRecords,
        record_bytes: RecordBytes,
        transactions: Transactions | None,
        new_timer: Callable[[Callable[[float], float]], Timer],
    ) -> None:
        self._topic, self._turns = topic, turns
        self._queue, self._results, self._control = queue, results, control
        self._bytes, self._transactions = record_bytes, transactions
        self._schedule = schedule
        self._failures: dict[str, tuple[int, Exception]] = {}
        self._largest_token = self.count = 0
        self._told_loss = ""
        self.is_stopped = False
        self._timer = new_timer(self.tick)

    @property
    def has_failed(self) -> bool:
        return bool(self._failures)

    def reached(self, heartbeat: Heartbeat) -> None:
        """Register a position of the application, in its turn. Raises as `ChangeProducer.reached`
        does.
        """
        name = heartbeat.stream_partition
        self._bytes.check_age(heartbeat)
        self._control.check_is_live(name)
        delivery = self._results.delivery(name)
        last = max(delivery.reached, delivery.promised)
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
        self._schedule.reached(heartbeat, self._timer.clock())
        self._queue.reached(heartbeat)
        self._timer.start()

    def tick(self, now: float) -> float:
        """Send the heartbeats that are due, and return the time of the next tick.

        It raises nothing. `check` raises what went wrong.
        """
        facts: TopicFacts | None = None
        trouble: Exception | None = None
        try:
            facts = self._control.look()
        except Exception as error:  # noqa: BLE001, the application raises it
            trouble = error
        with self._turns.of_timer():
            if self.is_stopped:
                return math.inf
            try:
                if trouble is not None:
                    raise trouble
                self._control.use(facts)
                self._queue.serve(0)
                self._queue.check_may_claim()
                self._send_due(now)
            except Exception as error:  # noqa: BLE001, the application raises it
                if self._is_news(error):
                    self._failures[""] = 0, error
            else:
                if isinstance(self._failures.get("", (0, None))[1], BrokerError):
                    del self._failures[""]
            return max(self._schedule.next_at, now + MIN_S)

    def check(self) -> None:
        """Raise the error of a heartbeat that was not delivered, once. It is dropped if a later
        heartbeat of the stream partition was delivered.
        """
        failures, self._failures = self._failures, {}
        for _, error in failures.values():
            raise error

    def stop(self) -> None:
        """Stop the thread. Call it outside a turn."""
        self.is_stopped = True
        self._turns.changed()
        self._timer.stop(JOIN_S)

    def confirm_announcements(self) -> None:
        """Announce again what omits stream partitions, because all its parts are sent (WMK-6). Do
        not wait. In a transaction, or if the spool has lost records, a later call does it.
        """
        if self._results.transaction is None and self._control.complete():
            with suppress(SpoolError):
                self._queue.check_may_claim()
                self._send([], announces=True, now=self._timer.clock())

    def send_last(self, deadline: float) -> None:
        """Send a heartbeat at the last position of each stream partition, where it is true, and
        wait for the results.

        Raises `DeliveryError` if one was not delivered. Does nothing after the deadline.
        """
        with self._turns:
            self._schedule.keep(self._is_live)
            if time.monotonic() > deadline:
                return
            announces = self._control.complete()
            last = self._schedule.last(self._oldest_open)
            if last or announces:
                self._queue.check_may_claim()
                self._send(last, announces=announces, now=self._timer.clock())
            while self._queue.items and (left_s := deadline - time.monotonic()) > 0:
                self._queue.serve(min(left_s, 0.5), push=True)
            self.check()
            self.check_last()

    def check_last(self) -> None:
        """Raises `DeliveryError` if the last heartbeat of a stream partition was not delivered."""
        open_ = [sent.record for sent in self._queue.items]
        for record in [*open_, *self._schedule.last(self._oldest_open)]:
            if isinstance(record, Heartbeat):
                cause = f"Kafka did not acknowledge it. {self._queue.complaint}"
                raise self._undelivered(record, cause.strip())

    def _is_news(self, error: Exception) -> bool:
        """Whether the application must raise an error of a tick. A loss lasts until an operator
        accepts it, and meanwhile the application sends again. So it is raised once.
        """
        if not isinstance(error, SpoolError) or error.code != ErrorCode.SPOOL_DAMAGED:
            return True
        before, self._told_loss = self._told_loss, error.problem
        return error.problem != before

    def _send_due(self, now: float) -> None:
        self._schedule.keep(self._is_live)
        announces = self._schedule.announces(now)
        due = self._schedule.due(now, self._oldest_open)
        if due or announces:
            self._send(due, announces=announces, now=now)

    def _send(self, heartbeats: list[Heartbeat], *, announces: bool, now: float) -> None:
        block: AbstractContextManager[None] = nullcontext()
        if self._transactions is not None:
            block = self._transactions.block()
        try:
            with block:
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
            if not self._queue.has_spool:  # else an outage is no error of the application
                self._failures[name] = heartbeat.timestamp, self._undelivered(heartbeat, error)
        elif name in self._failures and self._failures[name][0] <= heartbeat.timestamp:
            del self._failures[name]

    def _undelivered(self, heartbeat: Heartbeat, cause: str) -> DeliveryError:
        return DeliveryError(
            ErrorCode.HEARTBEAT_UNDELIVERED,
            f"The heartbeat of stream partition {heartbeat.stream_partition} at"
            f" {heartbeat.timestamp} was not delivered to {self._topic}",
            cause.removesuffix("."),
            "Check the brokers. Until it is closed, the producer sends the heartbeat again by"
            " itself. If `send` raised this error, it has queued its record",
            stream_partition=heartbeat.stream_partition,
        )

    def _is_live(self, stream_partition: str) -> bool:
        return not self._control.announcements.has_ended(stream_partition)

    def _oldest_open(self, stream_partition: str) -> int | None:
        return self._results.delivery(stream_partition).oldest_open()
