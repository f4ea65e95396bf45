"""The records of foreign topics, and their events (SRC-2)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

TopicPartition = tuple[str, int]
"""A topic, and the number of a Kafka partition."""

LogPosition = tuple[int, ...]
"""A position in a log of the source. Positions of one log can be compared."""

LSN: Final = "lsn"
"""The log of PostgreSQL. Its positions are in the order of commits."""
BINLOG: Final = "binlog"
"""The files of a binary log. Their positions are in the order of commits. Another log is that of a
server or of a domain, whose GTIDs are numbered. A replica may commit them in another order.
"""


class SourceFormat(StrEnum):
    """The format of the records of foreign topics."""

    DEBEZIUM_JSON = "debezium-json"
    DEBEZIUM_AVRO = "debezium-avro"
    UPSERT_JSON = "upsert-json"
    UPSERT_AVRO = "upsert-avro"

    @property
    def is_debezium(self) -> bool:
        return self in (SourceFormat.DEBEZIUM_JSON, SourceFormat.DEBEZIUM_AVRO)

    @property
    def is_avro(self) -> bool:
        return self in (SourceFormat.DEBEZIUM_AVRO, SourceFormat.UPSERT_AVRO)


class OnTruncate(StrEnum):
    """The effect of a truncation."""

    DELETE = "delete"
    STOP = "stop"


class OnMissingValue(StrEnum):
    """The effect of a value that is in no event. `LETTER`: the row is a dead letter."""

    STOP = "stop"
    LETTER = "letter"
    NULL = "null"


class ForeignRecord(NamedTuple):
    """A record of a foreign topic.

    - `timestamp` is that of Kafka, in microseconds.
    - `is_moved`: its row had another key before.
    """

    topic: str
    kafka_partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    is_moved: bool = False

    @property
    def partition(self) -> TopicPartition:
        return self.topic, self.kafka_partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The commit of an event, as the source tells it.

    - `time` is the commit time (µs), or 0 if the format has none. A row of MySQL has the time of
      its statement.
    - `transaction` is the id of the transaction. Empty: the event is one of its own.
    - `sequence` is the number of the event in its transaction, or 0.
    - `log` is the log in which the transaction has a position, or empty.
    - `after` is the end of the transaction before, or of this one for `End`. So an event is of a
      transaction that ended at `end` or before only if `after` is before `end`. Empty: there is no
      position.
    - `at` is the position of the event itself: the LSN in PostgreSQL; file, position and row in a
      binary log. Empty: the format has none.
    - `log_position` is the position as text, for lineage.
    - `counts_again`: the source counts the events of a transaction again, from 1, if it restarts
      within it. So `sequence` may be that of another event.
    """

    time: int = 0
    transaction: str = ""
    sequence: int = 0
    log: str = ""
    after: LogPosition = ()
    at: LogPosition = ()
    log_position: str = ""
    counts_again: bool = False

    @property
    def has_gtid(self) -> bool:
        """Whether an event has a GTID. A replica may commit transactions in another order than that
        of their numbers, so the order is that of the positions in the binary log.
        """
        return bool(self.at) and self.log not in (LSN, BINLOG)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row as it is after the event.

    - `table` is the name of the table at the source, for example `public.customers`.
    - `key` has the values of the key columns, as Python values that `convert` takes.
    - `cells` has the bytes of the other columns by name. None is NULL. A deleted row has none.
    - `whole`: columns that are not in `cells` are NULL. Otherwise they keep their values.
    - `missing` names the columns whose values are in no event.
    - `is_snapshot`: the row was read, not changed. It has no transaction.
    - `is_incremental`: it is of an incremental snapshot. `commit.after` is the end of the newest
      transaction that was sent before it.
    """

    table: str
    commit: Commit
    key: Mapping[str, object]
    cells: Mapping[str, bytes | None] = field(default_factory=dict)
    deleted: bool = False
    whole: bool = True
    missing: tuple[str, ...] = ()
    is_snapshot: bool = False
    is_incremental: bool = False


@dataclass(frozen=True, slots=True)
class TruncatedTable:
    """All rows of a table were deleted. In MySQL, that is no part of a transaction: `commit.at`
    says between which ones it was.
    """

    table: str
    commit: Commit


@dataclass(frozen=True, slots=True)
class End:
    """The end of a transaction with `count` events, and their `counts` by table. `total` is the
    greatest sequence that an event can have: also events count whose topics are not read.
    """

    commit: Commit
    count: int
    counts: Mapping[str, int] = field(default_factory=dict)
    total: int = -1

    def __post_init__(self) -> None:
        if self.total < 0:
            object.__setattr__(self, "total", self.count)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A record without an event. `rule` is a word for the reason, for example `TOMBSTONE`. It
    counts in its transaction if `commit` names one.
    """

    rule: str
    commit: Commit = Commit()
    table: str = ""


@dataclass(frozen=True, slots=True)
class Poison:
    """A record that cannot be read. It becomes a dead letter (SRC-6). `commit` and `table` have
    what could be read.
    """

    rule: str
    detail: str
    commit: Commit = Commit()
    table: str = ""


