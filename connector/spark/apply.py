"""Apply: from the changelog into a table (TBL-9 to TBL-13). `apply` is the whole of it, on one page.

Everything that is known of a row, its changes, its row in the table and what the graveyard remembers, is merged by one
aggregation and a join (`pivot`, `registers`). Only buckets that a change touches are read and rewritten, or where changes are few,
only their rows are written. The order of effects:
letters, then the graveyard, then the table's commit, which names both. Whatever happens before the commit is done again by the
next apply, with the same letters under the same ids; whatever it left in the graveyard does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from connector.bookkeeping import Bookkeeping
from connector.deadletter import DeadLetter
from connector.model import MAX_LONG
from connector.progress import Cut
from connector.spark.changelog import Changelog
from connector.spark.holding import holding_of, not_merged, surveyed
from connector.spark.letters import table_letters
from connector.spark.merging import Survey, check_changelog, is_sparse, merged_buckets, merged_rows
from connector.spark.sql import constant
from connector.spark.table import Table, new_attempt
from connector.tables import OrderBy


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
    discarded: Callable[[], frozenset[str]] = frozenset,
) -> Applied | None:
    """Bring the table to `cut`, which was chosen from the changelog's progress; None if the table is there already.

    `publish` delivers letters, or raises. `discarded` is asked for the ids of discarded letters where rows are held (DLQ-3). Raises
    `TableError`, `WriterConflictError`, `DeliveryError`; the table is then as it was.
    """
    (version, before), newest = table.newest(), changelog.newest()
    check_changelog(table, before, newest)
    is_there = newest is not None and _is_at(before, cut)
    if newest is None or (is_there and not before.held):
        return None
    below = None if cut.goes_past else cut.low_watermark or 0
    holding = holding_of(table, changelog, before, newest, cut.batch, below=below, discarded=discarded, horizon=cut.horizon)
    if is_there and holding is not None and holding.dead == before.held:
        return None
    before = table.sweep(before)
    since = changelog.changes(source, after=before.complete_to_batch, to=cut.batch)
    complete_to_batch = cut.batch if cut.goes_past else _complete_to_batch(since, cut)
    changes = not_merged(since, before, table.spark)
    if not cut.goes_past:
        changes = changes.where(f"NOT {_is_held(cut)}")
    definition = table.layout.definition
    changes, seen, waiting = surveyed(changes, table.layout, before, holding, lambda letters: publish(table_letters(letters, definition)))
    on_step("letters published")
    attempt = new_attempt()
    dead, complete_below = holding.dead if holding else (), cut.low_watermark
    if waiting is not None:
        complete_to_batch = min(complete_to_batch, waiting.batch - 1)
        complete_below = None if complete_below is None else min(complete_below, waiting.committed)
    # What a row waits for may be older than what was deleted meanwhile.
    horizon = before.horizon if dead else _horizon(definition.order, before, cut, complete_to_batch)
    after = replace(
        _after(before, seen, cut, attempt),
        changelog_id=newest.changelog_id,
        complete_below=complete_below,
        complete_to_batch=complete_to_batch,
        as_of=max(filter(None, (before.as_of, cut.moments.of(complete_to_batch))), default=None),
        held=dead,
        horizon=horizon,
    )
    after = replace(after, past_since=None if after.is_consistent_cut else before.past_since or cut.chosen_at)
    if not seen.buckets:
        on_step("graveyard written")
        table.commit(None, (), after)
        on_step("table committed")
        return Applied(after, 0, seen.unreadable)
    sparse = is_sparse(table, seen)
    if sparse:
        rows, places = merged_rows(table, changes, seen, before, version, horizon)
    else:
        rows = merged_buckets(table, changes, seen, before, horizon=horizon)
    if seen.may_remove:
        # Two writes follow; the merge is worked out once for both.
        rows = rows.localCheckpoint()
        table.bury(rows.where("_changed AND NOT _exists"), before, attempt=attempt)
    on_step("graveyard written")
    if sparse:
        table.commit_rows(rows.where("_exists"), places, version, after)
    else:
        table.commit(rows.where("_exists"), seen.buckets, after)
    on_step("table committed")
    return Applied(after, seen.changes - seen.unreadable, seen.unreadable)


def _is_at(before: Bookkeeping, cut: Cut) -> bool:
    if before.held:
        return (before.to_batch, before.brought_to) == (cut.batch, _brought_to(cut))
    is_all_merged = before.complete_to_batch == cut.batch
    return before.to_batch == cut.batch and (is_all_merged or (not cut.goes_past and before.complete_below == cut.low_watermark))


def _complete_to_batch(since: DataFrame, cut: Cut) -> int:
    """The last batch of the cut before the oldest one of which something is held back."""
    oldest = since.where(_is_held(cut)).agg(F.min("ingest_batch")).first()
    return cut.batch if oldest is None or oldest[0] is None else int(oldest[0]) - 1


def _brought_to(cut: Cut) -> int | None:
    return MAX_LONG if cut.goes_past else cut.low_watermark


def _is_held(cut: Cut) -> str:
    """Whether a change lies above the low watermark, and is held back by the cut."""
    return f"(unix_micros(commit_timestamp) >= {constant(cut.low_watermark or 0, 'kafka_partition')})"


def _horizon(order: OrderBy, before: Bookkeeping, cut: Cut, complete_to_batch: int) -> int | None:
    """Below which commit timestamp, or in a table ordered by sequence number below which ingest batch, deletes may be forgotten."""
    if order is OrderBy.COMMIT:
        return cut.horizon
    return max(filter(None, (before.horizon, cut.batch_horizons.of(complete_to_batch))), default=None)


def _after(before: Bookkeeping, seen: Survey, cut: Cut, attempt: str) -> Bookkeeping:
    """The bookkeeping once what was seen is merged, but for how far that makes the table complete."""
    number = before.apply + 1
    return replace(
        before,
        apply=number,
        attempt=attempt,
        to_batch=cut.batch,
        brought_to=_brought_to(cut),
        merged=before.merged + seen.changes - seen.unreadable,
        letters=before.letters + seen.unreadable,
        letters_since=before.letters_since or (cut.chosen_at if seen.unreadable else None),
        highest_applied=max(before.highest_applied, seen.highest),
        with_rest=before.with_rest or seen.with_rest,
        buried=before.buried or seen.may_remove > 0,
        attempts={**before.attempts, number: attempt} if seen.may_remove else before.attempts,
    )
