"""The definition of a table: its source table, key, columns and options (TBL-7, TBL-8).

The constructors check the definition, so a table can be created from every definition. Several
tables may have the same source table. `check_compatible` compares a definition with that of an
existing table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Final

from connector.errors import ConfigError
from connector.errors.definitions import (
    cell_of_mark,
    cell_repeated,
    column_default_invalid,
    column_encoding_invalid,
    columns_too_many,
    definition_different,
    source_name_invalid,
)
from connector.errors.settings import name_invalid, setting_invalid
from connector.records.field_types import Between, check_ranges
from connector.records.model import FAMILY_PATTERN, MAX_QUALIFIER_BYTES, TABLE_PATTERN
from connector.records.ordering import OrderBy
from connector.tables.column_names import (
    BOOKKEEPING,
    UNMAPPED,
    is_name,
    name_fault,
    repeated_names,
    unmapped_name,
)
from connector.tables.keys import Key, KeyForm
from connector.tables.nested import ValueType
from connector.tables.presence import DEFAULT_FAMILY, PRESENCE_QUALIFIER
from connector.tables.values import BINARY_TYPES, DataType, Encoding, Unreadable, read_value

MAX_COLUMNS: Final = 2_000
MAX_BUCKETS: Final = 4096
_NAME: Final = "of the characters - _ . a-z A-Z 0-9"
_is_family = re.compile(FAMILY_PATTERN).fullmatch
_is_table_name = re.compile(TABLE_PATTERN).fullmatch


class Versions(StrEnum):
    """Whether a cell of a row is a column (`latest`), or a column at one cell timestamp (`all`).

    See `connector.tables.merge`.
    """

    LATEST = "latest"
    ALL = "all"


class OnUnreadable(StrEnum):
    """How a table takes a change with a value that a column cannot hold (TBL-9, EVO-11).

    - `letter`: the change is a dead letter of the table.
    - `null`: the column is NULL, the value stays in `_unmapped`, and the change is applied.
    """

    LETTER = "letter"
    NULL = "null"


@dataclass(frozen=True, slots=True)
class Column:
    """A typed column, and the cell that it shows.

    - `name` is a letter and then letters, digits and `_`, at most 300 characters.
    - `family` and `qualifier` name the cell in the source.
    - `type` is the type of the values.
    - `encoding` is `TEXT` or `BINARY`. Only the types of `BINARY_TYPES` have a binary form.
    - `on_unreadable` is for values that the type cannot hold. None: as the table says.
    - `required`: a writer of rows refuses a row without a value.
    - `default` is the value that a writer of rows gives to a field that a row lacks, as text in the
      form of the type, whatever the encoding. None: NULL.

    `required` and `default` are for writers (EVO-4). A table takes every change, and they may
    differ from those of an existing table.

    Raises:
        ConfigError: The name, the family, the qualifier, the encoding or the default is not allowed
            (TBL-8).
    """

    name: str
    family: str
    qualifier: bytes
    type: ValueType
    encoding: Encoding = Encoding.TEXT
    required: bool = False
    default: str | None = None
    on_unreadable: OnUnreadable | None = None

    def __post_init__(self) -> None:
        for fault in column_faults(
            self.name, self.family, self.qualifier, self.type, self.encoding, self.default
        ):
            raise fault

    @property
    def cell(self) -> tuple[str, bytes]:
        """The family and the qualifier."""
        return (self.family, self.qualifier)

    @property
    def stored(self) -> Column:
        """The column without what may change at any time."""
        return replace(self, required=False, default=None, on_unreadable=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDefinition:
    """A declared table.

    - `source` is the name of the table in the change records.
    - `key` has the key columns, and `columns` the other columns.
    - `order` says which change is newer.
    - `max_staleness_s` is the declared `max_staleness`. With None or 0, every read is a fresh read.
    - `apply_every_s` is the time between two applies. With None, it is a quarter of
      `max_staleness_s` (JOB-2).
    - `keep_unmapped` keeps cells that no column shows.
    - `deletion_vectors` allows the table to use them.
    - `block_rows`: a dead letter blocks the later changes of its row.
    - `on_unreadable` is that of the columns that do not have their own.
    - `presence_family` is the family of the presence mark (`connector.tables.presence`). Empty: the
      one that an existing table has, or that of the first column, or `row` (EVO-12).
    - `start_from` is the table of which a new table begins as a copy (EVO-9). Empty: it begins
      without rows.
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
    max_staleness_s: Annotated[int, Between(0)] | None = None
    apply_every_s: Annotated[int, Between(1)] | None = None
    keep_unmapped: bool = True
    deletion_vectors: bool = True
    block_rows: bool = False
    buckets: int = 1
    presence_family: str = ""
    on_unreadable: OnUnreadable = OnUnreadable.LETTER
    start_from: str = ""

    def __post_init__(self) -> None:
        check_ranges(self)
        for fault in setting_faults(self.name, self.stream, self.source, self.buckets):
            raise fault
        names = [column.name for column in self.columns]
        cells = [(column.name, *column.cell) for column in self.columns]
        key_names = [part.name for part in self.key.parts]
        for fault in columns_faults(self.name, key_names, names, cells):
            raise fault
        for fault in beginning_faults(self.name, self.presence_family, self.start_from):
            raise fault

    @property
    def marks(self) -> str:
        """The family of the presence mark."""
        default = self.columns[0].family if self.columns else DEFAULT_FAMILY
        return self.presence_family or default

    @property
    def presence(self) -> Column:
        """The presence mark as a column. It is not one of `columns`."""
        return Column("presence", self.marks, PRESENCE_QUALIFIER, DataType.BYTES)

    @property
    def registered(self) -> tuple[Column, ...]:
        """The cells that have a register: those of `columns`, then the presence mark. With
        `versions = all`, there are no registers.
        """
        return (*self.columns, self.presence) if self.versions is Versions.LATEST else ()


