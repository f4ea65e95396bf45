"""What operators have set, on disk: `_connector/settings` in the warehouse, a row for each wish (TBL-20).

What holds at present stands in the newest commit as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from connector.lake.plain_table import newest_bookkeeping
from connector.lake.rows import append_next
from connector.wishes import BoundWish, bounds_in, saying

_BOUNDS: Final = {"table": "string", "max_staleness_s": "int64", "made_at": "int64", "made_by": "string"}


class Wishes:
    """What operators wish of a warehouse. Every method raises `TableError` where it cannot be kept or read."""

    def __init__(self, warehouse: str) -> None:
        self._settings = f"{warehouse}/_connector/settings"

    def bounds(self) -> dict[str, int]:
        """The bounds in seconds that outrank the configuration, by table."""
        return bounds_in(newest_bookkeeping(self._settings))

    def set_bound(self, wish: BoundWish) -> None:
        """Have a bound hold from now on, or that of the configuration again."""

        def following(said: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
            return asdict(wish), saying(wish, said)

        append_next(self._settings, _BOUNDS, following)
