"""Do the tests notice when the code is wrong? A sample of small changes of the pure core, each run
against the tests of its module.

    make mutants                                                300 changes of all modules
    make mutants MODULES="state tables/merge" SAMPLE=50 SEED=7  50 of a package and a module

They are drawn from a new seed, which is printed, or from SEED.

The core is what lies at the root of connector/, in its pure packages and in `lake`. Of the others,
only the readers of `kafka/consume` have quick tests. The tests of connector/PACKAGE/MODULE.py are
the files of tests/unit/PACKAGE that import it, and the files of tests/property and tests/golden
that import it (`tests.covering`). They run in copies of the working tree, in a temporary folder,
two at a time. Each run is a fork of this process, which has imported what all tests need. All draw
the same random choices each time, and Hypothesis does not shrink what it finds. A change is noticed
if a test fails, or if the tests take several times what they take otherwise.

Why not a library: mutmut 3.8 changes neither properties nor what stands outside functions, leaves
out no statement and changes every string; cosmic-ray 8.7 starts pytest anew for each change, leaves
out no statement either, and brings two dozen packages. Both write into the folder that they are
started in, and neither draws a sample.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.covering import covering
from tests.mutants.operators import apply, edits

HERE = Path(__file__).resolve().parents[2]
AT_ONCE = 2
MEMORY = 8 * 2**30
# What waits, and does not compute, is ended by the clock; far off, since a busy machine is slow.
LONGEST_S = 900
# Of tests that wait for a mock cluster. They take 30 s on an idle machine.
LONGEST_MOCKED_S = 240
PACKAGES = (
    "records",
    "tables",
    "watermarks",
    "dead_letters",
    "write_streams",
    "sources",
    "state",
    "reports",
    "config",
    "lake",
)
# Not pure, and yet with quick tests, against librdkafka's mock cluster.
MOCKED = {"kafka/consume": ("tests/unit/kafka/test_change_consumer.py",)}
COPIED = ("benchmarks", "connector", "deploy", "docs", "examples", "schemas", "tests")
PYTEST = (
    "-x",
    "-q",
    "--no-header",
    "--tb=short",
    "-pno:cacheprovider",
    "-pno:xdist",
    "-otimeout=0",
    "--seed=1",
)
# What this process has imported, pytest can rewrite no more.
EXPECTED = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
HOW = {1: "by a failed test", 2: "by an import that failed", None: "by the time it takes"}


@dataclass(frozen=True)
class Mutant:
    """A module with one change."""

    module: str
    line: int
    operator: str
    before: str
    after: str

    @property
    def path(self) -> str:
        return f"connector/{self.module}.py"

    @property
    def diff(self) -> list[str]:
        lines = difflib.unified_diff(
            self.before.splitlines(), self.after.splitlines(), n=0, lineterm=""
        )
        return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


@dataclass(frozen=True)
class Run:
    """Test files to run, on a mutant or on the code as it is, and how long they may compute, in
    seconds.
    """

    files: tuple[str, ...]
    mutant: Mutant | None = None
    limit_s: int = 300


@dataclass(frozen=True)
class Ended:
    """How a run ended: the exit code of pytest, or None if it took too long or was killed; what it
    computed, and what it printed.
    """

    run: Run
    code: int | None
    cpu_s: float
    output: str

    @property
    def is_noticed(self) -> bool:
        return self.code != 0


def draw(root: Path, modules: Sequence[str], sample: int, seed: int) -> tuple[list[Mutant], int]:
    """The changes drawn from all those of the modules, and how many there are. A function of the
    code and of the seed.
    """
    texts = {module: (root / f"connector/{module}.py").read_text("utf-8") for module in modules}
    places = [(module, edit) for module in modules for edit in edits(texts[module])]
    random.Random(seed).shuffle(places)
    drawn: list[Mutant] = []
    for module, edit in places:
        if len(drawn) < sample and (after := apply(texts[module], edit)) is not None:
            line = texts[module].encode()[: edit.start].count(b"\n") + 1
            drawn.append(Mutant(module, line, edit.operator, texts[module], after))
    return drawn, len(places)


def tests_of(root: Path, module: str) -> list[str]:
    """The quick tests of a module."""
    return [*covering(root, module), *MOCKED.get(_package(module), ())]


def _package(module: str) -> str:
    return str(Path(module).parent)


def core_of(root: Path) -> list[str]:
    """The modules that may be changed, as paths below connector/ without `.py`."""
    package = root / "connector"
    found = [
        path
        for place in (package, *(package / name for name in (*PACKAGES, *MOCKED)))
        for path in place.glob("*.py")
    ]
    return sorted(
        str(path.relative_to(package).with_suffix(""))
        for path in found
        if not path.stem.startswith("__") and path.stem != "clock"
    )


def forked(runs: Iterable[Run], copies: Sequence[Path]) -> Iterator[Ended]:
    """Run as many at once as there are copies, each in one of them, and hand out each when it has
    ended.
    """
    waiting, free, live = iter(runs), list(copies), dict[int, tuple[Run, Path, float]]()
    try:
        while True:
            while free and (run := next(waiting, None)) is not None:
                copy = free.pop()
                _put(run.mutant, copy, is_mutated=True)
                if (pid := os.fork()) == 0:
                    _become(run, copy)
                is_mocked = run.mutant is not None and _package(run.mutant.module) in MOCKED
                longest_s = LONGEST_MOCKED_S if is_mocked else LONGEST_S
                live[pid] = (run, copy, time.monotonic() + longest_s)
            if not live:
                return
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid in live:
                run, copy, _ = live.pop(pid)
                _kill(pid)  # what it started and left
                _put(run.mutant, copy, is_mutated=False)
                free.append(copy)
                code = os.waitstatus_to_exitcode(status)
                yield Ended(
                    run,
                    None if code < 0 else code,
                    usage.ru_utime + usage.ru_stime,
                    _log(copy, pid).read_text("utf-8", "replace"),
                )
                continue
            for late in [pid for pid, (_, _, end) in live.items() if time.monotonic() > end]:
                _kill(late)
            time.sleep(0.01)
    finally:
        for pid in live:
            _kill(pid)
            os.waitpid(pid, 0)


def _put(mutant: Mutant | None, copy: Path, *, is_mutated: bool) -> None:
    """Write the changed module, or the unchanged one. Compiled code tells them apart by the time of
    the file, in seconds.
    """
    if mutant is not None:
        path = copy / mutant.path
        seconds = int(path.stat().st_mtime) + (5 if is_mutated else -5)
        path.write_text(mutant.after if is_mutated else mutant.before, "utf-8")
        os.utime(path, (seconds, seconds))


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _log(copy: Path, pid: int) -> Path:
    return copy.parent / f"{pid}.log"


def _become(run: Run, copy: Path) -> NoReturn:
    """In the fork: become a process that knows the copy only, and end with pytest's exit code."""
    code = 3
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        log = os.open(_log(copy, os.getpid()), os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        with contextlib.suppress(ValueError, OSError):  # not every system knows this limit
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (run.limit_s, run.limit_s))
        os.environ |= {
            "PYTHONPATH": str(copy),
            "HYPOTHESIS_PROFILE": "mutants",
            "PYTHONDONTWRITEBYTECODE": "1" if run.mutant else "",
        }
        sys.path[:] = [
            str(copy),
            *(
                entry
                for entry in sys.path
                if entry and Path(entry).resolve() not in {Path.cwd(), HERE}
            ),
        ]
        sys.dont_write_bytecode = run.mutant is not None
        for name in [
            name for name in sys.modules if name.partition(".")[0] in {"connector", "tests"}
        ]:
            del sys.modules[name]
        os.chdir(copy)
        code = int(
            pytest.main(
                [
                    *PYTEST,
                    *EXPECTED,
                    "--basetemp",
                    str(_log(copy, os.getpid()).with_suffix("")),
                    *run.files,
                ]
            )
        )
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def copied(root: Path, to: Path) -> Path:
    """A copy of what the tests need, without `.git`, which would lead back to `root`: nothing is
    ever written there.
    """
    to.mkdir()
    for path in root.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy2(path, to)
        elif path.name in COPIED:
            shutil.copytree(path, to / path.name)
    return to


