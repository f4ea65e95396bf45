"""Dead letters on a real broker (DLQ-1, DLQ-4, DLQ-6)."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from connector.config.settings import ConnectorConfig, KafkaConfig, StreamConfig
from connector.dead_letters.envelope import (
    DeadLetter,
    dead_letter_topic,
    ledger_topic,
    source_letter,
    to_headers,
)
from connector.dead_letters.ledger import NO_EXTERNAL, ExternalDeadLetters
from connector.errors import BrokerError, TopicError
from connector.kafka import DeadLetterPublisher, read_letters, topics
from connector.kafka.dead_letters.topic import external_dead_letters
from connector.records.rejection import Position, Reason
from connector.services import validate_config
from connector.services.run import ports_of
from tests.broker import NewTopic
from tests.integration.changes import send_raw


def letter(topic: topics.TopicFacts, offset: int, **fields: object) -> DeadLetter:
    common = DeadLetter(
        position=Position(topic.topic, topic.topic_id, 0, offset),
        key=b"row-%d" % offset,
        value=b"\x00\xff rubbish",
        headers=(("origin", b"\xff"), ("origin", None), ("connector.dlq.id", b"from before")),
        reason=Reason.UNDECODABLE,
        rule="",
        detail="at byte 7",
        attempt=0,
        first_failed_at=11,
        record_timestamp=5,
        schema_id="3",
        ingest_batch=4,
        order_position=f"4/0/{offset}/0",
    )
    return replace(common, **fields)  # type: ignore[arg-type]


def test_letters_come_out_as_they_went_in(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    facts = new_topic(kafka_partitions=2)
    sent = [
        letter(facts, 0),
        letter(facts, 1, key=None),
        letter(facts, 2, value=None),
        letter(facts, 3, key=b"", value=b""),
        letter(facts, 4, reason=Reason.UNREADABLE_VALUE, table="customers"),
        letter(facts, 4, reason=Reason.INVALID, rule="ROW_KEY", schema_id=None),
    ]
    with DeadLetterPublisher(kafka, facts.topic) as publisher:
        assert publisher.publish(sent) == 6
        assert publisher.publish([]) == 0
    read = list(read_letters(kafka, facts.topic))
    assert sorted((found for found, _ in read), key=lambda found: found.id) == sorted(
        sent, key=lambda found: found.id
    )
    assert {position.topic for _, position in read} == {dead_letter_topic(facts.topic)}


def test_a_letter_published_twice_is_counted_once(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    """DLQ-4: a crash between publishing and remembering it repeats letters with the same ids."""
    facts = new_topic()
    letters = [letter(facts, offset) for offset in range(10)]
    for part in (letters[:6], letters[:6], letters[3:]):
        with DeadLetterPublisher(kafka, facts.topic) as publisher:
            publisher.publish(part)
    assert [found for found, _ in read_letters(kafka, facts.topic)] == letters


def test_letters_of_others_are_counted_from_where_they_were_last(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    """DLQ-7: a producer set one aside, another tool wrote two; ours, twice, are not theirs."""
    facts = new_topic()
    assert external_dead_letters(kafka, facts.topic, NO_EXTERNAL).count == 0
    set_aside = source_letter(facts.topic, b"k", b"v", (), "Broker: too large", now=40)
    with DeadLetterPublisher(kafka, facts.topic) as publisher:
        publisher.publish([letter(facts, 1), set_aside, letter(facts, 1)])
    known = external_dead_letters(kafka, facts.topic, NO_EXTERNAL)
    dead_letters = topics.describe(kafka, dead_letter_topic(facts.topic))
    assert (known.topic_id, known.count, sum(known.read_to.values())) == (
        dead_letters.topic_id,
        1,
        3,
    )
    assert external_dead_letters(kafka, facts.topic, known) == known
    assert (
        external_dead_letters(
            kafka, facts.topic, ExternalDeadLetters(known.topic_id), published=3
        ).count
        == 0
    ), "they are not read"
    assert (
        external_dead_letters(kafka, facts.topic, ExternalDeadLetters(known.topic_id), published=2)
        == known
    ), "one is not ours"
    send_raw(kafka, dead_letters.topic, [(b"k", b"of another tool"), (b"k", b"and another")])
    more = external_dead_letters(kafka, facts.topic, known)
    assert (more.count, more.since, sum(more.read_to.values())) == (3, known.since, 5)
    assert (
        external_dead_letters(
            kafka, facts.topic, ExternalDeadLetters("a topic that was there before", 7)
        )
        == more
    )


def test_reading_goes_on_after_a_position(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    facts = new_topic()
    with DeadLetterPublisher(kafka, facts.topic) as publisher:
        publisher.publish(letter(facts, offset) for offset in range(5))
        *_, (_, third) = islice(read_letters(kafka, facts.topic), 3)
        assert [
            found.position.offset for found, _ in read_letters(kafka, facts.topic, after=(third,))
        ] == [3, 4]
        publisher.publish([letter(facts, 5)])
    with pytest.raises(TopicError, match="not the topic"):
        list(
            read_letters(
                kafka, facts.topic, after=(replace(third, topic_id="AAAAAAAAAAAAAAAAAAAAAA"),)
            )
        )


def test_a_record_of_another_program_is_a_letter_with_its_own_coordinates(
    kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    facts = new_topic()
    send_raw(kafka, dead_letter_topic(facts.topic), [(b"k", b"v")])
    ((found, position),) = read_letters(kafka, facts.topic)
    assert found.position == position
    assert found.reason is Reason.REJECTED


def test_the_largest_record_fits_with_its_headers(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    """DLQ-6: the record is kept in full."""
    facts = new_topic()
    value = random.Random(5).randbytes(facts.max_message_bytes - 200)
    sent = letter(facts, 0, value=value, detail="x" * 5000)
    with DeadLetterPublisher(kafka, facts.topic) as publisher:
        publisher.publish([sent])
    ((found, _),) = read_letters(kafka, facts.topic)
    assert found == sent
    assert found.value == value


def test_a_topic_without_room_is_refused_before_the_first_dead_letter(
    admin: AdminClient, kafka: KafkaConfig, new_topic: NewTopic, tmp_path: Path
) -> None:
    """DLQ-1, OPS-1: by `validate`, and where `run` starts. Other findings still come."""
    facts = new_topic()
    name = dead_letter_topic(facts.topic)
    size = ConfigEntry(
        "max.message.bytes",
        str(facts.max_message_bytes),
        incremental_operation=AlterConfigOpType.SET,
    )
    resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=[size])
    admin.incremental_alter_configs([resource])[resource].result(30)
    stream = StreamConfig(name="s", topic=facts.topic)
    config = ConnectorConfig(str(tmp_path), kafka, streams={"s": stream})
    found = [one.error.code for one in validate_config(config) if one.error is not None]
    assert found == ["TOPIC_UNSUITABLE"]
    assert any(ledger_topic(facts.topic) in one.text for one in validate_config(config))
    with ExitStack() as stack, pytest.raises(TopicError, match="bytes per message"):
        ports_of(config, stream, stack)


def test_a_missing_dead_letter_topic_is_created(
    admin: AdminClient, kafka: KafkaConfig, new_topic: NewTopic
) -> None:
    facts = new_topic()
    name = dead_letter_topic(facts.topic)
    admin.delete_topics([name])[name].result(30)
    with pytest.raises(TopicError, match="There is no topic"):
        while True:
            list(read_letters(kafka, facts.topic))
            time.sleep(0.1)
    with DeadLetterPublisher(kafka, facts.topic) as publisher:
        publisher.publish([letter(facts, 0)])
    assert len(list(read_letters(kafka, facts.topic))) == 1


def test_an_empty_topic_has_no_letters(kafka: KafkaConfig, new_topic: NewTopic) -> None:
    assert list(read_letters(kafka, new_topic().topic)) == []


def test_publishing_nothing_needs_no_broker() -> None:
    assert DeadLetterPublisher(KafkaConfig("127.0.0.1:1"), "t").publish([]) == 0


@pytest.mark.long
def test_an_unreachable_broker_is_a_clear_error(new_topic: NewTopic) -> None:
    """By default, `tests/unit/kafka/test_client_settings.py` shows it."""
    facts = new_topic()
    with (
        DeadLetterPublisher(KafkaConfig("127.0.0.1:1"), facts.topic) as publisher,
        pytest.raises(BrokerError, match="No Kafka broker"),
    ):
        publisher.publish([letter(facts, 0)])


def test_a_refused_letter_is_an_error_and_the_next_batch_is_published(
    admin: AdminClient, kafka: KafkaConfig, new_topic: NewTopic, seed: int
) -> None:
    """DLQ-6: what compresses well was taken by the change topic, however large it is, and is taken
    here.
    """
    facts = new_topic()
    size = facts.max_message_bytes + topics.LETTER_HEADROOM_BYTES
    with DeadLetterPublisher(kafka, facts.topic) as publisher:
        assert publisher.publish([letter(facts, 2, value=b"x" * 2 * size)]) == 1
        with pytest.raises(TopicError, match="is too large for"):
            publisher.publish([letter(facts, 0, value=random.Random(seed).randbytes(size))])
        assert publisher.publish([letter(facts, 1)]) == 1
    assert [found.position.offset for found, _ in read_letters(kafka, facts.topic)] == [2, 1]
    assert len(to_headers(letter(facts, 1))) > 10
