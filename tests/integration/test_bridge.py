"""A bridge on a real broker: the records of foreign topics become changes (SRC-1)."""

from __future__ import annotations

import base64
import json
import random
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from connector.cli.remedies import command_for
from connector.config.settings import ConnectorConfig, KafkaConfig, SourceConfig, StreamConfig
from connector.dead_letters.filter import LetterFilter
from connector.dead_letters.ledger import LetterState
from connector.dead_letters.repair import Step
from connector.dead_letters.replay import Verdict
from connector.errors import ConnectorError, TopicError, WriterConflictError
from connector.events import Event
from connector.kafka import LocalBroker, client, read_letters, topics
from connector.kafka.bridge import reader, session
from connector.kafka.bridge.audit import audit_source
from connector.kafka.bridge.checks import source_findings
from connector.kafka.bridge.session import BridgeCounts
from connector.kafka.client import records_between
from connector.kafka.tables import published_tables, source_tables
from connector.records.codec import ChangeRecord, Schemas, decode
from connector.records.model import MAX_INT, DataChange, Heartbeat, Record, SetCell
from connector.records.rejection import Reason
from connector.services import DeadLetters, load_config, run_bridge, status
from connector.services.tables import tables_of_topic
from connector.sources import by_transaction
from connector.sources.define import toml_of
from connector.sources.model import SourceFormat
from connector.sources.unsent import PLACEHOLDER
from connector.validation import Limits
from tests.broker import NewTopic, jar_store
from tests.documents import ROOT
from tests.integration.bridge_process import STEPS
from tests.integration.foreign_topics import START_US, ForeignTopics, foreign_topics, until


@pytest.fixture
def source(kafka: KafkaConfig, admin: AdminClient) -> Iterator[ForeignTopics]:
    with foreign_topics(kafka, admin) as made:
        for table in ("a", "b"):
            made.create(f"public.{table}", 2)
        made.create("public.beat")
        made.create("transaction")
        yield made


@pytest.fixture
def config(source: ForeignTopics, new_topic: NewTopic, tmp_path: Path) -> ConnectorConfig:
    return config_of(source, new_topic(kafka_partitions=2).topic, tmp_path)


def config_of(source: ForeignTopics, topic: str, folder: Path) -> ConnectorConfig:
    """The configuration of a bridge, also as `connector.toml` of the folder."""
    folder.mkdir(exist_ok=True)
    (folder / "connector.toml").write_text(
        f"""warehouse = "w"
[kafka]
bootstrap_servers = "{source.kafka.bootstrap_servers}"
"fetch.wait.max.ms" = "10"
[streams.shop]
topic = "{topic}"
[streams.shop.source]
format = "debezium-json"
topics = ["{source.prefix}.public.*"]
transactions = "{source.prefix}.transaction"
heartbeats = "public.beat"
"""
    )
    return load_config(folder / "connector.toml", {})


def sent(config: ConnectorConfig) -> list[ChangeRecord]:
    """All records of the change topic. A control record is in each Kafka partition."""
    facts = topics.describe(config.kafka, config.streams["shop"].topic)
    ends = topics.end_offsets(config.kafka, facts)
    read = records_between(
        config.kafka, facts.topic, facts.topic_id, {k: (0, end) for k, end in ends.items()}
    )
    decoded = [decode(r.value, Schemas(), kafka_partitions=MAX_INT) for r in read]
    return [record for record in decoded if isinstance(record, ChangeRecord)]


def records(config: ConnectorConfig) -> list[Record]:
    return [record.record for record in sent(config)]


def changes(config: ConnectorConfig) -> list[DataChange]:
    """The changes in the order of the source, without the claims of the producer."""
    return sorted(
        (
            replace(record, estimated_low_watermark=0)
            for record in records(config)
            if isinstance(record, DataChange)
        ),
        key=lambda change: (change.commit_timestamp, change.tie_breaker),
    )


def cells(change: DataChange) -> dict[str, str]:
    return {
        entry.qualifier.decode(): entry.value.decode()
        for entry in change.entries
        if isinstance(entry, SetCell) and entry.value
    }


