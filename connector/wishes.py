"""What an operator sets while the pipeline runs, beside the configuration, so that nothing has to be restarted (TBL-20).

Each wish is kept as a row, with who made it and when. What holds at present stands in the newest commit as a whole, so that it is
read without looking at rows: by commands, by Spark and by the pipeline alike.
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


def bounds_in(said: Mapping[str, Any] | None) -> dict[str, int]:
    """The bounds in seconds that outrank the configuration, by table, as the newest commit says them."""
    stored = (said or {}).get("max_staleness_s", {})
    return {str(table): int(bound) for table, bound in stored.items()}


def saying(wish: BoundWish, said: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the commit of a wish says, after one that said `said`."""
    bounds: dict[str, int | None] = {**bounds_in(said), wish.table: wish.max_staleness_s}
    return {"max_staleness_s": {table: bound for table, bound in bounds.items() if bound is not None}}


def bounds_in_force(tables: Iterable[TableDefinition], wished: Mapping[str, int]) -> dict[str, int]:
    """The bound of every table that has one: an operator's before the configuration's. 0 is none (TBL-16)."""
    return {table.name: bound for table in tables if (bound := wished.get(table.name, table.max_staleness_s))}
