"""The thread of a session: it sends what is queued in transactions, and finds out what became of
them (WRS-6, WRS-8).

    1  take the jobs of the next transaction, and add records of the catalog and heartbeats
    2  send them in one transaction
    3  after a failure: open a new client, which ends the old transaction, and read the catalog. If
       it has the transaction, all jobs are done. Otherwise, send the same messages again
    4  answer the jobs in their order
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from connector.errors import (
    BrokerError,
    ConnectorError,
    DeliveryError,
    TopicError,
    WriterConflictError,
)
from connector.errors.write_streams import append_failed
from connector.kafka import client
from connector.kafka.tables import published_tables
from connector.kafka.transactions import Failure, TransactionMessage
from connector.kafka.write_streams.catalog import TakenOverError
from connector.write_streams.model import Catalog, SessionEntry, StreamEntry

if TYPE_CHECKING:
    from connector.kafka.transactions import TransactionClient
    from connector.kafka.write_streams.catalog import SessionCatalog
    from connector.kafka.write_streams.messages import Encoding, SessionPartitions
    from connector.kafka.write_streams.queue import Job, JobQueue
    from connector.tables.published import PublishedTable

_PAUSES_S: Final = (0.0, 0.1, 0.5, 1.0, 2.0)
_PERMANENT: Final = ("KAFKA_ACCESS_DENIED", "RECORD_UNREADABLE", "TOPIC_REPLACED")
NOT_TAKEN: Final = "not taken"
UNKNOWN: Final = "unknown"


@dataclass(slots=True)
class Batch:
    """The jobs and the messages of one transaction. `streams` and `session` are the records that
    the catalog gets.
    """

    jobs: list[Job]
    messages: list[TransactionMessage] = field(default_factory=list)
    streams: dict[str, StreamEntry] = field(default_factory=dict)
    session: SessionEntry | None = None

    def is_in(self, streams: dict[str, StreamEntry], session: SessionEntry | None) -> bool:
        """Return whether the catalog has the transaction. One that changes no record is sent again,
        because it does no harm.
        """
        for name, entry in self.streams.items():
            recorded = streams.get(name)
            return recorded is not None and recorded.covers(entry)
        return self.session is not None and session == self.session


class Sender:
    """Takes the jobs of one session, and sends them.

    - `calls` makes a call of the application one step.
    - `ended` returns the error for further calls, once the session has ended.
    - `is_closed`: `close` was called.
    """

    def __init__(
        self,
        catalog: SessionCatalog,
        transactions: TransactionClient,
        queue: JobQueue,
        partitions: SessionPartitions,
        encoding: Encoding,
        max_retry_s: float,
    ) -> None:
        self.queue, self.partitions, self.encoding = queue, partitions, encoding
        self.calls = threading.RLock()
        self._catalog, self._client, self._max_retry_s = catalog, transactions, max_retry_s
        self._recorded = partitions.entry
        self.ended: Callable[[], ConnectorError] | None = None
        self.is_closed = self._ends_partitions = False
        name = f"connector-write-session-{catalog.session}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def published_tables(self) -> dict[str, PublishedTable]:
        return published_tables(self._catalog.kafka, self._catalog.facts.topic)

    def check_open(self) -> None:
        """Raise the error of a session that has ended."""
        assert not self.is_closed, "a closed session sends nothing"
        if self.ended is not None:
            raise self.ended()

    def put(self, job: Job, *, is_urgent: bool = False) -> None:
        """Queue a job, when there is space. Raises as `WriteStream.append` does."""
        with self.queue.changed:
            self.queue.wait_for_space(job, self.check_open)
            self.queue.put(job, is_urgent=is_urgent)

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout_s: float, *, ends_partitions: bool) -> None:
        """Send what is queued, and end the session. Raises as `WriteSession.close` does."""
        with self.queue.changed:
            self._ends_partitions = ends_partitions
            self.queue.is_closing = True
            self.queue.changed.notify_all()
        self._thread.join(timeout_s)
        if self.ended is not None:
            raise self.ended()
        if self._thread.is_alive():
            raise self.unanswered(timeout_s)

    def unanswered(self, timeout_s: float) -> DeliveryError:
        cause = f"{self.queue.in_flight} appends have no result after {timeout_s:g} s"
        return self._failed(UNKNOWN, cause, self.queue.rows)

    # ── the end of a program ──────────────────────────────────────────────────────────────────────

    def finish(self, timeout_s: float) -> str:
        """As `close`. The source may not be delivered up to here: the stream partition goes on."""
        rows = self.queue.rows
        try:
            self.close(timeout_s, ends_partitions=False)
        except ConnectorError as error:
            if rows:
                error.problem = f"{rows} rows had no result. {error.problem}"
            raise
        return ""

    def dropped(self) -> bool:
        self._ends_partitions, self.queue.is_closing = False, True
        if self.queue.changed.acquire(blocking=False):
            self.queue.changed.notify_all()
            self.queue.changed.release()
        return True

    def is_finished(self) -> bool:
        return not self._thread.is_alive() and self.ended is None

    # ── the thread ────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        batch: Batch | None = None
        try:
            while self.ended is None:
                batch = None
                if (facts := self._catalog.refreshed()) is not None:
                    count = self.encoding.kafka_partitions
                    self.encoding.kafka_partitions = max(count, facts.kafka_partitions)
                with self.queue.changed:
                    self.queue.wait(lambda: self.partitions.heartbeats_at)
                    is_last = self.queue.is_closing
                    batch = Batch(self.queue.take())
                    is_last = is_last and not self.queue.jobs
                    self._fill(batch, is_last=is_last)
                if batch.messages:
                    self._deliver(batch)
                self._answer(batch)
                if is_last:
                    return
        except ConnectorError as error:
            if self.ended is None:
                self._end_with(partial(self._failed, cause=str(error)), batch, UNKNOWN)
        except _EndedError:
            pass
        except BaseException as error:
            self._end_with(partial(self._failed, cause=repr(error)), batch, UNKNOWN)
            raise
        finally:
            self._client.close()

    def _fill(self, batch: Batch, *, is_last: bool) -> None:
        """Make the messages of a transaction. They are in this order: announcements, rows and
        releases, heartbeats, ends, records of the catalog.
        """
        batch.messages += self.partitions.before_rows(batch.jobs)
        for job in batch.jobs:
            batch.messages += job.messages
            if job.after is not None:
                batch.streams[job.stream] = job.after
            if job.release is not None:
                batch.messages += self.partitions.release(job)
        oldest = min((job.oldest for job in self.queue.jobs if job.oldest), default=None)
        batch.messages += self.partitions.heartbeats(time.monotonic(), oldest, is_last=is_last)
        if is_last and self._ends_partitions:
            batch.messages += self.partitions.ends()
        if self.partitions.entry != self._recorded:
            batch.session = self._recorded = self.partitions.entry
        records: dict[str, StreamEntry | SessionEntry] = {**batch.streams}
        if batch.session is not None:
            records[self._catalog.session] = batch.session
        batch.messages += self._catalog.records_of(records)

    def _deliver(self, batch: Batch) -> None:
        """Send until it is committed. Raises `_EndedError` if the session has ended."""
        failure = self._client.commit(batch.messages)
        deadline = time.monotonic() + self._max_retry_s
        attempt, is_unknown = 0, False
        while failure is not None:
            client.log.error("write session %s: %s", self._catalog.session, failure.cause)
            is_unknown |= failure.is_unknown
            # With an unknown outcome, a permanent error may not be one of reading the catalog.
            is_hopeless = failure.is_permanent and (failure.is_reading or not is_unknown)
            if is_hopeless or time.monotonic() >= deadline:
                failed = partial(self._failed, cause=failure.cause)
                self._end(failed, batch, UNKNOWN if is_unknown else NOT_TAKEN)
            time.sleep(_PAUSES_S[min(attempt, len(_PAUSES_S) - 1)])
            attempt += 1
            try:
                catalog = self._catalog.recover(self._client)
            except TakenOverError as error:
                self._taken_over(error.catalog, batch, is_unknown=is_unknown)
            except (BrokerError, TopicError) as error:
                failure = Failure(
                    str(error), False, is_permanent=error.code in _PERMANENT, is_reading=True
                )
                continue
            if batch.is_in(catalog.streams, catalog.sessions.get(self._catalog.session)):
                return
            is_unknown = False
            failure = self._client.commit(batch.messages)

    def _taken_over(self, catalog: Catalog, batch: Batch, *, is_unknown: bool) -> NoReturn:
        """End the session, because another one was opened. The records before those of the new
        owner have the outcome, unless the catalog was compacted.
        """
        before = catalog.before
        if is_unknown and before is not None and batch.is_in(before, None):
            self._answer(batch)
            batch = Batch([])
        elif is_unknown and before is not None:
            is_unknown = any(
                catalog.streams.get(name) != before.get(name) for name in batch.streams
            ) or bool(batch.session and not batch.streams)
        self._end(self._conflict, batch, UNKNOWN if is_unknown else NOT_TAKEN)

    def _answer(self, batch: Batch) -> None:
        with self.queue.changed:
            self.queue.recorded.update((name, entry.end) for name, entry in batch.streams.items())
            for job in batch.jobs:
                job.result.give(job.answer)
            self.queue.settled(batch.jobs)

    def _end(
        self, error: Callable[[str], ConnectorError], batch: Batch | None, outcome: str
    ) -> NoReturn:
        self._end_with(error, batch, outcome)
        raise _EndedError

    def _end_with(
        self, error: Callable[[str], ConnectorError], batch: Batch | None, outcome: str
    ) -> None:
        """End the session. The jobs of the transaction have this outcome, and later ones are not
        taken. A repeated append has that of its first copy.
        """
        now = batch if batch is not None else Batch([])
        with self.queue.changed:
            self.ended = lambda: error(NOT_TAKEN)
            later = list(self.queue.jobs)
            self.queue.jobs.clear()
            for job in [*now.jobs, *later]:
                if self.queue.is_recorded(job):
                    job.result.give(job.answer)
                    continue
                is_open = job in now.jobs or (job.is_repeated and job.stream in now.streams)
                job.result.fail(error(outcome if is_open else NOT_TAKEN))
            self.queue.settled([*now.jobs, *later])

    def _conflict(self, outcome: str) -> WriterConflictError:
        cause = f"It has ended this one. The rows of the append are {outcome}"
        return self._catalog.conflict(cause, outcome)

    def _failed(self, outcome: str, cause: str, undelivered: int = 0) -> DeliveryError:
        topic, session = self._catalog.facts.topic, self._catalog.session
        return append_failed(topic, session, outcome, cause, undelivered)


class _EndedError(Exception):
    """The session has ended, and all jobs have their answers."""
