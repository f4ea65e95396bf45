"""A cache of values that belong to files. A file never changes, so neither does its value."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

_Value = TypeVar("_Value")

SHARE: Final = 4


class Kept(Generic[_Value]):
    """Values by the name of their file, of at most `most` bytes together. The value that was not
    used for the longest time goes first. One that is larger than a part of it is not kept.

    Several threads may use it at once.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._values = OrderedDict[Hashable, tuple[_Value, int]]()
        self._size = 0
        self._lock = threading.Lock()

    def get(self, name: Hashable) -> _Value | None:
        """The value. None: it is not kept."""
        with self._lock:
            if name not in self._values:
                return None
            self._values.move_to_end(name)
            return self._values[name][0]

    def keep(self, name: Hashable, value: _Value, size: int) -> None:
        """Keep a value of so many bytes, in place of an earlier one with this name."""
        with self._lock:
            self._size -= self._values.pop(name, (None, 0))[1]
            if size * SHARE <= self.most:
                self._values[name] = value, size
                self._size += size
            while self._size > self.most:
                self._size -= self._values.popitem(last=False)[1][1]

    def clear(self) -> None:
        """Forget all values."""
        with self._lock:
            self._values.clear()
            self._size = 0
