"""A bridge in operation: two at once, a registry that is away, SIGTERM, and DDL of the source."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer

from connector.cli.status import commands
from connector.config.settings import ConnectorConfig, RegistryConfig, SourceConfig
from connector.errors import BrokerError, WriterConflictError
from connector.events import Event
from connector.kafka import ChangeConsumer, StreamSettings, read_letters
from connector.kafka.bridge.audit import audit_source
from connector.kafka.local.folder import free_port
from connector.records.model import DataChange
from connector.reports.audit import StreamAudit
from connector.reports.bridge_status import BridgeStatus
from connector.reports.pipeline_status import PipelineStatus
from connector.services import run_bridge, status
from connector.services.source_tables import SourceTables
from connector.sources.by_transaction import ByTransaction
from connector.sources.model import Released, SourceFormat
from tests.broker import NewTopic
from tests.documents import ROOT
from tests.foreign_records import Registry, Typed, Writer, avro_record, number, text
from tests.integration.foreign_topics import ForeignTopics, until
from tests.integration.test_bridge import cells, changes, config, config_of, source
from tests.unit.registry_stub import RegistryStub, running_registry

__all__ = ["config", "source"]

COMMAND = [sys.executable, "-c", "from connector.cli import main; main()"]


class Running:
    """A bridge in a thread, with its events and the error that ended it."""

    def __init__(self, config: ConnectorConfig) -> None:
        self.events, self.error = list[Event](), list[Exception]()
        self._config, self._stop = config, threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            run_bridge(self._config, stop=self._stop, on_event=self.events.append)
        except Exception as error:  # noqa: BLE001, the test looks at it
            self.error.append(error)

    @property
    def codes(self) -> list[str]:
        return [event.code for event in self.events]

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@contextmanager
def running(config: ConnectorConfig) -> Iterator[Running]:
    bridge = Running(config)
    try:
        yield bridge
    finally:
        bridge.stop()


def distinct(config: ConnectorConfig) -> set[DataChange]:
    """The changes without repetitions. Two changes of one order that differ are two."""
    return set(changes(config))


def newest_rows(config: ConnectorConfig) -> dict[tuple[str, bytes], dict[str, str]]:
    """The rows that the changes make: each change has a whole row."""
    newest = {(c.table, c.row_key): cells(c) for c in changes(config)}  # in the order of commits
    return {key: row for key, row in newest.items() if row}


def test_bridges_that_overlap_publish_what_one_of_them_does(
    source: ForeignTopics, config: ConnectorConfig, new_topic: NewTopic, tmp_path: Path, seed: int
) -> None:
    """SRC-8, nothing_lost, nothing_invented, newest_wins: four bridges of one stream begin one
    after the other, without the end of the one before. A bridge that ends by itself says why.
    """
    chosen = random.Random(seed)
    source.snapshot("a", [{"id": number, "n": "s"} for number in range(4)])
    bridges = list[Running]()
    try:
        for turn in range(16):
            if turn % 4 == 0:
                bridges.append(Running(config))
            rows = {
                (table, id_): chosen.choice([{"n": f"{turn}"}, {"n": f"{turn}"}, None])
                for table in "ab"
                for id_ in chosen.sample(range(4), 2)
            }
            written = [
                (table, id_, row)
                for (table, id_), row in rows.items()
                if row or id_ in source.tables.get(table, {})
            ]
            if written:
                source.commit(*written)
            time.sleep(chosen.random() * 0.4)
        other = config_of(source, new_topic(kafka_partitions=3).topic, tmp_path / "other")
        run_bridge(other, once=True)
        until(lambda: distinct(config) >= distinct(other))
    finally:
        for bridge in bridges:
            bridge.stop()
    assert all(isinstance(e, WriterConflictError) for b in bridges for e in b.error)
    assert not bridges[-1].error
    assert distinct(config) == distinct(other)
    assert newest_rows(config) == newest_rows(other)
    assert sorted(newest_rows(config).values(), key=str) == sorted(
        ({"n": row["n"]} for rows in source.tables.values() for row in rows.values()), key=str
    )


class AvroTopic:
    """An upsert topic with Avro, and the registry with its schemas."""

    def __init__(self, source: ForeignTopics) -> None:
        self.topic, self._source = source.create("prices"), source
        self.stub, self._schemas = RegistryStub(), Registry()

    def send(self, id_: int, *fields: Typed) -> None:
        row = {field.name: field.avro_value for field in fields}
        key = self._schemas.framed(avro_record("Key", [number("id", id_)]), {"id": id_})
        value = self._schemas.framed(avro_record("Value", list(fields)), row)
        for schema_id, schema in enumerate(self._schemas.texts, 1):
            self.stub.add(schema, schema_id)
        producer = Producer({"bootstrap.servers": self._source.kafka.bootstrap_servers})
        producer.produce(self.topic, value, key)
        assert producer.flush(30) == 0


def read(config: ConnectorConfig) -> list[DataChange]:
    """The changes, read with the registry."""
    topic, of_registry = config.streams["shop"].topic, StreamSettings(registry=config.registry)
    with ChangeConsumer(config.kafka, topic, bounded=True, stream=of_registry) as consumer:
        return [item.record for item in consumer if isinstance(item.record, DataChange)]


def test_a_bridge_waits_for_a_registry_that_is_away(
    source: ForeignTopics, config: ConnectorConfig
) -> None:
    """SRC-8, nothing_lost, poison_is_contained: at the start and later, it says so and goes on. A
    registry that is away makes no dead letter. With `once`, it is an error.
    """
    avro, port = AvroTopic(source), free_port()
    upsert = SourceConfig(format=SourceFormat.UPSERT_AVRO, topics=(avro.topic,))
    config = replace(
        config,
        registry=RegistryConfig(f"http://127.0.0.1:{port}", auto_register=True),
        streams={"shop": replace(config.streams["shop"], source=upsert)},
    )
    avro.send(1, text("n", "one"))
    with pytest.raises(BrokerError) as refused:
        run_bridge(config, once=True)
    assert refused.value.code == "REGISTRY_UNREACHABLE"
    with running(config) as bridge:
        until(lambda: "WAITING" in bridge.codes)
        assert f"127.0.0.1:{port}" in bridge.events[-1].text
        with running_registry(avro.stub, port):
            until(lambda: len(read(config)) == 1)
        retries = bridge.codes.count("WAITING")
        avro.send(2, text("n", "two"), text("more", "x"))
        until(lambda: bridge.codes.count("WAITING") > retries)
        with running_registry(avro.stub, port):
            until(lambda: len({change.row_key for change in read(config)}) == 2)
            made = {change.row_key: cells(change) for change in read(config)}
    assert sorted(made.values(), key=str) == [{"n": "one"}, {"n": "two", "more": "x"}]
    assert not bridge.error
    assert not list(read_letters(config.kafka, config.streams["shop"].topic))


def test_a_bridge_without_topics_says_so(source: ForeignTopics, config: ConnectorConfig) -> None:
    """SRC-8, SEC-5: a wrong name, a topic that does not exist yet, and one that Kafka hides."""
    events: list[Event] = []
    names = ("no.such.*", *source.config.topics)
    shop = replace(config.streams["shop"], source=replace(source.config, topics=names))
    config = replace(config, streams={"shop": shop})
    source.commit(("a", 1, {"n": "1"}))
    assert run_bridge(config, once=True, on_event=events.append).changes == 1
    (warning,) = (event for event in events if event.level != "debug")
    assert [event.fields["done"] for event in events if event.code == "PROGRESS"][-1] != 0, "RUN-4"
    assert warning.code == "SOURCE_TOPIC_MISSING"
    assert "no topic is no.such.* yet" in warning.text


def test_sigterm_ends_the_command_and_loses_nothing(
    source: ForeignTopics, config: ConnectorConfig, new_topic: NewTopic, tmp_path: Path
) -> None:
    """SRC-1, OPS-4, nothing_lost, nothing_invented: exit code 0, while it publishes."""
    file = tmp_path / "connector.toml"
    process = subprocess.Popen(
        [*COMMAND, "--config", str(file), "bridge"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for number in range(4):
            source.commit(("a", number, {"n": str(number)}), ("b", number, {"m": number}))
        until(lambda: len(changes(config)) > 0)
        for number in range(4):
            source.commit(("a", number, {"n": "later"}), ("b", number, None))
            if number == 1:
                process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert "0 dead letters published" in said.splitlines()[-1]
    assert "Traceback" not in said
    before = len(changes(config))
    left = run_bridge(config, once=True).changes
    other = config_of(source, new_topic(kafka_partitions=3).topic, tmp_path / "other")
    assert run_bridge(other, once=True).changes == 16
    assert distinct(config) == distinct(other)
    assert before + left == 16, "what it reported is not sent again"


class Customers:
    """A table of a source as JSON with schemas, whose columns change."""

    def __init__(self, source: ForeignTopics) -> None:
        self._source, self._lsn = source, 1000
        self.topic = source.create("public.customers")

    def write(self, op: str, id_: int, *fields: Typed, snapshot: str = "false") -> None:
        self._lsn += 10
        writer = Writer("json with schema", [number("id", id_)], [number("id", id_), *fields])
        sequence = f'["{self._lsn}","{self._lsn}"]'
        of_source = {"sequence": sequence, "lsn": self._lsn, "snapshot": snapshot}
        record = writer.event(op, transaction=None, **of_source)
        assert record.key is not None
        assert record.value is not None
        self._source.send(self.topic, record.value.decode(), key=record.key.decode())


def with_default(name: str, value: str, default: str) -> Typed:
    return Typed(name, {"type": "string", "default": default}, "string", value)


def test_columns_with_a_default_and_renamed_ones_are_read_again(
    source: ForeignTopics, config: ConnectorConfig
) -> None:
    """SRC-5, nothing_lost: `status` names the snapshot to signal until it has come."""
    customers = Customers(source)
    config = replace(
        config,
        streams={
            "shop": replace(
                config.streams["shop"],
                source=SourceConfig(format=SourceFormat.DEBEZIUM_JSON, topics=(customers.topic,)),
            )
        },
    )
    with closing(SourceTables(config, lambda event: None)) as tables:

        def defaults() -> tuple[dict[str, tuple[str, ...]], list[str]]:
            run_bridge(config, once=True)
            until(tables.store_new)
            bridge = status(config).streams["shop"].bridge
            assert bridge is not None
            return dict(bridge.missing_defaults), list(bridge.hints(bridge.heartbeat_at))

        customers.write("c", 1, text("n", "one"))
        customers.write("c", 2, text("n", "two"))
        assert defaults() == ({}, [])
        customers.write("c", 3, text("n", "three"), with_default("note", "of 3", "-"))
        missing, (hint,) = defaults()
        assert missing == {"public.customers": ("note",)}
        assert "signal an incremental snapshot of public.customers to Debezium" in hint
        for id_, name in enumerate(("one", "two"), 1):
            note = with_default("note", "-", "-")
            customers.write("r", id_, text("n", name), note, snapshot="incremental")
        assert defaults() == ({}, [])
        assert newest(config) == [
            {"n": "one", "note": "-"},
            {"n": "two", "note": "-"},
            {"n": "three", "note": "of 3"},
        ]
        customers.write("u", 1, text("title", "uno"))
        customers.write("r", 2, text("title", "two"), snapshot="incremental")
        customers.write("r", 3, text("title", "three"), snapshot="incremental")
        assert defaults() == ({}, [])
    assert newest(config) == [{"title": "uno"}, {"title": "two"}, {"title": "three"}]


def newest(config: ConnectorConfig) -> list[dict[str, str]]:
    """The rows in the order of their keys, which is that of their ids."""
    return [row for _, row in sorted(newest_rows(config).items())]


def test_the_status_says_whether_a_bridge_runs(
    source: ForeignTopics, config: ConnectorConfig
) -> None:
    """RUN-1: it is a reason if none runs, and the source has records that are not published."""

    def bridge() -> BridgeStatus:
        of_stream = status(config).streams["shop"].bridge
        assert of_stream is not None
        return of_stream

    def process() -> PipelineStatus:
        of_bridge = bridge().process
        assert of_bridge is not None
        return of_bridge

    def reasons() -> list[str]:
        lines = [reason.line for reason in status(config).reasons]
        down = "BRIDGE_DOWN stream shop: "
        return [line.removeprefix(down) for line in lines if line.startswith(down)]

    source.snapshot("a", [{"id": 1, "n": "s"}])
    assert reasons() == ["not running: no process has left a record"]
    Path(config.warehouse, "streams", "shop").mkdir(parents=True)
    with running(config) as runs:
        until(lambda: process().is_running is True and not process().is_starting)
        until(lambda: bridge().lag == 0)
        assert (reasons(), "BRIDGE_RUNNING" in runs.codes) == ([], True)
    assert process().is_running is False
    assert reasons() == [], "everything is published"
    source.commit(("a", 1, {"n": "t"}))
    assert reasons() == [process().text]
    assert "connector bridge --stream shop" in commands(status(config))
    run_bridge(config, once=True)
    source.commit(("a", 1, {"n": "u"}))
    assert reasons() == [], "it was to end"


def test_the_audit_tells_changes_that_are_missing_doubled_or_disordered(
    source: ForeignTopics, config: ConnectorConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SRC-7, nothing_lost, newest_wins: a sequencer loses a change, releases one at two places, and
    gives a transaction a place behind a later one.
    """
    missing, doubled, _, late, _ = (
        source.commit(("a", number, {"n": str(number)}), ("b", number, {"m": number}))
        for number in range(5)
    )
    right = ByTransaction.released

    def released(sequencer: ByTransaction, now: int) -> Iterator[Released]:
        for one in right(sequencer, now):
            event, time_ = one.event, one.commit_timestamp
            name = event.commit.transaction, event.table
            if name == (doubled, "public.a"):
                yield replace(one, commit_timestamp=time_ + 1)
            if name[0] == late:
                one = replace(one, commit_timestamp=time_ + 1_500_000)
            if name != (missing, "public.a"):
                yield one

    monkeypatch.setattr(ByTransaction, "released", released)
    run_bridge(config, once=True)
    audits = audit_source(config, config.streams["shop"])
    found = {
        audit.topic.rsplit(".", 1)[1]: (audit.missing, audit.doubled, audit.disordered)
        for audit in audits
    }
    assert found == {"a": (1, 1, 0), "b": (0, 0, 0), "beat": (0, 0, 0), "transaction": (0, 0, 1)}
    fault = StreamAudit("shop", 0, source=audits).fault()
    assert fault is not None
    assert "nothing_lost: 1 record of the source is without a change" in fault.problem
    assert "newest_wins: 1 record of the source is published at several places" in fault.problem
    assert f"{source.prefix}.transaction/0/4)" in fault.problem
