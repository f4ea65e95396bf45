"""A topic `t` with two Kafka partitions, on librdkafka's mock cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connector.config.settings import KafkaConfig
from tests.unit.mock_cluster import MockCluster, running_cluster


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with running_cluster() as running:
        running.create_topic("t", 2)
        yield running


@pytest.fixture
def kafka(cluster: MockCluster) -> KafkaConfig:
    return cluster.kafka
