"""When tables are applied: each at its own pace, and those of a stream together, so that they have cuts in common (JOB-2, TBL-10).

Theory. The pace of a table is the time from the start of one apply to the start of the next: what an apply takes is part of the bound
that it serves. A table is due once that time is over and there is something that it does not have. When one is due, all tables of the
stream go with it whose pace is as long or shorter, to one and the same cut. So a short pace makes no other table apply, and whenever the
table with the longest pace is applied, all stand at one cut.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final

APPLY_EVERY_S: Final = 10.0
"""The pace of a table that declares neither a bound nor a pace."""
MIN_APPLY_EVERY_S: Final = 1.0
LOOK_AGAIN_S: Final = 10.0
"""How soon a table is looked at again that stands at the cut, at the earliest."""


def pace_s(apply_every_s: int | None, max_staleness_s: int | None) -> float:
    """The pace of a table in seconds: `apply_every`, or half of its bound. None and 0 are no bound."""
    wanted = apply_every_s or (max_staleness_s / 2 if max_staleness_s else APPLY_EVERY_S)
    return max(MIN_APPLY_EVERY_S, wanted)


@dataclass(slots=True)
class _Turn:
    """`started`: the last apply that found something to do; `looked`: the last one; `cut`: what it brought the table to."""

    started: float = -math.inf
    looked: float = -math.inf
    cut: Hashable = None
    is_at_work: bool = False


@dataclass(slots=True)
class Turns:
    """Whose turn it is among the tables of one stream. Not for use by two threads at once.

    Times are seconds of any clock that only goes forwards; a cut is any value that tells it from others. `paces` has the pace of every
    table, which may change from call to call. A table that was never taken is due.
    """

    _by_table: dict[str, _Turn] = field(default_factory=dict)

    def is_ready(self, paces: Mapping[str, float], now: float) -> bool:
        """Whether the time of a table has come: `take` takes some, if there is something new for it."""
        return now >= self.ready_at(paces)

    def ready_at(self, paces: Mapping[str, float]) -> float:
        """When the time of the next table comes; infinity while all are at work."""
        turns = [(self._turn(name), pace) for name, pace in paces.items()]
        return min((turn.started + pace for turn, pace in turns if not turn.is_at_work), default=math.inf)

    def take(self, paces: Mapping[str, float], now: float, cut: Hashable) -> tuple[str, ...]:
        """The tables to be brought to `cut` now; none if none is due. They are at work until they have `ended`.

        One that stands at the cut already is looked at again after its pace: rows of it may wait for what no batch tells.
        """
        due = self.due(paces, now, cut)
        longest = max((paces[name] for name in due), default=-math.inf)
        turns = {name: self._turn(name) for name in paces}
        with_them = {name for name, turn in turns.items() if not turn.is_at_work and turn.cut != cut and paces[name] <= longest}
        taken = tuple(name for name in paces if name in due or name in with_them)
        for name in taken:
            turns[name].is_at_work, turns[name].looked, turns[name].cut = True, now, cut
        return taken

    def due(self, paces: Mapping[str, float], now: float, cut: Hashable) -> set[str]:
        """The tables whose time has come, and that do not stand at `cut`, or were not looked at for as long as their pace."""
        turns = [(name, self._turn(name), pace) for name, pace in paces.items()]
        ready = [(name, turn, pace) for name, turn, pace in turns if not turn.is_at_work and now >= turn.started + pace]
        return {name for name, turn, pace in ready if turn.cut != cut or now >= turn.looked + max(pace, LOOK_AGAIN_S)}

    def ended(self, name: str, *, applied: bool) -> None:
        """A table that was taken is at work no more; `applied`: there was something to do."""
        turn = self._turn(name)
        assert turn.is_at_work, name
        turn.is_at_work = False
        if applied:
            turn.started = turn.looked

    def _turn(self, name: str) -> _Turn:
        return self._by_table.setdefault(name, _Turn())


__all__ = ["APPLY_EVERY_S", "MIN_APPLY_EVERY_S", "Turns", "pace_s"]
