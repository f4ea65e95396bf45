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

from connector.errors import ConnectorError, ErrorCode
from connector.services.rows.values import UNMAPPED_MISFIT, Misfit
from connector.tables.column_names import UNMAPPED
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


def describe_file(path: Path, file_format: FileFormat | None) -> RowFile:
    """Read a file once for its digest. `file_format` None: the name of the file says it.

    Raises `ConnectorError` if the format is not known or the file cannot be read.
    """
    found = file_format or _FORMATS.get(path.suffix.lower())
    if found is None:
        raise ConnectorError(
            ErrorCode.FILE_FORMAT_UNKNOWN,
            f"The format of {path} is not known",
            f"Its name does not end with one of {one_of(_FORMATS)}",
            f"Name the format: one of {one_of(FileFormat)}",
            path=str(path),
        )
    digest = hashlib.blake2b(digest_size=16)
    try:
        if stat.S_IFMT(path.stat().st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
            raise unreadable(path, "It is a pipe or a device, and a file is read more than once")
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
            facts = path.stat()
    except (OSError, ValueError) as error:  # also a path that no file can have
        raise unreadable(path, str(error)) from None
    return RowFile(path, found, facts.st_size, facts.st_mtime_ns, digest.hexdigest())


def check_unchanged(file: RowFile) -> None:
    """Raise `ConnectorError` if a file was changed since it was described."""
    try:
        facts = file.path.stat()
    except OSError as error:
        raise unreadable(file.path, str(error)) from None
    if (facts.st_size, facts.st_mtime_ns) != (file.size, file.changed_at):
        raise ConnectorError(
            ErrorCode.FILE_CHANGED,
            f"{file.path} was changed while it was loaded",
            "Some of its rows may be from before the change and others from after it. Nothing was"
            " committed",
            "Load the file again once it is complete",
            path=str(file.path),
        )


def unreadable(path: Path, cause: str) -> ConnectorError:
    return ConnectorError(
        ErrorCode.FILE_UNREADABLE,
        f"{path} cannot be read",
        cause,
        "Check that it is a file, and that you can read it",
        path=str(path),
    )


def malformed(path: Path, where: str, cause: str) -> ConnectorError:
    """The error for a place of a file, for example `line 7`, that its format does not allow."""
    return ConnectorError(
        ErrorCode.FILE_MALFORMED,
        f"{path}, {where}: {cause}",
        "The rows after this place cannot be told apart. Nothing was committed",
        "Correct the file, or export it again, then load it again",
        path=str(path),
    )


def placed(
    path: Path, found: Sequence[str], names: Sequence[str], key_names: Sequence[str]
) -> list[int | None]:
    """Return the place in the file of each column of the table. None: the file does not have it.

    Raises `ConnectorError` if a column is repeated or not one of the table, or a key column is
    missing.
    """
    problem = hint = ""
    if repeated := sorted({name for name in found if list(found).count(name) > 1}):
        problem = f"has the column {repeated[0]!r} more than once"
    elif unknown := [name for name in found if name not in names and name != UNMAPPED]:
        problem = f"has the column {unknown[0]!r}, which the table does not have"
        hint = nearest(unknown[0], names)
    elif missing := [name for name in key_names if name not in found]:
        problem = f"does not have the key column {missing[0]!r}"
    if problem:
        raise ConnectorError(
            ErrorCode.FILE_COLUMNS_UNSUITABLE,
            f"{path} {problem}",
            ". ".join(filter(None, [hint, f"The columns of the table are {', '.join(names)}"])),
            "Export the rows with the column names of the table",
            path=str(path),
        )
    places = {name: place for place, name in enumerate(found)}
    return [places.get(name) for name in names]


# ── CSV ───────────────────────────────────────────────────────────────────────────────────────────


def csv_columns(file: RowFile) -> list[str]:
    """Return the column names in the first record of a CSV file."""
    with _opened(file) as opened:
        header = next(_records(file, opened), _NO_RECORD).fields
    if not header:
        raise malformed(file.path, "line 1", "there are no column names")
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
        places = placed(file.path, header, names, key_names)
        unmapped = header.index(UNMAPPED) if UNMAPPED in header else None
        for record in records:
            if len(record.fields) != len(header):
                cause = (
                    f"there are {len(record.fields)} fields, but the first line names {len(header)}"
                )
                raise malformed(file.path, f"line {record.number}", cause)
            found = _values(record, null)
            if unmapped is not None and found[unmapped]:
                yield FileRow(record.number, UNMAPPED_MISFIT)
            else:
                yield FileRow(
                    record.number, [None if place is None else found[place] for place in places]
                )


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
    """The records of a CSV file that are not empty."""
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
            raise malformed(file.path, f"line {first}", f"it is not CSV ({error})") from None
        if fields:
            yield _Record(first, fields, "".join(lines))


# ── JSON lines ────────────────────────────────────────────────────────────────────────────────────


class _RepeatedError(Exception):
    """An object has a member twice."""


def json_rows(file: RowFile, names: Sequence[str]) -> Iterator[FileRow]:
    """Yield the rows of a file with one JSON object a line. A member that is null or absent has no
    value.

    Raises `ConnectorError` at a line that is not a JSON object in UTF-8.
    """
    known = frozenset(names)
    with _opened(file) as opened:
        for number, line in _lines(file, opened):
            if text := line.strip():
                yield FileRow(number, _object(file, number, text, names, known))


def _object(
    file: RowFile, number: int, text: str, names: Sequence[str], known: frozenset[str]
) -> Sequence[object] | Misfit:
    try:
        found = json.loads(
            text,
            parse_int=_integer,
            parse_float=Decimal,
            parse_constant=_no_constant,
            object_pairs_hook=_members,
        )
    except _RepeatedError as error:
        return Misfit(str(error), "the name is there more than once")
    except (ValueError, RecursionError) as error:
        raise malformed(file.path, f"line {number}", f"it is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise malformed(file.path, f"line {number}", "it is not a JSON object")
    if found.pop(UNMAPPED, None):
        return UNMAPPED_MISFIT
    if not found.keys() <= known:
        name = next(name for name in found if name not in known)
        hint = nearest(name, names)
        return Misfit(name, "the table has no such column" + (f"; {hint}" if hint else ""))
    return [found.get(name) for name in names]


def _integer(digits: str) -> int | Decimal:
    """Others could take long to convert, and no type has them as integers."""
    return int(digits) if len(digits) <= _MAX_INTEGER_LENGTH else Decimal(digits)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number; write it as text")


def _members(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) != len(members):
        names = [name for name, _ in members]
        raise _RepeatedError(next(name for name in names if names.count(name) > 1))
    return found


# ── lines ─────────────────────────────────────────────────────────────────────────────────────────


def _opened(file: RowFile) -> IO[bytes]:
    try:
        return file.path.open("rb")
    except OSError as error:
        raise unreadable(file.path, str(error)) from None


def _lines(file: RowFile, opened: IO[bytes]) -> Iterable[tuple[int, str]]:
    """The lines with their numbers and ends, without a byte order mark."""
    number = 0
    while line := opened.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            cause = f"it has more than {MAX_LINE_BYTES:,} bytes"
            raise malformed(file.path, f"line {number}", cause)
        if number == 1:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        try:
            yield number, line.decode()
        except UnicodeDecodeError as error:
            cause = f"byte {error.start + 1} is not UTF-8"
            raise malformed(file.path, f"line {number}", cause) from None
