"""A transaction of which one record is held back is listed, and tables may wait for it (ING-2)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connector.config.settings import IncompleteTransactions
from connector.records.model import (
    ChildPartition,
    ChildPartitions,
    DataChange,
    Heartbeat,
    Transaction,
)
from connector.spark.ingest.ingest import Ingest
from connector.state.incomplete_transactions import ReleaseTransaction
from connector.state.stream_progress import Cut
from tests.spark.streams import STREAM, Stream, account, shown

WAITS = replace(
    STREAM, incomplete_transactions=IncompleteTransactions.WAIT, incomplete_after_s=3600
)


def of(id_: str, number: int, at: int, *, declared: int = 2) -> DataChange:
    """A record of a transaction, which sets one row."""
    return replace(
        account(f"{id_}{number}", at, name=f"{id_}{number}"),
        transaction=Transaction(id_, number, number_of_records_in_transaction=declared),
    )


def begun(spark: SparkSession, folder: Path, config: object = WAITS) -> Stream:
    stream = Stream(spark, folder, replace(config, name="s"))  # type: ignore[type-var]
    stream.topic.send_everywhere(ChildPartitions("p", 1, 0, (ChildPartition("p"),)))
    return stream


def check(stream: Stream, ingest: Ingest | None = None) -> bool:
    """What the pipeline does at the end of a run. True: the result was stored."""
    ingest = ingest or stream.process(changelog=stream._changelog())
    found = ingest.check_transactions(is_last=True)
    return found is not None and ingest.keep_check(found)


def listed(stream: Stream) -> list[tuple[str, int, int, bool]]:
    return [
        (one.server_transaction_id, one.commit_timestamp, one.missing, one.is_released)
        for one in stream.changelog().progress().transactions.incomplete
    ]


def cut(stream: Stream) -> Cut:
    config = stream.config
    return stream.changelog().progress().cut(stream.clock, config.stall_after_s, config.wait_s)


def test_a_cut_waits_for_the_record_that_is_missing(spark: SparkSession, tmp_path: Path) -> None:
    """cut_is_consistent: neither the record that is there nor a later transaction is shown."""
    stream = begun(spark, tmp_path)
    table = stream.table()
    stream.topic.send(
        of("a", 1, 10), of("a", 2, 10), of("b", 1, 20), of("c", 1, 30), of("c", 2, 30)
    )
    stream.topic.send_everywhere(Heartbeat("p", 40))
    stream.ingest()
    assert cut(stream).low_watermark == 0, "nothing was checked yet"
    assert check(stream)
    assert listed(stream) == [("b", 20, 1, False)]
    assert (cut(stream).low_watermark, cut(stream).ignores_watermark) == (20, False)
    stream.apply(table)
    assert sorted(shown(table)) == ["a1", "a2"]
    assert table.table_state().is_consistent_cut

    stream.topic.send(of("b", 2, 20))
    stream.ingest()
    assert cut(stream).low_watermark == 20, "it was not checked again"
    assert check(stream)
    assert listed(stream) == []
    assert stream.changelog().progress().transactions.found == 1
    stream.apply(table)
    assert sorted(shown(table)) == ["a1", "a2", "b1", "b2", "c1", "c2"]
    assert table.table_state().is_consistent_cut
    assert not check(stream), "a second check has no news"


def test_what_is_overdue_or_released_is_not_waited_for(spark: SparkSession, tmp_path: Path) -> None:
    """TBL-11: tables go on, and say that they are no consistent cut; a release makes them one."""
    stream = begun(spark, tmp_path, replace(WAITS, incomplete_after_s=60))
    table = stream.table()
    stream.topic.send(of("a", 1, 10), of("b", 1, 20, declared=1))
    stream.topic.send_everywhere(Heartbeat("p", 40))
    stream.ingest()
    assert check(stream)
    stream.clock += 61_000_000
    assert cut(stream).ignores_watermark
    stream.apply(table)
    assert sorted(shown(table)) == ["a1", "b1"]
    assert not table.table_state().is_consistent_cut

    requests = [ReleaseTransaction(1, "s", "a", "lost at the source", stream.clock, "a test")]
    stream.releases.extend(requests)
    stream.topic.send_everywhere(Heartbeat("p", 50))
    stream.ingest()
    assert check(stream)
    assert listed(stream) == [("a", 10, 1, True)]
    assert (cut(stream).low_watermark, cut(stream).ignores_watermark) == (51, False)
    stream.apply(table)
    assert table.table_state().is_consistent_cut


def test_a_stream_that_counts_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    """ING-2: the default lists only, and a replay of the missing record completes it."""
    stream = begun(spark, tmp_path, STREAM)
    stream.topic.send(of("a", 1, 10), of("a", 1, 10), of("a", 3, 10, declared=3))
    stream.topic.send_everywhere(Heartbeat("p", 40))
    stream.ingest()
    assert check(stream)
    assert listed(stream) == [("a", 10, 1, False)], "a copy is no record of its own"
    assert cut(stream).low_watermark == 41
    table = stream.table()
    stream.apply(table)
    assert table.table_state().is_consistent_cut
    # Later, the stream waits: the table is ahead of its cut, and stays as it is.
    stream.config = replace(WAITS)
    assert cut(stream).low_watermark == 10
    stream.topic.send(of("b", 1, 50, declared=1))
    stream.ingest()
    stream.apply(table)
    assert sorted(shown(table)) == ["a1", "a3"]
    stream.config = STREAM
    stream.topic.send(of("a", 2, 10, declared=3))
    stream.ingest()
    assert check(stream)
    assert listed(stream) == []


@pytest.mark.parametrize("declared", [0, 1])
def test_a_stream_without_larger_transactions_is_not_looked_at(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, declared: int
) -> None:
    """ING-2: no query, no commit, and no cut that waits."""
    stream = begun(spark, tmp_path)
    stream.topic.send(of("a", 1, 10, declared=declared), account("b", 20, name="b"))
    stream.topic.send_everywhere(Heartbeat("p", 40))
    stream.ingest()
    monkeypatch.setattr("connector.spark.ingest.ingest.incomplete_transactions", None)
    assert not check(stream)
    assert cut(stream).low_watermark == 41


def test_a_process_that_dies_before_the_result_is_stored_checks_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    """resumable: also where a batch is logged meanwhile."""
    stream = begun(spark, tmp_path)
    stream.topic.send(of("a", 1, 10))
    stream.topic.send_everywhere(Heartbeat("p", 40))
    stream.ingest()
    dying = stream.process()
    assert dying.check_transactions(is_last=True) is not None
    assert listed(stream) == []
    going_on = stream.process(changelog=stream._changelog())
    found = going_on.check_transactions(is_last=True)
    assert found is not None
    stream.topic.send(account("z", 60, name="z"))
    stream.ingest()
    assert going_on.keep_check(found)
    assert listed(stream) == [("a", 10, 1, False)]
    assert stream.changelog().progress().changes == 2
