"""The state of all tables of a warehouse as a SQL view (TBL-20)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from pyspark.sql import SparkSession

from connector import warehouse as paths
from connector.clock import now_us
from connector.errors import TableError
from connector.reports.table_status import TablePace, TableStatus, table_status
from connector.spark.jvm import check_live
from connector.spark.sql import literal_rows
from connector.spark.storage.changelog_reader import ChangelogReader
from connector.spark.storage.delta_log import DeltaLog
from connector.spark.storage.hadoop import names_in
from connector.spark.storage.table import Table
from connector.state.overrides import MAX_STALENESS, bound_in_force, seconds_at
from connector.state.stream_progress import Progress
from connector.state.table_state import TableState

VIEW: Final = "lowmark_tables"
_STORED: Final = """
    name string, stream string, watermark bigint, max_staleness interval day to second,
    is_consistent_cut boolean, pending_batches bigint, as_of bigint, age interval day to second
"""
_SHOWN: Final = (
    *("name", "stream", "timestamp_micros(watermark) AS upsert_stream_apply_watermark"),
    *("max_staleness", "is_consistent_cut", "pending_batches"),
    *("timestamp_micros(as_of) AS as_of", "age"),
)


def register_status_view(
    spark: SparkSession, warehouse: str, *, view: str = VIEW, now: int | None = None
) -> None:
    """Create a temporary view with one row for each table that has had an apply.

    The columns are `name`, `stream`, `upsert_stream_apply_watermark`, `max_staleness` (the bound in
    force), `is_consistent_cut`, `pending_batches`, `as_of` and `age`. An unknown value is NULL.
    The view shows the state at the time of this call.

    Example:
        register_status_view(spark, "/data/warehouse")
        spark.sql("SELECT name, age FROM lowmark_tables").show()

    Args:
        spark: Your session.
        warehouse: The folder of the warehouse.
        view: The name of the view.
        now: The current time in microseconds. None: the time of the clock.

    Returns:
        Nothing. The view is part of the session.

    Raises:
        TableError: A table or a changelog is damaged.
        ConnectorError: The session has ended.
    """
    check_live(spark)
    at = now_us() if now is None else now
    rows = [_row(status) for status in _statuses(spark, warehouse, at)]
    literal_rows(spark, rows, _STORED).selectExpr(*_SHOWN).createOrReplaceTempView(view)


def _statuses(spark: SparkSession, warehouse: str, now: int) -> Iterator[TableStatus]:
    overrides, changelogs = paths.overrides(warehouse), dict[str, ChangelogReader]()
    bounds = seconds_at(overrides, DeltaLog(spark, overrides).newest_stored(), MAX_STALENESS)
    for name in names_in(spark, paths.tables_folder(warehouse), folders=True):
        path = paths.table_folder(warehouse, name)
        if DeltaLog(spark, paths.data(path)).newest() is None:
            continue
        table = Table.existing(spark, path)
        definition = table.layout.definition
        if (stream := definition.stream) not in changelogs:
            changelogs[stream] = ChangelogReader(spark, paths.changelog(warehouse, stream), stream)
        state = table.table_state()
        yield table_status(
            definition,
            state,
            _progress(name, state, changelogs[stream]),
            now,
            pace=TablePace(bound_in_force(definition, bounds)),
        )


def _progress(name: str, table: TableState, changelog: ChangelogReader) -> Progress | None:
    newest = changelog.newest()
    try:
        table.check_changelog(
            name, newest.ingest_batch if newest else 0, newest.changelog_id if newest else None
        )
    except TableError:
        return None
    return changelog.progress(with_frontier=False)


def _row(status: TableStatus) -> tuple[object, ...]:
    bound = timedelta(seconds=status.max_staleness_s) if status.max_staleness_s else None
    age = None if status.as_of is None else timedelta(microseconds=status.now - status.as_of)
    return (
        *(status.name, status.stream, status.upsert_stream_apply_watermark, bound),
        *(status.is_consistent_cut, status.pending_batches, status.as_of, age),
    )
