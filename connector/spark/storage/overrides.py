"""The staleness overrides in force."""

from __future__ import annotations

from pyspark.sql import SparkSession

from connector import warehouse as places
from connector.spark.storage.delta_log import DeltaLog
from connector.state.damage import log_missing
from connector.state.overrides import bounds_in, check_requests
from connector.state.reading import reading


def bounds_set(spark: SparkSession, warehouse: str) -> dict[str, int]:
    """The staleness overrides, in seconds by table (TBL-20). Raises `TableError` if it is not known
    which are in force.
    """
    path = places.overrides(warehouse)
    log = DeltaLog(spark, path)
    commit = log.newest()
    if commit is None:
        if log.has_other_files():
            raise log_missing(path)
        return {}
    stored = commit.stored or {}
    check_requests(path, stored, "max_staleness_s")
    with reading(path):
        return bounds_in(stored)
