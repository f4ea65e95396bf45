"""Selects the changes that an apply merges: new ones that wait for no dead letter, and that the
table can hold (TBL-9, DLQ-3).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import DataFrame

from connector.errors.tables import table_rejects_changes
from connector.spark.apply.blocked_rows import BlockedFrom, BlockedRows, mark_blocked
from connector.spark.apply.flatten import RECORD_COORDINATES, unreadable
from connector.spark.apply.statistics import BatchStatistics, analyze, unapplied
from connector.spark.sql import constant
from connector.spark.storage.dead_letters import table_letters
from connector.spark.storage.layout import Layout
from connector.state.table_state import TableState
from connector.tables.definition import TableDefinition

_SAMPLE: Final = 1_000
"""The commonest cause is that of so many dead letters."""


@dataclass(frozen=True, slots=True)
class LetterRules:
    """Functions about the dead letters of an apply: the ids of the `discarded` ones, for blocked
    rows (DLQ-3), and whether of so many changes so many are too many (RUN-6). `published` returns
    the dead letters of a table as `Ledger.published_of`, if the ledger counts more than a number.
    """

    discarded: Callable[[], frozenset[str]] = frozenset
    are_too_many: Callable[[int, int], bool] = lambda changes, rejected: False
    published: Callable[[str, int], Mapping[str, str] | None] = lambda table, above: None


NO_RULES: Final = LetterRules()


def not_merged(since: DataFrame, before: TableState) -> DataFrame:
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
        mark_blocked(since, before.blocked_rows)
        .where(f"is_blocked OR {is_new} OR {above}")
        .select(*since.columns)
    )


def select_changes(
    changes: DataFrame,
    layout: Layout,
    before: TableState,
    blocked: BlockedRows | None,
    publish: Callable[[DataFrame], object],
    rules: LetterRules = NO_RULES,
) -> tuple[DataFrame, BatchStatistics, BlockedFrom | None]:
    """The changes that can be merged, their statistics, and where the changes that wait begin.

    `publish` gets the changes that the table cannot hold. The statistics count them. The later
    changes of a blocked row wait, and are validated when they no longer wait. Raises `TableError`
    if the dead letters are too many; none is then published.
    """
    first = None
    if blocked is not None:
        changes, first = blocked.split(changes)
    statistics = analyze(changes, layout, before).statistics
    if not statistics.unreadable:
        return changes, statistics, first
    coordinates = unreadable(changes, layout)
    letters = changes.join(coordinates, [*RECORD_COORDINATES], "left_semi")
    if rules.are_too_many(statistics.changes, statistics.unreadable):
        definition = layout.definition
        raise table_rejects_changes(
            *(definition.name, definition.stream, statistics.changes, statistics.unreadable),
            _commonest_cause(letters, definition),
        )
    good = changes.join(coordinates, [*RECORD_COORDINATES], "left_anti")
    if blocked is None:
        publish(letters)
        return good, statistics, None
    blocked.add(letters)
    letters, later_letters = blocked.split(letters)
    good, later = blocked.split(good)
    publish(letters)
    if later_letters is None and later is None:
        return good, statistics, first
    count, of_good = letters.count(), analyze(good, layout, before).statistics
    return (
        good,
        replace(of_good, changes=of_good.changes + count, unreadable=count),
        _earliest(first, later_letters, later),
    )


def _commonest_cause(letters: DataFrame, definition: TableDefinition) -> str:
    """The commonest reason of a sample, with its form and column, without the value."""
    causes = Counter(
        f"{letter.reason}: {letter.detail.partition(', got ')[0]}"
        for letter in table_letters(letters.limit(_SAMPLE), definition)
    )
    return causes.most_common(1)[0][0]


def _earliest(*several: BlockedFrom | None) -> BlockedFrom:
    """The smallest batch and the smallest commit timestamp of all."""
    batches, times = zip(*filter(None, several), strict=True)
    return BlockedFrom(min(batches), min(times))
