"""The log of a table as `connector.delta_log` knows and writes it, compared with Delta in Spark,
with deltalake and with DuckDB, over drawn sequences of commits (ENG-5).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import chain, repeat
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from connector.delta_log.actions import FileId
from connector.delta_log.log import CHECKPOINT_EVERY, Log
from connector.delta_log.old_versions import OldVersions
from connector.delta_log.put import LocalFolder
from connector.errors import TableError
from connector.lake.checks import check_files
from connector.lake.plain_table import query_rows
from connector.lake.small_files import WantedKeys, adds_of, remove, rows_with_keys, write
from connector.spark.storage.delta_log import DeltaLog, quoted
from connector.spark.storage.files import (
    all_files,
    delta,
    newest_snapshot,
    none,
    scala_object,
)
from connector.spark.storage.table import Table
from connector.state import maintenance_schedule
from connector.state.log_damage import commit_file
from connector.state.maintenance_schedule import removable_log_files
from tests.examples import tries
from tests.golden.test_foreign_readers import delta_extension
from tests.spark.streams import Stream, account, definition, shown
from tests.spark.test_apply_steps import delete
from tests.spark.test_other_programs import vacuum

APP = "lowmark/t"
STEPS = 10
PROPERTIES = {
    "delta.enableDeletionVectors": "true",
    "delta.enableExpiredLogCleanup": "false",
    "delta.checkpointInterval": "7",
    "delta.deletedFileRetentionDuration": "interval 90000 seconds",
}


class Lake:
    """A table with a column of keys and one of values, changed by lowmark's log and by others."""

    def __init__(self, spark: SparkSession, path: str, rng: Random) -> None:
        self.spark, self.path, self.rng = spark, path, rng
        listed = ", ".join(f"'{name}' = '{value}'" for name, value in PROPERTIES.items())
        self.sql(
            f"CREATE TABLE {{}} (id STRING, value BIGINT) USING delta TBLPROPERTIES ({listed})"
        )
        self.folder = LocalFolder(f"{path}/_delta_log")
        self.log, self.rows, self.number = Log(self.folder), dict[str, int](), 0
        self.old, self.cuts = OldVersions(self.folder, self.log), dict[int, dict[str, int]]()

    def sql(self, text: str) -> None:
        self.spark.sql(text.format(quoted(self.path))).collect()

    def drawn(self) -> dict[str, int]:
        """Rows to write: some are new, others replace rows."""
        keys = {f"k{self.rng.randrange(30)}" for _ in range(self.rng.randrange(1, 6))}
        return {key: self.rng.randrange(1_000) for key in sorted(keys)}

    def by_lowmark(self) -> None:
        """Replace rows, as a small apply does: deletion vectors and a new file."""
        new, version = self.drawn(), self.log.state().version
        added = self.log.files(version)
        assert added is not None
        keys = WantedKeys(definition(), [(key,) for key in new])
        old = rows_with_keys(self.path, adds_of(added), keys, ["id"])
        actions = [*remove(self.path, list(old))]
        if self.rng.random() < 0.8:
            table = pa.table({"id": [*new], "value": pa.array(new.values(), pa.int64())})
            actions.append(write(self.path, table, ["id"]))
            self.rows |= new
        else:
            self.rows = {key: value for key, value in self.rows.items() if key not in new}
        self.number += 1
        self.log.commit(version, actions, '{"lowmark":{}}', app_id=APP, number=self.number)

    def lists_files(self) -> None:
        self.log.list_files()

    def by_spark(self) -> None:
        new = {f"s{key}": value for key, value in self.drawn().items()}
        new = {key: value for key, value in new.items() if key not in self.rows}
        if new:
            listed = ", ".join(f"('{key}', {value})" for key, value in new.items())
            self.sql(f"INSERT INTO {{}} VALUES {listed}")
            self.rows |= new

    def deletes(self) -> None:
        key = self.rng.choice([*self.rows, "none"])
        self.sql(f"DELETE FROM {{}} WHERE id = '{key}'")
        self.rows.pop(key, None)

    def optimizes(self) -> None:
        self.sql("OPTIMIZE {}")

    def purges(self) -> None:
        self.sql("REORG TABLE {} APPLY (PURGE)")

    def vacuums(self) -> None:
        vacuum(self.spark, self.path)
        self.cuts.clear()

    def sets_property(self) -> None:
        self.sql(f"ALTER TABLE {{}} SET TBLPROPERTIES ('lake.owner' = '{self.rng.random()}')")

    def by_deltalake(self) -> None:
        DeltaTable(self.path).optimize.compact()

    def checkpoints(self) -> None:
        self.log.checkpoint(every=self.rng.choice((1, 3)))

    def checkpoints_by_spark(self) -> None:
        log = delta(self.spark).DeltaLog.forTable(self.spark._jsparkSession, self.path)
        log.checkpoint(newest_snapshot(self.spark, self.path), none(self.spark))

    def checkpoints_by_deltalake(self) -> None:
        DeltaTable(self.path).create_checkpoint()

    def cleans_log(self) -> None:
        """Remove what only versions before the newest checkpoint need."""
        names = self.folder.names()
        of_checkpoint = [int(name[:20]) for name in names if name.endswith(".checkpoint.parquet")]
        for name in names:
            if name[:20].isdigit() and int(name[:20]) < max(of_checkpoint, default=0):
                self.folder.delete(name)
                self.cuts.pop(int(name[:20]), None)

    def keeps_cut(self) -> None:
        """Keep the newest version, as one that a recorded cut names."""
        self.cuts[self.log.state().version] = {**self.rows}

    def forgets_versions(self) -> None:
        """Remove what neither the newest version needs, nor a kept one."""
        if self.rng.random() < 0.3:
            self.cuts = dict(self.rng.sample([*self.cuts.items()], len(self.cuts) // 2))
        time.sleep(0.002)
        newest = self.log.state().version
        self.old.settle([version for version in self.cuts if version < newest])
        for name in removable_log_files(self.folder.names(), newest, newest, self.cuts):
            self.folder.delete(name)
        self.old.delete_unneeded(self.cuts.keys(), time.time_ns() // 1_000)

    def forgets(self) -> None:
        """Begin as a new process."""
        scala_object(delta(self.spark), "DeltaLog").clearCache()
        if self.rng.random() < 0.5:
            self.log = Log(self.folder)
            self.old = OldVersions(self.folder, self.log)

    def steps(self) -> list[Callable[[], None]]:
        others = [self.by_spark, self.deletes, self.optimizes, self.purges, self.vacuums]
        others += [self.sets_property, self.by_deltalake, self.checkpoints]
        others += [self.checkpoints_by_spark, self.checkpoints_by_deltalake, self.cleans_log]
        of_cuts = [self.keeps_cut, self.forgets_versions] * 4
        return [self.by_lowmark] * 8 + [self.forgets, self.lists_files] * 2 + others + of_cuts

    def check(self) -> None:
        """All see the same table."""
        scala_object(delta(self.spark), "DeltaLog").clearCache()
        snapshot = newest_snapshot(self.spark, self.path)
        wanted = {
            FileId.from_action(add): (add["size"], json.loads(add["stats"])["numRecords"])
            for add in adds_of(all_files(self.spark, self.path).actions())
        }
        for state in (self.log.state(), Log(self.folder).state()):
            assert not state.not_known()
            assert state.version == snapshot.version()
            adds = {file: added.action for file, added in state.added.items()}
            assert {
                file: (add["size"], json.loads(add["stats"])["numRecords"])
                for file, add in adds.items()
            } == wanted
            assert state.newest_of(APP) == (self.number or -1)
            assert state.metadata is not None
            assert state.metadata["id"] == snapshot.metadata().id()
            assert state.protocol is not None
        jvm: Any = self.spark._jvm
        nothing = scala_object(jvm.scala.collection.immutable, "Map").empty()
        assert snapshot.validateChecksum(nothing)
        of_spark = self.spark.read.format("delta").load(self.path).collect()
        assert dict(map(tuple, of_spark)) == self.rows
        assert len(of_spark) == len(self.rows)
        table = DeltaTable(self.path)
        assert dict(query_rows(table, "SELECT id, value FROM t")) == self.rows
        assert table.version() == snapshot.version()
        with duckdb.connect() as connection:
            connection.execute(f"LOAD '{delta_extension()}'")
            found = connection.execute(f"SELECT id, value FROM delta_scan('{self.path}')")
            assert dict(found.fetchall()) == self.rows
        for version, rows in self.cuts.items():
            of_spark = self.spark.read.option("versionAsOf", version).format("delta")
            assert dict(map(tuple, of_spark.load(self.path).collect())) == rows
            at_cut = DeltaTable(self.path, version=version)
            assert dict(query_rows(at_cut, "SELECT id, value FROM t")) == rows


def test_own_log_is_what_every_reader_reads(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """ENG-5, nothing_lost, nothing_invented."""
    for number in tries(8, quick=2):
        rng = Random(f"{seed}/{number}")
        lake = Lake(spark, str(tmp_path / str(number)), rng)
        for _ in range(STEPS):
            rng.choice(lake.steps())()
            if rng.random() < 0.3:
                lake.check()
        lake.check()
        # Delta commits behind the commits of lowmark as behind its own.
        lake.by_lowmark()
        lake.by_spark()
        lake.check()


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    """Rows a to d, of which one was deleted, each applied without Spark."""
    stream = Stream(spark, tmp_path, without_spark=repeat(True))
    stream.topic.send(*(account(row, at, amount="1") for at, row in enumerate("abcd", start=10)))
    stream.ingest()
    stream.apply(stream.table())
    applied(stream, delete("d", 20))
    return stream


def applied(stream: Stream, *changes: Any, table: Table | None = None) -> Table:
    stream.topic.send(*changes)
    stream.ingest()
    table = table or stream.table()
    assert stream.apply(table) is not None
    return table


def engine_of(path: str) -> str:
    """The program that made the newest commit."""
    version = DeltaTable(path).version()
    lines = Path(path, "_delta_log", commit_file(version)).read_text("utf-8").splitlines()
    infos = (json.loads(line) for line in lines)
    return next(str(info["commitInfo"]["engineInfo"]) for info in infos if "commitInfo" in info)


def test_small_applies_commit_without_delta(stream: Stream) -> None:
    """ENG-5, TBL-13: the table and its tombstones."""
    table = applied(stream, account("a", 30, amount="2"), delete("b", 31))
    assert engine_of(table.path) == engine_of(table.tombstones.path) == "lowmark"
    assert shown(table) == stream.truth()
    assert table.log.left_to_delta == ""


def test_files_of_spark_and_of_small_applies_are_folded(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENG-8, nothing_lost, deletes_stay_deleted: and Delta reads the table, also its versions
    before.
    """
    monkeypatch.setattr(maintenance_schedule, "FOLD_FILES", 2)
    monkeypatch.setattr(maintenance_schedule, "FOLD_SHARE", 0)
    stream = Stream(spark, tmp_path, without_spark=chain([False], repeat(True)))
    table = applied(stream, *(account(row, 10, amount="1") for row in "abcdefgh"))
    by_spark = {file.name for file in Path(table.path).glob("*/*.parquet")}
    shown_before = dict[int, Any]()
    for at, row in enumerate("abcxyzabc", start=20):
        changes = [account(row, at, amount=str(at)), account(f"{row}{at}", at, name="new")]
        applied(stream, *changes, delete(f"{row}{at - 9}", at), delete("h", at), table=table)
        assert shown(table) == stream.truth()
        shown_before[DeltaTable(table.path).version()] = len(shown(table))
    assert engine_of(table.path) == "lowmark"
    assert table.log.left_to_delta == ""
    files = {Path(uri).name for uri in DeltaTable(table.path).file_uris()}
    assert not files & by_spark
    # In each apply one of two buckets is folded. The other has at most one file more.
    assert len(files) <= 4
    for version, count in shown_before.items():
        sql = f"SELECT * FROM {quoted(table.path)} VERSION AS OF {version}"
        assert spark.sql(sql).count() == count
    stream.without_spark = repeat(False)
    applied(stream, account("a", 40, amount="40"), delete("b", 40), table=table)
    assert shown(table) == stream.truth()


def test_the_next_checkpoint_finds_that_a_part_of_the_log_was_removed(
    spark: SparkSession, stream: Stream
) -> None:
    """TBL-14: in a process that has the state in memory, with the text of a process that begins."""
    path = stream.table().path
    log = DeltaLog(spark, path)
    newest = log.newest()
    assert newest is not None
    for number in range(CHECKPOINT_EVERY):
        assert log.commit_files(newest.version + number, [], newest.stored or {})
    Path(path, "_delta_log", commit_file(1)).unlink()
    with pytest.raises(TableError) as running:
        log.checkpoint()
    with pytest.raises(TableError) as fresh:
        check_files(path)
    assert str(running.value) == str(fresh.value)
    assert running.value.code == fresh.value.code == "TABLE_DAMAGED"


@pytest.mark.parametrize("which", ["table", "tombstones"])
def test_a_commit_of_others_at_the_last_moment_is_respected(
    spark: SparkSession, stream: Stream, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """RUN-3, nothing_lost: it came between the look at the log and the put."""
    table = stream.table()
    path = table.path if which == "table" else table.tombstones.path
    put, left = LocalFolder.put, [path]

    def raced(folder: LocalFolder, name: str, content: bytes) -> bool:
        if left and str(folder._path) == f"{path}/_delta_log":
            spark.sql(f"ALTER TABLE {quoted(left.pop())} SET TBLPROPERTIES ('lake.owner' = 'me')")
        return put(folder, name, content)

    monkeypatch.setattr(LocalFolder, "put", raced)
    applied(stream, account("a", 30, amount="2"), delete("b", 31), table=table)
    assert not left
    assert shown(table) == stream.truth()
    properties = DeltaTable(path).metadata().configuration
    assert properties["lake.owner"] == "me"
    applied(stream, account("b", 25, amount="9"), table=table)
    assert shown(table) == stream.truth()


def test_a_table_with_what_lowmark_does_not_know_is_committed_by_delta(
    spark: SparkSession, stream: Stream
) -> None:
    """ENG-5: and lowmark says why. Without it, lowmark commits again."""
    table = stream.table()
    for value in ("true", "false"):
        spark.sql(
            f"ALTER TABLE {quoted(table.path)}"
            f" SET TBLPROPERTIES ('delta.enableChangeDataFeed' = '{value}')"
        )
        applied(stream, account("a", 40 + len(value), amount="7"), table=table)
        assert shown(table) == stream.truth()
        is_known = value == "false"
        reason = "" if is_known else "the property delta.enableChangeDataFeed = true"
        assert table.log.left_to_delta == reason
        assert (engine_of(table.path) == "lowmark") == is_known
