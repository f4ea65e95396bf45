"""The order-preserving form of a row key: bytes that have the same order as the key columns
(TBL-7).

It is the form `OrderedCodeBytes` of Bigtable's structured row keys, with additional types
(docs/decisions/0011-ordered-keys.md). If one tuple is less than another of the same types, its
bytes are less, too. Bytes are compared as unsigned numbers from the left. A part has this form:

    STRING     UTF-8, so texts have the order of their code points
    BYTES      the bytes
    BOOL       a number: 0 or 1
    INT64      a number
    NUMERIC    a number: the value times 10^9
    DATE       a number: days since 1970-01-01
    TIMESTAMP  a number: µs since 1970-01-01 UTC

A *number* from 0 on has the smallest possible number of bytes: n bytes are n ones, a zero, and
7n - 1 bits of the number. A negative number x is the number -x - 1 with every bit inverted. For
example, 0 is 80, 63 is BF, 64 is C0 40, and -1 is 7F.

The key joins the parts. Empty parts at the end are omitted. In every other part, 00 becomes 00 FF,
and an empty part becomes 00 00. The separator is 00 01. If all parts are empty, the key is 00 00.
Each tuple has exactly one key. If a key can be read, writing its parts gives the same key.
"""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Final

from connector.tables.values import (
    INT64_MAX,
    INT64_MIN,
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
    DataType,
    Encoding,
    Unreadable,
    read_value,
    write_value,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_EPOCH: Final = date(1970, 1, 1)
_EXACT: Final = Context(prec=40)

NUMBER_RANGE: Final[Mapping[DataType, tuple[int, int]]] = {
    DataType.BOOL: (0, 1),
    DataType.INT64: (INT64_MIN, INT64_MAX),
    DataType.NUMERIC: (1 - 10**38, 10**38 - 1),
    DataType.DATE: ((date.min - _EPOCH).days, (date.max - _EPOCH).days),
    DataType.TIMESTAMP: (TIMESTAMP_MIN, TIMESTAMP_MAX),
}
"""The types that are stored as numbers, with their smallest and largest number."""


def join_parts(pieces: Sequence[bytes]) -> bytes:
    last = max((index for index, piece in enumerate(pieces) if piece), default=0)
    return b"\x00\x01".join(
        piece.replace(b"\x00", b"\x00\xff") or b"\x00\x00" for piece in pieces[: last + 1]
    )


def split_parts(row_key: bytes, count: int) -> list[bytes]:
    """Split a row key into its `count` parts. Return an empty list if it is not valid."""
    escaped = row_key.split(b"\x00\x01")
    pieces = [
        b"" if piece == b"\x00\x00" else piece.replace(b"\x00\xff", b"\x00") for piece in escaped
    ]
    pieces += [b""] * (count - len(pieces))
    return pieces if len(pieces) == count and join_parts(pieces) == row_key else []


def read_part(type_: DataType, piece: bytes) -> object | Unreadable:
    """Read the value of a part. Never raises. `write_part` of the value returns the same bytes."""
    if type_ not in NUMBER_RANGE:
        return read_value(type_, Encoding.TEXT, piece)
    number, (least, greatest) = read_number(piece), NUMBER_RANGE[type_]
    if number is None or not least <= number <= greatest:
        return Unreadable(f"{type_} in order-preserving form", piece)
    return _FROM_NUMBER[type_](number)


def write_part(type_: DataType, value: object) -> bytes:
    """Write a value. Raises `InvalidChangeError` if the type does not have it."""
    if type_ is DataType.INT64 and type(value) is int and INT64_MIN <= value <= INT64_MAX:
        return write_number(value)  # the most frequent one, which the general way gives, too
    written = write_value(type_, Encoding.TEXT, value)
    return write_number(_TO_NUMBER[type_](value)) if type_ in NUMBER_RANGE else written


def read_number(piece: bytes) -> int | None:
    """Return the number of these bytes, or None if they are not the bytes of a number."""
    bits = 7 * len(piece)
    number = int.from_bytes(piece) & (
        (1 << bits) - 1
    )  # after n ones, the zero is the sign; after n zeros, the one
    if number >> max(bits - 1, 0):
        number -= 1 << bits
    return number if write_number(number) == piece else None


def write_number(number: int) -> bytes:
    """Return the bytes of a number of any size."""
    length = max(number, ~number).bit_length() // 7 + 1
    sign = 1 << 7 * length
    return (number + (sign if number < 0 else (sign << length) - sign)).to_bytes(length)


def number_pattern(type_: DataType) -> str:
    """Return a pattern for the numbers of a type in upper-case hexadecimal digits.

    It ignores the smallest and the largest number. It is ASCII, for Python and Java, and must match
    the whole text.
    """
    lengths = range(1, max(len(write_number(limit)) for limit in NUMBER_RANGE[type_]) + 1)
    return "|".join(
        _number_of(length, *of_sign) for length in lengths for of_sign in (_FROM_0, _BELOW_0)
    )


# In hexadecimal digits. n ones (zeros) fill some digits F (0). The next digit has the remaining
# ones (zeros); it depends on n % 4. The last tuple has the digits from there on if fewer bytes are
# enough for the number.
_FROM_0: Final = ("F", ("[0-7]", "[89AB]", "[CD]", "E"), ("00", "80[0-7]", "C0[0-3]", "E0[01]"))
_BELOW_0: Final = ("0", ("[89A-F]", "[4-7]", "[23]", "1"), ("FF", "7F[89A-F]", "3F[C-F]", "1F[EF]"))


def _number_of(length: int, filled: str, digit: tuple[str, ...], needless: tuple[str, ...]) -> str:
    whole, rest = divmod(length, 4)
    shorter = f"(?!{needless[rest]})" if length > 1 else ""
    return f"{filled * whole}{shorter}{digit[rest]}[0-9A-F]{{{2 * length - whole - 1}}}"


_FROM_NUMBER: Final[Mapping[DataType, Callable[[int], object]]] = {
    DataType.BOOL: bool,
    DataType.INT64: int,
    DataType.NUMERIC: lambda number: Decimal(number).scaleb(-9, _EXACT),
    DataType.DATE: lambda number: _EPOCH + timedelta(days=number),
    DataType.TIMESTAMP: int,
}

_TO_NUMBER: Final[Mapping[DataType, Callable[..., int]]] = {
    DataType.BOOL: int,
    DataType.INT64: int,
    DataType.NUMERIC: lambda value: int(value.scaleb(9, _EXACT)),
    DataType.DATE: lambda value: (value - _EPOCH).days,
    DataType.TIMESTAMP: int,
}
