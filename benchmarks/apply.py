"""A bucket-level apply compared with the usual recipe: the same changes, merged at once or by MERGE
batch by batch (TBL-13).

    python -m benchmarks apply [--quick]

There are two million whole-row changes with distinct commit timestamps, on a table of a million
rows. An eleventh of the keys are new.

lowmark does one `apply` of the whole changelog. The ingest before is not measured. The recipe is
common code: `foreachBatch`, the latest change of each key by `row_number`, MERGE with update all,
insert all and delete, 100,000 changes a batch, a plain Delta table, and the default settings of
Spark and Delta. It runs once more in a session with the settings of lowmark. The recipe reads
decoded changes from Parquet files in the order of their commits, so it has no cost for Kafka or
Avro. lowmark reads the entries in the changelog. All tables are compared with the truth, row by row
and column by column.

Partial changes (three columns of five) are measured for lowmark alone. The recipe updates all
columns and would write nulls into the other two.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from benchmarks import machine, workload
from benchmarks.machine import Cost, cost
from benchmarks.report import Figure, finish, spread
from benchmarks.stage import Stage, refuse, stage
from benchmarks.workload import COLUMNS, Shape, Workload
from connector.spark.apply.apply import apply
from connector.spark.session import SETTINGS
from connector.spark.storage.changelog import Changelog
from connector.spark.storage.table import Table


@dataclass(frozen=True, slots=True)
class Sizes:
    """The rows before, the changes, and the changes in a batch of the recipe."""

    rows: int
    changes: int
    batch: int

    @property
    def base(self) -> Workload:
        return Workload(0, self.rows, self.rows, Shape.WHOLE, sequential=True)

    def work(self, shape: Shape, deletes_percent: int = 0) -> Workload:
        return Workload(
            self.rows, self.changes, self.rows * 11 // 10, shape, deletes_percent=deletes_percent
        )


FULL = Sizes(rows=1_000_000, changes=2_000_000, batch=100_000)
QUICK = Sizes(rows=100_000, changes=200_000, batch=10_000)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A table of lowmark with the rows before, a changelog with the changes, and the expected
    table.
    """

    warehouse: Path
    truth: DataFrame
    changes: DataFrame


