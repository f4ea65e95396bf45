"""A row is erased: no byte of it is left in the warehouse, and it does not come back (OPR-2)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from itertools import repeat
from pathlib import Path

import pytest
from pyarrow import parquet
from pyarrow.fs import FileSelector
from pyspark.sql import SparkSession

from connector import warehouse as paths
from connector.clock import now_us
from connector.config.settings import KafkaConfig
from connector.dead_letters.envelope import consumer_letter
from connector.dead_letters.filter import LetterFilter
from connector.errors import TableError, WriterConflictError
from connector.kafka import create_group_topics
from connector.kafka.dead_letters.topic import DeadLetterPublisher
from connector.lake.audit import open_logged
from connector.lake.changelog_changes import rejected_of
from connector.lake.overrides import Overrides
from connector.lake.plain_table import open_table
from connector.lake.stores import files_at
from connector.records import codec
from connector.records.model import Heartbeat
from connector.records.rejection import Position, Reason
from connector.services.audit import audit
from connector.services.dead_letters import DeadLetters
from connector.services.erase import erase as erase_service
from connector.services.rows.letters import rejected_letters
from connector.services.status import status
from connector.spark.ingest.ingest import Ingest
from connector.spark.reader import read_table
from connector.spark.storage.erase import erase_row, has_row, rows_of, tables_of
from connector.state import apply_level
from connector.state.erased_keys import ErasedKeys, EraseKey, key_hash
from connector.validation import KafkaRecord
from tests.broker import NewTopic
from tests.object_store import ObjectStore
from tests.spark.conftest import QUICK_PROCESS
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
from tests.spark.test_write_streams import begun, release, staged

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
    table, other = stream.table(), stream.table(definition("others"))
    stream.apply(table)
    stream.topic.send(delete(KEY, 20), delete("c", 21), account("d", 22, amount="much"))
    stream.ingest()
    stream.apply(table)
    stream.topic.send(account(KEY, 30, name="Cleopatra"))
    stream.topic.raw((KEY.encode(), b"no record of Berenice"))
    stream.ingest()
    stream.apply(table)
    stream.apply(other)
    rebuilt(stream, definition("others"))
    of_others = stream.folder / "tables/of_others"
    stream.spark.range(3).write.format("delta").save(str(of_others / "data"))
    (stream.folder / "tables/empty").mkdir()
    stream.topic.send(account(KEY, 40, name="Berenice"), account("b", 41, name="Bert"))
    stream.ingest()
    assert list(stream.folder.rglob("tables/*/data/deletion_vector*.bin"))
    return stream


@pytest.fixture
def stream(grown: Stream, tmp_path: Path) -> Stream:
    return copied(grown, tmp_path / "copy")


def where(stream: Stream) -> str:
    letters = [letter.id for letter in stream.letters if letter.key == KEY.encode()]
    return rows_of("t", KEY.encode(), letters)


def erase(
    stream: Stream, on_step: Callable[[str], None] = lambda step: None, begun_at: int | None = None
) -> None:
    tables = tables_of(stream.spark, str(stream.folder), "s", "t").values()
    at = now_us() if begun_at is None else begun_at
    erase_row(stream.changelog(), tables, KEY.encode(), where(stream), HASH, at, on_step)


def refusing(
    stream: Stream, erased_to: int, on_step: Callable[[str], None] = lambda step: None
) -> Ingest:
    process = stream.process(on_step)
    erased = ErasedKeys(SECRET, {HASH: erased_to}, frozenset({"t"}))
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
    has a hit in each part of the warehouse before. Folders of other programs are left alone.
    """
    before = "\n".join(file for file, _ in files_with(stream.folder))
    parts = ("changelog/slot", "data/_bucket", "data/_delta_log", "tombstones/")
    for part in parts:
        assert part in before, part
    assert sorted(tables_of(stream.spark, str(stream.folder), "s", "t")) == ["accounts", "others"]
    erase(stream)
    check_erased(stream)
    logged = open_logged(str(stream.folder), "s")
    assert logged is not None
    assert sum(
        run.stop - run.start for step in logged.steps() for runs in step.values() for run in runs
    ) == len(stream.topic.offsets())


