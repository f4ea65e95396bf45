"""Every way on which a value of an erased row could come back (OPR-2). Each way is held, or the
page *Erase a person* says that the command does not reach it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from shutil import rmtree

import pytest
from pyspark.sql import SparkSession

from connector.clock import now_us
from connector.lake.audit import open_logged
from connector.records import codec
from connector.records.model import ChildPartition, ChildPartitions, DataChange, Heartbeat
from connector.state.erased_keys import ErasedKeys, key_hash
from tests.spark import test_erase
from tests.spark.streams import ARRIVAL, HEADERS, STREAM, Stream, account, definition, shown
from tests.spark.test_erase import HASH, KEY, SECRET, contents, erase, files_with
from tests.spark.test_rebuild import rebuilt
from tests.spark.test_write_streams import staged

PAGE = Path(__file__).parents[2] / "docs/howto/erase-a-person.md"
S = 1_000_000
BEGIN = int(ARRIVAL.timestamp()) * S
ERASED_TO = BEGIN + 3600 * S
"""All records of the tests arrive before it."""
HORIZON = ERASED_TO + 3600 * S
LIMITS = replace(STREAM.limits, max_clock_skew_s=86_400, max_record_bytes=100_000)
CONFIG = replace(STREAM, delete_retention_s=10, limits=LIMITS)
_newer = json.loads(codec.SCHEMA)
_newer["fields"].append({"name": "more", "type": "string", "default": ""})
NEWER = json.dumps(_newer)
"""A schema with a field that records here lack: the changelog keeps the bytes of such a record."""


def of_row(way: str, key: str = KEY) -> DataChange:
    """A change of the row from before the erasure. `way` is its content."""
    return account(key, BEGIN, name=way)


def framed(change: DataChange, **fields: object) -> bytes:
    """The value of a record. `fields` may break rules."""
    for name, value in fields.items():
        object.__setattr__(change, name, value)
    return codec.framed(change, 2)


def with_header(stream: Stream, way: str) -> None:
    stream.topic.headers[0, len(stream.topic.records[0])] = (*HEADERS, ("x", way.encode()))
    stream.topic.raw((KEY.encode(), framed(of_row("b"))))


def with_newer_schema(stream: Stream, way: str) -> None:
    value = codec.frame(codec.encode(of_row(way), 2) + b"\x02x", 7)
    stream.topic.raw((KEY.encode(), value))


def raw(stream: Stream, value: bytes, key: bytes = KEY.encode()) -> None:
    stream.topic.raw((key, value))


WAYS: dict[str, Callable[[Stream, str], None]] = {
    "old change": lambda stream, way: stream.topic.send(of_row(way)),
    "replay": lambda stream, way: stream.topic.replay(
        "id-1-0-0", 1, KEY.encode(), framed(of_row(way))
    ),
    "cell without column": lambda stream, way: stream.topic.send(account(KEY, BEGIN, more=way)),
    "staged row": lambda stream, way: stream.topic.send(staged(KEY, 0, name=way)),
    "Kafka header": with_header,
    "unknown fields": with_newer_schema,
    "INVALID": lambda stream, way: raw(stream, framed(of_row(way), commit_timestamp=-5)),
    "KEY_MISMATCH": lambda stream, way: raw(stream, framed(of_row(way)), b"b"),
    "UNKNOWN_TABLE": lambda stream, way: raw(stream, framed(of_row(way), table="gone")),
    "UNDECODABLE": lambda stream, way: raw(stream, framed(of_row(way)) + b"x"),
    "UNKNOWN_FRAMING": lambda stream, way: raw(stream, b"no record of " + way.encode()),
    "UNKNOWN_SCHEMA": lambda stream, way: raw(stream, codec.frame(way.encode(), 99)),
    "TOO_LARGE": lambda stream, way: raw(stream, framed(of_row(way * 20_000))),
}
"""What Kafka may still have of the row, or may get again, for example from a bridge that reads its
source again, or from a changelog that was lost. Each is tried after the horizon has passed.
"""
HASHES = {key_hash(SECRET, source, KEY.encode()): ERASED_TO for source in ("t", "gone")}


@dataclass(frozen=True)
class Tried:
    """The stream after all ways were tried, and what all its files have."""

    stream: Stream
    found: list[bytes]


def tried(spark: SparkSession, folder: Path, erased: ErasedKeys) -> Tried:
    stream = Stream(
        *(spark, folder, CONFIG),
        reject_unknown_tables=True,
        schema_by_id={7: NEWER}.get,
        without_spark=repeat(True),
    )
    stream.topic.send_everywhere(ChildPartitions("p", 1, 0, (ChildPartition("p"),)))
    stream.topic.send_everywhere(Heartbeat("p", HORIZON + 10 * S))
    assert (stream.ingest().horizon or 0) >= HORIZON
    for name, send in WAYS.items():
        send(stream, content_of(name))
    raw(stream, b"no record of another row", b"other")
    stream.topic.send(account("other", HORIZON + 1, name="kept"))
    process = stream.process()
    process._ports = replace(process._ports, erased=lambda: erased)
    stream.ingest(process)
    stream.apply(stream.table())
    return Tried(stream, [content for _, content in contents(folder)])


@pytest.fixture(scope="module")
def refused(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Tried:
    erased = ErasedKeys(SECRET, HASHES, frozenset({"t", "gone"}))
    return tried(spark, tmp_path_factory.mktemp("refused"), erased)


def content_of(way: str) -> str:
    return f"secret {way}"


def came_back(tried: Tried, way: str) -> bool:
    content, letters = content_of(way).encode(), tried.stream.letters
    in_letters = ((it.value or b"") + repr(it.headers).encode() for it in letters)
    return any(content in it for it in (*in_letters, *tried.found))


@pytest.mark.parametrize("way", WAYS)
def test_an_erased_value_does_not_come_back_from_kafka(refused: Tried, way: str) -> None:
    """OPR-2: it is in no file and in no dead letter."""
    assert not came_back(refused, way)


def test_each_refused_record_is_logged(refused: Tried) -> None:
    """OPR-2, nothing_lost: each offset is logged, a refused record is no dead letter and is not
    counted as one, and other rows are as before.
    """
    stream = refused.stream
    assert [letter.key for letter in stream.letters] == [b"other"]
    assert sum(stream.changelog().progress().rejected.values()) == 1
    assert stream.logged_offsets() == sorted(stream.topic.offsets())
    logged = open_logged(str(stream.folder), "s")
    assert logged is not None
    runs = [run for step in logged.steps() for of_one in step.values() for run in of_one]
    assert sum(run.stop - run.start for run in runs) == len(stream.topic.offsets())
    assert {key: row["name"] for key, row in shown(stream.table()).items()} == {"other": "kept"}
    assert not any(KEY.encode() in content for content in refused.found)
    rebuilt(stream)
    stream.apply(stream.table(later := definition("later")))
    assert shown(stream.table()) == shown(stream.table(later))
    assert shown(stream.table()).keys() == {"other"}


def test_without_the_erasure_each_way_brings_the_value_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Without this, a way that never had the value would pass the tests above."""
    without = tried(spark, tmp_path, ErasedKeys())
    assert [way for way in WAYS if not came_back(without, way)] == []


