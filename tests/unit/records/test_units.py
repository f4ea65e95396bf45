"""ING-6: the unit that a wrong time would fit."""

from __future__ import annotations

import pytest

from connector.records.model import MAX_TIMESTAMP
from connector.records.views import YEAR_2000, YEAR_2100, fitting_unit, unit_hint

NOW = 1_714_475_984_123_456


@pytest.mark.parametrize(
    ("number", "unit", "timestamp"),
    [
        (1_714_475_984, "seconds", 1_714_475_984_000_000),
        (1_714_475_984_123, "milliseconds", 1_714_475_984_123_000),
        (NOW * 10 + 7, "units of 100 nanoseconds", NOW),
        (NOW * 1_000 + 789, "nanoseconds", NOW),
    ],
)
def test_a_unit_is_named(number: int, unit: str, timestamp: int) -> None:
    assert fitting_unit(number) == (unit, timestamp)
    assert f"; it fits {unit}: 2024-04-30T11:19:44" in unit_hint(number)


@pytest.mark.parametrize("number", [0, 1, -5, NOW, YEAR_2000, YEAR_2100 - 1, MAX_TIMESTAMP, 2**63])
def test_no_unit_is_named_for_microseconds_and_for_numbers_that_are_no_time(number: int) -> None:
    assert fitting_unit(number) is None
    assert unit_hint(number) == ""


def test_units_do_not_overlap() -> None:
    """Each bound belongs to one unit, or to none."""
    for parts, unit in ((1_000_000, "seconds"), (1_000, "milliseconds")):
        assert fitting_unit(YEAR_2000 // parts) == (unit, YEAR_2000)
        assert fitting_unit(YEAR_2000 // parts - 1) is None
        assert fitting_unit(YEAR_2100 // parts) is None
    for times, unit in ((10, "units of 100 nanoseconds"), (1_000, "nanoseconds")):
        assert fitting_unit(YEAR_2000 * times) == (unit, YEAR_2000)
        assert fitting_unit(YEAR_2000 * times - 1) is None
        assert fitting_unit(YEAR_2100 * times) is None
