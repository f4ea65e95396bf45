"""The topic of one producer: the bytes of its records, the size that it takes, and whether it is
still the same topic (REC-4, REC-11, REC-14).
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from connector.errors import BrokerError, InvalidChangeError, TopicError
from connector.kafka import client, topics
from connector.kafka.schema_registry import RegistryClient
from connector.records.codec import SCHEMA, framed
from connector.records.model import DataChange, Release, Rule
from connector.validation import check_age

if TYPE_CHECKING:
    from concurrent.futures import Future

    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        AdminClient,
        TopicDescription,
    )

    from connector.config.settings import KafkaConfig, RegistryConfig
    from connector.kafka.topics import TopicFacts
    from connector.kafka.transactions import HeaderList
    from connector.records.model import Record
    from connector.validation import Limits

RECORD_OVERHEAD_BYTES: Final = 128
"""A batch of one record: 61 bytes of batch header, and at most 40 of lengths, offsets and sequence
numbers; rounded up.
"""

HEADER_OVERHEAD_BYTES: Final = 10

ASK_EVERY_S: Final = 60.0
RETRY_S: Final = 2.0


def outside_session(record: Record) -> InvalidChangeError:
    """Return the error for a record that only a write session sends (WRS-2)."""
    if isinstance(record, Release):
        streams = [written.stream for written in record.ranges[:3]]
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
    """Encodes records for a topic. `kafka_partitions` is the number that the records name. It may
    be increased.
    """

    def __init__(
        self,
        facts: TopicFacts,
        registry: RegistryConfig | None,
        limits: Limits,
        schema_id: int | None = None,
    ) -> None:
        """Look up the schema if there is a registry, unless `schema_id` is given. Raises
        `BrokerError`.
        """
        self._facts, self._limits = facts, limits
        self.topic, self.kafka_partitions = facts.topic, facts.kafka_partitions
        self.schema_id = schema_id
        if registry is not None and schema_id is None:
            with RegistryClient(registry) as schemas:
                self.schema_id = schemas.schema_id(facts.topic, SCHEMA)

    def value_of(self, record: Record, claim: int | None = None) -> bytes:
        """Return the framed value of a record. The size is not checked. `claim` is sent as the
        estimated low watermark of a change.
        """
        return framed(record, self.kafka_partitions, self.schema_id, claim)

    def check_age(self, record: Record) -> None:
        """Raises `InvalidChangeError` if the time of a record is too old (ING-6)."""
        check_age(record, self._limits.min_commit_timestamp)

    def checked(
        self, record: Record, key: bytes, headers: HeaderList, claim: int | None = None
    ) -> bytes:
        """Return the framed value of a record, as `value_of`. Raises `InvalidChangeError` if it
        is too large or too old.
        """
        self.check_age(record)
        value = self.value_of(record, claim)
        self.check_size(key, value, headers)
        return value

    def check_size(self, key: bytes, value: bytes, headers: HeaderList) -> None:
        """Raises `InvalidChangeError` if a framed record is too large."""
        size, most = len(key) + len(value), self._limits.max_record_bytes
        if size > most:
            raise InvalidChangeError(
                "TOO_LARGE",
                "record",
                f"at most {most} bytes of key and value (max_record_bytes)",
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


class TopicWatch:
    """Asks Kafka once a minute whether the topic is still the same, and how many Kafka partitions
    it has. It never waits for the answer.

    - `kafka_partitions` is the newest answer. A topic never loses Kafka partitions.
    - `is_verified` is False until an answer has the same topic. Without `asks_again`, the topic is
      not verified again after an error.
    """

    def __init__(self, kafka: KafkaConfig, facts: TopicFacts, *, asks_again: bool) -> None:
        self._kafka, self._facts, self._asks_again = kafka, facts, asks_again
        self._admin: AdminClient | None = None
        self._answer: Future[TopicDescription] | None = None
        self._ask_at = time.monotonic() + ASK_EVERY_S
        self.kafka_partitions, self.is_verified = facts.kafka_partitions, True

    def ask_again(self) -> None:
        """Verify the topic again. A question without an answer is dropped."""
        if self._asks_again:
            self._answer, self._ask_at, self.is_verified = None, 0.0, False

    def poll(self) -> bool:
        """Ask if it is time, read the answer if it is there, and return `is_verified`.

        Raises `TopicError` if the topic is missing, or was deleted and created again.
        """
        if self._answer is None:
            now = time.monotonic()
            if now >= self._ask_at:
                self._ask_at = now + ASK_EVERY_S
                self._admin = client.new_admin(self._kafka)
                self._answer = topics.ask_identity(self._admin, self._facts.topic)
        elif self._answer.done():
            answer, self._answer, self._admin = self._answer, None, None
            if not self.is_verified:
                self._ask_at = time.monotonic() + RETRY_S
            try:
                self._use(answer)
            except BrokerError:
                pass  # no broker answers now
            except TopicError:
                self.is_verified, self._ask_at = False, time.monotonic() + RETRY_S
                raise
        return self.is_verified

    def _use(self, answer: Future[TopicDescription]) -> None:
        topic_id, partitions = topics.identity_of(answer, self._kafka, self._facts.topic)
        count = max(self.kafka_partitions, len(partitions))
        topics.check_identity(
            self._facts.topic_id, replace(self._facts, topic_id=topic_id, kafka_partitions=count)
        )
        self.is_verified, self.kafka_partitions = True, count
        self._ask_at = time.monotonic() + ASK_EVERY_S
