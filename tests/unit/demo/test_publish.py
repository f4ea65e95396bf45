"""What the demo publishes, through the real producer on librdkafka's mock cluster."""

from __future__ import annotations

import random
import time
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from connector import DataChange, Heartbeat, Rejection
from connector.kafka import ChangeProducer
from connector.records.codec import ChangeRecord, Schemas, decode, framed
from connector.records.rejection import Position
from connector.validation import KafkaRecord, Limits, validate_record
from examples.demo.history import STREAM_PARTITIONS
from examples.demo.publish import KINDS, publish_commits, report_complete
from tests.unit.git_repository import Repository
from tests.unit.mock_cluster import FACTS, MockCluster, running_cluster

NOW = 1_800_000_000_000_000


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository(tmp_path / "repository")
    for number in range(3):
        for path in range(250):
            made.write(f"{chr(ord('a') + path % 26)}/{path}", str(number))
        made.commit()
    return made


def records_in(cluster: MockCluster, count: int) -> list[ChangeRecord]:
    """The first records of the topic."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g"})
    consumer.assign([TopicPartition(FACTS.topic, k, 0) for k in range(FACTS.kafka_partitions)])
    found = []
    for _ in range(count):
        message = consumer.poll(10)
        assert message is not None, f"the topic has only {len(found)} of {count} records"
        record = decode(message.value(), Schemas())
        assert isinstance(record, ChangeRecord)
        found.append(record)
    consumer.close()
    return found


def test_every_change_is_sent_out_of_order_and_some_twice(
    repository: Repository, seed: int
) -> None:
    """REC-18: each change is after the reported times. Otherwise the producer would refuse it."""
    commits, now = repository.history(), time.time_ns() // 1000
    with running_cluster() as cluster:
        cluster.create_topic(FACTS.topic, FACTS.kafka_partitions)
        with ChangeProducer(cluster.kafka, FACTS) as producer:
            done = publish_commits(producer, commits, random.Random(seed))
            report_complete(producer, now)
        control_records = (producer.announced + producer.heartbeats) * FACTS.kafka_partitions
        records = [
            each.record for each in records_in(cluster, producer.delivered + control_records)
        ]
    changes = [record for record in records if isinstance(record, DataChange)]
    sent = [change for commit in commits for change in commit.changes]
    assert {(change.row_key, change.commit_timestamp) for change in changes} == {
        (change.row_key, change.commit_timestamp) for change in sent
    }
    assert (done.commits, done.changes, done.last) == (3, 750, commits[-1])
    assert len(changes) == 750 + done.repeated > 750
    assert any(
        before.commit_timestamp > after.commit_timestamp for before, after in pairwise(changes)
    )
    heartbeats = {r.stream_partition: r.timestamp for r in records if isinstance(r, Heartbeat)}
    assert heartbeats == dict.fromkeys(STREAM_PARTITIONS, now)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_bad_record_is_rejected_for_its_reason(
    repository: Repository, kind: str
) -> None:
    """REC-11, REC-13, DLQ-2"""
    change = repository.history()[0].changes[0]
    reason, damage = KINDS[kind]

    def verdict(key: bytes | None, value: bytes | None) -> ChangeRecord | Rejection:
        record = KafkaRecord(Position("t", "id", 0, 0), NOW, key, value, ())
        return validate_record(
            record, schemas=Schemas(), limits=Limits(), kafka_partitions=3, tables=None
        )

    good = framed(change, 3)
    assert isinstance(verdict(change.row_key, good), ChangeRecord)
    rejection = verdict(*damage(change.row_key, good))
    assert isinstance(rejection, Rejection)
    assert rejection.reason is reason
