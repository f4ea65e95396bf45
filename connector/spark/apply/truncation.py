"""Truncations in an apply and in a read (EVO-13). The rule is `connector.tables.merge.truncate`.

Changes that are older than the greatest truncation of the table are left out before the merge. So
the stored rows have nothing that is older, and only a new truncation looks at them:

* If every change that was ever merged is older, all files of the table go, and none is read.
* Otherwise one pass over the states of the rows counts those that have something older. The apply
  then replaces these rows, or all rows, as it chooses for changes (`connector.state.apply_level`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from connector.records.ordering import SECTIONS, OrderBy, Rank
from connector.spark.apply.flatten import rank_of_row
from connector.spark.apply.merge import merged_buckets, newest_order, rows_of_changes
from connector.spark.apply.statistics import FlatChanges, unapplied
from connector.spark.sql import literal_rows
from connector.spark.storage.changelog_reader import ChangelogReader
from connector.spark.storage.files import Files
from connector.spark.storage.layout import Layout, is_older
from connector.spark.storage.table import Table
from connector.state.apply_level import MANY_CHANGES, ROWS_PER_CHANGE
from connector.state.table_state import TableState
from connector.tables.column_names import STATE
from connector.tables.merge import greatest

IS_TOMBSTONE: Final = (
    f"NOT _exists AND (array_max({STATE}.orders) IS NOT NULL OR {STATE}.residual IS NOT NULL)"
)
"""Whether a row of which a truncation removed something has only newer deletions left."""


@dataclass(frozen=True, slots=True)
class Truncation:
    """The greatest truncation of a table at a cut.

    - `rank`: None means that the table was never truncated.
    - `is_new`: the table does not have it yet.
    - `at` is the greatest commit timestamp (µs) of the truncations that the cut adds, or 0.
    - `deferred_from` is the oldest batch with a truncation that the cut defers.
    - `unnumbered` are the copies without the number by which the table is ordered, if there are
      any, and `letters` is their count.
    """

    rank: Rank | None
    is_new: bool = False
    at: int = 0
    deferred_from: int | None = None
    unnumbered: DataFrame | None = None
    letters: int = 0

    def complete_to(self, batch: int) -> int:
        """The last batch up to this one of which no truncation is deferred."""
        return batch if self.deferred_from is None else min(batch, self.deferred_from - 1)


def truncation_of(
    changelog: ChangelogReader, layout: Layout, before: TableState, to: int, below: int | None
) -> Truncation:
    """The greatest truncation of the table in the batches up to `to`, with a commit timestamp less
    than `below`, if that is given. It runs a Spark job only if there can be another one than the
    table has.
    """
    source, after = layout.definition.source, before.complete_to_batch
    if changelog.last_truncation(source) <= after:
        return Truncation(before.truncated)
    at = "unix_micros(commit_timestamp)"
    is_in = "true" if below is None else f"{at} < {below}L"
    is_ranked, is_unnumbered = is_in, "false"
    if layout.definition.order is OrderBy.SEQUENCE_NUMBER:
        is_ranked = f"{is_in} AND change_sequence_number IS NOT NULL"
        is_unnumbered = f"{is_in} AND change_sequence_number IS NULL AND {unapplied(before)}"
    texts = {
        "rank": f"max(CASE WHEN {is_ranked} THEN {rank_of_row(layout)} END)",
        "at": f"max(CASE WHEN {is_ranked} THEN {at} END)",
        "deferred_from": f"min(CASE WHEN NOT ({is_in}) THEN ingest_batch END)",
        "letters": f"count_if({is_unnumbered})",
    }
    rows = changelog.truncations(source, after=after, to=to)
    row = rows.agg(*(F.expr(text).alias(name) for name, text in texts.items())).first()
    assert row is not None
    rank = greatest(before.truncated, None if row["rank"] is None else _rank(row["rank"]))
    is_new, letters = rank != before.truncated, row["letters"]
    return Truncation(
        *(rank, is_new, row["at"] or 0 if is_new else 0, row["deferred_from"]),
        rows.where(is_unnumbered) if letters else None,
        letters,
    )


def _rank(stored: tuple[int, ...] | tuple[bytearray]) -> Rank:
    """A rank, from the fields of `rank_of_row`."""
    number = stored[0]
    if isinstance(number, int):
        return tuple(int(part) for part in stored)
    return tuple(int.from_bytes(number[8 * n : 8 * n + 8], "big") for n in range(SECTIONS))


def not_truncated(changes: DataFrame, layout: Layout, rank: Rank | None) -> DataFrame:
    """The changes, rows of a changelog, that no truncation with this rank deletes."""
    if rank is None:
        return changes
    return changes.where(f"NOT coalesce({is_older(rank_of_row(layout), rank)}, false)")


def deletes_all(before: TableState, rank: Rank) -> bool:
    """Whether a truncation deletes every row, because all that was ever merged is older. It is not
    known in a table that is ordered by sequence number.
    """
    return len(rank) != SECTIONS and before.highest_applied < rank[0]


@dataclass(frozen=True, slots=True)
class OlderRows:
    """How many stored rows have something that is older than a truncation, and whether the apply
    replaces only these rows.
    """

    count: int
    is_row_level: bool


def older_rows(table: Table, version: int, files: Files | None, rank: Rank) -> OlderRows:
    """Count the rows that a truncation touches. It reads the column with their states."""
    rows = files.rows() if files else table.rows(version)
    is_touched = is_older(newest_order("least"), rank)
    row = rows.agg(F.expr(f"count_if({is_touched})"), F.count("*")).first()
    assert row is not None
    touched, total = row
    is_few = touched <= MANY_CHANGES and touched * ROWS_PER_CHANGE <= total
    return OlderRows(touched, table.has_vectors and is_few)


def truncated_view(
    table: Table, changes: FlatChanges, before: TableState, version: int, rank: Rank
) -> DataFrame:
    """The rows that readers would see if the changes and the truncation were applied. Nothing is
    written. `version` is that of the commit `before`.
    """
    if deletes_all(before, rank):
        if not changes.statistics.changes:
            return no_rows(table).selectExpr(*table.layout.shown)
        rows = rows_of_changes(changes, before, table.layout)
    else:
        rows = merged_buckets(table, changes, before, version=version, truncated=rank)
    return rows.where("_exists").selectExpr(*table.layout.shown)


def no_rows(table: Table) -> DataFrame:
    """No row, with the columns of the table."""
    columns = ", ".join(f"`{name}` {type_}" for name, type_ in table.layout.column_types)
    return literal_rows(table.spark, [], columns)
