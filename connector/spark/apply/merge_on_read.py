"""Merges changes with a table's rows for a read, if they are all newer and have no residual
(TBL-16).

In this case, only the visible values of a row matter, so its hidden state is not read. Nearly every
changed row has one change, and its registers are known at once. Only rows with several changes are
sorted and merged.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame

from connector.spark.apply.frames import broadcast_join
from connector.spark.apply.lww_merge import registers_of_changes, said_of_columns
from connector.spark.storage.layout import Layout
from connector.tables.column_names import BUCKET, UNMAPPED

_HAS_PLACE: Final = f"coalesce(_other_partition, _other_offset, {BUCKET}) IS NOT NULL"
"""True for every change. A join that asks for the same columns as another one shares its broadcast
data.
"""
IN_ONE_TASK: Final = 250_000
"""Up to this many changes, one task merges the changes of a row faster than several tasks can
exchange them.
"""


def merged_on_read(
    rows: DataFrame,
    pivoted: DataFrame,
    layout: Layout,
    partitions: int,
    count: int,
    *,
    all_whole: bool,
) -> DataFrame:
    """The rows that readers see: the table's `rows` merged with `count` changes, `pivoted`.

    `all_whole`: every change is `_whole`.
    """
    keys = [BUCKET, *layout.keys]
    visible = rows.selectExpr(*layout.shown, BUCKET)
    places = pivoted.selectExpr(*keys, "_partition AS _other_partition", "_offset AS _other_offset")
    said = _said_by_changes(pivoted, places, layout, partitions, count, all_whole=all_whole)
    if all_whole:
        others = broadcast_join(visible, places, layout, "left_anti", count, also=_HAS_PLACE)
        new = said
    else:
        # These are separate queries. In one query, each step would make Delta list the files of all
        # its tables again.
        said = said.localCheckpoint(eager=False)
        there = broadcast_join(
            rows.selectExpr(*keys), said.selectExpr(*keys), layout, "left_semi", count
        ).localCheckpoint(eager=False)
        others = _with_said(visible, said, layout, count)
        new = broadcast_join(said, there, layout, "left_anti", count)
    return others.selectExpr(*layout.shown).union(_rows_of(new, layout).selectExpr(*layout.shown))


def _with_said(rows: DataFrame, said: DataFrame, layout: Layout, count: int) -> DataFrame:
    """The rows with the values in `said`. A row without any value is removed (MRG-7)."""
    values = {
        column.name: f"CASE WHEN _says{n} THEN _said{n} ELSE `{column.name}` END"
        for n, column in enumerate(layout.columns)
    }
    exists = " OR ".join(["_says0 IS NULL", *(f"{value} IS NOT NULL" for value in values.values())])
    shown = [f"{values.get(name, f'`{name}`')} AS `{name}`" for name in rows.columns]
    return broadcast_join(rows, said, layout, "left", count).where(exists).selectExpr(*shown)


def _rows_of(said: DataFrame, layout: Layout) -> DataFrame:
    """The new rows, of which only the values in `said` are known."""
    columns = [f"_said{n} AS `{column.name}`" for n, column in enumerate(layout.columns)]
    exists = " OR ".join(f"_said{n} IS NOT NULL" for n in layout.registers)
    return said.where(exists).selectExpr(
        *layout.keys, *columns, f"cast(null AS map<string, binary>) AS {UNMAPPED}"
    )


def _said_by_changes(
    pivoted: DataFrame,
    places: DataFrame,
    layout: Layout,
    partitions: int,
    count: int,
    *,
    all_whole: bool,
) -> DataFrame:
    """The values that the changes write: `said_of_columns`. `places` are the coordinates of the
    same changes.
    """
    # Copies of one replay have the same order, but each one has its own offset in the topic.
    is_another = "(_partition <> _other_partition OR _offset <> _other_offset)"
    one, several = (
        broadcast_join(pivoted, places, layout, how, count, also=is_another)
        for how in ("left_anti", "left_semi")
    )
    several, shuffled = (
        (several.coalesce(1), None) if count <= IN_ONE_TASK else (several, partitions)
    )
    known = registers_of_changes(several, layout, shuffled, all_whole=all_whole, has_residual=False)
    return _said_by_one(one, layout).union(said_of_columns(known, layout))


def _said_by_one(pivoted: DataFrame, layout: Layout) -> DataFrame:
    """The values of changes that are each the only one of its row: `said_of_columns`."""
    deletions = [f"_d{layout.families.index(column.family)}" for column in layout.registered]
    says = [
        f"(_i{n} IS NOT NULL OR {deletion} IS NOT NULL) AS _says{n}"
        for n, deletion in enumerate(deletions)
    ]
    said = [
        f"CASE WHEN {deletion} IS NULL OR {deletion} < _i{n} THEN _v{n} END AS _said{n}"
        for n, deletion in enumerate(deletions)
    ]
    return pivoted.selectExpr(BUCKET, *layout.keys, *says, *said)
