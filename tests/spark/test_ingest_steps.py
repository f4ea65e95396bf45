"""Ingest is killed between any two of its steps, and run again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connector.dead_letters.envelope import DeadLetter
from connector.errors import DeliveryError, ErrorCode, RegistryError
from connector.lake.state_reader import progress_of
from connector.records.codec import READER_SCHEMA, encode, frame
from connector.records.model import Heartbeat
from connector.records.rejection import Reason
from connector.spark.storage import changelog
from connector.state.stream_progress import Progress
from tests.spark.streams import HEADERS, CrashError, Stream, account, copied, crash_at, versions

STEPS = ("rows written", "logged", "letters published", "progress committed")

POISON = {
    b"rubbish": Reason.UNKNOWN_FRAMING,
    None: Reason.UNKNOWN_FRAMING,
    frame(encode(account("y", 4, name="Y"), 2), None): Reason.KEY_MISMATCH,
    frame(encode(account("x", 5, name="X"), 2)[:-3], None): Reason.UNDECODABLE,
}


def fill(stream: Stream) -> None:
    """Changes, a control record, poison, and what no reader sees, in two Kafka partitions."""
    stream.topic.send(
        account("a", 1, name="Ada"), Heartbeat("p", 2), account("b", 3, name="Bob", amount="7")
    )
    for place, value in enumerate(POISON):
        stream.topic.raw((b"x", value), None, at=place % 2)


@pytest.fixture(scope="module")
def calm(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Stream:
    """What becomes of the records if nothing happens."""
    stream = Stream(spark, tmp_path_factory.mktemp("calm"))
    fill(stream)
    stream.ingest()
    return stream


def test_nothing_lost_or_invented_when_nothing_happens(calm: Stream) -> None:
    """TBL-4, TBL-5, DLQ-1, DLQ-2: every offset stands once in the changelog, every bad record has
    one letter with its bytes and reason.
    """
    assert calm.logged_offsets() == calm.topic.offsets()
    assert {letter.value: letter.reason for letter in calm.letters} == POISON
    assert len(calm.letters) == len(POISON) == len({letter.id for letter in calm.letters})
    assert all(
        letter.headers == tuple(HEADERS) and letter.position.topic_id == "id-1"
        for letter in calm.letters
    )
    counted = {"UNKNOWN_FRAMING": 2, "KEY_MISMATCH": 1, "UNDECODABLE": 1}
    progress = calm.changelog().progress()
    derived = {
        name: getattr(progress, name)
        for name in ("batch_horizons", "freshness", "frontier", "rejected_since")
    }
    assert progress == Progress(ingest_batch=1, changes=2, control=1, rejected=counted, **derived)
    assert progress.frontier.undeclared == ["p"]


@pytest.mark.parametrize("step", STEPS[1:])
def test_resumable_at_every_step_of_ingest(
    spark: SparkSession, tmp_path: Path, calm: Stream, step: str
) -> None:
    """TBL-2, TBL-5, DLQ-4: the batch is found again, with the same letters and progress, whether it
    is read again or recovered.
    """
    torn = Stream(spark, tmp_path / "torn")
    fill(torn)
    with pytest.raises(CrashError):
        torn.ingest(torn.process(crash_at(step)))
    recovered = copied(torn, tmp_path / "recovered")

    torn.ingest()
    recovered.process().recover()

    for stream in (torn, recovered):
        assert stream.changelog().progress() == calm.changelog().progress()
        assert stream.logged_offsets() == calm.logged_offsets()
        assert stream.one_letter_each() == calm.one_letter_each()
        assert len(stream.letters) == len(POISON) * (2 if step == "letters published" else 1)


@pytest.mark.parametrize("step", STEPS[:2])
def test_resumable_at_every_step_of_a_batch_without_rejected_rows(
    spark: SparkSession, tmp_path: Path, step: str
) -> None:
    """TBL-5: rows and progress are one commit; before it nothing is visible, behind it nothing is
    left to do.
    """
    stream = Stream(spark, tmp_path)
    stream.topic.send(account("a", 1, name="Ada"), Heartbeat("p", 2))
    stream.ingest()
    stream.topic.send(account("b", 3, name="Bob"), Heartbeat("p", 4))
    before = versions(spark, stream.path)
    with pytest.raises(CrashError):
        stream.ingest(stream.process(crash_at(step)))
    is_committed = step == "logged"
    assert versions(spark, stream.path) == before + is_committed
    assert stream.changelog().progress().changes == 1 + is_committed
    stream.process().recover()
    assert versions(spark, stream.path) == before + is_committed

    assert stream.ingest().changes == 2
    assert versions(spark, stream.path) == before + 1
    assert stream.logged_offsets() == stream.topic.offsets()
    # What the attempt that died has written is nobody's.
    assert [len(stream.changelog().batch_rows(number).collect()) for number in (1, 2)] == [2, 2]


def test_a_frontier_too_large_for_metadata_is_a_row_of_the_same_commit(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TBL-5: it is found again by another process, with and without Spark, and is no record."""
    monkeypatch.setattr(changelog, "_FRONTIER_IN_METADATA", 100)
    stream = Stream(spark, tmp_path)
    for at in (1, 3):
        stream.topic.send(account("a", at, name="Ada"), Heartbeat("p", at + 1))
        progress = stream.ingest()
    assert versions(spark, stream.path) == 2
    assert stream.changelog().progress() == progress
    assert progress_of(str(tmp_path), "s", with_frontier=True) == progress
    assert stream.logged_offsets() == stream.topic.offsets()
    monkeypatch.undo()
    stream.topic.send(Heartbeat("p", 9))
    assert stream.ingest() == progress_of(str(tmp_path), "s", with_frontier=True)


