"""Puts records that a program cannot process into the dead-letter topic of its group (SUB-4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from connector.clock import now_us
from connector.dead_letters.envelope import check_group, consumer_letter
from connector.errors import argument_invalid
from connector.kafka import client, topics
from connector.kafka.client import messages_between
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
        group = self._group
        positions = (
            received.positions if isinstance(received, WholeTransaction) else (received.position,)
        )
        if group is None:
            raise argument_invalid("group", group, "a Group: each one has its own dead letters")
        check_group(group)
        read = {
            facts.topic: facts for facts in (reader.facts, reader.replay_facts) if facts is not None
        }
        for position in positions:
            if position.topic not in read:
                raise argument_invalid("received", position, f"a record of {' or '.join(read)}")
            topics.check_identity(position.topic_id, read[position.topic])
            if not reader.has_returned(position):
                raise argument_invalid("received", position, "one that this consumer has yielded")
            if is_acknowledged(position):
                allowed = "one that is not acknowledged. It is still in its topic"
                raise argument_invalid("received", position, allowed)
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


def _sources(
    kafka: KafkaConfig, positions: Sequence[Position], read: Mapping[str, TopicFacts]
) -> list[KafkaRecord]:
    """Read the records of an item again, since items do not keep their bytes. They are of one
    topic. Raises `TopicError` if one was deleted, and `BrokerError`.
    """
    facts = read[positions[0].topic]
    first = topics.beginning_offsets(kafka, facts)
    errors, records = client.LastError(), list[KafkaRecord]()
    with closing(client.consumer(kafka, errors, {"group.id": client.READER})) as consumer:
        for at in positions:
            k, offset = at.kafka_partition, at.offset
            if offset < first[k]:
                raise records_gone(kafka, facts, {k: offset}, first, {k: offset})
            ranges = {k: (offset, offset + 1)}
            for message in messages_between(consumer, kafka, errors, ranges, facts.topic):
                records.append(client.record_of(message, facts.topic, facts.topic_id))
    return records
