"""Types whose values have parts: ARRAY, RECORD and RANGE (EVO-6).

Their cells are JSON text. A part without parts of its own is a JSON string, a number, `true` or
`false`; its type reads the text of it. `null` is NULL.

    type                    Python                     cell
    ARRAY<INT64>            list                       [1,2,null]
    RECORD<a DATE, b BOOL>  dict with every field      {"a":"2026-01-31","b":null}
    RANGE<DATE>             dict of start and end      {"start":"2026-01-31","end":null}

The parts have the Python types of `connector.tables.values`. An absent field is NULL. Unreadable
are an unknown and a repeated field, a part that its type cannot read, and other text behind the
value. A RANGE is a RECORD with a start before its end, if it has both. BYTES are base64.

The canonical form has no spaces, and each field, in the order of the type. INT64, BOOL and finite
FLOAT64 are JSON numbers and booleans, all others strings.
"""

from __future__ import annotations

import base64
import json
import math
import re
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NoReturn

from connector.errors.definitions import type_invalid
from connector.tables.column_names import is_column_name, repeated_names
from connector.tables.values import DataType, Encoding, read_text, write_value

MAX_DEPTH: Final = 15
"""The maximum nesting of types, counted from 1."""
BASE64_PATTERN: Final = r"[A-Za-z0-9+/]*(?:[AQgw]==|[AEIMQUYcgkosw048]=)?"
"""The text of BYTES in JSON: base64 with its padding, and no bits that mean nothing. Its length is
a multiple of 4.
"""
RANGE_TYPES: Final = (DataType.DATE, DataType.DATETIME, DataType.TIMESTAMP)

_is_base64 = re.compile(BASE64_PATTERN, re.ASCII).fullmatch
_token = re.compile(r"\s*([A-Za-z][A-Za-z0-9_]*|[<>,])\s*", re.ASCII).match


class _Nested:
    """The common part of ARRAY, RECORD and RANGE."""

    __slots__ = ()

    example: ClassVar[str]

    @property
    def expected(self) -> str:
        """The form of a cell, in words."""
        return f"{self} as JSON, for example {self.example}"

    def read(self, text: str) -> object | None:
        """Return the value of a cell. None: it does not fit."""
        try:
            node = parts_of_json(text)
            return None if node is None else self.part(node)
        except (ValueError, RecursionError):
            return None

    def write(self, value: object) -> str:
        """Return the canonical text. Raises `ValueError` if the type does not have the value."""
        return json.dumps(self.view(value), ensure_ascii=False, separators=(",", ":"))

    def part(self, node: object) -> Any:
        """Return the value of decoded JSON. Raises `ValueError`."""
        raise NotImplementedError

    def view(self, value: object) -> Any:
        """Return a value as JSON has it. Raises `ValueError`."""
        raise NotImplementedError

    @property
    def depth(self) -> int:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class ArrayType(_Nested):
    """A list of values of one type, of which each can be NULL. Raises `ConfigError` if it is nested
    too deep.
    """

    element: ValueType

    example: ClassVar[str] = "[]"

    def __post_init__(self) -> None:
        _check_depth(self)

    def __str__(self) -> str:
        return f"ARRAY<{self.element}>"

    @property
    def depth(self) -> int:
        return 1 + _depth(self.element)

    def part(self, node: object) -> list[Any]:
        if not isinstance(node, list):
            raise ValueError("not an array")
        return [_read_part(self.element, item) for item in node]

    def view(self, value: object) -> list[Any]:
        if not isinstance(value, list):
            raise ValueError("not a list")
        return [_view_part(self.element, item) for item in value]


@dataclass(frozen=True, slots=True)
class RecordType(_Nested):
    """Named values. Raises `ConfigError` if there is no field, if a name is not allowed or repeated
    (as for columns), or if it is nested too deep.
    """

    fields: tuple[tuple[str, ValueType], ...]

    example: ClassVar[str] = '{"name": null}'

    def __post_init__(self) -> None:
        for name, _ in self.fields:
            if not is_column_name(name):
                raise type_invalid(str(self), f"{name!r} is not the name of a field")
        if not self.fields or any(repeated_names("fields", (name for name, _ in self.fields))):
            raise type_invalid(str(self), "It needs fields with different names")
        _check_depth(self)

    def __str__(self) -> str:
        return f"RECORD<{', '.join(f'{name} {type_}' for name, type_ in self.fields)}>"

    @property
    def depth(self) -> int:
        return 1 + max(_depth(type_) for _, type_ in self.fields)

    def part(self, node: object) -> dict[str, Any]:
        if not isinstance(node, dict):
            raise ValueError("not an object")
        self._check_names(node)
        return {name: _read_part(type_, node.get(name)) for name, type_ in self.fields}

    def view(self, value: object) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValueError("not a dict")
        self._check_names(value)
        return {name: _view_part(type_, value.get(name)) for name, type_ in self.fields}

    def _check_names(self, value: dict[str, Any]) -> None:
        if unknown := value.keys() - {name for name, _ in self.fields}:
            raise ValueError(f"unknown fields: {unknown}")


