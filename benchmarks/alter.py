"""Columns that are dropped and added while their table has 1,000,000 rows (EVO-3).

    python -m benchmarks alter [--quick]

`drop` moves the values of a column to `_unmapped`, and `add` moves them back. Each round does both,
one after the other, on a copy of the table. Applies of the table wait for so long.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks import workload
from benchmarks.report import Figure
from benchmarks.sparse import copied
from benchmarks.stage import Stage
from benchmarks.truncate import BUCKETS, WARM_UP, Source, compare
from benchmarks.workload import Shape, Workload
from connector.spark.apply.alter import alter
from connector.spark.storage.table import Table
from connector.tables.alterations import alteration
from connector.tables.definition import Column

FULL, QUICK = 1_000_000, 50_000


def seconds_of(at: Stage, folder: Path, columns: tuple[Column, ...], moved: int) -> float:
    """The seconds that a process needs to give the table these columns. `moved` values move."""
    began = time.monotonic()
    table = Table.existing(at.spark, str(folder))
    existing, ids = table.layout.definition, table.layout.ids
    assert ids is not None
    names = [column.name for column in existing.columns]
    wanted = alteration(existing, ids, replace(existing, columns=columns), names, 1)
    assert wanted is not None
    assert alter(table, wanted).rows == moved
    return time.monotonic() - began


def measured(at: Stage, rows: int, rounds: int) -> dict[str, list[float]]:
    """The seconds of each alteration, by name."""
    source, definition = Source(at, "alter"), workload.definition(buckets=BUCKETS)
    source.write(Workload(0, rows, rows, Shape.WHOLE, sequential=True))
    source.apply()
    seconds: dict[str, list[float]] = {"drop": [], "add": []}
    for _ in range(WARM_UP + rounds):
        tables = copied(source.warehouse / "tables")
        folder = tables / definition.name
        seconds["drop"].append(seconds_of(at, folder, definition.columns[1:], rows))
        seconds["add"].append(seconds_of(at, folder, definition.columns, rows))
        shutil.rmtree(tables)
    return {name: values[WARM_UP:] for name, values in seconds.items()}


def figures(seconds: Mapping[str, list[float]]) -> list[Figure]:
    return [
        Figure("alter_add_s", median(seconds["add"]), "<60"),
        Figure("alter_drop_s", median(seconds["drop"]), "<60"),
    ]


if __name__ == "__main__":
    raise SystemExit(compare("alter", FULL, QUICK, measured, figures))
