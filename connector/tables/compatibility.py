"""Checks whether a definition fits an existing table (TBL-8)."""

from __future__ import annotations

from connector.errors import ErrorCode, TableError
from connector.tables.column_names import unmapped_name
from connector.tables.definition import Column, TableDefinition
from connector.tables.keys import Key, KeyForm


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
    columns = {column.name.lower(): column for column in existing.columns}
    for column in declared.columns:
        old = columns.get(column.name.lower())
        if old is not None and old != column:
            differs.append(f"column {old.name} was {_shown(old)}, is {_shown(column)}")
    return tuple(differs)


def check_compatible(existing: TableDefinition, declared: TableDefinition) -> None:
    """Raises `TableError` with every difference of `compatible`."""
    if differs := compatible(existing, declared):
        raise TableError(
            ErrorCode.TABLE_DEFINITION_DIFFERENT,
            f"Table {declared.name} exists with another definition: {'; '.join(differs)}",
            "Its rows were written with the old definition",
            "Undo the change, rename the column, or declare a table with another name",
            table=declared.name,
        )


def check_columns(existing: TableDefinition, declared: TableDefinition) -> None:
    """Raises `TableError` if the table would have other cells. Then you must rebuild it (TBL-8)."""
    if (existing.columns, existing.keep_unmapped) != (declared.columns, declared.keep_unmapped):
        raise TableError(
            ErrorCode.TABLE_COLUMNS_CHANGED,
            f"The columns of table {declared.name}, or its keep_unmapped, were changed after the"
            " table was created",
            "Each merge decided by the old definition which cells a row has",
            "Rebuild the table from the changelog, or undo the change",
            table=declared.name,
        )


def _shown(part: object) -> str:
    if isinstance(part, Key):
        delimiter = f" by {part.delimiter!r}" if part.form is KeyForm.DELIMITED else ""
        return f"({', '.join(f'{p.name} {p.type}' for p in part.parts)}) {part.form}{delimiter}"
    if isinstance(part, Column):
        return f"{part.name} {unmapped_name(*part.cell)} {part.type} {part.encoding}"
    return str(part)
