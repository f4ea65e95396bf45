"""Record the topics of Debezium's MySQL connector (SRC-10):

    python -m tests.record_mysql

The server is MariaDB, because Debian has it. It says that it is MySQL 5.7, so that the connector
uses statements that it knows. It writes `mysql.jsonl` and `mysql.truth.jsonl`, JSON with schemas,
as `tests/record_debezium.py` does.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from connector.jars import JarStore
from connector.kafka import LocalBroker
from connector.kafka.local.folder import HOST, free_port
from tests.debezium import CONNECTOR, TRANSACTIONS, Debezium
from tests.record_debezium import DEADLINE_S, read_topics
from tests.recorded_topics import (
    Recording,
    State,
    Tables,
    Texts,
    key_of,
    write_recording,
    write_states,
)

DATABASE = "shop"
OWNER = "mysql"
SERVER = Path("/usr/sbin/mariadbd")
KEYS = {"shop.products": ["id"], "shop.stock": ["shelf", "product"]}
COLUMNS = {
    "shop.products": [
        *("id", "name", "price", "big", "ratio", "active", "born", "at", "stamp", "clock"),
        *("year", "data", "kind", "tags", "prefs"),
    ],
    "shop.stock": ["shelf", "product", "amount"],
}
SCHEMA = """
CREATE TABLE products (id int unsigned PRIMARY KEY, name varchar(100) NOT NULL,
  price decimal(12,2), big bigint unsigned, ratio double, active tinyint(1), born date,
  at datetime(6), stamp timestamp(3) NULL, clock time(6), year year, data varbinary(20),
  kind enum('a','b'), tags set('x','y','z'), prefs json) CHARACTER SET utf8mb4;
CREATE TABLE stock (shelf varchar(20), product int unsigned, amount int,
  PRIMARY KEY (shelf, product)) CHARACTER SET utf8mb4;
INSERT INTO products VALUES (1, 'pen', 1.25, 18446744073709551615, 0.1, 1, '1980-02-29',
  '2026-03-04 05:06:07.123456', '2026-03-04 05:06:07.5', '-101:02:03.5', 2026, X'00FF10', 'a',
  'x,z', '{"n": 1}');
