"""The Kafka broker of a test run, or of each of its workers. All suites share it. It is found or
started by the first test that needs it.

- `CONNECTOR_TEST_BOOTSTRAP_SERVERS` is set: an existing cluster. Topics get unique names and are
  deleted at the end.
- A Docker engine answers: a container (testcontainers).
- Otherwise: a local process from the locked jars.

A suite uses it with `from tests.broker import admin, broker, kafka, new_topic` in its conftest.py.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from connector.config.settings import KafkaConfig
from connector.jars import JarStore
from connector.kafka import client, topics
from connector.kafka.local.broker import LocalBroker
from connector.kafka.local.folder import SERVER_SETTINGS
from tests import machine

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

BOOTSTRAP_VARIABLE = "CONNECTOR_TEST_BOOTSTRAP_SERVERS"
NewTopic = Callable[..., topics.TopicFacts]

_running: dict[str, Broker] = {}


@dataclass(frozen=True)
class Broker:
    """`kind` is "existing", "container" or "local"."""

    bootstrap_servers: str
    kind: str


def jar_store() -> JarStore:
    return JarStore.from_environment(os.environ)


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest) -> Broker:
    """The broker of the run. It is shared: use your own topics (`new_topic`). Start a private
    `LocalBroker` if you kill or stop it.
    """
    # One for the run, not one for each conftest that imports this fixture.
    if "broker" not in _running:
        _running["broker"] = _find_or_start(request.config)
    return _running["broker"]


@pytest.fixture(scope="session")
def kafka(broker: Broker) -> KafkaConfig:
    return KafkaConfig(broker.bootstrap_servers)


@pytest.fixture(scope="session")
def admin(kafka: KafkaConfig) -> AdminClient:
    """A client that changes topics without lowmark. The run keeps it, because a closed client
    completes no future.
    """
    return client.admin(kafka)


@pytest.fixture
def new_topic(kafka: KafkaConfig, admin: AdminClient) -> Iterator[NewTopic]:
    """`new_topic(kafka_partitions=1, …)` creates a change topic with a unique name, which exists
    until the test ends.
    """
    created: list[str] = []

    def create(*, kafka_partitions: int = 1, **settings: int) -> topics.TopicFacts:
        created.append(f"test.{uuid.uuid4().hex[:12]}")
        return topics.create_topic(
            kafka, created[-1], kafka_partitions=kafka_partitions, **settings
        )

    yield create
    names = [
        name
        for topic in created
        for name in (
            topic,
            f"{topic}.dead-letters",
            f"{topic}.dead-letters.ledger",
            f"{topic}.write-streams",
        )
    ]
    if names:
        of_groups = tuple(f"{topic}.dead-letters.group." for topic in created)
        names += [
            name for name in admin.list_topics(timeout=30).topics if name.startswith(of_groups)
        ]
        for deleted in admin.delete_topics(names).values():
            deleted.exception(30)  # a test may have deleted its topic itself


def _find_or_start(config: pytest.Config) -> Broker:
    if servers := os.environ.get(BOOTSTRAP_VARIABLE):
        return Broker(servers, "existing")
    if not machine.why_no_docker():
        from testcontainers.kafka import KafkaContainer

        container = KafkaContainer("apache/kafka:4.3.1").with_kraft()
        for name, value in SERVER_SETTINGS.items():
            if name.startswith(("offsets.", "transaction.", "share.", "auto.", "group.")):
                container.with_env(f"KAFKA_{name.upper().replace('.', '_')}", value)
        container.start()
        config.add_cleanup(container.stop)
        return Broker(container.get_bootstrap_server(), "container")
    folder = Path(tempfile.mkdtemp(prefix="lowmark-test-broker-"))
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    local = LocalBroker.start(folder, jar_store())
    config.add_cleanup(local.stop)
    return Broker(local.bootstrap_servers, "local")