def measured(files: Iterable[str], copy: Path) -> dict[str, float]:
    """How long each test file computes on the code as it is, in seconds. Ends everything if one
    fails.
    """
    times: dict[str, float] = {}
    for ended in forked([Run((file,)) for file in files], [copy] * AT_ONCE):
        if ended.is_noticed:
            sys.exit(
                f"{ended.output}\n{ended.run.files[0]} fails on the code as it is, so it can notice"
                " nothing"
            )
        times[ended.run.files[0]] = ended.cpu_s
    return times


def report(ends: Sequence[Ended]) -> Iterator[str]:
    """What was not noticed, by module, and the share that was."""
    for module, of_module in groupby(
        sorted(ends, key=_place), key=lambda ended: ended.run.mutant.module
    ):
        of_it = list(of_module)
        yield f"{module}: {sum(ended.is_noticed for ended in of_it)} of {len(of_it)} noticed"
        for mutant in (ended.run.mutant for ended in of_it if not ended.is_noticed):
            yield f"  {mutant.path}:{mutant.line}: {mutant.operator}"
            yield from (f"    {line}" for line in mutant.diff)
    noticed = [HOW.get(ended.code, "by an error of pytest") for ended in ends if ended.is_noticed]
    ways = ", ".join(f"{count} {how}" for how, count in Counter(noticed).most_common())
    yield (
        f"{len(noticed)} of {len(ends)} changes noticed ({len(noticed) / max(len(ends), 1):.1%}):"
        f" {ways}"
    )


