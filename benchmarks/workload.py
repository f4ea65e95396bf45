"""The changes of every benchmark. Spark makes them from a few hashes of a number, so millions take
seconds.

This module uses no code of lowmark except the text of its Avro schema. Tables are compared with
`decoded`, which is the truth. The number of a change is its index in the order of commits.

- Decoded rows have: number, row_key, commit_timestamp, deleted, written (one flag per column), and
  the columns' typed values.
- Kafka records have: key, value (single-object framed Avro of the same change).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import fastavro
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import to_avro

from connector.records.codec import SCHEMA
from connector.tables.definition import Column, TableDefinition
from connector.tables.keys import Key, KeyForm, KeyPart
from connector.tables.values import DataType

SOURCE: Final = "customers"
STREAM: Final = "bench"
FAMILY: Final = "cf"
START_US: Final = 1_714_475_984_000_000
STEP_US: Final = 37
EMPTY: Final = "''"

COLUMNS: Final = {
    "name": DataType.STRING,
    "city": DataType.STRING,
    "note": DataType.STRING,
    "balance": DataType.INT64,
    "visits": DataType.INT64,
}

_VALUES: Final = {
    "name": "concat('name ', substring(hex(xxhash64(number, 11)), 5, 8))",
    "city": "concat('city ', pmod(xxhash64(number, 12), 1000))",
    "note": "substring(sha1(cast(number AS string)), 1, 12)",
    "balance": "xxhash64(number, 14) % 1000000000",
    "visits": "pmod(xxhash64(number, 15), 100000)",
}


class Shape(StrEnum):
    """The entries of a change: the whole row after a deletion of its family, or three columns of
    five.
    """

    WHOLE = "whole"
    PARTIAL = "partial"


@dataclass(frozen=True, slots=True)
class Workload:
    """The changes `first` to `first + count`, on `keys` rows: in order (`sequential`, one change
    each), or random.
    """

    first: int
    count: int
    keys: int
    shape: Shape
    sequential: bool = False
    deletes_percent: int = 0


def decoded(spark: SparkSession, work: Workload) -> DataFrame:
    """The changes as a table of plain columns, in the order of their commits."""
    key = f"number - {work.first}" if work.sequential else f"pmod(xxhash64(number, 1), {work.keys})"
    deleted = f"pmod(xxhash64(number, 2), 100) < {work.deletes_percent}"
    width = {Shape.WHOLE: 5, Shape.PARTIAL: 3}[work.shape]
    numbered = spark.range(work.first, work.first + work.count).withColumnRenamed("id", "number")
    placed = numbered.selectExpr(
        "*", f"{deleted} AS deleted", "pmod(xxhash64(number, 3), 5) AS _first", f"{width} AS _width"
    )
    written = [
        f"NOT deleted AND pmod({n} - _first, 5) < _width AS written_{name}"
        for n, name in enumerate(COLUMNS)
    ]
    return placed.selectExpr(
        "number",
        f"concat('customer#', lpad({key}, 8, '0')) AS row_key",
        f"{START_US}L + number * {STEP_US} AS commit_timestamp",
        "deleted",
        *written,
        *(f"{value} AS {name}" for name, value in _VALUES.items()),
    ).selectExpr(
        "number",
        "row_key",
        "commit_timestamp",
        "deleted",
        *(f"written_{name}" for name in COLUMNS),
        *(f"CASE WHEN written_{name} THEN {name} END AS {name}" for name in COLUMNS),
    )


def kafka_records(rows: DataFrame, shape: Shape, kafka_partitions: int) -> DataFrame:
    """`decoded` rows as `key` and `value` of Kafka records."""
    cells = ", ".join(
        _entry("SET_CELL", f"'{name}'", f"CASE WHEN written_{name} THEN cast({name} AS string) END")
        for name in COLUMNS
    )
    deletion = f"array({_entry('DELETE_FAMILY', EMPTY, EMPTY)})"
    entries = f"filter(array({cells}), e -> e.value IS NOT NULL)"
    deletes = "true" if shape is Shape.WHOLE else "deleted"
    # Nullable fields that are not named here are null.
    change = f"""named_struct('table', '{SOURCE}', 'row_key', cast(row_key AS binary),
    'change_type', 'USER',
        'source_cluster_id', 'c1', 'commit_timestamp', timestamp_micros(commit_timestamp),
        'tie_breaker', 0L,
        'resume_token', unhex(lpad(hex(number), 16, '0')),
        'estimated_low_watermark', timestamp_micros(commit_timestamp - 1000000),
        'entries', CASE WHEN {deletes} THEN concat({deletion}, {entries}) ELSE {entries} END)"""
    record = F.expr(
        f"named_struct('stream_partition', 'p0', 'kafka_partitions', {kafka_partitions},"
        f" 'data_change', {change})"
    )
    value = F.concat(F.lit(_head()), to_avro(record, SCHEMA))
    return rows.select(F.expr("cast(row_key AS binary)").alias("key"), value.alias("value"))


def definition(name: str = "customers", buckets: int = 1) -> TableDefinition:
    """The table that the changes make."""
    columns = tuple(
        Column(column, FAMILY, column.encode(), type_) for column, type_ in COLUMNS.items()
    )
    key = Key((KeyPart("row_key", DataType.STRING),), KeyForm.ROW_KEY)
    return TableDefinition(
        name=name, stream=STREAM, source=SOURCE, key=key, columns=columns, buckets=buckets
    )


def truth(changes: DataFrame) -> DataFrame:
    """The rows that `changes` (`decoded`, or several unions of them) make, by plain SQL: `row_key`
    and the columns.

    A column has its newest written value that no newer deletion covers. A row exists if any column
    has a value. A whole-row change is a deletion that writes every column, so its own values are
    newer than its deletion.
    """
    newest = [
        f"max(CASE WHEN written_{name} THEN struct(commit_timestamp AS at, {name} AS value) END) AS"
        f" {name}"
        for name in COLUMNS
    ]
    by_row = changes.groupBy("row_key").agg(
        F.expr("max(CASE WHEN deleted THEN commit_timestamp END)").alias("gone"),
        *map(F.expr, newest),
    )
    kept = by_row.selectExpr(
        "row_key",
        *(
            f"CASE WHEN coalesce({name}.at > gone, true) THEN {name}.value END AS {name}"
            for name in COLUMNS
        ),
    )
    return kept.where(" OR ".join(f"{name} IS NOT NULL" for name in COLUMNS))


def differing(left: DataFrame, right: DataFrame) -> int:
    """In how many rows two tables of `row_key` and the columns differ."""
    names = ", ".join(COLUMNS)
    sides = [
        side.selectExpr("row_key", f"struct({names}) AS {name}")
        for side, name in ((left, "one"), (right, "other"))
    ]
    return sides[0].join(sides[1], "row_key", "full").where("NOT (one <=> other)").count()


def _entry(kind: str, qualifier: str, value: str) -> str:
    timestamp = "commit_timestamp" if kind == "SET_CELL" else "0L"
    return (
        f"named_struct('kind', '{kind}', 'family', '{FAMILY}', 'qualifier', cast({qualifier} AS"
        f" binary), 'cell_timestamp', {timestamp}, 'range_start', 0L, 'range_end', 0L, 'value',"
        f" cast({value} AS binary))"
    )


def _head() -> bytes:
    """The header of the single-object framing, from fastavro instead of lowmark's own code."""
    canonical = fastavro.schema.to_parsing_canonical_form(json.loads(SCHEMA))
    return b"\xc3\x01" + bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))
