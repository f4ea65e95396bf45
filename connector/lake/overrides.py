"""The requests of operators to a running pipeline, as Delta tables with a row for each action
(TBL-20, WMK-8, ING-2, WRS-18, RUN-7). The newest commit of `_connector/overrides` has all bounds
and paces that are in force. In the other tables, it has the greatest number.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from connector import warehouse as paths
from connector.errors import check_note
from connector.errors.tables import erasure_secret_missing
from connector.lake.checks import explaining
from connector.lake.plain_table import newest_stored
from connector.lake.small_tables import append_next, quoted, select
from connector.lake.stores import reader_of, write_at
from connector.state.accepted_losses import AcceptLoss
from connector.state.damage import reading
from connector.state.erased_keys import ErasedKeys, EraseKey, erased_by
from connector.state.incomplete_transactions import ReleaseTransaction
from connector.state.overrides import (
    APPLY_EVERY,
    COLUMNS,
    MAX_STALENESS,
    NO_OVERRIDES,
    ClosePartition,
    Override,
    check_requests,
    columns_at,
    metadata_with,
    metadata_with_columns,
    seconds_at,
    stored_override,
)
from connector.stored import from_stored, to_stored
from connector.tables.alterations import ColumnOverride
from connector.write_streams.releases import ReleaseRows

_Request = TypeVar(
    "_Request", ClosePartition, ReleaseTransaction, ReleaseRows, AcceptLoss, EraseKey
)

_PATH_OF: Final = {
    ClosePartition: paths.closed_partitions,
    ReleaseTransaction: paths.released_transactions,
    ReleaseRows: paths.released_rows,
    AcceptLoss: paths.accepted_losses,
    EraseKey: paths.erased_keys,
}
_COLUMNS_OF: Final = {
    ClosePartition: {
        **dict.fromkeys(("stream", "stream_partition", "reason", "made_by"), "string"),
        **dict.fromkeys(("number", "made_at"), "int64"),
    },
    ReleaseTransaction: {
        **dict.fromkeys(("stream", "server_transaction_id", "reason", "made_by"), "string"),
        **dict.fromkeys(("number", "commit_timestamp", "made_at"), "int64"),
    },
    ReleaseRows: {
        **dict.fromkeys(("stream", "write_stream", "reason", "made_by"), "string"),
        **dict.fromkeys(("number", "commit_timestamp", "made_at"), "int64"),
    },
    AcceptLoss: {
        **dict.fromkeys(("stream", "table", "offsets", "reason", "made_by"), "string"),
        **dict.fromkeys(("number", "made_at"), "int64"),
    },
    EraseKey: {
        **dict.fromkeys(("stream", "source", "key_hash", "reason", "made_by"), "string"),
        **dict.fromkeys(("number", "erased_to", "made_at", "ended_at"), "int64"),
    },
}
_SETTINGS: Final = {
    **dict.fromkeys(("table", "made_by", COLUMNS), "string"),
    **dict.fromkeys((MAX_STALENESS, APPLY_EVERY, "made_at"), "int64"),
}


class Overrides:
    """The overrides and the requests of operators in a warehouse. With `kept_for_s`, what was read
    is used again for this time.

    Every method raises `TableError` if they cannot be written or read, or if the newest commit is
    not one of lowmark, or if their Delta log was removed: it is not known which are in force.
    Without their folder, there are none.
    """

    def __init__(self, warehouse: str, *, kept_for_s: float = 0.0) -> None:
        self._kept_for_s = kept_for_s
        self._kept: dict[str, tuple[float, Mapping[str, Any] | None]] = {}
        self._erased: dict[str, tuple[int, ErasedKeys]] = {}
        self.warehouse, self._settings = warehouse, paths.overrides(warehouse)

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

    def columns(self) -> dict[str, tuple[ColumnOverride, ...]]:
        """The columns that operators added or dropped, by table, until the configuration says the
        same (EVO-2).
        """
        return columns_at(self._settings, self._newest(self._settings))

    def alter(self, override: ColumnOverride) -> None:
        """Store a column override. An older one of the same column is replaced."""
        stored = json.dumps(stored_override(override))
        row = {"table": override.table, "made_at": override.made_at, "made_by": override.made_by}

        def following(metadata: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
            after = metadata_with_columns(self._settings, metadata, add=override)
            return {**row, COLUMNS: stored}, after

        append_next(self._settings, _SETTINGS, following, empty=NO_OVERRIDES)

    def settle(self, settled: Sequence[ColumnOverride], made_at: int, made_by: str) -> None:
        """Remove column overrides that the configuration agrees with. There must be some."""
        row = {"table": settled[0].table, "made_at": made_at, "made_by": made_by}

        def following(metadata: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
            after = metadata_with_columns(self._settings, metadata, remove=settled)
            return {**row, COLUMNS: "[]"}, after

        append_next(self._settings, _SETTINGS, following, empty=NO_OVERRIDES)
        self._kept.pop(self._settings, None)

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

    def requests(self, type_: type[_Request], stream: str, *, above: int) -> list[_Request]:
        """The requests of a stream of one kind with numbers greater than `above`, in order."""
        path = _PATH_OF[type_](self.warehouse)
        if _newest_number(path, self._newest(path)) <= above:
            return []
        rows = select(path, f"stream = {quoted(stream)} AND number > {above} ORDER BY number")
        with reading(path, "A row"):
            return [from_stored(type_, row) for row in rows]

    def erased(self, stream: str) -> ErasedKeys:
        """The erased rows of a stream (OPR-2). They are read again after a new erasure."""
        path = paths.erased_keys(self.warehouse)
        if not (number := _newest_number(path, self._newest(path))):
            return ErasedKeys()
        if (kept := self._erased.get(stream)) is None or kept[0] != number:
            records = self.requests(EraseKey, stream, above=0)
            kept = self._erased[stream] = (number, erased_by(self.erasure_secret(), records))
        return kept[1]

    def erasure_secret(self, new: bytes | None = None) -> bytes:
        """The secret of the hashes. A missing one becomes `new`, if nothing was erased yet."""
        path = paths.erasure_secret(self.warehouse)
        folder, _, name = path.rpartition("/")
        with explaining(path, "read"):
            if (stored := reader_of(folder)(name)) is not None:
                return bytes.fromhex(stored.decode())
            erased = paths.erased_keys(self.warehouse)
            if new is None or _newest_number(erased, self._newest(erased)):
                raise erasure_secret_missing(path)
            write_at(path, new.hex(), mode=0o600)
        return new

    def add(
        self,
        request: ClosePartition | ReleaseTransaction | ReleaseRows | AcceptLoss | EraseKey,
    ) -> None:
        """Store a request. It gets the next number, or its own if that is greater.

        Raises `ConfigError` if the reason or the author is not a text that can be stored.
        """
        path = _PATH_OF[type(request)](self.warehouse)
        check_note("why", request.reason)
        check_note("by", request.made_by)

        def following(metadata: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
            number = max(request.number, _newest_number(path, metadata) + 1)
            return to_stored(replace(request, number=number)), {"number": number}

        append_next(path, _COLUMNS_OF[type(request)], following, empty={"number": 0})

    def _newest(self, path: str) -> Mapping[str, Any] | None:
        now = time.monotonic()
        kept = self._kept.get(path)
        if kept is None or now >= kept[0] + self._kept_for_s:
            kept = self._kept[path] = (now, newest_stored(path))
        return kept[1]


def _newest_number(path: str, metadata: Mapping[str, Any] | None) -> int:
    """The number of the last request at `path`. 0: there was none."""
    check_requests(path, metadata, "number")
    with reading(path):
        return from_stored(int, (metadata or {"number": 0})["number"])
