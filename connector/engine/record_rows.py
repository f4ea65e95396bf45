"""The rows of validated records, one record after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from connector.engine.schema import RECORD
from connector.records.codec import ChangeRecord
from connector.records.model import (
    ChildPartitions,
    DataChange,
    DeleteCells,
    DeleteFamily,
    Entry,
    Heartbeat,
    Mutation,
    Record,
    Release,
    SetCell,
    Truncate,
)

_UNUSED: Final = {
    "qualifier": b"",
    "cell_timestamp": 0,
    "range_start": 0,
    "range_end": 0,
    "value": b"",
}
"""What an entry has in the fields that its kind does not use: the defaults of the schema."""


def rows_of(records: Sequence[ChangeRecord]) -> pa.Table:
    """The rows of records that `validate_record` accepted, with the schema `RECORD`."""
    return pa.Table.from_pylist([_row(record) for record in records], RECORD)


def _row(decoded: ChangeRecord) -> dict[str, Any]:
    record = decoded.record
    return {
        "stream_partition": record.stream_partition,
        "kafka_partitions": decoded.kafka_partitions,
        **_content(record),
    }


def _content(record: Record) -> dict[str, Any]:
    match record:
        case DataChange():
            entries = [_entry(entry) for entry in record.entries]
            columns = {"kind": "change"} | _columns(record) | {"entries": entries}
            return columns | _STAGED if record.is_staged else columns
        case Truncate():
            return {"kind": "truncate"} | _columns(record)
        case Heartbeat():
            branch = "heartbeat"
        case ChildPartitions():
            branch = "child_partitions"
        case Release():
            branch = "release"
    return {"kind": "control", branch: _plain(record, RECORD.field(branch).type)}


_STAGED: Final = {"kind": "staged", "commit_timestamp": None}


def _columns(record: Mutation) -> dict[str, Any]:
    """The columns that have the name of a field, but `entries`."""
    return {
        column.name: _plain(getattr(record, column.name), column.type)
        for column in RECORD
        if hasattr(record, column.name) and column.name != "entries"
    }


def _entry(entry: Entry) -> dict[str, Any]:
    used: dict[str, Any]
    match entry:
        case SetCell(family, qualifier, value, timestamp):
            used = {"qualifier": qualifier, "cell_timestamp": timestamp, "value": value}
            return {"kind": "SET_CELL", "family": family} | _UNUSED | used
        case DeleteCells(family, qualifier, start, end):
            used = {"qualifier": qualifier, "range_start": start, "range_end": end}
            return {"kind": "DELETE_CELLS", "family": family} | _UNUSED | used
        case DeleteFamily(family):
            return {"kind": "DELETE_FAMILY", "family": family} | _UNUSED


def _plain(value: Any, type_: pa.DataType) -> Any:
    """A value of the model as Arrow takes it for a column."""
    if value is None:
        return None
    if pa.types.is_struct(type_):
        return {field.name: _plain(getattr(value, field.name), field.type) for field in type_}
    if pa.types.is_list(type_):
        return [_plain(item, type_.value_type) for item in value]
    return value
