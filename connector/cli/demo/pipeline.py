"""The pipeline as its operator runs it: a process of its own, which is killed in the middle and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from connector.errors import ConnectorError, TableError
from connector.lake.plain_table import open_table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from connector.cli.demo.folder import DemoFolder

POLL_S: Final = 0.2
_ENTRY: Final = "from connector.cli import main; main()"
_TAIL_BYTES: Final = 4000
# A shell that waits at a pipe which only we hold: when we are gone, however we went, it ends the pipeline.
_GUARD: Final = 'read -r _; kill -KILL "-$0" 2>/dev/null'


@dataclass(slots=True)
class Pipeline:
    """One run of `connector run`: the process, which leads a process group of its own (Python and the JVM), and its log."""

    process: subprocess.Popen[bytes]
    log: Path
    started: float = field(default_factory=time.monotonic)

    def kill(self) -> None:
        """SIGKILL to the whole group, as if the power had gone; returns when none of it is left."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        deadline = time.monotonic() + 10
        while _lives(self.process.pid) and time.monotonic() < deadline:
            time.sleep(0.02)

    def last_line(self) -> str:
        """What it said last."""
        lines = self.tail().splitlines()
        return lines[-1] if lines else ""

    def tail(self) -> str:
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace").strip()

    def wait(self, until: Callable[[], bool], watch: Watch) -> None:
        """Return when `until` says so, calling `watch` meanwhile. Raises `ConnectorError` if the process ends before."""
        while not until():
            if self.process.poll() is not None:
                raise ConnectorError(f"the pipeline ended with code {self.process.returncode}", self.tail(), f"its log is {self.log}")
            watch(self)
            time.sleep(POLL_S)

    def finish(self, watch: Watch) -> None:
        """Return when the process has ended well. Raises `ConnectorError` otherwise."""
        while self.process.poll() is None:
            watch(self)
            time.sleep(POLL_S)
        if self.process.returncode:
            raise ConnectorError(f"the pipeline ended with code {self.process.returncode}", self.tail(), f"its log is {self.log}")


Watch = Callable[[Pipeline], None]


@contextmanager
def running(folder: DemoFolder, number: int, *arguments: str, settings: dict[str, str] | None = None) -> Iterator[Pipeline]:
    """`connector --config … run` with `arguments`, killed at the end of the block if it still lives.

    `settings` are environment variables over the configuration (OPS-1); those of the user's shell do not count here.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CONNECTOR__")}
    command = [sys.executable, "-c", _ENTRY, "--config", str(folder.config), "run", *arguments]
    log = folder.log(number)
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment | (settings or {}), start_new_session=True
        )
    guard = subprocess.Popen(["/bin/sh", "-c", _GUARD, str(process.pid)], stdin=subprocess.PIPE, start_new_session=True)
    pipeline = Pipeline(process, log)
    try:
        yield pipeline
    finally:
        guard.kill()
        guard.communicate()
        pipeline.kill()


def records_ingested(folder: DemoFolder, stream: str) -> int:
    """How many records the changelog holds, by its newest commit (TBL-5); 0 before there is one."""
    if not (folder.changelog(stream) / "_delta_log").is_dir():
        return 0
    try:
        bookkeeping = open_table(str(folder.changelog(stream))).bookkeeping
    except TableError:
        return 0  # its first commit is being written
    return sum(int(offset) for offset in bookkeeping.get("end", {}).values())


def _lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
