"""Selects the changes that an apply merges: new ones that wait for no dead letter, and that the
table can hold (TBL-9, DLQ-3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession

from connector.spark.apply.blocked_rows import BlockedFrom, Holding, with_waits
from connector.spark.apply.flatten import RECORD_COORDINATES, unreadable
from connector.spark.apply.statistics import BatchStatistics, analyze, unapplied
from connector.spark.sql import constant
from connector.spark.storage.layout import Layout
from connector.state.table_state import TableState


def not_merged(since: DataFrame, before: TableState, spark: SparkSession) -> DataFrame:
    """The changes in `since` that are not merged yet, including those that waited.

    `since` begins after the last batch of which every change is merged.
    """
    if not before.blocked_rows:
        return since.where(unapplied(before))
    is_new = f"ingest_batch > {constant(before.to_batch, 'kafka_partition')}"
    above = (
        "unix_micros(commit_timestamp) >="
        f" {constant(before.target_watermark or 0, 'kafka_partition')}"
    )
    return (
        with_waits(since, before.blocked_rows, spark)
        .where(f"waits OR {is_new} OR {above}")
        .select(*since.columns)
    )


def select_changes(
    changes: DataFrame,
    layout: Layout,
    before: TableState,
    holding: Holding | None,
    publish: Callable[[DataFrame], object],
) -> tuple[DataFrame, BatchStatistics, BlockedFrom | None]:
    """The changes that can be merged, their statistics, and the changes that wait.

    `publish` gets the changes that the table cannot hold. The statistics count them. The later
    changes of a blocked row wait, also those that the table cannot hold. Each change is validated
    once, when it no longer waits.
    """
    if holding is None:
        seen = analyze(changes, layout, before)
        letters, good = _judged(changes, seen, layout)
        if letters is not None:
            publish(letters)
        return good, seen, None
    changes, waiting = holding.split(changes)
    seen = analyze(changes, layout, before)
    letters, good = _judged(changes, seen, layout)
    if letters is None:
        return good, seen, waiting
    holding.add(letters)
    letters, later_letters = holding.split(letters)
    good, later = holding.split(good)
    publish(letters)
    if later_letters is None and later is None:
        return good, seen, waiting
    count, again = letters.count(), analyze(good, layout, before)
    return (
        good,
        replace(again, changes=again.changes + count, unreadable=count),
        earliest(waiting, later_letters, later),
    )


def _judged(
    changes: DataFrame, seen: BatchStatistics, layout: Layout
) -> tuple[DataFrame | None, DataFrame]:
    """The changes that the table cannot hold, or None, and the other changes."""
    if not seen.unreadable:
        return None, changes
    bad = unreadable(changes, layout)
    return changes.join(bad, [*RECORD_COORDINATES], "left_semi"), changes.join(
        bad, [*RECORD_COORDINATES], "left_anti"
    )


def earliest(*several: BlockedFrom | None) -> BlockedFrom | None:
    """The smallest batch and the smallest commit timestamp of all."""
    found = [waiting for waiting in several if waiting is not None]
    return (
        BlockedFrom(min(one.batch for one in found), min(one.committed for one in found))
        if found
        else None
    )
