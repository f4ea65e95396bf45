"""Spaces actions in time, so that a limit for a second holds without bursts (PUB-7)."""

from __future__ import annotations

from typing import Final

from connector.errors import argument_invalid

LEAST_RATE: Final = 0.001
MOST_RATE: Final = 1_000_000.0
"""The limits of `max_changes_per_s`."""
SMOOTH_S: Final = 0.01
"""Shorter waits are not made, because sleeping is not that exact. They add up."""


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


def check_rate(per_second: object) -> None:
    """Raise `ConfigError` if the argument `max_changes_per_s` is not allowed. None is no limit."""
    if per_second is None:
        return
    is_number = isinstance(per_second, int | float) and not isinstance(per_second, bool)
    if not is_number or not LEAST_RATE <= per_second <= MOST_RATE:  # type: ignore[operator]
        raise argument_invalid(
            "max_changes_per_s",
            per_second,
            f"a number from {LEAST_RATE:g} to {MOST_RATE:,.0f}, or None",
        )
