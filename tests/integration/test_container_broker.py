"""The broker of the tests in a container (INS-3). No Docker engine is needed: a stand-in gets what
the library asks for, and starts a local broker with it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from connector.config.settings import KafkaConfig
from connector.kafka import LocalBroker, topics
from connector.kafka.local.folder import CLUSTER_ID, HOST, SERVER_SETTINGS
from tests.broker import (
    BOOTSTRAP_VARIABLE,
    IMAGE,
    KIND_VARIABLE,
    _find_or_start,
    in_container,
    jar_store,
)
from tests.docker_api import DockerApi, docker_api
from tests.unit.test_docker_compose import COMPOSE

PLACES = {"listeners", "advertised.listeners", "controller.quorum.voters", "log.dirs"}


class Machine:
    """A machine whose engine runs a container of Kafka as a local broker."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.stack, self.ends = folder, stack, False

    def run(self, created: dict[str, Any]) -> None:
        """Do what the image does: write the settings of its environment, and start Kafka."""
        if self.ends:
            return
        settings = settings_of(created)
        address, port = settings["advertised.listeners"].removeprefix("PLAINTEXT://").split(":")
        assert address == HOST
        del settings["log.dirs"]
        started = LocalBroker.start(self.folder, jar_store(), port=int(port), settings=settings)
        self.stack.callback(started.stop)

    def log(self) -> bytes:
        return b"no storage" if self.ends else (self.folder / "broker.log").read_bytes()


def settings_of(created: dict[str, Any]) -> dict[str, str]:
    """The server.properties that the image makes of its environment."""
    variables = dict(variable.split("=", 1) for variable in created["Env"])
    return {
        name.removeprefix("KAFKA_").lower().replace("_", "."): value
        for name, value in variables.items()
        if name.startswith("KAFKA_")
    }


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def machine(tmp_path: Path, stack: ExitStack) -> Machine:
    return Machine(tmp_path / "broker", stack)


@pytest.fixture
def engine(
    machine: Machine, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DockerApi]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from testcontainers.core.config import testcontainers_config

    # The container that removes others needs the socket of an engine.
    monkeypatch.setattr(testcontainers_config, "_ryuk_disabled", True)
    with docker_api(machine.run, machine.log, lambda: not machine.ends) as api:
        monkeypatch.setenv("DOCKER_HOST", api.url)
        yield api


def test_a_broker_in_a_container_is_the_local_one(engine: DockerApi, stack: ExitStack) -> None:
    """INS-3, OPS-7: the same version and settings, on loopback, and clients reach it. It is removed
    with its data at the end.
    """
    broker = in_container(stack.callback)
    asked = engine.created
    assert asked["Image"] == IMAGE
    assert f"image: {IMAGE}\n" in COMPOSE
    assert not asked.get("Cmd"), "the image starts Kafka itself"
    settings = settings_of(asked)
    assert {n: v for n, v in settings.items() if n not in PLACES} == SERVER_SETTINGS
    assert f"CLUSTER_ID={CLUSTER_ID}" in asked["Env"]
    port = broker.bootstrap_servers.removeprefix(f"{HOST}:")
    bindings = {f"{port}/tcp": [{"HostIp": HOST, "HostPort": port}]}
    assert asked["HostConfig"]["PortBindings"] == bindings
    assert settings["listeners"].startswith(f"PLAINTEXT://:{port},CONTROLLER://{HOST}:")

    facts = topics.create_topic(KafkaConfig(broker.bootstrap_servers), "t", kafka_partitions=2)
    assert facts.kafka_partitions == 2
    stack.close()
    assert engine.requests.count("POST /images/create") == 1
    assert engine.requests[-1].startswith("DELETE /containers/")


def test_a_container_that_ends_is_an_error_with_its_log(
    engine: DockerApi, machine: Machine, stack: ExitStack
) -> None:
    """INS-3: it is removed, too."""
    machine.ends = True
    with pytest.raises(RuntimeError, match="exited"):
        in_container(stack.callback)
    stack.close()
    assert engine.requests[-1].startswith("DELETE /containers/")


def test_the_broker_is_local_unless_a_container_is_asked_for(
    engine: DockerApi,
    monkeypatch: pytest.MonkeyPatch,
    pytestconfig: pytest.Config,
) -> None:
    """INS-3: never silently another one."""
    monkeypatch.delenv(BOOTSTRAP_VARIABLE, raising=False)
    monkeypatch.setattr("tests.machine.why_no_docker", lambda: "no Docker engine answers")
    for kind, text in (("container", "no Docker engine answers"), ("Docker", "Allowed: container")):
        monkeypatch.setenv(KIND_VARIABLE, kind)
        with pytest.raises(pytest.UsageError, match=text):
            _find_or_start(pytestconfig)
    assert not engine.requests
