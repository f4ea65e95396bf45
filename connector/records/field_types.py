"""Finds the field of a dataclass whose value does not have the declared type or range.

The constructors of records do not check every type, because they are called for each change. They
call `check_types` when a value could not be used, so that the error names the field. Definitions
and settings are rare: their constructors call `check_arguments`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from math import inf
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

from connector.errors import InvalidChangeError, argument_invalid
from connector.text import is_secret

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
    float: "a number",
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


def wrong_field(value: Any, *, is_deep: bool = True) -> Wrong | None:
    """Find the first field of a dataclass whose value does not have its declared type or range.

    A list is accepted as a tuple, and an int as a float. A bool is not accepted as an int.

    Args:
        value: A dataclass whose fields have types that can be resolved.
        is_deep: Look into fields that are dataclasses, too. Without, they are trusted: their own
            constructors have checked them.

    Returns:
        The field. None: all values have their types.
    """
    for name, kind in _declared(value.__class__):
        if (wrong := _wrong(getattr(value, name), kind, name, is_deep=is_deep)) is not None:
            return wrong
    return None


def check_types(record: object) -> None:
    """Raise `InvalidChangeError` if a field of a record, or of a part of it, does not have its
    type. The constructors call it when a value cannot be used, and `codec.encode` does.
    """
    if (wrong := wrong_field(record)) is not None:
        raise InvalidChangeError(UNENCODABLE, *wrong)


def check_arguments(value: Any) -> None:
    """Check the types and ranges of all fields in the constructor of a definition or a setting, and
    store lists as tuples.

    Raises:
        ConfigError: A value does not have the type or range of its field. The values of secrets are
            not shown.
    """
    if (wrong := wrong_field(value, is_deep=False)) is not None:
        path, allowed, given = wrong
        shown = "***" if is_secret(path) else given
        raise argument_invalid(f"{type(value).__name__}.{path}", shown, allowed)
    for name, _ in _declared(value.__class__):
        if isinstance(given := getattr(value, name), list):
            object.__setattr__(value, name, tuple(given))


@lru_cache(maxsize=64)
def _declared(of: type) -> tuple[tuple[str, Any], ...]:
    hints = get_type_hints(of, include_extras=True)
    return tuple((field.name, hints[field.name]) for field in fields(of))


def _wrong(value: object, kind: Any, path: str, *, is_deep: bool) -> Wrong | None:
    here = (path, _words(kind), value)
    origin = get_origin(kind)
    if origin is Annotated:
        bare, *marks = get_args(kind)
        is_outside = isinstance(value, int | float) and any(
            isinstance(mark, Between) and not mark.has(value) for mark in marks
        )
        return _wrong(value, bare, path, is_deep=is_deep) or (here if is_outside else None)
    if origin in (Union, UnionType):
        found = [_wrong(value, one, path, is_deep=is_deep) for one in get_args(kind)]
        inside = (wrong for wrong in found if wrong is not None and wrong[0] != path)
        return None if None in found else next(inside, here)
    if origin is tuple:
        if not isinstance(value, tuple | list):
            return here
        return _first(
            _wrong(item, get_args(kind)[0], f"{path}[{place}]", is_deep=is_deep)
            for place, item in enumerate(value)
        )
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            return here
        of_key, of_value = get_args(kind)
        return _first(
            _wrong(key, of_key, f"a key of {path}", is_deep=is_deep)
            or _wrong(item, of_value, f"{path}[{key!r}]", is_deep=is_deep)
            for key, item in value.items()
        )
    if kind in (int, float):
        is_right = isinstance(value, int if kind is int else int | float)
        return None if is_right and not isinstance(value, bool) else here
    if not isinstance(value, kind):
        return here
    if is_deep and is_dataclass(kind):
        wrong = wrong_field(value)
        return None if wrong is None else (f"{path}.{wrong[0]}", *wrong[1:])
    return None


def _first(found: Iterable[Wrong | None]) -> Wrong | None:
    return next((wrong for wrong in found if wrong is not None), None)


def _words(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        bounds = (mark.words for mark in arguments[1:] if isinstance(mark, Between))
        return _words(arguments[0]) + "".join(bounds)
    if origin in (Union, UnionType):
        return " or ".join(map(_words, arguments))
    if origin is tuple:
        return f"a tuple, each item {_words(arguments[0])}"
    if origin is not None:
        return f"a mapping from {_words(arguments[0])} to {_words(arguments[1])}"
    if kind in _WORDS:
        return _WORDS[kind]
    if issubclass(kind, Enum):
        return f"a {kind.__name__} such as {kind.__name__}.{next(iter(kind)).name}"
    return f"a {kind.__name__}"


def check_text(field: str, text: str) -> None:
    """Refuse lone surrogates: UTF-8 cannot encode them. Python uses them for file names that are
    not text.
    """
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
