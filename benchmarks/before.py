"""Another benchmark in the code of an earlier commit and in this code, in turns.

    python -m benchmarks.before FOLDER [--turns N] NAME [OPTION ...]

FOLDER has the files of the earlier commit, for example of `git archive`. NAME and its options are
those of a benchmark that both have: copy it to the earlier commit, if it is newer. For example:

    python -m benchmarks.before /tmp/earlier --turns 2 own_rounds --rows 200000

A figure is the median of the turns now, divided by the median before. A figure that is 0 before is
left out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

from benchmarks import machine
from benchmarks.report import Figure, figures, finish, spread

HERE = Path(__file__).resolve().parent.parent


def run(folder: Path, name: str, options: list[str]) -> dict[str, float]:
    """The figures of one benchmark in the code of a folder."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
    )
    found = {figure.name: figure.value for figure in figures(done.stdout)}
    assert found, f"{name} in {folder} has no figures: {done.stdout}"
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.before")
    parser.add_argument("folder", type=Path, help="the files of the earlier commit")
    parser.add_argument("--turns", type=int, default=2, help="(default: %(default)s)")
    parser.add_argument("name", help="of the benchmark")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="of the benchmark")
    chosen = parser.parse_args()
    found: dict[Path, dict[str, list[float]]] = {
        folder: defaultdict(list) for folder in (chosen.folder.resolve(), HERE)
    }
    print(*machine.facts(), sep="\n", flush=True)
    for _ in range(chosen.turns):
        for folder, values in found.items():
            for name, value in run(folder, chosen.name, chosen.options).items():
                values[name].append(value)
    before, now = found.values()
    ratios = []
    for name in [name for name in now if name in before]:
        print(spread(f"{name} before", before[name]))
        print(spread(f"{name} now", now[name]), flush=True)
        if middle := median(before[name]):
            ratios.append(Figure(f"{name}_now_to_before", median(now[name]) / middle))
    return finish(ratios, validate_record=False)


if __name__ == "__main__":
    raise SystemExit(main())
