"""Changes and what is known of their rows, merged: in whole buckets or row by row (TBL-13, TBL-16)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from connector.spark.apply.broadcast import looked_up
from connector.spark.apply.kept import Keep
from connector.spark.apply.lww_merge import Known, joined, known_by_changes, known_by_graveyard, known_by_rows, rows_of
from connector.spark.apply.merge_on_read import overlaid
from connector.spark.apply.statistics import Survey
from connector.spark.storage.deletion_vectors import FILE, PLACE, ROW
from connector.spark.storage.files import Files
from connector.spark.storage.layout import Layout
from connector.spark.storage.table import Table
from connector.state.table_state import Bookkeeping
from connector.tables.column_names import BUCKET

MANY_CHANGES: Final = 1_000_000
"""Keys of more changes are not sent to every task."""
SPARSE_BYTES: Final = 250
"""With fewer changes than one for so many bytes of a table, its rows are replaced one by one: about one row in five."""
MIN_SPARSE_BYTES: Final = 1_000_000
"""A smaller table is written anew as quickly, and stays a few files."""
CHANGES_PER_TASK: Final = 20_000
"""So many changes of a table in one bucket are merged by one task: further ones would take longer to start than to work."""


def is_sparse(table: Table, seen: Survey) -> bool:
    """Whether so few changes touch so large a table that it pays to replace their rows one by one (TBL-13)."""
    if not table.has_vectors or not seen.buckets or seen.changes > MANY_CHANGES:
        return False
    size = table.size_in_bytes()
    return size >= MIN_SPARSE_BYTES and size >= seen.changes * SPARSE_BYTES


def merged_buckets(
    table: Table, pivoted: DataFrame, seen: Survey, before: Bookkeeping, version: int | None = None, horizon: int | None = None
) -> DataFrame:
    """All rows of the buckets that a change touches, as of a version or now, merged with the changes: `rows_of`.

    `pivoted` are the changes of the `Survey`, as `pivot` has them.
    """
    layout = table.layout
    partitions = max(1, len(seen.buckets)) if layout.buckets > 1 else table.spark.sparkContext.defaultParallelism
    touched = F.col(BUCKET).isin(*seen.buckets)
    known = _known_by(pivoted, layout, seen, partitions)
    if table.has_graveyard(before):
        known = joined(known, known_by_graveyard(table.graveyard(before).where(touched), layout, partitions), layout, "left")
    known = joined(known, known_by_rows(table.rows(version).where(touched), layout, partitions), layout, "full")
    return rows_of(known, layout, with_rest=before.with_rest or seen.with_rest, horizon=horizon)


def merged_rows(
    table: Table,
    pivoted: DataFrame,
    seen: Survey,
    before: Bookkeeping,
    version: int,
    keep: Keep,
    *,
    files: Files | None = None,
    horizon: int | None = None,
) -> tuple[DataFrame, DataFrame]:
    """The rows that a change touches, merged with the changes: `rows_of`; and the places in the table of those that are there.

    `files` are those of the version, if they are known. They are read once, and of their columns only the keys, where the changes alone
    tell what becomes of a row.
    """
    layout, is_said, tasks = table.layout, seen.says_all(before), _tasks(table, seen)
    rows = files.rows() if files else table.rows(version)
    rows = rows.selectExpr(*([BUCKET, *layout.keys] if is_said else ["*"]), *PLACE)
    remembers = not is_said and table.has_graveyard(before)
    if remembers:
        rows = rows.unionByName(table.graveyard(before), allowMissingColumns=True)
    found = keep(looked_up(rows, pivoted.select(BUCKET, *layout.keys), layout, "left_semi", seen.changes), eager=True)
    # What is worked on by one task need not be exchanged.
    partitions, (pivoted, found) = (None, (pivoted.coalesce(1), found.coalesce(1))) if tasks == 1 else (tasks, (pivoted, found))
    old = found.where(f"{FILE} IS NOT NULL")
    known = _known_by(pivoted, layout, seen, partitions)
    if not is_said:
        buried = found.where(f"{FILE} IS NULL") if remembers else None
        known = _with_memory(known, buried, old, layout, partitions)
    return rows_of(known, layout, with_rest=before.with_rest or seen.with_rest, horizon=horizon), old.select(FILE, ROW)


def merged_view(table: Table, pivoted: DataFrame, seen: Survey, before: Bookkeeping, version: int, keep: Keep) -> DataFrame:
    """The rows that readers would see, were the changes applied; nothing is written. `version` is that of the commit `before`, `pivoted`
    are the changes of the `Survey`, as `pivot` has them.

    Rows that no change touches are passed on as they are, if few changes make it worth to look for them.
    """
    layout, shown = table.layout, table.layout.shown
    if seen.changes > MANY_CHANGES:
        others = table.rows(version).where(~F.col(BUCKET).isin(*seen.buckets))
        return merged_buckets(table, pivoted, seen, before, version).where("_exists").selectExpr(*shown).union(others.selectExpr(*shown))
    rows, tasks = table.rows(version), _tasks(table, seen)
    if layout.registered and seen.goes_on_top(before):
        return overlaid(rows, pivoted, layout, tasks, seen.changes, all_whole=seen.all_whole)
    known = _known_by(pivoted, layout, seen, tasks)
    known = replace(known, frame=keep(known.frame))
    touched = known.frame.select(BUCKET, *layout.keys)
    others = looked_up(rows.selectExpr(*shown, BUCKET), touched, layout, "left_anti", seen.changes).selectExpr(*shown)
    old = looked_up(rows, touched, layout, "left_semi", seen.changes)
    buried = looked_up(table.graveyard(before), touched, layout, "left_semi", seen.changes) if table.has_graveyard(before) else None
    merged = rows_of(_with_memory(known, buried, old, layout, tasks), layout, with_rest=before.with_rest or seen.with_rest)
    return others.union(merged.where("_exists").selectExpr(*shown))


def _tasks(table: Table, seen: Survey) -> int:
    """In how many tasks few changes are worked on: for each, starting it takes longer than its work."""
    most = len(seen.buckets) if table.layout.buckets > 1 else 1 + seen.changes // CHANGES_PER_TASK
    return max(1, min(most, table.spark.sparkContext.defaultParallelism))


def _with_memory(known: Known, buried: DataFrame | None, old: DataFrame, layout: Layout, partitions: int | None) -> Known:
    """With what the graveyard remembers of the touched rows, and with the `old` ones."""
    if buried is not None:
        known = joined(known, known_by_graveyard(buried, layout, partitions), layout, "left")
    return joined(known, known_by_rows(old, layout, partitions), layout, "full")


def _known_by(pivoted: DataFrame, layout: Layout, seen: Survey, partitions: int | None) -> Known:
    return known_by_changes(pivoted, layout, partitions, all_whole=seen.all_whole, with_rest=seen.with_rest)
