"""MariaDB as a local process, for tests (SRC-10). It uses no library: `mariadb` runs the
statements.

A server does not run as root. If this process is root, the server runs as the user `mysql`, whom
Debian's package creates.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from connector.kafka.local.folder import HOST, free_port
from tests.debezium import CONNECTOR

DATABASE = "shop"
OWNER = "mysql"
USER, PASSWORD = "debezium", "unused"
SERVER = Path("/usr/sbin/mariadbd")
START_TIMEOUT_S = 120.0
_OPTIONS = (
    "--log-bin=bin",
    "--binlog-format=ROW",
    "--binlog-row-image=FULL",
    "--server-id=7",
    "--default-time-zone=+00:00",
    # The data of tests may be lost with the machine.
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-buffer-pool-size=16M",
)
AS_MYSQL = "--version=5.7.18-log"
"""With it, the server says that it is MySQL 5.7. Debezium's MySQL connector uses statements that
MariaDB knows, too, and there are no GTIDs.
"""


@dataclass(frozen=True, slots=True)
class MariaDb:
    """A server with a binary log and the empty database `shop`. `started` makes it."""

    folder: Path
    port: int

    def run(self, text: str, database: str = DATABASE) -> str:
        """Run statements in one connection. Raises `CalledProcessError`."""
        command = ["mariadb", "--no-defaults", f"--socket={self.folder / 'socket'}", "-uroot"]
        command += ["-N", "-B", "-r", "--default-character-set=utf8mb4", database]
        return subprocess.run(
            command, input=text, text=True, capture_output=True, check=True, timeout=60
        ).stdout

    def debezium(self) -> dict[str, str]:
        """The settings of Debezium's MySQL connector."""
        kept = ("tasks.max", "database.hostname", "topic.", "provide.", "skipped.")
        return {
            **{name: value for name, value in CONNECTOR.items() if name.startswith(kept)},
            "connector.class": "io.debezium.connector.mysql.MySqlConnector",
            "database.port": str(self.port),
            "database.user": USER,
            "database.password": PASSWORD,
            "database.server.id": "99",
            "database.ssl.mode": "disabled",
            "database.include.list": DATABASE,
            # The lock of MySQL's own snapshot is another one in MariaDB.
            "snapshot.locking.mode": "none",
            "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
            "schema.history.internal.file.filename": str(self.history),
        }

    @property
    def history(self) -> Path:
        """The file with the definitions of tables that Debezium has seen."""
        return self.folder / "history"


@contextmanager
def started(*options: str) -> Iterator[MariaDb]:
    """A new server on a free port of the loopback, with further options of `mariadbd`."""
    with tempfile.TemporaryDirectory(prefix="lowmark-mariadb-", dir="/tmp") as name:
        folder, port = Path(name), free_port()
        user = []
        if os.geteuid() == 0:
            shutil.chown(folder, OWNER)
            user = [f"--user={OWNER}"]
        common = ["--no-defaults", f"--datadir={folder / 'data'}", *user]
        install = ["mariadb-install-db", *common, "--auth-root-authentication-method=normal"]
        subprocess.run(install, check=True, capture_output=True, timeout=300)
        address = [f"--port={port}", f"--bind-address={HOST}", f"--socket={folder / 'socket'}"]
        command = [str(SERVER), *common, *address, *_OPTIONS, f"--pid-file={folder / 'pid'}"]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen([*command, *options], cwd=folder, stdout=log, stderr=log)
        server = MariaDb(folder, port)
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            while not _answers(server):
                assert process.poll() is None, (folder / "log").read_text()[-2000:]
                assert time.monotonic() < deadline, "the server does not start"
                time.sleep(0.2)
            server.run(f"CREATE DATABASE {DATABASE}", "mysql")
            for host in ("localhost", HOST):
                grant = f"GRANT ALL ON *.* TO {USER}@'{host}' IDENTIFIED BY '{PASSWORD}'"
                server.run(grant, "mysql")
            yield server
        finally:
            process.terminate()
            process.wait()


def _answers(server: MariaDb) -> bool:
    try:
        return bool(server.run("SELECT 1", "mysql"))
    except subprocess.CalledProcessError:
        return False
