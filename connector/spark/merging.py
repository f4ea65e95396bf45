"""Changes and what is known of their rows, merged: in whole buckets or row by row (TBL-13, TBL-16)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from connector.bookkeeping import Bookkeeping
from connector.errors import TableError
from connector.spark.changelog import LoggedBatch
from connector.spark.deletion_vectors import FILE, PLACE, ROW
from connector.spark.files import Files
from connector.spark.kept import Keep, keep_nothing
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


def unapplied(
    before: Bookkeeping, batch: str = "ingest_batch", committed: str = "unix_micros(commit_timestamp)", place: str = "kafka_partition"
) -> str:
    """Of the changes since the last batch of which nothing is held back, whether the table does not hold one yet, as SQL over these."""
    if before.complete_below is None or before.complete_to_batch == before.to_batch:
        return "true"
    return f"({batch} > {constant(before.to_batch, place)} OR {committed} >= {constant(before.complete_below, place)})"


def survey(changes: DataFrame, layout: Layout, before: Bookkeeping) -> Survey:
    """Look at all changes, quickly if all are plain. What one look tells is in `glance`."""
    return glance(changes, layout, before).seen


class Glance(NamedTuple):
    """What one look at changes tells: a `Survey` of those that are to be merged, as `pivot` has them, and `held_from`, the oldest batch
    of which something is held back, None if nothing is.
    """

    seen: Survey
    pivoted: DataFrame
    held_from: int | None


def glance(
    changes: DataFrame, layout: Layout, before: Bookkeeping, keep: Keep = keep_nothing, *, is_new: str = "true", is_held: str = "false"
) -> Glance:
    """Look at changes once, or twice where not all are plain; `keep` may store them as `pivot` has them as the look passes.

    `is_new` and `is_held` are conditions on `_committed` and `_batch` of `pivot`: what is new and not held is to be merged.

    Only a change that leaves no cell behind can take its row out of the table, or one that is not newer than everything merged
    before: if the newest change of a row leaves a cell, and nothing known of the row is newer, the row exists. What is newer is only
    known in a table ordered by commit.
    """
    counts = f"({is_new}) AND NOT ({is_held})"
    found = None
    for all_plain in (True, False) if layout.registered else (False,):
        pivoted = keep(pivot(changes, layout, all_plain=all_plain))
        seen, held_from = _surveyed(pivoted, layout, before, counts, is_held)
        found = Glance(seen, pivoted.where(counts), held_from)
        if found.seen.all_plain:
            break
    assert found is not None
    return found


def _surveyed(pivoted: DataFrame, layout: Layout, before: Bookkeeping, counts: str, is_held: str) -> tuple[Survey, int | None]:
    """What `pivoted` tells of the changes that count, and the oldest batch of one that is held."""
    good, highest = f"({counts}) AND NOT _unreadable", constant(before.highest_applied, "_partition")
    may_be_older = f"_committed <= {highest}" if layout.definition.order is OrderBy.COMMIT else "true"
    seen = [
        F.expr(f"count_if({counts})").alias("changes"),
        F.expr(f"count_if(({counts}) AND _unreadable)").alias("unreadable"),
        F.expr(f"count_if({good} AND (_may_remove OR {may_be_older}))").alias("may_remove"),
        F.expr(f"count_if({good} AND _rest IS NOT NULL) > 0").alias("with_rest"),
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
    return Survey(**{**told, "buckets": tuple(told["buckets"])}), held_from


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
