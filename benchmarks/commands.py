"""How soon the commands answer that need neither Java nor a broker (OPS-10).

    python -m benchmarks commands [--quick]

Each command runs as a process several times. The best time counts, because other load can only add
time.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from time import perf_counter

from benchmarks import machine
from benchmarks.report import Figure, finish, spread

COMMANDS = {
    "help": ["--help"],
    "help_of_publish": ["publish", "--help"],
    "help_of_run": ["run", "--help"],
    "help_of_read": ["read", "--help"],
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks commands")
    parser.add_argument("--quick", action="store_true", help="two rounds, no judgement")
    quick = parser.parse_args().quick
    connector = str(Path(sys.executable).with_name("connector"))
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(2 if quick else 10):
        for name, words in COMMANDS.items():
            began = perf_counter()
            subprocess.run([connector, *words], check=True, stdout=subprocess.DEVNULL)
            times[name].append(perf_counter() - began)
    print(*machine.facts(), sep="\n")
    for name, found in times.items():
        print(spread(f"connector {' '.join(COMMANDS[name])}", found, "s"))
    return finish(
        [Figure(f"command_{name}_s", min(found), "<0.3") for name, found in times.items()],
        validate_record=not quick,
    )


if __name__ == "__main__":
    raise SystemExit(main())
