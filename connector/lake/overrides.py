"""Overrides and closed stream partitions as Delta tables in the warehouse, with a row for each
action (TBL-20, WMK-8).

- `_connector/overrides` has the bounds and paces of tables. The newest commit has all that are in
  force.
- `_connector/closed_partitions` has the closed stream partitions. The newest commit has the
  greatest number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Final

from connector import warehouse as places
from connector.lake.plain_table import newest_stored
from connector.lake.small_tables import append_next, quoted, select
from connector.state.overrides import (
    ClosePartition,
    PaceOverride,
    StalenessOverride,
    bounds_in,
    metadata_with,
    paces_in,
)
from connector.state.reading import reading

_ENDS: Final = {
    **dict.fromkeys(("stream", "stream_partition", "reason", "made_by"), "string"),
    **dict.fromkeys(("number", "made_at"), "int64"),
}
_SETTINGS: Final = {
    **dict.fromkeys(("table", "made_by"), "string"),
    **dict.fromkeys(("max_staleness_s", "apply_every_s", "made_at"), "int64"),
}


class Overrides:
    """The overrides and closed stream partitions of a warehouse.

    Every method raises `TableError` if they cannot be written or read.
    """

    def __init__(self, warehouse: str) -> None:
        self._settings = places.overrides(warehouse)
        self._ends = places.closed_partitions(warehouse)

    def bounds(self) -> dict[str, int]:
        """The staleness overrides in seconds, by table. They have priority over the
        configuration.
        """
        with reading(self._settings):
            return bounds_in(newest_stored(self._settings))

    def paces(self) -> dict[str, int]:
        """The overrides of the time between two applies in seconds, by table. They have priority
        over the configuration (JOB-2).
        """
        with reading(self._settings):
            return paces_in(newest_stored(self._settings))

    def set(self, override: StalenessOverride | PaceOverride) -> None:
        """Store an override, or return to the value of the configuration."""

        def following(metadata: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
            return asdict(override), metadata_with(override, metadata)

        append_next(self._settings, _SETTINGS, following)

    def ends(self, stream: str, *, above: int) -> list[ClosePartition]:
        """The closed stream partitions of a stream with numbers greater than `above`, in order."""
        if int((newest_stored(self._ends) or {}).get("number", 0)) <= above:
            return []
        return [
            ClosePartition(**row)
            for row in select(
                self._ends, f"stream = {quoted(stream)} AND number > {above} ORDER BY number"
            )
        ]

    def add_closed(self, override: ClosePartition) -> None:
        """Close a stream partition. The action gets the next number, or its own if that is
        greater.
        """

        def following(metadata: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
            number = max(override.number, int(metadata.get("number", 0)) + 1)
            return asdict(replace(override, number=number)), {"number": number}

        append_next(self._ends, _ENDS, following)
