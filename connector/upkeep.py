"""When files are put together and old ones removed: a rule of numbers that commits bear anyway, so that nothing is looked up (TBL-15)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

COMPACT_EVERY: Final = 100
"""After so many commits small files are put together: a batch leaves a file or a few in each place that it writes to."""
COMPACT_TABLE_EVERY: Final = 25
"""The same for a table. An apply leaves rows that are marked as gone beside its new files, and readers pass over them."""
CLEAN_EVERY: Final = 10
"""Files are removed after so many commits at the earliest, and once a day."""
_DAY_US: Final = 86_400_000_000


@dataclass(frozen=True, slots=True)
class Mark:
    """How many commits something has had that count, batches or applies, and when the last one was (microseconds)."""

    number: int
    at: int

    def compacts(self, after: Mark, every: int | None = None) -> bool:
        """Whether small files are to be put together, from this mark to `after`; every `COMPACT_EVERY` commits, unless it is said."""
        return self._passed(after, every or COMPACT_EVERY)

    def cleans(self, after: Mark) -> bool:
        """Whether old files are to be removed, this mark being that of the last time."""
        return self._passed(after, CLEAN_EVERY) and after.at // _DAY_US != self.at // _DAY_US

    def _passed(self, after: Mark, every: int) -> bool:
        """Whether a multiple of `every` lies between the two."""
        return after.number // every > self.number // every
