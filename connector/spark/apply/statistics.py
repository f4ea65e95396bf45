"""Statistics of the changes of an apply: how many, of which buckets, of which order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from connector.errors import ErrorCode, TableError
from connector.records.ordering import OrderBy
from connector.spark.apply.flatten import flatten_entries
from connector.spark.apply.frames import Keep, keep_nothing
from connector.spark.sql import constant
from connector.spark.storage.layout import Layout
from connector.spark.storage.logged_batch import LoggedBatch
from connector.spark.storage.table import Table
from connector.state.apply_level import Merged
from connector.state.table_state import TableState
from connector.tables.column_names import BUCKET


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """Statistics of the changes before they are merged.

    `may_remove` counts the changes that may remove a row. `all_newer`: every change is newer than
    all that were merged before. A merge skips the steps that no change needs, which saves half of
    its time.
    """

    changes: int
    unreadable: int
    may_remove: int
    has_residual: bool
    all_plain: bool
    all_whole: bool
    buckets: tuple[int, ...]
    all_newer: bool
    highest: int

    def overwrites_rows(self, before: TableState) -> bool:
        """Whether the stored state of the rows no longer matters."""
        return self.all_whole and self.is_all_newer(before)

    def is_all_newer(self, before: TableState) -> bool:
        """Whether only the visible values of the stored rows matter."""
        return self.all_newer and not self.has_residual and not before.has_residual


def statistics_of(merged: Merged) -> BatchStatistics:
    """The statistics of changes that were merged without Spark, as the table state needs them."""
    return BatchStatistics(
        changes=merged.changes,
        unreadable=0,
        may_remove=0,
        has_residual=merged.has_residual,
        all_plain=False,
        all_whole=False,
        buckets=(),
        all_newer=False,
        highest=merged.highest,
    )


def check_changelog(table: Table, before: TableState, newest: LoggedBatch | None) -> None:
    """Raise `TableError` unless the changelog is the one from which the table was made.

    In another changelog the same batch numbers mean other changes.
    """
    batch, identity = (newest.ingest_batch, newest.changelog_id) if newest else (0, None)
    before.check_changelog(table.layout.definition.name, batch, identity)
    if newest is not None and newest.trimmed_to > before.complete_to_batch:
        raise TableError(
            ErrorCode.CHANGELOG_TRIMMED,
            f"Table {table.layout.definition.name} needs the changelog from batch"
            f" {before.complete_to_batch + 1} on, but the changes of the changelog begin at batch"
            f" {newest.trimmed_to + 1}",
            "The older changes were deleted (`changelog_retention`). A new or rebuilt table needs"
            " all changes",
            "Send a backfill to a stream with another name, and declare a table on that stream",
            table=table.layout.definition.name,
            stream=table.layout.definition.stream,
        )


def unapplied(
    before: TableState,
    batch: str = "ingest_batch",
    committed: str = "unix_micros(commit_timestamp)",
    place: str = "kafka_partition",
) -> str:
    """Whether a change is not in the table yet, as SQL over changes after the last batch without a
    deferred change.
    """
    if before.apply_watermark is None or before.complete_to_batch == before.to_batch:
        return "true"
    return (
        f"({batch} > {constant(before.to_batch, place)} OR {committed} >="
        f" {constant(before.apply_watermark, place)})"
    )


def analyze(changes: DataFrame, layout: Layout, before: TableState) -> BatchStatistics:
    """The statistics of all changes. It is fast if all are plain. `analyze_once` explains them."""
    return analyze_once(changes, layout, before).seen


class OnePass(NamedTuple):
    """The statistics of the changes to merge, and `deferred_from`: the oldest batch with a deferred
    change. None: there is no such change.
    """

    seen: BatchStatistics
    pivoted: DataFrame
    deferred_from: int | None


def analyze_once(
    changes: DataFrame,
    layout: Layout,
    before: TableState,
    keep: Keep = keep_nothing,
    *,
    is_new: str = "true",
    is_deferred: str = "false",
) -> OnePass:
    """Read the changes once, or twice if not all are plain. `keep` may store their
    `flatten_entries` meanwhile.

    `is_new` and `is_deferred` are conditions on `_committed` and `_batch` of `flatten_entries`.
    Changes that are new and not deferred are merged.

    A change may remove its row in two cases: it leaves no cell, or it is not newer than everything
    that was merged before. If the newest change of a row leaves a cell and the stored state has
    nothing newer, the row exists. Only a table ordered by commit knows what is newer.
    """
    counts = f"({is_new}) AND NOT ({is_deferred})"
    found = None
    for all_plain in (True, False) if layout.registered else (False,):
        pivoted = keep(flatten_entries(changes, layout, all_plain=all_plain))
        seen, deferred_from = _analyzed(pivoted, layout, before, counts, is_deferred)
        found = OnePass(seen, pivoted.where(counts), deferred_from)
        if found.seen.all_plain:
            break
    assert found is not None
    return found


def _analyzed(
    pivoted: DataFrame, layout: Layout, before: TableState, counts: str, is_deferred: str
) -> tuple[BatchStatistics, int | None]:
    """The statistics of the changes in `pivoted` that count, and the oldest batch with a deferred
    change.
    """
    good = f"({counts}) AND NOT _unreadable"
    highest = constant(before.highest_applied, "_partition")
    may_be_older = (
        f"_committed <= {highest}" if layout.definition.order is OrderBy.COMMIT else "true"
    )
    seen = [
        F.expr(f"count_if({counts})").alias("changes"),
        F.expr(f"count_if(({counts}) AND _unreadable)").alias("unreadable"),
        F.expr(f"count_if({good} AND (_may_remove OR {may_be_older}))").alias("may_remove"),
        F.expr(f"count_if({good} AND _rest IS NOT NULL) > 0").alias("has_residual"),
        F.expr(f"count_if(({counts}) AND NOT _plain) = 0").alias("all_plain"),
        F.expr(f"count_if(({counts}) AND NOT _whole) = 0").alias("all_whole"),
        F.expr(f"collect_set(CASE WHEN {good} THEN {BUCKET} END)").alias("buckets"),
        F.expr(f"count_if({good} AND {may_be_older}) = 0").alias("all_newer"),
        F.expr(f"coalesce(max(CASE WHEN {good} THEN _committed END), 0)").alias("highest"),
        F.expr(f"min(CASE WHEN {is_deferred} THEN _batch END)").alias("deferred_from"),
    ]
    row = pivoted.agg(*seen).first()
    assert row is not None
    values = row.asDict()
    deferred_from = values.pop("deferred_from")
    return BatchStatistics(**{**values, "buckets": tuple(values["buckets"])}), deferred_from
