"""A write session: the transactional producer of its write streams (WRS-2, WRS-3)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from connector.clock import now_us
from connector.errors import InvalidChangeError, argument_invalid
from connector.errors.write_streams import write_streams_too_many
from connector.kafka import topics
from connector.kafka.transactions import TransactionClient
from connector.kafka.unclosed import try_after, watch
from connector.kafka.write_streams.catalog import SessionCatalog
from connector.kafka.write_streams.messages import Encoding, SessionPartitions
from connector.kafka.write_streams.queue import Batching, JobQueue
from connector.kafka.write_streams.sender import Sender
from connector.kafka.write_streams.stream import WriteStream
from connector.records.model import Heartbeat, Rule
from connector.validation import Limits
from connector.write_streams.model import (
    MAX_OPEN_STREAMS,
    STAGING_RETENTION_S,
    StreamEntry,
    StreamKind,
    StreamState,
    check_name,
)
from connector.write_streams.rules import Fault, fault_error

if TYPE_CHECKING:
    from connector.config.settings import KafkaConfig, RegistryConfig
    from connector.kafka.topics import TopicFacts
    from connector.records.model import DataChange


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
        batching: Batching | None = None,
        limits: Limits | None = None,
        registry: RegistryConfig | None = None,
        heartbeat_s: float = 1.0,
        staging_retention_s: int = STAGING_RETENTION_S,
    ) -> None:
        """Open the session: end an earlier one of this name, and read the catalog. This may take a
        transaction time-out (60 s), if a session of the topic died.

        Args:
            kafka: The brokers and client settings.
            topic: The name of the change topic, or the result of `describe`.
            session: The name of the session: 1 to 64 of the characters - _ . a-z A-Z 0-9.
            batching: How appends become transactions. None: the default values of `Batching`.
            limits: The limits of the stream.
            registry: The schema registry, where the schema is looked up.
            heartbeat_s: The interval of heartbeats, 1 to 300 seconds.
            staging_retention_s: After this time without an append, a pending or buffered write
                stream is expired. Use the value of the stream.

        Raises:
            TopicError: There is no such topic or no catalog, or the topic is compacted, or it was
                deleted and created again.
            BrokerError: No broker or no registry answers, or it does not have the schema.
            ConfigError: A client setting or another argument is not allowed.
            WriterConflictError: Another session of this name is opened at the same time.
        """
        self.name = check_name("session", session)
        facts = topics.describe(kafka, topic) if isinstance(topic, str) else topic
        self.warnings, self.topic = topics.check(facts), facts.topic
        catalog = SessionCatalog(kafka, facts, session)
        encoding = Encoding(facts, registry, limits or Limits())
        client = TransactionClient(kafka, catalog.transactional_id, facts.max_message_bytes)
        try:
            self._entries = catalog.take_over(client)
            entry = self._entries.sessions[session]
            retention = topics.retention_us(facts)
            partitions = SessionPartitions(session, entry, encoding, retention, heartbeat_s)
        except BaseException:
            client.close()
            raise
        batching = batching or Batching()
        self._catalog, self._queue = catalog, JobQueue(batching)
        self._partitions, self._encoding = partitions, encoding
        self.stream_partition = partitions.rows
        self._staging_retention = staging_retention_s * 1_000_000
        self._streams: dict[str, WriteStream] = {}
        self._sender = Sender(
            catalog, client, self._queue, partitions, encoding, batching.max_retry_s
        )
        self._sender.start()
        self._unwatch = watch(self, self._sender)

    def stream(self, name: str, *, kind: StreamKind | str) -> WriteStream:
        """Open a write stream of this session, or continue it.

        Args:
            name: The name in the session: 1 to 64 of the characters - _ . a-z A-Z 0-9.
            kind: "committed", "buffered" or "pending". It never changes.

        Returns:
            The write stream. Equal names give the same one.

        Raises:
            WriteStreamError: The write stream is of another kind, or the topic has 1,000 open
                pending or buffered ones.
            ConfigError: The name or the kind is not allowed.
        """
        kinds = [str(kind_) for kind_ in StreamKind]
        if kind not in kinds:
            raise argument_invalid("kind", kind, f"one of {', '.join(kinds)}")
        full = f"{self.name}/{check_name('name', name)}"
        with self._sender.calls:
            self._sender.check_open()
            stream = self._streams.get(full)
            if stream is None:
                entry = self._entries.streams.get(full)
                if entry is None:
                    entry = StreamEntry(StreamKind(kind))
                    if entry.kind is not StreamKind.COMMITTED:
                        self._check_open_streams()
                    self._entries.streams[full] = entry
                stream = WriteStream(self._sender, full, entry, self._staging_retention, self)
                with self._queue.changed:
                    self._queue.recorded.setdefault(full, entry.end)
            if stream.kind != kind:
                raise fault_error(Fault.WRONG_KIND, full)
            self._streams[full] = stream
            return stream

    def check_row(self, row: DataChange) -> None:
        """Raise `InvalidChangeError` if a row is too large or too old to be published."""
        self._encoding.row(row, 0, now_us())

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
            DeliveryError, WriterConflictError: The session has ended.
        """
        self._encoding.everywhere(Heartbeat(self.stream_partition, timestamp, resume_token), [])
        with self._sender.calls, self._queue.changed:
            self._sender.check_open()
            if timestamp < (closed_to := self._partitions.closed_to):
                limit = f"at or after {closed_to}, which was reported before"
                raise InvalidChangeError(Rule.HEARTBEAT_TIMESTAMP, "timestamp", limit, timestamp)
            self._partitions.reached(timestamp, resume_token, time.monotonic())
            self._queue.changed.notify_all()

    def flush(self, timeout_s: float | None = None) -> None:
        """Send what is queued at once, and wait until all appends have their results.

        Args:
            timeout_s: How long to wait. None: until all are known.

        Raises:
            DeliveryError, WriterConflictError: The session has ended.
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
            DeliveryError, WriterConflictError: The session has ended.
            DeliveryError: Results are missing after `timeout_s`.
        """
        if self._sender.is_closed:
            return
        with self._sender.calls, self._queue.changed:
            self._sender.is_closed = True
        self._unwatch()
        self._sender.close(timeout_s, ends_partitions=ends_partition)

    def _check_open_streams(self) -> None:
        """Raises `WriteStreamError` if the topic has too many open write streams (WRS-4)."""
        for is_new in (False, True):
            if is_new:  # other sessions may have ended some
                self._entries.streams.update(self._catalog.read(is_complete=False).streams)
            for name, stream in self._streams.items():
                if stream.state is not StreamState.OPEN:
                    self._entries.streams[name] = stream.entry
            if self._entries.open_staging() < MAX_OPEN_STREAMS:
                return
        raise write_streams_too_many(self.topic, str(MAX_OPEN_STREAMS))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            self.close()
        else:
            # The source may not be delivered up to here, so the stream partition goes on.
            try_after(error, lambda: self.close(timeout_s=5, ends_partition=False))
