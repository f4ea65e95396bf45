"""Run all benchmarks, or one: `python -m benchmarks [NAME] [--quick] [--write FILE]`.

Each one runs in its own process. The last lines are all figures, `name value bar`. With `--write`,
they are written as a table, which replaces the figures of the same benchmarks in the file. Figures
that miss their bar are marked there, and named at the top. The exit code is 1 if a figure misses
its bar.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

from benchmarks.report import Figure, figures, number

NAMES = (
    *("commands", "encoder", "producer", "bridge", "reader"),
    *("ingest", "poison", "apply", "sparse", "truncate", "alter", "rounds", "backlog"),
    *("read", "changes", "freshness", "peers", "idle", "disk", "requests", "scale"),
    *("write-streams", "cluster", "letters", "demo"),
)

_HEAD = """# Performance

`make bench` measures these figures. A rate depends on the machine. A ratio compares two values of
the same run, so it depends less on the machine.

A bar is the value to reach: `0.4` means at least 0.4, and `<0.3` means below 0.3. `missed` marks a
bar that was not reached. Each section has the name of a module in `benchmarks/`. The docstring of
the module explains how its figures are measured.
"""

MISSED = "**missed**"
_FRESH = "[the reasons](../decisions/0030-small-applies-without-spark.md)"
WHY = {
    "merge_to_ours_partial_8m_rows": "[the reasons](../decisions/0014-sparse-applies.md)",
    "freshness_bound_2000_read_p95_s": _FRESH,
    "once_new_s": _FRESH,
    "once_nothing_s": _FRESH,
    "idle_silent_cores": _FRESH,
    "idle_heartbeats_commits_per_minute": _FRESH,
    "idle_heartbeats_cores": _FRESH,
}
"""The page that explains why a figure misses its bar."""


def run(name: str, *, quick: bool) -> tuple[int, str]:
    """The exit code and the output of one benchmark. The output is also printed."""
    words = [
        sys.executable,
        "-m",
        f"benchmarks.{name.replace('-', '_')}",
        *(["--quick"] if quick else []),
    ]
    lines = []
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    return process.returncode, "".join(lines)


def section(output: str) -> str:
    """The section of the page for one benchmark."""
    facts = "\n".join(
        f"* {line}"
        for line in output.splitlines()
        if line.startswith(("command:", "versions:", "machine:"))
    )
    rows = "\n".join(map(_row, figures(output)))
    return f"{facts}\n\n| figure | value | bar |\n|---|---|---|\n{rows}\n"


def _row(figure: Figure) -> str:
    return (
        f"| `{figure.name}` | {number(figure.value)} |"
        f" {figure.bar}{'' if figure.holds else f' {MISSED}'} |"
    )


def page(before: str, outputs: dict[str, str]) -> str:
    """The page `before` with the new outputs. All missed bars are named at its top."""
    sections = dict(part.split("\n\n", 1) for part in before.split("\n## ")[1:])
    sections |= {name: section(output) for name, output in outputs.items()}
    kept = {name: sections[name] for name in NAMES if name in sections}
    return (
        _HEAD
        + _missed("".join(kept.values()))
        + "".join(f"\n## {name}\n\n{text}" for name, text in kept.items())
    )


def _missed(sections: str) -> str:
    """The figures of all sections that miss their bars."""
    found = re.findall(
        rf"^\| `(\w+)` \| (\S+) \| (\S+) {re.escape(MISSED)} \|$", sections, re.MULTILINE
    )
    lines = [
        f"* `{name}` is {value}, the bar is `{bar}`{f': {WHY[name]}' if name in WHY else ''}"
        for name, value, bar in found
    ]
    return "\n" + ("\n".join(["Missed bars:", "", *lines]) if lines else "No bar is missed.") + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "name", nargs="*", metavar="NAME", help=f"{', '.join(NAMES)}; all if not given"
    )
    parser.add_argument(
        "--quick", action="store_true", help="less work, no judgement: does it run?"
    )
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="keep the figures there, as a page"
    )
    wanted = parser.parse_args()
    if unknown := [name for name in wanted.name if name not in NAMES]:
        parser.error(f"there is no benchmark {unknown[0]}; there are {', '.join(NAMES)}")
    results = {name: run(name, quick=wanted.quick) for name in wanted.name or NAMES}
    if wanted.write is not None:
        before = wanted.write.read_text() if wanted.write.exists() else ""
        wanted.write.write_text(
            page(before, {name: output for name, (_, output) in results.items()})
        )
    print("\nall figures")
    found: list[Figure] = [figure for _, output in results.values() for figure in figures(output)]
    for figure in found:
        print(figure)
    for figure in found:
        if not figure.holds and not wanted.quick:
            print(f"missed: {figure.name} is {number(figure.value)}, the bar is {figure.bar}")
    return max(code for code, _ in results.values())


if __name__ == "__main__":
    raise SystemExit(main())
