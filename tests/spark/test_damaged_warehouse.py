"""Spark refuses a changelog that a table was not made from, and files that are damaged (TBL-14,
TBL-16, TBL-17, TBL-20).
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from connector import warehouse as places
from connector.config.settings import ConnectorConfig, KafkaConfig
from connector.errors import TableError
from connector.lake.jobs import History
from connector.lake.overrides import Overrides
from connector.lake.small_tables import as_arrow
from connector.records.model import Heartbeat
from connector.services import read
from connector.spark.reader import read_snapshot, read_table
from connector.spark.status_view import register_status_view
from connector.spark.storage.delta_log import DeltaLog
from connector.state.jobs import CutRecord
from connector.state.overrides import Override
from tests.golden.make_warehouse import FOLDER, TABLE
from tests.spark.streams import STREAM, Stream, account, rows_by_key
from tests.spark.test_cut import ANNOUNCED


def applied(spark: SparkSession, folder: Path) -> Stream:
    """A warehouse with one table, which is at a cut."""
    stream = Stream(spark, folder)
    stream.topic.send_everywhere(ANNOUNCED)
    stream.topic.send(account("a", 5, amount="1"))
    stream.topic.send_everywhere(Heartbeat("p", 10))
    stream.ingest()
    stream.apply(stream.table())
    return stream


@pytest.mark.long
def test_the_changelog_of_another_warehouse_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """TBL-16, TBL-20: its batches have the same numbers. By default,
    `tests/unit/services/test_other_changelog.py` shows it.
    """
    applied(spark, tmp_path / "one")
    other = applied(spark, tmp_path / "other")
    other.topic.send(account("b", 15, amount="2"))
    other.ingest()
    changelog = Path(places.changelog(str(tmp_path / "one"), "s"))
    shutil.rmtree(changelog)
    shutil.copytree(places.changelog(str(tmp_path / "other"), "s"), changelog)
    for bound in (0, 10**9):
        with pytest.raises(TableError, match="replaced by another one") as caught:
            read_table(spark, str(tmp_path / "one"), "accounts", max_staleness_s=bound)
        assert caught.value.code == "CHANGELOG_REPLACED"
    for warehouse, pending in (("one", None), ("other", 1)):
        register_status_view(spark, str(tmp_path / warehouse))
        (row,) = spark.sql("SELECT pending_batches FROM lowmark_tables").collect()
        assert row[0] == pending


@pytest.mark.long
def test_overrides_without_their_log_or_of_another_program_are_not_none(
    spark: SparkSession, tmp_path: Path
) -> None:
    """TBL-20, TBL-14: a read would use the bound of the configuration. By default,
    `tests/golden/test_damage.py` shows it.
    """
    stream = applied(spark, tmp_path)
    warehouse, path = str(stream.folder), Path(places.overrides(str(stream.folder)))
    assert rows_by_key(read_table(spark, warehouse, "accounts").rows)
    Overrides(warehouse).set(Override("max_staleness_s", "accounts", 600, 1, "ann"))
    row = as_arrow([{"made_by": "x"}], {"made_by": "string"})
    write_deltalake(path, row, mode="append", schema_mode="merge")
    with pytest.raises(TableError, match="does not belong to lowmark") as caught:
        read_table(spark, warehouse, "accounts")
    assert caught.value.code == "COMMIT_FOREIGN"
    shutil.rmtree(path / "_delta_log")
    with pytest.raises(TableError, match="Or move the folder") as caught:
        read_table(spark, warehouse, "accounts")
    assert caught.value.code == "TABLE_DAMAGED"
    shutil.rmtree(path)
    assert rows_by_key(read_table(spark, warehouse, "accounts").rows)


@pytest.mark.long
def test_a_snapshot_of_damaged_cuts_is_an_error_with_a_remedy(
    spark: SparkSession, tmp_path: Path
) -> None:
    """TBL-17, TBL-14. By default, `tests/golden/test_damage.py` shows it."""
    stream = applied(spark, tmp_path)
    warehouse, history = str(stream.folder), History(str(stream.folder))
    version, state = stream.table().newest()
    assert state.apply_watermark is not None
    cut = CutRecord(
        "s", state.apply_watermark, 1, 0, 1, recorded_at=1, versions={"accounts": version}
    )
    history.add_cut(cut)
    assert rows_by_key(read_snapshot(spark, warehouse, "accounts").rows["accounts"])
    for low_watermark in (cut.low_watermark + 1, cut.low_watermark - 1):
        at = CutRecord("s", low_watermark, 1, 0, 1, recorded_at=2, versions=cut.versions)
        history.add_cut(at)
        with pytest.raises(TableError, match="made again") as caught:
            read_snapshot(spark, warehouse, "accounts", low_watermark=low_watermark)
        assert caught.value.code == "CUT_MISSING"
    path = Path(places.cuts(warehouse))
    shutil.rmtree(path / "_delta_log")
    with pytest.raises(TableError, match="Or move the folder"):
        read_snapshot(spark, warehouse, "accounts")
    shutil.rmtree(path)
    write_deltalake(path, as_arrow([{"x": "1"}], {"x": "string"}))
    with pytest.raises(TableError, match=r"is not one of lowmark.*snapshots can be read again"):
        read_snapshot(spark, warehouse, "accounts")


CHANGELOG, DATA, TOMBSTONES = (
    *("streams/s/changelog", "tables/accounts/data", "tables/accounts/tombstones"),
)
LOGS = {
    "a commit of 0 bytes in the middle": (-2, lambda file: file.write_bytes(b"")),
    "a newest commit of 0 bytes": (-1, lambda file: file.write_bytes(b"")),
    "a newest commit that is cut": (-1, lambda file: file.write_bytes(file.read_bytes()[:99])),
    "a newest commit that is missing": (-1, Path.unlink),
}


def merge(spark: SparkSession, warehouse: Path) -> None:
    kafka = KafkaConfig("127.0.0.1:1")
    config = ConnectorConfig(str(warehouse), kafka, None, {"s": STREAM}, {"accounts": TABLE})
    with read(config, "accounts", spark=spark, max_staleness_s=0) as found:
        assert len(list(found.rows)) == 7


@pytest.mark.parametrize("what", LOGS)
@pytest.mark.parametrize("path", [CHANGELOG, pytest.param(DATA, marks=pytest.mark.long)])
def test_a_merge_names_a_damaged_commit(
    spark: SparkSession, tmp_path: Path, path: str, what: str
) -> None:
    """TBL-14: Spark reads an empty commit as one without changes, and begins at the one before a
    missing one.
    """
    warehouse = tmp_path / "w"
    shutil.copytree(FOLDER, warehouse)
    at, damage = LOGS[what]
    file = sorted((warehouse / path / "_delta_log").glob("*.json"))[at]
    damage(file)
    with pytest.raises(TableError) as caught:
        merge(spark, warehouse)
    assert caught.value.code == "TABLE_DAMAGED"
    assert str(file) in caught.value.cause
    if at == -1 and file.exists():
        with pytest.raises(TableError, match="is damaged") as caught:
            DeltaLog(spark, str(warehouse / path)).newest()
        assert str(file) in caught.value.cause


@pytest.mark.parametrize(
    "path",
    [DATA, *(pytest.param(path, marks=pytest.mark.long) for path in (CHANGELOG, TOMBSTONES))],
)
@pytest.mark.parametrize(
    "is_empty", [True, pytest.param(False, marks=pytest.mark.long)], ids=["0 bytes", "zeros"]
)
def test_a_merge_names_a_damaged_data_file(
    spark: SparkSession, tmp_path: Path, path: str, is_empty: bool
) -> None:
    """TBL-14."""
    warehouse = tmp_path / "w"
    shutil.copytree(FOLDER, warehouse)
    files = list((warehouse / path).rglob("*.parquet"))
    for file in files:
        file.write_bytes(b"" if is_empty else bytes(file.stat().st_size))
    with pytest.raises(TableError) as caught:
        merge(spark, warehouse)
    assert caught.value.code == "TABLE_DAMAGED"
    assert any(str(file) in caught.value.cause for file in files)


@pytest.mark.long
@pytest.mark.parametrize(
    "what",
    ["cut", *(pytest.param(what, marks=pytest.mark.long) for what in ("missing", "0 bytes"))],
)
def test_a_damaged_checkpoint_is_an_error_or_ignored(
    spark: SparkSession, tmp_path: Path, what: str
) -> None:
    """TBL-14: the remedy of the error helps. By default, `tests/golden/test_damage.py` shows it."""
    warehouse = tmp_path / "w"
    shutil.copytree(FOLDER, warehouse)
    path = warehouse / CHANGELOG
    DeltaTable(path, version=3).create_checkpoint()
    (checkpoint,) = path.glob("_delta_log/*.checkpoint.parquet")
    content = checkpoint.read_bytes()
    checkpoint.unlink()
    if what != "missing":
        checkpoint.write_bytes(content[:99] if what == "cut" else b"")
    with pytest.raises(TableError) as caught:
        merge(spark, warehouse)
    assert str(checkpoint) in caught.value.cause
    assert caught.value.remedy.startswith("Move ")
    for file in (checkpoint, path / "_delta_log/_last_checkpoint"):
        if file.name in caught.value.remedy:
            file.rename(tmp_path / file.name)
    merge(spark, warehouse)


@pytest.mark.long
def test_a_damaged_hint_is_ignored(spark: SparkSession, tmp_path: Path) -> None:
    """By default, `tests/golden/test_damage.py` shows it."""
    warehouse = tmp_path / "w"
    shutil.copytree(FOLDER, warehouse)
    DeltaTable(warehouse / CHANGELOG, version=3).create_checkpoint()
    (warehouse / CHANGELOG / "_delta_log/_last_checkpoint").write_bytes(b"")
    merge(spark, warehouse)