def test_a_row_is_found_where_it_is(stream: Stream) -> None:
    """OPR-2: a table has it as a row, as a tombstone, or as neither."""
    tables = tables_of(stream.spark, str(stream.folder), "s", "t")
    found = {
        key: [name for name, table in tables.items() if has_row(table, key.encode())]
        for key in (KEY, "c", "row 3", "d", "nothing")
    }
    both = ["accounts", "others"]
    assert {key: sorted(names) for key, names in found.items()} == {
        KEY: both,
        "c": both,
        "row 3": both,
        "d": [],
        "nothing": [],
    }


def steps_of(act: Callable[[Callable[[str], None]], None]) -> set[str]:
    """Kill `act` at each of its steps, the first ones first, and run it to its end."""
    reached = set[str]()

    def on_step(step: str) -> None:
        if step not in reached:
            reached.add(step)
            raise CrashError(step)

    while True:
        with suppress(CrashError):
            act(on_step)
            return reached


def test_a_killed_erasure_goes_on(stream: Stream) -> None:
    """OPR-2, resumable: changelog and table are killed at every step."""
    of_key, at = where(stream), now_us()
    steps = steps_of(lambda on_step: stream.changelog().erase(of_key, HASH, at, on_step))
    assert len(steps) == 6
    table = stream.table(definition("others"))
    steps = steps_of(lambda on_step: table.erase(KEY.encode(), now_us(), on_step))
    assert len(steps) == 11
    hits = [file for file, _ in files_with(stream.folder)]
    assert hits
    assert [file for file in hits if "/accounts/" not in file] == []
    erase(stream)
    assert files_with(stream.folder) == []
    assert stream.logged_offsets() == sorted(stream.topic.offsets())


def test_of_two_erasures_at_once_one_is_refused(stream: Stream) -> None:
    """OPR-2, nothing_lost: the second one removes the files that the first one has not committed.
    Then the first one may not commit them, and is repeated.
    """
    of_b, hash_b = rows_of("t", b"b", []), key_hash(SECRET, "t", b"b")

    def on_step(step: str) -> None:
        if step == "changelog written":
            stream.changelog().erase(of_b, hash_b, now_us(), lambda step: None)

    with pytest.raises(WriterConflictError):
        erase(stream, on_step)
    assert stream.logged_offsets() == sorted(stream.topic.offsets())
    erase(stream)
    assert stream.logged_offsets() == sorted(stream.topic.offsets())
    assert files_with(stream.folder) == []


@pytest.mark.parametrize("is_small", [True, False])
def test_a_pipeline_that_starts_during_an_erasure_loses_nothing(
    stream: Stream, is_small: bool
) -> None:
    """OPR-2, nothing_lost: neither a batch whose files are written, nor one that is committed while
    old versions are removed. Spark may miss the removed versions before it sees the conflict.
    """
    stream.without_jobs = repeat(is_small)
    begun_at = now_us()
    stream.topic.send(account("e", 46, name="Eve"))

    def erasing(step: str) -> None:
        if step == "rows written":
            erase(stream, ingesting, begun_at)

    def ingesting(step: str) -> None:
        if step == f"checkpoint {stream.path}":
            stream.changelog().update_progress(stream.changelog().progress())

    try:
        stream.ingest(stream.process(erasing))
    except (WriterConflictError, TableError):
        stream.ingest(stream.process())
    assert stream.logged_offsets() == sorted(stream.topic.offsets())
    stream.apply(stream.table())
    assert shown(stream.table()) == without_row(stream)
    assert files_with(stream.folder) == []


def test_an_erasure_waits_for_the_newest_batch(stream: Stream) -> None:
    """OPR-2: a batch that is not counted yet needs its rows."""
    stream.topic.send(account("e", 46, name="Eve"))
    stream.topic.raw((b"f", b"no record"))
    offsets = stream.topic.rest()
    with pytest.raises(CrashError):
        stream.ingest(stream.process(crash_at("logged")))
    with pytest.raises(TableError) as caught:
        erase(stream)
    assert caught.value.code == "BATCH_INCOMPLETE"
    stream.ingest(stream.process(), offsets)
    erase(stream)
    assert files_with(stream.folder) == []


