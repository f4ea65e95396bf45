"""Writes dead letters to the dead-letter topic, and reads each of them once (DLQ-1, DLQ-4,
DLQ-6).
"""

from __future__ import annotations

import time
import weakref
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self

from confluent_kafka import KafkaError

from connector.dead_letters.envelope import DeadLetter, dead_letter_topic, from_record, to_headers
from connector.dead_letters.ledger import ExternalDeadLetters
from connector.errors import BrokerError, DeliveryError, TopicError
from connector.errors.dead_letters import dead_letters_undelivered
from connector.errors.kafka import dead_letter_too_large
from connector.kafka import topics
from connector.kafka.client import records_between
from connector.kafka.sending import SendError, SendQueue, text_of
from connector.kafka.transactions import headers_of
from connector.kafka.unclosed import Unclosed, watch
from connector.records.rejection import Position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from connector.config.settings import KafkaConfig

PUBLISH_TIMEOUT_S: Final = 130.0
PARTITION_UA: Final = -1
"""The client chooses the Kafka partition by the key."""

MAX_LETTER_BYTES: Final = 1_000_000_000
_ROOM: Final = {"queue.buffering.max.kbytes": str(2 * MAX_LETTER_BYTES // 1024)}


class DeadLetterPublisher:
    """Publishes the dead letters of one change topic. It creates the dead-letter topic if
    necessary. Not thread-safe.

    Use it as a context manager.
    """

    def __init__(self, kafka: KafkaConfig, topic: str, group: str | None = None) -> None:
        """Create the publisher without a connection. It connects with the first dead letter.

        Args:
            kafka: The brokers and client settings.
            topic: The name of the change topic.
            group: The group of readers whose dead letters these are (SUB-4). Its topics must exist.
        """
        self._kafka, self._source, self._group = kafka, topic, group
        self._topic = dead_letter_topic(topic, group)
        self._queue: SendQueue[int] | None = None
        self._failures: Counter[str] = Counter()
        self._too_large = 0
        self._unwatch: Callable[[], object] = lambda: None

    def publish(self, letters: Iterable[DeadLetter]) -> int:
        """Send dead letters, and wait until all replicas have them.

        Without dead letters, no broker is asked. If you publish a dead letter again, the topic has
        a second record with the same id. Readers count it once.

        Args:
            letters: The dead letters.

        Returns:
            Their number.

        Raises:
            DeliveryError: A dead letter was not acknowledged. Publish all of them again.
            TopicError: The change topic is missing, or the message size limit of the dead-letter
                topic is too small, also for one of the dead letters.
            BrokerError: No broker answers.
        """
        sent = 0
        for letter in letters:
            self._send(letter)
            sent += 1
        if sent:
            self._wait(PUBLISH_TIMEOUT_S)
        return sent

    def close(self) -> None:
        """Close the client. All published dead letters are already delivered."""
        self._unwatch()
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.close(1, "the publisher was closed")
        self._failures.clear()
        self._too_large = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, letter: DeadLetter) -> None:
        queue, headers = self._queue or self._connect(), headers_of(to_headers(letter))
        size = len(letter.key or b"") + len(letter.value or b"")
        try:
            queue.put(size, letter.key, letter.value, PARTITION_UA, headers)
        except DeliveryError as error:
            raise self._not_delivered() from error

    def _wait(self, timeout_s: float) -> None:
        assert self._queue is not None
        deadline = time.monotonic() + timeout_s
        while self._queue.backlog and not self._failures:
            if (left_s := deadline - time.monotonic()) <= 0:
                break
            self._queue.poll(min(left_s, 0.5), push=True)
        if self._queue.backlog or self._failures:
            raise self._not_delivered()

    def _connect(self) -> SendQueue[int]:
        source = topics.describe(self._kafka, self._source)
        try:
            facts = topics.describe(self._kafka, self._topic)
        except TopicError:
            if self._group is not None:
                raise
            topics.create_dead_letter_topics(self._kafka, source)
            facts = topics.describe(self._kafka, self._topic)
        topics.check_dead_letters(source, facts)
        # The topic's limit is for compressed bytes. A record from Kafka fits, even if it is larger
        # when it is not compressed.
        facts = replace(facts, max_message_bytes=MAX_LETTER_BYTES)
        kafka = replace(self._kafka, settings={**_ROOM, **self._kafka.settings})
        self._queue = SendQueue(kafka, facts, self._answered)
        self._unwatch = watch(self, _UnderWay(self))
        return self._queue

    def _answered(self, size: int, error: SendError | None) -> None:
        if error is not None:
            self._failures[text_of(error)] += 1
            if not isinstance(error, str) and error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                self._too_large = max(self._too_large, size)

    def _not_delivered(self) -> DeliveryError | TopicError:
        """Return the error, and drop all messages. The next call opens another client."""
        assert self._queue is not None
        last_error = self._queue.last_error
        undelivered = max(self._queue.backlog + sum(self._failures.values()), 1)
        cause = (
            "; ".join(f"{count} times: {reason}" for reason, count in self._failures.most_common(3))
            or f"not acknowledged in time. {last_error}".strip()
        )
        too_large = self._too_large
        self.close()
        if too_large:
            room = too_large + topics.LETTER_HEADROOM_BYTES
            return dead_letter_too_large(self._topic, too_large, room)
        return dead_letters_undelivered(self._topic, undelivered, cause)


class _UnderWay(Unclosed):
    """The dead letters of a `publish` that did not return (PUB-8). The client keeps the publisher
    until they have a result.
    """

    def __init__(self, publisher: DeadLetterPublisher) -> None:
        self._publisher = weakref.ref(publisher)

    def finish(self, timeout_s: float) -> str:
        if (publisher := self._publisher()) is not None:
            publisher._wait(timeout_s)
        return ""


def read_letters(
    kafka: KafkaConfig,
    topic: str,
    *,
    after: tuple[Position, ...] = (),
    group: str | None = None,
) -> Iterator[tuple[DeadLetter, Position]]:
    """Read the dead letters of a change topic up to its current end, each once.

    Dead letters of one Kafka partition come in order. If one was published twice, its first record
    counts. Memory holds one id for each dead letter. Third-party dead letters are included.

    Args:
        kafka: The brokers and client settings.
        topic: The name of the change topic.
        after: The last position that was read in each Kafka partition.
        group: The group of readers whose dead letters are read. None: those of ingest.

    Yields:
        The dead letter, and its position in the dead-letter topic.

    Raises:
        TopicError: There is no dead-letter topic, or it was replaced.
        BrokerError: No broker answers.
    """
    facts = topics.describe(kafka, dead_letter_topic(topic, group))
    for position in after:
        topics.check_identity(position.topic_id, facts)
    begin, ends = topics.beginning_offsets(kafka, facts), topics.end_offsets(kafka, facts)
    begin |= {
        position.kafka_partition: max(position.offset + 1, begin[position.kafka_partition])
        for position in after
    }
    ids: set[str] = set()
    for letter, position in _letters(kafka, facts, begin, ends):
        letter_id = letter.id
        if letter_id not in ids:
            ids.add(letter_id)
            yield letter, position


def external_dead_letters(
    kafka: KafkaConfig, topic: str, counted: ExternalDeadLetters, published: int = 0
) -> ExternalDeadLetters:
    """Count the external dead letters up to the current end of the dead-letter topic: those of
    `counted`, and later ones (DLQ-7).

    If the topic has only the `published` new records of the caller, they are not read. If there is
    no such topic, or Kafka does not answer, return `counted`. A failed count must not stop the
    stream. The next count includes the missing ones.
    """
    try:
        facts = topics.describe(kafka, dead_letter_topic(topic))
        is_same = counted.topic_id == facts.topic_id
        before = counted if is_same else ExternalDeadLetters(facts.topic_id)
        ends = topics.end_offsets(kafka, facts)
        if sum(ends.values()) == sum(before.read_to.values()) + published:
            return before.after((), ends, "")
        begin = {
            number: max(offset, before.read_to.get(number, 0))
            for number, offset in topics.beginning_offsets(kafka, facts).items()
        }
        letters = (letter for letter, _ in _letters(kafka, facts, begin, ends))
        return before.after(letters, ends, topics.describe(kafka, topic).topic_id)
    except (BrokerError, TopicError):
        return counted


def _letters(
    kafka: KafkaConfig, facts: topics.TopicFacts, begin: Mapping[int, int], ends: Mapping[int, int]
) -> Iterator[tuple[DeadLetter, Position]]:
    ranges = {number: (begin[number], ends[number]) for number in ends}
    for record in records_between(kafka, facts.topic, facts.topic_id, ranges):
        at, arrived = record.position, record.record_timestamp
        yield (
            from_record(record.key, record.value, record.headers, at=at, record_timestamp=arrived),
            at,
        )
