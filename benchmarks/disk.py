"""The disk space of a pipeline under a steady load, while old versions are made and removed
(TBL-23).

    python -m benchmarks disk [--quick]

    python -m benchmarks.disk [--minutes M] [--rate N] [--rows N] [--file-retention D]
    [--snapshot-retention D] [--trigger D] [--bound D]

`connector run` is a separate process with its default heap. `benchmarks.load` changes random rows.
Every half minute, the sizes are recorded: the table's folder with its tombstone tables and logs,
the changelog, its `_delta_log`, the job history and the cuts. The allowance of a table's folder is
twice the size of its live files, plus three times the bytes of the rows that were changed within
`file_retention`.

The ratio of a table's folder to its allowance is the greatest one after the first retention. The
growth of the changelog's log is that of the second half of the run, scaled to a day. The longest
time between two commits of the changelog shows whether maintenance stops ingest. At the end the
table is compared with the sent changes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from deltalake import DeltaTable

from benchmarks import machine, workload
from benchmarks.freshness import Commits, Scene, finish_load, started
from benchmarks.report import Figure, finish
from connector import jars
from connector.config.settings_reader import parse_duration_ms
from connector.kafka.local.broker import LocalBroker

EVERY_S = 30.0
MIB = 2**20
ALLOWED_LIVE, ALLOWED_CHANGED = 2, 3
LOG_BAR = "<200"
"""MiB a day of the changelog's log, with a trigger of 5 s."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The sizes in bytes at one time (seconds from the start). `files` counts those of the log, of
    jobs and of cuts.
    """

    at_s: float
    table: int
    live: int
    changed: int
    changelog: int
    log: int
    log_files: int
    history: int
    history_files: int

    @property
    def allowed(self) -> int:
        return ALLOWED_LIVE * self.live + ALLOWED_CHANGED * self.changed

    def __str__(self) -> str:
        sizes = (self.table, self.live, self.allowed, self.changelog, self.log)
        mib = "".join(f"{size / MIB:>10.1f}" for size in sizes)
        history = f"{self.history / MIB:>9.2f}{self.history_files:>8}"
        return f"{self.at_s:>7.0f}{mib}{self.log_files:>8}{history}"


HEAD = (
    f"{'s':>7}{'table':>10}{'live':>10}{'allowed':>10}{'changelog':>10}{'its log':>10}"
    f"{'files':>8}{'history':>9}{'files':>8}"
)


def live_bytes(table: Path) -> int:
    sizes = DeltaTable(str(table)).get_add_actions(flatten=True).column("size_bytes")
    return sum(sizes.to_pylist())


def merged_since(commits: Commits, since_us: int) -> int:
    """How many changes the table has merged in commits made since that time."""
    counts = [
        (at, int(said.get("merged", 0))) for at, said in zip(commits.at, commits.said, strict=True)
    ]
    before = max((merged for at, merged in counts if at < since_us), default=0)
    return max((merged for _, merged in counts), default=0) - before


def sample(scene: Scene, began: float, rows: int, retention_s: float) -> Sample:
    scene.look()
    name, found = workload.definition().name, dict[str, list[int]]()
    for path, stat in machine.files_below(scene.warehouse).items():
        part, _, below = str(path.relative_to(scene.warehouse)).partition("/")
        if part == "streams" and "/changelog/" in f"/{below}":
            where = "log" if "/_delta_log/" in below else "changelog"
        else:
            where = {"tables": "table", "_connector": "history"}.get(part, "other")
        found.setdefault(where, []).append(stat.st_size)
    live = live_bytes(scene.warehouse / "tables" / name / "data")
    changed = merged_since(scene.tables[0], time.time_ns() // 1000 - int(retention_s * 1e6))
    log, history = found.get("log", []), found.get("history", [])
    return Sample(
        at_s=time.monotonic() - began,
        table=sum(found.get("table", [])),
        live=live,
        changed=int(changed * live / rows),
        changelog=sum(found.get("changelog", [])),
        log=sum(log),
        log_files=len(log),
        history=sum(history),
        history_files=len(history),
    )


def watch(scene: Scene, seconds: float, rows: int, retention_s: float) -> list[Sample]:
    began, samples = time.monotonic(), list[Sample]()
    print(f"\nMiB at a time\n{HEAD}", flush=True)
    while (left_s := began + seconds - time.monotonic()) > 0:
        scene.pass_time(min(EVERY_S, left_s))
        samples.append(sample(scene, began, rows, retention_s))
        print(samples[-1], flush=True)
    return samples


def figures_of(
    samples: list[Sample], gaps: list[float], retention_s: float, trigger_s: float
) -> list[Figure]:
    late = [each for each in samples if each.at_s > retention_s] or samples[-1:]
    half, last = samples[len(samples) // 2], samples[-1]
    days = (last.at_s - half.at_s) / 86_400
    growth = (last.log - half.log) / MIB / days if days else 0.0
    return [
        Figure(
            "disk_table_folder_to_allowed", max(each.table / each.allowed for each in late), "<1"
        ),
        Figure("disk_table_folder_to_live", max(each.table / each.live for each in late), "-"),
        Figure("disk_changelog_log_mib_per_day", growth, LOG_BAR if trigger_s >= 5 else "-"),
        Figure("disk_history_mib", last.history / MIB, "-"),
        Figure("disk_history_files", max(each.history_files for each in samples), "-"),
        Figure("disk_longest_time_between_commits_s", max(gaps, default=0.0), "-"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks disk")
    parser.add_argument(
        "--quick", action="store_true", help="20,000 rows, two minutes, no judgement"
    )
    parser.add_argument("--minutes", type=float, help="of the load (default: 20)")
    parser.add_argument("--rate", type=float, help="changes a second (default: 1000)")
    parser.add_argument("--rows", type=int, help="of the table (default: 200000)")
    parser.add_argument("--file-retention", default="5m", help="default: 5m")
    parser.add_argument("--snapshot-retention", default="5m", help="default: 5m")
    parser.add_argument("--trigger", default="5s", help="default: 5s")
    parser.add_argument("--bound", default="10s", help="max_staleness of the table (default: 10s)")
    chosen = parser.parse_args()
    minutes = chosen.minutes or (2 if chosen.quick else 20)
    rate, rows = (
        chosen.rate or (500 if chosen.quick else 1_000),
        chosen.rows or (20_000 if chosen.quick else 200_000),
    )
    of_stream = (
        f'trigger = "{chosen.trigger}"\nfile_retention ='
        f' "{chosen.file_retention}"\nsnapshot_retention = "{chosen.snapshot_retention}"\n'
    )
    retention_s, trigger_s = (
        parse_duration_ms(text) / 1000 for text in (chosen.file_retention, chosen.trigger)
    )
    store = jars.JarStore.from_environment(os.environ)
    print(*machine.facts(), sep="\n", flush=True)
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="lowmark-bench-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        broker = stack.enter_context(LocalBroker.start(folder / "broker", store))
        lines = (of_stream, f'max_staleness = "{chosen.bound}"\n')
        with started(folder / "disk", broker, None, "disk", rows, lines) as scene:
            scene.set_rate(rate)
            first = len(scene.changelog.at)
            samples = watch(scene, minutes * 60, rows, retention_s)
            gaps = np.diff(scene.changelog.at[first:]) / 1e6
            finish_load(scene, folder / "disk")
            print(*said_of_maintenance(folder / "disk" / "pipeline.log"), sep="\n")
    return finish(
        figures_of(samples, list(map(float, gaps)), retention_s, trigger_s),
        validate_record=not chosen.quick,
    )


def said_of_maintenance(log: Path) -> list[str]:
    """The last lines that the pipeline has printed about its maintenance."""
    signs = ("reduced the number of files", "files of old versions", "maintenance failed")
    return [
        line
        for line in log.read_text(errors="replace").splitlines()
        if any(sign in line for sign in signs)
    ][-20:]


if __name__ == "__main__":
    raise SystemExit(main())
