"""Apply: merges logged changes into a table (TBL-9 to TBL-13).

The order of effects is: dead letters, then the tombstone table, then the table's commit, which
names both. If an apply fails before its commit, the next one repeats all of it, with the same dead
letters under the same ids. Tombstones of the failed apply do not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from connector.dead_letters.blocked_rows import BlockingLetter
from connector.dead_letters.envelope import DeadLetter
from connector.errors import WriterConflictError
from connector.records.model import MAX_LONG
from connector.records.ordering import OrderBy
from connector.spark.apply.blocked_rows import BlockedFrom, BlockedRows
from connector.spark.apply.flatten import flatten_entries
from connector.spark.apply.frames import Cache, caching, uncached
from connector.spark.apply.merge import (
    is_sparse,
    merged_buckets,
    merged_rows,
    rows_of_changes,
)
from connector.spark.apply.select import NO_RULES, LetterRules, not_merged, select_changes
from connector.spark.apply.statistics import (
    BatchStatistics,
    FlatChanges,
    analyze,
    check_changelog,
    unapplied,
)
from connector.spark.apply.truncation import (
    IS_TOMBSTONE,
    Truncation,
    deletes_all,
    no_rows,
    not_truncated,
    older_rows,
    truncation_of,
)
from connector.spark.sql import constant
from connector.spark.storage.changelog import Changelog
from connector.spark.storage.dead_letters import table_letters
from connector.spark.storage.logged_batch import LoggedBatch
from connector.spark.storage.table import Table, new_attempt
from connector.state.accepted_losses import is_unconfirmed
from connector.state.apply_level import MergeFew, SmallApply, is_few
from connector.state.stream_progress import Cut
from connector.state.table_state import TableState

KEPT_CHANGES: Final = 200_000
"""Up to this many changes are kept in memory between their analysis and the merge. More are read
again.
"""
LEFT_TO_SPARK: Final = "left to Spark"
"""The step of an apply that is not small."""
_TRIES: Final = 5
"""How often an apply begins, if other programs replace files of its table."""


@dataclass(frozen=True, slots=True)
class Applied:
    """The new table state, how many changes were merged, how many became dead letters, and the
    bytes that were read without Spark. It `has_commit`, or is a position (ENG-7).
    """

    table_state: TableState
    changes: int
    letters: int
    bytes_read: int = 0
    has_commit: bool = True


def apply(
    table: Table,
    changelog: Changelog,
    source: str,
    cut: Cut,
    *,
    publish: Callable[[Iterable[DeadLetter]], int],
    on_step: Callable[[str], None] = lambda step: None,
    rules: LetterRules = NO_RULES,
    merge_few: MergeFew | None = None,
    turn: AbstractContextManager[object] = nullcontext(),  # noqa: B008, it has no state
) -> Applied | None:
    """Bring the table to `cut`, which was chosen from the changelog's progress. None: it is there,
    or at a later one.

    `publish` delivers dead letters, or raises. `merge_few` merges few changes without Spark, in the
    `turn` of small work. Raises `TableError`, `WriterConflictError`, `DeliveryError`. The table is
    then unchanged.

    If another program replaces files of the table meanwhile, without a change of rows, the apply
    begins again (RUN-3).
    """
    for left in reversed(range(_TRIES)):
        before = table.newest()
        try:
            return _apply(
                *(table, changelog, source, cut),
                publish=publish,
                on_step=on_step,
                rules=rules,
                merge_few=merge_few,
                turn=turn,
            )
        except WriterConflictError:
            version, state = table.newest()
            if not left or version == before[0] or state != before[1]:
                raise
    raise AssertionError


def _apply(
    table: Table,
    changelog: Changelog,
    source: str,
    cut: Cut,
    *,
    publish: Callable[[Iterable[DeadLetter]], int],
    on_step: Callable[[str], None],
    rules: LetterRules,
    merge_few: MergeFew | None,
    turn: AbstractContextManager[object],
) -> Applied | None:
    on_step("apply begun")
    (version, before), newest = table.newest(), changelog.newest()
    check_changelog(table, before, newest)
    if newest is None or cut.batch < before.to_batch:
        return None
    is_there = _is_at(before, cut)
    if is_there and not before.blocked_rows:
        return None
    blocked = None
    if table.layout.definition.block_rows:
        blocked = BlockedRows(
            *(table, changelog, before, newest, cut.batch),
            below=_below(cut),
            discarded=rules.discarded,
            horizon=cut.horizon,
        )
    if is_there and blocked is not None and blocked.blocking == before.blocked_rows:
        return None
    truncation = truncation_of(changelog, table.layout, before, cut.batch, _below(cut))
    is_plain = blocked is None and not before.blocked_rows
    is_plain = is_plain and not truncation.is_new and truncation.unnumbered is None
    if is_plain and merge_few is not None:
        # Work for an object store, or of Delta, waits for others more than it computes.
        with turn if table.log.is_own else nullcontext():
            applied = _apply_few(
                *(table, changelog, version, before, cut, newest, truncation), merge_few, on_step
            )
        if applied is not None:
            return applied
    on_step(LEFT_TO_SPARK)
    table.list_files()
    letters = _Letters(publish, partial(rules.published, table.layout.definition.name), before)
    with caching() as cache:
        selection = _selection(
            *(table, changelog, source, before, cut, truncation), blocked, letters, rules, cache
        )
        if truncation.unnumbered is not None:
            letters.publish(table_letters(truncation.unnumbered, table.layout.definition))
        assert selection.flat is not None
        on_step("letters published")
        blocking = blocked.blocking if blocked else ()
        after = _after(table, before, selection, cut, blocking, new_attempt(), newest.changelog_id)
        after = letters.counted_in(after)
        if not selection.statistics.changes and table.take_position(before, after, cut.chosen_at):
            on_step("position taken")
            return Applied(table.table_state(), 0, 0, has_commit=False)
        after = _write(table, selection.flat, truncation, version, before, after, cache, on_step)
    on_step("table committed")
    statistics = selection.statistics
    new_letters = statistics.unreadable + truncation.letters
    return Applied(after, statistics.changes - statistics.unreadable, new_letters)


def _apply_few(
    table: Table,
    changelog: Changelog,
    version: int,
    before: TableState,
    cut: Cut,
    newest: LoggedBatch,
    truncation: Truncation,
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
    rows = table.log.added(version)
    if rows is None:
        return None
    on_step("changes chosen")
    version_of_tombstones = table.tombstones.version()
    removed, attempt = table.tombstones.files(before), new_attempt()
    merged = merge_few(
        SmallApply(
            definition=definition,
            ids=layout.ids,
            buckets=layout.buckets,
            before=before,
            below=_below(cut),
            horizon=cut.horizon if definition.order is OrderBy.COMMIT else before.horizon,
            changelog=changelog.path,
            changes=recent.files,
            held=recent.held,
            table=table.path,
            rows=rows if recent.count else (),
            tombstones=table.tombstones.path,
            removed=removed,
            attempt_id=attempt,
            cores=cores,
            # A feed of changes, which Delta writes, would have each copied row.
            may_fold=not table.log.left_to_delta,
        )
    )
    if merged is None:
        return None
    on_step("letters published")
    to_batch = cut.batch if merged.deferred_from is None else merged.deferred_from - 1
    counts = (merged.changes, merged.has_residual, merged.highest)
    statistics = BatchStatistics(*counts, misfits=merged.misfits)
    selection = _Selection(statistics, to_batch, truncation)
    after = _after(table, before, selection, cut, (), attempt, newest.changelog_id)
    if not merged.changes and table.take_position(before, after, cut.chosen_at):
        on_step("position taken")
        return Applied(table.table_state(), 0, 0, merged.bytes_read, has_commit=False)
    if merged.all_count:
        after = replace(after, vacuumed_to=before.apply_number, attempt_ids={})
    if merged.tombstones:
        table.commit_tombstones(merged.tombstones, version_of_tombstones, before)
        attempts = {**after.attempt_ids, after.apply_number: attempt}
        after = replace(after, has_tombstones=True, attempt_ids=attempts)
    on_step("tombstones written")
    table.commit_actions(merged.table, version, after)
    on_step("table committed")
    return Applied(after, merged.changes, 0, merged.bytes_read)


def _write(
    table: Table,
    changes: FlatChanges,
    truncation: Truncation,
    version: int,
    before: TableState,
    after: TableState,
    cache: Cache,
    on_step: Callable[[str], None],
) -> TableState:
    """Write the tombstones, then commit the table. Returns the state that was committed."""
    statistics, horizon, rank = changes.statistics, after.horizon, None
    buckets = statistics.buckets
    files = table.files(version) if buckets or truncation.is_new else None
    is_row_level = is_sparse(table, statistics, files)
    if truncation.is_new and truncation.rank is not None:
        if deletes_all(before, truncation.rank):
            return _write_all(table, changes, before, after, cache, on_step)
        older = older_rows(table, version, files, truncation.rank)
        if older.count:
            rank, is_row_level = truncation.rank, older.is_row_level
            buckets = tuple(range(table.layout.buckets))
    if not buckets:
        on_step("tombstones written")
        table.commit(None, (), after)
        return after
    locations = None
    if is_row_level:
        rows, locations = merged_rows(
            *(table, changes, before, version, cache),
            files=files,
            horizon=horizon,
            truncated=rank,
        )
    else:
        rows = merged_buckets(table, changes, before, horizon=horizon, truncated=rank)
    if statistics.may_remove or rank is not None:
        # Two writes follow. The merge is computed once for both.
        rows = cache(rows, eager=locations is None)
        removed = rows.where("_changed AND NOT _exists" if rank is None else IS_TOMBSTONE)
        after = _with_tombstones(table, removed, before, after)
    on_step("tombstones written")
    rows = rows.where("_exists")
    if locations is None:
        table.commit(rows, buckets, after)
    else:
        table.commit_rows(rows, locations, version, files, after)
    return after


def _write_all(
    table: Table,
    changes: FlatChanges,
    before: TableState,
    after: TableState,
    cache: Cache,
    on_step: Callable[[str], None],
) -> TableState:
    """Replace all rows of the table by those of the changes, as `_write`. No file is read."""
    rows = no_rows(table)
    if changes.statistics.buckets:
        rows = rows_of_changes(changes, before, table.layout)
        if changes.statistics.may_remove:
            rows = cache(rows, eager=True)
            after = _with_tombstones(table, rows.where("NOT _exists"), before, after)
        rows = rows.where("_exists")
    on_step("tombstones written")
    table.commit(rows, range(table.layout.buckets), after)
    return after


def _with_tombstones(
    table: Table, removed: DataFrame, before: TableState, after: TableState
) -> TableState:
    """Add tombstones. Returns the state after the apply, which names them if there are any."""
    if not table.add_tombstones(removed, before, attempt=after.attempt_id):
        return after
    attempts = {**after.attempt_ids, after.apply_number: after.attempt_id}
    return replace(after, has_tombstones=True, attempt_ids=attempts)


class _Letters:
    """The dead letters of an apply. `published` returns all those of the table that were published
    before, if the ledger counts more than a number: then an older version was restored, or the
    table was made again, and the ledger may know some of these letters.
    """

    def __init__(
        self,
        publish: Callable[[Iterable[DeadLetter]], int],
        published: Callable[[int], Mapping[str, str] | None],
        before: TableState,
    ) -> None:
        self._publish, self._published, self._before = publish, published, before
        self._others: Mapping[str, str] | None = None
        self._ids = set[str]()

    def publish(self, letters: Iterable[DeadLetter]) -> int:
        """Publish dead letters."""
        self._others = self._published(self._before.letters)
        return self._publish(letters if self._others is None else self._noted(letters))

    def _noted(self, letters: Iterable[DeadLetter]) -> Iterator[DeadLetter]:
        for letter in letters:
            self._ids.add(letter.id)
            yield letter

    def counted_in(self, after: TableState) -> TableState:
        """The state after the apply, with the number of all letters."""
        new = after.letters - self._before.letters
        letters = self._before.letters_after(new, self._ids, self._others)
        return replace(after, letters=letters)


@dataclass(frozen=True, slots=True)
class _Selection:
    """The statistics of the changes that an apply merges, and the last batch of which it merges
    every change. `flat` are the changes, if Spark merges them.
    """

    statistics: BatchStatistics
    complete_to_batch: int
    truncation: Truncation
    blocked_from: BlockedFrom | None = None
    flat: FlatChanges | None = None


def _selection(
    table: Table,
    changelog: Changelog,
    source: str,
    before: TableState,
    cut: Cut,
    truncation: Truncation,
    blocked: BlockedRows | None,
    letters: _Letters,
    rules: LetterRules,
    cache: Cache,
) -> _Selection:
    """The changes that the cut adds to the table. Those that it cannot hold become dead letters.
    Those that a truncation deletes do nothing.
    """
    layout, after, to = table.layout, before.complete_to_batch, cut.batch
    recent = changelog.recent_changes(source, after=after, to=to)
    since = recent.rows() if recent else changelog.changes(source, after=after, to=to)
    since = not_truncated(since, layout, truncation.rank)
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
            return _Selection(changes.statistics, to_batch, truncation, flat=changes)
    to_batch = cut.batch if cut.ignores_watermark else _complete_to_batch(since, cut)
    new, definition = not_merged(since, before), layout.definition
    selected, statistics, blocked_from = select_changes(
        new.where(f"NOT {_is_deferred(cut)}"),
        layout,
        before,
        blocked,
        lambda changes: letters.publish(table_letters(changes, definition)),
        rules,
    )
    rows = flatten_entries(selected, layout, all_plain=statistics.all_plain)
    flat = FlatChanges(rows, statistics)
    return _Selection(statistics, to_batch, truncation, blocked_from, flat)


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
    truncation, apply_watermark = selection.truncation, cut.low_watermark
    complete_to_batch = truncation.complete_to(selection.complete_to_batch)
    letters = statistics.unreadable + truncation.letters
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
        merged=before.merged + statistics.changes - statistics.unreadable + truncation.is_new,
        letters=before.letters + letters,
        dead_letters_since=before.dead_letters_since or (cut.chosen_at if letters else None),
        highest_applied=max(before.highest_applied, statistics.highest, truncation.at),
        truncated=truncation.rank,
        misfits=dict(Counter(before.misfits) + Counter(statistics.misfits)),
        has_residual=before.has_residual or statistics.has_residual,
        apply_watermark=apply_watermark,
        complete_to_batch=complete_to_batch,
        as_of=max(
            filter(None, (before.as_of, cut.freshness.time_of(complete_to_batch))), default=None
        ),
        blocked_rows=blocking,
        lacks_lost_records=is_unconfirmed(cut.losses, table.layout.definition.name),
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
