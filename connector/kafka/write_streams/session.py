"""A write session: the transactional producer of its write streams (WRS-2, WRS-3)."""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self

from connector.errors import (
    BrokerError,
    ConnectorError,
    ErrorCode,
    InvalidChangeError,
    WriterConflictError,
    argument_invalid,
)
from connector.kafka import topics
from connector.kafka.client import LOOK_UP, REMEDIES
from connector.kafka.unclosed import watch
from connector.kafka.write_streams import catalog as catalogs
from connector.kafka.write_streams.encoding import Encoding
from connector.kafka.write_streams.partitions import SessionPartitions
from connector.kafka.write_streams.queue import Job, JobQueue, QueueLimits
from connector.kafka.write_streams.sender import Sender
from connector.kafka.write_streams.stream import WriteStream
from connector.kafka.write_streams.transaction import Message, TransactionClient
from connector.records.model import Heartbeat, Rule
from connector.write_streams.model import (
    MAX_OPEN_STREAMS,
    STAGING_RETENTION_S,
    Catalog,
    SessionEntry,
    StreamEntry,
    StreamKind,
    StreamState,
    check_name,
    session_id,
    to_value,
)
from connector.write_streams.problems import state_error, too_many_streams
from connector.write_streams.rules import Fault

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from connector.config.settings import KafkaConfig, RegistryConfig
    from connector.kafka.topics import TopicFacts

OPEN_TIMEOUT_S: Final = 150.0


