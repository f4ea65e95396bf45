"""An apply with a truncation of a large table (EVO-13).

    python -m benchmarks truncate [--quick]

The table has 2,000,000 rows of 5 columns in 16 buckets. These applies are measured, each on a copy
of the table:

- `in_order`: the truncation is newer than everything that was merged. No file is read.
- `late`: a tenth of the rows was written after the truncation. The states of all rows are read, and
  the other rows are written again.
- `later`: nine tenths of the rows were written after the truncation. The others are marked as
  deleted.
- `change`: one row is changed, in a table that was truncated before. It shows what a truncation
  costs later applies, beside `change_never`, the same in a table that was never truncated.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import machine, workload
from benchmarks.apply import run_ours
from benchmarks.report import Figure, finish, spread
from benchmarks.sparse import copied
from benchmarks.stage import Stage, stage
from benchmarks.workload import START_US, STEP_US, Shape, Workload
from connector.kafka.produce.producer import CopyingProducer
from connector.kafka.topics import TopicFacts
from connector.records.model import Truncate

BUCKETS: Final = 16
FULL, QUICK = 2_000_000, 100_000
WARM_UP: Final = 1
"""Rounds in which the JVM compiles the code."""


Measured = Callable[[Stage, int, int], dict[str, list[float]]]
"""Returns the seconds of each act, by name, for so many rows and rounds."""
Figures = Callable[[Mapping[str, list[float]]], list[Figure]]


class Source:
    """A topic and a warehouse with its rows."""

    def __init__(self, at: Stage, name: str) -> None:
        self._at, self.warehouse = at, at.folder / f"truncate-{name}"
        self._topic: TopicFacts = at.new_topic()

    def write(self, work: Workload) -> None:
        """Send changes, and ingest them."""
        self._at.produce(self._topic, self._at.decoded(work), work.shape)
        self._at.ingest(self._topic, self.warehouse)

    def truncate(self, commit_timestamp: int) -> None:
        """Truncate the table at this time (µs), and ingest the truncation."""
        with CopyingProducer(self._at.kafka, self._topic) as producer:
            producer.send(Truncate("p0", workload.SOURCE, commit_timestamp))
        self._at.ingest(self._topic, self.warehouse)

    def apply(self, tables: str = "tables") -> None:
        run_ours(self._at, self.warehouse, tables, buckets=BUCKETS)

    def rows(self, tables: Path) -> int:
        path = str(tables / workload.definition().name / "data")
        return self._at.spark.read.format("delta").load(path).count()

    def measure(self, rounds: int, left: int) -> list[float]:
        """The seconds of applies of what was ingested, each on a copy of the tables. `left` is how
        many rows there are then.
        """
        seconds = []
        for _ in range(WARM_UP + rounds):
            tables = copied(self.warehouse / "tables")
            begun = time.monotonic()
            self.apply(tables.name)
            seconds.append(time.monotonic() - begun)
            assert self.rows(tables) == left, (self.rows(tables), left)
            shutil.rmtree(tables)
        return seconds[WARM_UP:]


def measured(at: Stage, rows: int, rounds: int) -> dict[str, list[float]]:
    """The seconds of each apply, by name."""
    base = Workload(0, rows, rows, Shape.WHOLE, sequential=True)
    one = Workload(rows, 1, rows, Shape.WHOLE)
    seconds = {}
    parts = {"in_order": 0, "late": 1, "later": 9}  # tenths that stay
    for name in (*parts, "change_never", "change"):
        source = Source(at, name)
        source.write(base)
        source.apply()
        left = rows * parts.get(name, 10) // 10
        if name in parts:
            source.truncate(START_US + (rows - left) * STEP_US)
        else:
            if name == "change":
                source.truncate(1)
                source.apply()
            source.write(one)
        seconds[name] = source.measure(rounds, left)
        shutil.rmtree(source.warehouse)
    return seconds


def compare(name: str, full: int, quick: int, measured: Measured, figures: Figures) -> int:
    """Run a benchmark that measures the seconds of several acts on a table of so many rows, and
    return its exit code.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {name}")
    parser.add_argument("--quick", action="store_true", help="a small table, one round, no bar")
    chosen = parser.parse_args()
    rows, rounds = (quick, 1) if chosen.quick else (full, 3)
    print(*machine.facts(), sep="\n")
    with stage() as at:
        seconds = measured(at, rows, rounds)
    for act, values in seconds.items():
        print(spread(f"{rows} rows, {act}", values, "s"), flush=True)
    return finish(figures(seconds), validate_record=not chosen.quick)


def figures(seconds: Mapping[str, list[float]]) -> list[Figure]:
    return [
        Figure("truncate_in_order_s", median(seconds["in_order"]), "<3"),
        Figure("truncate_late_s", median(seconds["late"])),
        Figure("truncate_later_s", median(seconds["later"])),
        Figure(
            "truncated_to_never_truncated_change",
            median(seconds["change"]) / median(seconds["change_never"]),
            "<1.2",
        ),
    ]


if __name__ == "__main__":
    raise SystemExit(compare("truncate", FULL, QUICK, measured, figures))
