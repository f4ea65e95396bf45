"""The Kafka broker of a test run, or of each of its workers. All suites share it. It is found or
started by the first test that needs it.

- `CONNECTOR_TEST_BOOTSTRAP_SERVERS` is set: an existing cluster. Topics get unique names and are
  deleted at the end.
- `LOWMARK_TEST_BROKER` is `container`: a container (testcontainers) of the machine's Docker engine.
- It is `local`, or not set: a local process from the locked jars.

A suite uses it with `from tests.broker import admin, broker, kafka, new_topic` in its conftest.py.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from connector.config.settings import KafkaConfig
from connector.jars import JarStore
from connector.kafka import client, topics
from connector.kafka.local.broker import LocalBroker
from connector.kafka.local.folder import CLUSTER_ID, HOST, SERVER_SETTINGS, free_port
from tests import machine

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient
    from testcontainers.core.container import DockerContainer

BOOTSTRAP_VARIABLE = "CONNECTOR_TEST_BOOTSTRAP_SERVERS"
KIND_VARIABLE = "LOWMARK_TEST_BROKER"
IMAGE = "apache/kafka:4.3.1"
START_TIMEOUT_S = 120
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
    kind = os.environ.get(KIND_VARIABLE, "local")
    if kind == "container":
        if why := machine.why_no_docker():
            raise pytest.UsageError(f"{KIND_VARIABLE} is container: {why}")
        return in_container(config.add_cleanup)
    if kind != "local":
        raise pytest.UsageError(f"{KIND_VARIABLE} is {kind!r}. Allowed: container, local")
    folder = Path(tempfile.mkdtemp(prefix="lowmark-test-broker-"))
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    local = LocalBroker.start(folder, jar_store())
    config.add_cleanup(local.stop)
    return Broker(local.bootstrap_servers, "local")


def in_container(add_cleanup: Callable[[Callable[[], None]], None]) -> Broker:
    """Start a broker in a container, and return when it has started (INS-3). `add_cleanup` takes
    what removes it. No warning of the library is an error.
    """
    port = free_port()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        container = _container(port, free_port(port))
        add_cleanup(container.stop)
        container.start()
    return Broker(f"{HOST}:{port}", "container")


def _container(port: int, controller_port: int) -> DockerContainer:
    """A container with the settings of the local broker. It listens on the port that the machine
    publishes, because a client goes on at the address that a broker names.
    """
    # Here, because the import takes half a second.
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy

    settings = SERVER_SETTINGS | {
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
        "listeners": f"PLAINTEXT://:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "log.dirs": "/var/lib/kafka/data",
    }
    # The image turns KAFKA_NUM_PARTITIONS into num.partitions.
    named = {f"KAFKA_{n.upper().replace('.', '_')}": value for n, value in settings.items()}
    has_started = LogMessageWaitStrategy("Kafka Server started")
    has_started.with_startup_timeout(START_TIMEOUT_S)
    container = DockerContainer(IMAGE, env={"CLUSTER_ID": CLUSTER_ID, **named})
    # A broker without a login is published on loopback only.
    cast("dict[str, Any]", container.ports)[str(port)] = (HOST, port)
    return container.waiting_for(has_started)
