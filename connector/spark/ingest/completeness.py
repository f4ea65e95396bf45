"""Finds what a changelog lacks: rows of releases (WRS-18), and records of transactions (ING-2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from connector.spark.sql import literal_rows
from connector.spark.storage.changelog_reader import ChangelogReader
from connector.state.incomplete_transactions import (
    ID_PREFIX,
    MAX_GAPS,
    MAX_ID_LENGTH,
    IncompleteTransaction,
    TransactionCheck,
    TransactionGap,
)
from connector.write_streams.releases import ReleaseProgress

_ID: Final = "transaction.server_transaction_id"
_LISTED_ID: Final = (
    f"CASE WHEN char_length({_ID}) > {MAX_ID_LENGTH}"
    f" THEN concat(substring({_ID}, 1, {ID_PREFIX}), '...', sha2({_ID}, 256)) ELSE {_ID} END"
)
_DECLARED: Final = "transaction.number_of_records_in_transaction"


def incomplete_transactions(
    changelog: ChangelogReader, before: TransactionCheck, low_watermark: int
) -> tuple[list[TransactionGap], int]:
    """The transactions with fewer records than they declare, the oldest first, at most `MAX_GAPS`,
    and the commit timestamp below which these are all.

    Looked at are the commit timestamps from `before.checked_to` up to, without, the low watermark,
    and those that were incomplete before. Only files with them are read.
    """
    is_looked_at = F.expr(
        f"commit_timestamp >= timestamp_micros({before.checked_to}L)"
        f" AND commit_timestamp < timestamp_micros({low_watermark}L)"
    )
    if before.incomplete:
        is_looked_at |= _is_one_of(before.incomplete)
    changes = changelog.rows().where(
        F.expr("kind IN ('change', 'truncate', 'erased')") & is_looked_at
    )
    doubtful = _lacking(changes.where(f"{_DECLARED} > 1"))
    if not doubtful:
        return [], low_watermark
    is_all = len(doubtful) < MAX_GAPS
    checked_to = low_watermark if is_all else doubtful[-1].commit_timestamp
    # Records of the transaction that declare no number count, too.
    return _lacking(changes.where(_is_one_of(doubtful))), checked_to


def _is_one_of(transactions: Sequence[TransactionGap | IncompleteTransaction]) -> Column:
    """Only files with one of the commit timestamps are read."""
    times = sorted({transaction.commit_timestamp for transaction in transactions})
    ids = sorted({transaction.server_transaction_id for transaction in transactions})
    listed = ", ".join(f"timestamp_micros({time}L)" for time in times)
    return F.expr(f"commit_timestamp IN ({listed})") & F.expr(_LISTED_ID).isin(ids)


def _lacking(changes: DataFrame) -> list[TransactionGap]:
    counted = (
        changes.where(f"{_ID} <> ''")
        .groupBy(
            F.expr("unix_micros(commit_timestamp)").alias("at"), F.expr(_LISTED_ID).alias("id")
        )
        .agg(
            F.expr(f"max({_DECLARED}) - count(DISTINCT transaction.record_sequence)").alias(
                "missing"
            )
        )
    )
    lacking = counted.where("missing > 0").orderBy("at", "id").limit(MAX_GAPS)
    return [TransactionGap(row["at"], row["id"], row["missing"]) for row in lacking.collect()]


def count_rows_of(releases: ReleaseProgress, changelog: ChangelogReader, to: int) -> dict[int, int]:
    """How many different offsets of each open release are in the changelog up to the batch `to`, by
    the number of the release, without offsets that were released before, and without rows from
    before the first batch of a write stream: ingest had forgotten it (WRS-21).
    """
    first = releases.first_batch()
    ranges = [
        (n, rows.stream, rows.first, rows.upto, releases.streams[rows.stream].first_batch)
        for n, wanted in enumerate(releases.wanted())
        for rows in wanted
        if rows.stream in releases.streams
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
    rows = staged.join(F.broadcast(wanted), is_wanted)
    counted = rows.groupBy("n").agg(F.countDistinct("stream", "row").alias("rows")).collect()
    return {row["n"]: row["rows"] for row in counted}
