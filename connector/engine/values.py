r"""Converts the bytes of many cells to the values of their column: `tables.values.read_value` for
whole columns.

A form of a type has a *usual* text or size, which Arrow or numpy converts exactly as the definition
does. `read_value` converts every other value, once for each distinct one. So the pattern of a usual
text may be narrow, and must not be too wide. Patterns are those of RE2, and match the whole text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from connector.tables.definition import Column
from connector.tables.nested import ArrayType, RangeType, RecordType, ValueType
from connector.tables.values import (
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
    DataType,
    Encoding,
    Unreadable,
    read_value,
    write_value,
)

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]

_ARROW_TYPES: Final = {
    DataType.STRING: pa.string(),
    DataType.BYTES: pa.binary(),
    DataType.BOOL: pa.bool_(),
    DataType.INT64: pa.int64(),
    DataType.FLOAT64: pa.float64(),
    DataType.NUMERIC: pa.decimal128(38, 9),
    DataType.BIGNUMERIC: pa.string(),
    DataType.DATE: pa.date32(),
    DataType.DATETIME: pa.timestamp("us"),
    DataType.TIME: pa.string(),
    DataType.TIMESTAMP: pa.timestamp("us", "UTC"),
    DataType.JSON: pa.string(),
}
_DATE: Final = (
    r"[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_TIME: Final = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
_USUAL_TEXT: Final[Mapping[DataType, str]] = {
    DataType.INT64: r"-?[0-9]{1,18}",
    DataType.FLOAT64: r"-?[0-9]{1,17}(?:\.[0-9]{1,17})?(?:[eE][+-]?[0-9]{1,2})?",
    DataType.NUMERIC: r"-?[0-9]{1,28}(?:\.[0-9]{1,9})?",
    DataType.DATE: _DATE,
    DataType.DATETIME: rf"{_DATE}T{_TIME}(?:\.[0-9]{{1,6}})?",
    DataType.TIME: rf"{_TIME}\.[0-9]{{6}}",
    DataType.TIMESTAMP: rf"{_DATE}T{_TIME}(?:\.[0-9]{{1,6}})?Z",
}
_FIRST_DAY: Final = -719_162
_LAST_DAY: Final = 2_932_896


def arrow_type(type_: ValueType) -> pa.DataType:
    """The type of a column in a file, as Arrow has it."""
    match type_:
        case ArrayType():
            return pa.list_(arrow_type(type_.element))
        case RecordType():
            return pa.struct([(name, arrow_type(part)) for name, part in type_.fields])
        case RangeType():
            return arrow_type(type_.record)
        case _:
            return _ARROW_TYPES[type_]


def typed(column: Column, values: pa.Array) -> tuple[pa.Array, Numbers]:
    """The values of the bytes of a column, null for those that do not fit, and their indexes."""
    type_ = arrow_type(column.type)
    if column.type in (DataType.STRING, DataType.BYTES):
        try:
            return values.cast(type_), np.empty(0, np.int64)
        except pa.ArrowInvalid:  # some are no UTF-8
            pass
    usual = _usual(column, values, type_)
    if usual is None:
        return _one_by_one(column, values, type_)
    converted, is_usual = usual
    others = np.nonzero(~is_usual)[0]
    if not len(others):
        return converted, others
    read, misfits = _one_by_one(column, values.take(pa.array(others)), type_)
    at = np.arange(len(values))
    at[others] = len(values) + np.arange(len(others))
    return pa.concat_arrays([converted, read]).take(pa.array(at)), others[misfits]


def _one_by_one(column: Column, values: pa.Array, type_: pa.DataType) -> tuple[pa.Array, Numbers]:
    """As `typed`, each distinct value by the definition."""
    form, encoded = (column.type, column.encoding), values.dictionary_encode()
    read = [read_value(*form, value.as_py()) for value in encoded.dictionary]
    fits = [not isinstance(value, Unreadable) for value in read]
    read = [value if fit else None for value, fit in zip(read, fits, strict=True)]
    # A NUMERIC, also in a type with parts, may have any number of zeros at the end.
    if column.type is DataType.NUMERIC or not isinstance(column.type, DataType):
        read = [
            None if value is None else read_value(*form, write_value(*form, value))
            for value in read
        ]
    indexes = encoded.indices.to_numpy(zero_copy_only=False)
    misfits = np.nonzero(~np.array(fits, np.bool_)[indexes])[0]
    return pa.array(read, type_).take(encoded.indices), misfits


def _usual(column: Column, values: pa.Array, type_: pa.DataType) -> tuple[pa.Array, Flags] | None:
    """The values that are usual ones, and which they are. None: the form has no usual values."""
    if column.encoding is Encoding.BINARY:
        read = _BINARY.get(column.type) if isinstance(column.type, DataType) else None
        return None if read is None else _of_size(values, *read)
    if column.type is DataType.BOOL:
        is_true = pc.equal(values, b"true")
        return is_true, flags_of(pc.or_(is_true, pc.equal(values, b"false")))
    pattern = _USUAL_TEXT.get(column.type) if isinstance(column.type, DataType) else None
    if pattern is None:
        return None
    is_usual = pc.match_substring_regex(values, rf"\A(?:{pattern})\z")
    text = pc.if_else(is_usual, values, pa.scalar(None, values.type)).cast(pa.string())
    return text.cast(type_), flags_of(is_usual)


def _of_size(
    values: pa.Array, layout: str, convert: Callable[[NDArray[Any]], tuple[pa.Array, Flags]]
) -> tuple[pa.Array, Flags]:
    """The numbers of the values with the size of `layout`, and those that the type has."""
    size = np.dtype(layout).itemsize
    has_size = pc.equal(pc.binary_length(values), size)
    padded = pc.if_else(has_size, values, pa.scalar(bytes(size), values.type))
    content = padded.buffers()[2]
    start = np.frombuffer(padded.buffers()[1], np.int32, 1, padded.offset * 4)[0]
    numbers = np.frombuffer(content, layout, len(padded), int(start))
    read, is_value = convert(numbers)
    return read, is_value & flags_of(has_size)


def _bools(numbers: NDArray[Any]) -> tuple[pa.Array, Flags]:
    return pa.array(numbers != 0), np.isin(numbers, (0, 1, 0xFF))


def _between(least: int, most: int, type_: pa.DataType) -> Any:
    def read(numbers: NDArray[Any]) -> tuple[pa.Array, Flags]:
        is_value = (numbers >= least) & (numbers <= most)
        fitting = np.where(is_value, numbers, 0).astype(numbers.dtype.newbyteorder("="))
        return pa.array(fitting).cast(type_), is_value

    return read


def _all(numbers: NDArray[Any]) -> tuple[pa.Array, Flags]:
    return pa.array(numbers.astype(numbers.dtype.newbyteorder("="))), np.ones(
        len(numbers), np.bool_
    )


_BINARY: Final[Mapping[DataType, tuple[str, Callable[..., tuple[pa.Array, Flags]]]]] = {
    DataType.BOOL: ("u1", _bools),
    DataType.INT64: (">i8", _all),
    DataType.FLOAT64: (">f8", _all),
    DataType.DATE: (">i4", _between(_FIRST_DAY, _LAST_DAY, pa.date32())),
    DataType.TIMESTAMP: (
        ">i8",
        _between(TIMESTAMP_MIN, TIMESTAMP_MAX, _ARROW_TYPES[DataType.TIMESTAMP]),
    ),
}


def flags_of(array: pa.Array | pa.ChunkedArray) -> Flags:
    """The values of an array, or of a column, of booleans without nulls."""
    return np.asarray(array.to_numpy(zero_copy_only=False), np.bool_)
