"""Maintenance in the middle of everything else: fewer files, the same rows; old versions go, but
those that are kept (TBL-15, TBL-23).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from itertools import repeat
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from connector.config.settings import ConnectorConfig, KafkaConfig, VersionRetention
from connector.errors import TableError, WriterConflictError
from connector.lake.audit import open_logged
from connector.lake.batch_counts import count_rows, count_table
from connector.lake.changelog_folds import fold_batches
from connector.lake.jobs import History
from connector.lake.letter_positions import logged_positions
from connector.lake.small_files import write_rows
from connector.records.model import Heartbeat
from connector.spark.ingest.ports import IngestPorts
from connector.spark.job_log import JobLog
from connector.spark.pipeline import Pipeline
from connector.spark.reader import read_snapshot, read_table
from connector.spark.storage.changelog import Changelog
from connector.spark.storage.delta_log import DeltaLog
from connector.spark.storage.logged_batch import BatchRange
from connector.spark.storage.maintenance import Work
from connector.spark.storage.transaction import Transaction
from connector.state import maintenance_schedule
from connector.state.maintenance_schedule import HOUR_US
from tests.property.histories import history
from tests.spark.streams import (
    STREAM,
    Stream,
    account,
    definition,
    merge_every_other,
    rows_by_key,
    shown,
    versions,
    with_retention,
)
from tests.spark.test_apply_steps import delete, nasty
from tests.spark.test_cut import ANNOUNCED, S
from tests.spark.test_rebuild import rebuilt

DAY_US = 86_400_000_000


def files(spark: SparkSession, path: str) -> int:
    """How many files the newest version of a Delta table has."""
    found = spark.sql(f"DESCRIBE DETAIL delta.`{path}`").first()
    assert found is not None
    return int(found["numFiles"])


def compact(changelog: Changelog) -> None:
    if (folded := changelog.fold(2)) is not None:
        changelog.commit_folded(folded)
    rewritten = changelog.rewrite()
    if rewritten is not None:
        changelog.commit_rewritten(rewritten)


@pytest.mark.usefixtures("compacts_at_once")
@pytest.mark.long
@pytest.mark.parametrize("is_small", [False, True])
def test_maintenance_changes_no_row(
    spark: SparkSession, tmp_path: Path, seed: int, *, is_small: bool
) -> None:
    """TBL-15, TBL-10: nothing_lost, deletes_stay_deleted: between any two applies and batches, and
    who reads sees nothing of it.
    """
    rng, wanted = Random(seed), nasty("all", keep_unmapped=True)
    ways = {"without_jobs": repeat(is_small), "without_spark": repeat(is_small)}
    stream = Stream(spark, tmp_path, **ways)
    deliveries = [d for n in range(40) for d in history(rng, rows=(b"%d.1" % n, b"%d.2" % n))]
    rng.shuffle(deliveries)
    table, process = stream.table(wanted), stream.process()
    folder = f"{tmp_path}/tables/all"
    for part in range(3):
        stream.topic.send(*(delivery.change for delivery in deliveries[part::3]))
        stream.ingest(process)
        if part < 2:
            stream.apply(table)
        if part:
            before, logged = table.table_state(), stream.logged_offsets()
            tombstones, changelog = files(spark, f"{folder}/tombstones"), files(spark, stream.path)
            table.compact(lambda act: act())
            compact(stream.changelog())
            assert (table.table_state(), stream.logged_offsets()) == (before, logged)
            assert files(spark, f"{folder}/tombstones") < tombstones or part == 2
            assert files(spark, stream.path) < changelog or (is_small and part == 2)
            # A file with many marked rows is written again alone.
            assert files(spark, f"{folder}/data") <= (1 + is_small) * table.layout.buckets
    assert rows_by_key(read_table(spark, str(tmp_path), "all").rows, wanted) == stream.truth(wanted)
    stream.apply(stream.table(wanted))
    assert shown(table) == stream.truth(wanted)


@pytest.mark.systems
def test_only_unneeded_files_are_removed(spark: SparkSession, tmp_path: Path) -> None:
    """TBL-15, TBL-17, TBL-23: what a dead process left goes, and old versions do, but one that a
    cut names; so it is in a graveyard and in the changelog. The tombstone table of a table that was
    replaced stays for a week.
    """
    stream, brief = Stream(spark, tmp_path), VersionRetention(2, 2, 2)
    stream._going_on = stream.changelog(brief)
    stream.topic.send(account("a", 1, name="Ada"), account("b", 2, name="Bob"))
    stream.ingest()
    stream.apply(stream.table(retention=brief))
    for at in (3, 5):
        stream.topic.send(delete("b", at), account("a", at + 1, name=f"Eve {at}"))
        stream.ingest()
        stream.apply(stream.table(retention=brief))
    rebuilt(stream)
    table, folder = stream.table(), tmp_path / "tables" / "accounts"
    tombstone_tables = {path.name for path in folder.glob("tombstones*")}
    left = [
        folder / "data" / "_bucket=0" / "part-dead.parquet",
        Path(stream.path) / "slot=-1" / "part-dead.parquet",
    ]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"half of a f")
        os.utime(path, (time.time() - 60,) * 2)
    time.sleep(2.1)
    on_disk = len(list(folder.rglob("*.parquet")))
    done = table.clean(time.time_ns() // 1000, [1])
    assert done.files == on_disk - len(list(folder.rglob("*.parquet"))) > 1
    assert done.bytes > 0
    assert done.disk_bytes > done.live_bytes > 0
    assert stream.changelog().clean().files >= 1
    assert [path for path in left if path.exists()] == []
    assert len(tombstone_tables) == 2
    assert {path.name for path in folder.glob("tombstones*")} == tombstone_tables

    def names(version: int) -> set[str]:
        return {
            row["name"]
            for row in (
                spark.read.format("delta")
                .option("versionAsOf", version)
                .load(f"{folder}/data")
                .collect()
            )
        }

    assert names(1) == {"Ada", "Bob"}
    with pytest.raises(Exception, match=r"FILE_NOT_EXIST|FAILED_READ_FILE"):
        names(2)
    assert shown(table) == stream.truth()

    table.clean(time.time_ns() // 1000 + 8 * DAY_US)
    assert len(list(folder.glob("tombstones*"))) == 1
    stream.topic.send(account("b", 2, name="late"))
    stream.ingest()
    stream.apply(table)
    assert shown(table) == stream.truth()
    assert set(shown(table)) == {"a"}


@pytest.mark.usefixtures("compacts_at_once")
@pytest.mark.long
def test_a_batch_lands_between_the_start_of_a_compaction_and_its_commit(
    spark: SparkSession, tmp_path: Path
) -> None:
    """TBL-10, TBL-15: nothing_lost: the commit says what that of the batch does; what was put
    together twice is refused.
    """
    stream = Stream(spark, tmp_path, without_jobs=repeat(False))
    for at in (1, 2):
        stream.topic.send(account("a", at, name=str(at)))
        stream.ingest()
    changelog = stream.changelog()
    first, second = changelog.rewrite(), changelog.rewrite()
    assert first is not None
    assert second is not None
    stream.topic.send(account("b", 3, name="Bob"))
    progress = stream.ingest()
    before = files(spark, stream.path)
    changelog.commit_rewritten(first)
    assert files(spark, stream.path) == before - first.work.files < before
    newest = max(Path(stream.path).glob("_delta_log/*.json")).read_text()
    assert ('"dataChange":false' in newest, '"dataChange":true' in newest) == (
        True,
        False,
    ), "no row has changed"
    assert stream.logged_offsets() == sorted(stream.topic.offsets())
    assert stream.changelog().progress() == progress
    assert stream.changelog().newest() == stream._changelog().newest()
    with pytest.raises(WriterConflictError):
        changelog.commit_rewritten(second)
    stream.topic.send(account("a", 4, name="Eve"))
    stream.ingest()
    stream.apply(stream.table())
    assert shown(stream.table()) == stream.truth()


@pytest.mark.usefixtures("compacts_at_once")
@pytest.mark.parametrize(
    ("row_by_row", "folds"),
    [(True, False), (True, True), pytest.param(False, False, marks=pytest.mark.long)],
)
def test_an_apply_lands_between_the_start_of_a_compaction_of_a_table_and_its_commit(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    row_by_row: bool,
    folds: bool,
) -> None:
    """TBL-10, TBL-15: newest_wins, deletes_stay_deleted: rows that the apply replaced, removed, or
    moved to another file by a fold are gone from the new files too. If it rewrote all buckets, the
    compaction is void.
    """
    stream = Stream(spark, tmp_path, without_spark=repeat(True))
    table, folder = stream.table(), f"{tmp_path}/tables/accounts"
    for at, rows in enumerate(("abcdef", "gh", "i", "jk"), start=1):
        stream.topic.send(*(account(row, at, name=f"{row} {at}") for row in rows))
        if at == 1:  # the first tombstone is written by Spark, with whole buckets
            stream.topic.send(account("x", 1, name="x"), delete("x", 2))
        stream.ingest()
        stream.apply(table)
    overtakes = iter([True])

    def overtaken(act: Callable[[], Work]) -> Work:
        if next(overtakes, False):
            stream.topic.send(
                *(account("a", 9, amount="9"), account("j", 2, amount="2"), account("l", 9)),
                *(delete("b", 9), delete("i", 9)),
            )
            stream.ingest()
            stream.without_spark = repeat(row_by_row)
            if folds:
                with monkeypatch.context() as forced:
                    forced.setattr(maintenance_schedule, "FOLD_FILES", 2)
                    forced.setattr(maintenance_schedule, "FOLD_SHARE", 0)
                    stream.apply(table)
                assert removed_files(f"{folder}/data") > 2
            stream.apply(table)
        return act()

    before = files(spark, f"{folder}/data")
    if not row_by_row:
        with pytest.raises(WriterConflictError):
            table.compact(overtaken)
        assert shown(table) == stream.truth()
        return
    done = table.compact(overtaken)
    assert shown(table) == stream.truth()
    assert set(shown(table)) == set("acdefghjkl")
    assert done is not None
    assert files(spark, f"{folder}/data") < before
    newest = max(Path(f"{folder}/data").glob("_delta_log/*.json")).read_text()
    assert ('"dataChange":false' in newest, '"dataChange":true' in newest) == (True, False)
    stream.topic.send(delete("c", 11), account("b", 8, name="late"), account("a", 12, name="new"))
    stream.ingest()
    stream.apply(table)
    assert shown(table) == stream.truth()


def removed_files(table: str) -> int:
    """How many files the newest commit of a table removed."""
    newest = max(Path(table).glob("_delta_log/*.json")).read_text()
    actions = [json.loads(line) for line in newest.splitlines()]
    added = {action["add"]["path"] for action in actions if "add" in action}
    removed = [action["remove"] for action in actions if "remove" in action]
    return sum(remove["path"] not in added for remove in removed)


@pytest.mark.usefixtures("compacts_at_once")
def test_a_batch_of_another_process_at_the_commit_of_a_compaction_is_a_conflict(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TBL-10, TBL-14: what the batch says of itself is never covered by what was said before it."""
    stream = Stream(spark, tmp_path, without_jobs=repeat(True))
    for at in (1, 2):
        stream.topic.send(account("a", at, name=str(at)))
        stream.ingest()
    rewritten, commit = stream.changelog().rewrite(), Transaction.commit
    assert rewritten is not None

    def overtaken(self: Transaction, number: int, stored: Mapping[str, Any], **others: Any) -> None:
        monkeypatch.setattr(Transaction, "commit", commit)
        stream.topic.send(account("b", 3, name="Bob"))
        stream.ingest(stream.process())
        commit(self, number, stored, **others)

    monkeypatch.setattr(Transaction, "commit", overtaken)
    with pytest.raises(WriterConflictError):
        stream.changelog().commit_rewritten(rewritten)
    newest = stream.changelog().newest()
    assert newest is not None
    assert newest.ingest_batch == 3
    assert stream.logged_offsets() == sorted(stream.topic.offsets())


