"""Maintenance in the middle of everything else: fewer files, the same rows (TBL-15)."""

from __future__ import annotations

import os
import time
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from connector.errors import TableError
from connector.lake.logged import open_logged
from connector.spark.changelog import TABLE_SLOTS
from connector.spark.maintenance import KEPT_HOURS, Upkeep
from connector.spark.reader import read_table
from connector.upkeep import COMPACT_EVERY, Mark
from tests.property.histories import history
from tests.spark.streams import Stream, account, definition, rows_by_key, shown
from tests.spark.test_apply_steps import delete, nasty
from tests.spark.test_rebuild import rebuilt

DAY_US = 86_400_000_000


def files(spark: SparkSession, path: str) -> int:
    """How many files the newest version of a Delta table has."""
    found = spark.sql(f"DESCRIBE DETAIL delta.`{path}`").first()
    assert found is not None
    return int(found["numFiles"])


def test_maintenance_changes_no_row(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """TBL-15, TBL-10: nothing_lost, deletes_stay_deleted: between any two applies and batches, and who reads sees nothing of it."""
    rng, stream, wanted = Random(seed), Stream(spark, tmp_path), nasty("all", keep_unmapped=True)
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
            before, logged = table.bookkeeping(), stream.logged_offsets()
            graveyard, changelog = files(spark, f"{folder}/graveyard"), files(spark, stream.path)
            table.compact()
            stream.changelog().compact()
            assert (table.bookkeeping(), stream.logged_offsets()) == (before, logged)
            assert files(spark, f"{folder}/graveyard") < graveyard or part == 2
            assert files(spark, stream.path) < changelog
            assert files(spark, f"{folder}/data") <= table.layout.buckets
    assert rows_by_key(read_table(spark, str(tmp_path), "all").rows, wanted) == stream.truth(wanted)
    stream.apply(stream.table(wanted))
    assert shown(table) == stream.truth(wanted)


@pytest.mark.long
def test_only_files_that_nobody_needs_are_removed(spark: SparkSession, tmp_path: Path) -> None:
    """TBL-15, TBL-17: what a dead process left goes, versions of the last days stay; so does the graveyard of a table that was replaced."""
    stream = Stream(spark, tmp_path)
    stream.topic.send(account("a", 1, name="Ada"), account("b", 2, name="Bob"))
    stream.ingest()
    stream.apply(stream.table())
    stream.topic.send(delete("b", 3), account("a", 4, name="Eve"))
    stream.ingest()
    stream.apply(stream.table())
    rebuilt(stream)
    table, folder = stream.table(), tmp_path / "tables" / "accounts"
    graveyards = {path.name for path in folder.glob("graveyard*")}
    left = [folder / "data" / "_bucket=0" / "part-dead.parquet", Path(stream.path) / "slot=-1" / "part-dead.parquet"]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"half of a f")
        os.utime(path, (time.time() - KEPT_HOURS * 3600 - 60,) * 2)
    table.clean(time.time_ns() // 1000)
    stream.changelog().clean()
    assert [path for path in left if path.exists()] == []
    assert len(graveyards) == 2
    assert {path.name for path in folder.glob("graveyard*")} == graveyards
    assert {row["name"] for row in spark.read.format("delta").option("versionAsOf", 1).load(f"{folder}/data").collect()} == {"Ada", "Bob"}

    table.clean(time.time_ns() // 1000 + 8 * DAY_US)
    assert len(list(folder.glob("graveyard*"))) == 1
    stream.topic.send(account("b", 2, name="late"))
    stream.ingest()
    stream.apply(table)
    assert shown(table) == stream.truth()
    assert set(shown(table)) == {"a"}


def test_the_changelog_lets_go_what_every_table_covers(spark: SparkSession, tmp_path: Path) -> None:
    """TBL-15, TBL-6, TBL-21: never a rejected row, never the newest batch; whoever needs more than is left is refused."""
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
    rows = changelog.rows().selectExpr("ingest_batch", f"slot BETWEEN 0 AND {TABLE_SLOTS} AS is_change").collect()
    assert {row["ingest_batch"] for row in rows if row["is_change"]} == {4}
    assert {row["ingest_batch"] for row in rows if not row["is_change"]} == {1, 2, 3, 4}
    assert stream.changelog().progress() == changelog.progress()
    found = open_logged(str(tmp_path), "s")
    assert found is not None
    runs = [run for step in found.steps() for of_partition in step.values() for run in of_partition]
    assert sum(run.stop - run.start for run in runs) == sum(found.end[k] - found.begin.get(k, 0) for k in found.end) == 2

    for wanted in (definition("new"), definition("behind")):
        with pytest.raises(TableError, match="changelog_retention"):
            stream.apply(stream.table(wanted))
        with pytest.raises(TableError, match="changelog_retention"):
            read_table(spark, str(tmp_path), wanted.name)
    with pytest.raises(TableError, match="its changes begin at batch 4"):
        rebuilt(stream)
    stream.topic.send(account("a", 9, amount="9"))
    stream.ingest()
    stream.apply(table)
    assert shown(table)["a"]["amount"] == 9
    assert stream.changelog().newest().trimmed_to == 3  # type: ignore[union-attr]


def test_what_fails_is_said_and_tried_later() -> None:
    """TBL-15: no failure of maintenance reaches an apply; where nothing was applied, nothing is done."""
    number, said, done = 0, [], []

    def compact() -> None:
        done.append(number)
        if number == COMPACT_EVERY:
            raise TableError("a disk hiccup")

    upkeep = Upkeep("table t", lambda: Mark(number, 0), compact, done.append, said.append)
    for number in (0, COMPACT_EVERY - 1, COMPACT_EVERY, COMPACT_EVERY, COMPACT_EVERY + 1, 2 * COMPACT_EVERY):  # noqa: B007, `mark` sees it
        upkeep.after_round(0)
    assert done == [COMPACT_EVERY, 2 * COMPACT_EVERY]
    assert said == [
        "table t: maintenance failed, and is tried again later: a disk hiccup",
        "table t: small files are put together",
    ]
    upkeep.after_round(DAY_US)
    upkeep.after_round(DAY_US)
    assert done[2:] == [DAY_US]
