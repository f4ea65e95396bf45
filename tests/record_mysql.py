"""Record the topics of Debezium's MySQL connector (SRC-10):

    python -m tests.record_mysql

The server is MariaDB, because Debian has it. It says that it is MySQL 5.7, so that the connector
uses statements that it knows. It writes `mysql.jsonl` and `mysql.truth.jsonl`, JSON with schemas,
as `tests/record_debezium.py` does.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from connector.jars import JarStore
from connector.kafka import LocalBroker
from tests.debezium import TRANSACTIONS, Debezium
from tests.machine import why_no_mariadb
from tests.mariadb import AS_MYSQL, MariaDb, started
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


def tables_of(server: MariaDb) -> Tables:
    """The rows of all tables, as the texts of the server."""
    tables: Tables = {}
    for table, columns in COLUMNS.items():
        texts = ", ".join(f"'{name}', {_text(name)}" for name in columns)
        answer = server.run(f"SELECT JSON_OBJECT({texts}) FROM {table}")
        rows: list[Texts] = [json.loads(line) for line in answer.splitlines()]
        tables[table] = {key_of(row, KEYS[table]): row for row in rows}
    return tables


def _text(column: str) -> str:
    return f"HEX({column})" if column == "data" else f"CAST({column} AS CHAR)"


def record(folder: Path) -> None:
    store = JarStore.from_environment(os.environ)
    with ExitStack() as stack:
        server = stack.enter_context(started(AS_MYSQL))
        broker = stack.enter_context(LocalBroker.start(folder / "broker", store))
        servers = broker.bootstrap_servers
        debezium = Debezium(folder / "connect", store, servers, server.port, "json-schema")
        debezium.settings = server.debezium()
        stack.callback(debezium.kill)
        server.run(SCHEMA)
        looks = [("before Debezium", tables_of(server))]
        debezium.start()
        wait(servers, "dbz.shop.stock", 2)
        time.sleep(5)  # it goes from the snapshot to the log
        for statements in SCRIPT:
            server.run("; ".join(("BEGIN", *statements, "COMMIT")))
            looks.append(("; ".join(statements), tables_of(server)))
        wait(servers, TRANSACTIONS, 2 * len(SCRIPT))
        server.run("TRUNCATE stock")
        looks.append(("TRUNCATE stock", tables_of(server)))
        server.run("; ".join(("BEGIN", *AFTER_DDL, "COMMIT")))
        looks.append(("; ".join(AFTER_DDL), tables_of(server)))
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
    if why := why_no_mariadb():
        print(f"left out: {why}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="lowmark-record-") as folder:
        record(Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
