"""The changes of a stream in Spark and SQL (SUB-5): the same records as a stream reader returns."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from connector.config.settings import VersionRetention
from connector.errors import ConfigError, InvalidChangeError, OutOfRangeError, TableError
from connector.records import codec
from connector.records.model import (
    MAX_TIMESTAMP,
    ChildPartition,
    ChildPartitions,
    DataChange,
    Heartbeat,
    kafka_key,
)
from connector.spark import read_changes, register_functions, stream_changes
from connector.watermarks.transactions import WholeTransaction
from tests.property.transactions import Program, SentChange, TransactionSimulation
from tests.spark.streams import ARRIVAL, Stream, account

BASE = int(ARRIVAL.timestamp()) * 1_000_000 - 3_600_000_000
TICK = 400_000
"""A tick of a simulation's clock, in microseconds. A few ticks are one heartbeat interval."""


def at(time: int) -> int:
    return BASE + time * TICK


def real(change: DataChange, claim: int) -> DataChange:
    """A change of a simulation, with times that ingest accepts."""
    return replace(
        change,
        commit_timestamp=at(change.commit_timestamp),
        estimated_low_watermark=at(claim) if claim else 0,
    )


def ingested(simulation: TransactionSimulation, stream: Stream) -> None:
    """All records of a simulation, in one batch."""
    stream.topic.records = [[] for _ in simulation.logs]
    for k, log in enumerate(simulation.logs):
        for sent in log:
            if isinstance(sent, SentChange):
                assert sent.change is not None
                record: Any = real(sent.change, sent.claim)
            elif sent.lineage is not None:
                record = replace(sent.lineage, start_timestamp=at(sent.lineage.start_timestamp))
            else:
                record = Heartbeat(sent.stream_partition, at(sent.claim) - 1)
            value = codec.frame(codec.encode(record, sent.kafka_partitions), None)
            is_bad = isinstance(sent, SentChange) and sent.is_bad
            stream.topic.raw((kafka_key(record), b"rubbish" if is_bad else value), at=k)
    stream.ingest()


def as_read(simulation: TransactionSimulation) -> list[tuple[int, str, int, bytes, str]]:
    """What a reader of whole transactions returns, in its order."""
    program = Program(simulation)
    program.finish()
    return [
        (
            at(whole.commit_timestamp),
            whole.server_transaction_id,
            change.transaction.record_sequence if change.transaction else 0,
            change.row_key,
            change.stream_partition,
        )
        for whole in program.kept
        if isinstance(whole, WholeTransaction)
        for change in whole.changes
    ]


class Queries:
    """The queries of a program that follows a stream: first without a token, then one for each
    child."""

    def __init__(self, spark: SparkSession, start: int, end: int | None = None) -> None:
        self._spark, self._end = spark, end
        self.changes: list[tuple[int, str, int, bytes, str]] = []
        self.heartbeats: dict[str, list[int]] = {}
        open_ = [(token, start) for _, tokens in self._children(None, start) for token, _ in tokens]
        asked = set[str]()
        while open_:
            token, begin = open_.pop()
            if token in asked:
                continue
            asked.add(token)
            open_ += [
                (child, at)
                for at, children in self._children(token, begin)
                for child, _ in children
            ]

    def _children(self, token: str | None, start: int) -> list[tuple[int, list[Any]]]:
        found, times = list[tuple[int, list[Any]]](), [start]
        for change, beat, children in read(self._spark, start, self._end, token):
            assert [change, beat, children].count(None) == 2, "one of three arrays is filled"
            if change is not None:
                time = micros(change.commit_timestamp)
                key = (change.server_transaction_id, int(change.record_sequence))
                assert token is not None
                self.changes.append((time, *key, bytes(change.row_key), token))
                times.append(time)
            elif beat is not None:
                assert token is not None
                times.append(micros(beat.timestamp))
                self.heartbeats.setdefault(token, []).append(times[-1])
            else:
                begin = micros(children.start_timestamp)
                assert found == [] or begin == found[-1][0]
                found.append((begin, [tuple(child) for child in children.child_partitions]))
                times.append(begin if token else start)
        assert times == sorted(times), f"rows of {token} are not in the order of commits"
        return found


