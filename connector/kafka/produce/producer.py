"""Sends changes, heartbeats and child partitions to a change topic (REC-3, REC-14, REC-17, REC-18,
REC-19).

Delivery is asynchronous, and memory is bounded. A record that was not delivered is never forgotten:
`flush`, `close` and the next heartbeat fail until you send an equal record and it is delivered. You
can send a record twice without harm, because readers order changes by their content.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from connector.clock import now_us
from connector.dead_letters.envelope import source_letter
from connector.errors import argument_invalid
from connector.errors.kafka import arguments_exclude
from connector.kafka import client, topics
from connector.kafka.dead_letters.topic import DeadLetterPublisher
from connector.kafka.produce import heartbeats, resume
from connector.kafka.produce.change_records import ChangeRecords
from connector.kafka.produce.closing import Closing
from connector.kafka.produce.control_records import ControlRecords, HeldRelease
from connector.kafka.produce.heartbeats import AutomaticHeartbeats
from connector.kafka.produce.outbox import OpenedOutbox, Outbox, OutboxQueue
from connector.kafka.produce.producer_transaction import Transactions
from connector.kafka.produce.record_bytes import RecordBytes, TopicWatch, outside_session
from connector.kafka.produce.results import MAX_FAILED, OnDelivery, Results
from connector.kafka.sending import SendQueue
from connector.kafka.tables import published_tables
from connector.kafka.topics import TopicFacts
from connector.kafka.transactions import HeaderList, Headers, headers_of
from connector.kafka.unclosed import try_after, watch
from connector.records.model import (
    ChildPartitions,
    DataChange,
    Heartbeat,
    Record,
    Release,
    Truncate,
)
from connector.reports.series import DELIVERED, UNDELIVERED, Sample
from connector.validation import Limits
from connector.watermarks.heartbeat_schedule import FORGOTTEN_S, HeartbeatSchedule

if TYPE_CHECKING:
    from connector.config.settings import KafkaConfig, RegistryConfig
    from connector.kafka.produce.results import Queue
    from connector.tables.published import PublishedTable


class ChangeProducer:
    """Publishes to one change topic. Not thread-safe, except `hold_release` and `samples`.

    A stream partition must have only one producer at a time: ingest reports a second one (PUB-4).
    Use it as a context manager: at the end of the block, it flushes and closes. If the program ends
    without that, it is closed within 10 seconds (PUB-8). Do not use it in a forked process.

    After the first call of `reached`, each call of `reached`, `send`, `send_many`, `poll`, `flush`
    and `close` sends the heartbeats that are due (PUB-1). There is no thread.

    - `kafka_partitions` is the number of Kafka partitions, over which keys are distributed.
    - `delivered` is the number of acknowledged records that were given to `send`.
    - `announced` is the number of announcements that the producer sent, and `heartbeats` that of
      automatic heartbeats. Each is one record in every Kafka partition.
    - `ignored_claims` is the number of changes whose estimated low watermark was not a claim, and
      was sent as 0 (WMK-5).
    - `warnings` are sentences about wrong settings of the topic, and about stream partitions that
      send changes with different commit timestamps, but for 60 s no heartbeat and no estimated low
      watermark (PUB-2).
    """

    _announces = True

    def __init__(
        self,
        kafka: KafkaConfig,
        topic: str | TopicFacts,
        *,
        limits: Limits = Limits(),  # noqa: B008, it is immutable
        outbox: Outbox | str | os.PathLike[str] | None = None,
        transactional_id: str | None = None,
        registry: RegistryConfig | None = None,
        heartbeat_s: float = 1.0,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Check the topic, and look up the schema if there is a registry.

        Args:
            kafka: The brokers and client settings.
            topic: The name of the change topic, or the result of `describe`.
            limits: The limits of the stream. The size limit of the topic applies, too.
            outbox: A file in which each record is stored before it is sent (PUB-3). The producer
                first sends what an earlier process left there.
            transactional_id: All records are sent in transactions. An older producer with the same
                id can no longer send, and its open transaction is aborted.
            registry: The schema registry. None: records have the single-object framing.
            heartbeat_s: The interval of automatic heartbeats, 1 to 300 seconds.
            settings: Client settings for this producer only. They have priority over those of
                `kafka`.

        Raises:
            TopicError: There is no such topic, or it is compacted.
            BrokerError: No broker or no registry answers: no error with an outbox that was used
                before. Or the registry does not have the schema.
            ConfigError: A value is not allowed, or both a `transactional_id` and an outbox.
            OutboxError: Another producer uses the outbox, or it belongs to another topic, or it is
                damaged or cannot be used.
        """
        if transactional_id is not None:
            client.check_id("transactional_id", transactional_id)
            if outbox is not None:
                reason = "A commit means that Kafka has the records, not that your disk has them"
                raise arguments_exclude("transactional_id", "outbox", reason)
        self._max_clock_skew_us = limits.max_clock_skew_s * 1_000_000
        self._kafka = (
            kafka if not settings else replace(kafka, settings={**kafka.settings, **settings})
        )
        self._registry, self._limits = registry, limits
        self._schedule = HeartbeatSchedule(heartbeat_s)
        if outbox is not None and not isinstance(outbox, Outbox):
            outbox = Outbox(outbox)
        opened = None if outbox is None else OpenedOutbox(outbox, self._kafka, topic)
        try:
            self._open(topic, opened, transactional_id)
        except BaseException:
            if opened is not None:
                opened.file.close()
            raise
        self._unwatch = watch(self, self._closing)

    def _open(
        self, topic: str | TopicFacts, opened: OpenedOutbox | None, transactional_id: str | None
    ) -> None:
        if opened is not None:
            facts = opened.facts
        else:
            facts = topics.describe(self._kafka, topic) if isinstance(topic, str) else topic
        self.topic = facts.topic
        self._topic_warnings = topics.check(facts)
        topic_watch = TopicWatch(self._kafka, facts, asks_again=isinstance(topic, str))
        self._results = Results(facts.topic)
        self._transactions: Transactions | None = None
        self._queue: Queue
        if opened is not None:
            self._bytes = opened.record_bytes(self._registry, self._limits)
            self._queue = OutboxQueue(self._kafka, opened, self._results, self._bytes, topic_watch)
        else:
            self._bytes = RecordBytes(facts, self._registry, self._limits)
            self._queue = SendQueue(self._kafka, facts, self._results.answer, transactional_id)
        self._results.watch(self._queue)
        self._control = ControlRecords(
            facts, self._queue, self._results, self._bytes, topic_watch, announces=self._announces
        )
        self._changes = ChangeRecords(
            self._queue,
            self._results,
            self._bytes,
            self._control,
            max_clock_skew_us=self._max_clock_skew_us,
            clock=heartbeats.clock,
        )
        if transactional_id is not None:
            assert isinstance(self._queue, SendQueue)
            self._transactions = Transactions(
                self._kafka, transactional_id, self._queue, self._results, self._control
            )
        self._heartbeats = AutomaticHeartbeats(
            self.topic,
            self._schedule,
            self._queue,
            self._results,
            self._control,
            self._bytes,
            self._transactions,
        )
        self._closing = Closing(self._queue, self._results, self._heartbeats)

    @property
    def warnings(self) -> list[str]:
        return [
            *self._topic_warnings,
            *(
                f"Stream partition {name} has sent changes for {FORGOTTEN_S:g} s without a"
                " heartbeat and without an estimated low watermark, so the low watermark of the"
                " stream does not advance. Call reached, or send heartbeats"
                for name in self._results.forgotten(heartbeats.clock())
            ),
        ]

    @property
    def kafka_partitions(self) -> int:
        return self._bytes.kafka_partitions

    @property
    def delivered(self) -> int:
        return self._results.delivered

    @property
    def ignored_claims(self) -> int:
        return self._changes.ignored_claims

    @property
    def announced(self) -> int:
        return self._control.announced

    @property
    def heartbeats(self) -> int:
        return self._heartbeats.count

    def samples(self) -> list[Sample]:
        """Return the samples of its series, for `connector.exporter.exporting` (MET-1). Any thread
        may call it, and only memory is read.
        """
        results = self._results
        own = {DELIVERED: results.delivered, UNDELIVERED: results.failed}
        return [
            Sample(series, value, (self.topic,))
            for series, value in (self._queue.figures() | own).items()
        ]

    def send(
        self, record: Record, headers: Headers = (), on_delivery: OnDelivery | None = None
    ) -> None:
        """Queue one record: a change for the Kafka partition of its key, a control record for every
        Kafka partition (REC-3).

        It returns before the record is delivered, and blocks while the queue is full. With an
        outbox, the record is on disk then. Without an outbox and outside a transaction, a control
        record blocks until the changes that it covers are acknowledged (REC-18). With a
        `transactional_id`, but outside a transaction, the record is a transaction of its own.

        An estimated low watermark is lowered to the acknowledged changes, or sent as 0 if it is not
        a claim (WMK-5). A stream partition is announced as a root before its first record, unless
        child partitions have named it. Announcements are repeated (WMK-6).

        Args:
            record: The change, truncation, heartbeat or child partitions. A truncation may come
                before or after the changes of its time: its order decides (EVO-13).
            headers: Kafka headers.
            on_delivery: Called once as `on_delivery(record, error)`: with `None` if Kafka has the
                record, or with the reason (PUB-5). It is called in your thread, at the start of
                `send`, `send_many` and `transaction`, and in `poll`, `flush` and `close`. It may
                send, but must not poll, flush or close. If it raises, so does the calling method,
                and sends nothing.

        Raises:
            InvalidChangeError: The record is too large, or a change is not after the last heartbeat
                of its stream partition. Nothing is sent.
            ConfigError: The client cannot send a header. Nothing is sent.
            DeliveryError: A control record is not true yet, or a change that it covers has failed.
                Nothing is sent. Or the queue stayed full, or the outbox (`QueueFullError`). Then
                the record is in `undelivered`. Or an automatic heartbeat was not delivered
                (`HEARTBEAT_UNDELIVERED`). Then the record is queued.
            TopicError: The topic was deleted and created again.
            OutboxError: The outbox is damaged or cannot be used.
            WriterConflictError, BrokerError: With a `transactional_id`, as `transaction` does.
        """
        assert not self._closing.is_closed, "a closed producer sends nothing"
        self._send(record, headers, on_delivery)
        self._heartbeats.send_due()
        self._check_heartbeats()

    def _send(self, record: Record, headers: Headers, on_delivery: OnDelivery | None) -> None:
        if self._results.due:
            self._results.call()
        if self._transactions is not None and self._results.transaction is None:
            with self._transaction(self._transactions):
                self._send(record, headers, on_delivery)
            return
        if self._results.failed > MAX_FAILED:
            self._results.check_is_among_failed(record)
        header_list: HeaderList = headers_of(headers) if headers else []
        if isinstance(record, DataChange):
            self._changes.send(record, header_list, on_delivery)
        elif isinstance(record, Truncate):
            self._control.truncate(record, header_list, on_delivery)
        elif isinstance(record, Heartbeat | ChildPartitions):
            self._control.send(record, header_list, on_delivery)
        elif isinstance(record, Release):
            raise outside_session(record)
        else:
            raise argument_invalid(
                "record", record, "a DataChange, a Truncate, a Heartbeat or a ChildPartitions"
            )

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
            ConfigError: The client cannot send a header. Nothing is sent.
            DeliveryError, TopicError, OutboxError, WriterConflictError, BrokerError: As `send`
                does. If the queue stayed full, the change and those after it are in `undelivered`.
        """
        assert not self._closing.is_closed, "a closed producer sends nothing"
        self._results.call()
        changes = list(changes)
        header_list = headers_of(headers) if headers else []
        if self._transactions is not None and self._results.transaction is None:
            with self._transaction(self._transactions):
                self._changes.send_many(changes, header_list, on_delivery)
        else:
            self._changes.send_many(changes, header_list, on_delivery)
        self._heartbeats.send_due()
        self._check_heartbeats()

    def reached(self, stream_partition: str, timestamp: int, resume_token: bytes = b"") -> None:
        """Report that every change of the stream partition with a commit timestamp at or below
        `timestamp` was handed to `send` (PUB-1). From now on, `send` refuses such a change, unless
        it failed before.

        The producer sends a heartbeat in each interval, at the newest reported position whose
        changes are acknowledged. Go on calling `reached` while the source is silent, with the time
        up to which it was read. With an outbox, the resume token is on disk when it returns.

        Args:
            stream_partition: The name of the stream partition. A new name is announced with its
                first heartbeat. If you announce stream partitions yourself, announce it first.
            timestamp: The position, in microseconds. It is never less than the one before.
            resume_token: The position in the source, for `resume_token` after a restart.

        Raises:
            InvalidChangeError: A value breaks a limit, or `timestamp` is before the last reported
                position or heartbeat, or more than `max_clock_skew_s` after this machine's clock,
                or the stream partition has ended or is not announced.
        """
        assert not self._closing.is_closed, "a closed producer sends nothing"
        self._heartbeats.reached(stream_partition, timestamp, resume_token, self._max_clock_skew_us)
        self._heartbeats.send_due()

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
                Or an automatic heartbeat was not delivered. Then the block does not begin.
            WriterConflictError: Another producer has the same `transactional_id`.
            BrokerError: No broker answers, so the transaction cannot begin.
        """
        assert self._transactions is not None, "transactions need a transactional_id"
        assert self._results.transaction is None, "a producer has one transaction at a time"
        self._check_heartbeats()
        with self._transaction(self._transactions):
            yield
        self._heartbeats.send_due()

    @contextmanager
    def _transaction(self, transactions: Transactions) -> Iterator[None]:
        self._results.call()
        with transactions.block():
            yield

    @contextmanager
    def hold_release(self) -> Iterator[HeldRelease]:
        """Choose the commit timestamp of a release. Until the block ends, no heartbeat of this
        producer is at or above it (WRS-15). `commit_write_streams(…, through=producer)` uses it.

        The block may be in another thread than the producer's.

        Raises:
            WriteStreamError: The producer has no live stream partition. Send a record first.
        """
        assert not self._closing.is_closed, "a closed producer sends nothing"
        release = self._control.hold()
        try:
            yield release
        finally:
            self._control.release(release)

    def resume_token(self, stream_partition: str) -> bytes:
        """Return the position at which the source must continue (REC-19): the newest resume token
        whose earlier records are all delivered.

        It is that of `reached` or a heartbeat, from the outbox (PUB-3) or from the topic. With a
        `transactional_id`, the last committed change counts, too. Then all records of the stream
        partition in the topic must have been sent in transactions.

        Args:
            stream_partition: The name of the stream partition.

        Raises:
            TopicError: The topic has no resume token of the stream partition.
            BrokerError: No broker answers.
        """
        assert not self._closing.is_closed, "a closed producer has no resume token"
        if isinstance(self._queue, OutboxQueue):
            token = self._queue.token(stream_partition)
            if token is not None:
                return token
        newest = resume.newest_token(
            self._kafka,
            self.topic,
            stream_partition,
            registry=self._registry,
            limits=Limits(max_record_bytes=self._limits.max_record_bytes),
            in_transactions=self._transactions is not None,
        )
        self._control.epoch.follows(newest.epoch)
        return newest.token

    def poll(self, timeout_s: float = 0.0) -> int:
        """Make the due calls of `on_delivery`. If none is due, wait for a result.

        Records that wait for a full batch are not sent earlier. Calls of an open transaction are
        due when it ends.

        Args:
            timeout_s: The maximum time to wait.

        Returns:
            The number of calls.

        Raises:
            WriterConflictError: As `transaction` does. Exceptions of `on_delivery` are raised, too.
        """
        assert not self._results.is_calling, "on_delivery may send, and nothing else"
        return self._closing.poll(timeout_s)

    def published_tables(self) -> dict[str, PublishedTable]:
        """Return the newest published definition of each table of the topic (EVO-1). Raises as
        `connector.kafka.published_tables` does.
        """
        return published_tables(self._kafka, self.topic)

    def flush(self, timeout_s: float = 130.0) -> None:
        """Wait until all records are acknowledged, and all calls of `on_delivery` are made. Then
        send a heartbeat at the last position of each stream partition, and wait for it.

        Stream partitions that your last announcement omits end (WMK-6), so send all its parts
        before.

        Args:
            timeout_s: The maximum time to wait.

        Raises:
            DeliveryError: The time has passed, or a record failed: `undelivered` has the records.
                With `RECORDS_IN_OUTBOX`, they are in the file. Or an automatic heartbeat was not
                delivered (`HEARTBEAT_UNDELIVERED`). Exceptions of `on_delivery` are raised, too.
        """
        self._closing.flush(timeout_s)

    def undelivered(self) -> dict[Record, str]:
        """Return the records that are not acknowledged, with the reason. Changes come first.

        Send them again in this order, also announcements of the producer. With a
        `transactional_id`, send them in one transaction. With an outbox, the producer sends its
        records by itself, so only one that Kafka refuses is included.
        """
        return self._results.undelivered()

    def send_to_dead_letters(self, *changes: DataChange, headers: Headers = ()) -> None:
        """Publish failed changes as dead letters instead of delivering them (DLQ-2). They are no
        longer in `undelivered`, and heartbeats do not wait for them.

        The reason is REJECTED if the broker refused a change, and otherwise RETRIES_EXHAUSTED: it
        may have been delivered.

        Args:
            changes: Failed changes of `undelivered`.
            headers: Kafka headers of the dead letters.

        Raises:
            DeliveryError, TopicError, BrokerError: As `DeadLetterPublisher.publish` does. Changes
                whose dead letters were not published stay in `undelivered`.
        """
        assert self._results.transaction is None, "a transaction is delivered as one, or not at all"
        header_pairs = tuple(
            (name, value.encode() if isinstance(value, str) else value)
            for name, value in headers_of(headers)
        )
        failed = {change: self._results.failure_of(change) for change in changes}
        assert None not in failed.values(), "only failed changes become dead letters"
        with DeadLetterPublisher(self._kafka, self.topic) as publisher:
            for change, reason in failed.items():
                value = self._bytes.value_of(change, claim=0)
                letter = source_letter(
                    self.topic, change.row_key, value, header_pairs, reason or "", now=now_us()
                )
                # One at a time, so that a failure does not publish the others again: a second dead
                # letter of a change has another id.
                publisher.publish([letter])
                if isinstance(self._queue, OutboxQueue) and self._results.is_refused(change):
                    self._queue.skip_refused()
                else:
                    self._results.set_aside(change)

    def close(self, timeout_s: float = 130.0) -> None:
        """Flush, and close the client. A second call does nothing.

        Records without a result are reported to `on_delivery` as failed. Those in an outbox are
        not: the next producer with this outbox sends them. After `close`, nothing can be sent, also
        not by `on_delivery`.

        Args:
            timeout_s: The maximum time to wait. Closing may take one second more.

        Raises:
            DeliveryError: As `flush` does, or the last heartbeat was not delivered.
        """
        if self._closing.is_closed:
            return
        assert not self._results.is_calling, "on_delivery may send, and nothing else"
        self._unwatch()
        self._closing.close(timeout_s)

    def _check_heartbeats(self) -> None:
        """Raise the error of an automatic heartbeat, but not where it would end a transaction."""
        if self._results.transaction is None and not self._results.is_calling:
            self._heartbeats.check()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            self.close()
        else:
            try_after(error, lambda: self.close(timeout_s=5))


class CopyingProducer(ChangeProducer):
    """Sends records that contain the announcements of another producer, and announces nothing."""

    _announces = False
