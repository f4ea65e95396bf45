"""The order of events in a binary log of MySQL, which may have begun again between them (SRC-2)."""

from __future__ import annotations

from functools import cmp_to_key
from typing import Final

from connector.sources.model import End, ForeignRecord, LogPosition

SILENT_US: Final = 10_000_000
"""After this time, a truncation of MySQL that no transaction follows is released. What is apart by
more has the order of the commit times. An event that is older by more than an end is not of its
transaction, but of another one with the same id.
"""
RESTART_US: Final = 1_000_000
"""A restart of Debezium takes longer. So a truncation of MySQL that Kafka got later than this after
the end of a later transaction was sent after that end.
"""


def is_earlier(time: int, at: LogPosition, other_time: int, other_at: LogPosition) -> bool:
    """Return whether an event is before another one, by their positions. If the log began again
    between them, their times tell.
    """
    return time <= other_time + (SILENT_US if at < other_at else -SILENT_US)


def _order(left: tuple[ForeignRecord, End], right: tuple[ForeignRecord, End]) -> int:
    first, second = left[1].commit, right[1].commit
    return -1 if is_earlier(first.time, first.at, second.time, second.at) else 1


SORT_KEY: Final = cmp_to_key(_order)
"""The key of a truncation with its record, for a sort."""
