"""Ingest is killed between any two of its steps, and run again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import repeat
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connector.dead_letters.envelope import DeadLetter
from connector.errors import BrokerError, DeliveryError
from connector.kafka.topics import partition_of
from connector.lake.state_reader import progress_of
from connector.records.codec import SCHEMA, encode, frame
from connector.records.model import CONTROL_KEY, Heartbeat, ModType, RowImage, Rule
from connector.records.rejection import Reason
from connector.spark.storage import changelog
from connector.state.source_checks import SchemaFields
from connector.state.stream_progress import Progress
from connector.validation import Limits, RowImages
from tests.changes import NEWER_SCHEMA, change, delete_family, in_newer_schema
from tests.spark.streams import (
    HEADERS,
    CrashError,
    Stream,
    account,
    copied,
    crash_at,
    job_count,
    shown,
    versions,
)

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
    """TBL-4, TBL-5, DLQ-1, DLQ-2: every offset is in the changelog once, every bad record has
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


@pytest.mark.systems
@pytest.mark.parametrize("step", [STEPS[0], pytest.param(STEPS[1], marks=pytest.mark.long)])
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
    rows = stream.changelog().rows()
    assert [rows.where(f"ingest_batch = {number}").count() for number in (1, 2)] == [2, 2]


@pytest.mark.usefixtures("compacts_at_once")
@pytest.mark.parametrize("is_small", [True, False])
def test_resumable_when_the_files_of_a_batch_were_compacted(
    spark: SparkSession, tmp_path: Path, is_small: bool
) -> None:
    """TBL-5, TBL-15, ENG-10: its rows are then in files with rows of another batch."""
    torn = Stream(spark, tmp_path / "torn", without_jobs=repeat(is_small))
    torn.topic.send(account("a", 1, name="Ada"), Heartbeat("p", 2))
    torn.ingest()
    fill(torn)
    with pytest.raises(CrashError):
        torn.ingest(torn.process(crash_at("logged")))
    compacted = copied(torn, tmp_path / "compacted")
    rewritten = compacted.changelog().rewrite()
    assert rewritten is not None
    compacted.changelog().commit_rewritten(rewritten)
    for stream in (torn, compacted):
        stream.process().recover()
    assert compacted.changelog().progress() == torn.changelog().progress()
    assert compacted.changelog().progress().changes == 3
    assert compacted.one_letter_each() == torn.one_letter_each()


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
    refused._ports = replace(refused._ports, publish=refuse)
    with pytest.raises(DeliveryError):
        stream.ingest(refused)
    stream.topic.read = dict(stream.topic.rest().end)
    assert (stream.changelog().progress().ingest_batch, len(stream.letters)) == (1, published)

    stream.topic.send(account("d", 7, name="Dan"))
    assert stream.ingest().ingest_batch == 3
    assert [letter.value for letter in stream.letters[published:]] == [b"more rubbish"]
    assert stream.logged_offsets() == stream.topic.offsets()


def refuse(letters: Iterable[DeadLetter]) -> int:
    raise DeliveryError("DEAD_LETTERS_UNDELIVERED", "nobody answers")


@pytest.mark.systems
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
            raise BrokerError("REGISTRY_UNREACHABLE", "nobody answers")
        return SCHEMA if id_ in (7, 8) else None

    up = False
    stream = Stream(spark, tmp_path / "torn", schema_by_id=schema_by_id)
    stream.topic.send(account("a", 1, name="Ada"), schema_id=7)
    bad = frame(encode(account("b", 2, name="Bob"), 2), 7)
    stream.topic.raw((b"other key", bad), (b"x", frame(b"", 9)), (b"other key", bad))
    with pytest.raises(BrokerError):
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


UNKNOWN = SchemaFields(("ChangeRecord.note", "DataChange.colour"), 3)


@pytest.mark.long
@pytest.mark.parametrize("dies_at", [None, pytest.param("logged", marks=pytest.mark.long)])
def test_records_of_a_schema_with_unknown_fields_are_kept_and_counted(
    spark: SparkSession, tmp_path: Path, dies_at: str | None
) -> None:
    """ING-3, EVO-10: by schema and field, with their bytes; also by a process that continues
    another one's batch. By default, `tests/property/test_batch_laws.py` shows it.
    """
    schemas = {7: SCHEMA, 9: NEWER_SCHEMA}
    stream = Stream(spark, tmp_path, schema_by_id=schemas.get)
    new = account("a", 1, name="Ada")
    values = [in_newer_schema(record, 2, 9) for record in (new, new, Heartbeat("p", 5))]
    stream.topic.raw(*((b"a", value) for value in values[:2]), (CONTROL_KEY, values[2]))
    stream.topic.send(account("b", 2, name="Bob"), schema_id=7)
    bad = in_newer_schema(account("c", 3, name="Cid"), 2, 9)
    if dies_at is not None:
        stream.topic.raw((b"other key", bad))
        with pytest.raises(CrashError):
            stream.ingest(stream.process(crash_at(dies_at)))
    progress = stream.ingest()
    assert progress.checks.unknown_fields == {9: UNKNOWN}
    assert (progress.changes, progress.control) == (3, 1)
    kept = stream.changelog().rows().where("kind <> 'rejected' AND value IS NOT NULL")
    assert sorted(bytes(row["value"]) for row in kept.collect()) == sorted(values)
    table = stream.table()
    stream.apply(table)
    assert sorted(map(str, shown(table))) == ["a", "b"]


