"""Changes and what is known of their rows, merged: in whole buckets or row by row (TBL-13, TBL-16)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from connector.bookkeeping import Bookkeeping
from connector.errors import TableError
from connector.spark.changelog import LoggedBatch
from connector.spark.deletion_vectors import FILE, PLACE, ROW
from connector.spark.layout import Layout
from connector.spark.lookup import looked_up
from connector.spark.overlay import overlaid
from connector.spark.pivot import pivot
from connector.spark.registers import (
    Known,
    joined,
    known_by_changes,
    known_by_graveyard,
    known_by_rows,
    rows_of,
)
from connector.spark.sql import constant
from connector.spark.table import Table
from connector.tables import BUCKET, OrderBy

MANY_CHANGES: Final = 1_000_000
"""Keys of more changes are not sent to every task."""
SPARSE_BYTES: Final = 250
"""With fewer changes than one for so many bytes of a table, its rows are replaced one by one: about one row in five."""
MIN_SPARSE_BYTES: Final = 1_000_000
"""A smaller table is written anew as quickly, and stays a few files."""
CHANGES_PER_TASK: Final = 20_000
"""So many changes of a table in one bucket are merged by one task: further ones would take longer to start than to work."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What one look at the changes tells before they are merged. `may_remove` counts those that could take a row out.

    What no change does, the merge need not be prepared for: that saves half of its time. `all_newer`: every change is newer than
    all that was merged before.
    """

    changes: int
    unreadable: int
    may_remove: int
    with_rest: bool
    all_plain: bool
    all_whole: bool
    buckets: tuple[int, ...]
    all_newer: bool
    highest: int

    def says_all(self, before: Bookkeeping) -> bool:
        """Whether what was known of the rows no longer matters."""
        return self.all_whole and self.goes_on_top(before)

    def goes_on_top(self, before: Bookkeeping) -> bool:
        """Whether of what was known of the rows only the values matter that they show."""
        return self.all_newer and not self.with_rest and not before.with_rest


def check_changelog(table: Table, before: Bookkeeping, newest: LoggedBatch | None) -> None:
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


def unapplied(since: DataFrame, before: Bookkeeping) -> DataFrame:
    """Of the changes since the last batch of which nothing is held back, those that the table does not hold yet."""
    if before.complete_below is None or before.complete_to_batch == before.to_batch:
        return since
    is_new = f"ingest_batch > {constant(before.to_batch, 'kafka_partition')}"
    return since.where(f"{is_new} OR unix_micros(commit_timestamp) >= {constant(before.complete_below, 'kafka_partition')}")


def survey(changes: DataFrame, layout: Layout, before: Bookkeeping) -> Survey:
    """Look at all changes, quickly if all are plain.

    Only a change that leaves no cell behind can take its row out of the table, or one that is not newer than everything merged
    before: if the newest change of a row leaves a cell, and nothing known of the row is newer, the row exists. What is newer is only
    known in a table ordered by commit.
    """
    seen = _surveyed(pivot(changes, layout, all_plain=True), layout, before) if layout.registered else None
    return seen if seen is not None and seen.all_plain else _surveyed(pivot(changes, layout), layout, before)


def glance(changes: DataFrame, layout: Layout, before: Bookkeeping) -> tuple[Survey, DataFrame] | None:
    """`survey`, and the changes as `pivot` has them, from one pass over the changelog; None where not all are plain, or one is
    unreadable.
    """
    if not layout.registered:
        return None
    pivoted = pivot(changes, layout, all_plain=True).localCheckpoint(eager=False)  # kept as the survey passes
    seen = _surveyed(pivoted, layout, before)
    return (seen, pivoted) if seen.all_plain and not seen.unreadable else None


def _surveyed(pivoted: DataFrame, layout: Layout, before: Bookkeeping) -> Survey:
    good, highest = "NOT _unreadable", constant(before.highest_applied, "_change.kafka_partition")
    may_be_older = f"_committed <= {highest}" if layout.definition.order is OrderBy.COMMIT else "true"
    seen = [
        F.count("*").alias("changes"),
        F.expr("count_if(_unreadable)").alias("unreadable"),
        F.expr(f"count_if({good} AND (_may_remove OR {may_be_older}))").alias("may_remove"),
        F.expr(f"count_if({good} AND _rest IS NOT NULL) > 0").alias("with_rest"),
        F.expr("count_if(NOT _plain) = 0").alias("all_plain"),
        F.expr("count_if(NOT _whole) = 0").alias("all_whole"),
        F.expr(f"collect_set(CASE WHEN {good} THEN {BUCKET} END)").alias("buckets"),
        F.expr(f"count_if({good} AND {may_be_older}) = 0").alias("all_newer"),
        F.expr(f"coalesce(max(CASE WHEN {good} THEN _committed END), 0)").alias("highest"),
    ]
    row = pivoted.agg(*seen).first()
    assert row is not None
    return Survey(**{**row.asDict(), "buckets": tuple(row["buckets"])})


def is_sparse(table: Table, seen: Survey) -> bool:
    """Whether so few changes touch so large a table that it pays to replace their rows one by one (TBL-13)."""
    if not table.has_vectors or not seen.buckets or seen.changes > MANY_CHANGES:
        return False
    size = table.size_in_bytes()
    return size >= MIN_SPARSE_BYTES and size >= seen.changes * SPARSE_BYTES


def merged_buckets(
    table: Table, changes: DataFrame, seen: Survey, before: Bookkeeping, version: int | None = None, horizon: int | None = None
) -> DataFrame:
    """All rows of the buckets that a change touches, as of a version or now, merged with the changes: `rows_of`."""
    layout = table.layout
    partitions = max(1, len(seen.buckets)) if layout.buckets > 1 else table.spark.sparkContext.defaultParallelism
    touched = F.col(BUCKET).isin(*seen.buckets)
    known = _known_by(_pivoted(changes, layout, seen), layout, seen, partitions)
    if table.has_graveyard(before):
        known = joined(known, known_by_graveyard(table.graveyard(before).where(touched), layout, partitions), layout, "left")
    known = joined(known, known_by_rows(table.rows(version).where(touched), layout, partitions), layout, "full")
    return rows_of(known, layout, with_rest=before.with_rest or seen.with_rest, horizon=horizon)


def merged_rows(
    table: Table, changes: DataFrame, seen: Survey, before: Bookkeeping, version: int, horizon: int | None = None
) -> tuple[DataFrame, DataFrame]:
    """The rows that a change touches, merged with the changes: `rows_of`; and the places in the table of those that are there.

    The table is read once, and of its columns only the keys, where the changes alone tell what becomes of a row.
    """
    layout = table.layout
    known, touched = _touched(table, _pivoted(changes, layout, seen), seen)
    is_said = seen.says_all(before)
    rows = table.rows(version).selectExpr(*([BUCKET, *layout.keys] if is_said else ["*"]), *PLACE)
    old = looked_up(rows, touched, layout, "left_semi", seen.changes).localCheckpoint()
    if not is_said:
        known = _with_memory(table, known, touched, old, before, seen)
    return rows_of(known, layout, with_rest=before.with_rest or seen.with_rest, horizon=horizon), old.select(FILE, ROW)


def merged_view(
    table: Table, changes: DataFrame, seen: Survey, before: Bookkeeping, version: int, pivoted: DataFrame | None = None
) -> DataFrame:
    """The rows that readers would see, were the changes applied; nothing is written. `version` is that of the commit `before`, `pivoted`
    of a `glance`.

    Rows that no change touches are passed on as they are, if few changes make it worth to look for them.
    """
    layout, shown = table.layout, table.layout.shown
    if seen.changes > MANY_CHANGES:
        others = table.rows(version).where(~F.col(BUCKET).isin(*seen.buckets))
        return merged_buckets(table, changes, seen, before, version).where("_exists").selectExpr(*shown).union(others.selectExpr(*shown))
    rows = table.rows(version)
    if layout.registered and seen.goes_on_top(before):
        pivoted = pivoted or _pivoted(changes, layout, seen).localCheckpoint()
        return overlaid(rows, pivoted, layout, _tasks(table, seen), seen.changes, all_whole=seen.all_whole)
    known, touched = _touched(table, pivoted or _pivoted(changes, layout, seen), seen)
    others = looked_up(rows.selectExpr(*shown, BUCKET), touched, layout, "left_anti", seen.changes).selectExpr(*shown)
    old = looked_up(rows, touched, layout, "left_semi", seen.changes)
    known = _with_memory(table, known, touched, old, before, seen)
    merged = rows_of(known, layout, with_rest=before.with_rest or seen.with_rest)
    return others.union(merged.where("_exists").selectExpr(*shown))


def _tasks(table: Table, seen: Survey) -> int:
    """In how many tasks few changes are worked on: for each, starting it takes longer than its work."""
    most = len(seen.buckets) if table.layout.buckets > 1 else 1 + seen.changes // CHANGES_PER_TASK
    return max(1, min(most, table.spark.sparkContext.defaultParallelism))


def _touched(table: Table, pivoted: DataFrame, seen: Survey) -> tuple[Known, DataFrame]:
    """What the changes say, and the keys and buckets of their rows."""
    known = _known_by(pivoted, table.layout, seen, _tasks(table, seen))
    known = replace(known, frame=known.frame.localCheckpoint())
    return known, known.frame.select(BUCKET, *table.layout.keys)


def _with_memory(table: Table, known: Known, touched: DataFrame, old: DataFrame, before: Bookkeeping, seen: Survey) -> Known:
    """With what the graveyard remembers of the touched rows, and with the `old` ones."""
    layout, partitions = table.layout, _tasks(table, seen)
    if table.has_graveyard(before):
        buried = looked_up(table.graveyard(before), touched, layout, "left_semi", seen.changes)
        known = joined(known, known_by_graveyard(buried, layout, partitions), layout, "left")
    return joined(known, known_by_rows(old, layout, partitions), layout, "full")


def _pivoted(changes: DataFrame, layout: Layout, seen: Survey) -> DataFrame:
    return pivot(changes, layout, all_plain=seen.all_plain)


def _known_by(pivoted: DataFrame, layout: Layout, seen: Survey, partitions: int) -> Known:
    return known_by_changes(pivoted, layout, partitions, all_whole=seen.all_whole, with_rest=seen.with_rest)
