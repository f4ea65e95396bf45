"""The status, read in the background, and the batches of a stream, read bit by bit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from connector.services.status import StatusReport
from connector.state.jobs import Job

_EVERY_S: Final = 3.0
_AT_LEAST_EVERY_S: Final = 30.0
_SHARE: Final = 9
"""The pause is this many times the last read, so reads take a tenth of a processor, but at most
`_AT_LEAST_EVERY_S`.
"""
_READING_S: Final = 1.0
_KEPT_US: Final = 600_000_000
"""Batches that were looked at longer ago are read again."""


class Latest:
    """Reads a status again and again inside `reading`."""

    def __init__(self, read: Callable[[], StatusReport]) -> None:
        """If `read` raises an error, the next `report` raises it."""
        self._read, self._stop = read, threading.Event()
        self._result: StatusReport | Exception | None = None
        self._is_read = threading.Event()

    def report(self) -> StatusReport:
        """Return the newest status. The first call waits for it. If the last read failed, its error
        is raised.
        """
        self._is_read.wait()
        result = self._result
        assert result is not None, "the status was read"
        if isinstance(result, Exception):
            raise result
        return result

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read during the block."""
        thread = threading.Thread(target=self._run, name="status", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self._result = self._read()
            except Exception as error:  # noqa: BLE001, a page shows it; the next read may succeed
                self._result = error
            self._is_read.set()
            pause = _SHARE * (time.monotonic() - began)
            self._stop.wait(min(max(_EVERY_S, pause), _AT_LEAST_EVERY_S))


class Batches:
    """The batches of a stream. Each is a file in the log of the changelog, so a call reads old ones
    for about a second, and the next call goes on.
    """

    def __init__(self, read: Callable[[int], Iterator[Job]]) -> None:
        """`read` returns the batches since a time (µs), the newest first."""
        self._read, self._lock = read, threading.Lock()
        self._jobs = list[Job]()
        self._older: Iterator[Job] = iter(())

    def since(self, since: int, now: int) -> tuple[Sequence[Job], bool]:
        """Return the batches since a time, the newest first, and whether these are all. Raises
        `TableError`.
        """
        with self._lock:
            until = time.monotonic() + _READING_S
            if self._jobs and now - self._jobs[0].ended_at < _KEPT_US:
                self._jobs[:0] = self._read(self._jobs[0].ended_at + 1)
            else:
                self._jobs, self._older = [], self._read(since)
            jobs, self._jobs = self._jobs, []  # an error begins again
            is_whole = True
            for job in self._older:
                jobs.append(job)
                if time.monotonic() > until:
                    is_whole = False
                    break
            self._jobs = [job for job in jobs if job.ended_at >= since]
            return tuple(self._jobs), is_whole
