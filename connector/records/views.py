"""The JSON view of values: records, letters and reports (REC-22).

The type of a field decides how it is shown. Bytes are text if they are printable UTF-8, else
`{"base64": "…"}`. A dataclass or named tuple is an object, a tuple is a list, an enum is its value,
and an error is its message. The annotation of a field says the rest: `Time`, `TimeOrNull`,
`OrNull`, `Hidden`, `Flat`, `Always`, `AsText`, `AsList`, `Named` and `Listed`. A property is shown
if its result is `Shown`.

    low_watermark: Time | None
    name: Annotated[str, Named("stream_partition")]
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

Json = dict[str, Any]
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
_T = TypeVar("_T")
_Write = Callable[[Any], Any]


class Mark(Enum):
    """How a field is shown, if its type does not say it."""

    TIME = "a time in microseconds is ISO 8601"
    OR_NULL = "zero or an empty text is null"
    HIDDEN = "the field is not shown"
    FLAT = "the fields of the object stand in place of it"
    ALWAYS = "the default value is shown, too"
    TEXT = "the value is its text"
    LIST = "a named tuple is a list"
    SHOWN = "the property is shown"


@dataclass(frozen=True, slots=True)
class Named:
    """The name of a field in the JSON view."""

    name: str


@dataclass(frozen=True, slots=True)
class Listed:
    """A map of objects is a list of them in the order of the keys. `key` names the key in each."""

    key: str


Time = Annotated[int, Mark.TIME]
TimeOrNull = Annotated[int, Mark.TIME, Mark.OR_NULL]
OrNull = Annotated[_T, Mark.OR_NULL]
Hidden = Annotated[_T, Mark.HIDDEN]
Flat = Annotated[_T, Mark.FLAT]
Always = Annotated[_T, Mark.ALWAYS]
AsText = Annotated[_T, Mark.TEXT]
AsList = Annotated[_T, Mark.LIST]
Shown = Annotated[_T, Mark.SHOWN]


class Viewed:
    """A value that has a JSON view."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values. Names are stable, and times are ISO 8601."""
        return view(self)


def view(value: Any, *, omits_defaults: bool = False) -> Json:
    """Return the JSON view of a dataclass or a named tuple.

    With `omits_defaults`, fields with their default value are not shown, except `Always`.
    """
    class_: Any = type(value)
    shown: Json = _object(class_, omits_defaults)(value)
    return shown


def view_of_bytes(value: bytes | None) -> Any:
    """Return text if the bytes are printable UTF-8, otherwise `{"base64": "…"}`; None for None.

    Text that begins with `base64:` is not returned either, because a reader would decode it.
    """
    if value is None:
        return None
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    is_plain = text.isprintable() and not text.startswith("base64:")
    return text if is_plain else {"base64": base64.b64encode(value).decode()}


def view_of_time(timestamp: int) -> str | int:
    """Return ISO 8601 in UTC for the years 1970 to 9999, otherwise the microseconds."""
    if timestamp < 0:
        return timestamp
    try:
        moment = EPOCH + timedelta(microseconds=timestamp)
    except OverflowError:
        return timestamp
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def shown_fields(class_: type) -> dict[str, Any]:
    """Return the annotations of the fields of a dataclass or a named tuple, in their order."""
    names = [field.name for field in fields(class_)] if is_dataclass(class_) else class_._fields  # type: ignore[attr-defined]
    hints = get_type_hints(class_, include_extras=True)
    return {name: hints[name] for name in names}


