"""A transaction of which one record is held back is listed, and tables may wait for it (ING-2)."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connector.config.settings import IncompleteTransactions, KafkaConfig, StreamConfig
from connector.lake.state_reader import table_state_of
from connector.records import codec
from connector.records.model import (
    ChildPartition,
    ChildPartitions,
    DataChange,
    Heartbeat,
    Transaction,
    Truncate,
    kafka_key,
)
from connector.records.rejection import Reason
from connector.services.requests import incomplete_transactions, release_transaction
from connector.spark.ingest import completeness
from connector.spark.ingest.ingest import Ingest
from connector.spark.reader import SparkRead, read_table
from connector.state.incomplete_transactions import ID_PREFIX, ReleaseTransaction
from connector.state.stream_progress import Cut
from tests.broker import NewTopic
from tests.spark.live import Live
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


def test_the_copies_of_a_truncation_are_one_record(spark: SparkSession, tmp_path: Path) -> None:
    """EVO-13, ING-2: two Kafka partitions have a copy, and one record is still missing."""
    stream = begun(spark, tmp_path)
    table, whole = stream.table(), Transaction("b", 0, number_of_records_in_transaction=3)
    stream.topic.send(of("a", 1, 10, declared=1))
    stream.topic.send_everywhere(Truncate("p", "t", 20, transaction=whole))
    stream.topic.send(of("b", 1, 20, declared=3))
    stream.topic.send_everywhere(Heartbeat("p", 40))
    assert stream.ingest().transactions.declared == 2, "one truncation, one change"
    assert check(stream)
    assert listed(stream) == [("b", 20, 1, False)]
    stream.apply(table)
    assert sorted(shown(table)) == ["a1"], "the truncation waits for its transaction"
    stream.topic.send(of("b", 2, 20, declared=3))
    stream.ingest()
    assert check(stream)
    assert listed(stream) == []
    stream.apply(table)
    assert sorted(shown(table)) == ["b1", "b2"]


def test_overdue_and_released_transactions_do_not_hold_the_cut(
    spark: SparkSession, tmp_path: Path
) -> None:
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

    requests = [ReleaseTransaction(1, "s", "a", "lost at the source", stream.clock, "a test", 10)]
    stream.releases.extend(requests)
    stream.topic.send_everywhere(Heartbeat("p", 50))
    stream.ingest()
    assert check(stream)
    assert listed(stream) == [("a", 10, 1, True)]
    assert (cut(stream).low_watermark, cut(stream).ignores_watermark) == (51, False)
    stream.apply(table)
    assert table.table_state().is_consistent_cut


@pytest.mark.long
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


@pytest.mark.long
def test_a_process_that_dies_before_the_result_is_stored_checks_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    """resumable: also where a batch is logged meanwhile. By default,
    `tests/unit/state/test_incomplete_transactions.py` shows it.
    """
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


def fresh(stream: Stream) -> SparkRead:
    return read_table(stream.spark, str(stream.folder), "accounts", max_staleness_s=0)


@pytest.mark.long
def test_a_fresh_read_of_a_stream_that_waits_says_what_it_is(
    spark: SparkSession, tmp_path: Path
) -> None:
    """TBL-16, cut_is_consistent: it shows half of a transaction, so it is no consistent cut. A
    stream that counts takes the low watermark.
    """
    for wait in (True, False):
        stream = begun(spark, tmp_path / str(wait), WAITS if wait else STREAM)
        stream.table()
        stream.topic.send(of("a", 1, 10), of("a", 2, 10), of("b", 1, 20))
        stream.topic.send_everywhere(Heartbeat("p", 40))
        stream.ingest()
        assert fresh(stream).is_consistent_cut is not wait, "nothing was checked yet"
        assert check(stream)
        half = fresh(stream)
        assert half.rows.count() == 3
        assert half.is_consistent_cut is not wait
    stream = begun(spark, tmp_path / "whole")
    stream.table()
    stream.topic.send(of("a", 1, 10), of("a", 2, 10))
    stream.topic.send_everywhere(Heartbeat("p", 40))
    stream.ingest()
    assert check(stream)
    whole = fresh(stream)
    assert (whole.is_consistent_cut, whole.low_watermark) == (True, 41)


@pytest.mark.long
def test_the_replay_of_a_rejected_record_completes_its_transaction(
    spark: SparkSession, tmp_path: Path
) -> None:
    """DLQ-10: a dead letter is missing from its transaction. By default,
    `tests/unit/state/test_incomplete_transactions.py` shows it.
    """
    stream = begun(spark, tmp_path)
    rejected = codec.frame(codec.encode(of("a", 2, 10), 2), None)
    stream.topic.send(of("a", 1, 10))
    stream.topic.raw((b"another key", rejected))
    stream.topic.send_everywhere(Heartbeat("p", 40))
    stream.ingest()
    (letter,) = stream.letters
    assert letter.reason is Reason.KEY_MISMATCH
    assert check(stream)
    assert listed(stream) == [("a", 10, 1, False)]
    stream.topic.replay(letter.id, 1, kafka_key(of("a", 2, 10)), rejected)
    stream.ingest()
    assert check(stream)
    assert (listed(stream), cut(stream).low_watermark) == ([], 41)


def trim(stream: Stream) -> int:
    return stream.changelog().trim(100, before=stream.clock + 10**12)


@pytest.mark.long
def test_a_batch_stays_while_a_check_needs_it(spark: SparkSession, tmp_path: Path) -> None:
    """TBL-15: neither before the check nor while a record is missing. No trim makes a transaction
    incomplete.
    """
    stream = begun(spark, tmp_path, STREAM)
    stream.topic.send(of("a", 1, 10), of("b", 1, 20))
    stream.ingest()
    stream.topic.send(of("a", 2, 10))
    stream.topic.send_everywhere(Heartbeat("p", 40))
    stream.ingest()
    stream.topic.send(account("z", 60, name="z"))
    stream.ingest()
    assert trim(stream) == 0, "nothing was checked yet"
    assert check(stream)
    assert listed(stream) == [("b", 20, 1, False)]
    assert trim(stream) == 0, "b lacks a record"
    stream.topic.send(of("b", 2, 20))
    stream.ingest()
    assert check(stream)
    assert listed(stream) == []
    assert trim(stream) == 3
    stream.topic.send_everywhere(Heartbeat("p", 70))
    stream.ingest()
    assert not check(stream, stream.process()), "what was checked stays checked"
    assert listed(stream) == []


@pytest.mark.long
def test_removed_batches_above_the_low_watermark_are_not_checked(
    spark: SparkSession, tmp_path: Path
) -> None:
    """TBL-15, TBL-11: a stalled stream was applied and trimmed."""
    stream = begun(spark, tmp_path, STREAM)
    stream.topic.send(of("a", 1, 50))
    stream.topic.send_everywhere(Heartbeat("p", 40))
    stream.ingest()
    stream.topic.send(of("a", 2, 50))
    stream.ingest()
    assert trim(stream) == 1
    assert stream.changelog().progress().transactions.checked_to == 51
    stream.topic.send(of("c", 1, 51))
    stream.topic.send_everywhere(Heartbeat("p", 60))
    stream.ingest()
    assert check(stream)
    assert listed(stream) == [("c", 51, 1, False)]


@pytest.mark.parametrize("wait", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_check_with_more_than_it_may_find(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, wait: bool
) -> None:
    """cut_is_consistent: what it may have left out holds the cut, also where a record without a
    number completes one that it found. A stream that counts goes on.
    """
    monkeypatch.setattr(completeness, "MAX_GAPS", 2)
    stream = begun(spark, tmp_path, WAITS if wait else STREAM)
    stream.topic.send(of("a", 1, 10), of("a", 2, 10, declared=0), of("b", 1, 20), of("c", 1, 30))
    stream.topic.send_everywhere(Heartbeat("p", 40))
    stream.ingest()
    assert check(stream)
    assert listed(stream) == [("b", 20, 1, False)]
    assert cut(stream).low_watermark == (20 if wait else 41)
    assert stream.changelog().progress().transactions.checked_to == (20 if wait else 41)


@pytest.mark.long
def test_a_long_id_is_listed_in_short(spark: SparkSession, tmp_path: Path) -> None:
    """Every commit has the list. Two ids that begin alike are two transactions. By default,
    `tests/unit/state/test_incomplete_transactions.py` shows it.
    """
    stream = begun(spark, tmp_path)
    long = "t" * 1_000
    stream.topic.send(of(long + "a", 1, 10), of(long + "b", 1, 10))
    stream.topic.send_everywhere(Heartbeat("p", 40))
    stream.ingest()
    assert check(stream)
    (first, *_), (second, *_) = listed(stream)
    assert first != second
    assert {len(first), len(second)} == {ID_PREFIX + len("...") + 64}
    stream.releases.append(ReleaseTransaction(1, "s", first, "lost", stream.clock, "a test", 10))
    assert check(stream)
    assert [(id_, is_released) for id_, _, _, is_released in listed(stream)] == [
        (first, True),
        (second, False),
    ]


@dataclass
class Waiting(Live):
    """A live stream whose tables wait for incomplete transactions."""

    @property
    def stream(self) -> StreamConfig:
        wait = IncompleteTransactions.WAIT
        return replace(super().stream, incomplete_transactions=wait, incomplete_after_s=3600)

    def heartbeat(self, at: int) -> None:
        announced = ChildPartitions("p", 1, 0, (ChildPartition("p"),))
        self.send(
            (number, kafka_key(record), codec.frame(codec.encode(record, 2), None))
            for number in range(2)
            for record in (announced, Heartbeat("p", at))
        )


@pytest.mark.long
def test_the_pipeline_waits_for_the_record_that_is_held_back(
    spark: SparkSession, kafka: KafkaConfig, new_topic: NewTopic, tmp_path: Path
) -> None:
    """ING-2: each run checks before it applies. The record, or the release by an operator, ends it.
    By default, `test_a_cut_waits_for_the_record_that_is_missing` shows it.
    """
    with ExitStack() as stack:
        live = Waiting(spark, kafka, new_topic(kafka_partitions=2).topic, tmp_path / "w", stack)

        def shown() -> list[object]:
            live.pipeline().run_once()
            assert table_state_of(str(live.warehouse), "s", "accounts").is_consistent_cut
            return sorted(map(str, live.table()))

        live.publish(of("a", 1, 10), of("a", 2, 10), of("b", 1, 20), of("c", 1, 30))
        live.publish(account("d", 35, name="d"))
        live.heartbeat(40)
        assert shown() == ["a1", "a2"]
        found = incomplete_transactions(live.config)
        assert [
            (one.server_transaction_id, one.commit_timestamp, one.missing) for one in found
        ] == [
            ("b", 20, 1),
            ("c", 30, 1),
        ]
        live.publish(of("b", 2, 20))
        assert shown() == ["a1", "a2", "b1", "b2"]
        release_transaction(live.config, "s", "c", why="lost at the source")
        assert shown() == ["a1", "a2", "b1", "b2", "c1", "d"]
