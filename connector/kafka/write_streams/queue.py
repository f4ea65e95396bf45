"""The jobs of a session in flight, in the order of the calls, with their results and limits
(WRS-5, WRS-6, WRS-9).
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from connector.errors import ConnectorError, argument_invalid
from connector.errors.write_streams import session_queue_full
from connector.kafka import client

if TYPE_CHECKING:
    from connector.kafka.produce.control_records import HeldRelease
    from connector.kafka.transactions import TransactionMessage
    from connector.records.model import OffsetRange
    from connector.write_streams.model import StreamEntry

TRANSACTION_BYTES: Final = 8 * 1024 * 1024
"""The bytes at which a transaction is sent at once."""

ROW_OVERHEAD_BYTES: Final = 512
"""Memory of a row in flight besides its bytes, roughly."""

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The rows of an append are in the topic, from `offset` on.

    `repeated` is the number of rows that an earlier append had sent: 0, or `rows`.
    """

    offset: int
    rows: int
    repeated: int = 0


class Pending(Generic[_Answer]):
    """An answer that the thread of a session gives once."""

    def __init__(self) -> None:
        self._answered = threading.Event()
        self._answer: _Answer | None = None
        self._error: ConnectorError | None = None

    @property
    def done(self) -> bool:
        """Whether `result` returns or raises at once."""
        return self._answered.is_set()

    def result(self, timeout_s: float | None = None) -> _Answer:
        """Wait for the answer.

        Args:
            timeout_s: How long to wait. None: until it is known, at most `max_retry_s` of the
                session after the last transaction that succeeded.

        Returns:
            The answer.

        Raises:
            DeliveryError, WriterConflictError: The session has ended, perhaps because another one
                of this name was opened. With the `outcome` "not taken", it is not in the topic, and
                will not be. With "unknown", it may be.
            TimeoutError: It is not known yet.
        """
        if not self._answered.wait(timeout_s):
            raise TimeoutError(f"not known within {timeout_s:g} s")
        if self._error is not None:
            raise self._error
        assert self._answer is not None
        return self._answer

    def give(self, answer: _Answer) -> None:
        self._answer = answer
        self._answered.set()

    def fail(self, error: ConnectorError) -> None:
        self._error = error
        self._answered.set()


class Append(Pending[AppendResult]):
    """An append in flight. `result` waits for its transaction."""


@dataclass(slots=True, eq=False)
class Job:
    """An append, a flush or a finalize.

    - `after` is the record of the write stream once it is done. None: nothing changes.
    - `oldest` and `newest` are the least and the greatest commit timestamp of committed rows, or 0.
    - `release` is a range to release. `held` has its commit timestamp. None: the session
      chooses one.
    """

    result: Pending[Any]
    answer: Any
    stream: str
    after: StreamEntry | None = None
    messages: list[TransactionMessage] = field(default_factory=list)
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


_LEAST: Final = {
    "linger_s": 0,
    "transaction_rows": 1,
    "max_in_flight_bytes": 1,
    "max_retry_s": 0,
}


@dataclass(frozen=True, slots=True)
class Batching:
    """How the appends of a session become Kafka transactions.

    - `linger_s`: how long an append waits for others before its transaction is sent.
    - `transaction_rows`: the rows at which a transaction is sent at once.
    - `max_in_flight_bytes`: the memory of rows without a result. At this limit, `append` blocks. A
      larger append is sent alone.
    - `max_retry_s`: how long a transaction is tried again. Then the session ends.

    Raises `ConfigError` if a value is not in its range.
    """

    linger_s: float = 0.05
    transaction_rows: int = 1_000
    max_in_flight_bytes: int = 64 * 1024 * 1024
    max_retry_s: float = 300.0

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if not least <= value < math.inf:
                raise argument_invalid(name, value, f"a number from {least} on")


class JobQueue:
    """The jobs of a session.

    `changed` guards them, and all other state that the application and the thread share. `recorded`
    has the end of each write stream in the catalog.
    """

    def __init__(self, batching: Batching) -> None:
        self._batching = batching
        self.changed = threading.Condition(threading.RLock())
        self.jobs: deque[Job] = deque()
        self.recorded: dict[str, int] = {}
        self.rows = self.size = self.in_flight = 0
        self._is_urgent = self.is_closing = False

    def wait_for_space(self, job: Job, check: Callable[[], None]) -> None:
        """Wait until a job may be put. `check` raises if the session has ended.

        Raises `QueueFullError`.
        """
        deadline = time.monotonic() + client.QUEUE_TIMEOUT_S
        most = self._batching.max_in_flight_bytes
        while True:
            check()
            in_flight = _memory(self.rows, self.size)
            if not self.in_flight or in_flight + _memory(job.rows, job.size) <= most:
                return
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise session_queue_full(
                    job.stream,
                    f"{self.rows} rows, which need {in_flight} bytes of memory",
                    f"{job.rows} rows more",
                    str(most),
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
            if taken and (rows > self._batching.transaction_rows or size > TRANSACTION_BYTES):
                return taken
            taken.append(self.jobs.popleft())
        self._is_urgent = False
        return taken

    def _due_at(self) -> float:
        if not self.jobs:
            return math.inf
        # All in flight are queued here, because the thread that asks has no transaction now.
        is_full = self.rows >= self._batching.transaction_rows or self.size >= TRANSACTION_BYTES
        if self._is_urgent or is_full:
            return 0.0
        return self.jobs[0].queued_at + self._batching.linger_s


def _memory(rows: int, size: int) -> int:
    return size + rows * ROW_OVERHEAD_BYTES