def marks_of(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the type and the marks of an annotation."""
    if get_origin(hint) is not Annotated:
        return hint, ()
    kind, *marks = get_args(hint)
    return kind, tuple(marks)


@cache
def _object(class_: type, omits_defaults: bool) -> _Write:
    defaults = (
        {field.name: field.default for field in fields(class_)} if is_dataclass(class_) else {}
    )
    parts = []
    for attribute, hint in {**shown_fields(class_), **_shown_properties(class_)}.items():
        _, marks = marks_of(hint)
        if Mark.HIDDEN in marks:
            continue
        name = next((mark.name for mark in marks if isinstance(mark, Named)), attribute)
        is_omitted = omits_defaults and Mark.ALWAYS not in marks
        default = defaults.get(attribute, MISSING) if is_omitted else MISSING
        parts.append((attribute, name, _value(hint, omits_defaults), default, Mark.FLAT in marks))

    def write(value: Any) -> Json:
        shown: Json = {}
        for attribute, name, write_value, default, is_flat in parts:
            part = getattr(value, attribute)
            if default is not MISSING and part == default:
                continue
            if is_flat:
                shown.update(write_value(part))
            else:
                shown[name] = write_value(part)
        return shown

    return write


def _shown_properties(class_: type) -> dict[str, Any]:
    hints = {}
    for name in dir(class_):
        if isinstance(attribute := getattr(class_, name), property):
            hint = get_type_hints(attribute.fget, include_extras=True)["return"]
            if Mark.SHOWN in marks_of(hint)[1]:
                hints[name] = hint
    return hints


def _value(hint: Any, omits_defaults: bool) -> _Write:
    kind, marks = marks_of(hint)
    listed = next((mark for mark in marks if isinstance(mark, Listed)), None)
    if Mark.TIME in marks:
        write: _Write = view_of_time
    elif Mark.TEXT in marks:
        write = str
    elif Mark.LIST in marks:
        write = list
    elif listed is not None:
        write = _list_of_map(listed.key, _value(get_args(kind)[1], omits_defaults))
    else:
        write = _unmarked(kind, omits_defaults)
    if Mark.OR_NULL in marks:
        return lambda value: write(value) if value else None
    return write


def _unmarked(kind: Any, omits_defaults: bool) -> _Write:
    origin = get_origin(kind)
    if kind in (int, str, bool, float, NoneType, Any):
        return lambda value: value
    if kind is bytes:
        return view_of_bytes
    if origin in (Union, UnionType):
        return _union(get_args(kind), omits_defaults)
    if origin in (tuple, list):
        item = _value(get_args(kind)[0], omits_defaults)
        return lambda values: [item(value) for value in values]
    if origin is not None and issubclass(origin, Mapping):
        of_map = _value(get_args(kind)[1], omits_defaults)
        return lambda values: {str(key): of_map(value) for key, value in values.items()}
    if issubclass(kind, Enum):
        return lambda value: value.value
    if issubclass(kind, Exception):
        return str
    return _object(kind, omits_defaults)


def _union(kinds: tuple[Any, ...], omits_defaults: bool) -> _Write:
    others = {kind: _value(kind, omits_defaults) for kind in kinds if kind is not NoneType}
    if len(others) == 1:
        (only,) = others.values()
        return lambda value: None if value is None else only(value)
    return lambda value: None if value is None else others[type(value)](value)


def _list_of_map(key_name: str, write: _Write) -> _Write:
    return lambda values: [{key_name: key, **write(value)} for key, value in sorted(values.items())]


YEAR_2000: Final = 946_684_800_000_000
YEAR_2100: Final = 4_102_444_800_000_000
"""2000-01-01 and 2100-01-01 in microseconds since 1970."""

_UNITS: Final = (
    ("seconds", 1_000_000, 1),
    ("milliseconds", 1_000, 1),
    ("units of 100 nanoseconds", 1, 10),
    ("nanoseconds", 1, 1_000),
)
"""Unit, and its length in microseconds as a fraction."""


def fitting_unit(number: int) -> tuple[str, int] | None:
    """Return the unit in which a number is a time from 2000 to 2099, and this time in microseconds.

    At most one unit fits. None: no unit fits, or the number is in microseconds.
    """
    for unit, times, parts in _UNITS:
        timestamp = number * times // parts
        if YEAR_2000 <= timestamp < YEAR_2100:
            return unit, timestamp
    return None


def unit_hint(number: int) -> str:
    """Return the end of a sentence that names the fitting unit, or an empty text."""
    unit = fitting_unit(number)
    return "" if unit is None else f"; it fits {unit[0]}: {view_of_time(unit[1])}"
