"""Sends changes, heartbeats and child partitions to a change topic (REC-3, REC-14, REC-17, REC-18,
REC-19).

    producer.send(change)          checks, encodes and queues it. The result comes later
    producer.send(heartbeat)       waits until the heartbeat is true, then sends it to every Kafka
                                   partition
    producer.send_many(changes)    checks all of them before it queues the first one
    producer.poll(1.0)             calls `on_delivery` for the results that have arrived
    producer.flush()               returns when all records are delivered. Otherwise it raises
    with producer.transaction():   all records of the block are delivered together, or none of them

Delivery is asynchronous, and memory is bounded. A record that was not delivered is never forgotten:
`flush`, `close` and the next heartbeat fail until you send an equal record and it is delivered. You
can send a record twice without harm, because readers order changes by their content.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Self

from confluent_kafka import KafkaException, murmur2

from connector.clock import now_us
from connector.dead_letters.envelope import source_letter
from connector.errors import (
    BrokerError,
    ConnectorError,
    DeliveryError,
    ErrorCode,
    InvalidChangeError,
    WriterConflictError,
)
from connector.kafka import client, topics, transactions
from connector.kafka.dead_letters.topic import DeadLetterPublisher
from connector.kafka.produce import resume
from connector.kafka.produce.send_queue import HeaderList, SendQueue
from connector.kafka.schema_registry import RegistryClient
from connector.kafka.topics import TopicFacts
from connector.records.codec import READER_SCHEMA, encode, frame
from connector.records.model import (
    CONTROL_KEY,
    ChildPartitions,
    DataChange,
    Heartbeat,
    Record,
    Rule,
)
from connector.validation import Limits, check_age
from connector.watermarks.delivery import Delivery
from connector.watermarks.frontier import is_claim
from connector.watermarks.lineage import Announcements

if TYPE_CHECKING:
    from types import TracebackType

    from confluent_kafka import Producer

    from connector.config.settings import KafkaConfig, RegistryConfig

Headers = Iterable[tuple[str, bytes | None]]
OnDelivery = Callable[[Record, str | None], object]
"""Called with a record and None if it was acknowledged, or with the record and the error."""

RECORD_OVERHEAD_BYTES: Final = 128
"""A batch of one record: 61 bytes of batch header, and at most 40 of lengths, offsets and sequence
numbers; rounded up.
"""

HEADER_OVERHEAD_BYTES: Final = 10
MAX_FAILED: Final = 100_000
REFRESH_S: Final = 60.0


@dataclass(slots=True)
class _Sent:
    """A record in flight. A change is one message. A control record is one message for each Kafka
    partition.

    `is_ours`: the producer made it, for example an announcement.
    """

    record: Record
    delivery: Delivery
    copies: int
    on_delivery: OnDelivery | None = None
    is_ours: bool = False
    error: str = ""


@dataclass(slots=True)
class _Transaction:
    """An open transaction and its client. The results in `settled` count when it ends.

    `lineage` and `promised` are the values before the transaction. With `trouble`, it cannot be
    committed. `is_unknown`: it may have been committed.
    """

    client: Producer
    lineage: Announcements
    settled: list[_Sent] = field(default_factory=list)
    promised: list[tuple[Delivery, int]] = field(default_factory=list)
    trouble: str = ""
    is_unknown: bool = False


class ChangeProducer:
    """Publishes to one change topic. A stream partition must have only one producer at a time. Not
    thread-safe.

    Use it as a context manager. At the end of the block, it flushes and closes.

    - `kafka_partitions` is the current number of Kafka partitions, over which keys are distributed.
    - `delivered` is the number of acknowledged records that were given to `send`.
    - `announced` is the number of announcements that the producer sent.
    - `ignored_claims` is the number of changes whose estimated low watermark was not a claim, and
      was sent as 0 (WMK-5).
    - `warnings` are sentences about wrong settings of the topic.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        topic: str | TopicFacts,
        *,
        registry: RegistryConfig | None = None,
        max_record_bytes: int = 10_000_000,
        max_clock_skew_s: int = 300,
        min_commit_timestamp: int = 0,
        queue_timeout_s: float = 60.0,
        settings: Mapping[str, str] | None = None,
        announce: bool = True,
        transactional_id: str | None = None,
    ) -> None:
        """Check the topic, and look up the schema if there is a registry.

        Args:
            kafka: The brokers and client settings.
            topic: The name of the change topic, or the result of `describe`.
            registry: The schema registry. None: records have the single-object framing.
            max_record_bytes: The limit for key and value together. The limit of the topic applies,
                too.
            max_clock_skew_s: How far an estimated low watermark may be after this machine's clock.
                Use the value of the stream.
            min_commit_timestamp: The least commit timestamp, in microseconds. Use the value of the
                stream. 0 sets no limit.
            queue_timeout_s: How long `send` waits for space in the queue, and a heartbeat for
                acknowledgements.
            settings: Client settings for this producer only. They have priority over those of
                `kafka`.
            announce: False: you send announcements yourself, for example if you copy records.
            transactional_id: All records are sent in transactions. An older producer with the same
                id can no longer send, and its open transaction is aborted.

        Raises:
            TopicError: There is no such topic, or it is compacted.
            BrokerError: No broker answers.
            RegistryError: The registry does not answer, or does not have the schema.
            ConfigError: A client setting is not allowed.
        """
        self._kafka = (
            kafka if not settings else replace(kafka, settings={**kafka.settings, **settings})
        )
        self._facts = topics.describe(self._kafka, topic) if isinstance(topic, str) else topic
        self.warnings = topics.check(self._facts)
        self.topic = self._facts.topic
        self.kafka_partitions = self._facts.kafka_partitions
        self.delivered = 0
        self.announced = 0
        self.ignored_claims = 0
        self._registry = registry
        self._schema_id: int | None = None
        if registry is not None:
            with RegistryClient(registry) as schemas:
                self._schema_id = schemas.schema_id(self.topic, READER_SCHEMA)
        self._max_record_bytes = max_record_bytes
        self._min_commit_timestamp = min_commit_timestamp
        self._max_clock_skew_us = max_clock_skew_s * 1_000_000
        self._queue_timeout_s = queue_timeout_s
        self._deliveries: dict[str, Delivery] = {}
        self._failed = 0
        self._refreshed_at = time.monotonic()
        self._closed = False
        self._announces = announce
        self._announcements = Announcements(_retention_us(self._facts))
        self._transactional_id = transactional_id
        self._transaction: _Transaction | None = None
        self._told: deque[tuple[OnDelivery, Record, str | None]] = deque()
        self._is_telling = False
        self._started: Producer | None = None
        self._outbox: SendQueue[_Sent] = SendQueue(
            self._kafka,
            self._facts,
            self._answer,
            queue_timeout_s=queue_timeout_s,
            transactional_id=transactional_id,
        )
        if transactional_id is not None:
            self._start(transactional_id)

    def send(
        self, record: Record, headers: Headers = (), on_delivery: OnDelivery | None = None
    ) -> None:
        """Queue one record. A change goes to the Kafka partition of its key, a control record to
        every Kafka partition.

        The method returns before the record is delivered. It blocks while the queue is full. A
        heartbeat blocks until all changes that it covers are acknowledged. Child partitions block
        until all changes of their stream partition, and of the stream partitions that they end, are
        acknowledged. In a transaction they do not block, because they are delivered together with
        these changes.

        An estimated low watermark is lowered to the acknowledged changes. If it is not a claim (a
        sentinel, or more than `max_clock_skew_s` after the clock), it is sent as 0. With a
        `transactional_id`, but outside a transaction, the record is a transaction of its own.

        Before a stream partition sends its first record, it is announced as a root, unless earlier
        child partitions have named it. All roots are announced again, with their live descendants,
        five times within the topic's retention, as long as records are sent (WMK-6).

        Args:
            record: The change, heartbeat or child partitions.
            headers: Kafka headers.
            on_delivery: Called once as `on_delivery(record, error)` when the result is known
                (PUB-5). `error` is `None` if the record was acknowledged, and in a transaction, if
                it was committed. Otherwise it is the reason, and the record is in `undelivered`. It
                is called in your thread, at the start of `send`, `send_many` and `transaction`, and
                in `poll`, `flush` and `close`. It may send, but must not poll, flush or close. If
                it raises, the calling method raises the same exception and sends nothing. The next
                call makes the remaining calls.

        Raises:
            InvalidChangeError: The record is too large, or a change is not after the last heartbeat
                of its stream partition. Nothing is sent.
            DeliveryError: A heartbeat is not true yet, or cannot become true because a change
                failed. Nothing is sent. Or the queue stayed full. Then the record is in
                `undelivered` until you send it again, and `on_delivery` is called.
            DeliveryError, WriterConflictError, BrokerError: With a `transactional_id`, as
                `transaction` does.
        """
        assert not self._closed, "a closed producer sends nothing"
        if self._told:
            self._tell()
        if self._transactional_id is not None and self._transaction is None:
            with self.transaction():
                self.send(record, headers, on_delivery)
            return
        if self._failed > MAX_FAILED:
            self._check_is_among_failed(record)
        header_list: HeaderList = list(headers)
        if isinstance(record, DataChange):
            value, kafka_partition = self._checked(record, header_list)
            if self._announces:
                self._announce(record)
            self._put(record, value, kafka_partition, header_list, on_delivery)
        else:
            self._send_control(record, header_list, on_delivery)

    def send_many(
        self,
        changes: Iterable[DataChange],
        headers: Headers = (),
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Queue changes in their order. All of them are checked before the first one is queued
        (PUB-5).

        With a `transactional_id`, but outside a transaction, they are one transaction.

        Args:
            changes: The changes.
            headers: Kafka headers for each change.
            on_delivery: Called for each change, as in `send`.

        Raises:
            InvalidChangeError: `send` would refuse a change. Nothing is sent. `index` is the index
                of the first one.
            DeliveryError: The queue stayed full. The change and those after it are in
                `undelivered`.
            DeliveryError, WriterConflictError, BrokerError: With a `transactional_id`, as
                `transaction` does.
        """
        assert not self._closed, "a closed producer sends nothing"
        self._tell()
        changes = list(changes)
        if self._transactional_id is not None and self._transaction is None:
            with self.transaction():
                self.send_many(changes, headers, on_delivery)
            return
        header_list: HeaderList = list(headers)
        checked: list[tuple[bytes, int]] = []
        oldest: dict[str, int] = {}
        for index, change in enumerate(changes):
            if self._failed > MAX_FAILED:
                self._check_is_among_failed(change)
            before = oldest.get(change.stream_partition)
            try:
                checked.append(self._checked(change, header_list, before))
            except InvalidChangeError as error:
                error.in_batch(index)
                raise
            if before is None or change.commit_timestamp < before:
                oldest[change.stream_partition] = change.commit_timestamp
        taken = 0
        try:
            for change, (value, kafka_partition) in zip(changes, checked, strict=True):
                if self._announces:
                    self._announce(change)
                taken += 1  # also if it is refused: then its result is already reported
                self._put(change, value, kafka_partition, header_list, on_delivery)
        except ConnectorError as error:
            for change in changes[taken:]:
                delivery = self._delivery(change.stream_partition)
                self._failed += delivery.sent(change)
                self._answer(
                    _Sent(change, delivery, 1, on_delivery),
                    f"not sent, because a record before it was not accepted: {error.cause}",
                )
            raise

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all records of the block together at its end, and wait for it (REC-17). Requires a
        `transactional_id`.

        If the block raises, the transaction is aborted. None of its records is delivered, and its
        changes are in `undelivered` until you send them again.

        Raises:
            DeliveryError: The transaction failed, or its outcome is unknown. Kafka did not accept
                all records or did not answer, or the transaction lacks changes of the same stream
                partition that were aborted before. Send all of them again in another transaction.
            WriterConflictError: Another producer has started with the same `transactional_id`. This
                producer can no longer send.
            BrokerError: No broker answers, so the transaction cannot begin.
        """
        assert self._transactional_id is not None, "transactions need a transactional_id"
        assert self._transaction is None, "a producer has one transaction at a time"
        self._tell()
        transaction = self._begin(self._transactional_id)
        try:
            yield
            self._commit(transaction)
        except BaseException as error:
            self._abort(transaction, error)
            raise
        for sent in transaction.settled:
            self._conclude(sent, "")

    def resume_token(self, stream_partition: str) -> bytes:
        """Read the resume token of the newest heartbeat of a stream partition from the topic
        (REC-19).

        A data change does not count, because earlier changes may be missing. Exception: with a
        `transactional_id`, the last committed change counts, too. Then all records of the stream
        partition in the topic must have been sent in transactions. Records without a token do not
        count.

        Args:
            stream_partition: The name of the stream partition.

        Returns:
            The position at which the source must continue.

        Raises:
            TopicError: The topic has no resume token of the stream partition.
            BrokerError: No broker answers.
        """
        limits = Limits(max_record_bytes=self._max_record_bytes)
        in_transactions = self._transactional_id is not None
        return resume.newest_token(
            self._kafka,
            self.topic,
            stream_partition,
            registry=self._registry,
            limits=limits,
            in_transactions=in_transactions,
        )

    def poll(self, timeout_s: float = 0.0) -> int:
        """Make the due calls of `on_delivery`. If none is due, wait for a result.

        Records that wait for a full batch are not sent earlier. `flush` sends them at once. Calls
        of an open transaction are due when it ends.

        Args:
            timeout_s: The maximum time to wait.

        Returns:
            The number of calls.

        Raises:
            WriterConflictError: As `transaction` does. Exceptions of `on_delivery` are raised, too.
        """
        assert not self._is_telling, "on_delivery may send, and nothing else"
        self._outbox.serve(0.0 if self._told else timeout_s)
        return self._tell()

    def flush(self, timeout_s: float = 130.0) -> None:
        """Wait until all records are acknowledged, and all calls of `on_delivery` are made.

        Args:
            timeout_s: The maximum time to wait.

        Raises:
            DeliveryError: The time has passed, or a record failed, now or earlier. `undelivered`
                has the records. Exceptions of `on_delivery` are raised, too. Delivery continues in
                the background.
        """
        assert self._transaction is None, (
            "what is sent in a transaction is delivered when it is committed"
        )
        assert not self._is_telling, "on_delivery may send, and nothing else"
        deadline = time.monotonic() + timeout_s
        self._tell()
        # `on_delivery` may send further records.
        while (self._outbox.items or self._told) and (left_s := deadline - time.monotonic()) > 0:
            self._outbox.serve(min(left_s, 0.5), push=True)
            self._tell()
        if self._outbox.items or self._failed:
            raise self._not_delivered()

    def undelivered(self) -> dict[Record, str]:
        """Return the records that are not acknowledged, with the reason. Changes come first.

        Send them again in this order. With a `transactional_id`, send them in one transaction.
        Announcements of the producer are included. Send them again, too.
        """
        found = {
            record: why
            for delivery in self._deliveries.values()
            for record, why in delivery.failed.items()
        }
        for sent in self._outbox.items:
            found.setdefault(sent.record, "not acknowledged yet")
        for sent in self._transaction.settled if self._transaction is not None else ():
            found.setdefault(sent.record, "not committed yet")
        return {record: found[record] for record in sorted(found, key=_comes_after)}

    def send_to_dead_letters(self, *changes: DataChange, headers: Headers = ()) -> None:
        """Publish failed changes as dead letters instead of delivering them (DLQ-2).

        The source can continue without them: they are no longer in `undelivered`, and heartbeats do
        not wait for them. Therefore a replay of them is late. The reason is REJECTED if the broker
        refused a change, and otherwise RETRIES_EXHAUSTED. In the second case it may have been
        delivered. Then a replay changes nothing.

        Args:
            changes: Failed changes of `undelivered`.
            headers: Kafka headers of the dead letters.

        Raises:
            DeliveryError, TopicError, BrokerError: As `DeadLetterPublisher.publish` does. Changes
                whose dead letters were not published stay in `undelivered`.
        """
        assert self._transaction is None, "a transaction is delivered as one, or not at all"
        failed = {
            change: self._delivery(change.stream_partition).failed.get(change) for change in changes
        }
        assert None not in failed.values(), "only what has failed is set aside"
        with DeadLetterPublisher(self._kafka, self.topic) as publisher:
            for change, why in failed.items():
                value = frame(
                    encode(replace(change, estimated_low_watermark=0), self.kafka_partitions),
                    self._schema_id,
                )
                letter = source_letter(
                    self.topic, change.row_key, value, tuple(headers), why or "", now=now_us()
                )
                # One at a time, so that a failure does not publish the others again: a second dead
                # letter of a change has another id.
                publisher.publish([letter])
                self._failed += self._delivery(change.stream_partition).set_aside(change)

    def refresh_now(self) -> None:
        """Make the next control record check the number of Kafka partitions. Otherwise, it is
        checked once a minute.
        """
        self._refreshed_at = 0.0

    def close(self, timeout_s: float = 130.0) -> None:
        """Flush and close the client. A second call does nothing.

        Records without a result are reported to `on_delivery` as failed. After `close`, nothing can
        be sent, also not by `on_delivery`.

        Args:
            timeout_s: The maximum time to wait. Closing may take one second more.

        Raises:
            DeliveryError: As `flush` does.
        """
        if self._closed:
            return
        assert not self._is_telling, "on_delivery may send, and nothing else"
        try:
            self.flush(timeout_s)
        finally:
            self._closed = True
            self._outbox.let_go(1, "the producer was closed before it was acknowledged")
            self._tell()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close(timeout_s=5)
        except ConnectorError as further:
            error.add_note(f"in addition: {further}")

    # Sending.

    def _delivery(self, stream_partition: str) -> Delivery:
        found = self._deliveries.get(stream_partition)
        if found is None:
            found = self._deliveries[stream_partition] = Delivery()
        return found

    def _check_is_among_failed(self, record: Record) -> None:
        if record not in self._delivery(record.stream_partition).failed:
            raise self._not_delivered()

    def _checked(
        self, change: DataChange, headers: HeaderList, before: int | None = None
    ) -> tuple[bytes, int]:
        """Return the value of a change, and the Kafka partition of its key. `before` is the oldest
        change of the batch that is sent before it.
        """
        check_age(change, self._min_commit_timestamp)
        delivery = self._delivery(change.stream_partition)
        # A failed change may be sent again, also after a later heartbeat: it may have been
        # delivered.
        if change.commit_timestamp <= delivery.promised and change not in delivery.failed:
            raise InvalidChangeError(
                Rule.COMMIT_TIMESTAMP,
                "commit_timestamp",
                f"after {delivery.promised}, the last heartbeat of stream partition"
                f" {change.stream_partition}",
                change.commit_timestamp,
            )
        wire = (
            self._with_true_claim(change, delivery, before)
            if change.estimated_low_watermark
            else change
        )
        value = frame(encode(wire, self.kafka_partitions), self._schema_id)
        self._check_size(change.row_key, value, headers)
        return value, murmur2(change.row_key, self.kafka_partitions)

    def _put(
        self,
        change: DataChange,
        value: bytes,
        kafka_partition: int,
        headers: HeaderList,
        on_delivery: OnDelivery | None,
    ) -> None:
        delivery = self._delivery(change.stream_partition)
        self._failed += delivery.sent(change)
        self._outbox.put(
            _Sent(change, delivery, 1, on_delivery), change.row_key, value, kafka_partition, headers
        )

    def _with_true_claim(
        self, change: DataChange, delivery: Delivery, before: int | None
    ) -> DataChange:
        """Lower the estimated low watermark to the acknowledged changes. It becomes 0 if it is not
        a claim (WMK-5, REC-18).
        """
        if not is_claim(change.estimated_low_watermark, now_us(), self._max_clock_skew_us):
            self.ignored_claims += 1
            return replace(change, estimated_low_watermark=0)
        oldest = min(
            time
            for time in (change.commit_timestamp, delivery.oldest_open(), before)
            if time is not None
        )
        return (
            change
            if change.estimated_low_watermark <= oldest
            else replace(change, estimated_low_watermark=oldest)
        )

    def _send_control(
        self,
        record: Heartbeat | ChildPartitions,
        headers: HeaderList,
        on_delivery: OnDelivery | None,
    ) -> None:
        check_age(record, self._min_commit_timestamp)
        delivery = self._delivery(record.stream_partition)
        if isinstance(record, Heartbeat):
            self._wait_until_true(delivery, record, record.timestamp)
        else:
            for name in sorted({record.stream_partition, *self._announcements.ended_by(record)}):
                self._wait_until_true(self._delivery(name), record, None)
        self._refresh()
        value = frame(encode(record, self.kafka_partitions), self._schema_id)
        self._check_size(CONTROL_KEY, value, headers)
        if self._announces:
            self._announce(record)
        # From here on, a reader may read it.
        if isinstance(record, ChildPartitions):
            self._announcements.sent(record, now_us())
        elif record.timestamp > delivery.promised:
            if self._transaction is not None:
                self._transaction.promised.append((delivery, delivery.promised))
            delivery.promised = record.timestamp
        self._send_everywhere(
            _Sent(record, delivery, self.kafka_partitions, on_delivery), value, headers
        )

    def _announce(self, record: Record) -> None:
        """Send the announcements that are due before a record. They make no claim, so they do not
        wait.
        """
        for announcement in self._announcements.due(record, now_us()):
            self._refresh()
            value = frame(encode(announcement, self.kafka_partitions), self._schema_id)
            self._check_size(CONTROL_KEY, value, [])
            self.announced += 1
            # The failure is in `undelivered`, and the record itself may still be queued.
            with suppress(DeliveryError):
                delivery = self._delivery(announcement.stream_partition)
                self._send_everywhere(
                    _Sent(announcement, delivery, self.kafka_partitions, is_ours=True), value, []
                )

    def _send_everywhere(self, sent: _Sent, value: bytes, headers: HeaderList) -> None:
        kafka_partitions = sent.copies
        for kafka_partition in range(kafka_partitions):
            try:
                self._outbox.put(sent, CONTROL_KEY, value, kafka_partition, headers)
            except DeliveryError as error:
                for _ in range(kafka_partition + 1, kafka_partitions):
                    self._answer(sent, error.cause)
                raise

    def _wait_until_true(
        self, delivery: Delivery, record: Heartbeat | ChildPartitions, upto: int | None
    ) -> None:
        """Wait until the changes that a control record covers are acknowledged (REC-18).

        These are the changes up to `upto`. None: all changes.
        """
        what = f"A heartbeat at {upto}" if upto else "Child partitions"
        deadline = time.monotonic() + self._queue_timeout_s
        while True:
            failed, oldest = delivery.oldest_failed(), delivery.oldest_open()
            # A record in flight may be the failed one, sent again.
            waits = self._transaction is None and delivery.under_way
            if failed is not None and (upto is None or failed <= upto) and not waits:
                raise DeliveryError(
                    ErrorCode.CLAIM_ABOVE_DELIVERED,
                    f"{what} of stream partition {record.stream_partition} would claim more"
                    " than was delivered",
                    f"A change with commit timestamp {failed} was not delivered:"
                    f" {next(iter(delivery.failed.values()))}",
                    "Send the changes of undelivered() again, then this record",
                    undelivered=len(delivery.failed),
                )
            # In a transaction, it is delivered together with the changes that it covers.
            if (
                self._transaction is not None
                or oldest is None
                or (upto is not None and oldest > upto)
            ):
                return
            if time.monotonic() > deadline:
                waited = f"after {self._queue_timeout_s:g} s. {self._outbox.complaint}".strip()
                raise DeliveryError(
                    ErrorCode.CLAIM_NOT_YET_TRUE,
                    f"{what} of stream partition {record.stream_partition} cannot be sent yet",
                    f"{delivery.under_way} changes are not acknowledged {waited}",
                    "Check the brokers, then send it again",
                    undelivered=delivery.under_way,
                )
            self._outbox.serve(0.05, push=True)

    def _check_size(self, key: bytes, value: bytes, headers: HeaderList) -> None:
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
                f" (max.message.bytes of {self.topic})"
            )
            raise InvalidChangeError("TOO_LARGE", "record", limit, size)

    # Results.

    def _answer(self, sent: _Sent, error: str) -> None:
        """Register the result of one message of the record."""
        sent.copies -= 1
        sent.error = sent.error or error
        if sent.copies:
            return
        if self._transaction is None:
            self._conclude(sent, sent.error)
        else:
            self._transaction.trouble = self._transaction.trouble or sent.error
            self._transaction.settled.append(sent)

    def _conclude(self, sent: _Sent, error: str) -> None:
        if error:
            self._failed += sent.delivery.lost(sent.record, error)
        else:
            self.delivered += not sent.is_ours
            self._failed += sent.delivery.acknowledged(sent.record)
        if sent.on_delivery is not None:
            self._told.append((sent.on_delivery, sent.record, error or None))

    def _tell(self) -> int:
        """Make the due calls of `on_delivery`, and return their number.

        It does nothing inside such a call, or in an open transaction. Call it only in a consistent
        state, because `on_delivery` may send or raise.
        """
        if self._is_telling or self._transaction is not None:
            return 0
        self._is_telling = True
        due = len(
            self._told
        )  # later calls are left for the next time, otherwise this loop might never end
        try:
            for _ in range(due):
                on_delivery, record, error = self._told.popleft()
                on_delivery(record, error)
        finally:
            self._is_telling = False
        return due

    def _not_delivered(self) -> DeliveryError:
        records = self.undelivered()
        reasons = Counter(records.values()).most_common(3)
        cause = "; ".join(f"{count} times: {why}" for why, count in reasons)
        return DeliveryError(
            ErrorCode.RECORDS_UNDELIVERED,
            f"{len(records)} records were not delivered to {self.topic}",
            f"{cause}. {self._outbox.complaint}".strip().removesuffix("."),
            "Remove the cause, then send the records of undelivered() again. Sending a record"
            " twice does no harm",
            undelivered=len(records),
        )

    # Transactions.

    def _start(self, transactional_id: str) -> None:
        transactions.start(self._outbox.client, self._kafka, transactional_id)
        self._started = self._outbox.client

    def _begin(self, transactional_id: str) -> _Transaction:
        self._outbox.check_not_shut_out()
        if self._started is not self._outbox.client:
            self._start(transactional_id)
        try:
            self._outbox.client.begin_transaction()
        except KafkaException as error:
            self._outbox.renew(error.args[0])
            raise DeliveryError(
                ErrorCode.TRANSACTION_NOT_STARTED,
                f"A transaction on {self.topic} could not start",
                error.args[0].str(),
                "Try again",
            ) from error
        self._transaction = _Transaction(self._outbox.client, self._announcements.copy())
        return self._transaction

    def _commit(self, transaction: _Transaction) -> None:
        """Commit. Raises if the transaction is not committed, or if its outcome is unknown."""
        while self._outbox.items and not transaction.trouble:
            self._outbox.serve(0.5, push=True)
        if self._outbox.client is not transaction.client:
            transaction.trouble = transaction.trouble or "the client failed"
        changed = (
            sent.delivery for sent in transaction.settled if isinstance(sent.record, DataChange)
        )
        left_out = {
            oldest for delivery in changed if (oldest := delivery.oldest_failed()) is not None
        }
        if left_out and not transaction.trouble:
            transaction.trouble = (
                f"a change with commit timestamp {min(left_out)}, which was not delivered before,"
                " is not in it"
            )
        if not transaction.trouble:
            transaction.is_unknown = True
            if (error := transactions.commit(transaction.client)) is not None:
                transaction.trouble = error.str()
                transaction.is_unknown = not error.txn_requires_abort()
                if transaction.is_unknown:
                    self._outbox.renew(error)
        if transaction.trouble:
            raise DeliveryError(
                ErrorCode.TRANSACTION_NOT_COMMITTED,
                f"A transaction on {self.topic} was not committed",
                transaction.trouble,
                "Send the records of undelivered() again, in another transaction. Sending a"
                " record twice does no harm",
                undelivered=len(self.undelivered()),
            )
        self._transaction = None

    def _abort(self, transaction: _Transaction, reason: BaseException) -> None:
        """Register all records as not delivered, because of the exception `reason`. Further errors
        become notes of it.
        """
        why = transaction.trouble or f"its transaction was aborted: {reason!r}"
        if self._outbox.client is transaction.client and not isinstance(
            reason, WriterConflictError
        ):
            error = transactions.abort(transaction.client)
            self._outbox.read_reports()
            try:
                # Failed messages may leave a gap in the sequence numbers of the client. The next
                # transaction would fail.
                if error is not None or transaction.trouble:
                    self._outbox.renew(error or transaction.trouble)
            except WriterConflictError as further:
                reason.add_note(f"in addition: {further}")
        self._outbox.give_up(why)
        self._transaction = None
        self._announcements = transaction.lineage
        if not transaction.is_unknown:
            for delivery, promised in reversed(transaction.promised):
                delivery.promised = promised
        for sent in transaction.settled:
            if not sent.is_ours:  # announcements are sent again when they are due
                self._conclude(sent, why)

    def _refresh(self) -> None:
        """Update the number of Kafka partitions, because control records must go to new ones,
        too.
        """
        now = time.monotonic()
        if self._refreshed_at and now - self._refreshed_at < REFRESH_S:
            return
        self._refreshed_at = now
        try:
            facts = topics.describe(self._kafka, self.topic)
        except BrokerError:
            return  # no broker answers now; records wait in the queue
        topics.check_identity(self._facts.topic_id, facts)
        if facts.kafka_partitions != self.kafka_partitions:
            # The client caches the topic's metadata, and refuses Kafka partitions that it does not
            # know.
            with suppress(KafkaException):
                self._outbox.client.list_topics(self.topic, timeout=client.REACH_TIMEOUT_S)
            # The new Kafka partitions have no announcements.
            self._announcements.again_soon()
        self.kafka_partitions = facts.kafka_partitions


def _comes_after(record: Record) -> tuple[int, int]:
    """Sort key: control records come after the changes that they may cover, in the order of their
    times.
    """
    match record:
        case DataChange():
            return 0, 0
        case Heartbeat():
            return 1, record.timestamp
        case ChildPartitions():
            return 1, record.start_timestamp


def _retention_us(facts: TopicFacts) -> int:
    """Return the topic's retention (µs). For unlimited retention, return the maximum of a change
    topic.
    """
    return (facts.retention_ms if facts.retention_ms >= 0 else topics.MAX_RETENTION_S * 1000) * 1000
