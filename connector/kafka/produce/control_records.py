"""Sends heartbeats, child partitions and announcements: each to every Kafka partition (REC-3,
REC-18, WMK-6). Each one has the epoch of the producer as a header (PUB-4).

A control record is sent once it is true. An announcement makes no claim, so it does not wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaException

from connector.clock import now_us
from connector.errors import BrokerError, DeliveryError, ErrorCode, InvalidChangeError
from connector.kafka import client, topics
from connector.kafka.produce.results import OnDelivery, Results, Sent
from connector.records.model import CONTROL_KEY, ChildPartitions, Heartbeat, Record, Rule
from connector.watermarks.lineage import Announcements
from connector.watermarks.producer_epoch import ProducerEpoch

if TYPE_CHECKING:
    from connector.config.settings import KafkaConfig
    from connector.kafka.produce.record_bytes import RecordBytes
    from connector.kafka.produce.send_queue import HeaderList, SendQueue
    from connector.kafka.topics import TopicFacts
    from connector.watermarks.delivery import Delivery

REFRESH_S: Final = 60.0


class ControlRecords:
    """The control records of one producer.

    - `announced` is the number of announcements that were sent.
    - `announcements` is the known lineage. A transaction that is aborted restores it.
    - `epoch` is that of the producer.
    - The methods of the timer, `send_automatic` and `repeat_announcements`, never wait. Their
      records are never `undelivered`.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        facts: TopicFacts,
        queue: SendQueue[Sent],
        results: Results,
        record_bytes: RecordBytes,
        *,
        announces: bool,
        wait_s: float,
    ) -> None:
        self._kafka, self._facts = kafka, facts
        self._queue, self._results, self._bytes = queue, results, record_bytes
        self._announces, self._wait_s = announces, wait_s
        self._names_are_given = False  # the application has announced stream partitions
        self._refreshed_at = time.monotonic()
        self.announced = 0
        self.announcements = Announcements(_retention_us(facts))
        self.epoch = ProducerEpoch(now_us())

    def send(
        self,
        record: Heartbeat | ChildPartitions,
        headers: HeaderList,
        on_delivery: OnDelivery | None,
    ) -> None:
        """Wait until the record is true, and send it. Raises as `ChangeProducer.send` does."""
        self._queue.check_may_claim()
        delivery = self._results.delivery(record.stream_partition)
        ended: set[str] = set()
        if isinstance(record, Heartbeat):
            self._wait_until_true(delivery, record, record.timestamp)
        else:
            ended = self.announcements.ended_by(record)
            for name in sorted({record.stream_partition, *ended}):
                self._wait_until_true(self._results.delivery(name), record, None)
        self.use(self.look())
        headers = self.epoch.on(headers)
        value = self._bytes.checked(record, CONTROL_KEY, headers)
        self.announce(record)
        # From here on, a reader may read it.
        if isinstance(record, ChildPartitions):
            self.announcements.sent(record, now_us())
            self._names_are_given = self._names_are_given or bool(record.children)
            for name in ended:
                self._results.delivery(name).watch.claimed()
        else:
            self._promise(delivery, record)
        self._send_everywhere(
            Sent(record, delivery, self._bytes.kafka_partitions, on_delivery), value, headers
        )

    def announce(self, record: Record) -> None:
        """Send the announcements that are due before a record. They make no claim, so they do not
        wait.
        """
        if not self._announces:
            return
        for announcement in self.announcements.due(record, now_us()):
            self.use(self.look())
            headers = self.epoch.on([])
            value = self._bytes.checked(announcement, CONTROL_KEY, headers)
            self.announced += 1
            # The failure is in `undelivered`, and the record itself may still be queued.
            with suppress(DeliveryError):
                delivery = self._results.delivery(announcement.stream_partition)
                self._send_everywhere(
                    Sent(announcement, delivery, self._bytes.kafka_partitions, is_ours=True),
                    value,
                    headers,
                )

    def send_automatic(self, heartbeat: Heartbeat, on_settled: Callable[[str], None]) -> bool:
        """Send a heartbeat that is true. Do not wait.

        Returns False if the queue is full. Then the heartbeat is sent again at another time.
        """
        delivery = self._results.delivery(heartbeat.stream_partition)
        value = self._bytes.checked(heartbeat, CONTROL_KEY, self.epoch.on([]))
        due = self.announcements.due(heartbeat, now_us(), by_timer=True) if self._announces else []
        if not self._repeat(due):
            return False
        self._promise(delivery, heartbeat)
        sent = Sent(heartbeat, delivery, self._bytes.kafka_partitions, None, True, on_settled)
        return self._send_everywhere_now(sent, value)

    def repeat_announcements(self) -> bool:
        """Announce all roots again. Do not wait. Returns False if the queue is full."""
        return not self._announces or self._repeat(self.announcements.repeated(now_us()))

    def complete(self, after: int = 0) -> bool:
        """End what the announcements of the application omit (WMK-6). Returns whether they must be
        announced again. `after` is as for `Announcements.complete`.
        """
        return self._announces and self.announcements.complete(now_us(), after)

    def check_is_live(self, stream_partition: str) -> None:
        """Raises `InvalidChangeError` if the stream partition has ended, or if it must be announced
        before its position can be reported.
        """
        if self.announcements.has_ended(stream_partition):
            raise InvalidChangeError(
                Rule.STREAM_PARTITION,
                "stream_partition",
                "live, but it has ended",
                stream_partition,
                "Report the positions of its children",
            )
        if self.announcements.knows(stream_partition):
            return
        if self._names_are_given if self._announces else not self._results.knows(stream_partition):
            raise InvalidChangeError(
                Rule.STREAM_PARTITION,
                "stream_partition",
                "announced, or the stream partition of a record that was sent",
                stream_partition,
                "Check the name, or send child partitions that announce it first",
            )

    def refresh_now(self) -> None:
        """Make the next control record check the number of Kafka partitions."""
        self._refreshed_at = 0.0

    def look(self) -> TopicFacts | None:
        """Once a minute, ask for the number of Kafka partitions, because control records must go to
        new ones, too. It waits for the brokers.

        Raises `TopicError` if the topic was deleted and created again.
        """
        now = time.monotonic()
        if self._refreshed_at and now - self._refreshed_at < REFRESH_S:
            return None
        if self._queue.is_spooling:
            return None
        self._refreshed_at = now
        try:
            # With a spool, records must not wait long for a broker.
            admin = client.admin(self._kafka, timeout_s=1.0) if self._queue.has_spool else None
            facts = topics.describe(self._kafka, self._facts.topic, admin)
        except BrokerError:
            return None  # no broker answers now; records wait in the queue
        topics.check_identity(self._facts.topic_id, facts)
        if facts.kafka_partitions != self._bytes.kafka_partitions:
            # The client caches the topic's metadata, and refuses Kafka partitions that it does not
            # know.
            with suppress(KafkaException):
                self._queue.client.list_topics(self._facts.topic, timeout=client.REACH_TIMEOUT_S)
        return facts

    def use(self, facts: TopicFacts | None) -> None:
        """Use the result of `look`, which may be older than that of another thread. A topic never
        loses Kafka partitions.
        """
        if facts is not None and facts.kafka_partitions > self._bytes.kafka_partitions:
            # The new Kafka partitions have no announcements.
            self.announcements.again_soon()
            self._bytes.kafka_partitions = facts.kafka_partitions

    def _promise(self, delivery: Delivery, heartbeat: Heartbeat) -> None:
        delivery.watch.claimed()
        if heartbeat.timestamp > delivery.promised:
            if self._results.transaction is not None:
                self._results.transaction.promised.append((delivery, delivery.promised))
            delivery.promised = heartbeat.timestamp

    def _repeat(self, announcements: list[ChildPartitions]) -> bool:
        for announcement in announcements:
            value = self._bytes.checked(announcement, CONTROL_KEY, self.epoch.on([]))
            self.announced += 1
            delivery = self._results.delivery(announcement.stream_partition)
            copies = self._bytes.kafka_partitions
            sent = Sent(announcement, delivery, copies, None, True, self._announced)
            if not self._send_everywhere_now(sent, value):
                self.announcements.again_soon()
                return False
        return True

    def _announced(self, error: str) -> None:
        if error:
            self.announcements.again_soon()

    def _send_everywhere_now(self, sent: Sent, value: bytes) -> bool:
        """Send without waiting. Returns False if the queue is full."""
        kafka_partitions, headers = sent.copies, self.epoch.on([])
        for kafka_partition in range(kafka_partitions):
            try:
                self._queue.put(sent, CONTROL_KEY, value, kafka_partition, headers, waits=False)
            except BufferError:
                # What was queued is true, and its result does not matter.
                sent.copies -= kafka_partitions - kafka_partition
                sent.on_settled = _ignore
                return False
            except DeliveryError as error:
                for _ in range(kafka_partition + 1, kafka_partitions):
                    self._results.answer(sent, error.cause)
                return True  # `on_settled` has the error
        return True

    def _send_everywhere(self, sent: Sent, value: bytes, headers: HeaderList) -> None:
        if self._queue.put_everywhere(sent, CONTROL_KEY, value, headers):
            return
        kafka_partitions = sent.copies
        for kafka_partition in range(kafka_partitions):
            try:
                self._queue.put(sent, CONTROL_KEY, value, kafka_partition, headers)
            except DeliveryError as error:
                for _ in range(kafka_partition + 1, kafka_partitions):
                    self._results.answer(sent, error.cause)
                raise

    def _wait_until_true(
        self, delivery: Delivery, record: Heartbeat | ChildPartitions, upto: int | None
    ) -> None:
        """Wait until the changes that a control record covers are acknowledged (REC-18).

        These are the changes up to `upto`. None: all changes.
        """
        what = f"A heartbeat at {upto}" if upto else "Child partitions"
        deadline = time.monotonic() + self._wait_s
        while True:
            failed, oldest = delivery.oldest_failed(), delivery.oldest_open()
            # A record in flight may be the failed one, sent again.
            waits = self._results.transaction is None and delivery.under_way
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
            # In a transaction, it is delivered together with the changes that it covers. But a
            # release is sent by another client (WRS-15).
            release = min(delivery.held, default=None)
            is_held = release is not None and (upto is None or release <= upto)
            if not is_held and (
                self._results.transaction is not None
                or self._queue.is_spooling  # it waits in the spool
                or oldest is None
                or (upto is not None and oldest > upto)
            ):
                return
            if time.monotonic() > deadline:
                waited = f"after {self._wait_s:g} s. {self._queue.complaint}".strip()
                raise DeliveryError(
                    ErrorCode.CLAIM_NOT_YET_TRUE,
                    f"{what} of stream partition {record.stream_partition} cannot be sent yet",
                    f"{delivery.under_way} changes and {len(delivery.held)} releases are not"
                    f" acknowledged {waited}",
                    "Check the brokers, then send it again",
                    undelivered=delivery.under_way,
                )
            self._queue.serve(0.05, push=True)


def _ignore(_error: str) -> None:
    pass


def _retention_us(facts: TopicFacts) -> int:
    """Return the topic's retention (µs). For unlimited retention, return the maximum of a change
    topic.
    """
    return (facts.retention_ms if facts.retention_ms >= 0 else topics.MAX_RETENTION_S * 1000) * 1000
