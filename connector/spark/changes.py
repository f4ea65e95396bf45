"""The changes of a stream as DataFrames (SUB-5)."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from connector import warehouse as places
from connector.clock import now_us
from connector.errors import (
    ErrorCode,
    OutOfRangeError,
    TableError,
    argument_invalid,
    check_name,
    check_time,
)
from connector.records.model import MAX_INT, MAX_TIMESTAMP, check_table
from connector.records.views import view_of_time
from connector.spark.jvm import check_live
from connector.spark.storage.changelog_reader import ChangelogReader, entries_of
from connector.warehouse import TABLE_SLOTS
from connector.watermarks.tracker import check_range

COLUMNS: Final = (
    *("table", "row_key", "commit_timestamp", "change_type", "source_cluster_id", "tie_breaker"),
    *("entries", "transaction", "change_sequence_number", "row_image", "resume_token"),
    *("estimated_low_watermark", "stream_partition", "kafka_partitions", "headers", "topic"),
    *("topic_id", "kafka_partition", "offset", "record_timestamp", "ingest_time", "ingest_batch"),
    "order_position",
)
"""The columns of a change. `docs/reference/on-disk-format.md` describes them."""

DEFAULT_CLOCK_SKEW_S: Final = 300


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
    max_clock_skew_s: int = DEFAULT_CLOCK_SKEW_S,
    now: int | None = None,
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
        max_clock_skew_s: The value of the stream. A trimmed changelog uses it for the oldest
            `start_commit`.
        now: The current time in microseconds. None: the time of the clock.

    Returns:
        The changes, with `COLUMNS`. Times are of the type TIMESTAMP.

    Raises:
        OutOfRangeError: The changelog was trimmed after the range began. `oldest` is the least
            `start_commit`.
        TableError: There is no such changelog, or it is damaged. With `complete`, also if the low
            watermark is not known.
        InvalidChangeError: `table` cannot be the name of a source table.
        ConfigError: The range begins in the future, or ends before it begins. Or another argument
            has a value that is not allowed.
        ConnectorError: The session has ended.
    """
    _check_arguments(warehouse, stream, start_commit=start_commit, end_commit=end_commit, now=now)
    _check_skew(max_clock_skew_s)
    at = now_us() if now is None else now
    check_range(start_commit, end_commit, at)
    changelog = existing_changelog(spark, warehouse, stream)
    progress = changelog.progress(with_frontier=False)
    low, rows = progress.low_watermark, changelog.visible_rows()
    if start_commit is not None:
        _check_not_trimmed(
            changelog, changelog.rows(pinned=True), start_commit, max_clock_skew_s, at
        )
    if complete:
        if low is None:
            raise TableError(
                ErrorCode.LOW_WATERMARK_UNKNOWN,
                f"It is not known up to which time stream {stream} is complete",
                "Not all stream partitions were announced in each Kafka partition",
                "Let the producers send heartbeats, or read the changes with complete=False",
                stream=stream,
            )
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
        ConfigError: The range begins in the future, or ends before it begins.
        TableError: There is no such changelog, or it is damaged.
        InvalidChangeError: `table` cannot be the name of a source table.
        ConfigError: The range begins in the future, or ends before it begins. Or another argument
            has a value that is not allowed.
        ConnectorError: The session has ended.
    """
    _check_arguments(warehouse, stream, start_commit=start_commit, end_commit=end_commit)
    check_range(start_commit, end_commit, now_us())
    changelog = existing_changelog(spark, warehouse, stream)
    return _selected(
        changelog, changelog.follow(), table, start_commit, end_commit, entries=entries
    )


def _check_arguments(warehouse: str, stream: str, **times: int | None) -> None:
    check_name("warehouse", warehouse)
    check_name("stream", stream)
    for name, time in times.items():
        check_time(name, time)


def _check_skew(max_clock_skew_s: object) -> None:
    is_whole = isinstance(max_clock_skew_s, int) and not isinstance(max_clock_skew_s, bool)
    if not (is_whole and 0 <= max_clock_skew_s <= MAX_INT):  # type: ignore[operator]
        allowed = f"a whole number of seconds from 0 to {MAX_INT}"
        raise argument_invalid("max_clock_skew_s", max_clock_skew_s, allowed)


def existing_changelog(spark: SparkSession, warehouse: str, stream: str) -> ChangelogReader:
    """The changelog of a stream. Raises `TableError` if it has no batch, and `ConnectorError` if
    the session has ended.
    """
    check_live(spark)
    changelog = ChangelogReader(spark, places.changelog(warehouse, stream), stream)
    if changelog.newest() is None:
        raise TableError(
            ErrorCode.CHANGELOG_EMPTY,
            f"There is no changelog of stream {stream} in {warehouse}",
            "The stream was not ingested yet, or its name or the warehouse is another one",
            "Check both, or ingest the stream first",
            stream=stream,
        )
    return changelog


def oldest_start(
    changelog: ChangelogReader, rows: DataFrame, max_clock_skew_s: int, now: int
) -> int | None:
    """The least commit timestamp from which no change was trimmed. None: nothing was trimmed.

    A trimmed change was ingested before the batches that are left. It arrived at most
    `max_clock_skew_s` before its commit timestamp.
    """
    newest = changelog.newest()
    trimmed_to = newest.trimmed_to if newest else 0
    if not trimmed_to:
        return None
    left = rows.where(F.col("ingest_batch") > trimmed_to).agg(
        F.expr("unix_micros(min(ingest_time))")
    )
    row = left.first()
    ingested = row[0] if row is not None and row[0] is not None else now
    return int(ingested) + max_clock_skew_s * 1_000_000 + 1


def _check_not_trimmed(
    changelog: ChangelogReader, rows: DataFrame, start_commit: int, max_clock_skew_s: int, now: int
) -> None:
    oldest = oldest_start(changelog, rows, max_clock_skew_s, now)
    if oldest is not None and start_commit < oldest:
        raise OutOfRangeError(
            ErrorCode.START_TOO_OLD,
            f"The changelog may lack changes from {view_of_time(start_commit)} on",
            "Batches older than changelog_retention were deleted",
            f"Use a start_commit of {view_of_time(oldest)} or later, or read the tables",
            oldest=oldest,
        )


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
        rows = rows.where(f"slot >= 0 AND slot < {TABLE_SLOTS}")
    else:
        check_table(table)
        rows = rows.where(changelog.of_source(table))
    if start_commit is not None:
        rows = rows.where(f"commit_timestamp >= timestamp_micros({start_commit}L)")
    if end_commit is not None:
        least = min(end_commit, MAX_TIMESTAMP)
        rows = rows.where(f"commit_timestamp <= timestamp_micros({least}L)")
    return entries_of(rows) if entries else rows.select(*(f"`{name}`" for name in COLUMNS))
