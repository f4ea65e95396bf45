"""Time and size of `make demo`, the first time on a machine and again (OPS-2).

    python -m benchmarks demo [--quick]

The first run has an empty cache folder, so it downloads the jars over the network. The second run
uses the files of the first. The time to make `.venv`, which comes before the first `make demo`, is
not measured.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from benchmarks import machine
from benchmarks.report import Figure, finish

MIB = 2**20
ROOT = Path(__file__).parents[1]


def run(cache: Path, output: Path) -> float:
    """The seconds of one demo."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    began = perf_counter()
    subprocess.run(
        [sys.executable, "-m", "examples.demo", "--output", str(output)],
        check=True,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    return perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks demo")
    parser.add_argument("--quick", action="store_true", help="no judgement")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory(prefix="lowmark-bench-") as name:
        folder = Path(name)
        first = run(folder / "cache", folder / "first")
        again = run(folder / "cache", folder / "again")
        cache, output = (machine.size_bytes(folder / part) / MIB for part in ("cache", "first"))
    print(*machine.facts(), sep="\n")
    return finish(
        [
            Figure("demo_first_s", first, "<300"),
            Figure("demo_again_s", again, "<75"),
            Figure("demo_cache_mib", cache),
            Figure("demo_output_mib", output),
        ],
        validate_record=not quick,
    )


if __name__ == "__main__":
    raise SystemExit(main())
