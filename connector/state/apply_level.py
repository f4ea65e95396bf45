"""Whether an apply replaces single rows or rewrites buckets (TBL-13).

Theory. A row-level apply finds the old rows by their keys, writes the new ones, and marks the old
ones as deleted. Its cost is a fixed part, for the search and for the vectors, and a part for each
changed row. A bucket-level apply reads, merges and writes each row of the buckets that it touches.
Both do the same work for a row. So the row-level apply is the faster one as long as it replaces
clearly fewer rows than the other one would write. Therefore the choice compares rows with rows. The
size of a row does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from connector.state.maintenance_schedule import DataFile

MANY_CHANGES: Final = 1_000_000
"""The keys of more changes are not sent to every task, so their rows are not searched."""
ROWS_PER_CHANGE: Final = 2
"""An apply is row-level if a rewrite would write at least so many rows for each change. With fewer,
it would leave more rows marked as deleted than not, and a compaction would write them all again.
"""
MIN_BYTES: Final = 1_000_000
"""Smaller buckets are rewritten as quickly, and keep few files."""
CHANGES_PER_TASK: Final = 20_000
"""One task merges this many changes of a row-level apply on one bucket. Starting another task would
take longer than its work.
"""


def is_row_level(changes: int, touched: Iterable[DataFile] | None) -> bool:
    """Return whether an apply of so many changes is row-level. `touched` are the files of the
    buckets that it touches.

    None: they are not known, because the table has too many files. Then it is large.

    For example: 27,000 changes of one file with 200,000 rows and 7 MB are row-level. 150,000 are
    not.
    """
    if changes > MANY_CHANGES:
        return False
    if touched is None:
        return True
    files = list(touched)
    rows = sum(file.rows - file.marked for file in files)
    size = sum(file.size for file in files)
    return size >= MIN_BYTES and changes * ROWS_PER_CHANGE <= rows
