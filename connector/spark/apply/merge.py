"""Merges changes with the stored state of their rows: whole buckets, or row by row (TBL-13,
TBL-16).

Nearly every changed row has one change, whose registers are known at once. Only rows with several
changes are sorted. The hidden state of rows is not read if it cannot matter.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from connector.spark.apply.frames import Cache, broadcast_join
from connector.spark.apply.lww_merge import (
    RowRegisters,
    combine,
    registers_of_changes,
    registers_of_rows,
    registers_of_tombstones,
    rows_of,
    written_columns,
)
from connector.spark.apply.statistics import BatchStatistics, FlatChanges
from connector.spark.storage.deletion_vectors import FILE, ROW, ROW_LOCATION
from connector.spark.storage.files import Files
from connector.spark.storage.layout import Layout
from connector.spark.storage.table import Table
from connector.state.apply_level import CHANGES_PER_TASK, MANY_CHANGES, is_row_level
from connector.state.maintenance_schedule import DataFile
from connector.state.table_state import TableState
from connector.tables.column_names import BUCKET, STATE, UNMAPPED

IN_ONE_TASK: Final = 250_000
"""Up to this many changes of a read, one task merges the changes of a row faster than several tasks
can exchange them.
"""
_HAS_COORDINATES: Final = f"coalesce(_other_partition, _other_offset, {BUCKET}) IS NOT NULL"
"""True for every change. A join that asks for the same columns as another one shares its broadcast
data.
"""


def is_sparse(table: Table, statistics: BatchStatistics, files: Files | None) -> bool:
    """Whether the apply is row-level (TBL-13). `files` are those of the table, if known."""
    if not table.has_vectors or not statistics.buckets:
        return False
    buckets, touched = {str(bucket) for bucket in statistics.buckets}, None
    if files is not None:
        all_files = map(DataFile.from_action, files.actions())
        touched = [file for file in all_files if file.partition in buckets]
    return is_row_level(statistics.changes, touched)


def merged_buckets(
    table: Table,
    changes: FlatChanges,
    before: TableState,
    *,
    version: int | None = None,
    horizon: int | None = None,
) -> DataFrame:
    """All rows of the buckets that a change touches, merged with the changes: `rows_of`.

    `version` is a version of the table; None: the newest.
    """
    layout, buckets = table.layout, changes.statistics.buckets
    partitions = (
        max(1, len(buckets)) if layout.buckets > 1 else table.spark.sparkContext.defaultParallelism
    )
    is_touched = F.col(BUCKET).isin(*buckets)
    tombstones = None
    if table.tombstones.exist(before):
        tombstones = table.tombstones.rows(before, layout).where(is_touched)
    old = table.rows(version).where(is_touched)
    registers = _with_stored(
        _registers_of(changes, layout, partitions), tombstones, old, layout, partitions
    )
    return _rows(registers, changes, before, layout, horizon)


def merged_rows(
    table: Table,
    changes: FlatChanges,
    before: TableState,
    version: int,
    cache: Cache,
    *,
    files: Files | None = None,
    horizon: int | None = None,
) -> tuple[DataFrame, DataFrame]:
    """The rows that a change touches, merged with the changes (`rows_of`), and the locations of the
    old rows. `files` are those of the version, if known. They are read once, and only their key
    columns if the changes alone decide the new rows.
    """
    layout, statistics = table.layout, changes.statistics
    overwrites = statistics.overwrites_rows(before)
    rows = files.rows() if files else table.rows(version)
    rows = rows.selectExpr(*([BUCKET, *layout.keys] if overwrites else ["*"]), *ROW_LOCATION)
    has_tombstones = not overwrites and table.tombstones.exist(before)
    if has_tombstones:
        rows = rows.unionByName(table.tombstones.rows(before, layout), allowMissingColumns=True)
    keys = changes.rows.select(BUCKET, *layout.keys)
    stored = cache(broadcast_join(rows, keys, layout, "left_semi", statistics.changes), eager=True)
    partitions: int | None = _tasks(table, statistics)
    if partitions == 1:  # a single task needs no exchange
        partitions = None
        changes, stored = replace(changes, rows=changes.rows.coalesce(1)), stored.coalesce(1)
    old = stored.where(f"{FILE} IS NOT NULL")
    registers = _registers_of(changes, layout, partitions)
    if not overwrites:
        tombstones = stored.where(f"{FILE} IS NULL") if has_tombstones else None
        registers = _with_stored(registers, tombstones, old, layout, partitions)
    return _rows(registers, changes, before, layout, horizon), old.select(FILE, ROW)


def merged_view(
    table: Table, changes: FlatChanges, before: TableState, version: int, cache: Cache
) -> DataFrame:
    """The rows that readers would see if the changes were applied. Nothing is written.

    `version` is that of the commit `before`. If the changes are few, rows that no change touches
    are passed on unchanged.
    """
    layout, shown, statistics = table.layout, table.layout.shown, changes.statistics
    count, rows = statistics.changes, table.rows(version)
    if count > MANY_CHANGES:
        others = rows.where(~F.col(BUCKET).isin(*statistics.buckets))
        merged = merged_buckets(table, changes, before, version=version)
        return merged.where("_exists").selectExpr(*shown).union(others.selectExpr(*shown))
    tasks = _tasks(table, statistics)
    if layout.registered and statistics.is_all_newer(before):
        return merged_on_read(rows, changes, layout, tasks)
    registers = _registers_of(changes, layout, tasks)
    registers = replace(registers, frame=cache(registers.frame))
    touched = registers.frame.select(BUCKET, *layout.keys)
    others = broadcast_join(
        rows.selectExpr(*shown, BUCKET), touched, layout, "left_anti", count
    ).selectExpr(*shown)
    old = broadcast_join(rows, touched, layout, "left_semi", count)
    tombstones = None
    if table.tombstones.exist(before):
        all_tombstones = table.tombstones.rows(before, layout)
        tombstones = broadcast_join(all_tombstones, touched, layout, "left_semi", count)
    registers = _with_stored(registers, tombstones, old, layout, tasks)
    merged = _rows(registers, changes, before, layout)
    return others.union(merged.where("_exists").selectExpr(*shown))


def merged_on_read(
    rows: DataFrame, changes: FlatChanges, layout: Layout, partitions: int
) -> DataFrame:
    """The rows that readers see, if all changes are newer and have no residual."""
    keys, count = [BUCKET, *layout.keys], changes.statistics.changes
    visible = rows.selectExpr(*layout.shown, BUCKET)
    if changes.statistics.may_remove:
        mark = f"CASE WHEN {STATE}.mark_timestamp IS NOT NULL THEN X'' END AS _mark"
        visible = rows.selectExpr(*layout.shown, BUCKET, mark)
    coordinates = changes.rows.selectExpr(
        *keys, "_partition AS _other_partition", "_offset AS _other_offset"
    )
    written = _written_by_changes(changes, coordinates, layout, partitions)
    if changes.statistics.all_whole:
        others = broadcast_join(
            visible, coordinates, layout, "left_anti", count, also=_HAS_COORDINATES
        )
        new = written
    else:
        # These are separate queries. In one query, each step would make Delta list the files of all
        # its tables again.
        written = written.localCheckpoint(eager=False)
        existing = broadcast_join(
            rows.selectExpr(*keys), written.selectExpr(*keys), layout, "left_semi", count
        ).localCheckpoint(eager=False)
        others = _with_written(visible, written, layout, count)
        new = broadcast_join(written, existing, layout, "left_anti", count)
    return others.selectExpr(*layout.shown).union(_new_rows(new, layout).selectExpr(*layout.shown))


def _with_written(rows: DataFrame, written: DataFrame, layout: Layout, count: int) -> DataFrame:
    """The rows with the values in `written`. If they have a column `_mark`, the value of their
    presence mark, a row without a value and a mark is removed (MRG-7). Otherwise every row stays.
    """
    values = {
        column.name: f"CASE WHEN _written{n} THEN _value{n} ELSE `{column.name}` END"
        for n, column in enumerate(layout.columns)
    }
    joined = broadcast_join(rows, written, layout, "left", count)
    if "_mark" in rows.columns:
        mark = len(layout.columns)
        is_marked = f"CASE WHEN _written{mark} THEN _value{mark} ELSE _mark END IS NOT NULL"
        has_value = [f"{value} IS NOT NULL" for value in values.values()]
        joined = joined.where(" OR ".join([f"_written{mark} IS NULL", is_marked, *has_value]))
    shown = [f"{values.get(name, f'`{name}`')} AS `{name}`" for name in rows.columns]
    return joined.selectExpr(*shown)


def _new_rows(written: DataFrame, layout: Layout) -> DataFrame:
    """The new rows, of which only the values in `written` are known."""
    columns = [f"_value{n} AS `{column.name}`" for n, column in enumerate(layout.columns)]
    exists = " OR ".join(f"_value{n} IS NOT NULL" for n in layout.registers)
    return written.where(exists).selectExpr(
        *layout.keys, *columns, f"cast(null AS map<string, binary>) AS {UNMAPPED}"
    )


def _written_by_changes(
    changes: FlatChanges, coordinates: DataFrame, layout: Layout, partitions: int
) -> DataFrame:
    """The values that the changes write, as `written_columns`. `coordinates` are theirs."""
    # Copies of one replay have the same order, but each one has its own offset in the topic.
    is_another = "(_partition <> _other_partition OR _offset <> _other_offset)"
    count = changes.statistics.changes
    single, several = (
        broadcast_join(changes.rows, coordinates, layout, how, count, also=is_another)
        for how in ("left_anti", "left_semi")
    )
    several, shuffled = (
        (several.coalesce(1), None) if count <= IN_ONE_TASK else (several, partitions)
    )
    registers = _registers_of(replace(changes, rows=several), layout, shuffled)
    return _written_by_single(single, layout).union(written_columns(registers, layout))


def _written_by_single(changes: DataFrame, layout: Layout) -> DataFrame:
    """The values of changes that are each the only one of its row: `written_columns`."""
    deletions = [f"_deletion{layout.families.index(column.family)}" for column in layout.registered]
    is_written = [
        f"(_entry{n} IS NOT NULL OR {deletion} IS NOT NULL) AS _written{n}"
        for n, deletion in enumerate(deletions)
    ]
    values = [
        f"CASE WHEN {deletion} IS NULL OR {deletion} < _entry{n} THEN _typed{n} END AS _value{n}"
        for n, deletion in enumerate(deletions)
    ]
    return changes.selectExpr(BUCKET, *layout.keys, *is_written, *values)


def _tasks(table: Table, statistics: BatchStatistics) -> int:
    """The number of tasks for few changes. Starting one more would take longer than its work."""
    most = (
        len(statistics.buckets)
        if table.layout.buckets > 1
        else 1 + statistics.changes // CHANGES_PER_TASK
    )
    return max(1, min(most, table.spark.sparkContext.defaultParallelism))


def _registers_of(changes: FlatChanges, layout: Layout, partitions: int | None) -> RowRegisters:
    statistics = changes.statistics
    return registers_of_changes(
        changes.rows,
        layout,
        partitions,
        all_whole=statistics.all_whole,
        has_residual=statistics.has_residual,
    )


def _with_stored(
    registers: RowRegisters,
    tombstones: DataFrame | None,
    old: DataFrame,
    layout: Layout,
    partitions: int | None,
) -> RowRegisters:
    """Merge with the tombstones of the touched rows, and with the `old` rows."""
    if tombstones is not None:
        of_tombstones = registers_of_tombstones(tombstones, layout, partitions)
        registers = combine(registers, of_tombstones, layout, "left")
    return combine(registers, registers_of_rows(old, layout, partitions), layout, "full")


def _rows(
    registers: RowRegisters,
    changes: FlatChanges,
    before: TableState,
    layout: Layout,
    horizon: int | None = None,
) -> DataFrame:
    has_residual = before.has_residual or changes.statistics.has_residual
    return rows_of(registers, layout, has_residual=has_residual, horizon=horizon)
