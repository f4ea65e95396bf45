"""Puts records that a program cannot process into the dead-letter topic of its group (SUB-4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from connector.clock import now_us
from connector.dead_letters.envelope import check_group, consumer_letter, replay_topic
from connector.errors import ConfigError, ConnectorError, ErrorCode, TopicError
from connector.kafka import client, topics
from connector.kafka.arguments import check
from connector.kafka.bounded_read import messages_between
from connector.kafka.consume.decode import ConsumerRecord
from connector.kafka.consume.start_offsets import records_gone
from connector.kafka.dead_letters.topic import DeadLetterPublisher
from connector.records.rejection import Position
from connector.validation import KafkaRecord
from connector.watermarks.transactions import Item, WholeTransaction

if TYPE_CHECKING:
    from connector.config.settings import KafkaConfig
    from connector.kafka.consume.reader import RecordReader
    from connector.kafka.topics import TopicFacts


class SetAside:
    """Publishes the dead letters of one group. It connects with the first one."""

    def __init__(self, kafka: KafkaConfig, topic: str, group: str | None) -> None:
        self._kafka, self._topic, self._group = kafka, topic, group
        self._publisher: DeadLetterPublisher | None = None

    def publish(
        self,
        received: ConsumerRecord | Item,
        detail: str,
        reader: RecordReader,
        is_acknowledged: Callable[[Position], bool],
    ) -> None:
        """Publish a letter for each record of an item of this reader. Raises as `set_aside` of a
        consumer does.
        """
        group, positions = self._group, positions_of(received)
        if group is None:
            raise ConfigError(
                ErrorCode.READER_OPTION_INVALID,
                "The consumer has no group, so it cannot set a record aside",
                "Each group has its own dead letters",
                "Build the consumer with a Group",
            )
        check_group(group)
        read = {one.topic: one for one in (reader.facts, reader.replay_facts) if one is not None}
        for position in positions:
            self._check_topic(position, read)
        is_ours = all(map(reader.has_returned, positions))
        check("received", received, is_ours, "an item that this consumer has yielded")
        for position in filter(is_acknowledged, positions):
            raise _already_acknowledged(position)
        sources = (
            [received.source]
            if isinstance(received, ConsumerRecord)
            else _sources(self._kafka, positions, read)
        )
        if self._publisher is None:
            self._publisher = DeadLetterPublisher(self._kafka, self._topic, group)
        now = now_us()
        self._publisher.publish(
            [consumer_letter(source, group, detail, now=now) for source in sources]
        )

    def close(self) -> None:
        if self._publisher is not None:
            self._publisher.close()

    def _check_topic(self, position: Position, read: Mapping[str, TopicFacts]) -> None:
        if position.topic not in read:
            raise TopicError(
                ErrorCode.POSITION_OF_ANOTHER_TOPIC,
                f"A record of {position.topic} cannot be set aside by a consumer of {self._topic}",
                "",
                "Set it aside with the consumer that has yielded it",
                topic=self._topic,
            )
        topics.check_identity(position.topic_id, read[position.topic])


def replays_of(kafka: KafkaConfig, topic: str, group: str) -> TopicFacts:
    """Return the properties of the topic with the replays of a group.

    Raises `ConfigError` if the group cannot have dead letters, `TopicError` if it has no such
    topic, and `BrokerError`.
    """
    return topics.describe_of_group(kafka, topic, replay_topic(topic, check_group(group)), group)


def positions_of(received: ConsumerRecord | Item) -> tuple[Position, ...]:
    """Return the positions of the records of an item."""
    return received.positions if isinstance(received, WholeTransaction) else (received.position,)


def _already_acknowledged(position: Position) -> ConnectorError:
    """Return the error for a record that is set aside after it was acknowledged."""
    return ConnectorError(
        ErrorCode.RECORD_ACKNOWLEDGED,
        f"The record at offset {position.offset} of Kafka partition {position.kafka_partition} of"
        f" {position.topic} was acknowledged before it was set aside",
        "If the program had stopped between the two, the record would be lost",
        "Set it aside first, and acknowledge or commit it then. The record is still in its topic",
        topic=position.topic,
    )


def _sources(
    kafka: KafkaConfig, positions: Sequence[Position], read: Mapping[str, TopicFacts]
) -> list[KafkaRecord]:
    """Read records again, since items do not keep their bytes. Raises `TopicError` if one was
    deleted, and `BrokerError`.
    """
    errors = client.LastError()
    with closing(client.consumer(kafka, errors, {"group.id": "lowmark.reader"})) as consumer:

        def records() -> Iterator[KafkaRecord]:
            for topic in sorted({position.topic for position in positions}):
                facts = read[topic]
                first = topics.beginning_offsets(kafka, facts)
                for at in (one for one in positions if one.topic == topic):
                    k, offset = at.kafka_partition, at.offset
                    if offset < first[k]:
                        raise records_gone(facts, k, offset, first[k], offset + 1)
                    ranges = {k: (offset, offset + 1)}
                    for message in messages_between(consumer, kafka, errors, ranges, topic):
                        key, value, headers, arrived = client.contents(message)
                        yield KafkaRecord(at, arrived, key, value, headers)

        return list(records())
