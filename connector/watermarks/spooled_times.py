"""The least commit timestamp of the changes of a stream partition that are in a spool (PUB-3).

A spool can have millions of changes, so their times are not stored one by one. Changes with
neighbouring numbers share a block. A block counts with its least time until its last change is
settled, so `least` is never too high.
"""

from __future__ import annotations

from collections import deque
from typing import Final

CHANGES_PER_BLOCK: Final = 1000


class SpooledTimes:
    """The times of one stream partition. Numbers are added in ascending order."""

    def __init__(self) -> None:
        # [last number, least time, changes]
        self._blocks: deque[list[int]] = deque()
        self._least: int | None = None

    def add(self, number: int, time: int) -> None:
        """Register a change."""
        last = self._blocks[-1] if self._blocks else None
        if last is None or last[2] >= CHANGES_PER_BLOCK:
            self._blocks.append([number, time, 1])
        else:
            assert number > last[0], "numbers ascend"
            last[0], last[1], last[2] = number, min(last[1], time), last[2] + 1
        if self._least is None or time < self._least:
            self._least = time

    def settled_below(self, number: int) -> None:
        """Forget the changes with smaller numbers. All of them are settled."""
        count = len(self._blocks)
        while self._blocks and self._blocks[0][0] < number:
            self._blocks.popleft()
        if len(self._blocks) != count:
            self._least = min((block[1] for block in self._blocks), default=None)

    def least(self) -> int | None:
        """Return a time at or below that of each change. None: there is no change."""
        return self._least
