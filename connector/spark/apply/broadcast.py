"""Rows joined by their keys with few others.

Each is looked up by a number, in less time than by its key, and most find nothing there. A file of a table holds rows of one bucket,
and numbers of a bucket lie together: what a task looks at stays in the processor's cache.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from connector.spark.storage.layout import Layout
from connector.tables.column_names import BUCKET

_NUMBERS_PER_ROW: Final = 7
"""Of more, Spark would make a hash table in place of an array, as it does where many share a key; of fewer, more would share one."""
_FEWEST: Final = 64


def broadcast_join(rows: DataFrame, few: DataFrame, layout: Layout, how: str, count: int, *, also: str = "") -> DataFrame:
    """`rows` joined with `few` where their keys are equal, and `also` holds. Both have `_bucket`, and the result has that of `rows`.

    `few` are about `count`, and are sent to every task; beside the keys they have no column that `rows` have.
    """
    there = [f"_there{n}" for n in range(len(layout.keys))]
    keys = [f"{name} AS {other}" for name, other in zip(layout.keys, there, strict=True)]
    others = [f"`{name}`" for name in few.columns if name not in (BUCKET, *layout.key_names)]
    number = _number(layout, count)
    # An equality would be one more thing to look up.
    same = [f"{name} >= {other} AND {name} <= {other}" for name, other in zip(layout.keys, there, strict=True)]
    numbered = F.broadcast(few.selectExpr(f"{number} AS _there", *keys, *others))
    is_there = F.expr(" AND ".join(["_number = _there", *same, *([also] if also else [])]))
    return rows.selectExpr("*", f"{number} AS _number").join(numbered, is_there, how).drop("_number", "_there", *there)


def _number(layout: Layout, count: int) -> str:
    """A number that rows of one key share, and of `count` other keys few have, as SQL."""
    per_bucket = 1 << max(_FEWEST, _NUMBERS_PER_ROW * count // layout.buckets).bit_length() - 1
    return f"{BUCKET} * {per_bucket}L + (shiftright(xxhash64({', '.join(layout.keys)}), 32) & {per_bucket - 1}L)"
