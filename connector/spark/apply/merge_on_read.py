"""Changes that are all newer than what was merged into a table, and fill no `rest`, laid over its rows (TBL-16).

Of what the table knows of a row only the values matter then, so its hidden state is not read. Nearly every changed row has one
change, which tells at once what it says of each column; only those of a row with several are sorted and merged.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame

from connector.spark.apply.broadcast import broadcast_join
from connector.spark.apply.lww_merge import registers_of_changes, said_of_columns
from connector.spark.storage.layout import Layout
from connector.tables.column_names import BUCKET, UNMAPPED

_HAS_PLACE: Final = f"coalesce(_other_partition, _other_offset, {BUCKET}) IS NOT NULL"
"""True of every change. A lookup that asks for the same columns as another one shares what was sent to the tasks for that."""
IN_ONE_TASK: Final = 250_000
"""Among so many changes one task finds and merges those of a row sooner than several can exchange them."""


def merged_on_read(rows: DataFrame, pivoted: DataFrame, layout: Layout, partitions: int, count: int, *, all_whole: bool) -> DataFrame:
    """What readers see of a table's `rows` with `count` changes, `pivoted`, laid over them. `all_whole`: every change is `_whole`."""
    keys = [BUCKET, *layout.keys]
    visible = rows.selectExpr(*layout.shown, BUCKET)
    places = pivoted.selectExpr(*keys, "_partition AS _other_partition", "_offset AS _other_offset")
    said = _said_by_changes(pivoted, places, layout, partitions, count, all_whole=all_whole)
    if all_whole:
        others, new = broadcast_join(visible, places, layout, "left_anti", count, also=_HAS_PLACE), said
    else:
        # Queries of their own: with each step of one, Delta looks again for the files of all tables in it.
        said = said.localCheckpoint(eager=False)
        there = broadcast_join(rows.selectExpr(*keys), said.selectExpr(*keys), layout, "left_semi", count).localCheckpoint(eager=False)
        others, new = _with_said(visible, said, layout, count), broadcast_join(said, there, layout, "left_anti", count)
    return others.selectExpr(*layout.shown).union(_rows_of(new, layout).selectExpr(*layout.shown))


def _with_said(rows: DataFrame, said: DataFrame, layout: Layout, count: int) -> DataFrame:
    """The rows with what is `said` of them; one of which nothing is left is gone (MRG-7)."""
    values = {column.name: f"CASE WHEN _says{n} THEN _said{n} ELSE `{column.name}` END" for n, column in enumerate(layout.columns)}
    exists = " OR ".join(["_says0 IS NULL", *(f"{value} IS NOT NULL" for value in values.values())])
    shown = [f"{values.get(name, f'`{name}`')} AS `{name}`" for name in rows.columns]
    return broadcast_join(rows, said, layout, "left", count).where(exists).selectExpr(*shown)


def _rows_of(said: DataFrame, layout: Layout) -> DataFrame:
    """The rows of which nothing is known but what is `said`."""
    columns = [f"_said{n} AS `{column.name}`" for n, column in enumerate(layout.columns)]
    exists = " OR ".join(f"_said{n} IS NOT NULL" for n in layout.registers)
    return said.where(exists).selectExpr(*layout.keys, *columns, f"cast(null AS map<string, binary>) AS {UNMAPPED}")


def _said_by_changes(pivoted: DataFrame, places: DataFrame, layout: Layout, partitions: int, count: int, *, all_whole: bool) -> DataFrame:
    """What changes say: `said_of_columns`. `places` are those of the same changes."""
    # Copies of one replay have one order, but each has a place of its own in the topic.
    is_another = "(_partition <> _other_partition OR _offset <> _other_offset)"
    one, several = (broadcast_join(pivoted, places, layout, how, count, also=is_another) for how in ("left_anti", "left_semi"))
    several, shuffled = (several.coalesce(1), None) if count <= IN_ONE_TASK else (several, partitions)
    known = registers_of_changes(several, layout, shuffled, all_whole=all_whole, has_residual=False)
    return _said_by_one(one, layout).union(said_of_columns(known, layout))


def _said_by_one(pivoted: DataFrame, layout: Layout) -> DataFrame:
    """What changes say each of which is the only one of its row that counts: `said_of_columns`."""
    deletions = [f"_d{layout.families.index(column.family)}" for column in layout.registered]
    says = [f"(_i{n} IS NOT NULL OR {deletion} IS NOT NULL) AS _says{n}" for n, deletion in enumerate(deletions)]
    said = [f"CASE WHEN {deletion} IS NULL OR {deletion} < _i{n} THEN _v{n} END AS _said{n}" for n, deletion in enumerate(deletions)]
    return pivoted.selectExpr(BUCKET, *layout.keys, *says, *said)