INSERT INTO products (id, name) VALUES (2, '');
INSERT INTO stock VALUES ('a#b', 1, 5), ('é', 2, NULL);
"""
SCRIPT: tuple[tuple[str, ...], ...] = (
    ("INSERT INTO products (id, name, price) VALUES (3, '😀', -9999999999.99)",),
    ("UPDATE products SET name = 'ink', prefs = NULL WHERE id = 1",),
    ("UPDATE stock SET amount = amount - 1 WHERE shelf = 'a#b'", "UPDATE products SET price = 2"),
    ("UPDATE products SET id = 30 WHERE id = 3",),
    ("DELETE FROM stock WHERE shelf = 'é'", "INSERT INTO stock VALUES ('é', 2, 7)"),
    ("DELETE FROM products WHERE id = 2",),
    (
        "UPDATE stock SET amount = 1 WHERE product = 1",
        "UPDATE stock SET amount = 2 WHERE product = 1",
    ),
)
AFTER_DDL = ("INSERT INTO stock VALUES ('new', 1, 1)",)


@dataclass(frozen=True, slots=True)
class Server:
    folder: Path
    port: int

    def run(self, text: str, database: str = DATABASE) -> str:
        """Run statements in one connection. Raises `CalledProcessError`."""
        command = ["mariadb", "--no-defaults", f"--socket={self.folder / 'socket'}", "-uroot"]
        command += ["-N", "-B", "-r", "--default-character-set=utf8mb4", database]
        return subprocess.run(
            command, input=text, text=True, capture_output=True, check=True, timeout=60
        ).stdout

    def tables(self) -> Tables:
        """The rows of all tables, as the texts of the server."""
        tables: Tables = {}
        for table, columns in COLUMNS.items():
            texts = ", ".join(f"'{name}', {_text(name)}" for name in columns)
            answer = self.run(f"SELECT JSON_OBJECT({texts}) FROM {table}")
            rows: list[Texts] = [json.loads(line) for line in answer.splitlines()]
            tables[table] = {key_of(row, KEYS[table]): row for row in rows}
        return tables


def _text(column: str) -> str:
    return f"HEX({column})" if column == "data" else f"CAST({column} AS CHAR)"


@contextmanager
def started() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="lowmark-mariadb-", dir="/tmp") as name:
        folder, port = Path(name), free_port()
        user = []
        if os.geteuid() == 0:
            shutil.chown(folder, OWNER)
            user = [f"--user={OWNER}"]
        common = ["--no-defaults", f"--datadir={folder / 'data'}", *user]
        install = ["mariadb-install-db", *common, "--auth-root-authentication-method=normal"]
        subprocess.run(install, check=True, capture_output=True, timeout=300)
        options = [f"--port={port}", f"--bind-address={HOST}", f"--socket={folder / 'socket'}"]
        options += ["--log-bin=bin", "--binlog-format=ROW", "--binlog-row-image=FULL"]
        options += ["--server-id=7", f"--pid-file={folder / 'pid'}", "--version=5.7.18-log"]
        options += ["--default-time-zone=+00:00"]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [str(SERVER), *common, *options], cwd=folder, stdout=log, stderr=log
            )
        server = Server(folder, port)
        try:
            deadline = time.monotonic() + DEADLINE_S
            while not _answers(server):
                assert process.poll() is None, (folder / "log").read_text()[-2000:]
                assert time.monotonic() < deadline, "the server does not start"
                time.sleep(0.2)
            server.run(f"CREATE DATABASE {DATABASE}", "mysql")
            for host in ("localhost", HOST):
                grant = f"GRANT ALL ON *.* TO debezium@'{host}' IDENTIFIED BY 'unused'"
                server.run(grant, "mysql")
            yield server
        finally:
            process.terminate()
            process.wait()


def _answers(server: Server) -> bool:
    try:
        return bool(server.run("SELECT 1", "mysql"))
    except subprocess.CalledProcessError:
        return False


def connector(server: Server) -> dict[str, str]:
    """The settings of Debezium."""
    kept = ("tasks.max", "database.hostname", "topic.", "provide.", "skipped.")
    return {
        **{name: value for name, value in CONNECTOR.items() if name.startswith(kept)},
        "connector.class": "io.debezium.connector.mysql.MySqlConnector",
        "database.port": str(server.port),
        "database.user": "debezium",
        "database.password": "unused",
        "database.server.id": "99",
        "database.ssl.mode": "disabled",
        "database.include.list": DATABASE,
        # The lock of MySQL's own snapshot is another one in MariaDB.
        "snapshot.locking.mode": "none",
        "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
        "schema.history.internal.file.filename": str(server.folder / "history"),
    }


def record(folder: Path) -> None:
    store = JarStore.from_environment(os.environ)
    with ExitStack() as stack:
        server = stack.enter_context(started())
        broker = stack.enter_context(LocalBroker.start(folder / "broker", store))
        servers = broker.bootstrap_servers
        debezium = Debezium(folder / "connect", store, servers, server.port, "json-schema")
        debezium.settings = connector(server)
        stack.callback(debezium.kill)
        server.run(SCHEMA)
        looks = [("before Debezium", server.tables())]
        debezium.start()
        wait(servers, "dbz.shop.stock", 2)
        time.sleep(5)  # it goes from the snapshot to the log
        for statements in SCRIPT:
            server.run("; ".join(("BEGIN", *statements, "COMMIT")))
            looks.append(("; ".join(statements), server.tables()))
        wait(servers, TRANSACTIONS, 2 * len(SCRIPT))
        server.run("TRUNCATE stock")
        looks.append(("TRUNCATE stock", server.tables()))
        server.run("; ".join(("BEGIN", *AFTER_DDL, "COMMIT")))
        looks.append(("; ".join(AFTER_DDL), server.tables()))
        wait(servers, TRANSACTIONS, 2 * (len(SCRIPT) + 1))
        debezium.stop()
        records = sorted(read_topics(servers), key=lambda each: each.timestamp)
    ends = [
        json.loads(each.value or b"")["payload"] for each in records if each.topic == TRANSACTIONS
    ]
    names = [end["id"] for end in ends if end["status"] == "END"]
    states = []
    for what, tables in looks:
        is_event = what not in ("before Debezium", "TRUNCATE stock")
        states.append(State(names.pop(0) if is_event else "", what, tables, KEYS, COLUMNS))
    assert not names, f"there are other transactions: {names}"
    write_recording("mysql", Recording(records, {}, {}))
    write_states("mysql", states)


def wait(servers: str, topic: str, count: int) -> None:
    """Wait until a topic has so many records."""
    deadline = time.monotonic() + DEADLINE_S
    while len(read_topics(servers, topic)) < count:
        assert time.monotonic() < deadline, f"{topic} has not {count} records"
        time.sleep(0.5)


def main() -> int:
    if not SERVER.exists():
        print("left out: there is no MariaDB here", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="lowmark-record-") as folder:
        record(Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
