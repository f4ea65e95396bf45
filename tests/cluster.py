"""Three brokers that replicate to each other, from the locked jars (SEC-3)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient, TopicDescription

from connector.config.settings import KafkaConfig
from connector.kafka import client
from connector.kafka.local.broker import LocalBroker
from connector.kafka.local.folder import HOST, free_port
from tests.broker import jar_store

COUNT = 3
_REPLICATED = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    "controller.quorum.election.timeout.ms": "1000",
    "controller.quorum.fetch.timeout.ms": "1500",
    "replica.lag.time.max.ms": "5000",
}


@dataclass(frozen=True)
class Cluster:
    """`brokers` are the nodes 1, 2 and 3, by node id."""

    brokers: dict[int, LocalBroker]
    _admin: AdminClient = field(repr=False)

    @property
    def kafka(self) -> KafkaConfig:
        return KafkaConfig(",".join(one.bootstrap_servers for one in self.brokers.values()))

    def leader(self, topic: str, kafka_partition: int = 0) -> int:
        """The node id of a leader."""
        found = self._describe([topic])[0].partitions[kafka_partition].leader
        assert found is not None
        return int(found.id)

    def wait_until_in_sync(self, *topics: str, timeout_s: float = 60) -> None:
        """Wait until each Kafka partition has three replicas in sync."""
        deadline = time.monotonic() + timeout_s
        while not all(
            len(partition.isr) == COUNT
            for found in self._describe(topics)
            for partition in found.partitions
        ):
            assert time.monotonic() < deadline, "the replicas are not in sync"
            time.sleep(0.2)

    def _describe(self, topics: Sequence[str]) -> list[TopicDescription]:
        asked = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=15)
        return [client.wait_for(answer, self.kafka, "describe") for answer in asked.values()]

    def restart(self, *nodes: int) -> None:
        """Start brokers again, all at the same time: one alone may wait for another."""
        with ThreadPoolExecutor(COUNT) as pool:
            list(pool.map(lambda node: self.brokers[node].restart(), nodes))


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """A running cluster. A broker has ended at the end of the block, whether it was killed or
    not.
    """
    ports: list[int] = []
    for _ in range(2 * COUNT):
        ports.append(free_port(*ports))
    voters = ",".join(f"{node}@{HOST}:{ports[2 * node - 1]}" for node in range(1, COUNT + 1))

    def start(node: int) -> LocalBroker:
        port, controller = ports[2 * node - 2], ports[2 * node - 1]
        own = {
            "node.id": str(node),
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller}",
        }
        return LocalBroker.start(
            folder / f"broker-{node}", jar_store(), port=port, settings=_REPLICATED | own
        )

    with ExitStack() as stack:
        with ThreadPoolExecutor(COUNT) as pool:
            futures = {node: pool.submit(start, node) for node in range(1, COUNT + 1)}
        brokers = {}
        for node, future in futures.items():
            brokers[node] = future.result()
            # Killed, because a stop waits for brokers that stop as well.
            stack.callback(brokers[node].kill)
        servers = ",".join(one.bootstrap_servers for one in brokers.values())
        yield Cluster(brokers, client.admin(KafkaConfig(servers)))
