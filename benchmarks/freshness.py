"""How soon a change is in the changelog, in the table and in a fresh read, under a steady load
(TBL-16).

    python -m benchmarks freshness [--quick]

    python -m benchmarks.freshness [--settings bound default] [--rates N ...] [--seconds S] [--warm
    S] [--reader-seconds S] [--rows N] [--tables N] [--form plain bridge]

`connector run` is a separate process with its default heap, on a table of 200,000 rows. It runs
once with a trigger of 1 s and a bound of 2 s (`bound`), and once with default settings (`default`).
After a warm-up, each rate has two minutes in which only the broker and `benchmarks.load` run too.
Then a reader runs for a minute: in its own Spark on the same cores, it reads the whole table again
and again with `read_table(max_staleness_s=0)` and sums up a column.

Every time is measured from the acknowledgement of a change, for every change. A change is in the
changelog with the first commit that ends after its offset. It is in the table with the first commit
that covers its batch and its commit timestamp. The commit files have these times. A change is in a
fresh read when the first read ends that has its batch. The core figures are those of the two
minutes. The growth of the warehouse in this time is scaled to an hour. At the end the table is
compared with the sent changes. With several tables, `oldest_table` is the one with the highest p95.
`loaded_s` is the time from the start of the process until the table has its first rows. The form of
the changes is one of `benchmarks.forms`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import SparkSession

from benchmarks import forms, load, machine, workload
from benchmarks.report import Figure, finish, number
from connector import jars
from connector.config.settings import KafkaConfig
from connector.kafka import topics
from connector.kafka.local.broker import LocalBroker
from connector.lake.plain_table import open_table
from connector.spark import read_table
from connector.spark.session import start_session
from connector.state.commits import stored_in
from connector.state.table_state import TableState
from connector.tables.values import DataType

ROWS = 200_000
RATES = (500, 2_000, 10_000)
DEFAULT_RATES = (2_000,)
KAFKA_PARTITIONS = 4
LEAD_S = 15.0
"""The time after a change of the rate that does not count."""
LATEST_READ_S = 120.0
"""How long reads continue until one has the last changes. A change that no read has by then counts
as never read.
"""
SETTINGS = {"bound": ('trigger = "1s"\n', 'max_staleness = "2s"\n'), "default": ("", "")}
BARS = {
    ("bound", 2_000): {
        "table_p50_s": "<0.8",
        "table_p95_s": "<1.2",
        "read_p95_s": "<3",
        "jvm_cores": "<1",
    },
    ("bound", 200): {"table_p95_s": "<1.2"},
    ("bound", 8_000): {"table_p95_s": "<2.5"},
    ("default", 2_000): {"table_p95_s": "<5"},
    ("default_20_tables", 2_000): {"oldest_table_p95_s": "<8"},
    ("bound_20_tables", 2_000): {"oldest_table_p50_s": "<2", "oldest_table_p95_s": "<4"},
    ("bound_20_tables_bridge", 2_000): {"oldest_table_p95_s": "<4"},
}
QUANTILES = (50, 95, 99)
ONLY_SHOWN = ("changes", "reads", "broker_cores", "load_cores")


@dataclass(frozen=True, slots=True)
class Plan:
    """The length of each phase."""

    rows: int
    warm_s: float
    seconds: float
    reader_s: float


@dataclass(slots=True)
class Commits:
    """The commits of a Delta table: their times (microseconds) and their metadata. `look` reads the
    new ones.
    """

    folder: Path
    at: list[int] = field(default_factory=list)
    said: list[dict[str, Any]] = field(default_factory=list)

    def look(self) -> None:
        with suppress(FileNotFoundError):
            while True:
                path = self.folder / "_delta_log" / f"{len(self.at):020}.json"
                made_at = path.stat().st_mtime_ns // 1000
                infos = [
                    json.loads(line).get("commitInfo", {}) for line in path.read_text().splitlines()
                ]
                self.said.append(dict(stored_in(next(filter(None, infos), {})) or {}))
                self.at.append(made_at)


@dataclass(slots=True)
class Reads:
    """Fresh reads: the last batch of each one, the time until its plan was ready and until it was
    read, and its end.
    """

    to_batch: list[int] = field(default_factory=list)
    ended_at: list[int] = field(default_factory=list)
    planned_s: list[float] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)

    def read(self, spark: SparkSession, warehouse: Path) -> None:
        began = time.monotonic()
        reading = read_table(spark, str(warehouse), workload.definition().name, max_staleness_s=0)
        self.planned_s.append(time.monotonic() - began)
        reading.rows.selectExpr("count(*)", "sum(visits % 1000)").collect()
        self.took_s.append(time.monotonic() - began)
        self.to_batch.append(reading.to_batch)
        self.ended_at.append(now_us())


@dataclass(frozen=True, slots=True)
class Window:
    """The time in which changes count.

    Without a reader, it has the cores that each process used, and the bytes added to each part of
    the warehouse. With a reader, it has the reads.
    """

    began: int
    ended: int
    cores: dict[str, float] = field(default_factory=dict)
    grown: Counter[str] = field(default_factory=Counter)
    reads: slice = field(default_factory=lambda: slice(0))


@dataclass(slots=True)
class Scene:
    """The running pipeline: its processes, its warehouse, and the recorded commits and reads."""

    spark: SparkSession | None
    warehouse: Path
    pids: dict[str, int]
    pipeline: subprocess.Popen[bytes]
    load: subprocess.Popen[str]
    changelog: Commits
    tables: list[Commits]
    ends: Callable[[], Mapping[int, int]]
    loaded_s: float = 0.0
    """From the start of the pipeline until the table had its first rows."""
    reads: Reads = field(default_factory=Reads)

    def set_rate(self, rate: float) -> None:
        assert self.load.stdin is not None
        self.load.stdin.write(f"{rate}\n")
        self.load.stdin.flush()

    def pass_time(self, seconds: float, *, reads: bool = False) -> None:
        """Record commits, or read, for this long."""
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            self.look()
            if reads:
                assert self.spark is not None, "who reads needs Spark"
                self.reads.read(self.spark, self.warehouse)
            else:
                time.sleep(min(1.0, left_s))

    def look(self) -> None:
        log = self.warehouse.parent / "pipeline.log"
        assert self.pipeline.poll() is None, f"the pipeline has ended: {log.read_text()[-2000:]}"
        self.changelog.look()
        for table in self.tables:
            table.look()

    def window(self, seconds: float) -> Window:
        """A measurement of this many seconds, with the use of processors and disk."""
        began, cpu, disk = now_us(), self._cpu(), self._disk()
        self.pass_time(seconds)
        ended, cpu_then, disk_then = now_us(), self._cpu(), self._disk()
        cores = {name: (cpu_then[name] - cpu[name]) / (ended - began) * 1e6 for name in cpu}
        disk_then.subtract(disk)
        return Window(began, ended, cores, disk_then)

    def reading(self, seconds: float) -> Window:
        """A measurement of this many seconds with a reader."""
        self.pass_time(min(LEAD_S, seconds), reads=True)
        began, first = now_us(), len(self.reads.ended_at)
        self.pass_time(seconds, reads=True)
        ended, ends, late = now_us(), self.ends(), time.monotonic() + LATEST_READ_S
        # The last changes must be read too.
        while not self._has_read(ends) and time.monotonic() < late:
            self.pass_time(0.001, reads=True)
        return Window(began, ended, reads=slice(first, len(self.reads.ended_at)))

    def has_all(self, sent: np.ndarray) -> bool:
        """Whether the table has everything that was sent."""
        self.look()
        return bool(
            sent.size == 0 or max(in_tables(sent, self.changelog, self.tables)) < float("inf")
        )

    def _has_read(self, ends: Mapping[int, int]) -> bool:
        """Whether the last read has all records before these offsets."""
        read = [
            said for said in self.changelog.said if said["ingest_batch"] <= self.reads.to_batch[-1]
        ]
        return all(int(read[-1]["end_offsets"].get(str(k), 0)) >= end for k, end in ends.items())

    def _cpu(self) -> dict[str, float]:
        return {name: machine.cpu_s(pid) for name, pid in self.pids.items()}

    def _disk(self) -> Counter[str]:
        files = machine.files_below(self.warehouse)
        tables, found = machine.delta_tables(files), Counter[str]()
        for path, stat in files.items():
            found[machine.part_of(path, tables)] += stat.st_blocks * 512
        return found


def now_us() -> int:
    return time.time_ns() // 1000


def configuration(
    kafka: KafkaConfig, topic: str, of_stream: str, of_table: str, tables: int = 1
) -> str:
    text = (
        f'warehouse = "warehouse"\n[kafka]\nbootstrap_servers = "{kafka.bootstrap_servers}"\n'
        f'[streams.{workload.STREAM}]\ntopic = "{topic}"\n{of_stream}'
    )
    columns = workload.definition().columns
    for at, name in enumerate(table_names(tables)):
        text += (
            f'[tables.{name}]\nstream = "{workload.STREAM}"\n'
            f'source = "{forms.source(at, tables)}"\n{of_table}'
            f'[[tables.{name}.key.columns]]\nname = "row_key"\ntype = "{DataType.STRING}"\n'
        ) + "".join(
            f'[[tables.{name}.columns]]\nname = "{column.name}"\nfamily = "{column.family}"\n'
            f'type = "{column.type}"\n'
            for column in columns
        )
    return text


def table_names(tables: int) -> list[str]:
    """The tables of a run: the one of the workload, or some with a number."""
    name = workload.definition().name
    return [name] if tables == 1 else [f"{name}_{at}" for at in range(tables)]


@contextmanager
def started(
    folder: Path,
    broker: LocalBroker,
    spark: SparkSession | None,
    settings: str,
    rows: int,
    lines: tuple[str, str] | None = None,
    tables: int = 1,
    form: str = forms.PLAIN,
) -> Iterator[Scene]:
    """A topic, a load and a pipeline that has applied the rows. All of them end with the block.

    `lines` are settings of the stream and of the table, if they are not one of `SETTINGS`.
    """
    kafka, topic = KafkaConfig(broker.bootstrap_servers), f"bench-{settings}"
    facts = topics.create_topic(kafka, topic, kafka_partitions=KAFKA_PARTITIONS)
    folder.mkdir()
    (folder / "connector.toml").write_text(
        configuration(kafka, topic, *(lines or SETTINGS[settings]), tables=tables)
    )
    with ExitStack() as stack:
        generator = stack.enter_context(load.running(kafka, topic, rows, folder, tables, form))
        began = time.monotonic()
        trace = ("--trace", str(folder / "trace"))
        pipeline = stack.enter_context(running_pipeline(folder, *trace))
        warehouse = folder / "warehouse"
        changelog = Commits(warehouse / "streams" / workload.STREAM / "changelog")
        of_tables = [Commits(warehouse / "tables" / name / "data") for name in table_names(tables)]
        ends = partial(topics.high_watermarks, kafka, facts)
        scene = Scene(spark, warehouse, {}, pipeline, generator, changelog, of_tables, ends)
        while sum(said.get("merged", 0) for table in of_tables for said in table.said) < rows:
            scene.pass_time(0.2)
        scene.loaded_s = time.monotonic() - began
        own, jvm, *_ = machine.descendants(pipeline.pid)
        scene.pids = {"jvm": jvm, "python": own, "broker": broker.pid, "load": generator.pid}
        yield scene


@contextmanager
def running_pipeline(folder: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """`connector run` with the configuration of a folder. It ends with the block."""
    command = [str(Path(sys.executable).with_name("connector"))]
    command += ["--config", str(folder / "connector.toml"), "run", *options]
    with (folder / "pipeline.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            yield process
        finally:
            end(process)


def end(process: subprocess.Popen[Any]) -> None:
    """Send SIGKILL to a process, and to its group if it has one, unless it has ended."""
    if process.poll() is None:
        if os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()


def in_changelog(sent: np.ndarray, changelog: Commits) -> np.ndarray:
    """For each change, the index of the first commit of the changelog that has it. If none has it,
    the number of commits.
    """
    found = np.zeros(len(sent), np.int64)
    for kafka_partition in np.unique(sent[:, 0]):
        ends = [said.get("end_offsets", {}).get(str(kafka_partition), 0) for said in changelog.said]
        those = sent[:, 0] == kafka_partition
        found[those] = np.searchsorted(ends, sent[those, 1], side="right")
    return found


def batches_of(places: np.ndarray, changelog: Commits) -> np.ndarray:
    """The ingest batches of changes, from the indexes of their commits."""
    return np.array([*(said.get("ingest_batch", 0) for said in changelog.said), 2**62])[places]


def in_table(sent: np.ndarray, changelog: Commits, table: Commits) -> np.ndarray:
    """When the table had each change (microseconds)."""
    books = [TableState.from_json(said) for said in table.said]
    by_batch = np.searchsorted(
        [book.to_batch for book in books], batches_of(in_changelog(sent, changelog), changelog)
    )
    by_time = np.searchsorted(
        [book.target_watermark or 0 for book in books], sent[:, 2], side="right"
    )
    return np.array([*table.at, float("inf")])[np.maximum(by_batch, by_time)]


def in_tables(sent: np.ndarray, changelog: Commits, tables: list[Commits]) -> np.ndarray:
    """When its table had each change (microseconds)."""
    had_at = np.zeros(len(sent))
    for at, table in enumerate(tables):
        those = sent[:, 4] % len(tables) == at
        had_at[those] = in_table(sent[those], changelog, table)
    return had_at


def seconds(sent: np.ndarray, seen_at: np.ndarray) -> dict[int, float]:
    """The quantiles of the seconds from the acknowledgement to the event."""
    return {
        q: float(np.percentile((seen_at - sent[:, 3]) / 1e6, q, method="higher")) for q in QUANTILES
    }


def measured(
    scene: Scene, sent: np.ndarray, quiet: Window, read: Window | None
) -> dict[str, float]:
    """All values of one rate."""
    ours = sent[(sent[:, 3] >= quiet.began) & (sent[:, 3] < quiet.ended)]
    logged_at = np.array([*scene.changelog.at, float("inf")])[in_changelog(ours, scene.changelog)]
    seen = {
        "changelog": seconds(ours, logged_at),
        "table": seconds(ours, had_at := in_tables(ours, scene.changelog, scene.tables)),
    }
    if (tables := len(scene.tables)) > 1:
        of_table = ours[:, 4] % tables
        seen["oldest_table"] = max(
            (seconds(ours[of_table == k], had_at[of_table == k]) for k in range(tables)),
            key=itemgetter(95),
        )
    values: dict[str, float] = {"changes": len(ours)}
    if read is not None:
        ours = sent[(sent[:, 3] >= read.began) & (sent[:, 3] < read.ended)]
        batches = batches_of(in_changelog(ours, scene.changelog), scene.changelog)
        read_at = np.array([*scene.reads.ended_at, float("inf")])[
            np.searchsorted(scene.reads.to_batch, batches)
        ]
        seen["read"] = seconds(ours, read_at)
        values["reads"] = len(scene.reads.took_s[read.reads])
        values["read_plan_s"] = float(np.median(scene.reads.planned_s[read.reads]))
        values["read_takes_s"] = float(np.median(scene.reads.took_s[read.reads]))
    values |= {
        f"{what}_p{q}_s": value
        for what, by_quantile in seen.items()
        for q, value in by_quantile.items()
    }
    for name, number_of, commits in (
        ("batches", "ingest_batch", scene.changelog),
        ("applies", "apply_number", scene.tables[0]),
    ):
        made = zip(commits.at, commits.said, strict=True)
        values[name] = len(
            {said[number_of] for at, said in made if quiet.began <= at < quiet.ended}
        )
    values |= {f"{name}_cores": cores for name, cores in quiet.cores.items()}
    hours = (quiet.ended - quiet.began) / 3.6e9
    values |= {
        f"{part.replace(' ', '_')}_mib_per_hour": grown / hours / 2**20
        for part, grown in sorted(quiet.grown.items())
    }
    return values | {"mib_per_hour": sum(quiet.grown.values()) / hours / 2**20}


def measure(
    scene: Scene, plan: Plan, rates: list[int], folder: Path
) -> dict[int, dict[str, float]]:
    """Measure every rate. Then everything is applied and compared with the sent changes."""
    scene.set_rate(rates[0])
    scene.pass_time(plan.warm_s, reads=plan.reader_s > 0)
    windows: dict[int, tuple[Window, Window | None]] = {}
    for rate in rates:
        scene.set_rate(rate)
        scene.pass_time(LEAD_S)
        windows[rate] = (
            scene.window(plan.seconds),
            scene.reading(plan.reader_s) if plan.reader_s else None,
        )
    sent = finish_load(scene, folder)
    for rate, (quiet, _) in windows.items():
        show_steps(rate, folder / "trace", quiet)
    return {rate: measured(scene, sent, *both) for rate, both in windows.items()}


def finish_load(scene: Scene, folder: Path) -> np.ndarray:
    """End the load, wait until everything is applied, stop the pipeline, and compare. Returns the
    sent changes, as `benchmarks.load` wrote them.
    """
    assert scene.load.stdin is not None
    scene.load.stdin.close()
    assert scene.load.wait(120) == 0, "the load failed"
    sent = load.sent_changes(folder)
    ended = time.monotonic()
    while not scene.has_all(sent):
        assert time.monotonic() - ended < 600, "the pipeline does not catch up"
        time.sleep(1)
    caught_up_s = time.monotonic() - ended
    scene.pipeline.terminate()
    assert scene.pipeline.wait(120) == 0, "the pipeline failed"
    expect_truth(scene.warehouse, np.fromfile(folder / "rows", np.int64), len(scene.tables))
    print(
        f"{len(sent)} changes, all in the table {caught_up_s:.0f} s after the last one; it holds"
        " what was sent",
        flush=True,
    )
    return sent


def visits_of(rows: np.ndarray) -> dict[str, int]:
    """The value of each row that there must be, from the `rows` that `benchmarks.load` wrote."""
    return {
        forms.row_key(row): int(visits) for row, visits in enumerate(rows) if visits != load.GONE
    }


def expect_truth(warehouse: Path, rows: np.ndarray, tables: int) -> None:
    made = visits_of(rows)
    for at, name in enumerate(names := table_names(tables)):
        expected = {
            key: made[key]
            for row in range(at, len(rows), len(names))
            if (key := forms.row_key(row)) in made
        }
        found = list(
            open_table(str(warehouse / "tables" / name / "data")).select(("row_key", "visits"))
        )
        assert len(found) == len(expected), f"{name} has {len(found)} rows, and not {len(expected)}"
        assert dict(found) == expected, f"the rows of {name} are not what was sent"


def show_steps(rate: int, trace: Path, window: Window) -> None:
    """Print how long each step of a batch and of an apply took in a window."""
    took: dict[tuple[str, str], list[float]] = {}
    for line in trace.read_text().splitlines():
        step = json.loads(line)
        at = datetime.fromisoformat(step["time"]).timestamp() * 1e6
        if window.began <= at < window.ended and step["seconds"] is not None:
            of = "table" if "table" in step else "stream"
            took.setdefault((of, step["text"]), []).append(step["seconds"])
    print(f"\nsteps at {rate}/s{'':28}{'times':>8}{'p50 s':>8}{'p95 s':>8}{'all s':>8}")
    for (of, step), all_s in took.items():
        p50, p95 = np.percentile(all_s, [50, 95])
        name = f"{of}: {step}"
        print(f"{name:42}{len(all_s):8}{p50:8.2f}{p95:8.2f}{sum(all_s):8.1f}", flush=True)


def show(settings: str, values: dict[int, dict[str, float]]) -> None:
    """Print a table with a line for each value and a column for each rate."""
    print(f"\n{settings}{'':{40 - len(settings)}}{''.join(f'{rate:>10}/s' for rate in values)}")
    for name in dict.fromkeys(name for each in values.values() for name in each):
        row = [f"{number(each[name]) if name in each else '-':>10}" for each in values.values()]
        bars = [
            f"{rate}/s: {bar}"
            for rate in values
            if (bar := BARS.get((settings, rate), {}).get(name))
        ]
        print(f"{name:40}{'  '.join(row)}  {'; '.join(bars)}".rstrip(), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks freshness")
    parser.add_argument(
        "--quick", action="store_true", help="one rate, 20,000 rows, 20 s, no judgement"
    )
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, help="which (default: both)")
    parser.add_argument(
        "--rates",
        type=int,
        nargs="+",
        help=f"changes a second (default: {RATES}; {DEFAULT_RATES} with default settings)",
    )
    parser.add_argument(
        "--tables", type=int, default=1, help="that share the rows and the rate (default: 1)"
    )
    parser.add_argument(
        "--form", choices=forms.FORMS, default=forms.PLAIN, help="of the changes (default: plain)"
    )
    parser.add_argument("--rows", type=int, help=f"of the table (default: {ROWS})")
    parser.add_argument(
        "--seconds", type=float, help="of each rate without a reader (default: 120)"
    )
    parser.add_argument(
        "--reader-seconds", type=float, help="of each rate with a reader (default: 60; 0: without)"
    )
    parser.add_argument("--warm", type=float, help="seconds before the first rate (default: 90)")
    chosen = parser.parse_args()
    given = Plan(chosen.rows, chosen.warm, chosen.seconds, chosen.reader_seconds)
    usual = Plan(20_000, 10, 20, 10) if chosen.quick else Plan(ROWS, 90, 120, 60)
    plan = Plan(
        *(
            getattr(usual if getattr(given, name) is None else given, name)
            for name in Plan.__slots__
        )
    )
    store, figures = jars.JarStore.from_environment(os.environ), list[Figure]()
    print(*machine.facts(), sep="\n", flush=True)
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="lowmark-bench-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        broker = stack.enter_context(LocalBroker.start(folder / "broker", store))
        spark = start_session(
            jars.fetch("spark", store),
            scratch=folder / "scratch",
            settings={"spark.driver.memory": "2g"},
        )
        stack.callback(spark.stop)
        for settings in chosen.settings or (["bound"] if chosen.quick else SETTINGS):
            rates = chosen.rates or (
                [500] if chosen.quick else list(RATES if settings == "bound" else DEFAULT_RATES)
            )
            with started(
                *(folder / settings, broker, spark, settings, plan.rows),
                tables=chosen.tables,
                form=chosen.form,
            ) as scene:
                values = measure(scene, plan, rates, folder / settings)
                settings += f"_{chosen.tables}_tables" * (chosen.tables > 1)
                settings += f"_{chosen.form}" * (chosen.form != forms.PLAIN)
                loaded = Figure(f"freshness_{settings}_loaded_s", scene.loaded_s, "<40")
            show(settings, values)
            figures.append(
                loaded
                if (plan.rows, chosen.tables, chosen.form) == (ROWS, 1, forms.PLAIN)
                else replace(loaded, bar="-")
            )
            for rate, each in values.items():
                bars = BARS.get((settings, rate), {})
                figures += [
                    Figure(f"freshness_{settings}_{rate}_{name}", value, bars.get(name, "-"))
                    for name, value in each.items()
                    if name not in ONLY_SHOWN
                ]
    return finish(figures, validate_record=not chosen.quick)


if __name__ == "__main__":
    raise SystemExit(main())
