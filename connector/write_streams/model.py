"""Write streams as the catalog has them: kinds, states, limits, and the stored records (WRS-1 to
WRS-4).

The key of a record is the name of the write stream, `session/name`, or the name of the session. A
value is a JSON object.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from connector.errors import argument_invalid
from connector.records.model import MAX_RANGES
from connector.stored import from_text, to_stored

MAX_OPEN_STREAMS: Final = 1_000
"""Open pending or buffered write streams of a topic."""

MAX_OFFSET: Final = 2**63 - 1
MAX_APPEND_ROWS: Final = 1_000
MAX_TRANSACTION_BYTES: Final = 64 * 1024 * 1024
MAX_COMMIT_STREAMS: Final = MAX_RANGES
STAGING_RETENTION_S: Final = 7 * 86_400
"""How long a pending or buffered write stream lives without an append (WRS-21)."""

_is_name: Final = re.compile(r"[-_.a-zA-Z0-9]{1,64}").fullmatch
_CATALOG: Final = ".write-streams"


class StreamKind(StrEnum):
    """When the rows of a write stream are visible.

    - `COMMITTED`: after ingest.
    - `BUFFERED`: up to the offset of the last `flush_rows`.
    - `PENDING`: at the commit of the write stream, all rows together.
    """

    COMMITTED = "committed"
    BUFFERED = "buffered"
    PENDING = "pending"


class StreamState(StrEnum):
    """How far a write stream is.

    - `OPEN`: it takes rows.
    - `FINALIZED`: it takes no more rows.
    - `COMMITTED`: all its rows are released. Only pending ones are committed.
    - `DISCARDED`: its rows that are not released never become visible.
    """

    OPEN = "open"
    FINALIZED = "finalized"
    COMMITTED = "committed"
    DISCARDED = "discarded"


@dataclass(frozen=True, slots=True)
class LastAppend:
    """The newest append: its first offset, its number of rows, their digest, and its time (µs)."""

    offset: int
    rows: int
    digest: str
    at: int


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """A write stream in the catalog.

    - `end` is the next free offset. Offsets below `flushed` are released.
    - `changed_at` is the time (µs) of the last append, or of the first record.
    - `commit_timestamp` is that of the commit of a pending write stream, or 0.
    - `commit_set` is the digest of the names that were committed together (`digest_of_names`).
    """

    kind: StreamKind
    state: StreamState = StreamState.OPEN
    end: int = 0
    flushed: int = 0
    changed_at: int = 0
    commit_timestamp: int = 0
    commit_set: str = ""
    last: LastAppend | None = None

    @property
    def is_staging(self) -> bool:
        """Whether it may still have rows that wait for a release."""
        is_settled = self.state in (StreamState.COMMITTED, StreamState.DISCARDED)
        return self.kind is not StreamKind.COMMITTED and not is_settled

    def appended(self, append: LastAppend) -> StreamEntry:
        end = append.offset + append.rows
        return replace(self, end=end, changed_at=append.at, last=append)

    def covers(self, other: StreamEntry) -> bool:
        """Return whether this is `other`, or a later record of the same write stream."""
        order = list(StreamState)
        return (
            self.end >= other.end
            and self.flushed >= other.flushed
            and order.index(self.state) >= order.index(other.state)
        )


@dataclass(frozen=True, slots=True)
class SessionEntry:
    """A session in the catalog: the id of its owner, and its live stream partitions.

    `number` is part of the names of the stream partitions. It increases when they end, because a
    stream partition that has ended cannot begin again. `topic_id` is that of the change topic when
    the session was opened, or empty.
    """

    owner: str
    number: int = 1
    announced: tuple[str, ...] = ()
    topic_id: str = ""


@dataclass(slots=True)
class Catalog:
    """The newest records of a catalog topic, in the order of their offsets.

    `before` is the copy of `streams` from before the first record of another owner of `session`,
    after one of `owner`. None: there is no such record.
    """

    session: str = ""
    owner: str = ""
    streams: dict[str, StreamEntry] = field(default_factory=dict)
    sessions: dict[str, SessionEntry] = field(default_factory=dict)
    before: dict[str, StreamEntry] | None = None
    _is_ours: bool = False

    def add(self, key: str, value: bytes) -> None:
        """Add a record. Raises `ValueError` if it is not one of the catalog."""
        text = value.decode()
        if "/" in key:
            stream = from_text(StreamEntry, text)
            if not 0 <= stream.flushed <= stream.end <= MAX_OFFSET:
                raise ValueError(f"flushed {stream.flushed} and end {stream.end} are not offsets")
            self.streams[key] = stream
            return
        entry = from_text(SessionEntry, text)
        self.sessions[key] = entry
        if key == self.session and self.owner:
            if entry.owner == self.owner:
                self._is_ours = True
            elif self._is_ours and self.before is None:
                self.before = dict(self.streams)

    def owner_of(self, session: str) -> str:
        return self.sessions[session].owner if session in self.sessions else ""

    def other_topic(self, topic_id: str) -> str | None:
        """Return the id of an earlier change topic of this name that sessions wrote to, or None."""
        ids = {session.topic_id for session in self.sessions.values()} - {"", topic_id}
        return min(ids, default=None)

    def open_staging(self) -> int:
        """Return the number of pending and buffered write streams that are open (WRS-4)."""
        return sum(
            stream.is_staging and stream.state is StreamState.OPEN
            for stream in self.streams.values()
        )


def to_value(entry: StreamEntry | SessionEntry) -> bytes:
    """Return the value of the record of an entry."""
    return json.dumps(to_stored(entry), separators=(",", ":")).encode()


def catalog_topic(topic: str) -> str:
    """Return the name of the catalog of a change topic (WRS-3)."""
    return f"{topic}{_CATALOG}"


def topic_of_catalog(topic: str) -> str:
    """Return the change topic that a catalog belongs to. Other topics are returned unchanged."""
    return topic.removesuffix(_CATALOG)


def check_name(argument: str, name: object) -> str:
    """Return the name of a session or of a write stream within its session. Raises `ConfigError` if
    it is not one.
    """
    if not isinstance(name, str) or not _is_name(name):
        raise argument_invalid(argument, name, "1 to 64 of the characters - _ . a-z A-Z 0-9")
    return name


def check_stream_names(streams: Iterable[str]) -> list[str]:
    """Return the different names of write streams, sorted. Raises `ConfigError` if there are none,
    or more than 1,000, or one is not like `session/name`.
    """
    if not isinstance(streams, Iterable):
        raise argument_invalid("streams", streams, "names of write streams, such as job/rows")
    names = [streams] if isinstance(streams, str) else list(streams)
    for name in names:
        parts = name.split("/") if isinstance(name, str) else []
        if len(parts) != 2 or not all(map(_is_name, parts)):
            raise argument_invalid("streams", name, "names of write streams, such as job/rows")
    names = sorted(set(names))
    if not 1 <= len(names) <= MAX_COMMIT_STREAMS:
        raise argument_invalid(
            "streams", len(names), f"1 to {MAX_COMMIT_STREAMS} names of write streams"
        )
    return names


def session_id(topic: str, session: str) -> str:
    """Return the transactional id of a session (WRS-2)."""
    return f"lowmark.{topic}/session/{session}"


def commit_id(topic: str) -> str:
    """Return the transactional id of commits (WRS-14)."""
    return f"lowmark.{topic}/commit"


def stream_partition_of(session: str, number: int) -> str:
    """Return the name of the stream partition of the rows of a session (WRS-10)."""
    return f"write-session/{session}/{number}"


def release_partition_of(session: str, number: int) -> str:
    """Return the name of the stream partition of the releases of a session (WRS-15)."""
    return f"write-session/{session}/{number}/releases"


def digest_of_names(names: Iterable[str]) -> str:
    return hashlib.blake2b("\n".join(sorted(names)).encode(), digest_size=16).hexdigest()


def digest_of_rows(rows: Iterable[bytes]) -> str:
    """Return the digest of the rows of an append. The bytes of a row show where it ends."""
    return hashlib.blake2b(b"".join(rows), digest_size=16).hexdigest()
