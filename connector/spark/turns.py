"""Which thread works when (JOB-3): one turn for small work, an entry for so many applies, and a
thread for maintenance.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Self

from pyspark.sql import SparkSession

from connector.spark.cluster import Pool, in_pool


class Turn:
    """The turn of small work: threads that compute in Python at the same time slow each other down.
    Threads get it in the order in which they ask for it. Enter it to have it.
    """

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._is_taken, self._waiting = False, deque[threading.Event]()

    def __enter__(self) -> Self:
        with self._changing:
            if not self._is_taken:
                self._is_taken = True
                return self
            mine = threading.Event()
            self._waiting.append(mine)
        mine.wait()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changing:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._is_taken = False


class Entry:
    """Lets so many threads in at the same time as `limit` says when one asks or leaves. While it is
    closed, those that wait or ask get a `CancelledError`.
    """

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit, self._inside, self._is_open = limit, 0, True
        self._changed = threading.Condition()

    def open(self) -> None:
        with self._changed:
            self._is_open = True

    def close(self) -> None:
        with self._changed:
            self._is_open = False
            self._changed.notify_all()

    def __enter__(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._is_open or self._inside < self._limit())
            if not self._is_open:
                raise CancelledError
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()


class MaintenanceThread:
    """Maintenance in a thread of its own.

    A stream is maintained after its rounds, and when its last maintenance began `every_s` ago.
    """

    def __init__(
        self,
        spark: SparkSession,
        streams: Iterable[str],
        maintain: Callable[[str], None],
        every_s: float,
    ) -> None:
        self._spark, self._maintain, self._every_s = spark, maintain, every_s
        self._thread = ThreadPoolExecutor(1)
        self._begun = dict.fromkeys(streams, time.monotonic())
        self._asked: dict[str, None] = {}
        self._under_way: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for the maintenance in flight, and raise its error unless there is another."""
        self._thread.shutdown()
        if kind is None and self._under_way is not None:
            self._under_way.result()

    def ask(self, stream: str) -> None:
        self._asked[stream] = None

    def begin_due(self) -> None:
        """Begin the next maintenance if none is running. Raises the error of the last one."""
        if self._under_way is not None:
            if not self._under_way.done():
                return
            self._under_way.result()
            self._under_way = None
        now = time.monotonic()
        self._asked |= {
            stream: None for stream, begun in self._begun.items() if now >= begun + self._every_s
        }
        if (stream := next(iter(self._asked), None)) is not None:
            del self._asked[stream]
            self._begun[stream] = now
            self._under_way = self._thread.submit(self._run, stream)

    def _run(self, stream: str) -> None:
        with in_pool(self._spark, Pool.APPLY):
            self._maintain(stream)
