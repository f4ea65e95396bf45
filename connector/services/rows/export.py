"""Writes the rows of a table to a file that `connector load` and other programs read (OPR-3)."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from connector import warehouse as paths
from connector.errors.records import file_unwritable
from connector.records.json_view import to_line
from connector.services.read import TableRead
from connector.services.rows.files import FileFormat, format_of
from connector.services.rows.values import RowMaker, of_arrow
from connector.services.warehouses import warehouse_of
from connector.tables.column_names import UNMAPPED
from connector.tables.stored_definition import from_properties

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig

_AT_ONCE: Final = 10_000


@dataclass(frozen=True, slots=True)
class Exported:
    """The number of rows in the file. `unmapped` of them have cells without a column, which the
    file does not have.
    """

    rows: int
    unmapped: int


def export(
    config: ConnectorConfig,
    table: str,
    rows: TableRead,
    file: str | Path,
    *,
    file_format: str | None = None,
    on_rows: Callable[[int], None] = lambda rows: None,
) -> Exported:
    """Write the rows of a read to a file. The file appears when it is complete.

    For example: `with read(config, "orders", snapshot=True) as rows: export(config, "orders", rows,
    "orders.parquet")`.

    Args:
        config: It has the table.
        table: The name of the table.
        rows: The rows. None of them was read before.
        file: It is replaced if it exists.
        file_format: `csv`, `jsonl` or `parquet`. None: the end of the file name says it. A NULL is
            an empty field of CSV, and an empty text has quotes.
        on_rows: Receives the number of rows that were written so far.

    Returns:
        How many rows were written.

    Raises:
        TableError: The table cannot be read.
        ConnectorError: The file cannot be written, or its format is not known.
    """
    from connector.lake.plain_table import open_table

    path = Path(file)
    format_ = format_of(path, file_format)
    opened = open_table(paths.table(warehouse_of(config), table), table=table)
    definition, _ = from_properties(opened.properties)
    columns = tuple(column for column in definition.columns if column.name in rows.columns)
    counter = _Counter(rows, RowMaker(replace(definition, columns=columns), None), on_rows)
    write = {FileFormat.CSV: _csv, FileFormat.JSONL: _jsonl, FileFormat.PARQUET: _parquet}
    with _complete(path) as part:
        write[format_](part, counter)
    return Exported(counter.rows, counter.unmapped)


class _Counter:
    """The values of a read, in the order of `maker.names`, counted."""

    def __init__(self, read: TableRead, maker: RowMaker, on_rows: Callable[[int], None]) -> None:
        self.maker, self.rows, self.unmapped = maker, 0, 0
        self._read, self._on_rows = read, on_rows

    def chunks(self) -> Iterator[Sequence[Sequence[Any]]]:
        """The rows, in groups that fit into memory."""
        names = list(self._read.columns)
        indexes = [names.index(name) for name in self.maker.names]
        unmapped = names.index(UNMAPPED) if UNMAPPED in names else None
        while rows := list(islice(self._read.rows, _AT_ONCE)):
            self.rows += len(rows)
            self.unmapped += 0 if unmapped is None else sum(bool(row[unmapped]) for row in rows)
            yield [[row[index] for index in indexes] for row in rows]
            self._on_rows(self.rows)

    def views(self) -> Iterator[dict[str, Any]]:
        """The rows as JSON that `connector load` reads."""
        for rows in self.chunks():
            for row in rows:
                yield self.maker.view(row, of_arrow)


@contextmanager
def _complete(path: Path) -> Iterator[Path]:
    """A file beside `path`, which replaces it at the end of the block. Two exports of one name do
    not meet. Only a file is replaced, and a link stays.
    """
    path = Path(os.path.realpath(path))
    part = path.parent / f".{path.name}.{secrets.token_hex(4)}.part"
    try:
        if path.exists() and not path.is_file():
            raise FileExistsError("It exists, and is not a file")
        yield part
        os.replace(part, path)
    except OSError as error:
        raise file_unwritable(str(path), str(error)) from error
    finally:
        with suppress(OSError):  # it was not made, or is at its place
            part.unlink()


def _jsonl(part: Path, counter: _Counter) -> None:
    with part.open("w", encoding="utf-8") as file:
        file.writelines(f"{to_line(row)}\n" for row in counter.views())


def _csv(part: Path, counter: _Counter) -> None:
    with part.open("w", encoding="utf-8", newline="") as file:
        file.write(_line(counter.maker.names))
        file.writelines(_line(map(_text, row.values())) for row in counter.views())


def _line(fields: Iterable[str | None]) -> str:
    """A record of CSV in which each field with a value has quotes."""
    quoted = ("" if field is None else '"{}"'.format(field.replace('"', '""')) for field in fields)
    return f"{','.join(quoted)}\n"


def _text(value: Any) -> str | None:
    """The text of a field of CSV, from a value of JSON. None: it has no value."""
    match value:
        case None | str():
            return value
        case {"base64": text}:
            return f"base64:{text}"
        case bool() | list() | dict():
            return json.dumps(value, ensure_ascii=False)
        case _:
            return str(value)


def _parquet(part: Path, counter: _Counter) -> None:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    from connector.engine.values import arrow_type

    maker = counter.maker
    schema = pa.schema([(n, arrow_type(t)) for n, t in zip(maker.names, maker.types, strict=True)])

    def columns(rows: Iterable[Sequence[Any]]) -> list[Any]:
        values = zip(*rows, strict=True)
        return [
            pa.array(column, type=type_) for column, type_ in zip(values, schema.types, strict=True)
        ]

    with ParquetWriter(part, schema) as writer:
        for rows in counter.chunks():
            writer.write_batch(pa.record_batch(columns(rows), schema=schema))
