"""Which way an apply takes: it rewrites buckets, or replaces single rows, in Spark or without it
(TBL-13).

Theory. A row-level apply finds the old rows by their keys, writes the new ones, and marks the old
ones as deleted. Its cost is a fixed part, for the search and for the vectors, and a part for each
changed row. A bucket-level apply reads, merges and writes each row of the buckets that it touches.
Both do the same work for a row. So the row-level apply is the faster one as long as it replaces
clearly fewer rows than the other one would write. Therefore the choice compares rows with rows. The
size of a row does not matter.

A small apply is a row-level one without Spark. Its values are what it reads, and the files that it
has written. The files are named as Delta names them: each is the JSON of an action of its log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from connector.state.maintenance_schedule import DataFile
from connector.state.table_state import TableState
from connector.tables.definition import TableDefinition
from connector.tables.stored_definition import ColumnIds

MANY_CHANGES: Final = 1_000_000
"""The keys of more changes are not sent to every task, so their rows are not searched."""
ROWS_PER_CHANGE: Final = 2
"""An apply is row-level if a rewrite would write at least so many rows for each change. With fewer,
it would leave more rows marked as deleted than not, and a compaction would write them all again.
"""
MIN_BYTES: Final = 1_000_000
"""Smaller buckets are rewritten as quickly, and keep few files."""
CHANGES_PER_TASK: Final = 20_000
"""One task merges this many changes of a bucket. To start another one would take longer."""
MAX_BYTES: Final = 64_000_000
"""An apply that must look at larger files is one of Spark."""
MAX_IN_MEMORY: Final = 256_000_000
"""The same for one file without compression, for the changes, and for their rows."""
MAX_ENTRIES: Final = 1_250_000
MAX_ENTRIES_BY_ROW: Final = 400_000
"""An apply of more entries is one of Spark. An entry needs about half a kB, and twice as much if it
is merged row by row.
"""
_MAX_WORK: Final = 4_000_000
_MAX_WORK_BY_ROW: Final = 1_000_000
_WORK_OF_CHANGE: Final = 4
"""A change without columns is as much work as this number of columns."""


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


def is_few(changes: int, columns: int, cores: int) -> bool:
    """Return whether so many changes of a table with so many columns are merged without Spark.

    One processor merges them, and Spark would use all of them. So with more processors, fewer
    changes are few. For example, 200,000 changes of 5 columns are few on 2 processors, and 27,000
    are on 16.
    """
    return _work(changes, columns, cores) <= _MAX_WORK


def are_few_by_row(changes: int, entries: int, columns: int, cores: int) -> bool:
    """The same for changes that are merged row by row, which takes several times as long."""
    is_small = entries <= MAX_ENTRIES_BY_ROW
    return is_small and _work(changes, columns, cores) <= _MAX_WORK_BY_ROW


def _work(changes: int, columns: int, cores: int) -> int:
    return changes * (columns + _WORK_OF_CHANGE) * max(2, cores)


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallApply:
    """The input of the apply.

    - `definition`, `ids`, `buckets` and `before` are those of the table. It keeps the latest
      version of a cell, and has no blocked rows.
    - `below` is the low watermark of the cut: changes at or above it are deferred. None: no change
      is deferred. Deletes below `horizon` may be forgotten.
    - `changelog` is the folder of the changelog, and `changes` its files with all changes after
      `before.complete_to_batch`, up to the cut. `held` has the changes in some of them, by path.
    - `table` is the folder of the table, and `rows` its files.
    - `tombstones` is the folder of the tombstone table, which may not exist yet, and `removed` its
      files.
    - `attempt_id` identifies the attempt.
    - `cores` is the number of processors that Spark has.
    - `may_fold`: small files may be put together in the same commit.
    """

    definition: TableDefinition
    ids: ColumnIds | None = None
    buckets: int
    before: TableState
    below: int | None
    horizon: int | None
    changelog: str
    changes: tuple[str, ...]
    held: Mapping[str, Any] = field(default_factory=dict)
    table: str
    rows: tuple[str, ...]
    tombstones: str
    removed: tuple[str, ...]
    attempt_id: str
    cores: int
    may_fold: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """The result of the apply: files that no commit names yet.

    `deferred_from` is the oldest batch with a deferred change. `table` and `tombstones` are the
    actions to commit to both tables. `misfits` counts values that a column cannot hold, by column.
    `bytes_read` is the size of the files that were read. `folded` is the number of small files
    whose rows are now in a new file. `all_count`: every tombstone up to `before` counts, so commits
    need not name their attempts any more (TBL-12).
    """

    changes: int
    highest: int
    deferred_from: int | None
    has_residual: bool
    misfits: Mapping[str, int]
    table: tuple[str, ...]
    tombstones: tuple[str, ...]
    bytes_read: int = 0
    folded: int = 0
    all_count: bool = False


MergeFew = Callable[[SmallApply], Merged | None]
"""Merges the changes and writes the files. None: Spark must do it, and no file was written."""
