"""Rows of Python values with every type are read back as they were written, by every reader (EVO-4,
EVO-6).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import date
from decimal import Decimal
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from connector.lake.plain_table import open_table
from connector.lake.row_states import RowStates, _plain
from connector.records.model import DataChange, Heartbeat
from connector.spark.apply.alter import alter, new_reader_features
from connector.spark.reader import plain_rows, read_table
from connector.tables.column_names import UNMAPPED
from connector.tables.definition import Column, TableDefinition, Versions
from connector.tables.keys import Key, KeyPart
from connector.tables.merge import visible
from connector.tables.nested import ValueType, type_of
from connector.tables.presence import PRESENCE_QUALIFIER
from connector.tables.row import is_same_row, row_of
from connector.tables.row_entries import Missing, RowEntries
from connector.tables.values import (
    BIGNUMERIC_MAX,
    BIGNUMERIC_MIN,
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
    DataType,
    Encoding,
    write_value,
)
from tests.golden.test_foreign_readers import by_duckdb, by_polars
from tests.spark.streams import Stream
from tests.spark.test_alter import wanted_alteration

DEEP = "RECORD<id INT64, spans ARRAY<RANGE<TIMESTAMP>>, more RECORD<raw BYTES, at DATETIME>>"
_BIG = Decimal("99999999999999999999999999999.999999999")
VALUES: dict[str, list[Any]] = {
    "STRING": ["", "Grüße", None],
    "BYTES": [b"", b"\x00\xff", None],
    "BOOL": [True, False, None],
    "INT64": [-(2**63), 2**63 - 1, None],
    "FLOAT64": [0.1, float("nan"), -0.0, None],
    "NUMERIC": [_BIG, Decimal("1.5"), Decimal(0), None],
    "BIGNUMERIC": [BIGNUMERIC_MIN, BIGNUMERIC_MAX, "0", "1.5", None],
    "DATE": [date(1, 1, 1), date(9999, 12, 31), None],
    "DATETIME": [TIMESTAMP_MIN, TIMESTAMP_MAX, 0, None],
    "TIME": ["00:00:00.000000", "23:59:59.999999", None],
    "TIMESTAMP": [TIMESTAMP_MIN, TIMESTAMP_MAX, 0, None],
    "JSON": ['{"a": 1.50}', "[]", None],
    "ARRAY<NUMERIC>": [[], [Decimal("1.5"), None, _BIG], None],
    "ARRAY<ARRAY<STRING>>": [[[""], [], None], None],
    "ARRAY<DATE>": [[date(1, 1, 1), None], None],
    "RANGE<DATE>": [{"start": date(1, 1, 1), "end": None}, {"start": None, "end": None}, None],
    "RANGE<DATETIME>": [{"start": TIMESTAMP_MIN, "end": TIMESTAMP_MAX}, None],
    DEEP: [
        {
            "id": 7,
            "spans": [{"start": 0, "end": TIMESTAMP_MAX}, None],
            "more": {"raw": b"\xff", "at": TIMESTAMP_MIN},
        },
        {"id": None, "spans": None, "more": None},
        None,
    ],
}
"""Values as `connector.tables` has them, by their types."""
ROWS = 8


def table(versions: Versions) -> TableDefinition:
    columns = tuple(
        Column(f"c{number}", "f", b"%d" % number, type_of(text))
        for number, text in enumerate(VALUES)
    )
    return TableDefinition(
        name="typed",
        stream="s",
        source="t",
        key=Key((KeyPart("id", DataType.INT64),)),
        columns=columns,
        versions=versions,
        buckets=2,
    )


def row(number: int, shift: int = 0) -> dict[str, Any]:
    """The row with this number. `shift` gives other values."""
    values = {
        f"c{column}": of_type[(number + shift) % len(of_type)]
        for column, of_type in enumerate(VALUES.values())
    }
    return {"id": number, **values}


def given(definition: TableDefinition, values: Mapping[str, Any]) -> dict[str, Any]:
    """The row as a program has it. A DATETIME is text, as an int is none."""
    types = {column.name: column.type for column in definition.columns}
    return {
        name: value if value is None or name not in types else _given(types[name], value)
        for name, value in values.items()
    }


def _given(type_: ValueType, value: Any) -> Any:
    if isinstance(type_, DataType) and type_ is not DataType.DATETIME:
        return value
    return write_value(type_, Encoding.TEXT, value).decode()


def changes(
    definition: TableDefinition, rows: Iterable[dict[str, Any]], at: int
) -> list[DataChange]:
    entries = RowEntries(definition, Missing.NULL)
    return [
        DataChange(
            stream_partition="p",
            table="t",
            row_key=(made := entries.upsert(given(definition, values), at))[0],
            commit_timestamp=at,
            entries=made[1],
        )
        for values in rows
    ]


def check(
    definition: TableDefinition, found: Iterable[Mapping[str, Any]], expected: Iterable[Any]
) -> None:
    """The rows of a reader are the expected ones."""
    types: dict[str, Any] = {"id": DataType.INT64}
    types |= {column.name: column.type for column in definition.columns}
    rows = {
        each["id"]: {name: _plain(type_, each[name]) for name, type_ in types.items()}
        for each in found
    }
    wanted = {each["id"]: each for each in expected}
    assert rows.keys() == wanted.keys()
    for number, each in wanted.items():
        assert is_same_row(rows[number], each), (rows[number], each)


@pytest.mark.parametrize(
    ("way", "versions"),
    [
        ("without Spark", Versions.LATEST),
        ("Spark", Versions.LATEST),
        pytest.param("Spark", Versions.ALL, marks=pytest.mark.long),
    ],
)
def test_every_reader_finds_what_was_written(
    spark: SparkSession, tmp_path: Path, way: str, versions: Versions
) -> None:
    """EVO-4, EVO-6, SCL-9: `connector read` without and with a merge, Polars and DuckDB."""
    definition = table(versions)
    stream = Stream(spark, tmp_path, without_spark=cycle((way == "without Spark",)))
    first, second = [row(n) for n in range(ROWS)], [row(n, 1) for n in range(0, ROWS, 3)]
    stream.topic.send(*changes(definition, first, 10))
    stream.topic.send_everywhere(Heartbeat("p", 20))
    stream.ingest()
    stream.apply(stream.table(definition))
    stream.topic.send(*changes(definition, second, 30))
    stream.topic.send_everywhere(Heartbeat("p", 40))
    stream.ingest()
    expected = [*({each["id"]: each for each in (*first, *second)}).values()]

    types, merged = plain_rows(read_table(spark, str(stream.folder), "typed").rows)
    check(definition, (dict(zip(types, each, strict=True)) for each in merged), expected)
    stream.apply(stream.table(definition))
    assert not stream.letters
    path = stream.table(definition).path
    plain = open_table(path)
    check(
        definition, (dict(zip(plain.types, each, strict=True)) for each in plain.rows()), expected
    )
    check(definition, by_polars(Path(path)), expected)
    check(definition, by_duckdb(Path(path)), expected)
    assert "timestampNtz" in (plain._delta.protocol().reader_features or ())

    states = RowStates(str(stream.folder), definition)
    keys = {definition.key.write_key((n,)): n for n in range(ROWS)}
    wanted = {each["id"]: {**each, UNMAPPED: {}} for each in expected}
    for key, state in states.applied(keys).items():
        cells = visible(state)
        assert ("f", PRESENCE_QUALIFIER) in cells
        assert is_same_row(row_of(definition, key, cells), wanted[keys[key]])


@pytest.mark.parametrize(
    ("versions", "vectors"),
    [
        (Versions.LATEST, True),
        pytest.param(Versions.LATEST, False, marks=pytest.mark.long),
        pytest.param(Versions.ALL, True, marks=pytest.mark.long),
    ],
)
def test_a_column_of_every_type_is_added_dropped_and_added_again(
    spark: SparkSession, tmp_path: Path, versions: Versions, vectors: bool
) -> None:
    """EVO-3, EVO-6: the table is the same as if the columns had been there from the start, also for
    rows that were written meanwhile. A default changes no row.
    """
    every = replace(table(versions), deletion_vectors=vectors, buckets=1)
    bare = replace(every, columns=every.columns[:1], presence_family="f")
    stream = Stream(spark, tmp_path, without_spark=cycle((True,)))
    expected: dict[int, dict[str, Any]] = {}

    def apply(at: int, numbers: range) -> None:
        rows = [row(number, at) for number in numbers]
        stream.topic.send(*changes(every, rows, at))
        stream.ingest()
        stream.apply(stream.table(bare))
        expected.update((each["id"], each) for each in rows)

    def altered(*columns: Column) -> tuple[str, ...]:
        nonlocal bare
        made = stream.table(bare)
        change = wanted_alteration(stream, made, *columns)
        features = new_reader_features(made, change)
        assert not any(alter(made, change).misfits.values())
        bare = change.definition
        return features

    def check_all() -> None:
        plain = open_table(stream.table(bare).path)
        found = [dict(zip(plain.types, each, strict=True)) for each in plain.rows()]
        check(every, found, expected.values())
        assert not any(each[UNMAPPED] for each in found)

    apply(10, range(ROWS))
    assert altered(*every.columns) == ("timestampNtz",)
    check_all()
    apply(20, range(0, ROWS, 3))
    defaults = [
        None if value is None else write_value(column.type, Encoding.TEXT, value).decode()
        for column, (value, *_) in zip(every.columns, VALUES.values(), strict=True)
    ]
    with_defaults = zip(every.columns, defaults, strict=True)
    altered(*(replace(column, default=default) for column, default in with_defaults))
    check_all()
    altered(every.columns[0])
    apply(30, range(1, ROWS, 3))
    assert altered(*every.columns) == ()
    check_all()
    assert not stream.letters
