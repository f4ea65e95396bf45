"""The definition of a table: its source table, key, columns and options (TBL-7, TBL-8).

The constructors check the definition, so a table can be created from every definition. Several
tables may have the same source table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from connector.errors import ConfigError, ErrorCode
from connector.records.field_types import check_arguments
from connector.records.model import FAMILY_PATTERN, MAX_QUALIFIER_BYTES, TABLE_PATTERN
from connector.records.ordering import OrderBy
from connector.tables.column_names import (
    BOOKKEEPING,
    UNMAPPED,
    check_column_name,
    check_distinct,
    is_name,
    unmapped_name,
)
from connector.tables.keys import Key
from connector.tables.values import TEXT_ONLY, DataType, Encoding

MAX_COLUMNS: Final = 2_000
MAX_BUCKETS: Final = 4096
_is_family = re.compile(FAMILY_PATTERN).fullmatch
_is_table_name = re.compile(TABLE_PATTERN).fullmatch


class Versions(StrEnum):
    """Whether a cell of a row is a column (`latest`), or a column at one cell timestamp (`all`).

    See `connector.tables.merge`.
    """

    LATEST = "latest"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Column:
    """A typed column, and the cell that it shows.

    - `name` is a letter and then letters, digits and `_`, at most 300 characters.
    - `family` and `qualifier` name the cell in the source.
    - `type` is the type of the values.
    - `encoding` is `TEXT` or `BINARY`. NUMERIC and JSON have no binary form.

    Raises:
        ConfigError: The name, the family, the qualifier or the encoding is not allowed (TBL-8).
    """

    name: str
    family: str
    qualifier: bytes
    type: DataType
    encoding: Encoding = Encoding.TEXT

    def __post_init__(self) -> None:
        check_arguments(self)
        check_column_name("column", self.name)
        if not _is_family(self.family):
            raise ConfigError(
                ErrorCode.COLUMN_FAMILY_INVALID,
                f"Column {self.name} has the family {self.family!r}",
                "A family has 1 to 64 of the characters - _ . a-z A-Z 0-9",
                "Use the name that the family has in the source",
            )
        if len(self.qualifier) > MAX_QUALIFIER_BYTES:
            cause = f"A qualifier has at most {MAX_QUALIFIER_BYTES} bytes"
            problem = f"Column {self.name} has a qualifier of {len(self.qualifier)} bytes"
            raise ConfigError(
                ErrorCode.COLUMN_QUALIFIER_INVALID,
                problem,
                cause,
                "Use the name that the qualifier has in the source",
            )
        if self.encoding is Encoding.BINARY and self.type in TEXT_ONLY:
            remedy = 'Set encoding = "text", or type = "BYTES"'
            raise ConfigError(
                ErrorCode.COLUMN_ENCODING_INVALID,
                f"Column {self.name} has the type {self.type} and a binary encoding",
                f"{self.type} has no binary form",
                remedy,
            )

    @property
    def cell(self) -> tuple[str, bytes]:
        """The family and the qualifier."""
        return (self.family, self.qualifier)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDefinition:
    """A declared table.

    - `source` is the name of the table in the change records.
    - `key` has the key columns, and `columns` the other columns.
    - `order` says which change is newer.
    - `max_staleness_s` is the declared `max_staleness`. With None or 0, every read is a fresh read.
    - `apply_every_s` is the time between two applies. With None, it is half of `max_staleness_s`
      (JOB-2).
    - `keep_unmapped` keeps cells that no column shows.
    - `deletion_vectors` allows the table to use them.
    - `block_rows`: a dead letter blocks the later changes of its row.
    - `buckets` is a power of two up to `MAX_BUCKETS`: the number of parts by hash of the key. An
      apply rewrites the parts one by one. For an existing table, it takes effect at the next
      rebuild (SCL-6).

    Raises:
        ConfigError: A value is not allowed, two columns have the same name or cell, or there are
            too many columns (TBL-8).
    """

    name: str
    stream: str
    source: str
    key: Key
    columns: tuple[Column, ...] = ()
    order: OrderBy = OrderBy.COMMIT
    versions: Versions = Versions.LATEST
    max_staleness_s: int | None = None
    apply_every_s: int | None = None
    keep_unmapped: bool = True
    deletion_vectors: bool = True
    block_rows: bool = False
    buckets: int = 1

    def __post_init__(self) -> None:
        check_arguments(self)
        for what, name in (
            ("A table", self.name),
            (f"The stream of tables.{self.name}", self.stream),
        ):
            if not is_name(name):
                cause = (
                    "Names have 1 to 128 of the characters - _ a-z A-Z 0-9, with a letter or a"
                    " digit at both ends"
                )
                raise ConfigError(
                    ErrorCode.NAME_INVALID,
                    f"{what} has the name {name!r}",
                    cause,
                    "Choose another name",
                )
        where = f"tables.{self.name}"
        if not _is_table_name(self.source):
            cause = "A source table has a name of 1 to 128 of the characters - _ . a-z A-Z 0-9"
            raise ConfigError(
                ErrorCode.SOURCE_TABLE_INVALID,
                f"{where}.source is {self.source!r}",
                cause,
                "Use the name that the change records have",
            )
        if self.max_staleness_s is not None and self.max_staleness_s < 0:
            cause = "A bound cannot be negative"
            raise ConfigError(
                ErrorCode.SETTING_INVALID,
                f"{where}.max_staleness is {self.max_staleness_s} s",
                cause,
                "Remove the setting, or set it to 10m, for example",
            )
        if self.apply_every_s is not None and self.apply_every_s < 1:
            cause = "The shortest time between two applies is 1 s"
            raise ConfigError(
                ErrorCode.SETTING_INVALID,
                f"{where}.apply_every is {self.apply_every_s} s",
                cause,
                "Remove the setting, or set it to 1h, for example",
            )
        if not 1 <= self.buckets <= MAX_BUCKETS or self.buckets.bit_count() != 1:
            cause = f"The number must be a power of two from 1 to {MAX_BUCKETS}"
            raise ConfigError(
                ErrorCode.SETTING_INVALID,
                f"{where}.buckets is {self.buckets}",
                cause,
                "Remove the setting for a table below 256 MB. 16 buckets fit a few gigabytes",
            )
        count = len(self.key.parts) + len(self.columns)
        if count > MAX_COLUMNS:
            cause = f"A table has at most {MAX_COLUMNS} columns, including key columns"
            raise ConfigError(
                ErrorCode.COLUMNS_TOO_MANY,
                f"{where} has {count} columns",
                cause,
                "Remove some columns. Their cells are then kept unmapped",
            )
        check_distinct(
            f"columns of {where}",
            (*(part.name for part in self.key.parts), *(column.name for column in self.columns)),
        )
        if not self.columns and not self.keep_unmapped:
            cause = "Such a table never has a row"
            raise ConfigError(
                ErrorCode.COLUMNS_MISSING,
                f"{where} has no columns and keep_unmapped = false",
                cause,
                "Declare columns, or remove keep_unmapped",
            )
        self._check_cells(where)

    def _check_cells(self, where: str) -> None:
        shown_by: dict[tuple[str, bytes], str] = {}
        for column in self.columns:
            if column.cell in shown_by:
                raise ConfigError(
                    ErrorCode.COLUMN_REPEATED,
                    f"{where}.columns: {shown_by[column.cell]} and {column.name} both show the cell"
                    f" {unmapped_name(*column.cell)}",
                    "Only one column can show a cell",
                    "Remove one of them, or declare a second table on the same source",
                )
            shown_by[column.cell] = column.name


def column_type(text: str) -> DataType:
    """Return the type with this name, in upper or lower case. Raises `ConfigError` for an unknown
    name (TBL-8).
    """
    try:
        return DataType(text.upper())
    except ValueError:
        raise ConfigError(
            ErrorCode.TYPE_UNKNOWN,
            f"The type {text!r} is unknown",
            f"The types are {', '.join(DataType)}",
            "Use one of these types",
        ) from None


def column_names(definition: TableDefinition) -> tuple[str, ...]:
    """Return all columns in their order on disk. The internal columns of `BOOKKEEPING` are last
    (TBL-22).
    """
    return (
        *(part.name for part in definition.key.parts),
        *(column.name for column in definition.columns),
        UNMAPPED,
        *BOOKKEEPING,
    )