def test_a_rejected_record_is_erased_whatever_its_kafka_key(
    spark: SparkSession, tmp_path: Path
) -> None:
    """OPR-2: it has the row key in its value, also with a schema of a registry."""
    stream = Stream(spark, tmp_path, schema_by_id=lambda _: codec.SCHEMA)
    stream.topic.send(account("b", 5, name="Bob"))
    mine = account(KEY, 6, name="Zenobia")
    invalid = account(KEY, 7, name="Cleopatra")
    object.__setattr__(invalid, "commit_timestamp", -5)
    for key, value in (
        (b"other", codec.framed(mine, 2, 7)),
        (b"other", codec.framed(mine, 2)),
        (None, codec.framed(invalid, 2)),
    ):
        stream.topic.raw((key, value))
    stream.ingest()
    reasons = sorted(letter.reason for letter in stream.letters)
    assert reasons == [Reason.INVALID, Reason.KEY_MISMATCH, Reason.KEY_MISMATCH]
    schemas = codec.Schemas({7: codec.SCHEMA})
    rejected = rejected_of(open_table(stream.path), KEY.encode())
    letters = [one.id for one in rejected_letters(rejected, "t", KEY.encode(), schemas)]
    assert len(letters) == 3
    of_key = rows_of("t", KEY.encode(), letters)
    stream.changelog().erase(of_key, HASH, now_us(), lambda step: None)
    assert files_with(tmp_path) == []


def test_staged_rows_of_an_erased_row_are_refused_with_their_release(
    spark: SparkSession, tmp_path: Path
) -> None:
    """OPR-2, all_or_nothing, resumable: rows that were staged before the erasure, and rows that a
    release with an older commit timestamp makes visible. Those of a later release are applied.
    """
    stream = begun(spark, tmp_path)
    stream.topic.send(staged("a0", 0), staged(KEY, 1, name="Zenobia"))
    stream.ingest()
    erase(stream)
    assert files_with(tmp_path) == []
    erased_to = 100
    stream.topic.send(staged("a1", 0, "w2/p"), staged(KEY, 1, "w2/p", name="Cleopatra"))
    stream.topic.send(staged("a2", 0, "w3/p"), staged(KEY, 1, "w3/p", amount="5"))
    stream.topic.send_everywhere(release(60, ("w1/p", 0, 2)), release(100, ("w2/p", 0, 2)))
    stream.topic.send_everywhere(release(101, ("w3/p", 0, 2)), Heartbeat("p", 200))
    offsets = stream.topic.rest()
    for step in ("staged rows refused", "logged"):
        with pytest.raises(CrashError):
            stream.ingest(refusing(stream, erased_to, crash_at(step)), offsets)
    progress = stream.ingest(refusing(stream, erased_to), offsets)
    assert progress.releases.open == ()
    stream.apply(stream.table())
    rows = shown(stream.table())
    assert rows.keys() == {"a0", "a1", "a2", KEY}
    assert (rows[KEY]["name"], rows[KEY]["amount"]) == (None, 5)
    assert read_table(spark, str(tmp_path), "accounts").rows.count() == 4
    assert stream.logged_offsets() == sorted(stream.topic.offsets())


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


def objects_in(live: Live, folder: Path) -> Path:
    """A copy of all objects of a warehouse."""
    files = files_at(str(live.warehouse))
    listed = files.get_file_info(FileSelector("", recursive=True))
    for info in (one for one in listed if one.is_file):
        copy = folder / info.path.lstrip("/")
        with suppress(FileNotFoundError):  # the store may still list a file that was deleted
            content = files.open_input_file(info.path).read()
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content)
    return folder


def names_in(live: Live) -> dict[str, str | None]:
    table = live.spark.read.format("delta").load(paths.table(str(live.warehouse), "accounts"))
    return {row["id"]: row["name"] for row in table.collect()}


