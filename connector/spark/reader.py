"""Reading tables from Spark."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from connector.tables import BOOKKEEPING


def table_path(warehouse: str, name: str) -> str:
    """Where a table's rows lie in a warehouse (TBL-22)."""
    return f"{warehouse}/tables/{name}/data"


def read_table(spark: SparkSession, warehouse: str, name: str) -> DataFrame:
    """The table as it stands: the state of its last apply, without the bookkeeping columns.

    Changes that were ingested since are not in it, and nothing says how old it is; `connector.lake` tells that.
    """
    return spark.read.format("delta").load(table_path(warehouse, name)).drop(*BOOKKEEPING)