def read(
    spark: SparkSession, start: int, end: int | None, token: str | None, beat_ms: int = 1000
) -> list[tuple[Row | None, Row | None, Row | None]]:
    query = "SELECT ChangeRecord FROM READ_s(timestamp_micros({}L), {}, {}, {})".format(
        start,
        "NULL" if end is None else f"timestamp_micros({end}L)",
        "NULL" if token is None else f"'{token}'",
        beat_ms,
    )
    records = (row[0][0] for row in spark.sql(query).collect())
    return [tuple(next(iter(part), None) for part in record) for record in records]


def micros(time: Any) -> int:
    return round(time.timestamp() * 1_000_000)


@pytest.mark.long
@pytest.mark.parametrize("number", range(6))
def test_the_query_workflow_returns_the_records_of_the_stream_reader(
    spark: SparkSession, tmp_path: Path, seed: int, number: int
) -> None:
    """SUB-5, nothing_lost: splits, merges, new Kafka partitions, duplicates, rejected records and
    transactions over several stream partitions. By default, the tests below show it of one stream.
    """
    rng = Random(seed + number)
    simulation, stream = TransactionSimulation(rng), Stream(spark, tmp_path)
    for _ in range(160 if number else 70):
        simulation.step()
    simulation.finish()
    ingested(simulation, stream)
    low = stream.changelog().progress().low_watermark
    assert low is not None
    wanted = [record for record in as_read(simulation) if record[0] < low]
    assert wanted

    assert register_functions(spark, str(stream.folder)) == ["READ_s"]
    whole = Queries(spark, BASE)
    assert Counter(whole.changes) == Counter(wanted)
    for token in {record[4] for record in wanted}:
        found = [record[:3] for record in whole.changes if record[4] == token]
        assert found == sorted(found), f"changes of {token} are not in order"
    for beats in whole.heartbeats.values():
        assert all(b - a >= 1_000_000 for a, b in pairwise(beats[:-1]))

    start = at(rng.randint(2, max(3, simulation.clock - 2)))
    end = start + rng.randint(0, 10) * TICK
    part = [record for record in wanted if start <= record[0] <= end]
    assert Counter(Queries(spark, start, end).changes) == Counter(part)

    frame = read_changes(spark, str(stream.folder), "s")
    assert {(micros(row.commit_timestamp), bytes(row.row_key)) for row in frame.collect()} == {
        (record[0], record[3]) for record in wanted
    }


@pytest.fixture(scope="module")
def two_tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Stream:
    """Two tables, a split, a heartbeat of each child, and changes above the low watermark."""
    stream = Stream(
        spark, tmp_path_factory.mktemp("two_tables"), known_tables=frozenset({"t", "other"})
    )
    children = (ChildPartition("c1", ("p",)), ChildPartition("c2", ("p",)))
    stream.topic.send_everywhere(ChildPartitions("p", at(1), 1, (ChildPartition("p"),)))
    stream.topic.send(
        account("a", at(2), name="Ada"), replace(account("x", at(3), name="X"), table="other")
    )
    stream.topic.send_everywhere(ChildPartitions("p", at(10), 2, children))
    stream.topic.send(replace(account("b", at(11), name="Bob", amount="1"), stream_partition="c1"))
    stream.topic.send_everywhere(Heartbeat("c1", at(20)), Heartbeat("c2", at(20)))
    stream.topic.send(replace(account("c", at(30), name="Cid"), stream_partition="c1"))
    stream.ingest()
    return stream


def keys(frame: DataFrame) -> list[bytes]:
    return sorted(bytes(row.row_key) for row in frame.collect())


def test_changes_are_selected_by_table_and_commit_time(
    spark: SparkSession, two_tables: Stream
) -> None:
    """SUB-5: both bounds are included, and the result ends below the low watermark."""
    where = (spark, str(two_tables.folder), "s")
    assert keys(read_changes(*where)) == [b"a", b"b", b"x"]
    assert keys(read_changes(*where, complete=False)) == [b"a", b"b", b"c", b"x"]
    assert keys(read_changes(*where, "t")) == [b"a", b"b"]
    assert keys(read_changes(*where, "nowhere")) == []
    assert keys(read_changes(*where, start_commit=at(3), end_commit=at(11))) == [b"b", b"x"]
    assert keys(read_changes(*where, start_commit=at(4), end_commit=at(10))) == []
    cells = read_changes(*where, "t", entries=True).where("row_key = X'62'").collect()
    assert [(cell.mod_type, cell.column, bytes(cell.value)) for cell in cells] == [
        ("SET_CELL", bytearray(b"name"), b"Bob"),
        ("SET_CELL", bytearray(b"amount"), b"1"),
    ]


