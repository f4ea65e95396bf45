"""Rounds of ingest and apply without anything beside them, to compare two commits with
`benchmarks.before`.

    python -m benchmarks.own_rounds [--rows N] [--changes N ...] [--warm N] [--rounds N]

A round is as in `benchmarks.rounds`. Between ingest and apply, a fresh read of the whole table is
planned, up to the list of its files. Figures are medians. Processor time is that of the JVM and of
Python. `files_read` are the files of the fresh read.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from unittest import mock

from benchmarks import machine, rounds, workload
from benchmarks.report import Figure, finish
from benchmarks.rounds import Bench, Round, Spent, Turns, send_heartbeat, written
from benchmarks.stage import stage
from benchmarks.workload import Shape, Workload
from connector.spark import read_table

STEPS = ("ingest", "plan_read", "apply")


@contextmanager
def nothing_beside(*arguments: object) -> Iterator[Callable[[], None]]:
    """Instead of `rounds.plain_append`."""
    turns = arguments[-1]
    assert isinstance(turns, Turns)
    turns.end_now()
    yield lambda: None


def own_round(here: Bench, changes: int) -> tuple[Round, int]:
    """One round, and the number of files of its fresh read."""
    work = Workload(
        here.rows + here.sent,
        changes,
        here.rows,
        Shape.WHOLE,
        deletes_percent=rounds.DELETES_PERCENT,
    )
    here.at.produce(here.topic, here.at.decoded(work, files=2), work.shape)
    here.sent += changes
    send_heartbeat(here.producer, here.rows + here.sent)
    before, taken = set(machine.files_below(here.warehouse)), Round()
    here.ingest_once(taken)
    here.meter.begin()
    name = workload.definition().name
    found = read_table(here.at.spark, str(here.warehouse), name, max_staleness_s=0).rows
    files = len(found.inputFiles())
    here.meter.step("read")
    taken.spent["plan_read"] = sum(here.meter.steps().values(), Spent())
    here.apply_once(taken)
    taken.written = written(before, machine.files_below(here.warehouse))
    return taken, files


def figures_of(changes: int, found: list[tuple[Round, int]]) -> list[Figure]:
    """The medians of some rounds."""
    figures = []
    for step in STEPS:
        for unit, field in (("s", "wall_s"), ("core_s", "cpu_s"), ("jobs", "jobs")):
            value = median(getattr(one.spent[step], field) for one, _ in found)
            figures.append(Figure(f"own_rounds_{changes}_changes_{step}_{unit}", value))
    logs = (
        sum(part.files for name, part in one.written.items() if name.endswith(" log"))
        for one, _ in found
    )
    files = (
        sum(part.files for name, part in one.written.items() if not name.endswith(" log"))
        for one, _ in found
    )
    return [
        *figures,
        Figure(f"own_rounds_{changes}_changes_commits", median(logs)),
        Figure(f"own_rounds_{changes}_changes_files_written", median(files)),
        Figure(f"own_rounds_{changes}_changes_files_read", median(read for _, read in found)),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.own_rounds")
    parser.add_argument("--rows", type=int, default=200_000, help="(default: %(default)s)")
    parser.add_argument("--changes", type=int, nargs="+", default=[12_000, 100], help="in a round")
    parser.add_argument("--warm", type=int, default=6, help="rounds of each that do not count")
    parser.add_argument("--rounds", type=int, default=6, help="rounds of each that count")
    chosen = parser.parse_args()
    print(*machine.facts(), sep="\n", flush=True)
    figures: list[Figure] = []
    with (
        mock.patch("benchmarks.rounds.plain_append", nothing_beside),
        stage() as at,
        rounds.bench(at, chosen.rows) as here,
    ):
        for changes in chosen.changes:
            for _ in range(chosen.warm):
                own_round(here, changes)
            figures += figures_of(changes, [own_round(here, changes) for _ in range(chosen.rounds)])
    return finish(figures, validate_record=False)


if __name__ == "__main__":
    raise SystemExit(main())
