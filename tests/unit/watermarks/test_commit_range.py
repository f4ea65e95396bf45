"""A range of commit time that cannot be read is refused (SUB-1, SUB-5)."""

from __future__ import annotations

import pytest

from connector.errors import ConfigError
from connector.watermarks.tracker import check_range


@pytest.mark.parametrize(("start", "end"), [(5, 4), (11, None)])
def test_a_range_ends_after_its_start_and_begins_in_the_past(start: int, end: int | None) -> None:
    with pytest.raises(ConfigError, match="start_commit"):
        check_range(start, end, now=10)


@pytest.mark.parametrize(("start", "end"), [(None, None), (5, 5), (10, 99), (None, 0), (0, None)])
def test_a_range_may_be_open_or_end_in_the_future(start: int | None, end: int | None) -> None:
    check_range(start, end, now=10)
