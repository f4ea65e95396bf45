"""Keeps the state of a reader of whole transactions in a consumer group (SUB-3).

A group stores an offset and a short text for each Kafka partition. The texts together are the
state. The consumer is not a member of the group. Each commit is a Kafka transaction:

- All texts of a state are stored, or none.
- A later consumer of the same group and topic starts with the same transactional id. From then on,
  Kafka refuses each commit of the earlier one. So of two consumers, only the later one goes on, and
  no older state replaces a newer one.

The offset is the oldest one that is not acknowledged. Other tools can show how far the group is.
Since the group has no member, Kafka forgets the state `offsets.retention.minutes` after a commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from confluent_kafka import TopicPartition

from connector.errors import ConfigError, ConnectorError
from connector.errors.kafka import (
    group_of_another_reader,
    group_state_too_large,
    positions_not_stored,
)
from connector.errors.producers import taken_over
from connector.kafka import client, topics
from connector.kafka.consume.group import committed
from connector.kafka.transactions import Failure, Offsets, TransactionClient
from connector.watermarks.reader_state import ReaderState, from_pieces, to_pieces

if TYPE_CHECKING:
    from connector.config.settings import KafkaConfig
    from connector.kafka.topics import TopicFacts

_MEMBER: Final = "group.instance.id"


class GroupState:
    """The state that a group stores for one topic. Not thread-safe.

    - `stored` is the state. None: the group has none yet.
    - `replayed` are the next offsets of the topic with its replays, by Kafka partition.
    """

    def __init__(
        self, kafka: KafkaConfig, facts: TopicFacts, group: str, replays: TopicFacts | None = None
    ) -> None:
        """Fence an earlier consumer of the group, and read the state.

        Raises `ConfigError` if the group has other positions of the topic, `TopicError` if the
        replays were read from another topic, and `BrokerError`.
        """
        settings = {name: text for name, text in kafka.settings.items() if name != _MEMBER}
        kafka = replace(kafka, settings={**settings, "group.id": group})
        self._kafka, self._topic = kafka, facts.topic
        self._group, self._replays = group, replays
        self._client = TransactionClient(
            kafka, f"lowmark.reader.{facts.topic}.{group}", facts.max_message_bytes
        )
        self._consumer = client.consumer(kafka, client.LastError(), {})
        try:
            self._client.start()
            self.stored = self._load(facts)
            self.replayed = {} if replays is None else self._load_replayed(replays)
        except BaseException:
            self.close()
            raise

    def store(
        self, state: bytes, oldest: Mapping[int, int], replayed: Mapping[int, int], count: int
    ) -> None:
        """Store a state, the oldest offsets of the topic with `count` Kafka partitions, and the
        next offsets of its replays. Raises as `TransactionConsumer.commit` does.
        """
        pieces = to_pieces(state, count)
        if pieces is None:
            raise group_state_too_large(self._topic, self._group, f"{len(state):,}", str(count))
        partitions = [
            TopicPartition(self._topic, k, oldest.get(k, 0), pieces[k] if k < len(pieces) else "")
            for k in range(count)
        ]
        if self._replays is not None:
            partitions += [
                TopicPartition(self._replays.topic, k, offset, self._replays.topic_id)
                for k, offset in replayed.items()
            ]
        if not self._client.is_open:
            cause = "An earlier commit of this consumer has failed"
            raise positions_not_stored(self._group, cause)
        offsets = Offsets(partitions, self._consumer.consumer_group_metadata())
        failure = self._client.commit((), offsets=offsets)
        if failure is not None:
            # The state that the group has is unknown, so no further one is stored.
            raise self._failed(failure)

    def close(self) -> None:
        """Close the clients. A second call does nothing."""
        self._client.close()
        self._consumer.close()

    def _load(self, facts: TopicFacts) -> ReaderState | None:
        stored = self._committed(facts)
        if not stored:
            return None
        try:
            pieces = {partition.partition: partition.metadata or "" for partition in stored}
            return ReaderState.from_bytes(from_pieces(pieces))
        except (ValueError, ConfigError) as error:
            raise group_of_another_reader(self._group, str(error)) from error

    def _load_replayed(self, replays: TopicFacts) -> dict[int, int]:
        stored = self._committed(replays)
        for partition in stored:
            if partition.metadata:
                topics.check_identity(partition.metadata, replays)
        return {partition.partition: partition.offset for partition in stored}

    def _committed(self, facts: TopicFacts) -> list[TopicPartition]:
        partitions = [TopicPartition(facts.topic, k) for k in range(facts.kafka_partitions)]
        return committed(self._consumer, partitions, self._kafka, self._group)

    def _failed(self, failure: Failure) -> ConnectorError:
        if failure.is_fenced:
            return taken_over(f"the group {self._group}", self._topic, failure.cause)
        return positions_not_stored(self._group, failure.cause)
