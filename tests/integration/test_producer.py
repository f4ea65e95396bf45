"""Producing to a real broker (REC-1, REC-3, REC-14, REC-17, REC-18)."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import murmur2
from confluent_kafka.admin import AdminClient, NewPartitions

from connector.codec import READER_SCHEMA
from connector.config import KafkaConfig, RegistryConfig
from connector.errors import BrokerError, DeliveryError, InvalidChangeError, RegistryError, TopicError
from connector.kafka import ChangeConsumer, ChangeProducer, LocalBroker, Received, topics
from connector.model import CONTROL_KEY, ChildPartition, ChildPartitions, DataChange, Heartbeat
from tests.broker import NewTopic, jar_store
from tests.integration.changes import change, changes
from tests.unit.registry_stub import running_registry

DEAD = KafkaConfig("127.0.0.1:1", {"message.timeout.ms": "60000"})
FACTS = topics.TopicFacts("t", "AAAAAAAAAAAAAAAAAAAAAA", 4, 1, "delete", "LogAppendTime", 10**9, 10_500_000)


def read(kafka: KafkaConfig, topic: str, registry: RegistryConfig | None = None) -> list[Received]:
    with ChangeConsumer(kafka, topic, bounded=True, registry=registry) as consumer:
        return list(consumer)


def test_what_was_sent_is_what_is_read(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    topic = new_topic(kafka_partitions=3).topic
    sent = changes(500)
    with ChangeProducer(kafka, topic) as producer:
        for record in sent:
            producer.send(record, headers=[("origin", b"test"), ("nothing", None)])
    received = read(kafka, topic)
    assert sorted((r.record for r in received if isinstance(r.record, DataChange)), key=lambda c: c.commit_timestamp) == sent
    assert {r.source.headers for r in received} == {(("origin", b"test"), ("nothing", None))}
    assert {r.kafka_partitions for r in received} == {3}


def test_a_key_lies_on_javas_kafka_partition_and_arrival_is_the_brokers(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    topic = new_topic(kafka_partitions=5).topic
    began = time.time_ns() // 1000
    with ChangeProducer(kafka, topic) as producer:
        for record in changes(100):
            producer.send(record)
    for received in read(kafka, topic):
        assert isinstance(received.record, DataChange)
        assert received.position.kafka_partition == murmur2(received.record.row_key, 5)
        assert received.record_timestamp > began - 1_000_000


def test_control_records_go_to_every_kafka_partition(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    topic = new_topic(kafka_partitions=4).topic
    heartbeat = Heartbeat("p", 5, b"token")
    children = ChildPartitions("p", 6, 1, (ChildPartition("q", ("p",)),))
    with ChangeProducer(kafka, topic) as producer:
        producer.send(heartbeat)
        producer.send(children)
        producer.flush()
        assert producer.delivered == 2
    received = read(kafka, topic)
    assert Counter((r.position.kafka_partition, type(r.record)) for r in received) == {
        (number, kind): 1 for number in range(4) for kind in (Heartbeat, ChildPartitions)
    }
    assert {r.source.key for r in received} == {CONTROL_KEY}


def test_with_a_registry_the_framing_is_confluents(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    topic = new_topic().topic
    with running_registry() as registry:
        with pytest.raises(RegistryError, match="does not have our schema"):
            ChangeProducer(kafka, topic, registry=RegistryConfig(registry.url))
        with ChangeProducer(kafka, topic, registry=RegistryConfig(registry.url, auto_register=True)) as producer:
            producer.send(change(1))
        assert registry.schemas == {1: READER_SCHEMA}
        (received,) = read(kafka, topic, RegistryConfig(registry.url))
        assert received.record == change(1)
        assert received.source.value is not None
        assert received.source.value[:5] == b"\x00\x00\x00\x00\x01"


def test_a_record_above_max_record_bytes_is_refused_before_it_is_sent(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    topic = new_topic().topic
    with ChangeProducer(kafka, topic, max_record_bytes=1000) as producer:
        producer.send(change(1))
        with pytest.raises(InvalidChangeError, match="at most 1000 bytes"):
            producer.send(change(2, value=b"x" * 1000))
    assert len(read(kafka, topic)) == 1


def test_a_record_above_what_the_topic_takes_is_refused_before_it_is_sent(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    topic = new_topic(max_message_bytes=20_000).topic
    noise = random.Random(1).randbytes(30_000)
    with ChangeProducer(kafka, topic) as producer:
        with pytest.raises(InvalidChangeError, match=r"max.message.bytes of test"):
            producer.send(change(1, value=noise))
        with pytest.raises(InvalidChangeError):
            producer.send(change(1), headers=[("large", noise)])


@pytest.mark.parametrize("size", [19_700, 500])
def test_whatever_is_taken_fits_also_in_batches(kafka: KafkaConfig, new_topic: NewTopic, size: int) -> None:
    """Many records make a batch, which the broker measures against the same limit."""
    topic = new_topic(max_message_bytes=20_000).topic
    noise = random.Random(size)
    with ChangeProducer(kafka, topic) as producer:
        for number in range(200):
            producer.send(change(number, value=noise.randbytes(size)))
    assert len(read(kafka, topic)) == 200


def test_a_record_of_ten_megabytes_goes_through(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    topic = new_topic().topic
    with ChangeProducer(kafka, topic) as producer:
        producer.send(change(1, value=random.Random(2).randbytes(9_999_000)))
    (received,) = read(kafka, topic)
    assert isinstance(received.record, DataChange)


def test_a_heartbeat_follows_what_it_covers(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    """REC-18: in every Kafka partition the heartbeat stands behind every change up to it."""
    topic = new_topic(kafka_partitions=3).topic
    with ChangeProducer(kafka, topic, settings={"linger.ms": "500"}) as producer:
        for record in changes(300):
            producer.send(record)
        producer.send(Heartbeat("p", 1_000_299))
        with pytest.raises(InvalidChangeError, match="the last heartbeat of stream partition p"):
            producer.send(change(299))
        producer.send(change(300))
        producer.send(change(0, partition="another"))
    for number in range(3):
        kinds = [type(r.record) for r in read(kafka, topic) if r.position.kafka_partition == number and r.record != change(300)]
        assert kinds[-1] is Heartbeat or kinds.count(Heartbeat) == 1
        covered = [r for r in read(kafka, topic) if r.position.kafka_partition == number]
        at = next(i for i, r in enumerate(covered) if isinstance(r.record, Heartbeat))
        assert all(r.record in (change(300), change(0, partition="another")) for r in covered[at + 1 :])


def test_an_estimate_is_lowered_to_what_is_acknowledged(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    topic = new_topic().topic
    with ChangeProducer(kafka, topic, settings={"linger.ms": "1000"}) as producer:
        producer.send(change(1, timestamp=500))
        producer.send(change(2, timestamp=900, estimate=800))
        producer.flush()
        producer.send(change(3, timestamp=900, estimate=800))
        producer.send(change(4, timestamp=700, estimate=800))
    estimates = {r.record.row_key: r.record.estimated_low_watermark for r in read(kafka, topic) if isinstance(r.record, DataChange)}
    assert estimates == {b"row-1": 0, b"row-2": 500, b"row-3": 800, b"row-4": 700}


def test_a_compacted_or_missing_topic_is_refused(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    ledger = f"{new_topic().topic}.dead-letters.ledger"
    with pytest.raises(TopicError, match="is compacted"):
        ChangeProducer(kafka, ledger)
    with pytest.raises(TopicError, match="There is no topic"):
        ChangeProducer(kafka, "test.missing.topic")


def test_an_unreachable_broker_is_a_clear_error_within_seconds() -> None:
    began = time.monotonic()
    with pytest.raises(BrokerError, match=r"No Kafka broker answers at 127\.0\.0\.1:1"):
        ChangeProducer(DEAD, "t")
    assert time.monotonic() - began < 12


def test_a_full_queue_blocks_and_then_is_an_error() -> None:
    """REC-17: bounded memory; what was not taken is said and can be sent again."""
    producer = ChangeProducer(DEAD, FACTS, queue_timeout_s=0.5, settings={"queue.buffering.max.messages": "10"})
    for number in range(10):
        producer.send(change(number))
    began = time.monotonic()
    with pytest.raises(DeliveryError, match="was not taken") as caught:
        producer.send(change(10))
    assert 0.4 < time.monotonic() - began < 5
    assert "queue stayed full for 0.5 s" in caught.value.cause
    assert "Connection refused" in caught.value.cause
    assert set(producer.undelivered()) == set(changes(11))
    with pytest.raises(DeliveryError):
        producer.close(timeout_s=0.1)


def test_flush_says_what_was_not_delivered_and_close_is_bounded() -> None:
    producer = ChangeProducer(DEAD, FACTS)
    for record in changes(3):
        producer.send(record)
    with pytest.raises(DeliveryError, match="3 records were not delivered to t") as caught:
        producer.flush(timeout_s=0.3)
    assert caught.value.undelivered == 3
    began = time.monotonic()
    with pytest.raises(DeliveryError):
        producer.close(timeout_s=0.2)
    assert time.monotonic() - began < 3
    assert set(producer.undelivered()) == set(changes(3))
    producer.close()


def test_a_heartbeat_is_refused_until_its_changes_are_delivered() -> None:
    producer = ChangeProducer(DEAD, FACTS, queue_timeout_s=0.3)
    producer.send(change(1))
    with pytest.raises(DeliveryError, match="is not true yet"):
        producer.send(Heartbeat("p", 1_000_001))
    with pytest.raises(DeliveryError, match="Child partitions"):
        producer.send(ChildPartitions("p", 6, 1, (ChildPartition("q", ("p",)),)))
    producer.send(Heartbeat("p", 1_000_000))
    with pytest.raises(DeliveryError):
        producer.close(timeout_s=0.1)


def test_a_heartbeat_is_refused_while_a_change_has_failed() -> None:
    producer = ChangeProducer(DEAD, FACTS, settings={"message.timeout.ms": "300"})
    producer.send(change(1))
    with pytest.raises(DeliveryError, match="1 records were not delivered"):
        producer.flush(timeout_s=20)
    with pytest.raises(DeliveryError, match="would claim more than was delivered"):
        producer.send(Heartbeat("p", 1_000_001))
    with pytest.raises(DeliveryError, match="were not delivered"):
        producer.close(timeout_s=0.1)


def test_an_exception_inside_the_block_is_not_hidden_by_what_is_undelivered() -> None:
    def fail() -> None:
        with ChangeProducer(DEAD, FACTS, settings={"message.timeout.ms": "200"}) as producer:
            producer.send(change(1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        fail()
    assert "1 records were not delivered" in caught.value.__notes__[0]


def test_nothing_is_lost_when_the_broker_is_killed_while_producing(tmp_path: Path) -> None:
    """REC-17, `nothing_lost`: SIGKILL in the middle, started again on its folder; what was flushed is all there."""
    with LocalBroker.start(tmp_path, jar_store()) as broker:
        kafka = KafkaConfig(broker.bootstrap_servers)
        topics.create_topic(kafka, "t", kafka_partitions=2)
        sent = changes(20_000)
        with ChangeProducer(kafka, "t", settings={"linger.ms": "1"}) as producer:
            for number, record in enumerate(sent):
                producer.send(record)
                if number == 10_000:
                    broker.kill()
            broker.restart()
            producer.flush()
            assert producer.delivered == len(sent)
        read_back = {r.record for r in read(kafka, "t")}
        assert read_back == set(sent)


def test_a_failed_change_can_be_sent_again(tmp_path: Path) -> None:
    with LocalBroker.start(tmp_path, jar_store()) as broker:
        kafka = KafkaConfig(broker.bootstrap_servers)
        topics.create_topic(kafka, "t", kafka_partitions=2)
        with ChangeProducer(kafka, "t", settings={"message.timeout.ms": "4000"}) as producer:
            broker.kill()
            producer.send(change(1))
            with pytest.raises(DeliveryError):
                producer.flush(timeout_s=20)
            broker.restart()
            for record in producer.undelivered():
                producer.send(record)
            producer.flush()
            producer.send(Heartbeat("p", 1_000_001))
        assert [r.record for r in read(kafka, "t") if isinstance(r.record, DataChange)] == [change(1)]


def test_kafka_partitions_that_were_added_get_control_records(admin: AdminClient, kafka: KafkaConfig, new_topic: NewTopic) -> None:
    facts = new_topic(kafka_partitions=1)
    with ChangeProducer(kafka, facts.topic) as producer:
        producer.send(Heartbeat("p", 5))
        admin.create_partitions([NewPartitions(facts.topic, 3)])[facts.topic].result(30)
        producer.refresh_now()
        producer.send(Heartbeat("p", 6))
        assert producer.kafka_partitions == 3
    assert Counter(r.position.kafka_partition for r in read(kafka, facts.topic)) == {0: 2, 1: 1, 2: 1}


def test_a_producer_of_another_topic_under_the_same_name_stops(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    facts = new_topic()
    producer = ChangeProducer(kafka, replace(facts, topic_id="AAAAAAAAAAAAAAAAAAAAAA"))
    producer.refresh_now()
    with pytest.raises(TopicError, match="not the one that was read before"):
        producer.send(Heartbeat("p", 6))
    producer.close()
