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
    ErrorCode,
    NotSentError,
    OutcomeUnknownError,
    TopicError,
    WriterConflictError,
)
from connector.kafka import client, topics
from connector.kafka.write_streams import catalog as catalogs
from connector.kafka.write_streams.transaction import Failure, Message, TransactionClient
from connector.write_streams.model import Catalog, SessionEntry, StreamEntry, to_value

if TYPE_CHECKING:
    from connector.config.settings import KafkaConfig
    from connector.kafka.topics import TopicFacts
    from connector.kafka.write_streams.encoding import Encoding
    from connector.kafka.write_streams.partitions import SessionPartitions
    from connector.kafka.write_streams.queue import Job, JobQueue

REFRESH_S: Final = 60.0
_PAUSES_S: Final = (0.0, 0.1, 0.5, 1.0, 2.0)
_PERMANENT: Final = (
    ErrorCode.KAFKA_ACCESS_DENIED,
    ErrorCode.CATALOG_UNREADABLE,
    ErrorCode.TOPIC_REPLACED,
)
NOT_TAKEN: Final = "not taken"
UNKNOWN: Final = "unknown"


@dataclass(slots=True)
class Batch:
    """The jobs and the messages of one transaction. `streams` and `session` are the records that
    the catalog gets.
    """

    jobs: list[Job]
    messages: list[Message] = field(default_factory=list)
    streams: dict[str, StreamEntry] = field(default_factory=dict)
    session: SessionEntry | None = None

    def is_in(self, streams: dict[str, StreamEntry], session: SessionEntry | None) -> bool:
        """Return whether the catalog has the transaction. One that changes no record is sent again,
        because it does no harm.
        """
        for name, entry in self.streams.items():
            found = streams.get(name)
            return found is not None and found.covers(entry)
        return self.session is not None and session == self.session


class TakenOverError(Exception):
    """Another session of this name was opened. `catalog` is what was read."""

    def __init__(self, catalog: Catalog) -> None:
        super().__init__()
        self.catalog = catalog


