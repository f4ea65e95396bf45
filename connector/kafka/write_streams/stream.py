"""One write stream of a session: append, flush, finalize (WRS-5, WRS-7, WRS-10 to WRS-13)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from connector.clock import now_us
from connector.errors import InvalidChangeError, argument_invalid
from connector.errors.write_streams import (
    offset_out_of_range,
    offset_overlap,
    rows_different,
    rows_invalid,
)
from connector.kafka.write_streams.queue import Append, AppendResult, Job, Pending
from connector.records.model import (
    DataChange,
    Entry,
    OffsetRange,
    Rule,
    WriteStreamOffset,
)
from connector.text import counted
from connector.write_streams.model import (
    MAX_APPEND_ROWS,
    MAX_TRANSACTION_BYTES,
    LastAppend,
    StreamEntry,
    StreamKind,
    StreamState,
    digest_of_rows,
)
from connector.write_streams.rules import Fault, Placing, append_fault, fault_error, placing_of

if TYPE_CHECKING:
    from connector.kafka.produce.producer import ChangeProducer
    from connector.kafka.transactions import TransactionMessage
    from connector.kafka.write_streams.sender import Sender
    from connector.tables.published import PublishedTable


class WriteStream:
    """A write stream of a `WriteSession`, which makes it (`WriteSession.stream`).

    - `name` is `session/name`. `kind` never changes.
    - `entry` is its record, with what is in flight.
    """

    def __init__(
        self,
        sender: Sender,
        name: str,
        entry: StreamEntry,
        staging_retention: int,
        session: object,
    ) -> None:
        self._sender, self.name, self.kind, self.entry = sender, name, entry.kind, entry
        self._staging_retention = staging_retention
        self._session = session  # a session that nothing refers to is closed (PUB-8)

    @property
    def state(self) -> StreamState:
        """The state, as this session knows it. A commit or a discard is made by others."""
        return self.entry.state

    def published_tables(self) -> dict[str, PublishedTable]:
        """Return the newest published definition of each table of the topic (EVO-1). Raises as
        `connector.kafka.published_tables` does.
        """
        return self._sender.published_tables()

    def row(
        self,
        *,
        table: str,
        row_key: bytes,
        entries: Iterable[Entry],
        commit_timestamp: int | None = None,
        **fields: Any,
    ) -> DataChange:
        """Return a row of this write stream. `append` sets its offset.

        Args:
            table: As in `DataChange`.
            row_key: As in `DataChange`.
            entries: As in `DataChange`.
            commit_timestamp: In microseconds. It is required in a committed write stream. In the
                other kinds, the release has it.
            fields: Further fields of `DataChange`.

        Raises:
            InvalidChangeError: A value breaks a limit.
            ConfigError: The commit timestamp is missing, or must be left out.
        """
        is_committed = self.kind is StreamKind.COMMITTED
        if is_committed != (commit_timestamp is not None):
            allowed = "a time in microseconds" if is_committed else "left out: the release has it"
            raise argument_invalid("commit_timestamp", commit_timestamp, allowed)
        return DataChange(
            stream_partition=self._sender.partitions.rows,
            table=table,
            row_key=row_key,
            entries=tuple(entries),
            commit_timestamp=commit_timestamp or 0,
            write_stream=WriteStreamOffset(self.name, 0),
            **fields,
        )

    def next_offset(self) -> int:
        """Return the offset of the next row, appends in flight included."""
        return self.entry.end

    def append(self, changes: Sequence[DataChange], offset: int | None = None) -> Append:
        """Append rows. They are taken together, or none of them.

        All checks are made at once. The transaction comes later: `Append.result` waits for it. The
        method blocks while the session has too many rows or bytes in flight.

        Args:
            changes: 1 to 1,000 rows that `row` made, with at most 64 MiB. The offset in their
                `write_stream` does not matter.
            offset: The offset of the first row. With it, a repeated append changes nothing. None:
                the rows are taken at the end, and an append that you repeat may be there twice.

        Returns:
            The append. If the rows at this offset are taken already, its result is `repeated`.

        Raises:
            RowErrors: Rows are not valid. Nothing is sent.
            OffsetError: Some of the offsets are taken, or the offset is after the end, or the last
                append at this offset had other rows. Nothing is sent.
            WriteStreamError: The write stream is finalized, committed, discarded or expired.
            QueueFullError: There was no space for a minute. Nothing is sent.
            ConfigError: The number of rows, their size or the offset is not allowed.
            DeliveryError, WriterConflictError: The session has ended.
        """
        rows = list(changes)
        if not 1 <= len(rows) <= MAX_APPEND_ROWS:
            raise argument_invalid("changes", len(rows), f"1 to {MAX_APPEND_ROWS} rows")
        if offset is not None and offset < 0:
            raise argument_invalid("offset", offset, "an offset from 0, or None")
        with self._sender.calls:
            self._check_takes_rows()
            end, last = self.entry.end, self.entry.last
            start, now = end if offset is None else offset, now_us()
            messages, digest = self._encoded(rows, start, now, is_new=start == end)
            placing = placing_of(end, last, offset, len(rows), digest)
            append = Append()
            if placing is Placing.REPEATED:
                answer = AppendResult(start, len(rows), len(rows))
                self._sender.put(Job(append, answer, self.name))
                return append
            self._check_placing(placing, start, len(rows))
            after = self.entry.appended(LastAppend(start, len(rows), digest, now))
            times = [row.commit_timestamp for row in rows if row.commit_timestamp]
            self._sender.put(
                Job(
                    append,
                    AppendResult(start, len(rows)),
                    self.name,
                    after,
                    messages,
                    len(rows),
                    sum(message.size for message in messages),
                    min(times, default=0),
                    max(times, default=0),
                )
            )
            self.entry = after
            return append

    def flush_rows(self, upto: int, *, through: ChangeProducer | None = None) -> int:
        """Release the rows of a buffered write stream below an offset, and wait for it (WRS-12).

        Args:
            upto: The offset after the last row that becomes visible.
            through: A producer of this process. The release gets its commit timestamp in one of the
                stream partitions of the producer. None: the session has a stream partition for it.

        Returns:
            The flushed offset. It is more than `upto` if a later one was flushed before.

        Raises:
            OffsetError: `upto` is after the end.
            WriteStreamError: The write stream is of another kind, finalized, discarded or expired.
            WriteStreamError: `through` has no live stream partition.
            DeliveryError, WriterConflictError: The session has ended.
        """
        if upto < 0:
            raise argument_invalid("upto", upto, "an offset from 0")
        with nullcontext() if through is None else through.hold_release() as release:
            with self._sender.calls:
                if self.kind is not StreamKind.BUFFERED:
                    raise fault_error(Fault.WRONG_KIND, self.name)
                self._check_takes_rows()
                entry = self.entry
                if upto > entry.end:
                    raise offset_out_of_range(self.name, entry.end, upto)
                flushed: Pending[int] = Pending()
                job = Job(flushed, max(upto, entry.flushed), self.name)
                if upto > entry.flushed:
                    job.after = replace(entry, flushed=upto)
                    job.release = OffsetRange(self.name, entry.flushed, upto)
                    job.held = release
                self._sender.put(job, is_urgent=True)
                self.entry = job.after or entry
            return flushed.result()

    def finalize(self) -> int:
        """End the write stream: it takes no appends any more. Wait for it (WRS-13).

        Only a pending write stream must be finalized, before its commit. Rows of a buffered one
        that are not flushed never become visible.

        Returns:
            The number of rows. A repeated call returns it, too.

        Raises:
            WriteStreamError: The write stream is discarded or expired.
            DeliveryError, WriterConflictError: The session has ended.
        """
        with self._sender.calls:
            entry = self.entry
            fault = append_fault(entry, now_us(), self._staging_retention)
            if fault in (Fault.DISCARDED, Fault.EXPIRED):
                raise fault_error(fault, self.name)
            finalized: Pending[int] = Pending()
            job = Job(finalized, entry.end, self.name)
            if fault is None:
                at = entry.changed_at or now_us()
                job.after = replace(entry, state=StreamState.FINALIZED, changed_at=at)
            self._sender.put(job, is_urgent=True)
            self.entry = job.after or entry
        return finalized.result()

    def _check_placing(self, placing: Placing, start: int, rows: int) -> None:
        """Raises `OffsetError` if the rows are not taken."""
        match placing:
            case Placing.OUT_OF_RANGE:
                raise offset_out_of_range(self.name, self.entry.end, start)
            case Placing.OVERLAP:
                raise offset_overlap(self.name, self.entry.end, start, rows)
            case Placing.DIFFERENT:
                raise rows_different(self.name, self.entry.end, start, rows)

    def _check_takes_rows(self) -> None:
        self._sender.check_open()
        fault = append_fault(self.entry, now_us(), self._staging_retention)
        if fault is not None:
            raise fault_error(fault, self.name)

    def _encoded(
        self, rows: list[DataChange], start: int, now: int, *, is_new: bool
    ) -> tuple[list[TransactionMessage], str]:
        """Check and encode rows. Raises `RowErrors`, and `ConfigError` if all are too large."""
        messages: list[TransactionMessage] = []
        digested: list[bytes] = []
        errors: dict[int, InvalidChangeError] = {}
        encoding, closed_to = self._sender.encoding, self._sender.partitions.closed_to
        for index, row in enumerate(rows):
            try:
                self._check(row, closed_to if is_new else 0)
                message, digest_bytes = encoding.row(row, start + index, now)
            except InvalidChangeError as error:
                errors[index] = error
                continue
            messages.append(message)
            digested.append(digest_bytes)
        if errors:
            index, first = next(iter(errors.items()))
            cause = f"Row {index}: {first.problem}"
            raise rows_invalid(self.name, counted(len(errors), "row"), cause, errors)
        size = sum(message.size for message in messages)
        if size > MAX_TRANSACTION_BYTES:
            raise argument_invalid("changes", size, f"at most {MAX_TRANSACTION_BYTES} bytes")
        return messages, digest_of_rows(digested)

    def _check(self, row: DataChange, closed_to: int) -> None:
        """Raises `InvalidChangeError` if a row is not one of this write stream, or too early."""
        if row.write_stream is None:
            raise InvalidChangeError(Rule.WRITE_STREAM, "write_stream", "a row of it", row)
        if row.write_stream.stream != self.name:
            raise InvalidChangeError(
                Rule.WRITE_STREAM, "write_stream", f"of {self.name}", row.write_stream.stream
            )
        if row.stream_partition != self._sender.partitions.rows:
            limit = f"{self._sender.partitions.rows}, that of the session"
            raise InvalidChangeError(
                Rule.STREAM_PARTITION, "stream_partition", limit, row.stream_partition
            )
        if row.is_staged != (self.kind is not StreamKind.COMMITTED):
            limit = "0" if self.kind is not StreamKind.COMMITTED else "a time in microseconds"
            raise InvalidChangeError(
                Rule.COMMIT_TIMESTAMP,
                "commit_timestamp",
                f"{limit} in a {self.kind} write stream",
                row.commit_timestamp,
            )
        if row.estimated_low_watermark:
            raise InvalidChangeError(
                Rule.ESTIMATED_LOW_WATERMARK,
                "estimated_low_watermark",
                "0: report the position of a session with reached",
                row.estimated_low_watermark,
            )
        if not row.is_staged and row.commit_timestamp <= closed_to:
            raise InvalidChangeError(
                Rule.COMMIT_TIMESTAMP,
                "commit_timestamp",
                f"after {closed_to}, the position reported with reached",
                row.commit_timestamp,
                "Append all rows up to a time before you report it",
            )
