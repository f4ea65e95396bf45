from __future__ import annotations

import pytest

from connector.config.settings import KafkaConfig
from tests.broker import Broker, admin, broker, new_topic
from tests.object_store import object_store

__all__ = ["admin", "broker", "kafka", "new_topic", "object_store"]


@pytest.fixture(scope="session")
def kafka(broker: Broker) -> KafkaConfig:
    """A fetch at the end of a topic waits 500 ms by default, also in a reader that ends there."""
    return KafkaConfig(broker.bootstrap_servers, {"fetch.wait.max.ms": "10"})
