"""Apply: merges logged changes into a table (TBL-9 to TBL-13).

The order of effects is: dead letters, then the tombstone table, then the table's commit, which
names both. If an apply fails before its commit, the next one repeats all of it, with the same dead
letters under the same ids. Tombstones of the failed apply do not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from connector.dead_letters.blocked_rows import BlockingLetter
from connector.dead_letters.envelope import DeadLetter
from connector.records.model import MAX_LONG
from connector.records.ordering import OrderBy
from connector.spark.apply.blocked_rows import BlockedFrom, BlockedRows
from connector.spark.apply.flatten import flatten_entries
from connector.spark.apply.frames import Cache, caching, uncached
from connector.spark.apply.merge import is_sparse, merged_buckets, merged_rows
from connector.spark.apply.select import not_merged, select_changes
from connector.spark.apply.statistics import (
    BatchStatistics,
    FlatChanges,
    analyze,
    check_changelog,
    unapplied,
)
from connector.spark.sql import constant
from connector.spark.storage.changelog import Changelog
from connector.spark.storage.dead_letters import table_letters
from connector.spark.storage.logged_batch import LoggedBatch
from connector.spark.storage.table import Table, new_attempt
from connector.state.apply_level import MergeFew, SmallApply, is_few
from connector.state.stream_progress import Cut
from connector.state.table_state import TableState

KEPT_CHANGES: Final = 200_000
"""Up to this many changes are kept in memory between their analysis and the merge. More are read
again.
"""


@dataclass(frozen=True, slots=True)
class Applied:
    """The new table state, how many changes were merged, and how many became dead letters."""

    table_state: TableState
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
    merge_few: MergeFew | None = None,
) -> Applied | None:
    """Bring the table to `cut`, which was chosen from the changelog's progress. None: it is already
    there.

    `publish` delivers dead letters, or raises. `discarded` returns the ids of discarded ones, if
    rows are blocked (DLQ-3). `merge_few` merges few changes without Spark. Raises `TableError`,
    `WriterConflictError`, `DeliveryError`. The table is then unchanged.
    """
    on_step("apply begun")
    (version, before), newest = table.newest(), changelog.newest()
    check_changelog(table, before, newest)
    is_there = newest is not None and _is_at(before, cut)
    if newest is None or (is_there and not before.blocked_rows):
        return None
    blocked = None
    if table.layout.definition.block_rows:
        blocked = BlockedRows(
            *(table, changelog, before, newest, cut.batch),
            below=_below(cut),
            discarded=discarded,
            horizon=cut.horizon,
        )
    if is_there and blocked is not None and blocked.blocking == before.blocked_rows:
        return None
    if blocked is None and not before.blocked_rows and merge_few is not None:
        applied = _apply_few(table, changelog, version, before, cut, newest, merge_few, on_step)
        if applied is not None:
            return applied
    with caching() as cache:
        selection = _selection(table, changelog, source, before, cut, blocked, publish, cache)
        assert selection.flat is not None
        on_step("letters published")
        blocking = blocked.blocking if blocked else ()
        after = _after(table, before, selection, cut, blocking, new_attempt(), newest.changelog_id)
        after = _write(table, selection.flat, version, before, after, cache, on_step)
    on_step("table committed")
    statistics = selection.statistics
    return Applied(after, statistics.changes - statistics.unreadable, statistics.unreadable)


def _apply_few(
    table: Table,
    changelog: Changelog,
    version: int,
    before: TableState,
    cut: Cut,
    newest: LoggedBatch,
    merge_few: MergeFew,
    on_step: Callable[[str], None],
) -> Applied | None:
    """Apply few changes without a Spark job. None: Spark must do it, and nothing was committed."""
    definition, layout = table.layout.definition, table.layout
    since = before.complete_to_batch
    recent = changelog.recent_changes(definition.source, after=since, to=cut.batch)
    is_possible = table.has_vectors and bool(layout.registered)
    if recent is None or not (is_possible or recent.count == 0):
        return None
    cores = table.spark.sparkContext.defaultParallelism
    if not is_few(recent.count, len(definition.columns), cores):
        return None
    files = table.files(version)
    if files is None:
        return None
    on_step("changes chosen")
    removed = table.tombstones.files(before)
    attempt = new_attempt()
    merged = merge_few(
        SmallApply(
            definition=definition,
            since=layout.since,
            buckets=layout.buckets,
            before=before,
            below=_below(cut),
            horizon=cut.horizon if definition.order is OrderBy.COMMIT else before.horizon,
            changelog=changelog.path,
            changes=recent.files,
            table=table.path,
            rows=files.actions() if recent.count else (),
            tombstones=table.tombstones.path,
            removed=removed,
            attempt_id=attempt,
            cores=cores,
        )
    )
    if merged is None:
        return None
    on_step("letters published")
    to_batch = cut.batch if merged.deferred_from is None else merged.deferred_from - 1
    counts = (merged.changes, merged.has_residual, merged.highest)
    statistics = BatchStatistics(*counts, misfits=merged.misfits)
    selection = _Selection(statistics, to_batch)
    after = _after(table, before, selection, cut, (), attempt, newest.changelog_id)
    if merged.tombstones:
        table.commit_tombstones(merged.tombstones, before)
        attempts = {**after.attempt_ids, after.apply_number: attempt}
        after = replace(after, has_tombstones=True, attempt_ids=attempts)
    on_step("tombstones written")
    table.commit_actions(merged.table, version, after)
    on_step("table committed")
    return Applied(after, merged.changes, 0)


def _write(
    table: Table,
    changes: FlatChanges,
    version: int,
    before: TableState,
    after: TableState,
    cache: Cache,
    on_step: Callable[[str], None],
) -> TableState:
    """Write the tombstones, then commit the table. Returns the state that was committed."""
    statistics, horizon = changes.statistics, after.horizon
    if not statistics.buckets:
        on_step("tombstones written")
        table.commit(None, (), after)
        return after
    files, locations = table.files(version), None
    if is_sparse(table, statistics, files):
        rows, locations = merged_rows(
            table, changes, before, version, cache, files=files, horizon=horizon
        )
    else:
        rows = merged_buckets(table, changes, before, horizon=horizon)
    if statistics.may_remove:
        # Two writes follow. The merge is computed once for both.
        rows = cache(rows, eager=locations is None)
        removed = rows.where("_changed AND NOT _exists")
        if table.add_tombstones(removed, before, attempt=after.attempt_id):
            attempts = {**after.attempt_ids, after.apply_number: after.attempt_id}
            after = replace(after, has_tombstones=True, attempt_ids=attempts)
    on_step("tombstones written")
    rows = rows.where("_exists")
    if locations is None:
        table.commit(rows, statistics.buckets, after)
    else:
        table.commit_rows(rows, locations, version, files, after)
    return after


@dataclass(frozen=True, slots=True)
class _Selection:
    """The statistics of the changes that an apply merges, and the last batch of which it merges
    every change. `flat` are the changes, if Spark merges them.
    """

    statistics: BatchStatistics
    complete_to_batch: int
    blocked_from: BlockedFrom | None = None
    flat: FlatChanges | None = None


def _selection(
    table: Table,
    changelog: Changelog,
    source: str,
    before: TableState,
    cut: Cut,
    blocked: BlockedRows | None,
    publish: Callable[[Iterable[DeadLetter]], int],
    cache: Cache,
) -> _Selection:
    """The changes that the cut adds to the table. Those that it cannot hold become dead letters."""
    layout, after, to = table.layout, before.complete_to_batch, cut.batch
    recent = changelog.recent_changes(source, after=after, to=to)
    since = recent.rows() if recent else changelog.changes(source, after=after, to=to)
    if blocked is None and not before.blocked_rows:
        is_few = recent is not None and recent.count <= KEPT_CHANGES
        columns = {"committed": "_committed", "integer": "_partition"}
        changes = analyze(
            since,
            layout,
            before,
            cache if is_few else uncached,
            is_new=unapplied(before, batch="_batch", **columns),
            is_deferred=_is_deferred(cut, **columns),
        )
        if not changes.statistics.unreadable:
            deferred = changes.deferred_from
            to_batch = cut.batch if deferred is None else deferred - 1
            return _Selection(changes.statistics, to_batch, flat=changes)
    to_batch = cut.batch if cut.ignores_watermark else _complete_to_batch(since, cut)
    new, definition = not_merged(since, before), layout.definition
    selected, statistics, blocked_from = select_changes(
        new.where(f"NOT {_is_deferred(cut)}"),
        layout,
        before,
        blocked,
        lambda letters: publish(table_letters(letters, definition)),
    )
    rows = flatten_entries(selected, layout, all_plain=statistics.all_plain)
    return _Selection(statistics, to_batch, blocked_from, FlatChanges(rows, statistics))


def _is_at(before: TableState, cut: Cut) -> bool:
    if before.blocked_rows:
        return (before.to_batch, before.target_watermark) == (cut.batch, _brought_to(cut))
    is_all_merged = before.complete_to_batch == cut.batch
    return before.to_batch == cut.batch and (
        is_all_merged or (not cut.ignores_watermark and before.apply_watermark == cut.low_watermark)
    )


def _complete_to_batch(since: DataFrame, cut: Cut) -> int:
    """The last batch before the oldest batch with a deferred change."""
    oldest = since.where(_is_deferred(cut)).agg(F.min("ingest_batch")).first()
    return cut.batch if oldest is None or oldest[0] is None else int(oldest[0]) - 1


def _brought_to(cut: Cut) -> int | None:
    return MAX_LONG if cut.ignores_watermark else cut.low_watermark


def _is_deferred(
    cut: Cut, committed: str = "unix_micros(commit_timestamp)", integer: str = "kafka_partition"
) -> str:
    """Whether the cut defers a change, as SQL over its commit timestamp: the change is not below
    the low watermark. `integer` is the second argument of `constant`.
    """
    below = _below(cut)
    return "false" if below is None else f"({committed} >= {constant(below, integer)})"


def _below(cut: Cut) -> int | None:
    """The commit timestamp from which on the cut defers changes. None: it defers none."""
    return None if cut.ignores_watermark else cut.low_watermark or 0


def _horizon(order: OrderBy, before: TableState, cut: Cut, complete_to_batch: int) -> int | None:
    """The bound below which deletes may be forgotten.

    It is a commit timestamp. In a table ordered by sequence number, it is an ingest batch.
    """
    if order is OrderBy.COMMIT:
        return cut.horizon
    return max(
        filter(None, (before.horizon, cut.batch_horizons.horizon_of(complete_to_batch))),
        default=None,
    )


def _after(
    table: Table,
    before: TableState,
    selection: _Selection,
    cut: Cut,
    blocking: tuple[BlockingLetter, ...],
    attempt: str,
    changelog_id: str,
) -> TableState:
    """The table state after the merge, without the new tombstones."""
    statistics, blocked_from = selection.statistics, selection.blocked_from
    complete_to_batch, apply_watermark = selection.complete_to_batch, cut.low_watermark
    if blocked_from is not None:
        complete_to_batch = min(complete_to_batch, blocked_from.batch - 1)
        apply_watermark = (
            None if apply_watermark is None else min(apply_watermark, blocked_from.committed)
        )
    after = replace(
        before,
        apply_number=before.apply_number + 1,
        attempt_id=attempt,
        changelog_id=changelog_id,
        to_batch=cut.batch,
        target_watermark=_brought_to(cut),
        merged=before.merged + statistics.changes - statistics.unreadable,
        misfits=dict(Counter(before.misfits) + Counter(statistics.misfits)),
        letters=before.letters + statistics.unreadable,
        dead_letters_since=before.dead_letters_since
        or (cut.chosen_at if statistics.unreadable else None),
        highest_applied=max(before.highest_applied, statistics.highest),
        has_residual=before.has_residual or statistics.has_residual,
        apply_watermark=apply_watermark,
        complete_to_batch=complete_to_batch,
        as_of=max(
            filter(None, (before.as_of, cut.freshness.time_of(complete_to_batch))), default=None
        ),
        blocked_rows=blocking,
        # A blocked row may wait for a change that is older than the new tombstones.
        horizon=(
            before.horizon
            if blocking
            else _horizon(table.layout.definition.order, before, cut, complete_to_batch)
        ),
    )
    return replace(
        after,
        inconsistent_since=(
            None if after.is_consistent_cut else before.inconsistent_since or cut.chosen_at
        ),
    )
