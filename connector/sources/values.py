"""From a value of a foreign record to the bytes of a cell (SRC-3, SRC-5).

A value of a type with a schema becomes the canonical text of the column type that `kind_of` gives
it. A value that this type does not hold, and a value without a schema, becomes its *natural text*:
text as it is, numbers and booleans as JSON writes them, and objects and lists as JSON. The table
decides what becomes of it (EVO-11).
"""

from __future__ import annotations

import base64
import math
import re
import struct
from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

import msgspec

from connector.sources.schemas import SOURCE_TYPE, Field
from connector.tables.nested import ArrayType, ValueType
from connector.tables.values import DataType

Convert = Callable[[Any], bytes]

MISFITS: Final = (ValueError, TypeError, KeyError, ArithmeticError, struct.error, RecursionError)
"""What a `Convert` raises for a value that does not fit."""

QUOTE: Final = ord('"')
NULL: Final = ord("n")


class Kind(NamedTuple):
    """The type of a column, and how values become its cells.

    - `of_text` takes the natural text of a value in JSON. See `DecimalText`, too.
    - `of_value` takes a value as `AvroType.read_raw` returns it.

    Both raise one of `MISFITS` for other values. None: the value is the cell.
    """

    type: ValueType
    of_text: Convert | None
    of_value: Convert | None


def natural_of_json(text: bytes) -> bytes:
    """Return the natural text of a value in JSON that is not null."""
    if text[0] == QUOTE:
        return text[1:-1] if b"\\" not in text else _strings.decode(text).encode()
    return text


def natural_text(value: object) -> bytes:
    """Return the natural text of a value of Avro that is not None."""
    if isinstance(value, bytes):
        try:
            return value.decode().encode()
        except UnicodeDecodeError:
            return base64.b64encode(value)
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


MYSQL: Final = ("mysql", "mariadb")
"""Debezium's words for its connectors to these servers."""


def kind_of(field: Field, *, has_zone: bool, is_mysql: bool = False) -> Kind:
    """Return the kind of a field.

    Args:
        field: The field. A type that is not known is that of its base.
        has_zone: Whether Connect's `Timestamp` is a moment. Debezium uses it for local times.
        is_mysql: Whether a time is a duration, from -838:59:59 to 838:59:59. It is a text.
    """
    logical = field.logical
    if logical == _CONNECT + "Timestamp" and has_zone:
        logical = "timestamp-millis"
    source_type = field.parameters.get(SOURCE_TYPE, "")
    if source_type.startswith(_UNSIGNED) and field.base == "int64":
        return Kind(DataType.NUMERIC, lambda text: _unsigned(int(text)), _unsigned)
    if field.base == "string" and source_type in ("NUMERIC", "DECIMAL"):
        return _decimal_text(field)
    if logical in _NUMBERS and field.base in ("int32", "int64"):
        type_, convert = _NUMBERS[logical]
        type_ = DataType.STRING if is_mysql and type_ is DataType.TIME else type_
        return Kind(type_, lambda text: convert(int(text)), convert)
    if logical in _TEXTS and field.base == "string":
        type_, of_text = _TEXTS[logical]
        type_ = DataType.STRING if is_mysql and type_ is DataType.TIME else type_
        return Kind(type_, of_text, of_text)
    if logical == _CONNECT + "Decimal" and field.base == "bytes":
        return _decimal(field)
    if logical == "io.debezium.data.VariableScaleDecimal" and field.base == "struct":
        return _VARIABLE_SCALE
    if field.base == "array" and field.parts:
        return _array(kind_of(field.parts[0], has_zone=has_zone))
    return _KINDS.get(field.base, _KINDS["union"])


_UNSIGNED: Final = "BIGINT UNSIGNED"


def _unsigned(number: int) -> bytes:
    return b"%d" % (number % 2**64)


def may_be_unsigned(field: Field) -> bool:
    """Whether a field of MySQL may be BIGINT UNSIGNED, whose large numbers are sent as negative."""
    return field.base == "int64" and not field.logical and SOURCE_TYPE not in field.parameters


def _decimal(field: Field) -> Kind:
    parameters = field.parameters
    scale = _int_of(parameters.get("scale"))
    precision = _int_of(parameters.get("connect.decimal.precision", parameters.get("precision")))
    type_ = DataType.STRING if scale is None else decimal_type(precision, scale)

    def of_bytes(value: bytes) -> bytes:
        return decimal_text(int.from_bytes(value, "big", signed=True), scale or 0)

    return Kind(type_, DecimalText(of_bytes), of_bytes)


