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

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Final, NoReturn, TypeVar

from connector.errors import ErrorCode, InvalidChangeError, JsonViewError
from connector.records.model import (
    MAX_INT,
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
    OldCell,
    Record,
    RowImage,
    SetCell,
    Transaction,
)
from connector.records.views import EPOCH, MICROSECOND, Json, view_of_bytes, view_of_time

T = TypeVar("T")
D = TypeVar("D")
_encode: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_pieces: Final = json.JSONEncoder().iterencode
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
        document = json.loads(line, object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError) as error:
        raise JsonViewError(
            ErrorCode.JSON_INVALID,
            "This line is not JSON",
            str(error),
            "Write one JSON object per line",
        ) from None
    fields = _Fields(document, "", ("stream_partition", "kafka_partitions", *_READERS))
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
    stream_partition = fields.get("stream_partition", _text)
    kafka_partitions = fields.get("kafka_partitions", _positive_int, None)
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
        "commit_timestamp": view_of_time(change.commit_timestamp),
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


class _Required:
    """Marks a field without a default."""


_REQUIRED: Final = _Required()


class _Fields:
    """Reads the fields of one JSON object, one by one. Unknown fields are refused before missing
    ones.
    """

    def __init__(self, value: object, path: str, known: Iterable[str], of: str = "") -> None:
        self.path = path
        if not isinstance(value, dict):
            _refuse(path, value, "an object")
        self.values: Json = value
        known = tuple(known)
        for name in value:
            if name not in known:
                near = get_close_matches(name, known, n=1)
                remedy = (
                    f"Did you mean {near[0]}?" if near else f"The fields are: {', '.join(known)}"
                )
                raise JsonViewError(
                    ErrorCode.FIELD_UNKNOWN,
                    f"{self.place(name)} is not a field{of}",
                    remedy=remedy,
                    field=self.place(name),
                )

    def place(self, name: str) -> str:
        shown = name if name.isidentifier() and name.isascii() else json.dumps(name)
        return f"{self.path}.{shown}" if self.path else shown

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def get(
        self, name: str, read: Callable[[object, str], T], default: D | _Required = _REQUIRED
    ) -> T | D:
        """Return the value of a field. A null counts as missing."""
        if self.has(name):
            return read(self.values[name], self.place(name))
        if isinstance(default, _Required):
            raise JsonViewError(
                ErrorCode.FIELD_MISSING, f"{self.place(name)} is missing", field=self.place(name)
            )
        return default

    def build(self, construct: Callable[..., T], **arguments: object) -> T:
        """Build a value of the model. Its constructor checks the limits of REC-14."""
        try:
            return construct(**arguments)
        except InvalidChangeError as error:
            name = error.field.partition(",")[0]
            if name == "stream_partition":  # the only argument outside of the branch
                raise JsonViewError(ErrorCode.CHANGE_INVALID, str(error), field=name) from error
            raise JsonViewError(
                ErrorCode.CHANGE_INVALID, f"In {self.path}: {error}", field=self.place(name)
            ) from error


def _refuse(path: str, value: object, wanted: str) -> NoReturn:
    shown = ""
    # iterencode does not recurse too deep, even for the deepest readable value.
    for piece in _pieces(value):
        shown += piece
        if len(shown) > 80:
            break
    raise JsonViewError(
        ErrorCode.FIELD_INVALID,
        f"{path or 'The line'} is {shown if len(shown) <= 80 else shown[:77] + '...'}, but must be"
        f" {wanted}",
        field=path,
    )


def _without_repetition(pairs: list[tuple[str, Any]]) -> Json:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise JsonViewError(
            ErrorCode.FIELD_REPEATED,
            f"{json.dumps(twice)} occurs twice in one object",
            field=twice,
        )
    return fields


def _text(value: object, path: str) -> str:
    return value if isinstance(value, str) else _refuse(path, value, "text")


