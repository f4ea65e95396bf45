"""Changes of a table's columns while it runs: what operators and the configuration declare, and
which differences from the existing table are allowed (EVO-2, EVO-3).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from connector.errors import ConnectorError
from connector.errors.definitions import (
    column_exists,
    column_lost,
    column_name_taken,
    column_unknown,
    columns_changed,
    definition_different,
)
from connector.tables.definition import Column, TableDefinition, compatible, with_fixed
from connector.tables.stored_definition import ColumnIds, altered_ids
from connector.text import nearest, one_of


@dataclass(frozen=True, slots=True)
class ColumnOverride:
    """A column that an operator added or dropped. It has priority over the configuration, until
    that says the same (EVO-2).

    - `column` is the column. None: it is dropped.
    - `made_at` is in microseconds.
    - `only_default`: only the default of `column` counts, for a column that the configuration has.
    """

    table: str
    name: str
    column: Column | None
    made_at: int
    made_by: str
    only_default: bool = False

    def overridden(self, declared: Column | None) -> Column | None:
        """Return the column that a declared one becomes, or None."""
        if not self.only_default or self.column is None:
            return self.column
        return declared and replace(declared, default=self.column.default)

    def agrees_with(self, declared: TableDefinition) -> bool:
        """Whether the configuration says the same."""
        column = _by_name(declared).get(self.name.lower())
        return column == self.overridden(column) and not (self.only_default and column is None)


@dataclass(frozen=True, slots=True)
class Alteration:
    """A change of the columns of an existing table, to `definition` with `ids`. If nothing is added
    or dropped, a column has another default, or is required or not.
    """

    definition: TableDefinition
    ids: ColumnIds
    added: tuple[Column, ...]
    dropped: tuple[Column, ...]


def with_overrides(
    declared: TableDefinition, overrides: Iterable[ColumnOverride]
) -> TableDefinition:
    """Return the definition of the configuration as operators changed it. Raises `ConfigError` if
    its columns do not go together.
    """
    return replace(declared, columns=overridden_columns(declared, overrides))


def overridden_columns(
    declared: TableDefinition, overrides: Iterable[ColumnOverride]
) -> tuple[Column, ...]:
    """Return the columns of `with_overrides`, also if they do not go together."""
    columns = _by_name(declared)
    for override in overrides:
        name = override.name.lower()
        if (column := override.overridden(columns.get(name))) is not None:
            columns[name] = column
        else:
            columns.pop(name, None)
    return tuple(columns.values())


def declared_alteration(
    existing: TableDefinition,
    ids: ColumnIds,
    declared: TableDefinition,
    overrides: Sequence[ColumnOverride],
    batch: int = 0,
) -> Alteration | None:
    """Return how an existing table follows the configuration and operators, as `alteration`. Raises
    `ConfigError`, too, if their columns do not go together.
    """
    dropped = [override.name for override in overrides if override.column is None]
    return alteration(existing, ids, with_overrides(declared, overrides), dropped, batch)


def alteration(
    existing: TableDefinition,
    ids: ColumnIds,
    wanted: TableDefinition,
    dropped: Collection[str] = (),
    batch: int = 0,
) -> Alteration | None:
    """Return how an existing table gets the columns of `wanted`. None: it has them.

    Args:
        existing: The definition of the table.
        ids: The ids of its columns.
        wanted: The definition that it shall have.
        dropped: The names of the columns that operators dropped. Another column that `wanted` lacks
            is an error.
        batch: The last ingest batch before new columns are defined.

    Raises:
        TableError: Only a rebuild or another table can have these columns.
    """
    before, after = _by_name(existing), _by_name(wanted)
    if differences := compatible(existing, wanted):
        raise definition_different(wanted.name, "; ".join(differences))
    allowed = {name.lower() for name in dropped}
    lost = [column for name, column in before.items() if name not in after]
    for column in lost:
        if column.name.lower() not in allowed:
            raise column_lost(wanted.name, column.name)
    new = [column for name, column in after.items() if name not in before]
    kept = [after[name] for name in before if name in after]
    if (lost or new) and not (existing.keep_unmapped and wanted.keep_unmapped):
        raise columns_changed(wanted.name)
    types = {name.lower(): type_ for name, type_ in ids.dropped.items()}
    for column in new:
        if (type_ := types.get(column.name.lower(), column.type)) != column.type:
            raise column_name_taken(wanted.name, column.name, str(type_))
    if (*kept, *new) == existing.columns:
        return None
    definition = replace(with_fixed(existing, wanted), columns=(*kept, *new))
    ids = altered_ids(ids, existing, definition, batch)
    return Alteration(definition, ids, tuple(new), tuple(lost))


def override_alteration(
    declared: TableDefinition,
    stored: tuple[TableDefinition, ColumnIds] | None,
    earlier: Iterable[ColumnOverride],
    override: ColumnOverride,
) -> tuple[TableDefinition, Alteration | None]:
    """Return what a further override makes of a table: the wanted definition, and how the existing
    table follows it. None: there is no table. Raises as `declared_alteration`.
    """
    others = [other for other in earlier if other.name.lower() != override.name.lower()]
    overrides = [*others, override]  # those of `earlier` may not go together, until one is dropped
    wanted = with_overrides(declared, overrides)
    return wanted, stored and declared_alteration(*stored, declared, overrides)


def check_is_new(table: str, columns: Iterable[Column], name: str) -> None:
    """Raise `ConfigError` if one of the columns has this name."""
    if name.lower() in {column.name.lower() for column in columns}:
        raise column_exists(table, name)


def may_add(
    declared: TableDefinition,
    stored: tuple[TableDefinition, ColumnIds] | None,
    earlier: Sequence[ColumnOverride],
    column: Column,
) -> bool:
    """Whether an operator can add a column to a table as it is now."""
    override = ColumnOverride(declared.name, column.name, column, 0, "")
    try:
        check_is_new(declared.name, overridden_columns(declared, earlier), column.name)
        override_alteration(declared, stored, earlier, override)
    except ConnectorError:
        return False
    return True


def column_named(table: str, columns: Iterable[Column], name: str) -> Column:
    """Return the column with this name. Raises `ConfigError` if the table has no such column."""
    by_name = {column.name.lower(): column for column in columns}
    if (column := by_name.get(name.lower())) is None:
        names = [column.name for column in by_name.values()]
        raise column_unknown(table, name, one_of(names), nearest(name, names) or "Name one of them")
    return column


def _by_name(definition: TableDefinition) -> dict[str, Column]:
    return {column.name.lower(): column for column in definition.columns}