class DecimalText:
    """Takes the natural text of a decimal in Connect's JSON: base64. With the converter's
    `decimal.format = NUMERIC`, it is a number, for `of_number`. The text 1234 can be both.
    """

    __slots__ = ("_of_bytes",)

    def __init__(self, of_bytes: Convert) -> None:
        self._of_bytes = of_bytes

    def __call__(self, text: bytes) -> bytes:
        return self._of_bytes(of_base64(text))

    @staticmethod
    def of_number(text: bytes) -> bytes:
        return _canonical_decimal(text)


def _decimal_text(field: Field) -> Kind:
    """A decimal as text, with its type in the source: `decimal.handling.mode = string`."""
    precision = _int_of(field.parameters.get("__debezium.source.column.length"))
    scale = _int_of(field.parameters.get("__debezium.source.column.scale"))
    type_ = DataType.BIGNUMERIC if scale is None else decimal_type(precision, scale)
    return Kind(type_, _canonical_decimal, _canonical_decimal)


def decimal_type(precision: int | None, scale: int) -> DataType:
    """Return the smallest type that has all decimals with this scale. A precision of None is that
    of BIGNUMERIC.
    """
    digits = 38 - scale if precision is None else precision - scale
    if 0 <= scale <= 9 and digits <= 29:
        return DataType.NUMERIC
    return DataType.BIGNUMERIC if scale <= 38 and digits <= 38 else DataType.STRING


def decimal_text(unscaled: int, scale: int) -> bytes:
    """Return a decimal without zeros at its ends. Raises `ValueError` for a scale that no database
    has.
    """
    if not -MAX_SCALE <= scale <= MAX_SCALE:
        raise ValueError(scale)
    # A Decimal is written without a limit of its digits.
    digits, sign = str(Decimal(abs(unscaled))), "-" if unscaled < 0 else ""
    if scale <= 0:
        digits += "0" * -scale if unscaled else ""
        return f"{sign}{digits}".encode()
    digits = digits.rjust(scale + 1, "0")
    text = f"{digits[:-scale]}.{digits[-scale:]}".rstrip("0").rstrip(".")
    return f"{sign}{text}".encode()


MAX_SCALE: Final = 20_000
"""The largest scale of a decimal. PostgreSQL has up to 16,383 decimals."""


def _canonical_decimal(text: bytes) -> bytes:
    if not _is_plain_number(text):
        exponent = _exponent(text)
        if exponent is None or abs(int(exponent[1])) > MAX_SCALE:
            return _DECIMALS_OF_JAVA.get(text, text)
        text = f"{Decimal(text.decode()):f}".encode()
    sign, digits = (b"-", text[1:]) if text[:1] == b"-" else (b"", text)
    whole, _, decimals = digits.partition(b".")
    whole, decimals = whole.lstrip(b"0") or b"0", decimals.rstrip(b"0")
    if not decimals:
        return whole if whole == b"0" else sign + whole
    return sign + whole + b"." + decimals


_DECIMALS_OF_JAVA: Final = {
    b"NAN": b"NaN",
    b"POSITIVE_INFINITY": b"Infinity",
    b"NEGATIVE_INFINITY": b"-Infinity",
}
"""The texts that Debezium has for decimals that are no numbers."""


def _of_variable_scale(value: Mapping[str, Any]) -> bytes:
    unscaled = value["value"]
    if not isinstance(unscaled, bytes):
        unscaled = of_base64(unscaled)
    return decimal_text(int.from_bytes(unscaled, "big", signed=True), int(value["scale"]))


_VARIABLE_SCALE: Final = Kind(
    DataType.BIGNUMERIC,
    lambda text: _of_variable_scale(msgspec.json.decode(text)),
    _of_variable_scale,
)


def of_base64(text: bytes | str) -> bytes:
    """Return the bytes of base64. Raises `ValueError`."""
    return base64.b64decode(text, validate=True)


def _int_of(text: str | None) -> int | None:
    return int(text) if text is not None and _is_int(text) else None


_is_int = re.compile(r"-?[0-9]{1,9}", re.ASCII).fullmatch
_is_plain_number = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?").fullmatch
_exponent = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?[eE]([-+]?[0-9]{1,9})").fullmatch


# Times. A day or a moment that no type holds is written in the same form, with a sign if its year
# is before 1 or after 9999.