Event = Row | TruncatedTable | End | Skipped | Poison


class Decoder(Protocol):
    """Reads the records of one format. It keeps the columns of tables that it has read."""

    def decode(self, record: ForeignRecord) -> Event:
        """Return the event of a record. It never raises for data."""


@dataclass(frozen=True, slots=True)
class Released:
    """An event whose turn has come.

    - `commit_timestamp` (µs) and `tie_breaker` order it among the changes of its table.
    - `count` is the number of changes of its transaction, or 0 if it has none.
    """

    record: ForeignRecord
    event: Row | TruncatedTable | Poison
    commit_timestamp: int
    tie_breaker: int
    count: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """The next transaction, and the reason why it waits, for status and log.

    - `reason` is one of `clock` (the next commit time is ahead of `now`), `snapshot` (rows of a
      snapshot or a truncation that may come before it were not read), `row` (a row of a snapshot
      may come behind what was not read: `transaction` is its place), `events` (a transaction lacks
      events), `count` (its events contradict its end or each other), `end` (it has no end, although
      later ones have), `again` (Debezium sends transactions again, and has not come to the newest
      one) and `topic` (there is no transaction topic: `transaction` is its name).
    - `transaction` is the next transaction, and `since` is Kafka's time of its end (µs).
    - `counts` and `arrived` are the numbers of its events by table, as it has them and as they were
      read. `missing` is the number of events that were not read.
    """

    reason: str
    transaction: str
    since: int
    missing: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    arrived: Mapping[str, int] = field(default_factory=dict)

    @property
    def can_be_skipped(self) -> bool:
        """Whether an operator can publish the transaction as it is."""
        return self.reason in ("events", "count", "end")


def least_time(record: ForeignRecord, commit: Commit) -> int:
    """Return the commit time of a record (µs), but not after Kafka's time of it."""
    time, arrived_at = commit.time, record.timestamp
    if 0 < time <= arrived_at:
        return time
    return arrived_at or max(time, 1)  # Kafka's time of a record may be missing


def lacks_transaction(event: Event) -> bool:
    """Return whether a row was changed in a transaction that the source does not name."""
    return isinstance(event, Row) and not event.is_snapshot and not event.commit.transaction


class Sequencer:
    """Brings the events of all partitions into one order (SRC-2).

    The caller reads each partition in order, from `starts` and otherwise from its first record. It
    repeats these steps:

    1. It adds records, but none of a partition that is `full`.
    2. If `wants_ends`, or if a topic has another partition, it asks Kafka for the end offsets of
       all partitions, and calls `ends`.
    3. It sends all that `released` yields. Only then it takes `reached` and `token`.
    4. It reports `reached` with `token` to the producer. If `has_claim`, it waits until the
       heartbeat is acknowledged, and calls `claim_acknowledged`. Until then nothing is released.

    A new sequencer that is made from a token releases what came after it again, with the same
    commit timestamps.

    - `waiting` is the transaction that the last call of `released` did not release, although it has
      ended.
    - `repetitions` is the number of events that were dropped because they had come before.
    """

    def __init__(self, max_clock_skew_s: int) -> None:
        """A commit time that is more than half of `max_clock_skew_s` ahead waits."""
        self._skew_us, self._now = max_clock_skew_s * 500_000, 0
        self.wants_ends = self.has_claim = False
        self.waiting: Waiting | None = None
        self.repetitions = 0

    @abstractmethod
    def add(self, record: ForeignRecord, event: Event) -> None:
        """Take the next record of its partition."""

    @abstractmethod
    def released(self, now: int) -> Iterator[Released]:
        """Remove and return the events whose turn has come, at this time (µs)."""

    @property
    @abstractmethod
    def starts(self) -> Mapping[TopicPartition, int]:
        """The offset from which each partition is read after a restart. A partition that is absent
        is read from its first record.
        """

    @property
    @abstractmethod
    def reached(self) -> int:
        """The commit timestamp up to which everything was released. 0: none yet."""

    @abstractmethod
    def token(self, topic_ids: Mapping[str, str]) -> bytes:
        """The state as a resume token, with the ids of the topics. `SourcePosition` reads it."""

    @property
    @abstractmethod
    def full(self) -> Collection[TopicPartition]:
        """The partitions of which no more records can be taken now."""

    @abstractmethod
    def ends(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Take the end offsets of all partitions, also of those without records. No record was
        added while the caller asked for them. It can be called without `wants_ends`, too.
        """

    @abstractmethod
    def read_to(self, partition: TopicPartition, offset: int) -> None:
        """Take the offset up to which a partition was read. It can be greater than that of the last
        record: Kafka's own records for transactions have offsets, too, and deleted records had one.
        """

    @property
    def snapshots(self) -> Collection[str]:
        """The topics whose initial snapshot is known to be released as a whole."""
        return ()

    def claim_acknowledged(self) -> None:
        """Go on: Kafka has the heartbeat with the claim."""
        self.has_claim = False
