"""A fresh read compared with a plain scan of the same table. Two of a hundred rows have changes
that are not applied yet (TBL-16).

    python -m benchmarks read [--quick]

    python -m benchmarks.read --rows N

The scan reads the table of the last apply, with all columns that readers see, and discards the
rows. The fresh read is `read_table` with a staleness of 0, including the statistics of the changes.
It is compared with the truth once.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from pyspark.sql import DataFrame

from benchmarks import machine, workload
from benchmarks.apply import expect_truth, run_ours
from benchmarks.report import Figure, finish, spread
from benchmarks.stage import Stage, stage
from benchmarks.workload import Shape, Workload
from connector.spark import read_table
from connector.tables.column_names import BOOKKEEPING
from connector.warehouse import table as table_path

FULL, QUICK = 8_000_000, 200_000
BUCKETS = 16
WARM_UP = 24
"""Turns that do not count, because the JVM compiles meanwhile. A scan needs one turn. A merge plan
needs about twenty: compilation takes 2 of a read's core-seconds after four turns, 1 after twelve,
0.5 after twenty.
"""
BARS = {Shape.WHOLE: "<2", Shape.PARTIAL: "<3.5"}


def measure(at: Stage, warehouse: Path, rounds: int) -> tuple[list[float], list[float]]:
    """The seconds of scans and of fresh reads, in turns."""
    name = workload.definition().name

    def scan() -> DataFrame:
        return (
            at.spark.read.format("delta").load(table_path(str(warehouse), name)).drop(*BOOKKEEPING)
        )

    def fresh() -> DataFrame:
        return read_table(at.spark, str(warehouse), name, max_staleness_s=0).rows

    turns = [(timed(scan), timed(fresh)) for _ in range(WARM_UP + rounds)][WARM_UP:]
    return [plain for plain, _ in turns], [merged for _, merged in turns]


def timed(rows: Callable[[], DataFrame]) -> float:
    begun = time.monotonic()
    rows().write.format("noop").mode("overwrite").save()
    return time.monotonic() - begun


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks read")
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK} rows, one round, no judgement"
    )
    parser.add_argument(
        "--rows", type=int, default=FULL, help="of the table (default: %(default)s)"
    )
    chosen = parser.parse_args()
    rows, rounds = (QUICK, 1) if chosen.quick else (chosen.rows, 5)
    figures = []
    print(*machine.facts(), sep="\n")
    with stage() as at:
        base = Workload(0, rows, rows, Shape.WHOLE, sequential=True)
        for shape in Shape:
            work = Workload(rows, rows // 50, rows, shape)
            warehouse, topic = at.folder / f"read-{shape}", at.new_topic()
            at.produce(topic, at.decoded(base), base.shape)
            at.ingest(topic, warehouse)
            run_ours(at, warehouse, buckets=BUCKETS)
            at.produce(topic, at.decoded(work), shape)
            at.ingest(topic, warehouse)
            reading = read_table(
                at.spark, str(warehouse), workload.definition().name, max_staleness_s=0
            )
            expect_truth(
                "the read",
                reading.rows,
                workload.truth(at.decoded(base).unionByName(at.decoded(work))),
            )
            scans, merged = measure(at, warehouse, rounds)
            print(spread(f"scan of {rows} rows", scans, "s"))
            print(spread(f"fresh read, {reading.changes} {shape} changes not applied", merged, "s"))
            figures.append(
                Figure(
                    f"read_fresh_{shape}_to_scan",
                    median(m / s for s, m in zip(scans, merged, strict=True)),
                    BARS[shape],
                )
            )
    return finish(figures, validate_record=not chosen.quick)


if __name__ == "__main__":
    raise SystemExit(main())
