"""Processor seconds and memory of processes, from /proc, and facts about the machine."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from time import perf_counter

from benchmarks.report import Figure

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Cost:
    """The cost of a piece of work. It is filled when its `with` block ends."""

    wall_s: float = 0.0
    cpu_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.wall_s:.2f} s ({self.cpu_s:.1f} of processor)"


@contextmanager
def cost(*pids: int) -> Iterator[Cost]:
    """The time of the block, and the processor time of the named processes and of this one."""
    watched = {os.getpid(), *pids}
    spent = Cost()
    cpu, began = sum(map(cpu_s, watched)), perf_counter()
    yield spent
    spent.wall_s, spent.cpu_s = perf_counter() - began, sum(map(cpu_s, watched)) - cpu


def cpu_s(pid: int) -> float:
    """The processor seconds that a process and its finished children have used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS_PER_S


def peak_bytes(pid: int) -> int:
    """The peak memory of a process. 0: it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next(
        (int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:")),
        0,
    )


def memory_figures(name: str, spark: int) -> list[Figure]:
    """The peaks of Spark's process (driver and executor), of the Python process, and of all Python
    workers together.
    """
    workers = [pid for pid in descendants(spark) if pid != spark]
    peaks = {
        "spark": peak_bytes(spark),
        "python": peak_bytes(os.getpid()),
        "python_workers": sum(map(peak_bytes, workers)),
    }
    return [Figure(f"{name}_peak_memory_of_{who}_mib", peak / 2**20) for who, peak in peaks.items()]


def descendants(pid: int) -> list[int]:
    """A process and all its living descendants."""
    children = list[int]()
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):  # a thread may end meanwhile
                children += map(int, (task / "children").read_text().split())
    return [pid, *(further for child in children for further in descendants(child))]


def size_bytes(folder: Path) -> int:
    """The disk space of a folder, as du counts it."""
    if not folder.exists():
        return 0
    seen: dict[tuple[int, int], int] = {}
    for path in [folder, *folder.rglob("*")]:
        stat = path.lstat()
        seen[stat.st_dev, stat.st_ino] = stat.st_blocks * 512
    return sum(seen.values())


def files_below(folder: Path) -> dict[Path, os.stat_result]:
    """Every file below a folder, while other processes create and remove files."""
    found = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                found[Path(parent, name)] = Path(parent, name).lstat()
    return found


def delta_tables(files: Iterable[Path]) -> set[Path]:
    """The folders with a Delta log among files."""
    return {path.parent.parent for path in files if path.parent.name == "_delta_log"}


def part_of(file: Path, tables: Collection[Path]) -> str:
    """The name of the Delta table to which a file belongs. If the file is part of its log, `log`
    follows.
    """
    table = next((parent for parent in file.parents if parent in tables), None)
    if table is None:
        return "no table"
    return f"{table.name} log" if file.is_relative_to(table / "_delta_log") else table.name


def facts() -> list[str]:
    """The facts about the machine, one a line."""
    versions = [
        f"{name} {metadata.version(name)}"
        for name in ("pyspark", "delta-spark", "confluent-kafka", "fastavro")
    ]
    return [
        f"command: {' '.join([Path(sys.executable).name, *sys.orig_argv[1:]])}",
        f"versions: python {platform.python_version()}, {', '.join(versions)}, {_java()}",
        (
            f"machine: {os.cpu_count()} cores,"
            f" {os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB,"
            f" {platform.system()}"
        ),
    ]


def _java() -> str:
    from connector.jars.store import find_java

    release = Path(find_java(os.environ)).resolve().parent.parent / "release"
    text = release.read_text() if release.exists() else ""
    return next(
        (
            f"java {line.split('=')[1].strip(chr(34))}"
            for line in text.splitlines()
            if line.startswith("JAVA_VERSION=")
        ),
        "java",
    )
