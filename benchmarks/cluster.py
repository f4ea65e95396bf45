"""Ingest and dense apply on a Spark cluster with one and with two executors of one core, and with
`local[2]` (SCL-10).

    python -m benchmarks cluster [--quick]

The master, the workers, the broker and the driver are processes of this machine. Each case has
processes of its own and does the same work: it ingests whole-row changes of three cells into a
changelog that has the rows before, and merges them in one apply into a table of these rows. The
first round compiles the code and is not counted. A figure is the best of the other rounds. The
driver and the broker use the same cores, so the rates of two executors are those of a machine with
more cores at best.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from benchmarks import machine
from benchmarks.apply import QUICK, Sizes, run_ours
from benchmarks.report import Figure, finish, spread
from benchmarks.stage import stage
from benchmarks.workload import Shape
from tests.spark.cluster import HOST, Cluster

FULL = Sizes(rows=500_000, changes=1_000_000, batch=0)
CASES = {"1_executor": 1, "2_executors": 2, "local": 0}
WORK = ("ingest", "apply")


@dataclass(frozen=True, slots=True)
class Rates:
    """Changes a second, of each round."""

    ingest: list[float]
    apply: list[float]


def measure(master: str, sizes: Sizes, rounds: int) -> Rates:
    """The work of one case, in this process."""
    settings = {"spark.master": master, "spark.executor.memory": "1g", "spark.driver.host": HOST}
    found = Rates([], [])
    with stage(settings) as at:
        topic, work = at.new_topic(), sizes.work(Shape.WHOLE)
        before = at.folder / "before"
        at.produce(topic, at.decoded(sizes.base), Shape.WHOLE)
        at.ingest(topic, before)
        run_ours(at, before)
        at.produce(topic, at.decoded(work), Shape.WHOLE)
        for number in range(1 + rounds):
            copy = at.folder / f"round-{number}"
            shutil.copytree(before, copy)
            # The checkpoint names the folder that it was made for.
            shutil.rmtree(copy / "streams" / "bench" / "checkpoint", ignore_errors=True)
            began = perf_counter()
            at.ingest(topic, copy)
            ingested = perf_counter()
            run_ours(at, copy)
            applied = perf_counter()
            if number:
                found.ingest.append(sizes.changes / (ingested - began))
                found.apply.append(sizes.changes / (applied - ingested))
            shutil.rmtree(copy)
    return found


def in_process(workers: int, sizes: Sizes, rounds: int) -> Rates:
    """The rates of one case, measured in a process of its own. Without workers it is local."""
    with ExitStack() as stack:
        master = "local[2]"
        if workers:
            folder = Path(tempfile.mkdtemp(prefix="lowmark-bench-cluster-"))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            running = Cluster.running(folder, workers=workers, options="")
            master = stack.enter_context(running).url
        words = [master, *map(str, (sizes.rows, sizes.changes, rounds))]
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.cluster", "--case", *words],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return Rates(**json.loads(done.stdout.splitlines()[-1]))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks cluster")
    parser.add_argument("--quick", action="store_true", help="a fifth of the work, no judgement")
    parser.add_argument("--case", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        master, rows, changes, rounds = options.case
        rates = measure(master, Sizes(int(rows), int(changes), 0), int(rounds))
        print(json.dumps({"ingest": rates.ingest, "apply": rates.apply}))
        return 0
    sizes, rounds = (QUICK, 1) if options.quick else (FULL, 3)
    cases = {name: in_process(workers, sizes, rounds) for name, workers in CASES.items()}
    print(*machine.facts(), sep="\n")
    print(f"{sizes.changes} changes on {sizes.rows} rows")
    for work in WORK:
        for name, found in cases.items():
            title = f"{work}, {name.replace('_', ' ')}"
            print(spread(title, getattr(found, work), "changes/s"))
    return finish(figures_of(cases), validate_record=not options.quick)


def figures_of(cases: Mapping[str, Rates]) -> list[Figure]:
    """For ingest and for apply: the best rate of each case, what the second executor adds, and the
    rate of the cluster with two executors as a part of that of `local[2]`.
    """
    found = list[Figure]()
    for work in WORK:
        best = {name: max(getattr(rates, work)) for name, rates in cases.items()}
        found += [
            *(Figure(f"{work}_{name}_changes_per_s", rate) for name, rate in best.items()),
            Figure(f"{work}_gain_of_second_executor", best["2_executors"] / best["1_executor"]),
            Figure(f"{work}_cluster_to_local", best["2_executors"] / best["local"]),
        ]
    return found


if __name__ == "__main__":
    sys.exit(main())
