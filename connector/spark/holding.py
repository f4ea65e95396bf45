"""Held rows in Spark: what is dead, what was replayed, and which changes wait (DLQ-3). `connector.hold` is the rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from connector.bookkeeping import Bookkeeping
from connector.errors import TableError
from connector.hold import HOLDING_REASONS, MAX_HELD, Dead, held
from connector.model import CONTROL_KEY
from connector.spark.changelog import Changelog, LoggedBatch
from connector.spark.layout import Layout
from connector.spark.merging import Survey, survey, unapplied
from connector.spark.pivot import PLACE, unreadable
from connector.spark.sql import constant
from connector.spark.table import Table

_FIRST_NAMES: Final = ("first_batch", "first_partition", "first_offset")
_FIRST: Final = tuple(
    f"order_position.{field} AS {name}" for field, name in zip(("ingest_batch", "kafka_partition", "offset"), _FIRST_NAMES, strict=True)
)
_DEAD: Final = (
    "row_key binary, dead_batch bigint, dead_partition int, dead_offset bigint, own_partition int, own_offset bigint, letter boolean"
)


@dataclass(frozen=True, slots=True)
class Waiting:
    """What of some changes waits: the smallest ingest batch and commit timestamp among them."""

    batch: int
    committed: int

    def join(self, other: Waiting | None) -> Waiting:
        """Of both."""
        return self if other is None else Waiting(min(self.batch, other.batch), min(self.committed, other.committed))


def holding_of(
    table: Table,
    changelog: Changelog,
    before: Bookkeeping,
    newest: LoggedBatch,
    to_batch: int,
    *,
    discarded: Callable[[], frozenset[str]] = frozenset,
    horizon: int | None = None,
) -> Holding | None:
    """What a table holds, with the batches up to `to_batch`; None for one that does not ask for it."""
    definition = table.layout.definition
    if not definition.hold_rows:
        return None
    return Holding(
        *(table.spark, definition.name, definition.source, changelog, before, to_batch),
        topic_id=newest.topic_id,
        discarded=discarded,
        horizon=horizon,
    )


def surveyed(
    changes: DataFrame,
    layout: Layout,
    before: Bookkeeping,
    holding: Holding | None,
    publish: Callable[[DataFrame], object],
) -> tuple[DataFrame, Survey, Waiting | None]:
    """The changes that can be merged, what one look at them tells, and what waits; `publish` is handed those that the table cannot hold.

    These are in the counts of the survey. Where rows are held, the later changes of their rows wait, too.
    """
    waiting = None
    if holding is not None:
        changes, waiting = holding.split(changes)
    seen = survey(changes, layout, before)
    if not seen.unreadable:
        return changes, seen, waiting
    bad = unreadable(changes, layout)
    letters, good = (changes.join(bad, [*PLACE], how) for how in ("left_semi", "left_anti"))
    publish(letters)
    if holding is None:
        return good, seen, waiting
    holding.add(letters)
    rest, more = holding.split(good)
    if more is None:
        return good, seen, waiting
    again = survey(rest, layout, before)
    counted = replace(again, changes=again.changes + seen.unreadable, unreadable=seen.unreadable)
    return rest, counted, more.join(waiting)


class Holding:
    """The held rows of one table at one cut. `dead` are the changes that they wait for."""

    def __init__(
        self,
        spark: SparkSession,
        table: str,
        source: str,
        changelog: Changelog,
        before: Bookkeeping,
        to_batch: int,
        *,
        topic_id: str,
        discarded: Callable[[], frozenset[str]] = frozenset,
        horizon: int | None = None,
    ) -> None:
        """Looks at the batches behind `before.to_batch`, up to `to_batch`; `discarded` is asked for the ids of letters if any row is held.

        Raises `TableError` if more is dead than a table can hold.
        """
        self._spark, self._table, self._before = spark, table, before
        replays = changelog.changes(source, after=before.to_batch, to=to_batch).where("order_position.attempt > 0")
        self._replays = replays.selectExpr(*_FIRST, "ingest_batch AS replay_batch")
        rejected = changelog.rejected_between(before.to_batch, to_batch).where(_holds(horizon))
        open_ = rejected.selectExpr("*", *_FIRST, "key AS held_key").join(
            self._replays, _was_replayed(rejected, self._replays), "left_anti"
        )
        self._found = _found(open_, table_letters=False)
        candidates = [*before.held, *self._found]
        self._replayed = self._replayed_among(candidates)
        self._unread: set[tuple[int, int]] = set()
        self._topic_id, self._horizon = topic_id, horizon
        self._discarded = discarded() if candidates else frozenset[str]()
        self.dead = self._held()

    def add(self, unreadable: DataFrame) -> None:
        """Changes of the batches looked at became table letters."""
        letters = _found(unreadable.selectExpr("*", *_FIRST, "row_key AS held_key"), table_letters=True)
        self._found += letters
        self._unread |= {dead.first for dead in letters}
        self.dead = self._held()

    def split(self, changes: DataFrame) -> tuple[DataFrame, Waiting | None]:
        """The changes that need not wait; and what waits of the others."""
        if not self.dead:
            return changes, None
        frame = F.broadcast(_frame(self._spark, self.dead))
        waits = _waits(changes, frame)
        seen = (
            changes.join(frame, waits, "left_semi")
            .agg(F.count("*"), F.min("ingest_batch"), F.expr("min(unix_micros(commit_timestamp))"))
            .first()
        )
        assert seen is not None
        waiting = Waiting(seen[1], seen[2]) if seen[0] else None
        return (changes.join(frame, waits, "left_anti") if waiting else changes), waiting

    def _held(self) -> tuple[Dead, ...]:
        replayed = {place: batch for place, batch in self._replayed.items() if place not in self._unread}
        dead = held(
            self._before.held,
            self._found,
            replayed=replayed,
            discarded=self._discarded,
            topic_id=self._topic_id,
            table=self._table,
            horizon=self._horizon,
        )
        if len(dead) > MAX_HELD:
            raise TableError(
                f"Table {self._table} holds rows for more than {MAX_HELD:,} dead changes",
                "So many records were rejected, and each holds the row of its key (hold_rows)",
                "Mend and replay them, or discard them (connector dead-letters), or set hold_rows = false",
            )
        return dead

    def _replayed_among(self, dead: Sequence[Dead]) -> dict[tuple[int, int], int]:
        if not dead:
            return {}
        places = F.broadcast(
            _frame(self._spark, dead).selectExpr("dead_partition AS first_partition", "dead_offset AS first_offset").distinct()
        )
        found = self._replays.join(places, ["first_partition", "first_offset"])
        newest = found.groupBy("first_partition", "first_offset").agg(F.max("replay_batch")).collect()
        return {(row[0], row[1]): row[2] for row in newest}


def not_merged(since: DataFrame, before: Bookkeeping, spark: SparkSession) -> DataFrame:
    """Of the changes since the last batch of which all is merged, those that may not be merged yet (`merging.unapplied`).

    Of held rows that is all of them, but for what is dead itself: that is a letter already. What is merged again changes nothing.
    """
    if not before.held:
        return unapplied(since, before)
    is_new = f"ingest_batch > {constant(before.to_batch, 'kafka_partition')}"
    above = f"unix_micros(commit_timestamp) >= {constant(before.brought_to or 0, 'kafka_partition')}"
    frame = _frame(spark, before.held)
    letters = frame.where("letter").selectExpr("own_partition AS kafka_partition", "own_offset AS offset")
    kept = since.join(F.broadcast(letters), [*PLACE], "left_anti")
    rows = frame.select("row_key").distinct().withColumn("was_held", F.lit(True))
    marked = kept.join(F.broadcast(rows), "row_key", "left")
    return marked.where(f"was_held OR {is_new} OR {above}").select(*since.columns)


def _frame(spark: SparkSession, dead: Iterable[Dead]) -> DataFrame:
    rows = [(one.row_key, one.ingest_batch, *one.first, *one.newest, one.table_letter) for one in dead]
    return spark.createDataFrame(rows, _DEAD)


def _holds(horizon: int | None) -> str:
    """Whether a rejected record may hold the row of its key."""
    reasons = ", ".join(f"'{reason}'" for reason in sorted(HOLDING_REASONS))
    is_row = f"octet_length(key) > 0 AND key <> X'{CONTROL_KEY.hex()}'"
    return f"reason IN ({reasons}) AND {is_row} AND unix_micros(ingest_time) >= {horizon or 0}L"


def _was_replayed(rejected: DataFrame, replays: DataFrame) -> Column:
    position = rejected["order_position"]
    is_same = (position["kafka_partition"] == replays["first_partition"]) & (position["offset"] == replays["first_offset"])
    return is_same & (replays["replay_batch"] > rejected["ingest_batch"])


def _found(rows: DataFrame, *, table_letters: bool) -> list[Dead]:
    columns = ("held_key", *_FIRST_NAMES, "ingest_batch", "kafka_partition", "offset", "unix_micros(ingest_time) AS since")
    found = rows.selectExpr(*columns).limit(MAX_HELD + 1).collect()
    return [
        Dead(
            row_key=bytes(row["held_key"]),
            ingest_batch=row["first_batch"],
            first=(row["first_partition"], row["first_offset"]),
            newest_batch=row["ingest_batch"],
            newest=(row["kafka_partition"], row["offset"]),
            table_letter=table_letters,
            since=row["since"],
        )
        for row in found
    ]


def _waits(changes: DataFrame, dead: DataFrame) -> Column:
    """Whether a change comes after a dead one of its row, and is no replay of it."""
    later = (changes["ingest_batch"] > dead["dead_batch"]) | (
        (changes["ingest_batch"] == dead["dead_batch"])
        & (changes["kafka_partition"] == dead["dead_partition"])
        & (changes["offset"] > dead["dead_offset"])
    )
    position = changes["order_position"]
    replay = (position["kafka_partition"] == dead["dead_partition"]) & (position["offset"] == dead["dead_offset"])
    return (changes["row_key"] == dead["row_key"]) & later & ~replay
