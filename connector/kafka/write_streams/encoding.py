"""The bytes of the records of a session: rows, releases and control records (WRS-16)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import murmur2

from connector.kafka.produce.record_bytes import RecordBytes
from connector.kafka.write_streams.transaction import Message
from connector.records.avro_encoder import encode_row
from connector.records.codec import frame, framed
from connector.records.model import CONTROL_KEY

if TYPE_CHECKING:
    from connector.config.settings import RegistryConfig
    from connector.kafka.produce.send_queue import HeaderList
    from connector.kafka.topics import TopicFacts
    from connector.records.model import DataChange, Record


class Encoding:
    """Encodes records for one topic.

    `kafka_partitions` is the number of Kafka partitions. It may be increased.
    """

    def __init__(
        self,
        facts: TopicFacts,
        registry: RegistryConfig | None,
        max_record_bytes: int,
        min_commit_timestamp: int = 0,
    ) -> None:
        """Look up the schema if there is a registry. Raises `RegistryError`."""
        self._bytes = RecordBytes(facts, registry, max_record_bytes, min_commit_timestamp)
        self.topic, self.kafka_partitions = facts.topic, facts.kafka_partitions

    def row(self, change: DataChange, offset: int, server_time: int) -> tuple[Message, bytes]:
        """Return a row at an offset, and the bytes that its digest is of.

        Raises `InvalidChangeError` if it is too large or too old.
        """
        body, row = encode_row(change, offset, server_time, self.kafka_partitions)
        value = frame(body, self._bytes.schema_id)
        self._bytes.check_age(change)
        self._bytes.check_size(change.row_key, value, [])
        place = murmur2(change.row_key, self.kafka_partitions)
        return Message(self.topic, change.row_key, value, place), row

    def everywhere(self, record: Record, headers: HeaderList) -> list[Message]:
        """Return a control record for every Kafka partition. Raises as `row` does."""
        value = framed(record, self.kafka_partitions, self._bytes.schema_id)
        self._bytes.check_age(record)
        self._bytes.check_size(CONTROL_KEY, value, headers)
        return [
            Message(self.topic, CONTROL_KEY, value, number, headers)
            for number in range(self.kafka_partitions)
        ]
