"""The results of the records of one producer, and the calls that report them (REC-17, PUB-5).

Kafka reports a result for each message. The result of a record is known when all its messages have
one, and in a transaction, when the transaction ends. Then the record is either acknowledged or
failed. `on_delivery` is called later, in a consistent state.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from connector.errors.producers import records_in_outbox, records_undelivered
from connector.kafka.sending import SendError, text_of
from connector.records.model import DataChange, Mutation, Record, time_of
from connector.watermarks.delivery import Delivery

if TYPE_CHECKING:
    from connector.errors import DeliveryError
    from connector.kafka.client import SafeProducer
    from connector.kafka.produce.outbox import OutboxQueue
    from connector.kafka.sending import SendQueue

OnDelivery = Callable[[Record, str | None], object]
"""Called with a record and None if it was acknowledged, or with the record and the error."""

Queue: TypeAlias = "SendQueue[Sent] | OutboxQueue"
"""The send queue of a producer."""

MAX_FAILED: Final = 100_000


@dataclass(slots=True)
class Sent:
    """A record in flight. A change is one message. A control record is one message for each Kafka
    partition.

    `is_ours`: the producer made it, for example an announcement. With `on_settled`, the producer
    sends it again by itself, so it is never `undelivered`. It is called with the error, or with an
    empty text.
    """

    record: Record
    delivery: Delivery
    copies: int
    on_delivery: OnDelivery | None = None
    is_ours: bool = False
    on_settled: Callable[[str], None] | None = None
    error: str = ""


@dataclass(slots=True)
class OpenTransaction:
    """An open transaction and its client. The results in `settled` count when it ends.

    `heartbeats` has the times of the last heartbeats before the transaction. With a `failure`, it
    cannot be committed. `is_unknown`: it may have been committed.
    """

    client: SafeProducer
    settled: list[Sent] = field(default_factory=list)
    heartbeats: list[tuple[Delivery, int]] = field(default_factory=list)
    failure: str = ""
    is_unknown: bool = False


class Results:
    """The delivery state of each stream partition, and the calls of `on_delivery` that are due.

    - `delivered` is the number of acknowledged records that the application sent.
    - `failed` is the number of records that are not delivered.
    - `transaction` is the open transaction.
    - `refused` is the record at which an outbox waits, with the error of Kafka.
    - `due` are the calls that are not made yet. `is_calling` means that one of them runs.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self._queue: Queue | None = None
        self.delivered = 0
        self.failed = 0
        self.transaction: OpenTransaction | None = None
        self.refused: tuple[Record, str] | None = None
        self.due: deque[tuple[OnDelivery, Record, str | None]] = deque()
        self.is_calling = False
        self._deliveries: dict[str, Delivery] = {}

    def watch(self, queue: Queue) -> None:
        """Use the queue that calls `answer`."""
        self._queue = queue

    def delivery(self, stream_partition: str) -> Delivery:
        delivery = self._deliveries.get(stream_partition)
        if delivery is None:
            delivery = self._deliveries[stream_partition] = Delivery()
        return delivery

    def answer(self, sent: Sent, error: SendError | None) -> None:
        """Register the result of one message of the record."""
        sent.copies -= 1
        if error is not None:
            sent.error = sent.error or text_of(error)
        if sent.copies:
            return
        if self.transaction is None:
            self.conclude(sent, sent.error)
        else:
            self.transaction.failure = self.transaction.failure or sent.error
            self.transaction.settled.append(sent)

    def conclude(self, sent: Sent, error: str) -> None:
        """Register the result of a record."""
        if sent.on_settled is not None:
            if not error:  # an equal record of the application may have failed
                self.failed += sent.delivery.acknowledged(sent.record)
            sent.on_settled(error)
        elif error:
            self.failed += sent.delivery.lost(sent.record, error)
        else:
            self.delivered += not sent.is_ours
            self.failed += sent.delivery.acknowledged(sent.record)
        if sent.on_delivery is not None:
            self.due.append((sent.on_delivery, sent.record, error or None))

    def stored_upto(self, number: int) -> None:
        """Register that all records of the outbox with smaller numbers are settled."""
        for delivery in self._deliveries.values():
            delivery.outbox.settled_below(number)

    def call(self) -> int:
        """Make the due calls of `on_delivery`, and return their number.

        It does nothing inside such a call, or in an open transaction. Call it only in a consistent
        state, because `on_delivery` may send or raise.
        """
        if self.is_calling or self.transaction is not None:
            return 0
        self.is_calling = True
        # Later calls are left for the next time, otherwise this loop might never end.
        due = len(self.due)
        try:
            for _ in range(due):
                on_delivery, record, error = self.due.popleft()
                on_delivery(record, error)
        finally:
            self.is_calling = False
        return due

    def check_may_wait(self) -> None:
        assert self.transaction is None, (
            "what is sent in a transaction is delivered when it is committed"
        )
        assert not self.is_calling, "on_delivery may send, and nothing else"

    def undelivered(self) -> dict[Record, str]:
        """Return the records that are not acknowledged, with the reason. Changes come first."""
        reasons = {
            record: reason
            for delivery in self._deliveries.values()
            for record, reason in delivery.failed.items()
        }
        if self.refused is not None:
            reasons.setdefault(*self.refused)
        for sent in self._in_flight():
            reasons.setdefault(sent.record, "not acknowledged yet")
        for sent in self.transaction.settled if self.transaction is not None else ():
            if sent.on_settled is None:
                reasons.setdefault(sent.record, "not committed yet")
        return {record: reasons[record] for record in sorted(reasons, key=_comes_after)}

    def is_in_flight(self) -> bool:
        """Return whether a record has no result yet. Automatic heartbeats do not count."""
        return any(True for _ in self._in_flight())

    def _in_flight(self) -> Iterator[Sent]:
        for sent in self._queue.items if self._queue is not None else ():
            if sent.on_settled is None:
                yield sent

    def forgotten(self, now: float) -> list[str]:
        """Return the stream partitions that send changes and make no claim (PUB-2)."""
        return sorted(
            name for name, delivery in self._deliveries.items() if delivery.watch.is_forgotten(now)
        )

    def knows(self, stream_partition: str) -> bool:
        return stream_partition in self._deliveries

    def is_refused(self, record: Record) -> bool:
        """Return whether an outbox waits at this record. Its estimate may have been lowered."""
        refused = None if self.refused is None else self.refused[0]
        if isinstance(refused, DataChange) and isinstance(record, DataChange):
            return (
                replace(refused, estimated_low_watermark=record.estimated_low_watermark) == record
            )
        return refused == record

    def failure_of(self, record: Record) -> str | None:
        if self.refused is not None and self.is_refused(record):
            return self.refused[1]
        return self.delivery(record.stream_partition).failed.get(record)

    def set_aside(self, change: DataChange) -> None:
        """Stop waiting for a failed change, because it is stored as a dead letter."""
        self.failed += self.delivery(change.stream_partition).forget_failure(change)

    def check_is_among_failed(self, record: Record) -> None:
        """Raises `DeliveryError` if the record has not failed before."""
        if record not in self.delivery(record.stream_partition).failed:
            raise self.not_delivered()

    def not_delivered(self) -> DeliveryError:
        """Return the error for the records that are not delivered."""
        assert self._queue is not None
        records, last_error = self.undelivered(), self._queue.last_error
        if not records:
            cause = last_error.removesuffix(".")
            return records_in_outbox(self.topic, self._queue.backlog, cause)
        reasons = Counter(records.values()).most_common(3)
        cause = "; ".join(f"{count} times: {reason}" for reason, count in reasons)
        cause = f"{cause}. {last_error}".strip().removesuffix(".")
        return records_undelivered(self.topic, len(records), cause)


def _comes_after(record: Record) -> tuple[int, int]:
    """Sort key: control records come after the changes that they may cover, in the order of their
    times.
    """
    return (0, 0) if isinstance(record, Mutation) else (1, time_of(record))
