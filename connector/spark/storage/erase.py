"""Removes a row from a warehouse: from the changelog, its tables and all old versions (OPR-2).

Each step can be repeated. A process that dies between two steps is run again from the start.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from pyspark.sql import SparkSession

from connector import warehouse as paths
from connector.spark.storage.changelog import Changelog
from connector.spark.storage.delta_log import DeltaLog
from connector.spark.storage.hadoop import names_in
from connector.spark.storage.table import Table
from connector.tables.stored_definition import DEFINITION_PROPERTY
from connector.warehouse import REJECTED_SLOT, STAGED_SLOT, in_slot, table_slot


def rows_of(source: str, row_key: bytes, letters: Collection[str]) -> str:
    """Whether a row of a changelog has content of a row of a source table, as SQL. `letters` are
    the ids of its rejected records.
    """
    slots, key = in_slot(table_slot(source), STAGED_SLOT), f"X'{row_key.hex()}'"
    of_row = (
        f"({slots} AND kind IN ('change', 'staged') AND `table` = '{source}' AND row_key = {key})"
    )
    if not letters:
        return of_row
    ids = ", ".join(f"'{letter}'" for letter in sorted(letters))
    is_rejected = f"{in_slot(REJECTED_SLOT)} AND kind = 'rejected'"
    return f"({of_row} OR ({is_rejected} AND letter_id IN ({ids})))"


def tables_of(spark: SparkSession, warehouse: str, stream: str, source: str) -> dict[str, Table]:
    """The tables of a warehouse that are made from a source table, also those that the
    configuration does not have any more, by name. Raises `TableError` if one is damaged.
    """
    folder = paths.tables_folder(warehouse)
    tables = {
        name: Table.existing(spark, f"{folder}/{name}")
        for name in names_in(spark, folder, folders=True)
        if _is_table(DeltaLog(spark, paths.data(f"{folder}/{name}")))
    }
    return {
        name: table
        for name, table in tables.items()
        if (table.layout.definition.stream, table.layout.definition.source) == (stream, source)
    }


def has_row(table: Table, row_key: bytes) -> bool:
    """Whether the newest version of a table has a row, a remembered delete of it, or changes of it
    that wait for a dead letter.
    """
    _, state = table.newest()
    if any(row.row_key == row_key for row in state.blocked_rows):
        return True
    rows = [table.rows()]
    if table.tombstones.exist(state):
        rows.append(table.tombstones.rows(state, table.layout))
    where = table.is_row(row_key)
    return any(not each.where(where).isEmpty() for each in rows)


def erase_row(
    changelog: Changelog,
    tables: Collection[Table],
    row_key: bytes,
    where: str,
    key_hash: str,
    begun_at: int,
    on_step: Callable[[str], None] = lambda step: None,
) -> None:
    """Remove a row from a changelog, where `rows_of` is true, and from its tables.

    Neither ingest nor an apply may run at `begun_at` (µs). One that starts later loses nothing.
    Raises `TableError`, and `WriterConflictError` if another process writes: then it may be
    repeated.
    """
    changelog.erase(where, key_hash, begun_at, on_step)
    for table in tables:
        table.erase(row_key, begun_at, on_step)


def _is_table(log: DeltaLog) -> bool:
    """Whether a folder has a table of lowmark: one that another program made has no definition."""
    if log.newest() is None:
        log.check_missing()
        return False
    return DEFINITION_PROPERTY in log.properties()
