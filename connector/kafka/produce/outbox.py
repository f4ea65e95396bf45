"""The outbox of a producer: each record is on disk before it is sent (PUB-3).

    put      writes the record to the file, and gives it to the client if it is the next one
    poll     reads the results of the client, deletes what is acknowledged, and goes on sending

Records are sent in the order of their numbers. After an error, sending goes back to the first
record that is not acknowledged, once the client has a result for each message. So a record is never
sent behind a later one without that one being sent again, too. A control record that claims
something is sent once all changes before it are acknowledged and deleted. There is no thread: each
call of the producer does what can be done without waiting.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from connector.errors import BrokerError, DeliveryError, QueueFullError, argument_invalid
from connector.errors.producers import outbox_full
from connector.kafka import client, topics
from connector.kafka.produce.outbox_file import (
    EVERYWHERE,
    Kind,
    OutboxFile,
    Row,
    Sync,
    headers_of,
    row_of,
)
from connector.kafka.produce.record_bytes import RecordBytes, TopicWatch
from connector.kafka.produce.results import OnDelivery, Results, Sent
from connector.kafka.sending import SendError, SendQueue, is_unknown, text_of
from connector.records.codec import ChangeRecord, Schemas, body_of, decode, frame
from connector.records.model import DataChange, Heartbeat, Mutation, Record, Truncate
from connector.reports.series import STORED, STORED_AGE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from connector.config.settings import KafkaConfig, RegistryConfig
    from connector.kafka.client import SafeProducer
    from connector.kafka.topics import TopicFacts
    from connector.kafka.transactions import HeaderList
    from connector.reports.series import Histogram, Series
    from connector.validation import Limits

LEAST_MAX_BYTES: Final = 100_000
READ_AT_ONCE: Final = 512
MAX_AHEAD: Final = 2_000
REMOVE_EVERY: Final = 1_000
RETRY_S: Final = 1.0
SLOW_S: Final = 0.5
"""After so long without an acknowledgement, the topic is verified before the next heartbeat."""
LONGEST_WAIT_S: Final = 0.25

_CLAIMS: Final = (Kind.HEARTBEAT, Kind.CHILD_PARTITIONS, Kind.AUTOMATIC_HEARTBEAT)
_COUNTED: Final = (Kind.CHANGE, Kind.TRUNCATION, Kind.HEARTBEAT, Kind.CHILD_PARTITIONS)
_CHANGES: Final = (Kind.CHANGE, Kind.TRUNCATION)


@dataclass(frozen=True, slots=True)
class Outbox:
    """Where a producer stores each record before it sends it. Raises `ConfigError`.

    - `path` is a file on a local disk. It belongs to one producer and one topic. `PATH.lock` is
      beside it.
    - `max_bytes` is the largest size of the file.
    - `sync`: with `normal`, a record survives SIGKILL once `send` has returned. With `full`, it
      survives a power loss, too, and each call of `send` or `send_many` waits for the disk.
    """

    path: str | os.PathLike[str]
    max_bytes: int = 4_000_000_000
    sync: Sync = "normal"

    def __post_init__(self) -> None:
        if "\0" in os.fspath(self.path):
            raise argument_invalid("outbox", self.path, "the path of a file")
        if self.max_bytes < LEAST_MAX_BYTES:
            raise argument_invalid("max_bytes", self.max_bytes, f"at least {LEAST_MAX_BYTES:,}")
        if self.sync not in ("normal", "full"):
            raise argument_invalid("sync", self.sync, "normal or full")


class OpenedOutbox:
    """An open outbox, and the facts of its topic: from Kafka, or from the file while no broker
    answers.
    """

    def __init__(self, outbox: Outbox, kafka: KafkaConfig, topic: str | TopicFacts) -> None:
        """Raises `OutboxError`, `TopicError`, and `BrokerError` if the file has no facts."""
        self.file = OutboxFile(Path(outbox.path), outbox.max_bytes, outbox.sync)
        self.is_verified = True
        try:
            self.file.check_topic(topic if isinstance(topic, str) else topic.topic)
            try:
                facts = topics.describe(kafka, topic) if isinstance(topic, str) else topic
            except BrokerError:
                if self.file.content is None:
                    raise
                facts, self.is_verified = self.file.content.topic, False
            else:
                self.file.bind(facts)
            self.facts = facts
        except BaseException:
            self.file.close()
            raise

    def record_bytes(self, registry: RegistryConfig | None, limits: Limits) -> RecordBytes:
        """Look up the schema. While the registry does not answer, the id in the file counts. Raises
        `BrokerError`.
        """
        assert self.file.content is not None
        schema_id = self.file.content.schema_id
        try:
            record_bytes = RecordBytes(self.facts, registry, limits)
        except BrokerError as error:
            if error.code != "REGISTRY_UNREACHABLE" or schema_id is None:
                raise
            return RecordBytes(self.facts, registry, limits, schema_id)
        self.file.store_schema_id(record_bytes.schema_id)
        return record_bytes


class _Callbacks:
    """The functions to call for records. Neighbours with the same function share a run."""

    def __init__(self) -> None:
        self._firsts = [0]
        self._values: list[OnDelivery | None] = [None]

    def add(self, number: int, on_delivery: OnDelivery | None) -> None:
        """Register a record. Numbers ascend."""
        if self._values[-1] != on_delivery:
            self._firsts.append(number)
            self._values.append(on_delivery)

    def callback_of(self, number: int) -> OnDelivery | None:
        if len(self._values) == 1:
            return self._values[0]
        return self._values[bisect_right(self._firsts, number) - 1]

    def forget_below(self, number: int) -> None:
        settled = bisect_right(self._firsts, number) - 1
        if settled > len(self._firsts) // 2:
            del self._firsts[:settled], self._values[:settled]


class _Arrivals:
    """When records were stored. A mark is a number, and the time before which no record with it or
    a larger one was stored. Marks are 0.1 s apart, or 1 % of the age of the first one, so there are
    few, and an age may be that much too high.
    """

    def __init__(self, number: int) -> None:
        self._marks = [(number, time.monotonic())]

    def add(self, number: int) -> None:
        """Register a record. Numbers ascend."""
        now, marks = time.monotonic(), self._marks
        if now - marks[-1][1] >= max(0.1, (now - marks[0][1]) / 100):
            marks.append((number, now))

    def age_of(self, number: int) -> float:
        """The age of a record, also while another thread calls the other methods."""
        return time.monotonic() - self._from(number)[0][1]

    def forget_below(self, number: int) -> None:
        self._marks = self._from(number)

    def _from(self, number: int) -> list[tuple[int, float]]:
        marks = self._marks
        return marks[max(0, bisect_right(marks, number, key=itemgetter(0)) - 1) :]


class OutboxQueue:
    """The send queue of a producer with an outbox. It has the methods of `SendQueue`."""

    stores = True
    items: Final[Sequence[Sent]] = ()
    """No record is in memory only."""

    def __init__(
        self,
        kafka: KafkaConfig,
        opened: OpenedOutbox,
        results: Results,
        record_bytes: RecordBytes,
        watch: TopicWatch,
    ) -> None:
        """Continue with the records of the file."""
        self._topic, self._results, self._file = opened.facts.topic, results, opened.file
        self._bytes, self._watch = record_bytes, watch
        if not opened.is_verified:
            watch.ask_again()
        self._queue: SendQueue[int] = SendQueue(_patient(kafka), opened.facts, self._answered)
        self._own_from = self._file.next  # earlier numbers are those of earlier processes
        self._next = self._file.first  # the next record to give to the client
        self._ahead: deque[Row] = deque()
        self._in_flight: dict[int, int] = {}  # number -> messages without a result
        self._open_changes = self._last_change = 0
        self._noted: dict[int, Row] = {}  # in flight: all but plain changes of this process
        self._repeated: set[int] = set()  # acknowledged, and sent again behind an earlier record
        self._callbacks = _Callbacks()
        self._arrivals = _Arrivals(self._file.first)
        self._acknowledged_at = 0.0
        self._delivered: dict[str, Heartbeat] = {}
        self._settled = 0
        self._must_go_back = self._must_verify = False
        self._alone_upto = self._alone = 0
        self._failure, self._retry_at = "", 0.0
        self._group: list[tuple[Sent, Row]] | None = None

    @property
    def client(self) -> SafeProducer:
        return self._queue.client

    @property
    def backlog(self) -> int:
        """The number of records that are not acknowledged."""
        return self._file.next - self._next + len(self._in_flight)

    def figures(self) -> dict[Series, float | Histogram]:
        """The values of its series (MET-1). Any thread may ask."""
        stored, oldest = max(0, self.backlog), next(iter(list(self._in_flight)), self._next)
        age_s = self._arrivals.age_of(oldest) if stored else 0.0
        return {**self._queue.figures(), STORED: stored, STORED_AGE: age_s}

    @property
    def last_error(self) -> str:
        return ". ".join(text for text in (self._failure, self._queue.last_error) if text)

    @property
    def may_claim(self) -> bool:
        """Whether a change may have an estimated low watermark: the times of the records of earlier
        processes are not known.
        """
        return self._file.first >= self._own_from

    def token(self, stream_partition: str) -> bytes | None:
        """Return the newest resume token that the file has."""
        return self._file.token(stream_partition)

    def store_position(self, position: Heartbeat) -> None:
        """Store a position of the application. All records before it are stored already."""
        failed = self._results.delivery(position.stream_partition).oldest_failed()
        if position.resume_token and (failed is None or failed > position.timestamp):
            self._file.store_position(position)

    # ── storing ───────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def together(self) -> Iterator[None]:
        """Store the records of the block in one transaction at its end. Raises as `put` does."""
        self._group = []
        try:
            yield
        finally:
            group, self._group = self._group, None
            if group:
                self._store(group, blocks=True)

    def put(
        self,
        item: Sent,
        key: bytes,
        value: bytes,
        kafka_partition: int,
        headers: HeaderList,
        *,
        blocks: bool = True,
    ) -> None:
        """Store a record, and send it if it is the next one. Blocks while the outbox is full.

        Raises `QueueFullError` if it stays full. Then the record has failed. Without `blocks`, a
        full outbox raises `BufferError`.
        """
        number = self._file.next + (0 if self._group is None else len(self._group))
        row = row_of(number, _kind_of(item), kafka_partition, key, value, headers)
        if self._group is not None:
            self._group.append((item, row))
        else:
            self._store([(item, row)], blocks=blocks)

    def _store(self, group: list[tuple[Sent, Row]], *, blocks: bool) -> None:
        rows = [row for _, row in group]
        is_next = self._next + len(self._ahead) == rows[0].number
        deadline = 0.0
        while cause := self._file.append(rows):
            if not blocks:
                raise BufferError
            now = time.monotonic()
            deadline = deadline or now + client.QUEUE_TIMEOUT_S
            if now > deadline:
                raise self._full(group, cause)
            self.poll(0.05)
            is_next = self._next + len(self._ahead) == rows[0].number
        for item, row in group:
            if row.kind in _CHANGES:
                assert isinstance(item.record, Mutation)
                item.delivery.stored(row.number, item.record.commit_timestamp)
            self._callbacks.add(row.number, item.on_delivery)
            self._arrivals.add(row.number)
            if row.kind == Kind.HEARTBEAT:
                assert isinstance(item.record, Heartbeat)
                self.store_position(item.record)
        if is_next and len(self._ahead) + len(rows) <= MAX_AHEAD:
            self._ahead.extend(rows)
        self._send()
        if self._settled >= REMOVE_EVERY:
            self._remove()

    def _full(self, group: list[tuple[Sent, Row]], cause: str) -> QueueFullError:
        for item, _ in group:
            self._results.conclude(item, cause)
        cause = f"{cause}. It has {self.backlog:,} records. {self.last_error}".removesuffix(". ")
        return outbox_full(str(self._file.path), len(group), cause)

    # ── sending ───────────────────────────────────────────────────────────────────────────────────

    def poll(self, timeout_s: float, *, push: bool = False) -> None:
        """Read the results of the client, delete what is acknowledged, and go on sending. `push`
        sends waiting batches at once. Raises `TopicError` if the topic was created again.
        """
        push, in_flight = push and bool(self._queue.items), len(self._in_flight)
        self._queue.poll(min(timeout_s, LONGEST_WAIT_S), push=push)
        now = time.monotonic()
        if len(self._in_flight) < in_flight:
            self._acknowledged_at = now
        elif in_flight and now - self._acknowledged_at > SLOW_S:
            self._must_verify = True  # the topic may have been deleted and created meanwhile
        if self._settled and (timeout_s or self._settled >= REMOVE_EVERY):
            self._remove()
        self._send()

    def _send(self) -> None:
        """Give records to the client in their order, without waiting."""
        if self._must_go_back:
            if self._queue.items:
                return
            self._go_back()
        if self._retry_at and time.monotonic() < self._retry_at:
            return
        if not self._watch.poll():
            return
        while self._next < self._file.next and not self._must_go_back:
            is_alone = self._next <= self._alone_upto
            if is_alone and self._in_flight:
                return
            if not self._ahead:
                self._ahead.extend(self._file.read(self._next, READ_AT_ONCE))
            row = self._ahead[0]
            if row.kind in _CLAIMS and not self._is_true():
                return
            self._alone = row.number if is_alone else 0
            if not self._offer(row):
                return
            self._ahead.popleft()
            self._next = row.number + 1

    def _offer(self, row: Row) -> bool:
        """Give the messages of a record to the client. Returns False if it does not take all."""
        number, everywhere = row.number, row.kafka_partition == EVERYWHERE
        kafka_partitions = (
            range(self._bytes.kafka_partitions) if everywhere else (row.kafka_partition,)
        )
        if not self._in_flight:
            self._acknowledged_at = time.monotonic()
        self._in_flight[number] = len(kafka_partitions)
        if row.kind in _CHANGES:
            self._open_changes += 1
            self._last_change = number
        if (
            row.kind != Kind.CHANGE
            or number < self._own_from
            or self._callbacks.callback_of(number)
        ):
            self._noted[number] = row
        headers = headers_of(row)
        for kafka_partition in kafka_partitions:
            try:
                self._queue.put(number, row.key, row.value, kafka_partition, headers, blocks=False)
            except BufferError:
                if everywhere and kafka_partition:
                    self._must_go_back = True  # it is sent again, to all of them
                else:
                    self._open_changes -= row.kind in _CHANGES
                    del self._in_flight[number]
                return False
            except DeliveryError:
                return False  # `_answered` has the error
        return True

    def _is_true(self) -> bool:
        """Whether all changes before a control record are acknowledged and deleted, and the topic
        is the one that has them: after an error or a pause, Kafka is asked again.
        """
        if self._open_changes:
            return False
        if self._queue.last_error or self._must_verify:
            self._queue.forget_error()
            self._must_verify = False
            self._watch.ask_again()
        return self._watch.poll() and self._remove() and self._file.first > self._last_change

    def _go_back(self) -> None:
        """Send again from the first record that is not acknowledged."""
        first = next(iter(self._in_flight), self._next)
        self._repeated.update(
            number for number in range(first, self._next) if number not in self._in_flight
        )
        self._in_flight.clear()
        self._noted.clear()
        self._ahead.clear()
        self._open_changes = self._last_change = 0
        self._next, self._must_go_back = first, False

    # ── results ───────────────────────────────────────────────────────────────────────────────────

    def _answered(self, number: int, error: SendError | None) -> None:
        if error is not None:
            self._failed(number, error)
            return
        copies = self._in_flight[number]
        if copies > 1:
            self._in_flight[number] = copies - 1
            return
        del self._in_flight[number]
        self._settled += 1
        row = self._noted.pop(number, None)
        self._open_changes -= row is None or row.kind in _CHANGES
        if number in self._repeated:
            self._repeated.remove(number)
        elif row is None:
            self._results.delivered += 1
        else:
            self._acknowledged(row)
        if number == self._alone:
            self._results.refused = None

    def _acknowledged(self, row: Row) -> None:
        self._results.delivered += row.number >= self._own_from and row.kind in _COUNTED
        on_delivery = self._callbacks.callback_of(row.number)
        if on_delivery is None and row.kind in (*_CHANGES, Kind.ANNOUNCEMENT):
            return
        record = _record_of(row)
        if on_delivery is not None:
            self._results.due.append((on_delivery, record, None))
        if isinstance(record, Heartbeat) and record.resume_token:
            self._delivered[record.stream_partition] = record

    def _failed(self, number: int, error: SendError) -> None:
        self._must_go_back = self._must_verify = True
        if is_unknown(error):
            return
        self._failure, self._retry_at = text_of(error), time.monotonic() + RETRY_S
        assert not isinstance(error, str)
        if error.code() not in client.PERMANENT:
            return
        if number == self._alone:
            # Nothing is sent before it: the order stays, and no heartbeat passes it.
            record = _record_of(self._file.read(number, 1)[0])
            self._results.refused = record, text_of(error)
        else:
            self._retry_at = 0.0
        # Kafka refuses whole batches. These records are sent again one by one.
        self._alone_upto = max(self._alone_upto, number)

    def skip_refused(self) -> None:
        """Delete the record that Kafka refuses, and go on behind it."""
        assert self._results.refused is not None
        self._queue.purge("it was set aside")
        self._go_back()
        self._next += 1
        self._file.remove_below(self._next)
        self._results.refused, self._retry_at = None, 0.0
        self._results.stored_upto(self._next)

    def _remove(self) -> bool:
        """Delete the records that are acknowledged. Returns False if the disk is full."""
        first = next(iter(self._in_flight), self._next)
        if first > self._file.first or self._delivered:
            if not self._file.remove_below(first, self._delivered.values()):
                return False
            self._delivered.clear()
            self._callbacks.forget_below(first)
            self._arrivals.forget_below(first)
            self._results.stored_upto(first)
            self._failure = ""
        self._settled = 0
        return True

    def close(self, timeout_s: float, reason: str) -> None:
        """Close the client and the file. The records that are not acknowledged stay there."""
        try:
            self._queue.close(timeout_s, reason)
            self._remove()
        finally:
            self._file.close()


def _patient(kafka: KafkaConfig) -> KafkaConfig:
    """The client retries a record for ever, so that the order stays."""
    others = {
        name: value for name, value in kafka.settings.items() if name != "delivery.timeout.ms"
    }
    return replace(kafka, settings={**others, "message.timeout.ms": "0"})


def _kind_of(item: Sent) -> Kind:
    match item.record:
        case DataChange():
            return Kind.CHANGE
        case Truncate():
            return Kind.TRUNCATION
        case Heartbeat():
            return Kind.AUTOMATIC_HEARTBEAT if item.is_ours else Kind.HEARTBEAT
        case _:
            return Kind.ANNOUNCEMENT if item.is_ours else Kind.CHILD_PARTITIONS


def _record_of(row: Row) -> Record:
    decoded = decode(frame(body_of(row.value), None), Schemas())
    assert isinstance(decoded, ChangeRecord), "a producer of this release has written it"
    return decoded.record
