"""The rights of those who run, and of those who read, a stream with a source, on a broker with
Kafka's own authorizer (SEC-5, OPR-7).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connector.config.settings import ConnectorConfig, KafkaConfig
from connector.errors import ConnectorError
from connector.events import Event
from connector.kafka import client, topics
from connector.services import (
    ConfigFile,
    audit,
    explain,
    jobs,
    load_config,
    read,
    run,
    run_bridge,
    status,
)
from connector.services.validate_config import validate_config
from tests.integration.changes import send_raw
from tests.integration.foreign_topics import ForeignTopics
from tests.rights import Right, listed
from tests.secured import SecuredBroker, secured

__all__ = ["secured"]

pytestmark = [pytest.mark.systems, pytest.mark.timeout(600)]

CONFIG = """
warehouse = "{warehouse}"
[kafka]
bootstrap_servers = "{servers}"
{settings}
[streams.s]
topic = "{topic}"
[streams.s.source]
format = "debezium-json"
topics = ["{prefix}.public.a"]
transactions = "{prefix}.transaction"
"""
NEEDS = "It needs the right"
OF_RUN = [*listed()["`connector run`"], *listed()["`connector run` of a source, also"]]
OF_AUDIT = [*listed()["`audit`"], *listed()["`audit` of a source, also"]]
OF_STATUS = [*listed()["`status`"], *listed()["`status` of a source, also"]]
OF_VALIDATE = [*listed()["`validate`"], *listed()["`validate` of a source, also"]]
OF_COLLEAGUE = [
    right
    for rights in listed("let-a-colleague-read.md", "Rights in Kafka").values()
    for right in rights
]


@dataclass(frozen=True)
class Shop:
    """A stream with a source, whose bridge has published a row and a dead letter."""

    secured: SecuredBroker
    foreign: ForeignTopics
    topic: str
    folder: Path

    def file(self, kafka: KafkaConfig) -> Path:
        path = self.folder / f"{uuid.uuid4().hex}.toml"
        settings = "\n".join(f'"{k}" = {json.dumps(v)}' for k, v in kafka.settings.items())
        where = {"warehouse": self.folder / "w", "topic": self.topic, "prefix": self.foreign.prefix}
        path.write_text(CONFIG.format(servers=kafka.bootstrap_servers, settings=settings, **where))
        return path

    def allowed(self, rights: Sequence[Right]) -> Path:
        """The configuration of a new user with these rights."""
        user = f"u{uuid.uuid4().hex[:10]}"
        for right in rights:
            for source in ("public.a", "transaction") if "SOURCE" in right.name else ("",):
                name = right.named(TOPIC=self.topic, SOURCE=f"{self.foreign.prefix}.{source}")
                self.secured.allow(f"User:{user}", right.kind, name, right.operation)
        return self.file(self.secured.scram(user))


@pytest.fixture
def shop(secured: SecuredBroker, tmp_path: Path) -> Shop:
    root, topic = secured.open, f"t{uuid.uuid4().hex[:8]}"
    topics.create_topic(root, topic, kafka_partitions=2)
    foreign = ForeignTopics(root, client.admin(root))
    foreign.create("public.a")
    foreign.create("transaction")
    foreign.commit(("a", 1, {"n": "one"}))
    foreign.send(f"{foreign.prefix}.public.a", "{no json")
    made = Shop(secured, foreign, topic, tmp_path)
    run_bridge(load_config(made.file(root), {}, source_tables=False), once=True)
    send_raw(root, topic, [(b"row-1", b"bad")])
    return made


def texts_of_status(config: ConnectorConfig) -> list[str]:
    stream = status(config).streams["s"]
    assert stream.bridge is not None
    assert stream.bridge.is_known == (NEEDS not in stream.bridge.problem)
    return [stream.bridge.problem, stream.dead_letters.problem]


def texts_of_validate(config: ConnectorConfig) -> list[str]:
    return [str(found.error or found.text) for found in validate_config(config)]


def texts_of_read(config: ConnectorConfig) -> list[str]:
    result = read(config, "a", max_staleness_s=10**9)
    assert list(result.rows)
    return [result.missing.problem]


def texts_of_explain(config: ConnectorConfig) -> list[str]:
    assert jobs(config, "a")
    return list(explain(config, "a", (1,)).not_looked_at)


def texts_of_audit(config: ConnectorConfig) -> list[str]:
    try:
        (proof,) = audit(config)
    except ConnectorError as error:
        return [str(error)]
    assert proof.is_proved
    assert sum(found.changes for found in proof.source) == 1
    return []


COLLEAGUE = (texts_of_status, texts_of_validate, texts_of_read, texts_of_explain)
Command = Callable[[ConnectorConfig], list[str]]
COMMANDS: dict[str, tuple[list[Right], tuple[Command, ...]]] = {
    "audit": (OF_AUDIT, (texts_of_audit,)),
    "status": (OF_STATUS, (texts_of_status,)),
    "validate": (OF_VALIDATE, (texts_of_validate,)),
    "a colleague": (OF_COLLEAGUE, COLLEAGUE),
}


def refusals(shop: Shop, rights: Sequence[Right], commands: Sequence[Command]) -> list[str]:
    config = load_config(shop.allowed(rights), {})
    texts = [text for command in commands for text in command(config)]
    return [text for text in texts if NEEDS in text]


def test_each_right_of_the_pages_is_needed_and_named(spark: SparkSession, shop: Shop) -> None:
    """SEC-5, OPR-7: with all of them, nothing is refused. Without one, its text names it."""
    path, events = shop.allowed(OF_RUN), list[Event]()
    assert run(ConfigFile(path, {}), spark=spark, once=True, on_event=events.append).applies == 1
    (unpublished,) = [e.text for e in events if "its definition is not published" in e.text]
    assert f"{NEEDS} Write" in unpublished
    for who, (rights, commands) in COMMANDS.items():
        assert refusals(shop, rights, commands) == [], who
        for right in rights:
            left = [other for other in rights if other != right]
            named = right.operation.name.replace("_", "").lower()
            allowed = ("describe", named) if named == "read" else (named,)  # Read includes Describe
            texts = [text.lower() for text in refusals(shop, left, commands)]
            assert any(f"{NEEDS.lower()} {name}" in text for name in allowed for text in texts), (
                f"{who} does not name {right}: {texts}"
            )


@pytest.mark.long
@pytest.mark.parametrize("missing", OF_RUN, ids=str)
def test_run_of_a_source_needs_each_right_of_the_page(
    spark: SparkSession, shop: Shop, missing: Right
) -> None:
    """SEC-5."""
    path = shop.allowed([right for right in OF_RUN if right != missing])
    with pytest.raises(ConnectorError) as caught:
        run(ConfigFile(path, {}), spark=spark, once=True)
    assert NEEDS in str(caught.value)
