"""Sends changes, heartbeats and child partitions to a change topic (REC-3, REC-14, REC-17, REC-18,
REC-19).

    producer.send(change)          checks, encodes and queues it. The result comes later
    producer.send(heartbeat)       waits until the heartbeat is true, then sends it to every Kafka
                                   partition
    producer.send_many(changes)    checks all of them before it queues the first one
    producer.poll(1.0)             calls `on_delivery` for the results that have arrived
    producer.reached("p", time)    reports a position. The producer sends heartbeats up to it
    producer.flush()               returns when all records are delivered. Otherwise it raises
    with producer.transaction():   all records of the block are delivered together, or none of them

Delivery is asynchronous, and memory is bounded. A record that was not delivered is never forgotten:
`flush`, `close` and the next heartbeat fail until you send an equal record and it is delivered. You
can send a record twice without harm, because readers order changes by their content.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from connector.errors import ConnectorError
from connector.kafka import topics
from connector.kafka.arguments import headers_of
from connector.kafka.produce import resume
from connector.kafka.produce.change_records import ChangeRecords
from connector.kafka.produce.closing import Closing
from connector.kafka.produce.control_records import ControlRecords
from connector.kafka.produce.delivery_wait import DeliveryWait
from connector.kafka.produce.heartbeats import AutomaticHeartbeats, Timer
from connector.kafka.produce.options import (
    changes_of,
    check_callback,
    check_producer,
    position_of,
    record_invalid,
)
from connector.kafka.produce.producer_transaction import Transactions
from connector.kafka.produce.record_bytes import Headers, RecordBytes, outside_session
from connector.kafka.produce.release_holds import HeldRelease, ReleaseHolds
from connector.kafka.produce.results import MAX_FAILED, OnDelivery, Results, Sent
from connector.kafka.produce.send_queue import HeaderList, SendQueue
from connector.kafka.produce.set_aside import set_aside
from connector.kafka.produce.spool import DEFAULT_MAX_BYTES, newest_of, open_spool, settings_of
from connector.kafka.produce.spool_file import Sync
from connector.kafka.produce.spool_queue import SpoolQueue, WhenFull
from connector.kafka.produce.turns import Turns
from connector.kafka.topics import TopicFacts
from connector.kafka.unclosed import watch
from connector.records.model import ChildPartitions, DataChange, Heartbeat, Record, Release
from connector.validation import Limits
from connector.watermarks.heartbeat_schedule import FORGOTTEN_S, HeartbeatSchedule

if TYPE_CHECKING:
    from types import TracebackType

    from connector.config.settings import KafkaConfig, RegistryConfig


class ChangeProducer:
    """Publishes to one change topic. A stream partition must have only one producer at a time:
    ingest reports a second one (PUB-4). Not thread-safe. Do not use it in a process that was forked
    after it was made.

    Use it as a context manager. At the end of the block, it flushes and closes. If the program ends
    without that, it is closed within 10 seconds. If records are lost, standard error says how many,
    and the exit code is 1 (PUB-8).

    After the first call of `reached`, a thread of the producer sends heartbeats (PUB-1). It takes
    turns with your calls, and calls none of your functions.

    - `kafka_partitions` is the current number of Kafka partitions, over which keys are distributed.
    - `delivered` is the number of acknowledged records that were given to `send`.
    - `announced` is the number of announcements that the producer sent, and `heartbeats` that of
      automatic heartbeats. Each is one record in every Kafka partition.
    - `ignored_claims` is the number of changes whose estimated low watermark was not a claim, and
      was sent as 0 (WMK-5).
    - `warnings` are sentences about wrong settings of the topic, and about stream partitions that
      have sent changes for 60 s without a heartbeat and without an estimated low watermark (PUB-2).
      Changes that all have the same commit timestamp do not count, because they may be a backfill.
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
        heartbeat_s: float = 1.0,
        spool: str | os.PathLike[str] | None = None,
        spool_max_bytes: int = DEFAULT_MAX_BYTES,
        spool_after_s: float = 1.0,
        spool_full: WhenFull = "block",
        spool_sync: Sync = "normal",
    ) -> None:
        """Check the topic, and look up the schema if there is a registry.

        Args:
            kafka: The brokers and client settings.
            topic: The name of the change topic, or the result of `describe`.
            registry: The schema registry. None: records have the single-object framing.
            max_record_bytes: The limit for key and value together. The limit of the topic applies,
                too.
            max_clock_skew_s: How far an estimated low watermark, and a position of `reached`, may
                be after this machine's clock. Use the value of the stream.
            min_commit_timestamp: The least commit timestamp, in microseconds. Use the value of the
                stream. 0 sets no limit.
            queue_timeout_s: How long `send` waits for space in the queue, and a heartbeat for
                acknowledgements.
            settings: Client settings for this producer only. They have priority over those of
                `kafka`.
            announce: False: you send announcements yourself, for example if you copy records.
            transactional_id: All records are sent in transactions. An older producer with the same
                id can no longer send, and its open transaction is aborted.
            heartbeat_s: The interval of automatic heartbeats, 1 to 300 seconds. Without a call of
                `reached`, the producer sends none, so a program that sends its own heartbeats does
                not need to change.
            spool: The path of a file for the records that Kafka does not acknowledge in time
                (PUB-3). It belongs to this producer and topic. The file `PATH.lock` is beside it.
                The producer first sends what an earlier process left there. None: there is no
                spool.
            spool_max_bytes: How many bytes of records the spool may have.
            spool_after_s: How long a record may be unacknowledged before it moves to the spool.
                At most 60 seconds.
            spool_full: With `block`, `send` waits for space for at most `queue_timeout_s`. With
                `raise`, it raises at once, and waits only for a slow disk.
            spool_sync: With `full`, records in the spool survive a power loss, not only SIGKILL.

        Raises:
            TopicError: There is no such topic, or it is compacted. Or it was deleted and created
                again, and the spool has records for it.
            BrokerError: No broker answers. With a spool that was used before, this is no error.
            RegistryError: The registry does not answer, or does not have the schema. A spool that
                was used before has the id of the schema, so that the first is no error.
            ConfigError: A client setting or another argument is not allowed, or has a wrong type
                (`ARGUMENT_INVALID`). A `transactional_id` is not allowed with a spool.
            SpoolError: Another producer uses the spool, or it belongs to another topic, or it
                cannot be read or written.
        """
        check_producer(
            kafka=kafka,
            topic=topic,
            registry=registry,
            max_record_bytes=max_record_bytes,
            max_clock_skew_s=max_clock_skew_s,
            min_commit_timestamp=min_commit_timestamp,
            queue_timeout_s=queue_timeout_s,
            settings=settings,
            announce=announce,
            transactional_id=transactional_id,
        )
        self._max_clock_skew_us = max_clock_skew_s * 1_000_000
        self._kafka = (
            kafka if not settings else replace(kafka, settings={**kafka.settings, **settings})
        )
        schedule = HeartbeatSchedule(heartbeat_s)
        spool_settings = settings_of(
            spool, transactional_id, spool_max_bytes, spool_after_s, spool_full, spool_sync
        )
        self._spool = (
            None
            if spool_settings is None
            else open_spool(spool_settings, self._kafka, topic, queue_timeout_s=queue_timeout_s)
        )
        self._registry, self._max_record_bytes = registry, max_record_bytes
        try:
            if self._spool is not None:
                facts = self._spool.facts
                self._topic_warnings = topics.check(facts)
                self._bytes = self._spool.record_bytes(
                    registry, max_record_bytes, min_commit_timestamp
                )
            else:
                facts = topics.describe(self._kafka, topic) if isinstance(topic, str) else topic
                self._topic_warnings = topics.check(facts)
                self._bytes = RecordBytes(facts, registry, max_record_bytes, min_commit_timestamp)
            self.topic = facts.topic
            self._results = Results(facts.topic)
            self._turns = Turns(_is_free(weakref.ref(self)))
            self._queue: SendQueue[Sent] = (
                SendQueue(
                    self._kafka,
                    facts,
                    self._results.answer,
                    queue_timeout_s=queue_timeout_s,
                    transactional_id=transactional_id,
                )
                if self._spool is None
                else self._spool.new_queue(self._kafka, self._results, self._turns, self._bytes)
            )
            self._results.watch(self._queue)
            self._wait = DeliveryWait(self._turns, self._queue, self._results)
            self._control = ControlRecords(
                self._kafka,
                facts,
                self._queue,
                self._results,
                self._bytes,
                announces=announce,
                wait_s=queue_timeout_s,
            )
            self._releases = ReleaseHolds(self._control, self._results)
            self._changes = ChangeRecords(
                self._queue,
                self._results,
                self._bytes,
                self._control,
                max_clock_skew_us=self._max_clock_skew_us,
                clock=Timer.clock,
            )
        except BaseException:
            if self._spool is not None:
                self._spool.file.close()
            raise
        self._transactions = (
            None
            if transactional_id is None
            else Transactions(
                self._kafka,
                self.topic,
                transactional_id,
                self._queue,
                self._results,
                self._control,
                self._turns,
            )
        )
        self._heartbeats = AutomaticHeartbeats(
            self.topic,
            schedule,
            self._turns,
            self._queue,
            self._results,
            self._control,
            self._bytes,
            self._transactions,
            Timer,
        )
        self._closing = Closing(
            self._turns, self._queue, self._results, self._wait, self._heartbeats, self._spool
        )
        self._unwatch = watch(self, self._closing)
        if self._spool is not None:
            self._spool.start(self._kafka)

    @property
    def warnings(self) -> list[str]:
        with self._turns:
            forgotten = self._results.forgotten(Timer.clock())
        return [
            *self._topic_warnings,
            *([] if self._spool is None else self._spool.warnings),
        ] + [
            f"Stream partition {name} has sent changes for {FORGOTTEN_S:g} s without a heartbeat"
            " and without an estimated low watermark, so the low watermark of the stream does not"
            " advance. Call reached, or send heartbeats"
            for name in forgotten
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

    def send(
        self, record: Record, headers: Headers = (), on_delivery: OnDelivery | None = None
    ) -> None:
        """Queue one record. A change goes to the Kafka partition of its key, a control record to
        every Kafka partition.

        The method returns before the record is delivered. It blocks while the queue is full. A
        heartbeat blocks until all changes that it covers are acknowledged. Child partitions block
        until all changes of their stream partition, and of the stream partitions that they end, are
        acknowledged. In a transaction they do not block, because they are delivered together with
        these changes. While records are spooled, control records do not block. They wait in the
        spool.

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
            ConfigError: An argument has a wrong type (`ARGUMENT_INVALID`). Nothing is sent.
            SpoolFullError: The spool has no space. It is a `DeliveryError`, and the record is in
                `undelivered`.
            SpoolError: A heartbeat is refused, because the spool has lost records (PUB-3). For an
                automatic heartbeat, this is raised once, and then the record is queued.
            DeliveryError: A heartbeat is not true yet, or cannot become true because a change
                failed. Nothing is sent. Or the queue stayed full. Then the record is in
                `undelivered` until you send it again, and `on_delivery` is called.
            DeliveryError: An automatic heartbeat was not delivered (`HEARTBEAT_UNDELIVERED`). The
                record is queued.
            DeliveryError, WriterConflictError, BrokerError: With a `transactional_id`, as
                `transaction` does.
        """
        assert not self._closed, "a closed producer sends nothing"
        with self._turns:
            self._send(record, headers, on_delivery)
            if self._heartbeats.has_failed:
                self._check_heartbeats()

    def _send(self, record: Record, headers: Headers, on_delivery: OnDelivery | None) -> None:
        if self._results.due:
            self._results.tell()
        if self._transactions is not None and self._results.transaction is None:
            with self._transaction(self._transactions):
                self._send(record, headers, on_delivery)
            return
        if self._results.failed > MAX_FAILED:
            self._results.check_is_among_failed(record)
        header_list: HeaderList = headers_of(headers) if headers else []
        if on_delivery is not None:
            check_callback(on_delivery)
        if isinstance(record, DataChange):
            self._changes.send(record, header_list, on_delivery)
        elif isinstance(record, Heartbeat | ChildPartitions):
            self._control.send(record, header_list, on_delivery)
        elif isinstance(record, Release):
            raise outside_session(record)
        else:
            raise record_invalid(record)

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
            ConfigError: An argument has a wrong type (`ARGUMENT_INVALID`). Nothing is sent.
            DeliveryError: The queue stayed full. The change and those after it are in
                `undelivered`.
            DeliveryError: An automatic heartbeat was not delivered (`HEARTBEAT_UNDELIVERED`). The
                changes are queued.
            DeliveryError, WriterConflictError, BrokerError: With a `transactional_id`, as
                `transaction` does.
        """
        assert not self._closed, "a closed producer sends nothing"
        with self._turns:
            self._results.tell()
            changes = changes_of(changes)
            header_list = headers_of(headers) if headers else []
            if on_delivery is not None:
                check_callback(on_delivery)
            if self._transactions is not None and self._results.transaction is None:
                with self._transaction(self._transactions):
                    self._changes.send_many(changes, header_list, on_delivery)
            else:
                self._changes.send_many(changes, header_list, on_delivery)
            self._check_heartbeats()

    def reached(self, stream_partition: str, timestamp: int, resume_token: bytes = b"") -> None:
        """Report that every change of the stream partition with a commit timestamp at or below
        `timestamp` was handed to `send` (PUB-1).

        The producer then sends a heartbeat for each stream partition and interval, at the newest
        reported position whose changes are acknowledged. Go on calling `reached` while the source
        is silent, with the time up to which the source was read. The method does not wait.

        From now on, `send` refuses a change at or below `timestamp`, unless it failed before.

        At least once a minute, all announcements are repeated, and also the heartbeats of stream
        partitions that report no new position.

        Args:
            stream_partition: The name of the stream partition. A new name is announced with its
                first heartbeat. If you announce stream partitions yourself, announce it first.
            timestamp: The position, in microseconds. It is never less than the one before.
            resume_token: The position in the source, for `resume_token` after a restart.

        Raises:
            InvalidChangeError: A value breaks a limit, or `timestamp` is before the last reported
                position or heartbeat, or more than `max_clock_skew_s` after this machine's clock,
                or the stream partition has ended or is not announced.
            ConfigError: An argument has a wrong type (`ARGUMENT_INVALID`).
        """
        assert not self._closed, "a closed producer sends nothing"
        heartbeat = position_of(stream_partition, timestamp, resume_token, self._max_clock_skew_us)
        with self._turns:
            self._heartbeats.reached(heartbeat)

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
            WriterConflictError: Another producer has started with the same `transactional_id`. This
                producer can no longer send.
            BrokerError: No broker answers, so the transaction cannot begin.
        """
        assert self._transactions is not None, "transactions need a transactional_id"
        assert self._results.transaction is None, "a producer has one transaction at a time"
        with self._turns:
            self._check_heartbeats()
        with self._transaction(self._transactions):
            yield

    @contextmanager
    def _transaction(self, transactions: Transactions) -> Iterator[None]:
        with self._turns:
            self._results.tell()
        with transactions.block():
            yield

    @contextmanager
    def hold_release(self, stream_partition: str | None = None) -> Iterator[HeldRelease]:
        """Choose the commit timestamp of a release. Until the block ends, no heartbeat of this
        producer is at or above it (WRS-15). `commit_write_streams(…, through=producer)` uses it.

        The block may be in another thread than the producer's.

        Args:
            stream_partition: A live stream partition of this producer. None: the first one.

        Raises:
            WriteStreamError: The producer has no such stream partition. Send a record first.
        """
        assert not self._closed, "a closed producer sends nothing"
        with self._turns:
            held = self._releases.begin(stream_partition)
        try:
            yield held
        finally:
            self._releases.end(held)

    def resume_token(self, stream_partition: str) -> bytes:
        """Read the resume token of the newest heartbeat of a stream partition from the topic
        (REC-19).

        A data change does not count, because earlier changes may be missing. Exception: with a
        `transactional_id`, the last committed change counts, too. Then all records of the stream
        partition in the topic must have been sent in transactions. Records without a token do not
        count.

        Args:
            stream_partition: The name of the stream partition.

        With a spool, a position that `reached` or a heartbeat reported while records were spooled
        counts, too, because everything up to it is in Kafka or in the spool (PUB-3). If no broker
        answers, only this position counts.

        Call it before `close`.

        Returns:
            The position at which the source must continue.

        Raises:
            TopicError: The topic has no resume token of the stream partition.
            BrokerError: No broker answers.
        """
        assert not self._closed, "a closed producer has no resume token"
        limits = Limits(max_record_bytes=self._max_record_bytes)
        in_transactions = self._transactions is not None

        def newest() -> resume.Resumed:
            found = resume.newest_token(
                self._kafka,
                self.topic,
                stream_partition,
                registry=self._registry,
                limits=limits,
                in_transactions=in_transactions,
            )
            with self._turns:
                self._control.epoch.follows(found.epoch)
            return found

        if self._spool is None:
            return newest().token
        with self._turns:
            position = self._spool.file.position(stream_partition)
        return newest_of(position, lambda: newest()[:2])[1]

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
        assert not self._results.is_telling, "on_delivery may send, and nothing else"
        return self._wait.poll(timeout_s)

    def flush(self, timeout_s: float = 130.0, *, to_disk: bool = False) -> None:
        """Wait until all records are acknowledged, and all calls of `on_delivery` are made.

        Before that, stream partitions that your last announcement omits end (WMK-6). So send all
        parts of an announcement before you call it.

        Args:
            timeout_s: The maximum time to wait.
            to_disk: It is enough that a record is in the spool (PUB-3). Then a process that is
                killed does not lose it. Requires a `spool`.

        Raises:
            DeliveryError: The time has passed, or a record failed, now or earlier. `undelivered`
                has the records. Exceptions of `on_delivery` are raised, too. Delivery continues in
                the background. With a spool, `RECORDS_IN_SPOOL` says that all records without an
                acknowledgement are in the file. Or an automatic heartbeat was not delivered
                (`HEARTBEAT_UNDELIVERED`).
        """
        self._results.check_may_wait()
        with self._turns:
            self._heartbeats.confirm_announcements()
        if to_disk:
            assert isinstance(self._queue, SpoolQueue), "a flush to the disk needs a spool"
            self._wait.flush_to_disk(self._queue, timeout_s)
        else:
            self._wait.flush(timeout_s)
        with self._turns:
            self._check_heartbeats()

    def undelivered(self) -> dict[Record, str]:
        """Return the records that are not acknowledged, with the reason. Changes come first.

        Send them again in this order. With a `transactional_id`, send them in one transaction.
        Announcements of the producer are included. Send them again, too. Records in the file of a
        spool are not included, because the producer sends them by itself.
        """
        with self._turns:
            return self._results.undelivered()

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
        assert self._results.transaction is None, "a transaction is delivered as one, or not at all"
        with self._turns:
            given = tuple(
                (name, value.encode() if isinstance(value, str) else value)
                for name, value in headers_of(headers)
            )
            set_aside(changes, given, self._kafka, self._bytes, self._results)

    def refresh_now(self) -> None:
        """Make the next control record check the number of Kafka partitions. Otherwise, it is
        checked once a minute.
        """
        self._control.refresh_now()

    def close(self, timeout_s: float = 130.0) -> None:
        """Flush, send the last automatic heartbeats, and close the client. A second call does
        nothing. Stream partitions that your last announcement omits end.

        The last heartbeat of a stream partition is at the newest reported position whose changes
        are acknowledged. If the thread of the heartbeats commits a transaction, `close` waits for
        it.

        Records without a result are reported to `on_delivery` as failed. Those in the file of a
        spool are not reported: the next producer with this spool sends them. After `close`, nothing
        can be sent, also not by `on_delivery`.

        Args:
            timeout_s: The maximum time to wait. Closing may take one second more.

        Raises:
            DeliveryError: As `flush` does, or the last heartbeat was not delivered. With a spool,
                `RECORDS_IN_SPOOL` also counts the records that `close` has moved there.
            SpoolError: The last heartbeat was refused, because the spool has lost records.
        """
        if self._closed:
            return
        assert not self._results.is_telling, "on_delivery may send, and nothing else"
        self._unwatch()
        self._closing.close(timeout_s)

    @property
    def _closed(self) -> bool:
        return self._closing.is_closed

    def _is_free(self) -> bool:
        return self._results.transaction is None or self._heartbeats.is_stopped

    def _check_heartbeats(self) -> None:
        """Raise the error of an automatic heartbeat, but not where it would end a transaction."""
        if self._results.transaction is None and not self._results.is_telling:
            self._heartbeats.check()

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


def _is_free(producer: weakref.ref[ChangeProducer]) -> Callable[[], bool]:
    """Whether no transaction is open. It does not keep the producer alive."""

    def is_free() -> bool:
        found = producer()
        return found is None or found._is_free()

    return is_free
