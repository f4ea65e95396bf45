"""A group that stores the state of a reader of whole transactions (SUB-3, SUB-4)."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace

import pytest
from confluent_kafka import TopicPartition

from connector.config.settings import KafkaConfig
from connector.dead_letters.envelope import replay_topic
from connector.dead_letters.filter import LetterFilter
from connector.errors import ConfigError, ConnectorError, WriterConflictError
from connector.kafka import (
    ChangeConsumer,
    ChangeProducer,
    Group,
    Late,
    Rejected,
    TransactionConsumer,
    WholeTransaction,
    client,
    create_group_topics,
    read_letters,
)
from connector.kafka.topics import TopicFacts
from connector.records.model import ChildPartition, ChildPartitions, Heartbeat, Transaction
from connector.watermarks.transactions import Item
from tests.broker import NewTopic
from tests.integration.changes import change, send_raw
from tests.integration.test_set_aside import letters_of


def publish(kafka: KafkaConfig, topic: str, numbers: range) -> None:
    """Each two changes are a transaction."""
    with ChangeProducer(kafka, topic) as producer:
        for number in numbers:
            of = Transaction(f"t{number // 2}", number % 2, number_of_records_in_transaction=2)
            at = 1_000_000 + number // 2
            producer.send(replace(change(number, timestamp=at), transaction=of))
        producer.flush()
        producer.send(Heartbeat("p", 1_000_000 + numbers[-1] // 2))


def reader(
    kafka: KafkaConfig, facts: TopicFacts, group: str, *, replays: bool = False
) -> TransactionConsumer:
    return TransactionConsumer(
        kafka, facts.topic, start=Group(group, replays=replays), bounded=True
    )


def numbers(found: list[Item]) -> list[int]:
    return [one.commit_timestamp - 1_000_000 for one in found if isinstance(one, WholeTransaction)]


def test_a_group_continues_after_what_was_acknowledged(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """SUB-3: committed or not, and nothing twice."""
    facts, group = new_topic(kafka_partitions=2), uuid.uuid4().hex
    publish(kafka, facts.topic, range(10))
    with reader(kafka, facts, group) as consumer:
        for item in consumer:
            if numbers([item]) == [3]:
                break  # it is not acknowledged, and comes again
            consumer.acknowledge(item)
            consumer.commit()
    publish(kafka, facts.topic, range(10, 14))
    with reader(kafka, facts, group) as consumer:
        found = list(consumer)
        assert numbers(found) == [3, 4, 5, 6]
        consumer.acknowledge(found[-1])
        assert json.loads(consumer.state())["acknowledged"][0] == 1_000_006
    with reader(kafka, facts, group) as consumer:
        assert numbers(list(consumer)) == [3, 4, 5, 6], "it was not committed"
        consumer.acknowledge(found[1])
        consumer.commit()
    with reader(kafka, facts, group) as consumer:
        assert numbers(list(consumer)) == [5, 6]


def test_a_second_consumer_of_a_group_shuts_the_first_one_out(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """SUB-3: no older state replaces a newer one. The first one must not store anything."""
    facts, group = new_topic(kafka_partitions=2), uuid.uuid4().hex
    publish(kafka, facts.topic, range(10))
    with reader(kafka, facts, group) as first:
        items = list(first)
        first.acknowledge(items[0])
        first.commit()
        with reader(kafka, facts, group) as second:
            second.acknowledge(list(second)[2])
            second.commit()
        first.acknowledge(items[1])
        with pytest.raises(WriterConflictError, match="Another program uses the group") as caught:
            first.commit()
        assert caught.value.code == "TAKEN_OVER"
        with pytest.raises(ConnectorError, match="were not stored"):
            first.commit()
    with reader(kafka, facts, group) as again:
        assert numbers(list(again)) == [4]


def test_positions_of_other_readers_are_no_state_and_no_reader_replaces_one(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """SUB-3."""
    facts, group = new_topic(), uuid.uuid4().hex
    publish(kafka, facts.topic, range(4))
    with ChangeConsumer(kafka, facts.topic, start=Group(group), bounded=True) as plain:
        list(plain)
        plain.commit()
    with pytest.raises(ConfigError, match="positions of another kind of reader"):
        reader(kafka, facts, group)
    other = uuid.uuid4().hex
    with reader(kafka, facts, other) as consumer:
        list(consumer)
        consumer.commit()
    with (
        ChangeConsumer(kafka, facts.topic, start=Group(other), bounded=True) as plain,
        pytest.raises(ConfigError, match="stores the state of a reader of whole transactions"),
    ):
        list(plain)


def test_a_state_that_does_not_fit_is_an_error_and_the_older_one_stays(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """SUB-3: the remedy is to store it elsewhere."""
    facts, group = new_topic(), uuid.uuid4().hex
    publish(kafka, facts.topic, range(4))
    with reader(kafka, facts, group) as consumer:
        consumer.acknowledge(next(iter(consumer)))
        consumer.commit()
        with ChangeProducer(kafka, facts.topic) as producer:
            for _ in range(300):
                name = uuid.uuid4().hex
                producer.send(ChildPartitions(name, 1, 0, (ChildPartition(name),)))
    with reader(kafka, facts, group) as consumer:
        assert numbers(list(consumer)) == [1]
        with pytest.raises(ConnectorError, match="too large for the group") as caught:
            consumer.commit()
        assert caught.value.code == "TRANSACTIONS_UNACKNOWLEDGED"
        assert len(consumer.state()) > 4096
    with reader(kafka, facts, group) as consumer:
        assert numbers(list(consumer)) == [1]


def test_other_tools_see_the_oldest_unacknowledged_offset(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """SUB-3."""
    facts, group = new_topic(), uuid.uuid4().hex
    publish(kafka, facts.topic, range(8))
    with reader(kafka, facts, group) as consumer:
        items = list(consumer)
        consumer.acknowledge(items[1])
        consumer.commit()
    assert isinstance(items[2], WholeTransaction)
    settings = {"group.id": group}
    other = client.consumer(kafka, client.LastError(), settings)
    (found,) = other.committed([TopicPartition(facts.topic, 0)], timeout=10)
    other.close()
    assert found.offset == items[2].positions[0].offset


def test_whole_transactions_are_set_aside_and_their_replays_come(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """SUB-4: each record of the transaction as it was. The replays come as late changes, once."""
    facts, group = new_topic(kafka_partitions=2), uuid.uuid4().hex
    create_group_topics(kafka, facts.topic, group)
    publish(kafka, facts.topic, range(6))
    send_raw(kafka, facts.topic, [(b"row-1", b"bad")])
    with reader(kafka, facts, group, replays=True) as consumer:
        for item in consumer:
            if isinstance(item, Rejected) or numbers([item]) == [1]:
                consumer.set_aside(item, "no such customer")
            consumer.acknowledge(item)
            with pytest.raises(ConfigError, match="one that is not acknowledged"):
                consumer.set_aside(item, "too late")
        consumer.commit()
    letters = [letter for letter, _ in read_letters(kafka, facts.topic, group=group)]
    assert sorted(letter.key or b"" for letter in letters) == [b"row-1", b"row-2", b"row-3"]
    assert letters_of(kafka, facts, group).replay(LetterFilter(), why="x").verdicts.total() == 3
    for is_acknowledged in (False, True, True):
        with reader(kafka, facts, group, replays=True) as consumer:
            found = list(consumer)
            if not is_acknowledged:
                consumer.set_aside(found[0], "still not")
            if is_acknowledged and found:
                consumer.acknowledge(found[-1])
                consumer.commit()
            elif is_acknowledged:
                break
            assert sorted(one.change.row_key for one in found if isinstance(one, Late)) == [
                b"row-2",
                b"row-3",
            ]
    else:
        pytest.fail("the replays come again")
    (again,) = [letter for letter, _ in letters_of(kafka, facts, group).list() if letter.attempt]
    assert (again.attempt, again.detail) == (1, "still not")
    assert again.position.topic == replay_topic(facts.topic, group)


def test_a_commit_that_is_cut_off_leaves_the_older_state(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """SUB-3: the offsets of all Kafka partitions, or of none; nothing waits for the dead one."""
    facts, group = new_topic(kafka_partitions=2), uuid.uuid4().hex
    publish(kafka, facts.topic, range(8))
    with reader(kafka, facts, group) as consumer:
        items = list(consumer)
        consumer.acknowledge(items[0])
        consumer.commit()
        of_group = consumer._group_state
        assert of_group is not None
        places = [TopicPartition(facts.topic, k, 7, "half of a state") for k in (0, 1)]
        assert of_group._client._producer is not None
        of_group._client._producer.begin_transaction()
        metadata = of_group._consumer.consumer_group_metadata()
        of_group._client._producer.send_offsets_to_transaction(places, metadata, 30)
        with reader(kafka, facts, group) as other:
            assert numbers(list(other)) == [1, 2, 3]
