"""The memory of an audit of a source, in arrays: the order of each published record, and the
transactions that ended.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from connector.sources.model import LSN, Commit, End, ForeignRecord, LogPosition, TopicPartition

_CHUNK: Final = 4096
_MASK: Final = 0xFFFF_FFFF
_BITS: Final = 64
_UNREADABLE: Final = -1
_JITTER_MS: Final = 1_000
"""The commit times of a log fall by less than this."""


class Order(NamedTuple):
    """The place that was assigned to a record: its commit timestamp (µs), the lower 32 bits of its
    tie breaker, and the number of changes that its transaction declares, or 0.
    """

    commit_timestamp: int
    tie_breaker: int
    declared: int

    @property
    def is_known(self) -> bool:
        return self.commit_timestamp != _UNREADABLE


UNKNOWN_ORDER: Final = Order(_UNREADABLE, 0, 0)
"""The place of a record whose change cannot be read."""


class Orders:
    """The orders of foreign records. They take 16 bytes for each offset of a chunk with a record.

    `moved` are the records of transactions that have several orders.
    """

    def __init__(self) -> None:
        self._chunks: dict[
            tuple[TopicPartition, int], tuple[array[int], array[int], array[int]]
        ] = {}
        self.moved: set[tuple[TopicPartition, int]] = set()

    def add(self, partition: TopicPartition, offset: int, order: Order) -> None:
        """Keep an order. A record without a transaction may be sent with a later one: a bridge that
        was killed sends it again. The greatest one is kept.
        """
        number, index = divmod(offset, _CHUNK)
        chunk = self._chunks.get((partition, number))
        if chunk is None:
            chunk = array("q", bytes(8 * _CHUNK)), array("I", bytes(4 * _CHUNK)), array("i")
            chunk[2].frombytes(bytes(4 * _CHUNK))
            self._chunks[partition, number] = chunk
        order = order._replace(tie_breaker=order.tie_breaker & _MASK)
        earlier = Order(chunk[0][index], chunk[1][index], chunk[2][index])
        if earlier.commit_timestamp:
            is_other = earlier.is_known and order.is_known and earlier[:2] != order[:2]
            if is_other and (earlier.declared or order.declared):
                self.moved.add((partition, offset))
            order = max(earlier, order)
        chunk[0][index], chunk[1][index], chunk[2][index] = order

    def order_of(self, record: ForeignRecord) -> Order | None:
        """Return the order of a record. None: it has none."""
        number, index = divmod(record.offset, _CHUNK)
        chunk = self._chunks.get((record.partition, number))
        if chunk is None or not chunk[0][index]:
            return None
        return Order(chunk[0][index], chunk[1][index], chunk[2][index])


class Ended:
    """The transactions of a source by number, in the order of their first ends. One takes about 200
    bytes, and a large one 3 bytes for each event.

    - `times` are the commit timestamps of their changes (0: none was published), and `declared` the
      numbers of changes that these declare.
    - `points` are their positions: the end in PostgreSQL, the first event in a binary log. 0: not
      known.
    - `skipped` are the numbers of their events that no change is sent for.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._next: dict[int, int] = {}
        self._ms, self.times, self.points = array("q"), array("q"), array("Q")
        self.declared, self.skipped = array("q"), array("q")
        self._sequences = array("Q")
        self._more: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self._ms)

    def _chain(self, transaction: str) -> Iterator[int]:
        """The numbers of transactions with one id, which a log that begins again uses again."""
        number = self._numbers.get(hash(transaction))
        while number is not None:
            yield number
            number = self._next.get(number)

    def add(self, end: End) -> None:
        """Take an end, if it is not one that was sent again."""
        if self.of_end(end) is not None:
            return
        number, chain = len(self), list(self._chain(end.commit.transaction))
        if chain:
            self._next[chain[-1]] = number
        else:
            self._numbers[hash(end.commit.transaction)] = number
        self._ms.append(end.commit.time // 1000)
        for column in (self.times, self.points, self.declared, self.skipped, self._sequences):
            column.append(0)
        if end.commit.log == LSN:
            self.points[number] = place_of(end.commit.after)

    def of_end(self, end: End) -> int | None:
        """Return the number of the transaction of an end."""
        ms = end.commit.time // 1000
        return next((n for n in self._chain(end.commit.transaction) if self._ms[n] == ms), None)

    def of_event(self, commit: Commit) -> int | None:
        """Return the number of the transaction of an event. Its time is not after its end's."""
        ms = commit.time // 1000
        numbers = (n for n in self._chain(commit.transaction) if not 0 < self._ms[n] < ms)
        return min(numbers, key=self._ms.__getitem__, default=None)

    def see(self, number: int, sequence: int) -> bool:
        """Take a sequence of a transaction. False: it was seen before. 0 is unknown, and new."""
        if not sequence:
            return True
        piece, index = divmod(sequence - 1, _BITS)
        bits, bit = self._bits(number, piece), 1 << index
        if bits & bit:
            return False
        if piece:
            self._more[number, piece] = bits | bit
        else:
            self._sequences[number] = bits | bit
        return True

    def _bits(self, number: int, piece: int) -> int:
        return self._more.get((number, piece), 0) if piece else self._sequences[number]

    def has(self, number: int, total: int) -> bool:
        """Return whether so many sequences of a transaction were seen."""
        pieces = range((total + _BITS - 1) // _BITS)
        return sum(self._bits(number, piece).bit_count() for piece in pieces) >= total

    def ms_of(self, number: int) -> int:
        """The commit time of a transaction (ms)."""
        return self._ms[number]

    def by_place(self) -> Line | None:
        """The published transactions by their places. None: the log began again, so that they do
        not rise, or the clock went back.
        """
        earlier = [n for n, point in enumerate(self.points) if point]
        falls = any(
            self.points[before] >= self.points[after] for before, after in pairwise(earlier)
        )
        return None if falls or self._is_clock_back() else self._line(earlier, self.points)

    def by_time(self) -> Line | None:
        """The published transactions by their commit times (ms). None: the clock went back."""
        newest = array("q", accumulate(self._ms, max))
        return None if self._is_clock_back() else self._line(range(len(self)), newest)

    def _is_clock_back(self) -> bool:
        return any(before > after + _JITTER_MS for before, after in pairwise(self._ms))

    def _line(self, numbers: Iterable[int], points: array[int]) -> Line:
        published = array("q", (n for n in numbers if self.times[n]))
        return Line(array(points.typecode, (points[n] for n in published)), published)


class Line(NamedTuple):
    """Rising points of the source, and the numbers of the transactions there."""

    points: array[int]
    numbers: array[int]

    def around(self, point: int, apart: int = 0) -> tuple[int | None, int | None]:
        """Return the last transaction whose point is less by `apart` or more, or equal, and the
        first one whose point is greater by more.
        """
        before = bisect_right(self.points, max(0, point - apart))
        after = bisect_right(self.points, point + apart)
        return (
            self.numbers[before - 1] if before else None,
            self.numbers[after] if after < len(self.numbers) else None,
        )


def place_of(position: LogPosition) -> int:
    """Return a position as one number: that of the log, or file and position in a binary log."""
    if len(position) == 1:
        return position[0]
    return (position[0] << 33) + position[1] if position else 0
