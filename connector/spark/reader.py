"""Reads tables with Spark: as they are if they are fresh enough, else merged with the unapplied
changes (TBL-16).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import MapType

from connector import warehouse as places
from connector.clock import now_us
from connector.errors import (
    ConnectorError,
    ErrorCode,
    TableError,
    WriterConflictError,
    argument_invalid,
    check_name,
    check_time,
)
from connector.lake.jobs import History
from connector.records.model import MAX_LONG
from connector.records.views import view_of_time
from connector.spark.apply.blocked_rows import Holding
from connector.spark.apply.flatten import flatten_entries
from connector.spark.apply.frames import keep_on
from connector.spark.apply.merge import merged_view
from connector.spark.apply.select import not_merged, select_changes
from connector.spark.apply.statistics import analyze_once, check_changelog
from connector.spark.failures import cause_of
from connector.spark.jvm import check_live
from connector.spark.storage.changelog_reader import ChangelogReader
from connector.spark.storage.delta_log import DeltaLog
from connector.spark.storage.maintenance import FILE_RETENTION
from connector.spark.storage.table import Table
from connector.state.damage import foreign_table, reading
from connector.state.jobs import CutRecord, Job, JobKind, cut_of_another_table
from connector.state.overrides import bound_in_force, bounds_at, check_bound
from connector.state.stream_progress import Progress
from connector.state.table_state import TableState
from connector.tables.column_names import BOOKKEEPING

_OF_CUT: Final = ("stream", "low_watermark", "to_batch", "revision", "merged", "recorded_at")


@dataclass(frozen=True, slots=True)
class SparkRead:
    """The rows of a table, without its internal columns, and their freshness.

    For example, `read.rows.where("status = 'open'").show()`.

    Attributes:
        rows: The rows, as a lazy DataFrame.
        as_of: The rows contain everything that had arrived in Kafka at this time, in microseconds.
            None: not known.
        to_batch: The last ingest batch that the rows may contain.
        low_watermark: If `is_consistent_cut`, the rows are the source's state at this time of the
            source, in microseconds.
        is_consistent_cut: Whether the rows are a consistent cut.
        changes: How many changes were merged for this read alone. None: the table is shown as it
            is.
    """

    rows: DataFrame
    as_of: int | None
    to_batch: int
    low_watermark: int | None
    is_consistent_cut: bool
    changes: int | None = None


def table_path(warehouse: str, name: str) -> str:
    """The folder with a table's rows in a warehouse (TBL-22)."""
    return places.table(warehouse, name)


