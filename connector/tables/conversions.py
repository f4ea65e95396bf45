"""Converts what a program has to a value of a column (EVO-6).

A cell that any producer wrote is read strictly (`connector.tables.values`). Here a program gives a
Python value, or text as other databases write it. The result is a value of the type, or a refusal
that names the field, the type and the value. Nothing is rounded, except a number in a FLOAT64, a
float in a NUMERIC or BIGNUMERIC, and decimals of a time after the sixth.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from numbers import Integral, Real
from typing import Any, Final

from connector.errors import InvalidChangeError
from connector.records.views import EPOCH, MICROSECOND
from connector.tables.nested import (
    ArrayType,
    RangeType,
    RecordType,
    ValueType,
    parts_of_json,
    read_part_text,
)
from connector.tables.values import DataType, Encoding, read_text, write_value

ACCEPTED: Final[Mapping[DataType, str]] = {
    DataType.STRING: "a str, an int or a bool",
    DataType.BYTES: "bytes",
    DataType.BOOL: "a bool, or the text true or false",
    DataType.INT64: "an int from -2^63 to 2^63 - 1, or its digits",
    DataType.FLOAT64: "a float, an int, a Decimal, or a decimal number as text, up to 1.797E308",
    DataType.NUMERIC: (
        "an int, a Decimal, a float or a number as text, with at most 29 digits before the point,"
        " and 9 after it"
    ),
    DataType.BIGNUMERIC: (
        "an int, a Decimal, a float or a number as text, up to 5.79E38, with at most 38 digits"
        " after the point"
    ),
    DataType.DATE: "a date, YYYY-MM-DD, or an int of days since 1970",
    DataType.DATETIME: (
        "a datetime without a zone, a date, or YYYY-MM-DD[Thh:mm:ss[.ffffff]] without a zone"
    ),
    DataType.TIME: "a time without a zone, or h:m:s[.ffffff] before 24:00:00",
    DataType.TIMESTAMP: (
        "a datetime with a zone, an int of microseconds, or ISO 8601 (UTC without an offset)"
    ),
    DataType.JSON: "a list, a dict, or JSON as text",
}
"""The Python values that a type accepts, in words."""

_EXACT: Final = Context(prec=100)
_SCALES: Final = {DataType.NUMERIC: 9, DataType.BIGNUMERIC: 38}
_MOST_DIGITS: Final = 50
_number = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,4})?", re.ASCII).fullmatch
_clock = re.compile(r"([0-9]{1,2}):([0-9]{1,2}):([0-9]{1,2}(?:\.[0-9]+)?)", re.ASCII).fullmatch
_moment = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9:.]+)(?:(Z)|([+-][0-9]{2}):?([0-9]{2})?)?", re.ASCII
).fullmatch


def convert(type_: ValueType, given: object, field: str = "value") -> Any:
    """Return the value of a type for what a program has, which is not None.

    Args:
        type_: The type of the column.
        given: A Python value or text.
        field: The name of the field, for the error.

    Returns:
        The value, as `connector.tables.values` and `nested` have it.

    Raises:
        InvalidChangeError: The type does not accept the value. `field` is the path of the part.
    """
    if not isinstance(type_, DataType):
        return _convert_nested(type_, given, field)
    value = converted(type_, given)
    if value is not None:
        try:
            write_value(type_, Encoding.TEXT, value)
        except InvalidChangeError:
            value = None
    if value is None:
        raise refusal(type_, given, field)
    return value


def converted(type_: DataType, given: object) -> Any:
    """Return the value of a type without parts, or None if it accepts no such value. The value may
    still be out of range: `write_value` refuses it then.
    """
    try:
        return _CONVERT[type_](given)
    except (ArithmeticError, ValueError, RecursionError):
        return None


def refusal(type_: ValueType, given: object, field: str) -> InvalidChangeError:
    """The error for a value that a type does not accept."""
    accepted = ACCEPTED[type_] if isinstance(type_, DataType) else _accepted_parts(type_)
    return InvalidChangeError("UNREADABLE_VALUE", field, f"{type_}: {accepted}", given)


def _accepted_parts(type_: ValueType) -> str:
    if isinstance(type_, ArrayType):
        return "a list, or an array of JSON as text"
    if isinstance(type_, RangeType):
        return "a dict with a start before its end, or an object of JSON as text"
    assert isinstance(type_, RecordType)
    return f"a dict with the fields {', '.join(name for name, _ in type_.fields)}, or JSON as text"


def _convert_nested(type_: ValueType, given: object, field: str) -> Any:
    if isinstance(given, str):
        try:
            return _convert_part(type_, parts_of_json(given), field, _convert_json)
        except (ValueError, RecursionError) as error:
            if isinstance(error, InvalidChangeError):
                raise
            raise refusal(type_, given, field) from None
    return _convert_part(type_, given, field, convert)


_Convert = Callable[[ValueType, object, str], Any]


def _convert_part(type_: ValueType, given: object, field: str, convert_part: _Convert) -> Any:
    """The value of an array or a record. `convert_part` converts its parts that are not NULL."""
    if isinstance(type_, ArrayType) and isinstance(given, list | tuple):
        return [
            None if item is None else convert_part(type_.element, item, f"{field}[{index}]")
            for index, item in enumerate(given)
        ]
    record = type_.record if isinstance(type_, RangeType) else type_
    if not isinstance(record, RecordType) or not isinstance(given, Mapping):
        raise refusal(type_, given, field)
    names = [name for name, _ in record.fields]
    if unknown := [name for name in given if name not in names]:
        raise refusal(type_, given[unknown[0]], f"{field}.{unknown[0]}")
    value = {
        name: None
        if given.get(name) is None
        else convert_part(part, given[name], f"{field}.{name}")
        for name, part in record.fields
    }
    if isinstance(type_, RangeType):
        try:
            type_.write(value)
        except ValueError:
            raise refusal(type_, given, field) from None
    return value


def _convert_json(type_: ValueType, given: object, field: str) -> Any:
    """The value of a part of JSON. Numbers are text, and BYTES base64."""
    if not isinstance(type_, DataType):
        return _convert_part(type_, given, field, _convert_json)
    if type_ is DataType.BYTES:
        value = read_part_text(type_, given) if isinstance(given, str) else None
        if value is None:
            raise refusal(type_, given, field)
        return value
    if isinstance(given, bool):
        given = "true" if given else "false"
    if not isinstance(given, str):
        raise refusal(type_, given, field)
    return convert(type_, given, field)


def _integer(given: object) -> int | None:
    """The int that a value is, also one of another library. A bool is not one."""
    if isinstance(given, bool) or not isinstance(given, Integral):
        return None
    return int(given)


def _of_string(given: object) -> str | None:
    if isinstance(given, bool):
        return "true" if given else "false"
    if (whole := _integer(given)) is not None:
        return str(whole)
    return str(given) if isinstance(given, str) else None


def _of_bytes(given: object) -> bytes | None:
    return bytes(given) if isinstance(given, bytes | bytearray | memoryview) else None


def _of_bool(given: object) -> bool | None:
    if isinstance(given, str):
        return {"true": True, "false": False}.get(given.lower())
    return given if isinstance(given, bool) else None


def _of_int64(given: object) -> object:
    if isinstance(given, str):
        return read_text(DataType.INT64, given)
    return _integer(given)


def _of_float64(given: object) -> object:
    if isinstance(given, bool):
        return None
    if isinstance(given, Real):
        number = float(given)
        return None if math.isinf(number) and number != given else number
    return read_text(DataType.FLOAT64, str(given)) if isinstance(given, str | Decimal) else None


def _of_decimal(type_: DataType, given: object) -> Decimal | None:
    if isinstance(given, bool):
        return None
    if (whole := _integer(given)) is not None:
        return Decimal(whole)
    if isinstance(given, str):
        return Decimal(given) if _number(given) else None
    if isinstance(given, Real):
        if not math.isfinite(given):
            return None
        unit = Decimal(1).scaleb(-_SCALES[type_])
        return Decimal(repr(float(given))).quantize(unit, ROUND_HALF_UP, _EXACT)
    return given if isinstance(given, Decimal) and given.is_finite() else None


def _of_numeric(given: object) -> Decimal | None:
    return _of_decimal(DataType.NUMERIC, given)


def _of_bignumeric(given: object) -> object:
    number = _of_decimal(DataType.BIGNUMERIC, given)
    if number is None or abs(number.adjusted()) > _MOST_DIGITS:
        return None if number is None or number else "0"
    return read_text(DataType.BIGNUMERIC, f"{number:f}")


def _of_date(given: object) -> object:
    if isinstance(given, str):
        return read_text(DataType.DATE, given)
    if (days := _integer(given)) is not None:
        return EPOCH.date() + timedelta(days=days)
    return given if type(given) is date else None


def _of_datetime(given: object) -> object:
    if isinstance(given, str):
        text = f"{given}T00:00:00" if len(given) <= len("2026-01-31") else given
        return read_text(DataType.DATETIME, text.replace(" ", "T", 1))
    if isinstance(given, date) and not isinstance(given, datetime):
        given = datetime.combine(given, time())
    if not isinstance(given, datetime) or given.tzinfo is not None:
        return None
    return (given.replace(tzinfo=UTC) - EPOCH) // MICROSECOND


def _of_time(given: object) -> object:
    if isinstance(given, time):
        return None if given.tzinfo is not None else given.isoformat(timespec="microseconds")
    if not isinstance(given, str) or not (parts := _clock(given)):
        return None
    hours, minutes, seconds = parts.groups()
    seconds = f"0{seconds}" if len(seconds.partition(".")[0]) == 1 else seconds
    return read_text(DataType.TIME, f"{hours:0>2}:{minutes:0>2}:{seconds}")


def _of_timestamp(given: object) -> object:
    if isinstance(given, datetime):
        return None if given.utcoffset() is None else (given - EPOCH) // MICROSECOND
    if (moment := _integer(given)) is not None:
        return moment
    if not isinstance(given, str) or not (parts := _moment(given)):
        return None
    day, clock, _, hours, minutes = parts.groups()
    zone = f"{hours}:{minutes or '00'}" if hours else "Z"
    return read_text(DataType.TIMESTAMP, f"{day}T{clock}{zone}")


def _of_json(given: object) -> str | None:
    if isinstance(given, list | tuple | dict):
        try:
            return json.dumps(given, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        except TypeError:
            return None
    return str(given) if isinstance(given, str) else None


_CONVERT: Final[Mapping[DataType, Callable[[object], object]]] = {
    DataType.STRING: _of_string,
    DataType.BYTES: _of_bytes,
    DataType.BOOL: _of_bool,
    DataType.INT64: _of_int64,
    DataType.FLOAT64: _of_float64,
    DataType.NUMERIC: _of_numeric,
    DataType.BIGNUMERIC: _of_bignumeric,
    DataType.DATE: _of_date,
    DataType.DATETIME: _of_datetime,
    DataType.TIME: _of_time,
    DataType.TIMESTAMP: _of_timestamp,
    DataType.JSON: _of_json,
}
