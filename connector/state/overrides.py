"""What an operator sets and ends while the pipeline runs, so that nothing has to be restarted (TBL-20, WMK-8).

Each wish is kept as a row, with who made it and when. The bounds and paces that hold at present stand in the newest commit as a whole,
so that they are read without looking at rows: by commands, by Spark and by the pipeline alike. The end of a stream partition is numbered:
ingest takes it with a batch, whose progress says up to which number it did.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from connector.state.pace import pace_s
from connector.tables.definition import TableDefinition


@dataclass(frozen=True, slots=True)
class StalenessOverride:
    """The `max_staleness` of a table, which outranks the configuration; None: that of the configuration holds again.

    `made_at` in microseconds.
    """

    table: str
    max_staleness_s: int | None
    made_at: int
    made_by: str


@dataclass(frozen=True, slots=True)
class PaceOverride:
    """The `apply_every` of a table, which outranks the configuration; None: that of the configuration holds again (JOB-2).

    `made_at` in microseconds.
    """

    table: str
    apply_every_s: int | None
    made_at: int
    made_by: str


@dataclass(frozen=True, slots=True)
class ClosePartition:
    """The end of a stream partition that does not end by itself (WMK-8). `made_at` in microseconds.

    Numbers rise in the order in which the wishes of a warehouse were made.
    """

    number: int
    stream: str
    stream_partition: str
    reason: str
    made_at: int
    made_by: str


def bounds_in(said: Mapping[str, Any] | None) -> dict[str, int]:
    """The bounds in seconds that outrank the configuration, by table, as the newest commit says them."""
    return _seconds_in(said, "max_staleness_s")


def paces_in(said: Mapping[str, Any] | None) -> dict[str, int]:
    """The times from apply to apply in seconds that outrank the configuration, by table, as the newest commit says them (JOB-2)."""
    return _seconds_in(said, "apply_every_s")


def saying(override: StalenessOverride | PaceOverride, said: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the commit of a wish says, after one that said `said`."""
    holding: dict[str, dict[str, int]] = {"max_staleness_s": bounds_in(said), "apply_every_s": paces_in(said)}
    name, wished = (
        ("max_staleness_s", override.max_staleness_s)
        if isinstance(override, StalenessOverride)
        else ("apply_every_s", override.apply_every_s)
    )
    holding[name].pop(override.table, None)
    if wished is not None:
        holding[name][override.table] = wished
    return {name: of_tables for name, of_tables in holding.items() if of_tables or name == "max_staleness_s"}


def _seconds_in(said: Mapping[str, Any] | None, name: str) -> dict[str, int]:
    return {str(table): int(seconds) for table, seconds in (said or {}).get(name, {}).items()}


def bound_in_force(table: TableDefinition, wished: Mapping[str, int]) -> int | None:
    """The bound of a table in seconds: an operator's before the configuration's. None and 0 are none (TBL-16)."""
    return wished.get(table.name, table.max_staleness_s)


def pace_in_force(table: TableDefinition, bounds: Mapping[str, int], paces: Mapping[str, int]) -> float:
    """The time from one apply of a table to the next in seconds: operators' bounds and paces before the configuration's (JOB-2)."""
    return pace_s(paces.get(table.name, table.apply_every_s), bound_in_force(table, bounds))


def bounds_in_force(tables: Iterable[TableDefinition], wished: Mapping[str, int]) -> dict[str, int]:
    """The bound of every table that has one."""
    return {table.name: bound for table in tables if (bound := bound_in_force(table, wished))}
