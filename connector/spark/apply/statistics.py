"""Statistics of the changes of an apply: how many, of which buckets, of which order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from connector.errors.changelog import changelog_trimmed
from connector.records.ordering import OrderBy
from connector.spark.apply.flatten import flatten_entries
from connector.spark.apply.frames import Cache, uncached
from connector.spark.sql import constant
from connector.spark.storage.bases import bases_of
from connector.spark.storage.layout import Layout
from connector.spark.storage.logged_batch import LoggedBatch
from connector.spark.storage.table import Table
from connector.state.table_state import TableState
from connector.tables.column_names import BUCKET


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """Statistics of the changes before they are merged. `may_remove` counts those that may remove a
    row. `all_newer`: each is newer than all that were merged before. `misfits` counts the values
    that a column cannot hold, by column (EVO-11). A merge skips the steps that no change needs,
    which saves half of its time.
    """

    changes: int
    has_residual: bool
    highest: int
    unreadable: int = 0
    may_remove: int = 0
    all_plain: bool = False
    all_whole: bool = False
    buckets: tuple[int, ...] = ()
    all_newer: bool = False
    misfits: Mapping[str, int] = field(default_factory=dict)

    def overwrites_rows(self, before: TableState) -> bool:
        """Whether the stored state of the rows no longer matters."""
        return self.all_whole and self.is_all_newer(before)

    def is_all_newer(self, before: TableState) -> bool:
        """Whether only the visible values of the stored rows matter."""
        return self.all_newer and not self.has_residual and not before.has_residual


def check_changelog(table: Table, before: TableState, newest: LoggedBatch | None) -> None:
    """Raise `TableError` unless the changelog is the one from which the table was made.

    In another changelog the same batch numbers mean other changes.
    """
    batch, identity = (newest.ingest_batch, newest.changelog_id) if newest else (0, None)
    before.check_changelog(table.layout.definition.name, batch, identity)
    if newest is not None and newest.trimmed_to > before.complete_to_batch:
        definition = table.layout.definition
        needed, first = before.complete_to_batch + 1, newest.trimmed_to + 1
        bases = ", ".join(bases_of(table))
        raise changelog_trimmed(definition.name, definition.stream, needed, first, bases)


def unapplied(
    before: TableState,
    batch: str = "ingest_batch",
    committed: str = "unix_micros(commit_timestamp)",
    integer: str = "kafka_partition",
) -> str:
    """Whether a change is not in the table yet, as SQL over changes after the last batch without a
    deferred change. `integer` is the second argument of `constant`.
    """
    if before.apply_watermark is None or before.complete_to_batch == before.to_batch:
        return "true"
    return (
        f"({batch} > {constant(before.to_batch, integer)} OR {committed} >="
        f" {constant(before.apply_watermark, integer)})"
    )


@dataclass(frozen=True, slots=True)
class FlatChanges:
    """The changes to merge, from `flatten_entries`, with their statistics.

    `deferred_from` is the oldest batch with a deferred change. None: there is no such change.
    """

    rows: DataFrame
    statistics: BatchStatistics
    deferred_from: int | None = None


def analyze(
    changes: DataFrame,
    layout: Layout,
    before: TableState,
    cache: Cache = uncached,
    *,
    is_new: str = "true",
    is_deferred: str = "false",
) -> FlatChanges:
    """Read the changes once, or twice if not all are plain. `cache` may store them meanwhile.
    `is_new` and `is_deferred` are conditions on `_committed` and `_batch`. New changes that are not
    deferred are merged.

    A change may remove its row if it leaves no cell, or if it may not be newer than everything that
    was merged before, which only a table ordered by commit knows.
    """
    is_merged = f"({is_new}) AND NOT ({is_deferred})"
    if layout.registered:
        rows = cache(flatten_entries(changes, layout, all_plain=True))
        flat = _analyzed(rows, layout, before, is_merged, is_deferred)
        if flat.statistics.all_plain:
            return flat
    rows = cache(flatten_entries(changes, layout))
    return _analyzed(rows, layout, before, is_merged, is_deferred)


def _analyzed(
    rows: DataFrame, layout: Layout, before: TableState, is_merged: str, is_deferred: str
) -> FlatChanges:
    good = f"({is_merged}) AND NOT _unreadable"
    highest = constant(before.highest_applied, "_partition")
    may_be_older = (
        f"_committed <= {highest}" if layout.definition.order is OrderBy.COMMIT else "true"
    )
    texts = {
        "changes": f"count_if({is_merged})",
        "unreadable": f"count_if(({is_merged}) AND _unreadable)",
        "may_remove": f"count_if({good} AND (_may_remove OR {may_be_older}))",
        "has_residual": f"count_if({good} AND _rest IS NOT NULL) > 0",
        "all_plain": f"count_if(({is_merged}) AND NOT _plain) = 0",
        "all_whole": f"count_if(({is_merged}) AND NOT _whole) = 0",
        "buckets": f"collect_set(CASE WHEN {good} THEN {BUCKET} END)",
        "all_newer": f"count_if({good} AND {may_be_older}) = 0",
        "highest": f"coalesce(max(CASE WHEN {good} THEN _committed END), 0)",
        "deferred_from": f"min(CASE WHEN {is_deferred} THEN _batch END)",
    }
    misfits = {f"_misfit{n}": column.name for n, column, _ in layout.tolerant}
    texts |= {name: f"count_if({good} AND {name})" for name in misfits}
    row = rows.agg(*(F.expr(text).alias(name) for name, text in texts.items())).first()
    assert row is not None
    values = row.asDict()
    deferred_from = values.pop("deferred_from")
    counts = {column: values.pop(name) for name, column in misfits.items()}
    values["buckets"] = tuple(values["buckets"])
    statistics = BatchStatistics(**values, misfits={name: n for name, n in counts.items() if n})
    return FlatChanges(rows.where(is_merged), statistics, deferred_from)
