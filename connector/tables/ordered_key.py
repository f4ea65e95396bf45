r"""The order-preserving form of a row key: key columns in, bytes out that lie in the order of the columns, and back (TBL-7).

It is what Bigtable calls `OrderedCodeBytes` of structured row keys, and goes on from there for the types that Bigtable has no
form for (docs/decisions/0011-ordered-keys.md). Of tuples of the same types, the one that is less has the lesser bytes, compared
as unsigned bytes from the left. A part of such a key is:

    STRING     UTF-8, so that texts lie in the order of their code points
    BYTES      the bytes
    BOOL       a number: 0 or 1
    INT64      a number
    NUMERIC    a number: the value times 10^9
    DATE       a number: days since 1970-01-01
    TIMESTAMP  a number: µs since 1970-01-01 UTC

A *number* from 0 on has as few bytes as can hold it: n bytes are n ones, a zero, and 7n - 1 bits of the number. A number x below 0
is -x - 1 with every bit turned over. So 0 is 80, 63 is BF, 64 is C0 40, and -1 is 7F.

The key joins the parts: empty ones at its end are left out; in each of the others, 00 becomes 00 FF, and an empty one becomes 00 00;
00 01 stands between them. If all are empty, the key is 00 00. Each tuple has one key, and each key that is read is written the same.
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
"""The types whose parts are numbers, and the least and the greatest."""


def join_parts(pieces: Sequence[bytes]) -> bytes:
    """The row key of the bytes of its parts, in order."""
    last = max((place for place, piece in enumerate(pieces) if piece), default=0)
    return b"\x00\x01".join(piece.replace(b"\x00", b"\x00\xff") or b"\x00\x00" for piece in pieces[: last + 1])


def split_parts(row_key: bytes, count: int) -> list[bytes]:
    """The bytes of the `count` parts of a row key; none at all if it is not a key of so many."""
    escaped = row_key.split(b"\x00\x01")
    pieces = [b"" if piece == b"\x00\x00" else piece.replace(b"\x00\xff", b"\x00") for piece in escaped]
    pieces += [b""] * (count - len(pieces))
    return pieces if len(pieces) == count and join_parts(pieces) == row_key else []


def read_part(type_: DataType, piece: bytes) -> object | Unreadable:
    """The value of the bytes of a part. Never raises; `write_part` gives back the same bytes."""
    if type_ not in NUMBER_RANGE:
        return read_value(type_, Encoding.TEXT, piece)
    number, (least, greatest) = read_number(piece), NUMBER_RANGE[type_]
    if number is None or not least <= number <= greatest:
        return Unreadable(f"{type_} in order-preserving form", piece)
    return _FROM_NUMBER[type_](number)


def write_part(type_: DataType, value: object) -> bytes:
    """The bytes of a value. Raises `InvalidChangeError` for a value that the type does not have."""
    written = write_value(type_, Encoding.TEXT, value)
    return write_number(_TO_NUMBER[type_](value)) if type_ in NUMBER_RANGE else written


def read_number(piece: bytes) -> int | None:
    """The number whose bytes these are, if they are the bytes of one."""
    bits = 7 * len(piece)
    number = int.from_bytes(piece) & ((1 << bits) - 1)  # behind n ones and a zero, or n zeros and a one: the zero, the one is the sign
    if number >> max(bits - 1, 0):
        number -= 1 << bits
    return number if write_number(number) == piece else None


def write_number(number: int) -> bytes:
    """The bytes of a number of any size."""
    length = max(number, ~number).bit_length() // 7 + 1
    sign = 1 << 7 * length
    return (number + (sign if number < 0 else (sign << length) - sign)).to_bytes(length)


def number_pattern(type_: DataType) -> str:
    """What the numbers of a type look like in upper-case hexadecimal digits, but for the least and the greatest of them.

    ASCII, for Python and for Java; to be matched as a whole.
    """
    lengths = range(1, max(len(write_number(limit)) for limit in NUMBER_RANGE[type_]) + 1)
    return "|".join(_number_of(length, *of_sign) for length in lengths for of_sign in (_FROM_0, _BELOW_0))


# In hexadecimal digits, after as many F (0) as the n ones (zeros) fill: the digit with the rest of them, by n % 4; and how the
# digits go on from there if the 7 bits behind are not needed, because fewer bytes could hold the number.
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
