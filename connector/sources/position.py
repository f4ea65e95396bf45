"""The position of a bridge in its source: the content of its resume tokens (SRC-1, SRC-2)."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self, TypeVar

import msgspec

from connector.sources.finished import Remembered
from connector.sources.model import BINLOG, LSN, Commit, LogPosition, TopicPartition
from connector.stored import from_stored, to_stored

T = TypeVar("T")
_VERSION: Final = b"2"
_VERSION_1: Final = b"1"
ByTopic = Mapping[str, Mapping[int, T]]
"""A value for each Kafka partition of each topic."""


class Placed(NamedTuple):
    """The newest event of a Kafka partition: its log, its position there, the greatest time so far
    (µs), its own position, a checksum of its key, and its own time (µs). 0: it is not known.
    """

    log: str
    after: LogPosition
    time: int
    at: LogPosition = ()
    key: int = 0
    own_time: int = 0


def placed(commit: Commit, before: Placed | None, key: bytes | None = None) -> Placed:
    """Return an event as the newest one of its partition, behind the one `before`."""
    time = max(commit.time, before.time if before else 0)
    return Placed(commit.log, commit.after, time, commit.at, zlib.crc32(key or b""), commit.time)


class ReadUpTo(NamedTuple):
    """How far a Kafka partition was read: the position of its newest event in the log, checksums of
    the keys of its events there, and their transaction.

    A partition has its events in the order of the log, until the source goes back. So what is not
    behind the newest event was in the partition before.
    """

    position: LogPosition = ()
    keys: frozenset[int] = frozenset()
    transaction: str = ""

    def has(self, commit: Commit, key: bytes | None) -> bool:
        """Return whether an event was in the partition before. False: it is not known."""
        position = _position_of(commit)
        is_there = position == self.position and zlib.crc32(key or b"") in self.keys
        return is_there or () < position < self.position

    def behind(self, commit: Commit, key: bytes | None) -> ReadUpTo:
        """Return how far it was read when an event was added that is not a repetition."""
        position, checksum = _position_of(commit), frozenset((zlib.crc32(key or b""),))
        if position and position == self.position:
            return self._replace(keys=self.keys | checksum)
        if position > self.position or (position and commit.transaction != self.transaction):
            return ReadUpTo(position, checksum, commit.transaction)
        return self


def _position_of(commit: Commit) -> LogPosition:
    """Return the position of an event in the order of the log, or nothing."""
    if not commit.at or commit.log != LSN:
        return commit.at
    return (*commit.after, *commit.at) if commit.after else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePosition:
    """The position of a bridge.

    - `starts` has the offset of the oldest record that was not released, by topic and Kafka
      partition. A partition that is absent is read from its first record.
    - `topic_ids` are those of the topics when they were read.
    - `time` is the newest commit timestamp of a whole transaction (µs). `clocks` has one for each
      Kafka partition, if each has its own, and `afters` the newest event there.
    - `ends` are the greatest ends of finished transactions, by log. `recent`, `floors` and
      `floor_time` are those of `Finished`. `newest` is the commit time (ms) and the position of the
      newest finished one in a binary log.
    - `first_end_at` is Kafka's time of the first end (µs). `unread_ends` is the number of ends that
      could not be read, and whose transactions were not released.
    - `joined` are topics whose first record came after the end of a transaction. Older rows in them
      were never released. `passed` are the partitions that have no such rows any more.
    - `grown` are topics that have got another Kafka partition. `grown_to` has the end offsets of
      such topics, as they were then, if they are known.
    - `lost_before` is an offset of the transaction topic: transactions that end before it may lack
      events that Kafka had deleted before the first start. `is_truncated`: there are such events,
      and no transaction was released yet.
    - `snapshot_at` is Kafka's time of the newest row of a snapshot that was released (µs), unless
      that was incremental.
    - `dropped` are the newest transactions of which events were dropped as repetitions. Each has
      the greatest time of such an event (µs).
    - `read_up_to` says how far each partition was read before its start, if the source may count
      the events of a transaction again.
    - `unfilled` are finished transactions that lacked events, with one bit for each sequence that
      was released, in numbered pieces.
    """

    starts: ByTopic[int]
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    time: int = 0
    clocks: ByTopic[int] = field(default_factory=dict)
    afters: ByTopic[Placed] = field(default_factory=dict)
    ends: Mapping[str, LogPosition] = field(default_factory=dict)
    recent: tuple[Remembered, ...] = ()
    floors: Mapping[str, LogPosition] = field(default_factory=dict)
    floor_time: int = 0
    newest: tuple[int, LogPosition] = (0, ())
    first_end_at: int = 0
    unread_ends: int = 0
    joined: tuple[str, ...] = ()
    passed: tuple[TopicPartition, ...] = ()
    grown: tuple[str, ...] = ()
    grown_to: ByTopic[int] = field(default_factory=dict)
    lost_before: int = 0
    is_truncated: bool = False
    snapshot_at: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    read_up_to: ByTopic[ReadUpTo] = field(default_factory=dict)
    unfilled: Mapping[str, Mapping[int, bytes]] = field(default_factory=dict)

    def token(self) -> bytes:
        """Return the position as a resume token. `parse` is the inverse."""
        return _VERSION + zlib.compress(json.dumps(to_stored(self), separators=(",", ":")).encode())

    @classmethod
    def parse(cls, token: bytes) -> Self:
        """Return the position of a resume token. Raises ValueError if no bridge of this release or
        of the one before wrote it.
        """
        if token[:1] not in (_VERSION, _VERSION_1):
            raise ValueError("it does not begin with the version of this release")
        try:
            text = zlib.decompress(token[1:])
            stored = msgspec.json.decode(text)
            return from_stored(cls, stored if token[:1] == _VERSION else _of_version_1(stored))
        except (zlib.error, RecursionError, TypeError, AttributeError) as error:
            raise ValueError(str(error)) from None


def _of_version_1(stored: dict[str, Any]) -> dict[str, Any]:
    """Return what an older release has stored: it remembered ids without times, and one end."""
    end = stored.pop("end", ())
    log = {1: LSN, 2: BINLOG}.get(len(end), "")
    finished = {"ends": {log: end}, "floors": {log: end}, "floor_time": stored["time"] // 1000}
    recent = [Remembered(name, 0, log, ()) for name in stored.pop("recent", ())]
    joined = tuple(stored.pop("joined", ()))
    stored.pop("afters", None)
    return {**stored, **(finished if log else {}), "recent": recent, "joined": joined}


def by_number(values: Mapping[TopicPartition, T]) -> ByTopic[T]:
    """Return values by topic and Kafka partition. `by_partition` is the inverse."""
    topics: dict[str, dict[int, T]] = {}
    for (topic, kafka_partition), value in sorted(values.items()):
        topics.setdefault(topic, {})[kafka_partition] = value
    return topics


def by_partition(topics: ByTopic[T]) -> dict[TopicPartition, T]:
    """Return the values of `by_number` by partition."""
    return {
        (topic, kafka_partition): value
        for topic, values in topics.items()
        for kafka_partition, value in values.items()
    }
