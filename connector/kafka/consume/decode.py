"""Turns a Kafka record into a decoded record, or into a row or release of write streams.

Theory of releases (WRS-22). Each Kafka partition has a copy of a release, and a reader hands one of
them out. Which one must not depend on what was read before, because a reader that continues does
not know it. So it is that of one Kafka partition, which follows from the arguments of the reader.

A release is sent after its rows are in Kafka. So in each Kafka partition, the rows come before the
copy, and the copy before the heartbeat that follows the release. Therefore, when the low watermark
has passed the commit timestamp of a release, all its rows were read, and the copy, too.

The copies of a truncation are chosen in the same way (EVO-13).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from connector.kafka.schema_registry import RegistryClient
from connector.records.codec import ChangeRecord, Schemas, confluent_id
from connector.records.model import DataChange, Record, Release, Truncate
from connector.records.rejection import Position, Rejection
from connector.validation import KafkaRecord, Limits, validate_record
from connector.watermarks.transactions import Released, Staged, released_of

if TYPE_CHECKING:
    from connector.config.settings import RegistryConfig


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """The decoded record of a Kafka record, and the Kafka record.

    - `record` is the change, control record or `Rejection`.
    - `kafka_partitions` is the number that its producer used (REC-24). It is 0 for a rejection.
    - `source` is the Kafka record.
    """

    record: Record | Rejection
    kafka_partitions: int
    source: KafkaRecord

    @property
    def position(self) -> Position:
        """The coordinates of the Kafka record."""
        return self.source.position

    @property
    def record_timestamp(self) -> int:
        """The time of arrival in Kafka, in microseconds. If the record timestamp is not possible,
        it is the time of reading (REC-25).
        """
        return self.source.record_timestamp


class Decoder:
    """Validates records, and keeps the schemas that it has asked for."""

    def __init__(
        self,
        registry: RegistryConfig | None = None,
        limits: Limits | None = None,
        tables: frozenset[str] | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self._tables = tables
        self._registry = RegistryClient(registry) if registry is not None else None
        self._by_id: dict[int, str | None] = {}
        self._schemas = Schemas(self._by_id)

    def decode(self, source: KafkaRecord, kafka_partitions: int) -> ChangeRecord | Rejection:
        """Decode a record of a topic with so many Kafka partitions. Raises `BrokerError` if a
        schema is needed and the registry does not answer.
        """
        schema_id = confluent_id(source.value)
        if (
            schema_id is not None
            and self._registry is not None
            and self._by_id.get(schema_id) is None
        ):
            self._by_id[schema_id] = self._registry.schema(schema_id)
        return validate_record(
            source,
            schemas=self._schemas,
            limits=self.limits,
            kafka_partitions=kafka_partitions,
            tables=self._tables,
        )

    def close(self) -> None:
        if self._registry is not None:
            self._registry.close()


class ReleaseCopies:
    """Chooses the records that a reader hands out.

    - Staged changes are `Staged`, or left out.
    - Of a release, the copy in Kafka partition 0 is `Released`. If the reader names its Kafka
      partitions, it is the copy in the least of them. The other copies are left out.
    - A release in the topic with the replays of a group is always `Released`.
    - Of a truncation, the same copy is handed out, as a record.
    """

    def __init__(self, topic: str, kafka_partitions: Collection[int] | None, staged: bool) -> None:
        self._topic, self._staged = topic, staged
        self._kafka_partition = min(kafka_partitions) if kafka_partitions else 0

    def shown(self, received: ConsumerRecord) -> ConsumerRecord | Released | Staged | None:
        """Return what is handed out for a record. None: nothing."""
        record = received.record
        if isinstance(record, DataChange):
            if not record.is_staged:
                return received
            return Staged(record, received.position) if self._staged else None
        if isinstance(record, Release | Truncate):
            position = received.position
            is_other = position.kafka_partition != self._kafka_partition
            if is_other and position.topic == self._topic:
                return None
            return released_of(record, position) if isinstance(record, Release) else received
        return received
