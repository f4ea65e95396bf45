"""A row is erased: no byte of it is left in the warehouse, and it does not come back (OPR-2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from connector import warehouse as paths
from connector.config.settings import KafkaConfig
from connector.lake.audit import open_logged
from connector.lake.overrides import Overrides
from connector.records import codec
from connector.services.audit import audit
from connector.services.erase import erase as erase_service
from connector.spark.ingest.ingest import Ingest
from connector.spark.storage.erase import erase_row, rows_of, tables_of
from connector.state import apply_level
from connector.state.erased_keys import ErasedKeys, EraseKey, key_hash
from tests.broker import NewTopic
from tests.spark.live import Live
from tests.spark.streams import (
    CrashError,
    Stream,
    account,
    copied,
    crash_at,
    definition,
    shown,
)
from tests.spark.test_apply_steps import delete
from tests.spark.test_rebuild import rebuilt

KEY = "Ptolemaia-9461"
VALUES = (KEY, "Zenobia", "Cleopatra", "7382915466", "hidden-cell", "Berenice")
SECRET = bytes(range(32))
HASH = key_hash(SECRET, "t", KEY.encode())


def contents(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """All files, and the content and the statistics of Parquet files, as text."""
    for file in folder.rglob("*"):
        if not file.is_file():
            continue
        yield file, str(file.relative_to(folder)).encode() + file.read_bytes()
        if file.name.endswith(".parquet"):
            opened = parquet.ParquetFile(file)
            yield file, repr(opened.read().to_pylist()).encode()
            groups = (opened.metadata.row_group(n) for n in range(opened.metadata.num_row_groups))
            columns = (g.column(n).statistics for g in groups for n in range(g.num_columns))
            yield (
                file,
                repr(
                    [s and (s.min, s.max) for s in columns if s is None or s.has_min_max]
                ).encode(),
            )


def files_with(folder: Path) -> list[tuple[str, str]]:
    """The files that have a byte of the row."""
    return [
        (str(file), value)
        for file, content in contents(folder)
        for value in VALUES
        if value.encode() in content or repr(value.encode())[2:-1].encode() in content
    ]


@pytest.fixture(scope="module")
def grown(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Stream:
    """A row in a file of its own, under a deletion vector, in a tombstone, in a letter, in a change
    that was not applied, and in an old tombstone table. A second table has the same source.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apply_level, "MIN_BYTES", 0)
        return _grown(Stream(spark, tmp_path_factory.mktemp("grown")))


def _grown(stream: Stream) -> Stream:
    stream.topic.send(*(account(f"row {n}", 5, name=f"name {n}") for n in range(12)))
    stream.topic.send(account(KEY, 10, name="Zenobia", amount="7382915466", more="hidden-cell"))
    stream.topic.send(account("b", 11, name="Bob"), account("c", 12, name="Cid"))
    stream.ingest()
    tables = [stream.table(), stream.table(definition("others"))]
    for table in tables:
        stream.apply(table)
    stream.topic.send(delete(KEY, 20), delete("c", 21), account("d", 22, amount="much"))
    stream.ingest()
    for table in tables:
        stream.apply(table)
    stream.topic.send(account(KEY, 30, name="Cleopatra"))
    stream.topic.raw((KEY.encode(), b"no record of Berenice"))
    stream.ingest()
    for table in tables:
        stream.apply(table)
    rebuilt(stream, definition("others"))
    stream.topic.send(account(KEY, 40, name="Berenice"), account("b", 41, name="Bert"))
    stream.ingest()
    assert list(stream.folder.rglob("tables/*/data/deletion_vector*.bin"))
    return stream


@pytest.fixture
def stream(grown: Stream, tmp_path: Path) -> Stream:
    return copied(grown, tmp_path / "copy")


def erase(stream: Stream, on_step: Callable[[str], None] = lambda step: None) -> None:
    letters = [letter.id for letter in stream.letters if letter.key == KEY.encode()]
    where = rows_of("t", KEY.encode(), letters)
    tables = tables_of(stream.spark, str(stream.folder), "s", "t")
    assert sorted(tables) == ["accounts", "others"]
    erase_row(stream.changelog(), tables.values(), KEY.encode(), where, HASH, on_step)


def refusing(stream: Stream, erased_to: int) -> Ingest:
    process = stream.process()
    erased = ErasedKeys(SECRET, {HASH: erased_to})
    process._ports = replace(process._ports, erased=lambda: erased)
    return process


def without_row(stream: Stream) -> dict[object, dict[str, object]]:
    return {key: row for key, row in stream.truth().items() if key != KEY}


def check_erased(stream: Stream) -> None:
    assert files_with(stream.folder) == []
    assert stream.logged_offsets() == sorted(stream.topic.offsets())
    for name in ("accounts", "others"):
        wanted = definition(name)
        stream.apply(stream.table(wanted))
        assert KEY not in shown(stream.table(wanted))
    assert shown(stream.table()) == without_row(stream)
    rebuilt(stream)
    assert shown(stream.table()) == without_row(stream)
    assert files_with(stream.folder) == []


