"""What a stream has achieved so far: a pure function of the progress before and of a batch's rows, read back by column (TBL-5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """How many rows of each kind a batch has. `rejected` is by reason, `INVALID` with its rule behind a slash."""

    changes: int = 0
    control: int = 0
    unknown_tables: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)

    @property
    def records(self) -> int:
        return self.changes + self.control + sum(self.rejected.values())


@dataclass(frozen=True, slots=True)
class Progress:
    """The counts of all batches up to and including `ingest_batch`; 0 before the first.

    `unknown_tables` counts changes of source tables that no definition named when they were ingested (TBL-7).
    """

    ingest_batch: int = 0
    changes: int = 0
    control: int = 0
    unknown_tables: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)

    def after(self, ingest_batch: int, counts: BatchCounts) -> Progress:
        """The progress once `ingest_batch`, the next one, is in the changelog."""
        assert ingest_batch == self.ingest_batch + 1, (ingest_batch, self.ingest_batch)
        reasons = sorted({*self.rejected, *counts.rejected})
        return replace(
            self,
            ingest_batch=ingest_batch,
            changes=self.changes + counts.changes,
            control=self.control + counts.control,
            unknown_tables=self.unknown_tables + counts.unknown_tables,
            rejected={reason: self.rejected.get(reason, 0) + counts.rejected.get(reason, 0) for reason in reasons},
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(stored: Mapping[str, Any]) -> Progress:
        return Progress(**stored)


def count_rows(rows: DataFrame, known_tables: Iterable[str]) -> BatchCounts:
    """The counts of a batch's rows, from the changelog: one small aggregation over a few columns."""
    names = ", ".join(f"'{table}'" for table in sorted(known_tables)) or "NULL"
    known = F.expr(f"coalesce(table IN ({names}), false)").alias("known")
    counted = rows.groupBy("kind", "reason", "rule", known).count().collect()
    by_kind = {kind: sum(row["count"] for row in counted if row["kind"] == kind) for kind in ("change", "control")}
    rejected = {"/".join(filter(None, (row["reason"], row["rule"]))): row["count"] for row in counted if row["kind"] == "rejected"}
    unknown = sum(row["count"] for row in counted if row["kind"] == "change" and not row["known"])
    return BatchCounts(by_kind["change"], by_kind["control"], unknown, rejected)
