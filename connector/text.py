"""Functions on text: shorten, count, list names, find the nearest name, recognise secrets."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Final

MAX_DETAIL_BYTES: Final = 1024
"""A detail has at most this many bytes of UTF-8. With this limit, a record of the maximum size
still fits into Kafka with its headers (DLQ-6).
"""

_SECRET: Final = re.compile(
    r"password|passphrase|secret|token|jaas|user.?info|credential|key\.pem|oauthbearer\.config"
    r"|(access|account|private|encryption|sas).?key|azure\.sas\.",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """Return whether the value of a setting with this name must never be shown."""
    return _SECRET.search(name) is not None


def without_credentials(uri: str) -> str:
    """Return a URI as it can be shown: `s3a://***@bucket` for `s3a://key:secret@bucket`."""
    return re.sub(r"//.*@", "//***@", uri)


def is_plain(text: str, *, with_nul: bool = False) -> bool:
    """Return whether a text has neither lone surrogates nor, without `with_nul`, NUL characters.

    UTF-8 has no lone surrogates: Python puts them into command line arguments that are not valid
    text. librdkafka ends the name of a header at the first NUL character.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return with_nul or "\0" not in text


def as_header_name(name: str) -> str:
    """Return the nearest name that a Kafka client can write (`is_plain`): `␀` in place of a
    NUL character, and `?` in place of a lone surrogate.
    """
    return name.replace("\0", "␀").encode("utf-8", "replace").decode()


def truncate_utf8(detail: str) -> str:
    r"""Shorten `detail` to at most `MAX_DETAIL_BYTES` bytes of UTF-8, at a character boundary
    (DLQ-6).

    A shortened text ends with an ellipsis. A lone surrogate becomes its escape, for example
    `\udc80`.
    """
    encoded = detail.encode("utf-8", "backslashreplace")
    if len(encoded) <= MAX_DETAIL_BYTES:
        return encoded.decode()
    return encoded[: MAX_DETAIL_BYTES - len("…".encode())].decode("utf-8", "ignore") + "…"


def one_of(names: Iterable[str]) -> str:
    """Format the allowed names as a sorted list for an error message."""
    return ", ".join(sorted(names)) or "(there is none yet)"


def nearest(name: str, names: Iterable[str]) -> str:
    """Return a question with the nearest known name, for example `did you mean users?`.

    It is empty if no known name is similar.
    """
    matches = difflib.get_close_matches(
        name.lower(), {candidate.lower(): candidate for candidate in names}, n=1, cutoff=0.6
    )
    return next(
        (
            f"did you mean {candidate}?"
            for candidate in names
            if matches and candidate.lower() == matches[0]
        ),
        "",
    )


def counted(number: int, noun: str, plural: str = "") -> str:
    """Format a number with its noun: `1 record`, `1,234 records`."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


FEW: Final = 3
"""The most names of a short list."""


def summarize_names(names: Sequence[str]) -> str:
    """Return the first names, and the number of further names."""
    more = len(names) - FEW
    return ", ".join(names[:FEW]) + (f" and {more} more" if more > 0 else "")


_UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def duration(seconds: float) -> str:
    """A duration in its two largest units, rounded down: `0s`, `1m30s`, `2d4h`."""
    rest = int(seconds)
    parts = []
    for unit, size in _UNITS:
        count, rest = divmod(rest, size)
        parts.append(f"{count}{unit}" if count else "")
    first = next((index for index, part in enumerate(parts) if part), len(parts))
    return "".join(parts[first : first + 2]) or "0s"


def offsets_text(first: int, last: int) -> str:
    """For example `offsets 3 to 9`, or `offset 3` if it is one."""
    return f"offset {first}" if first == last else f"offsets {first} to {last}"