def test_no_byte_of_an_erased_row_is_left(stream: Stream) -> None:
    """OPR-2, nothing_lost: all files are read, with their statistics. The search is no fault: it
    has a hit in each part of the warehouse before.
    """
    before = "\n".join(file for file, _ in files_with(stream.folder))
    parts = ("changelog/slot", "data/_bucket", "data/_delta_log", "tombstones/")
    for part in parts:
        assert part in before, part
    steps: list[str] = []
    erase(stream, steps.append)
    check_erased(stream)
    logged = open_logged(str(stream.folder), "s")
    assert logged is not None
    assert sum(
        run.stop - run.start for step in logged.steps() for runs in step.values() for run in runs
    ) == len(stream.topic.offsets())


def test_a_killed_erasure_goes_on(stream: Stream, tmp_path: Path) -> None:
    """OPR-2, resumable: killed at every step, after it has gone on from the step before."""
    steps: list[str] = []
    erase(copied(stream, tmp_path / "whole"), steps.append)
    steps = [step.replace(str(tmp_path / "whole"), str(stream.folder)) for step in steps]
    assert len(steps) == len(set(steps)) > 20
    for step in steps:
        with pytest.raises(CrashError):
            erase(stream, crash_at(step))
    erase(stream)
    check_erased(stream)


def test_late_changes_of_an_erased_row_are_refused(stream: Stream) -> None:
    """OPR-2, nothing_lost: a change, a late one, and a replay up to the time of the erasure leave
    no content. A later one is applied.
    """
    erase(stream)
    letters = len(stream.letters)
    stream.topic.send(account(KEY, 45, name="Zenobia"), account("e", 46, name="Eve"))
    letter = next(letter for letter in stream.letters if letter.key == KEY.encode())
    value = codec.framed(account(KEY, 44, name="Zenobia"), 2)
    stream.topic.replay(letter.id, 1, KEY.encode(), value, at=sum(KEY.encode()) % 2)
    stream.topic.send(account(KEY, 50, amount="5"))
    stream.ingest(refusing(stream, 49))
    assert len(stream.letters) == letters
    stream.apply(stream.table())
    rows = shown(stream.table())
    assert (rows[KEY]["name"], rows[KEY]["amount"]) == (None, 5)
    assert rows["e"]["name"] == "Eve"
    assert stream.logged_offsets() == sorted(stream.topic.offsets())
    assert [value for _, value in files_with(stream.folder) if value != KEY] == []


def test_the_service_erases_and_closes_the_letters(
    spark: SparkSession, kafka: KafkaConfig, new_topic: NewTopic, tmp_path: Path
) -> None:
    """OPR-2, TBL-6, DLQ-11: with Kafka. The act is recorded without the key, letters are closed and
    their prefix of the topic is deleted, a cut ends, the audit finds no fault, and the next run
    refuses a late change.
    """
    with ExitStack() as stack:
        topic = new_topic(kafka_partitions=1).topic
        live = Live(spark, kafka, topic, tmp_path / "warehouse", stack)
        live.publish(account(KEY, 10, name="Zenobia"), account("b", 11, name="Bob"))
        live.publish(account(KEY, 12, amount="much"))
        live.send([(0, KEY.encode(), b"Berenice")])
        live.pipeline().run_once()
        assert files_with(Path(live.warehouse))
        planned = erase_service(
            live.config, "accounts", KEY.encode(), why="ticket 12", dry_run=True, spark=spark
        )
        assert [(records.topic, records.records) for records in planned.kafka] == [
            (topic, 3),
            (f"{topic}.dead-letters", 2),
        ]
        assert files_with(Path(live.warehouse))

        report = erase_service(live.config, "accounts", KEY.encode(), why="ticket 12", spark=spark)
        assert (report.tables, report.letters) == (("accounts",), 2)
        assert [(records.topic, records.records) for records in report.kafka] == [(topic, 3)]
        assert files_with(Path(live.warehouse)) == []
        assert (tmp_path / "warehouse/_connector/erasure_secret").stat().st_mode & 0o777 == 0o600
        overrides = Overrides(str(live.warehouse))
        begun, ended = overrides.requests(EraseKey, "s", above=0)
        assert (begun.ended_at, ended.reason, ended.ended_at > 0) == (0, "ticket 12", True)

        live.publish(account(KEY, 13, name="Zenobia"), account("c", 14, name="Cid"))
        live.publish(account(KEY, report.erased_to + 1, name="again"))
        live.pipeline().run_once()
        rows = {
            row["id"]: row["name"]
            for row in spark.read.format("delta")
            .load(paths.table(str(live.warehouse), "accounts"))
            .collect()
        }
        assert rows == {"b": "Bob", "c": "Cid", KEY: "again"}
        assert [result.verdict for result in audit(live.config)] == ["passed"]
