"""Whether a definition fits a table that exists (TBL-8)."""

from __future__ import annotations

from connector.errors import TableError
from connector.records.ordering import OrderBy as OrderBy
from connector.tables.column_names import unmapped_name
from connector.tables.definition import Column, TableDefinition
from connector.tables.keys import Key, KeyForm


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
