"""The page about databases works with a real PostgreSQL and a real Debezium, and goes on after each
of them was killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import pytest

from connector.jars import JarStore, fetch
from connector.kafka import LocalBroker
from connector.services import audit, load_config
from examples.demo.pipeline import CONNECTOR
from tests import machine, postgres
from tests.broker import jar_store
from tests.debezium import Debezium
from tests.documents import ROOT, code_blocks
from tests.record_debezium import DEADLINE_S, read_topics, wait_for
from tests.spark.conftest import QUICK_PROCESS

PAGE = ROOT / "docs/howto/follow-a-database.md"
TIMEOUT_S = 900
TABLES = ("customers", "sales")
Row = list[tuple[str, str]]
LONG = "substr(repeat(md5('a'), 200), 1, 4000)"

pytestmark = [
    pytest.mark.skipif(bool(machine.why_no_postgres()), reason=machine.why_no_postgres()),
    pytest.mark.timeout(TIMEOUT_S),
]


@dataclass
class Deployment:
    """The parts that the page needs, in one folder."""

    folder: Path
    server: postgres.Postgres
    broker: LocalBroker
    debezium: Debezium
    transaction: str = ""
    """The newest one that the test has waited for."""
    output: dict[str, str] = field(default_factory=dict)

    @property
    def config(self) -> Path:
        return self.folder / "connector.toml"

    def connector(self, *arguments: str) -> str:
        """Run a command as a reader types it, and return its standard output."""
        answer = subprocess.run(
            [CONNECTOR, *arguments],
            cwd=self.folder,
            env=os.environ | QUICK_PROCESS | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        assert answer.returncode == 0, f"{arguments}: {answer.stderr}"
        return answer.stdout

    def commit(self, *statements: str) -> None:
        """Run statements in one transaction."""
        with self.server.session() as session:
            session.run("BEGIN")
            for statement in statements:
                session.run(statement)
            self.transaction = session.run("SELECT pg_current_xact_id()")
            session.run("COMMIT")

    def wait_for_debezium(self) -> None:
        """Wait until Debezium has written the newest transaction."""
        wait_for(self.broker.bootstrap_servers, self.transaction)

    def read_again(self, table: str) -> None:
        """Ask for an incremental snapshot of a table, as the page does, and wait for its rows."""
        self.server.run(block_with("INSERT INTO debezium.signal").replace("customers", table))
        ids = f"SELECT count(*) FROM {table}"
        ((count,),) = self.server.rows(ids)
        topic, deadline = f"dbz.public.{table}", time.monotonic() + DEADLINE_S
        while len(self._read_again(topic)) < int(count or 0):
            assert time.monotonic() < deadline, f"{table} is not read again"
            time.sleep(0.5)

    def _read_again(self, topic: str) -> set[bytes | None]:
        records = read_topics(self.broker.bootstrap_servers, topic)
        return {r.key for r in records if r.value and b'"snapshot":"incremental"' in r.value}

    def start_bridge(self) -> subprocess.Popen[bytes]:
        with (self.folder / "bridge.log").open("ab") as log:
            return subprocess.Popen(
                [CONNECTOR, "bridge", "--stream", "shop"],
                cwd=self.folder,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def read(self, table: str) -> list[Row]:
        """The rows of the newest cut of a table."""
        lines = self.connector("read", table, "--snapshot", "--json").splitlines()
        return sorted(_comparable(json.loads(line)) for line in lines)

    def true_rows(self, table: str) -> list[Row]:
        """The rows of a table in PostgreSQL."""
        answer = self.server.rows(f"SELECT to_json(t) FROM {table} t")
        return sorted(_comparable(json.loads(line or "")) for (line,) in answer)


def block_with(text: str) -> str:
    """The block of statements of the page that has this text."""
    (block,) = (block for block in code_blocks(PAGE, "text") if text in block)
    return block


def _comparable(row: dict[str, object]) -> Row:
    """A row without its NULLs, with one spelling of numbers and times."""
    return sorted(
        (name, _shown(name, str(value))) for name, value in row.items() if value is not None
    )


def _shown(name: str, text: str) -> str:
    if name in ("total", "amount"):
        return str(float(text))
    return datetime.fromisoformat(text).isoformat() if name == "paid_at" else text


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """What the page has up to its commands, and its table of signals."""
    if why := machine.why_no_debezium(jar_store()):
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("database")
    with ExitStack() as stack:
        server = stack.enter_context(postgres.started())
        broker = stack.enter_context(LocalBroker.start(folder / "broker", jar_store()))
        (schema,) = code_blocks(PAGE, "sql")
        server.run(*schema.split(";\n"), *block_with("CREATE TABLE debezium.signal").split(";\n"))
        settings: dict[str, str] = json.loads(code_blocks(PAGE, "text")[1])
        settings["database.port"] = str(server.port)
        settings["signal.data.collection"] = "debezium.signal"
        debezium = Debezium(
            folder / "connect", jar_store(), broker.bootstrap_servers, server.port, "json-schema"
        )
        debezium.settings = settings
        stack.callback(debezium.kill)
        made = Deployment(folder, server, broker, debezium)
        (config,) = code_blocks(PAGE, "toml")
        made.config.write_text(config.replace("127.0.0.1:9092", broker.bootstrap_servers))
        debezium.start()
        # The first transaction is out when the rows that were there before are.
        made.commit("UPDATE customers SET email = 'boaz@example.org' WHERE id = 2")
        made.wait_for_debezium()
        yield made


def test_the_commands_of_the_page(deployment: Deployment) -> None:
    """SRC-11: from a database to a table, as a reader types it."""
    blocks = code_blocks(PAGE, "console")
    (commands,) = [block for block in blocks if "bridge --stream shop --once" in block]
    for line in commands.splitlines():
        program, *arguments = line.split()
        assert program == "connector"
        deployment.output[line] = deployment.connector(*arguments)
    assert "Ada" in deployment.output["connector read customers"]
    assert tomllib.loads(deployment.config.read_text())["streams"]["shop"]["source"]
    assert deployment.read("orders") == deployment.true_rows("orders")
    assert len(deployment.true_rows("orders")) == 2


def test_every_part_is_killed(deployment: Deployment) -> None:
    """SRC-1, SRC-5, SRC-10, nothing_lost, resumable: Debezium, the bridge and PostgreSQL are killed
    while rows are written, and the tables become those of PostgreSQL. Columns and a table are added
    and renamed, and incremental snapshots bring their older rows.
    """
    bridge = deployment.start_bridge()
    try:
        deployment.commit(f"UPDATE customers SET notes = {LONG} WHERE id = 1")
        for number in range(2, 30):
            deployment.commit(
                f"INSERT INTO customers VALUES ({number + 100}, 'C{number}', NULL, NULL)",
                f"INSERT INTO orders VALUES ({number + 100}, {number}, {number}.5, NULL)",
                f"UPDATE orders SET total = total + 1 WHERE number < {number}",
            )
            if number == 6:
                deployment.commit(
                    "TRUNCATE orders", "INSERT INTO orders VALUES (7, 7, NULL, now())"
                )
            if number == 8:
                deployment.debezium.kill()
            if number == 12:
                deployment.debezium.start()
            if number == 16:
                bridge.send_signal(signal.SIGKILL)
                bridge.wait()
                bridge = deployment.start_bridge()
            if number == 20:
                deployment.server.kill()
                deployment.server.start()
                if not deployment.debezium.is_running():
                    deployment.debezium.kill()
                    deployment.debezium.start()
            time.sleep(0.05)
        deployment.server.run(
            "ALTER TABLE customers ADD COLUMN phone text",
            "ALTER TABLE customers ADD COLUMN country text DEFAULT 'NL'",
            "ALTER TABLE orders RENAME COLUMN total TO amount",
        )
        deployment.commit("UPDATE customers SET id = 1000, phone = '1' WHERE id = 1")
        deployment.commit(
            "DELETE FROM customers WHERE id = 2", "DELETE FROM orders WHERE number = 9"
        )
        # Debezium finds no key of a table that was renamed before it has read its rows.
        deployment.wait_for_debezium()
        deployment.server.run("ALTER TABLE orders RENAME TO sales")
        deployment.commit("INSERT INTO sales VALUES (1, 100, 2.5, NULL)")
        deployment.wait_for_debezium()
        for table in TABLES:
            deployment.read_again(table)
        # A cut has the rows of a snapshot from the next transaction on.
        deployment.commit("INSERT INTO sales VALUES (2, 101, NULL, NULL)")
        deployment.wait_for_debezium()
    finally:
        bridge.kill()
        bridge.wait()
    deployment.connector("bridge", "--stream", "shop", "--once")
    deployment.connector("run", "--once")
    for table in TABLES:
        assert deployment.read(table) == deployment.true_rows(table)
    assert len(deployment.true_rows("customers")) > 20
    assert len(deployment.read("orders")) == len(deployment.true_rows("sales")) - 2
    (proof,) = audit(load_config(deployment.config), "shop")
    assert proof.fault() is None, str(proof)


def test_without_a_network_the_tests_with_debezium_are_left_out(tmp_path: Path) -> None:
    """SRC-10: with the reason. A jar that differs from its lock is a failure."""
    store, folder = jar_store(), tmp_path / "jars"
    folder.mkdir()
    for path in (*fetch("broker", store), *store.folder.glob("broker-*.ok")):
        (folder / path.name).symlink_to(path)
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="mirror"/><resolvers><ibiblio name="mirror"'
        ' m2compatible="true" root="http://127.0.0.1:1/"/></resolvers></ivysettings>'
    )
    why = machine.why_no_debezium(JarStore(folder, store.environment, settings))
    assert why.startswith("no jars of Debezium. The repository cannot be reached: ")
