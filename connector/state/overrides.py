"""Settings that an operator changes while the pipeline runs, without a restart (TBL-20, WMK-8).

Each override is stored as a row, with its author and time. The newest commit has all current
`max_staleness` and `apply_every` overrides. So commands, Spark and the pipeline can read them
without the rows. A closed stream partition has a number. Ingest takes it with a batch, and the
progress of the batch stores the last number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from connector.errors import argument_invalid
from connector.errors.settings import setting_invalid
from connector.errors.tables import commit_foreign
from connector.records.model import MAX_INT
from connector.state.damage import or_move_away, reading
from connector.state.pace import pace_s
from connector.stored import from_stored
from connector.tables.definition import TableDefinition


@dataclass(frozen=True, slots=True)
class StalenessOverride:
    """The `max_staleness` of a table. It has priority over the configuration.

    None: the configuration applies again. `made_at` is in microseconds. Raises `ConfigError` for a
    negative number.
    """

    table: str
    max_staleness_s: int | None
    made_at: int
    made_by: str

    def __post_init__(self) -> None:
        _check_seconds("max_staleness", self.table, self.max_staleness_s, 0)


@dataclass(frozen=True, slots=True)
class PaceOverride:
    """The `apply_every` of a table. It has priority over the configuration (JOB-2).

    None: the configuration applies again. `made_at` is in microseconds. Raises `ConfigError` for a
    number below 1.
    """

    table: str
    apply_every_s: int | None
    made_at: int
    made_by: str

    def __post_init__(self) -> None:
        _check_seconds("apply_every", self.table, self.apply_every_s, 1)


def _check_seconds(setting: str, table: str, seconds: object, least: int) -> None:
    # A number of another type would be stored, and could not be read.
    if seconds is None or (type(seconds) is int and least <= seconds <= MAX_INT):
        return
    raise setting_invalid(
        f"{setting} of table {table}",
        repr(seconds),
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


def bounds_at(path: str, metadata: Mapping[str, Any] | None) -> dict[str, int]:
    """Return the `max_staleness` overrides in seconds, by table, from the metadata of the newest
    commit at `path` (TBL-20). None: there is no commit. Raises `TableError` if it is not known
    which are in force.
    """
    check_requests(path, metadata, "max_staleness_s")
    with reading(path):
        return bounds_in(metadata)


def bounds_in(metadata: Mapping[str, Any] | None) -> dict[str, int]:
    """Return the `max_staleness` overrides in seconds, by table, from the metadata of the newest
    commit. None: there is no commit. Raises `ValueError` if they are not numbers.
    """
    return _seconds_in(metadata, "max_staleness_s")


def paces_in(metadata: Mapping[str, Any] | None) -> dict[str, int]:
    """Return the `apply_every` overrides in seconds, by table, from the metadata of the newest
    commit (JOB-2). As `bounds_in`.
    """
    return _seconds_in(metadata, "apply_every_s")


def metadata_with(
    override: StalenessOverride | PaceOverride, metadata: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the metadata of the commit of an override. `metadata` is the metadata of the commit
    before; None: there is no commit. Raises as `bounds_in`.
    """
    overrides: dict[str, dict[str, int]] = {
        "max_staleness_s": bounds_in(metadata),
        "apply_every_s": paces_in(metadata),
    }
    name, seconds = (
        ("max_staleness_s", override.max_staleness_s)
        if isinstance(override, StalenessOverride)
        else ("apply_every_s", override.apply_every_s)
    )
    overrides[name].pop(override.table, None)
    if seconds is not None:
        overrides[name][override.table] = seconds
    return {
        name: of_tables
        for name, of_tables in overrides.items()
        if of_tables or name == "max_staleness_s"
    }


def metadata_without_overrides() -> dict[str, Any]:
    """Return the metadata of the first commit, which makes the table and has no override."""
    return {"max_staleness_s": {}}


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


def _seconds_in(metadata: Mapping[str, Any] | None, name: str) -> dict[str, int]:
    return from_stored(dict[str, int], (metadata or {}).get(name, {}))


def bound_in_force(table: TableDefinition, seconds: Mapping[str, int]) -> int | None:
    """Return the `max_staleness` of a table in seconds: the override, or the configuration. None
    and 0 mean no bound (TBL-16).
    """
    return seconds.get(table.name, table.max_staleness_s)


def pace_in_force(
    table: TableDefinition, bounds: Mapping[str, int], paces: Mapping[str, int]
) -> float:
    """Return the time between two applies of a table in seconds: the override, or the configuration
    (JOB-2).
    """
    return pace_s(paces.get(table.name, table.apply_every_s), bound_in_force(table, bounds))


def bounds_in_force(
    tables: Iterable[TableDefinition], seconds: Mapping[str, int]
) -> dict[str, int]:
    """Return the `max_staleness` in seconds of every table that has one."""
    return {table.name: bound for table in tables if (bound := bound_in_force(table, seconds))}
