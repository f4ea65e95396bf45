"""Reads the records of foreign topics, in the order of each Kafka partition (SRC-1, SRC-8)."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
)
from confluent_kafka import TopicPartition as Assignment

from connector.errors import BrokerError
from connector.errors.sources import (
    source_records_deleted,
    source_topic_replaced,
    source_transactions_split,
)
from connector.kafka import client
from connector.kafka.topics import EARLIEST, LATEST, id_of, is_topic_name, offsets_of
from connector.sources.model import ForeignRecord, TopicPartition

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from connector.config.settings import KafkaConfig, SourceConfig
    from connector.errors import TopicError
    from connector.validation import KafkaRecord

REFRESH_S: Final = 10.0
"""How often the reader looks for new topics and Kafka partitions, and for replaced topics."""
_BATCH: Final = 2_000
_ASK_TIMEOUT_S: Final = 15.0
_GONE: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_ID,
)

_OLD_KEY: Final = "__debezium.oldkey"
"""The Kafka header of a row whose key has changed."""


class SourceReader:
    """Reads all topics of a source. Not thread-safe.

    - `topic_ids` has the id of each topic that was ever read. Topics that appear later are added.
    - `existing` are the names of all topics that this user sees.
    - `positions` has the offset behind the last returned record of each Kafka partition.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        source: SourceConfig,
        starts: Mapping[TopicPartition, int],
        topic_ids: Mapping[str, str],
    ) -> None:
        """Begin at `starts`, and at the beginning of the other Kafka partitions.

        Raises:
            TopicError: A topic has another id than in `topic_ids`: it was made again. Or the topic
                of transactions has several Kafka partitions.
            BrokerError: No broker answers.
        """
        self._kafka, self._source = kafka, source
        self.topic_ids: dict[str, str] = dict(topic_ids)
        self.existing: Collection[str] = ()
        self.positions: dict[TopicPartition, int] = {}
        self._starts, self._paused = dict(starts), frozenset[TopicPartition]()
        self._held: dict[TopicPartition, list[ForeignRecord]] = {}
        self._at_end = set[TopicPartition]()
        self._errors = client.LastError()
        self._admin: AdminClient = client.admin(kafka)
        self._client = client.consumer(kafka, self._errors, {"group.id": client.READER})
        try:
            self.refresh()
        except BaseException:
            self._client.close()
            raise

    @property
    def partitions(self) -> Collection[TopicPartition]:
        """The Kafka partitions that are read."""
        return self.positions.keys()

    def poll(self, timeout_s: float) -> Sequence[ForeignRecord]:
        """Return the next records. An empty sequence: the time has passed.

        Raises:
            TopicError: A topic was made again, or records were deleted before they were read.
            BrokerError: No broker answers for 30 s, or Kafka refuses the read.
        """
        if time.monotonic() - self._refreshed_at > REFRESH_S:
            with suppress(BrokerError):  # check_reachable decides how long this may last
                self.refresh()
        records = self._resumed()
        messages = self._client.consume(_BATCH, 0 if records else timeout_s)
        if not messages:
            self._errors.check_reachable(self._client, self._kafka)
            return records
        self._errors.clear()
        for message in messages:
            if (record := self._record(message)) is None:
                continue
            if record.partition in self._paused:
                self._held.setdefault(record.partition, []).append(record)
            else:
                records.append(record)
                self.positions[record.partition] = record.offset + 1
        return records

    def _resumed(self) -> list[ForeignRecord]:
        """The records that came after their Kafka partition was paused, if it is read again."""
        ready = self._held.keys() - self._paused
        records = [record for partition in ready for record in self._held.pop(partition)]
        self.positions.update((record.partition, record.offset + 1) for record in records)
        return records

    def pause(self, full: Collection[TopicPartition]) -> None:
        """Return no more records of these Kafka partitions, and go on with the others."""
        wanted = frozenset(full) & self.positions.keys()
        if stop := wanted - self._paused:
            self._client.pause([Assignment(*partition) for partition in stop])
        if resume := self._paused - wanted:
            self._client.resume([Assignment(*partition) for partition in resume])
        self._paused = wanted

    def read_on(self) -> Collection[TopicPartition]:
        """Return the partitions that were read to their ends since the last call. There, a position
        can be behind records of Kafka itself.
        """
        at_end, self._at_end = self._at_end, set()
        return at_end

    def end_offsets(self) -> dict[TopicPartition, int]:
        """Ask Kafka for the offset after the last committed record of each Kafka partition. Raises
        `BrokerError`.
        """
        return offsets_of(self._admin, self._kafka, LATEST, self.positions)

    def refresh(self) -> None:
        """Look for new topics and Kafka partitions, and for replaced topics. Raises as the
        constructor does.
        """
        self._refreshed_at = time.monotonic()
        self.existing = existing_topics(self._admin, self._kafka)
        names = topics_of(self._admin, self._kafka, self._source, self.existing)
        self._leave([partition for partition in self.positions if partition[0] not in names])
        added = list[TopicPartition]()
        for name, (topic_id, kafka_partitions) in described(
            self._admin, self._kafka, names
        ).items():
            if name == self._source.transactions and kafka_partitions > 1:
                raise source_transactions_split(name, kafka_partitions)
            if (before := self.topic_ids.setdefault(name, topic_id)) != topic_id:
                raise source_topic_replaced(name, before, topic_id)
            all_of_topic = ((name, number) for number in range(kafka_partitions))
            added += [partition for partition in all_of_topic if partition not in self.positions]
        if added:
            self._client.incremental_assign(
                [Assignment(*p, self._starts.get(p, OFFSET_BEGINNING)) for p in added]
            )
        self.positions.update({partition: self._starts.get(partition, 0) for partition in added})

    def _leave(self, partitions: Collection[TopicPartition]) -> None:
        """Stop reading topics that were deleted, or that Kafka does not show any more."""
        self.pause(self._paused - set(partitions))
        if partitions:
            self._client.incremental_unassign([Assignment(*partition) for partition in partitions])
        for partition in partitions:
            self._starts[partition] = self.positions.pop(partition)
            self._held.pop(partition, None)  # they are behind the position

    def close(self) -> None:
        """Close the client. Positions are not stored."""
        self._client.close()

    def _record(self, message: Message) -> ForeignRecord | None:
        topic, kafka_partition, offset = message.topic(), message.partition(), message.offset()
        if (error := message.error()) is not None:
            self._handle(error, (topic or "", kafka_partition or 0), offset)
            return None
        assert topic is not None
        assert kafka_partition is not None
        assert offset is not None
        key: Any = message.key()
        value: Any = message.value()
        timestamp = max(0, message.timestamp()[1]) * 1000
        headers: Any = message.headers()
        is_moved = headers is not None and any(name == _OLD_KEY for name, _ in headers)
        return ForeignRecord(topic, kafka_partition, offset, timestamp, key, value, is_moved)

    def _handle(self, error: KafkaError, at: TopicPartition, offset: int | None) -> None:
        """Handle an error. The end of a Kafka partition is not an error."""
        code, topic = error.code(), at[0]
        if code == KafkaError._PARTITION_EOF:
            if offset is not None and at in self.positions and at not in self._held:
                self.positions[at] = max(self.positions[at], offset)
                self._at_end.add(at)
        elif code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            self.refresh()  # a topic that was made again has another remedy
            raise self._gone(at)
        elif code in _GONE:
            self.refresh()
        elif code != KafkaError.GROUP_AUTHORIZATION_FAILED:  # this read needs no group
            what = f"read {topic or 'the topics of the source'}"
            raise client.explain(error, self._kafka, what, "Read")

    def _gone(self, at: TopicPartition) -> TopicError:
        """The error for a position that is not between the ends of its Kafka partition."""
        (topic, kafka_partition), wanted = at, self.positions.get(at, 0)
        first, last = (
            offsets_of(self._admin, self._kafka, spec, [at])[at] for spec in (EARLIEST, LATEST)
        )
        return source_records_deleted(topic, kafka_partition, wanted, first, last)


