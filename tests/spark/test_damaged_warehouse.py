"""Spark refuses a changelog that a table was not made from, and small tables that are damaged
(TBL-14, TBL-16, TBL-17, TBL-20).
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from connector import warehouse as places
from connector.errors import ErrorCode, TableError
from connector.lake.jobs import History
from connector.lake.overrides import Overrides
from connector.lake.small_tables import as_arrow
from connector.records.model import Heartbeat
from connector.spark.reader import read_snapshot, read_table
from connector.spark.status_view import register_status_view
from connector.state.jobs import CutRecord
from connector.state.overrides import StalenessOverride
from tests.spark.streams import Stream, account, rows_by_key
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


def test_the_changelog_of_another_warehouse_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """TBL-16, TBL-20: its batches have the same numbers."""
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
        assert caught.value.code == ErrorCode.CHANGELOG_REPLACED
    for warehouse, pending in (("one", None), ("other", 1)):
        register_status_view(spark, str(tmp_path / warehouse))
        (row,) = spark.sql("SELECT pending_batches FROM lowmark_tables").collect()
        assert row[0] == pending


def test_overrides_without_their_log_or_of_another_program_are_not_none(
    spark: SparkSession, tmp_path: Path
) -> None:
    """TBL-20, TBL-14: a read would use the bound of the configuration."""
    stream = applied(spark, tmp_path)
    warehouse, path = str(stream.folder), Path(places.overrides(str(stream.folder)))
    assert rows_by_key(read_table(spark, warehouse, "accounts").rows)
    Overrides(warehouse).set(StalenessOverride("accounts", 600, 1, "ann"))
    row = as_arrow([{"made_by": "x"}], {"made_by": "string"})
    write_deltalake(path, row, mode="append", schema_mode="merge")
    with pytest.raises(TableError, match="was not made by lowmark") as caught:
        read_table(spark, warehouse, "accounts")
    assert caught.value.code == ErrorCode.COMMIT_FOREIGN
    shutil.rmtree(path / "_delta_log")
    with pytest.raises(TableError, match="Or move the folder") as caught:
        read_table(spark, warehouse, "accounts")
    assert caught.value.code == ErrorCode.FOLDER_NOT_A_TABLE
    shutil.rmtree(path)
    assert rows_by_key(read_table(spark, warehouse, "accounts").rows)


def test_a_snapshot_of_damaged_cuts_is_an_error_with_a_remedy(
    spark: SparkSession, tmp_path: Path
) -> None:
    """TBL-17, TBL-14."""
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
        assert caught.value.code == ErrorCode.CUT_EXPIRED
    path = Path(places.cuts(warehouse))
    shutil.rmtree(path / "_delta_log")
    with pytest.raises(TableError, match="Or move the folder"):
        read_snapshot(spark, warehouse, "accounts")
    shutil.rmtree(path)
    write_deltalake(path, as_arrow([{"x": "1"}], {"x": "string"}))
    with pytest.raises(TableError, match=r"is not one of lowmark.*snapshots can be read again"):
        read_snapshot(spark, warehouse, "accounts")
