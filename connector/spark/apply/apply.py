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
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from connector.dead_letters.blocked_rows import Dead
from connector.dead_letters.envelope import DeadLetter
from connector.records.model import MAX_LONG
from connector.records.ordering import OrderBy
from connector.spark.apply.blocked_rows import Holding, Waiting, holding_of, not_merged, surveyed
from connector.spark.apply.dead_letters import table_letters
from connector.spark.apply.flatten import pivot
from connector.spark.apply.kept import Keep, keep_nothing, keeping
from connector.spark.apply.merge import is_sparse, merged_buckets, merged_rows
from connector.spark.apply.statistics import Survey, check_changelog, glance, unapplied
from connector.spark.sql import constant
from connector.spark.storage.changelog import Changelog
from connector.spark.storage.table import Table, new_attempt
from connector.state.stream_progress import Cut
from connector.state.table_state import Bookkeeping

KEPT_CHANGES: Final = 200_000
"""So many changes are kept in memory between the look at them and the merge; more are read again."""


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
    with keeping() as keep:
        found = _found(table, changelog, source, before, cut, holding, publish, keep)
        on_step("letters published")
        seen, attempt = found.seen, new_attempt()
        after = replace(_after(table, before, found, cut, holding.dead if holding else (), attempt), changelog_id=newest.changelog_id)
        if not seen.buckets:
            on_step("graveyard written")
            table.commit(None, (), after)
        else:
            is_single = is_sparse(table, seen)
            files = table.files(version) if is_single else None
            if is_single:
                rows, places = merged_rows(table, found.pivoted, seen, before, version, keep, files=files, horizon=after.horizon)
            else:
                rows = merged_buckets(table, found.pivoted, seen, before, horizon=after.horizon)
            if seen.may_remove:
                # Two writes follow; the merge is worked out once for both.
                rows = keep(rows, eager=not is_single)
                if table.bury(rows.where("_changed AND NOT _exists"), before, attempt=attempt):
                    after = replace(after, buried=True, attempts={**after.attempts, after.apply: attempt})
            on_step("graveyard written")
            if is_single:
                table.commit_rows(rows.where("_exists"), places, version, files, after)
            else:
                table.commit(rows.where("_exists"), seen.buckets, after)
    on_step("table committed")
    return Applied(after, seen.changes - seen.unreadable, seen.unreadable)


@dataclass(frozen=True, slots=True)
class _Found:
    """What an apply is about to merge: changes as `pivot` has them, what a look at them tells, and the last batch of which all of it is."""

    seen: Survey
    pivoted: DataFrame
    complete_to_batch: int
    waiting: Waiting | None = None


def _found(
    table: Table,
    changelog: Changelog,
    source: str,
    before: Bookkeeping,
    cut: Cut,
    holding: Holding | None,
    publish: Callable[[Iterable[DeadLetter]], int],
    keep: Keep,
) -> _Found:
    """What the cut adds to the table; the letters of what it cannot hold are published."""
    layout, after, to = table.layout, before.complete_to_batch, cut.batch
    recent = changelog.recent_changes(source, after=after, to=to)
    since = recent.rows if recent else changelog.changes(source, after=after, to=to)
    if holding is None and not before.held:
        is_few = recent is not None and recent.count <= KEPT_CHANGES
        is_held = _is_held(cut, committed="_committed", place="_partition")
        is_new = unapplied(before, batch="_batch", committed="_committed", place="_partition")
        seen, pivoted, held_from = glance(since, layout, before, keep if is_few else keep_nothing, is_new=is_new, is_held=is_held)
        if not seen.unreadable:
            return _Found(seen, pivoted, cut.batch if held_from is None else held_from - 1)
    complete_to_batch = cut.batch if cut.goes_past else _complete_to_batch(since, cut)
    changes = not_merged(since, before, table.spark).where(f"NOT {_is_held(cut)}")
    definition = layout.definition
    changes, seen, waiting = surveyed(changes, layout, before, holding, lambda letters: publish(table_letters(letters, definition)))
    return _Found(seen, pivot(changes, layout, all_plain=seen.all_plain), complete_to_batch, waiting)


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


def _is_held(cut: Cut, committed: str = "unix_micros(commit_timestamp)", place: str = "kafka_partition") -> str:
    """Whether a change lies above the low watermark, and is held back by the cut, as SQL over its commit timestamp."""
    return "false" if cut.goes_past else f"({committed} >= {constant(cut.low_watermark or 0, place)})"


def _horizon(order: OrderBy, before: Bookkeeping, cut: Cut, complete_to_batch: int) -> int | None:
    """Below which commit timestamp, or in a table ordered by sequence number below which ingest batch, deletes may be forgotten."""
    if order is OrderBy.COMMIT:
        return cut.horizon
    return max(filter(None, (before.horizon, cut.batch_horizons.of(complete_to_batch))), default=None)


def _after(table: Table, before: Bookkeeping, found: _Found, cut: Cut, dead: tuple[Dead, ...], attempt: str) -> Bookkeeping:
    """The bookkeeping once what was found is merged, without what the graveyard gets."""
    seen, waiting, complete_to_batch, complete_below = found.seen, found.waiting, found.complete_to_batch, cut.low_watermark
    if waiting is not None:
        complete_to_batch = min(complete_to_batch, waiting.batch - 1)
        complete_below = None if complete_below is None else min(complete_below, waiting.committed)
    after = replace(
        before,
        apply=before.apply + 1,
        attempt=attempt,
        to_batch=cut.batch,
        brought_to=_brought_to(cut),
        merged=before.merged + seen.changes - seen.unreadable,
        letters=before.letters + seen.unreadable,
        letters_since=before.letters_since or (cut.chosen_at if seen.unreadable else None),
        highest_applied=max(before.highest_applied, seen.highest),
        with_rest=before.with_rest or seen.with_rest,
        complete_below=complete_below,
        complete_to_batch=complete_to_batch,
        as_of=max(filter(None, (before.as_of, cut.moments.of(complete_to_batch))), default=None),
        held=dead,
        # What a row waits for may be older than what was deleted meanwhile.
        horizon=before.horizon if dead else _horizon(table.layout.definition.order, before, cut, complete_to_batch),
    )
    return replace(after, past_since=None if after.is_consistent_cut else before.past_since or cut.chosen_at)