@pytest.mark.long
def test_the_retention_that_is_declared_holds_for_tables_that_exist(
    spark: SparkSession, tmp_path: Path
) -> None:
    """TBL-23: changelog, table and graveyard, made with one and opened with another; a rebuild
    keeps it, and a reader changes nothing.
    """
    stream, folder = Stream(spark, tmp_path), f"{tmp_path}/tables/accounts"
    stream._going_on = stream.changelog(VersionRetention(600, 300, 300))

    def kept(*paths: str) -> list[tuple[str, str, str]]:
        names = (
            "delta.deletedFileRetentionDuration",
            "delta.logRetentionDuration",
            "delta.enableExpiredLogCleanup",
        )
        found = [DeltaLog(spark, path).properties() for path in paths]
        return [
            (properties[names[0]], properties[names[1]], properties[names[2]])
            for properties in found
        ]

    def interval(seconds: int) -> tuple[str, str, str]:
        return f"interval {seconds} seconds", f"interval {seconds} seconds", "false"

    stream.topic.send(account("a", 1, name="Ada"), account("b", 2, name="Bob"))
    stream.ingest()
    stream.apply(stream.table(retention=VersionRetention(600, 300, 300)))
    stream.topic.send(delete("b", 3))
    stream.ingest()
    stream.apply(stream.table())
    places = (stream.path, f"{folder}/data", f"{folder}/tombstones")
    assert kept(*places) == [interval(600)] * 3
    stream.changelog().declare()
    stream.table()
    commits = [versions(spark, path) for path in places]
    for _ in range(2):
        stream.changelog(VersionRetention(300, 1000, 300)).declare()
        table = stream.table(retention=VersionRetention(300, 1000, 300))
    assert kept(*places) == [interval(300), interval(1100), interval(1100)]
    assert [versions(spark, path) for path in places] == [number + 1 for number in commits]
    rebuilt(stream)
    assert kept(f"{folder}/data") == [interval(1100)]
    stream.topic.send(account("a", 4, name="Eve"), delete("a", 5))
    stream.ingest(stream.process())
    stream.apply(table := stream.table())
    assert shown(table) == stream.truth()
    assert kept(*(str(path) for path in Path(folder).glob("tombstones-*"))) == [interval(1100)]


