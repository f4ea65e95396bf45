"""Finds the field of a dataclass whose value does not have the declared type or range.

The constructors of records do not check every type, because they are called for each change. They
call `check_types` when a value could not be used, so that the error names the field. The
constructors of definitions and settings call `check_ranges`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from math import inf
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

from connector.errors import InvalidChangeError, argument_invalid

UNENCODABLE: Final = "UNENCODABLE"
"""The rule of an `InvalidChangeError` for a value that the wire format cannot represent. A decoded
record cannot break it.
"""

Wrong = tuple[str, str, object]
"""The path of a field, such as `entries[0].value`, the values that it allows, and its value."""

_WORDS: Final[Mapping[Any, str]] = {
    str: "text (str)",
    bytes: "bytes",
    bool: "True or False",
    int: "a whole number (int)",
    NoneType: "None",
}


@dataclass(frozen=True, slots=True)
class Between:
    """The least and the largest number that a field allows, beside None if its type has it. For
    example, `Annotated[int, Between(1, 32)]`.
    """

    least: float = -inf
    most: float = inf

    def has(self, number: float) -> bool:
        """Whether the number is allowed. NaN is not."""
        return self.least <= number <= self.most

    @property
    def words(self) -> str:
        """The range, to follow the word "number"."""
        if self.most < inf:
            return f" from {self.least} to {self.most}"
        return f" of at least {self.least}" if self.least > -inf else ""


def wrong_field(value: Any) -> Wrong | None:
    """Find the first field of a dataclass, or of a part of it, whose value does not have its
    declared type. None: all values have their types.

    A list is accepted as a tuple. A bool is not accepted as an int.
    """
    for name, hint in _declared(value.__class__):
        if (wrong := _wrong(getattr(value, name), hint, name)) is not None:
            return wrong
    return None


def check_types(record: object) -> None:
    """Raise `InvalidChangeError` if a field of a record, or of a part of it, does not have its
    type. The constructors call it when a value cannot be used, and `codec.encode` does.
    """
    if (wrong := wrong_field(record)) is not None:
        raise InvalidChangeError(UNENCODABLE, *wrong)


class Checked:
    """Checks limits in its constructor, and names the field of a value of a wrong type."""

    __slots__ = ()

    def __post_init__(self) -> None:
        try:
            self._check()
        except (TypeError, AttributeError):
            check_types(self)
            raise

    def _check(self) -> None:
        """Raise `InvalidChangeError` if a limit is broken."""


def check_ranges(value: Any) -> None:
    """Check the ranges of all fields in the constructor of a definition or a setting, and store
    lists as tuples. Raises `ConfigError` if a number is not in the range of its field.
    """
    for name, hint in _declared(value.__class__):
        given, range_ = getattr(value, name), range_of(hint)
        if range_ is not None and given is not None and not range_.has(given):
            allowed = f"a number{range_.words}"
            raise argument_invalid(f"{type(value).__name__}.{name}", given, allowed)
        if isinstance(given, list):
            object.__setattr__(value, name, tuple(given))


def range_of(hint: Any) -> Between | None:
    """Return the range of a field with this annotation. None: any value is allowed."""
    marks = (mark for part in (hint, *get_args(hint)) for mark in getattr(part, "__metadata__", ()))
    return next((mark for mark in marks if isinstance(mark, Between)), None)


@lru_cache(maxsize=64)
def _declared(class_: type) -> tuple[tuple[str, Any], ...]:
    hints = get_type_hints(class_, include_extras=True)
    return tuple((field.name, hints[field.name]) for field in fields(class_))


def _wrong(value: object, hint: Any, path: str) -> Wrong | None:
    here = (path, _words(hint), value)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _wrong(value, arguments[0], path)
    if origin in (Union, UnionType):
        results = [_wrong(value, kind, path) for kind in arguments]
        inside = (wrong for wrong in results if wrong is not None and wrong[0] != path)
        return None if None in results else next(inside, here)
    if origin is tuple:
        if not isinstance(value, tuple | list):
            return here
        items = (_wrong(item, arguments[0], f"{path}[{index}]") for index, item in enumerate(value))
        return next((wrong for wrong in items if wrong is not None), None)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        return here
    if is_dataclass(hint) and (wrong := wrong_field(value)) is not None:
        return (f"{path}.{wrong[0]}", *wrong[1:])
    return None


def _words(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _words(arguments[0])
    if origin in (Union, UnionType):
        return " or ".join(map(_words, arguments))
    if origin is tuple:
        return f"a tuple, each item {_words(arguments[0])}"
    if issubclass(hint, Enum):
        return f"a {hint.__name__} such as {hint.__name__}.{next(iter(hint)).name}"
    return _WORDS.get(hint, f"a {hint.__name__}")


def check_text(field: str, text: str) -> None:
    """Refuse lone surrogates, which Python uses for file names that are not text."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidChangeError(
                UNENCODABLE, field, "text that can be written as UTF-8", text
            ) from None


def check_int(field: str, number: int) -> None:
    if not -(2**31) <= number < 2**31:
        raise InvalidChangeError(UNENCODABLE, field, "from -2^31 to 2^31 - 1", number)


def check_long(field: str, number: int) -> None:
    if not -(2**63) <= number < 2**63:
        raise InvalidChangeError(UNENCODABLE, field, "from -2^63 to 2^63 - 1", number)
