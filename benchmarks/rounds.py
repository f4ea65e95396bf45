"""The cost of a small round, step by step, compared with simple ways for the same changes in the
same run (TBL-2, TBL-13).

    python -m benchmarks rounds [--quick]

    python -m benchmarks.rounds [--rows N ...] [--changes N ...] [--warm N] [--rounds N]

A round is a batch of changes of whole rows, 3 % of them deletions, and a heartbeat. These take
turns with it:

- plain append: from Kafka, `from_avro`, one file appended to a Delta table. Its consumer does not
  wait half a second at the end of the topic, as it does by default.
- ingest: lowmark's query of `connector run`.
- MERGE: the recipe of `benchmarks.apply` in lowmark's session, on a table with the same rows, with
  decoded changes.
- delta-rs: `merge` of the deltalake package, with the same changes.
- apply: lowmark's, with its entries in the job history and the list of cuts.

Both queries run from round to round, and wait at the end of each batch for the next one. Ingest and
plain append are measured from the call of `foreachBatch`. The time that Spark needs before, from
the end of the last batch to the plan of the next, is the step `planned`. Jobs, stages and tasks are
Spark's own counts. Processor time is that of the JVM and of Python. Written files are the new files
in the warehouse: data files, and the commits of Delta logs. All other files, including hidden
checksums, count as bytes only. At the end all three tables must equal the truth. Figures are
medians.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow.parquet
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from benchmarks import machine, workload
from benchmarks.apply import expect_truth, upsert
from benchmarks.report import Figure, finish, number
from benchmarks.stage import Stage, refuse, stage
from benchmarks.workload import COLUMNS, Shape, Workload
from connector.config import java_settings
from connector.kafka import ChangeProducer, topics
from connector.kafka.topics import TopicFacts
from connector.lake.jobs import History
from connector.lake.small_apply import merge_few
from connector.records.codec import SCHEMA
from connector.records.model import Heartbeat
from connector.spark.apply.apply import apply
from connector.spark.storage.table import Table
from connector.spark.stream_ingest import StreamIngest
from connector.state.jobs import CutRecord, Job, JobKind

ROWS = (200_000, 2_000_000)
CHANGES = (12_000, 1_000, 100)
WARM_UP = 10
"""Rounds with the most changes in which the JVM compiles the code. The other sizes have a third of
it.
"""
ROUNDS = 7
DELETES_PERCENT = 3
STREAM_PARTITION = "p0"
NAMES = {
    "logged": "ingest: logged",
    "letters published": "ingest: counted",
    "progress committed": "ingest: progress",
}
APPLY_NAMES = {
    "letters published": "apply: survey",
    "tombstones written": "apply: merge",
    "table committed": "apply: commit",
}


@dataclass(slots=True)
class Spent:
    """The cost of a step: seconds, core-seconds, and Spark's jobs, stages and tasks."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    jobs: int = 0
    stages: int = 0
    tasks: int = 0

    def __add__(self, other: Spent) -> Spent:
        return Spent(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


class Meter:
    """Measures the steps of one piece of work. One job at a time runs in the session."""

    def __init__(self, at: Stage) -> None:
        self._spark: Any = at.spark.sparkContext._jsc.sc()  # type: ignore[attr-defined]
        self._pids = (os.getpid(), at.pid)
        self.begin()

    def begin(self) -> None:
        """Clear all counts and start."""
        self._marks = [self._mark("")]

    def step(self, name: str) -> None:
        """End a step."""
        self._marks.append(self._mark(name))

    def steps(self) -> dict[str, Spent]:
        """The cost of each step, by name."""
        self._spark.listenerBus().waitUntilEmpty()
        found: dict[str, Spent] = defaultdict(Spent)
        for (_, began, cpu, first), (name, ended, cpu_then, end) in zip(
            self._marks, self._marks[1:], strict=False
        ):
            jobs = [self._spark.statusStore().job(job) for job in range(first, end)]
            stages, tasks = (
                sum(job.numCompletedStages() for job in jobs),
                sum(job.numCompletedTasks() for job in jobs),
            )
            found[name] += Spent(ended - began, cpu_then - cpu, len(jobs), stages, tasks)
        return dict(found)

    def _mark(self, name: str) -> tuple[str, float, float, int]:
        return (
            name,
            time.perf_counter(),
            sum(map(machine.cpu_s, self._pids)),
            self._spark.dagScheduler().numTotalJobs(),
        )


class Turns:
    """Makes a streaming query run one batch at a time. At the end of each batch it waits for the
    next turn.
    """

    def __init__(self) -> None:
        self._go, self._done, self._is_over = threading.Event(), threading.Event(), False

    def end(self) -> None:
        """End a batch. Called in the query's thread."""
        self._done.set()
        while not self._is_over and not self._go.wait(1):
            pass
        self._go.clear()

    def end_now(self) -> None:
        """Mark a batch as ended, without a next turn."""
        self._done.set()

    def take(self, check: Callable[[], None]) -> None:
        """Start one batch and wait for its end. Called in the main thread. `check` raises the error
        that has stopped the query.
        """
        self._done.clear()
        self._go.set()
        self.wait(check)

    def wait(self, check: Callable[[], None]) -> None:
        while not self._done.wait(1):
            check()

    def close(self) -> None:
        """Let the query run without waiting."""
        self._is_over = True


@dataclass(frozen=True, slots=True)
class Written:
    """The new files of a round in a folder, and bytes. In a Delta log, the files are commits."""

    files: int = 0
    bytes: int = 0

    def __add__(self, other: Written) -> Written:
        return Written(self.files + other.files, self.bytes + other.bytes)


@dataclass(slots=True)
class Round:
    """The cost of each one for one batch of changes, and the files that lowmark wrote, by
    folder.
    """

    spent: dict[str, Spent] = field(default_factory=dict)
    written: dict[str, Written] = field(default_factory=dict)


@dataclass(slots=True)
class Bench:
    """Tables with the same rows, of lowmark and of the others, and the two queries. `sent` is the
    number of changes so far.
    """

    at: Stage
    rows: int
    topic: TopicFacts
    warehouse: Path
    others: Path
    producer: ChangeProducer
    meter: Meter
    ingest: StreamIngest
    table: Table
    ingest_turns: Turns
    plain_turns: Turns
    check_plain: Callable[[], None]
    sent: int = 0

    def round(self, changes: int) -> Round:
        """Send changes, and let each one take its turn."""
        work = Workload(
            self.rows + self.sent, changes, self.rows, Shape.WHOLE, deletes_percent=DELETES_PERCENT
        )
        made = self.at.decoded(work, files=2)
        self.at.produce(self.topic, made, work.shape)
        self.sent += changes
        send_heartbeat(self.producer, self.rows + self.sent)
        before, taken = set(machine.files_below(self.warehouse)), Round()
        self.plain_turns.take(self.check_plain)
        taken.spent["plain append"] = self.meter.steps()["appended"]
        self.ingest_once(taken)
        self.apply_once(taken)
        taken.written = written(before, machine.files_below(self.warehouse))
        self.meter.begin()
        upsert(self.at.spark, str(self.others / "merge"))(made, 0)
        self.meter.step("MERGE")
        delta_rs(
            self.others / "delta-rs", Path(made.inputFiles()[0].removeprefix("file://")).parent
        )
        self.meter.step("delta-rs")
        taken.spent |= self.meter.steps()
        return taken

    def expect_truth(self) -> None:
        work = Workload(
            self.rows, self.sent, self.rows, Shape.WHOLE, deletes_percent=DELETES_PERCENT
        )
        made = workload.decoded(self.at.spark, base_of(self.rows)).unionByName(
            workload.decoded(self.at.spark, work)
        )
        truth = workload.truth(made).localCheckpoint()
        for who, path in (
            ("ours", Path(self.table.path)),
            ("MERGE", self.others / "merge"),
            ("delta-rs", self.others / "delta-rs"),
        ):
            expect_truth(who, self.at.spark.read.format("delta").load(str(path)), truth)

    def ingest_once(self, taken: Round) -> None:
        """One batch of ingest."""
        batches = self.ingest.changelog.progress().ingest_batch
        self.meter.begin()
        self.ingest_turns.take(self.ingest.check)
        steps = self.meter.steps()
        planned = steps.pop("begun")
        taken.spent |= {"ingest: planned": planned, "ingest": sum(steps.values(), Spent())}
        taken.spent |= {NAMES.get(name, f"ingest: {name}"): spent for name, spent in steps.items()}
        progress = self.ingest.changelog.progress()
        assert progress.ingest_batch == batches + 1, "a round is one batch"
        assert progress.changes == self.rows + self.sent, "a batch has all that was sent"

    def apply_once(self, taken: Round) -> None:
        """One apply of everything ingested."""
        self.meter.begin()
        apply_newest(self.table, self.ingest, self.warehouse, self.meter.step)
        steps = self.meter.steps()
        taken.spent |= {
            APPLY_NAMES.get(name, f"apply: {name}"): spent for name, spent in steps.items()
        }
        taken.spent["apply"] = sum(steps.values(), Spent())


def apply_newest(
    table: Table,
    ingest: StreamIngest,
    warehouse: Path,
    on_step: Callable[[str], None] = lambda step: None,
) -> None:
    """Bring the table to the newest cut and record job and cut, as the pipeline does."""
    history, name = History(str(warehouse)), table.layout.definition.name
    now, before = time.time_ns() // 1000, table.table_state()
    cut = ingest.changelog.progress().cut(now, 300)
    applied = apply(
        *(table, ingest.changelog, workload.SOURCE, cut),
        publish=refuse,
        on_step=on_step,
        merge_few=merge_few,
    )
    assert applied is not None, "there was nothing to apply"
    assert not cut.ignores_watermark, "a heartbeat makes a cut"
    job = Job(
        JobKind.APPLY,
        name,
        now,
        time.time_ns() // 1000,
        before.complete_to_batch,
        cut.batch,
        changes=applied.changes,
    )
    history.add_job(job)
    assert cut.low_watermark is not None
    version, after = table.newest()
    history.add_cut(
        CutRecord(
            workload.STREAM,
            cut.low_watermark,
            cut.batch,
            0,
            after.merged,
            time.time_ns() // 1000,
            {name: version},
        )
    )
    on_step("journal")


def base_of(rows: int) -> Workload:
    return Workload(0, rows, rows, Shape.WHOLE, sequential=True)


def send_heartbeat(producer: ChangeProducer, changes: int) -> None:
    """Send a heartbeat for everything up to the newest of these changes."""
    producer.send(Heartbeat(STREAM_PARTITION, workload.START_US + (changes - 1) * workload.STEP_US))
    producer.flush()


@contextmanager
def bench(at: Stage, rows: int) -> Iterator[Bench]:
    """Everything that rounds on a table with this many rows need. The queries end with the
    block.
    """
    topic, warehouse, others = (
        at.new_topic(),
        at.folder / f"rounds-{rows}",
        at.folder / f"rounds-{rows}-others",
    )
    meter, ingest_turns, plain_turns = Meter(at), Turns(), Turns()
    made = at.decoded(base_of(rows))
    made.select("row_key", "commit_timestamp", *COLUMNS).write.format("delta").save(
        str(others / "merge")
    )
    shutil.copytree(others / "merge", others / "delta-rs")

    def on_step(step: str) -> None:
        meter.step(step)
        if step == "progress committed":
            ingest_turns.end()

    with ExitStack() as stack:
        producer = stack.enter_context(ChangeProducer(at.kafka, topic))
        at.produce(topic, made, Shape.WHOLE)
        send_heartbeat(producer, rows)
        at.ingest(topic, warehouse)
        ingest = at.stream_ingest(topic, warehouse, trigger_s=0, publish=refuse, on_step=on_step)
        table = Table(
            at.spark, str(warehouse / "tables" / workload.definition().name), workload.definition()
        )
        apply_newest(table, ingest, warehouse)
        check_plain = stack.enter_context(
            plain_append(at, topic, others / "append", meter, plain_turns)
        )
        ingest.start(once=False)
        stack.callback(ingest.stop)
        stack.callback(ingest_turns.close)
        # A first batch of each, after which they wait.
        send_heartbeat(producer, rows)
        ingest_turns.wait(ingest.check)
        plain_turns.wait(check_plain)
        yield Bench(
            at,
            rows,
            topic,
            warehouse,
            others,
            producer,
            meter,
            ingest,
            table,
            ingest_turns,
            plain_turns,
            check_plain,
        )


@contextmanager
def plain_append(
    at: Stage, topic: TopicFacts, folder: Path, meter: Meter, turns: Turns
) -> Iterator[Callable[[], None]]:
    """A query that appends the records sent from now on, decoded. Yields a function that raises if
    the query has stopped.
    """

    def append(rows: DataFrame, _: int) -> None:
        meter.begin()
        # After the single-object header.
        record = from_avro(F.expr("substring(value, 11)"), SCHEMA).alias("record")
        rows.select("partition", "offset", record).coalesce(1).write.format("delta").mode(
            "append"
        ).save(str(folder / "table"))
        meter.step("appended")
        turns.end()

    ends = {
        topic.topic: {str(k): end for k, end in topics.high_watermarks(at.kafka, topic).items()}
    }
    options = {
        **java_settings.options(at.kafka, Path.read_text),
        "kafka.fetch.max.wait.ms": "10",
        "startingOffsets": json.dumps(ends),
    }
    rows = (
        at.spark.readStream.format("kafka")
        .option("subscribe", topic.topic)
        .options(**options)
        .load()
    )
    writer = rows.writeStream.foreachBatch(append).option(
        "checkpointLocation", str(folder / "checkpoint")
    )
    query = writer.trigger(processingTime="0 seconds").start()

    def check() -> None:
        assert query.isActive, query.exception()

    try:
        yield check
    finally:
        turns.close()
        query.stop()


def delta_rs(table: Path, changes: Path) -> None:
    """The newest change of each row, merged by deltalake."""
    made = pyarrow.parquet.read_table(
        changes, columns=["row_key", "commit_timestamp", "deleted", *COLUMNS]
    ).sort_by("commit_timestamp")
    newest = {key: place for place, key in enumerate(made["row_key"].to_pylist())}
    merge = DeltaTable(table).merge(
        made.take(list(newest.values())),
        "t.row_key = s.row_key",
        source_alias="s",
        target_alias="t",
    )
    merge = merge.when_matched_delete("s.deleted").when_matched_update_all(except_cols=["deleted"])
    merge.when_not_matched_insert_all("NOT s.deleted", except_cols=["deleted"]).execute()


def written(before: Collection[Path], after: Mapping[Path, os.stat_result]) -> dict[str, Written]:
    """The new files, by table or its log. The files of a log are its commits, and checksums count
    as bytes only.
    """
    tables, found = machine.delta_tables(after), defaultdict[str, Written](Written)
    for path, stat in after.items():
        if path not in before:
            suffixes = (".json",) if path.parent.name == "_delta_log" else (".parquet", ".bin")
            found[machine.part_of(path, tables)] += Written(path.suffix in suffixes, stat.st_size)
    return dict(found)


def show(rounds: Sequence[Round]) -> None:
    """Print the medians of some rounds, as two tables."""
    names = ("wall_s", "cpu_s", "jobs", "stages", "tasks")
    print(f"{'':22}{'s':>9}{'core-s':>9}{'jobs':>9}{'stages':>9}{'tasks':>9}")
    for who in rounds[0].spent:
        values = [median(getattr(round_.spent[who], name) for round_ in rounds) for name in names]
        print(f"{who:22}{''.join(f'{number(value):>9}' for value in values)}")
    print(f"{'written':22}{'files':>9}{'KiB':>9}")
    for part in sorted({part for round_ in rounds for part in round_.written}):
        each = [round_.written.get(part, Written()) for round_ in rounds]
        files, kib = median(one.files for one in each), median(one.bytes for one in each) / 1024
        print(f"{part:22}{number(files):>9}{number(kib):>9}", flush=True)


def validated(rows: int, changes: int, rounds: Sequence[Round]) -> list[Figure]:
    """The figures of one size of table and batch, with their bars."""

    def middle(who: str, name: str = "wall_s") -> float:
        return median(getattr(round_.spent[who], name) for round_ in rounds)

    def ratio(one: str, other: str) -> float:
        return median(round_.spent[one].wall_s / round_.spent[other].wall_s for round_ in rounds)

    def total(name: str, *, of_logs: bool) -> float:
        return median(
            sum(
                getattr(each, name)
                for part, each in round_.written.items()
                if part.endswith(" log") == of_logs
            )
            for round_ in rounds
        )

    name = f"rounds_{rows // 1000}k_rows_{changes}_changes"
    is_few = changes <= 100
    return [
        Figure(f"{name}_plain_append_s", middle("plain append")),
        Figure(f"{name}_ingest_s", middle("ingest"), "<0.15" if is_few else "-"),
        Figure(
            f"{name}_ingest_to_plain_append",
            ratio("ingest", "plain append"),
            "-" if is_few else "<2",
        ),
        Figure(f"{name}_merge_s", middle("MERGE")),
        Figure(f"{name}_delta_rs_s", middle("delta-rs")),
        Figure(
            f"{name}_apply_s",
            middle("apply"),
            "<0.15" if is_few else "<2.5" if rows > 1_000_000 and changes >= 12_000 else "-",
        ),
        Figure(
            f"{name}_apply_to_merge",
            ratio("apply", "MERGE"),
            "<1" if rows < 1_000_000 and changes >= 12_000 else "-",
        ),
        Figure(
            f"{name}_core_s",
            middle("ingest", "cpu_s")
            + middle("ingest: planned", "cpu_s")
            + middle("apply", "cpu_s"),
        ),
        Figure(f"{name}_jobs", middle("ingest", "jobs") + middle("apply", "jobs")),
        Figure(f"{name}_stages", middle("ingest", "stages") + middle("apply", "stages")),
        Figure(f"{name}_commits", total("files", of_logs=True)),
        Figure(f"{name}_files", total("files", of_logs=False)),
        Figure(
            f"{name}_kib", (total("bytes", of_logs=True) + total("bytes", of_logs=False)) / 1024
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks rounds")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="20,000 rows, a round of each size after one, no judgement",
    )
    parser.add_argument("--rows", type=int, nargs="+", help=f"of the tables (default: {ROWS})")
    parser.add_argument("--changes", type=int, nargs="+", help=f"in a round (default: {CHANGES})")
    parser.add_argument(
        "--warm", type=int, help=f"rounds before those that count (default: {WARM_UP})"
    )
    parser.add_argument("--rounds", type=int, help=f"rounds that count (default: {ROUNDS})")
    chosen = parser.parse_args()
    warm = chosen.warm if chosen.warm is not None else 1 if chosen.quick else WARM_UP
    rounds = chosen.rounds or (1 if chosen.quick else ROUNDS)
    figures: list[Figure] = []
    print(*machine.facts(), sep="\n", flush=True)
    with stage() as at:
        for rows in chosen.rows or ((20_000,) if chosen.quick else ROWS):
            with bench(at, rows) as here:
                for place, changes in enumerate(chosen.changes or CHANGES):
                    before = warm if place == 0 else -(-warm // 3)
                    for _ in range(before):
                        here.round(changes)
                    found = [here.round(changes) for _ in range(rounds)]
                    print(
                        f"\n{rows} rows, {changes} changes: medians of {rounds} rounds, after"
                        f" {before} that do not count"
                    )
                    show(found)
                    figures += validated(rows, changes, found)
                here.expect_truth()
    return finish(figures, validate_record=not chosen.quick)


if __name__ == "__main__":
    raise SystemExit(main())
