"""Producing to a real broker (REC-1, REC-3, REC-14, REC-17 to REC-19, WMK-6, PUB-1, PUB-5)."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import murmur2
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
)

from connector.config.settings import KafkaConfig, RegistryConfig
from connector.errors import (
    BrokerError,
    DeliveryError,
    InvalidChangeError,
    TopicError,
    WriterConflictError,
)
from connector.kafka import (
    ChangeConsumer,
    ChangeProducer,
    ConsumerRecord,
    LocalBroker,
    StreamSettings,
    client,
    read_letters,
    topics,
)
from connector.kafka.produce import control_records, resume
from connector.kafka.produce.producer import CopyingProducer
from connector.records.codec import SCHEMA, ChangeRecord, Schemas, decode
from connector.records.model import (
    CONTROL_KEY,
    MAX_LONG,
    ChildPartition,
    ChildPartitions,
    DataChange,
    Heartbeat,
    Record,
)
from connector.records.rejection import Reason
from connector.validation import Limits
from connector.watermarks.advance import advance
from connector.watermarks.frontier import (
    UNKNOWN,
    BatchClaims,
    LineageRecord,
)
from tests.broker import NewTopic, jar_store
from tests.integration.changes import change, changes
from tests.unit.registry_stub import running_registry

DEAD = KafkaConfig("127.0.0.1:1", {"message.timeout.ms": "60000"})
FACTS = topics.TopicFacts(
    "t", "AAAAAAAAAAAAAAAAAAAAAA", 4, 1, "delete", "LogAppendTime", 10**9, 10_500_000
)


def announcement(name: str, at: int, *live: str) -> ChildPartitions:
    return ChildPartitions(name, at, 0, tuple(ChildPartition(child) for child in live or (name,)))


def read(
    kafka: KafkaConfig, topic: str, registry: RegistryConfig | None = None
) -> list[ConsumerRecord]:
    with ChangeConsumer(
        kafka, topic, bounded=True, stream=StreamSettings(registry=registry)
    ) as consumer:
        return list(consumer)


def read_changes(
    kafka: KafkaConfig, topic: str, registry: RegistryConfig | None = None
) -> list[ConsumerRecord]:
    return [
        received
        for received in read(kafka, topic, registry)
        if isinstance(received.record, DataChange)
    ]


def test_sent_records_are_read_unchanged(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    topic = new_topic(kafka_partitions=3).topic
    sent = changes(500)
    with ChangeProducer(kafka, topic) as producer:
        for record in sent:
            producer.send(record, headers=[("origin", b"test"), ("nothing", None)])
    received = read_changes(kafka, topic)
    assert (
        sorted(
            (r.record for r in received if isinstance(r.record, DataChange)),
            key=lambda c: c.commit_timestamp,
        )
        == sent
    )
    assert {r.source.headers for r in received} == {(("origin", b"test"), ("nothing", None))}
    assert {r.kafka_partitions for r in received} == {3}


def test_keys_are_partitioned_as_by_java_and_the_broker_sets_the_record_time(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    topic = new_topic(kafka_partitions=5).topic
    began = time.time_ns() // 1000
    with ChangeProducer(kafka, topic) as producer:
        for record in changes(100):
            producer.send(record)
    for received in read_changes(kafka, topic):
        assert isinstance(received.record, DataChange)
        assert received.position.kafka_partition == murmur2(received.record.row_key, 5)
        assert received.record_timestamp > began - 1_000_000


def test_control_records_go_to_every_kafka_partition(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    topic = new_topic(kafka_partitions=4).topic
    heartbeat = Heartbeat("p", 5, b"token")
    children = ChildPartitions("p", 6, 1, (ChildPartition("q", ("p",)),))
    with CopyingProducer(kafka, topic) as producer:
        producer.send(heartbeat)
        producer.send(children)
        producer.flush()
        assert producer.delivered == 2
    received = read(kafka, topic)
    assert Counter((r.position.kafka_partition, type(r.record)) for r in received) == {
        (number, kind): 1 for number in range(4) for kind in (Heartbeat, ChildPartitions)
    }
    assert {r.source.key for r in received} == {CONTROL_KEY}


def test_a_frontier_follows_what_the_producer_announces(
    kafka: KafkaConfig, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WMK-6, REC-17: on first use, by a call, and again; a reader without state learns the
    progress of the stream.
    """
    facts = new_topic(kafka_partitions=2)
    with ChangeProducer(kafka, facts) as producer:
        producer.send(change(1))
        producer.send(
            ChildPartitions(
                "p", 1_000_002, 0, (ChildPartition("a", ("p",)), ChildPartition("b", ("p",)))
            )
        )
        producer.send(change(3, partition="a"))
        producer.send(Heartbeat("b", 1_000_005))
        later = time.time_ns() // 1000 + facts.retention_ms * 1000 // 4
        monkeypatch.setattr("connector.kafka.produce.control_records.now_us", lambda: later)
        producer.send(Heartbeat("a", 1_000_004))
        producer.flush()
        assert producer.announced == 2
        assert producer.delivered == 5
    found = read(kafka, facts.topic)
    first, again = announcement("p", 1_000_000), announcement("p", 1_000_002, "a", "b")
    assert [
        r.record for r in found if r.record in (first, again) and r.position.kafka_partition == 1
    ] == [first, again]
    claims = {
        r.record.stream_partition: {0: r.record.timestamp + 1, 1: r.record.timestamp + 1}
        for r in found
        if isinstance(r.record, Heartbeat)
    }
    lineage = [
        LineageRecord(r.position.kafka_partition, r.kafka_partitions, r.record)
        for r in found
        if isinstance(r.record, ChildPartitions)
    ]
    assert (
        advance(UNKNOWN, BatchClaims(2, claims, tuple(lineage)), now=0).low_watermark == 1_000_005
    )
    repeated = tuple(said for said in lineage if said.record == again)
    assert advance(UNKNOWN, BatchClaims(2, claims, repeated), now=0).low_watermark == 1_000_005, (
        "for who begins to read behind the first one"
    )


