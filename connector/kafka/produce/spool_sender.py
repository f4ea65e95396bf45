"""Sends the records in the file of a spool, in their order (PUB-3).

After a failure, sending goes back to the first record that is not settled, and sends that one and
all later ones again. It goes on once the client has a result for each of its messages. The first
record is sent alone, so that it shows whether Kafka answers.
"""

from __future__ import annotations

import sqlite3
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaException

from connector.kafka.produce.spool_client import ClientQueue, Entry
from connector.kafka.produce.spool_file import Loss, SpoolFile, unreadable
from connector.records.spooled import EVERYWHERE, Kind, SpooledRecord, covers, unpack_headers

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.kafka.produce.results import Results
    from connector.kafka.produce.spool_rows import Rows

WINDOW: Final = 4096
READ_AT_ONCE: Final = 512


class SpoolSender:
    """Where sending is in the file.

    - `has_acknowledged`: Kafka has acknowledged a record since the last failure.
    - `must_go_back`: sending continues at the first record that is not settled.
    """

    def __init__(
        self,
        client: ClientQueue,
        file: SpoolFile,
        rows: Rows,
        results: Results,
        kafka_partitions: Callable[[], int],
    ) -> None:
        self._client, self._file, self._rows, self._results = client, file, rows, results
        self._kafka_partitions = kafka_partitions
        self._at_client: dict[int, Entry] = {}
        self._read: deque[tuple[int, SpooledRecord | None]] = deque()
        self._next = rows.low
        self._window, self._alone_to = 1, 0
        self.must_go_back = True
        self.has_acknowledged = False

    def go_back(self) -> None:
        """Send again from the first record that is not settled."""
        self.must_go_back, self.has_acknowledged = True, False

    def send(self) -> bool:
        """Send what can be sent now, without waiting. Returns True if all records of the file are
        at the client.
        """
        if self.must_go_back:
            if self._client.items:
                return False
            self._rows.advance()
            self._read.clear()
            self._at_client.clear()
            self._next, self._window, self.must_go_back = self._rows.low, 1, False
        while not self.must_go_back:
            if self._next <= self._alone_to:
                self._window = 1
            if len(self._client.items) >= self._window:
                return False
            if not self._read and not self._read_on():
                return True
            number, record = self._read[0]
            if number > self._next or record is None:
                self._lose(number, record)
            elif self._has_failed(record):
                self._pass(number)
                self._rows.failed(number, record, "it would claim a change that was not delivered")
            elif not self._may_send(number, record) or not self._send_one(number, record):
                return False
        return False

    def settled(self, entry: Entry) -> None:
        """Register that all messages of a record in the file have a result."""
        assert entry.record is not None
        self._at_client.pop(entry.number, None)
        if not entry.error:
            self._window = min(WINDOW, self._window * 2)
            self._rows.acknowledged(entry.number, entry.record)
        elif entry.is_refused and self._window == 1 and entry.number <= self._alone_to:
            self._rows.failed(entry.number, entry.record, entry.error)
        else:
            if entry.is_refused:
                # Kafka refuses whole batches. These records are sent again one by one.
                self._alone_to = max(self._alone_to, entry.number, self._next - 1)
            self.go_back()

    def is_overdue(self, limit: float) -> bool:
        """Whether a record was given to the client before this time, and has no result."""
        return bool(self._at_client) and next(iter(self._at_client.values())).at < limit

    def targets(self, record: SpooledRecord) -> range:
        """Return the Kafka partitions of a record."""
        if record.kafka_partition == EVERYWHERE:
            return range(self._kafka_partitions())
        return range(record.kafka_partition, record.kafka_partition + 1)

    def _send_one(self, number: int, record: SpooledRecord) -> bool:
        # One message more than there is, so that no result counts before all are at the client.
        entry = Entry(None, record, time.monotonic(), number, 1, is_spooled=True, is_stored=True)
        headers = unpack_headers(record.headers)
        for kafka_partition in self.targets(record):
            try:
                self._client.offer(entry, record.key, record.value, kafka_partition, headers)
            except BufferError:
                entry.failed("the queue of the client is full")
                break
            except KafkaException as error:
                entry.failed(error.args[0])
                self._client.serve_after(error)
                break
        self._at_client[number] = entry
        self._pass(number)
        entry.pending -= 1
        if not entry.pending:
            self.settled(entry)
        return not entry.error

    def _read_on(self) -> bool:
        if self._next >= self._rows.stored_to:
            return False
        try:
            self._read.extend(self._file.read(self._next, READ_AT_ONCE))
        except sqlite3.Error as error:
            raise unreadable(self._file.path, error) from error
        if not self._read:  # the last ones are missing
            self._read.append((self._rows.stored_to, None))
        return True

    def _lose(self, number: int, record: SpooledRecord | None) -> None:
        """Register that the next records of the file are missing or damaged."""
        if number > self._next:
            self._rows.lost(Loss(self._next, number - 1, "missing"))
            self._next = number
            if record is None and number >= self._rows.stored_to:
                self._read.popleft()
        else:
            self._rows.lost(Loss(number, number, "damaged"))
            self._pass(number)

    def _pass(self, number: int) -> None:
        self._read.popleft()
        self._next = number + 1

    def _has_failed(self, control: SpooledRecord) -> bool:
        """Whether a control record cannot become true. The application sends it again, after the
        changes.
        """
        if control.kind == Kind.CHILD_PARTITIONS:
            return self._results.failed > 0
        if control.kind != Kind.HEARTBEAT:
            return False
        failed = self._results.delivery(control.stream_partition).oldest_failed()
        return failed is not None and failed <= control.time

    def _may_send(self, number: int, record: SpooledRecord) -> bool:
        """Whether everything that a control record covers is acknowledged."""
        return not record.is_claim or not (
            self._rows.is_behind_loss(number)
            or any(
                entry.record is not None and covers(record, entry.record)
                for entry in self._at_client.values()
            )
        )
