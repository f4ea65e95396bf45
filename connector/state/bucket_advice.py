"""The number of buckets that suits a table (SCL-6).

Theory. A bucket is the part of a table that one task of an apply reads and writes. With fewer
buckets than there is work for cores, cores are idle, and large ones do not fit into the memory of a
task. But an apply leaves a file in each bucket that it touches. So more buckets than size and work
need cost files and bring nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from connector.state.apply_level import CHANGES_PER_TASK, is_row_level
from connector.state.maintenance_schedule import DataFile
from connector.tables.definition import MAX_BUCKETS
from connector.text import counted

MIB: Final = 2**20
MOST_BYTES: Final = 256 * MIB
"""The size of the largest bucket. A table below it has one bucket."""
LEAST_BYTES: Final = 32 * MIB
"""More buckets for more cores never make a bucket smaller than this."""
ROW_BYTES: Final = 50
"""A row needs about so many bytes. The size of a table is known or expected, its rows are not."""
NEAR: Final = 2
"""A number within this factor of the recommended one is near enough."""


@dataclass(frozen=True, slots=True)
class BucketAdvice:
    """The recommended number of buckets of a table.

    - `buckets` is the recommended number, and `reason` says why, in one sentence.
    - `present` is the number that the table has. None: there is no table yet.
    - `size_bytes` is the size of its newest version, or the size that was expected. `files` is the
      number of its files, 0 without a table.
    - `changes_per_apply` is the median of its applies. None: not known.
    - `cores` are those of Spark. None: not known.
    """

    table: str
    buckets: int
    present: int | None
    size_bytes: int
    files: int
    changes_per_apply: int | None
    cores: int | None
    reason: str

    @property
    def is_change_worthwhile(self) -> bool:
        """Whether the table has a number that is too far from the recommended one. A rebuild for
        less costs more than it brings.
        """
        if self.present is None:
            return False
        return not self.buckets <= self.present * NEAR <= self.buckets * NEAR * NEAR


def median_changes(changes: Iterable[int]) -> int | None:
    """The lower median of the changes of applies that had any. None: there was no such apply."""
    some = sorted(number for number in changes if number > 0)
    return some[(len(some) - 1) // 2] if some else None


def advise(
    table: str,
    *,
    size_bytes: int,
    changes_per_apply: int | None,
    cores: int | None,
    has_vectors: bool,
    present: int | None = None,
    files: int = 0,
) -> BucketAdvice:
    """Recommend a power of two from 1 to `MAX_BUCKETS`. `has_vectors`: the table may have deletion
    vectors; without them, each apply rewrites whole buckets.

    For example: `advise("orders", size_bytes=4 * 2**30, changes_per_apply=None, cores=8,
    has_vectors=True).buckets == 16`.
    """
    buckets, reason = _recommended(size_bytes, changes_per_apply, cores, has_vectors=has_vectors)
    return BucketAdvice(
        *(table, buckets, present, size_bytes, files, changes_per_apply, cores, reason)
    )


def _recommended(
    size: int, changes: int | None, cores: int | None, *, has_vectors: bool
) -> tuple[int, str]:
    has = f"The table has {size_of(size)}"
    if size < MOST_BYTES:
        return 1, f"{has}, and below {size_of(MOST_BYTES)} one bucket needs the fewest files"
    by_size = _power_of_two(-(-size // MOST_BYTES))
    if by_size >= MAX_BUCKETS:
        return MAX_BUCKETS, f"{has}, and {MAX_BUCKETS:,} is the largest number"
    parts = f"{has}, and a bucket should have at most {size_of(MOST_BYTES)}"
    if changes is None:
        return by_size, parts
    all_rows = DataFile("", size, size // ROW_BYTES)
    is_dense = not has_vectors or not is_row_level(changes, [all_rows])
    tasks = (cores or 1) if is_dense else min(cores or 1, 1 + changes // CHANGES_PER_TASK)
    by_cores = min(_power_of_two(tasks), _power_of_two(size // LEAST_BYTES + 1) // 2)
    does = "rewrite whole buckets" if is_dense else "replace single rows"
    applies = f"its applies of {counted(changes, 'change')} {does}"
    if by_cores > by_size:
        return by_cores, f"{has}, and {applies}, which is work for {counted(tasks, 'core')}"
    return by_size, f"{parts}; {applies}, which needs no more"


def _power_of_two(number: int) -> int:
    """The smallest power of two that is not below a number."""
    return 1 << max(0, number - 1).bit_length()


def size_of(size: int) -> str:
    """A size for people: `12.0 MiB`, `4.0 GiB`."""
    return f"{size / MIB:,.1f} MiB" if size < 1024 * MIB else f"{size / (1024 * MIB):,.1f} GiB"