def read_table(
    spark: SparkSession,
    warehouse: str,
    name: str,
    *,
    max_staleness_s: float | None = None,
    allow_stale: bool = False,
    now: int | None = None,
    add_job: Callable[[Job], None] | None = None,
) -> SparkRead:
    """Read a table that is at most `max_staleness_s` old, or merge it with everything that was
    ingested.

    A merge does not change the table. A merge, also a failed one, is recorded as a job in the
    history (TBL-19, JOB-1). The job measures this call: the statistics of the changes and the plan.
    Spark computes the rows later, each time you use them. If the history cannot be written, for
    example without write access, the job is not recorded and the read continues.

    Example:
        read = read_table(spark, "/data/warehouse", "orders", max_staleness_s=600)
        read.rows.show()

    Args:
        spark: Your session. `check_session` says whether it is suitable.
        warehouse: The folder of the warehouse.
        name: The name of the table.
        max_staleness_s: The bound on the age of the rows, in seconds. Without it, an operator's
            staleness override applies, else the bound that the table declares (TBL-20). If there is
            no bound, or it is 0, the read always merges.
        allow_stale: Return the rows also if they are older than the bound.
        now: The current time in microseconds. None: the time of the clock.
        add_job: Called with the job, instead of writing it to the history. Its errors are raised.

    Returns:
        The rows and their freshness.

    Raises:
        StaleTableError: Ingest is so far behind that even a merge is older than the bound, and
            `allow_stale` is false.
        TableError: There is no such table, or it is damaged, or it was not made from the changelog
            that is there.
        ConfigError: An argument has a value that is not allowed.
        WriterConflictError: A rebuild replaced the table during the read, or an apply removed what
            the read needs. Read again.
        ConnectorError: The session has ended.
    """
    check_name("warehouse", warehouse)
    check_name("name", name)
    check_bound(max_staleness_s)
    check_time("now", now)
    check_live(spark)
    table = Table.existing(spark, places.table_folder(warehouse, name))
    definition = table.layout.definition
    version, before = table.newest()
    changelog = ChangelogReader(
        spark, places.changelog(warehouse, definition.stream), definition.stream
    )
    check_changelog(table, before, changelog.newest())
    progress = changelog.progress(with_frontier=False)
    path = places.overrides(warehouse)
    bound = (
        bound_in_force(definition, bounds_at(path, DeltaLog(spark, path).newest_stored()))
        if max_staleness_s is None
        else max_staleness_s
    )
    at = now_us() if now is None else now
    if progress.suffices(before, bound, at):
        as_of = progress.as_of(before)
        found = SparkRead(
            _shown(table, version),
            as_of,
            before.to_batch,
            before.apply_watermark,
            before.is_consistent_cut,
        )
    else:
        job = Job(
            *(JobKind.RUNTIME_MERGE, name, at, at, before.complete_to_batch, progress.ingest_batch),
            watermark_before=before.apply_watermark,
            watermark_after=before.apply_watermark,
        )
        keep = add_job or _keeping(warehouse)
        found = _merged_in_a_job(table, version, before, changelog, progress, job, keep)
    if not allow_stale:
        progress.check_age(name, found.as_of, bound, at, before.blocked_rows)
    return found


def _keeping(warehouse: str) -> Callable[[Job], None]:
    """Adds a job to the history of the warehouse, if possible. A process may lack write access or
    `deltalake`.
    """

    def keep(job: Job) -> None:
        with suppress(TableError, ImportError):
            History(warehouse).add_job(job)

    return keep


def _merged_in_a_job(
    table: Table,
    version: int,
    before: TableState,
    changelog: ChangelogReader,
    progress: Progress,
    job: Job,
    keep: Callable[[Job], None],
) -> SparkRead:
    began = time.monotonic_ns()

    def keep_ended(**outcome: Any) -> None:
        lasted = (time.monotonic_ns() - began) // 1000
        keep(replace(job, ended_at=job.started_at + lasted, **outcome))

    try:
        merged = _merged_of_one_version(table, version, before, changelog, progress)
    except ConnectorError as error:
        keep_ended(error=error.problem)
        raise
    except Exception as error:
        keep_ended(error=cause_of(error))
        raise
    keep_ended(changes=merged.changes or 0)
    return merged


def _shown(table: Table, version: int) -> DataFrame:
    return table.rows(version).drop(*BOOKKEEPING)


def _merged_of_one_version(
    table: Table, version: int, before: TableState, changelog: ChangelogReader, progress: Progress
) -> SparkRead:
    try:
        return _merged(table, version, before, changelog, progress)
    except TableError as error:
        if table.newest()[0] == version:
            raise
        # If an apply removed data during the read, the error looks as if the data had never
        # existed.
        name = table.layout.definition.name
        raise WriterConflictError(
            ErrorCode.TABLE_CHANGED,
            f"An apply changed table {name} during the read",
            error.problem,
            "Read the table again",
            table=name,
        ) from error


