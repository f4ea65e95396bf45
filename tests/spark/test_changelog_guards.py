"""The changelog under people and processes that do not keep to the rules: whatever they do is
noticed, and nothing is lost by it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import repeat
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connector.errors import (
    ConnectorError,
    TableError,
    TopicError,
    WriterConflictError,
)
from connector.records.rejection import Reason
from connector.spark.storage.changelog import Changelog
from connector.spark.storage.logged_batch import BatchRange
from tests.changes import change
from tests.spark.streams import STREAM, Stream, account, copied, versions


@pytest.fixture(scope="module")
def two_batches(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Stream:
    """Kafka partition 0 read to 4, 1 to 2."""
    stream = Stream(spark, tmp_path_factory.mktemp("two"))
    for at in (1, 2):
        stream.topic.send(*(account(row, at, name="x") for row in ("b", "d", "a")))
        stream.ingest()
    assert stream.topic.read == {0: 4, 1: 2}
    return stream


@pytest.fixture
def stream(two_batches: Stream, tmp_path: Path) -> Stream:
    return copied(two_batches, tmp_path / "copy")


def test_a_topic_with_fewer_kafka_partitions_is_an_error(two_batches: Stream) -> None:
    """REC-4: with cause and remedy. Spark says "you must specify all TopicPartitions"."""
    topic = two_batches.topic
    shorter = replace(two_batches, topic=replace(topic, records=topic.records[:1]))
    with pytest.raises(TopicError, match=r"has 1 Kafka partitions, but .* from 2") as caught:
        shorter.process().check_topic()
    assert caught.value.code == "TOPIC_REPLACED"
    two_batches.process().check_topic()


RANGES = {
    "the first batch again": BatchRange({0: 0, 1: 0}, {0: 2, 1: 1}),
    "an overlap": BatchRange({0: 3, 1: 2}, {0: 6, 1: 2}),
    "a gap": BatchRange({0: 5, 1: 2}, {0: 6, 1: 2}),
    "a gap in one Kafka partition, an overlap in the other": BatchRange({0: 5, 1: 1}, {0: 6, 1: 2}),
    "everything anew": BatchRange({0: 0, 1: 0}, {0: 6, 1: 2}),
    "the newest batch, but longer": BatchRange({0: 2, 1: 1}, {0: 5, 1: 2}),
    "a Kafka partition that nobody began at its start": BatchRange(
        {0: 4, 1: 2, 2: 1}, {0: 4, 1: 2, 2: 3}
    ),
}


@pytest.mark.parametrize("offsets", RANGES.values(), ids=RANGES.keys())
def test_nothing_lost_or_doubled_by_a_batch_that_does_not_continue(
    spark: SparkSession, two_batches: Stream, offsets: BatchRange
) -> None:
    """TBL-5: an old checkpoint restored, or a second driver: the stream stops, and nothing is
    written.
    """
    before = versions(spark, two_batches.path)
    with pytest.raises(WriterConflictError, match="checkpoint"):
        two_batches.process().batch(spark.range(0).toDF("never_looked_at"), offsets)
    assert versions(spark, two_batches.path) == before


def test_a_batch_that_was_logged_is_completed(spark: SparkSession, two_batches: Stream) -> None:
    """TBL-5: the range of the newest batch again: nothing is read or written."""
    before = versions(spark, two_batches.path)
    progress = two_batches.process().batch(
        spark.range(0).toDF("never_looked_at"), BatchRange({0: 2, 1: 1}, {0: 4, 1: 2})
    )
    assert progress == two_batches.changelog().progress()
    assert versions(spark, two_batches.path) == before


@pytest.mark.parametrize(
    ("is_small", "overtaken_at"),
    [
        *((False, "_commit"), (True, "_commit"), (True, "append_few")),
        *(pytest.param(False, at, marks=pytest.mark.long) for at in ("append", "prepare")),
    ],
)
def test_a_second_ingest_writes_nothing(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, is_small: bool, overtaken_at: str
) -> None:
    """TBL-5, MRG-3: two take the same batch. The later one is noticed, wherever it is overtaken,
    and the changelog has no offset twice.
    """
    stream.without_jobs = repeat(is_small)
    stream.topic.send(account("e", 3, name="x"), account("f", 3, name="x"))
    other, offsets = stream.process(), stream.topic.rest()
    original = getattr(Changelog, overtaken_at)

    def go_on(self: object, *args: object, **how: object) -> object:
        monkeypatch.setattr(Changelog, overtaken_at, original)
        stream.ingest(other, offsets)
        return original(self, *args, **how)

    monkeypatch.setattr(Changelog, overtaken_at, go_on)
    with pytest.raises(WriterConflictError):
        stream.ingest(stream.process(), offsets)
    assert stream.logged_offsets() == stream.topic.offsets()
    assert stream.changelog().progress().changes == 8


@pytest.mark.parametrize("is_small", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_changelog_that_vanishes_during_a_batch_is_no_second_ingest(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, is_small: bool
) -> None:
    """TBL-5: its folder is removed between the commit of a batch and the look at it."""

    def commit_and_remove(self: object, *args: object, **how: object) -> None:
        commit(self, *args, **how)
        shutil.rmtree(stream.path)

    commit: Callable[..., None] = Changelog._commit
    stream.without_jobs = repeat(is_small)
    stream.topic.send(account("e", 3, name="x"))
    monkeypatch.setattr(Changelog, "_commit", commit_and_remove)
    with pytest.raises(TableError, match="was removed while batch 3 was written"):
        stream.ingest()


@pytest.mark.long
@pytest.mark.parametrize(
    "step", [pytest.param("logged", marks=pytest.mark.long), "letters published"]
)
def test_a_second_ingest_that_logged_a_later_batch_is_noticed(stream: Stream, step: str) -> None:
    """TBL-5, TBL-14: it has ended this one's batch and logged the next: nothing is counted twice,
    and the error says so. By default, `test_a_second_ingest_writes_nothing` shows it.
    """

    def go_on(reached: str) -> None:
        if reached == step:
            stream.topic.send(account("e", 4, name="rival"))
            stream.topic.read = dict(offsets.end)
            stream.ingest()

    stream.topic.send(account("c", 3, name="x"))
    stream.topic.raw((b"x", b"rubbish"))
    offsets = stream.topic.rest()
    with pytest.raises(WriterConflictError, match="Another process wrote to batch 3 of stream s"):
        stream.ingest(stream.process(go_on), offsets)
    assert stream.topic.read == stream.topic.rest().end
    assert stream.logged_offsets() == stream.topic.offsets()
    assert stream.changelog().progress().ingest_batch == 4
    assert len(stream.one_letter_each()) == 1


@pytest.mark.long
def test_a_commit_of_another_program_is_noticed_and_can_be_restored(
    spark: SparkSession, stream: Stream
) -> None:
    """TBL-5, TBL-14: also if a commit of ours follows it. The restored last version repairs it. By
    default, `test_table_guards.py` shows it.
    """
    looking, ours = stream.changelog(), versions(spark, stream.path)
    assert looking.newest() is not None
    spark.sql(f"DELETE FROM delta.`{stream.path}` WHERE kafka_partition = 1")
    stream.topic.send(account("e", 3, name="x"))
    for changelog in (looking, stream.changelog()):
        with pytest.raises(TableError, match=r"DELETE.*RESTORE"):
            changelog.newest()
    with pytest.raises(TableError):
        stream.ingest()
    spark.sql(f"RESTORE TABLE delta.`{stream.path}` TO VERSION AS OF {ours}")
    stream.ingest(stream.process())
    assert stream.logged_offsets() == stream.topic.offsets()
    with pytest.raises(TableError):
        looking.newest()


def test_tables_of_other_programs_are_not_changed(
    spark: SparkSession, tmp_path: Path, two_batches: Stream
) -> None:
    """TBL-5: a folder of other files, a table of another program, another stream's changelog."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "notes.txt").write_text("mine")
    spark.range(3).write.format("delta").save(str(tmp_path / "numbers"))
    for path, name in (
        (f"{tmp_path}/files", "s"),
        (f"{tmp_path}/numbers", "s"),
        (two_batches.path, "another"),
    ):
        with pytest.raises(TableError):
            Changelog(spark, path, name).newest()
    (tmp_path / "empty" / "_delta_log").mkdir(parents=True)
    assert Changelog(spark, f"{tmp_path}/empty", "s").newest() is None


