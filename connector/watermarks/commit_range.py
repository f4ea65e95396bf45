"""The bounds of a range of commit time (SUB-1, SUB-5)."""

from __future__ import annotations

from connector.errors import ErrorCode, OutOfRangeError
from connector.records.views import view_of_time


def check_range(start_commit: int | None, end_commit: int | None, now: int) -> None:
    """Raise `OutOfRangeError` if the range begins in the future, or ends before it begins."""
    if start_commit is not None and end_commit is not None and end_commit < start_commit:
        raise OutOfRangeError(
            ErrorCode.START_AFTER_END,
            f"start_commit is {view_of_time(start_commit)}, after end_commit, which is"
            f" {view_of_time(end_commit)}",
            "",
            "Use a range that begins before it ends",
        )
    if start_commit is not None and start_commit > now:
        raise OutOfRangeError(
            ErrorCode.START_IN_FUTURE,
            f"start_commit is {view_of_time(start_commit)}, but now it is {view_of_time(now)}",
            "A range may end in the future, but not begin there",
            "Use an earlier start_commit. Times are microseconds since 1970",
        )
