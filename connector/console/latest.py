"""The newest status, read in the background: a page does not wait for 200 tables."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from connector.errors import ConnectorError
from connector.services.status import StatusReport

_EVERY_S: Final = 3.0
_SHARE: Final = 9
"""The pause is at least this many times the last read, so reads take a tenth of a processor."""


class Latest:
    """Reads a status again and again inside `reading`."""

    def __init__(self, read: Callable[[], StatusReport]) -> None:
        """`read` may raise `ConnectorError`. Then the next `report` raises it."""
        self._read, self._stop = read, threading.Event()
        self._result: StatusReport | ConnectorError | None = None
        self._is_read = threading.Event()

    def report(self) -> StatusReport:
        """Return the newest status. The first call waits for it. Raises `ConnectorError` if the
        last read failed.
        """
        self._is_read.wait()
        result = self._result
        assert result is not None, "the status was read"
        if isinstance(result, ConnectorError):
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
            except ConnectorError as error:
                self._result = error
            self._is_read.set()
            self._stop.wait(max(_EVERY_S, _SHARE * (time.monotonic() - began)))