def test_with_a_registry_the_framing_is_confluents(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    topic = new_topic().topic
    with running_registry() as registry:
        with pytest.raises(BrokerError, match="does not have the schema of lowmark"):
            ChangeProducer(kafka, topic, registry=RegistryConfig(registry.url))
        with ChangeProducer(
            kafka, topic, registry=RegistryConfig(registry.url, auto_register=True)
        ) as producer:
            producer.send(change(1))
        assert registry.schemas == {1: SCHEMA}
        (received,) = read_changes(kafka, topic, RegistryConfig(registry.url))
        assert received.record == change(1)
        assert received.source.value is not None
        assert received.source.value[:5] == b"\x00\x00\x00\x00\x01"


def test_a_record_above_max_record_bytes_is_refused_before_it_is_sent(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    topic = new_topic().topic
    with ChangeProducer(kafka, topic, limits=Limits(max_record_bytes=1000)) as producer:
        producer.send(change(1))
        with pytest.raises(InvalidChangeError, match="at most 1000 bytes"):
            producer.send(change(2, value=b"x" * 1000))
        with pytest.raises(InvalidChangeError, match="at most 1000 bytes"):
            producer.send(change(3, partition="q", value=b"x" * 1000))
    assert len(read(kafka, topic)) == 2, (
        "a stream partition that was announced and never speaks would be waited for"
    )


def test_a_record_above_what_the_topic_takes_is_refused_before_it_is_sent(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    topic = new_topic(max_message_bytes=20_000).topic
    noise = random.Random(1).randbytes(30_000)
    with ChangeProducer(kafka, topic) as producer:
        with pytest.raises(InvalidChangeError, match=r"max.message.bytes of test"):
            producer.send(change(1, value=noise))
        with pytest.raises(InvalidChangeError):
            producer.send(change(1), headers=[("large", noise)])


@pytest.mark.parametrize("size", [19_700, 500])
def test_accepted_records_fit_into_batches(
    kafka: KafkaConfig, new_topic: NewTopic, size: int
) -> None:
    """Many records make a batch, which the broker measures against the same limit."""
    topic = new_topic(max_message_bytes=20_000).topic
    noise = random.Random(size)
    with ChangeProducer(kafka, topic) as producer:
        for number in range(200):
            producer.send(change(number, value=noise.randbytes(size)))
    assert len(read_changes(kafka, topic)) == 200


def test_a_record_of_ten_megabytes_goes_through(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    topic = new_topic().topic
    with ChangeProducer(kafka, topic) as producer:
        producer.send(change(1, value=random.Random(2).randbytes(9_999_000)))
    assert len(read_changes(kafka, topic)) == 1


def test_a_heartbeat_follows_what_it_covers(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    """REC-18: in every Kafka partition the heartbeat follows every change up to its time."""
    topic = new_topic(kafka_partitions=3).topic
    with CopyingProducer(kafka, topic, settings={"linger.ms": "500"}) as producer:
        for record in changes(300):
            producer.send(record)
        producer.send(Heartbeat("p", 1_000_299))
        with pytest.raises(InvalidChangeError, match="the last heartbeat of stream partition p"):
            producer.send(change(299))
        producer.send(change(300))
        producer.send(change(0, partition="another"))
    for number in range(3):
        kinds = [
            type(r.record)
            for r in read(kafka, topic)
            if r.position.kafka_partition == number and r.record != change(300)
        ]
        assert kinds[-1] is Heartbeat or kinds.count(Heartbeat) == 1
        covered = [r for r in read(kafka, topic) if r.position.kafka_partition == number]
        at = next(i for i, r in enumerate(covered) if isinstance(r.record, Heartbeat))
        assert all(
            r.record in (change(300), change(0, partition="another")) for r in covered[at + 1 :]
        )


def test_an_estimate_is_lowered_to_what_is_acknowledged(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    topic = new_topic().topic
    with ChangeProducer(kafka, topic, settings={"linger.ms": "1000"}) as producer:
        producer.send(change(1, timestamp=500))
        producer.send(change(2, timestamp=900, estimate=800))
        producer.flush()
        producer.send(change(3, timestamp=900, estimate=800))
        producer.send(change(4, timestamp=700, estimate=800))
    estimates = {
        r.record.row_key: r.record.estimated_low_watermark
        for r in read(kafka, topic)
        if isinstance(r.record, DataChange)
    }
    assert estimates == {b"row-1": 0, b"row-2": 500, b"row-3": 800, b"row-4": 700}


def test_a_batch_is_read_in_its_order_and_is_acknowledged_without_a_flush(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """PUB-5, REC-18: an estimate is lowered to what comes before it in the same batch."""
    topic = new_topic().topic
    sent = [
        *changes(300),
        change(300, timestamp=500),
        change(301, timestamp=900, estimate=800),
        change(302, partition="q", estimate=700),
    ]
    told: dict[Record, str | None] = {}
    with ChangeProducer(kafka, topic) as producer:
        producer.send_many(sent, headers=[("origin", b"test")], on_delivery=told.__setitem__)
        deadline = time.monotonic() + 20
        while len(told) < len(sent) and time.monotonic() < deadline:
            producer.poll(0.5)
        assert told == dict.fromkeys(sent)
    found = read_changes(kafka, topic)
    assert [r.record for r in found] == [
        *sent[:-2],
        replace(sent[-2], estimated_low_watermark=500),
        sent[-1],
    ]
    assert {r.source.headers for r in found} == {(("origin", b"test"),)}


@pytest.mark.parametrize(
    ("ahead_us", "sent_as"),
    [(None, 0), (3_600_000_000, 0), (60_000_000, 2000)],
    ids=["a sentinel", "an hour ahead of the clock", "within the clock skew"],
)
def test_an_estimate_that_is_no_claim_is_sent_as_none(
    kafka: KafkaConfig, new_topic: NewTopic, ahead_us: int | None, sent_as: int
) -> None:
    """WMK-5, watermark_is_honest: "no idea" does not become a claim of the change's own commit
    timestamp.
    """
    topic = new_topic().topic
    estimate = MAX_LONG if ahead_us is None else time.time_ns() // 1000 + ahead_us
    with ChangeProducer(kafka, topic) as producer:
        producer.send(change(1, timestamp=2000, estimate=estimate))
        producer.send(change(2, timestamp=1000))
        assert producer.ignored_claims == (sent_as == 0)
    estimates = {
        r.record.row_key: r.record.estimated_low_watermark
        for r in read(kafka, topic)
        if isinstance(r.record, DataChange)
    }
    assert estimates == {b"row-1": sent_as, b"row-2": 0}


def test_a_compacted_or_missing_topic_is_refused(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    ledger = f"{new_topic().topic}.dead-letters.ledger"
    with pytest.raises(TopicError, match="is compacted"):
        ChangeProducer(kafka, ledger)
    with pytest.raises(TopicError, match="There is no topic"):
        ChangeProducer(kafka, "test.missing.topic")


@pytest.mark.long
def test_an_unreachable_broker_is_a_clear_error_within_seconds() -> None:
    """By default, `tests/unit/kafka/test_client_settings.py` shows it."""
    began = time.monotonic()
    with pytest.raises(BrokerError, match=r"No Kafka broker answers at 127\.0\.0\.1:1"):
        ChangeProducer(DEAD, "t")
    assert time.monotonic() - began < 12


def test_a_full_queue_blocks_and_then_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """REC-17: bounded memory; what was not taken is said and can be sent again."""
    monkeypatch.setattr(client, "QUEUE_TIMEOUT_S", 0.5)
    producer = CopyingProducer(
        DEAD,
        FACTS,
        settings={"queue.buffering.max.messages": "10"},
    )
    for number in range(10):
        producer.send(change(number))
    began = time.monotonic()
    with pytest.raises(DeliveryError, match="1 records were not delivered") as caught:
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
    with pytest.raises(DeliveryError, match="4 records were not delivered to t") as caught:
        producer.flush(timeout_s=0.3)
    assert caught.value.undelivered == 4
    began = time.monotonic()
    with pytest.raises(DeliveryError):
        producer.close(timeout_s=0.2)
    assert time.monotonic() - began < 3
    assert list(producer.undelivered()) == [*changes(3), announcement("p", 999_999)]
    producer.close()


def test_a_heartbeat_is_refused_until_its_changes_are_delivered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "QUEUE_TIMEOUT_S", 0.3)
    producer = ChangeProducer(DEAD, FACTS)
    producer.send(change(1))
    with pytest.raises(DeliveryError, match="would claim more than was delivered"):
        producer.send(Heartbeat("p", 1_000_001))
    with pytest.raises(DeliveryError, match="Child partitions"):
        producer.send(ChildPartitions("p", 6, 1, (ChildPartition("q", ("p",)),)))
    producer.send(Heartbeat("p", 1_000_000))
    with pytest.raises(DeliveryError):
        producer.close(timeout_s=0.1)


def test_a_heartbeat_is_refused_while_a_change_has_failed() -> None:
    producer = CopyingProducer(DEAD, FACTS, settings={"message.timeout.ms": "300"})
    producer.send(change(1))
    with pytest.raises(DeliveryError, match="1 records were not delivered"):
        producer.flush(timeout_s=20)
    with pytest.raises(DeliveryError, match="would claim more than was delivered"):
        producer.send(Heartbeat("p", 1_000_001))
    with pytest.raises(DeliveryError, match="were not delivered"):
        producer.close(timeout_s=0.1)


def test_an_exception_inside_the_block_is_not_hidden_by_what_is_undelivered() -> None:
    def fail() -> None:
        with CopyingProducer(DEAD, FACTS, settings={"message.timeout.ms": "200"}) as producer:
            producer.send(change(1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        fail()
    assert "1 records were not delivered" in caught.value.__notes__[0]


@pytest.mark.long
def test_nothing_is_lost_when_the_broker_is_killed_while_producing(tmp_path: Path) -> None:
    """REC-17, `nothing_lost`: SIGKILL in the middle, started again on its folder; what was flushed
    is all there. By default, `test_replicas.py` shows it.
    """
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
        read_back = {r.record for r in read_changes(kafka, "t")}
        assert read_back == set(sent)


@pytest.mark.long
def test_a_failed_change_can_be_sent_again(tmp_path: Path) -> None:
    with LocalBroker.start(tmp_path, jar_store()) as broker:
        kafka = KafkaConfig(broker.bootstrap_servers)
        topics.create_topic(kafka, "t", kafka_partitions=2)
        settings = {"message.timeout.ms": "4000"}
        with (
            ChangeProducer(kafka, "t", settings=settings) as producer,
            ChangeProducer(kafka, "t", settings=settings, transactional_id="t") as transactional,
        ):
            broker.kill()
            producer.send(change(1))
            with pytest.raises(DeliveryError, match="was not committed"):
                transactional.send(change(2, partition="q"))
            with pytest.raises(DeliveryError):
                producer.flush(timeout_s=20)
            broker.restart()
            for one, name in ((producer, "p"), (transactional, "q")):
                for record in one.undelivered():
                    one.send(record)
                one.send(Heartbeat(name, 1_000_002))
        assert {r.record for r in read_changes(kafka, "t")} == {change(1), change(2, partition="q")}


def look_at_the_topic(producer: ChangeProducer) -> None:
    """Wait for an answer that the producer otherwise asks for once a minute."""
    watch = producer._control._watch
    watch._ask_at = 0.0
    producer._control.refresh()
    deadline = time.monotonic() + 20
    while watch._answer is not None and time.monotonic() < deadline:
        time.sleep(0.05)
        producer._control.refresh()


def test_kafka_partitions_that_were_added_get_control_records(
    admin: AdminClient, kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    facts = new_topic(kafka_partitions=1)
    with ChangeProducer(kafka, facts.topic) as producer:
        producer.send(Heartbeat("p", 5))
        admin.create_partitions([NewPartitions(facts.topic, 3)])[facts.topic].result(30)
        look_at_the_topic(producer)
        producer.send(Heartbeat("p", 6))
        assert producer.kafka_partitions == 3
    told = [announcement("p", 4), Heartbeat("p", 6)]
    found = read(kafka, facts.topic)
    assert [
        [r.record for r in found if r.position.kafka_partition == number][-2:]
        for number in range(3)
    ] == [told] * 3
    assert len(found) == 8


def test_a_producer_of_another_topic_under_the_same_name_stops(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    facts = new_topic()
    producer = ChangeProducer(kafka, replace(facts, topic_id="AAAAAAAAAAAAAAAAAAAAAA"))
    with pytest.raises(TopicError, match="not the topic that was read before"):
        look_at_the_topic(producer)
    producer.close()


# ── resume tokens ─────────────────────────────────────────────────────────────────────────────────


def test_the_resume_token_is_that_of_the_newest_heartbeat(
    kafka: KafkaConfig, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REC-19, resumable: never that of a data change; far behind the end, too."""
    monkeypatch.setattr(resume, "WINDOW", 3)
    topic = new_topic(kafka_partitions=2).topic
    with ChangeProducer(kafka, topic) as producer:
        with pytest.raises(TopicError, match="has no resume token of stream partition p") as caught:
            producer.resume_token("p")
        assert "backfill" in caught.value.remedy
        producer.send(Heartbeat("p", 5, b"five"))
        producer.send(Heartbeat("p", 7, b"seven"))
        producer.send(Heartbeat("p", 8))
        for number in range(50):
            producer.send(replace(change(number), resume_token=b"not this"))
            producer.send(Heartbeat("another", 9 + number, b"nor this"))
        producer.flush()
        assert producer.resume_token("p") == b"seven"
        assert producer.resume_token("another") == b"nor this"


def test_the_epoch_is_after_every_epoch_that_resuming_has_read(
    kafka: KafkaConfig, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PUB-4, REC-19: a machine whose clock is behind takes over."""
    topic = new_topic(kafka_partitions=2).topic
    with ChangeProducer(kafka, topic) as producer:
        producer.send(Heartbeat("p", 5, b"five"))
        producer.flush()
        before = producer._control.epoch.value
        producer.resume_token("p")
        assert producer._control.epoch.value == before, "its own epoch"
    monkeypatch.setattr(control_records, "now_us", lambda: 7)
    with ChangeProducer(kafka, topic) as producer:
        producer.resume_token("p")
        assert producer._control.epoch.value == before + 1


# ── automatic heartbeats (PUB-1) ──────────────────────────────────────────────────────────────────


def read_heartbeats(kafka: KafkaConfig, topic: str, kafka_partition: int = 0) -> list[Heartbeat]:
    return [
        received.record
        for received in read(kafka, topic)
        if isinstance(received.record, Heartbeat)
        and received.position.kafka_partition == kafka_partition
    ]


def test_a_silent_source_has_heartbeats_up_to_the_reported_position(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """PUB-1, WMK-3: the low watermark follows the reported positions, although nothing changes."""
    topic = new_topic(kafka_partitions=3).topic
    with ChangeProducer(kafka, topic, heartbeat_s=1) as producer:
        producer.send(change(1))
        for number in range(1, 31):
            producer.reached("p", 1_000_000 + number, b"%d" % number)
            producer.poll(0.1)
        before_close = read_heartbeats(kafka, topic)
        assert 1 <= len(before_close) <= 5
    for kafka_partition in range(3):
        found = read_heartbeats(kafka, topic, kafka_partition)
        assert found[-1] == Heartbeat("p", 1_000_030, b"30")
        times = [heartbeat.timestamp for heartbeat in found]
        assert times == sorted(times)
    with ChangeProducer(kafka, topic) as producer:
        assert producer.resume_token("p") == b"30"


def test_heartbeats_wait_while_a_transaction_is_open(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """PUB-1, REC-17: the heartbeat is committed in a transaction of its own, also if the open one
    is aborted.
    """
    topic = new_topic(kafka_partitions=2).topic
    with ChangeProducer(kafka, topic, transactional_id=topic, heartbeat_s=1) as producer:
        with producer.transaction():
            producer.send(change(1))
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.reached("p", 1_000_001)
            producer.send(change(2))
            time.sleep(2.5)
            assert read_heartbeats(kafka, topic) == []
            raise ZeroDivisionError
        producer.poll()
        assert read_heartbeats(kafka, topic) != []
        with producer.transaction():
            producer.send(change(2))
        producer.reached("p", 1_000_002)
    assert [heartbeat.timestamp for heartbeat in read_heartbeats(kafka, topic, 1)][-1] == 1_000_002
    found = {r.record for r in read_changes(kafka, topic)}
    assert found == {change(1), replace(change(2), estimated_low_watermark=1_000_002)}


@pytest.mark.long
def test_heartbeats_go_on_after_the_broker_was_away(tmp_path: Path) -> None:
    """PUB-1, watermark_is_honest: none of them is before a change that it covers. By default,
    `tests/unit/kafka/test_heartbeats.py` shows it.
    """
    with LocalBroker.start(tmp_path, jar_store()) as broker:
        kafka = KafkaConfig(broker.bootstrap_servers)
        topics.create_topic(kafka, "t", kafka_partitions=2)
        with ChangeProducer(kafka, "t", heartbeat_s=1) as producer:
            for number in range(60):
                producer.send(change(number))
                producer.reached("p", 1_000_000 + number)
                producer.poll(0.1)
                if number == 20:
                    broker.kill()
                if number == 40:
                    broker.restart()
        for kafka_partition in range(2):
            low = 0
            for received in read(kafka, "t"):
                if received.position.kafka_partition != kafka_partition:
                    continue
                if isinstance(received.record, DataChange):
                    assert received.record.commit_timestamp > low
                elif isinstance(received.record, Heartbeat):
                    low = received.record.timestamp
            assert low == 1_000_059


# ── transactions ──────────────────────────────────────────────────────────────────────────────────


def test_a_transaction_is_delivered_as_one_or_not_at_all(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """REC-17, REC-18: what was aborted is undelivered until it was sent again, and nothing may
    claim more meanwhile.
    """
    topic = new_topic(kafka_partitions=2).topic
    records: list[Record] = [*changes(10), Heartbeat("p", 1_000_009, b"nine")]
    with ChangeProducer(kafka, topic, transactional_id=topic) as producer:
        with pytest.raises(ZeroDivisionError), producer.transaction():
            for record in records:
                producer.send(record)
            raise ZeroDivisionError
        assert read(kafka, topic) == []
        assert set(producer.undelivered()) == set(records)
        assert producer.delivered == 0
        with pytest.raises(DeliveryError, match="would claim more than was delivered"):
            producer.send(Heartbeat("p", 1_000_020))
        with pytest.raises(DeliveryError, match="which was not delivered before, is not in it"):
            producer.send(change(11))
        with producer.transaction():
            for record in [*producer.undelivered(), change(12)]:
                producer.send(record)
        assert producer.undelivered() == {}
        assert producer.delivered == 13
    found = [r.record for r in read(kafka, topic)]
    assert {record for record in found if isinstance(record, DataChange)} == {*changes(13)} - {
        change(10)
    }
    assert [record for record in found if not isinstance(record, DataChange)] == [
        announcement("p", 999_999),
        records[-1],
    ] * 2


def test_outside_a_transaction_a_record_is_one_of_its_own(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """REC-19: the token of the last committed record, be it a change."""
    topic = new_topic(kafka_partitions=3).topic
    with ChangeProducer(kafka, topic, transactional_id=topic) as producer:
        producer.send(Heartbeat("p", 999_999, b"before"))
        assert producer.resume_token("p") == b"before"
        for number in range(5):
            producer.send(replace(change(number), resume_token=b"%d" % number))
        assert producer.delivered == 6
        assert producer.resume_token("p") == b"4"
        producer.send(Heartbeat("p", 1_000_004, b"after"))
        assert producer.resume_token("p") == b"after"
        with pytest.raises(InvalidChangeError, match="the last heartbeat"):
            producer.send(change(4))


def test_a_second_producer_with_the_same_transactional_id_fences_the_first(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """REC-17: a stream partition has one producer at a time; what the first one had begun is
    aborted.
    """
    topic = new_topic(kafka_partitions=2).topic
    first = ChangeProducer(kafka, topic, transactional_id=topic)

    def is_interrupted() -> None:
        with first.transaction():
            first.send(change(1))
            with ChangeProducer(kafka, topic, transactional_id=topic) as second:
                second.send(change(2))

    with pytest.raises(
        WriterConflictError, match="Another program uses the transactional id"
    ) as caught:
        is_interrupted()
    assert "one producer at a time" in caught.value.remedy
    with pytest.raises(WriterConflictError, match="Another program uses the transactional id"):
        first.send(change(3))
    with pytest.raises(DeliveryError, match="1 records were not delivered"):
        first.close()
    assert [r.record for r in read_changes(kafka, topic)] == [change(2)]


def test_a_record_that_the_broker_refuses_becomes_a_dead_letter_and_the_source_goes_on(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """DLQ-2, REC-18, nothing_lost: it is a dead letter with its bytes; heartbeats pass it, and it
    can be replayed.
    """
    facts = new_topic(kafka_partitions=2)
    refused, taken = (
        change(0, timestamp=10, value=random.Random(1).randbytes(5_000)),
        change(1, timestamp=20),
    )
    with ChangeProducer(kafka, facts) as producer:
        limit = ConfigEntry(
            "max.message.bytes", "2000", incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(
            ConfigResource.Type.TOPIC, facts.topic, incremental_configs=[limit]
        )
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        admin.incremental_alter_configs([resource])[resource].result(30)
        producer.send(refused)
        producer.send(taken)
        with pytest.raises(DeliveryError):
            producer.flush()
        with pytest.raises(DeliveryError, match="would claim more"):
            producer.send(Heartbeat("p", 30))
        failed = producer.undelivered()
        assert refused in failed
        producer.send_to_dead_letters(refused)
        for innocent in failed.keys() - {
            refused
        }:  # of the same batch, which Kafka refuses as a whole
            producer.send(innocent)
        producer.flush()
        assert producer.undelivered() == {}
        producer.send(Heartbeat("p", 30))
    assert [received.record for received in read_changes(kafka, facts.topic)] == [taken]

    ((letter, at),) = read_letters(kafka, facts.topic)
    assert (letter.reason, letter.key, letter.headers) == (Reason.REJECTED, refused.row_key, ())
    assert "too large" in letter.detail
    assert letter.id == f"{at.topic_id}-{at.kafka_partition}-{at.offset}"
    decoded = decode(letter.value, Schemas())
    assert isinstance(decoded, ChangeRecord)
    assert decoded.record == refused
