"""The staleness overrides in force."""

from __future__ import annotations

from pyspark.sql import SparkSession

from connector import warehouse as places
from connector.spark.storage.delta_log import DeltaLog
from connector.state.overrides import bounds_in


def bounds_set(spark: SparkSession, warehouse: str) -> dict[str, int]:
    """The staleness overrides, in seconds by table (TBL-20)."""
    commit = DeltaLog(spark, places.overrides(warehouse)).newest()
    return bounds_in(commit.stored if commit else None)
