"""A table that holds a row while a change of it is dead (DLQ-3, TBL-16)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connector.records.codec import encode, frame
from connector.records.model import ChildPartition, ChildPartitions, DataChange, Heartbeat
from connector.spark.apply.apply import Applied, apply
from connector.spark.apply.select import LetterRules
from connector.spark.reader import read_table
from connector.state.stream_progress import Cut
from tests.spark.streams import STREAM, Stream, account, copied, definition, rows_by_key, shown
from tests.spark.test_rebuild import rebuilt

S = 1_000_000
HOLDS = definition(block_rows=True)
REMEMBERS = replace(STREAM, delete_retention_s=10**7)
"""No letter of its is ever too old."""


def sent(change: DataChange, *, damaged: bool = False) -> tuple[bytes, bytes]:
    value = frame(encode(change, 2), None)
    return change.row_key, value[:-1] if damaged else value


def names(stream: Stream) -> dict[object, object]:
    return {key: row["name"] for key, row in shown(stream.table(HOLDS)).items()}


def cut_of(stream: Stream) -> Cut:
    return stream.changelog().progress().cut(stream.clock, stream.config.stall_after_s)


def applied(
    stream: Stream,
    discarded: frozenset[str] = frozenset(),
    on_step: Callable[[str], None] = lambda step: None,
) -> Applied | None:
    table, changelog = stream.table(HOLDS), stream.changelog()
    return apply(
        table,
        changelog,
        "t",
        cut_of(stream),
        publish=stream.publish,
        on_step=on_step,
        rules=LetterRules(lambda: discarded),
    )


@pytest.fixture(scope="module")
def applied_once(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Stream:
    """Two rows, of which the second change of `a` is dead, and more of both; complete below 100
    s.
    """
    found = Stream(spark, tmp_path_factory.mktemp("blocked"), REMEMBERS)
    found.topic.send_everywhere(ChildPartitions("p", 1, 0, (ChildPartition("p"),)))
    found.topic.raw(sent(account("a", 1 * S, name="a1")), sent(account("b", 1 * S, name="b1")))
    found.topic.raw(sent(account("a", 2 * S, name="a2", amount="2"), damaged=True))
    found.topic.raw(sent(account("a", 3 * S, name="a3")), sent(account("b", 3 * S, name="b3")))
    found.topic.send_everywhere(Heartbeat("p", 100 * S))
    found.ingest()
    applied(found)
    return found


@pytest.fixture
def stream(applied_once: Stream, tmp_path: Path) -> Stream:
    return copied(applied_once, tmp_path / "w")


@pytest.mark.long
def test_later_changes_of_a_blocked_row_wait_for_its_dead_letter(stream: Stream) -> None:
    """Other rows do not wait. The table names the blocked rows, and computes nothing again without
    a new change. By default, the next test shows it.
    """
    assert names(stream) == {"a": "a1", "b": "b3"}
    book = stream.table(HOLDS).table_state()
    assert [dead.row_key for dead in book.blocked_rows] == [b"a"]
    assert (book.is_consistent_cut, book.apply_watermark, book.complete_to_batch) == (
        False,
        3 * S,
        0,
    )
    assert applied(stream) is None

    stream.topic.raw(sent(account("a", 5 * S, amount="5")), sent(account("b", 5 * S, amount="6")))
    stream.ingest()
    applied(stream)
    assert shown(stream.table(HOLDS))["a"]["amount"] is None
    assert shown(stream.table(HOLDS))["b"]["amount"] == 6
    fresh = read_table(
        stream.spark, str(stream.folder), "accounts", allow_stale=True, now=stream.clock
    )
    assert rows_by_key(fresh.rows, HOLDS) == shown(stream.table(HOLDS))
    assert not fresh.is_consistent_cut


def test_a_replay_releases_the_row_with_all_that_waited(stream: Stream) -> None:
    """DLQ-10: rejected again it still waits; taken, it is in its place. In the end the table is as
    if nothing had been bad.
    """
    (letter,) = stream.letters
    good = sent(account("a", 2 * S, name="a2", amount="2"))
    stream.topic.replay(
        letter.id, 1, *sent(account("a", 2 * S, name="a2", amount="2"), damaged=True)
    )
    stream.topic.raw(sent(account("a", 4 * S, name="a4")))
    stream.ingest()
    applied(stream)
    assert names(stream)["a"] == "a1"

    stream.topic.replay(stream.letters[-1].id, 2, *good)
    stream.ingest()
    applied(stream)
    assert shown(stream.table(HOLDS))["a"] == {
        "id": "a",
        "name": "a4",
        "amount": 2,
        "_unmapped": {},
    }
    book = stream.table(HOLDS).table_state()
    assert (book.blocked_rows, book.is_consistent_cut, book.complete_to_batch) == ((), True, 3)
    assert shown(stream.table(HOLDS)) == stream.truth(HOLDS)


@pytest.mark.long
def test_a_replay_that_is_a_change_of_another_table_releases_the_row(stream: Stream) -> None:
    """DLQ-3: the row of the record is unknown before the repair. A replay that is too late by then
    is the newest letter nevertheless.
    """
    (letter,) = stream.letters
    stream.topic.replay(letter.id, 1, *sent(account("a", 2 * S, name="a2"), damaged=True))
    stream.ingest()
    applied(stream)
    assert names(stream)["a"] == "a1"
    elsewhere = replace(account("a", 2 * S, name="theirs"), table="others")
    stream.topic.replay(stream.letters[-1].id, 2, *sent(elsewhere))
    stream.ingest()
    applied(stream)
    assert names(stream) == {"a": "a3", "b": "b3"}
    assert stream.table(HOLDS).table_state().is_consistent_cut


@pytest.mark.long
def test_reads_wait_for_blocked_rows_as_applies_do(stream: Stream) -> None:
    """DLQ-3, TBL-16: on and off; a rebuild that holds more is no younger than what it shows."""
    off = definition()
    stream.topic.raw(sent(account("a", 5 * S, name="a5")))
    stream.ingest()
    for wanted, name in ((off, "a5"), (HOLDS, "a5")):
        stream.apply(stream.table(wanted))
        fresh = read_table(
            stream.spark,
            str(stream.folder),
            "accounts",
            allow_stale=True,
            max_staleness_s=0,
            now=stream.clock,
        )
        assert rows_by_key(fresh.rows, wanted)["a"]["name"] == name
        assert fresh.is_consistent_cut == stream.table(wanted).table_state().is_consistent_cut
    as_of = stream.table(HOLDS).table_state().as_of
    made = rebuilt(stream, HOLDS)
    assert names(stream)["a"] == "a1"
    assert as_of is not None
    assert (made.table_state.as_of or 0) < as_of
    assert (made.table_state.letters, made.table_state) == (0, stream.table(HOLDS).table_state())


@pytest.mark.long
def test_a_discarded_or_old_letter_releases_its_row(stream: Stream) -> None:
    """DLQ-3: parked is not enough, which is for the ledger to say."""
    (letter,) = stream.letters
    assert applied(stream, frozenset({"id-1-0-99"})) is None
    applied(stream, frozenset({letter.id}))
    assert names(stream) == {"a": "a3", "b": "b3"}
    assert stream.table(HOLDS).table_state().is_consistent_cut


@pytest.mark.long
def test_a_table_letter_blocks_its_row(stream: Stream) -> None:
    """TBL-9: what the table cannot hold was no rejected record; its letter is published once, and
    counted once.
    """
    stream.topic.raw(
        sent(account("b", 6 * S, name="bad", amount="many")), sent(account("b", 7 * S, name="b7"))
    )
    stream.ingest()
    applied(stream)
    stream.topic.raw(sent(account("c", 8 * S, name="c8")))
    stream.ingest()
    applied(stream)
    assert names(stream) == {"a": "a1", "b": "b3", "c": "c8"}
    (letter,) = (one for one in stream.letters if one.table)
    assert stream.table(HOLDS).table_state().letters == 1

    stream.topic.replay(letter.id, 1, *sent(account("b", 6 * S, name="b6", amount="6")))
    stream.ingest()
    applied(stream)
    assert shown(stream.table(HOLDS))["b"] == {
        "id": "b",
        "name": "b7",
        "amount": 6,
        "_unmapped": {},
    }
    assert [dead.row_key for dead in stream.table(HOLDS).table_state().blocked_rows] == [b"a"]
    assert stream.table(HOLDS).table_state().letters == 1