def test_a_topic_that_is_read_again_from_its_begin_does_not_bring_the_row_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    """OPR-2: the changelog and the tables are gone, for example with their disk."""
    stream = Stream(spark, tmp_path)
    stream.topic.send(account(KEY, 5, name="Zenobia"), account("b", 6, name="Bob"))
    stream.ingest()
    erase(stream)
    for folder in ("streams", "tables"):
        rmtree(tmp_path / folder, ignore_errors=True)
    stream.topic.read, stream._going_on = {}, None
    process = stream.process()
    erased = ErasedKeys(SECRET, {HASH: 10}, frozenset({"t"}))
    process._ports = replace(process._ports, erased=lambda: erased)
    stream.ingest(process)
    stream.apply(stream.table())
    assert shown(stream.table()).keys() == {"b"}
    assert files_with(tmp_path) == []


def test_changes_that_wait_for_a_dead_letter_are_erased(
    spark: SparkSession, tmp_path: Path
) -> None:
    """OPR-2, DLQ-3: the row waits for its dead letter when it is erased. Nothing of it is left, and
    a later change is applied.
    """
    stream, wanted = Stream(spark, tmp_path), definition(block_rows=True)
    stream.topic.send(account(KEY, 5, amount="much"), account("b", 6, name="Bob"))
    stream.topic.send(account(KEY, 7, name="Zenobia"))
    stream.ingest()
    stream.apply(stream.table(wanted))
    assert stream.table(wanted).table_state().blocked_rows
    tables = {"accounts": stream.table(wanted)}
    test_erase.erase_row(
        *(stream.changelog(), tables.values(), KEY.encode(), test_erase.where(stream)),
        *(HASH, now_us()),
    )
    assert files_with(tmp_path) == []
    stream.topic.send(account(KEY, 9, name="later"))
    stream.ingest()
    stream.apply(stream.table(wanted))
    rows = shown(stream.table(wanted))
    assert {key: row["name"] for key, row in rows.items()} == {"b": "Bob", KEY: "later"}


