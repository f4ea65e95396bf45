"""Sending changes, heartbeats and child partitions to a change topic (REC-3, REC-14, REC-17, REC-18, REC-19).

    producer.send(change)          checked, encoded, queued; the answer comes later
    producer.send(heartbeat)       waits until what it promises is true, then goes to every Kafka partition
    producer.send_many(changes)    checks all of them before it queues the first
    producer.poll(1.0)             tells of answers that have come, to whom `send` was given for it
    producer.flush()               returns when all is delivered, or says what is not
    with producer.transaction():   what is sent in the block is delivered as one, or not at all

Delivery is asynchronous and memory bounded. What was not delivered is never forgotten: `flush`, `close` and the next
heartbeat fail until an equal record was sent again and delivered. Sending one twice does no harm: readers order by content.
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
from connector.errors import BrokerError, ConnectorError, DeliveryError, InvalidChangeError, WriterConflictError
from connector.kafka import client, topics, transactions
from connector.kafka.dead_letters.topic import DeadLetterPublisher
from connector.kafka.produce import resume
from connector.kafka.produce.send_queue import HeaderList, SendQueue
from connector.kafka.schema_registry import RegistryClient
from connector.kafka.topics import TopicFacts
from connector.records.codec import READER_SCHEMA, encode, frame
from connector.records.model import CONTROL_KEY, ChildPartitions, DataChange, Heartbeat, Record, Rule
from connector.validation import Limits
from connector.watermarks.delivery import Delivery
from connector.watermarks.frontier import is_claim
from connector.watermarks.lineage import Announcements

if TYPE_CHECKING:
    from types import TracebackType

    from confluent_kafka import Producer

    from connector.config.settings import KafkaConfig, RegistryConfig

Headers = Iterable[tuple[str, bytes | None]]
OnDelivery = Callable[[Record, str | None], object]
"""Told of a record that it was acknowledged (None), or why it was not."""

RECORD_OVERHEAD_BYTES: Final = 128
"""A batch of one record: 61 bytes of batch header and at most 40 of lengths, offsets and sequence numbers; rounded up."""

HEADER_OVERHEAD_BYTES: Final = 10
MAX_FAILED: Final = 100_000
REFRESH_S: Final = 60.0


@dataclass(slots=True)
class _Sent:
    """A record under way: in one message, or a control record in one for each Kafka partition. `is_ours`: nobody handed it to `send`."""

    record: Record
    delivery: Delivery
    copies: int
    on_delivery: OnDelivery | None = None
    is_ours: bool = False
    error: str = ""


@dataclass(slots=True)
class _Transaction:
    """An open one, and the client that it is open with. What is in `settled` has been acknowledged or has failed, and counts at the end.

    `lineage` and `promised` are what held before it. With `trouble` it cannot be committed; `is_unknown` is whether it may have been.
    """

    client: Producer
    lineage: Announcements
    settled: list[_Sent] = field(default_factory=list)
    promised: list[tuple[Delivery, int]] = field(default_factory=list)
    trouble: str = ""
    is_unknown: bool = False


class ChangeProducer:
    """One topic's producer. A stream partition has one producer at a time; an instance belongs to one thread at a time.

    A context manager: leaving it flushes and closes. `kafka_partitions` is the number over which keys are spread now. `delivered`
    counts the records handed to `send` that were acknowledged, `announced` the announcements sent beside them, `ignored_claims` the
    changes whose estimated low watermark was no claim and was sent as 0 (WMK-5).
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        topic: str | TopicFacts,
        *,
        registry: RegistryConfig | None = None,
        max_record_bytes: int = 10_000_000,
        max_clock_skew_s: int = 300,
        queue_timeout_s: float = 60.0,
        settings: Mapping[str, str] | None = None,
        announce: bool = True,
        transactional_id: str | None = None,
    ) -> None:
        """Look at the topic, and at the registry if there is one. `topic` is a name, or facts that were checked before.

        `max_record_bytes` bounds key and value together; what the topic takes bounds it further. `max_clock_skew_s`, that of the
        stream, is how far an estimated low watermark may lie ahead of this machine's clock. `queue_timeout_s` is how long `send`
        waits for room in the queue, and a heartbeat for acknowledgements. `settings` are client settings for
        this producer alone, as those of `kafka`. `announce=False` leaves announcements to the caller: for records that are
        carried over as they are. With a `transactional_id` everything is sent in transactions; a producer that has the same
        one is shut out from here on, and what it left open is aborted. Raises `TopicError` (none, or compacted),
        `BrokerError`, `RegistryError`, `ConfigError`. `warnings` has what is not well with the topic.
        """
        self._kafka = kafka if not settings else replace(kafka, settings={**kafka.settings, **settings})
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
            self._kafka, self._facts, self._answer, queue_timeout_s=queue_timeout_s, transactional_id=transactional_id
        )
        if transactional_id is not None:
            self._start(transactional_id)

    def send(self, record: Record, headers: Headers = (), on_delivery: OnDelivery | None = None) -> None:
        """Queue one record. A change goes to the Kafka partition of its key, a control record to every one.

        Returns before it is delivered. Blocks while the queue is full. A heartbeat blocks until every change that it covers
        has been acknowledged, child partitions until every change has of their stream partition and of those that they end;
        in a transaction they are delivered together with what they cover, and do not wait. An estimated low watermark is
        lowered to what is acknowledged; one that is no claim (a sentinel, or ahead of the clock by more than `max_clock_skew_s`)
        is sent as 0. With a `transactional_id`, but outside a transaction, a record is a transaction of
        its own.

        `on_delivery(record, error)` is called once, when it is known what became of the record (PUB-5): with None once all brokers
        that must have it do, in a transaction once that is committed; otherwise with the reason, and the record is among
        `undelivered`. It is called by `send`, `send_many` and `transaction` before they begin, and by `poll`, `flush` and `close`, in
        the thread that calls these. It may send; it may not poll, flush or close. What it raises is raised by the method that called
        it, which then has sent nothing; the other calls that are due are made by the next one.

        A stream partition that speaks for the first time is announced, as a root of its own, unless child partitions that
        were sent before have named it. All roots are announced again, with all that live below them, five times in the
        topic's retention, as long as something is sent (WMK-6). Raises:

        - `InvalidChangeError`, and nothing is sent: larger than `max_record_bytes` or the topic takes; a change at or
          before a heartbeat.
        - `DeliveryError`: a heartbeat that is not true yet, or not at all since a change failed, and nothing is sent; or no
          room in the queue in time, and the record is among `undelivered` until it is sent again. `on_delivery` is called
          in the second case only.
        - what `transaction` raises, if there is a `transactional_id`.
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

    def send_many(self, changes: Iterable[DataChange], headers: Headers = (), on_delivery: OnDelivery | None = None) -> None:
        """Queue changes in their order, after all of them were checked (PUB-5). Each gets `headers`, and `on_delivery` is called for each.

        With a `transactional_id`, but outside a transaction, they are one transaction. Raises:

        - `InvalidChangeError` of the first that `send` would refuse, and nothing is sent. `index` is its place, from 0.
        - `DeliveryError` when one finds no room in the queue in time: it and those after it are among `undelivered`.
        - what `transaction` raises, if there is a `transactional_id`.
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
                taken += 1  # also when it is refused: it has its answer then
                self._put(change, value, kafka_partition, header_list, on_delivery)
        except ConnectorError as error:
            for change in changes[taken:]:
                delivery = self._delivery(change.stream_partition)
                self._failed += delivery.sent(change)
                self._answer(_Sent(change, delivery, 1, on_delivery), f"not sent, since one before it was not taken: {error.cause}")
            raise

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """What is sent in the block is committed at its end, as one, and delivered by then (REC-17). It needs a `transactional_id`.

        If the block raises, it is aborted: nothing of it is delivered, and its changes are among `undelivered` until they are
        sent again. Raises:

        - `DeliveryError`, and nothing of it is delivered, or nobody knows: Kafka did not take all, or gave no answer; or
          changes of the same stream partition that were aborted before are not in it. Send them all again in another one.
        - `WriterConflictError`: another producer has started with the same `transactional_id`. This one sends nothing more.
        - `BrokerError` when none can begin, since no broker answers.
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
        """The resume token of the newest heartbeat of a stream partition, read from the topic (REC-19): where its source continues.

        Never that of a data change, which says nothing of those before it. But with a `transactional_id` it may be that of the
        last committed change: there, everything of the stream partition in the topic must have been sent in transactions.
        Records without a token do not count. Raises `TopicError` when there is none, `BrokerError`.
        """
        limits = Limits(max_record_bytes=self._max_record_bytes)
        in_transactions = self._transactional_id is not None
        return resume.newest_token(
            self._kafka, self.topic, stream_partition, registry=self._registry, limits=limits, in_transactions=in_transactions
        )

    def poll(self, timeout_s: float = 0.0) -> int:
        """Make the calls of `on_delivery` that are due; where none is, wait up to `timeout_s` for an answer. Returns how many it made.

        What waits for a batch to fill goes on waiting: `flush` sends at once. Calls of an open transaction are due when it ends.
        Raises what `on_delivery` raises, and `WriterConflictError` as `transaction` does.
        """
        assert not self._is_telling, "on_delivery may send, and nothing else"
        self._outbox.serve(0.0 if self._told else timeout_s)
        return self._tell()

    def flush(self, timeout_s: float = 130.0) -> None:
        """Return once everything sent so far has been acknowledged, and whoever asked for it with `on_delivery` has been told.

        Raises `DeliveryError` after `timeout_s`, or when something failed, now or earlier; `undelivered` has the records. Raises
        what `on_delivery` raises; what was sent goes on being delivered.
        """
        assert self._transaction is None, "what is sent in a transaction is delivered when it is committed"
        assert not self._is_telling, "on_delivery may send, and nothing else"
        deadline = time.monotonic() + timeout_s
        self._tell()
        # Those who are told may send.
        while (self._outbox.items or self._told) and (left_s := deadline - time.monotonic()) > 0:
            self._outbox.serve(min(left_s, 0.5), push=True)
            self._tell()
        if self._outbox.items or self._failed:
            raise self._not_delivered()

    def undelivered(self) -> dict[Record, str]:
        """The records that are not acknowledged, with the reason, changes first. To be sent again in this order;
        with a `transactional_id`, in one transaction.

        The producer's own announcements are among them, and are sent again as any other record.
        """
        found = {record: why for delivery in self._deliveries.values() for record, why in delivery.failed.items()}
        for sent in self._outbox.items:
            found.setdefault(sent.record, "not acknowledged yet")
        for sent in self._transaction.settled if self._transaction is not None else ():
            found.setdefault(sent.record, "not committed yet")
        return {record: found[record] for record in sorted(found, key=_comes_after)}

    def set_aside(self, *changes: DataChange, headers: Headers = ()) -> None:
        """Publish changes that failed, which `undelivered` has, as dead letters in place of delivering them (DLQ-2).

        The source goes on without them: they are no longer among `undelivered`, and heartbeats pass them, so a replay of them is late.
        The reason is REJECTED where the broker refused a change, else RETRIES_EXHAUSTED: then it may have been delivered after all, and a
        replay changes nothing. Raises what `DeadLetterPublisher.publish` does; then those whose letters are not there stay where they are.
        """
        assert self._transaction is None, "a transaction is delivered as one, or not at all"
        failed = {change: self._delivery(change.stream_partition).failed.get(change) for change in changes}
        assert None not in failed.values(), "only what has failed is set aside"
        with DeadLetterPublisher(self._kafka, self.topic) as publisher:
            for change, why in failed.items():
                value = frame(encode(replace(change, estimated_low_watermark=0), self.kafka_partitions), self._schema_id)
                letter = source_letter(self.topic, change.row_key, value, tuple(headers), why or "", now=now_us())
                # One at a time: a second letter of a change has another id, so none is published twice because another one failed.
                publisher.publish([letter])
                self._failed += self._delivery(change.stream_partition).set_aside(change)

    def refresh_now(self) -> None:
        """Have the next control record look whether the topic has grown, instead of once a minute."""
        self._refreshed_at = 0.0

    def close(self, timeout_s: float = 130.0) -> None:
        """Flush, then let go of the brokers, within `timeout_s` and a second. Raises as `flush` does. A second call does nothing.

        What has no answer by then is told to `on_delivery` as failed. From here on nothing may be sent, by `on_delivery` neither.
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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close(timeout_s=5)
        except ConnectorError as further:
            error.add_note(f"beside this: {further}")

    # Sending.

    def _delivery(self, stream_partition: str) -> Delivery:
        found = self._deliveries.get(stream_partition)
        if found is None:
            found = self._deliveries[stream_partition] = Delivery()
        return found

    def _check_is_among_failed(self, record: Record) -> None:
        if record not in self._delivery(record.stream_partition).failed:
            raise self._not_delivered()

    def _checked(self, change: DataChange, headers: HeaderList, before: int | None = None) -> tuple[bytes, int]:
        """The value of a change that may be sent, and the Kafka partition of its key. `before` is the oldest one to be sent before it."""
        delivery = self._delivery(change.stream_partition)
        # One that was perhaps delivered, with the heartbeat after it, may be sent again.
        if change.commit_timestamp <= delivery.promised and change not in delivery.failed:
            raise InvalidChangeError(
                Rule.COMMIT_TIMESTAMP,
                "commit_timestamp",
                f"after {delivery.promised}, the last heartbeat of stream partition {change.stream_partition}",
                change.commit_timestamp,
            )
        wire = self._with_true_claim(change, delivery, before) if change.estimated_low_watermark else change
        value = frame(encode(wire, self.kafka_partitions), self._schema_id)
        self._check_size(change.row_key, value, headers)
        return value, murmur2(change.row_key, self.kafka_partitions)

    def _put(self, change: DataChange, value: bytes, kafka_partition: int, headers: HeaderList, on_delivery: OnDelivery | None) -> None:
        delivery = self._delivery(change.stream_partition)
        self._failed += delivery.sent(change)
        self._outbox.put(_Sent(change, delivery, 1, on_delivery), change.row_key, value, kafka_partition, headers)

    def _with_true_claim(self, change: DataChange, delivery: Delivery, before: int | None) -> DataChange:
        """The change with an estimated low watermark that holds of what is acknowledged; 0 where it claims nothing (WMK-5, REC-18)."""
        if not is_claim(change.estimated_low_watermark, now_us(), self._max_clock_skew_us):
            self.ignored_claims += 1
            return replace(change, estimated_low_watermark=0)
        oldest = min(time for time in (change.commit_timestamp, delivery.oldest_open(), before) if time is not None)
        return change if change.estimated_low_watermark <= oldest else replace(change, estimated_low_watermark=oldest)

    def _send_control(self, record: Heartbeat | ChildPartitions, headers: HeaderList, on_delivery: OnDelivery | None) -> None:
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
        # From here on a reader may have seen it.
        if isinstance(record, ChildPartitions):
            self._announcements.sent(record, now_us())
        elif record.timestamp > delivery.promised:
            if self._transaction is not None:
                self._transaction.promised.append((delivery, delivery.promised))
            delivery.promised = record.timestamp
        self._send_everywhere(_Sent(record, delivery, self.kafka_partitions, on_delivery), value, headers)

    def _announce(self, record: Record) -> None:
        """Announce what is due before a record. It claims nothing, so there is nothing to wait for."""
        for announcement in self._announcements.due(record, now_us()):
            self._refresh()
            value = frame(encode(announcement, self.kafka_partitions), self._schema_id)
            self._check_size(CONTROL_KEY, value, [])
            self.announced += 1
            with suppress(DeliveryError):  # it is among `undelivered`, and the record itself may be taken
                delivery = self._delivery(announcement.stream_partition)
                self._send_everywhere(_Sent(announcement, delivery, self.kafka_partitions, is_ours=True), value, [])

    def _send_everywhere(self, sent: _Sent, value: bytes, headers: HeaderList) -> None:
        kafka_partitions = sent.copies
        for kafka_partition in range(kafka_partitions):
            try:
                self._outbox.put(sent, CONTROL_KEY, value, kafka_partition, headers)
            except DeliveryError as error:
                for _ in range(kafka_partition + 1, kafka_partitions):
                    self._answer(sent, error.cause)
                raise

    def _wait_until_true(self, delivery: Delivery, record: Heartbeat | ChildPartitions, upto: int | None) -> None:
        """Wait for the acknowledgements of the changes that a control record speaks of, those `upto` a time or all (REC-18)."""
        what = f"A heartbeat at {upto}" if upto else "Child partitions"
        deadline = time.monotonic() + self._queue_timeout_s
        while True:
            failed, oldest = delivery.oldest_failed(), delivery.oldest_open()
            # While something is under way it may be what failed, sent again.
            waits = self._transaction is None and delivery.under_way
            if failed is not None and (upto is None or failed <= upto) and not waits:
                raise DeliveryError(
                    f"{what} would claim more than was delivered for stream partition {record.stream_partition}",
                    f"a change with commit timestamp {failed} was not delivered: {next(iter(delivery.failed.values()))}",
                    "Send the changes of undelivered() again, then this",
                    undelivered=len(delivery.failed),
                )
            # In a transaction it is delivered with what it covers, or not at all.
            if self._transaction is not None or oldest is None or (upto is not None and oldest > upto):
                return
            if time.monotonic() > deadline:
                waited = f"after {self._queue_timeout_s:g} s. {self._outbox.complaint}".strip()
                raise DeliveryError(
                    f"{what} is not true yet for stream partition {record.stream_partition}",
                    f"{delivery.under_way} changes are not acknowledged {waited}",
                    "Look after the brokers and send it again",
                    undelivered=delivery.under_way,
                )
            self._outbox.serve(0.05, push=True)

    def _check_size(self, key: bytes, value: bytes, headers: HeaderList) -> None:
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

    # Answers.

    def _answer(self, sent: _Sent, error: str) -> None:
        """One of its messages was acknowledged, or failed."""
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
        """Make the calls that are due now, and return how many. Not from within one of them, nor while a transaction is open.

        Callers are at a point where nothing is half done: who is told may send, or raise.
        """
        if self._is_telling or self._transaction is not None:
            return 0
        self._is_telling = True
        due = len(self._told)  # those that come of what is sent meanwhile are left to the next time, or it might never end
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
            f"{len(records)} records were not delivered to {self.topic}",
            f"{cause}. {self._outbox.complaint}".strip().removesuffix("."),
            "undelivered() has them: send them again once the cause is mended; sending one twice does no harm",
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
            raise DeliveryError(f"No transaction could begin on {self.topic}", error.args[0].str(), "Try again") from error
        self._transaction = _Transaction(self._outbox.client, self._announcements.copy())
        return self._transaction

    def _commit(self, transaction: _Transaction) -> None:
        """Raises when it is not committed, or not known to be."""
        while self._outbox.items and not transaction.trouble:
            self._outbox.serve(0.5, push=True)
        if self._outbox.client is not transaction.client:
            transaction.trouble = transaction.trouble or "the client failed"
        changed = (sent.delivery for sent in transaction.settled if isinstance(sent.record, DataChange))
        left_out = {oldest for delivery in changed if (oldest := delivery.oldest_failed()) is not None}
        if left_out and not transaction.trouble:
            transaction.trouble = f"a change with commit timestamp {min(left_out)}, which was not delivered before, is not in it"
        if not transaction.trouble:
            transaction.is_unknown = True
            if (error := transactions.commit(transaction.client)) is not None:
                transaction.trouble = error.str()
                transaction.is_unknown = not error.txn_requires_abort()
                if transaction.is_unknown:
                    self._outbox.renew(error)
        if transaction.trouble:
            raise DeliveryError(
                f"A transaction on {self.topic} was not committed",
                transaction.trouble,
                "undelivered() has its records: send them again, in another transaction; sending one twice does no harm",
                undelivered=len(self.undelivered()),
            )
        self._transaction = None

    def _abort(self, transaction: _Transaction, reason: BaseException) -> None:
        """Settle what was sent as not delivered, for a reason that is raised; what goes wrong beside it becomes a note."""
        why = transaction.trouble or f"its transaction was aborted: {reason!r}"
        if self._outbox.client is transaction.client and not isinstance(reason, WriterConflictError):
            error = transactions.abort(transaction.client)
            self._outbox.read_reports()
            try:
                # Messages that failed may have left a gap in its sequence numbers, at which the next transaction would fail.
                if error is not None or transaction.trouble:
                    self._outbox.renew(error or transaction.trouble)
            except WriterConflictError as further:
                reason.add_note(f"beside this: {further}")
        self._outbox.give_up(why)
        self._transaction = None
        self._announcements = transaction.lineage
        if not transaction.is_unknown:
            for delivery, promised in reversed(transaction.promised):
                delivery.promised = promised
        for sent in transaction.settled:
            if not sent.is_ours:  # ours are announced again when they are due
                self._conclude(sent, why)

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
                self._outbox.client.list_topics(self.topic, timeout=client.REACH_TIMEOUT_S)
            # Who begins to read there finds none in the new ones.
            self._announcements.again_soon()
        self.kafka_partitions = facts.kafka_partitions


def _comes_after(record: Record) -> tuple[int, int]:
    """Control records come after the changes that they may cover, in the order of their times."""
    match record:
        case DataChange():
            return 0, 0
        case Heartbeat():
            return 1, record.timestamp
        case ChildPartitions():
            return 1, record.start_timestamp


def _retention_us(facts: TopicFacts) -> int:
    """How long the topic keeps a record; where it is for ever, as long as a change topic's retention may be."""
    return (facts.retention_ms if facts.retention_ms >= 0 else topics.MAX_RETENTION_S * 1000) * 1000
