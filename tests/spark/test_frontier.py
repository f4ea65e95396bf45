"""The frontier in the stream: what a batch says of watermarks is committed with it, and found again
(WMK, TBL-5, MRG-11).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connector.config.settings import StreamConfig
from connector.lake.state_reader import progress_of
from connector.records.codec import encode, frame
from connector.records.model import CONTROL_KEY, ChildPartition, ChildPartitions, Heartbeat
from connector.records.views import view_of_time
from connector.reports.stream_status import stream_status
from connector.state.overrides import ClosePartition
from connector.state.source_checks import Ignored
from connector.state.stream_progress import Progress
from connector.watermarks.producer_epoch import EPOCH_HEADER
from tests.spark.streams import (
    ARRIVAL,
    STREAM,
    CrashError,
    Stream,
    Topic,
    account,
    crash_at,
    shown,
    versions,
)

S = 1_000_000
RETENTION_S = 100
NOW = int(ARRIVAL.timestamp()) * S


def announcement(*names: str, at: int = 1) -> ChildPartitions:
    return ChildPartitions("root", at, 0, tuple(ChildPartition(name) for name in names))


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    return Stream(spark, tmp_path, replace(STREAM, delete_retention_s=RETENTION_S))


def test_watermark_is_honest_from_batch_to_batch(stream: Stream) -> None:
    """WMK-2, WMK-3, WMK-6, TBL-5: it waits for each stream partition in each Kafka partition, in
    whichever process.
    """
    stream.topic.send(account("a", 10 * S, name="Ada"))
    assert stream.ingest().low_watermark is None
    stream.topic.send_everywhere(announcement("p"))
    assert stream.ingest().low_watermark is None
    stream.topic.send_everywhere(Heartbeat("p", 10 * S))
    progress = stream.ingest()
    assert progress.low_watermark == 10 * S + 1
    assert stream.changelog().progress() == progress
    # A new Kafka partition counts before anybody spoke there.
    stream.topic.records.append([])
    stream.topic.send_everywhere(Heartbeat("p", 20 * S))
    stream.topic.records[2].clear()
    assert stream.ingest().low_watermark == 10 * S + 1
    stream.topic.send_everywhere(Heartbeat("p", 15 * S))
    progress = stream.ingest()
    assert progress.low_watermark == 15 * S + 1
    assert progress.ignored_claims == 2


def test_watermark_is_honest_across_a_split(stream: Stream) -> None:
    """WMK-7: the parent holds the low watermark until its end was read everywhere."""
    halves = (ChildPartition("x", ("p",), b"", b"m"), ChildPartition("y", ("p",), b"m", None))
    stream.topic.send_everywhere(announcement("p"), Heartbeat("p", 10 * S))
    stream.topic.send_everywhere(ChildPartitions("p", 30 * S, 0, halves))
    unread = stream.topic.records[1].pop()
    assert stream.ingest().low_watermark == 10 * S + 1
    stream.topic.records[1].append(unread)
    progress = stream.ingest()
    assert progress.low_watermark == 30 * S
    assert sorted(progress.frontier.live) == ["x", "y"]
    assert sorted(progress.frontier.ended) == ["p"]


def test_claims_that_cannot_be_are_ignored_and_counted(stream: Stream) -> None:
    """WMK-2, WMK-5, REC-15: the change is kept."""
    stream.topic.send_everywhere(announcement("p"))
    sentinels = [
        account("a", 10 * S, name="Ada"),
        replace(account("b", 10 * S, name="Bo"), estimated_low_watermark=2**63 - 1),
    ]
    ahead = replace(account("c", 10 * S, name="Cy"), estimated_low_watermark=NOW + 3600 * S)
    stream.topic.send(*sentinels, ahead)
    progress = stream.ingest()
    assert (progress.changes, progress.low_watermark, progress.ignored_claims) == (3, None, 2)


@pytest.mark.long
def test_two_producers_of_a_stream_partition_are_named_within_one_batch(stream: Stream) -> None:
    """PUB-4: the older one behind the newer one, in a batch or after it. The claims of both count,
    a successor is no second producer, and a replay says nothing. By default,
    `tests/property/test_producer_epoch_laws.py` shows it.
    """
    stream.topic.send_everywhere(announcement("p", "q"), epoch=5)
    stream.topic.send_everywhere(Heartbeat("p", 10 * S), Heartbeat("q", 10 * S), epoch=5)
    stream.topic.send_everywhere(Heartbeat("p", 20 * S), epoch=7)
    progress = stream.ingest()
    assert (progress.checks.two_producers, progress.frontier.partitions["p"].epochs) == (
        {},
        {0: 7, 1: 7},
    )
    stream.topic.send_everywhere(Heartbeat("q", 20 * S))
    replayed = frame(encode(Heartbeat("p", 20 * S), 2), None)
    stream.topic.replay("id-1-0-0", 1, CONTROL_KEY, replayed, at=1)
    place = 1, len(stream.topic.records[1]) - 1
    stream.topic.headers[place] = (*stream.topic.headers[place], (EPOCH_HEADER, b"1"))
    assert stream.ingest().checks.two_producers == {}

    stream.topic.send_everywhere(Heartbeat("p", 30 * S), epoch=5)
    stream.topic.send_everywhere(Heartbeat("q", 30 * S), epoch=8)
    stream.topic.send_everywhere(Heartbeat("q", 31 * S), epoch=5)
    progress = stream.ingest()
    found = {
        name: (two.older_epoch, two.newer_epoch)
        for name, two in progress.checks.two_producers.items()
    }
    assert found == {"p": (5, 7), "q": (5, 8)}
    assert progress.low_watermark == 30 * S + 1
    assert progress_of(str(stream.folder), "s", with_frontier=True) == progress
    status = stream_status(
        StreamConfig(name="s", topic="s", stall_after_s=9), progress, stream.clock
    )
    assert any("two producers write stream partition p" in hint for hint in status.hints)


def test_ignored_claims_are_counted_by_stream_partition_and_reason(stream: Stream) -> None:
    """ING-4, WMK-2, WMK-6, WMK-8, REC-15"""
    stream.topic.send_everywhere(announcement("p", "gone", at=5), Heartbeat("p", 10 * S))
    stream.overrides.append(ClosePartition(1, "s", "gone", "writer is gone", NOW, "ada"))
    stream.ingest()
    ahead = replace(account("c", 10 * S, name="Cy"), estimated_low_watermark=NOW + 3600 * S)
    stream.topic.send(ahead)
    stream.topic.send_everywhere(
        announcement("p", at=4), Heartbeat("p", 9 * S), Heartbeat("gone", 9 * S)
    )
    progress = stream.ingest()
    assert progress.checks.ignored == {
        "gone": {Ignored.ENDED: 2},
        "p": {Ignored.IN_FUTURE: 1, Ignored.BACKWARDS: 2},
        "root": {Ignored.OLDER_ANNOUNCEMENT: 2},
    }
    assert progress.ignored_claims == 7


def test_late_changes_are_applied_and_counted_and_too_late_ones_rejected(stream: Stream) -> None:
    """WMK-11, MRG-11, `deletes_stay_deleted`: against the horizon that the batch before
    committed.
    """
    table = stream.table()
    low = 1_000 * S
    horizon = low + 1 - RETENTION_S * S
    stream.topic.send_everywhere(announcement("p"), Heartbeat("p", low))
    # In the batch that moves the horizon it does not count yet.
    stream.topic.send(account("old", horizon - 1, name="Old"))
    progress = stream.ingest()
    assert (progress.low_watermark, progress.horizon, progress.late) == (low + 1, horizon, 0)
    stream.topic.send(
        account("late", horizon, name="Late"),
        account("gone", horizon - 1, name="Gone"),
        account("new", low + 1, name="New"),
    )
    progress = stream.ingest()
    assert (progress.late, progress.rejected) == (1, {"TOO_LATE": 1})
    (letter,) = stream.letters
    assert (letter.reason, letter.detail) == (
        "TOO_LATE",
        f"commit_timestamp is {view_of_time(horizon - 1)}, the horizon was {view_of_time(horizon)}",
    )
    stream.apply(table)
    assert sorted(map(str, shown(table))) == ["late", "old"], "new is not below the low watermark"


def test_progress_is_derived_again_from_the_changelog(stream: Stream) -> None:
    """TBL-5, `resumable`: rows read in one go say what they said batch by batch; a batch is one
    commit, its frontier no row.
    """
    stream.topic.send_everywhere(announcement("p"), Heartbeat("p", 10 * S))
    first = stream.ingest()
    stream.topic.send_everywhere(Heartbeat("p", 20 * S))
    second = stream.ingest()
    assert (
        stream.spark.read.format("delta").load(stream.path).where("kind = 'frontier'").count() == 0
    )
    assert versions(stream.spark, stream.path) == 2
    assert stream.logged_offsets() == stream.topic.offsets()
    again = Stream(
        stream.spark, stream.folder / "again", stream.config, topic=Topic(stream.topic.records)
    )
    at_once = again.ingest()
    assert (at_once.low_watermark, at_once.horizon) == (second.low_watermark, second.horizon)
    assert Progress.from_json(first.to_json(), first.frontier) == first


@pytest.mark.systems
def test_an_operators_end_takes_effect_without_traffic(stream: Stream) -> None:
    """WMK-8, TBL-5, TBL-10: recorded with a batch that reads nothing; a crash changes neither which
    ends it took nor what it says.
    """
    stream.topic.send_everywhere(announcement("p", "gone"), Heartbeat("p", 10 * S))
    stream.topic.send(account("a", 5 * S, name="Ada"))
    first = stream.topic.rest()
    stream.ingest()
    table = stream.table()
    stream.apply(table)
    assert stream.changelog().progress().low_watermark is None
    assert not table.table_state().is_consistent_cut

    stream.overrides.append(ClosePartition(1, "s", "gone", "decommissioned", 7, "ann"))
    with pytest.raises(CrashError):
        stream.process(crash_at("logged")).take_requests()
    stream.overrides.append(ClosePartition(2, "s", "p", "too late for that batch", 8, "bob"))
    stream.process().recover()
    progress = stream.changelog().progress()
    assert (progress.ingest_batch, progress.low_watermark, list(progress.frontier.live)) == (
        2,
        10 * S + 1,
        ["p"],
    )
    assert (progress.ends, progress.closed_to) == ((stream.overrides[0],), 1)
    stream.overrides.pop()
    stream.apply(table)
    assert table.table_state().is_at(10 * S + 1, 2), "the cut has moved with nothing to read"

    assert stream.ingest(offsets=first) == progress, (
        "Spark's last batch, run again, is found to be done"
    )
    stream.process().take_requests()
    assert stream.changelog().progress() == progress, "a wish is taken once"
    stream.topic.send_everywhere(Heartbeat("p", 20 * S))
    progress = stream.ingest()
    assert (progress.ingest_batch, progress.low_watermark, progress.ends) == (3, 20 * S + 1, ())
    assert stream.logged_offsets() == stream.topic.offsets()
