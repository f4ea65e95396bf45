"""The events whose turn has not come: a queue for each Kafka partition, and the counts of each
transaction.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from connector.sources.model import (
    ForeignRecord,
    Poison,
    Row,
    Skipped,
    TopicPartition,
    TruncatedTable,
)

ALONE: Final = ""
"""The transaction of an event that has none: a row of a snapshot, for example."""
UNKNOWN: Final = "\0"
"""The transaction of poison whose commit cannot be read."""
_CHUNK_BYTES: Final = 1024


class Entry(NamedTuple):
    """An event that waits for its turn. One that was skipped counts in its transaction."""

    record: ForeignRecord
    event: Row | TruncatedTable | Skipped | Poison
    transaction: str


class PartitionQueue:
    """The events of a Kafka partition that were not released, in their order.

    - `next` is the offset behind the last record that was added.
    - `pinned` is the offset of the first event that was released for the transaction in progress.
    """

    __slots__ = ("bytes", "entries", "is_full", "next", "partition", "pinned")

    def __init__(self, partition: TopicPartition, start: int) -> None:
        self.partition, self.next = partition, start
        self.entries: deque[Entry] = deque()
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
        self.bytes += len(entry.record.value or b"")
        is_full = len(self.entries) >= limits[0] or self.bytes >= limits[1]
        self.is_full = is_full and len(self.entries) > 1

    def take(self, index: int, limits: tuple[int, int]) -> Entry:
        """Remove an event. A queue that was full is so until it is half empty."""
        entry = self.entries[index]
        del self.entries[index]
        self.bytes -= len(entry.record.value or b"")
        if self.is_full:
            is_full = 2 * len(self.entries) > limits[0] or 2 * self.bytes > limits[1]
            self.is_full = is_full and len(self.entries) > 1
        return entry

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
    - `tables` has the number by table, as far as it is known.
    - `queued` has the number of those in each queue.
    - `truncated` are the topics of tables that it truncates.
    """

    __slots__ = ("_sequences", "count", "queued", "released", "skipped", "tables", "truncated")

    def __init__(self, sequences: Mapping[int, bytes] = MappingProxyType({})) -> None:
        """Begin without events, or with those of `sequences`."""
        self.count = self.skipped = self.released = 0
        self.tables: Counter[str] = Counter()
        self.queued: Counter[TopicPartition] = Counter()
        self.truncated: set[str] = set()
        self._sequences = {
            number: bytearray(bits.ljust(_CHUNK_BYTES, b"\0")) for number, bits in sequences.items()
        }

    def take(self, sequence: int) -> bool:
        """Count an event. False: it was counted before. The number 0 is unknown, and never seen."""
        if sequence:
            number, index = divmod(sequence >> 3, _CHUNK_BYTES)
            chunk = self._sequences.get(number)
            if chunk is None:
                chunk = self._sequences[number] = bytearray(_CHUNK_BYTES)
            bit = 1 << (sequence & 7)
            if chunk[index] & bit:
                return False
            chunk[index] |= bit
        self.count += 1
        return True

    def sequences(self, without: Collection[int]) -> dict[int, bytes]:
        """Return one bit for each sequence that was counted, in numbered pieces."""
        chunks = {number: bytearray(chunk) for number, chunk in self._sequences.items()}
        for sequence in without:
            number, index = divmod(sequence >> 3, _CHUNK_BYTES)
            chunks[number][index] &= ~(1 << (sequence & 7))
        return {number: bytes(chunk).rstrip(b"\0") for number, chunk in chunks.items()}