class Sender:
    """Sends the jobs of one session. `ended` returns the error for further calls, once the session
    has ended.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        facts: TopicFacts,
        catalog_facts: TopicFacts,
        session: str,
        owner: str,
        transactions: TransactionClient,
        queue: JobQueue,
        partitions: SessionPartitions,
        encoding: Encoding,
        max_retry_s: float,
    ) -> None:
        self._kafka, self._facts, self._catalog_facts = kafka, facts, catalog_facts
        self._session, self._owner, self._client = session, owner, transactions
        self._queue, self._partitions, self._encoding = queue, partitions, encoding
        self._max_retry_s = max_retry_s
        self._refreshed_at = time.monotonic()
        self._recorded = partitions.entry
        self.ended: Callable[[], ConnectorError] | None = None
        self.ends_partitions = False
        self._thread = threading.Thread(
            target=self._run, name=f"connector-write-session-{session}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout_s: float, *, ends_partitions: bool) -> None:
        """Send what is queued, and end the session. Raises as `WriteSession.close` does."""
        with self._queue.changed:
            self.ends_partitions = ends_partitions
            self._queue.is_closing = True
            self._queue.changed.notify_all()
        self._thread.join(timeout_s)
        if self.ended is not None:
            raise self.ended()
        if self._thread.is_alive():
            raise self.unanswered(timeout_s)

    def unanswered(self, timeout_s: float) -> DeliveryError:
        return DeliveryError(
            ErrorCode.APPENDS_UNANSWERED,
            f"{self._queue.in_flight} appends of the write session {self._session} have no result"
            f" after {timeout_s:g} s",
            "",
            "Check the brokers. Open the session again, and continue at the next offset of each"
            " write stream",
            session=self._session,
            undelivered=self._queue.rows,
        )

    # ── the end of a program ──────────────────────────────────────────────────────────────────────

    def finish(self, timeout_s: float) -> str:
        """As `close`. The source may not be delivered up to here: the stream partition goes on."""
        rows = self._queue.rows
        try:
            self.close(timeout_s, ends_partitions=False)
        except ConnectorError as error:
            if rows:
                error.problem = f"{rows} rows had no result. {error.problem}"
            raise
        return ""

    def dropped(self) -> bool:
        self.ends_partitions, self._queue.is_closing = False, True
        if self._queue.changed.acquire(blocking=False):
            self._queue.changed.notify_all()
            self._queue.changed.release()
        return True

    def is_finished(self) -> bool:
        return not self._thread.is_alive() and self.ended is None

    # ── the thread ────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        batch: Batch | None = None
        try:
            while self.ended is None:
                batch = None
                self._refresh()
                with self._queue.changed:
                    self._queue.wait(lambda: self._partitions.heartbeats_at)
                    is_last = self._queue.is_closing
                    batch = Batch(self._queue.take())
                    is_last = is_last and not self._queue.jobs
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
        batch.messages += self._partitions.before_rows(batch.jobs)
        for job in batch.jobs:
            batch.messages += job.messages
            if job.after is not None:
                batch.streams[job.stream] = job.after
            if job.release is not None:
                batch.messages += self._partitions.release(job)
        oldest = min((job.oldest for job in self._queue.jobs if job.oldest), default=None)
        batch.messages += self._partitions.heartbeats(time.monotonic(), oldest, is_last=is_last)
        if is_last and self.ends_partitions:
            batch.messages += self._partitions.ends()
        if self._partitions.entry != self._recorded:
            batch.session = self._recorded = self._partitions.entry
        records: dict[str, StreamEntry | SessionEntry] = {**batch.streams}
        if batch.session is not None:
            records[self._session] = batch.session
        batch.messages += [
            Message(self._catalog_facts.topic, name.encode(), to_value(entry), 0)
            for name, entry in records.items()
        ]

    def _deliver(self, batch: Batch) -> None:
        """Send until it is committed. Raises `_EndedError` if the session has ended."""
        failure = self._client.commit(batch.messages)
        deadline = time.monotonic() + self._max_retry_s
        attempt, is_unknown = 0, False
        while failure is not None:
            client.log.error("write session %s: %s", self._session, failure.cause)
            is_unknown |= failure.is_unknown
            # With an unknown outcome, a permanent error may not be one of reading the catalog.
            is_hopeless = failure.is_permanent and (failure.is_reading or not is_unknown)
            if is_hopeless or time.monotonic() >= deadline:
                failed = partial(self._failed, cause=failure.cause)
                self._give_up(failed, batch, UNKNOWN if is_unknown else NOT_TAKEN)
            time.sleep(_PAUSES_S[min(attempt, len(_PAUSES_S) - 1)])
            attempt += 1
            try:
                catalog = self._recovered()
            except TakenOverError as error:
                self._taken_over(error.catalog, batch, is_unknown=is_unknown)
            except (BrokerError, TopicError) as error:
                failure = Failure(
                    str(error), False, is_permanent=error.code in _PERMANENT, is_reading=True
                )
                continue
            if batch.is_in(catalog.streams, catalog.sessions.get(self._session)):
                return
            is_unknown = False
            failure = self._client.commit(batch.messages)

    def _recovered(self) -> Catalog:
        """Open a new client, and read the catalog (WRS-3). Raises `TakenOverError` if another
        session of this name was opened.
        """
        self._check_is_owner(self._read(is_complete=False))
        self._client.start()
        catalog = self._read(is_complete=True)
        self._check_is_owner(catalog)
        return catalog

    def _read(self, *, is_complete: bool) -> Catalog:
        return catalogs.read(
            self._kafka,
            self._catalog_facts,
            is_complete=is_complete,
            topic_id=self._facts.topic_id,
            session=self._session,
            owner=self._owner,
        )

    def _check_is_owner(self, catalog: Catalog) -> None:
        if catalog.owner_of(self._session) != self._owner:
            raise TakenOverError(catalog)

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
        self._give_up(self.conflict, batch, UNKNOWN if is_unknown else NOT_TAKEN)

    def _answer(self, batch: Batch) -> None:
        with self._queue.changed:
            self._queue.recorded.update((name, one.end) for name, one in batch.streams.items())
            for job in batch.jobs:
                job.result.give(job.answer)
            self._queue.settled(batch.jobs)

    def _give_up(
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
        with self._queue.changed:
            self.ended = lambda: error(NOT_TAKEN)
            later = list(self._queue.jobs)
            self._queue.jobs.clear()
            for job in [*now.jobs, *later]:
                if self._queue.is_recorded(job):
                    job.result.give(job.answer)
                    continue
                is_open = job in now.jobs or (job.is_repeated and job.stream in now.streams)
                job.result.fail(error(outcome if is_open else NOT_TAKEN))
            self._queue.settled([*now.jobs, *later])

    def _refresh(self) -> None:
        """Once a minute, ask for the number of Kafka partitions, as a `ChangeProducer` does, and
        whether the topics are still the same.
        """
        if time.monotonic() - self._refreshed_at < REFRESH_S:
            return
        self._refreshed_at = time.monotonic()
        try:
            facts = topics.describe(self._kafka, self._facts.topic)
            catalog_facts = topics.describe(self._kafka, self._catalog_facts.topic)
        except (BrokerError, TopicError):
            return  # the next transaction fails, if it is no small trouble
        topics.check_identity(self._facts.topic_id, facts)
        topics.check_identity(self._catalog_facts.topic_id, catalog_facts)
        self._encoding.kafka_partitions = max(
            self._encoding.kafka_partitions, facts.kafka_partitions
        )

    def conflict(self, outcome: str) -> WriterConflictError:
        return WriterConflictError(
            ErrorCode.SESSION_TAKEN_OVER,
            f"Another write session {self._session} of {self._facts.topic} was opened",
            f"It has ended this one. The rows of the append are {outcome}",
            "Stop one of the two programs. If they shall work in parallel, give each its own"
            " session",
            topic=self._facts.topic,
            session=self._session,
            outcome=outcome,
        )

    def _failed(self, outcome: str, cause: str) -> ConnectorError:
        if outcome == UNKNOWN:
            return OutcomeUnknownError(
                ErrorCode.APPEND_OUTCOME_UNKNOWN,
                f"It is unknown whether rows of the write session {self._session} are in"
                f" {self._facts.topic}",
                cause,
                "Open the session again. It reads the outcome: continue at the next offset of each"
                " write stream, or append the same rows at the same offsets",
                session=self._session,
                outcome=outcome,
            )
        return NotSentError(
            ErrorCode.APPEND_NOT_SENT,
            f"Rows of the write session {self._session} are not in {self._facts.topic}",
            cause,
            "Remove the cause and open the session again. Then append the rows again",
            session=self._session,
            outcome=outcome,
        )


class _EndedError(Exception):
    """The session has ended, and all jobs have their answers."""
