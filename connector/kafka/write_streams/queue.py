"""The jobs of a session in flight, in the order of the calls, and their limits (WRS-6, WRS-9)."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from connector.errors import ErrorCode, QueueFullError
from connector.kafka.write_streams.results import AppendResult, Pending

if TYPE_CHECKING:
    from connector.kafka.produce.control_records import HeldRelease
    from connector.kafka.write_streams.transaction import Message
    from connector.records.model import OffsetRange
    from connector.write_streams.model import StreamEntry


@dataclass(slots=True, eq=False)
class Job:
    """An append, a flush or a finalize.

    - `after` is the record of the write stream once it is done. None: nothing changes.
    - `oldest` and `newest` are the least and the greatest commit timestamp of committed rows, or 0.
    - `release` is a range to release. `held` is the place of its commit timestamp. None: the
      session chooses one.
    """

    result: Pending[Any]
    answer: Any
    stream: str
    after: StreamEntry | None = None
    messages: list[Message] = field(default_factory=list)
    rows: int = 0
    size: int = 0
    oldest: int = 0
    newest: int = 0
    release: OffsetRange | None = None
    held: HeldRelease | None = None
    queued_at: float = 0.0

    @property
    def is_repeated(self) -> bool:
        return isinstance(self.answer, AppendResult) and self.answer.repeated > 0


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """The sizes of transactions, and of what is in flight."""

    linger_s: float
    transaction_rows: int
    transaction_bytes: int
    max_in_flight_rows: int
    max_in_flight_bytes: int
    timeout_s: float


class JobQueue:
    """The jobs of a session.

    `changed` guards them, and all other state that the application and the thread share. `recorded`
    has the end of each write stream in the catalog.
    """

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self.changed = threading.Condition(threading.RLock())
        self.jobs: deque[Job] = deque()
        self.recorded: dict[str, int] = {}
        self.rows = self.size = self.in_flight = 0
        self._is_urgent = self.is_closing = False

    def wait_for_space(self, job: Job, check: Callable[[], None]) -> None:
        """Wait until a job may be put. `check` raises if the session has ended.

        Raises `QueueFullError`.
        """
        limits = self._limits
        deadline = time.monotonic() + limits.timeout_s
        while True:
            check()
            is_full = (
                self.rows + job.rows > limits.max_in_flight_rows
                or self.size + job.size > limits.max_in_flight_bytes
            )
            if not (is_full and self.in_flight):
                return
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise QueueFullError(
                    ErrorCode.SESSION_QUEUE_FULL,
                    f"The write session has {self.rows} rows and {self.size} bytes in flight",
                    f"With {job.rows} rows more, they would be above max_in_flight_rows"
                    f" {limits.max_in_flight_rows} or max_in_flight_bytes"
                    f" {limits.max_in_flight_bytes}, and there was no space for"
                    f" {limits.timeout_s:g} s. Nothing was sent",
                    "Wait for results, then append again. If the limit is small for your rows,"
                    " increase it",
                    stream=job.stream,
                )
            self.changed.wait(left_s)

    def put(self, job: Job, *, is_urgent: bool = False) -> None:
        job.queued_at = time.monotonic()
        self.jobs.append(job)
        self.in_flight += 1
        self.rows += job.rows
        self.size += job.size
        self._is_urgent |= is_urgent
        self.changed.notify_all()

    def hurry(self) -> None:
        """Send what is queued at once."""
        self._is_urgent = bool(self.jobs)
        self.changed.notify_all()

    def settled(self, jobs: list[Job]) -> None:
        """Register the answers of jobs."""
        self.in_flight -= len(jobs)
        self.rows -= sum(job.rows for job in jobs)
        self.size -= sum(job.size for job in jobs)
        self.changed.notify_all()

    def is_recorded(self, job: Job) -> bool:
        """Return whether a job repeats an append that is committed."""
        last = self.recorded.get(job.stream, 0)
        return job.is_repeated and job.answer.offset + job.answer.rows <= last

    def wait(self, heartbeats_at: Callable[[], float]) -> None:
        """Wait until a transaction is due: jobs, or heartbeats at this time, or the end."""
        while not self.is_closing:
            now = time.monotonic()
            due_at = min(self._due_at(), heartbeats_at())
            if due_at <= now:
                return
            self.changed.wait(None if due_at == math.inf else due_at - now)

    def take(self) -> list[Job]:
        """Return the jobs of the next transaction. A job is never split. The others are left."""
        taken: list[Job] = []
        rows = size = 0
        while self.jobs:
            job = self.jobs[0]
            rows, size = rows + job.rows, size + job.size
            limits = self._limits
            if taken and (rows > limits.transaction_rows or size > limits.transaction_bytes):
                return taken
            taken.append(self.jobs.popleft())
        self._is_urgent = False
        return taken

    def _due_at(self) -> float:
        if not self.jobs:
            return math.inf
        limits = self._limits
        if self._is_urgent or self._queued_at_least(
            limits.transaction_rows, limits.transaction_bytes
        ):
            return 0.0
        return self.jobs[0].queued_at + limits.linger_s

    def _queued_at_least(self, rows: int, size: int) -> bool:
        # All in flight are queued here, because the thread that asks has no transaction now.
        return self.rows >= rows or self.size >= size
