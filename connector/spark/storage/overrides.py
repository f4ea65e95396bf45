"""The staleness overrides in force."""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession

from connector.spark.storage.delta_log import DeltaLog
from connector.state.overrides import bounds_in

STORED: Final = """
    name string, stream string, watermark bigint, max_staleness interval day to second, is_consistent_cut boolean,
    pending_batches bigint, as_of bigint, age interval day to second
"""


def wished_bounds(spark: SparkSession, warehouse: str) -> dict[str, int]:
    """The bounds in seconds that operators have set, by table (TBL-20)."""
    commit = DeltaLog(spark, f"{warehouse}/_connector/settings").newest()
    return bounds_in(commit.bookkeeping if commit else None)
