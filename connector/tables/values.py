r"""Converts the bytes of a cell to a Python value of its column, and back (TBL-7).

A cell contains bytes. Its column defines their type and one of two encodings. Reading never raises:
if the bytes do not fit, the result is an `Unreadable`. Writing returns one *canonical* form, and
raises for a value without such a form. `read(write(v)) == v` is true for every value.
`write(read(b)) == b` is true only for canonical bytes. Parts of a key must be canonical.

    type        Python            text (`TEXT_PATTERN`)                    binary, as HBase
    STRING      str               UTF-8                                    the same
    BYTES       bytes             the bytes                                the same
    BOOL        bool              true, false                              00, FF; reads 01 as true
    INT64       int               [-]digits                                8 bytes, signed
    FLOAT64     float             [-]digits[.digits][e[±]digits],          8 bytes, IEEE 754
                                  NaN, [-]Infinity
    NUMERIC     Decimal           [-]digits[.digits], as decimal(38, 9)    none
    BIGNUMERIC  str, canonical    [-]digits[.digits], 38 decimals          none
    DATE        date              YYYY-MM-DD                               4 bytes, days
    DATETIME    int (µs)          YYYY-MM-DDThh:mm:ss[.digits]             none
    TIME        str, canonical    hh:mm:ss[.digits]                        none
    TIMESTAMP   int (µs)          YYYY-MM-DDThh:mm:ss[.digits](Z|±hh:mm)   8 bytes, µs
    JSON        str, unchanged    RFC 8259, within `MAX_JSON_…`            none

Binary numbers are big-endian. Days and µs count from 1970-01-01 UTC; those of a DATETIME, which has
no zone, from that day's midnight. `connector.tables.nested` has the types that are made of others.

The patterns are ASCII and mean the same in Python and in Java. They match the whole text:
`re.fullmatch` in Python, `\A(?:…)\z` in Java. Spaces around a value, a plus sign at its start and
digits outside ASCII are not allowed.
"""

from __future__ import annotations

import json
import math
import re
import struct
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NoReturn

from connector.errors import InvalidChangeError
from connector.records.views import view_of_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from connector.tables.nested import ValueType

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
TIMESTAMP_MIN: Final = -62135596800000000
"""The first microsecond of the year 1, UTC."""
TIMESTAMP_MAX: Final = 253402300799999999
"""The last microsecond of the year 9999, UTC."""
BIGNUMERIC_MAX: Final = (
    "578960446186580977117854925043439539266.34992332820282019728792003956564819967"
)
BIGNUMERIC_MIN: Final = f"-{BIGNUMERIC_MAX[:-1]}8"
"""The limits of BIGNUMERIC: 2^255 - 1 and -2^255, with the point before the last 38 digits."""
MAX_JSON_DEPTH: Final = 500
"""The maximum nesting, counted from 1. Above it, the parsers in use differ."""
MAX_JSON_DIGITS: Final = 1_000
"""The maximum number of digits of one number, including its exponent."""
MAX_JSON_NAME_LENGTH: Final = 50_000
"""The maximum length of the name of a member, in UTF-16 units. Spark's JSON parser, which most Java
programs use, has the same three limits.
"""

_BIGNUMERIC_DIGITS: Final = 39
_DAY_US: Final = 86_400_000_000
_EPOCH: Final = date(1970, 1, 1)
_SHOWN_BYTES: Final = 64


class DataType(StrEnum):
    """The type of a value that has no parts. The list is complete. The names are BigQuery's."""

    STRING = "STRING"
    BYTES = "BYTES"
    BOOL = "BOOL"
    INT64 = "INT64"
    FLOAT64 = "FLOAT64"
    NUMERIC = "NUMERIC"
    BIGNUMERIC = "BIGNUMERIC"
    DATE = "DATE"
    DATETIME = "DATETIME"
    TIME = "TIME"
    TIMESTAMP = "TIMESTAMP"
    JSON = "JSON"


class Encoding(StrEnum):
    """The form of a value in the bytes of a cell."""

    TEXT = "text"
    BINARY = "binary"


BINARY_TYPES: Final = frozenset(
    {
        *(DataType.STRING, DataType.BYTES, DataType.BOOL, DataType.INT64, DataType.FLOAT64),
        *(DataType.DATE, DataType.TIMESTAMP),
    }
)
"""Types with a binary form."""
VERBATIM: Final = frozenset({DataType.STRING, DataType.BYTES, DataType.JSON})
"""Types whose bytes are all canonical."""

