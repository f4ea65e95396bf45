"""The versions of recorded cuts, while the versions between them go, in a pipeline with one table
(ENG-8, TBL-17).
"""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import repeat
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from connector.errors import TableError
from connector.lake.jobs import History
from connector.lake.plain_table import query_rows
from connector.records.model import Heartbeat
from connector.spark.reader import read_snapshot
from connector.state.maintenance_schedule import HOUR_US, READ_ENDS_US
from tests.spark.streams import Stream, account, shown
from tests.spark.test_cut import ANNOUNCED, S
from tests.spark.test_maintenance import now_us, pipeline_of, recorded_at_once


def test_versions_between_cuts_go_and_snapshots_stay(spark: SparkSession, tmp_path: Path) -> None:
    """ENG-8, TBL-17, TBL-23: commits and files. A cut that was thinned out is replaced by the one
    before it. A cut whose commits are gone is read by programs without lowmark, too.
    """
    stream, history_ = Stream(spark, tmp_path, without_spark=repeat(True)), History(str(tmp_path))
    pipeline = pipeline_of(stream, 86_400, log_s=1)
    table = pipeline._tables["accounts"]
    stream.topic.send_everywhere(ANNOUNCED)
    for at in range(1, 15):
        stream.topic.send(*(account(row, at * S, amount=str(at)) for row in "abcd"))
        stream.topic.send_everywhere(Heartbeat("p", at * S))
        stream.ingest()
        stream.apply(table)
        if at in (4, 8, 9, 12, 14):
            recorded_at_once(pipeline, stream)
            assert table.log._log is not None
            table.log._log.checkpoint(every=3)

    def amounts(at: int) -> set[int]:
        read = read_snapshot(spark, str(tmp_path), "accounts", low_watermark=at * S + 1)
        return {row["amount"] for row in read.rows["accounts"].collect()}

    folder = Path(table.path)
    commits = len([*folder.glob("_delta_log/0*.json")])
    on_disk = len([*folder.rglob("*.parquet"), *folder.rglob("*.bin")])
    cuts = {cut.low_watermark // S: cut for cut in history_.cuts("s")}
    assert {at: amounts(at) for at in cuts} == {at: {at} for at in cuts}
    # As if the older ones were recorded three hours ago: 9 and 12 within ten minutes.
    history_.forget_cuts("s", {"accounts": cuts[12].versions["accounts"] + 1})
    old = (now_us() // HOUR_US - 3) * HOUR_US
    for at, seconds in {4: 0, 8: 600, 9: 1_200, 12: 1_210}.items():
        history_.add_cut(replace(cuts[at], recorded_at=old + seconds * S))
    time.sleep(1.1)
    assert pipeline.upkeep.clean_table("s", "accounts", now_us()).files > 0
    pipeline.upkeep.clean_table_log("s", "accounts", now_us())
    assert [cut.low_watermark // S for cut in history_.cuts("s")] == [14, 12, 8, 4]
    assert len([*folder.glob("_delta_log/0*.json")]) < commits
    assert len([*folder.rglob("*.parquet"), *folder.rglob("*.bin")]) < on_disk
    assert {at: amounts(at) for at in cuts} == {14: {14}, 12: {12}, 9: {8}, 8: {8}, 4: {4}}
    at_cut = DeltaTable(table.path, version=cuts[8].versions["accounts"])
    assert set(query_rows(at_cut, "SELECT amount FROM t")) == {(8,)}
    with pytest.raises(TableError, match="There is no consistent cut"):
        amounts(3)
    stream.topic.send(account("a", 30 * S, amount="30"))
    stream.topic.send_everywhere(Heartbeat("p", 30 * S))
    stream.ingest()
    stream.apply(table)
    assert shown(table) == stream.truth()


def test_a_read_of_a_cut_that_was_thinned_out_ends(spark: SparkSession, tmp_path: Path) -> None:
    """TBL-23: for 10 minutes after the record of a cut was deleted, a read that began before finds
    its files, also if the process that deletes it has just begun.
    """
    stream, history_ = Stream(spark, tmp_path, without_spark=repeat(True)), History(str(tmp_path))
    pipeline = pipeline_of(stream, 86_400, log_s=1)
    table = pipeline._tables["accounts"]
    stream.topic.send_everywhere(ANNOUNCED)
    for at in range(1, 5):
        stream.topic.send(account("a", at * S, amount=str(at)))
        stream.topic.send_everywhere(Heartbeat("p", at * S))
        stream.ingest()
        stream.apply(table)
        recorded_at_once(pipeline, stream)
    cuts = {cut.low_watermark // S: cut for cut in history_.cuts("s")}
    history_.forget_cuts("s", {"accounts": cuts[3].versions["accounts"] + 1})
    old = (now_us() // HOUR_US - 3) * HOUR_US
    for at in (1, 2, 3):
        history_.add_cut(replace(cuts[at], recorded_at=old + at * S))
    reading = DeltaTable(table.path, version=cuts[2].versions["accounts"])
    time.sleep(1.1)
    begun = now_us()
    pipeline.upkeep.clean_table("s", "accounts", begun)
    assert [cut.low_watermark // S for cut in history_.cuts("s")] == [4, 3]
    assert set(query_rows(reading, "SELECT amount FROM t")) == {(2,)}
    pipeline.upkeep.clean_table("s", "accounts", begun + READ_ENDS_US)
    with pytest.raises(TableError, match="missing"):
        set(query_rows(reading, "SELECT amount FROM t"))
