"""A cluster of three brokers: replicas of new topics, and the loss of a leader (SEC-3)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from connector.config.settings import ConnectorConfig, KafkaConfig, StreamConfig
from connector.kafka import ChangeConsumer, create_topic, topics
from connector.kafka.produce.producer import CopyingProducer
from connector.records.model import DataChange
from connector.services import validate_config
from tests.broker import NewTopic
from tests.cluster import Cluster, cluster
from tests.integration.changes import change

pytestmark = pytest.mark.systems

NAMES = ("t", "t.dead-letters", "t.dead-letters.ledger", "t.write-streams", "t.tables")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as running:
        create_topic(running.kafka, "t", kafka_partitions=3)
        yield running


def warnings(kafka: KafkaConfig, topic: str, folder: Path) -> list[str]:
    streams = {"s": StreamConfig(name="s", topic=topic)}
    found = list(validate_config(ConnectorConfig(str(folder), kafka, streams=streams)))
    assert not [one for one in found if one.level == "fault"], found
    return [one.text for one in found if one.level == "warning" and "no table" not in one.text]


def test_new_topics_of_a_cluster_have_three_replicas_of_which_two_are_in_sync(
    three: Cluster, tmp_path: Path
) -> None:
    """SEC-3: and `validate` has nothing to warn about."""
    for name in NAMES:
        facts = topics.describe(three.kafka, name)
        assert (facts.replication_factor, facts.min_insync_replicas) == (3, 2), name
    assert warnings(three.kafka, "t", tmp_path) == []
    create_topic(three.kafka, "t", kafka_partitions=3)  # it exists, as it was asked for
    create_topic(three.kafka, "few", kafka_partitions=1, replication_factor=2)
    (warning,) = warnings(three.kafka, "few", tmp_path)
    assert (
        "few, few.dead-letters, few.dead-letters.ledger, few.write-streams, few.tables" in warning
    )
    assert "fewer than 3 replicas" in warning


def test_validate_warns_where_one_broker_alone_acknowledges(
    kafka: KafkaConfig, new_topic: NewTopic, tmp_path: Path
) -> None:
    """SEC-3."""
    (warning,) = warnings(kafka, new_topic().topic, tmp_path)
    assert "fewer than 3 replicas" in warning


def test_a_producer_loses_nothing_with_a_killed_leader(three: Cluster) -> None:
    """SEC-3, nothing_lost: no change is lost or doubled, and none needs to be sent again."""
    count, half = 3_000, threading.Event()
    with CopyingProducer(three.kafka, "t") as producer:

        def send() -> None:
            for number in range(count):
                producer.send(change(number))
                if number == count // 2:
                    half.set()
                if number % 10 == 0:
                    producer.poll(0.005)

        sending = threading.Thread(target=send)
        sending.start()
        assert half.wait(60)
        leader = three.leader("t")
        three.brokers[leader].kill()
        sending.join(60)
        producer.flush(60)
        assert producer.undelivered() == {}
        three.restart(leader)
    three.wait_until_in_sync("t")
    with ChangeConsumer(three.kafka, "t", bounded=True) as consumer:
        found = [one.record for one in consumer]
    sent = sorted(one.commit_timestamp for one in found if isinstance(one, DataChange))
    assert sent == [1_000_000 + number for number in range(count)]