@dataclass(frozen=True, slots=True)
class RangeType(_Nested):
    """From a start up to, and without, an end. A side that is NULL is not bounded.

    Raises `ConfigError` for other types than those of `RANGE_TYPES`.
    """

    element: DataType

    example: ClassVar[str] = '{"start": null, "end": null}'
    depth: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if self.element not in RANGE_TYPES:
            raise type_invalid(str(self), f"A range is of {', '.join(RANGE_TYPES)}")

    def __str__(self) -> str:
        return f"RANGE<{self.element}>"

    @property
    def record(self) -> RecordType:
        """The RECORD of its sides."""
        return RecordType((("start", self.element), ("end", self.element)))

    def part(self, node: object) -> dict[str, Any]:
        return _checked_range(self.record.part(node))

    def view(self, value: object) -> dict[str, Any]:
        shown = self.record.view(value)
        assert isinstance(value, dict)
        _checked_range(value)
        return shown


ValueType = DataType | ArrayType | RecordType | RangeType
"""The type of the values of a column."""


def scalars(type_: ValueType) -> set[DataType]:
    """Return the types without parts of which a type is made."""
    match type_:
        case ArrayType() | RangeType():
            return scalars(type_.element)
        case RecordType():
            return set[DataType]().union(*(scalars(part) for _, part in type_.fields))
        case _:
            return {type_}


def type_of(text: str) -> ValueType:
    """Return the type with this text, for example `ARRAY<INT64>`. Names of types have any case.

    Raises `ConfigError` for another text.
    """
    tokens, index = [], 0
    while match := _token(text, index):
        tokens.append(match[1])
        index = match.end()
    tokens.reverse()
    try:
        type_ = _parsed(tokens, 1)
    except (IndexError, ValueError):
        type_ = None
    if type_ is None or tokens or index < len(text):
        raise type_invalid(text, f"It must be one of {', '.join(DataType)}, or made of these")
    return type_


def _parsed(tokens: list[str], depth: int) -> ValueType:
    """The type at the end of the reversed tokens, which it takes away. Raises `ValueError`."""
    name = tokens.pop().upper()
    if not tokens or tokens[-1] != "<":
        return DataType(name)
    tokens.pop()
    if depth > MAX_DEPTH or name not in ("ARRAY", "RECORD", "RANGE"):
        raise ValueError(name)
    if name != "RECORD":
        element = _parsed(tokens, depth + 1)
        _take(tokens, ">")
        return ArrayType(element) if name == "ARRAY" else RangeType(DataType(str(element)))
    fields: list[tuple[str, ValueType]] = []
    while not fields or tokens[-1] == ",":
        if fields:
            tokens.pop()
        fields.append((tokens.pop(), _parsed(tokens, depth + 1)))
    _take(tokens, ">")
    return RecordType(tuple(fields))


def _take(tokens: list[str], expected: str) -> None:
    if tokens.pop() != expected:
        raise ValueError(expected)


def parts_of_json(text: str) -> Any:
    """Return decoded JSON, in which numbers are text. Raises `ValueError` or `RecursionError`."""
    return json.loads(
        text,
        parse_int=str,
        parse_float=str,
        parse_constant=_refuse,
        object_pairs_hook=_members,
    )


def _members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a repeated field")
    return members


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _read_part(type_: ValueType, node: object) -> Any:
    if node is None:
        return None
    if not isinstance(type_, DataType):
        return type_.part(node)
    if isinstance(node, bool):
        node = "true" if node else "false"
    if not isinstance(node, str):
        raise ValueError(f"not {type_}")
    value = read_part_text(type_, node)
    if value is None:
        raise ValueError(f"not {type_}")
    return value


def read_part_text(type_: DataType, text: str) -> object | None:
    """Return the value of a part from its text. None: it does not fit."""
    if type_ is DataType.BYTES:
        return base64.b64decode(text) if len(text) % 4 == 0 and _is_base64(text) else None
    text.encode()
    return read_text(type_, text)


def _view_part(type_: ValueType, value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(type_, DataType):
        return type_.view(value)
    written = write_value(type_, Encoding.TEXT, value)
    if type_ in (DataType.INT64, DataType.BOOL):
        return value
    if type_ is DataType.BYTES:
        return base64.b64encode(written).decode()
    if type_ is DataType.FLOAT64 and math.isfinite(value):
        return value
    return written.decode()


def _checked_range(value: dict[str, Any]) -> dict[str, Any]:
    start, end = value.get("start"), value.get("end")
    if start is not None and end is not None and start >= end:
        raise ValueError("the start is not before the end")
    return value


def _depth(type_: ValueType) -> int:
    return 1 if isinstance(type_, DataType) else type_.depth


def _check_depth(type_: ArrayType | RecordType) -> None:
    if type_.depth > MAX_DEPTH:
        raise type_invalid(str(type_)[:64], f"It is nested more than {MAX_DEPTH} deep")
