"""Ingest compared with a plain append: Kafka into the changelog with all checks, and Kafka's raw
columns into a Delta table (TBL-1 to TBL-5).

    python -m benchmarks ingest [--quick]

There are two million changes of three cells in four Kafka partitions. Both are streaming queries
with `availableNow`, a million offsets a batch, zstd, and a new table for every round. The time ends
when the query ends. They take turns, and each round has a ratio. The figure is the median. The
plain append uses the default options of Spark's Kafka source. A third turn uses the options of
lowmark's ingest. It shows their share of the ratio.
"""

from __future__ import annotations

import argparse
import shutil
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pyspark.sql import DataFrame

from benchmarks import machine, workload
from benchmarks.machine import Cost, cost
from benchmarks.report import Figure, finish, spread
from benchmarks.stage import Stage, stage
from benchmarks.workload import COLUMNS, Shape, Workload
from connector.config.settings import StreamConfig
from connector.kafka import topics
from connector.kafka.topics import TopicFacts
from connector.spark.ingest.source import read_stream
from connector.spark.storage.changelog import Changelog

MAX_OFFSETS = 1_000_016
"""Spark divides a limit among Kafka partitions and rounds down. With exactly a million, a third
batch would have a few records.
"""

WARM_UP = 2
"""Rounds in which the JVM compiles the code."""


@dataclass(frozen=True, slots=True)
class Round:
    """One turn of each."""

    raw: Cost
    ours: Cost
    tuned: Cost


def raw_append(at: Stage, topic: TopicFacts, folder: Path) -> None:
    """The least work of any pipeline: the records, unchanged, in a Delta table."""
    reader = at.spark.readStream.format("kafka").option(
        "kafka.bootstrap.servers", at.kafka.bootstrap_servers
    )
    reader.option("subscribe", topic.topic).option("includeHeaders", "true").option(
        "startingOffsets", "earliest"
    )
    append(reader.option("maxOffsetsPerTrigger", MAX_OFFSETS).load(), folder)


def tuned_append(at: Stage, topic: TopicFacts, folder: Path) -> None:
    """The same with the source options of lowmark's ingest."""
    stream = StreamConfig(
        name=workload.STREAM, topic=topic.topic, max_offsets_per_trigger=MAX_OFFSETS
    )
    append(
        read_stream(at.spark, at.kafka, stream, topics.beginning_offsets(at.kafka, topic)), folder
    )


def append(rows: DataFrame, folder: Path) -> None:
    writer = (
        rows.writeStream.format("delta")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
    )
    writer.start(str(folder / "table")).awaitTermination()


def differs(changelog: DataFrame, rows: DataFrame) -> bool:
    """Whether the changelog differs from the changes that were made. Keys, times and cells are
    compared, and each change must be there once.
    """
    ours = changelog.selectExpr(
        "kind",
        "cast(row_key AS string) AS row_key",
        "unix_micros(commit_timestamp) AS at",
        "array_join(transform(entries, e -> concat(cast(e.qualifier AS string), '=', cast(e.value"
        " AS string))), ',') AS cells",
    )
    cells = ", ".join(
        f"CASE WHEN written_{name} THEN concat('{name}=', {name}) END" for name in COLUMNS
    )
    made = rows.selectExpr(
        "'change' AS kind", "row_key", "commit_timestamp AS at", f"concat_ws(',', {cells}) AS cells"
    )
    sums = ("count(*)", "bit_xor(xxhash64(kind, row_key, at, cells))", "count(DISTINCT at)")
    return ours.selectExpr(*sums).first() != made.selectExpr(*sums).first()


def measure(at: Stage, changes: int, rounds: int) -> list[Round]:
    """The rounds after `WARM_UP`, whose rounds do not count."""
    work = Workload(0, changes, max(1, changes // 2), Shape.PARTIAL)
    topic = at.new_topic()
    at.produce(topic, at.decoded(work), work.shape)
    found = []
    folder = at.folder
    for number in range(-WARM_UP, rounds):
        folder = at.folder / f"round-{number}"
        with cost(at.pid) as raw:
            raw_append(at, topic, folder / "raw")
        with cost(at.pid) as ours:
            at.ingest(topic, folder / "ours", max_offsets=MAX_OFFSETS)
        with cost(at.pid) as tuned:
            tuned_append(at, topic, folder / "tuned")
        turns = {"bare append": raw, "ingest": ours, "bare append, tuned": tuned}
        print(
            f"round {number}: {', '.join(f'{name} {spent}' for name, spent in turns.items())}",
            flush=True,
        )
        if number >= 0:
            found.append(Round(raw, ours, tuned))
        if number < rounds - 1:
            shutil.rmtree(folder)
    changelog = Changelog(
        at.spark, str(folder / "ours" / "streams" / workload.STREAM / "changelog"), workload.STREAM
    )
    assert not differs(changelog.rows(), at.decoded(work)), (
        "the changelog does not hold what was sent"
    )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks ingest")
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the changes, fewer rounds, no judgement"
    )
    quick = parser.parse_args().quick
    changes, rounds = (200_000, 2) if quick else (2_000_000, 5)
    with stage() as at:
        found = measure(at, changes, rounds)
        memory = machine.memory_figures("ingest", at.pid)
    print(*machine.facts(), sep="\n")
    print(
        f"{changes} changes, {rounds} rounds in which they take turns, after {WARM_UP} that do not"
        " count"
    )
    print(spread("bare append", [changes / round_.raw.wall_s for round_ in found], "changes/s"))
    print(spread("ingest", [changes / round_.ours.wall_s for round_ in found], "changes/s"))
    ratios = [round_.raw.wall_s / round_.ours.wall_s for round_ in found]
    print(spread("ratio", ratios))
    tuned = [round_.tuned.wall_s / round_.ours.wall_s for round_ in found]
    print(spread("ratio to a bare append with our source options", tuned))
    by_cpu = [round_.raw.cpu_s / round_.ours.cpu_s for round_ in found]
    return finish(
        [
            *memory,
            Figure("ingest_changes_per_s", changes / min(round_.ours.wall_s for round_ in found)),
            Figure(
                "bare_append_records_per_s", changes / min(round_.raw.wall_s for round_ in found)
            ),
            Figure("ingest_ratio_by_processor_time", median(by_cpu)),
            Figure("ingest_ratio_to_tuned_append", median(tuned)),
            Figure("ingest_ratio_to_bare_append", median(ratios), "0.4"),
        ],
        validate_record=not quick,
    )


if __name__ == "__main__":
    raise SystemExit(main())
