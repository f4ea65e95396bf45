"""The changes of a stream as DataFrames (SUB-5)."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, SparkSession

from connector import warehouse as paths
from connector.clock import now_us
from connector.errors import check_time
from connector.errors.changelog import changelog_missing, low_watermark_unknown
from connector.errors.kafka import start_too_old
from connector.records.model import MAX_TIMESTAMP, check_table
from connector.records.views import view_of_time
from connector.spark.jvm import check_live
from connector.spark.storage.changelog_reader import ChangelogReader, entries_of
from connector.warehouse import IS_CHANGE
from connector.watermarks.tracker import check_range

COLUMNS: Final = (
    *("table", "row_key", "commit_timestamp", "change_type", "source_cluster_id", "tie_breaker"),
    *("entries", "transaction", "change_sequence_number", "row_image", "resume_token"),
    *("estimated_low_watermark", "stream_partition", "kafka_partitions", "headers", "topic"),
    *("topic_id", "kafka_partition", "offset", "record_timestamp", "ingest_time", "ingest_batch"),
    "order_position",
)
"""The columns of a change. `docs/reference/on-disk-format.md` describes them."""


def read_changes(
    spark: SparkSession,
    warehouse: str,
    stream: str,
    table: str | None = None,
    start_commit: int | None = None,
    end_commit: int | None = None,
    *,
    complete: bool = True,
    entries: bool = False,
) -> DataFrame:
    """The changes in the changelog of a stream, one row each. The rows have no order.

    The DataFrame shows the changelog as it is now. It stays readable for `file_retention`. A change
    that the producer sent twice has two rows. Rejected records have none.

    Example:
        read_changes(spark, "/data/warehouse", "shop", "orders").groupBy("change_type").count()

    Args:
        spark: Your session. `check_session` says whether it is suitable.
        warehouse: The folder of the warehouse.
        stream: The name of the stream.
        table: The name of a source table. Only its part of the changelog is read. None: all.
        start_commit: The least commit timestamp, in microseconds. None: there is no limit.
        end_commit: The greatest commit timestamp, in microseconds. None: there is no limit.
        complete: End below the low watermark. Each change up to there is a row, and all changes of
            a transaction are. False: return also what has arrived since.
        entries: Return one row for each entry of a change, with the columns of Bigtable's change
            log (TBL-4).

    Returns:
        The changes, with `COLUMNS`. Times are of the type TIMESTAMP.

    Raises:
        OutOfRangeError: The changelog was trimmed after the range began. `oldest` is the least
            `start_commit`.
        TableError: There is no such changelog, or it is damaged. With `complete`, also if the low
            watermark is not known.
        InvalidChangeError: `table` cannot be the name of a source table.
        ConfigError: A time is not a whole number of 64 bits.
        ConnectorError: The session has ended.
    """
    _check_range(start_commit, end_commit)
    changelog = existing_changelog(spark, warehouse, stream)
    progress = changelog.progress(with_frontier=False)
    low, rows = progress.low_watermark, changelog.visible_rows()
    oldest = changelog.trimmed_below()
    if start_commit is not None and start_commit < oldest:
        shown = str(view_of_time(start_commit)), str(view_of_time(oldest))
        raise start_too_old("The changelog", *shown, oldest)
    if complete:
        if low is None:
            raise low_watermark_unknown(stream)
        low = progress.releases.waits_below(low)
        end_commit = low - 1 if end_commit is None else min(low - 1, end_commit)
    return _selected(changelog, rows, table, start_commit, end_commit, entries=entries)


def stream_changes(
    spark: SparkSession,
    warehouse: str,
    stream: str,
    table: str | None = None,
    start_commit: int | None = None,
    end_commit: int | None = None,
    *,
    entries: bool = False,
) -> DataFrame:
    """The changes of a stream as a streaming DataFrame, for `writeStream`. Each change is a row as
    soon as it is in the changelog.

    The stream begins with the changes that the changelog has. Trimming and compaction do not
    disturb it. With its checkpoint, the query can stop for as long as `file_retention`. After that
    it fails, and does not leave out changes. It does not wait for the low watermark. The rows are
    those of `read_changes(..., complete=False)`, without the rows of buffered and pending write
    streams (WRS-22).

    Example:
        query = (
            stream_changes(spark, "/data/warehouse", "shop")
            .writeStream.format("delta").option("checkpointLocation", "/data/copy-checkpoint")
            .start("/data/copy")
        )

    Args:
        spark: Your session. `check_session` says whether it is suitable.
        warehouse: The folder of the warehouse.
        stream: The name of the stream.
        table: The name of a source table. None: all.
        start_commit: The least commit timestamp, in microseconds.
        end_commit: The greatest commit timestamp, in microseconds. The query does not end there.
        entries: Return one row for each entry of a change.

    Returns:
        The changes.

    Raises:
        ConfigError: The range begins in the future, or ends before it begins, or a time is not a
            whole number of 64 bits.
        TableError: There is no such changelog, or it is damaged.
        InvalidChangeError: `table` cannot be the name of a source table.
        ConnectorError: The session has ended.
    """
    _check_range(start_commit, end_commit)
    changelog = existing_changelog(spark, warehouse, stream)
    return _selected(
        changelog, changelog.follow(), table, start_commit, end_commit, entries=entries
    )


def _check_range(start_commit: int | None, end_commit: int | None) -> None:
    check_time("start_commit", start_commit)
    check_time("end_commit", end_commit)
    check_range(start_commit, end_commit, now_us())


def existing_changelog(spark: SparkSession, warehouse: str, stream: str) -> ChangelogReader:
    """The changelog of a stream. Raises `TableError` without a batch, or as `check_live`."""
    check_live(spark)
    changelog = ChangelogReader(spark, paths.changelog(warehouse, stream), stream)
    if changelog.newest() is None:
        raise changelog_missing(stream, warehouse)
    return changelog


def _selected(
    changelog: ChangelogReader,
    rows: DataFrame,
    table: str | None,
    start_commit: int | None,
    end_commit: int | None,
    *,
    entries: bool,
) -> DataFrame:
    if table is None:
        rows = rows.where(IS_CHANGE)
    else:
        check_table(table)
        rows = rows.where(changelog.of_source(table))
    if start_commit is not None:
        rows = rows.where(f"commit_timestamp >= timestamp_micros({start_commit}L)")
    if end_commit is not None:
        least = min(end_commit, MAX_TIMESTAMP)
        rows = rows.where(f"commit_timestamp <= timestamp_micros({least}L)")
    return entries_of(rows) if entries else rows.select(*(f"`{name}`" for name in COLUMNS))
