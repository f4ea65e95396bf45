"""Pools of Spark's fair scheduler: free cores are given to pools by weight, not by waiting time
(JOB-3).

The pool of a job is a property of the thread that starts it. Threads that Spark or Delta start for
the job, and the thread of a streaming query, inherit the pool. If the scheduler of the session is
not fair, pools have no effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from connector.spark.jvm import GONE

_POOL: Final = "spark.scheduler.pool"
TAG: Final = "lowmark"
"""The tag of lowmark's jobs in Spark."""


class Pool(StrEnum):
    """The pools. `READ` is Spark's pool of all threads that name no pool, for example yours."""

    INGEST = "ingest"
    READ = "default"
    APPLY = "apply"


WEIGHTS: Final = {Pool.INGEST: 4, Pool.READ: 2, Pool.APPLY: 1}
"""The share of the cores that each pool gets. Ingest gets one core before other pools get a second
one.
"""


def fair_scheduling(folder: Path) -> dict[str, str]:
    """The settings of a session with these pools. A file in `folder` describes the pools."""
    file = folder / "pools.xml"
    pools = "".join(
        f'<pool name="{pool}"><schedulingMode>FIFO</schedulingMode><weight>{weight}</weight>'
        f"<minShare>{int(pool is Pool.INGEST)}</minShare></pool>"
        for pool, weight in WEIGHTS.items()
    )
    file.write_text(f'<?xml version="1.0"?><allocations>{pools}</allocations>')
    return {"spark.scheduler.mode": "FAIR", "spark.scheduler.allocation.file": file.as_uri()}


@contextmanager
def in_pool(spark: SparkSession, pool: Pool) -> Iterator[None]:
    """Jobs that this thread starts inside the block belong to the pool, and have `TAG`."""
    context = spark.sparkContext
    before = context.getLocalProperty(_POOL)
    context.setLocalProperty(_POOL, pool.value)
    try:
        with tagged(spark):
            yield
    finally:
        with suppress(*GONE):  # a session that has ended has no pools
            context.setLocalProperty(_POOL, before)  # type: ignore[arg-type]


@contextmanager
def tagged(spark: SparkSession) -> Iterator[None]:
    """Jobs that this thread starts inside the block, and queries that it starts, have `TAG`."""
    context = spark.sparkContext
    is_tagged = TAG in context.getJobTags()
    context.addJobTag(TAG)
    try:
        yield
    finally:
        if not is_tagged:
            with suppress(*GONE, Py4JError):  # a session that has ended has no tags
                context.removeJobTag(TAG)


__all__ = ["TAG", "WEIGHTS", "Pool", "fair_scheduling", "in_pool", "tagged"]
