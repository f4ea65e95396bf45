"""Decodes the Avro body of a record of the newest schema, by hand, and builds the record.

Like `connector.records.avro_encoder`, it does not walk the schema: the walk is unrolled, the heads
of cells (family, qualifier) are cached, and a cell timestamp with the bytes of the commit timestamp
is not decoded again.

It only decides about valid records as encoders usually write them. For all other bytes it returns
None, and `connector.records.avro_plan` with `connector.records.datum` decides and explains. A
property test compares both for valid and damaged bytes.

Slices are not checked: behind a field that is too long for the bytes, the next byte is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final, TypeVar

from connector.errors import InvalidChangeError
from connector.records.avro_decoder import (
    DamagedError,
    read_bytes,
    read_int,
    read_long,
    read_string,
)
from connector.records.model import (
    MAX_ENTRIES,
    ChangeType,
    ColumnType,
    DataChange,
    DeleteCells,
    DeleteFamily,
    Entry,
    Heartbeat,
    ModType,
    OldCell,
    Record,
    RowImage,
    SetCell,
    Transaction,
    WriteStreamOffset,
    with_data,
)

_T = TypeVar("_T")
_CHANGE_TYPES: Final = {0: ChangeType.USER, 2: ChangeType.GARBAGE_COLLECTION}
_MOD_TYPES: Final = {0: ModType.INSERT, 2: ModType.UPDATE, 4: ModType.DELETE}
_SET_CELL, _DELETE_CELLS, _DELETE_FAMILY = 2, 4, 6
_NO_MORE_FIELDS: Final = b"\x00\x00\x00\x00\x00"
"""Qualifier, cell timestamp, range and value of an entry that deletes a family."""


class _UnusualError(Exception):
    """The general decoder must decide."""


def decode_body(data: bytes, start: int) -> tuple[Record, int] | None:
    """Decode the data change or heartbeat that begins at `start` and ends with the bytes.

    Returns:
        The record and its `kafka_partitions`, which are not checked. None: it is another record,
        has an unusual form, or is not valid.
    """
    try:
        stream_partition, end = read_string(data, start)
        kafka_partitions, end = read_int(data, end)
        record: Record
        if data[end] == 2:
            record, end = _data_change(stream_partition, data, end + 1)
            rest = b"\x00\x00\x00\x00"
        elif data.startswith(b"\x00\x02", end):
            timestamp, end = read_long(data, end + 2)
            resume_token, end = read_bytes(data, end)
            record, rest = Heartbeat(stream_partition, timestamp, resume_token), b"\x00\x00\x00"
        else:
            return None
        return (record, kafka_partitions) if data[end:] == rest else None
    except (IndexError, KeyError, DamagedError, InvalidChangeError, _UnusualError):
        return None


def _data_change(stream_partition: str, data: bytes, start: int) -> tuple[DataChange, int]:
    table, end = read_string(data, start)
    row_key, end = read_bytes(data, end)
    change_type = _CHANGE_TYPES[data[end]]
    source_cluster_id, time_start = read_string(data, end + 1)
    commit_timestamp, end = read_long(data, time_start)
    time_bytes = data[time_start:end]
    tie_breaker, end = read_long(data, end)
    resume_token, end = read_bytes(data, end)
    estimated_low_watermark, end = read_long(data, end)
    entries, end = _entries(data, end, commit_timestamp, time_bytes)
    transaction, end = _optional(_transaction, data, end)
    change_sequence_number, end = _optional(read_string, data, end)
    row_image, end = _optional(_row_image, data, end)
    write_stream, end = _optional(_write_stream, data, end)
    change = DataChange(
        stream_partition=stream_partition,
        table=table,
        row_key=row_key,
        commit_timestamp=commit_timestamp,
        entries=entries,
        change_type=change_type,
        source_cluster_id=source_cluster_id,
        tie_breaker=tie_breaker,
        resume_token=resume_token,
        estimated_low_watermark=estimated_low_watermark,
        transaction=transaction,
        change_sequence_number=change_sequence_number,
        row_image=row_image,
        write_stream=write_stream,
    )
    return change, end


def _entries(
    data: bytes, start: int, commit_timestamp: int, time_bytes: bytes
) -> tuple[tuple[Entry, ...], int]:
    """Read the entries of a change with this commit timestamp, which is encoded as `time_bytes`."""
    count, end = read_long(data, start)
    if not 1 <= count <= MAX_ENTRIES:
        raise _UnusualError
    entries: list[Entry] = []
    entry: Entry
    for _ in range(count):
        head, family_length = end, data[end + 1]
        qualifier = head + 2 + (family_length >> 1)
        qualifier_length = data[qualifier]
        if data[head] != _SET_CELL or family_length > 127 or qualifier_length > 127:
            if data[head] == _DELETE_FAMILY and data.startswith(_NO_MORE_FIELDS, qualifier):
                entry, end = _deletion_of(data[head + 1 : qualifier]), qualifier + 5
            else:
                entry, end = _rare_entry(data, head)
            entries.append(entry)
            continue
        end = qualifier + 1 + (qualifier_length >> 1)
        cell = _cell_of(data[head + 1 : end])
        if data.startswith(time_bytes, end):
            timestamp, end = commit_timestamp, end + len(time_bytes)
        else:
            timestamp, end = _cell_timestamp(data, end)
        length = data[end + 2]
        if data[end] or data[end + 1] or length & 129:
            _, end = read_long(data, end)
            _, end = read_long(data, end)
            value, end = read_bytes(data, end)
        else:
            start = end + 3
            end = start + (length >> 1)
            value = data[start:end]
        entries.append(with_data(cell, value, timestamp))
    if data[end] != 0:
        raise _UnusualError
    return tuple(entries), end + 1


@lru_cache(maxsize=4096)
def _cell_of(head: bytes) -> SetCell:
    """A cell with this encoded family and qualifier, which are checked here."""
    family, end = read_string(head, 0)
    qualifier, end = read_bytes(head, end)
    if end != len(head):
        raise _UnusualError
    return SetCell(family, qualifier, b"")


@lru_cache(maxsize=1024)
def _deletion_of(head: bytes) -> DeleteFamily:
    """The entry with this encoded family, which is checked here."""
    family, end = read_string(head, 0)
    if end != len(head):
        raise _UnusualError
    return DeleteFamily(family)


def _cell_timestamp(data: bytes, start: int) -> tuple[int, int]:
    timestamp, end = read_long(data, start)
    if timestamp < 0:
        raise _UnusualError
    return timestamp, end


def _rare_entry(data: bytes, start: int) -> tuple[Entry, int]:
    kind = data[start]
    family, end = read_string(data, start + 1)
    qualifier, end = read_bytes(data, end)
    timestamp, end = _cell_timestamp(data, end)
    range_start, end = read_long(data, end)
    range_end, end = read_long(data, end)
    value, end = read_bytes(data, end)
    if kind == _SET_CELL:
        return SetCell(family, qualifier, value, timestamp), end
    if kind == _DELETE_CELLS:
        return DeleteCells(family, qualifier, range_start, range_end), end
    if kind == _DELETE_FAMILY:
        return DeleteFamily(family), end
    raise _UnusualError


def _optional(
    read: Callable[[bytes, int], tuple[_T, int]], data: bytes, start: int
) -> tuple[_T | None, int]:
    if data[start] == 0:
        return None, start + 1
    if data[start] != 2:
        raise _UnusualError
    return read(data, start + 1)


def _transaction(data: bytes, start: int) -> tuple[Transaction, int]:
    server_transaction_id, end = read_string(data, start)
    record_sequence, end = read_long(data, end)
    is_last = data[end] == 1
    records, end = read_int(data, end + 1)
    partitions, end = read_int(data, end)
    tag, end = read_string(data, end)
    return Transaction(
        server_transaction_id, record_sequence, is_last, records, partitions, tag, data[end] == 1
    ), end + 1


def _row_image(data: bytes, start: int) -> tuple[RowImage, int]:
    mod_type = _MOD_TYPES[data[start]]
    value_capture_type, end = read_string(data, start + 1)
    column_types, end = _array(_column_type, data, end)
    old_cells, end = _array(_old_cell, data, end)
    return RowImage(mod_type, value_capture_type, column_types, old_cells), end


def _column_type(data: bytes, start: int) -> tuple[ColumnType, int]:
    name, end = read_string(data, start)
    type_, end = read_string(data, end)
    ordinal_position, after = read_int(data, end + 1)
    return ColumnType(name, type_, data[end] == 1, ordinal_position), after


def _old_cell(data: bytes, start: int) -> tuple[OldCell, int]:
    family, end = read_string(data, start)
    qualifier, end = read_bytes(data, end)
    value, end = read_bytes(data, end)
    cell_timestamp, end = read_long(data, end)
    return OldCell(family, qualifier, value, cell_timestamp), end


def _write_stream(data: bytes, start: int) -> tuple[WriteStreamOffset, int]:
    stream, end = read_string(data, start)
    offset, end = read_long(data, end)
    return WriteStreamOffset(stream, offset), end


def _array(
    read: Callable[[bytes, int], tuple[_T, int]], data: bytes, start: int
) -> tuple[tuple[_T, ...], int]:
    """Read an array of at most one block."""
    count, end = read_long(data, start)
    if count == 0:
        return (), end
    if not 0 < count <= len(data):
        raise _UnusualError
    items: list[_T] = []
    for _ in range(count):
        item, end = read(data, end)
        items.append(item)
    if data[end] != 0:
        raise _UnusualError
    return tuple(items), end + 1
