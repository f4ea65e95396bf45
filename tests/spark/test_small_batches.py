"""A batch that is read without a Spark job is the same as one of Spark (ENG-4, ENG-10)."""

from __future__ import annotations

from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from connector.errors import WriterConflictError
from connector.lake.plain_table import open_table
from connector.records.codec import CONFLUENT, SINGLE_OBJECT, framed
from connector.records.model import MAX_TIMESTAMP, Heartbeat, kafka_key
from connector.spark.storage.changelog_columns import OWN_SLOT
from connector.validation import Limits
from connector.warehouse import MIXED_SLOT
from tests.changes import NEWER_SCHEMA, in_newer_schema
from tests.property.strategies import RECORDS
from tests.record_cases import drawn
from tests.spark.streams import STREAM, Stream, account, job_count, shown

SEED = 20_261_129


@pytest.mark.usefixtures("compacts_at_once")
def test_a_small_batch_has_the_rows_and_the_progress_of_a_large_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    """TBL-4, TBL-5: records of every kind, damaged ones, and a schema with unknown fields."""
    few, many = (
        Stream(
            spark,
            tmp_path / name,
            schema_by_id={9: NEWER_SCHEMA}.get,
            without_jobs=repeat(is_small),
        )
        for name, is_small in (("few", True), ("many", False))
    )
    for stream in (few, many):
        stream.now = lambda: few.clock  # type: ignore[method-assign]
    records = drawn(RECORDS, 200, SEED)
    for stream in (few, many):
        stream.topic.raw(*((kafka_key(record), framed(record, 2)) for record in records))
        for length, record in enumerate(records[:40]):
            value = framed(record, 2)
            stream.topic.raw((kafka_key(record), value[: 2 * length]), at=1)
            stream.topic.raw((kafka_key(record), value + b"\0"), at=1)
        stream.topic.raw((None, None), (b"", b""), (b"a", CONFLUENT), (b"a", SINGLE_OBJECT), at=1)
        change = account("a", 5, name="Ada")
        stream.topic.raw((change.row_key, in_newer_schema(change, 2, 9)))
        stream.topic.raw((change.row_key, framed(change, 2, 8)), None)
    progress = [stream.ingest() for stream in (few, many)]
    assert progress[0] == progress[1]
    assert few.letters == many.letters
    assert len(few.letters) > 40

    few.topic.send(Heartbeat("p", 9))
    few.ingest()
    before, in_large_one = rows_of(few), rows_of(many)
    for row, same in zip(before, in_large_one, strict=False):
        assert without_slot(row) == without_slot(same)
    assert {row["slot"] for row in before} == {MIXED_SLOT}
    rewritten = few.changelog().rewrite()
    assert rewritten is not None
    few.changelog().commit_rewritten(rewritten)
    after = rows_of(few)
    assert after[: len(in_large_one)] == in_large_one
    assert [without_slot(row) for row in after] == [without_slot(row) for row in before]


@pytest.mark.usefixtures("compacts_at_once")
def test_rows_of_small_batches_are_put_into_slots_by_a_fold(
    spark: SparkSession, tmp_path: Path
) -> None:
    """TBL-15, ENG-10: nothing_lost: every column of every row, in the slot that Spark would choose.
    An apply finds its changes before and after. A second move of the same files is refused.
    """
    stream = Stream(spark, tmp_path, without_jobs=repeat(True))
    for at in range(1, 5):
        stream.topic.send(*(account(row, at, name=row) for row in "abc"))
        stream.topic.send(replace(account("x", at), table="other"), Heartbeat("p", at))
        stream.topic.raw((b"a", b"no record"))
        stream.ingest()
    changelog, jobs = stream.changelog(), job_count(spark)
    first, second = changelog.fold(2), changelog.fold(2)
    assert first is not None
    assert second is not None
    assert job_count(spark) == jobs
    assert first.work.files == 0, "four files, and four slots"
    progress = stream.ingest()
    own = {
        (row["kafka_partition"], row["offset"]): row["own"]
        for row in changelog.rows()
        .selectExpr("kafka_partition", "offset", f"{OWN_SLOT} AS own")
        .collect()
    }
    before = rows_of(stream)
    changelog.commit_folded(first)
    after = rows_of(stream)
    assert [without_slot(row) for row in after] == [without_slot(row) for row in before]
    assert {row["slot"] for row in after} == {*own.values()}
    assert all(row["slot"] == own[row["kafka_partition"], row["offset"]] for row in after)
    assert stream.changelog().progress() == progress
    with pytest.raises(WriterConflictError):
        changelog.commit_folded(second)
    recent = stream.changelog().recent_changes("t", after=1, to=4)
    assert recent is not None
    assert recent.count >= 9
    table = stream.table()
    stream.topic.send(account("a", 9, name="new"))
    stream.ingest()
    stream.apply(table)
    assert shown(table) == stream.truth()


def rows_of(stream: Stream) -> list[dict[str, Any]]:
    """The rows of its changelog, by batch."""
    rows = stream.changelog().rows().sort("ingest_batch", "kafka_partition", "offset")
    return [row.asDict(recursive=True) for row in rows.collect()]


def without_slot(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "slot"}


def test_a_small_batch_may_have_the_last_time_there_is(spark: SparkSession, tmp_path: Path) -> None:
    """REC-25, ENG-10: poison_is_contained. The statistics of its file hide no row from a reader."""
    limits = Limits(max_clock_skew_s=2**40)
    stream = Stream(spark, tmp_path, replace(STREAM, limits=limits), without_jobs=repeat(True))
    times = [MAX_TIMESTAMP - 999, MAX_TIMESTAMP - 998, MAX_TIMESTAMP]
    for time in times:
        stream.topic.send(account("a", time))
        assert stream.ingest().changes
    for time in times:
        where = f"commit_timestamp = timestamp_micros({time}L)"
        assert stream.changelog().rows().where(where).count() == 1
        where = f"commit_timestamp = arrow_cast({time}, 'Timestamp(Microsecond, Some(\"UTC\"))')"
        query = f"SELECT count(*) FROM t WHERE {where}"
        assert [*open_table(stream.path).query(query)] == [(1,)]
