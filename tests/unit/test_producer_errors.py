"""What the producer makes of errors that brokers answer with, on librdkafka's mock cluster (REC-17, REC-18)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from connector.config import KafkaConfig
from connector.errors import BrokerError, DeliveryError, InvalidChangeError, WriterConflictError
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


# ── transactions ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("request_kind", [mock_cluster.ADD_PARTITIONS, mock_cluster.END_TRANSACTION])
def test_what_passes_is_asked_for_again(cluster: MockCluster, request_kind: int) -> None:
    with ChangeProducer(KafkaConfig(cluster.bootstrap_servers), FACTS, transactional_id="x") as producer:
        cluster.answer_with(request_kind, *[mock_cluster.CONCURRENT_TRANSACTIONS] * 2)
        producer.send(change(0))
        assert producer.delivered == 1


def test_a_transaction_with_a_refused_record_is_aborted_and_can_be_sent_again(cluster: MockCluster) -> None:
    """A change in it is not acknowledged before it is committed."""
    with ChangeProducer(KafkaConfig(cluster.bootstrap_servers), FACTS, transactional_id="x") as producer:
        producer.send(change(0))
        cluster.answer_with(mock_cluster.PRODUCE, mock_cluster.MESSAGE_TOO_LARGE)
        with pytest.raises(DeliveryError, match="was not committed") as caught, producer.transaction():
            producer.send(change(1))
            producer.send(change(2))
        assert caught.value.undelivered == 2
        assert producer.delivered == 1
        assert set(producer.undelivered()) == {change(1), change(2)}
        with producer.transaction():
            for record in producer.undelivered():
                producer.send(record)
            producer.send(Heartbeat("p", 3))
        assert producer.delivered == 4


def test_a_commit_that_nobody_knows_of_is_sent_again_by_another_client(cluster: MockCluster) -> None:
    """REC-18: its heartbeat may have been read, so nothing new may come before it."""
    with ChangeProducer(KafkaConfig(cluster.bootstrap_servers), FACTS, transactional_id="x") as producer:
        cluster.answer_with(mock_cluster.END_TRANSACTION, mock_cluster.INVALID_STATE)
        with pytest.raises(DeliveryError, match="was not committed"), producer.transaction():
            producer.send(change(1))
            producer.send(Heartbeat("p", 5))
        with pytest.raises(InvalidChangeError, match="the last heartbeat"):
            producer.send(change(2))
        with producer.transaction():
            for record in producer.undelivered():
                producer.send(record)
        assert producer.delivered == 2


@pytest.mark.parametrize("request_kind", [mock_cluster.ADD_PARTITIONS, mock_cluster.END_TRANSACTION])
def test_who_is_shut_out_says_so_and_stays_out(cluster: MockCluster, request_kind: int) -> None:
    producer = ChangeProducer(KafkaConfig(cluster.bootstrap_servers), FACTS, transactional_id="x")
    cluster.answer_with(request_kind, mock_cluster.INVALID_PRODUCER_EPOCH)
    for _ in range(2):
        with pytest.raises(WriterConflictError, match="Another producer has taken over the transactions of x on t"):
            producer.send(change(1))
    with pytest.raises(DeliveryError, match="1 records were not delivered"):
        producer.close()


def test_who_was_shut_out_meanwhile_says_so_at_the_next_record(cluster: MockCluster) -> None:
    producer = ChangeProducer(KafkaConfig(cluster.bootstrap_servers), FACTS, transactional_id="x")
    cluster.answer_with(mock_cluster.ADD_PARTITIONS, mock_cluster.INVALID_PRODUCER_EPOCH)
    with pytest.raises(WriterConflictError, match="Another producer has taken over"), producer.transaction():
        producer.send(change(1))
        time.sleep(1)  # the client knows by then, and has told nobody
        producer.send(change(2))
    assert set(producer.undelivered()) == {change(1), change(2)}
    with pytest.raises(DeliveryError, match="2 records were not delivered"):
        producer.close()


def test_a_transactional_id_that_is_not_ours_is_refused_at_once(cluster: MockCluster) -> None:
    cluster.answer_with(mock_cluster.INIT_PRODUCER_ID, mock_cluster.FORBIDDEN_ID)
    with pytest.raises(BrokerError, match="Kafka refuses: start transactions as x"):
        ChangeProducer(KafkaConfig(cluster.bootstrap_servers), FACTS, transactional_id="x")


def test_what_an_aborted_transaction_said_nobody_has_heard(cluster: MockCluster) -> None:
    """WMK-6, REC-18: its stream partition is announced again, its heartbeat binds nobody."""
    with ChangeProducer(KafkaConfig(cluster.bootstrap_servers), FACTS, transactional_id="x") as producer:
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.send(Heartbeat("p", 5))
            raise ZeroDivisionError
        producer.send(change(4))
        assert producer.announced == 2
        producer.send(Heartbeat("p", 5))
        assert producer.announced == 2
