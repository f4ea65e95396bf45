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

The fields, their types and their defaults are those of `connector.records.model`, in both
directions.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from datetime import datetime
from enum import Enum
from functools import cache
from types import NoneType
from typing import Any, Final, NoReturn, get_args, get_origin

from connector.errors import InvalidChangeError
from connector.errors.records import field_invalid, json_invalid
from connector.records.model import (
    MAX_INT,
    ChangeType,
    ChildPartitions,
    DataChange,
    DeleteCells,
    DeleteFamily,
    Entry,
    Heartbeat,
    OldCell,
    Record,
    Release,
    SetCell,
    Truncate,
)
from connector.records.views import (
    EPOCH,
    MICROSECOND,
    Json,
    Mark,
    marks_of,
    shown_fields,
    view,
    view_of_bytes,
    view_of_time,
)
from connector.text import nearest

_encode: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_BRANCHES: Final[Mapping[str, type[Record]]] = {
    "data_change": DataChange,
    "heartbeat": Heartbeat,
    "child_partitions": ChildPartitions,
    "release": Release,
    "truncate": Truncate,
}
_KINDS: Final[Mapping[str, type[Entry]]] = {
    "SET_CELL": SetCell,
    "DELETE_CELLS": DeleteCells,
    "DELETE_FAMILY": DeleteFamily,
}
_KIND_OF: Final = {class_: kind for kind, class_ in _KINDS.items()}
_ENTRY_FIELDS: Final = {kind: ("kind", *shown_fields(class_)) for kind, class_ in _KINDS.items()}
_ANY_ENTRY_FIELDS: Final = tuple(
    dict.fromkeys(field for names in _ENTRY_FIELDS.values() for field in names)
)
_TIMES: Final = frozenset(
    name
    for class_ in (*_BRANCHES.values(), *_KINDS.values(), OldCell)
    for name, hint in shown_fields(class_).items()
    if Mark.TIME in marks_of(hint)[1]
)
_Read = Callable[[Any, str], Any]
"""Reads a value at a path."""


@dataclass(frozen=True, slots=True)
class JsonRecord:
    """The record of a line. `kafka_partitions` None: `publish` sets the number of the topic."""

    record: Record
    kafka_partitions: int | None


def to_json(record: Record, kafka_partitions: int | None) -> str:
    """Write the record as one line of JSON, without a line end. None omits `kafka_partitions`."""
    shown = view(record, omits_defaults=True)
    line: Json = {"stream_partition": shown.pop("stream_partition")}
    if kafka_partitions is not None:
        line["kafka_partitions"] = kafka_partitions
    if isinstance(record, DataChange):
        shown["entries"] = [view_of_entry(entry) for entry in record.entries]
        if record.is_staged:
            shown["commit_timestamp"] = 0
    branch = next(name for name, class_ in _BRANCHES.items() if isinstance(record, class_))
    return to_line({**line, branch: shown})


def to_line(view: Json) -> str:
    """Write any view as one line of printable JSON, without a line end."""
    line = _encode(view)
    return (
        line
        if line.isprintable()
        else "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in line)
    )


def view_of_entry(entry: Entry) -> Json:
    """Return an entry as an object of the JSON view (REC-22)."""
    return {"kind": _KIND_OF[type(entry)], **view(entry, omits_defaults=True)}


def entry_fields(kind: str) -> tuple[str, ...]:
    """Return the fields of a kind of entry in the view; for an unknown kind, of all kinds."""
    return _ENTRY_FIELDS.get(kind, _ANY_ENTRY_FIELDS)


def view_of_datum(datum: Any, name: str = "") -> Any:
    """Return a decoded datum in the form of the JSON view, with Avro field names and without nulls.

    The datum may break the rules of a record.
    """
    if isinstance(datum, Mapping):
        return {
            field: view_of_datum(value, field)
            for field, value in datum.items()
            if value is not None
        }
    if isinstance(datum, list):
        return [view_of_datum(item) for item in datum]
    if isinstance(datum, bytes):
        return view_of_bytes(datum)
    return view_of_time(datum) if name in _TIMES and isinstance(datum, int) and datum else datum


def from_json(line: str) -> JsonRecord:
    """Read the record of a line of JSON. Raises `JsonViewError` with the field."""
    try:
        document = json.loads(line, object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError) as error:
        raise json_invalid(str(error)) from None
    _check_names(document, "", ("stream_partition", "kafka_partitions", *_BRANCHES), "a line")
    branches = [name for name in _BRANCHES if document.get(name) is not None]
    if len(branches) != 1:
        given = f"This one has {' and '.join(branches) or 'none of them'}"
        field = branches[1] if branches else "data_change"
        raise field_invalid(field, f"A record has exactly one of {', '.join(_BRANCHES)}. {given}")
    stream_partition = _field(document, "", "stream_partition", _read_text)
    kafka_partitions = _field(document, "", "kafka_partitions", _read_positive_int, None)
    (branch,) = branches
    return JsonRecord(
        _read_object(
            _BRANCHES[branch], document[branch], branch, stream_partition=stream_partition
        ),
        kafka_partitions,
    )


def read_value(class_: Any, value: object, path: str) -> Any:
    """Read a value of the model, a dataclass or a tuple. Raises `JsonViewError` with the path."""
    return _reader(class_)(value, path)


