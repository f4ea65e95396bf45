"""The worked examples of write streams, with a real broker and the pipeline of `connector run`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import murmur2
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import SparkSession

from connector.clock import now_us
from connector.config.settings import KafkaConfig
from connector.dead_letters.filter import LetterFilter
from connector.dead_letters.repair import Step
from connector.dead_letters.replay import Verdict
from connector.errors import OffsetError, WriteStreamError
from connector.kafka import ChangeProducer, WriteSession, WriteStream
from connector.kafka.write_streams.commit import commit_streams
from connector.records.model import DataChange, Heartbeat, SetCell
from connector.services import DeadLetters, release_rows
from connector.spark.reader import read_snapshot, read_table
from connector.write_streams.releases import Withheld
from tests.broker import NewTopic
from tests.spark.live import Live, Strict
from tests.spark.streams import account, rows_by_key

TO_TABLE = 'set record.data_change.table="t"'


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


@pytest.mark.long
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
        with pytest.raises(WriteStreamError) as open_:
            commit_streams(live.kafka, live.topic, both, through=producer)
        assert open_.value.faults == (("w2/p", "NOT_FINALIZED"),)
        assert second.finalize() == 800
        producer.flush(30)
        live.pipeline().run_once()
        assert fresh(live) == {"live": "live"}
        before = len(versions(live))
        committed = commit_streams(live.kafka, live.topic, both, through=producer)
        assert commit_streams(live.kafka, live.topic, both, through=producer) == committed
        with pytest.raises(WriteStreamError) as other:
            commit_streams(live.kafka, live.topic, ["w1/p"], through=producer)
        assert other.value.faults == (("w1/p", "ALREADY_COMMITTED"),)
        producer.send(Heartbeat("p", max(now_us(), committed)))
        producer.flush(30)
    # The producer is closed, because its heartbeats go on while ingest runs.
    live.pipeline().run_once()
    assert len(fresh(live)) == len(live.table()) == 2_001
    assert len(versions(live)) == before + 1, "all rows in one version"
    snapshot = read_snapshot(live.spark, str(live.warehouse), "accounts")
    assert snapshot.cut.low_watermark > committed
    assert live.logged_offsets() == live.offsets()


@pytest.mark.long
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
        with pytest.raises(OffsetError) as beyond:
            stream.flush_rows(11, through=producer)
        assert (beyond.value.expected, beyond.value.received) == (10, 11)
        stream.finalize()
        producer.reached("p", now_us())
        producer.flush(30)
    live.pipeline().run_once()
    assert fresh(live) == {f"r{number}": f"job/b {number}" for number in range(4)}


@pytest.mark.long
def test_examples_7_to_9_a_commit_waits_for_all_its_rows(
    spark: SparkSession, kafka: KafkaConfig, new_topic: NewTopic, admin: AdminClient, tmp_path: Path
) -> None:
    """WRS-18, WRS-19: a row in a new Kafka partition that is read later (7), rejected rows that are
    replayed or left out (8), of two commits with one commit timestamp, and two write streams that
    write one cell (9).
    """
    with ExitStack() as stack:
        live = Strict(spark, kafka, new_topic().topic, tmp_path / "wh", stack)
        one_time = now_us()
        commit_of_one_cell(live)
        one_cell = {f"x{n}": f"a/x {n}" for n in (0, 1)} | {f"y{n}": f"b/y {n}" for n in range(8)}
        one_cell |= {"plain": "b/y 9", "tied": "a/x 2"}
        rejected = ("replayed", "left")
        for name in rejected:
            commit_with_a_rejected_row(live, name, one_time)
        late = next(f"r{n}" for n in range(5, 99) if murmur2(b"r%d" % n, 2) == 1)
        hold = stack.enter_context(ExitStack())
        committed = commit_into_a_new_kafka_partition(live, admin, hold, late)
        live.pipeline().run_once()
        assert {one.withheld for one in live.changelog().progress().releases.open} == {Withheld.NO}
        assert fresh(live) == one_cell
        hold.close()
        live.pipeline().run_once()
        withheld = live.changelog().progress().releases.withheld
        assert {one.write_streams for one in withheld} == {("replayed/p",), ("left/p",)}
        assert {one.commit_timestamp for one in withheld} == {one_time}
        shown = fresh(live)
        assert shown.keys() - one_cell.keys() == {*(f"r{n}" for n in range(5)), late}
        found = (
            live.changelog()
            .changes("t", after=1, to=2)
            .selectExpr("ingest_batch", "unix_micros(commit_timestamp)")
        )
        assert [tuple(row) for row in found.collect()] == [(2, committed)] * 6
        release_rows(live.config, "s", "left/p", why="row 57 is of no table")
        which, step = LetterFilter(key_prefix=b"replayed"), Step.parse(TO_TABLE)
        replayed = DeadLetters(live.config, "s").replay(which, why="misspelt", steps=[step])
        assert replayed.verdicts == {Verdict.REPLAY: 1}
        live.pipeline().run_once()
        keys = [str(key) for key in fresh(live).keys() - shown.keys()]
        by_name = {name: sum(key.startswith(name) for key in keys) for name in rejected}
        assert by_name == {"replayed": 100, "left": 99}
        assert len(live.table()) == len(shown) + 199


def commit_of_one_cell(live: Live) -> None:
    """Offsets 3 of `a/x` and 9 of `b/y` write one cell, and offsets 2 and 8 another one, where
    `a/x` has the greater tie breaker.
    """
    with (
        WriteSession(live.kafka, live.topic, "a") as a,
        WriteSession(live.kafka, live.topic, "b") as b,
    ):
        x, y = a.stream("x", kind="pending"), b.stream("y", kind="pending")
        of_x, of_y = rows(x, range(4), "x"), rows(y, range(10), "y")
        of_x[2] = replace(of_x[2], row_key=b"tied", tie_breaker=1)
        of_y[8] = replace(of_y[8], row_key=b"tied")
        of_x[3], of_y[9] = (replace(one, row_key=b"plain") for one in (of_x[3], of_y[9]))
        for stream, its in ((y, of_y), (x, of_x)):
            stream.append(its)
            stream.finalize()
        commit_streams(live.kafka, live.topic, ["a/x", "b/y"])


def commit_with_a_rejected_row(live: Live, name: str, as_of: int) -> None:
    """Commit 100 rows. Ingest rejects one of them."""
    with WriteSession(live.kafka, live.topic, name) as session:
        stream = session.stream("p", kind="pending")
        good = rows(stream, range(100), name)
        stream.append([*good[:57], replace(good[57], table="misspelt"), *good[58:]])
        stream.finalize()
        commit_streams(live.kafka, live.topic, [stream.name], as_of=as_of)


def commit_into_a_new_kafka_partition(
    live: Live, admin: AdminClient, hold: ExitStack, late: str
) -> int:
    """Commit offsets 0 to 4 in Kafka partition 0, and the row `late` in a new one, which ingest
    cannot read before `hold` is closed. Returns the commit timestamp.
    """
    with WriteSession(live.kafka, live.topic, "w1") as session:
        stream = session.stream("p", kind="pending")
        stream.append(rows(stream, range(5)))
    admin.create_partitions([NewPartitions(live.topic, 2)])[live.topic].result(30)
    hold.enter_context(live.holding(1))
    with WriteSession(live.kafka, live.topic, "w1") as session:
        stream = session.stream("p", kind="pending")
        number = int(late.removeprefix("r"))
        last = stream.append(rows(stream, range(number, number + 1)), 5)
        assert last.result(30).offset == 5
        stream.finalize()
    return commit_streams(live.kafka, live.topic, ["w1/p"])


@pytest.mark.long
def test_a_backfill_does_not_overwrite_newer_changes(live: Live) -> None:
    """WRS-15: `newest_wins`. Rows exported at T0 lose to changes of the same keys after T0. By
    default, `test_load.py` shows it.
    """
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


@pytest.mark.long
def test_rows_of_a_committed_write_stream_are_changes(live: Live) -> None:
    """WRS-10: the stream partition of the session holds the low watermark until it is closed. By
    default, `tests/integration/test_write_streams.py` shows it.
    """
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
