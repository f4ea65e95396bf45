"""Apply: from the changelog into a table (TBL-9 to TBL-13). `apply` is the whole of it, on one page.

Everything that is known of a row, its changes, its row in the table and what the graveyard remembers, is merged by one
aggregation and a join (`pivot`, `registers`). Only buckets that a change touches are read and rewritten. The order of effects:
letters, then the graveyard, then the table's commit, which names both. Whatever happens before the commit is done again by the
next apply, with the same letters under the same ids; whatever it left in the graveyard does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from connector.deadletter import DeadLetter
from connector.errors import TableError
from connector.spark.changelog import Changelog, LoggedBatch
from connector.spark.layout import Layout
from connector.spark.letters import table_letters
from connector.spark.pivot import PLACE, pivot, unreadable
from connector.spark.progress import Cut
from connector.spark.registers import joined, known_by_changes, known_by_graveyard, known_by_rows, rows_of
from connector.spark.sql import constant
from connector.spark.table import Bookkeeping, Table, new_attempt
from connector.tables import BUCKET


@dataclass(frozen=True, slots=True)
class Survey:
    """What one look at the changes tells before they are merged. `may_remove` counts those that could take a row out.

    What no change does, the merge need not be prepared for: that saves half of its time.
    """

    changes: int
    unreadable: int
    may_remove: int
    with_rest: bool
    all_plain: bool
    all_whole: bool
    buckets: tuple[int, ...]
    highest: int


@dataclass(frozen=True, slots=True)
class Applied:
    """The outcome: the table's new bookkeeping, how many changes were merged, and how many became letters."""

    bookkeeping: Bookkeeping
    changes: int
    letters: int


def apply(
    table: Table,
    changelog: Changelog,
    source: str,
    cut: Cut,
    *,
    publish: Callable[[Iterable[DeadLetter]], int],
    on_step: Callable[[str], None] = lambda step: None,
) -> Applied | None:
    """Bring the table to `cut`, which was chosen from the changelog's progress; None if the table is there already.

    `publish` delivers letters, or raises. Raises `TableError`, `WriterConflictError`,
    `DeliveryError`; the table is then as it was.
    """
    before, newest = table.bookkeeping(), changelog.newest()
    _check_changelog(table, before, newest)
    if newest is None or _is_at(before, cut):
        return None
    before = table.sweep(before)
    since = changelog.changes(source, after=before.complete_to_batch, to=cut.batch)
    complete_to_batch = cut.batch if cut.goes_past else _complete_to_batch(since, cut)
    changes = _due(since, before, cut)
    seen = survey(changes, table.layout, before)
    if seen.unreadable:
        bad = unreadable(changes, table.layout)
        publish(table_letters(changes.join(bad, [*PLACE], "left_semi"), table.layout.definition))
        changes = changes.join(bad, [*PLACE], "left_anti")
    on_step("letters published")
    attempt = new_attempt()
    rows = _merged(table, changes, seen, before)
    if seen.may_remove:
        # Two writes follow; the merge is worked out once for both.
        rows = rows.localCheckpoint()
        table.bury(rows.where("_changed AND NOT _exists"), apply=before.apply + 1, attempt=attempt)
    on_step("graveyard written")
    after = _after(before, seen, cut, newest.changelog_id, complete_to_batch, attempt)
    table.commit(rows.where("_exists"), seen.buckets, after)
    on_step("table committed")
    return Applied(after, seen.changes - seen.unreadable, seen.unreadable)


def survey(changes: DataFrame, layout: Layout, before: Bookkeeping) -> Survey:
    """Look at all changes, quickly if all are plain.

    Only a change that leaves no cell behind can take its row out of the table, or one that is not newer than everything merged
    before: if the newest change of a row leaves a cell, and nothing known of the row is newer, the row exists.
    """
    good, highest = "NOT _unreadable", constant(before.highest_applied, "_change.kafka_partition")
    seen = [
        F.count("*").alias("changes"),
        F.expr("count_if(_unreadable)").alias("unreadable"),
        F.expr(f"count_if({good} AND (_may_remove OR _change.commit_timestamp <= {highest}))").alias("may_remove"),
        F.expr(f"count_if({good} AND _rest IS NOT NULL) > 0").alias("with_rest"),
        F.expr("count_if(NOT _plain) = 0").alias("all_plain"),
        F.expr("count_if(NOT _whole) = 0").alias("all_whole"),
        F.expr(f"collect_set(CASE WHEN {good} THEN {BUCKET} END)").alias("buckets"),
        F.expr(f"coalesce(max(CASE WHEN {good} THEN _change.commit_timestamp END), 0)").alias("highest"),
    ]
    row = pivot(changes, layout, all_plain=True).agg(*seen).first()
    if row is not None and not row["all_plain"]:
        row = pivot(changes, layout).agg(*seen).first()
    assert row is not None
    return Survey(**{**row.asDict(), "buckets": tuple(row["buckets"])})


