"""The application and the timer of the heartbeats take turns in using a producer (PUB-1).

The application's thread takes a turn for each call, but not for the whole block of a transaction.
The timer waits until the producer is free: no call runs, and no transaction is open. A lock alone
would not be fair. A program that calls `poll` in a loop would take it again before the timer wakes
up. Therefore the application gives way to a timer that waits, for a limited time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

GIVE_WAY_S: Final = 1.0


class Turns:
    """`with turns:` is a turn of the application. A thread may take it again inside its turn."""

    def __init__(self, is_free: Callable[[], bool]) -> None:
        """`is_free` returns whether no transaction is open. Call `changed` when it may become
        true.
        """
        self._is_free = is_free
        self._lock = threading.RLock()
        self._freed = threading.Condition(self._lock)
        self._served = threading.Event()
        self._is_wanted = False

    def __enter__(self) -> None:
        if self._is_wanted:
            self._give_way()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def changed(self) -> None:
        """Wake the timer if it waits for the end of a transaction."""
        with self._lock:
            self._freed.notify_all()

    @contextmanager
    def of_timer(self) -> Iterator[None]:
        """A turn of the timer. It waits until the producer is free."""
        self._served.clear()
        self._is_wanted = True
        try:
            with self._lock:
                while not self._is_free():
                    self._freed.wait()
                self._is_wanted = False
                yield
        finally:
            self._is_wanted = False
            self._served.set()

    @contextmanager
    def if_free(self, timeout_s: float = 0.0) -> Iterator[bool]:
        """A turn of another thread, if no call runs within this time. Otherwise the block has none,
        and gets False.
        """
        is_free = self._lock.acquire(timeout=timeout_s)
        try:
            yield is_free
        finally:
            if is_free:
                self._lock.release()

    def _give_way(self) -> None:
        # In an open transaction, or inside a turn, the timer cannot go on anyway.
        if not self._is_free():
            return
        try:
            self._freed.notify(0)
        except RuntimeError:  # this thread has no turn
            self._served.wait(GIVE_WAY_S)
