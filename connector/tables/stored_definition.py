"""How a definition is stored in the properties of a Delta table, and the ids of its columns
(TBL-8).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from connector.errors import ConfigError
from connector.errors.definitions import definition_unreadable
from connector.records.model import MAX_LONG
from connector.records.ordering import OrderBy
from connector.tables.definition import (
    Column,
    OnUnreadable,
    TableDefinition,
    Versions,
    shows_null,
)
from connector.tables.keys import Key, KeyForm, KeyPart
from connector.tables.nested import ValueType, type_of
from connector.tables.values import DataType, Encoding

DEFINITION_PROPERTY: Final = "lowmark.definition"
COLUMN_IDS_PROPERTY: Final = "lowmark.columnIds"
REBUILD_PROPERTY: Final = "lowmark.rebuild"
"""The id of the rebuild that made the table."""
TABLE_ID_PROPERTY: Final = "lowmark.tableId"
"""The id of the table, which a rebuild keeps (EVO-1)."""
_OF_COLUMN: Final = tuple(field.name for field in fields(Column))


@dataclass(frozen=True, slots=True)
class ColumnIds:
    """The id of each column by its name. `next_id` was never used for a column.

    - `since` is for columns that were added to a table with rows. It has the last ingest batch
      before the column was defined (TBL-8).
    - `families` has a number for each family that ever had a register. An id and the number of a
      family are their position in the arrays of a stored state.
    - `dropped` has the types of dropped columns by name. Old files still have these columns
      (EVO-3).
    - `version` is that of the definition: it counts up with each change of the columns (EVO-1).
    """

    by_name: Mapping[str, int]
    next_id: int
    since: Mapping[str, int] = field(default_factory=dict)
    families: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, ValueType] = field(default_factory=dict)
    version: int = 1


NO_IDS: Final = ColumnIds({}, 0)


def families_of(definition: TableDefinition) -> list[str]:
    """Return the families with a register, that of the presence mark first."""
    families = (column.family for column in definition.columns)
    return list(dict.fromkeys((definition.marks, *families)))


def assign_ids(existing: ColumnIds, definition: TableDefinition, batch: int = 0) -> ColumnIds:
    """Assign ids to all columns: existing columns keep theirs, and new columns get ids from
    `next_id` on.

    The id of a removed column is never used again. New columns are defined after the ingest batch
    `batch`. All files of the table are new.
    """
    names = [column.name for column in definition.columns]
    new = [name for name in names if name not in existing.by_name]
    given = {
        **existing.by_name,
        **{name: existing.next_id + index for index, name in enumerate(new)},
    }
    since = {**existing.since, **dict.fromkeys(new, batch)}
    since_existing = {name: since[name] for name in names if since.get(name)}
    families = dict(existing.families)
    for family in families_of(definition):
        families.setdefault(family, len(families))
    is_changed = bool(existing.next_id) and names != list(existing.by_name)
    return ColumnIds(
        {name: given[name] for name in names},
        existing.next_id + len(new),
        since_existing,
        families,
        version=existing.version + is_changed,
    )


def tolerated(definition: TableDefinition, ids: ColumnIds = NO_IDS) -> tuple[int, ...]:
    """Return for each column the last ingest batch of which it may be unable to hold a value, which
    then stays in `_unmapped`: every batch with `on_unreadable = "null"` (EVO-11), else those before
    the column was defined (TBL-8). 0: each value must fit.
    """
    return tuple(
        MAX_LONG if shows_null(definition, column) else ids.since.get(column.name, 0)
        for column in definition.columns
    )


def made_strict(
    ids: ColumnIds, existing: TableDefinition, declared: TableDefinition, batch: int
) -> ColumnIds:
    """Return the ids of a table that changes its `on_unreadable` after the ingest batch `batch`.

    A column that showed NULL for values that it cannot hold, and does so no more, may have such
    values of earlier changes, like a column that was added later (EVO-11).
    """
    showed_null = {column.name for column in existing.columns if shows_null(existing, column)}
    strict = [
        column.name
        for column in declared.columns
        if column.name in showed_null and not shows_null(declared, column)
    ]
    return replace(ids, since={**ids.since, **dict.fromkeys(strict, batch)} if batch else ids.since)


def altered_ids(
    existing: ColumnIds, before: TableDefinition, after: TableDefinition, batch: int
) -> ColumnIds:
    """Assign ids as `assign_ids` does, for a table whose old files stay (EVO-3)."""
    kept = {column.name for column in after.columns}
    dropped = {c.name: c.type for c in before.columns if c.name not in kept}
    return replace(
        made_strict(assign_ids(existing, after, batch), before, after, batch),
        dropped={**existing.dropped, **dropped},
        version=existing.version + 1,
    )


def stored_column(column: Column) -> dict[str, Any]:
    """Return the column as JSON values. `column_of` is the inverse."""
    return {
        **{name: getattr(column, name) for name in _OF_COLUMN},
        "qualifier": base64.b64encode(column.qualifier).decode(),
        "type": str(column.type),
    }


def column_of(stored: Mapping[str, Any]) -> Column:
    """The inverse of `stored_column`. Raises `ValueError`, `TypeError`, `KeyError` or
    `ConfigError`.
    """
    typed = {
        "qualifier": base64.b64decode(stored["qualifier"]),
        "type": type_of(stored["type"]),
        "encoding": Encoding(stored["encoding"]),
        "on_unreadable": stored["on_unreadable"] and OnUnreadable(stored["on_unreadable"]),
    }
    return Column(**{**stored, **typed})


def stored_definition(definition: TableDefinition) -> dict[str, Any]:
    """Return the definition as JSON values. `definition_from` is the inverse."""
    key = definition.key
    return {
        "name": definition.name,
        "stream": definition.stream,
        "source": definition.source,
        "key": {
            "form": key.form,
            "delimiter": key.delimiter,
            "parts": [[part.name, part.type] for part in key.parts],
        },
        "columns": [stored_column(column) for column in definition.columns],
        "order": definition.order,
        "versions": definition.versions,
        "max_staleness_s": definition.max_staleness_s,
        "keep_unmapped": definition.keep_unmapped,
        "deletion_vectors": definition.deletion_vectors,
        "block_rows": definition.block_rows,
        "presence_family": definition.marks,
        "on_unreadable": definition.on_unreadable,
    }


def definition_from(values: Mapping[str, Any]) -> TableDefinition:
    """The inverse of `stored_definition`. Raises `KeyError`, `TypeError`, `AttributeError`,
    `ValueError` or `ConfigError`.
    """
    stored = dict(values)
    parts = tuple(KeyPart(name, DataType(type_)) for name, type_ in stored["key"]["parts"])
    stored["key"] = Key(parts, KeyForm(stored["key"]["form"]), stored["key"]["delimiter"])
    stored["columns"] = tuple(map(column_of, stored["columns"]))
    stored["order"], stored["versions"] = OrderBy(stored["order"]), Versions(stored["versions"])
    stored["on_unreadable"] = OnUnreadable(stored["on_unreadable"])
    return TableDefinition(**stored)


def to_properties(definition: TableDefinition, ids: ColumnIds) -> dict[str, str]:
    """Return the definition as properties: JSON in ASCII, equal for equal definitions."""
    assert set(ids.by_name) == {column.name for column in definition.columns}, (
        "ids are assigned to a definition as it stands"
    )
    return {
        DEFINITION_PROPERTY: json.dumps(stored_definition(definition)),
        COLUMN_IDS_PROPERTY: json.dumps(
            {
                "ids": ids.by_name,
                "next": ids.next_id,
                "added_after": ids.since,
                "families": ids.families,
                "dropped": {name: str(type_) for name, type_ in ids.dropped.items()},
                "version": ids.version,
            }
        ),
    }


def from_properties(properties: Mapping[str, str]) -> tuple[TableDefinition, ColumnIds]:
    """The inverse of `to_properties`. Raises `TableError` if it cannot be read."""
    try:
        definition = definition_from(json.loads(properties[DEFINITION_PROPERTY]))
        ids = json.loads(properties[COLUMN_IDS_PROPERTY])
        by_name = {str(name): int(id_) for name, id_ in ids["ids"].items()}
        since = {str(name): int(batch) for name, batch in ids.get("added_after", {}).items()}
        families = {str(name): int(number) for name, number in ids["families"].items()}
        dropped = {str(name): type_of(type_) for name, type_ in ids["dropped"].items()}
        return definition, ColumnIds(
            by_name, int(ids["next"]), since, families, dropped, int(ids["version"])
        )
    except (KeyError, TypeError, ValueError, AttributeError, ConfigError) as error:
        raise definition_unreadable(str(error)) from error
