"""A backlog with a new process: a million changes in Kafka, decoded, logged and applied, compared
with the usual recipe (TBL-13).

    python -m benchmarks backlog [--quick]

    python -m benchmarks.backlog [--rounds N]

lowmark runs `connector run --once`, as a user starts it. The recipe is a separate program:
`from_avro`, a column from the entries by `filter`, the latest change of each key by `row_number`,
MERGE in `foreachBatch`, the defaults of Spark and Delta, the same heap. It reads the backlog in one
trigger, which is its best case, and in triggers of 100,000. The table is empty at first, or has a
million rows. The time is from the start of the process to its end, in the same run. The best round
counts. Every table must equal the truth at the end.

The recipe keeps no changelog and validates nothing. It would lose deletions if changes were out of
order.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from time import perf_counter

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from benchmarks import machine, workload
from benchmarks.apply import expect_truth, upsert
from benchmarks.freshness import configuration
from benchmarks.report import Figure, finish
from benchmarks.rounds import base_of, send_heartbeat
from benchmarks.stage import MEMORY, Stage, stage
from benchmarks.workload import COLUMNS, FAMILY, Shape, Workload
from connector import jars
from connector.config import java_settings
from connector.config.settings import KafkaConfig
from connector.kafka import ChangeProducer, topics
from connector.records.codec import SCHEMA

CHANGES = 1_000_000
ROWS = 1_000_000
TRIGGER = 100_000
DELETES_PERCENT = 3
BARS = {"empty": "<1.3", "existing": "<1.0"}


class Backlog:
    """A topic with a backlog after the first rows, if there are any, and tables with these rows."""

    def __init__(self, at: Stage, name: str, rows: int, changes: int) -> None:
        self._at, self._name, self._folder, self._topic = at, name, at.folder / name, at.new_topic()
        self._warehouse, self._recipe = self._folder / "warehouse", self._folder / "recipe"
        work = Workload(
            rows, changes, rows or changes, Shape.WHOLE, deletes_percent=DELETES_PERCENT
        )
        made = at.decoded(work)
        self._truth = made
        self._folder.mkdir()
        (self._folder / "connector.toml").write_text(configuration_of(at.kafka, self._topic.topic))
        with ChangeProducer(at.kafka, self._topic) as producer:
            if rows:
                base = at.decoded(base_of(rows))
                self._truth = base.unionByName(made)
                at.produce(self._topic, base, Shape.WHOLE)
                send_heartbeat(producer, rows)
                self._run()
            names = ("row_key", "commit_timestamp", *COLUMNS)
            first = at.decoded(base_of(rows)) if rows else made.limit(0)
            first.select(*names).write.format("delta").save(str(self._recipe))
            self._starts = topics.high_watermarks(at.kafka, self._topic)
            # In the order of their commits for each key, because the recipe takes the last one.
            ordered = made.repartition("row_key").sortWithinPartitions("commit_timestamp")
            at.produce(self._topic, ordered, Shape.WHOLE)
            send_heartbeat(producer, rows + changes)

    def ours(self) -> float:
        """The seconds of `connector run --once`, each time with a new warehouse."""
        kept = self._folder / "kept"
        if self._warehouse.exists():
            shutil.copytree(self._warehouse, kept)
        took = self._run()
        self._expect("ours", self._warehouse / "tables" / workload.definition().name / "data")
        shutil.rmtree(self._warehouse)
        if kept.exists():
            kept.rename(self._warehouse)
        return took

    def recipe(self, trigger: int) -> float:
        """The seconds of the recipe, with this many changes in a trigger."""
        copy = self._folder / "copy"
        shutil.copytree(self._recipe, copy)
        told = {
            "servers": self._at.kafka.bootstrap_servers,
            "topic": self._topic.topic,
            "starts": {str(k): end for k, end in self._starts.items()},
            "trigger": trigger,
            "table": str(copy),
            "folder": str(self._folder),
        }
        took = timed([sys.executable, "-m", "benchmarks.backlog", "--recipe", json.dumps(told)])
        self._expect("the recipe", copy)
        shutil.rmtree(copy)
        shutil.rmtree(self._folder / "checkpoint")
        return took

    def _run(self) -> float:
        return timed(
            [
                str(Path(sys.executable).with_name("connector")),
                "--config",
                str(self._folder / "connector.toml"),
                "run",
                "--once",
            ]
        )

    def _expect(self, who: str, table: Path) -> None:
        truth = workload.truth(self._truth)
        expect_truth(
            f"{who}, {self._name}", self._at.spark.read.format("delta").load(str(table)), truth
        )


def timed(command: list[str]) -> float:
    """The seconds of a process, which must not fail."""
    began = perf_counter()
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    took = perf_counter() - began
    assert done.returncode == 0, done.stdout + done.stderr
    return took


def configuration_of(kafka: KafkaConfig, topic: str) -> str:
    """The configuration for `connector run`. The backlog and its heartbeats are one batch."""
    return configuration(kafka, topic, f"max_offsets_per_trigger = {4 * CHANGES}\n", "")


def recipe_session(folder: Path) -> SparkSession:
    """Spark and Delta with their defaults, in this process. `folder` is for its files."""
    builder = SparkSession.builder.master("local[*]").appName("recipe")
    for name, value in {
        "spark.jars": ",".join(
            map(str, jars.fetch("spark", jars.JarStore.from_environment(os.environ)))
        ),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.driver.memory": MEMORY,
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": f"{folder}/spark",
    }.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def run_recipe(told: str) -> None:
    """The recipe, in this process: the code of a team that knows Spark and Delta."""
    wanted = json.loads(told)
    spark = recipe_session(Path(wanted["folder"]))
    options = {
        **java_settings.options(KafkaConfig(wanted["servers"]), Path.read_text),
        "startingOffsets": json.dumps({wanted["topic"]: wanted["starts"]}),
        "maxOffsetsPerTrigger": str(wanted["trigger"]),
    }
    changes = changes_of(
        spark.readStream.format("kafka")
        .option("subscribe", wanted["topic"])
        .options(**options)
        .load()
    )
    writer = changes.writeStream.foreachBatch(upsert(spark, wanted["table"]))
    query = (
        writer.option("checkpointLocation", f"{wanted['folder']}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


def changes_of(records: DataFrame) -> DataFrame:
    """Kafka records as rows of plain columns."""
    # After the single-object header.
    decoded = records.select(
        from_avro(F.expr("substring(value, 11)"), SCHEMA).alias("record")
    ).select("record.data_change")
    cell = (
        "get(filter(data_change.entries, e -> e.kind = 'SET_CELL' AND e.family = '{}' AND"
        " e.qualifier = cast('{}' AS binary)), 0).value"
    )
    values = [
        f"cast(cast({cell.format(FAMILY, name)} AS string) AS {type_.value}) AS {name}"
        for name, type_ in COLUMNS.items()
    ]
    return decoded.where("data_change IS NOT NULL").selectExpr(
        "cast(data_change.row_key AS string) AS row_key",
        "unix_micros(data_change.commit_timestamp) AS commit_timestamp",
        "NOT exists(data_change.entries, e -> e.kind = 'SET_CELL') AS deleted",
        *(value.replace("AS INT64)", "AS BIGINT)") for value in values),
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks backlog")
    parser.add_argument("--quick", action="store_true", help="a tenth of everything, no judgement")
    parser.add_argument("--rounds", type=int, default=1, help="of which the best counts")
    parser.add_argument("--recipe", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.recipe is not None:
        run_recipe(chosen.recipe)
        return 0
    part = 10 if chosen.quick else 1
    print(*machine.facts(), sep="\n", flush=True)
    figures: list[Figure] = []
    with stage() as at:
        for name, rows in (("empty", 0), ("existing", ROWS // part)):
            backlog = Backlog(at, name, rows, CHANGES // part)
            taken: dict[str, list[float]] = {"ours": [], "recipe": [], "small_triggers": []}
            for _ in range(chosen.rounds):
                taken["ours"].append(backlog.ours())
                taken["recipe"].append(backlog.recipe(4 * CHANGES))
                if name == "empty":
                    taken["small_triggers"].append(backlog.recipe(TRIGGER // part))
                print(
                    name,
                    {who: round(seconds[-1], 1) for who, seconds in taken.items() if seconds},
                    flush=True,
                )
            best = {who: min(seconds) for who, seconds in taken.items() if seconds}
            figures += [Figure(f"backlog_{name}_{who}_s", seconds) for who, seconds in best.items()]
            figures.append(
                Figure(f"backlog_{name}_ours_to_recipe", best["ours"] / best["recipe"], BARS[name])
            )
            if name == "empty":
                figures.append(
                    Figure(
                        "backlog_empty_small_triggers_to_ours",
                        best["small_triggers"] / best["ours"],
                        "2.5",
                    )
                )
    return finish(figures, validate_record=not chosen.quick)


if __name__ == "__main__":
    raise SystemExit(main())
