"""The events whose turn has not come: a queue for each Kafka partition, and the counts of each
transaction.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from connector.sources.model import (
    Commit,
    End,
    Event,
    ForeignRecord,
    LogPosition,
    Poison,
    Row,
    Skipped,
    TopicPartition,
    TruncatedTable,
    Waiting,
)
from connector.sources.position import ReadUpTo

ALONE: Final = ""
"""The transaction of an event that has none: a row of a snapshot, for example."""
UNKNOWN: Final = "\0"
"""The transaction of poison whose commit cannot be read."""
_NOTHING: Final = ReadUpTo()
_PIECE_BYTES: Final = 1024
_CHUNK: Final = 64
_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
_ANY: Final = 1
"""The fingerprint of an event of which nothing is known."""


class Entry(NamedTuple):
    """An event that waits for its turn. One that was skipped counts in its transaction, unless it
    only keeps the place of a copy of another event that waits.
    """

    record: ForeignRecord
    event: Row | TruncatedTable | Skipped | Poison
    transaction: str


def is_read_row(event: Event) -> bool:
    """Return whether an event is a row of a snapshot that is not incremental."""
    return isinstance(event, Row) and event.is_snapshot and not event.is_incremental


class PartitionQueue:
    """The events of a Kafka partition that were not released, in their order.

    - `next` is the offset behind the last record that was added.
    - `pinned` is the offset of the first event that was released for the transaction in progress.
    - `snapshot_times` are Kafka's times of the rows of snapshots that are not incremental.
    - `added_up_to` says how far events were added, and `taken_up_to` how far they were removed, if
      their source may count them again.
    """

    __slots__ = (
        *("bytes", "entries", "is_full", "next", "partition", "pinned"),
        *("added_up_to", "snapshot_times", "taken_up_to"),
    )

    def __init__(self, partition: TopicPartition, start: int, up_to: ReadUpTo = _NOTHING) -> None:
        self.partition, self.next = partition, start
        self.added_up_to = self.taken_up_to = up_to
        self.entries: deque[Entry] = deque()
        self.snapshot_times: deque[int] = deque()
        self.bytes = 0
        self.pinned: int | None = None
        self.is_full = False

    @property
    def start(self) -> int:
        """The offset from which the partition is read after a restart."""
        head = self.entries[0].record.offset if self.entries else self.next
        return head if self.pinned is None else min(self.pinned, head)

    def append(self, entry: Entry, limits: tuple[int, int]) -> None:
        """Add an event. A queue that has as many records or bytes as `limits` is full."""
        self.entries.append(entry)
        if entry.event.commit.counts_again:
            self.added_up_to = self.added_up_to.behind(entry.event.commit, entry.record.key)
        if is_read_row(entry.event):
            self.snapshot_times.append(entry.record.timestamp)
        self.bytes += len(entry.record.value or b"")
        is_full = len(self.entries) >= limits[0] or self.bytes >= limits[1]
        self.is_full = is_full and len(self.entries) > 1

    def take(self, index: int, limits: tuple[int, int]) -> Entry:
        """Remove an event. A queue that was full is so until it is half empty."""
        entry = self.entries[index]
        del self.entries[index]
        if entry.event.commit.counts_again:
            self.taken_up_to = self.taken_up_to.behind(entry.event.commit, entry.record.key)
        if is_read_row(entry.event):
            self.snapshot_times.remove(entry.record.timestamp)
        self.bytes -= len(entry.record.value or b"")
        if self.is_full:
            is_full = 2 * len(self.entries) > limits[0] or 2 * self.bytes > limits[1]
            self.is_full = is_full and len(self.entries) > 1
        return entry

    def has_behind(self, commit: Commit, record: ForeignRecord) -> bool:
        """Return whether another copy of an event waits, and was sent behind its record, by Kafka's
        time.
        """
        if self.entries[-1].record.timestamp <= record.timestamp:
            return False
        same = commit.transaction, commit.sequence
        for entry in self.entries:
            if (entry.transaction, entry.event.commit.sequence) == same:
                return entry.record.timestamp > record.timestamp
        return False

    def last_transaction(self) -> str:
        """Return the transaction of the last event that has one, or `ALONE`."""
        for entry in reversed(self.entries):
            if entry.transaction not in (ALONE, UNKNOWN):
                return entry.transaction
        return ALONE


class Arrived:
    """The events of a transaction that were read, each once.

    - `count` is their number, `skipped` the number of those that no change is sent for, and
      `released` that of those that were released.
    - `highest` is the greatest sequence.
    - `contradicts`: two different events had one sequence, or two different ends were read.
    - `tables` has the number by table, as far as it is known.
    - `queued` has the number of those in each queue.
    - `truncated` are the topics of tables that it truncates.
    - `at` is the least position of an event in a binary log, or empty.
    - `time` is the greatest time of an event (µs).
    """

    __slots__ = (
        *("_checked", "_positions", "_prints", "at", "contradicts", "count", "highest", "queued"),
        *("released", "skipped", "tables", "time", "truncated"),
    )

    def __init__(self, sequences: Mapping[int, bytes] = MappingProxyType({})) -> None:
        """Begin without events, or with those of `sequences`."""
        self.count = self.skipped = self.released = self.highest = self.time = 0
        self._checked = 0
        self.contradicts = False
        self.tables: Counter[str] = Counter()
        self.queued: Counter[TopicPartition] = Counter()
        self.truncated: set[str] = set()
        self.at: LogPosition = ()
        self._prints: dict[int, array[int]] = {}
        self._positions: dict[int, array[int]] = {}
        for number, bits in sequences.items():
            for index in range(8 * len(bits)):
                if bits[index >> 3] & 1 << (index & 7):
                    sequence = 8 * _PIECE_BYTES * number + index
                    _chunk(self._prints, sequence)[index % _CHUNK] = _ANY

    def contradicts_end(self, end: End) -> bool:
        """Return whether the events of a transaction are others than its end says. If the log began
        again, a later transaction may have the same id.
        """
        is_later = self.time // 1000 > end.commit.time // 1000
        if self.count >= end.count and self._are_counted_again():
            self.contradicts = True
        if self.contradicts or self.highest > end.total or is_later:
            return True
        counts = end.counts
        return bool(counts) and any(
            number > counts[table] for table, number in self.tables.items() if table in counts
        )

    def _are_counted_again(self) -> bool:
        """Return whether events do not have the order of their positions, or one has two numbers.
        Rows of one event of the log may have one position.
        """
        if not self._positions or self._checked == self.count:
            return False
        self._checked, newest, is_twice = self.count, 0, False
        there, positions = set[int](), 0
        for number in sorted(self._positions):
            for position, fingerprint in zip(
                self._positions[number], self._prints[number], strict=True
            ):
                if 0 < position < newest:
                    return True
                if position > newest:
                    newest, positions = position, positions + 1
                    there.clear()
                if position:
                    is_twice |= fingerprint in there
                    there.add(fingerprint)
        # A compressed transaction of MySQL has one position.
        return is_twice and positions > 1

    def waiting_for_events(self, record: ForeignRecord, end: End) -> Waiting:
        """Return what the transaction of an end in this record lacks."""
        return Waiting(
            "events",
            end.commit.transaction,
            record.timestamp,
            missing=end.count - self.count,
            counts=end.counts,
            arrived={table: count for table, count in self.tables.items() if table},
        )

    def take(self, sequence: int, fingerprint: int = _ANY, position: int = 0) -> bool:
        """Count an event. False: it was counted before. The number 0 is unknown, and never seen.

        Another fingerprint shows that the sequence is that of another event. A position is given if
        the source may count the event again.
        """
        if sequence:
            chunk, index = _chunk(self._prints, sequence), sequence % _CHUNK
            if earlier := chunk[index]:
                if earlier == fingerprint or _ANY in (earlier, fingerprint):
                    return False
                self.contradicts = True
            chunk[index] = fingerprint
            if position:
                _chunk(self._positions, sequence)[index] = position
            self.highest = max(self.highest, sequence)
        self.count += 1
        return True

    def sequences(self, without: Collection[int]) -> dict[int, bytes]:
        """Return one bit for each sequence that was counted, in numbered pieces."""
        pieces: dict[int, bytearray] = {}
        for number, chunk in self._prints.items():
            for index, fingerprint in enumerate(chunk):
                if fingerprint and (sequence := number * _CHUNK + index) not in without:
                    piece, bit = divmod(sequence, 8 * _PIECE_BYTES)
                    bits = pieces.setdefault(piece, bytearray(_PIECE_BYTES))
                    bits[bit >> 3] |= 1 << (bit & 7)
        return {number: bytes(bits).rstrip(b"\0") for number, bits in pieces.items()}


def _chunk(chunks: dict[int, array[int]], sequence: int) -> array[int]:
    chunk = chunks.get(sequence // _CHUNK)
    if chunk is None:
        chunk = chunks[sequence // _CHUNK] = array("Q", bytes(8 * _CHUNK))
    return chunk


def fingerprint_of(record: ForeignRecord, time: int, at: LogPosition) -> int:
    """Return what tells an event from another one of its transaction, in this process: its key,
    its time and its position. An event that is sent again has the same.
    """
    return hash((record.topic, record.key, time, at)) & _MASK & ~1 | 2


def position_of(record: ForeignRecord, commit: Commit) -> int:
    """Return the position of an event with a key that the source may count again, as a number: its
    LSN, or its position in the binary log without the row. 0: the position is not compared.
    """
    if not commit.counts_again or not commit.at or record.key is None:
        return 0
    return (commit.at[0] if len(commit.at) == 1 else commit.at[0] << 40 | commit.at[1]) & _MASK
