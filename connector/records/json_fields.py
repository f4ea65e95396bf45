"""Reads the fields of JSON objects, and says which one is wrong (REC-22)."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Final, NoReturn, TypeVar

from connector.errors import ErrorCode, InvalidChangeError, JsonViewError
from connector.records.model import MAX_INT
from connector.records.views import EPOCH, MICROSECOND, Json

T = TypeVar("T")
D = TypeVar("D")
_pieces: Final = json.JSONEncoder().iterencode


class _Required:
    """Marks a field without a default."""


_REQUIRED: Final = _Required()


class Fields:
    """Reads the fields of one JSON object, one by one. Unknown fields are refused before missing
    ones.
    """

    def __init__(self, value: object, path: str, known: Iterable[str], of: str = "") -> None:
        self.path = path
        if not isinstance(value, dict):
            refuse(path, value, "an object")
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


def refuse(path: str, value: object, wanted: str) -> NoReturn:
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


def without_repetition(pairs: list[tuple[str, Any]]) -> Json:
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


def read_text(value: object, path: str) -> str:
    return value if isinstance(value, str) else refuse(path, value, "text")


def read_int(value: object, path: str) -> int:
    return (
        value
        if isinstance(value, int) and not isinstance(value, bool)
        else refuse(path, value, "an integer")
    )


def read_positive_int(value: object, path: str) -> int:
    number = read_int(value, path)
    return number if 1 <= number <= MAX_INT else refuse(path, value, f"from 1 to {MAX_INT}")


def read_bool(value: object, path: str) -> bool:
    return value if isinstance(value, bool) else refuse(path, value, "true or false")


def read_bytes(value: object, path: str) -> bytes:
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
    refuse(path, value, 'text, or {"base64": "..."}')


def read_time(value: object, path: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        refuse(path, value, "microseconds as an integer, or ISO 8601 with a zone")
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        refuse(path, value, "ISO 8601 with a zone, such as 2024-04-30T11:19:44.000000Z")
    if moment.tzinfo is None:
        refuse(path, value, "ISO 8601 with a zone: Z, or an offset such as +02:00")
    return (moment - EPOCH) // MICROSECOND


def list_of(read: Callable[[object, str], T]) -> Callable[[object, str], tuple[T, ...]]:
    def read_list(value: object, path: str) -> tuple[T, ...]:
        if not isinstance(value, list):
            refuse(path, value, "a list")
        return tuple([read(item, f"{path}[{index}]") for index, item in enumerate(value)])

    return read_list


def choice(*symbols: str) -> Callable[[object, str], str]:
    def read(value: object, path: str) -> str:
        return (
            value
            if isinstance(value, str) and value in symbols
            else refuse(path, value, f"one of {', '.join(symbols)}")
        )

    return read