@pytest.mark.long
def test_a_log_that_was_cleaned_knows_what_was_committed(
    spark: SparkSession, tmp_path: Path
) -> None:
    """TBL-23, TBL-5: resumable: a new process finds the newest batch, Delta the numbers of
    applications; kept versions are read.
    """
    stream = Stream(spark, tmp_path)
    table = stream.table()
    for at in range(1, 7):
        stream.topic.send(account("a", at, name=str(at)), delete("b", at))
        stream.ingest()
        stream.apply(table)
        if at in (2, 4):
            for path in (stream.path, table.path):
                spark._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(
                    spark._jsparkSession, path
                ).checkpoint()  # type: ignore[union-attr]
    changelog, offsets = stream.changelog(), stream.topic.rest()
    logs = [Path(path) / "_delta_log" for path in (stream.path, table.path)]
    oldest = [min(path.name for path in log.glob("0*.json")) for log in logs]
    changelog.log.clean(0)
    table.clean_log(0)
    assert [min(path.name for path in log.glob("0*.json")) for log in logs] == oldest
    version = table.newest()[0]
    before = (
        spark.read.format("delta")
        .option("versionAsOf", version - 2)
        .load(table.path)
        .drop("_state")
        .collect()
    )
    changelog.log.clean(time.time_ns() // 1000)
    table.clean_log(time.time_ns() // 1000 + HOUR_US, [version - 2])
    assert [min(path.name for path in log.glob("0*.json")) for log in logs] > oldest
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    assert (
        spark.read.format("delta")
        .option("versionAsOf", version - 2)
        .load(table.path)
        .drop("_state")
        .collect()
        == before
    )
    assert Transaction(spark, stream.path, "lowmark/s/batches").newest == 6 * 2**32
    assert (
        Transaction(spark, table.path, "lowmark/accounts").newest
        == table.table_state().apply_number
    )
    assert stream.changelog().progress() == changelog.progress()
    found = open_logged(str(tmp_path), "s")
    assert found is not None
    assert found.to_batch == 6
    assert (
        stream.ingest(
            stream.process(), BatchRange({**offsets.start, **_before_last(changelog)}, offsets.end)
        ).ingest_batch
        == 6
    )
    stream.topic.send(account("c", 9, name="Cid"))
    stream.ingest(stream.process())
    stream.apply(stream.table())
    assert shown(stream.table()) == stream.truth()
    assert stream.logged_offsets() == sorted(stream.topic.offsets())


def _before_last(changelog: Changelog) -> Mapping[int, int]:
    newest = changelog.newest()
    assert newest is not None
    return newest.offsets.start


@pytest.mark.systems
def test_batches_that_every_table_covers_are_deleted(spark: SparkSession, tmp_path: Path) -> None:
    """TBL-15, TBL-6, TBL-21: never a rejected row, never the newest batch; a reader of a removed
    batch is refused.
    """
    stream = Stream(spark, tmp_path)
    for at in range(1, 5):
        stream.topic.send(account("a", at, amount=str(at)))
        stream.topic.raw((b"x", b"rubbish"))
        stream.clock += DAY_US
        stream.ingest()
        if at == 2:
            stream.apply(stream.table(definition("behind")))
    table = stream.table()
    stream.apply(table)
    changelog, logged = stream.changelog(), stream.logged_offsets()
    assert changelog.trim(4, before=stream.clock - 10 * DAY_US) == 0
    assert changelog.trim(0, before=stream.clock) == 0
    assert stream.logged_offsets() == logged

    assert changelog.trim(4, before=stream.clock - DAY_US) == 3
    rows = changelog.rows().selectExpr("ingest_batch", "kind = 'change' AS is_change").collect()
    assert {row["ingest_batch"] for row in rows if row["is_change"]} == {4}
    assert {row["ingest_batch"] for row in rows if not row["is_change"]} == {1, 2, 3, 4}
    assert stream.changelog().progress() == changelog.progress()
    found = open_logged(str(tmp_path), "s")
    assert found is not None
    runs = [run for step in found.steps() for of_partition in step.values() for run in of_partition]
    assert (
        sum(run.stop - run.start for run in runs)
        == sum(found.end[k] - found.begin.get(k, 0) for k in found.end)
        == 2
    )

    for wanted in (definition("new"), definition("behind")):
        with pytest.raises(TableError, match="changelog_retention"):
            stream.apply(stream.table(wanted))
        with pytest.raises(TableError, match="changelog_retention"):
            read_table(spark, str(tmp_path), wanted.name)
    with pytest.raises(TableError, match="the changes of the changelog begin at batch 4"):
        rebuilt(stream)
    stream.topic.send(account("a", 9, amount="9"))
    stream.ingest()
    stream.apply(table)
    assert shown(table)["a"]["amount"] == 9
    assert stream.changelog().newest().trimmed_to == 3  # type: ignore[union-attr]


def pipeline_of(stream: Stream, retention_s: int, log_s: int | None = None) -> Pipeline:
    """The pipeline of a stream with one table, as far as maintenance goes: nothing is ingested."""
    config = ConnectorConfig(
        str(stream.folder),
        KafkaConfig("127.0.0.1:1"),
        streams={"s": with_retention(STREAM, retention_s, log_s)},
        tables={"accounts": definition()},
    )
    ports = IngestPorts(
        topic=lambda: stream.topic.facts,
        publish=stream.publish,
        now=now_us,
        high_watermarks=dict,
        count_rows=count_rows,
        count_table=count_table,
        logged_positions=logged_positions,
        write_rows=write_rows,
        fold_batches=fold_batches,
        earliest=dict,
    )
    kept = History(config.warehouse)
    job_log = JobLog(
        kept.add_jobs,
        kept.add_cut,
        kept.newest_cut,
        kept.cuts,
        last_clean_up=kept.last_clean_up,
        failed_maintenance=kept.failed_maintenance,
        forget_cuts=kept.forget_cuts,
    )
    return Pipeline(stream.spark, config, {"s": ports}, job_log, merge_every_other)


def recorded_at_once(pipeline: Pipeline, stream: Stream) -> None:
    """Record the cut that the tables have reached."""
    pipeline.cuts.reach(
        "s", stream._changelog().progress().cut(stream.clock, STREAM.stall_after_s), {}
    )
    pipeline.cuts.record(at_once=True)


def now_us() -> int:
    return time.time_ns() // 1000


@pytest.mark.long
def test_the_newest_cut_stays_and_older_ones_are_deleted_before_their_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    """TBL-17, TBL-23: counted from when the table left them; an expired cut is an error with a
    remedy, never a missing file.
    """
    stream, retention_s, history_ = Stream(spark, tmp_path), 3, History(str(tmp_path))
    pipeline = pipeline_of(stream, retention_s)
    table = pipeline._tables["accounts"]

    def amounts(low_watermark: int | None = None, now: int | None = None) -> dict[str, int]:
        rows = (
            read_snapshot(spark, str(tmp_path), "accounts", low_watermark=low_watermark, now=now)
            .rows["accounts"]
            .collect()
        )
        return {row["id"]: row["amount"] for row in rows}

    stream.topic.send_everywhere(ANNOUNCED)
    began = now_us()
    for at in (10, 20):
        stream.topic.send(account("a", at * S, amount=str(at)))
        stream.topic.send_everywhere(Heartbeat("p", at * S))
        stream.ingest()
        stream.apply(table)
        recorded_at_once(pipeline, stream)
    assert [cut.low_watermark for cut in history_.cuts("s")] == [20 * S + 1, 10 * S + 1]
    assert (amounts(), amounts(15 * S, now=began)) == ({"a": 20}, {"a": 10})
    for at in (30, 40):
        stream.topic.send(
            account("a", at * S, amount=str(at)), account("b", at * S, amount=str(at))
        )
        stream.ingest()
        stream.apply(table, now=stream.clock + STREAM.stall_after_s * S)
    assert not table.table_state().is_consistent_cut
    time.sleep(retention_s + 0.5)
    with pytest.raises(TableError, match="cannot be read") as raised:
        amounts(15 * S)
    assert "snapshot_retention" in raised.value.remedy

    before = pipeline.cuts.newest("s")
    assert pipeline.upkeep.clean_table("s", "accounts", now_us()).files > 0
    assert [cut.low_watermark for cut in history_.cuts("s")] == [20 * S + 1]
    assert amounts() == {"a": 20}
    pipeline.upkeep.clean_table_log("s", "accounts", now_us() + 3 * DAY_US)
    assert (amounts(), pipeline.cuts.newest("s")) == ({"a": 20}, before)
    with pytest.raises(TableError, match="There is no consistent cut") as raised:
        amounts(15 * S)
    assert "expired" in raised.value.cause
    assert shown(table) == stream.truth()

    assert pipeline.upkeep.clean_table("s", "accounts", now_us() + 8 * DAY_US).files > 0
    assert history_.cuts("s") == []
    with pytest.raises(TableError, match="There is no consistent cut"):
        amounts()
    assert shown(table) == stream.truth()


@pytest.mark.long
@pytest.mark.usefixtures("compacts_at_once")
def test_the_newest_cut_moves_on_with_tables_that_still_show_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """TBL-17, TBL-23: a compaction leaves a cut's version, not the cut: it is recorded again,
    once.
    """
    stream, history_ = Stream(spark, tmp_path), History(str(tmp_path))
    pipeline = pipeline_of(stream, 1)
    table = pipeline._tables["accounts"]
    stream.topic.send_everywhere(ANNOUNCED)
    for at in (10, 20):
        stream.topic.send(
            *(account(row, at * S, amount=str(at)) for row in "abcdef"), delete("x", at * S)
        )
        stream.topic.send_everywhere(Heartbeat("p", at * S))
        stream.ingest()
        stream.apply(table)
    pipeline.cuts.reach(
        "s", stream._changelog().progress().cut(stream.clock, STREAM.stall_after_s), {}
    )
    recorded = history_.newest_cut("s")
    assert recorded is not None
    assert pipeline.upkeep.clean_table("s", "accounts", now_us()) is not None
    assert history_.newest_cut("s") == recorded
    while table.newest()[0] == recorded.versions["accounts"]:
        table._declare({"lowmark.maxStaleness": "1"}, table.table_state())
    for _ in range(2):
        time.sleep(1.2)
        pipeline.upkeep.clean_table("s", "accounts", now_us())
    newest = history_.newest_cut("s")
    assert newest is not None
    assert (newest.low_watermark, newest.versions) == (
        recorded.low_watermark,
        {"accounts": table.newest()[0]},
    )
    assert len(history_.cuts("s")) == 1
    assert {
        row["amount"]
        for row in read_snapshot(spark, str(tmp_path), "accounts").rows["accounts"].collect()
    } == {20}
