"""PostgreSQL as a local process, for tests and for the demo (SRC-10). It uses no library: `psql`
runs the statements.

A server does not run as root. If this process is root, the server runs as the user `postgres`, whom
Debian's package creates.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Self

from connector.kafka.local.folder import HOST, free_port

OWNER = "postgres"
DATABASE = "shop"
START_TIMEOUT_S = 60.0
NULL = "\\N"
"""How a NULL looks in the answers of `psql`."""
_FIELD, _RECORD = "\x1f", "\x1e"
_SETTINGS = {
    "listen_addresses": HOST,
    "wal_level": "logical",
    "track_commit_timestamp": "on",
    "timezone": "UTC",
    # The data of tests may be lost with the machine.
    "fsync": "off",
    "shared_buffers": "16MB",
    "max_wal_senders": "4",
}


@cache
def programs() -> Path | None:
    """The folder with `initdb` and `postgres`: of Debian's newest version, else on PATH."""
    versions = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres")]
    if versions:
        return max(versions, key=lambda path: float(path.parent.name))
    found = shutil.which("postgres")
    return Path(found).resolve().parent if found else None


@dataclass(slots=True)
class Postgres:
    """A server with logical replication and the empty database `shop`. `started` makes it."""

    folder: Path
    port: int
    _process: subprocess.Popen[bytes] = field(repr=False)

    def run(self, *statements: str, settings: str = "") -> None:
        """Run statements, each in a transaction of its own. Raises `CalledProcessError`."""
        for statement in statements:
            self._psql(statement, settings)

    def rows(self, query: str, settings: str = "") -> list[tuple[str | None, ...]]:
        """The rows of a query as the texts of PostgreSQL. NULL is None."""
        answer = self._psql(query, settings).removesuffix("\n").removesuffix(_RECORD)
        if not answer:
            return []
        return [
            tuple(None if text == NULL else text for text in row.split(_FIELD))
            for row in answer.split(_RECORD)
        ]

    def session(self) -> Session:
        """A connection of its own, for transactions that are open at once."""
        return Session(self.port)

    def kill(self) -> None:
        """End it as a power failure does. SIGQUIT is what PostgreSQL has for it: SIGKILL would
        leave its shared memory.
        """
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()

    def start(self) -> None:
        """Start it again, with its data."""
        self._process = _launch(self.folder, self.port)

    def stop(self) -> None:
        """End it now. It closes its connections."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()

    def _psql(self, text: str, settings: str) -> str:
        command = [*psql(self.port), "-q", "-A", "-t", "-F", _FIELD, "-R", _RECORD]
        return subprocess.run(
            [*command, "-P", f"null={NULL}", "-c", text],
            env={**os.environ, "PGOPTIONS": settings},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout


class Session:
    """A `psql` that stays open. It ends at the end of a `with` block."""

    def __init__(self, port: int) -> None:
        self._process = subprocess.Popen(
            [*psql(port), "-q", "-A", "-t"],
            env={**os.environ, "PGOPTIONS": "-c client_min_messages=error"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
        )

    def run(self, statement: str) -> str:
        """Run a statement, and return the lines of its answer. Raises `AssertionError`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{statement};\n\\echo {_RECORD}\n")
        self._process.stdin.flush()
        lines: list[str] = []
        for line in self._process.stdout:
            if line.startswith(_RECORD):
                return "".join(lines).strip()
            lines.append(line)
        raise AssertionError(f"psql ended at: {statement}: {''.join(lines)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def psql(port: int, database: str = DATABASE) -> list[str]:
    """The command of a client that stops at the first error."""
    folder = programs()
    assert folder is not None
    program = folder / "psql" if (folder / "psql").exists() else Path("psql")
    address = ["-h", HOST, "-p", str(port), "-U", OWNER, "-d", database]
    return [str(program), "-X", *address, "-v", "ON_ERROR_STOP=1"]


@contextmanager
def started(port: int = 0) -> Iterator[Postgres]:
    """A new server on this port of the loopback, or on a free one."""
    with tempfile.TemporaryDirectory(prefix="lowmark-postgres-", dir="/tmp") as name:
        folder = Path(name)
        if os.geteuid() == 0:
            shutil.chown(folder, OWNER)
        subprocess.run(
            [
                *(_program("initdb"), "--no-sync", "-A", "trust", "-U", OWNER, "-E", "UTF8"),
                *("--locale=C.UTF-8", "-D", str(folder / "data")),
            ],
            capture_output=True,
            check=True,
            timeout=120,
            cwd=folder,
            user=_user(),
            group=_user(),
        )
        port = port or free_port()
        server = Postgres(folder, port, _launch(folder, port))
        try:
            create = f"CREATE DATABASE {DATABASE}"
            command = [*psql(port, "postgres"), "-q", "-c", create]
            subprocess.run(command, check=True, capture_output=True, timeout=60)
            yield server
        finally:
            server.stop()


def _launch(folder: Path, port: int) -> subprocess.Popen[bytes]:
    settings = {**_SETTINGS, "port": str(port), "unix_socket_directories": str(folder)}
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    # The server itself, not `pg_ctl`, so that its process is known.
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [_program("postgres"), "-D", str(folder / "data"), *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            user=_user(),
            group=_user(),
        )
    deadline = time.monotonic() + START_TIMEOUT_S
    while not _answers(port):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait()
            raise RuntimeError((folder / "log").read_text("utf-8", "replace")[-2000:])
        time.sleep(0.05)
    return process


def _answers(port: int) -> bool:
    command = [*psql(port, "postgres"), "-q", "-c", "SELECT 1"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _program(name: str) -> str:
    folder = programs()
    assert folder is not None
    return str(folder / name)


def _user() -> str | None:
    return OWNER if os.geteuid() == 0 else None
