"""`read_changes` compared with a plain scan of the changelog, and a query of the SQL function
(SUB-5).

    python -m benchmarks changes [--quick]

    python -m benchmarks.changes --changes N

The scan reads the same columns of the changelog as Delta sees it. Both discard the rows. The SQL
function returns all changes of one stream partition in order, each once. Its time includes
`register_functions`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from pyspark.sql import DataFrame

from benchmarks import machine, workload
from benchmarks.report import Figure, finish, spread
from benchmarks.rounds import STREAM_PARTITION, send_heartbeat
from benchmarks.stage import Stage, stage
from benchmarks.workload import Shape, Workload
from connector import warehouse as places
from connector.kafka import ChangeProducer
from connector.spark import read_changes, register_functions
from connector.spark.changes import COLUMNS

FULL, QUICK = 1_000_000, 50_000
WARM_UP = 3


def timed(rows: Callable[[], DataFrame]) -> float:
    begun = time.monotonic()
    rows().write.format("noop").mode("overwrite").save()
    return time.monotonic() - begun


def measure(at: Stage, warehouse: Path, rounds: int) -> dict[str, list[float]]:
    """The seconds of each way to read, in turns."""
    stream, path = workload.STREAM, places.changelog(str(warehouse), workload.STREAM)

    def scan() -> DataFrame:
        rows = at.spark.read.format("delta").load(path).where("slot >= 0")
        return rows.select(*(f"`{name}`" for name in COLUMNS))

    def sql() -> DataFrame:
        register_functions(at.spark, str(warehouse))
        return at.spark.sql(
            f"SELECT ChangeRecord FROM READ_{stream}(timestamp_micros(1L), NULL,"
            f" '{STREAM_PARTITION}', 300000)"
        )

    ways = {
        "scan": scan,
        "read_changes": lambda: read_changes(at.spark, str(warehouse), stream),
        "sql": sql,
    }
    turns = [{name: timed(way) for name, way in ways.items()} for _ in range(WARM_UP + rounds)]
    return {name: [turn[name] for turn in turns[WARM_UP:]] for name in ways}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks changes")
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK} changes, one round, no judgement"
    )
    parser.add_argument("--changes", type=int, default=FULL, help="(default: %(default)s)")
    chosen = parser.parse_args()
    count, rounds = (QUICK, 1) if chosen.quick else (chosen.changes, 5)
    print(*machine.facts(), sep="\n")
    with stage() as at:
        warehouse, topic = at.folder / "warehouse", at.new_topic()
        at.produce(topic, at.decoded(Workload(0, count, count, Shape.WHOLE)), Shape.WHOLE)
        with ChangeProducer(at.kafka, topic) as producer:
            send_heartbeat(producer, count)
        at.ingest(topic, warehouse)
        found = read_changes(at.spark, str(warehouse), workload.STREAM).count()
        assert found == count, (found, count)
        seconds = measure(at, warehouse, rounds)
    for name, of in seconds.items():
        print(spread(f"{name} of {count} changes", of, "s"))
    ratios = {
        name: median(a / b for a, b in zip(seconds[name], seconds["scan"], strict=True))
        for name in ("read_changes", "sql")
    }
    figures = [
        Figure("read_changes_to_scan", ratios["read_changes"], "<1.1"),
        Figure("sql_function_to_scan", ratios["sql"]),
    ]
    return finish(figures, validate_record=not chosen.quick)


if __name__ == "__main__":
    raise SystemExit(main())
