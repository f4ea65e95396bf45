"""The schedule of applies: each table has its own pace, and tables of a stream have common cuts
(JOB-2, TBL-10). And a limit for actions in a second, without bursts (PUB-7).

Theory. The pace of a table is the time from the start of one apply to the start of the next one. So
it includes the duration of the apply. A table is due when this time has passed and there is
something new for it. When a table is due, all tables of the stream with the same or a shorter pace
are applied with it, to the same cut. Therefore a table with a short pace does not cause applies of
the other tables. And whenever the table with the longest pace is applied, all tables reach the same
cut.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final

from connector.errors import argument_invalid

APPLY_EVERY_S: Final = 2.0
"""The pace of a table without a declared bound or pace."""
MIN_APPLY_EVERY_S: Final = 0.25
REST: Final = 3
"""A table waits so many times the length of its last small apply, but at most twice its pace, from
one start to the next. So applies leave time for batches.
"""
LEAST_RATE: Final = 0.001
MOST_RATE: Final = 1_000_000.0
"""The limits of `max_changes_per_s`."""
SMOOTH_S: Final = 0.01
"""Shorter waits are not made, because sleeping is not that exact. They add up."""
LOOK_AGAIN_S: Final = 10.0
"""The minimum time until a table that is already at the cut is checked again."""


def pace_s(apply_every_s: int | None, max_staleness_s: int | None) -> float:
    """Return the pace: `apply_every`, or a quarter of the bound. None and 0: no bound."""
    wanted = apply_every_s or (max_staleness_s / 4 if max_staleness_s else APPLY_EVERY_S)
    return max(MIN_APPLY_EVERY_S, wanted)


@dataclass(slots=True)
class _LastApply:
    """The last apply with changes, how long it was, the last apply, its cut and its batch."""

    started: float = -math.inf
    lasted: float = 0.0
    looked: float = -math.inf
    cut: Hashable = None
    batch: int = 0
    is_at_work: bool = False

    def ready_at(self, pace: float) -> float:
        return self.started + min(max(pace, REST * self.lasted), 2 * pace)


@dataclass(slots=True)
class ApplySchedule:
    """Decides which tables of one stream are applied next. Not thread-safe.

    Times are seconds of a monotonic clock. A cut is any value that can be compared with other cuts.
    `paces` has the pace of every table. It may change between two calls. A table that was never
    taken is due.
    """

    _by_table: dict[str, _LastApply] = field(default_factory=dict)

    def ready_at(self, paces: Mapping[str, float]) -> float:
        """Return when the time of the next table comes. Infinity: all tables are being applied."""
        turns = [(self._last_apply(name), pace) for name, pace in paces.items()]
        return min(
            (turn.ready_at(pace) for turn, pace in turns if not turn.is_at_work), default=math.inf
        )

    def take(
        self, paces: Mapping[str, float], now: float, cut: Hashable, batch: int = 0
    ) -> tuple[str, ...]:
        """Return the tables to apply up to `cut` of `batch` now. It is empty if no table is due. A
        table that was taken for this cut, but for another batch, goes with a due one.

        They count as busy until `ended` is called. A table that is already at the cut is checked
        again after its pace, because its blocked rows may become unblocked without a new batch.
        """
        due = self.due(paces, now, cut, batch)
        longest = max((paces[name] for name in due), default=-math.inf)
        turns = {name: self._last_apply(name) for name in paces}
        with_them = {
            name
            for name, turn in turns.items()
            if not turn.is_at_work
            and (turn.cut, turn.batch) != (cut, batch)
            and paces[name] <= longest
        }
        taken = tuple(name for name in paces if name in due or name in with_them)
        for name in taken:
            turn = turns[name]
            turn.is_at_work, turn.looked, turn.cut, turn.batch = True, now, cut, batch
        return taken

    def due(
        self, paces: Mapping[str, float], now: float, cut: Hashable, batch: int = 0
    ) -> set[str]:
        """Return the tables whose time has come.

        They are not at `cut`, or at that of another batch for twice their pace, or were not checked
        for at least their pace.
        """
        turns = [(name, self._last_apply(name), pace) for name, pace in paces.items()]
        ready = [
            (name, turn, pace)
            for name, turn, pace in turns
            if not turn.is_at_work and now >= turn.ready_at(pace)
        ]
        return {
            name
            for name, turn, pace in ready
            if turn.cut != cut
            or (turn.batch != batch and now >= turn.looked + 2 * pace)
            or now >= turn.looked + max(pace, LOOK_AGAIN_S)
        }

    def ended(self, name: str, *, applied: bool, lasted: float = 0.0) -> None:
        """Report the end of the apply of a table. `applied`: there was something to apply.
        `lasted` is its length, if it was small.
        """
        turn = self._last_apply(name)
        assert turn.is_at_work, name
        turn.is_at_work = False
        if applied:
            turn.started, turn.lasted = turn.looked, lasted

    def _last_apply(self, name: str) -> _LastApply:
        return self._by_table.setdefault(name, _LastApply())


class RateLimit:
    """Says how long to wait before the next actions, so that there are at most `per_second` in a
    second. Time that was not used is not made up for.

    Times are seconds of any clock that does not go back.
    """

    def __init__(self, per_second: float) -> None:
        assert per_second > 0, per_second
        self._per_second = per_second
        self._next_at: float | None = None

    @property
    def at_once(self) -> int:
        """The number of actions that may be taken together: those of a tenth of a second."""
        return max(1, int(self._per_second / 10))

    def wait_s(self, now: float, count: int = 1) -> float:
        """Return how long to wait, and take that `count` actions follow then.

        Waits below `SMOOTH_S` are 0.
        """
        at = now if self._next_at is None else max(now, self._next_at)
        self._next_at = at + count / self._per_second
        return at - now if at - now >= SMOOTH_S else 0.0


def check_rate(per_second: float | None) -> None:
    """Raise `ConfigError` if the argument `max_changes_per_s` is not allowed. None is no limit."""
    if per_second is not None and not LEAST_RATE <= per_second <= MOST_RATE:
        allowed = f"a number from {LEAST_RATE:g} to {MOST_RATE:,.0f}, or None"
        raise argument_invalid("max_changes_per_s", per_second, allowed)
