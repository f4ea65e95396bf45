"""The columns of the tables of a source, as they follow from its records (SRC-5)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from itertools import chain, count
from typing import Any, Final, NamedTuple

from connector.records.model import MAX_QUALIFIER_BYTES, table_matches
from connector.tables.column_names import is_column_name
from connector.tables.definition import MAX_COLUMNS, OnUnreadable
from connector.tables.keys import KEY_TYPES, MAX_KEY_COLUMNS, KeyPart
from connector.tables.nested import ValueType, type_of
from connector.tables.presence import DEFAULT_FAMILY, PRESENCE_QUALIFIER
from connector.tables.values import DataType

FAMILY: Final = DEFAULT_FAMILY
"""The family of the cells of a source."""


class Shown(NamedTuple):
    """A field of a row as a record shows it.

    - `type` is the type of a column for its values.
    - `is_guess`: the type follows from a value, not from a schema.
    - `default` is the default in the source, or None.
    """

    field: str
    type: ValueType
    is_guess: bool = False
    default: object = None


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column of a table of the source, for `field` there.

    - `cell` is the qualifier of its cell. The family is `FAMILY`.
    - `is_guess`: the type follows from a value, so another value may not fit.
    """

    field: str
    name: str
    cell: str
    type: ValueType
    is_guess: bool = False


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table of the source: its name in change records, its key columns, and the others. A field
    has several columns if its type has changed.
    """

    source: str
    key: tuple[KeyPart, ...]
    columns: tuple[SourceColumn, ...] = ()

    def section(self) -> dict[str, Any]:
        """Return the table as a section `[tables.NAME]` of the configuration, without `stream`."""
        columns = []
        for column in self.columns:
            shown = {"name": column.name, "family": FAMILY, "type": str(column.type)}
            if column.cell != column.name:
                shown["qualifier"] = column.cell
            if column.is_guess:
                shown["on_unreadable"] = str(OnUnreadable.NULL)
            columns.append(shown)
        key = [{"name": part.name, "type": str(part.type)} for part in self.key]
        return {
            "source": self.source,
            "key": {"form": "ordered", "columns": key},
            "presence_family": FAMILY,
            "columns": columns,
        }

    @classmethod
    def from_section(cls, section: Mapping[str, Any]) -> SourceTable:
        """Return the table of a section that `section` has made."""
        columns: list[SourceColumn] = []
        cells = set[str]()
        for shown in section["columns"]:
            cell = shown.get("qualifier", shown["name"])
            version = _version(cell)
            is_version = version and version[1] in cells and _version(shown["name"])
            field = version[1] if version and is_version else cell
            cells.add(cell)
            is_guess = "on_unreadable" in shown
            columns.append(
                SourceColumn(field, shown["name"], cell, type_of(shown["type"]), is_guess)
            )
        key = section["key"]["columns"]
        return cls(
            section["source"],
            tuple(KeyPart(part["name"], DataType(part["type"])) for part in key),
            tuple(columns),
        )

    def column(self, field: str, type_: ValueType) -> SourceColumn | None:
        """Return the column of a field with this type, or None."""
        for column in self.columns:
            if column.field == field and (column.is_guess or column.type == type_):
                return column
        return None


class Merged(NamedTuple):
    """A table with the columns of newer records, and sentences for those who operate it.

    `with_default` names the new columns of a table that was there before, that have a default in
    the source: the source sends no event for the rows that exist.
    """

    table: SourceTable
    warnings: tuple[str, ...] = ()
    with_default: tuple[str, ...] = ()


def merged(
    old: SourceTable | None, source: str, key: Iterable[Shown], fields: Iterable[Shown]
) -> Merged:
    """Return a table with the columns of these fields, beside those that it has. `source` is its
    name in change records. A table keeps its key.
    """
    warnings: list[str] = []
    with_default: list[str] = []
    made = old or SourceTable(source, key_parts(key))
    if old is not None:
        warnings += _key_warnings(old, tuple(key))
    columns = list(made.columns)
    names = {part.name.lower() for part in made.key} | {column.name.lower() for column in columns}
    cells = {column.cell for column in columns}
    for shown in fields:
        field = shown.field
        versions = [column for column in columns if column.field == field]
        is_new = not any(column.is_guess or column.type == shown.type for column in versions)
        if not is_new or (versions and shown.is_guess):
            continue
        if not _is_cell(field) or len(columns) >= MAX_COLUMNS - MAX_KEY_COLUMNS:
            warnings.append(f"{source}: field {field[:64]!r} has no column. It is in _unmapped")
            continue
        cell, suffix = field, ""
        if field in cells:
            cell = next(name for n in count(2) if (name := f"{field}__{n}") not in cells)
            suffix = cell.removeprefix(field)
        elif (version := _version(field)) and version[1] in cells:
            suffix = _NO_VERSION
        name = column_name(field, names, suffix)
        cells.add(cell)
        names.add(name.lower())
        columns.append(SourceColumn(field, name, cell, shown.type, shown.is_guess))
        if versions:
            was = versions[-1]
            warnings.append(
                f"{source}: field {field} was {was.type}, is {shown.type}. Its values are in column"
                f" {name} from here on, and column {was.name} is NULL"
            )
        elif old is not None and shown.default is not None:
            with_default.append(field)
    table = made if len(columns) == len(made.columns) else replace(made, columns=tuple(columns))
    return Merged(table, tuple(warnings), tuple(with_default))


def key_parts(key: Iterable[Shown]) -> tuple[KeyPart, ...]:
    """Return the key columns for the fields of a key."""
    names: set[str] = set()
    parts = []
    for shown in key:
        name = column_name(shown.field, names)
        names.add(name.lower())
        parts.append(KeyPart(name, key_type(shown.type)))
    return tuple(parts)


def _key_warnings(old: SourceTable, key: tuple[Shown, ...]) -> list[str]:
    was = ", ".join(f"{part.name} {part.type}" for part in old.key)
    is_ = ", ".join(f"{part.name} {part.type}" for part in key_parts(key))
    if was == is_ or any(shown.is_guess for shown in key):
        return []
    kept = "The table keeps its key. Rows whose keys do not fit it are dead letters"
    return [f"{old.source}: the key was ({was}), is ({is_}). {kept}"]


def key_type(type_: ValueType) -> DataType:
    """Return the type of a key column: values of a type that a key cannot have are their text."""
    return type_ if isinstance(type_, DataType) and type_ in KEY_TYPES else DataType.STRING


def _is_cell(field: str) -> bool:
    try:
        qualifier = field.encode()
    except UnicodeEncodeError:
        return False
    return qualifier != PRESENCE_QUALIFIER and len(qualifier) <= _MAX_FIELD_BYTES


_MAX_FIELD_BYTES: Final = MAX_QUALIFIER_BYTES - len("__99999")
"""The cells of a field whose type has changed have a longer name."""
_version = re.compile(r"(.*)__([0-9]+)", re.DOTALL).fullmatch


def column_name(field: str, taken: Iterable[str] = (), suffix: str = "") -> str:
    """Return the name of a column for a field: other characters become `_`, and a number is added
    to a name that is taken. For example, `e-mail` becomes `e_mail`, and `_id` becomes `c_id`.

    `taken` has names in lower case. The name ends with `suffix`.
    """
    name = field
    if not is_column_name(f"{field}{suffix}"):
        name = re.sub(r"[^A-Za-z0-9_]", "_", field)[:_MAX_NAME]
        if not name[:1].isalpha():
            name = f"c{name}" if name[:1] == "_" else f"c_{name}"
    numbered = (f"{name[:_MAX_NAME]}_{number}{suffix}" for number in count(2))
    return _first_free(chain([f"{name}{suffix}"], numbered), taken)


def _first_free(names: Iterable[str], taken: Iterable[str]) -> str:
    others = set(taken)
    return next(name for name in names if name.lower() not in others)


_NO_VERSION: Final = "_c"
"""Ends the name of the column of a field that has the name of another one's version."""
_MAX_NAME: Final = 280


@lru_cache(maxsize=4096)
def source_name(*parts: str) -> str:
    """Return the name of a table in change records: its schema and its name, with a point between.

    A name that records cannot have gets `_` for other characters, and a number that no other such
    name has.
    """
    name = ".".join(part for part in parts if part)
    if table_matches(name):
        return name
    digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{re.sub(r'[^-_.a-zA-Z0-9]', '_', name)[:_MAX_SOURCE]}_{digest}"


_MAX_SOURCE: Final = 119


def table_name(source: str, taken: Iterable[str] = ()) -> str:
    """Return the name of our table for a table of the source: `customers` for `public.customers`,
    `public_customers` if that is taken, and then `public_customers_3`. `taken` has names in lower
    case.
    """
    whole = re.sub(r"[^-_a-zA-Z0-9]", "_", source).strip("-_") or "t"
    last = re.sub(r"[^-_a-zA-Z0-9]", "_", source.rpartition(".")[2]).strip("-_") or whole
    stem = whole[:_MAX_STEM].rstrip("-_")
    numbered = (f"{stem}_{number}" for number in count(2 if last == whole else 3))
    return _first_free(chain((last, whole), numbered), taken)


_MAX_STEM: Final = 112
"""A name of 128 characters has room for a number behind so many."""
