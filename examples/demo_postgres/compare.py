"""The comparison of the tables with PostgreSQL. Each difference is a sentence.

It reads the Delta tables with `deltalake` alone, as any other program does.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from examples.demo_postgres.shop import TABLES, Row, State, row

Cut = dict[str, int]
"""The version of each table that belongs to a cut."""


def cuts(warehouse: Path) -> Iterator[tuple[int, Cut]]:
    """The recorded cuts with their watermarks, the oldest first."""
    history = DeltaTable(str(warehouse / "_connector" / "cuts"))
    by_watermark: dict[tuple[int, int], Cut] = {}
    query = (
        'SELECT "table", low_watermark, revision, version FROM cuts'
        " ORDER BY low_watermark, revision, recorded_at"
    )
    for line in _query("cuts", history, query):
        of_cut = by_watermark.setdefault((line["low_watermark"], line["revision"]), {})
        of_cut[line["table"]] = line["version"]
    for (watermark, _), versions in by_watermark.items():
        yield watermark, versions


def state(warehouse: Path, cut: Cut) -> State:
    """The rows of all tables at a cut."""
    return frozenset(
        (name, each)
        for name in TABLES
        if name in cut
        for each in rows(warehouse / "tables" / name / "data", cut[name])
    )


def rows(path: Path, version: int) -> Iterator[Row]:
    table = DeltaTable(str(path), version=version)
    names = [field.name for field in table.schema().fields if not field.name.startswith("_")]
    query = "SELECT {} FROM t".format(", ".join(f'"{name}"' for name in names))
    for line in _query("t", table, query):
        yield row({name: _shown(value) for name, value in line.items()})


def _query(name: str, table: DeltaTable, text: str) -> list[dict[str, Any]]:
    found = QueryBuilder().register(name, table).execute(text).read_all()
    rows: list[dict[str, Any]] = pa.table(found).to_pylist()
    return rows


def _shown(value: object) -> object:
    """A value as PostgreSQL's JSON has it."""
    if isinstance(value, datetime):
        text = value.astimezone(UTC).isoformat()
        head, dot, rest = text.partition(".")
        return f"{head}.{rest[:-6].rstrip('0')}+00:00" if dot else text
    if isinstance(value, Decimal):
        return value.normalize()
    return value


def row_differences(true: State, found: State) -> list[str]:
    missing = [f"{name} has not {_text(each)}" for name, each in true - found]
    return missing + [f"{name} has {_text(each)}" for name, each in found - true]


def _text(each: Row) -> str:
    return str(dict(sorted(each)))[:200]


def cut_differences(warehouse: Path, states: AbstractSet[State]) -> tuple[int, list[str]]:
    """The number of cuts, and those that are no state of PostgreSQL."""
    different, number = [], 0
    for watermark, cut in cuts(warehouse):
        number += 1
        found = state(warehouse, cut)
        if found not in states:
            nearest = min((row_differences(each, found) for each in states), key=len)
            different.append(f"the cut at {watermark} is no state: {'; '.join(nearest[:3])}")
    return number, different
