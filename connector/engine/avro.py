"""Reads the Avro encoding of many records at once.

A `Cursor` has a position in each record, and reads the next value of all of them. Any bytes are
safe: a position never leaves its record, and a value of a good record never depends on bytes behind
it. A record whose bytes have another form than expected is not good any more. Values of such a
record have no meaning, but its spans stay within it.

Arrays have the records in their last dimension. A *span* is a start in the buffer, and a size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from connector.engine.values import Flags, Numbers
from connector.records.avro_decoder import MAX_LENGTH_BYTES

Words = NDArray[np.uint64]
Spans = NDArray[np.int64]
"""Starts and sizes: two rows."""
Fields = tuple[NDArray[Any], ...]
"""The fields of items."""

MARGIN: Final = 16
"""The zeros behind the last value. At the end of it, a read sees at most 12 bytes of them."""

ALWAYS_READ: Final = 16
"""Arrays of so many items are always read."""
ENOUGH: Final = 64
"""Longer arrays are read if so many records have them. Each item is a pass over all records that
have it, which costs as much as so many items in one record.
"""

_BIT: Final = np.uint64(1)
_HIGH_BITS: Final = np.uint64(0x8080_8080_8080_8080)
_LAST_BYTES: Final = np.uint64(0x0001_0203_0405_0607)
"""Times 256 to the power of n, its highest byte is n, for n from 0 to 7."""
_LONGEST_INT: Final = 5
_SMALL: Final = np.array([(byte >> 1) ^ -(byte & 1) for byte in range(128)], np.int64)
"""The numbers with one byte, by their byte."""
_MASKS: Final = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)
"""By a number of bytes, the mask of so many low bytes of a word."""
_INLINE: Final = 12
"""The bytes of a text that a view has in itself."""


class Buffer:
    """The values of an array, one after the other, with `MARGIN` zeros behind them.

    - `start` and `end` of each value.
    - `words`: by an index of `bytes`, the eight bytes from there on. The first one is the lowest.
    """

    __slots__ = ("bytes", "content", "end", "start", "words")

    def __init__(self, values: pa.Array) -> None:
        """Copy the values of an array of the type `binary`. A null may have bytes."""
        offsets = np.zeros(1, np.int64)
        if len(values):
            _, ends, content = values.buffers()
            offsets = np.frombuffer(ends, np.int32, len(values) + 1, 4 * values.offset)
            offsets = offsets.astype(np.int64)
        first, size = int(offsets[0]), int(offsets[-1] - offsets[0])
        self.bytes = np.zeros(size + MARGIN, np.uint8)
        if size:
            self.bytes[:size] = np.frombuffer(content, np.uint8, size, first)
        self.start, self.end = offsets[:-1] - first, offsets[1:] - first
        self.content = pa.py_buffer(self.bytes)
        self.words = np.ndarray((size + MARGIN - 7,), "<u8", self.bytes.data, strides=(1,))

    def binary(self, spans: Spans) -> pa.Array:
        """The bytes of spans, which must lie within the values."""
        start, size = spans
        views = np.empty((len(start), 2), "<u8")
        views[:, 0] = size
        views[:, 0] |= (self.words[start] & _MASKS[np.minimum(size, 4)]) << np.uint64(32)
        is_inline = size <= _INLINE
        rest = start.astype(np.uint64) << np.uint64(32)
        if is_inline.any():
            inline = self.words[start + 4] & _MASKS[np.clip(size - 4, 0, 8)]
            rest = np.where(is_inline, inline, rest)
        views[:, 1] = rest
        buffers = [None, pa.py_buffer(views), self.content]
        return pa.Array.from_buffers(pa.binary_view(), len(start), buffers).cast(pa.binary())


class Cursor:
    """A position in each of some records. `is_good`: everything was as it must be so far."""

    __slots__ = ("buffer", "end", "is_good", "position")

    def __init__(self, buffer: Buffer, position: Numbers, end: Numbers) -> None:
        """Begin at positions that are not behind the ends of their records."""
        self.buffer = buffer
        self.position = position
        self.end = end
        self.is_good: Flags = np.ones(len(position), np.bool_)

    def require(self, is_good: Flags) -> None:
        """Give up the records for which a condition does not hold."""
        self.is_good &= is_good

    def binary(self, spans: Spans) -> pa.Array:
        """The bytes of a span of each record. There are none if it is given up."""
        return self.buffer.binary(_of_good(spans, self.is_good))

    def part(self, records: Numbers) -> Cursor:
        """A cursor of these records, at the same positions."""
        part = Cursor(self.buffer, self.position[records], self.end[records])
        part.is_good = self.is_good[records]
        return part

    def resume(self, records: Numbers, part: Cursor) -> None:
        """Go on where the cursor of a part has ended."""
        self.position[records] = part.position
        self.is_good[records] = part.is_good

    def byte(self) -> NDArray[np.uint8]:
        """Read one byte: a boolean, or a branch or symbol with a small index."""
        value = self.buffer.bytes[self.position]
        self._move(self.position + 1)
        return value

    def is_given(self) -> Flags:
        """Read the branch of a union of null and one type."""
        branch = self.byte()
        is_given: Flags = branch == 2
        self.require(is_given | (branch == 0))
        return is_given

    def long(self) -> Numbers:
        """Read a number of up to 64 bits."""
        first = self.buffer.bytes[self.position]
        if first.max(initial=0) < 128:
            self._move(self.position + 1)
            return _SMALL[first]
        return _signed(self._unsigned()[0])

    def int_(self) -> Numbers:
        """Read a number of up to 32 bits."""
        number, size = self._unsigned()
        is_int = (size <= _LONGEST_INT) & (number < np.uint64(2**32))
        self.require(is_int)
        return np.where(is_int, _signed(number), 0)

    def spans(self) -> Spans:
        """Read the spans of bytes or text."""
        size, start = self.long(), self.position
        is_within = (size >= 0) & (size <= np.minimum(self.end - start, MAX_LENGTH_BYTES))
        if not is_within.all():
            self.require(is_within)
            size = np.where(is_within, size, 0)
        self.position = start + size
        return np.stack((start, size))

    def items(self, least: int, read: Callable[[Cursor], Fields]) -> Items:
        """Read an array of one block, or an empty one.

        Args:
            least: The least number of bytes of an item, which bounds the number of items.
            read: Reads the fields of the next item of each record.
        """
        counts = self._counts(least)
        steps, total, records = int(counts.max(initial=0)), int(counts.sum()), len(counts)
        is_even = total == steps * records
        first = np.cumsum(counts) - counts
        fields: Fields = ()
        active = np.arange(records)
        for step in range(max(steps, 1)):
            active = active[counts[active] > step]
            part = self if is_even and steps else self.part(active)
            given = read(part)
            fields = fields or tuple(_room(values, total) for values in given)
            for field, values in zip(fields, given, strict=True):
                if is_even and steps:
                    field.reshape(*field.shape[:-1], records, steps)[..., step] = values
                else:
                    field[..., first[active] + step] = values
            if part is not self:
                self.resume(active, part)
        self._end_block(counts)
        return Items(self, counts, fields)

    def require_end(self, zeros: int) -> None:
        """Require that so many zeros (at most 8) follow in the record, and nothing else."""
        following = self.buffer.words[self.position] & _MASKS[zeros]
        self.require((self.end - self.position == zeros) & (following == 0))

    def _counts(self, least: int) -> Numbers:
        """The number of items in a block. It is 0 for records that are given up."""
        counts = self.long()
        self.require((counts >= 0) & (counts <= (self.end - self.position) // least))
        counts = np.where(self.is_good, counts, 0)
        if counts.max(initial=0) > ALWAYS_READ:
            common = np.partition(counts, -ENOUGH)[-ENOUGH] if len(counts) >= ENOUGH else 0
            self.require(counts <= max(ALWAYS_READ, common))
            counts = np.where(self.is_good, counts, 0)
        return counts

    def _end_block(self, counts: Numbers) -> None:
        """Read the end of an array. An array without items has ended already."""
        records = np.nonzero(counts)[0]
        part = self.part(records)
        part.require(part.byte() == 0)
        self.resume(records, part)

    def _unsigned(self) -> tuple[Words, Numbers]:
        """Read a number without its sign, and the number of its bytes."""
        word = self.buffer.words[self.position]
        ends = ~word & _HIGH_BITS
        last = ends & (~ends + _BIT)  # the high bit of the last byte, or 0
        number = word & ((last << _BIT) - _BIT) & ~_HIGH_BITS
        # Seven bits of each byte are joined in pairs.
        number = (number & np.uint64(0x007F007F007F007F)) | (
            (number & np.uint64(0x7F007F007F007F00)) >> _BIT
        )
        number = (number & np.uint64(0x00003FFF00003FFF)) | (
            (number & np.uint64(0x3FFF00003FFF0000)) >> np.uint64(2)
        )
        number = (number & np.uint64(0x0FFFFFFF)) | (
            (number & np.uint64(0x0FFFFFFF00000000)) >> np.uint64(4)
        )
        size = (((last >> np.uint64(7)) * _LAST_BYTES) >> np.uint64(56)).astype(np.int64) + 1
        longer = np.nonzero(last == 0)[0]
        if len(longer):
            self._add_last_bytes(longer, number, size)
        self._move(self.position + size)
        return number, size

    def _add_last_bytes(self, records: Numbers, number: Words, size: Numbers) -> None:
        """Complete numbers of nine or ten bytes. As in one record, extra high bits are dropped."""
        at = self.position[records]
        ninth, tenth = (self.buffer.bytes[at + n].astype(np.uint64) for n in (8, 9))
        is_ended = ninth < 128
        number[records] |= (ninth & np.uint64(127)) << np.uint64(56)
        number[records] |= np.where(is_ended, np.uint64(0), tenth << np.uint64(63))
        size[records] = np.where(is_ended, 9, 10)
        self.is_good[records] &= is_ended | (tenth < 128)

    def _move(self, position: Numbers) -> None:
        """Go to positions. One behind the end of its record gives up the record."""
        is_behind = position > self.end
        if is_behind.any():
            self.require(~is_behind)
            position = np.minimum(position, self.end)
        self.position = position


class Items:
    """The items of all records, one after the other. `fields` are those that each item has."""

    __slots__ = ("counts", "cursor", "fields")

    def __init__(self, cursor: Cursor, counts: Numbers, fields: Fields) -> None:
        self.cursor = cursor
        self.counts = counts
        self.fields = fields

    def binary(self, spans: Spans) -> pa.Array:
        """The bytes of a span of each item. There are none if its record is given up."""
        if not self.cursor.is_good.all():
            spans = _of_good(spans, np.repeat(self.cursor.is_good, self.counts))
        return self.cursor.buffer.binary(spans)

    def require(self, is_good: Flags) -> None:
        """Give up the records with an item for which a condition does not hold."""
        if not is_good.all():
            self.cursor.require(~self.any_(~is_good))

    def any_(self, holds: Flags) -> Flags:
        """Whether a condition holds for an item of each record."""
        records = np.repeat(np.arange(len(self.counts)), self.counts)
        any_holds = np.zeros(len(self.counts), np.bool_)
        any_holds[records[holds]] = True
        return any_holds

    def lists(self, items: pa.Array) -> pa.Array:
        """The lists of the records, of an array of all items."""
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(self.counts)))
        return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), items)


def _signed(number: Words) -> Numbers:
    """The numbers that are encoded as unsigned ones."""
    return (number >> _BIT).view(np.int64) ^ -(number & _BIT).view(np.int64)


def _of_good(spans: Spans, is_good: Flags) -> Spans:
    return spans if is_good.all() else np.stack((spans[0], np.where(is_good, spans[1], 0)))


def _room(values: NDArray[Any], total: int) -> NDArray[Any]:
    """An array for so many items of the same kind."""
    return np.empty((*values.shape[:-1], total), values.dtype)
