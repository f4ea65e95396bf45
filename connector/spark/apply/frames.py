"""Frames that are computed once and used several times, and joins of rows with few other rows.

`broadcast_join` uses a number instead of the key, which is faster, as most rows have no match. The
numbers of a bucket are neighbours, so the data that a task reads stays in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from connector.spark.storage.layout import Layout
from connector.tables.column_names import BUCKET

_NUMBERS_PER_ROW: Final = 7
"""With a larger number, Spark would build a hash table instead of an array, as it also does if many
keys share a number. With a smaller one, more keys would share a number.
"""
_FEWEST: Final = 64


class Cache(Protocol):
    """Makes a frame that stores its rows when they are first computed, or (`eager`) at once."""

    def __call__(self, frame: DataFrame, *, eager: bool = False) -> DataFrame: ...


def checkpointed(frame: DataFrame, *, eager: bool = False) -> DataFrame:
    """A `Cache` that stores the rows while the frame is in use."""
    return frame.localCheckpoint(eager)


def uncached(frame: DataFrame, *, eager: bool = False) -> DataFrame:  # noqa: ARG001
    """A `Cache` that stores nothing: the rows are computed each time."""
    return frame


@contextmanager
def caching() -> Iterator[Cache]:
    """Yield a `Cache` that stores rows until the end of the block."""
    frames: list[DataFrame] = []

    def cache(frame: DataFrame, *, eager: bool = False) -> DataFrame:
        frames.append(checkpointed(frame, eager=eager))
        return frames[-1]

    try:
        yield cache
    finally:
        for frame in frames:
            stored: Any = frame._jdf.queryExecution().logical()
            stored.rdd().unpersist(False)


def broadcast_join(
    rows: DataFrame, few: DataFrame, layout: Layout, how: str, count: int, *, also: str = ""
) -> DataFrame:
    """Join `rows` with about `count` rows in `few` on equal keys and `also`. Both have `_bucket`,
    and the result has that of `rows`. Except the keys, `few` has no column that `rows` has.
    """
    there = [f"_there{n}" for n in range(len(layout.keys))]
    keys = [f"{name} AS {other}" for name, other in zip(layout.keys, there, strict=True)]
    others = [f"`{name}`" for name in few.columns if name not in (BUCKET, *layout.key_names)]
    number = _number(layout, count)
    # An equality would become part of the join key.
    same = [
        f"{name} >= {other} AND {name} <= {other}"
        for name, other in zip(layout.keys, there, strict=True)
    ]
    numbered = F.broadcast(few.selectExpr(f"{number} AS _there", *keys, *others))
    is_there = F.expr(" AND ".join(["_number = _there", *same, *([also] if also else [])]))
    return (
        rows.selectExpr("*", f"{number} AS _number")
        .join(numbered, is_there, how)
        .drop("_number", "_there", *there)
    )


def _number(layout: Layout, count: int) -> str:
    """A number that rows of one key share, and that few of `count` other keys have, as SQL."""
    per_bucket = 1 << max(_FEWEST, _NUMBERS_PER_ROW * count // layout.buckets).bit_length() - 1
    return (
        f"{BUCKET} * {per_bucket}L + (shiftright(xxhash64({', '.join(layout.keys)}), 32) &"
        f" {per_bucket - 1}L)"
    )
