"""The send queue of a producer with a spool (PUB-3).

While Kafka answers, records go to the client as without a spool. If one is not acknowledged in
time, all records without a result move to the spool, in their order, and all later ones follow.
The client keeps what it has, so its retries go on in order, and a record that it delivers leaves
the spool. When the client has a result for each of its records, those of the spool are sent,
beginning with the first one that is not settled. So a record is never sent behind a later one
without that one being sent again, too. When all of them are sent, records go to the client again.

Methods are called in a turn of the producer, except `commit` and `tick`. `_mutex` guards the state
that they share with the others: `_buffer`, `_writing`, `_stored` and the numbers. It is not held
during a write.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
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
from connector.kafka.produce.send_queue import HeaderList, SendQueue
from connector.kafka.produce.spool_client import ClientQueue, Entry, InMemory
from connector.kafka.produce.spool_file import Loss, SpoolFile, Write, losses_text, unreadable
from connector.kafka.produce.spool_rows import Rows
from connector.records.model import Heartbeat
from connector.records.spooled import (
    EVERYWHERE,
    Kind,
    SpooledRecord,
    covers,
    spooled,
    unpack_headers,
)

if TYPE_CHECKING:
    from connector.config.settings import KafkaConfig
    from connector.kafka.produce.turns import Turns
    from connector.kafka.topics import TopicFacts

WINDOW: Final = 4096
READ_AT_ONCE: Final = 512
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
        self._kafka_partitions, self._queue_timeout_s = kafka_partitions, queue_timeout_s
        self._max_bytes, self._after_s, self._when_full = max_bytes, after_s, when_full
        self.is_verified = True
        self.trouble: ConnectorError | None = None
        self._rows = Rows(results, file)
        self._memory = InMemory()
        self._direct: dict[int, Entry] = {}
        self._mutex = threading.Condition()
        self._commits = threading.Lock()
        self._buffer: deque[Entry] = deque()
        self._writing: list[Entry] = []
        self._stored: deque[Entry] = deque()
        self._is_writing = False
        self._buffered_bytes = 0
        self._next = self._rows.stored_to
        self._write_error = ""
        self._reached: dict[str, Heartbeat] = {}
        self._positions: dict[str, Heartbeat] = {}
        self._at_client: dict[int, Entry] = {}
        self._read: deque[tuple[int, SpooledRecord | None]] = deque()
        self._send_next = self._rows.low
        self._window, self._alone_to = 1, 0
        self._overdue_at = 0.0
        self.is_spooling = self._must_rewind = self._rows.backlog > 0
        self._has_tripped = self._has_acked = False
        self._queue = ClientQueue(
            kafka, facts, self._answered, queue_timeout_s=queue_timeout_s, transactional_id=None
        )
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
        return ". ".join(text for text in (self._queue.complaint, self._write_error) if text)

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
                "Send the changes of the source again from its resume token, then accept the loss",
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
            try:
                self._queue.offer(
                    Entry(item, None, time.monotonic()), key, value, kafka_partition, headers
                )
            except KafkaException as error:
                self._results.answer(item, error.args[0].str())
                self._serve_after(error)
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
            self._append([entry])
        else:
            self._direct[id(entry)] = entry
            self._send_directly(entry, record, headers)

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
        for kafka_partition in self._targets(record):
            while True:
                try:
                    self._queue.offer(entry, record.key, record.value, kafka_partition, headers)
                    break
                except KafkaException as error:
                    entry.failed(error.args[0])
                    self._serve_after(error)
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

    def _append(self, entries: list[Entry]) -> None:
        with self._mutex:
            for entry in entries:
                assert entry.record is not None
                entry.is_spooled = True
                self._buffered_bytes += entry.record.size
                self._buffer.append(entry)

    def _is_full(self, size: int) -> bool:
        return (
            bool(self._write_error)
            or len(self._buffer) >= MAX_BUFFERED
            or self._rows.size + self._buffered_bytes + size > self._max_bytes
        )

    def _wait_for_space(self, entry: Entry, record: SpooledRecord) -> None:
        deadline = time.monotonic() + self._queue_timeout_s
        while self.is_spooling and self._is_full(record.size):
            if self._when_full == "raise" or time.monotonic() > deadline:
                cause = self._write_error or (
                    f"It has {self.backlog:,} records, and at most {self._max_bytes:,} bytes are"
                    f" allowed. {self._queue.complaint}"
                )
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
            self._results.answer(entry.sent, error)
        elif not entry.pending:
            self._settled(entry)

    def _settled(self, entry: Entry) -> None:
        """Register that all messages of a record have a result."""
        record = entry.record
        assert record is not None
        if not entry.error:
            self._has_acked = True
        if entry.is_stored:
            self._row_settled(entry, record)
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

    def _row_settled(self, entry: Entry, record: SpooledRecord) -> None:
        self._at_client.pop(entry.number, None)
        if not entry.error:
            self._window = min(WINDOW, self._window * 2)
            self._rows.acknowledged(entry.number, record)
        elif entry.is_refused and self._window == 1 and entry.number <= self._alone_to:
            self._rows.failed(entry.number, record, entry.error)
        else:
            if entry.is_refused:
                # Kafka refuses whole batches. These records are sent again one by one.
                self._alone_to = max(self._alone_to, entry.number, self._send_next - 1)
            self._must_rewind, self._has_acked = True, False

    def _conclude(self, entry: Entry, error: str) -> None:
        self._memory.remove(entry)
        sent, entry.sent = entry.sent, None
        if sent is not None:
            self._results.conclude(sent, error)

    def _serve_after(self, error: KafkaException) -> None:
        if error.args[0].code() == KafkaError._FATAL:
            self._queue.serve(0)  # it builds a new client

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
                with self._mutex:
                    if not self._stored:
                        self._mutex.wait(min(wait_s, COMMIT_EVERY_S))
        self._move()

    def _move(self) -> None:
        while self._stored:
            self._collect()
        if not self.is_spooling and (self._has_tripped or self._is_overdue()):
            self._trip()
        self._rows.advance()
        if self.is_spooling and self.is_verified:
            self._send_rows()
        self._rows.find_repaired()

    def _is_overdue(self) -> bool:
        now = time.monotonic()
        if now < self._overdue_at:
            return False
        self._overdue_at = now + self._after_s / 20
        return any(
            next(iter(entries.values())).at < now - self._after_s
            for entries in (self._at_client, self._direct)
            if entries
        )

    def _trip(self) -> None:
        """From now on, records go to the spool. Those without a result are the first ones."""
        self.is_spooling = self._must_rewind = True
        self._has_tripped = self._has_acked = False
        direct, self._direct = self._direct, {}
        self._append(list(direct.values()))
        self._keep_positions(list(self._reached.values()))

    def _keep_positions(self, positions: list[Heartbeat]) -> None:
        """Store positions with the records before them. A failed change is in no file."""
        for position in positions:
            failed = self._results.delivery(position.stream_partition).oldest_failed()
            if failed is None or failed > position.timestamp:
                with self._mutex:
                    self._positions[position.stream_partition] = position

    def _collect(self) -> None:
        entry = self._stored.popleft()
        assert entry.record is not None
        with self._mutex:
            self._buffered_bytes -= entry.record.size
            self._rows.size += entry.record.size
        self._memory.remove(entry)
        self._rows.stored(entry)

    def _send_rows(self) -> None:
        if self._must_rewind:
            if self._queue.items:
                return
            self._rows.advance()
            self._read.clear()
            self._at_client.clear()
            self._send_next, self._window, self._must_rewind = self._rows.low, 1, False
        while not self._must_rewind:
            if self._send_next <= self._alone_to:
                self._window = 1
            if len(self._queue.items) >= self._window:
                return
            if not self._read and not self._read_on():
                self._send_directly_again()
                return
            number, record = self._read[0]
            if number > self._send_next or record is None:
                self._lose(number, record)
            elif record.is_claim and self._has_failed(record):
                self._pass(number)
                self._rows.failed(number, record, "it would claim a change that was not delivered")
            elif not self._may_send(number, record) or not self._send_row(number, record):
                return

    def _send_row(self, number: int, record: SpooledRecord) -> bool:
        entry = Entry(None, record, time.monotonic(), number, 1, is_spooled=True, is_stored=True)
        headers = unpack_headers(record.headers)
        for kafka_partition in self._targets(record):
            try:
                self._queue.offer(entry, record.key, record.value, kafka_partition, headers)
            except BufferError:
                entry.failed("the queue of the client is full")
                break
            except KafkaException as error:
                entry.failed(error.args[0])
                self._serve_after(error)
                break
        self._at_client[number] = entry
        self._pass(number)
        entry.pending -= 1
        if not entry.pending:
            self._settled(entry)
        return not entry.error

    def _read_on(self) -> bool:
        """Read more records of the file. Returns False if all of them are at the client."""
        if self._send_next >= self._rows.stored_to:
            return False
        try:
            self._read.extend(self._file.read(self._send_next, READ_AT_ONCE))
        except sqlite3.Error as error:
            self.trouble = unreadable(self._file.path, error)
            raise self.trouble from error
        if not self._read:  # the last ones are missing
            self._read.append((self._rows.stored_to, None))
        return True

    def _lose(self, number: int, record: SpooledRecord | None) -> None:
        """Register that the next records of the file are missing or damaged."""
        if number > self._send_next:
            self._rows.lost(Loss(self._send_next, number - 1, "missing"))
            self._send_next = number
            if record is None and number >= self._rows.stored_to:
                self._read.popleft()
        else:
            self._rows.lost(Loss(number, number, "damaged"))
            self._pass(number)

    def _pass(self, number: int) -> None:
        self._read.popleft()
        self._send_next = number + 1

    def _has_failed(self, control: SpooledRecord) -> bool:
        """Whether a control record cannot become true. It is then sent again by the application,
        after the changes.
        """
        if control.kind == Kind.CHILD_PARTITIONS:
            return self._results.failed > 0
        failed = self._results.delivery(control.stream_partition).oldest_failed()
        return failed is not None and failed <= control.time

    def _may_send(self, number: int, control: SpooledRecord) -> bool:
        if not control.is_claim:
            return True
        return not self._rows.is_behind_loss(number) and not any(
            entry.record is not None and covers(control, entry.record)
            for entry in self._at_client.values()
        )

    def _send_directly_again(self) -> None:
        """All records of the file are at the client. Send the last ones from memory, and all later
        ones directly, if Kafka answers.
        """
        if not self._has_acked:
            return
        with self._mutex:
            if self._is_writing or self._stored:
                return
            waiting = [*self._writing, *self._buffer]
            if any(one.record and one.record.is_claim and not one.is_done for one in waiting):
                return  # it must wait for its changes, and does so in the file
            if self._writing:  # they could not be written
                self._next = self._writing[0].number
            self._writing, self._buffer, self._buffered_bytes = [], deque(), 0
            self._positions.clear()
            self.is_spooling = False
        waiting = list(dropwhile(lambda entry: entry.is_done, waiting))
        for entry in waiting:
            entry.at, entry.number, entry.error = time.monotonic(), 0, ""
            entry.is_refused = entry.is_spooled = False
            self._direct[id(entry)] = entry
        for entry in waiting:
            if self.is_spooling:
                return
            assert entry.record is not None
            self._send_directly(entry, entry.record, unpack_headers(entry.record.headers))

    def _targets(self, record: SpooledRecord) -> range:
        if record.kafka_partition == EVERYWHERE:
            return range(self._kafka_partitions())
        return range(record.kafka_partition, record.kafka_partition + 1)

    # ── writing ───────────────────────────────────────────────────────────────────────────────────

    def tick(self, now: float) -> float:
        """Write what is new, and move records, if no call of the application does it now. Returns
        the time of the next tick.
        """
        self.commit()
        with self._turns.if_free() as is_free:
            if is_free and self.trouble is None:
                try:
                    self._queue.serve(0)
                    self._move()
                except ConnectorError as error:
                    self.trouble = error
        return now + (COMMIT_EVERY_S if self.is_spooling else min(self._after_s / 4, 0.25))

    def commit(self) -> bool:
        """Write what is new. Returns False if there is nothing, or if it cannot be written."""
        with self._commits:
            write = self._take()
            if write is None:
                return False
            error: sqlite3.Error | None = None
            try:
                self._file.write(write)
            except sqlite3.Error as failure:
                error = failure
            with self._mutex:
                self._is_writing = False
                self._write_error = "" if error is None else f"The spool is not writable: {error}"
                if error is None:
                    self._stored.extend(self._writing)
                    self._writing = []
                    for position in write.positions:
                        if self._positions.get(position.stream_partition) == position:
                            del self._positions[position.stream_partition]
                    del self._rows.newly_refused[: len(write.refused)]
                    del self._rows.repaired[: len(write.repaired)]
                    del self._rows.losses[: len(write.losses)]
                self._mutex.notify_all()
            return error is None

    def _take(self) -> Write | None:
        rows, content = self._rows, self._file.content
        assert content is not None
        with self._mutex:
            while self._buffer:
                entry = self._buffer.popleft()
                entry.number = self._next
                self._next += 1
                self._writing.append(entry)
            refused, repaired, losses = [*rows.newly_refused], [*rows.repaired], [*rows.losses]
            if not (
                self._writing
                or self._positions
                or refused
                or repaired
                or losses
                or rows.low > content.first
            ):
                return None
            self._is_writing = True
            return Write(
                [(one.number, one.record) for one in self._writing if one.record is not None],
                rows.low,
                self._next,
                [*self._positions.values()],
                refused,
                repaired,
                losses,
                is_empty=rows.low == self._next,
            )

    def is_safe(self) -> bool:
        """Whether each record has a result or is in the file."""
        return not self._memory

    def promise(self) -> None:
        """Note that the application may rely on what is in the file."""
        self._file.promise(self._rows.stored_to - 1)

    def let_go(self, timeout_s: float, why: str) -> None:
        """Write everything to the file, and close the client and the file. Records that cannot be
        written have failed.
        """
        self._timer.stop(JOIN_S)
        self._trip()
        self._queue.let_go(timeout_s, why)
        while self.commit():
            pass
        while self._stored:
            self._collect()
        self._rows.advance()
        self.commit()
        self.give_up(self._write_error or why)
        self._file.close()

    def give_up(self, why: str) -> None:
        for entry in self._memory.entries():
            self._conclude(entry, why)

    def renew(self, error: KafkaError | str) -> None:
        self._queue.renew(error)

    def check_not_shut_out(self) -> None:
        pass

    def read_reports(self) -> None:
        self._queue.read_reports()
