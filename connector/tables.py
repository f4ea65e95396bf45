"""What a table is: its key, its columns, and how its rows are told apart and named (TBL-7, TBL-8, TBL-22).

A definition is a value that checks itself: whoever holds one holds a table that can be made. A source table may feed
several tables. `read_key` and `write_key` are inverses: a row key that is read stands for exactly one tuple of key
columns, and the other way round, so that two rows of the source never become one row of the table.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from connector.deadletter import Reason, Rejection
from connector.errors import ConfigError, InvalidChangeError, TableError
from connector.model import FAMILY_PATTERN, MAX_QUALIFIER_BYTES, MAX_ROW_KEY_BYTES, TABLE_PATTERN, DataChange, Rule, SetCell
from connector.ordered_key import join_parts, read_part, split_parts, write_part
from connector.ordering import OrderBy as OrderBy
from connector.values import CANONICAL_PATTERN, TEXT_ONLY, ColumnType, Encoding, Unreadable, read_value, write_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_KEY_COLUMNS: Final = 16
MAX_COLUMNS: Final = 2_000
MAX_BUCKETS: Final = 4096
MAX_DELIMITER_LENGTH: Final = 8
DEFAULT_DELIMITER: Final = "#"

NAME_PATTERN: Final = r"[A-Za-z0-9](?:[-_A-Za-z0-9]{0,126}[A-Za-z0-9])?"
"""Names of tables and streams. They are folders in the warehouse, so neither dots nor slashes."""
COLUMN_PATTERN: Final = r"[A-Za-z][A-Za-z0-9_]{0,299}"
"""Names of columns: what every engine takes unquoted. Names that begin with `_` are ours."""

UNMAPPED: Final = "_unmapped"
STATE: Final = "_state"
BUCKET: Final = "_bucket"
BOOKKEEPING: Final = (STATE, BUCKET)
"""Columns that readers leave out."""

_is_name = re.compile(NAME_PATTERN).fullmatch
_is_column_name = re.compile(COLUMN_PATTERN).fullmatch
_is_family = re.compile(FAMILY_PATTERN).fullmatch
_is_table_name = re.compile(TABLE_PATTERN).fullmatch
_canonical = {type_: re.compile(pattern, re.ASCII).fullmatch for type_, pattern in CANONICAL_PATTERN.items()}

_NOT_IN_A_KEY: Final = frozenset({ColumnType.FLOAT64, ColumnType.JSON})
_LETTERS: Final = {
    ColumnType.BOOL: "truefals",
    ColumnType.INT64: "-0123456789",
    ColumnType.NUMERIC: "-.0123456789",
    ColumnType.DATE: "-0123456789",
    ColumnType.TIMESTAMP: "-:.TZ0123456789",
}
"""What the canonical text of a type is made of: a delimiter of these alone could stand inside a part."""


class KeyForm(StrEnum):
    """How the key columns lie in the row key."""

    ROW_KEY = "row_key"
    DELIMITED = "delimited"
    ORDERED = "ordered"


class Versions(StrEnum):
    """What a cell of a row is (`connector.merge`): a column, or a column at one cell timestamp."""

    LATEST = "latest"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class KeyPart:
    """One key column."""

    name: str
    type: ColumnType

    def __post_init__(self) -> None:
        _check_column_name("key column", self.name)


@dataclass(frozen=True, slots=True)
class Key:
    """The key columns of a table, and how a row key spells them. Raises `ConfigError` (TBL-8).

    ROW_KEY: one part, BYTES or STRING, that is the row key. DELIMITED: each part in its canonical text, with the delimiter
    between them and never inside one. ORDERED: bytes that lie in the order of the key columns (`connector.ordered_key`).
    """

    parts: tuple[KeyPart, ...]
    form: KeyForm = KeyForm.ROW_KEY
    delimiter: str = DEFAULT_DELIMITER

    def __post_init__(self) -> None:
        if not 1 <= len(self.parts) <= MAX_KEY_COLUMNS:
            cause = f"1 to {MAX_KEY_COLUMNS} are possible"
            raise ConfigError(f"The key has {len(self.parts)} columns", cause, "Join some of them in the source")
        for part in self.parts:
            if part.type in _NOT_IN_A_KEY:
                raise ConfigError(
                    f"Key column {part.name} is {part.type}",
                    "equal values of this type can be spelt in several ways, so it cannot name a row",
                    "Declare it as STRING, BYTES, BOOL, INT64, NUMERIC, DATE or TIMESTAMP",
                )
        _check_distinct("key columns", (part.name for part in self.parts))
        if self.form is KeyForm.ROW_KEY:
            self._check_row_key()
        elif self.form is KeyForm.DELIMITED:
            self._check_delimiter()
        elif self.delimiter != DEFAULT_DELIMITER:
            cause = "the order-preserving form has none: it marks itself where a part ends"
            raise ConfigError(f"The delimiter of the key is {self.delimiter!r}", cause, 'Leave it out, or set form = "delimited"')

    def _check_row_key(self) -> None:
        if len(self.parts) != 1 or self.parts[0].type not in (ColumnType.BYTES, ColumnType.STRING):
            declared = ", ".join(f"{part.name} {part.type}" for part in self.parts)
            raise ConfigError(
                f"The row key itself is declared as {declared}",
                "as it stands it is one column, BYTES or STRING",
                'Set form = "delimited" or "ordered"',
            )

    def _check_delimiter(self) -> None:
        delimiter = self.delimiter
        if not (1 <= len(delimiter) <= MAX_DELIMITER_LENGTH and delimiter.isascii()):
            limit = f"1 to {MAX_DELIMITER_LENGTH} ASCII characters are possible"
            raise ConfigError(f"The delimiter of the key is {delimiter!r}", limit, 'Leave it out for "#"')
        for part in self.parts:
            if set(delimiter) <= set(_LETTERS.get(part.type, "")):
                cause = f"it could stand inside {part.name}, which is {part.type}"
                raise ConfigError(f"The delimiter of the key is {delimiter!r}", cause, 'Choose another one, such as "#"')

    def read_key(self, row_key: bytes) -> tuple[object, ...] | Unreadable:
        """The key columns' values of a row key, or `Unreadable`. Never raises. `write_key` gives back the same bytes."""
        if self.form is KeyForm.ROW_KEY:
            pieces, how = [row_key], ""
        elif self.form is KeyForm.ORDERED:
            pieces, how = split_parts(row_key, len(self.parts)), "in order-preserving form"
        else:
            pieces, how = row_key.split(self.delimiter.encode()), f"joined by {self.delimiter!r}"
        if len(pieces) != len(self.parts):
            return Unreadable(f"a key of {len(self.parts)} parts {how}", row_key)
        values = []
        for part, piece in zip(self.parts, pieces, strict=True):
            value = (read_part if self.form is KeyForm.ORDERED else _read_canonical)(part.type, piece)
            if isinstance(value, Unreadable):
                return Unreadable(f"{value.expected} as key column {part.name}", row_key)
            values.append(value)
        return tuple(values)

    def write_key(self, values: tuple[object, ...]) -> bytes:
        """The row key of these key columns. Raises `InvalidChangeError` if there is none: wrong types, a delimiter in a part, too long."""
        if len(values) != len(self.parts):
            raise InvalidChangeError(Rule.ROW_KEY, "row_key", f"made of {len(self.parts)} key columns", values)
        typed = list(zip((part.type for part in self.parts), values, strict=True))
        if self.form is KeyForm.ORDERED:
            row_key = join_parts([write_part(*part) for part in typed])
        else:
            row_key = self.delimiter.encode().join(write_value(type_, Encoding.TEXT, value) for type_, value in typed)
        if not 1 <= len(row_key) <= MAX_ROW_KEY_BYTES:
            raise InvalidChangeError(Rule.ROW_KEY, "row_key", f"1 to {MAX_ROW_KEY_BYTES} bytes", row_key)
        if self.read_key(row_key) != values:
            raise InvalidChangeError(Rule.ROW_KEY, "row_key", f"made of parts that {self.delimiter!r} does not occur in", values)
        return row_key


