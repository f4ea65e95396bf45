"""Recommend the number of buckets of a table, without Spark (SCL-6)."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from connector import warehouse as places
from connector.clock import now_us
from connector.config.settings import find_table
from connector.config.spark_settings import SparkConfig
from connector.errors import ErrorCode, TableError, argument_invalid
from connector.services.warehouses import warehouse_of
from connector.state.bucket_advice import BucketAdvice, advise, median_changes
from connector.state.jobs import RECOMMENDED_OVER_S, JobKind

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig

MOST_APPLIES = 1_000
"""Only so many of the newest applies count."""


def advise_buckets(
    config: ConnectorConfig,
    table: str,
    *,
    size_bytes: int | None = None,
    cores: int | None = None,
) -> BucketAdvice:
    """Recommend the number of buckets of a table: 1 below 256 MiB, otherwise a power of two up to
    4,096. Nothing is changed: set `buckets` in the configuration, and rebuild the table.

    It uses the size of the table, the changes of the applies of the last seven days, and the cores
    that the section [spark] names. For example: `advise_buckets(config, "orders").buckets`.

    Args:
        config: It has the table.
        table: The name of the table.
        size_bytes: The size that you expect. None: the present size.
        cores: The cores of Spark. None: as configured. A cluster may have other cores than the
            configuration says.

    Returns:
        The recommendation, with its reason.

    Raises:
        ConfigError: There is no such table, or a number is not allowed.
        TableError: There is no table yet and no `size_bytes`, or the table or the history cannot be
            read.
    """
    from connector.lake.jobs import History
    from connector.lake.table_size import table_size

    definition = find_table(config, table)
    _check("size_bytes", size_bytes)
    _check("cores", cores)
    found = table_size(places.table(warehouse_of(config), table))
    if found is None and size_bytes is None:
        raise TableError(
            ErrorCode.TABLE_MISSING,
            f"The size of table {table} is not known",
            "No change was applied to it yet",
            "Name the size that you expect, or start the pipeline",
            table=table,
        )
    since = now_us() - RECOMMENDED_OVER_S * 1_000_000
    jobs = History(warehouse_of(config)).jobs(
        table, since=since, limit=MOST_APPLIES, kinds=(JobKind.APPLY,)
    )
    return advise(
        table,
        size_bytes=size_bytes if size_bytes is not None else found.size_bytes if found else 0,
        changes_per_apply=median_changes([job.changes for job in jobs if not job.error]),
        cores=cores or cores_of(config.spark),
        has_vectors=definition.deletion_vectors,
        present=found.buckets if found else None,
        files=found.files if found else 0,
    )


def cores_of(spark: SparkConfig) -> int | None:
    """The cores that the configuration names. None: it does not name those of the cluster."""
    local = re.match(r"local(?:\[([0-9]+|\*))?", spark.master)
    if local:
        return (os.cpu_count() or 1) if local[1] == "*" else int(local[1] or 1)
    total = spark.conf.get("spark.cores.max", "")
    executors = spark.conf.get("spark.executor.instances", "")
    if total.isdecimal():
        return int(total)
    if executors.isdecimal() and spark.executor_cores:
        return int(executors) * spark.executor_cores
    return None


def _check(name: str, number: int | None) -> None:
    is_number = isinstance(number, int) and not isinstance(number, bool)
    if number is not None and not (is_number and number > 0):
        raise argument_invalid(name, number, "a whole number above 0, or None")
