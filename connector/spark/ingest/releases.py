"""Counts the staged rows of releases (WRS-18)."""

from __future__ import annotations

from pyspark.sql import functions as F

from connector.spark.literal_rows import literal_rows
from connector.spark.storage.changelog import Changelog
from connector.write_streams.releases import ReleaseProgress


def count_rows_of(releases: ReleaseProgress, changelog: Changelog, to: int) -> dict[int, int]:
    """How many different offsets of each open release are in the changelog up to the batch `to`,
    by the number of the release in `releases.open`. Offsets that were released before are left out.
    So are rows of a write stream from before its first batch: ingest had forgotten it (WRS-21).

    It is one query over the staged rows since the first one of these write streams.
    """
    first = releases.first_batch()
    ranges = [
        (n, one.stream, one.first, one.upto, releases.streams[one.stream].first_batch)
        for n, wanted in enumerate(releases.wanted())
        for one in wanted
        if one.stream in releases.streams
    ]
    if first is None or not ranges:
        return {}
    spark = changelog.spark
    wanted = literal_rows(
        spark, ranges, "n int, _stream string, _first bigint, _upto bigint, _since bigint"
    )
    staged = changelog.staged(after=first - 1, to=to).selectExpr(
        "write_stream.stream AS stream", "write_stream.offset AS row", "ingest_batch"
    )
    is_wanted = F.expr(
        "stream = _stream AND row >= _first AND row < _upto AND ingest_batch >= _since"
    )
    found = staged.join(F.broadcast(wanted), is_wanted)
    counted = found.groupBy("n").agg(F.countDistinct("stream", "row").alias("rows")).collect()
    return {row["n"]: row["rows"] for row in counted}