def _merged(
    table: Table, version: int, before: TableState, changelog: ChangelogReader, progress: Progress
) -> SparkRead:
    layout, batch = table.layout, progress.ingest_batch
    source, after = layout.definition.source, before.complete_to_batch
    recent = changelog.recent_changes(source, after=after, to=batch)
    since = (
        recent.rows() if recent else changelog.changes(source, after=after, to=batch, pinned=True)
    )
    newest = changelog.newest()
    holding = None
    if newest is not None and layout.definition.block_rows:
        holding = Holding(table, changelog, before, newest, batch, horizon=progress.horizon)
    changes, waiting = not_merged(since, before, table.spark), None
    seen, pivoted, _ = (
        analyze_once(changes, layout, before, keep_on) if holding is None else (None, None, None)
    )
    if seen is None or pivoted is None or seen.unreadable:
        # The next apply makes dead letters of the changes that the table cannot hold.
        changes, seen, waiting = select_changes(
            changes, layout, before, holding, lambda letters: None
        )
        pivoted = keep_on(flatten_entries(changes, layout, all_plain=seen.all_plain))
    merged = seen.changes - seen.unreadable
    rows = (
        merged_view(table, pivoted, seen, before, version, keep_on)
        if merged
        else _shown(table, version)
    )
    # The changes lack batches that the changelog deleted during the read. Only this check detects
    # that.
    check_changelog(table, before, changelog.newest())
    highest, low = max(before.highest_applied, seen.highest), progress.consistent_to
    as_of = max(
        filter(
            None,
            (before.as_of, progress.freshness.of(batch if waiting is None else waiting.batch - 1)),
        ),
        default=None,
    )
    is_cut = (
        low is not None and highest < low and not (holding.dead if holding else before.blocked_rows)
    )
    return SparkRead(rows, as_of, batch, low, is_cut, merged)


