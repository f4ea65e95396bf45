"""A change topic with write streams, for the laws of releases (WRS-15 to WRS-21).

`ReleaseSimulation` has the topic, and all that writes to it: sessions with write streams,
committers, a change producer with a live stream partition, and replays of rejected rows. `step`
makes one event. The records of an open transaction are in their Kafka partitions. They delay the
readers of these Kafka partitions until the transaction ends. A write stream without an append for
the staging retention is expired. All times are microseconds.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Final, NamedTuple

from connector.records.model import (
    ChildPartition,
    ChildPartitions,
    Heartbeat,
    OffsetRange,
    Release,
)
from connector.write_streams.model import StreamEntry, StreamKind, StreamState
from connector.write_streams.rules import Fault, append_fault, commit_fault

LIVE: Final = "live"
"""The live stream partition."""
COMMIT: Final = "write-commit/"
"""Before the name of the stream partition of a commit."""
SECOND: Final = 1_000_000
STAGING_RETENTION: Final = SECOND


class Row(NamedTuple):
    """A staged row: its write stream and its offset."""

    stream: str
    offset: int


class Outcome(Enum):
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(eq=False)
class Transaction:
    """A Kafka transaction with its Kafka partitions and its releases. Its records `on_the_way` are
    not in their Kafka partitions yet.
    """

    outcome: Outcome = Outcome.OPEN
    places: set[int] = field(default_factory=set)
    releases: list[Release] = field(default_factory=list)
    on_the_way: dict[int, deque[Sent]] = field(default_factory=lambda: defaultdict(deque))


class Sent(NamedTuple):
    """A record in a Kafka partition. Without `record` it is the marker that ends a transaction.

    Ingest rejects a record that is not `valid`. A record `sent_to` several has one copy in each of
    so many Kafka partitions.
    """

    record: Row | Release | Heartbeat | ChildPartitions | None
    transaction: Transaction | None = None
    valid: bool = True
    sent_to: int = 1

    @property
    def is_open(self) -> bool:
        return self.transaction is not None and self.transaction.outcome is Outcome.OPEN

    @property
    def is_committed(self) -> bool:
        return self.transaction is None or self.transaction.outcome is Outcome.COMMITTED


@dataclass(eq=False)
class WriteStream:
    """Rows below `committed_end` are in the topic. Rows below `end` may be in an open transaction.
    Rows below `flushed` were released, or are in a release of an open transaction.
    """

    name: str
    is_pending: bool
    end: int = 0
    committed_end: int = 0
    flushed: int = 0
    committed_flush: int = 0
    is_final: bool = False
    changed_at: int = 0
    committed_change: int = 0

    def settle(self, outcome: Outcome) -> None:
        """After an abort, the next append has the offset of the first row that was aborted."""
        if outcome is Outcome.COMMITTED:
            self.committed_end, self.committed_flush = self.end, self.flushed
            self.committed_change = self.changed_at
        else:
            self.end, self.flushed = self.committed_end, self.committed_flush
            self.changed_at = self.committed_change

    def entry(self) -> StreamEntry:
        """Its record in the catalog, as far as the rules of expiry need it."""
        kind = StreamKind.PENDING if self.is_pending else StreamKind.BUFFERED
        state = StreamState.FINALIZED if self.is_final else StreamState.OPEN
        return StreamEntry(kind, state, self.end, self.flushed, self.changed_at)


@dataclass(eq=False)
class Writer:
    """A session, or the committer, with at most one open transaction.

    It knows the first `kafka_partitions` of the topic.
    """

    name: str
    kafka_partitions: int
    streams: list[WriteStream] = field(default_factory=list)
    transaction: Transaction | None = None


class ReleaseSimulation:
    """`logs` are the Kafka partitions. `committed` are the releases of committed transactions.
    `arrived_at` is when the first copy of a release was in Kafka, by its commit timestamp. No two
    releases have the same one.
    `unreliable` is the share of the rows that ingest rejects.

    Without `holds`, the heartbeats do not wait for releases: the change producer breaks WRS-15.
    """

    def __init__(self, rng: Random, *, unreliable: float = 0.0, holds: bool = True) -> None:
        self.rng = rng
        self.holds = holds
        self.unreliable = unreliable
        self.clock = 100 * SECOND
        self.logs: list[list[Sent]] = [[] for _ in range(rng.randint(1, 2))]
        self.sessions = [Writer(f"s{n}", len(self.logs)) for n in range(rng.randint(1, 2))]
        self.committer = Writer("commit", len(self.logs))
        self.committed: list[Release] = []
        self.rejected_rows: set[Row] = set()
        self.to_replay = deque[Row]()
        self.refused: set[str] = set()
        """The write streams that took no append, flush or commit because they were expired."""
        self.last_heartbeat = self._last_release = 0
        self.arrived_at: dict[int, int] = {}
        self._used = set[int]()
        self._announce()

    @property
    def writers(self) -> list[Writer]:
        return [*self.sessions, self.committer]

    @property
    def unacknowledged(self) -> list[Release]:
        """The releases of the live stream partition whose transactions are open."""
        return [
            release
            for writer in self.writers
            if writer.transaction is not None
            for release in writer.transaction.releases
            if release.stream_partition == LIVE
        ]

    def stable(self, k: int, start: int) -> int:
        """The offset of the first record from `start` on that belongs to an open transaction."""
        log = self.logs[k]
        return next((n for n in range(start, len(log)) if log[n].is_open), len(log))

    def step(self) -> None:
        """One event."""
        self.clock += self.rng.choice((1, 1, 1000, SECOND // 3))
        session = self.rng.choice(self.sessions)
        match self.rng.randrange(23):
            case 0 | 1 | 2 | 3 | 4:
                self._append(session)
            case 5 | 6 | 7:
                self._flush(session)
            case 8 | 9:
                self._end(session)
            case 10 | 11:
                self._finalize(session)
            case 12 | 13:
                self._commit()
                if self.rng.random() < 0.5:
                    self._end(self.committer)
            case 14 | 15 | 16:
                self.heartbeat()
            case 17:
                self._release_again()
            case 18 if self.rng.random() < 0.2:
                self.replay_again()
            case 18:
                self._replay()
            case 19 | 20 | 21:
                self._arrive(self.rng.choice(self.writers))
            case _:
                self._learn()

    def finish(self) -> None:
        """All transactions end, and the heartbeats go to all Kafka partitions."""
        for writer in self.writers:
            self._end(writer)
        self.clock += SECOND
        self._announce()
        self.heartbeat()

    def replay_all(self) -> None:
        while self.to_replay:
            self._replay()
        self.clock += SECOND

    def heartbeat(self) -> None:
        """The live stream partition is at the present time. No heartbeat is at or above a release
        that is not acknowledged.
        """
        held = [one.commit_timestamp - 1 for one in self.unacknowledged] if self.holds else []
        reached = min([self.clock, *held])
        if reached > self.last_heartbeat:
            self.last_heartbeat = reached
            self._send_everywhere(Heartbeat(LIVE, reached), self._known_to_producer)

    def _learn(self) -> None:
        """A Kafka partition is added, or one client learns how many there are."""
        if self.rng.random() < 0.3 and len(self.logs) < 4:
            self.logs.append([])
        if (client := self.rng.choice([None, *self.writers])) is None:
            self._announce()
        else:
            client.kafka_partitions = len(self.logs)

    def _announce(self) -> None:
        """The change producer asks how many Kafka partitions there are, and announces the live
        stream partition in all of them.
        """
        self._known_to_producer = len(self.logs)
        announcement = ChildPartitions(LIVE, self.clock, 0, (ChildPartition(LIVE),))
        self._send_everywhere(announcement, self._known_to_producer)

    def _append(self, session: Writer) -> None:
        open_ = [one for one in session.streams if not one.is_final and self._takes_rows(one)]
        if not open_ or (len(open_) < 3 and self.rng.random() < 0.2):
            name = f"{session.name}/{len(session.streams)}"
            open_ = [WriteStream(name, is_pending=self.rng.random() < 0.5)]
            session.streams += open_
        stream = self.rng.choice(open_)
        stream.changed_at = self.clock
        for _ in range(self.rng.randint(1, 4)):
            row = Row(stream.name, stream.end)
            stream.end += 1
            place = self.rng.randrange(session.kafka_partitions)
            valid = self.rng.random() >= self.unreliable
            self._send(place, Sent(row, _begun(session), valid))

    def _flush(self, session: Writer) -> None:
        waiting = [
            one
            for one in session.streams
            if not one.is_pending and one.flushed < one.end and self._takes_rows(one)
        ]
        if not waiting:
            return
        stream = self.rng.choice(waiting)
        upto = self.rng.randint(stream.flushed + 1, stream.end)
        self._release(session, [OffsetRange(stream.name, stream.flushed, upto)])
        stream.flushed = upto

    def _finalize(self, session: Writer) -> None:
        if session.transaction is None:
            for stream in session.streams:
                if stream.is_pending and self.rng.random() < 0.7:
                    stream.is_final |= self._takes_rows(stream)

    def _commit(self) -> None:
        if self.committer.transaction is not None:
            return
        final = [one for session in self.sessions for one in session.streams if one.is_final]
        ready = [
            one
            for one in final
            if one.flushed < one.end and self._is_committable(one) and self.rng.random() < 0.8
        ]
        if ready:
            self._release(self.committer, [OffsetRange(one.name, 0, one.end) for one in ready])
            for stream in ready:
                stream.flushed = stream.end
            self.committer.streams = ready

    def _release_again(self) -> None:
        """A release of rows that may be part of other releases, or expired."""
        known = [one for session in self.sessions for one in session.streams if one.committed_end]
        if known and self.committer.transaction is None:
            ranges = []
            for stream in self.rng.sample(known, min(len(known), self.rng.choice((1, 1, 2, 3)))):
                first = self.rng.randrange(stream.committed_end)
                upto = self.rng.randint(first + 1, stream.committed_end)
                ranges.append(OffsetRange(stream.name, first, upto))
            self._release(self.committer, ranges)

    def _release(self, writer: Writer, ranges: Iterable[OffsetRange]) -> None:
        is_late = self.rng.random() < 0.25
        if is_late:
            at = self.clock - self.rng.choice((0, SECOND, 5 * SECOND))
            while at in self._used:
                at -= 1
        else:
            at = max(self.clock, self.last_heartbeat + 1, self._last_release + 1)
            self._last_release = at
        self._used.add(at)
        # A late one has a stream partition of its own, which begins and ends with it.
        name = f"{COMMIT}{at}" if is_late else LIVE
        release = Release(name, at, tuple(ranges))
        transaction = _begun(writer)
        transaction.releases.append(release)
        records: list[Release | ChildPartitions] = [release]
        if is_late:
            begin = ChildPartitions(name, at - 1, 0, (ChildPartition(name),))
            records = [begin, release, ChildPartitions(name, at + 1, 0, ())]
        for record in records:
            self._send_everywhere(record, writer.kafka_partitions, transaction)

    def _end(self, writer: Writer) -> None:
        """The transaction of a writer is committed or aborted."""
        transaction, writer.transaction = writer.transaction, None
        if transaction is None:
            return
        outcome = Outcome.COMMITTED if self.rng.random() < 0.8 else Outcome.ABORTED
        if outcome is Outcome.COMMITTED:
            for place in list(transaction.on_the_way):
                self._deliver(transaction, place)
        transaction.outcome = outcome
        for place in sorted(transaction.places):
            self.logs[place].append(Sent(None))
        for stream in writer.streams:
            # The rows of a stream that is final are in no open transaction of the session.
            if writer is self.committer or not stream.is_final:
                stream.settle(transaction.outcome)
        if writer is self.committer:
            writer.streams = []
        if transaction.outcome is Outcome.COMMITTED:
            self.committed += transaction.releases

    def _arrive(self, writer: Writer) -> None:
        """The records on the way to some Kafka partitions arrive there."""
        if (transaction := writer.transaction) is not None:
            for place in list(transaction.on_the_way):
                if self.rng.random() < 0.5:
                    self._deliver(transaction, place)

    def _deliver(self, transaction: Transaction, place: int) -> None:
        for sent in transaction.on_the_way.pop(place):
            self.logs[place].append(sent)
            transaction.places.add(place)
            if isinstance(sent.record, Release):
                self.arrived_at.setdefault(sent.record.commit_timestamp, self.clock)

    def rejected(self, row: Row) -> None:
        """Ingest rejected a row. It is replayed some time later."""
        self.rejected_rows.add(row)
        self.to_replay.append(row)

    def _replay(self) -> None:
        if self.to_replay:
            row = self.to_replay.popleft()
            for _ in range(self.rng.choice((1, 1, 2))):
                self._send(self.rng.randrange(len(self.logs)), Sent(row))

    def replay_again(self) -> None:
        """All rows that were rejected are replayed, however often they were before."""
        for row in sorted(self.rejected_rows):
            self._send(self.rng.randrange(len(self.logs)), Sent(row))

    def _takes_rows(self, stream: WriteStream) -> bool:
        return self._allows(stream, append_fault(stream.entry(), self.clock, STAGING_RETENTION))

    def _is_committable(self, stream: WriteStream) -> bool:
        return self._allows(stream, commit_fault(stream.entry(), self.clock, STAGING_RETENTION))

    def _allows(self, stream: WriteStream, fault: Fault | None) -> bool:
        if fault is Fault.EXPIRED:
            self.refused.add(stream.name)
        return fault is None

    def _send_everywhere(
        self,
        record: Release | Heartbeat | ChildPartitions,
        kafka_partitions: int,
        transaction: Transaction | None = None,
    ) -> None:
        for k in range(kafka_partitions):
            self._send(k, Sent(record, transaction, sent_to=kafka_partitions))

    def _send(self, k: int, sent: Sent) -> None:
        if sent.transaction is None:
            self.logs[k].append(sent)
        else:
            sent.transaction.on_the_way[k].append(sent)


def _begun(writer: Writer) -> Transaction:
    if writer.transaction is None:
        writer.transaction = Transaction()
    return writer.transaction
