"""One turn for small work: threads that compute in Python at the same time slow each other down."""

from __future__ import annotations

import threading
from collections import deque
from typing import Self


class Turn:
    """A lock that threads get in the order in which they ask for it. Enter it to have the turn."""

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
