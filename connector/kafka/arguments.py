"""Checks the arguments of public functions, before anything else uses them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import cast

from connector.errors import argument_invalid
from connector.text import is_header_name, is_utf_8


def check(name: str, value: object, is_allowed: bool, allowed: str) -> None:
    """Raises `ConfigError` if an argument is not allowed. `allowed` completes "It must be"."""
    if not is_allowed:
        raise argument_invalid(name, value, allowed)


def check_type(name: str, value: object, types: type | tuple[type, ...], allowed: str) -> None:
    """Raises `ConfigError` if an argument has none of these types."""
    check(name, value, isinstance(value, types), allowed)


def check_optional(name: str, value: object, of: type, allowed: str) -> None:
    """Raises `ConfigError` if an argument is neither None nor of this type."""
    check(name, value, value is None or isinstance(value, of), f"{allowed}, or None")


def check_flags(**values: object) -> None:
    """Raises `ConfigError` if an argument is neither True nor False."""
    for name, value in values.items():
        check_type(name, value, bool, "True or False")


def check_whole(name: str, value: object, least: int = 0) -> None:
    """Raises `ConfigError` if an argument is not a whole number from `least` on."""
    is_whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
    check(name, value, is_whole, f"a whole number from {least} on")


def check_seconds(name: str, value: object, least: float = 0.0) -> None:
    """Raises `ConfigError` if an argument is not a finite number from `least` on."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_allowed = is_number and isfinite(value) and value >= least  # type: ignore[arg-type, operator]
    check(name, value, is_allowed, f"a number of seconds from {least:g} on")


def check_text(name: str, value: object, allowed: str) -> None:
    """Raises `ConfigError` if an argument is not a text, or an empty one."""
    check(name, value, isinstance(value, str) and value != "", allowed)


def check_settings(name: str, value: object) -> None:
    """Raises `ConfigError` if an argument is not a mapping of texts."""
    is_allowed = value is None or (
        isinstance(value, Mapping) and all(isinstance(one, str) for one in value)
    )
    check(name, value, is_allowed, "a mapping of the names of client settings, or None")


def headers_of(value: object) -> list[tuple[str, str | bytes | None]]:
    """The Kafka headers of the argument `headers`. Raises `ConfigError` if they are not pairs of a
    name and a value.
    """
    given = _collected(value)
    is_allowed = given is not None and all(
        isinstance(one, tuple)
        and len(one) == 2
        and isinstance(one[0], str)
        and is_header_name(one[0])
        and isinstance(one[1], bytes | str | None)
        and not (isinstance(one[1], str) and not is_utf_8(one[1]))
        for one in given
    )
    check(
        "headers",
        value,
        is_allowed,
        "pairs of a name and bytes, for example [('a', b'1')]. A"
        " name has no NUL characters and no lone surrogates",
    )
    return cast("list[tuple[str, str | bytes | None]]", given)


def _collected(value: object) -> list[object] | None:
    is_text = isinstance(value, str | bytes)
    return list(value) if isinstance(value, Iterable) and not is_text else None