def shows_null(definition: TableDefinition, column: Column) -> bool:
    """Return whether the column is NULL if it cannot hold a value (EVO-11)."""
    return (column.on_unreadable or definition.on_unreadable) is OnUnreadable.NULL


def column_faults(
    name: str | None,
    family: str | None,
    qualifier: bytes,
    type_: ValueType | None,
    encoding: Encoding | None,
    default: str | None = None,
) -> Iterator[ConfigError]:
    """Yield what is wrong with a column (TBL-8). None: it is not known, or there is no default."""
    if name is not None and (fault := name_fault("column", name)):
        yield fault
    if family is not None and not _is_family(family):
        yield source_name_invalid(f"The family of column {name}", repr(family), f"1 to 64 {_NAME}")
    if len(qualifier) > MAX_QUALIFIER_BYTES:
        given, allowed = f"{len(qualifier)} bytes long", f"at most {MAX_QUALIFIER_BYTES} bytes"
        yield source_name_invalid(f"The qualifier of column {name}", given, allowed)
    if encoding is Encoding.BINARY and type_ not in (*BINARY_TYPES, None):
        yield column_encoding_invalid(str(name), str(type_))
    if type_ is not None and default is not None:
        value = read_value(type_, Encoding.TEXT, default.encode("utf-8", "surrogatepass"))
        if isinstance(value, Unreadable):
            yield column_default_invalid(str(name), value.expected, default)


def beginning_faults(table: str, presence_family: str, start_from: str) -> Iterator[ConfigError]:
    """Yield what is wrong with the settings that count when a table is made. Empty: not set."""
    if presence_family and not _is_family(presence_family):
        what = f"tables.{table}.presence_family"
        yield source_name_invalid(what, repr(presence_family), f"1 to 64 {_NAME}")
    if start_from and (start_from == table or not is_name(start_from)):
        yield setting_invalid(
            f"tables.{table}.start_from",
            f'"{start_from}"',
            "the name of another table of the warehouse",
            "Name a table that exists, or remove the setting",
        )


def setting_faults(
    table: str, stream: str | None, source: str, buckets: int
) -> Iterator[ConfigError]:
    """Yield what is wrong with the settings of a table that are not about columns (TBL-8)."""
    for what, name in (("A table", table), (f"The stream of tables.{table}", stream)):
        if name is not None and not is_name(name):
            yield name_invalid(
                what,
                name,
                "1 to 128 of the characters - _ a-z A-Z 0-9, with a letter or a digit at both ends",
            )
    if not _is_table_name(source):
        yield source_name_invalid(f"tables.{table}.source", repr(source), f"1 to 128 {_NAME}")
    if not 1 <= buckets <= MAX_BUCKETS or buckets.bit_count() != 1:
        yield setting_invalid(
            f"tables.{table}.buckets",
            str(buckets),
            f"a power of two from 1 to {MAX_BUCKETS}",
            "Remove the setting for a table below 256 MB. 16 buckets fit a few gigabytes",
        )


