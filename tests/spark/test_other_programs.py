"""A lake's maintenance by other programs, between applies and during one (RUN-3). It changes no
row, so lowmark and its readers go on behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from connector import warehouse as paths
from connector.errors import TableError
from connector.lake.audit import open_logged
from connector.lake.plain_table import other_commits
from connector.lake.state_reader import logged_progress_of, table_state_of
from connector.records.model import DeleteFamily
from connector.spark.reader import read_table
from connector.spark.storage.delta_log import quoted, session_with
from connector.state import maintenance_schedule
from tests.changes import change
from tests.spark.streams import Stream, account, copied, rows_by_key, shown, versions

ROWS = 40


@pytest.fixture(scope="module")
def applied(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Stream:
    """Several files in each bucket, with rows marked as deleted, and tombstones."""
    stream = Stream(spark, tmp_path_factory.mktemp("applied"), without_spark=repeat(True))
    accounts = [account(f"k{n}", n + 1, name=f"n{n}", amount="1") for n in range(ROWS)]
    stream.topic.send(*accounts)
    send_and_apply(stream)
    for batch in range(3):
        changed = (f"k{n}" for n in range(batch, ROWS, 7))
        stream.topic.send(*(account(row, 100 + batch, amount=str(batch)) for row in changed))
        stream.topic.send(delete(f"k{batch + 5}", at=200 + batch))
        send_and_apply(stream)
    return stream


@pytest.fixture
def stream(applied: Stream, tmp_path: Path) -> Stream:
    return copied(applied, tmp_path / "copy")


def delete(row: str, at: int) -> object:
    return change(DeleteFamily("f"), at=at, row_key=row.encode())


def send_and_apply(stream: Stream) -> None:
    stream.ingest()
    stream.apply(stream.table())


def vacuum(spark: SparkSession, path: str) -> None:
    """Delete everything that the newest version does not need."""
    settings = {
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.databricks.delta.vacuum.retentionWindowIgnore.enabled": "false",
    }
    session_with(spark, settings).sql(f"VACUUM {quoted(path)} RETAIN 0 HOURS").collect()


def by_spark(spark: SparkSession, path: str) -> None:
    spark.sql(f"OPTIMIZE {quoted(path)}").collect()
    spark.sql(f"ALTER TABLE {quoted(path)} SET TBLPROPERTIES ('lake.owner' = 'me')")
    vacuum(spark, path)


def by_purge(spark: SparkSession, path: str) -> None:
    """Files with marked rows are written again."""
    spark.sql(f"REORG TABLE {quoted(path)} APPLY (PURGE)").collect()
    vacuum(spark, path)


def by_deltalake(_: SparkSession, path: str) -> None:
    DeltaTable(path).optimize.compact()
    table = DeltaTable(path)
    table.alter.set_table_properties({"lake.owner": "me"}, raise_if_not_exists=False)
    table.alter.set_table_description("the accounts")
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    DeltaTable(path).create_checkpoint()


MAINTENANCE = {"spark": by_spark, "purge": by_purge, "deltalake": by_deltalake}


def folders(stream: Stream) -> list[str]:
    folder = paths.table_folder(str(stream.folder), "accounts")
    return [paths.data(folder), paths.tombstones(folder, ""), stream.path]


@pytest.mark.parametrize("maintain", MAINTENANCE.values(), ids=MAINTENANCE.keys())
def test_lowmark_and_its_readers_go_on_behind_the_maintenance_of_others(
    spark: SparkSession, stream: Stream, maintain: Callable[[SparkSession, str], None]
) -> None:
    """RUN-3, deletes_stay_deleted: a process that goes on, and one that begins, apply with Spark
    and without it. The states of rows and the tombstones are those of before.
    """
    going_on, before, warehouse = stream.table(), shown(stream.table()), str(stream.folder)
    state = table_state_of(warehouse, "s", "accounts")
    for path in folders(stream):
        version = versions(spark, path)
        maintain(spark, path)
        assert versions(spark, path) > version
    assert shown(going_on) == before == stream.truth()
    assert table_state_of(warehouse, "s", "accounts") == state == stream.table().table_state()
    assert logged_progress_of(warehouse, "s").progress.ingest_batch == 4
    logged = open_logged(warehouse, "s")
    assert logged is not None
    assert logged.foreign_commits == 0
    for path in folders(stream):
        operations = other_commits(path)
        assert operations[-1] == "VACUUM END"

    for number, table in enumerate((going_on, stream.table())):
        at = 300 + 10 * number
        stream.topic.send(account("k5", 150, name="late"), account("k1", at, amount="7"))
        stream.topic.send(delete(f"k{20 + number}", at=at), account("k39", 90, name="late"))
        stream.ingest()
        assert rows_by_key(read_table(spark, warehouse, "accounts").rows) == stream.truth()
        stream.without_spark = repeat(number == 0)
        assert stream.apply(table) is not None
        assert shown(table) == stream.truth()
        for path in folders(stream):
            maintain(spark, path)


@pytest.mark.parametrize("step", ["apply begun", "letters published", "tombstones written"])
@pytest.mark.parametrize("without_spark", [True, False])
def test_an_apply_begins_again_if_others_replace_its_files(
    spark: SparkSession, stream: Stream, step: str, *, without_spark: bool
) -> None:
    """RUN-3, nothing_lost: whenever the files are replaced."""
    stream.without_spark = repeat(without_spark)
    stream.topic.send(account("k1", 300, amount="7"), delete("k30", at=300))
    stream.ingest()
    table = stream.table()
    left = [
        lambda: spark.sql(f"OPTIMIZE {quoted(table.path)}").collect(),
        lambda: DeltaTable(table.path).vacuum(dry_run=False),
        lambda: spark.sql(f"REORG TABLE {quoted(table.path)} APPLY (PURGE)").collect(),
    ]

    def on_step(reached: str) -> None:
        if reached == step and left:
            left.pop()()

    assert stream.apply(table, on_step) is not None
    assert shown(table) == stream.truth()
    assert table.table_state().apply_number == 5


@pytest.mark.parametrize("is_replaced", [True, False])
def test_small_files_with_tombstones_are_put_together(
    spark: SparkSession, stream: Stream, monkeypatch: pytest.MonkeyPatch, *, is_replaced: bool
) -> None:
    """ENG-8, deletes_stay_deleted: an apply with a delete folds the others. If another program has
    just replaced these, they stay. Late changes bring no row back, in this process or the next.
    """
    monkeypatch.setattr(maintenance_schedule, "FOLD_FILES", 2)
    monkeypatch.setattr(maintenance_schedule, "FOLD_SHARE", 0)
    stream.without_spark = repeat(True)
    table = stream.table()
    path = table.tombstones.path
    files = [len(table.tombstones.files(table.table_state()))]

    def on_step(step: str) -> None:
        if step == "letters published" and is_replaced:
            spark.sql(f"OPTIMIZE {quoted(path)}").collect()

    stream.topic.send(account("k1", 300, amount="7"), delete("k30", at=300))
    stream.ingest()
    assert stream.apply(table, on_step) is not None
    files.append(len(table.tombstones.files(table.table_state())))
    assert files == [3, 2 if is_replaced else 1]
    assert len(DeltaTable(path).file_uris()) == files[1]
    late = (account(f"k{n}", at, name="late") for n, at in ((5, 150), (6, 160), (30, 250)))
    stream.topic.send(*late)
    stream.ingest()
    assert stream.apply(stream.table()) is not None
    assert shown(table) == stream.truth()
    assert not {"k5", "k6", "k30"} & {row["id"] for row in stream.truth().values()}


def test_a_commit_that_changes_rows_is_named_behind_maintenance(
    spark: SparkSession, stream: Stream
) -> None:
    """RUN-3, TBL-14: with the last good version."""
    table = stream.table()
    by_spark(spark, table.path)
    good = versions(spark, table.path)
    spark.sql(f"DELETE FROM {quoted(table.path)} WHERE id = 'k1'")
    by_deltalake(spark, table.path)
    for act in (
        table.newest,
        stream.table,
        lambda: table_state_of(str(stream.folder), "s", "accounts"),
    ):
        with pytest.raises(TableError, match=rf"DELETE.*VERSION AS OF {good}") as caught:
            act()
        assert caught.value.fields["last_good"] == good
    spark.sql(f"RESTORE TABLE {quoted(table.path)} TO VERSION AS OF {good}")
    by_spark(spark, table.path)
    assert shown(stream.table()) == stream.truth()