def plain_rows(rows: DataFrame) -> tuple[dict[str, str], Iterator[tuple[Any, ...]]]:
    """The rows as `lake.plain_table` returns them, and Delta's type name of each column.

    A time is an integer in microseconds, a DATE is an integer in days. A map is a list of pairs.
    """
    types = {
        field.name: "map" if isinstance(field.dataType, MapType) else str(field.dataType.typeName())
        for field in rows.schema.fields
    }
    as_numbers = {
        "timestamp": "unix_micros(`{}`)",
        "date": "unix_date(`{}`)",
        "map": "map_entries(`{}`)",
    }
    plain = rows.selectExpr(
        *(as_numbers.get(type_, "`{}`").format(name) for name, type_ in types.items())
    )
    return types, (tuple(_plain(value) for value in row) for row in plain.toLocalIterator())


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [(name, _plain(cell)) for name, cell in value]
    return bytes(value) if isinstance(value, bytearray) else value


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Tables at one consistent cut (TBL-17).

    For example, `snapshot.rows["orders"]` has the rows of the table `orders`.

    Attributes:
        cut: The cut, with its low watermark in microseconds and the version of each table.
        rows: For each table its rows, without internal columns. They are the source's state at
            `cut.low_watermark`.
    """

    cut: CutRecord
    rows: Mapping[str, DataFrame]


def read_snapshot(
    spark: SparkSession,
    warehouse: str,
    *names: str,
    low_watermark: int | None = None,
    now: int | None = None,
) -> Snapshot:
    """Read several tables of one stream at the same consistent cut.

    All tables contain a transaction, or none does, provided that the source's watermarks were true.
    A cut is kept for `snapshot_retention`, counted from the time when a table left it. The newest
    cut of a stream is kept for at least seven days (TBL-23).

    Example:
        snapshot = read_snapshot(spark, "/data/warehouse", "orders", "customers")
        snapshot.rows["orders"].join(snapshot.rows["customers"], "customer_id").show()

    Args:
        spark: Your session.
        warehouse: The folder of the warehouse.
        names: The names of the tables, at least one.
        low_watermark: Read the newest cut with this low watermark or a smaller one, in
            microseconds. None: the newest cut.
        now: The current time in microseconds. None: the time of the clock.

    Returns:
        The cut, and the rows of each table.

    Raises:
        TableError: No such cut was recorded, for example because the tables belong to different
            streams. Or the cut has expired, or the table of the cuts is damaged.
        ConfigError: There is no name, or an argument has a value that is not allowed.
        ConnectorError: The session has ended.
    """
    check_name("warehouse", warehouse)
    if not names:
        raise argument_invalid("names", names, "the name of at least one table")
    for name in names:
        check_name("names", name)
    check_time("low_watermark", low_watermark)
    check_time("now", now)
    check_live(spark)
    cuts, found = _cuts(spark, places.cuts(warehouse)), None
    if cuts is not None:
        wanted = cuts.where(
            F.col("table").isin(*names)
            & (F.col("low_watermark") <= (MAX_LONG if low_watermark is None else low_watermark))
        )
        together = wanted.groupBy(*_OF_CUT).agg(
            F.map_from_entries(F.collect_list(F.struct("table", "version"))).alias("versions")
        )
        newest_first = [F.desc("low_watermark"), F.desc("to_batch"), F.desc("recorded_at")]
        found = together.where(F.size("versions") == len(set(names))).orderBy(*newest_first).first()
    if found is None:
        raise TableError(
            ErrorCode.CUT_MISSING,
            f"There is no consistent cut of {' and '.join(names)}",
            "The tables belong to several streams, or the low watermark is not known yet, or a"
            " table is not a consistent cut"
            + ("" if low_watermark is None else ", or the cut has expired"),
            "Look at the status of the tables. Until there is a cut, read each table alone"
            + ("" if low_watermark is None else ". A longer snapshot_retention keeps cuts longer"),
        )
    cut = CutRecord(**{**found.asDict(), "versions": dict(found["versions"])})
    assert cuts is not None
    newest = cuts.where(F.col("stream") == cut.stream).agg(F.max("recorded_at")).first()
    at = now_us() if now is None else now
    for name in names:
        _check_kept(
            spark,
            warehouse,
            name,
            cut,
            at,
            is_newest=newest is not None and newest[0] == cut.recorded_at,
        )
    return Snapshot(cut, {name: _at(spark, warehouse, name, cut.versions[name]) for name in names})


def _cuts(spark: SparkSession, path: str) -> DataFrame | None:
    """The recorded cuts. None: there are none yet. Raises `TableError` for another table."""
    log = DeltaLog(spark, path)
    if log.newest() is None:
        log.check_missing()
        return None
    cuts = spark.read.format("delta").load(path)
    lacking = {"table", *_OF_CUT, "version"}.difference(cuts.columns)
    if lacking:
        raise foreign_table(path, f"It lacks the columns {', '.join(sorted(lacking))}")
    return cuts


def _check_kept(
    spark: SparkSession, warehouse: str, name: str, cut: CutRecord, now: int, *, is_newest: bool
) -> None:
    """Raise `TableError` if files of the table at the cut may have been deleted, or if the table
    was made again since.
    """
    path, version = table_path(warehouse, name), cut.versions[name]
    log = DeltaLog(spark, path)
    following = log.at(version + 1)
    left_at = None if following is None else following.committed_at
    kept = (
        re.fullmatch(r"interval (\d+) seconds", log.properties().get(FILE_RETENTION, ""))
        if left_at
        else None
    )
    is_old = kept is not None and left_at is not None and now - left_at > int(kept[1]) * 1_000_000
    recorded = log.at(version)
    if recorded is not None and recorded.stored is not None:
        with reading(path):
            if not cut.is_state(TableState.from_json(recorded.stored)):
                raise cut_of_another_table(name, cut)
    if recorded is None or (is_old and not is_newest):
        raise TableError(
            ErrorCode.CUT_EXPIRED,
            f"The cut of table {name} at {view_of_time(cut.low_watermark)} has expired",
            "Old versions are kept for snapshot_retention. Files of this cut may be deleted",
            "Read a newer cut, or set a longer snapshot_retention",
            table=name,
        )


def _at(spark: SparkSession, warehouse: str, name: str, version: int) -> DataFrame:
    rows = (
        spark.read.format("delta").option("versionAsOf", version).load(table_path(warehouse, name))
    )
    return rows.drop(*BOOKKEEPING)
