"""What an operator sets and ends while the pipeline runs, so that nothing has to be restarted (TBL-20, WMK-8).

Each wish is kept as a row, with who made it and when. The bounds that hold at present stand in the newest commit as a whole, so that
they are read without looking at rows: by commands, by Spark and by the pipeline alike. The end of a stream partition is numbered:
ingest takes it with a batch, whose progress says up to which number it did.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from connector.tables import TableDefinition


@dataclass(frozen=True, slots=True)
class BoundWish:
    """The `max_staleness` of a table, which outranks the configuration; None: that of the configuration holds again.

    `made_at` in microseconds.
    """

    table: str
    max_staleness_s: int | None
    made_at: int
    made_by: str


@dataclass(frozen=True, slots=True)
class EndWish:
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
    stored = (said or {}).get("max_staleness_s", {})
    return {str(table): int(bound) for table, bound in stored.items()}


def saying(wish: BoundWish, said: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the commit of a wish says, after one that said `said`."""
    bounds: dict[str, int | None] = {**bounds_in(said), wish.table: wish.max_staleness_s}
    return {"max_staleness_s": {table: bound for table, bound in bounds.items() if bound is not None}}


def bound_in_force(table: TableDefinition, wished: Mapping[str, int]) -> int | None:
    """The bound of a table in seconds: an operator's before the configuration's. None and 0 are none (TBL-16)."""
    return wished.get(table.name, table.max_staleness_s)


def bounds_in_force(tables: Iterable[TableDefinition], wished: Mapping[str, int]) -> dict[str, int]:
    """The bound of every table that has one."""
    return {table.name: bound for table in tables if (bound := bound_in_force(table, wished))}