def test_transactions_of_a_source_become_changes(
    source: ForeignTopics, config: ConnectorConfig
) -> None:
    """SRC-1, SRC-2: with the initial snapshot before them, and one commit timestamp each."""
    source.snapshot("a", [{"id": 1, "n": "one"}, {"id": 2, "n": "two"}])
    source.commit(("a", 1, {"n": "uno"}), ("b", 7, {"m": 1}))
    source.commit(("a", 2, None))
    source.commit(("beat", 1, {"at": "x"}))
    counts = run_bridge(config, "shop", once=True)
    made = changes(config)
    assert counts.changes == len(made) == 5
    assert [change.table[-1] for change in made] == ["a", "a", "a", "b", "a"]
    assert {cells(change)["n"] for change in made[:2]} == {"one", "two"}
    first, second = made[2:4]
    assert (cells(first), cells(second)) == ({"n": "uno"}, {"m": "1"})
    assert first.commit_timestamp == second.commit_timestamp == START_US + 1_000_000
    assert first.transaction is not None
    assert first.transaction.number_of_records_in_transaction == 2
    assert not cells(made[4])
    newest = max(r.timestamp for r in records(config) if isinstance(r, Heartbeat))
    assert newest == START_US + 3_000_000

    assert run_bridge(config, "shop", once=True).changes == 0
    source.commit(("b", 8, {"m": 2}))
    assert run_bridge(config, "shop", once=True).changes == 1


FIRST_STEPS = ("publish tables", "send", "reached")


@pytest.mark.parametrize(
    "steps", [FIRST_STEPS, pytest.param(STEPS.keys() - set(FIRST_STEPS), marks=pytest.mark.long)]
)
def test_a_bridge_that_is_killed_anywhere_publishes_the_same_changes(
    steps: Collection[str],
    source: ForeignTopics,
    config: ConnectorConfig,
    new_topic: NewTopic,
    tmp_path: Path,
    seed: int,
) -> None:
    """resumable, nothing_lost, nothing_invented: killed after any kind of step, and run again,
    it publishes what a bridge publishes that was never killed. SRC-1.
    """
    chosen = random.Random(seed)
    source.snapshot("a", [{"id": number, "n": "s"} for number in range(5)])
    for number in range(12):
        rows = [
            (chosen.choice("ab"), chosen.randrange(6), {"n": str(number)})
            for _ in range(chosen.randint(1, 4))
        ]
        source.commit(*{(table, id_): (table, id_, row) for table, id_, row in rows}.values())
        if number % 4 == 3:
            source.commit(("beat", 1, {"at": str(number)}))
    assert run(tmp_path, "never", 1) == 0
    expected = bare_changes(config)

    for step in sorted(steps):
        folder = tmp_path / step
        other = config_of(source, new_topic(kafka_partitions=3).topic, folder)
        assert run(folder, step, 1) == -signal.SIGKILL, step
        run(folder, step, chosen.randint(2, 20))
        assert run(folder, "never", 1) == 0
        assert bare_changes(other) == expected, step