_DAY_US: Final = 86_400_000_000
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_INFINITE: Final = {
    9223372036825200000: b"infinity",
    -9223372036832400000: b"-infinity",
}
"""The moments that Debezium writes for PostgreSQL's infinity."""


@lru_cache(maxsize=4096)
def day_text(days: int) -> str:
    """Return the day so many days after 1970-01-01, as in ISO 8601. For example, -719529 is
    0000-12-31.
    """
    ordinal = days + _EPOCH_DAY
    if 1 <= ordinal <= _LAST_DAY:
        return date.fromordinal(ordinal).isoformat()
    cycles, ordinal = divmod(ordinal - 1, _CYCLE_DAYS)  # the calendar repeats after 400 years
    day = date.fromordinal(ordinal + 1)
    year = day.year + 400 * cycles
    return f"{'-' if year < 0 else '+' if year > 9999 else ''}{abs(year):04}-{day:%m-%d}"


_LAST_DAY: Final = date.max.toordinal()
_CYCLE_DAYS: Final = 146_097


def clock_text(micros: int) -> str:
    """Return a time as hh:mm:ss.ffffff. MySQL has times beyond a day and below 0."""
    sign, micros = ("-", -micros) if micros < 0 else ("", micros)
    seconds, micros = divmod(micros, 1_000_000)
    return f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{micros:06}"


