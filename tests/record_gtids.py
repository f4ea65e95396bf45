"""Record the topics of Debezium's MariaDB connector, whose transactions have GTIDs (SRC-10):

    python -m tests.record_gtids JAR...

The jars are those of the connector and of its driver, `org.mariadb.jdbc:mariadb-java-client`. The
connector of the version of `debezium.lock` is not in each registry: build it from its tag. It
writes `mariadb.jsonl` and `mariadb.truth.jsonl`, JSON without schemas, as `tests/record_mysql.py`
does.

Debezium sends no END for a truncation, for other DDL, and for an XA transaction. It is killed, and
begins again before the last steps of `SENT_AGAIN`.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from connector.jars import JarStore
from connector.kafka import LocalBroker
from tests import mariadb
from tests.debezium import TRANSACTIONS, Debezium
from tests.record_debezium import read_topics, wait_for_flush
from tests.record_mysql import wait
from tests.recorded_topics import Recording, State, Tables, write_recording, write_states

COLUMNS = {name: ["id", "v"] for name in ("shop.t", "shop.u")}
KEYS = {name: ["id"] for name in COLUMNS}
ONCE = (
    "INSERT INTO t VALUES (1, 'one')",
    "BEGIN; INSERT INTO u VALUES (1, 'x'), (2, 'y'); UPDATE t SET v = 'two' WHERE id = 1; COMMIT",
    "TRUNCATE t",
    "INSERT INTO t VALUES (3, 'three')",
    "INSERT INTO u VALUES (3, 'z')",
    "TRUNCATE TABLE u",
    "INSERT INTO u VALUES (4, 'w')",
)
SENT_AGAIN = (
    "SET gtid_domain_id = 2; INSERT INTO t VALUES (20, 'domain 2')",
    "INSERT INTO t VALUES (21, 'domain 0')",
    "TRUNCATE u",
    "SET gtid_domain_id = 2; UPDATE t SET v = 'again' WHERE id = 20",
    "SET server_id = 9; INSERT INTO t VALUES (22, 'server 9')",
    "CREATE TABLE other (id int PRIMARY KEY)",
    "DELETE FROM t WHERE id = 3",
)
AFTER = ("INSERT INTO t VALUES (40, 'after')", "INSERT INTO u VALUES (40, 'after')")
XA = (
    "XA START 'x'; INSERT INTO t VALUES (50, 'xa'); XA END 'x'; XA PREPARE 'x'; XA COMMIT 'x'",
    "INSERT INTO t VALUES (51, 'after it')",
)


def record(folder: Path, jars: tuple[Path, ...]) -> None:
    store = JarStore.from_environment(os.environ)
    with ExitStack() as stack:
        server = stack.enter_context(mariadb.started("--gtid-strict-mode=1"))
        broker = stack.enter_context(LocalBroker.start(folder / "broker", store))
        servers = broker.bootstrap_servers
        debezium = Debezium(folder / "connect", store, servers, server.port)
        debezium.further_jars, debezium.flush_ms = jars, 200
        debezium.settings = server.debezium() | {
            "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
            "database.ssl.mode": "disable",
        }
        stack.callback(debezium.kill)
        for name in ("t", "u"):
            server.run(f"CREATE TABLE {name} (id int PRIMARY KEY, v varchar(20))")
        server.run("INSERT INTO t VALUES (0, 'snapshot')")
        states = [state(server, "", "before Debezium")]

        def run(*steps: str) -> None:
            for step in steps:
                newest = server.run(f"{step}; SELECT @@last_gtid").splitlines()[-1]
                states.append(state(server, newest, step))

        debezium.start()
        wait(servers, "dbz.shop.t", 1)
        time.sleep(5)  # it goes from the snapshot to the log
        run(*ONCE)
        count = 2 * len(ONCE) - 2
        wait(servers, TRANSACTIONS, count)
        wait_for_flush(debezium)
        kept = shutil.copy(debezium.offsets, folder / "offsets")
        run(*SENT_AGAIN)
        wait(servers, TRANSACTIONS, count := count + 2 * len(SENT_AGAIN) - 2)
        debezium.kill()
        shutil.copy(kept, debezium.offsets)
        run(*AFTER)
        debezium.start()
        # The END of the transaction before comes again, too.
        wait(servers, TRANSACTIONS, count := count + 1 + 2 * len(SENT_AGAIN + AFTER) - 2)
        run(*XA)
        wait(servers, TRANSACTIONS, count + 4)
        debezium.stop()
        records = sorted(read_topics(servers), key=lambda each: each.timestamp)
    write_recording("mariadb", Recording(records, {}, {}))
    write_states("mariadb", states)


def state(server: mariadb.MariaDb, gtid: str, what: str) -> State:
    tables: Tables = {}
    for table, (key, value) in COLUMNS.items():
        rows = [line.split("\t") for line in server.run(f"SELECT * FROM {table}").splitlines()]
        tables[table] = {(row[0],): {key: row[0], value: row[1]} for row in rows}
    return State(gtid, what, tables, KEYS, COLUMNS)


def main(jars: list[str]) -> int:
    if not jars:
        print(__doc__, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="lowmark-record-") as folder:
        record(Path(folder), tuple(map(Path, jars)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