def _int(value: object, path: str) -> int:
    return (
        value
        if isinstance(value, int) and not isinstance(value, bool)
        else _refuse(path, value, "an integer")
    )


def _positive_int(value: object, path: str) -> int:
    number = _int(value, path)
    return number if 1 <= number <= MAX_INT else _refuse(path, value, f"from 1 to {MAX_INT}")


def _bool(value: object, path: str) -> bool:
    return value if isinstance(value, bool) else _refuse(path, value, "true or false")


def _bytes(value: object, path: str) -> bytes:
    try:
        if isinstance(value, str):
            return value.encode()
        if (
            isinstance(value, dict)
            and value.keys() == {"base64"}
            and isinstance(value["base64"], str)
        ):
            return base64.b64decode(value["base64"], validate=True)
    except (UnicodeEncodeError, binascii.Error, ValueError) as error:
        raise JsonViewError(
            ErrorCode.BYTES_INVALID, f"{path} cannot be read as bytes", str(error), field=path
        ) from None
    _refuse(path, value, 'text, or {"base64": "..."}')


def _time(value: object, path: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        _refuse(path, value, "microseconds as an integer, or ISO 8601 with a zone")
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        _refuse(path, value, "ISO 8601 with a zone, such as 2024-04-30T11:19:44.000000Z")
    if moment.tzinfo is None:
        _refuse(path, value, "ISO 8601 with a zone: Z, or an offset such as +02:00")
    return (moment - EPOCH) // MICROSECOND


def _list_of(read: Callable[[object, str], T]) -> Callable[[object, str], tuple[T, ...]]:
    def read_list(value: object, path: str) -> tuple[T, ...]:
        if not isinstance(value, list):
            _refuse(path, value, "a list")
        return tuple([read(item, f"{path}[{index}]") for index, item in enumerate(value)])

    return read_list


def _choice(*symbols: str) -> Callable[[object, str], str]:
    def read(value: object, path: str) -> str:
        return (
            value
            if isinstance(value, str) and value in symbols
            else _refuse(path, value, f"one of {', '.join(symbols)}")
        )

    return read


def _read_change(stream_partition: str, value: object) -> DataChange:
    fields = _Fields(
        value,
        "data_change",
        [name for name in DataChange.__slots__ if name != "stream_partition"],
        " of a data change",
    )
    change_type = ChangeType(fields.get("change_type", _choice(*ChangeType), ChangeType.USER.value))
    return fields.build(
        DataChange,
        stream_partition=stream_partition,
        table=fields.get("table", _text),
        row_key=fields.get("row_key", _bytes),
        commit_timestamp=fields.get("commit_timestamp", _time),
        entries=fields.get("entries", _list_of(_read_entry)),
        change_type=change_type,
        source_cluster_id=fields.get(
            "source_cluster_id", _text, "default" if change_type is ChangeType.USER else ""
        ),
        tie_breaker=fields.get("tie_breaker", _int, 0),
        resume_token=fields.get("resume_token", _bytes, b""),
        estimated_low_watermark=fields.get("estimated_low_watermark", _time, 0),
        transaction=fields.get("transaction", _read_transaction, None),
        change_sequence_number=fields.get("change_sequence_number", _text, None),
        row_image=fields.get("row_image", _read_row_image, None),
    )


def _read_entry(value: object, path: str) -> Entry:
    fields = _Fields(value, path, _ANY_ENTRY_FIELDS, " of an entry")
    kind = fields.get("kind", _choice(*_ENTRY_FIELDS))
    _Fields(value, path, _ENTRY_FIELDS[kind], f" of a {kind}")
    family = fields.get("family", _text)
    if kind == "DELETE_FAMILY":
        return fields.build(DeleteFamily, family=family)
    qualifier = fields.get("qualifier", _bytes)
    if kind == "DELETE_CELLS":
        start, end = fields.get("range_start", _time, 0), fields.get("range_end", _time, 0)
        return fields.build(
            DeleteCells, family=family, qualifier=qualifier, range_start=start, range_end=end
        )
    cell_timestamp = fields.get("cell_timestamp", _time, SERVER_TIME)
    return fields.build(
        SetCell,
        family=family,
        qualifier=qualifier,
        value=fields.get("value", _bytes),
        cell_timestamp=cell_timestamp,
    )


def _read_transaction(value: object, path: str) -> Transaction:
    fields = _Fields(value, path, Transaction.__slots__, " of a transaction")
    return fields.build(
        Transaction,
        server_transaction_id=fields.get("server_transaction_id", _text),
        record_sequence=fields.get("record_sequence", _int, 0),
        is_last_record_in_transaction_in_partition=fields.get(
            "is_last_record_in_transaction_in_partition", _bool, False
        ),
        number_of_records_in_transaction=fields.get("number_of_records_in_transaction", _int, 1),
        number_of_partitions_in_transaction=fields.get(
            "number_of_partitions_in_transaction", _int, 1
        ),
        transaction_tag=fields.get("transaction_tag", _text, ""),
        is_system_transaction=fields.get("is_system_transaction", _bool, False),
    )


def _read_row_image(value: object, path: str) -> RowImage:
    fields = _Fields(value, path, RowImage.__slots__, " of a row image")
    return fields.build(
        RowImage,
        mod_type=ModType(fields.get("mod_type", _choice(*ModType))),
        value_capture_type=fields.get("value_capture_type", _text, ""),
        column_types=fields.get("column_types", _list_of(_read_column_type), ()),
        old_cells=fields.get("old_cells", _list_of(_read_old_cell), ()),
    )


def _read_column_type(value: object, path: str) -> ColumnType:
    fields = _Fields(value, path, ColumnType.__slots__, " of a column type")
    return fields.build(
        ColumnType,
        name=fields.get("name", _text),
        type=fields.get("type", _text),
        is_primary_key=fields.get("is_primary_key", _bool, False),
        ordinal_position=fields.get("ordinal_position", _int, 0),
    )


def _read_old_cell(value: object, path: str) -> OldCell:
    fields = _Fields(value, path, OldCell.__slots__, " of an old cell")
    return fields.build(
        OldCell,
        family=fields.get("family", _text),
        qualifier=fields.get("qualifier", _bytes),
        value=fields.get("value", _bytes),
        cell_timestamp=fields.get("cell_timestamp", _time, 0),
    )


def _read_heartbeat(stream_partition: str, value: object) -> Heartbeat:
    fields = _Fields(value, "heartbeat", ("timestamp", "resume_token"), " of a heartbeat")
    return fields.build(
        Heartbeat,
        stream_partition=stream_partition,
        timestamp=fields.get("timestamp", _time),
        resume_token=fields.get("resume_token", _bytes, b""),
    )


def _read_child_partitions(stream_partition: str, value: object) -> ChildPartitions:
    fields = _Fields(
        value,
        "child_partitions",
        ("start_timestamp", "record_sequence", "children"),
        " of child partitions",
    )
    return fields.build(
        ChildPartitions,
        stream_partition=stream_partition,
        start_timestamp=fields.get("start_timestamp", _time),
        record_sequence=fields.get("record_sequence", _int),
        children=fields.get("children", _list_of(_read_child)),
    )


def _read_child(value: object, path: str) -> ChildPartition:
    fields = _Fields(value, path, ChildPartition.__slots__, " of a child")
    return fields.build(
        ChildPartition,
        token=fields.get("token", _text),
        parent_partition_tokens=fields.get("parent_partition_tokens", _list_of(_text), ()),
        start_key=fields.get("start_key", _bytes, None),
        end_key=fields.get("end_key", _bytes, None),
    )


_READERS: Final[Mapping[str, Callable[[str, object], Record]]] = {
    "data_change": _read_change,
    "heartbeat": _read_heartbeat,
    "child_partitions": _read_child_partitions,
}