def test_a_topic_that_was_created_again_stops_the_stream(
    spark: SparkSession, stream: Stream
) -> None:
    """REC-4: another topic id under the same name: never a silent gap."""
    before = versions(spark, stream.path)
    stream.topic.topic_id = "id-2"
    stream.topic.send(account("e", 3, name="x"))
    with pytest.raises(TopicError, match=r"id-2.*id-1.*created again"):
        stream.ingest()
    assert versions(spark, stream.path) == before


@pytest.mark.systems
def test_bad_records_do_not_stop_a_stream_until_they_are_most_of_a_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    """DLQ-5: the stream halts once, with all letters published, and goes on at the next start; 999
    records are no disaster.
    """
    stream = Stream(spark, tmp_path)
    stream.topic.send(account("a", 1, name="x"))
    stream.topic.raw(*[(b"x", b"rubbish")] * 998)
    assert stream.ingest().ingest_batch == 1
    stream.topic.send(*(account(f"r{n}", 2, name="x") for n in range(499)))
    stream.topic.raw(*[(b"x", b"rubbish")] * 500, (b"x", None))
    with pytest.raises(
        ConnectorError,
        match=r"501 of 1000 records of batch 2.*UNKNOWN_FRAMING.*replay the dead letters",
    ) as halted:
        stream.ingest()
    assert halted.value.fields == {
        "stream": "s",
        "ingest_batch": 2,
        "reason": Reason.UNKNOWN_FRAMING,
    }
    assert len(stream.letters) == len(stream.one_letter_each()) == 998 + 501

    stream.topic.read = dict(stream.topic.rest().end)
    process = stream.process()
    process.recover()
    stream.topic.send(account("z", 3, name="x"))
    assert stream.ingest(process).ingest_batch == 3
    assert stream.logged_offsets() == stream.topic.offsets()