_DATE = r"(?!0000)[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
_FRACTION = r"(?:\.[0-9]+)?"
_ZONE = r"(?:Z|[+-](?:(?:0[0-9]|1[0-7]):[0-5][0-9]|18:00))"

TEXT_PATTERN: Final[Mapping[DataType, str]] = {
    DataType.BOOL: r"true|false",
    DataType.INT64: r"-?[0-9]+",
    DataType.FLOAT64: r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|NaN|-?Infinity",
    DataType.NUMERIC: r"-?0*[0-9]{1,29}(?:\.[0-9]{1,9}0*)?",
    DataType.BIGNUMERIC: r"-?0*[0-9]{1,39}(?:\.[0-9]{1,38}0*)?",
    DataType.DATE: _DATE,
    DataType.DATETIME: _DATE + "T" + _TIME + _FRACTION,
    DataType.TIME: _TIME + _FRACTION,
    DataType.TIMESTAMP: _DATE + "T" + _TIME + _FRACTION + _ZONE,
}
"""The text form of a value. These rules are not in the patterns: INT64 is between -2^63 and 2^63 -
1. A FLOAT64 in digits is finite. A BIGNUMERIC is between `BIGNUMERIC_MIN` and `BIGNUMERIC_MAX`. The
day of a date exists in its month. TIMESTAMP is in the years 1 to 9999 in UTC. Decimals of a time
after the sixth are dropped. The patterns of NUMERIC and TIME are complete: a NUMERIC has 29 digits
and 9 decimals, without zeros at the ends.
"""

CANONICAL_PATTERN: Final[Mapping[DataType, str]] = {
    DataType.BOOL: r"true|false",
    DataType.INT64: r"0|-?[1-9][0-9]{0,18}",
    DataType.NUMERIC: r"0|-?(?:[1-9][0-9]{0,28}|(?:0|[1-9][0-9]{0,28})\.[0-9]{0,8}[1-9])",
    DataType.BIGNUMERIC: r"0|-?(?:[1-9][0-9]{0,38}|(?:0|[1-9][0-9]{0,38})\.[0-9]{0,37}[1-9])",
    DataType.DATE: _DATE,
    DataType.DATETIME: _DATE + "T" + _TIME + r"\.[0-9]{6}",
    DataType.TIME: _TIME + r"\.[0-9]{6}",
    DataType.TIMESTAMP: _DATE + "T" + _TIME + r"\.[0-9]{6}Z",
}
"""The written form, and the only one in a key. `TEXT_PATTERN` has the other rules."""

