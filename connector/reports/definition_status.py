"""The hints of a status about the definition of a table: what operators changed, and which cells
have no column (EVO-2, EVO-3).
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from connector.errors import ConfigError
from connector.tables.alterations import (
    ColumnOverride,
    may_add,
    overridden_columns,
    with_overrides,
)
from connector.tables.column_names import unmapped_name
from connector.tables.definition import Column, TableDefinition, column_faults
from connector.tables.stored_definition import ColumnIds
from connector.tables.values import DataType, Encoding
from connector.text import counted, one_of

MAX_CELLS: Final = 10
"""How many cells without a column are named."""
_RESERVED: Final = b"\x00"
"""Cells with this at the beginning of their qualifier are lowmark's own."""


def definition_hints(
    declared: TableDefinition,
    stored: TableDefinition | None,
    overrides: Sequence[ColumnOverride],
    cells: Iterable[tuple[str, bytes]],
) -> tuple[str, ...]:
    """Return the hints about the definition of a table.

    `declared` is that of the configuration, and `stored` that in force (None: there is no table).
    `cells` are the families and qualifiers of recent changes.
    """
    existing = stored or declared
    return (
        *_of_overrides(declared, existing, overrides),
        *_conflicts(declared, overrides),
        *_lost(declared, existing, overrides),
        *_of_cells(existing, cells_without_column(declared, stored, overrides, cells)),
    )


def cells_without_column(
    declared: TableDefinition,
    stored: TableDefinition | None,
    overrides: Sequence[ColumnOverride],
    cells: Iterable[tuple[str, bytes]],
) -> tuple[tuple[str, bytes], ...]:
    """Return those of the cells that no column shows or will show, sorted. Parameters as for
    `definition_hints`.
    """
    wanted = overridden_columns(declared, overrides)
    shown = {column.cell for column in (*wanted, *(stored or declared).columns)}
    new = {cell for cell in cells if cell not in shown and not cell[1].startswith(_RESERVED)}
    return tuple(sorted(new))


def column_to_add(
    declared: TableDefinition,
    stored: tuple[TableDefinition, ColumnIds] | None,
    overrides: Sequence[ColumnOverride],
    cells: Iterable[tuple[str, bytes]],
) -> Column | None:
    """Return a column for the first of the cells that an operator can add one for, and None if
    there is no such cell. Parameters as for `definition_hints`, with the ids of the columns.
    """
    definition = stored and stored[0]
    for family, qualifier in cells_without_column(declared, definition, overrides, cells):
        name = qualifier.decode("ascii", "replace")
        of_column = (name, family, qualifier, DataType.STRING)
        if any(column_faults(*of_column, Encoding.TEXT)):
            continue
        if may_add(declared, stored, overrides, column := Column(*of_column)):
            return column
    return None


def lines_of(table: str, column: Column) -> str:
    """Return the lines of a column for the configuration, in one text."""
    try:
        qualifier = _quoted(column.qualifier.decode())
    except UnicodeDecodeError:
        qualifier = f'{{ base64 = "{base64.b64encode(column.qualifier).decode()}" }}'
    lines = [
        f"[[tables.{table}.columns]]",
        f"name = {_quoted(column.name)}",
        f"family = {_quoted(column.family)}",
        f"qualifier = {qualifier}",
        f"type = {_quoted(str(column.type))}",
        f"encoding = {_quoted(column.encoding)}",
    ]
    if column.required:
        lines.append("required = true")
    if column.default is not None:
        lines.append(f"default = {_quoted(column.default)}")
    if column.on_unreadable is not None:
        lines.append(f"on_unreadable = {_quoted(column.on_unreadable)}")
    return "\n".join(lines)


def _of_overrides(
    declared: TableDefinition, existing: TableDefinition, overrides: Iterable[ColumnOverride]
) -> Iterator[str]:
    columns = {column.name.lower(): column for column in existing.columns}
    for override in overrides:
        if override.agrees_with(declared):
            continue
        existing_column = columns.get(override.name.lower())
        is_taken = existing_column == override.overridden(existing_column)
        state = "" if is_taken else ", and the pipeline has not taken it yet"
        if override.only_default and override.column is not None:
            default = override.column.default
            line = f"\ndefault = {_quoted(default)}" if default is not None else ""
            todo = f"Write this line there:{line}" if line else "Remove its line there"
            yield (
                f"{override.made_by} set the default of the column {override.name}{state}. It"
                f" differs in the configuration. {todo}"
            )
        elif override.column is None:
            yield (
                f"{override.made_by} dropped the column {override.name}{state}. Remove it from the"
                " configuration"
            )
        else:
            lines = lines_of(declared.name, override.column)
            yield (
                f"{override.made_by} set the column {override.name}{state}. Put these lines into"
                f" the configuration:\n{lines}"
            )


def _conflicts(declared: TableDefinition, overrides: Sequence[ColumnOverride]) -> Iterator[str]:
    try:
        with_overrides(declared, overrides)
    except ConfigError as error:
        names = one_of([override.name for override in overrides if override.column is not None])
        yield (
            f"the table is stopped: {error.problem}. Change the configuration, or drop a column"
            f" that an operator set: {names}"
        )


def _lost(
    declared: TableDefinition, existing: TableDefinition, overrides: Iterable[ColumnOverride]
) -> Iterator[str]:
    names = {column.name.lower() for column in declared.columns}
    names |= {override.name.lower() for override in overrides if not override.only_default}
    for column in existing.columns:
        if column.name.lower() not in names:
            yield (
                f"the table is stopped: the configuration lacks its column {column.name}. Declare"
                " it again, or drop it"
            )


def _of_cells(existing: TableDefinition, new: Sequence[tuple[str, bytes]]) -> Iterator[str]:
    if not new:
        return
    names = ", ".join(unmapped_name(*cell) for cell in new[:MAX_CELLS])
    if len(new) > MAX_CELLS:
        names += f" and {len(new) - MAX_CELLS} more"
    count = counted(len(new), "cell")
    if existing.keep_unmapped:
        yield f"{count} of recent changes have no column, and are in _unmapped: {names}"
    else:
        yield (
            f"{count} of recent changes have no column, and keep_unmapped = false drops them:"
            f" {names}. To keep them, set keep_unmapped = true and rebuild the table"
        )


def _quoted(text: str) -> str:
    """A text as TOML."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    plain = (char if char >= " " and char != "\x7f" else f"\\u{ord(char):04X}" for char in escaped)
    return f'"{"".join(plain)}"'