class WriteSession:
    """Appends rows to the write streams of a session, each row exactly once.

    A session has one owner: to open it ends an earlier session of this name, in this or in another
    process. That one then raises `WriterConflictError`. Give each parallel worker its own session.

    Use it as a context manager. Its methods may be called from several threads. A thread of the
    session sends the transactions. Do not use it in a process that was forked after it was opened.
    If the program ends without `close`, the session is closed, and its stream partition goes on
    (PUB-8).

    - `stream_partition` is that of the rows of its committed write streams. It ends with `close`,
      and the next session has another one.
    - `warnings` are sentences about wrong settings of the topic.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        topic: str | TopicFacts,
        session: str,
        *,
        linger_s: float = 0.05,
        transaction_rows: int = 1_000,
        transaction_bytes: int = 8 * 1024 * 1024,
        max_in_flight_rows: int = 100_000,
        max_in_flight_bytes: int = 64 * 1024 * 1024,
        queue_timeout_s: float = 60.0,
        max_retry_s: float = 300.0,
        heartbeat_s: float = 1.0,
        registry: RegistryConfig | None = None,
        max_record_bytes: int = 10_000_000,
        min_commit_timestamp: int = 0,
        staging_retention_s: int = STAGING_RETENTION_S,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Open the session: end an earlier one of this name, and read the catalog.

        This may take a transaction time-out (60 s), if a session of the topic died.

        Args:
            kafka: The brokers and client settings.
            topic: The name of the change topic, or the result of `describe`.
            session: The name of the session: 1 to 64 of the characters - _ . a-z A-Z 0-9.
            linger_s: How long an append waits for others before its transaction is sent.
            transaction_rows: The rows at which a transaction is sent at once.
            transaction_bytes: The bytes at which a transaction is sent at once.
            max_in_flight_rows: How many rows may have no result. Then `append` blocks.
            max_in_flight_bytes: The same for bytes. A larger append is sent alone.
            queue_timeout_s: How long `append` blocks. 0: it raises at once.
            max_retry_s: How long a transaction is tried again. Then the session ends.
            heartbeat_s: The interval of heartbeats, 1 to 300 seconds.
            registry: The schema registry, where the schema is looked up.
            max_record_bytes: The limit for key and value together.
            min_commit_timestamp: The least commit timestamp, in microseconds.
            staging_retention_s: After this time without an append, a pending or buffered write
                stream is expired. Use the value of the stream.
            settings: Client settings for this session only.

        Raises:
            TopicError: There is no such topic or no catalog, or the topic is compacted, or it was
                deleted and created again.
            BrokerError: No broker answers.
            RegistryError: The registry does not answer, or does not have the schemas.
            ConfigError: A client setting or another argument is not allowed.
            WriterConflictError: Another session of this name is opened at the same time.
        """
        self.name = check_name("session", session)
        self._kafka = (
            kafka if not settings else replace(kafka, settings={**kafka.settings, **settings})
        )
        facts = topics.describe(self._kafka, topic) if isinstance(topic, str) else topic
        self.warnings = topics.check(facts)
        self.topic, self._topic_id = facts.topic, facts.topic_id
        self._catalog_facts = catalogs.describe(self._kafka, facts.topic)
        self.encoding = Encoding(facts, registry, max_record_bytes, min_commit_timestamp)
        self.staging_retention = staging_retention_s * 1_000_000
        self._owner = uuid.uuid4().hex
        client = TransactionClient(
            self._kafka, session_id(facts.topic, session), facts.max_message_bytes
        )
        try:
            self._catalog = self._take_over(client, time.monotonic() + OPEN_TIMEOUT_S)
            entry = self._catalog.sessions[session]
            retention_ms = facts.retention_ms if facts.retention_ms >= 0 else 7 * 86_400_000
            self._partitions = SessionPartitions(
                session, entry, self.encoding, retention_ms * 1000, heartbeat_s
            )
        except BaseException:
            client.close()
            raise
        limits = QueueLimits(
            linger_s,
            transaction_rows,
            transaction_bytes,
            max_in_flight_rows,
            max_in_flight_bytes,
            queue_timeout_s,
        )
        self._queue = JobQueue(limits)
        self.stream_partition = self._partitions.rows
        self.calls = threading.RLock()
        self._streams: dict[str, WriteStream] = {}
        self._closed = False
        self._sender = Sender(
            self._kafka,
            facts,
            self._catalog_facts,
            session,
            self._owner,
            client,
            self._queue,
            self._partitions,
            self.encoding,
            max_retry_s,
        )
        self._sender.start()
        self._unwatch = watch(self, self._sender)

    @property
    def closed_to(self) -> int:
        """The last position of `reached` (µs). Committed rows must be after it."""
        return self._partitions.closed_to

    def stream(self, name: str, *, kind: StreamKind | str) -> WriteStream:
        """Open a write stream of this session, or continue it.

        Args:
            name: The name in the session: 1 to 64 of the characters - _ . a-z A-Z 0-9.
            kind: "committed", "buffered" or "pending". It never changes.

        Returns:
            The write stream. Equal names give the same one.

        Raises:
            StreamStateError: The write stream is of another kind, or the topic has 1,000 open
                pending or buffered ones.
            ConfigError: The name or the kind is not allowed.
        """
        kinds = [str(one) for one in StreamKind]
        if kind not in kinds:
            raise argument_invalid("kind", kind, f"one of {', '.join(kinds)}")
        full = f"{self.name}/{check_name('name', name)}"
        with self.calls:
            self.check_open()
            stream = self._streams.get(full)
            if stream is None:
                entry = self._catalog.streams.get(full)
                if entry is None:
                    entry = StreamEntry(StreamKind(kind))
                    if entry.kind is not StreamKind.COMMITTED:
                        self._check_open_streams()
                    self._catalog.streams[full] = entry
                stream = WriteStream(self, full, entry)
                with self._queue.changed:
                    self._queue.recorded.setdefault(full, entry.end)
            if stream.kind != kind:
                raise state_error(Fault.WRONG_KIND, full)
            self._streams[full] = stream
            return stream

    def reached(self, timestamp: int, resume_token: bytes = b"") -> None:
        """Report that every row of the committed write streams with a commit timestamp at or below
        `timestamp` was appended (WRS-10, PUB-1).

        The session then sends heartbeats. It does not wait. A later row at or below `timestamp` is
        one of `RowErrors`. Go on calling it while the source is silent.

        Args:
            timestamp: The position, in microseconds. It is never less than the one before.
            resume_token: The position in the source.

        Raises:
            InvalidChangeError: A value breaks a limit, or `timestamp` is before the last one.
            NotSentError, OutcomeUnknownError, WriterConflictError: The session has ended.
        """
        self.encoding.everywhere(Heartbeat(self.stream_partition, timestamp, resume_token), [])
        with self.calls, self._queue.changed:
            self.check_open()
            if timestamp < self.closed_to:
                limit = f"at or after {self.closed_to}, which was reported before"
                raise InvalidChangeError(Rule.HEARTBEAT_TIMESTAMP, "timestamp", limit, timestamp)
            self._partitions.reached(timestamp, resume_token, time.monotonic())
            self._queue.changed.notify_all()

    def flush(self, timeout_s: float | None = None) -> None:
        """Send what is queued at once, and wait until all appends have their results.

        Args:
            timeout_s: How long to wait. None: until all are known.

        Raises:
            NotSentError, OutcomeUnknownError, WriterConflictError: The session has ended.
            DeliveryError: Results are missing after `timeout_s`.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._queue.changed:
            self._queue.hurry()
            while self._queue.in_flight:
                left_s = None if deadline is None else deadline - time.monotonic()
                if left_s is not None and left_s <= 0:
                    raise self._sender.unanswered(timeout_s or 0)
                self._queue.changed.wait(left_s)
            if self._sender.ended is not None:
                raise self._sender.ended()

    def close(self, timeout_s: float = 130.0, *, ends_partition: bool = True) -> None:
        """Flush, end the stream partition, and close the client. A second call does nothing.

        Args:
            timeout_s: How long to wait.
            ends_partition: False: the next session of this name continues the stream partition.
                Until then, it delays the low watermark of the stream.

        Raises:
            NotSentError, OutcomeUnknownError, WriterConflictError: The session has ended.
            DeliveryError: Results are missing after `timeout_s`.
        """
        if self._closed:
            return
        with self.calls, self._queue.changed:
            self._closed = True
        self._unwatch()
        self._sender.close(timeout_s, ends_partitions=ends_partition)

    # ── for the write streams of the session ──────────────────────────────────────────────────────

    def check_open(self) -> None:
        """Raise the error of a session that has ended."""
        assert not self._closed, "a closed session sends nothing"
        if self._sender.ended is not None:
            raise self._sender.ended()

    def put(self, job: Job, *, is_urgent: bool = False) -> None:
        """Queue a job, when there is space. Raises as `WriteStream.append` does."""
        with self._queue.changed:
            self._queue.wait_for_space(job, self.check_open)
            self.check_open()
            self._queue.put(job, is_urgent=is_urgent)

    # ── opening and closing ───────────────────────────────────────────────────────────────────────

    def _take_over(self, client: TransactionClient, deadline: float) -> Catalog:
        """Become the owner of the session. Return the catalog.

        If the owner changes meanwhile, another session was opened later, and this one gives way.
        """
        earlier: str | None = None
        while True:
            client.start()
            catalog = catalogs.read(
                self._kafka, self._catalog_facts, is_complete=True, topic_id=self._topic_id
            )
            owner = catalog.owner_of(self.name)
            if owner == self._owner:  # the outcome of the transaction was unknown
                return catalog
            if earlier is not None and owner != earlier:
                raise WriterConflictError(
                    ErrorCode.SESSION_TAKEN_OVER,
                    f"Two write sessions {self.name} of {self.topic} were opened at the same time",
                    "The other one was opened later than this one",
                    "Stop one of the two programs. If they shall work in parallel, give each its"
                    " own session",
                    topic=self.topic,
                    session=self.name,
                    outcome="not taken",
                )
            earlier = owner
            entry = replace(
                catalog.sessions.get(self.name, SessionEntry("")),
                owner=self._owner,
                topic_id=self._topic_id,
            )
            failure = client.commit(
                [Message(self._catalog_facts.topic, self.name.encode(), to_value(entry), 0)]
            )
            if failure is None:
                catalog.sessions[self.name] = entry
                return catalog
            if failure.is_permanent or time.monotonic() > deadline:
                raise BrokerError(
                    ErrorCode.SESSION_NOT_OPENED,
                    f"The write session {self.name} of {self.topic} cannot be opened",
                    failure.cause,
                    REMEDIES.get(failure.code, LOOK_UP),
                    topic=self.topic,
                    session=self.name,
                )
            time.sleep(0.1)

    def _check_open_streams(self) -> None:
        """Raises `StreamStateError` if the topic has too many open write streams (WRS-4)."""
        for is_new in (False, True):
            if is_new:  # other sessions may have ended some
                found = catalogs.read(self._kafka, self._catalog_facts, is_complete=False)
                self._catalog.streams.update(found.streams)
            for name, stream in self._streams.items():
                if stream.state is not StreamState.OPEN:
                    self._catalog.streams[name] = stream.entry
            if self._catalog.open_staging() < MAX_OPEN_STREAMS:
                return
        raise too_many_streams(self.topic, MAX_OPEN_STREAMS)

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
            # The source may not be delivered up to here, so the stream partition goes on.
            self.close(timeout_s=5, ends_partition=False)
        except ConnectorError as further:
            error.add_note(f"in addition: {further}")
