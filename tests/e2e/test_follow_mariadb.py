"""The tables of a stream become those of a real MariaDB, through Debezium's MySQL connector, and
whatever is not published is told. Spark has no part: the changes are judged by `tables.merge`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import KafkaError, KafkaException

from connector.config.settings import ConnectorConfig
from connector.config.source_tables import with_source_tables
from connector.errors import ConnectorError
from connector.events import Event
from connector.kafka import LocalBroker, create_topic, topics
from connector.kafka.bridge.audit import audit_source
from connector.kafka.client import records_between
from connector.kafka.tables import source_tables
from connector.records.codec import ChangeRecord, Schemas, decode
from connector.records.model import DataChange, Record, Truncate
from connector.records.ordering import OrderBy, OrderPosition, Rank, commit_rank
from connector.services import load_config, run_bridge, status
from connector.tables.definition import Versions
from connector.tables.merge import EMPTY, RowState, greatest, join, lift, truncate, visible
from examples.demo.pipeline import CONNECTOR
from tests import machine, mariadb
from tests.broker import jar_store
from tests.debezium import TRANSACTIONS, Debezium
from tests.documents import ROOT
from tests.record_debezium import DEADLINE_S, read_topics

TIMEOUT_S = 600
Rows = dict[str, dict[str, str]]
"""The column `v` of each row, by table and id."""

pytestmark = [
    pytest.mark.skipif(bool(machine.why_no_mariadb()), reason=machine.why_no_mariadb()),
    pytest.mark.timeout(TIMEOUT_S),
]


@dataclass
class Source:
    """A MariaDB, Debezium and a broker. Each table has the columns `id` and `v`, and three Kafka
    partitions.
    """

    folder: Path
    server: mariadb.MariaDb
    broker: LocalBroker
    debezium: Debezium
    _marks: Iterator[int] = field(default_factory=lambda: count(100))

    def create(self, *names: str) -> tuple[str, ...]:
        for name in names:
            self.server.run(f"CREATE TABLE {name} (id int PRIMARY KEY, v varchar(40))")
        return names

    def wait(self) -> None:
        """Wait until Debezium has written all that the server has."""
        first, written_at = next(self._marks), 0.0
        deadline = time.monotonic() + DEADLINE_S
        while not (transactions := self._since(first)):
            assert time.monotonic() < deadline, "Debezium sends no heartbeat"
            # One that a snapshot reads has no transaction.
            if time.monotonic() > written_at + 3:
                self.beat()
                written_at = time.monotonic()
            time.sleep(0.2)
        ends = [f'"END","id":"{name}"'.encode() for name in transactions]
        self.until(
            lambda: any(end in value for value in self.values(TRANSACTIONS) for end in ends),
            "a heartbeat has no END",
        )

    def beat(self) -> None:
        self.server.run(f"REPLACE INTO beat VALUES (1, '{next(self._marks)}')")

    def _since(self, first: int) -> set[str]:
        """The transactions of the heartbeats after one."""
        rows = [json.loads(value)["payload"] for value in self.values("dbz.shop.beat")]
        return {
            row["transaction"]["id"]
            for row in rows
            if row["transaction"] and row["after"] and int(row["after"]["v"]) > first
        }

    def values(self, topic: str) -> list[bytes]:
        try:
            return [r.value for r in read_topics(self.broker.bootstrap_servers, topic) if r.value]
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
                raise
            return []  # the topic is being made

    @staticmethod
    def until(holds: Callable[[], bool], why: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < deadline, why
            time.sleep(0.2)

    def ends(self) -> Counter[str]:
        """The ids of the ends of transactions, with how often they came."""
        ends = [json.loads(value)["payload"] for value in self.values(TRANSACTIONS)]
        return Counter(end["id"] for end in ends if end["status"] == "END")

    def rows(self, *tables: str) -> Rows:
        """The rows of the server. A table without rows is left out."""
        found: Rows = {}
        for table in tables:
            for line in self.server.run(f"SELECT id, v FROM {table}").splitlines():
                key, value = line.split("\t")
                found.setdefault(table, {})[key] = value
        return found

    def stream(self, name: str, *tables: str) -> Stream:
        """A new stream of some tables, which no bridge has read."""
        folder = self.folder / name
        folder.mkdir()
        names = ", ".join(f'"dbz.shop.{table}"' for table in (*tables, "beat"))
        (folder / "connector.toml").write_text(
            f"""warehouse = "w"
