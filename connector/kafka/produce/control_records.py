"""Sends heartbeats, child partitions, announcements and truncations: each to every Kafka partition
(REC-3, REC-18, WMK-6, EVO-13). Each one has the epoch of the producer as a header (PUB-4).

A control record is sent once it is true. An announcement makes no claim, so it does not wait. Nor
does a truncation, which counts as a change in flight until all its copies are acknowledged. A
release that another client sends in a stream partition of the producer counts as a change in
flight: until it is acknowledged, no heartbeat is at or above its commit timestamp (WRS-15).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import KafkaException

from connector.clock import now_us
from connector.errors import DeliveryError, InvalidChangeError
from connector.errors.producers import claim_not_true
from connector.errors.write_streams import producer_without_partition
from connector.kafka import client, topics
from connector.kafka.produce.outbox_file import EVERYWHERE
from connector.kafka.produce.results import OnDelivery, Results, Sent
from connector.records.model import (
    CONTROL_KEY,
    ChildPartitions,
    Heartbeat,
    Record,
    Rule,
    Truncate,
)
from connector.watermarks.lineage import Announcements
from connector.watermarks.producer_epoch import ProducerEpoch
from connector.write_streams.rules import release_timestamp

if TYPE_CHECKING:
    from connector.kafka.produce.record_bytes import RecordBytes, TopicWatch
    from connector.kafka.produce.results import Queue
    from connector.kafka.topics import TopicFacts
    from connector.kafka.transactions import HeaderList
    from connector.watermarks.delivery import Delivery


class HeldRelease(NamedTuple):
    """The stream partition and the commit timestamp (µs) of a release, and its headers."""

    stream_partition: str
    commit_timestamp: int
    headers: HeaderList


class ControlRecords:
    """The control records of one producer.

    - `announced` is the number of announcements that were sent.
    - `announcements` is the known lineage. A transaction that is aborted restores it.
    - `epoch` is that of the producer.
    - `send_automatic` and `repeat_announcements` never wait. Their records are never `undelivered`.
    """

    def __init__(
        self,
        facts: TopicFacts,
        queue: Queue,
        results: Results,
        record_bytes: RecordBytes,
        watch: TopicWatch,
        *,
        announces: bool,
    ) -> None:
        self._topic, self._announces = facts.topic, announces
        self._queue, self._results = queue, results
        self._bytes, self._watch = record_bytes, watch
        self._names_are_given = False  # the application has announced stream partitions
        self._release_lock = threading.Lock()  # a release may be held in another thread
        self.announced = 0
        self.announcements = Announcements(topics.retention_us(facts))
        self.epoch = ProducerEpoch(now_us())

    def send(
        self,
        record: Heartbeat | ChildPartitions,
        headers: HeaderList,
        on_delivery: OnDelivery | None,
    ) -> None:
        """Wait until the record is true, and send it. Raises as `ChangeProducer.send` does."""
        self.refresh()
        delivery = self._results.delivery(record.stream_partition)
        headers = self.epoch.on(headers)
        value = self._bytes.checked(record, CONTROL_KEY, headers)
        while True:
            ended: set[str] = set()
            if isinstance(record, Heartbeat):
                self._wait_until_true(delivery, record, record.timestamp)
            else:
                ended = self.announcements.ended_by(record)
                for name in sorted({record.stream_partition, *ended}):
                    self._wait_until_true(self._results.delivery(name), record, None)
            self.announce(record)
            if self._claim(record, delivery, ended):
                break
        # From here on, a reader may read it.
        self._send_everywhere(
            Sent(record, delivery, self._bytes.kafka_partitions, on_delivery), value, headers
        )

    def truncate(
        self, record: Truncate, headers: HeaderList, on_delivery: OnDelivery | None
    ) -> None:
        """Send a truncation. Raises as `ChangeProducer.send` does."""
        self.refresh()
        delivery = self._results.delivery(record.stream_partition)
        delivery.check_is_new(record)
        headers = self.epoch.on(headers)
        value = self._bytes.checked(record, CONTROL_KEY, headers)
        self.announce(record)
        self._results.failed += delivery.sent(record)
        if delivery.watch.since is None:
            delivery.watch.changed(record.commit_timestamp, time.monotonic)
        sent = Sent(record, delivery, self._bytes.kafka_partitions, on_delivery)
        self._send_everywhere(sent, value, headers)

    def announce(self, record: Record) -> None:
        """Send the announcements that are due before a record. They make no claim, so they do not
        wait.
        """
        if not self._announces:
            return
        for announcement in self.announcements.due(record, now_us()):
            # The failure is in `undelivered`, and the record itself may still be queued.
            with suppress(DeliveryError):
                self._send_announcement(announcement, blocks=True)

    def send_automatic(self, heartbeat: Heartbeat, on_settled: Callable[[str], None]) -> bool:
        """Send a heartbeat that is true. Do not wait.

        Returns False if the queue is full, or if a release is held meanwhile. Then the heartbeat is
        sent at another time.
        """
        delivery = self._results.delivery(heartbeat.stream_partition)
        value = self._bytes.checked(heartbeat, CONTROL_KEY, self.epoch.on([]))
        due = (
            self.announcements.due(heartbeat, now_us(), is_automatic=True)
            if self._announces
            else []
        )
        if not self._repeat(due):
            return False
        if not self._claim(heartbeat, delivery, set()):
            return False
        sent = Sent(heartbeat, delivery, self._bytes.kafka_partitions, None, True, on_settled)
        return self._send_everywhere(sent, value, self.epoch.on([]), blocks=False)

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

    def refresh(self) -> None:
        """Use the newest answer about the topic, because control records must go to new Kafka
        partitions, too. Raises `TopicError` if the topic was deleted and created again.
        """
        self._watch.poll()
        if self._watch.kafka_partitions > self._bytes.kafka_partitions:
            # The client refuses Kafka partitions that it does not know. The new ones have no
            # announcements.
            with suppress(KafkaException):
                self._queue.client.list_topics(self._topic, timeout=client.REACH_TIMEOUT_S)
            self.announcements.again_soon()
            self._bytes.kafka_partitions = self._watch.kafka_partitions

    def hold(self) -> HeldRelease:
        """Choose the commit timestamp of a release in the first live stream partition, and hold the
        heartbeats at or above it. It may be called in another thread.

        Raises `WriteStreamError` if there is no live stream partition.
        """
        with self._release_lock:
            name = next(iter(self.announcements.live()), None)
            if name is None:
                raise producer_without_partition()
            delivery = self._results.delivery(name)
            time = release_timestamp(
                now_us(), max(delivery.heartbeat_at, delivery.reached), delivery.last_release
            )
            delivery.last_release = time
            delivery.held |= {time}
        return HeldRelease(name, time, self.epoch.on([]))

    def release(self, release: HeldRelease) -> None:
        """Let the heartbeats go on."""
        delivery = self._results.delivery(release.stream_partition)
        with self._release_lock:
            delivery.held -= {release.commit_timestamp}

    def _claim(
        self, record: Heartbeat | ChildPartitions, delivery: Delivery, ended: set[str]
    ) -> bool:
        """Register what a record claims. Returns False if another thread holds a release that the
        record would pass.
        """
        with self._release_lock:
            if isinstance(record, Heartbeat):
                if any(time <= record.timestamp for time in delivery.held):
                    return False
                delivery.watch.claimed()
                if record.timestamp > delivery.heartbeat_at:
                    if (transaction := self._results.transaction) is not None:
                        transaction.heartbeats.append((delivery, delivery.heartbeat_at))
                    delivery.heartbeat_at = record.timestamp
                return True
            deliveries = [self._results.delivery(name) for name in ended]
            if any(other.held for other in (delivery, *deliveries)):
                return False
            self.announcements.sent(record, now_us())
            self._names_are_given = self._names_are_given or bool(record.children)
            for other in deliveries:
                other.watch.claimed()
        return True

    def _repeat(self, announcements: list[ChildPartitions]) -> bool:
        for announcement in announcements:
            if not self._send_announcement(announcement, blocks=False):
                self.announcements.again_soon()
                return False
        return True

    def _send_announcement(self, announcement: ChildPartitions, *, blocks: bool) -> bool:
        headers = self.epoch.on([])
        value = self._bytes.checked(announcement, CONTROL_KEY, headers)
        self.announced += 1
        sent = Sent(
            announcement,
            self._results.delivery(announcement.stream_partition),
            self._bytes.kafka_partitions,
            is_ours=True,
            on_settled=None if blocks else self._announced,
        )
        return self._send_everywhere(sent, value, headers, blocks=blocks)

    def _announced(self, error: str) -> None:
        if error:
            self.announcements.again_soon()

    def _send_everywhere(
        self, sent: Sent, value: bytes, headers: HeaderList, *, blocks: bool = True
    ) -> bool:
        """Queue a message for each Kafka partition. Without `blocks`, return False if the queue is
        full, and leave an error to `on_settled`.
        """
        kafka_partitions = self._targets(sent)
        for index, kafka_partition in enumerate(kafka_partitions):
            try:
                self._queue.put(sent, CONTROL_KEY, value, kafka_partition, headers, blocks=blocks)
            except BufferError:
                # What was queued is true, and its result does not matter.
                sent.copies -= len(kafka_partitions) - index
                sent.on_settled = lambda _error: None
                return False
            except DeliveryError as error:
                for _ in kafka_partitions[index + 1 :]:
                    self._results.answer(sent, error.cause)
                if blocks:
                    raise
                break
        return True

    def _targets(self, sent: Sent) -> Sequence[int]:
        return (EVERYWHERE,) if self._queue.stores else range(sent.copies)

    def _wait_until_true(
        self, delivery: Delivery, record: Heartbeat | ChildPartitions, upto: int | None
    ) -> None:
        """Wait until the changes that a control record covers are acknowledged (REC-18).

        These are the changes up to `upto`. None: all changes.
        """
        what = f"A heartbeat at {upto}" if upto else "Child partitions"
        deadline = time.monotonic() + client.QUEUE_TIMEOUT_S
        while True:
            failed, oldest = delivery.oldest_failed(), delivery.oldest_open()
            # A record in flight may be the failed one, sent again.
            waits = self._results.transaction is None and delivery.under_way
            if failed is not None and (upto is None or failed <= upto) and not waits:
                reason = next(iter(delivery.failed.values()))
                raise claim_not_true(
                    what,
                    record.stream_partition,
                    len(delivery.failed),
                    f"A change with commit timestamp {failed} was not delivered: {reason}",
                )
            # In a transaction, it is delivered together with the changes that it covers. But a
            # release is sent by another client (WRS-15).
            release = min(delivery.held, default=None)
            is_held = release is not None and (upto is None or release <= upto)
            if not is_held and (
                self._results.transaction is not None
                or self._queue.stores  # it waits in the outbox
                or oldest is None
                or (upto is not None and oldest > upto)
            ):
                return
            if time.monotonic() > deadline:
                waited = f"after {client.QUEUE_TIMEOUT_S:g} s. {self._queue.last_error}".strip()
                raise claim_not_true(
                    what,
                    record.stream_partition,
                    delivery.under_way,
                    f"{delivery.under_way} changes and {len(delivery.held)} releases are not"
                    f" acknowledged {waited}",
                )
            self._queue.poll(0.05, push=True)
