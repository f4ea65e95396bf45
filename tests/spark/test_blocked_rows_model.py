"""Held rows beside a model that knows every arrival: drawn histories, in batches, each apply killed
first (DLQ-3, DLQ-10, TBL-10).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial, reduce
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from connector.records.model import ChildPartition, ChildPartitions, DataChange, Heartbeat
from connector.records.ordering import OrderPosition
from connector.spark.reader import read_table
from connector.state.stream_progress import Cut
from connector.tables.merge import join, lift, visible
from connector.tables.row import read_change, row_of
from tests.spark.streams import CrashError, Stream, account, crash_at, rows_by_key, shown
from tests.spark.test_apply_steps import STEPS
from tests.spark.test_blocked_rows import HOLDS, REMEMBERS, S, applied, cut_of, sent
from tests.spark.test_rebuild import rebuilt

ROWS = "abc"


@dataclass(frozen=True)
class Arrival:
    """A change of a row as it arrived. `first` is the place of the letter that it replays, its own
    if it is no replay.
    """

    batch: int
    kafka_partition: int
    offset: int
    first: tuple[int, int, int]
    attempt: int
    change: DataChange
    is_damaged: bool

    @property
    def is_good(self) -> bool:
        return not self.is_damaged and read_change(HOLDS, self.change) is None

    def is_after(self, dead: Arrival) -> bool:
        """Later in the order of arrival, and not committed before it, if anybody can know."""
        is_later = (self.change.row_key, dead.first) == (
            dead.change.row_key,
            min(dead.first, self.first),
        ) and self.first != dead.first
        return is_later and (
            dead.is_damaged or self.change.commit_timestamp >= dead.change.commit_timestamp
        )

    def letter_id(self) -> str:
        return f"id-1-{self.kafka_partition}-{self.offset}" + (
            "" if self.is_damaged else "-accounts"
        )


@dataclass
class IngestPorts:
    """All that arrived and what was discarded; `validated` are the table letters, `merged` the
    changes, that any apply has come to.
    """

    arrivals: list[Arrival] = field(default_factory=list)
    discarded: set[str] = field(default_factory=set)
    validated: set[Arrival] = field(default_factory=set)
    merged: set[Arrival] = field(default_factory=set)

    def see(
        self, cut: Cut, *, everything: bool = False
    ) -> tuple[dict[object, dict[str, object]], list[Arrival]]:
        """The table at a cut, and the letters that rows wait for. A reader sees `everything` that
        was ingested.
        """
        low = 2**63 if cut.ignores_watermark or everything else cut.low_watermark or 0
        seen = [
            one
            for one in self.arrivals
            if one.batch <= cut.batch and (one.is_damaged or one.change.commit_timestamp < low)
        ]
        newest = {one.first: one for one in seen}
        dead = [
            one
            for one in newest.values()
            if not one.is_good and one.letter_id() not in self.discarded
        ]
        validated = [
            one
            for one in seen
            if not one.is_damaged and not any(one.is_after(other) for other in dead)
        ]
        if not everything:
            self.validated |= {one for one in validated if not one.is_good}
            self.merged |= {one for one in validated if one.is_good}
        return _rows(one for one in validated if one.is_good), [
            one for one in dead if one in validated or one.is_damaged
        ]


def _rows(merged: Iterable[Arrival]) -> dict[object, dict[str, object]]:
    states: dict[bytes, list[object]] = {}
    for one in merged:
        lifted = lift(
            one.change, OrderPosition(*one.first, one.attempt), HOLDS.order, HOLDS.versions
        )
        states.setdefault(one.change.row_key, []).append(lifted)
    rows = (row_of(HOLDS, key, visible(reduce(join, known))) for key, known in states.items())  # type: ignore[arg-type]
    return {row["id"]: row for row in rows if row is not None}


class History:
    """What is sent to a stream, at random, and what the world knows of it."""

    def __init__(self, rng: Random, stream: Stream) -> None:
        self.rng, self.stream, self.world = rng, stream, IngestPorts()
        self._batch, self._waiting, self._discarded_next = 0, list[Arrival](), set[str]()

    def send(self) -> None:
        """A few changes, some of them damaged, some of a kind that the table cannot hold; few
        times, so that many are equal.
        """
        for _ in range(self.rng.randint(1, 5)):
            cells = {"name": str(self.rng.random())} if self.rng.random() < 0.7 else {}
            amount = self.rng.choice(("1", "2", "many"))
            change = account(
                self.rng.choice(ROWS), self.rng.randint(1, 6) * 10 * S, **cells, amount=amount
            )
            self._arrives(change, is_damaged=self.rng.random() < 0.2)

    def meet(self, letter: Arrival, *, is_over: bool) -> None:
        """Replay a letter, mended or as it was, or discard it soon, or leave it; if all `is_over`,
        mended.
        """
        fate = 0.0 if is_over else self.rng.random()
        if fate < 0.3:
            mended = account(
                letter.change.row_key.decode(),
                letter.change.commit_timestamp,
                name="mended",
                amount="7",
            )
            self._arrives(mended, is_damaged=False, replayed=letter)
        elif fate < 0.5:
            self._arrives(letter.change, is_damaged=letter.is_damaged, replayed=letter)
        elif fate < 0.65:
            self._discarded_next.add(letter.letter_id())

    def discard(self) -> None:
        self.world.discarded |= self._discarded_next

    def ingest(self) -> None:
        self.stream.ingest()
        self._batch += 1
        self.world.arrivals += self._waiting
        self._waiting = []

    def _arrives(
        self, change: DataChange, *, is_damaged: bool, replayed: Arrival | None = None
    ) -> None:
        at = change.row_key[0] % 2
        batch, offset, attempt = (
            self._batch + 1,
            len(self.stream.topic.records[at]),
            replayed.attempt + 1 if replayed else 0,
        )
        first = replayed.first if replayed else (batch, at, offset)
        record = sent(change, damaged=is_damaged)
        if replayed:
            self.stream.topic.replay(replayed.letter_id(), attempt, *record, at=at)
        else:
            self.stream.topic.raw(record, at=at)
        self._waiting.append(Arrival(batch, at, offset, first, attempt, change, is_damaged))


def check(history: History, cut: Cut) -> list[Arrival]:
    """The table is what the model makes of it, and says so; the letters that rows wait for."""
    stream, world = history.stream, history.world
    rows, dead = world.see(cut)
    table = stream.table(HOLDS)
    book = table.table_state()
    assert shown(table) == rows
    assert {(one.row_key, one.first) for one in book.blocked_rows} == {
        (one.change.row_key, one.first[1:]) for one in dead
    }
    assert book.is_consistent_cut == (not dead and not cut.ignores_watermark)
    published = {letter.id for letter in stream.letters if letter.table}
    assert published == {one.letter_id() for one in world.validated}, (
        "each that does not wait, and no other"
    )
    assert (book.letters, book.merged) == (
        len(world.validated),
        len(world.merged),
    ), "each is counted once"
    return dead


@pytest.mark.long
@pytest.mark.parametrize("depth", range(8))
def test_nothing_lost_of_a_blocked_row_after_a_crash_at_any_step(
    spark: SparkSession, tmp_path: Path, seed: int, depth: int
) -> None:
    """Each apply is killed once, at some step; fresh reads and rebuilds agree; once all is
    repaired, nothing waits.
    """
    rng = Random(f"{seed}/{depth}")
    stream = Stream(spark, tmp_path / "w", REMEMBERS)
    history = History(rng, stream)
    stream.topic.send_everywhere(ChildPartitions("p", 1, 0, (ChildPartition("p"),)))
    rounds, number, waits_for = 6 if depth else 1, 0, list[Arrival]()
    while number < rounds or waits_for:
        number += 1
        if number <= rounds:
            history.send()
        for letter in waits_for:
            history.meet(letter, is_over=number > rounds)
        stream.topic.send_everywhere(Heartbeat("p", number * 10 * S))
        history.ingest()
        if number > 1 and rng.random() < 0.3:
            fresh = read_table(
                spark,
                str(stream.folder),
                HOLDS.name,
                max_staleness_s=0,
                allow_stale=True,
                now=stream.clock,
            )
            assert (
                rows_by_key(fresh.rows, HOLDS)
                == history.world.see(cut_of(stream), everything=True)[0]
            )
        history.discard()
        bring = partial(rebuilt, wanted=HOLDS) if number > 1 and rng.random() < 0.2 else applied
        for on_step in (crash_at(rng.choice(STEPS)), lambda _: None):
            with suppress(CrashError):
                bring(stream, discarded=frozenset(history.world.discarded), on_step=on_step)
        waits_for = check(history, cut_of(stream))
    assert stream.table(HOLDS).table_state().is_consistent_cut