def test_an_older_version_cannot_be_restored(spark: SparkSession, tmp_path: Path) -> None:
    """OPR-2: neither of the table nor of the changelog."""
    stream = Stream(spark, tmp_path)
    stream.topic.send(account(KEY, 5, name="Zenobia"))
    stream.ingest()
    stream.apply(table := stream.table())
    version = table.newest()[0]
    erase(stream)
    for path, before in ((table.path, version), (stream.path, 1)):
        with pytest.raises(Exception, match=r"(?i)cannot (restore|time travel)|not available"):
            spark.sql(f"RESTORE delta.`{path}` TO VERSION AS OF {before}")
    assert files_with(tmp_path) == []


HELD_ELSEWHERE: dict[str, Callable[..., None]] = {
    "changelog, tables, old versions, logs, statistics, tombstones": (
        test_erase.test_no_byte_of_an_erased_row_is_left
    ),
    "rejected records in the changelog": (
        test_erase.test_a_rejected_record_is_erased_whatever_its_kafka_key
    ),
    "dead letters and their topic, also of a group, their replay, cuts, checkpoint": (
        test_erase.test_the_service_erases_and_closes_the_letters
    ),
    "staged rows that an old release makes visible": (
        test_erase.test_staged_rows_of_an_erased_row_are_refused_with_their_release
    ),
    "late changes and replays before the horizon": (
        test_erase.test_late_changes_of_an_erased_row_are_refused
    ),
    "an erasure that was killed": test_erase.test_a_killed_erasure_goes_on,
    "a pipeline that starts meanwhile": (
        test_erase.test_a_pipeline_that_starts_during_an_erasure_loses_nothing
    ),
    "objects of a store": test_erase.test_no_byte_of_an_erased_row_is_left_in_an_object_store,
}
NOT_REACHED = {
    "the change topic": "The command lists Kafka partition, offsets, and until when Kafka keeps",
    "a letter of a group that is replayed": "replays of letters to groups",
    "a letter that is made later": "dead letters that a reader or a bridge makes after the erasure",
    "topics of the source": "topics of a source before a bridge",
    "an undecodable record": "a record that cannot be decoded and has another Kafka key",
    "a backup": "after you restore a backup, erase the row again",
    "an export, an outbox": "an outbox, a backup and an export",
    "another warehouse": "another warehouse that reads the same topics",
    "the ledger": "older entries of the ledger of dead letters, until Kafka compacts its topic",
    "rows that get a later time": "committed after the erasure with a later time",
    "files of a refused batch of a write stream": "files of its batch stay for `file_retention`",
    "bounds of key ranges": "the bounds of key ranges of stream partitions",
}


@pytest.mark.parametrize("way", HELD_ELSEWHERE)
def test_each_other_way_has_its_test(way: str) -> None:
    assert "OPR-2" in (HELD_ELSEWHERE[way].__doc__ or "")


@pytest.mark.parametrize("way", NOT_REACHED)
def test_each_way_that_is_not_held_is_on_the_page(way: str) -> None:
    page = " ".join(PAGE.read_text("utf-8").split())
    assert NOT_REACHED[way].lower() in page.lower()
