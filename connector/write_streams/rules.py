"""Decisions about appends, flushes, commits and discards of write streams (WRS-7, WRS-12 to WRS-15,
WRS-21).

A decision is a value. `fault_error` and `refused` make the exceptions of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum, auto
from typing import Final

from connector.errors import WriteStreamError
from connector.errors.write_streams import (
    write_stream_closed,
    write_stream_missing,
    write_streams_refused,
)
from connector.records.model import OffsetRange
from connector.text import counted
from connector.write_streams.model import (
    LastAppend,
    StreamEntry,
    StreamKind,
    StreamState,
    digest_of_names,
)


class Placing(StrEnum):
    """How an append is treated."""

    TAKEN = auto()
    REPEATED = auto()
    DIFFERENT = auto()
    OVERLAP = auto()
    OUT_OF_RANGE = auto()


class Fault(StrEnum):
    """Why a write stream refuses a request."""

    NOT_FOUND = "NOT_FOUND"
    WRONG_KIND = "WRONG_KIND"
    NOT_FINALIZED = "NOT_FINALIZED"
    FINALIZED = "FINALIZED"
    ALREADY_COMMITTED = "ALREADY_COMMITTED"
    DISCARDED = "DISCARDED"
    EXPIRED = "EXPIRED"


_REASONS: Final[Mapping[Fault, str]] = {
    Fault.WRONG_KIND: "The kind of a write stream never changes. Only buffered write streams are"
    " flushed, only pending ones are committed, and committed ones are never discarded",
    Fault.NOT_FINALIZED: "Its session may still append to it",
    Fault.FINALIZED: "It takes no appends and no flush any more",
    Fault.ALREADY_COMMITTED: "Its rows are released. A commit of exactly the same write streams"
    " answers the same commit timestamp again, and other commits are refused",
    Fault.DISCARDED: "Its rows never become visible",
    Fault.EXPIRED: "It had no append for the staging retention",
}


def fault_error(fault: Fault, stream: str) -> WriteStreamError:
    """Return the error for a write stream that refuses a request."""
    if fault is Fault.NOT_FOUND:
        return write_stream_missing(stream)
    return write_stream_closed(stream, str(fault), _REASONS[fault])


def refused(action: str, faults: Mapping[str, Fault]) -> WriteStreamError:
    """Return the error for several write streams: the fault of each one (WRS-14)."""
    shown = ", ".join(f"{name}: {fault}" for name, fault in list(faults.items())[:5])
    further = f", and {len(faults) - 5} more" if len(faults) > 5 else ""
    return write_streams_refused(
        action,
        counted(len(faults), "write stream"),
        f"{shown}{further}",
        tuple((name, str(fault)) for name, fault in faults.items()),
    )


def placing_of(
    end: int, last: LastAppend | None, offset: int | None, rows: int, digest: str
) -> Placing:
    """Decide about an append of so many rows with this digest (WRS-7).

    `end` is the next free offset, and `last` the newest append, those in flight included. Without
    an `offset`, the rows are taken at the end.
    """
    if offset is None or offset == end:
        return Placing.TAKEN
    if offset > end:
        return Placing.OUT_OF_RANGE
    if offset + rows > end:
        return Placing.OVERLAP
    is_last = last is not None and (offset, rows) == (last.offset, last.rows)
    if is_last and last is not None and digest != last.digest:
        return Placing.DIFFERENT
    return Placing.REPEATED


def is_expired(entry: StreamEntry, now: int, retention: int) -> bool:
    """Return whether a write stream has had no append for `retention` (µs), so that it takes no
    append, no flush and no commit any more (WRS-21). One that is not recorded yet is not expired.
    """
    return entry.is_staging and 0 < entry.changed_at <= now - retention


def append_fault(entry: StreamEntry, now: int, retention: int) -> Fault | None:
    """Return why a write stream takes no append and no flush, or None."""
    match entry.state:
        case StreamState.COMMITTED:
            return Fault.ALREADY_COMMITTED
        case StreamState.DISCARDED:
            return Fault.DISCARDED
        case StreamState.FINALIZED:
            return Fault.FINALIZED
    return Fault.EXPIRED if is_expired(entry, now, retention) else None


def commit_fault(entry: StreamEntry | None, now: int, retention: int) -> Fault | None:
    """Return why a write stream cannot be committed, or None (WRS-14)."""
    if entry is None:
        return Fault.NOT_FOUND
    if entry.kind is not StreamKind.PENDING:
        return Fault.WRONG_KIND
    match entry.state:
        case StreamState.COMMITTED:
            return Fault.ALREADY_COMMITTED
        case StreamState.DISCARDED:
            return Fault.DISCARDED
    if is_expired(entry, now, retention):
        return Fault.EXPIRED
    return Fault.NOT_FINALIZED if entry.state is StreamState.OPEN else None


def discard_fault(entry: StreamEntry | None, now: int, retention: int) -> Fault | None:
    """Return why a write stream cannot be discarded, or None. It must be finalized or expired,
    because its session would go on otherwise. A discarded one may be discarded again.
    """
    if entry is None:
        return Fault.NOT_FOUND
    if entry.kind is StreamKind.COMMITTED:
        return Fault.WRONG_KIND
    if entry.state is StreamState.COMMITTED:
        return Fault.ALREADY_COMMITTED
    is_open = entry.state is StreamState.OPEN and not is_expired(entry, now, retention)
    return Fault.NOT_FINALIZED if is_open else None


def recorded_commit(streams: Mapping[str, StreamEntry], names: Iterable[str]) -> int | None:
    """Return the commit timestamp of an earlier commit of exactly these write streams, or None
    (WRS-14).
    """
    names = list(names)
    of_set = digest_of_names(names)
    entries = [streams.get(name) for name in names]
    if all(entry is not None and entry.commit_set == of_set for entry in entries):
        return next(entry.commit_timestamp for entry in entries if entry is not None)
    return None


def commit(
    streams: Mapping[str, StreamEntry], names: Iterable[str], commit_timestamp: int
) -> tuple[dict[str, StreamEntry], list[OffsetRange]]:
    """Commit finalized write streams. Return their new records, and the ranges of the release.

    A write stream without rows has no range.
    """
    names = list(names)
    of_set = digest_of_names(names)
    committed = {
        name: replace(
            streams[name],
            state=StreamState.COMMITTED,
            flushed=streams[name].end,
            commit_timestamp=commit_timestamp,
            commit_set=of_set,
        )
        for name in names
    }
    ranges = [OffsetRange(name, 0, entry.end) for name, entry in committed.items() if entry.end]
    return committed, ranges


def release_timestamp(now: int, last_heartbeat: int, last_release: int) -> int:
    """Return the commit timestamp (µs) of a release in a live stream partition (WRS-15)."""
    return max(now, last_heartbeat + 1, last_release + 1)
