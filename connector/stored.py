"""Values as the JSON that commits and records store, and back.

The type of a value decides its form. A dataclass is an object, and a tuple is a list, named or not.
A set is a sorted list, the keys of a map are texts, and bytes are base64. Reading checks each type.
It ignores unknown keys, and an absent key has the default of its field.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def to_stored(value: Any) -> Any:
    """Return the JSON values of a value. `from_stored` is the inverse.

    Raises `TypeError` if a field of a dataclass has a value of another type: `from_stored` would
    refuse it, so it must not be written.
    """
    stored = _stored(value)
    _check_readable(value, stored)
    return stored


def _check_readable(value: Any, stored: Any) -> None:
    if isinstance(value, tuple):
        for item, stored_item in zip(value, stored, strict=True):
            _check_readable(item, stored_item)
    elif is_dataclass(value):
        try:
            from_stored(type(value), stored)
        except ValueError as error:
            raise TypeError(f"{type(value).__name__} cannot be stored: {error}") from error


def _stored(value: Any) -> Any:
    # msgspec could do this, but only orders a set if it orders the keys of maps, too.
    if value is None or type(value) in (int, str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _stored(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_stored(item) for item in value]
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if is_dataclass(value):
        return {field.name: _stored(getattr(value, field.name)) for field in fields(value)}
    return value


def from_text(type_: type[T], text: str) -> T:
    """Return the value of a JSON text. Raises as `from_stored` does, or `RecursionError`."""
    return msgspec.json.decode(text, type=type_)


def from_stored(type_: type[T], stored: object) -> T:
    """Return the value. Raises `ValueError` if a type is wrong or a required key is absent."""
    return msgspec.convert(stored, type_, str_keys=True)


def to_checked(value: Any) -> str:
    """Return the text of a small file that is overwritten: a line with the JSON of a value, and its
    checksum.
    """
    content = json.dumps(to_stored(value), separators=(",", ":"))
    return f"{content}\n{_checksum(content)}"


def from_checked(type_: type[T], text: str) -> T | None:
    """Return the value of such a text. None: it is damaged."""
    content, _, checksum = text.partition("\n")
    if checksum != _checksum(content):
        return None
    try:
        return from_text(type_, content)
    except (RecursionError, ValueError):
        return None


def _checksum(content: str) -> str:
    return f"{zlib.crc32(content.encode('utf-8', 'surrogatepass')):08x}"
