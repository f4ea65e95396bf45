"""A table that begins as a copy of another one, its *base* (EVO-9).

The copy has the rows, the state of their cells, the unmapped cells, the deletes and the horizon of
one version of the base. So a late change meets the same state as in the base, and the changelog is
needed only for what the base lacks. The copy is one commit, and does not count before it. Later
applies add what the base lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from connector import warehouse as paths
from connector.config.settings import ConnectorConfig
from connector.errors.tables import base_behind, base_unfit
from connector.spark.apply.flatten import is_of
from connector.spark.apply.lww_merge import (
    RowRegisters,
    combine,
    element_with,
    is_deletion_of,
    is_held_by,
    is_write_of,
    merged_registers,
    register_of_element,
    rows_of,
    stored_registers,
)
from connector.spark.apply.rebuild import Rebuilt, Successor, misfits_of, open_successor
from connector.spark.failures import applying
from connector.spark.sql import spark_type
from connector.spark.storage.bases import faults_of
from connector.spark.storage.changelog import Changelog
from connector.spark.storage.delta_log import DeltaLog
from connector.spark.storage.layout import Layout, nothing
from connector.spark.storage.table import Table
from connector.state.table_state import TableState
from connector.tables.column_names import BUCKET, STATE
from connector.tables.definition import Column, TableDefinition
from connector.tables.stored_definition import families_of


def copy_base(
    spark: SparkSession,
    path: str,
    definition: TableDefinition,
    *,
    on_step: Callable[[str], None] = lambda step: None,
) -> Rebuilt:
    """Replace the table at `path` by a copy of the table that `definition.start_from` names, in one
    commit.

    Raises `TableError` if the base does not qualify, or lacks changes that the table has, and
    `WriterConflictError` if another process commits to the table meanwhile. The table is then
    unchanged.
    """
    base = definition.start_from
    with applying(definition.name):
        source = Table.existing(spark, _neighbour(path, base))
        version, of_base = source.newest()
        if faults := faults_of(source, definition):
            raise base_unfit(definition.name, base, "; ".join(faults))
        buckets = min(definition.buckets, source.layout.buckets)
        made = replace(definition, buckets=buckets)
        table = open_successor(spark, path, made, of_base.to_batch, source.layout)
        if not _has_all(of_base, table.before):
            raise base_behind(definition.name, base)
        rows = _rows_of_base(source, version, of_base, table.layout)
        after = _copy(table, rows, of_base)
        on_step("base read")
        table.commit(rows.where("_exists"), (), after)
        on_step("table committed")
        return Rebuilt(table.before, table.table_state(), table.layout, 0, 0, misfits_of(table))


def is_to_start(table: Table, definition: TableDefinition, changelog: Changelog) -> bool:
    """Whether a table is new and begins as a copy of its base. If nothing was applied to the base
    yet, both are made from the changelog, as long as it is complete. Raises `TableError`.
    """
    if not definition.start_from or table.table_state().apply_number:
        return False
    base = _neighbour(table.folder, definition.start_from)
    return _is_trimmed(changelog) or _was_applied(table.spark, base)


def check_start(
    spark: SparkSession, config: ConnectorConfig, definition: TableDefinition, changelog: Changelog
) -> None:
    """Raise `TableError` if a table that does not exist yet cannot begin as its base. A base that
    is a copy itself, and does not exist yet, is checked alone.
    """
    if not (base := definition.start_from):
        return
    folder, of_base = (
        paths.table_folder(config.warehouse, name) for name in (definition.name, base)
    )
    if DeltaLog(spark, paths.data(folder)).newest() is not None:
        return
    is_copy = base in config.tables and config.tables[base].start_from
    if not _was_applied(spark, of_base) and (is_copy or not _is_trimmed(changelog)):
        return
    if faults := faults_of(Table.existing(spark, of_base), definition):
        raise base_unfit(definition.name, base, "; ".join(faults))


def _is_trimmed(changelog: Changelog) -> bool:
    newest = changelog.newest()
    return newest is not None and bool(newest.trimmed_to)


def _was_applied(spark: SparkSession, path: str) -> bool:
    commit = DeltaLog(spark, paths.data(path)).newest_of_lowmark()
    return bool(commit and commit.stored and commit.stored.get("apply_number"))


def _neighbour(path: str, name: str) -> str:
    return f"{path.rpartition('/')[0]}/{name}"


def _has_all(of_base: TableState, before: TableState) -> bool:
    """Whether the base has every change that the table has."""
    return (
        of_base.complete_to_batch >= before.complete_to_batch
        and (of_base.apply_watermark or 0) >= (before.apply_watermark or 0)
        and of_base.to_batch >= before.to_batch
    )


def _copy(table: Successor, rows: DataFrame, of_base: TableState) -> TableState:
    """Write the tombstones, and return the state of the copy."""
    begun = table.table_state()
    apply = begun.apply_number + 1
    has_tombstones = table.add_tombstones(rows.where("NOT _exists"), begun, attempt=begun.rebuild)
    names = {column.name for column in table.layout.columns}
    return replace(
        of_base,
        apply_number=apply,
        attempt_id=begun.rebuild,
        rebuild=begun.rebuild,
        vacuumed_to=begun.vacuumed_to,
        has_tombstones=has_tombstones,
        attempt_ids={apply: begun.rebuild} if has_tombstones else {},
        misfits={name: count for name, count in of_base.misfits.items() if name in names},
    )


def _rows_of_base(source: Table, version: int, of_base: TableState, layout: Layout) -> DataFrame:
    """The rows of the base, and its tombstones, as `rows_of` for the new table."""
    base = source.layout
    states = _registers_of_base(source.rows(version), base, layout, are_tombstones=False)
    if source.tombstones.exist(of_base):
        tombstones = source.tombstones.rows(of_base, base)
        gone = _registers_of_base(tombstones, base, layout, are_tombstones=True)
        states = combine(_merged_by_key(gone, layout), states, layout, "full")
    states = replace(states, frame=states.frame.withColumn("_changed", F.lit(True)))
    return rows_of(states, layout, has_residual=True, horizon=of_base.horizon)


def _registers_of_base(
    rows: DataFrame, base: Layout, layout: Layout, *, are_tombstones: bool
) -> RowRegisters:
    """The registers of rows, or tombstones, of a table with the layout `base`, as a table with
    another layout has them (EVO-9): what a new column shows moves out of the residual. `base`
    qualifies, see `tables.definition.base_faults`.
    """
    columns = list(enumerate(base.columns if base.registered else ()))
    shown = {
        n: nothing(spark_type(column.type)) if are_tombstones else f"`{column.name}`"
        for n, column in columns
    }
    registers, deletions = stored_registers([f"_value{n}" for n, _ in columns], base)
    by_cell = dict(zip((column.cell for column in base.registered), registers, strict=True))
    by_family = dict(zip(base.families, deletions, strict=True))
    moved = {n: column for n, column in enumerate(layout.registered) if column.cell not in by_cell}
    named = {f for f in layout.families if f not in by_family}
    frame = rows.selectExpr(
        f"int(pmod({BUCKET}, {layout.buckets})) AS {BUCKET}",
        *layout.keys,
        *(f"{value} AS _value{n}" for n, value in shown.items()),
        f"{STATE} AS _stored",
    ).selectExpr(
        "*",
        *(f"{element_with(is_write_of(column))} AS _cell{n}" for n, column in moved.items()),
        *(
            f"{element_with(is_deletion_of(family))} AS _family{n}"
            for n, family in enumerate(layout.families)
            if family in named
        ),
    )
    return RowRegisters(
        frame,
        [
            register_of_element(f"_cell{n}", column) if n in moved else by_cell[column.cell]
            for n, column in enumerate(layout.registered)
        ],
        [
            f"_family{n}.order" if family in named else by_family[family]
            for n, family in enumerate(layout.families)
        ],
        _rest_of_base(layout, moved, named),
    )


def _rest_of_base(layout: Layout, moved: Mapping[int, Column], named: Collection[str]) -> str:
    """The residual of a base without what has a register, and without what is not kept."""
    left = [is_held_by(column) for column in moved.values()]
    left += [is_deletion_of(family) for family in named]
    if not layout.definition.keep_unmapped:
        cells = (*layout.columns, layout.definition.presence)
        kept = [f"({is_of(cell, 'x')})" for cell in cells]
        if layout.registered:
            kept = [f"x.range_start IS NOT NULL AND ({' OR '.join(kept)})"]
        else:
            kept += [f"({is_deletion_of(family)})" for family in families_of(layout.definition)]
        left.append(f"NOT coalesce({' OR '.join(kept)}, false)")
    if not left:
        return "_stored.residual"
    return f"filter(_stored.residual, x -> NOT coalesce({_any(left)}, false))"


def _any(conditions: Iterable[str]) -> str:
    return " OR ".join(f"({condition})" for condition in conditions)


def _merged_by_key(states: RowRegisters, layout: Layout) -> RowRegisters:
    """The states of each row joined: the greatest registers, and all residuals."""
    keys = [BUCKET, *layout.keys]
    registers = [f"{text} AS _base_register{n}" for n, text in enumerate(states.registers)]
    deletions = [f"{text} AS _base_deletion{n}" for n, text in enumerate(states.deletions)]
    frame = states.frame.selectExpr(*keys, *registers, *deletions, f"{states.rest} AS _base_rest")
    return merged_registers(
        frame,
        [f"_base_register{n}" for n in layout.registers],
        [f"_base_deletion{n}" for n in layout.deletions],
        "_base_rest",
        layout,
        prefix="_base",
    )
