"""What a reader of committed transactions finds at given offsets of a real topic (TBL-6)."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from connector.config.settings import KafkaConfig
from connector.errors import TopicError
from connector.kafka import probe_offsets
from connector.kafka.probe_offsets import visible_offsets
from connector.kafka.topics import TopicFacts
from connector.reports.audit import Range, TopicCheck
from tests.broker import NewTopic


@pytest.fixture
def topic(kafka: KafkaConfig, new_topic: NewTopic) -> TopicFacts:
    """Kafka partition 0: 0 committed, 1 marker, 2 and 3 aborted, 4 marker, 5 and 6 committed, 7
    marker. Kafka partition 1 is empty.
    """
    facts = new_topic(kafka_partitions=2)
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": facts.topic}
    )
    producer.init_transactions(30)
    for records, end in (
        (1, producer.commit_transaction),
        (2, producer.abort_transaction),
        (2, producer.commit_transaction),
    ):
        producer.begin_transaction()
        for _ in range(records):
            producer.produce(facts.topic, b"v", b"k", 0)
        producer.flush(30)
        end(30)
    return facts


@pytest.mark.parametrize("near", [0, probe_offsets.NEAR])
def test_only_committed_records_are_visible(
    kafka: KafkaConfig, topic: TopicFacts, monkeypatch: pytest.MonkeyPatch, near: int
) -> None:
    """Read through, or place by place; up to a marker at the very end, and beyond what there is."""
    monkeypatch.setattr(probe_offsets, "NEAR", near)
    places = {0: (Range(1, 5), Range(6, 10)), 1: (Range(0, 2),), 7: (Range(3, 4),)}
    found = visible_offsets(kafka, topic.topic, topic.topic_id, places)
    assert found == {
        0: TopicCheck((Range(6, 7),), (Range(8, 10),)),
        1: TopicCheck((), (Range(0, 2),)),
        7: TopicCheck((), (Range(3, 4),)),
    }
    assert visible_offsets(
        kafka, topic.topic, topic.topic_id, {0: (Range(1, 2), Range(4, 5), Range(7, 8))}
    ) == {0: TopicCheck()}


def test_offsets_that_retention_removed_are_reported_as_removed(
    kafka: KafkaConfig, topic: TopicFacts, admin: AdminClient
) -> None:
    place = TopicPartition(topic.topic, 0, 3)
    admin.delete_records([place])[place].result(30)
    assert visible_offsets(kafka, topic.topic, topic.topic_id, {0: (Range(0, 6),)}) == {
        0: TopicCheck((Range(5, 6),), (Range(0, 3),))
    }


def test_another_topic_of_that_name_says_nothing(kafka: KafkaConfig, topic: TopicFacts) -> None:
    """REC-4."""
    with pytest.raises(TopicError, match="created again"):
        visible_offsets(kafka, topic.topic, "AAAAAAAAAAAAAAAAAAAAAA", {0: (Range(1, 2),)})
