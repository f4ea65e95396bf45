"""Functions on text: shorten, count, list names, find the nearest name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

MAX_DETAIL_BYTES: Final = 1024
"""A detail is shortened to this many bytes of UTF-8. So a record of the largest allowed size still fits with its headers (DLQ-6)."""


def is_utf_8(text: str) -> bool:
    """Whether a text has a form in UTF-8. One with lone surrogates has none: Python makes them of what is no text on a command line."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def truncate_utf8(detail: str) -> str:
    """`detail` in at most `MAX_DETAIL_BYTES` of UTF-8, whole characters, with an ellipsis where something is missing (DLQ-6)."""
    encoded = detail.encode("utf-8", "backslashreplace")
    if len(encoded) <= MAX_DETAIL_BYTES:
        return encoded.decode()
    return encoded[: MAX_DETAIL_BYTES - len("…".encode())].decode("utf-8", "ignore") + "…"


def one_of(names: Iterable[str]) -> str:
    """What is allowed, where it is one of some names."""
    return ", ".join(sorted(names)) or "(there is none yet)"


def nearest(name: str, known: Iterable[str]) -> str:
    """A question that names the nearest known name, or "" where none is near."""
    found = difflib.get_close_matches(name.lower(), {candidate.lower(): candidate for candidate in known}, n=1, cutoff=0.6)
    return next((f"did you mean {candidate}?" for candidate in known if found and candidate.lower() == found[0]), "")


def counted(number: int, noun: str) -> str:
    """`1 record`, `1,234 records`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


_UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def duration(seconds: float) -> str:
    """A duration in its two largest units, rounded down, as a setting would have it: `0s`, `1m30s`, `2d4h`."""
    rest = int(seconds)
    parts = []
    for unit, size in _UNITS:
        count, rest = divmod(rest, size)
        parts.append(f"{count}{unit}" if count else "")
    first = next((place for place, part in enumerate(parts) if part), len(parts))
    return "".join(parts[first : first + 2]) or "0s"
