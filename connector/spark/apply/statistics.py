"""Statistics of the changes of an apply: how many, of which buckets, of which order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from connector.errors import TableError
from connector.records.ordering import OrderBy
from connector.spark.apply.flatten import flatten_entries
from connector.spark.apply.kept import Keep, keep_nothing
from connector.spark.sql import constant
from connector.spark.storage.changelog import LoggedBatch
from connector.spark.storage.layout import Layout
from connector.spark.storage.table import Table
from connector.state.table_state import TableState
from connector.tables.column_names import BUCKET


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """What one look at the changes tells before they are merged. `may_remove` counts those that could take a row out.

    What no change does, the merge need not be prepared for: that saves half of its time. `all_newer`: every change is newer than
    all that was merged before.
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
        """Whether what was known of the rows no longer matters."""
        return self.all_whole and self.is_all_newer(before)

    def is_all_newer(self, before: TableState) -> bool:
        """Whether of what was known of the rows only the values matter that they show."""
        return self.all_newer and not self.has_residual and not before.has_residual


def check_changelog(table: Table, before: TableState, newest: LoggedBatch | None) -> None:
    """A table goes on only with the changelog it was made from: in another one its batch numbers mean other changes."""
    batch, identity = (newest.ingest_batch, newest.changelog_id) if newest else (0, None)
    before.check_changelog(table.layout.definition.name, batch, identity)
    if newest is not None and newest.trimmed_to > before.complete_to_batch:
        raise TableError(
            f"Table {table.layout.definition.name} needs the changelog from batch {before.complete_to_batch + 1} on, "
            f"and its changes begin at batch {newest.trimmed_to + 1}",
            "`changelog_retention` has let the older ones go; a table that is new, or rebuilt, needs them all",
            "Send a backfill to a stream of another name, and declare a table on that",
        )


def unapplied(
    before: TableState, batch: str = "ingest_batch", committed: str = "unix_micros(commit_timestamp)", place: str = "kafka_partition"
) -> str:
    """Of the changes since the last batch of which nothing is held back, whether the table does not hold one yet, as SQL over these."""
    if before.apply_watermark is None or before.complete_to_batch == before.to_batch:
        return "true"
    return f"({batch} > {constant(before.to_batch, place)} OR {committed} >= {constant(before.apply_watermark, place)})"


def analyze(changes: DataFrame, layout: Layout, before: TableState) -> BatchStatistics:
    """Look at all changes, quickly if all are plain. What one look tells is in `analyze_once`."""
    return analyze_once(changes, layout, before).seen


class OnePass(NamedTuple):
    """The statistics of the changes to merge, and `held_from`: the oldest batch with a deferred change; None: there is none."""

    seen: BatchStatistics
    pivoted: DataFrame
    held_from: int | None


def analyze_once(
    changes: DataFrame, layout: Layout, before: TableState, keep: Keep = keep_nothing, *, is_new: str = "true", is_held: str = "false"
) -> OnePass:
    """Look at changes once, or twice where not all are plain; `keep` may store them as `flatten_entries` has them as the look passes.

    `is_new` and `is_held` are conditions on `_committed` and `_batch` of `flatten_entries`: what is new and not held is to be merged.

    Only a change that leaves no cell behind can take its row out of the table, or one that is not newer than everything merged
    before: if the newest change of a row leaves a cell, and nothing known of the row is newer, the row exists. What is newer is only
    known in a table ordered by commit.
    """
    counts = f"({is_new}) AND NOT ({is_held})"
    found = None
    for all_plain in (True, False) if layout.registered else (False,):
        pivoted = keep(flatten_entries(changes, layout, all_plain=all_plain))
        seen, held_from = _analyzed(pivoted, layout, before, counts, is_held)
        found = OnePass(seen, pivoted.where(counts), held_from)
        if found.seen.all_plain:
            break
    assert found is not None
    return found


def _analyzed(pivoted: DataFrame, layout: Layout, before: TableState, counts: str, is_held: str) -> tuple[BatchStatistics, int | None]:
    """What `pivoted` tells of the changes that count, and the oldest batch of one that is held."""
    good, highest = f"({counts}) AND NOT _unreadable", constant(before.highest_applied, "_partition")
    may_be_older = f"_committed <= {highest}" if layout.definition.order is OrderBy.COMMIT else "true"
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
        F.expr(f"min(CASE WHEN {is_held} THEN _batch END)").alias("held_from"),
    ]
    row = pivoted.agg(*seen).first()
    assert row is not None
    told = row.asDict()
    held_from = told.pop("held_from")
    return BatchStatistics(**{**told, "buckets": tuple(told["buckets"])}), held_from