def _read_object(class_: type, value: Any, path: str, **given: object) -> Any:
    """Build a value of the model. Its constructor checks the limits of REC-14.

    Unknown fields are refused before missing ones. `given` are arguments that are not fields of
    the object.
    """
    readers = {name: read for name, read in _readers(class_).items() if name not in given}
    _check_names(value, path, readers, class_.__name__)
    defaults = {field.name: field.default for field in fields(class_)}
    if class_ is DataChange and value.get("change_type") == ChangeType.GARBAGE_COLLECTION:
        defaults["source_cluster_id"] = ""
    for name, read in readers.items():
        given[name] = _field(value, path, name, read, defaults[name])
    return _build(class_, path, given)


def _read_entry(value: Any, path: str) -> Entry:
    _check_names(value, path, _ANY_ENTRY_FIELDS, "an entry")
    kind = _field(value, path, "kind", _choice(*_KINDS))
    _check_names(value, path, _ENTRY_FIELDS[kind], f"a {kind}")
    without_kind = {name: field for name, field in value.items() if name != "kind"}
    entry: Entry = _read_object(_KINDS[kind], without_kind, path)
    return entry


@cache
def _readers(class_: type) -> dict[str, _Read]:
    return {name: _reader(hint) for name, hint in shown_fields(class_).items()}


def _reader(hint: Any) -> _Read:
    """Return the function that reads values with this annotation. A null was left out before."""
    kind, marks = marks_of(hint)
    if Mark.TIME in marks:
        return _read_time
    if kind == Entry:
        return _read_entry
    if kind in _SCALARS:
        return _SCALARS[kind]
    if NoneType in get_args(kind):
        (other,) = (part for part in get_args(kind) if part is not NoneType)
        return _reader(other)
    if get_origin(kind) is tuple:
        return _list_of(_reader(get_args(kind)[0]), is_of_names=get_args(kind)[0] is str)
    if issubclass(kind, Enum):
        choose = _choice(*kind)
        return lambda value, path: kind(choose(value, path))
    return lambda value, path: _read_object(kind, value, path)


def _field(values: Json, path: str, name: str, read: _Read, default: object = MISSING) -> Any:
    """Return the value of a field. A null counts as missing."""
    at = _path(path, name)
    if values.get(name) is not None:
        return read(values[name], at)
    if default is MISSING:
        raise field_invalid(at, f"{at} is missing")
    return default


def _build(class_: type, path: str, arguments: Mapping[str, object]) -> Any:
    try:
        return class_(**arguments)
    except InvalidChangeError as error:
        name = error.field.partition(",")[0]
        if name == "stream_partition":  # the only argument outside of the branch
            raise field_invalid(name, str(error)) from error
        raise field_invalid(_path(path, name), f"In {path}: {error}") from error


def _check_names(value: Any, path: str, fields: Iterable[str], owner: str) -> None:
    if not isinstance(value, dict):
        _refuse(path, value, "an object")
    fields = tuple(fields)
    for name in value:
        if name not in fields:
            remedy = nearest(name, fields) or f"The fields are: {', '.join(fields)}"
            at = _path(path, name)
            raise field_invalid(at, f"{at} is not a field of {owner}", remedy)


def _path(path: str, name: str) -> str:
    shown = name if name.isidentifier() and name.isascii() else json.dumps(name)
    return f"{path}.{shown}" if path else shown


def _refuse(path: str, value: object, wanted: str) -> NoReturn:
    shown = ""
    # iterencode does not recurse too deep, even for the deepest readable value.
    for piece in json.JSONEncoder().iterencode(value):
        shown += piece
        if len(shown) > 80:
            break
    shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
    raise field_invalid(path, f"{path or 'The line'} is {shown}, but must be {wanted}")


def _without_repetition(pairs: list[tuple[str, Any]]) -> Json:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        name = next(name for name in names if names.count(name) > 1)
        raise field_invalid(name, f'"{name}" occurs twice in one object')
    return fields


def _read_text(value: object, path: str) -> str:
    return value if isinstance(value, str) else _refuse(path, value, "text")


def _read_int(value: object, path: str) -> int:
    is_int = isinstance(value, int) and not isinstance(value, bool)
    return value if is_int else _refuse(path, value, "an integer")  # type: ignore[return-value]


def _read_positive_int(value: object, path: str) -> int:
    number = _read_int(value, path)
    return number if 1 <= number <= MAX_INT else _refuse(path, value, f"from 1 to {MAX_INT}")


def _read_bool(value: object, path: str) -> bool:
    return value if isinstance(value, bool) else _refuse(path, value, "true or false")


def _read_bytes(value: object, path: str) -> bytes:
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
        _refuse(path, value, f"bytes ({error})")
    _refuse(path, value, 'text, or {"base64": "..."}')


def _read_time(value: object, path: str) -> int:
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


def _list_of(read: _Read, *, is_of_names: bool) -> _Read:
    """Read a list. A name of null is no name: that is how Avro writes "no parent"."""

    def read_list(value: object, path: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            _refuse(path, value, "a list")
        return tuple(
            [
                read(item, f"{path}[{index}]")
                for index, item in enumerate(value)
                if item is not None or not is_of_names
            ]
        )

    return read_list


def _choice(*symbols: str) -> _Read:
    def read(value: object, path: str) -> str:
        return (
            value
            if isinstance(value, str) and value in symbols
            else _refuse(path, value, f"one of {', '.join(symbols)}")
        )

    return read


_SCALARS: Final[Mapping[Any, _Read]] = {
    str: _read_text,
    int: _read_int,
    bool: _read_bool,
    bytes: _read_bytes,
}
