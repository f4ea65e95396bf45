"""What grows with the number of batches and of files (SCL-11).

    python -m benchmarks scale [--quick]

    python -m benchmarks.scale [--batches N] [--files N] [--rounds N]

`benchmarks.synthetic_logs` writes the Delta logs of two warehouses: a long one, and the yardstick,
which has a hundredth of the batches and files. In both, the time is measured of:

- `connector status`, as a process.
- Finding the newest batch, without a JVM as `connector status` does it, and with Spark as a process
  does it when it starts (`first`), and then after each further batch (`next`).
- Planning an apply: the newest commits of changelog and table, the size of the table, the changes
  of the newest batch, and Spark's plan for reading the rows of the touched buckets. Nothing is
  executed, because there are no files. `first` is that of a new process. `next` is that of the
  apply after another batch.

The best round counts, because other load can only add time. A ratio is the time in the long
warehouse divided by the time in the yardstick. The times of a new process, `first`, have one round
in each warehouse, with a session that has planned once in a third warehouse.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from benchmarks import machine
from benchmarks.report import Figure, finish, spread
from benchmarks.synthetic_logs import STREAM, TABLE, SyntheticChangelog, SyntheticTable, copied
from connector import jars
from connector import warehouse as places
from connector.lake.state_reader import logged_progress_of
from connector.spark.session import start_session
from connector.spark.storage.changelog import Changelog
from connector.spark.storage.table import Table
from connector.tables.column_names import BUCKET

SHORT: Final = 100
"""The yardstick has so many times fewer batches and files."""
BARS: Final = {"status": "<3"}
SETTINGS: Final = """
warehouse = "warehouse"
[kafka]
bootstrap_servers = "127.0.0.1:1"
[streams.s]
[tables.accounts]
stream = "s"
source = "t"
"""


@dataclass(slots=True)
class World:
    """A warehouse with synthetic logs, and the seconds that each step took in it."""

    folder: Path
    batches: int
    files: int
    changelog: SyntheticChangelog = field(init=False)
    table: SyntheticTable = field(init=False)
    took: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        warehouse = copied(self.folder / "warehouse")
        (self.folder / "connector.toml").write_text(SETTINGS)
        began = time.perf_counter()
        self.changelog = SyntheticChangelog(warehouse, self.batches)
        self.table = SyntheticTable(warehouse, self.files, to_batch=self.batches - 1)
        written = time.perf_counter() - began
        print(f"{self.batches} batches and {self.files} files: written in {written:.1f} s")

    @property
    def warehouse(self) -> str:
        return str(self.folder / "warehouse")

    def timed(self, step: str, work: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        found = work()
        self.took.setdefault(step, []).append(time.perf_counter() - began)
        return found

    def best(self, step: str) -> float:
        return min(self.took[step])

    def go_on(self) -> None:
        """Log another batch, and the apply of the one before."""
        self.table.add_apply(self.batches)
        self.batches += 1
        self.changelog.add_batch(self.batches, time.time_ns() // 1_000_000)


def without_jvm(world: World) -> None:
    connector = str(Path(sys.executable).with_name("connector"))
    words = [connector, "--config", str(world.folder / "connector.toml"), "status", "--json"]
    found = world.timed("status", lambda: subprocess.run(words, check=True, capture_output=True))
    assert json.loads(found.stdout)["streams"][STREAM]["ingest_batch"] == world.batches
    progress = world.timed(
        "newest_batch",
        lambda: logged_progress_of(world.warehouse, STREAM, with_frontier=True).progress,
    )
    assert progress.ingest_batch == world.batches


def first_with_spark(world: World, spark: SparkSession) -> tuple[Changelog, Table]:
    """As in a process that starts."""
    path = places.changelog(world.warehouse, STREAM)

    def opened() -> Changelog:
        changelog = Changelog(spark, path, STREAM)
        newest = changelog.newest()
        assert newest is not None
        assert newest.ingest_batch == world.batches
        return changelog

    changelog: Changelog = world.timed("first_newest_batch_with_spark", opened)

    def planned() -> Table:
        table = Table.existing(spark, places.table_folder(world.warehouse, TABLE))
        plan(world, changelog, table)
        return table

    return changelog, world.timed("first_plan", planned)


def next_with_spark(world: World, changelog: Changelog, table: Table) -> None:
    """As in a process that goes on."""
    world.go_on()
    newest = world.timed("next_newest_batch_with_spark", changelog.newest)
    assert newest.ingest_batch == world.batches
    world.timed("next_plan", lambda: plan(world, changelog, table))


def plan(world: World, changelog: Changelog, table: Table) -> None:
    """What an apply asks before it reads its first row."""
    version, state = table.newest()
    assert table.size_in_bytes() > 0
    recent = changelog.recent_changes("t", after=state.complete_to_batch, to=world.batches)
    assert recent is not None, "the files of the newest batch are named by its commit"
    files = table.files(version)
    rows = files.rows() if files else table.rows(version)
    touched = rows.where(F.col(BUCKET).isin(0, 1)).select(BUCKET, *table.layout.key_names)
    for frame in (recent.rows, touched):
        executed: Any = frame._jdf
        executed.queryExecution().executedPlan()


def figures(long: World, short: World) -> list[Figure]:
    """The times in the long warehouse, and their ratios to those in the short one."""
    found = []
    for step in long.took:
        found.append(Figure(f"scale_{step}_s", long.best(step)))
        ratio = long.best(step) / short.best(step)
        found.append(Figure(f"scale_{step}_to_short", ratio, BARS.get(step, "-")))
    return found


def measure(long: World, short: World, rounds: int, at: Path) -> None:
    for _ in range(rounds):
        for world in (short, long):
            without_jvm(world)
    store = jars.JarStore.from_environment(os.environ)
    spark = start_session(jars.fetch("spark", store), scratch=at / "scratch")
    try:
        (at / "warm").mkdir()
        first_with_spark(World(at / "warm", 10, 10), spark)
        opened = [(world, first_with_spark(world, spark)) for world in (short, long)]
        for _ in range(rounds):
            for world, (changelog, table) in opened:
                next_with_spark(world, changelog, table)
    finally:
        spark.stop()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale")
    parser.add_argument(
        "--quick", action="store_true", help="few batches and files, one round, no judgement"
    )
    parser.add_argument("--batches", type=int, default=100_000, help="default: %(default)s")
    parser.add_argument("--files", type=int, default=20_000, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.batches, chosen.files, chosen.rounds = 2_000, 2_000, 1
    with ExitStack() as stack:
        at = Path(tempfile.mkdtemp(prefix="lowmark-bench-"))
        stack.callback(shutil.rmtree, at, ignore_errors=True)
        for name in ("short", "long"):
            (at / name).mkdir()
        long = World(at / "long", chosen.batches, chosen.files)
        short = World(
            at / "short", max(10, chosen.batches // SHORT), max(10, chosen.files // SHORT)
        )
        print(*machine.facts(), sep="\n")
        measure(long, short, chosen.rounds, at)
        for world in (short, long):
            for step, took in world.took.items():
                print(spread(f"{step}, {world.folder.name}", took, "s"))
        return finish(figures(long, short), validate_record=not chosen.quick)


if __name__ == "__main__":
    raise SystemExit(main())
