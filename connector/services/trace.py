"""The trace of a run: how long each step of a batch and of an apply takes (OPS-4)."""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from typing import TextIO

from connector.clock import now_us
from connector.records.views import view_of_time


class Trace:
    """Writes a line of JSON for each step to a file, if there is one. Any thread may call `step`.

    For example, `{"at": "2024-03-01T12:00:00.000000Z", "of": "table orders", "step": "table
    committed", "seconds": 0.184}`. The seconds are those since the step before of the same stream
    or table.
    """

    def __init__(self, file: TextIO | None) -> None:
        self._file, self._lock = file, threading.Lock()
        self._last = dict[str, float]()

    def step(self, step: str) -> None:
        """Write a step, such as "table orders: table committed"."""
        if self._file is None:
            return
        of, _, name = step.partition(": ")
        with self._lock:
            now = time.monotonic()
            before, self._last[of] = self._last.get(of), now
            seconds = None if before is None else round(now - before, 3)
            line = {"at": view_of_time(now_us()), "of": of, "step": name, "seconds": seconds}
            with suppress(OSError):  # a full disk stops no pipeline
                self._file.write(f"{json.dumps(line)}\n")
                self._file.flush()
