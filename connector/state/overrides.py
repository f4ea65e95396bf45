"""Settings that an operator changes while the pipeline runs, without a restart (TBL-20, WMK-8).

Each override is stored as a row, with its author and time. The newest commit has all current
`max_staleness` and `apply_every` overrides. So commands, Spark and the pipeline can read them
without the rows. It has the columns that operators added or dropped, too (EVO-2). A closed stream
partition has a number. Ingest takes it with a batch, and the
progress of the batch stores the last number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from connector.errors import ConfigError, argument_invalid
from connector.errors.settings import setting_invalid
from connector.errors.tables import commit_foreign, commit_unreadable
from connector.records.model import MAX_INT
from connector.state.damage import or_move_away, reading
from connector.state.pace import pace_s
from connector.stored import from_stored
from connector.tables.alterations import ColumnOverride
from connector.tables.definition import TableDefinition
from connector.tables.stored_definition import column_of, stored_column

COLUMNS: Final = "columns"
MAX_STALENESS: Final = "max_staleness_s"
APPLY_EVERY: Final = "apply_every_s"
_LEAST_SECONDS: Final = {MAX_STALENESS: 0, APPLY_EVERY: 1}
NO_OVERRIDES: Final[Mapping[str, Any]] = {MAX_STALENESS: {}}
"""The metadata of the first commit, which makes the table."""


@dataclass(frozen=True, slots=True)
class Override:
    """A setting of a table that has priority over the configuration (TBL-20, JOB-2).

    - `setting` is `MAX_STALENESS` or `APPLY_EVERY`.
    - `seconds` is its value. None: the configuration applies again.
    - `made_at` is in microseconds.

    Raises:
        ConfigError: The number is not allowed.
    """

    setting: str
    table: str
    seconds: int | None
    made_at: int
    made_by: str

    def __post_init__(self) -> None:
        least = _LEAST_SECONDS[self.setting]
        # A number of another type would be stored, and could not be read.
        if self.seconds is None or (type(self.seconds) is int and least <= self.seconds <= MAX_INT):
            return
        raise setting_invalid(
            f"{self.setting.removesuffix('_s')} of table {self.table}",
            repr(self.seconds),
            f"a number of seconds from {least} to {MAX_INT}",
            "Set such a number, or None for the value of the configuration",
        )


@dataclass(frozen=True, slots=True)
class ClosePartition:
    """The end of a stream partition that does not end by itself (WMK-8). `made_at` is in
    microseconds.

    In a warehouse, numbers increase in the order in which they were made.
    """

    number: int
    stream: str
    stream_partition: str
    reason: str
    made_at: int
    made_by: str


def seconds_at(path: str, metadata: Mapping[str, Any] | None, setting: str) -> dict[str, int]:
    """Return the overrides of a setting in seconds, by table, from the metadata of the newest
    commit at `path` (TBL-20, JOB-2). None: there is no commit. Raises `TableError` if it is not
    known which are in force.
    """
    check_requests(path, metadata, MAX_STALENESS)
    with reading(path):
        return from_stored(dict[str, int], (metadata or {}).get(setting, {}))


def metadata_with(
    path: str, override: Override, metadata: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the metadata of the commit of an override after `metadata`, as in `seconds_at`."""
    overrides = {setting: seconds_at(path, metadata, setting) for setting in _LEAST_SECONDS}
    overrides[override.setting].pop(override.table, None)
    if override.seconds is not None:
        overrides[override.setting][override.table] = override.seconds
    others = {COLUMNS: columns} if (columns := (metadata or {}).get(COLUMNS)) else {}
    return others | {
        setting: seconds
        for setting, seconds in overrides.items()
        if seconds or setting == MAX_STALENESS
    }


