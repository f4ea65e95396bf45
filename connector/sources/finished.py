"""The memory of finished transactions: what proves that the source sends one again (SRC-2).

Theory. The newest finished transactions are remembered one by one, with their ids and commit times.
Of those that were forgotten, only the greatest commit time and the greatest position in each log
are known. So a transaction

- is finished if it is remembered: its id, its commit time and its end are equal,
- is not finished if it is not remembered, and its commit time or its position is greater than that
  of every forgotten one,
- is old otherwise. It is a forgotten one that is sent again, or one of a log that began again.

Debezium sends a stretch of its log again, from any place to its newest transaction. So if a
remembered transaction follows, the old ones before it are of the same log, and finished. If one
follows that is not finished, they are not: the log began again, under clocks that go back.

Commit times of MySQL and MariaDB are seconds. So a log that began again under such a clock may have
a remembered id in the same second. Then a transaction that is not finished follows before the
newest one. In a binary log without GTIDs, that is proof. A replica that became the primary may have
another order of GTIDs: there, an id that is used again in another second is proof.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final, NamedTuple, TypeVar

from connector.sources.model import Commit, LogPosition
from connector.sources.places import SILENT_US

_Value = TypeVar("_Value")
RECENT: Final = 100
"""How many finished transactions are remembered one by one, and how many truncations of MySQL."""
TRUNCATION: Final = "truncation "
"""Begins the name of a truncation of MySQL, which is a transaction of its own."""


def keep_newest(values: dict[str, _Value], name: str, value: _Value, most: int) -> _Value | None:
    """Set a value as the newest one. If there are more than `most`, remove the oldest one, and
    return it.
    """
    values.pop(name, None)
    values[name] = value
    return values.pop(next(iter(values))) if len(values) > most else None


class Remembered(NamedTuple):
    """A finished transaction: its id, its commit time (ms), and its end in its log. Without a time,
    only the id is known. If it was released without an end, the time is that of its newest event,
    and `end` is not behind its end.
    """

    transaction: str
    time: int
    log: str
    end: LogPosition
    has_end: bool = True


class Past(Enum):
    """Whether a transaction is finished."""

    NOT_FINISHED = "not finished"
    FINISHED = "finished"
    OLD = "old"


class Finished:
    """The finished transactions of a source.

    - `floors` and `floor_time` are the greatest positions by log, and the greatest commit time
      (ms), of those that were forgotten.
    """

    def __init__(
        self,
        recent: Iterable[Remembered] = (),
        floors: Mapping[str, LogPosition] | None = None,
        floor_time: int = 0,
        *,
        most: int = RECENT,
    ) -> None:
        self._recent = dict[str, Remembered]()
        self._truncations = dict[str, Remembered]()
        for each in recent:
            self._of_kind(each.transaction)[each.transaction] = each
        self._most = most
        self.floors, self.floor_time = dict(floors or {}), floor_time

    @property
    def recent(self) -> tuple[Remembered, ...]:
        """The remembered ones, the newest truncation and the newest other transaction last."""
        return (*self._truncations.values(), *self._recent.values())

    @property
    def newest(self) -> Remembered | None:
        """The newest transaction with an end that is no truncation of MySQL."""
        return next((r for r in reversed(self._recent.values()) if r.has_end), None)

    def is_newest(self, transaction: str) -> bool:
        """Return whether a transaction is finished, and none with an end was finished later."""
        for remembered in reversed(self._recent.values()):
            if remembered.transaction == transaction or remembered.has_end:
                return remembered.transaction == transaction
        return False

    def has(self, transaction: str) -> bool:
        """Return whether a transaction with this id is remembered."""
        return transaction in self._recent

    @property
    def has_truncations(self) -> bool:
        """Whether truncations of MySQL are remembered."""
        return bool(self._truncations)

    def _of_kind(self, transaction: str) -> dict[str, Remembered]:
        """The remembered ones of the kind of a transaction. A truncation has no end that proves
        that it is repeated. Truncations are rare, so they are remembered for longer.
        """
        return self._truncations if transaction.startswith(TRUNCATION) else self._recent

    def add(self, commit: Commit, *, has_end: bool = True) -> None:
        """Remember a transaction by the commit of its end, or if it has none, of its events."""
        # A log that began again may use an id again.
        recent = self._of_kind(commit.transaction)
        self._forget(recent.get(commit.transaction))
        name = commit.transaction
        newest = Remembered(name, commit.time // 1000, commit.log, commit.after, has_end)
        self._forget(keep_newest(recent, name, newest, self._most))

    def _forget(self, old: Remembered | None) -> None:
        if old is not None:
            self.floor_time = max(self.floor_time, old.time)
            self.floors[old.log] = max(self.floors.get(old.log, ()), old.end)

    def of_end(self, commit: Commit) -> Past:
        """Return whether the transaction of this end is finished."""
        remembered = self._recent.get(commit.transaction)
        at_end = commit.time // 1000, commit.log, commit.after
        if remembered is not None and (not remembered.time or remembered[1:4] == at_end):
            return Past.FINISHED
        if remembered is not None and remembered.log == commit.log and not remembered.has_end:
            older_ms = commit.time // 1000 - remembered.time
            if 0 <= older_ms <= SILENT_US // 1000:
                return Past.FINISHED
        floor = self.floors.get(commit.log, ())
        is_new = self._is_new(commit) or (bool(commit.after) and commit.after > floor)
        return Past.NOT_FINISHED if is_new else Past.OLD

    def of_event(self, commit: Commit) -> Past:
        """Return whether the transaction of this event is finished. The time of an event is not
        after that of its end.
        """
        remembered = self._of_kind(commit.transaction).get(commit.transaction)
        if remembered is not None and (
            not remembered.time or commit.time // 1000 <= remembered.time
        ):
            return Past.FINISHED
        floor = self.floors.get(commit.log, ())
        is_new = self._is_new(commit) or (bool(commit.after) and commit.after >= floor)
        return Past.NOT_FINISHED if is_new else Past.OLD

    def _is_new(self, commit: Commit) -> bool:
        return not self.floors or commit.time // 1000 > self.floor_time
