"""A few changes on a large table: a row-level apply compared with a tuned MERGE of the same
changes, for several table sizes (TBL-13).

    python -m benchmarks sparse [--quick]

20,000 random rows are changed. The MERGE has the same conditions: a table in 16 buckets, sorted by
key, with deletion vectors, each bucket named in its condition, and lowmark's session. It gets the
changes as decoded columns. lowmark starts from the changelog, stores the state that later merges
need, and commits its table state. Both run on copies of one table, in turns. Each result is
compared with the truth.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from pathlib import Path
from statistics import median

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from benchmarks import machine, workload
from benchmarks.apply import expect_truth, run_ours
from benchmarks.report import Figure, finish, spread
from benchmarks.stage import Stage, stage
from benchmarks.workload import COLUMNS, Shape, Workload

CHANGES, BUCKETS = 20_000, 16
JUDGED = 8_000_000
WARM_UP = 2
"""Rounds in which the JVM compiles the code."""
FULL = [(rows, Shape.WHOLE) for rows in (1_000_000, 4_000_000, JUDGED, 16_000_000)] + [
    (JUDGED, Shape.PARTIAL)
]
QUICK = [(100_000, shape) for shape in Shape]


def copied(folder: Path) -> Path:
    """A copy of the table that can be changed. It shares the files, because files of a Delta table
    never change.
    """
    copy = folder.with_name(f"{folder.name}-{time.monotonic_ns()}")
    shutil.copytree(folder, copy, copy_function=os.link)
    return copy


def made_target(at: Stage, base: Workload, shape: Shape) -> Path:
    """The rows before, stored as in a table that is tuned for MERGE."""
    folder = at.folder / f"merge-{base.count}-{shape}"
    rows = at.decoded(base).select(
        "row_key", "commit_timestamp", *COLUMNS, bucket().alias("bucket")
    )
    builder = (
        DeltaTable.create(at.spark)
        .location(str(folder))
        .partitionedBy("bucket")
        .addColumns(rows.schema)
    )
    builder.property("delta.enableDeletionVectors", "true").property(
        "delta.dataSkippingStatsColumns", "row_key"
    ).execute()
    rows.repartition(BUCKETS, "bucket").sortWithinPartitions("bucket", "row_key").write.format(
        "delta"
    ).mode("append").save(str(folder))
    return folder


def bucket() -> Column:
    return F.expr(f"int(pmod(xxhash64(row_key), {BUCKETS}))")


def merge(at: Stage, table: Path, changes: DataFrame) -> None:
    """The newest value of each column of a row, if it is newer than the row. Columns that no change
    writes stay.
    """
    written_at = {name: f"CASE WHEN written_{name} THEN commit_timestamp END" for name in COLUMNS}
    values = (F.expr(f"max_by({name}, {at}) AS {name}") for name, at in written_at.items())
    flags = (F.expr(f"max({at}) IS NOT NULL AS written_{name}") for name, at in written_at.items())
    newest = changes.groupBy("row_key").agg(
        F.expr("max(commit_timestamp) AS commit_timestamp"), *values, *flags
    )
    source = newest.withColumn("bucket", bucket())
    named = (
        f"t.bucket IN ({', '.join(map(str, range(BUCKETS)))}) AND t.bucket = s.bucket AND t.row_key"
        " = s.row_key"
    )
    written = {
        name: f"CASE WHEN s.written_{name} THEN s.{name} ELSE t.{name} END" for name in COLUMNS
    }
    merged = DeltaTable.forPath(at.spark, str(table)).alias("t").merge(source.alias("s"), named)
    merged = merged.whenMatchedUpdate(
        "s.commit_timestamp > t.commit_timestamp",
        {**written, "commit_timestamp": "s.commit_timestamp"},
    )
    merged.whenNotMatchedInsert(
        values={name: f"s.{name}" for name in ("row_key", "commit_timestamp", "bucket", *COLUMNS)}
    ).execute()


def measure(at: Stage, rows: int, shape: Shape, rounds: int) -> tuple[list[float], list[float]]:
    """The seconds of applies of lowmark and of MERGEs, in turns, after `WARM_UP` of each that do
    not count.
    """
    base, work = (
        Workload(0, rows, rows, Shape.WHOLE, sequential=True),
        Workload(rows, CHANGES, rows * 101 // 100, shape),
    )
    warehouse, topic = at.folder / f"sparse-{rows}-{shape}", at.new_topic()
    at.produce(topic, at.decoded(base), base.shape)
    at.ingest(topic, warehouse)
    run_ours(at, warehouse, buckets=BUCKETS)
    before = made_target(at, base, shape)
    at.produce(topic, at.decoded(work), shape)
    at.ingest(topic, warehouse)
    truth = workload.truth(at.decoded(base).unionByName(at.decoded(work))).localCheckpoint()
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(WARM_UP + rounds):
        tables, target = copied(warehouse / "tables"), copied(before)
        begun = time.monotonic()
        run_ours(at, warehouse, tables.name)
        ours.append(time.monotonic() - begun)
        begun = time.monotonic()
        merge(at, target, at.decoded(work))
        theirs.append(time.monotonic() - begun)
        for who, path in (
            ("ours", tables / workload.definition().name / "data"),
            ("MERGE", target),
        ):
            expect_truth(who, at.spark.read.format("delta").load(str(path)), truth)
        shutil.rmtree(tables)
        shutil.rmtree(target)
    return ours[WARM_UP:], theirs[WARM_UP:]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks sparse")
    parser.add_argument(
        "--quick", action="store_true", help="one small table, one round, no judgement"
    )
    parser.add_argument("--rows", type=int, help="tables of this size only")
    chosen = parser.parse_args()
    rounds = 1 if chosen.quick else 3
    figures = []
    print(*machine.facts(), sep="\n")
    with stage() as at:
        for rows, shape in QUICK if chosen.quick else FULL:
            if chosen.rows not in (None, rows):
                continue
            ours, theirs = measure(at, rows, shape, rounds)
            print(spread(f"{rows} rows, {CHANGES} {shape} changes: ours", ours, "s"))
            print(spread(f"{rows} rows, {CHANGES} {shape} changes: MERGE", theirs, "s"), flush=True)
            ratio = median(their / our for our, their in zip(ours, theirs, strict=True))
            figures.append(
                Figure(
                    f"merge_to_ours_{shape}_{rows // 1_000_000}m_rows",
                    ratio,
                    "2" if rows == JUDGED else "-",
                )
            )
            print(
                f"{rows} rows, {CHANGES} {shape} changes: MERGE takes {ratio:.2f} times as long",
                flush=True,
            )
    return finish(figures, validate_record=not chosen.quick)


if __name__ == "__main__":
    raise SystemExit(main())
