"""The requests of operators to a running pipeline, as Delta tables in the warehouse, with a row for
each action (TBL-20, WMK-8, ING-2, WRS-18).

- `_connector/overrides` has the bounds and paces of tables. The newest commit has all that are in
  force.
- `_connector/closed_partitions` has the closed stream partitions,
  `_connector/released_transactions` the released transactions, and `_connector/released_rows` the
  releases without their rejected rows. The newest commit has the greatest number.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from connector import warehouse as paths
from connector.errors import check_note
from connector.lake.plain_table import newest_stored
from connector.lake.small_tables import append_next, quoted, select
from connector.state.damage import reading
from connector.state.incomplete_transactions import ReleaseTransaction
from connector.state.overrides import (
    APPLY_EVERY,
    MAX_STALENESS,
    NO_OVERRIDES,
    ClosePartition,
    Override,
    check_requests,
    metadata_with,
    seconds_at,
)
from connector.stored import from_stored, to_stored
from connector.write_streams.releases import ReleaseRows

_Request = TypeVar("_Request", ClosePartition, ReleaseTransaction, ReleaseRows)

_ENDS: Final = {
    **dict.fromkeys(("stream", "stream_partition", "reason", "made_by"), "string"),
    **dict.fromkeys(("number", "made_at"), "int64"),
}
_RELEASES: Final = {
    **dict.fromkeys(("stream", "server_transaction_id", "reason", "made_by"), "string"),
    **dict.fromkeys(("number", "commit_timestamp", "made_at"), "int64"),
}
_ROW_RELEASES: Final = {
    **dict.fromkeys(("stream", "write_stream", "reason", "made_by"), "string"),
    **dict.fromkeys(("number", "commit_timestamp", "made_at"), "int64"),
}
_SETTINGS: Final = {
    **dict.fromkeys(("table", "made_by"), "string"),
    **dict.fromkeys((MAX_STALENESS, APPLY_EVERY, "made_at"), "int64"),
}

_NO_REQUESTS: Final = {"number": 0}


class Overrides:
    """The overrides, closed stream partitions, released transactions and released rows of a
    warehouse.

    Every method raises `TableError` if they cannot be written or read, or if the newest commit is
    not one of lowmark, or if their Delta log was removed: it is not known which overrides are in
    force. Without their folder, there are none.

    With `kept_for_s`, what was read is used again for this time.
    """

    def __init__(self, warehouse: str, *, kept_for_s: float = 0.0) -> None:
        self._kept_for_s = kept_for_s
        self._kept: dict[str, tuple[float, Mapping[str, Any] | None]] = {}
        self._settings = paths.overrides(warehouse)
        self._ends = paths.closed_partitions(warehouse)
        self._releases = paths.released_transactions(warehouse)
        self._row_releases = paths.released_rows(warehouse)

    def bounds(self) -> dict[str, int]:
        """The staleness overrides in seconds, by table. They have priority over the
        configuration.
        """
        return seconds_at(self._settings, self._newest(self._settings), MAX_STALENESS)

    def paces(self) -> dict[str, int]:
        """The overrides of the time between two applies in seconds, by table. They have priority
        over the configuration (JOB-2).
        """
        return seconds_at(self._settings, self._newest(self._settings), APPLY_EVERY)

    def set(self, override: Override) -> None:
        """Store an override, or return to the value of the configuration."""
        row = {
            "table": override.table,
            override.setting: override.seconds,
            "made_at": override.made_at,
            "made_by": override.made_by,
        }

        def following(metadata: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
            return row, metadata_with(self._settings, override, metadata)

        append_next(self._settings, _SETTINGS, following, empty=NO_OVERRIDES)

    def ends(self, stream: str, *, above: int) -> list[ClosePartition]:
        """The closed stream partitions of a stream with numbers greater than `above`, in order."""
        return self._requests(self._ends, ClosePartition, stream, above)

    def add_closed(self, override: ClosePartition) -> None:
        """Close a stream partition. The action gets the next number, or its own if that is greater.

        Raises `ConfigError` if the reason or the author is not a text that can be stored.
        """
        self._add_request(self._ends, _ENDS, override)

    def releases(self, stream: str, *, above: int) -> list[ReleaseTransaction]:
        """The released transactions of a stream with numbers greater than `above`, in order."""
        return self._requests(self._releases, ReleaseTransaction, stream, above)

    def add_release(self, release: ReleaseTransaction) -> None:
        """Release a transaction. Numbers and errors are those of `add_closed`."""
        self._add_request(self._releases, _RELEASES, release)

    def row_releases(self, stream: str, *, above: int) -> list[ReleaseRows]:
        """The releases of a stream without their rejected rows, with numbers greater than `above`,
        in order (WRS-18).
        """
        return self._requests(self._row_releases, ReleaseRows, stream, above)

    def add_row_release(self, release: ReleaseRows) -> None:
        """Release rows without the rejected ones. Numbers and errors are those of `add_closed`."""
        self._add_request(self._row_releases, _ROW_RELEASES, release)

    def _requests(
        self, path: str, type_: type[_Request], stream: str, above: int
    ) -> list[_Request]:
        if _newest_number(path, self._newest(path)) <= above:
            return []
        rows = select(path, f"stream = {quoted(stream)} AND number > {above} ORDER BY number")
        with reading(path, "A row"):
            return [from_stored(type_, row) for row in rows]

    def _add_request(
        self,
        path: str,
        columns: Mapping[str, str],
        request: ClosePartition | ReleaseTransaction | ReleaseRows,
    ) -> None:
        check_note("why", request.reason)
        check_note("by", request.made_by)

        def following(metadata: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
            number = max(request.number, _newest_number(path, metadata) + 1)
            return to_stored(replace(request, number=number)), {"number": number}

        append_next(path, columns, following, empty=_NO_REQUESTS)

    def _newest(self, path: str) -> Mapping[str, Any] | None:
        now = time.monotonic()
        kept = self._kept.get(path)
        if kept is None or now >= kept[0] + self._kept_for_s:
            kept = self._kept[path] = (now, newest_stored(path))
        return kept[1]


def _newest_number(path: str, metadata: Mapping[str, Any] | None) -> int:
    """The number of the last request at `path`. 0: there was none."""
    if metadata is None:
        return 0
    check_requests(path, metadata, "number")
    with reading(path):
        return from_stored(int, metadata["number"])
