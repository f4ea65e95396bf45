"""The bytes of the records of one topic, and the size that the topic takes (REC-11, REC-14)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from connector.errors import InvalidChangeError
from connector.kafka.schema_registry import RegistryClient
from connector.records.codec import SCHEMA, encode, frame
from connector.records.model import DataChange, Release, Rule
from connector.validation import check_age

if TYPE_CHECKING:
    from connector.config.settings import RegistryConfig
    from connector.kafka.produce.send_queue import HeaderList
    from connector.kafka.topics import TopicFacts
    from connector.records.model import Record

Headers = Iterable[tuple[str, bytes | None]]

RECORD_OVERHEAD_BYTES: Final = 128
"""A batch of one record: 61 bytes of batch header, and at most 40 of lengths, offsets and sequence
numbers; rounded up.
"""

HEADER_OVERHEAD_BYTES: Final = 10


def outside_session(record: Record) -> InvalidChangeError:
    """Return the error for a record that only a write session sends (WRS-2)."""
    if isinstance(record, Release):
        streams = [one.stream for one in record.ranges[:3]]
        limit = "none: only a write session sends releases"
        return InvalidChangeError(Rule.RELEASE, "release", limit, streams)
    assert isinstance(record, DataChange), record
    assert record.write_stream is not None, record
    limit = "none: only a write session sends rows of write streams"
    remedy = "Send the row with a write session, or send an ordinary change without write_stream"
    return InvalidChangeError(
        Rule.WRITE_STREAM, "write_stream", limit, record.write_stream.stream, remedy
    )


class RecordBytes:
    """Encodes records for a topic. `kafka_partitions` is the number that the records name."""

    def __init__(
        self,
        facts: TopicFacts,
        registry: RegistryConfig | None,
        max_record_bytes: int,
        min_commit_timestamp: int = 0,
        schema_id: int | None = None,
    ) -> None:
        """Look up the schema if there is a registry, unless `schema_id` is given. Raises
        `RegistryError`.
        """
        self._facts, self._max_record_bytes = facts, max_record_bytes
        self._min_commit_timestamp = min_commit_timestamp
        self.topic, self.kafka_partitions = facts.topic, facts.kafka_partitions
        self.schema_id = schema_id
        if registry is not None and schema_id is None:
            with RegistryClient(registry) as schemas:
                self.schema_id = schemas.schema_id(facts.topic, SCHEMA)

    def of(self, record: Record) -> bytes:
        """Return the framed value of a record. The size is not checked."""
        return frame(encode(record, self.kafka_partitions), self.schema_id)

    def check_age(self, record: Record) -> None:
        """Raises `InvalidChangeError` if the time of a record is too old (ING-6)."""
        check_age(record, self._min_commit_timestamp)

    def checked(self, record: Record, key: bytes, headers: HeaderList) -> bytes:
        """Return the framed value of a record. Raises `InvalidChangeError` if it is too large or
        too old.
        """
        self.check_age(record)
        if isinstance(record, Release) or (isinstance(record, DataChange) and record.write_stream):
            raise outside_session(record)
        value = frame(encode(record, self.kafka_partitions), self.schema_id)
        self.check_size(key, value, headers)
        return value

    def check_size(self, key: bytes, value: bytes, headers: HeaderList) -> None:
        """Raises `InvalidChangeError` if a framed record is too large."""
        size = len(key) + len(value)
        if size > self._max_record_bytes:
            raise InvalidChangeError(
                "TOO_LARGE",
                "record",
                f"at most {self._max_record_bytes} bytes of key and value (max_record_bytes)",
                size,
            )
        for name, text in headers:
            size += len(name.encode()) + len(text or b"") + HEADER_OVERHEAD_BYTES
        size += RECORD_OVERHEAD_BYTES
        if size > self._facts.max_message_bytes:
            limit = (
                f"at most {self._facts.max_message_bytes} bytes with key, headers and framing"
                f" (max.message.bytes of {self._facts.topic})"
            )
            raise InvalidChangeError("TOO_LARGE", "record", limit, size)
