"""Topics on a real broker (REC-1, REC-2, REC-4, DLQ-1)."""

from __future__ import annotations

import time
import uuid

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from confluent_kafka.cimpl import NewTopic as PlainTopic

from connector.config.settings import KafkaConfig
from connector.errors import ConfigError, TopicError
from connector.kafka import client, topics
from tests.broker import NewTopic
from tests.integration.changes import send_raw
from tests.integration.foreign_topics import until


def make_plain(admin: AdminClient, **config: str) -> str:
    name = f"test.plain.{uuid.uuid4().hex[:12]}"
    admin.create_topics(
        [PlainTopic(name, 1, 1, config={k.replace("_", "."): v for k, v in config.items()})]
    )[name].result(30)
    while admin.list_topics(name, timeout=30).topics[name].error is not None:
        time.sleep(0.05)
    return name


def test_a_created_topic_is_what_the_spec_asks_for(new_topic: NewTopic) -> None:
    facts = new_topic(kafka_partitions=3, retention_s=2 * topics.DAY_S)
    assert (facts.kafka_partitions, facts.cleanup_policy, facts.timestamp_type) == (
        3,
        "delete",
        "LogAppendTime",
    )
    assert facts.retention_ms == 2 * topics.DAY_S * 1000
    assert topics.check(facts) == []


def test_dead_letter_topic_and_ledger_come_with_it(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    facts = new_topic(kafka_partitions=2)
    letters = topics.describe(kafka, f"{facts.topic}.dead-letters")
    assert (letters.retention_ms, letters.cleanup_policy) == (-1, "delete")
    assert letters.max_message_bytes > facts.max_message_bytes
    assert topics.describe(kafka, f"{facts.topic}.dead-letters.ledger").cleanup_policy == "compact"


@pytest.mark.parametrize("retention_s", [topics.DAY_S - 1, 7 * topics.DAY_S + 1, -1])
def test_retention_outside_its_bounds_is_refused(kafka: KafkaConfig, retention_s: int) -> None:
    with pytest.raises(ConfigError, match=r"1 day.*7 days"):
        topics.create_topic(kafka, "test.never", kafka_partitions=1, retention_s=retention_s)


def test_an_existing_topic_is_an_error_that_says_how_it_differs(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    facts = new_topic(kafka_partitions=2)
    with pytest.raises(TopicError, match="exists with other properties") as caught:
        topics.create_topic(kafka, facts.topic, kafka_partitions=3, retention_s=topics.DAY_S)
    assert "Kafka partitions is 2, but 3 was requested" in caught.value.cause
    assert "retention.ms is 604800000, but 86400000 was requested" in caught.value.cause


def test_a_topic_can_be_asked_for_twice(
    admin: AdminClient, kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """OPS-10: in a script; also after a creation that ended half way, without the dead-letter
    topic.
    """
    facts = new_topic(kafka_partitions=2)
    letters = f"{facts.topic}.dead-letters"
    admin.delete_topics([letters])[letters].result(30)
    assert topics.create_topic(kafka, facts.topic, kafka_partitions=2) == facts
    assert topics.describe(kafka, letters).cleanup_policy == "delete"


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_compacted_topic_is_refused(admin: AdminClient, kafka: KafkaConfig, policy: str) -> None:
    facts = topics.describe(kafka, make_plain(admin, cleanup_policy=policy))
    with pytest.raises(TopicError, match="is compacted") as caught:
        topics.check(facts)
    assert "cleanup.policy=delete" in caught.value.remedy


def test_create_time_is_a_warning(admin: AdminClient, kafka: KafkaConfig) -> None:
    facts = topics.describe(kafka, make_plain(admin, message_timestamp_type="CreateTime"))
    assert any("LogAppendTime" in warning for warning in topics.check(facts))


def test_a_missing_topic_is_named_with_a_remedy(kafka: KafkaConfig) -> None:
    with pytest.raises(TopicError, match=r"There is no topic test\.missing") as caught:
        topics.describe(kafka, "test.missing")
    assert (caught.value.remedy, caught.value.fields) == (
        "Check the name of the topic. If it is right, create the topic",
        {"topic": "test.missing"},
    )


def test_a_topic_created_again_has_another_identity(admin: AdminClient, kafka: KafkaConfig) -> None:
    name = f"test.again.{uuid.uuid4().hex[:12]}"
    before = topics.create_topic(kafka, name, kafka_partitions=1)
    topics.check_identity(before.topic_id, topics.describe(kafka, name))
    admin.delete_topics([name])[name].result(30)
    after = topics.create_topic(kafka, name, kafka_partitions=1)
    with pytest.raises(TopicError, match="not the topic that was read before") as caught:
        topics.check_identity(before.topic_id, after)
    assert before.topic_id in caught.value.cause


def test_the_topic_id_is_written_as_java_writes_it(new_topic: NewTopic) -> None:
    """22 characters of URL-safe base 64: a letter's id ends at the last two dashes."""
    for _ in range(5):
        topic_id = new_topic().topic_id
        assert len(topic_id) == 22
        assert not set(topic_id) & set("+/=")


def test_offsets_by_time(admin: AdminClient, kafka: KafkaConfig, new_topic: NewTopic) -> None:
    facts = new_topic(kafka_partitions=2)
    send_raw(kafka, facts.topic, [(b"k", b"v")] * 3, partition=1)
    assert topics.beginning_offsets(kafka, facts) == {0: 0, 1: 0}
    assert topics.end_offsets(kafka, facts) == {0: 0, 1: 3}
    assert topics.offsets_at(kafka, facts, 1) == {0: 0, 1: 0}
    assert topics.offsets_at(kafka, facts, 2**52) == {0: 0, 1: 3}
    for deleted in admin.delete_records([TopicPartition(facts.topic, 1, 2)]).values():
        deleted.result(30)
    assert topics.beginning_offsets(kafka, facts) == {0: 0, 1: 2}
    assert topics.offsets_at(kafka, facts, 1) == {0: 0, 1: 2}


def test_describe_counts_added_kafka_partitions(
    admin: AdminClient, kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    facts = new_topic(kafka_partitions=1)
    admin.create_partitions([NewPartitions(facts.topic, 3)])[facts.topic].result(30)
    assert topics.describe(kafka, facts.topic).kafka_partitions == 3


def test_looks_use_one_client_until_one_fails(
    admin: AdminClient, kafka: KafkaConfig, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TBL-24: they show new records and new Kafka partitions."""
    facts, made, build = new_topic(kafka_partitions=1), list[object](), client.new_admin
    looks = topics.TopicLooks(kafka, facts.topic)
    monkeypatch.setattr(client, "new_admin", lambda *args: made.append(args) or build(*args))
    assert (looks.topic().topic_id, looks.committed_ends()) == (facts.topic_id, {0: 0})
    send_raw(kafka, facts.topic, [(b"k", b"v")] * 3)
    admin.create_partitions([NewPartitions(facts.topic, 2)])[facts.topic].result(30)
    until(lambda: looks.committed_ends() == {0: 3, 1: 0})
    assert len(made) == 1
    admin.delete_topics([facts.topic])[facts.topic].result(30)
    with pytest.raises(TopicError):
        until(lambda: not looks.topic())
    topics.create_topic(kafka, facts.topic, kafka_partitions=1)
    made.clear()
    assert looks.committed_ends() == {0: 0}
    assert len(made) == 1
