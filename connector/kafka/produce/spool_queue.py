"""The send queue of a producer with a spool (PUB-3).

While Kafka answers, records go to the client as without a spool. If one is not acknowledged in
time, all records without a result move to the spool, in their order, and all later ones follow.
The client keeps what it has, so its retries go on in order, and a record that it delivers leaves
the spool. When the client has a result for each of its records, those of the spool are sent,
beginning with the first one that is not settled. So a record is never sent behind a later one
without that one being sent again, too. When all of them are sent, records go to the client again.

Methods are called in a turn of the producer, except `tick`, which takes a turn only if no call
runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from itertools import dropwhile
from typing import TYPE_CHECKING, Any, Final, Literal

from confluent_kafka import KafkaError, KafkaException

from connector.errors import (
    ConnectorError,
    DeliveryError,
    ErrorCode,
    SpoolError,
    SpoolFullError,
)
from connector.kafka.produce.heartbeats import Timer
from connector.kafka.produce.results import Results, Sent
from connector.kafka.produce.send_queue import POLL_EVERY, HeaderList, SendQueue
from connector.kafka.produce.spool_client import ClientQueue, Entry, InMemory
from connector.kafka.produce.spool_file import SpoolFile, losses_text
from connector.kafka.produce.spool_rows import Rows
from connector.kafka.produce.spool_sender import SpoolSender
from connector.kafka.produce.spool_writer import SpoolWriter
from connector.records.model import Heartbeat
from connector.records.spooled import EVERYWHERE, SpooledRecord, spooled, unpack_headers

if TYPE_CHECKING:
    from connector.config.settings import KafkaConfig
    from connector.kafka.produce.turns import Turns
    from connector.kafka.topics import TopicFacts

MAX_BUFFERED: Final = 100_000
COMMIT_EVERY_S: Final = 0.05
LONGEST_WAIT_S: Final = 0.25
JOIN_S: Final = 10.0

WhenFull = Literal["block", "raise"]


class SpoolQueue(SendQueue[Sent]):
    """The send queue with a spool. It has the methods of `SendQueue`.

    - `is_spooling`: records go to the spool now.
    - `is_verified` is False until the topic is known to be that of the spool. Until then, nothing
      is sent from the spool.
    - `on_trip` is called when records begin to go to the spool. It has Kafka asked again for the
      topic. None: the topic is not asked for.
    - `trouble` is the error that each call raises.
    """

    has_spool = True

    def __init__(
        self,
        kafka: KafkaConfig,
        facts: TopicFacts,
        results: Results,
        file: SpoolFile,
        turns: Turns,
        *,
        kafka_partitions: Callable[[], int],
        queue_timeout_s: float,
        max_bytes: int,
        after_s: float,
        when_full: WhenFull,
    ) -> None:
        """Continue with the records of the file. Raises `SpoolError`."""
        self._topic, self._results, self._file, self._turns = facts.topic, results, file, turns
        self._queue_timeout_s = queue_timeout_s
        self._max_bytes, self._after_s, self._when_full = max_bytes, after_s, when_full
        self.is_verified = True
        self.on_trip: Callable[[], None] | None = None
        self.trouble: ConnectorError | None = None
        self._rows = Rows(results, file)
        self._memory = InMemory()
        self._direct: dict[int, Entry] = {}
        self._reached: dict[str, Heartbeat] = {}
        self._overdue_at, self._puts = 0.0, 0
        self._has_tripped = self._is_dropped = False
        self.is_spooling = self._rows.backlog > 0
        self._queue = ClientQueue(
            kafka, facts, self._answered, queue_timeout_s=queue_timeout_s, transactional_id=None
        )
        self._writer = SpoolWriter(file, self._rows)
        self._sender = SpoolSender(self._queue, file, self._rows, results, kafka_partitions)
        self._timer = Timer(self.tick, "connector-spool")

    def start(self) -> None:
        """Start the thread that writes."""
        self._timer.start()

    @property
    def client(self) -> Any:  # type: ignore[override]
        return self._queue.client

    @property
    def items(self) -> Collection[Sent]:
        """The records that are neither acknowledged nor in the file."""
        return self._memory

    @property
    def backlog(self) -> int:
        """The number of records in the file that are not settled."""
        return self._rows.backlog

    @property
    def complaint(self) -> str:
        return ". ".join(text for text in (self._queue.complaint, self._writer.error) if text)

    @property
    def may_claim(self) -> bool:
        """Whether the spool has no loss, except those that an operator has accepted."""
        return not self._rows.losses and not self._file.losses

    def check_may_claim(self) -> None:
        """Raises `SpoolError` unless `may_claim`."""
        if self._file.losses:
            self._file.check_losses()
        if not self.may_claim:
            losses = [*self._file.losses, *self._rows.losses]
            raise SpoolError(
                ErrorCode.SPOOL_DAMAGED,
                f"The spool {self._file.path} has lost {losses_text(losses)}",
                "Their rows are missing or damaged. Heartbeats are refused, because they would"
                " claim these records",
                "Send the changes of the source again from its resume token, then accept the loss."
                " A change whose `send` raised this error is queued",
                spool=str(self._file.path),
                topic=self._topic,
            )

    # ── entering ──────────────────────────────────────────────────────────────────────────────────

    def put(
        self,
        item: Sent,
        key: bytes,
        value: bytes,
        kafka_partition: int,
        headers: HeaderList,
        *,
        waits: bool = True,
    ) -> None:
        """As `SendQueue.put`. A record that the producer makes again (`on_settled`) is not spooled:
        while others are, `BufferError` is raised for it.

        Raises `SpoolFullError` if the spool has no space. Then `answer` was already called.
        """
        if item.on_settled is not None:
            if self.is_spooling:
                raise BufferError
            entry = Entry(item, None, time.monotonic())
            try:
                self._queue.offer(entry, key, value, kafka_partition, headers)
                self._memory.add(entry)
            except KafkaException as error:
                self._results.answer(item, error.args[0].str())
                self._queue.serve_after(error)
                raise self._not_accepted(error.args[0].str()) from error
            return
        assert waits, "only control records that are made again do not wait"
        record = spooled(item.record, key, value, kafka_partition, headers)
        self._enter(Entry(item, record, time.monotonic()), headers)

    def put_everywhere(self, item: Sent, key: bytes, value: bytes, headers: HeaderList) -> bool:
        """Queue a control record for every Kafka partition. Raises as `put` does."""
        record = spooled(item.record, key, value, EVERYWHERE, headers, is_ours=item.is_ours)
        self._enter(Entry(item, record, time.monotonic()), headers)
        if isinstance(item.record, Heartbeat):
            self.reached(item.record)
        return True

    def reached(self, position: Heartbeat) -> None:
        """Keep a position of the application. It is stored while records are spooled."""
        if position.resume_token:
            self._reached[position.stream_partition] = position
            if self.is_spooling:
                self._keep_positions([position])

    def _enter(self, entry: Entry, headers: HeaderList) -> None:
        record = entry.record
        assert record is not None
        if self.is_spooling:
            self._wait_for_space(entry, record)
        self._memory.add(entry)
        if self.is_spooling:
            self._writer.append([entry])
        else:
            self._direct[id(entry)] = entry
            self._send_directly(entry, record, headers)
        self._puts += 1
        if self._puts % POLL_EVERY == 0 and self.trouble is None:
            self.serve(0)

    def _send_directly(self, entry: Entry, record: SpooledRecord, headers: HeaderList) -> None:
        entry.pending += 1  # no result counts before all messages are at the client
        refusal = self._offer_all(entry, record, headers)
        entry.pending -= 1
        if not entry.pending:
            self._settled(entry)
        if self._has_tripped and not self.is_spooling:
            self._trip()
        if refusal is not None and entry.is_refused and not entry.is_spooled:
            raise self._not_accepted(entry.error) from refusal

    def _offer_all(
        self, entry: Entry, record: SpooledRecord, headers: HeaderList
    ) -> KafkaException | None:
        deadline = 0.0
        for kafka_partition in self._sender.targets(record):
            while True:
                try:
                    self._queue.offer(entry, record.key, record.value, kafka_partition, headers)
                    break
                except KafkaException as error:
                    entry.failed(error.args[0])
                    self._queue.serve_after(error)
                    return error
                except BufferError:
                    now = time.monotonic()
                    deadline = deadline or now + self._queue_timeout_s
                    self.serve(COMMIT_EVERY_S)
                    # The record is now in the spool, or goes there: the client has no space.
                    if entry.is_spooled or now > deadline:
                        entry.failed("the queue of the client is full")
                        return None
        return None

    def _no_space(self, size: int) -> str:
        """Say why the file does not take a record of this size. Empty: it takes it."""
        if self._writer.error:
            return self._writer.error
        if self._rows.size + self._writer.size + size <= self._max_bytes:
            return ""
        return (
            f"It has {self.backlog:,} records, and at most {self._max_bytes:,} bytes are"
            f" allowed. {self._queue.complaint}"
        )

    def _wait_for_space(self, entry: Entry, record: SpooledRecord) -> None:
        deadline = time.monotonic() + self._queue_timeout_s
        while self.is_spooling:
            is_behind = self._writer.count >= MAX_BUFFERED
            cause = self._no_space(record.size)
            if not cause and not is_behind:
                return
            if (cause and self._when_full == "raise") or time.monotonic() > deadline:
                cause = cause or f"{self._writer.count:,} records wait for a slow disk"
                assert entry.sent is not None
                self._results.conclude(entry.sent, cause)
                raise SpoolFullError(
                    ErrorCode.SPOOL_FULL,
                    f"The spool {self._file.path} has no space for a record",
                    cause.strip().removesuffix("."),
                    "Wait until Kafka answers, or give the spool more space. Then send the record"
                    " again",
                    undelivered=1,
                    spool=str(self._file.path),
                )
            self.serve(COMMIT_EVERY_S)

    def _not_accepted(self, cause: str) -> DeliveryError:
        return DeliveryError(
            ErrorCode.RECORD_REFUSED,
            f"A record for {self._topic} was not accepted",
            cause,
            "Send the record again. If the error stays, remove the cause",
            undelivered=1,
        )

    # ── results ───────────────────────────────────────────────────────────────────────────────────

    def _answered(self, entry: Entry, error: str) -> None:
        if error:
            entry.failed(error)
        entry.pending -= 1
        if entry.record is None:
            assert entry.sent is not None
            self._memory.remove(entry)
            self._results.answer(entry.sent, error)
        elif not entry.pending:
            self._settled(entry)

    def _settled(self, entry: Entry) -> None:
        """Register that all messages of a record have a result."""
        if not entry.error:
            self._sender.has_acknowledged = True
        if entry.is_stored:
            self._sender.settled(entry)
        elif not entry.error:
            entry.is_done = True
            self._conclude(entry, "")
            # It is sent again behind a record that has failed.
            if not entry.is_spooled and not self._has_tripped:
                self._direct.pop(id(entry), None)
        elif not entry.is_spooled:
            if entry.is_refused and not entry.is_done:
                self._direct.pop(id(entry), None)
                self._conclude(entry, entry.error)
            else:
                self._has_tripped = True

    def _conclude(self, entry: Entry, error: str) -> None:
        self._memory.remove(entry)
        sent, entry.sent = entry.sent, None
        if sent is not None:
            self._results.conclude(sent, error)

    # ── moving ────────────────────────────────────────────────────────────────────────────────────

    def serve(self, timeout_s: float, *, push: bool = False) -> None:
        """Read the reports of the client, and move records to the spool and out of it."""
        if self.trouble is not None:
            raise self.trouble
        wait_s = min(timeout_s, self._after_s, LONGEST_WAIT_S)
        if self._queue.items:
            self._queue.serve(wait_s, push=push)
        else:
            self._queue.serve(0)
            if wait_s:
                self._writer.wait(min(wait_s, COMMIT_EVERY_S))
        self._move()

    def _move(self) -> None:
        self._collect()
        if not self.is_spooling and (self._has_tripped or self._is_overdue()):
            self._trip()
        self._rows.advance()
        if self.is_spooling and self.is_verified:
            try:
                is_at_end = self._sender.send()
            except SpoolError as error:
                self.trouble = error
                raise
            # Records that cannot be written are sent to find out whether Kafka answers.
            is_stuck = bool(self._writer.error) and not self._queue.items
            if is_at_end and (self._sender.has_acknowledged or is_stuck):
                self._send_directly_again()
        self._rows.find_repaired()

    def _collect(self) -> None:
        for entry in self._writer.written():
            self._memory.remove(entry)
            self._rows.stored(entry)

    def _is_overdue(self) -> bool:
        now = time.monotonic()
        if now < self._overdue_at:
            return False
        self._overdue_at = now + self._after_s / 20
        limit = now - self._after_s
        if self._sender.is_overdue(limit):
            return True
        return bool(self._direct) and next(iter(self._direct.values())).at < limit

    def _trip(self) -> None:
        """From now on, records go to the spool. Those without a result are the first ones."""
        self.is_spooling, self._has_tripped = True, False
        if self.on_trip is not None and self.is_verified:
            # The topic may be deleted and created again during the outage.
            self.is_verified = False
            self.on_trip()
        self._sender.go_back()
        direct, self._direct = self._direct, {}
        self._writer.append(list(direct.values()))
        self._keep_positions(list(self._reached.values()))

    def _keep_positions(self, positions: list[Heartbeat]) -> None:
        """Store positions with the records before them. A failed change is in no file."""
        for position in positions:
            failed = self._results.delivery(position.stream_partition).oldest_failed()
            if failed is None or failed > position.timestamp:
                self._writer.keep_position(position)

    def _send_directly_again(self) -> None:
        """All records of the file are at the client. Send the last ones from memory, and all later
        ones directly.
        """
        cause = self._writer.error
        waiting = self._writer.take_back()
        if waiting is None:
            return
        self.is_spooling = False
        for entry in [one for one in waiting if one.is_claim]:
            # It cannot wait in the file. The application sends it again, after its changes.
            waiting.remove(entry)
            self._conclude(entry, cause)
        waiting = list(dropwhile(lambda entry: entry.is_done, waiting))
        for entry in waiting:
            entry.at, entry.number, entry.error = time.monotonic(), 0, ""
            entry.is_refused = entry.is_spooled = False
            self._direct[id(entry)] = entry
        for entry in waiting:
            if self.is_spooling:
                return
            assert entry.record is not None
            with suppress(DeliveryError):  # its result has the error
                self._send_directly(entry, entry.record, unpack_headers(entry.record.headers))

    # ── writing ───────────────────────────────────────────────────────────────────────────────────

    def tick(self, _now: float) -> float:
        """Write what is new, and move records, if no call of the application does it now. Returns
        the time of the next tick.
        """
        self._writer.commit()
        with self._turns.if_free() as is_free:
            if is_free and self.trouble is None:
                try:
                    self._queue.serve(0)
                    self._move()
                except ConnectorError as error:
                    self.trouble = error
        if self._is_dropped:
            self.drop()
        # A write that fails slowly must leave time for records to leave the spool between writes.
        if self._writer.error:
            return time.monotonic() + LONGEST_WAIT_S
        wait_s = COMMIT_EVERY_S if self.is_spooling else min(self._after_s / 4, LONGEST_WAIT_S)
        return time.monotonic() + wait_s

    def is_safe(self) -> bool:
        """Whether each record of the application has a result or is in the file."""
        return all(sent.on_settled is not None for sent in self._memory)

    def promise(self) -> None:
        """Note that the application may rely on what is in the file."""
        self._file.promise(self._rows.stored_to - 1)

    def let_go(self, timeout_s: float, why: str) -> None:
        """Write everything to the file, and close the client and the file. Records that cannot be
        written have failed.
        """
        self._timer.stop(JOIN_S)
        self.on_trip = None
        self._trip()
        self._queue.let_go(timeout_s, why)
        while self._writer.commit():
            self._collect()
            self._rows.advance()
        self.give_up(self._writer.error or why)
        self._file.close()

    def drop(self) -> None:
        """Write everything to the file, and unlock it: the producer was dropped without `close`.

        Python may collect it in the thread that writes. Then this is done after the write.
        """
        if self._timer.is_current and not self._is_dropped:
            self._is_dropped = True
            return
        with suppress(ConnectorError):
            self.let_go(0, "the producer was dropped without close")

    def give_up(self, why: str) -> None:
        for entry in self._memory.entries():
            self._conclude(entry, why)

    def renew(self, error: KafkaError | str) -> None:
        self._queue.renew(error)

    def check_not_shut_out(self) -> None:
        pass

    def read_reports(self) -> None:
        self._queue.read_reports()