_matches = {
    type_: re.compile(pattern, re.ASCII).fullmatch for type_, pattern in TEXT_PATTERN.items()
}


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Bytes that do not fit. `expected` describes the form, and `detail` has both."""

    expected: str
    value: bytes

    @property
    def detail(self) -> str:
        cut = self.value[:_SHOWN_BYTES]
        more = f"... ({len(self.value)} bytes)" if len(self.value) > _SHOWN_BYTES else ""
        return f"expected {self.expected}, got {cut!r}{more}"


def read_value(type_: ValueType, encoding: Encoding, value: bytes) -> object | Unreadable:
    """Return the value of a cell, or `Unreadable`. Never raises (TBL-7, TBL-9)."""
    assert encoding is Encoding.TEXT or type_ in BINARY_TYPES, f"{type_} has no binary form"
    if type_ is DataType.BYTES:
        return value
    if encoding is Encoding.BINARY and isinstance(type_, DataType) and type_ is not DataType.STRING:
        return _read_binary(type_, value)
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError as error:
        return Unreadable(f"{type_} in UTF-8 (byte {error.start} is not)", value)
    if type_ is DataType.STRING:
        return text
    read = read_text(type_, text) if isinstance(type_, DataType) else type_.read(text)
    return Unreadable(_expected(type_), value) if read is None else read


def read_text(type_: DataType, text: str) -> object | None:
    """Return the value of a text, of which every character can be in UTF-8. None: it does not fit.

    The text of BYTES is not the bytes themselves, so it has none here.
    """
    if type_ is DataType.STRING:
        return text
    if type_ is DataType.JSON:
        return text if _is_json(text) else None
    return _READ_TEXT[type_](text) if _matches[type_](text) else None


def view_of_value(type_: ValueType, value: object) -> Any:
    """Return a value of a column in the form of the JSON view (REC-22).

    Numbers with a JSON form, booleans and text are themselves, and bytes are as in a record. All
    others are their canonical text. A value with parts is as in a cell (`connector.tables.nested`).
    """
    if not isinstance(type_, DataType):
        return None if value is None else type_.view(value)
    if value is None or type_ in (DataType.INT64, DataType.BOOL, DataType.STRING):
        return value
    if isinstance(value, bytes):
        return view_of_bytes(value)
    if isinstance(value, float) and math.isfinite(value):
        return value
    return write_value(type_, Encoding.TEXT, value).decode()


def write_value(type_: ValueType, encoding: Encoding, value: object) -> bytes:
    """Return the canonical bytes of a value.

    Raises `InvalidChangeError` (a `ValueError`) if the type does not have the value.
    """
    assert encoding is Encoding.TEXT or type_ in BINARY_TYPES, f"{type_} has no binary form"
    if not isinstance(type_, DataType):
        try:
            return type_.write(value).encode("utf-8")
        except ValueError:
            _refuse(type_, value)
    _check_python_type(type_, value)
    if isinstance(value, bytes):
        return value
    try:
        if encoding is Encoding.BINARY and type_ is not DataType.STRING:
            written = _WRITE_BINARY[type_](value)
        else:
            written = _WRITE_TEXT[type_](value).encode("utf-8")
    except (UnicodeEncodeError, struct.error, ValueError):
        _refuse(type_, value)
    if type_ not in _CHECKED and isinstance(read_value(type_, encoding, written), Unreadable):
        _refuse(type_, value)
    return written


def _expected(type_: ValueType) -> str:
    if not isinstance(type_, DataType):
        return type_.expected
    return _EXPECTED_JSON if type_ is DataType.JSON else _EXPECTED_TEXT[type_]


def _read_int64(text: str) -> int | None:
    digits = text.lstrip("-").lstrip("0")
    if len(digits) > 19:  # larger than 64 bits, and Python refuses to convert thousands of digits
        return None
    number = -int(digits or "0") if text[0] == "-" else int(digits or "0")
    return number if INT64_MIN <= number <= INT64_MAX else None


def _read_float64(text: str) -> float | None:
    number = float(text)
    return None if math.isinf(number) and not text.endswith("Infinity") else number


def _read_date(text: str) -> date | None:
    try:
        return date(int(text[:4]), int(text[5:7]), int(text[8:10]))
    except ValueError:
        return None


def _read_bignumeric(text: str) -> str | None:
    sign, digits = ("-", text[1:]) if text[0] == "-" else ("", text)
    whole, _, decimals = digits.partition(".")
    whole, decimals = whole.lstrip("0") or "0", decimals.rstrip("0")
    limit = (BIGNUMERIC_MIN if sign else BIGNUMERIC_MAX).lstrip("-").replace(".", "")
    if len(whole) == _BIGNUMERIC_DIGITS and whole + decimals.ljust(38, "0") > limit:
        return None
    read = f"{whole}.{decimals}" if decimals else whole
    return "0" if read == "0" else sign + read


def _read_datetime(text: str) -> int | None:
    day = _read_date(text[:10])
    if day is None:
        return None
    seconds = int(text[11:13]) * 3600 + int(text[14:16]) * 60 + int(text[17:19])
    return (day - _EPOCH).days * _DAY_US + seconds * 1_000_000 + int(text[20:26].ljust(6, "0"))


def _read_time(text: str) -> str:
    return f"{text[:8]}.{text[9:15]:0<6}"


def _read_timestamp(text: str) -> int | None:
    clock, zone = (text[:-1], "") if text[-1] == "Z" else (text[:-6], text[-6:])
    moment = _read_datetime(clock)
    if moment is None:
        return None
    if zone:
        ahead = (int(zone[1:3]) * 60 + int(zone[4:6])) * 60_000_000
        moment += ahead if zone[0] == "-" else -ahead
    return moment if TIMESTAMP_MIN <= moment <= TIMESTAMP_MAX else None


def _is_json(text: str) -> bool:
    try:
        json.loads(
            text,
            parse_int=_digits,
            parse_float=_digits,
            parse_constant=_no_constant,
            object_pairs_hook=_names,
        )
    except (ValueError, RecursionError):  # Python's parser supports a greater depth than ours
        return False
    return (
        text.count("[") + text.count("{") <= MAX_JSON_DEPTH or _json_depth(text) <= MAX_JSON_DEPTH
    )


def _json_depth(text: str) -> int:
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", re.sub(r'"[^"\\]*(?:\\.[^"\\]*)*"', "", text)):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _digits(number: str) -> None:
    if len(number) > MAX_JSON_DIGITS and sum(map(str.isdigit, number)) > MAX_JSON_DIGITS:
        raise ValueError(f"more than {MAX_JSON_DIGITS} digits")


def _names(members: list[tuple[str, object]]) -> None:
    for name, _ in members:
        if (
            len(name) > MAX_JSON_NAME_LENGTH // 2
            and len(name.encode("utf-16-le", "surrogatepass")) > 2 * MAX_JSON_NAME_LENGTH
        ):
            raise ValueError(f"a name of more than {MAX_JSON_NAME_LENGTH} units")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_EXPECTED_JSON: Final = (
    f"JSON, nested at most {MAX_JSON_DEPTH} deep, with numbers of at most {MAX_JSON_DIGITS} digits"
)

_READ_TEXT: Final[Mapping[DataType, Callable[[str], object | None]]] = {
    DataType.BOOL: lambda text: text == "true",
    DataType.INT64: _read_int64,
    DataType.FLOAT64: _read_float64,
    DataType.NUMERIC: Decimal,
    DataType.BIGNUMERIC: _read_bignumeric,
    DataType.DATE: _read_date,
    DataType.DATETIME: _read_datetime,
    DataType.TIME: _read_time,
    DataType.TIMESTAMP: _read_timestamp,
}

_EXPECTED_TEXT: Final[Mapping[DataType, str]] = {
    DataType.BOOL: "BOOL as true or false",
    DataType.INT64: "INT64 in decimal digits, from -2^63 to 2^63 - 1",
    DataType.FLOAT64: "FLOAT64 as a finite decimal number, NaN, Infinity or -Infinity",
    DataType.NUMERIC: "NUMERIC in decimal digits, at most 29 before the point and 9 after it",
    DataType.BIGNUMERIC: (
        "BIGNUMERIC in decimal digits, at most 38 after the point, from -2^255 / 10^38 to (2^255 -"
        " 1) / 10^38"
    ),
    DataType.DATE: "DATE as YYYY-MM-DD, a day of the years 0001 to 9999",
    DataType.DATETIME: (
        "DATETIME as YYYY-MM-DDThh:mm:ss[.ffffff] without a zone, in the years 0001 to 9999"
    ),
    DataType.TIME: "TIME as hh:mm:ss[.ffffff] without a zone, before 24:00:00",
    DataType.TIMESTAMP: (
        "TIMESTAMP as YYYY-MM-DDThh:mm:ss[.ffffff] with Z or ±hh:mm, in the years 0001 to 9999 UTC"
    ),
}


def _read_binary(type_: DataType, value: bytes) -> object | Unreadable:
    layout, expected = _BINARY[type_]
    if len(value) != struct.calcsize(layout):
        return Unreadable(expected, value)
    (number,) = struct.unpack(layout, value)
    if type_ is DataType.BOOL:
        return Unreadable(expected, value) if number not in (0, 1, 0xFF) else number != 0
    if type_ is DataType.DATE:
        try:
            return _EPOCH + timedelta(days=number)
        except OverflowError:
            return Unreadable(expected, value)
    if type_ is DataType.TIMESTAMP and not TIMESTAMP_MIN <= number <= TIMESTAMP_MAX:
        return Unreadable(expected, value)
    return float(number) if type_ is DataType.FLOAT64 else int(number)


_BINARY: Final[Mapping[DataType, tuple[str, str]]] = {
    DataType.BOOL: (">B", "BOOL in 1 byte: 00 (false), FF or 01 (true)"),
    DataType.INT64: (">q", "INT64 in 8 bytes"),
    DataType.FLOAT64: (">d", "FLOAT64 in 8 bytes"),
    DataType.DATE: (">i", "DATE in 4 bytes: days since 1970-01-01, in the years 0001 to 9999"),
    DataType.TIMESTAMP: (
        ">q",
        "TIMESTAMP in 8 bytes: microseconds since 1970-01-01 UTC, in the years 0001 to 9999",
    ),
}


def _write_int64(number: int) -> str:
    if not INT64_MIN <= number <= INT64_MAX:
        raise ValueError("not an INT64")
    return str(number)


def _write_float64(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    return repr(number) if math.isfinite(number) else f"{'-' if number < 0 else ''}Infinity"


def _write_numeric(number: Decimal) -> str:
    if number.is_finite() and not number:
        return "0"
    # Others could fill the memory, for example 1E-999999999.
    if not (number.is_finite() and -9 <= number.adjusted() <= 28):
        raise ValueError("not a decimal(38, 9)")
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _write_datetime(moment: int) -> str:
    if not TIMESTAMP_MIN <= moment <= TIMESTAMP_MAX:
        raise ValueError("not in the years 1 to 9999")
    days, rest = divmod(moment, _DAY_US)
    seconds, micros = divmod(rest, 1_000_000)
    time = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{micros:06}"
    return f"{_EPOCH + timedelta(days=days)}T{time}"


def _write_timestamp(moment: int) -> str:
    return f"{_write_datetime(moment)}Z"


def _write_read(type_: DataType) -> Callable[[str], str]:
    """A writer of a type whose value is its canonical text."""

    def write(text: str) -> str:
        read = read_text(type_, text)
        if not isinstance(read, str):
            raise ValueError(text)
        return read

    return write


_WRITE_TEXT: Final[Mapping[DataType, Callable[..., str]]] = {
    DataType.STRING: str,
    DataType.BOOL: lambda value: "true" if value else "false",
    DataType.INT64: _write_int64,
    DataType.FLOAT64: _write_float64,
    DataType.NUMERIC: _write_numeric,
    DataType.BIGNUMERIC: _write_read(DataType.BIGNUMERIC),
    DataType.DATE: date.isoformat,
    DataType.DATETIME: _write_datetime,
    DataType.TIME: _write_read(DataType.TIME),
    DataType.TIMESTAMP: _write_timestamp,
    DataType.JSON: str,
}

_WRITE_BINARY: Final[Mapping[DataType, Callable[..., bytes]]] = {
    DataType.BOOL: lambda value: b"\xff" if value else b"\x00",
    DataType.INT64: lambda value: struct.pack(">q", value),
    DataType.FLOAT64: lambda value: struct.pack(">d", math.nan if math.isnan(value) else value),
    DataType.DATE: lambda value: struct.pack(">i", (value - _EPOCH).days),
    DataType.TIMESTAMP: lambda value: struct.pack(">q", value),
}

_CHECKED: Final = frozenset(
    {
        *(DataType.STRING, DataType.BOOL, DataType.INT64, DataType.FLOAT64, DataType.DATE),
        *(DataType.BIGNUMERIC, DataType.DATETIME, DataType.TIME),
    }
)
"""Types of which every value that is written can be read: the writers refuse the others."""

_PYTHON_TYPE: Final[Mapping[DataType, type]] = {
    DataType.STRING: str,
    DataType.BYTES: bytes,
    DataType.BOOL: bool,
    DataType.INT64: int,
    DataType.FLOAT64: float,
    DataType.NUMERIC: Decimal,
    DataType.BIGNUMERIC: str,
    DataType.DATE: date,
    DataType.DATETIME: int,
    DataType.TIME: str,
    DataType.TIMESTAMP: int,
    DataType.JSON: str,
}


def _check_python_type(type_: DataType, value: object) -> None:
    # The exact type: for isinstance, a bool is an int and a datetime is a date. Neither is allowed.
    if type(value) is not _PYTHON_TYPE[type_]:
        raise InvalidChangeError(
            "UNREADABLE_VALUE",
            "value",
            f"a Python {_PYTHON_TYPE[type_].__name__} for {type_}",
            value,
        )


def _refuse(type_: ValueType, value: object) -> NoReturn:
    limit = f"{type_} in UTF-8" if type_ is DataType.STRING else _expected(type_)
    raise InvalidChangeError("UNREADABLE_VALUE", "value", limit, value)