@pytest.mark.parametrize(
    "arguments",
    [{"start_commit": at(5), "end_commit": at(4)}, {"start_commit": MAX_TIMESTAMP}],
)
def test_a_range_that_cannot_be_read_is_refused(
    spark: SparkSession, two_tables: Stream, arguments: dict[str, int]
) -> None:
    """SUB-1, SUB-5: before anything is read."""
    with pytest.raises(ConfigError, match="start_commit"):
        read_changes(spark, str(two_tables.folder), "s", **arguments)


def test_a_missing_changelog_or_low_watermark_is_an_error(
    spark: SparkSession, two_tables: Stream, tmp_path: Path
) -> None:
    """SUB-5: an unknown stream, a name that no table can have, an unknown low watermark."""
    with pytest.raises(TableError, match="no changelog of stream nowhere"):
        read_changes(spark, str(two_tables.folder), "nowhere")
    with pytest.raises(InvalidChangeError):
        read_changes(spark, str(two_tables.folder), "s", "no'table")
    stream = Stream(spark, tmp_path)
    stream.topic.send(account("a", at(1), name="Ada"))
    stream.ingest()
    with pytest.raises(TableError, match="complete"):
        read_changes(spark, str(stream.folder), "s")
    assert keys(read_changes(spark, str(stream.folder), "s", complete=False)) == [b"a"]
    register_functions(spark, str(stream.folder))
    with pytest.raises(PySparkException, match="not known up to which time"):
        read(spark, at(1), None, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((at(5), None, None, 999), "heartbeat_milliseconds must be from 1,000 to 300,000"),
        ((at(5), None, "nobody", 1000), "must name a stream partition of stream s"),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (
                ((at(5), at(4), None, 1000), "end_timestamp must not be before"),
                ((at(5), None, None, 300_001), "heartbeat_milliseconds must be from 1,000 to"),
                ((at(5), None, "c1", 2**63 - 1), "heartbeat_milliseconds must be from 1,000 to"),
                ((at(5), None, "c1", -(2**63)), "heartbeat_milliseconds must be from 1,000 to"),
                ((at(21), None, None, 1000), "start_timestamp must be at most"),
                ((at(5), None, "c1", 1000), "must not be before the start of the stream partition"),
            )
        ),
    ],
)
def test_arguments_outside_their_range_are_errors_that_name_it(
    spark: SparkSession, two_tables: Stream, arguments: tuple[Any, ...], message: str
) -> None:
    """SUB-5."""
    register_functions(spark, str(two_tables.folder))
    with pytest.raises(PySparkException, match=message):
        read(spark, *arguments)


@pytest.mark.long
@pytest.mark.parametrize(
    "start",
    [
        "timestamp_micros(-9223372036854775808L)",
        pytest.param("TIMESTAMP '0001-01-01 00:00:00Z'", marks=pytest.mark.long),
    ],
)
def test_any_time_is_a_start_or_an_end(spark: SparkSession, two_tables: Stream, start: str) -> None:
    """SUB-5: a time that no record can have selects nothing, and overflows nothing. By default,
    `test_changes_are_selected_by_table_and_commit_time` shows it.
    """
    register_functions(spark, str(two_tables.folder))
    last = "timestamp_micros(9223372036854775807L)"
    query = "SELECT ChangeRecord[0] FROM READ_s({}, {}, {})"
    (((_, _, roots),),) = spark.sql(query.format(start, last, "NULL")).collect()
    assert micros(roots[0].start_timestamp) == 0
    assert [child.token for child in roots[0].child_partitions] == ["p"]
    found = spark.sql(query.format(start, last, "'p'")).collect()
    assert sum(len(record.data_change_record) for (record,) in found) == 2
    with pytest.raises(PySparkException, match="start_timestamp must be at most"):
        spark.sql(query.format(last, "NULL", "'p'")).collect()


