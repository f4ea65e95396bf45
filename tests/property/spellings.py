"""Bytes of cells for which a type has other bytes with the same value."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import date, timedelta
from decimal import Decimal
from random import Random
from typing import Any

from connector.tables.definition import Column
from connector.tables.nested import ArrayType, RangeType, RecordType, ValueType, type_of
from connector.tables.values import (
    BIGNUMERIC_MAX,
    BIGNUMERIC_MIN,
    BINARY_TYPES,
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
    DataType,
    Encoding,
    write_value,
)

FORMS = [
    (type_, encoding)
    for type_ in DataType
    for encoding in Encoding
    if encoding is Encoding.TEXT or type_ in BINARY_TYPES
]
NESTED = {
    "array": type_of("ARRAY<NUMERIC>"),
    "record": type_of("RECORD<at TIMESTAMP, other ARRAY<DATETIME>, data BYTES, double FLOAT64>"),
    "range": type_of("RANGE<DATE>"),
}
COLUMNS = (
    *(
        Column(f"{type_.lower()}_{encoding}", "f", f"{type_}/{encoding}".encode(), type_, encoding)
        for type_, encoding in FORMS
    ),
    *(Column(name, "f", name.encode(), type_) for name, type_ in NESTED.items()),
)
"""A column of each type in each encoding, and of types with parts."""


def value_of(rng: Random, type_: ValueType) -> Any:
    """A random value of a type."""
    match type_:
        case ArrayType():
            return [_part_of(rng, type_.element) for _ in range(rng.randrange(3))]
        case RecordType():
            return {name: _part_of(rng, part) for name, part in type_.fields}
        case RangeType():
            sides = sorted({value_of(rng, type_.element) for _ in range(2)})
            return {"start": rng.choice([None, sides[0]]), "end": sides[1] if sides[1:] else None}
        case _:
            return _scalar_of(rng, type_)


def _scalar_of(rng: Random, type_: DataType) -> Any:
    edges: list[Any]
    match type_:
        case DataType.BOOL:
            return rng.random() < 0.5
        case DataType.INT64:
            return rng.choice([0, -1, 7, -(2**63), 2**63 - 1, rng.randrange(-(10**6), 10**6)])
        case DataType.FLOAT64:
            edges = [0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, 1e22, 1.5, -63.0]
            return rng.choice([*edges, rng.uniform(-1e3, 1e3), rng.gauss(0, 1) * 10**20])
        case DataType.NUMERIC:
            edges = ["0", "63.50", "9" * 29 + "." + "9" * 9, "-" + "9" * 29 + "." + "9" * 9]
            some = Decimal(rng.randrange(-(10**6), 10**6)).scaleb(-rng.randrange(6))
            return rng.choice([*map(Decimal, edges), some])
        case DataType.DATE:
            return date(1, 1, 1) + timedelta(days=rng.randrange(3_652_059))
        case DataType.BIGNUMERIC:
            edges = ["0", BIGNUMERIC_MAX, BIGNUMERIC_MIN, "63.5", "-0." + "0" * 37 + "1"]
            return rng.choice([*edges, str(rng.randrange(-(10**6), 10**6))])
        case DataType.TIME:
            edges = ["00:00:00.000000", "23:59:59.999999"]
            return rng.choice([*edges, f"{rng.randrange(10, 24)}:00:00.{rng.randrange(10)}00000"])
        case DataType.TIMESTAMP | DataType.DATETIME:
            some = rng.randrange(TIMESTAMP_MIN + 10**12, TIMESTAMP_MAX - 10**12)
            return rng.choice([0, -1, some, some - some % 10**6, some - some % 86_400_000_000])
        case DataType.BYTES:
            return rng.choice([b"", b"\x00\xff", b"1.50", bytes([rng.randrange(128, 256)])])
        case DataType.STRING:
            return rng.choice(["", "007", "1.50", "é", "it's"])
        case DataType.JSON:
            return rng.choice(["{}", ' {"a": 1.50}', "1.0", "null", "[1e1]"])


def _part_of(rng: Random, type_: ValueType) -> Any:
    return value_of(rng, type_) if rng.random() < 0.8 else None


def spellings(type_: ValueType, encoding: Encoding, value: Any) -> Iterator[bytes]:
    """The canonical bytes of a value, then others that are read as the same value."""
    written = write_value(type_, encoding, value)
    yield written
    text = written.decode("latin-1")
    sign, digits = ("-", text[1:]) if text[:1] == "-" else ("", text)
    if not isinstance(type_, DataType):
        yield f" {text}".encode("latin-1")
        yield json.dumps(json.loads(written), indent=1, sort_keys=True).encode() + b"\n"
        return
    match type_, encoding:
        case DataType.BOOL, Encoding.BINARY if value:
            yield b"\x01"
        case DataType.FLOAT64, Encoding.BINARY if math.isnan(value):
            yield from (bytes.fromhex("7ff8000000000001"), bytes.fromhex("fff8000000000000"))
        case DataType.INT64, Encoding.TEXT:
            yield f"{sign}00{digits}".encode()
            yield from [b"-0"] * (value == 0)
        case DataType.FLOAT64, Encoding.TEXT if math.isfinite(value):
            mantissa, e, exponent = digits.partition("e")
            zeros = "00" if "." in mantissa else ""
            yield f"{sign}0{mantissa}{zeros}{e}{exponent}".encode()
            yield f"{sign}{mantissa}E{exponent or '+00'}".encode()
        case DataType.NUMERIC | DataType.BIGNUMERIC, _:
            yield f"{sign}0{digits}".encode()
            yield f"{sign}{digits}{'' if '.' in digits else '.'}000".encode()
            yield from [b"-0", b"-0.0"] * (Decimal(value) == 0)
        case DataType.TIME | DataType.DATETIME, _:
            yield f"{text}999".encode()
            if text.endswith(".000000"):
                yield text[:-7].encode()
        case DataType.TIMESTAMP, Encoding.TEXT:
            yield f"{text[:-1]}999Z".encode()
            yield f"{text[:-1]}+00:00".encode()
            if value % 1_000_000 == 0:
                yield f"{text[:19]}Z".encode()
            west = write_value(type_, encoding, value - 5_400_000_000).decode()
            yield f"{west[:-1]}-01:30".encode()
        case _:
            pass


def spelled(rng: Random, type_: ValueType, encoding: Encoding) -> list[bytes]:
    """All known bytes of a random value, the canonical ones first."""
    return list(spellings(type_, encoding, value_of(rng, type_)))