def _place(ended: Ended) -> tuple[str, int, str]:
    return (ended.run.mutant.module, ended.run.mutant.line, ended.run.mutant.after)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description="Does each of many small changes of the code fail a test?",
    )
    parser.add_argument(
        "modules",
        nargs="*",
        metavar="MODULE",
        help="modules and packages of the core (default: all)",
    )
    parser.add_argument(
        "--sample", type=int, default=300, help="how many changes to try (default: 300)"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=random.SystemRandom().randrange(2**32),
        help="which ones (default: others each time)",
    )
    parser.add_argument(
        "--minutes", type=float, default=60, help="start no more after that long (default: 60)"
    )
    parser.add_argument(
        "--grace",
        type=int,
        default=5,
        help="seconds of computing beyond four times what the tests take (default: 5)",
    )
    options = parser.parse_args()
    root, started = Path.cwd(), time.monotonic()
    core = core_of(root)
    if unknown := set(options.modules) - set(core) - {_package(module) for module in core}:
        parser.error(
            f"no module of the core: {', '.join(sorted(unknown))}; there are {', '.join(core)}"
        )
    modules = [one for one in core if {one, _package(one)} & set(options.modules or core)]
    mutants, total = draw(root, modules, options.sample, options.seed)
    tests = {
        module: tests_of(root, module) for module in sorted({mutant.module for mutant in mutants})
    }
    for module, files in tests.items():
        print(f"{module}: {' '.join(files)}")
    print(
        f"{len(mutants)} of {total} changes of {len(tests)} modules, seed {options.seed}",
        flush=True,
    )
    settings.register_profile(
        "mutants",
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        first = copied(root, Path(folder, "1"))
        times = measured(sorted({file for files in tests.values() for file in files}), first)
        copies = [
            first,
            *(copied(first, Path(folder, str(number))) for number in range(2, AT_ONCE + 1)),
        ]
        print(
            f"all tests pass on the code as it is, in {sum(times.values()):.0f} s of computing",
            flush=True,
        )

        def runs() -> Iterator[Run]:
            for mutant in mutants:
                if time.monotonic() - started < options.minutes * 60:
                    files = sorted(tests[mutant.module], key=times.__getitem__)
                    yield Run(
                        tuple(files),
                        mutant,
                        options.grace + int(4 * sum(times[file] for file in files)),
                    )

        ends: list[Ended] = []
        for ended in forked(runs(), copies):
            ends.append(ended)
            if len(ends) % 25 == 0:
                print(
                    f"{len(ends)} tried, {sum(one.is_noticed for one in ends)} noticed",
                    file=sys.stderr,
                    flush=True,
                )
    print(*report(ends), sep="\n")
    if len(ends) < len(mutants):
        print(f"{len(mutants) - len(ends)} were not tried within {options.minutes:g} minutes")
    print(f"seed {options.seed}, {(time.monotonic() - started) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
