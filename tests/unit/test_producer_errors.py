"""What the producer makes of errors that brokers answer with, on librdkafka's mock cluster (REC-17)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connector.config import KafkaConfig
from connector.errors import DeliveryError
from connector.kafka.producer import ChangeProducer
from connector.kafka.topics import TopicFacts
from connector.model import DataChange, Heartbeat, SetCell
from tests.unit import mock_cluster
from tests.unit.mock_cluster import MockCluster, running_cluster

pytestmark = pytest.mark.skipif(bool(mock_cluster.why_not()), reason=mock_cluster.why_not())

FACTS = TopicFacts("t", "AAAAAAAAAAAAAAAAAAAAAA", 2, 1, "delete", "LogAppendTime", 10**9, 1_000_000)


def change(number: int) -> DataChange:
    return DataChange(
        stream_partition="p", table="t", row_key=b"k%d" % number, commit_timestamp=number + 1, entries=(SetCell("f", b"q", b"v"),)
    )


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with running_cluster() as running:
        running.create_topic("t", FACTS.kafka_partitions)
        yield running


def test_a_passing_error_is_retried(cluster: MockCluster) -> None:
    with ChangeProducer(KafkaConfig(cluster.bootstrap_servers), FACTS) as producer:
        cluster.answer_with(mock_cluster.PRODUCE, *[mock_cluster.NOT_ENOUGH_REPLICAS] * 3)
        for number in range(10):
            producer.send(change(number))
        producer.flush()
        assert producer.delivered == 10


def test_a_refused_record_is_reported_and_can_be_sent_again(cluster: MockCluster) -> None:
    with ChangeProducer(KafkaConfig(cluster.bootstrap_servers), FACTS) as producer:
        producer.send(change(0))
        producer.flush()
        cluster.answer_with(mock_cluster.PRODUCE, mock_cluster.MESSAGE_TOO_LARGE)
        producer.send(change(1))
        with pytest.raises(DeliveryError, match="1 records were not delivered"):
            producer.flush()
        with pytest.raises(DeliveryError, match="would claim more"):
            producer.send(Heartbeat("p", 5))
        for record in producer.undelivered():
            producer.send(record)
        producer.send(Heartbeat("p", 5))


def test_after_a_fatal_error_what_has_no_report_is_unknown_and_the_producer_goes_on(cluster: MockCluster) -> None:
    with ChangeProducer(KafkaConfig(cluster.bootstrap_servers), FACTS, settings={"linger.ms": "100"}) as producer:
        producer.send(change(0))
        producer.flush()
        cluster.answer_with(mock_cluster.PRODUCE, *[mock_cluster.OUT_OF_ORDER_SEQUENCE] * 5)
        for number in range(1, 20):
            producer.send(change(number))
        with pytest.raises(DeliveryError, match="were not delivered") as caught:
            producer.flush(30)
        assert caught.value.undelivered == len(producer.undelivered()) > 0
        cluster.answer_with(mock_cluster.PRODUCE)
        for _ in range(5):
            for record in producer.undelivered():
                producer.send(record)
            try:
                producer.flush(30)
            except DeliveryError:
                continue  # the errors that were left over
            break
        assert producer.delivered >= 20
        producer.send(Heartbeat("p", 20))
