"""Rows that the driver knows, as frames without Python on executors (SCL-3)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pyspark.sql import SparkSession

from connector.spark.sql import literal_rows

LEAST, GREATEST = -(2**63), 2**63 - 1
PLACES = "key binary, places array<struct<place: struct<batch: bigint, part: int>, at: bigint>>"


@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        ("n bigint, b binary", [(LEAST, b"\x00\xff"), (GREATEST, b""), (None, None)]),
        ("t string, ok boolean", [("", True), ("ü \U0001f600 \x00 '\"\\", False), (None, None)]),
        ("age interval day to second", [(timedelta(days=-1, microseconds=1),), (None,)]),
        (PLACES, [(b"k", [((GREATEST, 2), None), ((1, -1), LEAST)]), (b"", []), (None, None)]),
    ],
)
def test_rows_are_exact(spark: SparkSession, columns: str, rows: list[tuple[object]]) -> None:
    frame = literal_rows(spark, iter(rows), columns)
    assert [tuple(row) for row in frame.collect()] == rows
    assert frame.schema == spark.createDataFrame([], columns).schema


def test_no_rows_have_columns(spark: SparkSession) -> None:
    every = "a map<string, binary>, b decimal(38, 9), c timestamp, d date, e float, f double"
    frame = literal_rows(spark, [], every)
    assert frame.collect() == []
    assert frame.schema == spark.createDataFrame([], every).schema


def test_rows_are_part_of_the_plan(spark: SparkSession) -> None:
    """An RDD would be computed by tasks."""
    plan = literal_rows(spark, [(1,)], "n bigint")._jdf.queryExecution().optimizedPlan()
    assert plan.getClass().getSimpleName() == "LocalRelation"