def prepare(at: Stage, sizes: Sizes, work: Workload) -> Prepared:
    """Send, ingest and apply the rows before. Then send and ingest the changes."""
    warehouse = at.folder / f"apply-{work.shape}-{work.deletes_percent}"
    topic = at.new_topic()
    at.produce(topic, at.decoded(sizes.base), sizes.base.shape)
    at.ingest(topic, warehouse)
    run_ours(at, warehouse)
    at.produce(topic, at.decoded(work), work.shape)
    at.ingest(topic, warehouse)
    truth = workload.truth(at.decoded(sizes.base).unionByName(at.decoded(work)))
    path = str(at.folder / f"truth-{work.shape}-{work.deletes_percent}")
    truth.write.parquet(path)
    return Prepared(
        warehouse,
        at.spark.read.parquet(path),
        at.decoded(work, files=-(-sizes.changes // sizes.batch)),
    )


def run_ours(at: Stage, warehouse: Path, tables: str = "tables", buckets: int = 1) -> None:
    """One apply of everything ingested. If it creates the table, the table has this many
    buckets.
    """
    definition = workload.definition(buckets=buckets)
    table = Table(at.spark, str(warehouse / tables / definition.name), definition)
    changelog = Changelog(
        at.spark, str(warehouse / "streams" / workload.STREAM / "changelog"), workload.STREAM
    )
    applied = apply(
        table, changelog, workload.SOURCE, changelog.progress().cut(0, 0), publish=refuse
    )
    assert applied is not None, "there was nothing to apply"


def ours(at: Stage, prepared: Prepared) -> tuple[Cost, DataFrame]:
    """One apply on a copy of the table."""
    copy = prepared.warehouse / f"tables-{time.monotonic_ns()}"
    shutil.copytree(prepared.warehouse / "tables", copy)
    with cost(at.pid) as spent:
        run_ours(at, prepared.warehouse, copy.name)
    return spent, at.spark.read.format("delta").load(
        str(copy / workload.definition().name / "data")
    )


def upsert(spark: SparkSession, path: str) -> Callable[[DataFrame, int], None]:
    """The merge of the recipe."""
    target = DeltaTable.forPath(spark, path)
    newest_first = Window.partitionBy("row_key").orderBy(F.col("commit_timestamp").desc())

    def merge(batch: DataFrame, _: int) -> None:
        latest = (
            batch.withColumn("place", F.row_number().over(newest_first))
            .where("place = 1")
            .drop("place")
        )
        (
            target.alias("t")
            .merge(latest.alias("s"), "t.row_key = s.row_key")
            .whenMatchedDelete("s.deleted")
            .whenMatchedUpdateAll()
            .whenNotMatchedInsertAll("NOT s.deleted")
            .execute()
        )

    return merge


def with_defaults(spark: SparkSession) -> SparkSession:
    """A session of the same process without the settings of lowmark, as users of the recipe have
    it. It still has Delta.
    """
    session = spark.newSession()
    for name in SETTINGS:
        if name.startswith(("spark.sql.", "spark.databricks.")) and session.conf.isModifiable(name):
            session.conf.unset(name)
    return session


def recipe(
    at: Stage, spark: SparkSession, prepared: Prepared, sizes: Sizes
) -> tuple[Cost, DataFrame]:
    """The same changes with the recipe in the session `spark`, on a table with the same rows."""
    folder = at.folder / f"recipe-{time.monotonic_ns()}"
    table, names = str(folder / "table"), ("row_key", "commit_timestamp", *COLUMNS)
    at.decoded(sizes.base).select(*names).write.format("delta").save(table)
    source = in_order(prepared.changes, folder / "changes")
    reader = (
        spark.readStream.schema(prepared.changes.schema)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(source))
    )
    writer = reader.writeStream.foreachBatch(upsert(spark, table)).option(
        "checkpointLocation", str(folder / "checkpoint")
    )
    with cost(at.pid) as spent:
        writer.trigger(availableNow=True).start().awaitTermination()
    return spent, at.spark.read.format("delta").load(table)


def in_order(files: DataFrame, folder: Path) -> Path:
    """A folder with the same files, in which each file is newer than the one before. A stream reads
    them in this order.
    """
    folder.mkdir(parents=True)
    for place, uri in enumerate(sorted(files.inputFiles())):
        copy = folder / f"{place:05}.parquet"
        shutil.copyfile(uri.removeprefix("file://"), copy)
        os.utime(copy, (place, 1_700_000_000 + place))
    return folder


@dataclass(frozen=True, slots=True)
class Round:
    """The cost of each one for the same changes."""

    ours: Cost
    recipe: Cost
    tuned: Cost


def measure_whole(at: Stage, sizes: Sizes, rounds: int) -> list[Round]:
    """lowmark and the recipe in both sessions, in turns. Each result is compared with the truth."""
    prepared, plain = prepare(at, sizes, sizes.work(Shape.WHOLE)), with_defaults(at.spark)
    found = []
    for number in range(rounds):
        mine, table = ours(at, prepared)
        expect_truth("ours", table, prepared.truth)
        theirs, table = recipe(at, plain, prepared, sizes)
        expect_truth("the recipe", table, prepared.truth)
        tuned, table = recipe(at, at.spark, prepared, sizes)
        expect_truth("the recipe, tuned", table, prepared.truth)
        turns = {"ours": mine, "recipe": theirs, "recipe, tuned": tuned}
        print(
            f"round {number}: {', '.join(f'{name} {spent}' for name, spent in turns.items())}",
            flush=True,
        )
        found.append(Round(mine, theirs, tuned))
    return found


def measure_alone(at: Stage, sizes: Sizes, work: Workload, rounds: int) -> list[Cost]:
    """lowmark alone on another kind of changes, compared with the truth."""
    prepared = prepare(at, sizes, work)
    found = []
    for _ in range(rounds):
        mine, table = ours(at, prepared)
        expect_truth("ours", table, prepared.truth)
        found.append(mine)
    return found


def expect_truth(who: str, table: DataFrame, truth: DataFrame) -> None:
    wrong = workload.differing(table, truth)
    assert wrong == 0, f"{who}: {wrong} rows are not what the changes make"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks apply")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a tenth of the rows and changes, one round, no judgement",
    )
    quick = parser.parse_args().quick
    sizes, rounds = (QUICK, 1) if quick else (FULL, 3)
    with stage() as at:
        whole = measure_whole(at, sizes, rounds)
        partial = measure_alone(at, sizes, sizes.work(Shape.PARTIAL), rounds)
        deletes = measure_alone(at, sizes, sizes.work(Shape.WHOLE, deletes_percent=5), rounds)
        memory = machine.memory_figures("apply", at.pid)
    rates = {
        "dense apply of whole rows": [sizes.changes / each.ours.wall_s for each in whole],
        "the recipe": [sizes.changes / each.recipe.wall_s for each in whole],
        "the recipe, tuned": [sizes.changes / each.tuned.wall_s for each in whole],
        "dense apply of partial changes": [sizes.changes / mine.wall_s for mine in partial],
        "dense apply of whole rows, a twentieth of them deletions": [
            sizes.changes / mine.wall_s for mine in deletes
        ],
    }
    print(*machine.facts(), sep="\n")
    print(
        f"{sizes.changes} changes on {sizes.rows} rows, the recipe in batches of {sizes.batch}; all"
        " tables equal the truth"
    )
    for name, values in rates.items():
        print(spread(name, values, "changes/s"))
    ratios = [each.recipe.wall_s / each.ours.wall_s for each in whole]
    print(spread("recipe's time to ours", ratios))
    names = ("apply_whole_rows", "recipe", "recipe_tuned", "apply_partial", "apply_with_deletes")
    return finish(
        [
            *memory,
            *(
                Figure(f"{name}_changes_per_s", max(values))
                for name, values in zip(names, rates.values(), strict=True)
            ),
            Figure(
                "apply_gain_over_tuned_recipe",
                median(each.tuned.wall_s / each.ours.wall_s for each in whole),
            ),
            Figure(
                "apply_gain_over_recipe_by_processor_time",
                median(each.recipe.cpu_s / each.ours.cpu_s for each in whole),
            ),
            Figure("apply_gain_over_recipe", median(ratios), "5"),
        ],
        validate_record=not quick,
    )


if __name__ == "__main__":
    raise SystemExit(main())
