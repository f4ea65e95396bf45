"""Finds the transactions of a changelog that lack records (ING-2)."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from connector.spark.storage.changelog import Changelog
from connector.state.incomplete_transactions import MOST_FOUND, Found, TransactionCheck

_ID: Final = "transaction.server_transaction_id"
_DECLARED: Final = "transaction.number_of_records_in_transaction"


def incomplete_transactions(
    changelog: Changelog, before: TransactionCheck, low_watermark: int
) -> list[Found]:
    """The transactions with fewer records than they declare, the oldest first, at most
    `MOST_FOUND`.

    Looked at are the commit timestamps from `before.checked_to` up to, and without, the low
    watermark, and those that were incomplete before. Only columns of the transaction are read, and
    only files with such commit timestamps.
    """
    times = {one.commit_timestamp for one in before.incomplete}
    is_new = (
        f"commit_timestamp >= timestamp_micros({before.checked_to}L)"
        f" AND commit_timestamp < timestamp_micros({low_watermark}L)"
    )
    known = "".join(f" OR commit_timestamp = timestamp_micros({time}L)" for time in sorted(times))
    changes = changelog.rows().where(f"kind = 'change' AND (({is_new}){known})")
    doubtful = _lacking(changes.where(f"{_DECLARED} > 1"))
    if not doubtful:
        return []
    # Records of the transaction that declare no number count, too.
    listed = ", ".join(f"timestamp_micros({one.commit_timestamp}L)" for one in doubtful)
    ids = [one.server_transaction_id for one in doubtful]
    return _lacking(changes.where(f"commit_timestamp IN ({listed})").where(F.col(_ID).isin(ids)))


def _lacking(changes: DataFrame) -> list[Found]:
    counted = (
        changes.where(f"{_ID} <> ''")
        .groupBy(F.expr("unix_micros(commit_timestamp)").alias("at"), F.col(_ID).alias("id"))
        .agg(
            F.expr(f"max({_DECLARED}) - count(DISTINCT transaction.record_sequence)").alias(
                "missing"
            )
        )
    )
    lacking = counted.where("missing > 0").orderBy("at", "id").limit(MOST_FOUND)
    return [Found(row["at"], row["id"], row["missing"]) for row in lacking.collect()]
