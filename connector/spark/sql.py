"""Frames of a few rows that this process knows (SCL-3), and parts that several SQL expressions
share: constants that keep the generated code the same, and the limit of a claimed time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from connector.records.model import MAX_LONG, MAX_TIMESTAMP


def literal_rows(spark: SparkSession, rows: Iterable[Sequence[object]], columns: str) -> DataFrame:
    """A frame of `rows`, with the columns that `columns` declares, such as "name string".

    A row is a sequence of values in the order of the columns, and so is a struct. With Arrow data,
    the rows are part of the plan. `createDataFrame` with a list would run Python on the executors,
    and executors need no Python.
    """
    schema = StructType.fromDDL(columns)
    assert isinstance(schema, StructType)
    arrow = to_arrow_schema(schema)
    values = list(zip(*rows, strict=True)) or [()] * len(arrow)
    arrays: Any = [pa.array(of, field.type) for of, field in zip(values, arrow, strict=True)]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, schema=arrow), schema)


def constant(number: int, place: str) -> str:
    """A number that differs from batch to batch, in generated code that stays the same.

    The JVM then reuses the compiled code. A literal would be part of the code. An array is passed
    to it, and stays an array if the index is not a literal. `place` is any integer column that is
    never null.
    """
    return f"get(array({number}L), {place} * 0)"


def skew_us(max_clock_skew_s: int) -> int:
    """The microseconds by which a time may be ahead of its record's arrival.

    A valid time minus this number cannot overflow. Therefore it is subtracted from the time, and
    not added to the arrival, which can be any number.
    """
    return min(max_clock_skew_s * 1_000_000, MAX_LONG - MAX_TIMESTAMP)