def columns_at(
    path: str, metadata: Mapping[str, Any] | None
) -> dict[str, tuple[ColumnOverride, ...]]:
    """Return the column overrides by table, in the order in which they were made (EVO-2), as
    `seconds_at`.
    """
    check_requests(path, metadata, MAX_STALENESS)
    try:
        with reading(path):
            tables = from_stored(dict[str, list[_Stored]], (metadata or {}).get(COLUMNS, {}))
            return {
                table: tuple(stored.override_of(table) for stored in overrides)
                for table, overrides in tables.items()
            }
    except ConfigError as error:
        cause, remedy = str(error), or_move_away(path)
        raise commit_unreadable(path, "The metadata of the newest commit", cause, remedy) from error


def metadata_with_columns(
    path: str,
    metadata: Mapping[str, Any] | None,
    *,
    add: ColumnOverride | None = None,
    remove: Iterable[ColumnOverride] = (),
) -> dict[str, Any]:
    """Return the metadata of the commit that adds a column override or removes some. A new one
    replaces an older one of the same column.
    """
    removed, tables = list(remove), columns_at(path, metadata)
    if add is not None:
        removed += [o for o in tables.get(add.table, ()) if o.name.lower() == add.name.lower()]
        tables[add.table] = (*tables.get(add.table, ()), add)
    columns = {
        table: [stored_override(o) for o in overrides if o not in removed]
        for table, overrides in tables.items()
    }
    columns = {table: overrides for table, overrides in columns.items() if overrides}
    others = {name: value for name, value in (metadata or NO_OVERRIDES).items() if name != COLUMNS}
    return {**others, **({COLUMNS: columns} if columns else {})}


def stored_override(override: ColumnOverride) -> dict[str, Any]:
    """Return a column override as JSON values, without its table."""
    column = override.column and stored_column(override.column)
    return {
        "name": override.name,
        "column": column,
        "made_at": override.made_at,
        "made_by": override.made_by,
        **({"only_default": True} if override.only_default else {}),
    }


@dataclass(frozen=True, slots=True)
class _StoredColumn:
    """A column, as `stored_column` makes it."""

    name: str
    family: str
    qualifier: str
    type: str
    encoding: str
    required: bool
    default: str | None
    on_unreadable: str | None


@dataclass(frozen=True, slots=True)
class _Stored:
    """A column override, as `stored_override` makes it."""

    name: str
    column: _StoredColumn | None
    made_at: int
    made_by: str
    only_default: bool = False

    def override_of(self, table: str) -> ColumnOverride:
        column = None if self.column is None else column_of(asdict(self.column))
        return ColumnOverride(
            table, self.name, column, self.made_at, self.made_by, self.only_default
        )


def check_requests(path: str, metadata: Mapping[str, Any] | None, key: str) -> None:
    """Raise `TableError` if the newest commit at `path` lacks `key`, which every commit of lowmark
    has there. None: there is no table.

    Such a commit is damaged, or of another program. It must not count as "no overrides": the next
    one would make that permanent.
    """
    if metadata is not None and key not in metadata:
        raise commit_foreign(path, "", "lowmark", or_move_away(path))


def check_bound(max_staleness_s: float | None) -> None:
    """Raise `ConfigError` if the bound of a read is negative or infinite (TBL-16)."""
    if max_staleness_s is not None and not 0 <= max_staleness_s < math.inf:
        allowed = "a number of seconds, at least 0, or None for the bound of the table"
        raise argument_invalid("max_staleness_s", max_staleness_s, allowed)


def bound_in_force(table: TableDefinition, seconds: Mapping[str, int]) -> int | None:
    """Return the `max_staleness` in seconds. None and 0: no bound (TBL-16)."""
    return seconds.get(table.name, table.max_staleness_s)


def pace_in_force(
    table: TableDefinition, bounds: Mapping[str, int], paces: Mapping[str, int]
) -> float:
    """Return the time between two applies of a table in seconds (JOB-2)."""
    return pace_s(paces.get(table.name, table.apply_every_s), bound_in_force(table, bounds))


def bounds_in_force(
    tables: Iterable[TableDefinition], seconds: Mapping[str, int]
) -> dict[str, int]:
    """Return the `max_staleness` in seconds of every table that has one."""
    return {table.name: bound for table in tables if (bound := bound_in_force(table, seconds))}