def _check_changelog(table: Table, before: Bookkeeping, newest: LoggedBatch | None) -> None:
    """A table goes on only with the changelog it was made from: in another one its batch numbers mean other changes."""
    batch, identity = (newest.ingest_batch, newest.changelog_id) if newest else (0, before.changelog_id)
    replaced = before.changelog_id not in ("", identity)
    if replaced or batch < before.to_batch:
        how = "begun anew" if replaced else f"set back to batch {batch}" if newest else "taken away"
        raise TableError(
            f"Table {table.layout.definition.name} covers the changelog to batch {before.to_batch}, but the changelog was {how}",
            "The changelog was moved away or restored without the table",
            "Put the changelog back, or move the table's folder away: it is made again from the whole changelog",
        )


def _is_at(before: Bookkeeping, cut: Cut) -> bool:
    is_all_merged = before.complete_to_batch == cut.batch
    return before.to_batch == cut.batch and (is_all_merged or (not cut.goes_past and before.complete_below == cut.low_watermark))


def _due(since: DataFrame, before: Bookkeeping, cut: Cut) -> DataFrame:
    """Of the changes since the last batch of which nothing is held back, those that belong to the cut and are not merged yet."""
    at = "unix_micros(commit_timestamp)"
    if before.complete_below is not None and before.complete_to_batch < before.to_batch:
        is_new = f"ingest_batch > {constant(before.to_batch, 'kafka_partition')}"
        since = since.where(f"{is_new} OR {at} >= {constant(before.complete_below, 'kafka_partition')}")
    return since if cut.goes_past else since.where(f"{at} < {constant(cut.low_watermark or 0, 'kafka_partition')}")


def _complete_to_batch(since: DataFrame, cut: Cut) -> int:
    """The last batch of the cut before the oldest one of which something is held back."""
    held = since.where(f"unix_micros(commit_timestamp) >= {constant(cut.low_watermark or 0, 'kafka_partition')}")
    oldest = held.agg(F.min("ingest_batch")).first()
    return cut.batch if oldest is None or oldest[0] is None else int(oldest[0]) - 1


def _after(before: Bookkeeping, seen: Survey, cut: Cut, changelog_id: str, complete_to_batch: int, attempt: str) -> Bookkeeping:
    number = before.apply + 1
    return replace(
        before,
        apply=number,
        to_batch=cut.batch,
        changelog_id=changelog_id,
        highest_applied=max(before.highest_applied, seen.highest),
        complete_below=cut.low_watermark,
        complete_to_batch=complete_to_batch,
        with_rest=before.with_rest or seen.with_rest,
        attempts={**before.attempts, number: attempt} if seen.may_remove else before.attempts,
        buried=before.buried or seen.may_remove > 0,
        letters=before.letters + seen.unreadable,
        attempt=attempt,
    )


def _merged(table: Table, changes: DataFrame, seen: Survey, before: Bookkeeping) -> DataFrame:
    layout, touched, partitions = table.layout, F.col(BUCKET).isin(*seen.buckets), max(1, len(seen.buckets))
    pivoted = pivot(changes, layout, all_plain=seen.all_plain)
    known = known_by_changes(pivoted, layout, partitions, all_whole=seen.all_whole, with_rest=seen.with_rest)
    if table.has_graveyard(before):
        known = joined(known, known_by_graveyard(table.graveyard(before).where(touched), layout, partitions), layout, "left")
    known = joined(known, known_by_rows(table.rows().where(touched), layout, partitions), layout, "full")
    return rows_of(known, layout, with_rest=before.with_rest or seen.with_rest)
