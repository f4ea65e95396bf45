"""Sending changes, heartbeats and child partitions to a change topic (REC-3, REC-14, REC-17, REC-18).

    producer.send(change)       checked, encoded, queued; the answer comes later
    producer.send(heartbeat)    waits until what it promises is true, then goes to every Kafka partition
    producer.flush()            returns when all is delivered, or says what is not

Delivery is asynchronous and memory bounded. What was not delivered is never forgotten: `flush`, `close` and the next
heartbeat fail until an equal record was sent again and delivered. Sending one twice does no harm: readers order by content.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from confluent_kafka import KafkaError, KafkaException, Message, murmur2

from connector.codec import READER_SCHEMA, encode, frame
from connector.errors import BrokerError, DeliveryError, InvalidChangeError
from connector.kafka import client, topics
from connector.kafka.promises import Delivery
from connector.kafka.registry import RegistryClient
from connector.kafka.topics import TopicFacts
from connector.model import CONTROL_KEY, DataChange, Heartbeat, Record, Rule

if TYPE_CHECKING:
    from types import TracebackType

    from confluent_kafka import Producer

    from connector.config import KafkaConfig, RegistryConfig

Headers = Iterable[tuple[str, bytes | None]]
_HeaderList = list[tuple[str, str | bytes | None]]

RECORD_OVERHEAD_BYTES: Final = 128
"""A batch of one record: 61 bytes of batch header and at most 40 of lengths, offsets and sequence numbers; rounded up."""

HEADER_OVERHEAD_BYTES: Final = 10
MAX_FAILED: Final = 100_000
POLL_EVERY: Final = 100
REFRESH_S: Final = 60.0


@dataclass(slots=True)
class _Sent:
    """A record under way: in one message, or a control record in one for each Kafka partition."""

    record: Record
    copies: int
    error: str = ""


class ChangeProducer:
    """One topic's producer. A stream partition has one producer at a time; an instance belongs to one thread at a time.

    A context manager: leaving it flushes and closes. `kafka_partitions` is the number over which keys are spread now.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        topic: str | TopicFacts,
        *,
        registry: RegistryConfig | None = None,
        max_record_bytes: int = 10_000_000,
        queue_timeout_s: float = 60.0,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Look at the topic, and at the registry if there is one. `topic` is a name, or facts that were checked before.

        `max_record_bytes` bounds key and value together; what the topic takes bounds it further. `queue_timeout_s` is how
        long `send` waits for room in the queue, and a heartbeat for acknowledgements. `settings` are client settings for
        this producer alone, as those of `kafka`. Raises `TopicError` (none, or compacted), `BrokerError`, `RegistryError`,
        `ConfigError`. `warnings` has what is not well with the topic.
        """
        self._kafka = kafka if not settings else replace(kafka, settings={**kafka.settings, **settings})
        self._facts = topics.describe(self._kafka, topic) if isinstance(topic, str) else topic
        self.warnings = topics.check(self._facts)
        self.topic = self._facts.topic
        self.kafka_partitions = self._facts.kafka_partitions
        self.delivered = 0
        self._schema_id: int | None = None
        if registry is not None:
            with RegistryClient(registry) as schemas:
                self._schema_id = schemas.schema_id(self.topic, READER_SCHEMA)
        self._max_record_bytes = max_record_bytes
        self._queue_timeout_s = queue_timeout_s
        self._deliveries: dict[str, Delivery] = {}
        self._outstanding: dict[int, tuple[_Sent, Delivery]] = {}
        self._reports: list[tuple[int, KafkaError | None]] = []
        self._next_number = 0
        self._failed = 0
        self._refreshed_at = time.monotonic()
        self._closed = False
        self._errors = client.LastError()
        self._client = self._connect()

    def send(self, record: Record, headers: Headers = ()) -> None:
        """Queue one record. A change goes to the Kafka partition of its key, a control record to every one.

        Returns before it is delivered. Blocks while the queue is full. A heartbeat blocks until every change that it covers
        has been acknowledged, child partitions until every change of the stream partition has. An estimated low watermark
        is lowered to what is acknowledged. Raises:

        - `InvalidChangeError`, and nothing is sent: larger than `max_record_bytes` or the topic takes; a change at or
          before a heartbeat.
        - `DeliveryError`: a heartbeat that is not true yet, or not at all since a change failed, and nothing is sent; or no
          room in the queue in time, and the record is among `undelivered` until it is sent again.
        """
        assert not self._closed, "a closed producer sends nothing"
        if self._failed > MAX_FAILED:
            raise self._not_delivered()
        delivery = self._deliveries.setdefault(record.stream_partition, Delivery())
        if isinstance(record, DataChange):
            self._send_change(record, delivery, list(headers))
        else:
            self._send_control(record, delivery, list(headers))

    def flush(self, timeout_s: float = 130.0) -> None:
        """Return once everything sent so far has been acknowledged.

        Raises `DeliveryError` after `timeout_s`, or when something failed, now or earlier; `undelivered` has the records.
        """
        deadline = time.monotonic() + timeout_s
        while self._outstanding and (left_s := deadline - time.monotonic()) > 0:
            self._serve(min(left_s, 0.5), push=True)
        if self._outstanding or self._failed:
            raise self._not_delivered()

    def undelivered(self) -> dict[Record, str]:
        """The records that are not acknowledged, with the reason: those that failed, then those still under way."""
        found = {record: why for delivery in self._deliveries.values() for record, why in delivery.failed.items()}
        for sent, _ in self._outstanding.values():
            found.setdefault(sent.record, "not acknowledged yet")
        return found

    def refresh_now(self) -> None:
        """Have the next control record look whether the topic has grown, instead of once a minute."""
        self._refreshed_at = 0.0

    def close(self, timeout_s: float = 130.0) -> None:
        """Flush, then let go of the brokers, within `timeout_s` and a second. Raises as `flush` does. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            self.flush(timeout_s)
        finally:
            self._let_go(1, "the producer was closed before it was acknowledged")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close(timeout_s=5)
        except DeliveryError as undelivered:
            error.add_note(f"beside this: {undelivered}")

    # Sending.

    def _send_change(self, change: DataChange, delivery: Delivery, headers: _HeaderList) -> None:
        if change.commit_timestamp <= delivery.promised:
            raise InvalidChangeError(
                Rule.COMMIT_TIMESTAMP,
                "commit_timestamp",
                f"after {delivery.promised}, the last heartbeat of stream partition {change.stream_partition}",
                change.commit_timestamp,
            )
        wire = change
        if change.estimated_low_watermark:
            oldest = min(change.commit_timestamp, delivery.oldest_open() or change.commit_timestamp)
            if oldest < change.estimated_low_watermark:
                wire = replace(change, estimated_low_watermark=oldest)
        key = change.row_key
        value = frame(encode(wire, self.kafka_partitions), self._schema_id)
        self._check_size(key, value, headers)
        kafka_partition = murmur2(key, self.kafka_partitions)
        delivery.sent(change)
        self._produce(_Sent(change, 1), delivery, key, value, kafka_partition, headers)

    def _send_control(self, record: Record, delivery: Delivery, headers: _HeaderList) -> None:
        self._wait_until_true(record, delivery)
        self._refresh()
        value = frame(encode(record, self.kafka_partitions), self._schema_id)
        self._check_size(CONTROL_KEY, value, headers)
        if isinstance(record, Heartbeat):
            # From here on a reader may have seen it.
            delivery.promised = max(delivery.promised, record.timestamp)
        sent = _Sent(record, self.kafka_partitions)
        for kafka_partition in range(self.kafka_partitions):
            try:
                self._produce(sent, delivery, CONTROL_KEY, value, kafka_partition, headers)
            except DeliveryError as error:
                self._finish(sent, delivery, self.kafka_partitions - kafka_partition - 1, error.cause)
                raise

    def _wait_until_true(self, record: Record, delivery: Delivery) -> None:
        """Wait for the acknowledgements that a control record speaks of (REC-18)."""
        upto = record.timestamp if isinstance(record, Heartbeat) else None
        what = f"A heartbeat at {upto}" if upto else "Child partitions"
        deadline = time.monotonic() + self._queue_timeout_s
        while True:
            failed, oldest = delivery.oldest_failed(), delivery.oldest_open()
            # While something is under way it may be what failed, sent again.
            if failed is not None and (upto is None or failed <= upto) and not delivery.under_way:
                raise DeliveryError(
                    f"{what} would claim more than was delivered for stream partition {record.stream_partition}",
                    f"a change with commit timestamp {failed} was not delivered: {next(iter(delivery.failed.values()))}",
                    "Send the changes of undelivered() again, then this",
                    undelivered=len(delivery.failed),
                )
            if oldest is None or (upto is not None and oldest > upto):
                return
            if time.monotonic() > deadline:
                raise DeliveryError(
                    f"{what} is not true yet for stream partition {record.stream_partition}",
                    f"{delivery.under_way} changes are not acknowledged after {self._queue_timeout_s:g} s. {self._errors.text}".strip(),
                    "Look after the brokers and send it again",
                    undelivered=delivery.under_way,
                )
            self._serve(0.05, push=True)

    def _check_size(self, key: bytes, value: bytes, headers: _HeaderList) -> None:
        size = len(key) + len(value)
        if size > self._max_record_bytes:
            raise InvalidChangeError(
                "TOO_LARGE", "record", f"at most {self._max_record_bytes} bytes of key and value (max_record_bytes)", size
            )
        for name, text in headers:
            size += len(name.encode()) + len(text or b"") + HEADER_OVERHEAD_BYTES
        size += RECORD_OVERHEAD_BYTES
        if size > self._facts.max_message_bytes:
            limit = f"at most {self._facts.max_message_bytes} bytes with key, headers and framing (max.message.bytes of {self.topic})"
            raise InvalidChangeError("TOO_LARGE", "record", limit, size)

    def _produce(self, sent: _Sent, delivery: Delivery, key: bytes, value: bytes, kafka_partition: int, headers: _HeaderList) -> None:
        number = self._next_number
        self._next_number += 1
        # Known before the client is: a report may come while this call still runs.
        self._outstanding[number] = (sent, delivery)
        deadline = 0.0
        while True:
            try:
                self._client.produce(self.topic, value, key, kafka_partition, partial(self._on_delivery, number), headers=headers)
                break
            except BufferError:
                now = time.monotonic()
                deadline = deadline or now + self._queue_timeout_s
                if now > deadline:
                    cause = f"the queue stayed full for {self._queue_timeout_s:g} s. {self._errors.text}".strip()
                    raise self._refused(number, cause, "Look after the brokers and send it again") from None
                self._serve(0.05)
            except KafkaException as error:
                if error.args[0].fatal():
                    self._rebuild(error.args[0].str())
                raise self._refused(number, error.args[0].str(), "Send it again; when it stays so, look at the cause") from error
        if number % POLL_EVERY == 0:
            self._serve(0)

    def _refused(self, number: int, cause: str, remedy: str) -> DeliveryError:
        """This message did not enter the queue: the caller is told, and what was promised about the record is settled."""
        self._settle(number, cause)
        return DeliveryError(f"A record for {self.topic} was not taken", cause, remedy, undelivered=1)

    # Reports.

    def _on_delivery(self, number: int, error: KafkaError | None, _message: Message) -> None:
        """Called by the client inside poll and flush, once for each message. Must neither raise nor poll.

        It only takes a note: after a fatal error Python calls of any kind may die in here, and what they had begun is half done.
        """
        self._reports.append((number, error))

    def _read_reports(self) -> None:
        reports, self._reports = self._reports, []
        for number, error in reports:
            self._settle(number, "" if error is None else error.str())

    def _settle(self, number: int, error: str) -> None:
        entry = self._outstanding.pop(number, None)
        if entry is not None:  # else it is of a client that was given up, and counted as unknown already
            self._finish(*entry, 1, error)

    def _finish(self, sent: _Sent, delivery: Delivery, copies: int, error: str) -> None:
        if not copies:
            return
        sent.copies -= copies
        sent.error = sent.error or error
        if sent.copies:
            return
        before = len(delivery.failed)
        if sent.error:
            delivery.lost(sent.record, sent.error)
        else:
            self.delivered += 1
            delivery.acknowledged(sent.record)
        self._failed += len(delivery.failed) - before

    def _serve(self, timeout_s: float, *, push: bool = False) -> None:
        """Let the client hand over its reports; `push` sends at once what waits for a batch to fill."""
        fatal = ""
        try:
            self._client.flush(timeout_s) if push else self._client.poll(timeout_s)
        except (KafkaException, SystemError) as error:
            # Reports may be lost in here, which is why everything without one is unknown.
            fatal = str(error)
        self._read_reports()
        if self._errors.fatal is not None:
            fatal = self._errors.fatal.str()
        if fatal:
            self._rebuild(fatal)

    def _rebuild(self, cause: str) -> None:
        """A fatal error: this client will never send again. What has no report is unknown, hence to be sent again."""
        client.log.error("producer for %s rebuilt: %s", self.topic, cause)
        self._let_go(0, f"outcome unknown: {cause}")
        self._errors = client.LastError()
        self._client = self._connect()

    def _let_go(self, timeout_s: float, why: str) -> None:
        """Give up the client with what it holds; without the purge it would wait for the messages' own time-out."""
        with suppress(KafkaException, SystemError):
            self._client.purge()
            self._client.flush(timeout_s)
        self._read_reports()
        self._give_up(why)

    def _give_up(self, why: str) -> None:
        for number in list(self._outstanding):
            self._settle(number, why)

    def _not_delivered(self) -> DeliveryError:
        records = self.undelivered()
        reasons = Counter(records.values()).most_common(3)
        cause = "; ".join(f"{count} times: {why}" for why, count in reasons)
        return DeliveryError(
            f"{len(records)} records were not delivered to {self.topic}",
            f"{cause}. {self._errors.text}".strip().removesuffix("."),
            "undelivered() has them: send them again once the cause is mended; sending one twice does no harm",
            undelivered=len(records),
        )

    # The client.

    def _connect(self) -> Producer:
        largest = min(max(self._facts.max_message_bytes, 1000), 1_000_000_000)
        # A batch counts as one message at the broker, so it may not outgrow what the topic takes.
        return client.producer(self._kafka, self._errors, {"message.max.bytes": str(largest), "batch.size": str(min(largest, 1_000_000))})

    def _refresh(self) -> None:
        """Control records go to every Kafka partition, also to those that were added since."""
        now = time.monotonic()
        if self._refreshed_at and now - self._refreshed_at < REFRESH_S:
            return
        self._refreshed_at = now
        try:
            facts = topics.describe(self._kafka, self.topic)
        except BrokerError:
            return  # no answer right now; what is sent waits in the queue meanwhile
        topics.check_identity(self._facts.topic_id, facts)
        if facts.kafka_partitions != self.kafka_partitions:
            # The client has a view of its own, and refuses Kafka partitions that it has not heard of.
            with suppress(KafkaException):
                self._client.list_topics(self.topic, timeout=client.REACH_TIMEOUT_S)
        self.kafka_partitions = facts.kafka_partitions
