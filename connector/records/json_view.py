"""The JSON view of a record: one object on one line, for people and tools (REC-22).

The names are the Avro fields. A record has exactly one branch, for example `data_change`:

    {"stream_partition": "p0", "kafka_partitions": 4, "data_change": {"table": "users", "row_key":
    "u#1",
     "commit_timestamp": "2024-04-30T11:19:44.000000Z", "change_type": "USER", "source_cluster_id":
     "default", "entries": [{"kind": "SET_CELL", "family": "cf", "qualifier": "name",
                  "cell_timestamp": "2024-04-30T11:19:44.000000Z", "value": "Ada"}]}}

- Bytes are written as text if they are printable UTF-8. Otherwise they are `{"base64": "…"}`. Both
  forms can be read.
- Times are written as ISO 8601 in UTC with six decimals. Outside of 1970 to 9999 they are integers.
  This can occur for cell timestamps only. Integers (microseconds) and ISO 8601 with a zone can be
  read. Digits after the sixth decimal are ignored.
- Nulls and default values of the model are not written, and you may omit them. Change type, source
  cluster and cell timestamps are always written. A cell without a timestamp gets the commit
  timestamp.
- An unknown field is an error. The error names the field and the nearest known field.

Reading a written line gives the same record. The line has printable characters only, so it is safe
to show in a terminal.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from connector.errors import ErrorCode, JsonViewError
from connector.records.json_fields import (
    Fields,
    choice,
    list_of,
    read_bool,
    read_bytes,
    read_int,
    read_positive_int,
    read_text,
    read_time,
    without_repetition,
)
from connector.records.model import (
    SERVER_TIME,
    ChangeType,
    ChildPartition,
    ChildPartitions,
    ColumnType,
    DataChange,
    DeleteCells,
    DeleteFamily,
    Entry,
    Heartbeat,
    ModType,
    OffsetRange,
    OldCell,
    Record,
    Release,
    RowImage,
    SetCell,
    Transaction,
    WriteStreamOffset,
)
from connector.records.views import Json, view_of_bytes, view_of_time

_encode: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_ENTRY_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "SET_CELL": ("kind", "family", "qualifier", "cell_timestamp", "value"),
    "DELETE_CELLS": ("kind", "family", "qualifier", "range_start", "range_end"),
    "DELETE_FAMILY": ("kind", "family"),
}
_ANY_ENTRY_FIELDS: Final = tuple(
    dict.fromkeys(field for fields in _ENTRY_FIELDS.values() for field in fields)
)


@dataclass(frozen=True, slots=True)
class JsonRecord:
    """The record of a line. `kafka_partitions` is `None` if the line does not have it. Then
    `publish` sets it.
    """

    record: Record
    kafka_partitions: int | None


def to_json(record: Record, kafka_partitions: int | None) -> str:
    """Write the record as one line of JSON, without a line end. None omits `kafka_partitions`."""
    view: Json = {"stream_partition": record.stream_partition}
    if kafka_partitions is not None:
        view["kafka_partitions"] = kafka_partitions
    if isinstance(record, DataChange):
        view["data_change"] = _view_of_change(record)
    elif isinstance(record, Heartbeat):
        view["heartbeat"] = {"timestamp": view_of_time(record.timestamp)} | _optional(
            resume_token=view_of_bytes(record.resume_token)
        )
    elif isinstance(record, Release):
        view["release"] = {
            "commit_timestamp": view_of_time(record.commit_timestamp),
            "ranges": [
                {"stream": one.stream, "first": one.first, "upto": one.upto}
                for one in record.ranges
            ],
        }
    else:
        view["child_partitions"] = {
            "start_timestamp": view_of_time(record.start_timestamp),
            "record_sequence": record.record_sequence,
            "children": [_view_of_child(child) for child in record.children],
        }
    return to_line(view)


def to_line(view: Json) -> str:
    """Write any view as one line of JSON, without a line end. The line has printable characters
    only.
    """
    line = _encode(view)
    return (
        line
        if line.isprintable()
        else "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in line)
    )


def entry_fields(kind: str) -> tuple[str, ...]:
    """Return the fields of this kind of entry in the view. For an unknown kind, return the fields
    of all kinds.
    """
    return _ENTRY_FIELDS.get(kind, _ANY_ENTRY_FIELDS)


def from_json(line: str) -> JsonRecord:
    """Read the record of a line of JSON. Raises `JsonViewError` with the field."""
    try:
        document = json.loads(line, object_pairs_hook=without_repetition)
    except (ValueError, RecursionError) as error:
        raise JsonViewError(
            ErrorCode.JSON_INVALID,
            "This line is not JSON",
            str(error),
            "Write one JSON object per line",
        ) from None
    fields = Fields(document, "", ("stream_partition", "kafka_partitions", *_READERS))
    branches = [name for name in _READERS if fields.has(name)]
    if len(branches) != 1:
        given = (
            f"this one has {' and '.join(branches)}" if branches else "this one has none of them"
        )
        raise JsonViewError(
            ErrorCode.RECORD_KIND_INVALID,
            f"A record has exactly one of {', '.join(_READERS)}; {given}",
            field=branches[1] if branches else "data_change",
        )
    stream_partition = fields.get("stream_partition", read_text)
    kafka_partitions = fields.get("kafka_partitions", read_positive_int, None)
    return JsonRecord(
        _READERS[branches[0]](stream_partition, document[branches[0]]), kafka_partitions
    )


# Writing


def _optional(**fields: object) -> Json:
    """Omit the fields that are null, zero, empty or false. All defaults of the model are such
    values.
    """
    return {name: value for name, value in fields.items() if value}


def _time_unless_0(timestamp: int) -> str | int:
    return timestamp and view_of_time(timestamp)


def _view_of_change(change: DataChange) -> Json:
    view: Json = {
        "table": change.table,
        "row_key": view_of_bytes(change.row_key),
        "commit_timestamp": _time_unless_0(change.commit_timestamp),
        "change_type": change.change_type.value,
        "source_cluster_id": change.source_cluster_id,
    }
    view |= _optional(
        tie_breaker=change.tie_breaker,
        resume_token=view_of_bytes(change.resume_token),
        estimated_low_watermark=_time_unless_0(change.estimated_low_watermark),
    )
    view["entries"] = [view_of_entry(entry) for entry in change.entries]
    if change.transaction is not None:
        view["transaction"] = _view_of_transaction(change.transaction)
    if change.change_sequence_number is not None:
        view["change_sequence_number"] = change.change_sequence_number
    if change.row_image is not None:
        view["row_image"] = _view_of_row_image(change.row_image)
    if change.write_stream is not None:
        row = change.write_stream
        view["write_stream"] = {"stream": row.stream, "offset": row.offset}
    return view


def view_of_entry(entry: Entry) -> Json:
    """Return an entry as an object of the JSON view (REC-22)."""
    match entry:
        case SetCell(family, qualifier, value, cell_timestamp):
            view: Json = {
                "kind": "SET_CELL",
                "family": family,
                "qualifier": view_of_bytes(qualifier),
            }
            return view | {
                "cell_timestamp": view_of_time(cell_timestamp),
                "value": view_of_bytes(value),
            }
        case DeleteCells(family, qualifier, start, end):
            view = {"kind": "DELETE_CELLS", "family": family, "qualifier": view_of_bytes(qualifier)}
            return view | _optional(
                range_start=_time_unless_0(start), range_end=_time_unless_0(end)
            )
        case DeleteFamily(family):
            return {"kind": "DELETE_FAMILY", "family": family}


def _view_of_transaction(transaction: Transaction) -> Json:
    defaults = Transaction("")
    values = {name: getattr(transaction, name) for name in Transaction.__slots__}
    return {
        name: value
        for name, value in values.items()
        if name == "server_transaction_id" or value != getattr(defaults, name)
    }


def _view_of_row_image(image: RowImage) -> Json:
    columns = [
        {"name": column.name, "type": column.type}
        | _optional(is_primary_key=column.is_primary_key, ordinal_position=column.ordinal_position)
        for column in image.column_types
    ]
    cells = [
        {
            "family": cell.family,
            "qualifier": view_of_bytes(cell.qualifier),
            "value": view_of_bytes(cell.value),
        }
        | _optional(cell_timestamp=_time_unless_0(cell.cell_timestamp))
        for cell in image.old_cells
    ]
    view: Json = {"mod_type": image.mod_type.value}
    return view | _optional(
        value_capture_type=image.value_capture_type, column_types=columns, old_cells=cells
    )


def _view_of_child(child: ChildPartition) -> Json:
    view: Json = {"token": child.token} | _optional(
        parent_partition_tokens=list(child.parent_partition_tokens)
    )
    keys = {"start_key": child.start_key, "end_key": child.end_key}
    return view | {name: view_of_bytes(key) for name, key in keys.items() if key is not None}


# Reading


def _read_change(stream_partition: str, value: object) -> DataChange:
    fields = Fields(
        value,
        "data_change",
        [name for name in DataChange.__slots__ if name != "stream_partition"],
        " of a data change",
    )
    change_type = ChangeType(fields.get("change_type", choice(*ChangeType), ChangeType.USER.value))
    return fields.build(
        DataChange,
        stream_partition=stream_partition,
        table=fields.get("table", read_text),
        row_key=fields.get("row_key", read_bytes),
        commit_timestamp=fields.get("commit_timestamp", read_time),
        entries=fields.get("entries", list_of(_read_entry)),
        change_type=change_type,
        source_cluster_id=fields.get(
            "source_cluster_id", read_text, "default" if change_type is ChangeType.USER else ""
        ),
        tie_breaker=fields.get("tie_breaker", read_int, 0),
        resume_token=fields.get("resume_token", read_bytes, b""),
        estimated_low_watermark=fields.get("estimated_low_watermark", read_time, 0),
        transaction=fields.get("transaction", _read_transaction, None),
        change_sequence_number=fields.get("change_sequence_number", read_text, None),
        row_image=fields.get("row_image", _read_row_image, None),
        write_stream=fields.get("write_stream", _read_row_offset, None),
    )


def _read_row_offset(value: object, path: str) -> WriteStreamOffset:
    fields = Fields(value, path, ("stream", "offset"), " of a write stream")
    return fields.build(
        WriteStreamOffset,
        stream=fields.get("stream", read_text),
        offset=fields.get("offset", read_int),
    )


def _read_entry(value: object, path: str) -> Entry:
    fields = Fields(value, path, _ANY_ENTRY_FIELDS, " of an entry")
    kind = fields.get("kind", choice(*_ENTRY_FIELDS))
    Fields(value, path, _ENTRY_FIELDS[kind], f" of a {kind}")
    family = fields.get("family", read_text)
    if kind == "DELETE_FAMILY":
        return fields.build(DeleteFamily, family=family)
    qualifier = fields.get("qualifier", read_bytes)
    if kind == "DELETE_CELLS":
        start, end = fields.get("range_start", read_time, 0), fields.get("range_end", read_time, 0)
        return fields.build(
            DeleteCells, family=family, qualifier=qualifier, range_start=start, range_end=end
        )
    cell_timestamp = fields.get("cell_timestamp", read_time, SERVER_TIME)
    return fields.build(
        SetCell,
        family=family,
        qualifier=qualifier,
        value=fields.get("value", read_bytes),
        cell_timestamp=cell_timestamp,
    )


def _read_transaction(value: object, path: str) -> Transaction:
    fields = Fields(value, path, Transaction.__slots__, " of a transaction")
    return fields.build(
        Transaction,
        server_transaction_id=fields.get("server_transaction_id", read_text),
        record_sequence=fields.get("record_sequence", read_int, 0),
        is_last_record_in_transaction_in_partition=fields.get(
            "is_last_record_in_transaction_in_partition", read_bool, False
        ),
        number_of_records_in_transaction=fields.get(
            "number_of_records_in_transaction", read_int, 1
        ),
        number_of_partitions_in_transaction=fields.get(
            "number_of_partitions_in_transaction", read_int, 1
        ),
        transaction_tag=fields.get("transaction_tag", read_text, ""),
        is_system_transaction=fields.get("is_system_transaction", read_bool, False),
    )


def _read_row_image(value: object, path: str) -> RowImage:
    fields = Fields(value, path, RowImage.__slots__, " of a row image")
    return fields.build(
        RowImage,
        mod_type=ModType(fields.get("mod_type", choice(*ModType))),
        value_capture_type=fields.get("value_capture_type", read_text, ""),
        column_types=fields.get("column_types", list_of(_read_column_type), ()),
        old_cells=fields.get("old_cells", list_of(_read_old_cell), ()),
    )


def _read_column_type(value: object, path: str) -> ColumnType:
    fields = Fields(value, path, ColumnType.__slots__, " of a column type")
    return fields.build(
        ColumnType,
        name=fields.get("name", read_text),
        type=fields.get("type", read_text),
        is_primary_key=fields.get("is_primary_key", read_bool, False),
        ordinal_position=fields.get("ordinal_position", read_int, 0),
    )


def _read_old_cell(value: object, path: str) -> OldCell:
    fields = Fields(value, path, OldCell.__slots__, " of an old cell")
    return fields.build(
        OldCell,
        family=fields.get("family", read_text),
        qualifier=fields.get("qualifier", read_bytes),
        value=fields.get("value", read_bytes),
        cell_timestamp=fields.get("cell_timestamp", read_time, 0),
    )


def _read_heartbeat(stream_partition: str, value: object) -> Heartbeat:
    fields = Fields(value, "heartbeat", ("timestamp", "resume_token"), " of a heartbeat")
    return fields.build(
        Heartbeat,
        stream_partition=stream_partition,
        timestamp=fields.get("timestamp", read_time),
        resume_token=fields.get("resume_token", read_bytes, b""),
    )


def _read_child_partitions(stream_partition: str, value: object) -> ChildPartitions:
    fields = Fields(
        value,
        "child_partitions",
        ("start_timestamp", "record_sequence", "children"),
        " of child partitions",
    )
    return fields.build(
        ChildPartitions,
        stream_partition=stream_partition,
        start_timestamp=fields.get("start_timestamp", read_time),
        record_sequence=fields.get("record_sequence", read_int),
        children=fields.get("children", list_of(_read_child)),
    )


def _read_child(value: object, path: str) -> ChildPartition:
    fields = Fields(value, path, ChildPartition.__slots__, " of a child")
    return fields.build(
        ChildPartition,
        token=fields.get("token", read_text),
        parent_partition_tokens=fields.get("parent_partition_tokens", _read_parents, ()),
        start_key=fields.get("start_key", read_bytes, None),
        end_key=fields.get("end_key", read_bytes, None),
    )


def _read_parents(value: object, path: str) -> tuple[str, ...]:
    """A name of null means no parent, as a list without names does."""
    names = list_of(lambda name, at: None if name is None else read_text(name, at))(value, path)
    return tuple(name for name in names if name is not None)


def _read_release(stream_partition: str, value: object) -> Release:
    fields = Fields(value, "release", ("commit_timestamp", "ranges"), " of a release")
    return fields.build(
        Release,
        stream_partition=stream_partition,
        commit_timestamp=fields.get("commit_timestamp", read_time),
        ranges=fields.get("ranges", list_of(_read_range)),
    )


def _read_range(value: object, path: str) -> OffsetRange:
    fields = Fields(value, path, OffsetRange.__slots__, " of a range")
    return fields.build(
        OffsetRange,
        stream=fields.get("stream", read_text),
        first=fields.get("first", read_int),
        upto=fields.get("upto", read_int),
    )


_READERS: Final[Mapping[str, Callable[[str, object], Record]]] = {
    "data_change": _read_change,
    "heartbeat": _read_heartbeat,
    "child_partitions": _read_child_partitions,
    "release": _read_release,
}
