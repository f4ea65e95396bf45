"""Reads the state of a stream and its tables from the newest commits, without a JVM (OPS-5,
TBL-20).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from connector import warehouse as paths
from connector.errors.changelog import frontier_missing
from connector.lake.plain_table import PlainTable, newest_foreign, newest_stored, open_table
from connector.lake.small_tables import select
from connector.lake.stores import text_at
from connector.state.damage import check_owner, reading
from connector.state.positions import from_text
from connector.state.stream_progress import Progress, with_freshness_file
from connector.state.table_state import TableState
from connector.stored import from_stored
from connector.tables.definition import TableDefinition
from connector.tables.stored_definition import (
    DEFINITION_PROPERTY,
    ColumnIds,
    from_properties,
)
from connector.warehouse import FRONTIER_SLOT
from connector.watermarks.frontier import UNKNOWN, Frontier


class LoggedProgress(NamedTuple):
    """The newest progress of a stream, and the id of its changelog. None: there is no changelog."""

    progress: Progress
    changelog_id: str | None

    def of_table(self, name: str, table: TableState) -> Progress:
        """The progress, for a table that was made from this changelog. Raises `TableError`
        (`CHANGELOG_REPLACED`) for every other one: the batches of another changelog say nothing of
        the table.
        """
        table.check_changelog(name, self.progress.ingest_batch, self.changelog_id)
        return self.progress


def logged_progress_of(
    warehouse: str, stream: str, *, with_frontier: bool = False
) -> LoggedProgress:
    """The newest progress of a stream, with its frontier only on request.

    If there is no changelog, it is the progress of a stream that was never ingested. Raises
    `TableError` if the changelog cannot be read.
    """
    path = paths.changelog(warehouse, stream)
    metadata = _newest_of(path, "stream", stream)
    if metadata is None:
        return LoggedProgress(Progress(), None)
    file = text_at(paths.freshness(warehouse, stream))
    with reading(path):
        progress = with_freshness_file(
            Progress.from_json(metadata["progress"], UNKNOWN), metadata, file
        )
        changelog_id = metadata.get("changelog_id")
        changelog_id = None if changelog_id is None else from_stored(str, changelog_id)
    if not with_frontier or not progress.ingest_batch:
        return LoggedProgress(progress, changelog_id)
    frontier = metadata.get("frontier")
    row = _frontier_row(path, stream, progress.ingest_batch) if frontier is None else ""
    with reading(path, "The newest frontier"):
        frontier = json.loads(row) if frontier is None else frontier
        progress = replace(progress, frontier=Frontier.from_json(frontier))
        return LoggedProgress(progress, changelog_id)


def progress_of(warehouse: str, stream: str, *, with_frontier: bool = False) -> Progress:
    """The progress alone, as `logged_progress_of`, of whichever changelog is there."""
    return logged_progress_of(warehouse, stream, with_frontier=with_frontier).progress


def _frontier_row(path: str, stream: str, ingest_batch: int) -> str:
    of_batch = f"slot = {FRONTIER_SLOT} AND ingest_batch = {ingest_batch}"
    rows = select(path, of_batch, "frontier")
    if not rows:
        raise frontier_missing(path, stream, ingest_batch)
    return str(rows[0]["frontier"])


def batch_with(warehouse: str, stream: str, ends: Mapping[int, int]) -> int | None:
    """The newest batch of a stream, if it is complete and covers the offsets below `ends`."""
    path = paths.changelog(warehouse, stream)
    metadata = _newest_of(path, "stream", stream)
    if metadata is None:
        return None
    with reading(path):
        newest = from_stored(int, metadata["ingest_batch"])
        logged = from_stored(dict[int, int], metadata["end_offsets"])
        is_complete = from_stored(int, metadata["progress"]["ingest_batch"]) >= newest
    is_covered = all(logged.get(number, 0) >= end for number, end in ends.items())
    return newest if is_complete and is_covered else None


def logged_ends(warehouse: str, stream: str) -> dict[int, int]:
    """The end offsets of the changelog of a stream, by Kafka partition, if there is one."""
    path = paths.changelog(warehouse, stream)
    metadata = _newest_of(path, "stream", stream)
    if metadata is None:
        return {}
    with reading(path):
        return from_stored(dict[int, int], metadata["end_offsets"])


def table_state_of(warehouse: str, stream: str, table: str) -> TableState:
    """The state of a table: that of its newest commit, or its newer position. Without a table, it
    is that of one without an apply.
    """
    return _newer_state(warehouse, stream, table, committed_state_of(warehouse, table))


def committed_state_of(warehouse: str, table: str) -> TableState:
    """The state of the newest commit alone, as `table_state_of`."""
    path = paths.table(warehouse, table)
    metadata = _newest_of(path, "table", table)
    with reading(path):
        return TableState() if metadata is None else TableState.from_json(metadata)


def state_of_version(warehouse: str, stream: str, name: str, table: PlainTable) -> TableState:
    """As `table_state_of`, of the version of a table that is open. A position counts for each
    version with its rows (ENG-7).
    """
    check_owner(table.path, "table", name, table.stored, partial(newest_foreign, table.path))
    with reading(table.path):
        committed = TableState.from_json(table.stored)
    return _newer_state(warehouse, stream, name, committed)


def _newer_state(warehouse: str, stream: str, table: str, committed: TableState) -> TableState:
    """The newer one of the state of a table's commit, which was read before, and its position."""
    position = from_text(text_at(paths.positions(warehouse, stream))).get(table)
    return committed if position is None else position.of_newest(committed)


def definition_of(warehouse: str, table: str) -> tuple[TableDefinition, ColumnIds] | None:
    """The definition in force of a table, and the ids of its columns. None: there is no table, or
    it has no definition.
    """
    path = paths.table(warehouse, table)
    if _newest_of(path, "table", table) is None:
        return None
    properties = open_table(path, table=table).properties
    return from_properties(properties) if DEFINITION_PROPERTY in properties else None


def _newest_of(path: str, what: str, name: str) -> Mapping[str, Any] | None:
    """The metadata of the newest commit, which must belong to `name`. None: there is no table."""
    metadata = newest_stored(path)
    if metadata is not None:
        check_owner(path, what, name, metadata, partial(newest_foreign, path))
    return metadata
