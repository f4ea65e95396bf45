"""Pools of Spark's fair scheduler: who waits for a core is served by weight, whoever came first (JOB-3).

The pool of a job is a property of the thread that starts it. Threads of Spark and Delta that work for it, and the thread of a streaming
query, take it over from the one that starts them. Where the session's scheduler is not fair, pools mean nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

_POOL: Final = "spark.scheduler.pool"


class Pool(StrEnum):
    """Whose jobs are whose. `READ` is Spark's pool of all threads that do not say: those of whoever uses the session."""

    INGEST = "ingest"
    READ = "default"
    APPLY = "apply"


WEIGHTS: Final = {Pool.INGEST: 4, Pool.READ: 2, Pool.APPLY: 1}
"""Of so many cores one has its share; ingest has one before others get a second."""


def fair_scheduling(folder: Path) -> dict[str, str]:
    """The settings of a session with these pools; they are described in a file in `folder`."""
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
    """Jobs that this thread starts meanwhile are of that pool."""
    context = spark.sparkContext
    before = context.getLocalProperty(_POOL)
    context.setLocalProperty(_POOL, pool.value)
    try:
        yield
    finally:
        context.setLocalProperty(_POOL, before)  # type: ignore[arg-type]


__all__ = ["WEIGHTS", "Pool", "fair_scheduling", "in_pool"]
