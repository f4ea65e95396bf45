"""Where reading begins in each Kafka partition, and the errors if records were deleted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from connector.errors import ErrorCode, TopicError
from connector.kafka import topics
from connector.kafka.consume.record import Start
from connector.records.rejection import Position

if TYPE_CHECKING:
    from connector.config.settings import KafkaConfig
    from connector.kafka.topics import TopicFacts


def first_places(
    kafka: KafkaConfig,
    facts: TopicFacts,
    start: Start,
    numbers: Iterable[int],
    committed: Mapping[int, int] | None = None,
) -> dict[int, int]:
    """Return the first offset to read of each Kafka partition.

    Args:
        kafka: The brokers and client settings.
        facts: The topic.
        start: Where to start. Kafka partitions without a stored position are read from the
            beginning.
        numbers: The Kafka partitions.
        committed: The offsets that a group has stored. They have priority.

    Returns:
        The offset by Kafka partition.

    Raises:
        TopicError: The positions are of another topic, or records after one were deleted.
        BrokerError: No broker answers.
    """
    first = topics.beginning_offsets(kafka, facts)
    stored = dict(committed or {})
    if isinstance(start, tuple):
        for position in start:
            if position.topic != facts.topic:
                raise TopicError(
                    ErrorCode.POSITION_OF_ANOTHER_TOPIC,
                    f"A stored position belongs to the topic {position.topic}, not to"
                    f" {facts.topic}",
                    "",
                    f"Pass positions of {facts.topic}",
                    topic=facts.topic,
                )
            topics.check_identity(position.topic_id, facts)
            stored.setdefault(position.kafka_partition, position.offset + 1)
        begin = first
    elif start == "beginning":
        begin = first
    elif start == "end":
        begin = topics.end_offsets(kafka, facts)
    else:
        begin = topics.offsets_at(kafka, facts, start)
    last = topics.end_offsets(kafka, facts) if stored else {}
    for number in numbers:
        if number in stored and not first[number] <= stored[number] <= last[number]:
            raise records_gone(facts, number, stored[number], first[number], last[number])
    return {number: stored.get(number, begin[number]) for number in numbers}


def positions_at(
    facts: TopicFacts, places: Mapping[int, int], first: Mapping[int, int]
) -> tuple[Position, ...]:
    """Return the positions with which a consumer starts at these offsets.

    An offset that is the first one has no position. So reading begins with the first record, even
    if retention deletes records meanwhile.
    """
    return tuple(
        Position(facts.topic, facts.topic_id, number, place - 1)
        for number, place in places.items()
        if place > first[number]
    )


def check_reached(kafka: KafkaConfig, facts: TopicFacts, reached: Mapping[int, int]) -> None:
    """Raise `TopicError` if the topic lost records that were read before: a Kafka partition ends
    before the offset that was reached.
    """
    last = topics.end_offsets(kafka, facts)
    for number, following in reached.items():
        if following > last[number]:
            first = topics.beginning_offsets(kafka, facts)
            raise records_gone(facts, number, following, first[number], last[number])


def check_numbers(facts: TopicFacts, numbers: Iterable[int]) -> None:
    """Raise `TopicError` if the topic lacks one of these Kafka partitions."""
    beyond = [number for number in numbers if not 0 <= number < facts.kafka_partitions]
    if beyond:
        raise TopicError(
            ErrorCode.KAFKA_PARTITION_UNKNOWN,
            f"{facts.topic} has no Kafka partition {beyond[0]}",
            f"It has {facts.kafka_partitions} Kafka partitions, counted from 0",
            "Use the numbers of existing Kafka partitions",
            topic=facts.topic,
        )


def records_gone(facts: TopicFacts, number: int, wanted: int, first: int, last: int) -> TopicError:
    """Return the error for a position that is not between the ends of its Kafka partition."""
    remedy = (
        "Send the missing changes again from the source (a backfill), then start again"
        " from the beginning of the topic"
    )
    if wanted > last:
        return TopicError(
            ErrorCode.TOPIC_SHORTENED,
            f"{facts.topic} ends before the stored position: Kafka partition {number}"
            f" ends at offset {last}, and the position is {wanted}",
            "The brokers lost records that were read before (an unclean leader election),"
            " or the stored position is wrong",
            remedy,
            topic=facts.topic,
        )
    return TopicError(
        ErrorCode.RECORDS_DELETED,
        f"Records of {facts.topic} were deleted before they were read: Kafka partition"
        f" {number}, offsets {wanted} to {first - 1}",
        "Retention or another program deleted them before this reader continued",
        remedy,
        topic=facts.topic,
    )
