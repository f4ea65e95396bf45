"""The worked examples of write streams, with a real broker and the pipeline of `connector run`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connector.clock import now_us
from connector.config.settings import KafkaConfig
from connector.errors import OffsetOutOfRangeError, StreamStateError
from connector.kafka import ChangeProducer, WriteSession, WriteStream, commit_streams
from connector.records.model import DataChange, Heartbeat, SetCell
from connector.spark.reader import read_snapshot, read_table
from tests.broker import NewTopic
from tests.spark.live import Live
from tests.spark.streams import account, rows_by_key


@pytest.fixture
def live(
    spark: SparkSession, kafka: KafkaConfig, new_topic: NewTopic, tmp_path: Path
) -> Iterator[Live]:
    with ExitStack() as stack:
        yield Live(spark, kafka, new_topic(kafka_partitions=3).topic, tmp_path / "wh", stack)


def rows(stream: WriteStream, numbers: range, prefix: str = "r") -> list[DataChange]:
    return [
        stream.row(
            table="t",
            row_key=f"{prefix}{number}".encode(),
            entries=[SetCell("f", b"name", f"{stream.name} {number}".encode())],
        )
        for number in numbers
    ]


def fresh(live: Live) -> dict[object, object]:
    found = read_table(live.spark, str(live.warehouse), "accounts", max_staleness_s=0).rows
    return {key: row["name"] for key, row in rows_by_key(found).items()}


def test_examples_4_and_5_several_sessions_commit_together(live: Live) -> None:
    """`all_or_nothing`, in one version of the table; and a repeated commit has the same answer."""
    with (
        ChangeProducer(live.kafka, live.topic, heartbeat_s=1) as producer,
        WriteSession(live.kafka, live.topic, "w1") as one,
        WriteSession(live.kafka, live.topic, "w2") as two,
    ):
        producer.send(account("live", now_us(), name="live"))
        producer.reached("p", now_us())
        first, second = one.stream("p", kind="pending"), two.stream("p", kind="pending")
        first.append(rows(first, range(600), "a"))
        first.append(rows(first, range(600, 1_200), "a"))
        second.append(rows(second, range(800), "b"))
        assert first.finalize() == 1_200
        both = ["w1/p", "w2/p"]
        two.flush(30)
        with pytest.raises(StreamStateError) as open_:
            commit_streams(live.kafka, live.topic, both, through=producer)
        assert open_.value.errors == (("w2/p", "NOT_FINALIZED"),)
        assert second.finalize() == 800
        producer.flush(30)
        live.pipeline().run_once()
        assert fresh(live) == {"live": "live"}
        before = len(versions(live))
        committed = commit_streams(live.kafka, live.topic, both, through=producer)
        assert commit_streams(live.kafka, live.topic, both, through=producer) == committed
        with pytest.raises(StreamStateError) as other:
            commit_streams(live.kafka, live.topic, ["w1/p"], through=producer)
        assert other.value.errors == (("w1/p", "ALREADY_COMMITTED"),)
        producer.send(Heartbeat("p", max(now_us(), committed)))
        producer.flush(30)
        live.pipeline().run_once()
    assert len(fresh(live)) == len(live.table()) == 2_001
    assert len(versions(live)) == before + 1, "all rows in one version"
    snapshot = read_snapshot(live.spark, str(live.warehouse), "accounts")
    assert snapshot.cut.low_watermark > committed
    assert live.logged_offsets() == live.offsets()


def test_example_6_the_flushed_rows_are_visible(live: Live) -> None:
    """A buffered write stream shows the rows up to its flushed offset."""
    with (
        ChangeProducer(live.kafka, live.topic, heartbeat_s=1) as producer,
        WriteSession(live.kafka, live.topic, "job") as session,
    ):
        producer.reached("p", now_us())
        stream = session.stream("b", kind="buffered")
        stream.append(rows(stream, range(10)))
        assert stream.flush_rows(4, through=producer) == 4
        assert stream.flush_rows(2, through=producer) == 4
        with pytest.raises(OffsetOutOfRangeError) as beyond:
            stream.flush_rows(11, through=producer)
        assert (beyond.value.expected, beyond.value.received) == (10, 11)
        stream.finalize()
        producer.reached("p", now_us())
        producer.flush(30)
    live.pipeline().run_once()
    assert fresh(live) == {f"r{number}": f"job/b {number}" for number in range(4)}


def test_a_backfill_does_not_overwrite_newer_changes(live: Live) -> None:
    """WRS-15: `newest_wins`. Rows exported at T0 lose to changes of the same keys after T0."""
    exported = now_us() - 60_000_000
    with (
        ChangeProducer(live.kafka, live.topic, heartbeat_s=1) as producer,
        WriteSession(live.kafka, live.topic, "load") as session,
    ):
        producer.send(account("r1", exported + 1, name="newer"))
        producer.send(account("r2", exported - 1, name="older"))
        producer.reached("p", now_us())
        stream = session.stream("p", kind="pending")
        stream.append(rows(stream, range(4)))
        stream.finalize()
        producer.flush(30)
        live.pipeline().run_once()
        assert commit_streams(live.kafka, live.topic, ["load/p"], as_of=exported) == exported
        live.pipeline().run_once()
    names = {f"r{number}": f"load/p {number}" for number in range(4)} | {"r1": "newer"}
    assert fresh(live) == names
    assert {key: row["name"] for key, row in live.table().items()} == names


def test_rows_of_a_committed_write_stream_are_changes(live: Live) -> None:
    """WRS-10: the stream partition of the session holds the low watermark until it is closed."""
    with WriteSession(live.kafka, live.topic, "job", heartbeat_s=1) as session:
        stream = session.stream("c", kind="committed")
        at = now_us()
        row = stream.row(
            table="t",
            row_key=b"r",
            entries=[SetCell("f", b"name", b"committed")],
            commit_timestamp=at,
        )
        assert stream.append([row], 0).result(30).offset == 0
        session.reached(at)
        session.flush(30)
        live.pipeline().run_once()
        progress = live.changelog().progress()
        assert progress.low_watermark == at + 1
    live.pipeline().run_once()
    assert fresh(live) == {"r": "committed"}
    assert not live.changelog().progress().frontier.partitions


def versions(live: Live) -> list[int]:
    path = f"{live.warehouse}/tables/accounts/data"
    found = live.spark.sql(f"DESCRIBE HISTORY delta.`{path}`").select("version").collect()
    return [row["version"] for row in found]
