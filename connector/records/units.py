"""The unit of a time that is not in microseconds (ING-6)."""

from __future__ import annotations

from typing import Final

from connector.records.views import view_of_time

YEAR_2000: Final = 946_684_800_000_000
YEAR_2100: Final = 4_102_444_800_000_000
"""2000-01-01 and 2100-01-01 in microseconds since 1970."""

_UNITS: Final = (
    ("seconds", 1_000_000, 1),
    ("milliseconds", 1_000, 1),
    ("units of 100 nanoseconds", 1, 10),
    ("nanoseconds", 1, 1_000),
)
"""Unit, and its length in microseconds as a fraction."""


def fitting_unit(number: int) -> tuple[str, int] | None:
    """Return the unit in which a number is a time from 2000 to 2099, and this time in microseconds.

    At most one unit fits. None: no unit fits, or the number is in microseconds.
    """
    for unit, times, parts in _UNITS:
        timestamp = number * times // parts
        if YEAR_2000 <= timestamp < YEAR_2100:
            return unit, timestamp
    return None


def unit_hint(number: int) -> str:
    """Return the end of a sentence that names the fitting unit, or an empty text."""
    found = fitting_unit(number)
    return "" if found is None else f"; it fits {found[0]}: {view_of_time(found[1])}"
