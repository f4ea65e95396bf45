"""What operators have set and ended, on disk: Delta tables under `_connector/` in the warehouse, a row for each wish (TBL-20, WMK-8).

_connector/overrides   the bounds and paces of tables; those that hold at present stand in the newest commit as a whole
_connector/closed_partitions       the ends of stream partitions; the newest commit says the greatest number
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Final

from connector import warehouse as places
from connector.lake.plain_table import newest_stored
from connector.lake.small_tables import append_next, quoted, select
from connector.state.overrides import ClosePartition, PaceOverride, StalenessOverride, bounds_in, paces_in, saying

_ENDS: Final = {
    **dict.fromkeys(("stream", "stream_partition", "reason", "made_by"), "string"),
    **dict.fromkeys(("number", "made_at"), "int64"),
}
_SETTINGS: Final = {
    **dict.fromkeys(("table", "made_by"), "string"),
    **dict.fromkeys(("max_staleness_s", "apply_every_s", "made_at"), "int64"),
}


class Overrides:
    """What operators wish of a warehouse. Every method raises `TableError` where it cannot be kept or read."""

    def __init__(self, warehouse: str) -> None:
        self._settings = places.overrides(warehouse)
        self._ends = places.closed_partitions(warehouse)

    def bounds(self) -> dict[str, int]:
        """The bounds in seconds that outrank the configuration, by table."""
        return bounds_in(newest_stored(self._settings))

    def paces(self) -> dict[str, int]:
        """The times from apply to apply in seconds that outrank the configuration, by table (JOB-2)."""
        return paces_in(newest_stored(self._settings))

    def set(self, override: StalenessOverride | PaceOverride) -> None:
        """Have a bound or a pace hold from now on, or that of the configuration again."""

        def following(said: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
            return asdict(override), saying(override, said)

        append_next(self._settings, _SETTINGS, following)

    def ends(self, stream: str, *, above: int) -> list[ClosePartition]:
        """The ends wished for in a stream whose numbers are greater than `above`, in their order."""
        if int((newest_stored(self._ends) or {}).get("number", 0)) <= above:
            return []
        return [ClosePartition(**row) for row in select(self._ends, f"stream = {quoted(stream)} AND number > {above} ORDER BY number")]

    def add_closed(self, override: ClosePartition) -> None:
        """Have a stream partition end. The wish gets the next number, at least its own."""

        def following(said: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
            number = max(override.number, int(said.get("number", 0)) + 1)
            return asdict(replace(override, number=number)), {"number": number}

        append_next(self._ends, _ENDS, following)
