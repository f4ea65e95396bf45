"""The pipeline as an operator runs it: a separate process, which is killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from connector.config.settings_reader import ENVIRONMENT_PREFIX
from connector.errors import ConnectorError, ErrorCode, TableError
from connector.lake.plain_table import newest_stored

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from connector.demo.folder import DemoFolder

POLL_S: Final = 0.2
_ENTRY: Final = "from connector.cli import main; main()"
_TAIL_BYTES: Final = 4000
_QUICK: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
QUICK_JAVA: Final = {
    "JAVA_TOOL_OPTIONS": f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} {_QUICK}".strip()
}
"""In a run of a few minutes, the JVM's optimising compiler costs a third of the time and gains
less.

Without it, the JVM reserves less memory for compiled code than Spark needs. When that is full, it
compiles nothing more.
"""
# A shell that waits at a pipe that only this process holds open. When this process ends for any
# reason, the shell ends the pipeline.
_GUARD: Final = 'read -r _; kill -KILL "-$0" 2>/dev/null'


@dataclass(slots=True)
class Pipeline:
    """One run of a command: the process, which leads its own process group (Python and the JVM),
    and its log.
    """

    process: subprocess.Popen[bytes]
    log: Path
    what: str = "the pipeline"
    started: float = field(default_factory=time.monotonic)

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

    def last_line(self) -> str:
        """The last line of the log."""
        lines = self.tail().splitlines()
        return lines[-1] if lines else ""

    def tail(self) -> str:
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace").strip()

    def wait(self, until: Callable[[], bool], watch: Watch) -> None:
        """Wait until `until` returns true, and call `watch` meanwhile. Raises `ConnectorError` if
        the process ends before.
        """
        while not until():
            if self.process.poll() is not None:
                raise ConnectorError(
                    ErrorCode.CHILD_PROCESS_FAILED,
                    f"{self.what} ended with code {self.process.returncode}",
                    self.tail(),
                    f"See its log, {self.log}",
                )
            watch(self)
            time.sleep(POLL_S)

    def finish(self, watch: Watch) -> None:
        """Wait until the process has ended successfully. Raises `ConnectorError` if it failed."""
        while self.process.poll() is None:
            watch(self)
            time.sleep(POLL_S)
        if self.process.returncode:
            raise ConnectorError(
                ErrorCode.CHILD_PROCESS_FAILED,
                f"{self.what} ended with code {self.process.returncode}",
                self.tail(),
                f"See its log, {self.log}",
            )


Watch = Callable[[Pipeline], None]


@contextmanager
def running(
    folder: DemoFolder, number: int, *arguments: str, settings: dict[str, str] | None = None
) -> Iterator[Pipeline]:
    """Run `connector --config … run` with `arguments`. At the end of the block it is killed if it
    still runs.

    `settings` are environment variables with priority over the configuration (OPS-1). Of those of
    the user's shell, only the settings of an object store are used.
    """
    with _started(
        folder, folder.log(number), folder.log(number), "run", *arguments, settings=settings
    ) as pipeline:
        yield pipeline


def fresh_read(folder: DemoFolder, table: str, watch: Watch) -> tuple[list[str], str]:
    """The output of `connector read TABLE --json`, and its message about the freshness. Raises
    `ConnectorError` if it fails.
    """
    rows, said = outcome(
        folder,
        watch,
        "read",
        table,
        "--max-staleness",
        "0",
        "--json",
        "--memory",
        "1g",
        settings=QUICK_JAVA,
    )
    return rows, next((line for line in said if line.startswith(f"{table} as of ")), "")


def outcome(
    folder: DemoFolder, watch: Watch, *arguments: str, settings: dict[str, str] | None = None
) -> tuple[list[str], list[str]]:
    """The lines that a command prints, and its last messages. Raises `ConnectorError` if it
    fails.
    """
    printed, log = folder.root / f"{arguments[0]}.out", folder.root / f"{arguments[0]}.log"
    with _started(folder, printed, log, *arguments, settings=settings) as command:
        command.finish(watch)
        return printed.read_text("utf-8").splitlines(), command.tail().splitlines()


@contextmanager
def _started(
    folder: DemoFolder, out: Path, log: Path, *arguments: str, settings: dict[str, str] | None
) -> Iterator[Pipeline]:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("CONNECTOR__") or name in storage_settings(os.environ)
    }
    command = [sys.executable, "-c", _ENTRY, "--config", str(folder.config), *arguments]
    with log.open("wb") as talk, nullcontext(talk) if out == log else out.open("wb") as data:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=data,
            stderr=talk,
            env=environment | (settings or {}),
            start_new_session=True,
        )
    guard = subprocess.Popen(
        ["/bin/sh", "-c", _GUARD, str(process.pid)], stdin=subprocess.PIPE, start_new_session=True
    )
    started = Pipeline(
        process, log, "the pipeline" if arguments[0] == "run" else f"connector {arguments[0]}"
    )
    try:
        yield started
    finally:
        guard.kill()
        guard.communicate()
        started.kill()


def records_ingested(folder: DemoFolder, stream: str) -> int:
    """The number of records in the changelog, from its newest commit (TBL-5). 0: there is no
    commit.
    """
    return _records(_newest_commit(folder, stream))


def batch_with(folder: DemoFolder, stream: str, records: int) -> int | None:
    """The newest batch, if this many records are ingested and their dead letters are published.
    Otherwise None.
    """
    said = _newest_commit(folder, stream)
    is_done = (
        said
        and said["progress"]["ingest_batch"] == said["ingest_batch"]
        and _records(said) >= records
    )
    return int(said["ingest_batch"]) if is_done else None


def _records(commit: Mapping[str, Any]) -> int:
    return sum(int(offset) for offset in commit.get("end_offsets", {}).values())


def _newest_commit(folder: DemoFolder, stream: str) -> Mapping[str, Any]:
    try:
        return newest_stored(folder.changelog(stream)) or {}
    except TableError:
        return {}  # its first commit is being written


def storage_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that say how an object store is reached (STO-1)."""
    prefix = f"{ENVIRONMENT_PREFIX}STORAGE__"
    return {name: value for name, value in environment.items() if name.startswith(prefix)}


def _lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
