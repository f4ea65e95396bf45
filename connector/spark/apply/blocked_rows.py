"""Blocked rows in Spark: which dead letters block, which were replayed, and which changes wait
for them (DLQ-3).

The rule is in `connector.dead_letters.blocked_rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from connector.dead_letters.blocked_rows import (
    BLOCKING_REASONS,
    MAX_BLOCKING,
    BlockingLetter,
    still_blocking,
)
from connector.errors import TableError
from connector.errors.tables import blocking_letters_too_many
from connector.records.model import CONTROL_KEY
from connector.spark.sql import constant, literal_rows
from connector.spark.storage.changelog_reader import ChangelogReader
from connector.spark.storage.logged_batch import LoggedBatch
from connector.spark.storage.table import Table
from connector.state.table_state import TableState
from connector.tables.definition import TableDefinition

MAX_REJECTED: Final = 100_000
"""An apply accepts up to this many dead letters that may block rows. Spark does not know which of
them were discarded.
"""

_FIRST_NAMES: Final = ("first_batch", "first_partition", "first_offset")
_FIRST: Final = tuple(
    f"order_position.{field} AS {name}"
    for field, name in zip(("ingest_batch", "kafka_partition", "offset"), _FIRST_NAMES, strict=True)
)
_BLOCKING: Final = (
    "row_key binary, blocking array<struct<position: struct<ingest_batch: bigint,"
    " kafka_partition: int, offset: bigint>, committed: bigint>>"
)


class BlockedFrom(NamedTuple):
    """The smallest ingest batch and the smallest commit timestamp of the changes that wait."""

    batch: int
    committed: int


class BlockedRows:
    """The blocked rows of a table at a cut. `blocking` are the dead letters that they wait for."""

    def __init__(
        self,
        table: Table,
        changelog: ChangelogReader,
        before: TableState,
        newest: LoggedBatch,
        to_batch: int,
        *,
        below: int | None = None,
        discarded: Callable[[], frozenset[str]] = frozenset,
        horizon: int | None = None,
    ) -> None:
        """Read the batches after `before.to_batch`, up to `to_batch`. `discarded` is called once,
        if there is a dead letter, for the ids of the discarded ones.

        A replay counts if this cut merges it: its commit timestamp is less than `below`, if that is
        given. Raises `TableError` for more dead letters than a table state can store.
        """
        definition = table.layout.definition
        self._spark, self._definition, self._before = table.spark, definition, before
        self._discarded: frozenset[str] | None = None
        self._topic_id, self._horizon = newest.topic_id, horizon
        is_merged = (
            "true"
            if below is None
            else f"unix_micros(commit_timestamp) < {constant(below, 'kafka_partition')}"
        )
        # A replay that the cut before deferred is after `complete_to_batch`. A replayed record may
        # also be a change of another table.
        replays = changelog.changes(None, after=before.complete_to_batch, to=to_batch).where(
            "order_position.attempt > 0"
        )
        self._replays = replays.where(f"table <> '{definition.source}' OR {is_merged}").selectExpr(
            *_FIRST, "ingest_batch AS replay_batch"
        )
        rejected = changelog.rejected(before.to_batch, to_batch)
        self._new = self._open(rejected.where(_may_block()), table_letters=False)
        # A replay can be rejected for a reason that does not block a row. It is still the newest
        # dead letter of a change that does.
        firsts = {letter.first for letter in [*before.blocked_rows, *self._new]}
        if firsts:
            of_replays = f"NOT ({_may_block()}) AND order_position.attempt > 0"
            again = self._open(rejected.where(of_replays), table_letters=False)
            self._new += [letter for letter in again if letter.first in firsts]
        self._replayed = self._newest_replays([*before.blocked_rows, *self._new])
        self._ask = discarded
        self.blocking = self._still_blocking()

    def add(self, unreadable: DataFrame) -> None:
        """Add the changes that the table cannot hold, and that wait for no other dead letter."""
        letters = self._open(unreadable, table_letters=True)
        letters.sort(key=lambda letter: (letter.ingest_batch, letter.first, letter.newest_batch))
        for letter in letters:
            change = (letter.row_key, letter.ingest_batch, letter.first, letter.committed or 0)
            if not any(earlier.is_before(*change) for earlier in self.blocking):
                self._new.append(letter)
                self.blocking = self._still_blocking()

    def split(self, changes: DataFrame) -> tuple[DataFrame, BlockedFrom | None]:
        """The changes that do not wait, and where the waiting changes begin."""
        if not self.blocking:
            return changes, None
        marked = mark_blocked(changes, self.blocking)
        least = marked.where("is_blocked").agg(
            F.min("ingest_batch"), F.expr("min(unix_micros(commit_timestamp))")
        )
        row = least.first()
        assert row is not None
        if row[0] is None:
            return changes, None
        return marked.where("NOT is_blocked").select(*changes.columns), BlockedFrom(*row)

    def _still_blocking(self) -> tuple[BlockingLetter, ...]:
        if self._discarded is None and (self._before.blocked_rows or self._new):
            self._discarded = self._ask()
        blocking = still_blocking(
            self._before.blocked_rows,
            self._new,
            replayed=self._replayed,
            discarded=self._discarded or frozenset(),
            topic_id=self._topic_id,
            table=self._definition.name,
            horizon=self._horizon,
        )
        if len(blocking) > MAX_BLOCKING:
            raise _too_many(self._definition, MAX_BLOCKING)
        return blocking

    def _newest_replays(self, letters: Sequence[BlockingLetter]) -> dict[tuple[int, int], int]:
        """The newest batch with a replay of each of these dead letters, by their first position."""
        if not letters:
            return {}
        firsts = {letter.first for letter in letters}
        named = literal_rows(self._spark, firsts, "first_partition int, first_offset bigint")
        replays = self._replays.join(F.broadcast(named), ["first_partition", "first_offset"])
        newest = replays.groupBy("first_partition", "first_offset").agg(F.max("replay_batch"))
        return {(row[0], row[1]): row[2] for row in newest.collect()}

    def _open(self, letters: DataFrame, *, table_letters: bool) -> list[BlockingLetter]:
        """The dead letters that a row waits for: neither too old nor replayed since."""
        young = letters.where(f"unix_micros(ingest_time) >= {self._horizon or 0}L")
        named = young.selectExpr("*", *_FIRST)
        rows = named.join(self._replays, _was_replayed(named, self._replays), "left_anti")
        return _letters_in(rows, self._definition, table_letters=table_letters)


def mark_blocked(changes: DataFrame, blocking: Iterable[BlockingLetter]) -> DataFrame:
    """The changes, with a column `is_blocked` for those that wait: `BlockingLetter.is_before`."""
    by_row: dict[bytes, list[tuple[tuple[int, int, int], int | None]]] = {}
    for letter in blocking:
        position = (letter.ingest_batch, *letter.first)
        by_row.setdefault(letter.row_key, []).append((position, letter.committed))
    rows = literal_rows(changes.sparkSession, by_row.items(), _BLOCKING)
    of_change = (
        "struct(order_position.ingest_batch, order_position.kafka_partition, order_position.offset)"
    )
    is_before = (
        f"d.position < {of_change} AND (d.committed IS NULL OR d.committed <="
        " unix_micros(commit_timestamp))"
    )
    is_blocked = f"coalesce(exists(blocking, d -> {is_before}), false) AS is_blocked"
    return changes.join(F.broadcast(rows), "row_key", "left").selectExpr(
        *changes.columns, is_blocked
    )


def _may_block() -> str:
    """Whether a rejected record may block the row of its key."""
    reasons = ", ".join(f"'{reason}'" for reason in sorted(BLOCKING_REASONS))
    return f"reason IN ({reasons}) AND octet_length(key) > 0 AND key <> X'{CONTROL_KEY.hex()}'"


def _was_replayed(letters: DataFrame, replays: DataFrame) -> Column:
    is_same = [letters[name] == replays[name] for name in ("first_partition", "first_offset")]
    return is_same[0] & is_same[1] & (replays["replay_batch"] > letters["ingest_batch"])


def _too_many(definition: TableDefinition, limit: int) -> TableError:
    return blocking_letters_too_many(definition.name, definition.stream, f"{limit:,}")


def _letters_in(
    rows: DataFrame, definition: TableDefinition, *, table_letters: bool
) -> list[BlockingLetter]:
    key = "row_key AS blocked_key" if table_letters else "key AS blocked_key"
    times = ("unix_micros(ingest_time) AS since", "unix_micros(commit_timestamp) AS committed")
    letters = (
        rows.selectExpr(key, *_FIRST_NAMES, "ingest_batch", "kafka_partition", "offset", *times)
        .limit(MAX_REJECTED + 1)
        .collect()
    )
    if len(letters) > MAX_REJECTED:
        raise _too_many(definition, MAX_REJECTED)
    return [
        BlockingLetter(
            row_key=bytes(row["blocked_key"]),
            ingest_batch=row["first_batch"],
            first=(row["first_partition"], row["first_offset"]),
            newest_batch=row["ingest_batch"],
            newest=(row["kafka_partition"], row["offset"]),
            table_letter=table_letters,
            since=row["since"],
            committed=row["committed"] if table_letters else None,
        )
        for row in letters
    ]