def _moments(per_second: int, zone: str) -> Convert:
    """Writes numbers of so many parts of a second as DATETIME, or TIMESTAMP with the zone Z."""

    def write(number: int) -> bytes:
        if number in _INFINITE:
            return _INFINITE[number]
        days, micros = divmod(number * 1_000_000 // per_second, _DAY_US)
        return f"{day_text(days)}T{clock_text(micros)}{zone}".encode()

    return write


def _clocks(per_second: int) -> Convert:
    return lambda number: clock_text(number * 1_000_000 // per_second).encode()


_iso = re.compile(
    rb"([0-9]{4}-[0-9]{2}-[0-9]{2}T)?([0-9]{2}:[0-9]{2}(?::[0-9]{2})?)(?:\.([0-9]+))?(Z?)"
).fullmatch
_iso_day = re.compile(rb"([0-9]{4}-[0-9]{2}-[0-9]{2})Z?").fullmatch


def _iso_text(text: bytes, *, has_day: bool, has_zone: bool) -> bytes:
    parts = _iso(text)
    if parts is None:
        raise ValueError(text)
    day, clock, decimals, zone = parts.groups()
    if has_day is (day is None) or (has_zone and not zone):
        raise ValueError(text)
    clock = clock if len(clock) > len(b"10:00") else clock + b":00"
    decimals = (decimals or b"")[:6].ljust(6, b"0")
    return (day or b"") + clock + b"." + decimals + (zone if has_zone else b"")


def _iso_date(text: bytes) -> bytes:
    parts = _iso_day(text)
    if parts is None:
        raise ValueError(text)
    return bytes(parts[1])


def _float_of_text(text: bytes) -> bytes:
    return text if text in _NOT_FINITE else _float_text(float(text))


_NOT_FINITE: Final = frozenset({b"NaN", b"Infinity", b"-Infinity"})


_SUBNORMAL: Final = 2.0**-126


def _float_text(number: float) -> bytes:
    text = repr(number).encode()
    return _FLOATS.get(text, text)


_FLOATS: Final = {b"nan": b"NaN", b"inf": b"Infinity", b"-inf": b"-Infinity"}


def _float32(number: float) -> bytes:
    """The shortest text of a number of four bytes, as Connect's JSON has it."""
    if not math.isfinite(number):
        return _float_text(number)
    exact = struct.pack("<f", number)
    least = 6 if abs(number) > _SUBNORMAL else 1
    texts = (float(f"{number:.{digits}g}") for digits in range(least, 10))
    return _float_text(next((text for text in texts if struct.pack("<f", text) == exact), number))


_CONNECT: Final = "org.apache.kafka.connect.data."
_DEBEZIUM: Final = "io.debezium.time."
ISO_TIME: Final = _DEBEZIUM + "IsoTime"

_NUMBERS: Final[Mapping[str, tuple[DataType, Convert]]] = {
    _CONNECT + "Date": (DataType.DATE, lambda days: day_text(days).encode()),
    _CONNECT + "Time": (DataType.TIME, _clocks(1_000)),
    _CONNECT + "Timestamp": (DataType.DATETIME, _moments(1_000, "")),
    _DEBEZIUM + "Date": (DataType.DATE, lambda days: day_text(days).encode()),
    _DEBEZIUM + "Time": (DataType.TIME, _clocks(1_000)),
    _DEBEZIUM + "MicroTime": (DataType.TIME, _clocks(1_000_000)),
    _DEBEZIUM + "NanoTime": (DataType.TIME, _clocks(1_000_000_000)),
    _DEBEZIUM + "Timestamp": (DataType.DATETIME, _moments(1_000, "")),
    _DEBEZIUM + "MicroTimestamp": (DataType.DATETIME, _moments(1_000_000, "")),
    _DEBEZIUM + "NanoTimestamp": (DataType.DATETIME, _moments(1_000_000_000, "")),
    "timestamp-millis": (DataType.TIMESTAMP, _moments(1_000, "Z")),
    "timestamp-micros": (DataType.TIMESTAMP, _moments(1_000_000, "Z")),
    "timestamp-nanos": (DataType.TIMESTAMP, _moments(1_000_000_000, "Z")),
}
"""The logical types of numbers."""

_TEXTS: Final[Mapping[str, tuple[DataType, Convert | None]]] = {
    _DEBEZIUM + "IsoDate": (DataType.DATE, _iso_date),
    ISO_TIME: (DataType.TIME, partial(_iso_text, has_day=False, has_zone=False)),
    _DEBEZIUM + "IsoTimestamp": (
        DataType.DATETIME,
        partial(_iso_text, has_day=True, has_zone=False),
    ),
    _DEBEZIUM + "ZonedTimestamp": (
        DataType.TIMESTAMP,
        partial(_iso_text, has_day=True, has_zone=True),
    ),
    "io.debezium.data.Json": (DataType.JSON, None),
}
"""The logical types of text. A JSON document is its own text. Other logical types are STRING."""

_JSON: Final = Kind(DataType.JSON, None, msgspec.json.encode)
_KINDS: Final[Mapping[str, Kind]] = {
    **dict.fromkeys(
        ("int8", "int16", "int32", "int64"),
        Kind(DataType.INT64, None, lambda number: b"%d" % number),
    ),
    "float32": Kind(DataType.FLOAT64, _float_of_text, _float32),
    "float64": Kind(DataType.FLOAT64, _float_of_text, _float_text),
    "boolean": Kind(DataType.BOOL, None, lambda value: b"true" if value else b"false"),
    "string": Kind(DataType.STRING, None, None),
    "bytes": Kind(DataType.BYTES, of_base64, None),
    **dict.fromkeys(("struct", "map", "array"), _JSON),
    "union": Kind(DataType.STRING, None, natural_text),
}
"""The kinds of types without a logical type."""


def _array(kind: Kind) -> Kind:
    """An ARRAY of values without parts. Others are JSON."""
    type_ = kind.type
    if not isinstance(type_, DataType) or type_ is DataType.JSON:
        return _JSON

    def of_text(text: bytes) -> bytes:
        items, convert = [bytes(item) for item in _lists.decode(text)], kind.of_text
        if isinstance(convert, DecimalText) and not any(item[0] == QUOTE for item in items):
            convert = convert.of_number
        values = [None if item == b"null" else natural_of_json(item) for item in items]
        return joined(values, convert)

    def of_value(items: list[Any]) -> bytes:
        values = [item.encode() if isinstance(item, str) else item for item in items]
        return joined(values, kind.of_value)

    def joined(values: list[Any], convert: Convert | None) -> bytes:
        if values and type_ is DataType.STRING and (values[0] or b"")[:7] == _JAVA_ARRAY:
            return bytes(values[0])  # no array: the elements of an array of arrays are lost
        parts = [
            b"null" if v is None else _json_part(type_, convert(v) if convert else v)
            for v in values
        ]
        return b"[" + b",".join(parts) + b"]"

    return Kind(ArrayType(type_), of_text, of_value)


def _json_part(type_: ValueType, text: bytes) -> bytes:
    """A cell as an element of JSON, as `connector.tables.nested` has it."""
    if type_ is DataType.INT64:
        return b"%d" % int(text)
    if type_ is DataType.BOOL or (type_ is DataType.FLOAT64 and text not in _NOT_FINITE):
        return text
    if type_ is DataType.BYTES:
        return msgspec.json.encode(text)  # as base64
    return msgspec.json.encode(text.decode())


_JAVA_ARRAY: Final = b"[Ljava."
_strings: Final = msgspec.json.Decoder(str)
_lists: Final = msgspec.json.Decoder(list[msgspec.Raw])
