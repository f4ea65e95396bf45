"""Merges changes with the stored state of their rows: whole buckets, or row by row (TBL-13,
TBL-16).
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from connector.spark.apply.frames import Keep, broadcast_join
from connector.spark.apply.lww_merge import (
    RowRegisters,
    combine,
    registers_of_changes,
    registers_of_rows,
    registers_of_tombstones,
    rows_of,
)
from connector.spark.apply.merge_on_read import merged_on_read
from connector.spark.apply.statistics import BatchStatistics
from connector.spark.storage.deletion_vectors import FILE, ROW, ROW_LOCATION
from connector.spark.storage.files import Files
from connector.spark.storage.layout import Layout
from connector.spark.storage.table import Table
from connector.state.apply_level import CHANGES_PER_TASK, MANY_CHANGES, is_row_level
from connector.state.maintenance_schedule import DataFile
from connector.state.table_state import TableState
from connector.tables.column_names import BUCKET


def is_sparse(table: Table, seen: BatchStatistics, files: Files | None) -> bool:
    """Whether the apply is row-level (TBL-13). `files` are those of the table, if they are
    known.
    """
    if not table.has_vectors or not seen.buckets:
        return False
    buckets = {str(bucket) for bucket in seen.buckets}
    touched = None
    if files is not None:
        known = map(DataFile.of, files.actions())
        touched = [file for file in known if file.partition in buckets]
    return is_row_level(seen.changes, touched)


def merged_buckets(
    table: Table,
    pivoted: DataFrame,
    seen: BatchStatistics,
    before: TableState,
    version: int | None = None,
    horizon: int | None = None,
) -> DataFrame:
    """All rows of the buckets that a change touches, merged with the changes: `rows_of`.

    `version` is a version of the table; None: the newest. `pivoted` are the changes of the
    `BatchStatistics`, from `flatten_entries`.
    """
    layout = table.layout
    partitions = (
        max(1, len(seen.buckets))
        if layout.buckets > 1
        else table.spark.sparkContext.defaultParallelism
    )
    touched = F.col(BUCKET).isin(*seen.buckets)
    known = _known_by(pivoted, layout, seen, partitions)
    if table.tombstones.exist(before):
        buried = table.tombstones.rows(before, layout).where(touched)
        known = combine(known, registers_of_tombstones(buried, layout, partitions), layout, "left")
    known = combine(
        known,
        registers_of_rows(table.rows(version).where(touched), layout, partitions),
        layout,
        "full",
    )
    return rows_of(
        known, layout, has_residual=before.has_residual or seen.has_residual, horizon=horizon
    )


def merged_rows(
    table: Table,
    pivoted: DataFrame,
    seen: BatchStatistics,
    before: TableState,
    version: int,
    keep: Keep,
    *,
    files: Files | None = None,
    horizon: int | None = None,
) -> tuple[DataFrame, DataFrame]:
    """The rows that a change touches, merged with the changes (`rows_of`), and the locations of the
    old rows.

    `files` are the files of the version, if they are known. They are read once. If the changes
    alone decide the new rows, only the key columns are read.
    """
    layout, is_said, tasks = table.layout, seen.overwrites_rows(before), _tasks(table, seen)
    rows = files.rows() if files else table.rows(version)
    rows = rows.selectExpr(*([BUCKET, *layout.keys] if is_said else ["*"]), *ROW_LOCATION)
    remembers = not is_said and table.tombstones.exist(before)
    if remembers:
        rows = rows.unionByName(table.tombstones.rows(before, layout), allowMissingColumns=True)
    found = keep(
        broadcast_join(
            rows, pivoted.select(BUCKET, *layout.keys), layout, "left_semi", seen.changes
        ),
        eager=True,
    )
    # A single task needs no exchange.
    partitions, (pivoted, found) = (
        (None, (pivoted.coalesce(1), found.coalesce(1)))
        if tasks == 1
        else (tasks, (pivoted, found))
    )
    old = found.where(f"{FILE} IS NOT NULL")
    known = _known_by(pivoted, layout, seen, partitions)
    if not is_said:
        buried = found.where(f"{FILE} IS NULL") if remembers else None
        known = _with_memory(known, buried, old, layout, partitions)
    return rows_of(
        known, layout, has_residual=before.has_residual or seen.has_residual, horizon=horizon
    ), old.select(FILE, ROW)


def merged_view(
    table: Table,
    pivoted: DataFrame,
    seen: BatchStatistics,
    before: TableState,
    version: int,
    keep: Keep,
) -> DataFrame:
    """The rows that readers would see if the changes were applied. Nothing is written.

    `version` is that of the commit `before`. `pivoted` are the changes of the `BatchStatistics`,
    from `flatten_entries`. If the changes are few, rows that no change touches are passed on
    unchanged.
    """
    layout, shown = table.layout, table.layout.shown
    if seen.changes > MANY_CHANGES:
        others = table.rows(version).where(~F.col(BUCKET).isin(*seen.buckets))
        return (
            merged_buckets(table, pivoted, seen, before, version)
            .where("_exists")
            .selectExpr(*shown)
            .union(others.selectExpr(*shown))
        )
    rows, tasks = table.rows(version), _tasks(table, seen)
    if layout.registered and seen.is_all_newer(before):
        return merged_on_read(rows, pivoted, layout, tasks, seen.changes, all_whole=seen.all_whole)
    known = _known_by(pivoted, layout, seen, tasks)
    known = replace(known, frame=keep(known.frame))
    touched = known.frame.select(BUCKET, *layout.keys)
    others = broadcast_join(
        rows.selectExpr(*shown, BUCKET), touched, layout, "left_anti", seen.changes
    ).selectExpr(*shown)
    old = broadcast_join(rows, touched, layout, "left_semi", seen.changes)
    buried = None
    if table.tombstones.exist(before):
        tombstones = table.tombstones.rows(before, layout)
        buried = broadcast_join(tombstones, touched, layout, "left_semi", seen.changes)
    merged = rows_of(
        _with_memory(known, buried, old, layout, tasks),
        layout,
        has_residual=before.has_residual or seen.has_residual,
    )
    return others.union(merged.where("_exists").selectExpr(*shown))


def _tasks(table: Table, seen: BatchStatistics) -> int:
    """The number of tasks for few changes. Starting one more task would take longer than its
    work.
    """
    most = len(seen.buckets) if table.layout.buckets > 1 else 1 + seen.changes // CHANGES_PER_TASK
    return max(1, min(most, table.spark.sparkContext.defaultParallelism))


def _with_memory(
    known: RowRegisters,
    buried: DataFrame | None,
    old: DataFrame,
    layout: Layout,
    partitions: int | None,
) -> RowRegisters:
    """Merge with the tombstones of the touched rows, and with the `old` rows."""
    if buried is not None:
        known = combine(known, registers_of_tombstones(buried, layout, partitions), layout, "left")
    return combine(known, registers_of_rows(old, layout, partitions), layout, "full")


def _known_by(
    pivoted: DataFrame, layout: Layout, seen: BatchStatistics, partitions: int | None
) -> RowRegisters:
    return registers_of_changes(
        pivoted, layout, partitions, all_whole=seen.all_whole, has_residual=seen.has_residual
    )
