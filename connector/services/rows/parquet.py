"""Reads rows from Parquet files, in bounded memory (PUB-6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from connector.errors import ConnectorError, ErrorCode
from connector.services.rows.files import FileRow, RowFile, malformed, placed
from connector.services.rows.values import UNMAPPED_MISFIT
from connector.tables.column_names import UNMAPPED
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
    DataType.DATE: "a date",
    DataType.TIMESTAMP: "a timestamp with a time zone",
}


def parquet_columns(
    file: RowFile, names: Sequence[str], types: Sequence[DataType], key_names: Sequence[str]
) -> list[str]:
    """Return the names of the columns of a Parquet file.

    Raises `ConnectorError` if a column of the file cannot have values of the table's column.
    """
    with _opened(file) as parquet:
        schema = parquet.schema_arrow
    places = placed(file.path, schema.names, names, key_names)
    for name, type_, place in zip(names, types, places, strict=True):
        if place is None or _fits(type_, found := schema.field(place).type):
            continue
        stored = _stored_type(found)
        raise ConnectorError(
            ErrorCode.FILE_COLUMNS_UNSUITABLE,
            f"{file.path} has the column {name!r} as {found}"
            + ("" if stored == found else f", stored as {stored}"),
            f"The column of the table is {type_}, so it must be {_WANTED[type_]}",
            "Convert the column when you export the rows",
            path=str(file.path),
        )
    return list(schema.names)


def parquet_rows(
    file: RowFile, names: Sequence[str], types: Sequence[DataType], key_names: Sequence[str]
) -> Iterator[FileRow]:
    """Yield the rows of a Parquet file, with times as `of_arrow` takes them.

    Raises `ConnectorError` where the file is damaged.
    """
    number = 1
    with _opened(file) as parquet:
        places = placed(file.path, parquet.schema_arrow.names, names, key_names)
        wanted = [name for name, place in zip(names, places, strict=True) if place is not None]
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


def _values(type_: DataType, column: Any) -> list[Any]:
    """The values of an Arrow column. Times are integers, so that each year is possible."""
    import pyarrow as pa

    column = _stored_values(column)
    if pa.types.is_null(column.type):
        return [None] * len(column)
    if type_ is DataType.DATE:
        days = column if pa.types.is_date32(column.type) else column.cast(pa.date32())
        return list(days.cast(pa.int32()).to_pylist())
    if type_ is DataType.TIMESTAMP:
        per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[column.type.unit]
        counts = column.cast(pa.int64()).to_pylist()
        return [None if count is None else count * 10**6 // per_second for count in counts]
    return list(column.to_pylist())


def _stored_values(column: Any) -> Any:
    """The values of an Arrow column without its encoding and its extension type."""
    from pyarrow import BaseExtensionType
    from pyarrow import types as of

    if isinstance(column.type, BaseExtensionType):
        return _stored_values(column.storage)
    return _stored_values(column.dictionary_decode()) if of.is_dictionary(column.type) else column


def _stored_type(found: Any) -> Any:
    """The type of `_stored_values` of a column with this type."""
    from pyarrow import BaseExtensionType
    from pyarrow import types as of

    if isinstance(found, BaseExtensionType):
        return _stored_type(found.storage_type)
    return _stored_type(found.value_type) if of.is_dictionary(found) else found


def _fits(type_: DataType, found: Any) -> bool:
    from pyarrow import types as of

    found = _stored_type(found)
    is_text = of.is_string(found) or of.is_large_string(found) or of.is_string_view(found)
    is_bytes = (
        of.is_binary(found)
        or of.is_large_binary(found)
        or of.is_fixed_size_binary(found)
        or of.is_binary_view(found)
    )
    fits = {
        DataType.STRING: is_text,
        DataType.JSON: is_text,
        DataType.BYTES: is_bytes,
        DataType.BOOL: of.is_boolean(found),
        DataType.INT64: of.is_integer(found),
        DataType.FLOAT64: of.is_floating(found) or of.is_integer(found),
        DataType.NUMERIC: of.is_decimal(found) or of.is_integer(found),
        DataType.DATE: of.is_date(found),
        DataType.TIMESTAMP: of.is_timestamp(found) and found.tz is not None,
    }
    return of.is_null(found) or bool(fits[type_])


@contextmanager
def _opened(file: RowFile) -> Iterator[Any]:
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise ConnectorError(
            ErrorCode.EXTRA_MISSING,
            "lowmark cannot read Parquet files without the package pyarrow",
            str(error),
            "Install the package: pip install 'lowmark[load]'",
        ) from error
    with _explained(file, "the footer"):
        parquet = ParquetFile(file.path, pre_buffer=False)
    with parquet:
        yield parquet


@contextmanager
def _explained(file: RowFile, where: str) -> Iterator[None]:
    """Raise `ConnectorError` for the errors of pyarrow."""
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, OSError, ValueError) as error:
        cause = str(error).partition("\n")[0]
        raise malformed(file.path, where, f"it is not Parquet that can be read ({cause})") from None