def test_nothing_lost_when_letters_cannot_be_delivered(
    spark: SparkSession, tmp_path: Path, calm: Stream
) -> None:
    """TBL-2, DLQ-4: the batch fails; the next one waits for its letters and its progress."""
    stream = copied(calm, tmp_path / "copy")
    published = len(stream.letters)
    stream.topic.send(account("c", 6, name="Cid"))
    stream.topic.raw((b"x", b"more rubbish"))
    refused = stream.process()
    refused._world = replace(refused._world, publish=refuse)
    with pytest.raises(DeliveryError):
        stream.ingest(refused)
    stream.topic.read = dict(stream.topic.rest().end)
    assert (stream.changelog().progress().ingest_batch, len(stream.letters)) == (1, published)

    stream.topic.send(account("d", 7, name="Dan"))
    assert stream.ingest().ingest_batch == 3
    assert [letter.value for letter in stream.letters[published:]] == [b"more rubbish"]
    assert stream.logged_offsets() == stream.topic.offsets()


def refuse(letters: Iterable[DeadLetter]) -> int:
    raise DeliveryError(ErrorCode.DEAD_LETTERS_UNDELIVERED, "nobody answers")


def test_a_letter_of_a_known_schema_is_the_same_from_another_process(
    spark: SparkSession, tmp_path: Path
) -> None:
    """DLQ-4, REC-11, REC-13: registry down: the batch fails and makes no letters; up again: each id
    is asked once by a process.
    """
    asked: list[int] = []

    def schema_by_id(id_: int) -> str | None:
        asked.append(id_)
        if not up:
            raise RegistryError(ErrorCode.REGISTRY_UNREACHABLE, "nobody answers")
        return READER_SCHEMA if id_ in (7, 8) else None

    up = False
    stream = Stream(spark, tmp_path / "torn", schema_by_id=schema_by_id)
    stream.topic.send(account("a", 1, name="Ada"), schema_id=7)
    bad = frame(encode(account("b", 2, name="Bob"), 2), 7)
    stream.topic.raw((b"other key", bad), (b"x", frame(b"", 9)), (b"other key", bad))
    with pytest.raises(RegistryError):
        stream.ingest()
    assert (stream.letters, stream.changelog().newest()) == ([], None)

    up = True
    asked.clear()
    with pytest.raises(CrashError):
        stream.ingest(stream.process(crash_at("letters published")))
    assert sorted(asked) == [7, 9]

    process = stream.process()
    stream.ingest(process)
    assert [letter.reason for letter in stream.one_letter_each().values()] == [
        Reason.KEY_MISMATCH,
        Reason.UNKNOWN_SCHEMA,
        Reason.KEY_MISMATCH,
    ]
    assert len(stream.letters) == 6
    asked.clear()
    stream.topic.send(account("c", 3, name="Cid"), schema_id=8)
    stream.ingest(process)
    stream.topic.send(account("d", 4, name="Dan"), schema_id=7)
    stream.ingest(process)
    assert asked == [8]
    assert stream.changelog().progress().changes == 3


def test_nothing_lost_in_kafka_partitions_that_were_added(
    spark: SparkSession, tmp_path: Path, calm: Stream
) -> None:
    """TBL-5, REC-14: a new Kafka partition is read from its first offset; a range without offsets
    makes no batch.
    """
    stream = copied(calm, tmp_path / "copy")
    assert stream.ingest() == calm.changelog().progress()
    stream.topic.records.append([])
    stream.topic.raw((b"c", frame(encode(account("c", 8, name="Cid"), 3), None)), at=2)
    assert stream.ingest().changes == 3
    assert stream.logged_offsets() == stream.topic.offsets()