[kafka]
bootstrap_servers = "{self.broker.bootstrap_servers}"
[streams.{name}]
topic = "{name}"
[streams.{name}.source]
format = "debezium-json"
topics = [{names}]
transactions = "{TRANSACTIONS}"
heartbeats = "shop.beat"
"""
        )
        stream = Stream(name, folder)
        create_topic(stream.config.kafka, name, kafka_partitions=2)
        return stream


@dataclass
class Stream:
    """A stream and its bridge. `said` has the codes of its warnings and of the error that stopped
    it.
    """

    name: str
    folder: Path
    said: list[str] = field(default_factory=list)

    @property
    def config(self) -> ConnectorConfig:
        return load_config(self.folder / "connector.toml", {})

    def publish(self) -> list[str]:
        """Run the bridge to the ends of its topics, and return what it said."""
        self.said = []

        def note(event: Event) -> None:
            if event.level in ("warning", "error"):
                self.said.append(event.code)

        try:
            run_bridge(self.config, self.name, once=True, on_event=note)
        except ConnectorError as error:
            self.said.append(error.code)
        return self.said

    def start(self) -> subprocess.Popen[bytes]:
        with (self.folder / "bridge.log").open("ab") as log:
            return subprocess.Popen(
                [CONNECTOR, "bridge", "--stream", self.name],
                cwd=self.folder,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def records(self) -> list[Record]:
        """The change topic, in any order of its Kafka partitions."""
        kafka = self.config.kafka
        facts = topics.describe(kafka, self.name)
        ranges = {k: (0, end) for k, end in topics.end_offsets(kafka, facts).items()}
        read = records_between(kafka, facts.topic, facts.topic_id, ranges)
        decoded = [decode(record.value, Schemas()) for record in read]
        return [record.record for record in decoded if isinstance(record, ChangeRecord)]

    def rows(self) -> Rows:
        """The rows that the changes show. A table without rows is left out."""
        published = source_tables(self.config.kafka, self.name).values()
        tables = with_source_tables(self.config, {self.name: published}).tables.values()
        keys = {table.source: table.key for table in tables}
        states: dict[tuple[str, bytes], RowState] = {}
        truncated: dict[str, Rank | None] = {}
        for arrival, record in enumerate(self.records()):
            if isinstance(record, Truncate):
                truncated[record.table] = greatest(truncated.get(record.table), commit_rank(record))
            elif isinstance(record, DataChange):
                at = OrderPosition(1, 0, arrival)
                state = lift(record, at, OrderBy.COMMIT, Versions.LATEST)
                key = record.table, record.row_key
                states[key] = join(states.get(key, EMPTY), state)
        found: Rows = {}
        for (table, row_key), state in states.items():
            cells = {q: v for (_, q), v in visible(truncate(state, truncated.get(table))).items()}
            values = keys[table].read_key(row_key)
            assert isinstance(values, tuple)
            if cells:
                of_table = found.setdefault(table.removeprefix("shop."), {})
                of_table[str(values[0])] = cells[b"v"].decode()
        return found

    def unproved(self) -> dict[str, int]:
        """The records of each topic that the audit cannot account for."""
        audits = audit_source(self.config, self.config.streams[self.name])
        return {at.topic: lost for at in audits if (lost := at.missing + at.unverified)}

    def times(self) -> dict[str, set[int]]:
        """The commit timestamps of each transaction of the source."""
        found: dict[str, set[int]] = {}
        for record in self.records():
            if isinstance(record, DataChange) and record.transaction is not None:
                name = record.transaction.server_transaction_id
                found.setdefault(name, set()).add(record.commit_timestamp)
        return found


@contextmanager
def sources(folder: Path, **settings: str) -> Iterator[Source]:
    """A source with the heartbeat table. Debezium is not started."""
    if why := machine.why_no_debezium(jar_store()):
        pytest.skip(why)
    with ExitStack() as stack:
        server = stack.enter_context(mariadb.started(mariadb.AS_MYSQL))
        broker = stack.enter_context(LocalBroker.start(folder / "broker", jar_store()))
        servers = broker.bootstrap_servers
        debezium = Debezium(folder / "connect", jar_store(), servers, server.port, "json-schema")
        debezium.flush_ms = 200
        debezium.settings = server.debezium() | settings
        stack.callback(debezium.kill)
        source = Source(folder, server, broker, debezium)
        source.create("beat")
        yield source


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    # Small batches, so that a kill finds transactions that were sent in part.
    slow = {"max.batch.size": "20", "max.queue.size": "40", "poll.interval.ms": "20"}
    with sources(tmp_path_factory.mktemp("mariadb"), **slow) as made:
        made.debezium.start()
        made.wait()
        yield made


def test_a_truncation_is_behind_the_transactions_before_it(source: Source) -> None:
    """SRC-2: six rows, a truncation, and one row, which the bridge finds when it comes."""
    tables = source.create(*(f"six_{number}" for number in range(4)))
    for table in tables:
        for row in range(6):
            source.server.run(f"INSERT INTO {table} VALUES ({row}, 'before')")
        source.server.run(f"TRUNCATE {table}; INSERT INTO {table} VALUES (9, 'after')")
    source.wait()
    stream = source.stream("six", *tables)
    assert stream.publish() == []
    assert stream.rows() == source.rows(*tables) == {table: {"9": "after"} for table in tables}
    assert stream.unproved() == {}


def test_a_truncation_is_between_two_transactions(source: Source) -> None:
    """SRC-2: in each order in which a bridge may read the Kafka partitions."""
    tables = source.create(*(f"two_{number}" for number in range(12)))
    for number, table in enumerate(tables):
        # The rows get other Kafka partitions, and the last truncations are the end of the log.
        first, second = 2 * number, 2 * number + 1
        source.server.run(
            f"INSERT INTO {table} VALUES ({first}, 'first'); TRUNCATE {table};"
            f" INSERT INTO {table} VALUES ({second}, 'second')"
        )
    source.wait()
    for number in range(4):
        stream = source.stream(f"two{number}", *tables)
        assert stream.publish() == []
        assert stream.rows() == source.rows(*tables)


def test_a_truncation_at_the_end_of_the_log(source: Source) -> None:
    """SRC-2, SRC-8: it is published, or the bridge waits for the next transaction and says so."""
    (table,) = source.create("emptied")
    source.server.run(f"INSERT INTO {table} VALUES (1, 'a')")
    source.wait()
    stream = source.stream("emptied", table)
    assert stream.publish() == []
    source.server.run(f"TRUNCATE {table}")
    source.until(lambda: len(source.values(f"dbz.shop.{table}")) == 2, "no truncation is sent")
    assert stream.publish() or stream.rows() == {}
    source.wait()
    assert stream.publish() == []
    assert stream.rows() == {}


def test_debezium_and_the_bridge_are_killed(source: Source, seed: int) -> None:
    """SRC-1, SRC-2, nothing_lost, resumable: Debezium sends a stretch of 300 transactions again,
    and is killed in the middle of it and of a transaction. The bridge is killed, too.
    """
    random, tables = Random(seed), source.create("killed_a", "killed_b")
    source.wait()
    offsets, kept = source.debezium.offsets, source.folder / "kept.offsets"
    shutil.copy(offsets, kept)
    stream = source.stream("killed", *tables)
    bridge = stream.start()
    try:
        source.server.run(written(random, 300, tables))
        source.wait()
        caught_up(source, stream, tables)
        source.debezium.kill()
        shutil.copy(kept, offsets)
        before = len(source.values(TRANSACTIONS))
        source.debezium.start()
        source.until(
            lambda: len(source.values(TRANSACTIONS)) > before + 120, "nothing is sent again"
        )
        source.debezium.kill()
        caught_up(source, stream, tables)
        bridge.send_signal(signal.SIGKILL)
        bridge.wait()
        bridge = stream.start()
        rows = ", ".join(f"({number}, 'long')" for number in range(1000, 3000))
        changes = f"INSERT INTO killed_a VALUES {rows}; INSERT INTO killed_b VALUES {rows}"
        sent = len(source.values("dbz.shop.killed_b"))
        source.server.run(f"BEGIN; {changes}; COMMIT")
        source.debezium.start()
        source.until(lambda: len(source.values("dbz.shop.killed_b")) > sent + 900, "no row is sent")
        source.debezium.kill()
        source.debezium.start()
        source.server.run(written(random, 20, tables))
        source.wait()
    finally:
        bridge.kill()
        bridge.wait()
    assert stream.publish() == []
    assert stream.rows() == source.rows(*tables)
    assert {len(times) for times in stream.times().values()} == {1}, "a transaction came twice"
    assert stream.unproved() == {}


def written(random: Random, count: int, tables: tuple[str, ...]) -> str:
    """Transactions of one to three statements, and a few truncations."""
    lines = []
    for number in range(count):
        if random.random() < 0.05:
            lines.append(f"TRUNCATE {random.choice(tables)};")
        statements = []
        for _ in range(random.choice((1, 1, 2, 3))):
            table, key = random.choice(tables), random.randrange(20)
            write = f"REPLACE INTO {table} VALUES ({key}, 'v{number}')"
            delete = f"DELETE FROM {table} WHERE id = {key}"
            statements.append(delete if random.random() < 0.2 else write)
        lines.append("BEGIN; " + "; ".join(statements) + "; COMMIT;")
    return "\n".join(lines)


def caught_up(source: Source, stream: Stream, tables: tuple[str, ...]) -> None:
    """The bridge goes no further, and what it has published are the rows of the server. It holds a
    stretch that came again in part.
    """
    seen: list[int] = []

    def is_idle() -> bool:
        at = status(stream.config).streams[stream.name].bridge
        if at is not None and at.is_known and at.heartbeat_at:
            seen.append(at.lag)
            time.sleep(1)
        return len(seen) > 3 and len(set(seen[-3:])) == 1

    source.until(is_idle, "the bridge is busy")
    assert stream.rows() == source.rows(*tables)


@pytest.mark.parametrize("is_same", [False, True], ids=["smaller positions", "the same positions"])
def test_a_log_begins_again(tmp_path: Path, is_same: bool) -> None:
    """SRC-2, SRC-8, nothing_lost: after RESET MASTER and a new snapshot, the tables are those of
    the server, or the bridge has stopped or waits, and says why. With the same positions, ids of
    the old log name other transactions. A row that was deleted in between has no event, so the
    bridge must say something.
    """
    with sources(tmp_path) as source:
        server, debezium = source.server, source.debezium
        # Each change is as long as a heartbeat, so that transactions of two logs have one id.
        source.create("also")
        server.run("INSERT INTO also VALUES " + ", ".join(f"({key}, 'old')" for key in range(1, 9)))
        source.beat()
        if is_same:
            server.run("RESET MASTER")
        debezium.start()
        stream = source.stream("again", "also")
        source.wait()
        server.run(replaced("one"))
        source.wait()
        assert stream.publish() == []
        assert stream.rows() == source.rows("also")
        of_old = source.ends()
        debezium.kill()
        server.run("RESET MASTER; REPLACE INTO also VALUES (1, 'new')")
        if is_same:
            server.run("RESET MASTER")
        new_snapshot(source)
        server.run(replaced("two"))
        source.wait()
        of_new = source.ends() - of_old
        assert bool(of_old & of_new) is is_same
        stream.publish()
        assert stream.said or stream.rows() == source.rows("also")
        debezium.kill()
        server.run("RESET MASTER; DELETE FROM also WHERE id = 1")
        new_snapshot(source)
        assert stream.publish(), "a row is deleted at the source, and nothing says so"


def replaced(value: str) -> str:
    return "; ".join(f"REPLACE INTO also VALUES ({key}, '{value}')" for key in range(2, 9))


def new_snapshot(source: Source) -> None:
    """Debezium forgets its position, and reads all rows again."""
    source.debezium.offsets.unlink()
    source.server.history.unlink()
    source.debezium.start()
    source.wait()