@pytest.mark.long
def test_a_query_ends_with_children_or_with_a_heartbeat(
    spark: SparkSession, two_tables: Stream
) -> None:
    """SUB-5: the stream partitions that are live at the start, and the children of one. By default,
    `test_changes_are_selected_by_table_and_commit_time` shows it.
    """
    register_functions(spark, str(two_tables.folder))
    (roots,) = read(spark, at(5), None, None)
    assert roots[2] is not None
    assert [tuple(child) for child in roots[2].child_partitions] == [("p", [])]
    (children,) = read(spark, at(10), None, None)
    assert children[2] is not None
    assert [child.token for child in children[2].child_partitions] == ["c1", "c2"]

    *_, last = read(spark, at(2), None, "p")
    assert last[2] is not None
    assert (micros(last[2].start_timestamp), [tuple(c) for c in last[2].child_partitions]) == (
        at(10),
        [("c1", ["p"]), ("c2", ["p"])],
    )
    *_, last = read(spark, at(10), None, "c2")
    assert last[1] is not None
    assert micros(last[1].timestamp) == at(20)
    *_, last = read(spark, at(2), at(5), "p")
    assert last[1] is not None
    assert micros(last[1].timestamp) == at(5)


def test_a_child_begins_at_the_least_start_that_its_parents_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    """SUB-5, WMK-7, nothing_lost: whichever parent names it. The other child of a parent begins at
    the start that its only parent names.
    """
    stream = Stream(spark, tmp_path)
    merged = ChildPartition("c", ("p1", "p2"))
    roots = (ChildPartition("p1"), ChildPartition("p2"))
    stream.topic.send_everywhere(
        ChildPartitions("r", at(1), 1, roots),
        ChildPartitions("p1", at(10), 1, (merged,)),
        ChildPartitions("p2", at(20), 1, (merged, ChildPartition("d", ("p2",)))),
    )
    stream.topic.send(
        *(
            replace(account(f"{token}{time}", at(time), name="x"), stream_partition=token)
            for token, time in (("p2", 15), ("c", 12), ("c", 25), ("d", 26))
        )
    )
    stream.topic.send_everywhere(Heartbeat("c", at(30)), Heartbeat("d", at(30)))
    stream.ingest()
    register_functions(spark, str(stream.folder))
    for parent, starts in (("p1", {"c": 10}), ("p2", {"c": 10, "d": 20})):
        *_, found = zip(*read(spark, at(2), None, parent), strict=True)
        named = [(record, *child) for record in found if record for child in record[2]]
        assert {child: micros(record.start_timestamp) for record, child, _ in named} == {
            child: at(time) for child, time in starts.items()
        }
        assert {child: parents for _, child, parents in named} == {
            child: ["p1", "p2"] if child == "c" else ["p2"] for child in starts
        }
    found, *_ = zip(*read(spark, at(10), None, "c"), strict=True)
    assert [bytes(change.row_key) for change in found if change] == [b"c12", b"c25"]
    ((_, _, live),) = read(spark, at(13), None, None)
    assert live is not None
    assert [child.token for child in live.child_partitions] == ["c", "p2"]


@pytest.mark.long
def test_a_streaming_query_survives_trimming_and_compaction(
    spark: SparkSession, tmp_path: Path, compacts_at_once: None
) -> None:
    """SUB-5, nothing_lost: each change once, also those of batches that are deleted meanwhile."""
    stream, seen = Stream(spark, tmp_path / "warehouse"), list[bytes]()
    changelog = stream.changelog(VersionRetention())

    def follow() -> None:
        query = (
            stream_changes(spark, str(stream.folder), "s", "t")
            .writeStream.foreachBatch(
                lambda rows, _: seen.extend(bytes(row.row_key) for row in rows.collect())
            )
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    def send(*rows: str) -> None:
        stream.topic.send(*(account(row, at(1), name="x") for row in rows))
        stream.ingest()

    send("a", "b")
    send("c")
    follow()
    assert sorted(seen) == [b"a", b"b", b"c"]
    send("d")
    rewritten = changelog.rewrite()
    assert rewritten is not None
    changelog.commit_rewritten(rewritten)
    send("e")
    send("f")
    assert changelog.trim(3, before=stream.clock + 10**9) == 3
    follow()
    assert sorted(seen) == [b"a", b"b", b"c", b"d", b"e", b"f"]

    with pytest.raises(OutOfRangeError, match="may not hold all changes") as caught:
        read_changes(spark, str(stream.folder), "s", start_commit=at(1), complete=False)
    assert caught.value.oldest is not None
    assert caught.value.oldest > at(1)
    assert keys(read_changes(spark, str(stream.folder), "s", complete=False)) == [b"e", b"f"]
