"""Reads rows from Parquet files, in bounded memory (PUB-6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from connector.errors.records import file_columns_unsuitable, file_malformed
from connector.errors.settings import extra_missing
from connector.services.rows.files import FileRow, RowFile, column_indexes
from connector.services.rows.values import UNMAPPED_MISFIT
from connector.tables.column_names import UNMAPPED
from connector.tables.nested import ArrayType, RangeType, RecordType, ValueType
from connector.tables.values import DataType

ROWS_AT_ONCE: Final = 5_000
_WANTED: Final = {
    DataType.STRING: "text",
    DataType.JSON: "text",
    DataType.BYTES: "bytes",
    DataType.BOOL: "boolean",
    DataType.INT64: "an integer",
    DataType.FLOAT64: "a floating point number or an integer",
    DataType.NUMERIC: "a decimal or an integer",
    DataType.BIGNUMERIC: "a decimal, an integer or text",
    DataType.DATE: "a date",
    DataType.DATETIME: "a timestamp without a time zone",
    DataType.TIME: "a time or text",
    DataType.TIMESTAMP: "a timestamp with a time zone",
}


def parquet_columns(
    file: RowFile, names: Sequence[str], types: Sequence[ValueType], key_names: Sequence[str]
) -> list[str]:
    """Return the names of the columns of a Parquet file. Raises as `check_columns` does."""
    with _opened(file) as parquet:
        schema = parquet.schema_arrow
    check_columns(file.path, schema, names, types, key_names)
    return list(schema.names)


def check_columns(
    path: Path,
    schema: Any,
    names: Sequence[str],
    types: Sequence[ValueType],
    key_names: Sequence[str],
) -> None:
    """Raise `ConnectorError` if a column of an Arrow schema cannot have values of the table's
    column.
    """
    indexes = column_indexes(path, schema.names, names, key_names)
    for name, type_, index in zip(names, types, indexes, strict=True):
        if index is None or _fits(type_, arrow := schema.field(index).type):
            continue
        stored = _stored_type(arrow)
        problem = f"has the column {name!r} as {arrow}"
        problem += "" if stored == arrow else f", stored as {stored}"
        wanted = _WANTED[type_] if isinstance(type_, DataType) else "a list or struct of such parts"
        cause = f"The column of the table is {type_}, so it must be {wanted}"
        raise file_columns_unsuitable(str(path), problem, cause)


def parquet_rows(
    file: RowFile, names: Sequence[str], types: Sequence[ValueType], key_names: Sequence[str]
) -> Iterator[FileRow]:
    """Yield the rows of a Parquet file, with times as `of_arrow` takes them.

    Raises `ConnectorError` where the file is damaged.
    """
    number = 1
    with _opened(file) as parquet:
        indexes = column_indexes(file.path, parquet.schema_arrow.names, names, key_names)
        wanted = [name for name, index in zip(names, indexes, strict=True) if index is not None]
        has_unmapped = UNMAPPED in parquet.schema_arrow.names
        columns = [*wanted, UNMAPPED] if has_unmapped else wanted
        batches = parquet.iter_batches(ROWS_AT_ONCE, columns=columns, use_threads=False)
        while True:
            with _explained(file, f"the rows from {number} on"):
                batch = next(batches, None)
                if batch is None:
                    return
                values = [
                    _values(type_, batch.column(name)) if name in wanted else [None] * len(batch)
                    for name, type_ in zip(names, types, strict=True)
                ]
                unmapped = (
                    batch.column(UNMAPPED).to_pylist() if has_unmapped else [None] * len(batch)
                )
            for row, cells in zip(zip(*values, strict=True), unmapped, strict=True):
                yield FileRow(number, UNMAPPED_MISFIT if cells else row)
                number += 1


def _values(type_: ValueType, column: Any) -> list[Any]:
    """The values of an Arrow column. Times are integers, so that each year is possible."""
    import pyarrow as pa

    column = _stored_values(column)
    if pa.types.is_null(column.type):
        return [None] * len(column)
    if type_ is DataType.DATE:
        days = column if pa.types.is_date32(column.type) else column.cast(pa.date32())
        return list(days.cast(pa.int32()).to_pylist())
    if type_ in (DataType.TIMESTAMP, DataType.DATETIME):
        per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[column.type.unit]
        counts = column.cast(pa.int64()).to_pylist()
        return [None if count is None else count * 10**6 // per_second for count in counts]
    return list(column.to_pylist())


def _stored_values(column: Any) -> Any:
    """The values of an Arrow column without its encoding and its extension type."""
    from pyarrow import BaseExtensionType
    from pyarrow import types as arrow_types

    if isinstance(column.type, BaseExtensionType):
        return _stored_values(column.storage)
    return (
        _stored_values(column.dictionary_decode())
        if arrow_types.is_dictionary(column.type)
        else column
    )


def _stored_type(arrow: Any) -> Any:
    from pyarrow import BaseExtensionType
    from pyarrow import types as arrow_types

    if isinstance(arrow, BaseExtensionType):
        return _stored_type(arrow.storage_type)
    return _stored_type(arrow.value_type) if arrow_types.is_dictionary(arrow) else arrow


def _fits(type_: ValueType, arrow: Any) -> bool:
    from pyarrow import types as arrow_types

    arrow = _stored_type(arrow)
    if not isinstance(type_, DataType):
        return arrow_types.is_null(arrow) or _parts_fit(type_, arrow)
    is_text = (
        arrow_types.is_string(arrow)
        or arrow_types.is_large_string(arrow)
        or arrow_types.is_string_view(arrow)
    )
    is_bytes = (
        arrow_types.is_binary(arrow)
        or arrow_types.is_large_binary(arrow)
        or arrow_types.is_fixed_size_binary(arrow)
        or arrow_types.is_binary_view(arrow)
    )
    fits = {
        DataType.STRING: is_text,
        DataType.JSON: is_text,
        DataType.BYTES: is_bytes,
        DataType.BOOL: arrow_types.is_boolean(arrow),
        DataType.INT64: arrow_types.is_integer(arrow),
        DataType.FLOAT64: arrow_types.is_floating(arrow) or arrow_types.is_integer(arrow),
        DataType.NUMERIC: arrow_types.is_decimal(arrow) or arrow_types.is_integer(arrow),
        DataType.BIGNUMERIC: is_text
        or arrow_types.is_decimal(arrow)
        or arrow_types.is_integer(arrow),
        DataType.DATE: arrow_types.is_date(arrow),
        DataType.DATETIME: arrow_types.is_timestamp(arrow) and arrow.tz is None,
        DataType.TIME: is_text or arrow_types.is_time(arrow),
        DataType.TIMESTAMP: arrow_types.is_timestamp(arrow) and arrow.tz is not None,
    }
    return arrow_types.is_null(arrow) or bool(fits[type_])


def _parts_fit(type_: ArrayType | RecordType | RangeType, arrow: Any) -> bool:
    from pyarrow import types as arrow_types

    if isinstance(type_, ArrayType):
        is_list = arrow_types.is_list(arrow) or arrow_types.is_large_list(arrow)
        return is_list and _fits(type_.element, arrow.value_type)
    parts = dict(type_.record.fields if isinstance(type_, RangeType) else type_.fields)
    return arrow_types.is_struct(arrow) and all(
        field.name in parts and _fits(parts[field.name], field.type) for field in arrow
    )


@contextmanager
def _opened(file: RowFile) -> Iterator[Any]:
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise extra_missing("pyarrow", "load") from error
    with _explained(file, "the footer"):
        parquet = ParquetFile(file.path, pre_buffer=False)
    with parquet:
        yield parquet


@contextmanager
def _explained(file: RowFile, location: str) -> Iterator[None]:
    """Raise `ConnectorError` for the errors of pyarrow."""
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, OSError, ValueError) as error:
        cause = str(error).partition("\n")[0]
        problem = f"it is not Parquet that can be read ({cause})"
        raise file_malformed(str(file.path), location, problem) from None
