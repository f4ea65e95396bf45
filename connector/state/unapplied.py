"""The logged changes that a table lacks, by batch (MET-1, MET-3). Times are in microseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from connector.records.model import MAX_LONG
from connector.state.table_state import TableState

MAX_BATCHES: Final = 1_000
"""Of more batches that a table lacks, the oldest are counted together."""


@dataclass(frozen=True, slots=True)
class TableChanges:
    """The changes of a source table. A delete is a change that sets no cell, or a truncation.

    `deletes_since` is when the first delete arrived in Kafka, and `deletes_to` the greatest commit
    timestamp of a delete. None: there are no deletes.
    """

    changes: int = 0
    deletes_since: int | None = None
    deletes_to: int = 0

    def __add__(self, other: TableChanges) -> TableChanges:
        since = [at for at in (self.deletes_since, other.deletes_since) if at is not None]
        return TableChanges(
            self.changes + other.changes,
            min(since, default=None),
            max(self.deletes_to, other.deletes_to),
        )


@dataclass(frozen=True, slots=True)
class BatchContents:
    """The bytes that a batch added to the changelog, and its changes by source table."""

    written: int
    tables: Mapping[str, TableChanges] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unapplied:
    """The changes that a table lacks. `batches` has those of each batch that it has not wholly, in
    order. `counted_to` is the last counted batch, and `unknown_to` the last one whose changes are
    unknown, because another process logged it.
    """

    counted_to: int = 0
    unknown_to: int = 0
    batches: tuple[tuple[int, TableChanges], ...] = ()

    def after(self, to: int, batches: Mapping[int, TableChanges], since: int) -> Unapplied:
        """Return them after batch `to` was logged. `batches` has the changes of the counted ones.
        Those before them may have a delete that arrived at `since`.
        """
        unknown_to, added = self.unknown_to, dict(batches)
        if (before := min(batches, default=to + 1) - 1) > self.counted_to:
            unknown_to = before
            added[before] = TableChanges(0, since, MAX_LONG)
        new = (item for item in sorted(added.items()) if item[1] != TableChanges())
        pending = [*self.batches, *new]
        while len(pending) > MAX_BATCHES:
            (_, oldest), (number, following) = pending[:2]
            pending[:2] = [(number, oldest + following)]
        return Unapplied(to, unknown_to, tuple(pending))

    def without(self, state: TableState) -> Unapplied:
        """Return them without what a table with this state has."""
        pending = tuple(
            (number, TableChanges(of_batch.changes))
            if state.covers(number, of_batch.deletes_to)
            else (number, of_batch)
            for number, of_batch in self.batches
            if number > state.complete_to_batch
        )
        unknown_to = self.unknown_to if self.unknown_to > state.complete_to_batch else 0
        return Unapplied(self.counted_to, unknown_to, pending)

    @property
    def changes(self) -> int | None:
        """The changes of all batches that the table has not wholly. None: unknown."""
        return None if self.unknown_to else sum(item.changes for _, item in self.batches)

    @property
    def deletes_since(self) -> int | None:
        """When the oldest delete that the table lacks arrived in Kafka. None: it has them all."""
        times = (item.deletes_since for _, item in self.batches)
        return min((at for at in times if at is not None), default=None)


NOTHING_COUNTED: Final = Unapplied()
