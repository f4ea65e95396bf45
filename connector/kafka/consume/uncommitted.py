"""Says how much a group reads again, if a program ends without `commit` and `close` (PUB-8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from connector.kafka.unclosed import say

if TYPE_CHECKING:
    from collections.abc import Callable


class Uncommitted:
    """The records that a consumer of a group has read, or acknowledged, since its last `commit`.

    It is never committed at the end of the program, because lowmark does not know whether the
    program has handled it. The client is not closed, because a thread may still use it.
    """

    def __init__(self, topic: str, group: str, count: Callable[[], int]) -> None:
        self._topic, self._group, self._count = topic, group, count

    def finish(self, _timeout_s: float) -> str:
        count = self._count()
        return (
            f"The group {self._group} reads up to {count} records of {self._topic} again, because"
            " they came after the last `commit`"
            if count
            else ""
        )

    def dropped(self) -> bool:
        if text := self.finish(0):
            say(f"A consumer was dropped without `close`. {text}")
        return False

    def is_finished(self) -> bool:
        return True
