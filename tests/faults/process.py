"""Commands as separate processes, which tests kill, and the folder that they work in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from connector import warehouse as paths

POLL_S: Final = 0.2
_ENTRY: Final = "from connector.cli import main; main()"
_TAIL_BYTES: Final = 4000
# A shell that waits at a pipe that only this process holds open. When this process ends for any
# reason, the shell ends the command.
_GUARD: Final = 'read -r _; kill -KILL "-$0" 2>/dev/null'


class ProcessFailedError(Exception):
    """A command ended with another code than 0, or ended too early."""


@dataclass(frozen=True, slots=True)
class Folder:
    """The configuration, the warehouse and the logs of a test.

    `uri` is that of a warehouse in an object store. Empty: the warehouse is in the folder.
    """

    root: Path
    uri: str = ""

    @property
    def config(self) -> Path:
        return self.root / "connector.toml"

    @property
    def warehouse(self) -> str:
        return self.uri or str(self.root / "warehouse")

    def log(self, number: int) -> Path:
        """The log of the run with this number."""
        return self.root / f"run-{number}.log"

    def table(self, name: str) -> str:
        return paths.table(self.warehouse, name)

    def changelog(self, stream: str) -> str:
        return paths.changelog(self.warehouse, stream)


@dataclass(slots=True)
class Process:
    """One command. The process leads its own process group (Python and the JVM)."""

    process: subprocess.Popen[bytes]
    command: str
    log: Path

    def kill(self) -> None:
        """Send SIGKILL to the whole group, like a power failure. Returns when all processes have
        ended.
        """
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        deadline = time.monotonic() + 10
        while _lives(self.process.pid) and time.monotonic() < deadline:
            time.sleep(0.02)

    def tail(self) -> str:
        """The end of the log."""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace").strip()

    def wait(self, until: Callable[[], bool]) -> None:
        """Wait until `until` returns true. Raises `ProcessFailedError` if the process ends
        before.
        """
        while not until():
            if self.process.poll() is not None:
                raise self._failed()
            time.sleep(POLL_S)

    def finish(self) -> None:
        """Wait until the process has ended. Raises `ProcessFailedError` if it failed."""
        if self.process.wait():
            raise self._failed()

    def _failed(self) -> ProcessFailedError:
        code = self.process.returncode
        return ProcessFailedError(f"connector {self.command} ended with code {code}: {self.tail()}")


@contextmanager
def running(
    folder: Folder, number: int, *arguments: str, settings: dict[str, str] | None = None
) -> Iterator[Process]:
    """Run `connector --config … run` with `arguments`. At the end of the block it is killed if it
    still runs. `settings` are environment variables.
    """
    log = folder.log(number)
    with _started(folder, log, log, "run", *arguments, settings=settings) as process:
        yield process


def outcome(
    folder: Folder, *arguments: str, settings: dict[str, str] | None = None
) -> tuple[list[str], list[str]]:
    """The lines that a command prints, and its last messages. Raises `ProcessFailedError`."""
    printed, log = folder.root / f"{arguments[0]}.out", folder.root / f"{arguments[0]}.log"
    with _started(folder, printed, log, *arguments, settings=settings) as process:
        process.finish()
        return printed.read_text("utf-8").splitlines(), process.tail().splitlines()


@contextmanager
def _started(
    folder: Folder, out: Path, log: Path, *arguments: str, settings: dict[str, str] | None
) -> Iterator[Process]:
    words = [sys.executable, "-c", _ENTRY, "--config", str(folder.config), *arguments]
    with (
        log.open("wb") as messages,
        nullcontext(messages) if out == log else out.open("wb") as data,
    ):
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=data,
            stderr=messages,
            env=os.environ | (settings or {}),
            start_new_session=True,
        )
    guard = subprocess.Popen(
        ["/bin/sh", "-c", _GUARD, str(process.pid)], stdin=subprocess.PIPE, start_new_session=True
    )
    started = Process(process, arguments[0], log)
    try:
        yield started
    finally:
        guard.kill()
        guard.communicate()
        started.kill()


def _lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
