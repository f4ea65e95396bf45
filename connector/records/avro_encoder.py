"""Encodes the Avro body of a record, by hand (REC-20).

An Avro library walks the schema for every value. Here, the walk is unrolled, and encoding only
joins pieces of bytes. Three optimizations matter:

- Constant bytes between the fields (union branches, zeros) are literals.
- Names and the heads of entries (kind, family, qualifier) are cached. A table has few columns and
  many rows.
- The bytes of the commit timestamp are computed once, and reused for its cells.

`benchmarks/encoder.py` compares the speed with fastavro. A property test compares the bytes.

Avro in short: a `long` is zigzag, with seven bits in each byte, low bits first. Bytes and strings
are their length and their content. An array is its count, its items and a zero. An empty array is
only a zero. A union is the index of the branch and its value.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from connector.records.model import (
    SERVER_TIME,
    ChangeType,
    ChildPartition,
    ChildPartitions,
    DataChange,
    DeleteCells,
    DeleteFamily,
    Entry,
    Heartbeat,
    ModType,
    Record,
    Release,
    RowImage,
    SetCell,
    Transaction,
    Truncate,
)

_MAX_REMEMBERED_BYTES: Final = 64
"""Longer qualifiers are not cached. They are data rather than names of columns."""

_MOD_TYPES: Final = {ModType.INSERT: b"\x00", ModType.UPDATE: b"\x02", ModType.DELETE: b"\x04"}


def encode_body(record: Record, kafka_partitions: int, claim: int | None = None) -> bytes:
    """Return the body of a record. A test compares it with the one of fastavro (REC-20).

    `claim` replaces the estimated low watermark of a change.
    """
    head = _head(record.stream_partition, kafka_partitions)
    if isinstance(record, DataChange):
        pieces = [head, b"\x02"]
        _append_data_change(pieces, record, record.commit_timestamp, claim=claim)
        if record.write_stream is None:
            pieces.append(b"\x00\x00\x00\x00\x00")
        else:
            _append_write_stream(pieces, record.write_stream.stream, record.write_stream.offset)
            pieces.append(b"\x00\x00\x00\x00")
        return b"".join(pieces)
    if isinstance(record, Heartbeat):
        return b"".join(
            (
                *(head, b"\x00\x02", _long(record.timestamp), _bytes(record.resume_token)),
                b"\x00\x00\x00",
            )
        )
    if isinstance(record, Truncate):
        return b"".join((head, b"\x00\x00\x00\x00\x02", _truncate(record)))
    if isinstance(record, Release):
        return b"".join((head, b"\x00\x00\x00\x02", _release(record), b"\x00"))
    return b"".join((head, b"\x00\x00\x02", _child_partitions(record), b"\x00\x00"))


def encode_row(
    change: DataChange, offset: int, server_time: int, kafka_partitions: int
) -> tuple[bytes, bytes]:
    """Encode a row of a write stream at another offset than its own.

    Returns:
        The Avro body, and the bytes that are equal for each append of the same row at
        the same offset (WRS-7). The cells of a staged change with `SERVER_TIME` are at
        `server_time` (µs) in the body.
    """
    if not change.is_staged:
        row = body = _row(change, offset, change.commit_timestamp)
    else:
        row = body = _row(change, offset, SERVER_TIME)
        if any(
            type(entry) is SetCell and entry.cell_timestamp == SERVER_TIME
            for entry in change.entries
        ):
            body = _row(change, offset, server_time)
    head = _head(change.stream_partition, kafka_partitions)
    return b"".join((head, body, b"\x00\x00\x00\x00")), row


def _row(change: DataChange, offset: int, server_time: int) -> bytes:
    assert change.write_stream is not None
    pieces = [b"\x02"]
    if change.is_staged:
        _append_data_change(pieces, change, SERVER_TIME, _long(server_time))
    else:
        _append_data_change(pieces, change, change.commit_timestamp)
    _append_write_stream(pieces, change.write_stream.stream, offset)
    return b"".join(pieces)


def _append_write_stream(pieces: list[bytes], stream: str, offset: int) -> None:
    pieces += (b"\x02", _name(stream), _long(offset))


def _release(release: Release) -> bytes:
    ranges = [
        _text(range_.stream) + _long(range_.first) + _long(range_.upto) for range_ in release.ranges
    ]
    return _long(release.commit_timestamp) + _array(ranges)


def _truncate(truncate: Truncate) -> bytes:
    transaction, number = truncate.transaction, truncate.change_sequence_number
    return b"".join(
        (
            _name(truncate.table),
            _long(truncate.commit_timestamp),
            _long(truncate.tie_breaker),
            b"\x00" if transaction is None else _transaction(transaction),
            b"\x00" if number is None else b"\x02" + _text(number),
        )
    )


def _append_data_change(
    pieces: list[bytes],
    change: DataChange,
    server_time: int,
    server_time_bytes: bytes | None = None,
    claim: int | None = None,
) -> None:
    """Append a change, without its write stream. Cells at `server_time` get
    `server_time_bytes`, or those of the commit timestamp.
    """
    commit_timestamp = _long(change.commit_timestamp)
    cluster = change.source_cluster_id
    estimate = change.estimated_low_watermark if claim is None else claim
    pieces += (
        _name(change.table),
        _bytes(change.row_key),
        b"\x00" if change.change_type is ChangeType.USER else b"\x02",
        _name(cluster) if len(cluster) <= _MAX_REMEMBERED_BYTES else _text(cluster),
        commit_timestamp,
        _long(change.tie_breaker) if change.tie_breaker else b"\x00",
        _bytes(change.resume_token) if change.resume_token else b"\x00",
        _long(estimate) if estimate else b"\x00",
    )
    _append_entries(pieces, change.entries, server_time, server_time_bytes or commit_timestamp)
    pieces += (
        b"\x00" if change.transaction is None else _transaction(change.transaction),
        (
            b"\x00"
            if change.change_sequence_number is None
            else b"\x02" + _text(change.change_sequence_number)
        ),
        b"\x00" if change.row_image is None else _row_image(change.row_image),
    )


def _append_entries(
    pieces: list[bytes],
    entries: tuple[Entry, ...],
    commit_timestamp: int,
    commit_timestamp_bytes: bytes,
) -> None:
    pieces.append(_long(len(entries)))
    for entry in entries:
        if isinstance(entry, SetCell):
            qualifier, value, timestamp = entry.qualifier, entry.value, entry.cell_timestamp
            remembering = (
                _set_cell_head
                if len(qualifier) <= _MAX_REMEMBERED_BYTES
                else _set_cell_head.__wrapped__
            )
            length = len(value)
            pieces += (
                remembering(entry.family, qualifier),
                commit_timestamp_bytes if timestamp == commit_timestamp else _long(timestamp),
                _BEFORE_SMALL_VALUE[length] if length < 64 else b"\x00\x00" + _long(length),
                value,
            )
        elif isinstance(entry, DeleteCells):
            pieces += (
                b"\x04",
                _text(entry.family),
                _bytes(entry.qualifier),
                b"\x00",
                _long(entry.range_start),
                _long(entry.range_end),
                b"\x00",
            )
        else:
            assert isinstance(entry, DeleteFamily), entry
            pieces += (b"\x06", _name(entry.family), b"\x00\x00\x00\x00\x00")
    pieces.append(b"\x00")


@lru_cache(maxsize=1024)
def _head(stream_partition: str, kafka_partitions: int) -> bytes:
    return _text(stream_partition) + _long(kafka_partitions)


@lru_cache(maxsize=1024)
def _name(name: str) -> bytes:
    """Encode a text that occurs often. The result is cached."""
    return _text(name)


@lru_cache(maxsize=4096)
def _set_cell_head(family: str, qualifier: bytes) -> bytes:
    return b"\x02" + _text(family) + _bytes(qualifier)


def _transaction(transaction: Transaction) -> bytes:
    return b"".join(
        (
            b"\x02",
            _text(transaction.server_transaction_id),
            _long(transaction.record_sequence),
            b"\x01" if transaction.is_last_record_in_transaction_in_partition else b"\x00",
            _long(transaction.number_of_records_in_transaction),
            _long(transaction.number_of_partitions_in_transaction),
            _text(transaction.transaction_tag),
            b"\x01" if transaction.is_system_transaction else b"\x00",
        )
    )


def _row_image(image: RowImage) -> bytes:
    columns = [
        _text(column.name)
        + _text(column.type)
        + (b"\x01" if column.is_primary_key else b"\x00")
        + _long(column.ordinal_position)
        for column in image.column_types
    ]
    cells = [
        _text(cell.family)
        + _bytes(cell.qualifier)
        + _bytes(cell.value)
        + _long(cell.cell_timestamp)
        for cell in image.old_cells
    ]
    return b"".join(
        (
            b"\x02",
            _MOD_TYPES[image.mod_type],
            _text(image.value_capture_type),
            _array(columns),
            _array(cells),
        )
    )


def _child_partitions(ended: ChildPartitions) -> bytes:
    return (
        _long(ended.start_timestamp)
        + _long(ended.record_sequence)
        + _array([_child(child) for child in ended.children])
    )


def _child(child: ChildPartition) -> bytes:
    parents = _array([_text(token) for token in child.parent_partition_tokens])
    return (
        _text(child.token)
        + parents
        + _optional_bytes(child.start_key)
        + _optional_bytes(child.end_key)
    )


def _array(items: list[bytes]) -> bytes:
    return b"".join((_long(len(items)), *items, b"\x00")) if items else b"\x00"


def _optional_bytes(value: bytes | None) -> bytes:
    return b"\x00" if value is None else b"\x02" + _bytes(value)


def _text(text: str) -> bytes:
    return _bytes(text.encode())


def _bytes(value: bytes) -> bytes:
    length = len(value)
    return (_SMALL[length] if length < 64 else _long(length)) + value


def _long(number: int) -> bytes:
    zigzag = number << 1 if number >= 0 else ~(number << 1)
    if zigzag < 128:
        return _ONE_BYTE[zigzag]
    if 1 << 49 <= zigzag < 1 << 56:  # the range of today's timestamps in microseconds
        low, high = zigzag & 0xFFFFFFF, zigzag >> 28
        return bytes(
            (
                low & 127 | 128,
                low >> 7 & 127 | 128,
                low >> 14 & 127 | 128,
                low >> 21 | 128,
                high & 127 | 128,
                high >> 7 & 127 | 128,
                high >> 14 & 127 | 128,
                high >> 21,
            )
        )
    pieces = bytearray()
    while zigzag > 127:
        pieces.append(zigzag & 127 | 128)
        zigzag >>= 7
    pieces.append(zigzag)
    return bytes(pieces)


_ONE_BYTE: Final = tuple(bytes((byte,)) for byte in range(128))
_SMALL: Final = tuple(_long(length) for length in range(64))
_BEFORE_SMALL_VALUE: Final = tuple(b"\x00\x00" + length for length in _SMALL)
"""The empty range of a SET_CELL, and the length of its value."""