def columns_faults(
    table: str,
    key_names: Sequence[str | None],
    names: Sequence[str | None],
    cells: Sequence[tuple[str, str, bytes]],
) -> Iterator[ConfigError]:
    """Yield what is wrong with the columns of a table together (TBL-8).

    Args:
        table: The table.
        key_names: The names of its key columns. None: it is not known.
        names: The names of the other columns. None: it is not known.
        cells: The column, the family and the qualifier of each cell that is shown.
    """
    count = len(key_names) + len(names)
    if count > MAX_COLUMNS:
        yield columns_too_many(table, count, MAX_COLUMNS)
    yield from repeated_names(f"columns of tables.{table}", filter(None, (*key_names, *names)))
    shown_by: dict[tuple[str, bytes], str] = {}
    for name, family, qualifier in cells:
        if qualifier == PRESENCE_QUALIFIER:
            yield cell_of_mark(table, name)
        if (other := shown_by.get((family, qualifier))) is not None:
            yield cell_repeated(table, name, other, unmapped_name(family, qualifier))
        shown_by[family, qualifier] = name


def column_names(definition: TableDefinition) -> tuple[str, ...]:
    """Return all columns in their order on disk, those of `BOOKKEEPING` last (TBL-22)."""
    return (
        *(part.name for part in definition.key.parts),
        *(column.name for column in definition.columns),
        UNMAPPED,
        *BOOKKEEPING,
    )


def compatible(existing: TableDefinition, declared: TableDefinition) -> tuple[str, ...]:
    """Compare a changed definition with an existing table. Return the differences that are not
    allowed, as sentences (TBL-8).

    You may add and remove columns, and change settings of reading and storing. You must not change
    what decided the existing rows: the source table, key, order, versions, and the cell, type and
    encoding of each column that remains.
    """
    differs = []
    for what in ("stream", "source", "key", "order", "versions"):
        was, is_ = getattr(existing, what), getattr(declared, what)
        if was != is_:
            differs.append(f"{what} was {_shown(was)}, is {_shown(is_)}")
    if declared.presence_family not in ("", existing.marks):
        was_family, is_family = existing.marks, declared.presence_family
        differs.append(f"presence_family was {was_family}, is {is_family}")
    columns = {column.name.lower(): column for column in existing.columns}
    for column in declared.columns:
        old = columns.get(column.name.lower())
        if old is not None and old.stored != column.stored:
            differs.append(f"column {old.name} was {_shown(old)}, is {_shown(column)}")
    return tuple(differs)


def base_faults(base: TableDefinition, wanted: TableDefinition) -> Iterator[str]:
    """Yield why a table cannot be made from the rows of the table `base` (EVO-9)."""
    for what in ("stream", "source", "key", "order", "versions", "marks"):
        if getattr(base, what) != getattr(wanted, what):
            name = "presence_family" if what == "marks" else what
            yield f"its {name} is {_shown(getattr(base, what))}"
    if wanted.keep_unmapped and not base.keep_unmapped:
        yield "it does not keep cells without a column"
    has_registers = base.versions is Versions.LATEST
    by_cell = {column.cell: column for column in base.columns}
    for column in wanted.columns:
        of_base = by_cell.pop(column.cell, None)
        if of_base is None:
            if not base.keep_unmapped:
                yield f"it does not have the cell of column {column.name}"
            continue
        is_same = (of_base.type, of_base.encoding) == (column.type, column.encoding)
        if has_registers and not is_same:
            yield f"its column {of_base.name} is {of_base.type} {of_base.encoding}"
    if has_registers and wanted.keep_unmapped:
        for column in by_cell.values():
            yield f"it has column {column.name}, which must be declared"


def with_fixed(existing: TableDefinition, declared: TableDefinition) -> TableDefinition:
    """Return a declared definition with what the existing table fixed when it was made (EVO-12)."""
    return replace(declared, presence_family=existing.marks)


def check_compatible(existing: TableDefinition, declared: TableDefinition) -> None:
    """Raises `TableError` with every difference of `compatible`."""
    if differs := compatible(existing, declared):
        raise definition_different(declared.name, "; ".join(differs))


def _shown(part: object) -> str:
    if isinstance(part, Key):
        delimiter = f" by {part.delimiter!r}" if part.form is KeyForm.DELIMITED else ""
        return f"({', '.join(f'{p.name} {p.type}' for p in part.parts)}) {part.form}{delimiter}"
    if isinstance(part, Column):
        return f"{part.name} {unmapped_name(*part.cell)} {part.type} {part.encoding}"
    return str(part)
