"""Apply: merges logged changes into a table (TBL-9 to TBL-13).

One aggregation and a join merge the changes of a row, its row in the table and its tombstone
(`flatten_entries`, `lww_merge`). An apply reads and rewrites only the buckets that a change
touches. If the changes are few, it writes only their rows.

The order of effects is: dead letters, then the tombstone table, then the table's commit, which
names both. If an apply fails before its commit, the next one repeats all of it, with the same dead
letters under the same ids. Tombstones of the failed apply do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from connector.dead_letters.blocked_rows import BlockingLetter
from connector.dead_letters.envelope import DeadLetter
from connector.records.model import MAX_LONG
from connector.records.ordering import OrderBy
from connector.spark.apply.blocked_rows import BlockedFrom, Holding
from connector.spark.apply.flatten import flatten_entries
from connector.spark.apply.frames import Keep, keep_nothing, keeping
from connector.spark.apply.merge import is_sparse, merged_buckets, merged_rows
from connector.spark.apply.select import not_merged, select_changes
from connector.spark.apply.statistics import (
    BatchStatistics,
    analyze_once,
    check_changelog,
    statistics_of,
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
    """The result: the new table state, how many changes were merged, and how many became dead
    letters.
    """

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
    """Bring the table to `cut`, which was chosen from the changelog's progress. None: the table is
    already there.

    `publish` delivers dead letters, or raises. `discarded` returns the ids of discarded dead
    letters. It is only called for tables with blocked rows (DLQ-3). `merge_few` merges few changes
    without Spark. Raises `TableError`, `WriterConflictError`, `DeliveryError`. The table is then
    unchanged.
    """
    on_step("apply begun")
    (version, before), newest = table.newest(), changelog.newest()
    check_changelog(table, before, newest)
    is_there = newest is not None and _is_at(before, cut)
    if newest is None or (is_there and not before.blocked_rows):
        return None
    below = None if cut.ignores_watermark else cut.low_watermark or 0
    holding = None
    if table.layout.definition.block_rows:
        holding = Holding(
            *(table, changelog, before, newest, cut.batch),
            below=below,
            discarded=discarded,
            horizon=cut.horizon,
        )
    if is_there and holding is not None and holding.dead == before.blocked_rows:
        return None
    if holding is None and not before.blocked_rows and merge_few is not None:
        few = _apply_few(table, changelog, version, before, cut, newest, merge_few, on_step)
        if few is not None:
            return few
    with keeping() as keep:
        found = _found(table, changelog, source, before, cut, holding, publish, keep)
        on_step("letters published")
        after = replace(
            _after(table, before, found, cut, holding.dead if holding else (), new_attempt()),
            changelog_id=newest.changelog_id,
        )
        after = _write(table, found, version, before, after, keep, on_step)
    on_step("table committed")
    seen = found.seen
    return Applied(after, seen.changes - seen.unreadable, seen.unreadable)


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
    recent = changelog.recent_changes(
        definition.source, after=before.complete_to_batch, to=cut.batch
    )
    is_plain = table.has_vectors and bool(layout.registered) and not layout.late
    if recent is None or not (is_plain or recent.count == 0):
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
            buckets=layout.buckets,
            before=before,
            below=None if cut.ignores_watermark else cut.low_watermark or 0,
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
    found = _Found(statistics_of(merged), None, to_batch)
    after = replace(
        _after(table, before, found, cut, (), attempt), changelog_id=newest.changelog_id
    )
    if merged.tombstones:
        table.add_tombstones(merged.tombstones, before)
        attempts = {**after.attempt_ids, after.apply_number: attempt}
        after = replace(after, has_tombstones=True, attempt_ids=attempts)
    on_step("tombstones written")
    table.commit_actions(merged.table, version, after)
    on_step("table committed")
    return Applied(after, merged.changes, 0)


def _write(
    table: Table,
    found: _Found,
    version: int,
    before: TableState,
    after: TableState,
    keep: Keep,
    on_step: Callable[[str], None],
) -> TableState:
    """Write the tombstones, then commit the table. Returns the state that was committed: `after`,
    with the attempt if it has tombstones.
    """
    seen, pivoted, horizon = found.seen, found.pivoted, after.horizon
    assert pivoted is not None
    if not seen.buckets:
        on_step("tombstones written")
        table.commit(None, (), after)
        return after
    files = table.files(version)
    is_single = is_sparse(table, seen, files)
    if is_single:
        of_rows = (table, pivoted, seen, before, version, keep)
        rows, places = merged_rows(*of_rows, files=files, horizon=horizon)
    else:
        rows = merged_buckets(table, pivoted, seen, before, horizon=horizon)
    if seen.may_remove:
        # Two writes follow. The merge is computed once for both.
        rows = keep(rows, eager=not is_single)
        gone = rows.where("_changed AND NOT _exists")
        if table.bury(gone, before, attempt=after.attempt_id):
            attempts = {**after.attempt_ids, after.apply_number: after.attempt_id}
            after = replace(after, has_tombstones=True, attempt_ids=attempts)
    on_step("tombstones written")
    if is_single:
        table.commit_rows(rows.where("_exists"), places, version, files, after)
    else:
        table.commit(rows.where("_exists"), seen.buckets, after)
    return after


@dataclass(frozen=True, slots=True)
class _Found:
    """The flattened changes that an apply merges, their statistics, and the last batch of which it
    merges every change.
    """

    seen: BatchStatistics
    pivoted: DataFrame | None
    complete_to_batch: int
    waiting: BlockedFrom | None = None


def _found(
    table: Table,
    changelog: Changelog,
    source: str,
    before: TableState,
    cut: Cut,
    holding: Holding | None,
    publish: Callable[[Iterable[DeadLetter]], int],
    keep: Keep,
) -> _Found:
    """The changes that the cut adds to the table. Changes that the table cannot hold are published
    as dead letters.
    """
    layout, after, to = table.layout, before.complete_to_batch, cut.batch
    recent = changelog.recent_changes(source, after=after, to=to)
    since = recent.rows() if recent else changelog.changes(source, after=after, to=to)
    if holding is None and not before.blocked_rows:
        is_few = recent is not None and recent.count <= KEPT_CHANGES
        is_deferred = _is_deferred(cut, committed="_committed", place="_partition")
        is_new = unapplied(before, batch="_batch", committed="_committed", place="_partition")
        seen, pivoted, deferred_from = analyze_once(
            since,
            layout,
            before,
            keep if is_few else keep_nothing,
            is_new=is_new,
            is_deferred=is_deferred,
        )
        if not seen.unreadable:
            return _Found(seen, pivoted, cut.batch if deferred_from is None else deferred_from - 1)
    complete_to_batch = cut.batch if cut.ignores_watermark else _complete_to_batch(since, cut)
    changes = not_merged(since, before, table.spark).where(f"NOT {_is_deferred(cut)}")
    definition = layout.definition
    changes, seen, waiting = select_changes(
        changes,
        layout,
        before,
        holding,
        lambda letters: publish(table_letters(letters, definition)),
    )
    return _Found(
        seen, flatten_entries(changes, layout, all_plain=seen.all_plain), complete_to_batch, waiting
    )


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
    cut: Cut, committed: str = "unix_micros(commit_timestamp)", place: str = "kafka_partition"
) -> str:
    """Whether the cut defers a change, as SQL over its commit timestamp: the change is above the
    low watermark.
    """
    return (
        "false"
        if cut.ignores_watermark
        else f"({committed} >= {constant(cut.low_watermark or 0, place)})"
    )


def _horizon(order: OrderBy, before: TableState, cut: Cut, complete_to_batch: int) -> int | None:
    """The bound below which deletes may be forgotten.

    It is a commit timestamp. In a table ordered by sequence number, it is an ingest batch.
    """
    if order is OrderBy.COMMIT:
        return cut.horizon
    return max(
        filter(None, (before.horizon, cut.batch_horizons.of(complete_to_batch))), default=None
    )


def _after(
    table: Table,
    before: TableState,
    found: _Found,
    cut: Cut,
    dead: tuple[BlockingLetter, ...],
    attempt: str,
) -> TableState:
    """The table state after the merge, without the new tombstones."""
    seen, waiting, complete_to_batch = found.seen, found.waiting, found.complete_to_batch
    apply_watermark = cut.low_watermark
    if waiting is not None:
        complete_to_batch = min(complete_to_batch, waiting.batch - 1)
        apply_watermark = (
            None if apply_watermark is None else min(apply_watermark, waiting.committed)
        )
    after = replace(
        before,
        apply_number=before.apply_number + 1,
        attempt_id=attempt,
        to_batch=cut.batch,
        target_watermark=_brought_to(cut),
        merged=before.merged + seen.changes - seen.unreadable,
        letters=before.letters + seen.unreadable,
        dead_letters_since=before.dead_letters_since
        or (cut.chosen_at if seen.unreadable else None),
        highest_applied=max(before.highest_applied, seen.highest),
        has_residual=before.has_residual or seen.has_residual,
        apply_watermark=apply_watermark,
        complete_to_batch=complete_to_batch,
        as_of=max(filter(None, (before.as_of, cut.freshness.of(complete_to_batch))), default=None),
        blocked_rows=dead,
        # A blocked row may wait for a change that is older than the new tombstones.
        horizon=(
            before.horizon
            if dead
            else _horizon(table.layout.definition.order, before, cut, complete_to_batch)
        ),
    )
    return replace(
        after,
        inconsistent_since=(
            None if after.is_consistent_cut else before.inconsistent_since or cut.chosen_at
        ),
    )
