"""A record in the spool of a producer: its number, its checksum, and the loss of one (PUB-3).

A spool stores records with consecutive numbers, from 1 on. A number that is absent, or whose
checksum is different, is a loss. These are plain values that the producer stores.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from connector.records.codec import ChangeRecord, Schemas, body_of, decode, frame
from connector.records.model import ChildPartitions, DataChange, Heartbeat, Record, Release
from connector.text import counted

EVERYWHERE: Final = -1
"""The Kafka partition of a control record: it goes to all of them."""

OVERHEAD_BYTES: Final = 100
"""What a record needs in the file beside its key, value, headers and name, rounded up."""

_FIXED: Final = Struct(">qqiB")
_LENGTH: Final = Struct(">i")
_MAX_RANGES: Final = 5


class Kind(IntEnum):
    """The kinds of spooled records. An announcement makes no claim."""

    CHANGE = 0
    ANNOUNCEMENT = 1
    HEARTBEAT = 2
    CHILD_PARTITIONS = 3


class SpooledRecord(NamedTuple):
    """A record as the spool stores it.

    - `time` is its commit timestamp, or the time of the control record, in microseconds.
    - `kafka_partition` is that of the key, or `EVERYWHERE`.
    - `value` is the framed value, and `headers` are packed by `pack_headers`.
    """

    kind: int
    stream_partition: str
    time: int
    kafka_partition: int
    key: bytes
    value: bytes
    headers: bytes

    @property
    def is_claim(self) -> bool:
        """Whether it says that changes are complete, so that it waits for them (REC-18)."""
        return self.kind in (Kind.HEARTBEAT, Kind.CHILD_PARTITIONS)

    @property
    def size(self) -> int:
        """The bytes that count for the limit of the spool."""
        return (
            len(self.key)
            + len(self.value)
            + len(self.headers)
            + len(self.stream_partition)
            + OVERHEAD_BYTES
        )

    def decoded(self) -> Record | None:
        """Return the record. None: the value is not one of this release."""
        found = decode(frame(body_of(self.value), None), Schemas())
        return found.record if isinstance(found, ChangeRecord) else None


def spooled(
    record: Record,
    key: bytes,
    value: bytes,
    kafka_partition: int,
    headers: Iterable[tuple[str, str | bytes | None]],
    *,
    is_ours: bool = False,
) -> SpooledRecord:
    """Return a record in the form of the spool. `is_ours`: the producer made it, so it is no
    claim.
    """
    kind, time = _kind_and_time(record)
    return SpooledRecord(
        Kind.ANNOUNCEMENT if is_ours else kind,
        record.stream_partition,
        time,
        kafka_partition,
        key,
        value,
        pack_headers(headers) if headers else b"",
    )


def checksum(number: int, record: SpooledRecord) -> int:
    """Return the CRC-32 of a record and its number. Each length is included."""
    crc = zlib.crc32(_FIXED.pack(number, record.time, record.kafka_partition, record.kind))
    for part in (record.stream_partition.encode(), record.key, record.value, record.headers):
        crc = zlib.crc32(part, zlib.crc32(_LENGTH.pack(len(part)), crc))
    return crc


def covers(control: SpooledRecord, earlier: SpooledRecord) -> bool:
    """Return whether a control record waits for the acknowledgement of an earlier record (REC-18).

    A heartbeat covers the changes of its stream partition up to its time. Child partitions cover
    all earlier records, because they may end other stream partitions.
    """
    if control.kind == Kind.CHILD_PARTITIONS:
        return True
    return (
        control.kind == Kind.HEARTBEAT
        and earlier.kind == Kind.CHANGE
        and earlier.stream_partition == control.stream_partition
        and earlier.time <= control.time
    )


def pack_headers(headers: Iterable[tuple[str, str | bytes | None]]) -> bytes:
    """Return headers as bytes. `unpack_headers` is the inverse. A text becomes its UTF-8."""
    packed = bytearray()
    for name, value in headers:
        coded = name.encode()
        packed += _LENGTH.pack(len(coded)) + coded
        if value is None:
            packed += _LENGTH.pack(-1)
        else:
            content = value.encode() if isinstance(value, str) else value
            packed += _LENGTH.pack(len(content)) + content
    return bytes(packed)


def unpack_headers(packed: bytes) -> list[tuple[str, str | bytes | None]]:
    """Return the headers of `pack_headers`."""
    headers: list[tuple[str, str | bytes | None]] = []
    at = 0
    while at < len(packed):
        name, at = _part(packed, at)
        value, at = _part(packed, at)
        assert name is not None
        headers.append((name.decode(), value))
    return headers


def missing(found: Iterable[int], first: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of numbers from `first` up to `end`, without it, that are not in `found`.

    `found` is in ascending order. A range has its first and its last number.
    """
    expected = first
    for number in found:
        if number > expected:
            yield expected, min(number, end) - 1
        expected = max(expected, number + 1)
    if expected < end:
        yield expected, end - 1


def describe_losses(losses: Iterable[tuple[int, int]]) -> str:
    """Return ranges of numbers as text, for example `3 records (numbers 5 to 6, 9)`."""
    ranges = list(losses)
    total = sum(last - first + 1 for first, last in ranges)
    shown = [
        str(first) if first == last else f"{first} to {last}"
        for first, last in ranges[:_MAX_RANGES]
    ]
    more = ", …" if len(ranges) > _MAX_RANGES else ""
    return f"{counted(total, 'record')} (numbers {', '.join(shown)}{more})"


def _kind_and_time(record: Record) -> tuple[Kind, int]:
    match record:
        case DataChange():
            return Kind.CHANGE, record.commit_timestamp
        case Heartbeat():
            return Kind.HEARTBEAT, record.timestamp
        case Release():
            raise AssertionError("a release is sent in a transaction, never by a spool")
        case ChildPartitions():
            # An announcement of the application may end a stream partition.
            return Kind.CHILD_PARTITIONS, record.start_timestamp


def _part(packed: bytes, at: int) -> tuple[bytes | None, int]:
    (length,) = _LENGTH.unpack_from(packed, at)
    at += _LENGTH.size
    return (None, at) if length < 0 else (packed[at : at + length], at + length)
