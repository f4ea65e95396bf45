"""Frames of a few rows that this process knows (SCL-3).

`createDataFrame` with a list runs Python on the executors, and executors need no Python. With Arrow
data, the rows are part of the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType


def literal_rows(spark: SparkSession, rows: Iterable[Sequence[object]], columns: str) -> DataFrame:
    """A frame of `rows`, with the columns that `columns` declares, such as "name string".

    A row is a sequence of values in the order of the columns, and so is a struct. The rows are part
    of the plan.
    """
    schema = StructType.fromDDL(columns)
    assert isinstance(schema, StructType)
    arrow = to_arrow_schema(schema)
    values = list(zip(*rows, strict=True)) or [()] * len(arrow)
    arrays: Any = [pa.array(of, field.type) for of, field in zip(values, arrow, strict=True)]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, schema=arrow), schema)
