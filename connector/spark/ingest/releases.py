"""Counts the staged rows of releases (WRS-18)."""

from __future__ import annotations

from pyspark.sql import functions as F

from connector.spark.literal_rows import literal_rows
from connector.spark.storage.changelog import Changelog
from connector.write_streams.releases import ReleaseProgress


def count_rows_of(releases: ReleaseProgress, changelog: Changelog, to: int) -> dict[int, int]:
    """How many different offsets of each open release are in the changelog up to the batch `to`,
    by the number of the release in `releases.open`. Offsets that were released before are left out.

    It is one query over the staged rows since the first one of these write streams.
    """
    first = releases.first_batch()
    ranges = [
        (n, one.stream, one.first, one.upto)
        for n, wanted in enumerate(releases.wanted())
        for one in wanted
    ]
    if first is None or not ranges:
        return {}
    spark = changelog.spark
    wanted = literal_rows(spark, ranges, "n int, _stream string, _first bigint, _upto bigint")
    staged = changelog.staged(after=first - 1, to=to).selectExpr(
        "write_stream.stream AS stream", "write_stream.offset AS row"
    )
    found = staged.join(
        F.broadcast(wanted), F.expr("stream = _stream AND row >= _first AND row < _upto")
    )
    counted = found.groupBy("n").agg(F.countDistinct("stream", "row").alias("rows")).collect()
    return {row["n"]: row["rows"] for row in counted}
