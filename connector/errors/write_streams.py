"""Write streams: appends, sessions, and commits."""

from __future__ import annotations

from collections.abc import Mapping

from connector.errors import (
    ConfigError,
    DeliveryError,
    InvalidChangeError,
    OffsetError,
    QueueFullError,
    RowErrors,
    WriterConflictError,
    WriteStreamError,
)


def rows_invalid(
    stream: str, invalid: str, cause: str, errors: Mapping[int, InvalidChangeError]
) -> RowErrors:
    return RowErrors(
        "ROWS_INVALID",
        f"{invalid} of an append to the write stream {stream} cannot be published. Nothing was"
        " sent",
        cause,
        "Correct these rows, or store them as dead letters, and append again",
        stream=stream,
        errors=errors,
    )


def rows_refused(
    table: str, invalid: str, cause: str, errors: Mapping[int, InvalidChangeError]
) -> RowErrors:
    return RowErrors(
        "ROWS_INVALID",
        f"{invalid} for table {table} cannot be written. Nothing was sent",
        cause,
        "Correct these rows, or store them as dead letters, and append again",
        stream="",
        errors=errors,
    )


def offset_overlap(stream: str, expected: int, received: int, rows: int) -> OffsetError:
    return OffsetError(
        "OFFSET_OVERLAP",
        f"{rows} rows at offset {received} overlap the end {expected} of the write stream {stream}",
        "Some of the rows have offsets that are taken. Nothing was sent",
        "Append the rows from the end on, at the offset `expected`",
        stream=stream,
        expected=expected,
        received=received,
        rows=rows,
    )


def offset_out_of_range(stream: str, expected: int, received: int) -> OffsetError:
    return OffsetError(
        "OFFSET_OUT_OF_RANGE",
        f"The offset {received} is after the end {expected} of the write stream {stream}",
        "The rows before it are missing: an earlier append failed, or was not made. Nothing was"
        " sent",
        "Append the missing rows first, at the offset `expected`",
        stream=stream,
        expected=expected,
        received=received,
    )


def rows_different(stream: str, expected: int, received: int, rows: int) -> OffsetError:
    return OffsetError(
        "ROWS_DIFFERENT",
        f"The rows at offset {received} of the write stream {stream} are not the rows that were"
        " appended there",
        f"The last append was at this offset with {rows} rows, and their contents differ. Nothing"
        " was sent",
        "Find out why the source gives other rows. To append them, use the offset `expected`",
        stream=stream,
        expected=expected,
        received=received,
        rows=rows,
    )


def append_failed(
    topic: str, session: str, outcome: str, cause: str, undelivered: int = 0
) -> DeliveryError:
    return DeliveryError(
        "APPEND_FAILED",
        f"The outcome of rows of the write session {session} for {topic} is: {outcome}",
        cause,
        "Remove the cause and open the session again. It reads the outcome: continue at the next"
        " offset of each write stream, or append the same rows at the same offsets",
        session=session,
        undelivered=undelivered,
        outcome=outcome,
    )


def session_queue_full(stream: str, in_flight: str, more: str, limit: str) -> QueueFullError:
    return QueueFullError(
        "SESSION_QUEUE_FULL",
        f"The write session has too much in flight: {in_flight}",
        f"With {more}, it would be above max_in_flight_bytes {limit}. Nothing was sent",
        "Wait for results, then append again. If the limit is small for your rows, increase it",
        stream=stream,
    )


def write_stream_missing(stream: str) -> WriteStreamError:
    return WriteStreamError(
        "WRITE_STREAM_MISSING",
        f"There is no write stream {stream}",
        "The catalog does not have it. A write stream is there after its first append, or after"
        " finalize",
        "Check the name: it is that of the session, a slash, and the name in the session",
        stream=stream,
        fault="NOT_FOUND",
    )


def write_stream_closed(stream: str, fault: str, reason: str) -> WriteStreamError:
    """`fault` is the name of a `connector.write_streams.rules.Fault`."""
    return WriteStreamError(
        "WRITE_STREAM_CLOSED",
        f"The write stream {stream} does not allow this: {fault}",
        reason,
        "Use a write stream with another name",
        stream=stream,
        fault=fault,
    )


def write_streams_refused(
    action: str, refused: str, cause: str, faults: tuple[tuple[str, str], ...]
) -> WriteStreamError:
    return WriteStreamError(
        "WRITE_STREAMS_REFUSED",
        f"{refused} cannot be {action}, so none was {action}",
        cause,
        "Finalize those that are NOT_FINALIZED. Correct the other ones, or leave them out",
        faults=faults,
    )


def write_streams_too_many(topic: str, most: str) -> WriteStreamError:
    return WriteStreamError(
        "WRITE_STREAMS_TOO_MANY",
        f"{topic} has {most} open pending or buffered write streams",
        "More are not allowed",
        "Finalize, commit or discard some of them",
        topic=topic,
    )


def producer_without_partition() -> WriteStreamError:
    return WriteStreamError(
        "PRODUCER_WITHOUT_PARTITION",
        "The producer has no live stream partition",
        "A release gets its commit timestamp from a stream partition that the producer has"
        " announced",
        "Send a change or a heartbeat with the producer first",
    )


def committer_busy(topic: str, cause: str) -> WriterConflictError:
    return WriterConflictError(
        "COMMIT_FAILED",
        f"Other programs commit write streams of {topic} all the time",
        cause,
        "Commit the same write streams again. Nothing was committed",
        topic=topic,
    )


def commit_failed(topic: str, cause: str, outcome: str) -> DeliveryError:
    return DeliveryError(
        "COMMIT_FAILED",
        f"A commit of write streams of {topic} failed. Its outcome: {outcome}",
        cause,
        "Commit the same write streams again. If they are committed, the answer is the same commit"
        " timestamp",
        topic=topic,
        outcome=outcome,
    )


def release_unknown(stream: str, write_stream: str, releases: str, remedy: str) -> ConfigError:
    return ConfigError(
        "RELEASE_UNKNOWN",
        f"The write stream {write_stream} of stream {stream} has no such withheld release",
        releases,
        remedy,
        stream=stream,
        write_stream=write_stream,
    )


def release_withheld(stream: str, write_streams: str, commit_timestamp: str) -> WriteStreamError:
    return WriteStreamError(
        "RELEASE_WITHHELD",
        f"The release of {write_streams} of {commit_timestamp} in stream {stream} is withheld: no"
        " table shows its rows",
        "Some of its rows were rejected, or were never sent. The commit itself is done",
        "Repair and replay the dead letters, or release it without the rejected rows",
        stream=stream,
        commit_timestamp=commit_timestamp,
    )


def release_too_late(stream: str, write_streams: str, commit_timestamp: str) -> WriteStreamError:
    return WriteStreamError(
        "RELEASE_TOO_LATE",
        f"The release of {write_streams} of {commit_timestamp} in stream {stream} is too late: no"
        " table shows its rows",
        "Its commit timestamp is below the horizon. The commit itself is done",
        "Release it again, with a new commit timestamp. For a backfill, export the rows again, and"
        " load them while the pipeline runs",
        stream=stream,
        commit_timestamp=commit_timestamp,
    )


def rows_not_shown(
    stream: str, timeout_s: str, commit_timestamp: str, waits_for: str, **fields: object
) -> WriteStreamError:
    return WriteStreamError(
        "ROWS_NOT_SHOWN",
        f"After {timeout_s} s, not every table of stream {stream} shows the rows of the commit of"
        f" {commit_timestamp}",
        f"The commit is done. It waits for {waits_for}",
        "Commit the same write streams again to go on waiting",
        stream=stream,
        **fields,
    )