def test_the_service_erases_and_closes_the_letters(
    spark: SparkSession,
    kafka: KafkaConfig,
    new_topic: NewTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """OPR-2, TBL-6, DLQ-11, SUB-4, RUN-1: with Kafka. The act is recorded without the key, letters
    are closed, also those of a group, and their prefix of the topic is deleted, a cut ends, the
    audit finds no fault, and the next run refuses a late change. `status` names it until its end.
    """
    with ExitStack() as stack:
        facts = new_topic(kafka_partitions=1)
        topic = facts.topic
        live = Live(spark, kafka, topic, tmp_path / "warehouse", stack)
        live.publish(account(KEY, 10, name="Zenobia"), account("b", 11, name="Bob"))
        live.publish(account(KEY, 12, amount="much"))
        live.send([(0, KEY.encode(), b"Berenice")])
        create_group_topics(kafka, topic, "g")
        source = KafkaRecord(Position(topic, facts.topic_id, 0, 3), 1, KEY.encode(), b"Berenice")
        with DeadLetterPublisher(kafka, topic, "g") as publisher:
            publisher.publish([consumer_letter(source, "g", "a bug", now=1)])
        live.pipeline().run_once()
        assert files_with(Path(live.warehouse))
        act = partial(erase_service, live.config, "accounts", KEY.encode(), spark=spark)
        planned = act(why="ticket 12", dry_run=True)
        assert [(records.topic, records.records) for records in planned.kafka] == [
            (topic, 3),
            (f"{topic}.dead-letters", 2),
            (f"{topic}.dead-letters.group.g", 1),
        ]
        found = (planned.is_known, planned.found_in, planned.changelog_records)
        assert found == (True, ("accounts",), 3)
        unknown = erase_service(
            live.config, "accounts", b"999", why="ticket 12", dry_run=True, spark=spark
        )
        found = (unknown.is_known, unknown.found_in, unknown.changelog_records)
        assert (found, unknown.tables) == ((False, (), 0), ("accounts",))
        assert files_with(Path(live.warehouse))
        with monkeypatch.context() as patch, pytest.raises(CrashError):
            patch.setattr(DeadLetters, "erase", lambda *_, **__: crash_at("letters")("letters"))
            act(why="ticket 12")
        unfinished = [
            one for one in status(live.config).reasons if one.line.startswith("ERASURE_UNFINISHED ")
        ]
        assert [one.text.endswith("has not ended: ticket 12") for one in unfinished] == [True]

        report = act(why="ticket 12")
        assert (report.tables, report.letters) == (("accounts",), 3)
        assert (report.is_known, report.found_in, report.changelog_records) == (True, (), 0)
        assert report.deleted_to.keys() == {
            f"{topic}.dead-letters",
            f"{topic}.dead-letters.group.g",
        }
        assert [(records.topic, records.records) for records in report.kafka] == [(topic, 3)]
        assert files_with(Path(live.warehouse)) == []
        assert [
            one for one in status(live.config).reasons if one.line.startswith("ERASURE_UNFINISHED ")
        ] == []
        assert (tmp_path / "warehouse/_connector/erasure_secret").stat().st_mode & 0o777 == 0o600
        overrides = Overrides(str(live.warehouse))
        begun, _, ended = overrides.requests(EraseKey, "s", above=0)
        assert (begun.ended_at, ended.reason, ended.ended_at > 0) == (0, "ticket 12", True)

        live.publish(account(KEY, 13, name="Zenobia"), account("c", 14, name="Cid"))
        live.publish(account(KEY, report.erased_to + 1, name="again"))
        live.pipeline().run_once()
        assert names_in(live) == {"b": "Bob", "c": "Cid", KEY: "again"}
        assert [result.verdict for result in audit(live.config)] == ["passed"]


def test_an_open_letter_before_keeps_the_letters_of_a_row(
    spark: SparkSession, kafka: KafkaConfig, new_topic: NewTopic, tmp_path: Path
) -> None:
    """OPR-2: the report names it, and after it was discarded, the same erasure ends the rest."""
    with ExitStack() as stack:
        topic = new_topic(kafka_partitions=1).topic
        live = Live(spark, kafka, topic, tmp_path / "warehouse", stack)
        live.send([(0, b"another", b"not Avro"), (0, KEY.encode(), b"Berenice")])
        live.pipeline().run_once()
        act = partial(erase_service, live.config, "accounts", KEY.encode(), spark=spark)
        letters = DeadLetters(live.config, "s", by="me")
        (before,) = (it for it, _ in letters.list(None) if it.key == b"another")
        kept = [(f"{topic}.dead-letters", 1, before.id)]
        for report in (act(why="ticket 12", dry_run=True), act(why="ticket 12")):
            left = [(it.topic, it.records, it.kept_by) for it in report.kafka]
            assert left == [(topic, 1, None), *kept]
            assert report.deleted_to == {}
        letters.discard(LetterFilter(ids=frozenset({before.id})), why="not Avro")
        report = act(why="ticket 12")
        assert [(it.topic, it.kept_by) for it in report.kafka] == [(topic, None)]
        assert report.deleted_to.keys() == {f"{topic}.dead-letters"}


@pytest.mark.systems
def test_no_byte_of_an_erased_row_is_left_in_an_object_store(
    store: ObjectStore,
    spark: SparkSession,
    kafka: KafkaConfig,
    new_topic: NewTopic,
    tmp_path: Path,
) -> None:
    """OPR-2, STO-2: all objects are read."""
    with ExitStack() as stack:
        topic, warehouse = new_topic(kafka_partitions=1).topic, store.warehouse()
        live = Live(spark, kafka, topic, warehouse, stack, storage=store.storage())
        live.publish(account(KEY, 10, name="Zenobia"), account("b", 11, name="Bob"))
        live.pipeline().run_once()
        live.publish(delete(KEY, 12))
        live.send([(0, KEY.encode(), b"Berenice")])
        live.pipeline().run_once()
        before = "\n".join(file for file, _ in files_with(objects_in(live, tmp_path / "before")))
        for part in ("changelog/slot", "data/_bucket", "data/_delta_log", "tombstones/"):
            assert part in before, part
        erase_service(live.config, "accounts", KEY.encode(), why="ticket 12", spark=spark)
        assert files_with(objects_in(live, tmp_path / "after")) == []
        live.publish(account(KEY, 13, name="Zenobia"), account("c", 14, name="Cid"))
        live.pipeline().run_once()
        assert names_in(live) == {"b": "Bob", "c": "Cid"}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_killed_process_goes_on(
    spark: SparkSession, kafka: KafkaConfig, new_topic: NewTopic, tmp_path: Path
) -> None:
    """OPR-2, resumable: SIGKILL, some time after the begin was recorded."""
    with ExitStack() as stack:
        topic = new_topic(kafka_partitions=1).topic
        live = Live(spark, kafka, topic, tmp_path / "warehouse", stack)
        live.publish(account(KEY, 10, name="Zenobia"), account("b", 11, name="Bob"))
        live.pipeline().run_once()
        config = tmp_path / "connector.toml"
        config.write_text(
            f'warehouse = "{live.warehouse}"\n[streams.s]\ntopic = "{topic}"\n'
            f'[kafka]\nbootstrap_servers = "{kafka.bootstrap_servers}"\n'
            '[tables.accounts]\nstream = "s"\nsource = "t"\n'
        )
        entry = [sys.executable, "-c", "from connector.cli import main; main()"]
        command = [*entry, "--config", str(config), "erase", "accounts", KEY, "--why", "ticket 12"]
        overrides = Overrides(str(live.warehouse))
        for begun, wait_s in enumerate((0.5, 4, 8), 1):
            with subprocess.Popen(
                command,
                env=os.environ | QUICK_PROCESS,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            ) as process:
                while len(overrides.requests(EraseKey, "s", above=0)) < begun:
                    assert process.poll() is None
                    time.sleep(0.1)
                time.sleep(wait_s)
                os.killpg(process.pid, signal.SIGKILL)
            assert not any(one.ended_at for one in overrides.requests(EraseKey, "s", above=0))
        erase_service(live.config, "accounts", KEY.encode(), why="ticket 12", spark=spark)
        assert files_with(Path(live.warehouse)) == []
        live.publish(account("c", 14, name="Cid"))
        live.pipeline().run_once()
        assert names_in(live) == {"b": "Bob", "c": "Cid"}
        assert [result.verdict for result in audit(live.config)] == ["passed"]
