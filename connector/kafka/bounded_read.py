"""Reads a part of a topic up to its end."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, Message, TopicPartition

from connector.kafka import client
from connector.records.rejection import Position
from connector.validation import KafkaRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from confluent_kafka import Consumer

    from connector.config.settings import KafkaConfig

READ_TIMEOUT_S: Final = 30.0


def records_between(
    kafka: KafkaConfig, topic: str, topic_id: str, ranges: Mapping[int, tuple[int, int]]
) -> Iterator[KafkaRecord]:
    """Yield the records of `messages_between`, with a client of their own. Raises the same."""
    errors = client.LastError()
    with closing(client.consumer(kafka, errors, {"group.id": "lowmark.reader"})) as consumer:
        for message in messages_between(consumer, kafka, errors, ranges, topic):
            number, offset = client.coordinates(message)
            key, value, headers, arrived = client.contents(message)
            position = Position(topic, topic_id, number, offset)
            yield KafkaRecord(position, arrived, key, value, headers)


def messages_between(
    consumer: Consumer,
    kafka: KafkaConfig,
    errors: client.LastError,
    ranges: Mapping[int, tuple[int, int]],
    topic: str,
    timeout_s: float = READ_TIMEOUT_S,
) -> Iterator[Message]:
    """Yield every record between these offsets that a reader of committed transactions can see.

    Within a Kafka partition, records come in order. `ranges` has the first offset and the end
    offset (exclusive) of each Kafka partition. The offsets must exist in the topic. Raises
    `BrokerError`, also if no record arrives within `timeout_s`. Behind an open transaction, none
    arrives until it ends.
    """
    left = {number for number, (begin, end) in ranges.items() if begin < end}
    consumer.assign([TopicPartition(topic, number, ranges[number][0]) for number in sorted(left)])
    read_at = time.monotonic()
    while left:
        message = consumer.poll(0.5)
        if message is None:
            if time.monotonic() - read_at > timeout_s:
                raise client.unreachable(
                    kafka,
                    errors.text or f"{topic}: no record arrived within {timeout_s:.0f} s",
                )
            continue
        error = message.error()
        if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            continue  # this read needs no group, and no right to one
        read_at = time.monotonic()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise client.explain(error, kafka, f"read {topic}")
        number, offset = client.coordinates(message)
        end = ranges[number][1]
        if number not in left:
            continue
        if error is None and offset < end:
            yield message
            read_at = time.monotonic()  # the caller may be slow
        if offset + (error is None) >= end:
            left.discard(number)
