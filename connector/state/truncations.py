"""The truncations of the source tables of a stream, in its progress (EVO-13).

Ingest needs the newest one of each table to recognize a copy that arrives after the horizon has
passed it. An apply needs the last batch with a truncation, so that it searches the changelog only
if there can be a new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from connector.records.model import Truncate
from connector.records.ordering import Rank, commit_rank

MAX_TABLES: Final = 1_000
"""Each commit of the changelog has the truncations, and a stream may name any number of tables."""


@dataclass(frozen=True, slots=True)
class SourceTruncation:
    """The greatest commit rank of the truncations of a table, and the last batch with one."""

    rank: Rank
    batch: int


@dataclass(frozen=True, slots=True)
class SourceTruncations:
    """The truncations by source table: those of `MAX_TABLES` tables with the last batches. No other
    table has a truncation after the batch `others_to`.
    """

    tables: Mapping[str, SourceTruncation] = field(default_factory=dict)
    others_to: int = 0

    def after(self, batch: int, truncations: Iterable[Truncate]) -> SourceTruncations:
        """Return the truncations after a batch with these."""
        tables = dict(self.tables)
        for truncate in truncations:
            rank, before = commit_rank(truncate), tables.get(truncate.table)
            if before is not None:
                rank = max(rank, before.rank)
            tables[truncate.table] = SourceTruncation(rank, batch)
        newest_last = sorted(tables, key=lambda name: tables[name].batch)
        forgotten = newest_last[:-MAX_TABLES]
        others_to = max((self.others_to, *(tables.pop(name).batch for name in forgotten)))
        return SourceTruncations(tables, others_to)

    def last_batch(self, source: str) -> int:
        """Return the last batch that can have a truncation of a source table. 0: none has."""
        truncation = self.tables.get(source)
        return self.others_to if truncation is None else truncation.batch

    def ranks(self) -> dict[str, Rank]:
        """Return the greatest commit rank by source table."""
        return {name: truncation.rank for name, truncation in self.tables.items()}


NEVER_TRUNCATED: Final = SourceTruncations()
