"""Each part works with the rights that the how-to lists, on a broker with Kafka's own authorizer.
Without any one of them it does not (SEC-5).
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from connector import cli
from connector.config.settings import KafkaConfig, SourceConfig
from connector.dead_letters.filter import LetterFilter
from connector.errors import ConnectorError, DeliveryError
from connector.kafka import (
    Batching,
    ChangeConsumer,
    ChangeProducer,
    DeadLetterPublisher,
    Group,
    StreamSettings,
    TransactionConsumer,
    WriteSession,
    client,
    create_group_topics,
    create_topic,
    topics,
)
from connector.kafka.consume.options import Start
from connector.kafka.topics import TopicFacts
from connector.records.model import DataChange, Heartbeat, SetCell
from connector.services import DeadLetters, load_config, run_bridge
from connector.sources.model import SourceFormat
from tests.integration.changes import change
from tests.integration.foreign_topics import ForeignTopics
from tests.integration.test_dead_letter_queue import letter
from tests.integration.test_write_streams import rows
from tests.rights import Right, listed
from tests.secured import SecuredBroker, secured

__all__ = ["secured"]

pytestmark = pytest.mark.systems

ANY = LetterFilter(states=frozenset())


@dataclass(frozen=True)
class Try:
    """What a principal does: its settings, the names of its resources, and a folder with a
    configuration.
    """

    kafka: KafkaConfig
    root: KafkaConfig
    topic: str
    group: str
    id: str
    source: str
    folder: Path

    def facts(self) -> TopicFacts:
        return topics.describe(self.root, self.topic)

    def call(self, *arguments: str) -> None:
        code = cli.invoke(["--config", str(self.folder / "connector.toml"), *arguments])
        assert code == 0, arguments

    def letters(self, group: str | None = None) -> None:
        """Make a letter of the stream, or of the group."""
        if group is None:
            with DeadLetterPublisher(self.root, self.topic) as publisher:
                publisher.publish([letter(self.facts(), 0)])
            return
        with ChangeConsumer(
            self.root, self.topic, start=Group(f"{group}"), bounded=True
        ) as consumer:
            for received in consumer:
                if isinstance(received.record, DataChange):
                    consumer.set_aside(received, "bad")


def produce(of: Try, **options: str) -> None:
    with ChangeProducer(of.kafka, of.topic, **options) as producer:  # type: ignore[arg-type]
        producer.send(change(7))
        producer.flush(10)


def set_aside_by_the_producer(of: Try) -> None:
    refused = replace(change(8), entries=(SetCell("f", b"q", random.randbytes(20_000)),))
    with ChangeProducer(of.kafka, of.topic) as producer:
        producer.send(change(7))
        producer.flush()
        limit = ConfigEntry(
            "max.message.bytes", "9000", incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ConfigResource.Type.TOPIC, of.topic, incremental_configs=[limit])
        admin = client.admin(of.root)
        admin.incremental_alter_configs([resource])[resource].result(30)
        producer.send(refused)
        with pytest.raises(DeliveryError):
            producer.flush()
        producer.send_to_dead_letters(refused)


def resume(of: Try) -> None:
    with ChangeProducer(of.kafka, of.topic) as producer:
        producer.send(Heartbeat("p", 5, resume_token=b"here"))
        producer.flush()
        assert producer.resume_token("p") == b"here"


def write(of: Try) -> None:
    pending(of, "w0")  # so that there is a catalog to read
    with WriteSession(of.kafka, of.topic, "w1", batching=Batching(max_retry_s=5)) as session:
        stream = session.stream("rows", kind="committed")
        assert stream.append(rows(stream, 0, 5), 0).result(30).rows == 5


def pending(of: Try, name: str) -> None:
    with WriteSession(of.root, of.topic, name) as session:
        stream = session.stream("rows", kind="pending")
        stream.append(rows(stream, 0, 5), 0).result(30)


def commit(of: Try) -> None:
    pending(of, "w2")
    pending(of, "w3")
    for action, stream in (("finalize", "w2"), ("commit", "w2"), ("finalize", "w3")):
        of.call("write-streams", action, "--stream", "s", f"{stream}/rows")
    of.call("write-streams", "discard", "--stream", "s", "w3/rows")


def bridge(of: Try) -> None:
    """A change and a dead letter of an upsert topic, and a change behind them."""
    foreign = ForeignTopics(of.root, client.admin(of.root))
    foreign.prefix, _, name = of.source.partition(".")
    foreign.create(name)
    foreign.send(of.source, '{"n": 1}', "{no json", key="1")
    config = load_config(of.folder / "connector.toml")
    source = SourceConfig(format=SourceFormat.UPSERT_JSON, topics=(of.source,))
    config = replace(config, streams={"s": replace(config.streams["s"], source=source)})
    counts = run_bridge(config, once=True)
    assert (counts.changes, counts.letters) == (1, 1)
    foreign.send(of.source, '{"n": 2}', key="1")
    assert run_bridge(config, once=True).changes == 1


def load(of: Try) -> None:
    (of.folder / "rows.csv").write_text("id,name\n1,a\n")
    of.call("load", "others", str(of.folder / "rows.csv"))


def read(of: Try, start: Start | Group = "beginning") -> None:
    with ChangeConsumer(of.kafka, of.topic, start=start, bounded=True) as consumer:
        assert sum(1 for _ in consumer) > 0
        if isinstance(start, Group):
            consumer.commit()


def set_aside(of: Try) -> None:
    with ChangeConsumer(of.kafka, of.topic, start=Group(of.group), bounded=True) as consumer:
        for received in consumer:
            consumer.set_aside(received, "bad")
        consumer.commit()


def read_transactions(of: Try) -> None:
    with TransactionConsumer(
        of.kafka, of.topic, start=Group(of.group), bounded=True, stream=StreamSettings(roots=("p",))
    ) as consumer:
        for item in consumer:
            consumer.acknowledge(item)
        consumer.commit()


def look_at_letters(of: Try) -> None:
    of.letters()
    of.call("dead-letters", "list")
    of.call("dead-letters", "export", "--output", str(of.folder / uuid.uuid4().hex))
    of.call("dead-letters", "replay", "--all")


def act_on_letters(of: Try) -> None:
    of.letters()
    for action in ("park", "reopen", "discard"):
        of.call("dead-letters", action, "--all", "--why", "it is a test")


def reopened(of: Try, group: str | None = None) -> None:
    """Letters with a history in the ledger."""
    of.letters(group)
    config = replace(load_config(of.folder / "connector.toml"), kafka=of.root)
    letters = DeadLetters(config, by="root", group=group)
    assert letters.park(LetterFilter(), why="later")[0] == 1
    assert letters.reopen(ANY, why="now")[0] == 1


def replay(of: Try) -> None:
    reopened(of)
    of.call("dead-letters", "replay", "--all", "--execute", "--why", "it is a test")


def replay_to_group(of: Try) -> None:
    reopened(of, of.group)
    of.call(*("dead-letters", "replay", "--all", "--group", of.group), "--execute", "--why", "test")


ACTIONS: dict[str, Callable[[Try], object]] = {
    "`topic create`": lambda of: create_topic(of.kafka, f"{of.topic}.new", kafka_partitions=1),
    "`topic create --group`": lambda of: create_group_topics(of.kafka, of.topic, of.group),
    "a producer, `publish`": produce,
    "a producer with a transactional id": lambda of: produce(of, transactional_id=of.id),
    "a producer that calls `resume_token`": resume,
    "a producer that calls `send_to_dead_letters`": set_aside_by_the_producer,
    "a write session": write,
    "`write-streams finalize`, `commit`, `discard`": commit,
    "`write-streams list`, `show`": lambda of: of.call("write-streams", "list"),
    "`bridge`": bridge,
    "`load`": load,
    "a reader, `tail`": read,
    "a reader with a group": lambda of: read(of, Group(of.group)),
    "a reader that sets records aside": set_aside,
    "a reader with `replays=True`": lambda of: read(of, Group(of.group, replays=True)),
    "a `TransactionConsumer` with a group": read_transactions,
    "`dead-letters list`, `show`, `export`, a dry run": look_at_letters,
    "`dead-letters replay`": replay,
    "`dead-letters park`, `discard`, `reopen`": act_on_letters,
    "`dead-letters replay --group`": replay_to_group,
    "`validate`": lambda of: of.call("validate"),
}
OF_SPARK = {
    *("`connector run`", "`audit`", "`status`"),
    *(f"`{name}` of a source, also" for name in ("connector run", "audit", "status", "validate")),
}
"""tests/spark/test_secured.py and test_source_rights.py try these."""

CONFIG = """
warehouse = "w"
[kafka]
bootstrap_servers = "{servers}"
{settings}
[streams.s]
topic = "{topic}"
[tables.accounts]
stream = "s"
source = "t"
key = {{ columns = [{{ name = "id", type = "INT64" }}], form = "delimited" }}
columns = [{{ name = "name", family = "f", type = "STRING" }}]
[tables.others]
stream = "s"
source = "t2"
key = {{ columns = [{{ name = "id", type = "INT64" }}], form = "delimited" }}
columns = [{{ name = "name", family = "f", type = "STRING" }}]
"""


def principal(secured: SecuredBroker, who: str, rights: Sequence[Right], folder: Path) -> Try:
    """A new user with these rights, and its own topics."""
    unique = uuid.uuid4().hex[:10]
    kafka, root = secured.scram(f"u{unique}"), secured.open
    topic, group = f"t{unique}", f"g{unique}"
    create_topic(root, topic, kafka_partitions=2)
    if who != "`topic create --group`":
        create_group_topics(root, topic, group)
    with ChangeProducer(root, topic) as producer:
        producer.send(change(1))
    names = {"TOPIC": f"{topic}.new" if who == "`topic create`" else topic}
    names |= {"GROUP": group, "ID": f"id{unique}", "SOURCE": f"s{unique}.a"}
    for right in rights:
        name = right.named(**names)
        secured.allow(
            f"User:u{unique}", right.kind, name, right.operation, prefixed=right.is_prefix
        )
    settings = "\n".join(f'"{k}" = {json.dumps(v)}' for k, v in kafka.settings.items())
    (folder / "connector.toml").write_text(
        CONFIG.format(servers=kafka.bootstrap_servers, settings=settings, topic=topic)
    )
    return Try(kafka, root, topic, group, names["ID"], names["SOURCE"], folder)


def test_the_page_lists_what_is_tried() -> None:
    """SEC-5."""
    assert listed().keys() == ACTIONS.keys() | OF_SPARK


@pytest.mark.parametrize("who", ACTIONS)
def test_the_rights_of_the_page_suffice(secured: SecuredBroker, tmp_path: Path, who: str) -> None:
    """SEC-5."""
    ACTIONS[who](principal(secured, who, listed()[who], tmp_path))


UNNAMED = {
    ("a producer that calls `resume_token`", "WRITE TOPIC TOPIC"),
    ("`load`", "WRITE TOPIC TOPIC"),
    ("a `TransactionConsumer` with a group", "READ GROUP GROUP"),
    ("`dead-letters replay`", "WRITE TOPIC TOPIC.dead-letters.ledger"),
    ("`dead-letters park`, `discard`, `reopen`", "WRITE TOPIC TOPIC.dead-letters.ledger"),
    (
        "`dead-letters replay --group`",
        "WRITE TOPIC TOPIC.dead-letters.group.GROUP.ledger",
    ),
}
"""The client of Kafka does not say here that a right is missing."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("who", "missing"),
    [(who, place) for who in ACTIONS for place in range(len(listed()[who]))],
)
def test_each_right_of_the_page_is_needed_and_named(
    secured: SecuredBroker,
    tmp_path: Path,
    who: str,
    missing: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """SEC-5."""
    rights = listed()[who]
    left = [right for place, right in enumerate(rights) if place != missing]
    of = principal(secured, who, left, tmp_path)
    with pytest.raises((ConnectorError, AssertionError)) as caught:
        ACTIONS[who](of)
        pytest.fail(f"{who} works without {rights[missing]}", pytrace=False)
    is_named = "It needs the right" in f"{caught.value} {capsys.readouterr().err}"
    assert is_named == ((who, str(rights[missing])) not in UNNAMED)