def test_a_stream_may_stop_at_the_first_bad_record(stream: Stream) -> None:
    """DLQ-5: once, with the letter published; what came with it is in the changelog."""
    stream.config = replace(STREAM, halt_on_first=True)
    stream.topic.send(account("e", 3, name="x"))
    stream.topic.raw((b"x", b"rubbish"))
    with pytest.raises(ConnectorError, match="records of batch"):
        stream.ingest()
    assert len(stream.letters) == 1
    assert stream.logged_offsets() == stream.topic.offsets()
    assert stream.ingest().ingest_batch == 3


@pytest.mark.parametrize("reject", [False, True])
def test_changes_of_unknown_tables_are_kept_or_rejected(
    spark: SparkSession, stream: Stream, reject: bool
) -> None:
    """TBL-7, DLQ-2: kept and counted, or dead letters."""
    stream.reject_unknown_tables = reject
    stream.topic.send(account("e", 3, name="x"), change(at=4, row_key=b"e", table="unheard.of"))
    progress = stream.ingest()
    assert (progress.changes, progress.unknown_tables) == ((7, 0) if reject else (8, 1))
    assert [letter.reason for letter in stream.letters] == (
        [Reason.UNKNOWN_TABLE] if reject else []
    )
    assert stream.logged_offsets() == stream.topic.offsets()