def _read_canonical(type_: ColumnType, piece: bytes) -> object | Unreadable:
    """One way to write a value, or two row keys would be one row: 01 is not the key 1."""
    value = read_value(type_, Encoding.TEXT, piece)
    if not isinstance(value, Unreadable) and type_ in _canonical and not _canonical[type_](piece.decode()):
        return Unreadable(f"{type_} in its one form, {write_value(type_, Encoding.TEXT, value)!r},", piece)
    return value


@dataclass(frozen=True, slots=True)
class Column:
    """A typed column, and the cell that it shows. Raises `ConfigError` (TBL-8)."""

    name: str
    family: str
    qualifier: bytes
    type: ColumnType
    encoding: Encoding = Encoding.TEXT

    def __post_init__(self) -> None:
        _check_column_name("column", self.name)
        if not _is_family(self.family):
            raise ConfigError(
                f"Column {self.name} has the family {self.family!r}",
                "a family has 1 to 64 of the characters - _ . a-z A-Z 0-9",
                "Name the family as the source does",
            )
        if len(self.qualifier) > MAX_QUALIFIER_BYTES:
            cause = f"a qualifier has at most {MAX_QUALIFIER_BYTES}"
            problem = f"Column {self.name} has a qualifier of {len(self.qualifier)} bytes"
            raise ConfigError(problem, cause, "Name the qualifier as the source does")
        if self.encoding is Encoding.BINARY and self.type in TEXT_ONLY:
            remedy = 'Set encoding = "text", or type = "BYTES"'
            raise ConfigError(f"Column {self.name} is {self.type} in binary", f"{self.type} has no binary form", remedy)

    @property
    def cell(self) -> tuple[str, bytes]:
        return (self.family, self.qualifier)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDefinition:
    """A table as declared. Raises `ConfigError` with the reason and the remedy (TBL-8).

    `source` is the table's name in the change records, `max_staleness_s` the declared bound (None or 0: every read merges).
    `apply_every_s` is the time from one apply to the next; None: half of the bound (JOB-2). `buckets`, a power of two up to `MAX_BUCKETS`,
    are the parts by hash of the key that an apply rewrites one by one; of a table that exists it counts with the next rebuild (SCL-6).
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
    hold_rows: bool = False
    buckets: int = 1

    def __post_init__(self) -> None:
        for what, name in (("A table", self.name), (f"The stream of tables.{self.name}", self.stream)):
            if not _is_name(name):
                cause = "names have 1 to 128 of the characters - _ a-z A-Z 0-9, with a letter or a digit at both ends"
                raise ConfigError(f"{what} is named {name!r}", cause, "Rename it")
        where = f"tables.{self.name}"
        if not _is_table_name(self.source):
            cause = "tables of a source have names of 1 to 128 of the characters - _ . a-z A-Z 0-9"
            raise ConfigError(f"{where}.source is {self.source!r}", cause, "Write the name as it stands in the change records")
        if self.max_staleness_s is not None and self.max_staleness_s < 0:
            cause = "a bound cannot be negative"
            raise ConfigError(f"{where}.max_staleness is {self.max_staleness_s} s", cause, "Leave it out, or set 10m, for example")
        if self.apply_every_s is not None and self.apply_every_s < 1:
            cause = "an apply follows another after a second at the earliest"
            raise ConfigError(f"{where}.apply_every is {self.apply_every_s} s", cause, "Leave it out, or set 1h, for example")
        if not 1 <= self.buckets <= MAX_BUCKETS or self.buckets.bit_count() != 1:
            cause = f"the number is a power of two from 1 to {MAX_BUCKETS}"
            raise ConfigError(f"{where}.buckets is {self.buckets}", cause, "Leave it out below 256 MB; 16 suit a few gigabytes")
        count = len(self.key.parts) + len(self.columns)
        if count > MAX_COLUMNS:
            cause = f"{MAX_COLUMNS} are possible, key columns included"
            raise ConfigError(f"{where} has {count} columns", cause, "Leave some out: their cells are kept unmapped")
        _check_distinct(f"columns of {where}", (*(part.name for part in self.key.parts), *(column.name for column in self.columns)))
        if not self.columns and not self.keep_unmapped:
            cause = "it would never have a row"
            raise ConfigError(f"{where} has no columns and keep_unmapped = false", cause, "Declare columns, or leave out keep_unmapped")
        self._check_cells(where)

    def _check_cells(self, where: str) -> None:
        shown_by: dict[tuple[str, bytes], str] = {}
        for column in self.columns:
            if column.cell in shown_by:
                raise ConfigError(
                    f"{where}.columns: {shown_by[column.cell]} and {column.name} both show the cell {unmapped_name(*column.cell)}",
                    "a cell is shown by one column",
                    "Remove one of them, or declare a second table on the same source",
                )
            shown_by[column.cell] = column.name


def column_type(text: str) -> ColumnType:
    """The type of that name, in upper or lower case. Raises `ConfigError` for an unknown one (TBL-8)."""
    try:
        return ColumnType(text.upper())
    except ValueError:
        raise ConfigError(f"The type {text!r} is unknown", f"types are {', '.join(ColumnType)}", "Choose one of them") from None


def column_names(definition: TableDefinition) -> tuple[str, ...]:
    """All columns of the table in their order on disk, bookkeeping last (TBL-22)."""
    return (*(part.name for part in definition.key.parts), *(column.name for column in definition.columns), UNMAPPED, *BOOKKEEPING)


# ── cells ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def unmapped_name(family: str, qualifier: bytes) -> str:
    """The name of a cell in `_unmapped`: `family:qualifier`, with `%` as `%25` (TBL-22).

    A qualifier that is not UTF-8 as a whole has every byte outside ASCII as `%XX`.
    """
    try:
        return f"{family}:{qualifier.decode().replace('%', '%25')}"
    except UnicodeDecodeError:
        return f"{family}:" + "".join(f"%{byte:02X}" if byte > 127 or byte == ord("%") else chr(byte) for byte in qualifier)


def unmapped_cell(name: str) -> tuple[str, bytes]:
    """The inverse of `unmapped_name`. Raises `ValueError` for text that is no such name."""
    family, colon, rest = name.partition(":")
    qualifier = re.sub(rb"%([0-9A-F]{2})", lambda found: bytes.fromhex(found[1].decode()), rest.encode())
    if not colon or unmapped_name(family, qualifier) != name:
        raise ValueError(f"{name!r} is no name of a cell")
    return family, qualifier


def read_change(definition: TableDefinition, change: DataChange) -> Rejection | None:
    """Why a change does not fit this table, if it does not: it has no sequence number to order it by, else its key cannot be read,
    else the first cell it sets that its column cannot hold.

    Every cell counts, also one that a later entry of the change masks: the change is set aside whole (TBL-9).
    """
    if definition.order is OrderBy.SEQUENCE_NUMBER and change.change_sequence_number is None:
        return Rejection(Reason.MISSING_SEQUENCE_NUMBER, Reason.MISSING_SEQUENCE_NUMBER.cause)
    key = definition.key.read_key(change.row_key)
    if isinstance(key, Unreadable):
        return Rejection(Reason.UNREADABLE_VALUE, key.detail)
    columns = {column.cell: column for column in definition.columns}
    for entry in change.entries:
        column = columns.get((entry.family, entry.qualifier)) if isinstance(entry, SetCell) else None
        if column is not None and isinstance(entry, SetCell):
            value = read_value(column.type, column.encoding, entry.value)
            if isinstance(value, Unreadable):
                found = Unreadable(f"{value.expected} in column {column.name} ({unmapped_name(*column.cell)})", entry.value)
                return Rejection(Reason.UNREADABLE_VALUE, found.detail)
    return None


def row_of(definition: TableDefinition, row_key: bytes, cells: Mapping[tuple[str, bytes], bytes]) -> dict[str, object] | None:
    """The row that readers see, by column name, from what is visible of it (`connector.merge.visible`); None if there is none.

    A cell that its column cannot hold (it was kept before there was the column) stays unmapped (TBL-8). Without
    `keep_unmapped`, cells that no column shows neither make nor keep a row (TBL-7). The key must be readable.
    """
    key = definition.key.read_key(row_key)
    assert not isinstance(key, Unreadable), key.detail
    row: dict[str, object] = {part.name: value for part, value in zip(definition.key.parts, key, strict=True)}
    rest = dict(cells)
    for column in definition.columns:
        cell = rest.get(column.cell)
        value = None if cell is None else read_value(column.type, column.encoding, cell)
        row[column.name] = None if isinstance(value, Unreadable) else value
        if row[column.name] is not None:
            del rest[column.cell]
    if definition.keep_unmapped:
        row[UNMAPPED] = {unmapped_name(*cell): value for cell, value in rest.items()}
        return row if cells else None
    row[UNMAPPED] = None
    return row if len(rest) < len(cells) else None


# ── what the table itself remembers of its definition ────────────────────────────────────────────────────────────────

DEFINITION_PROPERTY: Final = "lowmark.definition"
COLUMN_IDS_PROPERTY: Final = "lowmark.columnIds"


@dataclass(frozen=True, slots=True)
class ColumnIds:
    """By what number each column is known. `next_id` has never been given to one.

    `since` has the last ingest batch before a column was defined, for those that came to a table with rows (TBL-8).
    """

    by_name: Mapping[str, int]
    next_id: int
    since: Mapping[str, int] = field(default_factory=dict)


NO_IDS: Final = ColumnIds({}, 0)


def assign_ids(existing: ColumnIds, definition: TableDefinition, batch: int = 0) -> ColumnIds:
    """Ids for all columns: the old ones where there are, new ones from `next_id` on. The id of a removed column is gone for good.

    New ones are defined behind the ingest batch `batch`.
    """
    names = [column.name for column in definition.columns]
    new = [name for name in names if name not in existing.by_name]
    given = {**existing.by_name, **{name: existing.next_id + place for place, name in enumerate(new)}}
    since = {**existing.since, **dict.fromkeys(new, batch)}
    known = {name: since[name] for name in names if since.get(name)}
    return ColumnIds({name: given[name] for name in names}, existing.next_id + len(new), known)


def to_properties(definition: TableDefinition, ids: ColumnIds) -> dict[str, str]:
    """The definition as properties of the Delta table: JSON in ASCII, the same text for the same definition."""
    assert set(ids.by_name) == {column.name for column in definition.columns}, "ids are assigned to a definition as it stands"
    key = definition.key
    stored = {
        "name": definition.name,
        "stream": definition.stream,
        "source": definition.source,
        "key": {"form": key.form, "delimiter": key.delimiter, "parts": [[part.name, part.type] for part in key.parts]},
        "columns": [[c.name, c.family, base64.b64encode(c.qualifier).decode(), c.type, c.encoding] for c in definition.columns],
        "order": definition.order,
        "versions": definition.versions,
        "max_staleness_s": definition.max_staleness_s,
        "keep_unmapped": definition.keep_unmapped,
        "deletion_vectors": definition.deletion_vectors,
        "hold_rows": definition.hold_rows,
    }
    return {
        DEFINITION_PROPERTY: json.dumps(stored),
        COLUMN_IDS_PROPERTY: json.dumps({"ids": ids.by_name, "next": ids.next_id, "since": ids.since}),
    }


def from_properties(properties: Mapping[str, str]) -> tuple[TableDefinition, ColumnIds]:
    """The inverse of `to_properties`; other properties are left alone. Raises `TableError` where there is no such table."""
    try:
        stored = json.loads(properties[DEFINITION_PROPERTY])
        ids = json.loads(properties[COLUMN_IDS_PROPERTY])
        parts = tuple(KeyPart(name, ColumnType(type_)) for name, type_ in stored["key"]["parts"])
        stored["key"] = Key(parts, KeyForm(stored["key"]["form"]), stored["key"]["delimiter"])
        stored["columns"] = tuple(
            Column(name, family, base64.b64decode(qualifier), ColumnType(type_), Encoding(encoding))
            for name, family, qualifier, type_, encoding in stored["columns"]
        )
        stored["order"], stored["versions"] = OrderBy(stored["order"]), Versions(stored["versions"])
        by_name = {str(name): int(id_) for name, id_ in ids["ids"].items()}
        since = {str(name): int(batch) for name, batch in ids.get("since", {}).items()}
        return TableDefinition(**stored), ColumnIds(by_name, int(ids["next"]), since)
    except (KeyError, TypeError, ValueError, AttributeError, ConfigError) as error:
        raise TableError(
            "The table's properties hold no definition that can be read",
            f"it was not made by this connector, or by a later release ({error})",
            "Name another table or warehouse, or use the release that made it",
        ) from error


def compatible(existing: TableDefinition, declared: TableDefinition) -> tuple[str, ...]:
    """What stands in the way of going on with an existing table under a changed definition: sentences, none if nothing does (TBL-8).

    Columns may come and go, and settings that say how to read or store may change; what decided the rows that are there
    may not: source, key, order, versions, and each remaining column's cell, type and encoding.
    """
    differs = []
    for what in ("stream", "source", "key", "order", "versions"):
        was, is_ = getattr(existing, what), getattr(declared, what)
        if was != is_:
            differs.append(f"{what} was {_shown(was)}, is {_shown(is_)}")
    columns = {column.name.lower(): column for column in existing.columns}
    for column in declared.columns:
        old = columns.get(column.name.lower())
        if old is not None and old != column:
            differs.append(f"column {old.name} was {_shown(old)}, is {_shown(column)}")
    return tuple(differs)


def check_compatible(existing: TableDefinition, declared: TableDefinition) -> None:
    """Raises `TableError` that names every difference of `compatible`."""
    if differs := compatible(existing, declared):
        raise TableError(
            f"The table {declared.name} exists with another definition: {'; '.join(differs)}",
            "the rows in it were made under the old one",
            "Take the change back, rename the column, or declare a table of another name",
        )


def check_columns(existing: TableDefinition, declared: TableDefinition) -> None:
    """Raises `TableError` if a table with these rows would hold other cells: it must be made anew (TBL-8)."""
    if (existing.columns, existing.keep_unmapped) != (declared.columns, declared.keep_unmapped):
        raise TableError(
            f"The columns of table {declared.name}, or its keep_unmapped, were changed since it was made",
            "Which cells a row holds was decided when it was merged",
            f"Run `connector table rebuild {declared.name}`, which makes it anew from the changelog, or take the change back",
        )


def _shown(part: object) -> str:
    if isinstance(part, Key):
        delimiter = f" by {part.delimiter!r}" if part.form is KeyForm.DELIMITED else ""
        return f"({', '.join(f'{p.name} {p.type}' for p in part.parts)}) {part.form}{delimiter}"
    if isinstance(part, Column):
        return f"{part.name} {unmapped_name(*part.cell)} {part.type} {part.encoding}"
    return str(part)


# ── checks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _check_column_name(what: str, name: str) -> None:
    if name.startswith("_"):
        raise ConfigError(f"A {what} is named {name}", "names that begin with _ are reserved", "Rename it")
    if not _is_column_name(name):
        cause = "names of columns begin with a letter and go on with letters, digits and _, at most 300, all ASCII"
        raise ConfigError(f"A {what} is named {name!r}", cause, "Rename it")


def _check_distinct(what: str, names: Iterable[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.get(name.lower())) is not None:
            cause = "each needs a name of its own" if name == other else "upper and lower case are one name to Spark"
            raise ConfigError(f"Two {what} are named {other} and {name}", cause, "Rename one of them")
        seen[name.lower()] = name