def existing_topics(admin: AdminClient, kafka: KafkaConfig) -> Collection[str]:
    """Return the names of all topics that this user sees. Raises `BrokerError`."""
    try:
        return frozenset(admin.list_topics(timeout=client.REACH_TIMEOUT_S).topics)
    except KafkaException as error:
        raise client.unreachable(kafka, error.args[0].str()) from error


def topics_of(
    admin: AdminClient,
    kafka: KafkaConfig,
    source: SourceConfig,
    existing: Collection[str] | None = None,
) -> list[str]:
    """Return the names of the topics of a source that exist. Raises `BrokerError`, also if this
    user has no right to one that the source names.
    """
    existing = existing_topics(admin, kafka) if existing is None else existing
    # The list lacks topics to which this user has no right.
    for name in filter(is_topic_name, {*source.topics, source.transactions}.difference(existing)):
        try:
            described(admin, kafka, [name])
        except BrokerError as error:
            if error.code == "KAFKA_ACCESS_DENIED":
                raise
    return sorted(name for name in existing if not name.startswith("__") and source.has_topic(name))


def described(
    admin: AdminClient, kafka: KafkaConfig, names: Collection[str]
) -> dict[str, tuple[str, int]]:
    """Return the ids of topics and their numbers of Kafka partitions. Raises `BrokerError`."""
    if not names:
        return {}
    asked = TopicCollection(list(names))
    answers = admin.describe_topics(asked, request_timeout=_ASK_TIMEOUT_S)
    topics = {
        name: client.wait_for(answer, kafka, f"describe topic {name}")
        for name, answer in answers.items()
    }
    return {name: (id_of(topic), len(topic.partitions)) for name, topic in topics.items()}


def foreign_record(record: KafkaRecord) -> ForeignRecord:
    """Return a record that was read between two offsets as one of a source."""
    at, time_ = record.position, record.record_timestamp
    return ForeignRecord(at.topic, at.kafka_partition, at.offset, time_, record.key, record.value)