def test_row_images_that_contradict_their_entries_are_counted(
    spark: SparkSession, tmp_path: Path
) -> None:
    """ING-7"""
    stream = Stream(spark, tmp_path)
    says = {
        ModType.DELETE: [account("a", 1, name="Ada"), account("b", 1, name="Bob")],
        ModType.INSERT: [change(delete_family(), row_key=b"c"), account("d", 1, name="Dan")],
        ModType.UPDATE: [change(delete_family(), row_key=b"e")],
    }
    for mod_type, changes in says.items():
        stream.topic.send(*(replace(one, row_image=RowImage(mod_type)) for one in changes))
    assert stream.ingest().checks.row_images == {"DELETE": 2, "INSERT": 1}

    stream.config = replace(stream.config, limits=Limits(row_images=RowImages.REJECT))
    stream.topic.send(replace(account("a", 2, name="Ada"), row_image=RowImage(ModType.DELETE)))
    progress = stream.ingest()
    assert progress.rejected == {"INVALID/ROW_IMAGE": 1}
    assert progress.checks.row_images == {"DELETE": 2, "INSERT": 1}
    assert [letter.rule for letter in stream.letters] == [Rule.ROW_IMAGE]


def test_keys_in_the_wrong_kafka_partition_are_found_once_a_minute(
    spark: SparkSession, tmp_path: Path
) -> None:
    """ING-1: over the number of Kafka partitions that a record names; a replay is exempt, and no
    batch in between takes a sample.
    """
    stream = Stream(spark, tmp_path, partition_of=partition_of)
    keys = [b"%d" % n for n in range(8)]
    wrong = []
    for n, key in enumerate(keys):
        place = partition_of(key, 2) if n else 1 - partition_of(key, 2)
        wrong += [(key, place, len(stream.topic.records[place]))] if not n else []
        stream.topic.raw(
            (key, frame(encode(account(key.decode(), 1, name="x"), 2), None)), at=place
        )
    # It was written when the topic had one Kafka partition.
    old = frame(encode(account("old", 1, name="x"), 1), None)
    stream.topic.raw((b"old", old), at=0)
    stream.topic.replay(
        "id-1-0-0", 1, keys[0], frame(encode(account("0", 1), 2), None), at=wrong[0][1]
    )
    placement = stream.ingest().checks.placement
    assert (placement.sampled, placement.misplaced) == (9, 1)
    assert placement.example is not None
    assert (
        placement.example.key,
        placement.example.kafka_partition,
        placement.example.offset,
    ) == wrong[0]

    stream.topic.raw((b"new", frame(encode(account("new", 1, name="x"), 2), None)), at=0)
    assert stream.ingest().checks.placement == placement
    stream.clock += 60_000_000
    stream.topic.raw((b"new", frame(encode(account("new", 1, name="x"), 2), None)), at=0)
    again = stream.ingest().checks.placement
    assert (again.sampled, again.misplaced) == (10, 1 + (partition_of(b"new", 2) != 0))


@pytest.mark.systems
@pytest.mark.parametrize("jobs", [0, 1])
def test_counts_and_checks_of_producers_take_no_job(
    spark: SparkSession, tmp_path: Path, jobs: int
) -> None:
    """TBL-5, ING-1, ING-3, ING-4, ING-7, PUB-4, ENG-4: the jobs of a batch are those that write it:
    one, or none if it is small.
    """
    stream = Stream(spark, tmp_path, partition_of=partition_of, without_jobs=repeat(not jobs))
    taken = []
    for at, epoch in ((1, 7), (3, 5)):
        image = RowImage(ModType.DELETE)
        stream.topic.send(replace(account("a", at, name="Ada"), row_image=image))
        stream.topic.send_everywhere(Heartbeat("p", at + 1), epoch=epoch)
        before = job_count(spark)
        progress = stream.ingest()
        taken.append(job_count(spark) - before)
    assert progress.checks.two_producers
    assert progress.checks.row_images
    assert progress.checks.placement.sampled
    stream.topic.send(account("a", 5, name="Ada"))
    before = job_count(spark)
    stream.ingest()
    assert job_count(spark) - before == taken[1] == jobs
