"""Files of rows: their formats, their contents, and the readers of text formats (PUB-6)."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from connector.errors.records import (
    file_changed,
    file_columns_unsuitable,
    file_format_unknown,
    file_malformed,
    file_unreadable,
)
from connector.services.rows.values import UNMAPPED_MISFIT, Misfit
from connector.tables.column_names import UNMAPPED
from connector.tables.nested import ValueType
from connector.text import nearest, one_of

MAX_LINE_BYTES: Final = 64 * 1024 * 1024
_MAX_INTEGER_LENGTH: Final = 20
_BLOCK_BYTES: Final = 1024 * 1024
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_written_fields = re.compile(r'("(?:[^"]|"")*"|[^,]*)(?:,|\Z)').finditer


class FileFormat(StrEnum):
    CSV = "csv"
    JSONL = "jsonl"
    PARQUET = "parquet"


_FORMATS: Final = {
    ".csv": FileFormat.CSV,
    ".json": FileFormat.JSONL,
    ".jsonl": FileFormat.JSONL,
    ".ndjson": FileFormat.JSONL,
    ".parquet": FileFormat.PARQUET,
    ".pq": FileFormat.PARQUET,
}


@dataclass(frozen=True, slots=True)
class RowFile:
    """A file of rows, with its size, the time of its last change (ns) and its digest."""

    path: Path
    format: FileFormat
    size: int
    changed_at: int
    digest: str


class FileRow(NamedTuple):
    """A row of a file, with the number of its line, or in Parquet of the row, counted from 1.

    `values` are those of the columns of the table in their order. None: there is no value.
    """

    number: int
    values: Sequence[object] | Misfit


def format_of(path: Path, file_format: str | None) -> FileFormat:
    """Return the format of a file: the given one, or that of its name. Raises `ConnectorError`."""
    format_ = _FORMATS.get(path.suffix.lower()) if file_format is None else file_format
    if format_ not in list(FileFormat):
        cause = f"Its name does not end with one of {one_of(_FORMATS)}"
        raise file_format_unknown(str(path), cause, one_of(FileFormat))
    return FileFormat(format_)


def describe_file(path: Path, file_format: str | None) -> RowFile:
    """Read a file once for its digest. `file_format` None: the name of the file says it.

    Raises `ConnectorError` if the format is not known or the file cannot be read.
    """
    file_format = format_of(path, file_format)
    digest = hashlib.blake2b(digest_size=16)
    try:
        if stat.S_IFMT(path.stat().st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
            raise file_unreadable(
                str(path), "It is a pipe or a device, and a file is read more than once"
            )
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
            facts = path.stat()
    except (OSError, ValueError) as error:  # also a path that no file can have
        raise file_unreadable(str(path), str(error)) from None
    return RowFile(path, file_format, facts.st_size, facts.st_mtime_ns, digest.hexdigest())


def file_columns(
    file: RowFile, names: Sequence[str], types: Sequence[ValueType], key_names: Sequence[str]
) -> list[str] | None:
    """Return the columns that a file has. None: each row has its own.

    Raises `ConnectorError` if the table does not have one of them, or a key column is missing.
    """
    if file.format is FileFormat.JSONL:
        return None
    if file.format is FileFormat.CSV:
        columns = csv_columns(file)
        column_indexes(file.path, columns, names, key_names)
        return columns
    from connector.services.rows.parquet import parquet_columns

    return parquet_columns(file, names, types, key_names)


def file_rows(
    file: RowFile,
    names: Sequence[str],
    types: Sequence[ValueType],
    key_names: Sequence[str],
    null: str,
) -> Iterator[FileRow]:
    """Yield the rows of a file. `null` is the text of a CSV field without a value."""
    if file.format is FileFormat.CSV:
        return csv_rows(file, names, key_names, null)
    if file.format is FileFormat.JSONL:
        return json_rows(file, names)
    from connector.services.rows.parquet import parquet_rows

    return parquet_rows(file, names, types, key_names)


def check_unchanged(file: RowFile) -> None:
    """Raise `ConnectorError` if a file was changed since it was described."""
    try:
        facts = file.path.stat()
    except OSError as error:
        raise file_unreadable(str(file.path), str(error)) from None
    if (facts.st_size, facts.st_mtime_ns) != (file.size, file.changed_at):
        raise file_changed(str(file.path))


def column_indexes(
    path: Path, columns: Sequence[str], names: Sequence[str], key_names: Sequence[str]
) -> list[int | None]:
    """Return the index in the file of each column of the table. None: the file does not have it.

    Raises `ConnectorError` if a column is repeated or not one of the table, or a key column is
    missing.
    """
    problem = hint = ""
    if repeated := sorted({name for name in columns if list(columns).count(name) > 1}):
        problem = f"has the column {repeated[0]!r} more than once"
    elif unknown := [name for name in columns if name not in names and name != UNMAPPED]:
        problem = f"has the column {unknown[0]!r}, which the table does not have"
        hint = nearest(unknown[0], names)
    elif missing := [name for name in key_names if name not in columns]:
        problem = f"does not have the key column {missing[0]!r}"
    if problem:
        cause = ". ".join(filter(None, [hint, f"The columns of the table are {', '.join(names)}"]))
        raise file_columns_unsuitable(str(path), problem, cause)
    indexes = {name: index for index, name in enumerate(columns)}
    return [indexes.get(name) for name in names]


def csv_columns(file: RowFile) -> list[str]:
    """Return the column names in the first record of a CSV file."""
    with _opened(file) as opened:
        header = next(_records(file, opened), _NO_RECORD).fields
    if not header:
        raise file_malformed(str(file.path), "line 1", "there are no column names")
    return header


def csv_rows(
    file: RowFile, names: Sequence[str], key_names: Sequence[str], null: str
) -> Iterator[FileRow]:
    """Yield the rows of a CSV file (RFC 4180) as text. A field without quotes that equals `null`
    has no value. A field in quotes is text, also the empty one, as in PostgreSQL's COPY.

    Raises `ConnectorError` at a record that is not CSV, not UTF-8, or has another number of fields
    than the header.
    """
    with _opened(file) as opened:
        records = _records(file, opened)
        header = next(records, _NO_RECORD).fields
        indexes = column_indexes(file.path, header, names, key_names)
        unmapped = header.index(UNMAPPED) if UNMAPPED in header else None
        for record in records:
            if len(record.fields) != len(header):
                cause = (
                    f"there are {len(record.fields)} fields, but the first line names {len(header)}"
                )
                raise file_malformed(str(file.path), f"line {record.number}", cause)
            fields = _values(record, null)
            row: Sequence[object] | Misfit = UNMAPPED_MISFIT
            if unmapped is None or not fields[unmapped]:
                row = [None if index is None else fields[index] for index in indexes]
            yield FileRow(record.number, row)


class _Record(NamedTuple):
    """A record of a CSV file: the number of its first line, its fields, and the text of all."""

    number: int
    fields: list[str]
    text: str


_NO_RECORD: Final = _Record(1, [], "")


def _values(record: _Record, null: str) -> Sequence[str | None]:
    """The fields of a record. None: the field equals `null` and has no quotes."""
    if null not in record.fields:
        return record.fields
    if '"' not in record.text:
        return [None if field == null else field for field in record.fields]
    written = _written_fields(record.text.rstrip("\r\n"))
    return [
        None if field == null and not match[0].startswith('"') else field
        for field, match in zip(record.fields, written, strict=False)
    ]


def _records(file: RowFile, opened: IO[bytes]) -> Iterator[_Record]:
    csv.field_size_limit(MAX_LINE_BYTES)
    lines: list[str] = []

    def read() -> Iterator[str]:
        for _, line in _lines(file, opened):
            lines.append(line)
            yield line

    reader = csv.reader(read(), strict=True)
    while True:
        first = reader.line_num + 1
        lines.clear()
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise file_malformed(
                str(file.path), f"line {first}", f"it is not CSV ({error})"
            ) from None
        if fields:
            yield _Record(first, fields, "".join(lines))


class _RepeatedError(Exception):
    """An object has a member twice."""


def json_rows(file: RowFile, names: Sequence[str]) -> Iterator[FileRow]:
    """Yield the rows of a file with one JSON object a line. A member that is null or absent has no
    value.

    Raises `ConnectorError` at a line that is not a JSON object in UTF-8.
    """
    columns = frozenset(names)
    with _opened(file) as opened:
        for number, line in _lines(file, opened):
            if text := line.strip():
                yield FileRow(number, _object(file, number, text, names, columns))


def _object(
    file: RowFile, number: int, text: str, names: Sequence[str], columns: frozenset[str]
) -> Sequence[object] | Misfit:
    try:
        members = json.loads(
            text,
            parse_int=_integer,
            parse_float=Decimal,
            parse_constant=_no_constant,
            object_pairs_hook=_without_repetition,
        )
    except _RepeatedError as error:
        return Misfit(str(error), "the name is there more than once")
    except (ValueError, RecursionError) as error:
        raise file_malformed(
            str(file.path), f"line {number}", f"it is not JSON ({error})"
        ) from None
    if not isinstance(members, dict):
        raise file_malformed(str(file.path), f"line {number}", "it is not a JSON object")
    if members.pop(UNMAPPED, None):
        return UNMAPPED_MISFIT
    if not members.keys() <= columns:
        name = next(name for name in members if name not in columns)
        hint = nearest(name, names)
        return Misfit(name, "the table has no such column" + (f"; {hint}" if hint else ""))
    return [members.get(name) for name in names]


def _integer(digits: str) -> int | Decimal:
    """Others could take long to convert, and no type has them as integers."""
    return int(digits) if len(digits) <= _MAX_INTEGER_LENGTH else Decimal(digits)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number; write it as text")


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        raise _RepeatedError(next(name for name in names if names.count(name) > 1))
    return members


def _opened(file: RowFile) -> IO[bytes]:
    try:
        return file.path.open("rb")
    except OSError as error:
        raise file_unreadable(str(file.path), str(error)) from None


def _lines(file: RowFile, opened: IO[bytes]) -> Iterable[tuple[int, str]]:
    """The lines with their numbers and ends, without a byte order mark."""
    number = 0
    while line := opened.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            cause = f"it has more than {MAX_LINE_BYTES:,} bytes"
            raise file_malformed(str(file.path), f"line {number}", cause)
        if number == 1:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        try:
            yield number, line.decode()
        except UnicodeDecodeError as error:
            cause = f"byte {error.start + 1} is not UTF-8"
            raise file_malformed(str(file.path), f"line {number}", cause) from None