def test_a_transaction_that_lacks_events_is_shown_and_can_be_skipped(
    source: ForeignTopics, config: ConnectorConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SRC-8: `status` says which one, and the command that goes on; and it shows the lag."""
    monkeypatch.setattr(session, "WAITING_S", 0.0)
    at_start = status(config).streams["shop"].bridge
    assert at_start is not None
    assert (at_start.is_known, at_start.lag, at_start.heartbeat_at) == (True, 0, 0)
    source.commit(("a", 1, {"n": "1"}))
    run_bridge(config, once=True)
    lacking = source.commit(("a", 2, {"n": "2"}), ends=False)
    source.end(int(lacking), {"public.a": 1, "public.b": 1})
    source.commit(("a", 3, {"n": "3"}))
    events: list[Event] = []
    assert run_bridge(config, once=True, on_event=events.append).changes == 0
    assert "BRIDGE_WAITS" in {event.code for event in events}
    bridge = status(config).streams["shop"].bridge
    assert bridge is not None
    assert bridge.lag == 4, "two rows and two ends"
    assert f"transaction {lacking}" in bridge.waiting
    assert "public.b (0 of 1)" in bridge.waiting
    assert bridge.lacking == lacking

    assert run_bridge(config, once=True, on_event=events.append, skip="99").changes == 0
    assert "transaction 99 was not skipped" in events[-1].text
    assert run_bridge(config, once=True, skip=lacking).changes == 2
    (first, second) = changes(config)[1:]
    assert (cells(first)["n"], cells(second)["n"]) == ("2", "3")
    assert first.transaction is not None
    assert first.transaction.number_of_records_in_transaction == 1, "ING-2: it lacks none"
    bridge = status(config).streams["shop"].bridge
    assert bridge is not None
    assert (bridge.lag, bridge.waiting, bridge.position_time) == (0, "", START_US + 3_000_000)


def test_a_record_that_cannot_be_read_is_a_letter_with_its_bytes(
    source: ForeignTopics, config: ConnectorConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SRC-6, poison_is_contained: the others are published."""
    monkeypatch.setattr(by_transaction, "POISON_WAITS_US", 0)
    topic = f"{source.prefix}.public.a"
    source.send(topic, "{no json", key='{"id": 9}', kafka_partition=0)
    source.commit(("a", 1, {"n": "1"}))
    counts = run_bridge(config, once=True)
    assert (counts.changes, counts.letters) == (1, 1)
    ((letter, _),) = read_letters(config.kafka, config.streams["shop"].topic)
    assert (letter.value, letter.key) == (b"{no json", b'{"id": 9}')
    assert (letter.position.topic, letter.position.offset) == (topic, 0)


def test_a_letter_of_a_bridge_is_repaired_and_replayed_at_its_place(
    source: ForeignTopics, config: ConnectorConfig
) -> None:
    """SRC-6, replay_is_safe: the change has the time of its transaction, and its count. A bridge
    that reads the record again writes no second letter.
    """
    source.commit(("a", 1, {"n": "1"}), ("a", 2, {"n": "2"}))
    run_bridge(config, once=True)
    letters = DeadLetters(config, "shop", on_event=lambda event: None)
    assert not list(letters.list(None))
    source.commit(("a", 3, {"n": PLACEHOLDER}), ("a", 4, {"n": "4"}))
    counts = run_bridge(config, once=True)
    assert (counts.changes, counts.letters) == (1, 1)
    ((letter, status),) = letters.list(None)
    assert (letter.reason, status.state) == (Reason.UNREADABLE_SOURCE, LetterState.OPEN)
    other = changes(config)[-1]
    assert letters.replay(LetterFilter(), why="again").verdicts == {Verdict.REFUSE: 1}
    steps = [Step.parse('set record.after.n="3"')]
    assert letters.replay(LetterFilter(), why="mended", steps=steps).verdicts == {Verdict.REPLAY: 1}
    replayed = next(change for change in changes(config) if cells(change).get("n") == "3")
    assert replayed.commit_timestamp == other.commit_timestamp
    assert replayed.transaction is not None
    assert other.transaction is not None
    assert replayed.transaction.server_transaction_id == other.transaction.server_transaction_id
    assert replayed.transaction.number_of_records_in_transaction == 2
    assert letters.replay(LetterFilter(), why="again", steps=steps).verdicts == {}


def test_the_tables_of_a_source_are_published_and_keep_their_names(
    source: ForeignTopics, config: ConnectorConfig
) -> None:
    """SRC-5: before the changes of a table, and again only if its columns change."""
    source.commit(("a", 1, {"n": "1"}), ("b", 1, {"m": 1}))
    run_bridge(config, once=True)
    topic = config.streams["shop"].topic
    first = source_tables(config.kafka, topic)
    assert {name: table.name for name, table in first.items()} == {
        "public.a": "a",
        "public.b": "b",
    }
    source.commit(("a", 2, {"n": "2", "added": True}))
    run_bridge(config, once=True)
    second = source_tables(config.kafka, topic)
    assert second["public.b"] == first["public.b"]
    columns = second["public.a"].section["columns"]
    assert [column["name"] for column in columns] == ["n", "added"]


def test_a_table_whose_rows_have_no_key_is_named_once(
    source: ForeignTopics, config: ConnectorConfig
) -> None:
    """SRC-3: Debezium sends no key for a table without a primary key."""
    topic = source.create("public.visits")
    source.snapshot("a", [{"id": 1}])
    event = {"op": "r", "after": {"who": "Ada"}, "source": {"schema": "public", "table": "visits"}}
    source.send(topic, *[json.dumps(event)] * 2, key=None)
    events: list[Event] = []
    counts = run_bridge(config, once=True, on_event=events.append)
    assert (counts.changes, counts.left_out) == (1, {"NO_KEY": 2})
    (warning,) = (event.text for event in events if event.code == "SOURCE_NO_KEY")
    assert "public.visits has rows without a key" in warning


def test_a_second_snapshot_is_a_warning(source: ForeignTopics, config: ConnectorConfig) -> None:
    """SRC-2, SRC-8: it does not have the rows that were deleted at the source in between."""
    events: list[Event] = []
    source.snapshot("a", [{"id": 1}, {"id": 2}])
    source.commit(("b", 1, {"m": 1}))
    run_bridge(config, once=True, on_event=events.append)
    assert "SOURCE_READ_AGAIN" not in {event.code for event in events}
    source.snapshot("a", [{"id": 1}, {"id": 3}])
    source.commit(("b", 2, {"m": 1}))
    run_bridge(config, once=True, on_event=events.append)
    (warning,) = (event.text for event in events if event.code == "SOURCE_READ_AGAIN")
    assert "public.a again" in warning


def test_a_section_of_the_user_says_that_a_text_is_base64(
    source: ForeignTopics, config: ConnectorConfig, tmp_path: Path
) -> None:
    """SRC-3, SRC-5, nothing_invented: from the first row on, and also if that has no value."""
    with (tmp_path / "connector.toml").open("a") as file:
        file.write(
            """[tables.a]
stream = "shop"
source = "public.a"
columns = [{name = "photo", type = "BYTES"}]
"""
        )
    config = load_config(tmp_path / "connector.toml", {}, source_tables=False)
    photo = base64.b64encode(b"\xff\x00").decode()
    source.commit(("a", 1, {"photo": None}), ("a", 2, {"photo": photo}))
    run_bridge(config, once=True)
    values = [
        entry.value
        for change in changes(config)
        for entry in change.entries
        if isinstance(entry, SetCell) and entry.qualifier == b"photo"
    ]
    assert values == [b"\xff\x00"]


def test_every_record_of_a_source_is_accounted_for(
    source: ForeignTopics, config: ConnectorConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SRC-7, nothing_lost: a change, a mark, a letter, or left out by a rule; and a change that is
    missing is noticed.
    """
    monkeypatch.setattr(by_transaction, "POISON_WAITS_US", 0)
    a, b = (f"{source.prefix}.public.{table}" for table in "ab")
    source.commit(("a", 1, {"n": "1"}), ("b", 1, {"m": 1}))
    source.send(b, None, key='{"id": 1}')
    source.repeat_last()
    source.commit(("beat", 1, {"at": "x"}))
    source.send(a, "{no json", kafka_partition=1)
    run_bridge(config, once=True)
    shop = config.streams["shop"]
    topics_of = {
        audit.topic.removeprefix(f"{source.prefix}."): audit for audit in audit_source(config, shop)
    }
    shown = {
        name: (t.changes, t.marks, t.letters, dict(t.left_out)) for name, t in topics_of.items()
    }
    assert shown == {
        "public.a": (1, 0, 1, {}),
        "public.b": (1, 0, 0, {"TOMBSTONE": 1, "REPETITION": 1}),
        "public.beat": (0, 0, 0, {"HEARTBEAT": 1}),
        "transaction": (0, 3, 0, {}),
    }
    assert sum(t.records for t in topics_of.values()) == 9
    assert not any(t.missing or t.unverified for t in topics_of.values())

    # A bridge that loses a change: its header names another record.
    monkeypatch.setattr(session, "headers", lambda _: [("connector.source", b"other/0/0")])
    source.commit(("a", 5, {"n": "5"}))
    run_bridge(config, once=True)
    (of_a,) = [audit for audit in audit_source(config, shop) if audit.topic == a]
    assert of_a.missing == 1
    assert of_a.examples[0].startswith(f"{a}/")


def test_a_topic_shows_the_definitions_of_its_tables(
    source: ForeignTopics, config: ConnectorConfig
) -> None:
    """SRC-5: `connector table define --from TOPIC`."""
    source.commit(("a", 1, {"n": "1"}), ("a", 2, {"n": "2", "flag": True}))
    (table,) = tables_of_topic(config, "shop", f"{source.prefix}.public.a")
    section = tomllib.loads(toml_of(table, "shop"))["tables"]["a"]
    assert (section["stream"], section["source"]) == ("shop", "public.a")
    assert section["key"]["columns"] == [{"name": "id", "type": "INT64"}]
    assert [column["name"] for column in section["columns"]] == ["n", "flag"]
    with pytest.raises(TopicError, match="There is no topic") as missing:
        tables_of_topic(config, "shop", "no.such.topic")
    assert (missing.value.code, command_for(missing.value)) == ("SOURCE_TOPIC_MISSING", None)


def test_validate_names_what_is_wrong_with_a_source(
    source: ForeignTopics, config: ConnectorConfig, tmp_path: Path
) -> None:
    """SRC-8."""
    shop = config.streams["shop"]
    assert levels(config, shop) == {"ok"}
    source.send(f"{source.prefix}.public.a", "{no json", kafka_partition=0)
    (error,) = [found for found in source_findings(config, shop) if not isinstance(found, tuple)]
    assert error.code == "TOPIC_FOREIGN"
    source.commit(("b", 1, {"m": 1}))
    assert levels(config, shop) == {"warning"}
    plain = replace(source.config, transactions="", topics=("no.such.*",))
    texts = str(list(source_findings(config, replace(shop, source=plain))))
    assert "no cut over several tables" in texts
    assert "no topic is no.such.*" in texts


def test_validate_names_a_table_without_a_key(
    source: ForeignTopics, config: ConnectorConfig
) -> None:
    """SRC-3, SRC-8: its rows are left out."""
    shop = config.streams["shop"]
    source.commit(("a", 1, {"n": 1}))
    topic, value, _ = source._last[0]
    for kafka_partition in (0, 1):
        source.send(topic, value, key=None, kafka_partition=kafka_partition)
    texts = [f[1] for f in source_findings(config, shop) if isinstance(f, tuple)]
    assert any("rows of public.a have no key, and are left out" in text for text in texts), texts


def levels(config: ConnectorConfig, stream: StreamConfig) -> set[str]:
    return {
        found[0] if isinstance(found, tuple) else "fault"
        for found in source_findings(config, stream)
    }


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_topic_of_transactions_with_several_kafka_partitions_is_refused(
    has_begun: bool, source: ForeignTopics, config: ConnectorConfig
) -> None:
    """SRC-8, cut_is_consistent: the ends of transactions would have no order."""
    source.commit(("a", 1, {"n": "1"}))
    if has_begun:
        assert run_bridge(config, once=True).changes == 1
    topic = f"{source.prefix}.transaction"
    source.add_partitions(topic, 2)
    source.commit(("a", 1, {"n": "2"}))
    with pytest.raises(TopicError) as refused:
        run_bridge(config, once=True)
    assert (refused.value.code, refused.value.topic) == ("SOURCE_TRANSACTIONS_SPLIT", topic)
    assert len(changes(config)) == has_begun
    found = list(source_findings(config, config.streams["shop"]))
    assert str(refused.value) in map(str, found)


def test_a_bridge_says_that_there_is_no_topic_of_transactions(
    source: ForeignTopics, config: ConnectorConfig
) -> None:
    """SRC-8: without it, nothing is published."""
    source.snapshot("a", [{"id": 1, "n": "1"}])
    source.delete(f"{source.prefix}.transaction")
    events: list[Event] = []
    run_bridge(config, once=True, on_event=events.append)
    (warning,) = (event for event in events if event.level != "debug")
    assert warning.code == "BRIDGE_WAITS"
    assert f"no topic of transactions {source.prefix}.transaction" in warning.text


def test_of_two_bridges_the_newer_one_goes_on(
    source: ForeignTopics, config: ConnectorConfig
) -> None:
    """SRC-8, nothing_lost, nothing_invented: the older one ends with an error."""
    older, newer = Running(config), Running(config)
    source.commit(("a", 1, {"n": "1"}))
    older.thread.start()
    until(lambda: len(changes(config)) == 1)
    newer.thread.start()
    try:
        source.commit(("a", 2, {"n": "2"}))
        older.thread.join(30)
        assert isinstance(older.result, WriterConflictError)
        assert older.result.code == "BRIDGE_TAKEN_OVER"
        source.commit(("a", 1, {"n": "3"}), ("b", 1, {"m": 1}))
        until(lambda: len(bare_changes(config)) == 4)
    finally:
        older.stop.set()
        newer.stop.set()
        newer.thread.join()
    assert isinstance(newer.result, BridgeCounts)
    assert published_tables(config.kafka, config.streams["shop"].topic) == {}


class Running:
    """A bridge in a thread, and how it ended."""

    def __init__(self, config: ConnectorConfig) -> None:
        self.stop = threading.Event()
        self.result: BridgeCounts | ConnectorError | None = None
        self.thread = threading.Thread(target=self._run, args=(config,))

    def _run(self, config: ConnectorConfig) -> None:
        try:
            self.result = run_bridge(config, stop=self.stop, on_event=lambda _: None)
        except ConnectorError as error:
            self.result = error


def test_a_dead_letter_that_is_too_large_names_the_setting(
    source: ForeignTopics, config: ConnectorConfig, admin: AdminClient
) -> None:
    """SRC-6, poison_is_contained: a record of the source may be larger than any of the stream."""
    topic = config.streams["shop"].topic
    text = base64.b64encode(random.Random(0).randbytes(1_700_000)).decode()
    source.create("public.large", **{"max.message.bytes": "4000000"})
    limited(admin, topic, 1_000_000)
    limited(admin, f"{topic}.dead-letters", 1_200_000)
    source.commit(("large", 1, {"n": text}), ("a", 1, {"n": "1"}))
    small = replace(config.streams["shop"], limits=Limits(max_record_bytes=1_000_000))
    config = replace(config, streams={"shop": small})
    with pytest.raises(TopicError, match=f"max.message.bytes=[0-9]* on {topic}.dead-letters") as at:
        run_bridge(config, once=True)
    limited(admin, f"{topic}.dead-letters", int(at.value.remedy.split()[1].split("=")[1]))
    counts = run_bridge(config, once=True)
    assert (counts.changes, counts.letters) == (1, 1)
    ((letter, _),) = read_letters(config.kafka, topic)
    assert text.encode() in (letter.value or b"")


def limited(admin: AdminClient, topic: str, size: int) -> None:
    """Set the message size limit of a topic."""
    entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(30)


def test_a_position_that_is_too_large_is_an_error_with_a_remedy(
    source: ForeignTopics, config: ConnectorConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SRC-8: the source has too many Kafka partitions for a resume token."""
    monkeypatch.setattr(session, "MAX_RESUME_TOKEN_BYTES", 100)
    source.commit(("a", 1, {"n": "1"}))
    with pytest.raises(TopicError, match="as another stream") as error:
        run_bridge(config, once=True)
    assert error.value.code == "SOURCE_TOO_WIDE"


def test_upsert_topics_become_changes_by_arrival(
    source: ForeignTopics, config: ConnectorConfig
) -> None:
    """SRC-4."""
    topic = source.create("prices", 2, **{"cleanup.policy": "compact"})
    source.send(topic, '{"amount": 1}', '{"amount": 2}', key="x")
    source.send(topic, '{"amount": 3}', None, key="y")
    upsert = SourceConfig(format=SourceFormat.UPSERT_JSON, topics=(topic,))
    stream = replace(config.streams["shop"], source=upsert)
    config = replace(config, streams={"shop": stream})
    assert run_bridge(config, once=True).changes == 4
    by_key: dict[bytes, list[dict[str, str]]] = {}
    for change in changes(config):
        by_key.setdefault(change.row_key, []).append(cells(change))
    assert by_key == {b"x": [{"amount": "1"}, {"amount": "2"}], b"y": [{"amount": "3"}, {}]}
    assert run_bridge(config, once=True).changes == 0


def test_a_running_bridge_takes_new_topics_and_stops(
    source: ForeignTopics, config: ConnectorConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SRC-8: Kafka partitions and topics that appear while it runs."""
    monkeypatch.setattr(reader, "REFRESH_S", 0.5)
    stop, counts = threading.Event(), list[int]()
    run = threading.Thread(
        target=lambda: counts.append(run_bridge(config, stop=stop, on_event=lambda _: None).changes)
    )
    run.start()
    try:
        source.commit(("a", 1, {"n": "1"}))
        until(lambda: len(changes(config)) == 1)
        source.create("public.c")
        source.add_partitions(f"{source.prefix}.public.a", 4)
        source.commit(("c", 1, {"n": "1"}), *[("a", n, {"n": str(n)}) for n in range(9)])
        until(lambda: len(changes(config)) == 11)
    finally:
        stop.set()
        run.join()
    assert counts == [11]


@pytest.mark.systems
def test_a_bridge_survives_the_loss_of_the_broker(tmp_path: Path) -> None:
    """SRC-8, nothing_lost: it begins again at its position when Kafka is back."""
    with LocalBroker.start(tmp_path / "broker", jar_store()) as broker:
        settings = {"message.timeout.ms": "3000", "fetch.wait.max.ms": "10"}
        kafka = KafkaConfig(broker.bootstrap_servers, settings)
        made = ForeignTopics(kafka, client.admin(kafka))
        for name in ("public.a", "public.b", "transaction"):
            made.create(name)
        topics.create_topic(kafka, "shop", kafka_partitions=2)
        config = replace(config_of(made, "shop", tmp_path), kafka=kafka)
        made.commit(("a", 1, {"n": "1"}), ("b", 1, {"m": 1}))
        stop, events = threading.Event(), list[Event]()
        thread = threading.Thread(
            target=lambda: run_bridge(config, stop=stop, on_event=events.append)
        )
        thread.start()
        try:
            until(lambda: len(changes(config)) == 2)
            broker.kill()
            until(lambda: "WAITING" in {event.code for event in events}, 120)
            broker.restart()
            made.commit(("a", 2, {"n": "2"}), ("b", 1, None))
            # Some were not covered by a resume token, and come again.
            until(lambda: len(bare_changes(config)) == 4, 120)
        finally:
            stop.set()
            thread.join()
        assert len(bare_changes(config)) == 4


def run(folder: Path, step: str, count: int) -> int:
    """The exit code of a bridge that is killed after so many such steps."""
    command = [sys.executable, "-m", "tests.integration.bridge_process"]
    arguments = [str(folder / "connector.toml"), step, str(count)]
    ended = subprocess.run([*command, *arguments], cwd=ROOT, timeout=120, check=False)
    return ended.returncode


def bare_changes(config: ConnectorConfig) -> dict[tuple[str, bytes, int, int], DataChange]:
    """The changes by their order, without their claims: these depend on the heartbeats."""
    return {
        change_of(change): replace(change, estimated_low_watermark=0) for change in changes(config)
    }


def change_of(change: DataChange) -> tuple[str, bytes, int, int]:
    return change.table, change.row_key, change.commit_timestamp, change.tie_breaker
