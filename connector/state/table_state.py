"""What a table says of itself in its newest commit (TBL-10)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from connector.dead_letters.blocked_rows import Dead
from connector.errors import TableError


@dataclass(frozen=True, slots=True)
class Bookkeeping:
    """What a table says of itself in its newest commit.

    apply, attempt      how many applies there were, and the name of the last one's attempt
    to_batch            the last ingest batch that they cover, of the changelog with the id `changelog_id` (empty before the first)
    merged, letters     how many changes were ever merged, and how many became table letters (TBL-9)
    letters_since       when the first change became a table letter; None: none did
    highest_applied     the greatest commit timestamp ever merged
    complete_below      the low watermark up to which the table is complete; None: not known
    complete_to_batch   nothing of the batches up to it is held back; of those after it the changes below `complete_below` are merged
    brought_to          the low watermark that the last apply brought it to, or past everything; with `held` rows alone it matters
    held                the dead changes that rows of it wait for (DLQ-3): of the changes of these rows behind `complete_to_batch` some
                        are not merged, whatever their commit timestamp
    past_since          since when the table is no consistent cut; None: it is one, or nothing was applied (TBL-11)
    horizon             that of `to_batch`: deletes below it may be forgotten (MRG-10); in a table ordered by sequence number an
                        ingest batch, that of `complete_to_batch` (MRG-12)
    as_of               the moment that the batches up to `complete_to_batch` contained at this commit; None: not known (TBL-16)
    with_rest           whether some row's state has a `rest`
    buried              whether there is a graveyard
    attempts            for the applies after `swept_to` that wrote to the graveyard, the attempt that counts (TBL-12)
    rebuild             the name of the rebuild that put this table in the place of an older one; empty: there was none (TBL-21)

    All times and timestamps are microseconds.
    """

    apply: int = 0
    attempt: str = ""
    to_batch: int = 0
    changelog_id: str = ""
    merged: int = 0
    letters: int = 0
    letters_since: int | None = None
    highest_applied: int = 0
    complete_below: int | None = None
    complete_to_batch: int = 0
    brought_to: int | None = None
    held: tuple[Dead, ...] = ()
    past_since: int | None = None
    horizon: int | None = None
    as_of: int | None = None
    with_rest: bool = False
    buried: bool = False
    attempts: Mapping[int, str] = field(default_factory=dict)
    swept_to: int = 0
    rebuild: str = ""

    @property
    def is_consistent_cut(self) -> bool:
        """Whether the table is the source's state at `complete_below`: nothing above it was ever merged, no row is held (TBL-11)."""
        return self.complete_below is not None and self.highest_applied < self.complete_below and not self.held

    @property
    def needed_to_batch(self) -> int:
        """Of the batches up to it nothing is needed any more. A replay is known by the change that became a table letter."""
        return min([self.complete_to_batch, *(dead.newest_batch - 1 for dead in self.held)])

    def is_at(self, low_watermark: int | None, batch: int) -> bool:
        """Whether the table stands at the cut (`low_watermark`, `batch`) (TBL-10)."""
        return self.is_consistent_cut and (self.complete_below, self.to_batch) == (low_watermark, batch)

    def check_changelog(self, table: str, batch: int, changelog_id: str | None = None) -> None:
        """Raise `TableError` if a changelog that ends at `batch` is not the one that the table was made from, or lacks some of it."""
        replaced = self.changelog_id not in ("", self.changelog_id if changelog_id is None else changelog_id)
        if replaced or batch < self.to_batch:
            how = "begun anew" if replaced else f"set back to batch {batch}" if batch else "taken away"
            raise TableError(
                f"Table {table} covers the changelog to batch {self.to_batch}, but the changelog was {how}",
                "The changelog was moved away or restored without the table",
                "Put the changelog back, or move the table's folder away: it is made again from the whole changelog",
            )

    def to_json(self, table: str) -> dict[str, Any]:
        stored = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {
            **stored,
            "table": table,
            "consistent_cut": self.is_consistent_cut,
            "held": [dead.to_json() for dead in self.held],
            "attempts": {str(apply): attempt for apply, attempt in self.attempts.items()},
        }

    @staticmethod
    def from_json(stored: Mapping[str, Any]) -> Bookkeeping:
        known = {name: value for name, value in stored.items() if name in Bookkeeping.__dataclass_fields__}
        attempts = {int(apply): str(attempt) for apply, attempt in stored.get("attempts", {}).items()}
        return Bookkeeping(**{**known, "attempts": attempts, "held": tuple(map(Dead.from_json, stored.get("held", ())))})
