"""Staged rows are invisible until the changelog has every row of their release (WRS-17 to WRS-20).

The streams here have no Kafka, so that a batch can end at any offset of each Kafka partition.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

from connector.lake.row_states import RowStates
from connector.records import codec
from connector.records.model import (
    ChildPartition,
    ChildPartitions,
    DataChange,
    Heartbeat,
    OffsetRange,
    Release,
    WriteStreamOffset,
)
from connector.records.rejection import Reason
from connector.spark.changes import read_changes
from connector.spark.reader import read_table
from connector.spark.sql_functions import register_functions
from connector.spark.storage.logged_batch import BatchRange
from connector.state.table_state import TableState
from connector.tables.merge import visible
from connector.tables.row import row_of
from connector.write_streams.releases import ReleaseRows, Withheld
from tests.spark.streams import (
    CrashError,
    Stream,
    account,
    crash_at,
    definition,
    rows_by_key,
    shown,
)

LONG = pytest.mark.long
C = 100


def staged(row: str, offset: int, stream: str = "w1/p", **cells: str) -> DataChange:
    """A row of a pending write stream."""
    return replace(
        account(row, 1, **(cells or {"name": f"{row} of {stream}"})),
        stream_partition="write",
        commit_timestamp=0,
        write_stream=WriteStreamOffset(stream, offset),
    )


def release(at: int, *ranges: tuple[str, int, int], by: str = "p") -> Release:
    return Release(by, at, tuple(OffsetRange(*one) for one in ranges))


def begun(spark: SparkSession, folder: Path) -> Stream:
    """A stream with one live stream partition and a low watermark of 51."""
    stream = Stream(spark, folder)
    stream.topic.send_everywhere(ChildPartitions("p", 1, 0, (ChildPartition("p"),)))
    stream.topic.send_everywhere(Heartbeat("p", 50))
    return stream


def fresh(stream: Stream) -> dict[object, object]:
    """The names that a fresh read shows, by id. It shows the same with and without a JVM."""
    found = read_table(stream.spark, str(stream.folder), "accounts").rows
    names = {key: row["name"] for key, row in rows_by_key(found).items()}
    keys = [*(f"{name}{n}".encode() for name in "abrxy" for n in range(12)), b"a", b"b", b"live"]
    states = RowStates(str(stream.folder), definition()).states_of([*keys, b"r", b"later", b"last"])
    rows = (row_of(definition(), key, visible(state)) for key, state in states.items())
    assert {row["id"]: row["name"] for row in rows if row is not None} == names
    return names


def names_of(stream: Stream) -> dict[object, object]:
    return {key: row["name"] for key, row in shown(stream.table()).items()}


def test_the_rows_of_a_release_become_visible_together(spark: SparkSession, tmp_path: Path) -> None:
    """WRS example 4: `all_or_nothing`."""
    stream = begun(spark, tmp_path)
    stream.topic.send(*(staged(f"a{n}", n) for n in range(12)))
    stream.topic.send(*(staged(f"b{n}", n, "w2/p") for n in range(8)))
    progress = stream.ingest()
    assert (progress.staged, progress.changes) == (20, 0)
    table = stream.table()
    stream.apply(table)
    assert shown(table) == {}
    assert fresh(stream) == {}
    stream.topic.send_everywhere(release(C, ("w1/p", 0, 12), ("w2/p", 0, 8)))
    stream.ingest()
    stream.apply(table)
    assert shown(table) == {}, "the low watermark is below the commit timestamp"
    assert len(fresh(stream)) == 20
    stream.topic.send_everywhere(Heartbeat("p", C))
    progress = stream.ingest()
    assert progress.low_watermark == C + 1
    assert progress.releases.open == ()
    stream.apply(table)
    assert names_of(stream) == {f"a{n}": f"a{n} of w1/p" for n in range(12)} | {
        f"b{n}": f"b{n} of w2/p" for n in range(8)
    }


def test_a_release_waits_for_each_offset_of_its_ranges(spark: SparkSession, tmp_path: Path) -> None:
    """WRS example 7: batch 8 has the release and offsets 0 to 4, batch 9 has offset 5. The offsets
    behind the range do not count: seven rows are there, and one of the six is lacking.
    """
    stream = begun(spark, tmp_path)
    rows = [staged(f"r{n}", n) for n in (0, 1, 2, 3, 4, 6, 7)]
    stream.topic.send(account("live", 40, name="live"), *rows)
    stream.topic.send_everywhere(release(C, ("w1/p", 0, 6)))
    row = staged("r5", 5)
    stream.topic.records.append([])
    stream.topic.raw((row.row_key, codec.framed(row, 3)), at=2)
    all_of_it = stream.topic.rest()
    without = BatchRange(all_of_it.start, {**all_of_it.end, 2: 0})
    before = stream.ingest(offsets=without)
    assert [one.withheld for one in before.releases.open] == [Withheld.NO]
    stream.apply(stream.table())
    assert fresh(stream) == names_of(stream) == {"live": "live"}
    after = stream.ingest()
    assert after.releases.open == ()
    assert set(fresh(stream)) == {"live", "r0", "r1", "r2", "r3", "r4", "r5"}


@pytest.mark.long
def test_the_state_is_no_cut_above_an_open_release(spark: SparkSession, tmp_path: Path) -> None:
    """WRS-18: the cut and the freshness stay below a release that lacks rows, even if the frontier
    says more. By default, `tests/property/test_release_laws.py` shows it.
    """
    stream = begun(spark, tmp_path)
    stream.topic.send(staged("a", 0))
    first = stream.ingest()
    assert first.as_of(TableState(complete_to_batch=1)) is not None
    stream.topic.records.append([])
    row = staged("b", 1)
    stream.topic.send_everywhere(release(C, ("w1/p", 0, 2)), Heartbeat("p", 500))
    stream.topic.raw((row.row_key, codec.framed(row, 3)), at=2)
    part = stream.topic.rest()
    progress = stream.ingest(offsets=BatchRange(part.start, {**part.end, 2: 2}))
    assert progress.low_watermark is not None
    assert progress.consistent_to == min(progress.low_watermark, C)
    assert progress.as_of(TableState(complete_to_batch=2)) == first.as_of(
        TableState(complete_to_batch=1)
    )
    progress = stream.ingest()
    assert progress.consistent_to == progress.low_watermark == 501
    assert progress.as_of(TableState(complete_to_batch=3)) == progress.freshness.newest


@pytest.mark.parametrize(
    "step",
    ["logged", *(pytest.param(s, marks=LONG) for s in ("rows written", "letters published"))],
)
def test_a_batch_that_completes_a_release_runs_again(
    spark: SparkSession, tmp_path: Path, step: str
) -> None:
    """Killed after the changelog's commit: the same progress and the same released rows, in the
    same batch.
    """
    stream = begun(spark, tmp_path)
    stream.topic.send(staged("a", 0), staged("b", 1))
    stream.ingest()
    stream.topic.send_everywhere(release(C, ("w1/p", 0, 2)), Heartbeat("p", C))
    offsets = stream.topic.rest()
    with pytest.raises(CrashError):
        stream.ingest(stream.process(crash_at(step)), offsets)
    assert stream.changelog().progress().releases.released_to == 0
    progress = stream.ingest(stream.process(), offsets)
    assert progress.releases.released_to == progress.ingest_batch == 2
    stream.apply(stream.table())
    assert set(names_of(stream)) == {"a", "b"}
    changelog = stream.changelog()
    assert changelog.changes("t", after=1, to=2).count() == 2
    assert changelog.changes("t", after=0, to=1).count() == 0


@pytest.mark.long
def test_a_rejected_row_withholds_the_release_until_its_replay(
    spark: SparkSession, tmp_path: Path
) -> None:
    """WRS example 8: `nothing_lost`, and nothing is shown in part."""
    stream = begun(spark, tmp_path)
    stream.topic.send(*(staged(f"r{n}", n) for n in range(9)))
    bad = staged("r9", 9)
    stream.topic.raw((b"another key", codec.framed(bad, 2)))
    stream.topic.send_everywhere(release(C, ("w1/p", 0, 10)), Heartbeat("p", C))
    progress = stream.ingest()
    assert [one.withheld for one in progress.releases.open] == [Withheld.ROWS]
    assert progress.consistent_to == progress.low_watermark, "a dead letter holds no cut"
    stream.apply(stream.table())
    assert names_of(stream) == fresh(stream) == {}
    (letter,) = stream.one_letter_each().values()
    stream.topic.replay(letter.id, 1, bad.row_key, codec.framed(bad, 2))
    assert stream.ingest().releases.open == ()
    stream.apply(stream.table())
    assert len(names_of(stream)) == len(fresh(stream)) == 10


@pytest.mark.long
@pytest.mark.parametrize("step", ["logged", pytest.param("", marks=LONG)])
def test_an_operator_releases_the_rows_that_are_there(
    spark: SparkSession, tmp_path: Path, step: str
) -> None:
    """WRS example 8: `--without-rejected` shows the other rows, with a batch without records. By
    default, `test_write_stream_release.py` shows it.
    """
    stream = begun(spark, tmp_path)
    stream.topic.send(*(staged(f"r{n}", n) for n in range(9)))
    bad = staged("r9", 9)
    stream.topic.raw((b"another key", codec.framed(bad, 2)))
    stream.topic.send_everywhere(release(C, ("w1/p", 0, 10)), Heartbeat("p", C))
    stream.ingest()
    stream.row_releases.append(ReleaseRows(1, "s", C, "known", 5, "me", "w1/p"))
    if step:
        with pytest.raises(CrashError):
            stream.process(crash_at(step)).take_requests()
        stream.row_releases.clear()
        stream.process().recover()
    else:
        assert stream.process().take_requests()
    assert not stream.process().take_requests()
    progress = stream.changelog().progress()
    assert (progress.ingest_batch, progress.releases.requests_to) == (2, 1)
    stream.apply(stream.table())
    assert len(names_of(stream)) == len(fresh(stream)) == 9
    (letter,) = stream.one_letter_each().values()
    stream.topic.replay(letter.id, 1, bad.row_key, codec.framed(bad, 2))
    assert stream.ingest().releases.open == ()
    stream.apply(stream.table())
    assert len(names_of(stream)) == 9, "the row of the replay is not released"


def test_a_row_is_released_once(spark: SparkSession, tmp_path: Path) -> None:
    """WRS-18: later releases are counted. The rows of a part that is new become visible."""
    stream = begun(spark, tmp_path)
    stream.topic.send(*(staged(f"r{n}", n) for n in range(4)))
    stream.topic.send_everywhere(release(C, ("w1/p", 0, 2)))
    stream.ingest()
    stream.topic.send_everywhere(release(C + 1, ("w1/p", 0, 2)), release(C + 2, ("w1/p", 1, 4)))
    progress = stream.ingest()
    assert (progress.releases.repeated, progress.releases.open) == (1, ())
    found = stream.changelog().changes("t", after=0, to=2).collect()
    assert {(row["row_key"].decode(), row["commit_timestamp"].microsecond) for row in found} == {
        ("r0", C),
        ("r1", C),
        ("r2", C + 2),
        ("r3", C + 2),
    }


@pytest.mark.long
def test_a_release_below_the_horizon_stays_withheld(spark: SparkSession, tmp_path: Path) -> None:
    """WRS-20: too late when it arrives, or when its last row does."""
    day = 86_400_000_000
    stream = begun(spark, tmp_path)
    stream.topic.send(staged("a", 0))
    stream.topic.send_everywhere(release(C, ("w1/p", 0, 2)))
    stream.topic.send_everywhere(Heartbeat("p", 10 * day))
    stream.ingest()
    stream.topic.send(staged("b", 1), staged("c", 2))
    stream.topic.send_everywhere(release(C + 1, ("w1/p", 2, 3)))
    progress = stream.ingest()
    assert [one.withheld for one in progress.releases.open] == [Withheld.TOO_LATE]
    assert {letter.reason for letter in stream.letters} == {Reason.TOO_LATE}
    stream.apply(stream.table())
    assert fresh(stream) == {}


@pytest.mark.long
def test_the_greater_tie_breaker_wins_then_the_greater_offset(
    spark: SparkSession, tmp_path: Path
) -> None:
    """WRS example 9: one commit, one cell. By default, `tests/property/test_order_laws.py` shows
    it.
    """
    stream = begun(spark, tmp_path)
    first, second = staged("r", 3, "a/x", name="a"), staged("r", 9, "b/y", name="b")
    others = [staged(f"x{n}", n, "a/x") for n in range(3)]
    others += [staged(f"y{n}", n, "b/y") for n in range(9)]
    stream.topic.send(second, first, *others)
    stream.topic.send_everywhere(release(C, ("a/x", 0, 4), ("b/y", 0, 10)), Heartbeat("p", C))
    stream.ingest()
    stream.apply(stream.table())
    assert names_of(stream)["r"] == fresh(stream)["r"] == "b"
    another = begun(spark, tmp_path / "ties")
    another.topic.send(replace(first, tie_breaker=1), second, *others)
    another.topic.send_everywhere(release(C, ("a/x", 0, 4), ("b/y", 0, 10)), Heartbeat("p", C))
    another.ingest()
    another.apply(another.table())
    assert names_of(another)["r"] == fresh(another)["r"] == "a"


@pytest.mark.long
def test_unreleased_rows_expire(spark: SparkSession, tmp_path: Path) -> None:
    """WRS-21: their offsets stay for the audit. Released rows are not touched. By default,
    `tests/property/test_release_laws.py` shows it.
    """
    stream = begun(spark, tmp_path)
    stream.topic.send(*(staged(f"a{n}", n) for n in range(4)), staged("b", 0, "w2/p"))
    stream.topic.send_everywhere(release(C, ("w1/p", 0, 2)), Heartbeat("p", C))
    logged = stream.ingest()
    changelog = stream.changelog()
    assert changelog.expire(before=logged.releases.streams["w1/p"].read_at) == 0
    assert changelog.expire(before=stream.clock + 1) == 3
    rows = {(row["kind"], row["entries"]): row["count"] for row in _kinds(stream)}
    assert rows == {("staged", False): 2, ("expired", True): 3, ("control", True): 8}
    assert stream.logged_offsets() == sorted(stream.topic.offsets())
    progress = stream.changelog().progress()
    assert (progress.releases.expired, progress.releases.streams) == (3, {})
    stream.topic.send(account("live", 40, name="live"))
    assert stream.ingest(stream.process()).ingest_batch == 2
    stream.apply(stream.table())
    assert set(names_of(stream)) == {"a0", "a1", "live"}


@pytest.mark.long
def test_a_release_that_ingest_reads_after_a_long_stop_finds_its_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    """WRS-21, `nothing_lost`: the release came in time, and ingest stood still for a month."""
    stream, days, retention_s = begun(spark, tmp_path), 86_400_000_000, 7 * 86_400
    stream.topic.send(staged("a0", 0), staged("b", 0, "w2/p"))
    stream.ingest()
    stream.topic.send_everywhere(release(C, ("w1/p", 0, 1)), Heartbeat("p", C))
    stream.clock += 30 * days
    before = stream.changelog().progress().expires_before(stream.clock, retention_s)
    assert stream.changelog().expire(before=before) == 0
    read = stream.ingest(stream.process())
    stream.apply(stream.table())
    assert set(names_of(stream)) == {"a0"}
    before = read.expires_before(stream.clock, retention_s)
    assert stream.changelog().expire(before=before) == 1
    assert set(fresh(stream)) == {"a0"}


@pytest.mark.long
def test_a_released_row_keeps_its_payload_if_a_later_row_of_its_write_stream_expires(
    spark: SparkSession, tmp_path: Path
) -> None:
    """WRS-21: ingest had forgotten the write stream in between. A rebuild equals the table."""
    stream = begun(spark, tmp_path)
    stream.topic.send(staged("a0", 0))
    stream.topic.send_everywhere(release(C, ("w1/p", 0, 1)), Heartbeat("p", C))
    stream.ingest()
    changelog = stream.changelog()
    assert changelog.expire(before=stream.clock + 1) == 0
    stream.topic.send(staged("a1", 1))
    stream.ingest(stream.process())
    changelog = stream.changelog()
    assert changelog.progress().releases.streams["w1/p"].released == ()
    assert changelog.expire(before=stream.clock + 1) == 1
    stream.apply(stream.table())
    assert names_of(stream) == fresh(stream) == {"a0": "a0 of w1/p"}


@pytest.mark.long
def test_a_row_is_not_released_again_after_its_write_stream_was_forgotten(
    spark: SparkSession, tmp_path: Path
) -> None:
    """WRS-18, WRS-21: not beside rows of a write stream that is known, and not by an operator. With
    and without a JVM, `all_or_nothing` is the same.
    """
    stream = begun(spark, tmp_path)
    stream.topic.send(staged("a0", 0), staged("b0", 0, "w2/p"))
    stream.topic.send_everywhere(release(C, ("w1/p", 0, 1)), Heartbeat("p", C))
    forgotten = stream.ingest().releases.streams["w1/p"].read_at + 1
    stream.topic.send(staged("b1", 1, "w2/p"))
    stream.ingest()
    assert stream.changelog().expire(before=forgotten) == 0
    stream.topic.send(account("a0", C + 1, name="newer"))
    stream.topic.send_everywhere(
        release(C + 2, ("w1/p", 0, 1), ("w2/p", 0, 2)), Heartbeat("p", C + 2)
    )
    progress = stream.ingest(stream.process())
    assert [one.withheld for one in progress.releases.open] == [Withheld.ROWS]
    stream.apply(stream.table())
    assert fresh(stream) == {"a0": "newer"}
    stream.row_releases.append(ReleaseRows(1, "s", C + 2, "known", 5, "me", "w1/p"))
    assert stream.process().take_requests()
    stream.apply(stream.table())
    names = {"a0": "newer", "b0": "b0 of w2/p", "b1": "b1 of w2/p"}
    assert names_of(stream) == fresh(stream) == names


@pytest.mark.long
def test_trimming_spares_rows_of_open_write_streams(spark: SparkSession, tmp_path: Path) -> None:
    """WRS-21 and TBL-15: they leave the changelog after their write stream has expired."""
    stream = begun(spark, tmp_path)
    stream.topic.send(staged("a", 0), account("live", 40, name="live"))
    stream.ingest()
    stream.topic.send(account("later", 41, name="later"))
    stream.ingest()
    stream.topic.send(account("last", 42, name="last"))
    stream.ingest()
    stream.apply(stream.table())
    changelog = stream.changelog()
    assert changelog.trim(2, before=stream.clock + 1) == 2
    assert {row["kind"] for row in _kinds(stream)} == {"staged", "change"}
    stream.topic.send_everywhere(release(C, ("w1/p", 0, 1)), Heartbeat("p", C))
    stream.ingest(stream.process())
    stream.apply(stream.table())
    assert set(names_of(stream)) == {"a", "live", "later", "last"}
    assert stream.changelog().expire(before=stream.clock + 1) == 0
    stream.topic.send(account("very last", 63, name="x"))
    stream.ingest(stream.process())
    assert stream.changelog().trim(4, before=stream.clock + 1) == 4
    assert {row["kind"] for row in _kinds(stream)} == {"change"}


@pytest.mark.long
def test_trimming_spares_released_rows_that_a_table_did_not_apply(
    spark: SparkSession, tmp_path: Path
) -> None:
    """WRS-21, `nothing_lost`: the table has the batch of the row and not that of its release, and
    ingest has forgotten the write stream. By default, `test_maintenance.py` shows it.
    """
    stream = begun(spark, tmp_path)
    stream.topic.send(staged("a", 0), account("live", 40, name="live"))
    stream.ingest()
    stream.topic.send(account("later", 41, name="later"))
    stream.ingest()
    stream.apply(stream.table())
    covered = stream.table().table_state().needed_to_batch
    stream.topic.send_everywhere(release(C, ("w1/p", 0, 1)), Heartbeat("p", C))
    stream.ingest(stream.process())
    assert stream.changelog().expire(before=stream.clock + 1) == 0
    stream.topic.send(account("last", 63, name="last"))
    stream.ingest(stream.process())
    assert stream.changelog().progress().releases.streams == {}
    assert stream.changelog().trim(covered, before=stream.clock + 1) == covered > 0
    stream.apply(stream.table())
    assert set(names_of(stream)) == {"a", "live", "later", "last"}


def _kinds(stream: Stream) -> list[Row]:
    rows = stream.changelog().rows().selectExpr("kind", "entries IS NULL AS entries")
    return rows.groupBy("kind", "entries").count().collect()


@pytest.mark.long
def test_queries_of_changes_return_released_rows(spark: SparkSession, tmp_path: Path) -> None:
    """WRS-22 and SUB-5: they are records of the stream partition of their release."""
    stream = begun(spark, tmp_path)
    stream.topic.send(staged("a", 0), staged("b", 1), account("live", 40, name="live"))
    stream.topic.send_everywhere(Heartbeat("p", 60))
    stream.ingest()

    def queried() -> dict[str, tuple[int, str]]:
        rows = read_changes(spark, str(tmp_path), "s").collect()
        return {
            row["row_key"].decode(): (row["commit_timestamp"].microsecond, row["stream_partition"])
            for row in rows
        }

    assert queried() == {"live": (40, "p")}
    stream.topic.send_everywhere(release(C, ("w1/p", 0, 2)), Heartbeat("p", C))
    stream.ingest()
    assert queried() == {"live": (40, "p"), "a": (C, "p"), "b": (C, "p")}
    (name,) = register_functions(spark, str(tmp_path))
    query = f"SELECT ChangeRecord[0] AS one FROM {name}(timestamp_micros(1L), NULL, 'p', 10000)"
    found = [row["one"]["data_change_record"] for row in spark.sql(query).collect()]
    keys = [bytes(change["row_key"]) for records in found for change in records]
    assert keys == [b"live", b"a", b"b"]


@pytest.mark.long
def test_a_query_returns_rows_of_equal_contents(spark: SparkSession, tmp_path: Path) -> None:
    """SUB-5, WRS-10, WRS-19: rows of committed and of released write streams, whose offsets differ.
    A copy that was sent again comes once. By default,
    `tests/property/test_release_identity_laws.py` shows it.
    """
    stream = begun(spark, tmp_path)
    rows = [staged("a", 0), staged("a", 1)]
    now = [
        replace(account("b", 40, name="b"), write_stream=WriteStreamOffset("w2/c", offset))
        for offset in (0, 1)
    ]
    stream.topic.send(*rows, *now, now[1])
    stream.topic.send_everywhere(release(60, ("w1/p", 0, 2)), Heartbeat("p", C))
    stream.ingest()
    (name,) = register_functions(spark, str(tmp_path))
    query = f"SELECT ChangeRecord[0] AS one FROM {name}(timestamp_micros(1L), NULL, 'p', 10000)"
    found = [row["one"]["data_change_record"] for row in spark.sql(query).collect()]
    keys = [bytes(change["row_key"]) for records in found for change in records]
    assert keys == [b"b", b"b", b"a", b"a"]
