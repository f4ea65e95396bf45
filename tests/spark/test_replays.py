"""What ingest makes of records that say that they are replays of dead letters (DLQ-10)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connector.dead_letters.repair import Content
from connector.dead_letters.replay import Decision, Verdict
from connector.records.codec import ChangeRecord, Schemas, decode, encode, frame
from connector.records.model import (
    ChildPartition,
    ChildPartitions,
    DataChange,
    DeleteFamily,
    Heartbeat,
    kafka_key,
)
from connector.records.ordering import OrderPosition
from connector.records.rejection import Reason
from connector.services.letter_effects import Effects
from connector.spark.reader import read_table
from tests.changes import change, delete_family
from tests.spark.streams import STREAM, Stream, account, definition, shown

WRONG_KEY = b"the key of another row"


def sent(said: DataChange) -> bytes:
    return frame(encode(said, 2), None)


def positions(stream: Stream) -> dict[tuple[int, int], str]:
    rows = stream.changelog().rows().select("kafka_partition", "offset", "order_position").collect()
    return {
        (row["kafka_partition"], row["offset"]): str(
            OrderPosition(**row["order_position"].asDict())
        )
        for row in rows
    }


def test_a_repaired_change_does_not_win_a_tie_against_a_later_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    """DLQ-10, MRG-3, replay_is_safe: it has the order position of its letter after each repair."""
    stream = Stream(spark, tmp_path / "w")
    table = stream.table()
    first, second = account("a", 5, name="first", amount="1"), account("a", 5, name="second")
    stream.topic.raw((WRONG_KEY, sent(first)), at=0)
    stream.ingest()
    stream.topic.send(second)
    stream.ingest()
    stream.apply(table)
    (letter,) = stream.letters

    stream.topic.replay(letter.id, 1, b"still wrong", sent(first), at=1)
    stream.ingest()
    again = stream.letters[-1]
    assert (again.reason, again.attempt, again.order_position) == (
        Reason.KEY_MISMATCH,
        1,
        "1/0/0/1",
    )
    stream.topic.replay(again.id, 2, b"a", sent(first), at=1)
    stream.ingest()
    stream.apply(table)

    assert positions(stream)[1, len(stream.topic.records[1]) - 1] == "1/0/0/2"
    assert shown(table)["a"] == {"id": "a", "name": "second", "amount": 1, "_unmapped": {}}


@pytest.mark.long
@pytest.mark.parametrize(
    "deletions",
    [(), pytest.param((DeleteFamily("f"),), marks=pytest.mark.long)],
    ids=["partial", "whole"],
)
def test_copies_of_a_replay_are_one_change_to_a_reader(
    spark: SparkSession, tmp_path: Path, deletions: tuple[DeleteFamily, ...]
) -> None:
    """TBL-16, newest_wins, replay_is_safe: a mirror has delivered a replay twice, and nothing was
    applied since. By default, `tests/property/test_effect_laws.py` shows it.
    """
    stream, made = Stream(spark, tmp_path), account("a", 5, name="x", amount="1")
    value = sent(replace(made, entries=(*deletions, *made.entries)))
    stream.table()
    stream.topic.raw((b"other", value))
    stream.ingest()
    (letter,) = stream.letters
    for _ in range(2):
        stream.topic.replay(letter.id, 1, b"a", value)
    stream.ingest()
    reading = read_table(spark, str(tmp_path), "accounts")
    assert (reading.changes, reading.rows.count()) == (2, 1)


@pytest.mark.long
def test_the_order_position_of_a_table_letter_is_that_of_its_change(
    spark: SparkSession, tmp_path: Path
) -> None:
    """DLQ-10, TBL-9. By default, `test_a_repaired_change_does_not_win_a_tie_against_a_later_one`
    shows it.
    """
    stream = Stream(spark, tmp_path / "w")
    table = stream.table()
    stream.topic.send(account("a", 5, name="first", amount="many"), account("a", 5, name="second"))
    stream.ingest()
    stream.apply(table)
    (letter,) = stream.letters
    assert letter.table == "accounts"

    stream.topic.replay(letter.id, 1, b"a", sent(account("a", 5, name="first", amount="7")))
    stream.ingest()
    stream.apply(table)
    assert shown(table)["a"] == {"id": "a", "name": "second", "amount": 7, "_unmapped": {}}


@pytest.mark.long
def test_a_claim_without_a_dead_letter_in_the_changelog_is_ignored(
    spark: SparkSession, tmp_path: Path
) -> None:
    """DLQ-10: no such row, a row that was not rejected, another topic; in the first batch there is
    no changelog to ask. By default, `test_a_repaired_change_does_not_win_a_tie_against_a_later_one`
    shows it.
    """
    stream = Stream(spark, tmp_path / "w")
    stream.topic.replay("id-1-0-7", 1, b"a", sent(account("a", 1, name="x")))
    stream.topic.raw((b"x", b"rubbish"), (b"a", sent(account("a", 2, name="y"))))
    stream.ingest()
    (rejected,) = (letter.id for letter in stream.letters)
    assert rejected == "id-1-0-1"
    for letter in ("id-1-0-9", "id-1-0-2", "id-1-0-1-accounts", "id-2-0-1", "id-1-1-1", rejected):
        stream.topic.replay(letter, 3, b"a", sent(account("a", 3, name="z")))
    stream.ingest()
    found = positions(stream)
    assert found[0, 0] == "1/0/0/1"
    assert [found[0, offset] for offset in range(3, 9)] == [
        *(f"2/0/{offset}/3" for offset in range(3, 8)),
        "1/0/1/3",
    ]


@pytest.mark.long
def test_a_replay_says_nothing_of_how_far_the_stream_is_complete(
    spark: SparkSession, tmp_path: Path
) -> None:
    """DLQ-10, WMK-2, watermark_is_honest: heartbeat, estimate and lineage of a replay count for
    nothing, believed or not. By default, `tests/unit/kafka/test_change_consumer.py` shows it.
    """
    stream = Stream(spark, tmp_path / "w")
    stream.topic.send_everywhere(
        ChildPartitions("p", 1, 0, (ChildPartition("p"),)), Heartbeat("p", 10)
    )
    before = stream.ingest()
    assert before.low_watermark == 11
    claims = replace(account("a", 90, name="x"), estimated_low_watermark=80)
    ends = ChildPartitions("p", 95, 0, (ChildPartition("q", ("p",)),))
    for at in (0, 1):
        for record in (
            Heartbeat("p", 90),
            claims,
            replace(claims, stream_partition="nobody"),
            ends,
        ):
            stream.topic.replay(
                "id-1-0-0", 1, kafka_key(record), frame(encode(record, 2), None), at=at
            )
    after = stream.ingest()
    assert (after.low_watermark, after.changes, after.control) == (11, 4, before.control + 4)
    assert after.frontier.partitions == before.frontier.partitions


def test_the_dry_run_says_what_would_become_of_each_row(
    spark: SparkSession, tmp_path: Path
) -> None:
    """DLQ-9, DLQ-10: of the rows as they stand, and of what is ingested and not applied yet;
    nothing of what is refused.
    """
    stream = Stream(spark, tmp_path / "w")
    table, wanted = stream.table(), definition()
    expected = {
        "new": "inserted",
        "old": "changed",
        "newer": "ignored",
        "pending": "ignored",
        "gone": "deleted",
    }
    lost = {row: account(row, 5, name="lost") for row in expected} | {
        "gone": change(delete_family(), at=5, row_key=b"gone")
    }
    for one in lost.values():
        stream.topic.raw((WRONG_KEY, sent(one)))
    stream.topic.send(
        *(
            account(row, 9 if row == "newer" else 2, name="known")
            for row in ("old", "newer", "pending", "gone")
        )
    )
    stream.ingest()
    stream.apply(table)
    stream.topic.send(account("pending", 9, name="known"))
    stream.ingest()

    effects = Effects(str(stream.folder), {"accounts": wanted}, None)
    decisions = [
        Decision(letter, Verdict.REPLAY, "", 1, 1, Content(one.row_key, letter.value, ()))
        for letter, one in zip(
            sorted(stream.letters, key=lambda letter: letter.position.offset),
            lost.values(),
            strict=True,
        )
    ]
    refused = Decision(stream.letters[0], Verdict.REFUSE, "why", 1, 1)
    found = list(effects.of_each([*decisions, refused], Schemas()))
    assert [effect for _, effect in found] == [
        *({"accounts": effect} for effect in expected.values()),
        {},
    ]
    (row,) = effects.rows_of(lost["pending"]).values()
    assert row == {"id": "pending", "name": "known", "amount": None, "_unmapped": {}}


@pytest.mark.long
def test_the_effect_of_a_late_change_is_published_as_a_new_change(
    spark: SparkSession, tmp_path: Path
) -> None:
    """DLQ-13, deletes_stay_deleted: newer cells stay, a remembered delete wins, a forgotten row
    comes back; a rebuild has the same.
    """
    s = 1_000_000
    stream = Stream(spark, tmp_path / "w", config=replace(STREAM, delete_retention_s=10))
    stream.topic.send_everywhere(ChildPartitions("p", 1, 0, (ChildPartition("p"),)))
    gone = change(delete_family(), at=95 * s, row_key=b"gone")
    stream.topic.send(
        account("a", 1 * s, name="Ada", amount="1"), account("a", 50 * s, amount="2"), gone
    )
    stream.topic.send_everywhere(Heartbeat("p", 100 * s))
    stream.ingest()
    table = stream.table()
    stream.apply(table)
    late = (
        account("a", 30 * s, name="late", amount="late"),
        account("gone", 30 * s, name="late"),
        account("new", 30 * s, name="late"),
    )
    stream.topic.send(
        *(replace(one, entries=one.entries[:1]) for one in late), account("a", 30 * s, amount="9")
    )
    stream.ingest()
    stream.apply(table)
    assert {letter.reason for letter in stream.letters} == {Reason.TOO_LATE}

    refused = []
    for letter in stream.letters:
        decoded = decode(letter.value, Schemas())
        assert isinstance(decoded, ChangeRecord)
        assert isinstance(decoded.record, DataChange)
        low_watermark = stream.changelog().progress().low_watermark
        effects = Effects(str(stream.folder), {"accounts": definition()}, low_watermark)
        new = effects.new_change(letter, decoded.record)
        if isinstance(new, str):
            refused.append(decoded.record.row_key)
        else:
            stream.topic.send(new)
            stream.ingest()
    assert sorted(refused) == [b"a", b"gone"], "a newer change wrote the amount; a delete is newer"
    stream.apply(table, now=stream.clock + 10**12)
    assert {key: row["name"] for key, row in shown(table).items()} == {"a": "late", "new": "late"}
    assert shown(table)["a"]["amount"] == 2
    assert shown(table) == stream.truth()
