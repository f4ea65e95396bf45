"""How the tables of a warehouse stand, for who asks in SQL (TBL-20)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from pyspark.sql import SparkSession

from connector import warehouse as places
from connector.clock import now_us
from connector.spark.storage.changelog import Changelog
from connector.spark.storage.delta_log import DeltaLog, folders_in
from connector.spark.storage.overrides import bounds_set
from connector.spark.storage.table import Table
from connector.state.overrides import bound_in_force
from connector.state.stream_progress import Progress
from connector.state.table_status import TableStatus, table_status

VIEW: Final = "lowmark_tables"
_STORED: Final = """
    name string, stream string, watermark bigint, max_staleness interval day to second, is_consistent_cut boolean,
    pending_batches bigint, as_of bigint, age interval day to second
"""
_SHOWN: Final = (
    *("name", "stream", "timestamp_micros(watermark) AS upsert_stream_apply_watermark", "max_staleness", "is_consistent_cut"),
    *("pending_batches", "timestamp_micros(as_of) AS as_of", "age"),
)


def register_status_view(spark: SparkSession, warehouse: str, *, view: str = VIEW, now: int | None = None) -> None:
    """Have the temporary view `view` show a row for each table of the warehouse to which something was applied, as they stand.

        name, stream                    of the table
        upsert_stream_apply_watermark   every change with a smaller commit timestamp is in the table; NULL: not known
        max_staleness                   the bound in force, an operator's before the declared one; NULL: none
        is_consistent_cut               whether the table is the source's state at that watermark
        pending_batches                 how many ingest batches are not wholly applied
        as_of, age                      all that had arrived in Kafka then is in the table, and how long ago that is; NULL: not known

    It shows the moment of this call: call it again for another. `now` is the time in microseconds, the clock's unless given. Raises
    `TableError` if a table or a changelog is damaged.
    """
    at = now_us() if now is None else now
    rows = [_row(status) for status in _statuses(spark, warehouse, at)]
    spark.createDataFrame(rows, _STORED).selectExpr(*_SHOWN).createOrReplaceTempView(view)


def _statuses(spark: SparkSession, warehouse: str, now: int) -> Iterator[TableStatus]:
    wished, progress = bounds_set(spark, warehouse), dict[str, Progress]()
    for name in folders_in(spark, places.tables_folder(warehouse)):
        path = places.table_folder(warehouse, name)
        if DeltaLog(spark, places.data(path)).newest() is None:
            continue
        table = Table.existing(spark, path)
        definition = table.layout.definition
        if (stream := definition.stream) not in progress:
            progress[stream] = Changelog(spark, places.changelog(warehouse, stream), stream).progress(with_frontier=False)
        yield table_status(definition, table.table_state(), progress[stream], now, max_staleness_s=bound_in_force(definition, wished))


def _row(status: TableStatus) -> tuple[object, ...]:
    bound = timedelta(seconds=status.max_staleness_s) if status.max_staleness_s else None
    age = None if status.as_of is None else timedelta(microseconds=status.now - status.as_of)
    known = (status.upsert_stream_apply_watermark, bound, status.is_consistent_cut, status.pending_batches, status.as_of, age)
    return (status.name, status.stream, *known)
