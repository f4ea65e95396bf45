"""Reads tables with Spark: as they are if they are fresh enough, else merged with the unapplied
changes (TBL-16).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    MapType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from connector import warehouse as paths
from connector.clock import now_us
from connector.errors import ConnectorError, TableError, argument_invalid, check_time
from connector.errors.tables import cut_expired, cut_missing, table_changed
from connector.lake.jobs import History
from connector.records.model import MAX_LONG
from connector.records.views import EPOCH, view_of_time
from connector.spark.apply.blocked_rows import BlockedRows
from connector.spark.apply.flatten import flatten_entries
from connector.spark.apply.frames import checkpointed
from connector.spark.apply.merge import merged_view
from connector.spark.apply.select import not_merged, select_changes
from connector.spark.apply.statistics import FlatChanges, analyze, check_changelog
from connector.spark.apply.truncation import not_truncated, truncated_view, truncation_of
from connector.spark.failures import cause_of
from connector.spark.jvm import check_live
from connector.spark.sql import micros
from connector.spark.storage.changelog_reader import ChangelogReader
from connector.spark.storage.delta_log import DeltaLog
from connector.spark.storage.maintenance import FILE_RETENTION
from connector.spark.storage.table import Table
from connector.state.accepted_losses import is_unconfirmed
from connector.state.damage import foreign_table, reading
from connector.state.jobs import CutRecord, Job, JobKind, cut_of_another_table
from connector.state.overrides import MAX_STALENESS, bound_in_force, check_bound, seconds_at
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
        changes: How many changes were merged for this read alone. A truncation is one. None: the
            table is shown as it is.
    """

    rows: DataFrame
    as_of: int | None
    to_batch: int
    low_watermark: int | None
    is_consistent_cut: bool
    changes: int | None = None


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

    A merge does not change the table. It is recorded as a job (TBL-19, JOB-1), if the history can
    be written. The job measures this call. Spark computes the rows later, each time you use them.

    Example:
        read = read_table(spark, "/data/warehouse", "orders", max_staleness_s=600)
        read.rows.show()

    Args:
        spark: Your session. `check_session` says whether it is suitable.
        warehouse: The folder of the warehouse.
        name: The name of the table.
        max_staleness_s: The bound on the age of the rows, in seconds. None: an operator's staleness
            override, else the bound that the table declares (TBL-20). Without a bound, or with 0,
            the read always merges.
        allow_stale: Return the rows also if they are older than the bound.
        now: The current time in microseconds. None: the time of the clock.
        add_job: Called with the job, instead of writing it to the history. Its errors are raised.

    Returns:
        A `SparkRead`: the rows, as a lazy DataFrame `rows`, and their freshness: `as_of`,
        `to_batch`, `low_watermark`, `is_consistent_cut` and `changes`.

    Raises:
        StaleTableError: Ingest is so far behind that even a merge is older than the bound, and
            `allow_stale` is false.
        TableError: There is no such table, or it is damaged, or it is of another changelog.
        ConfigError: `max_staleness_s` has a value that is not allowed.
        WriterConflictError: A rebuild replaced the table during the read, or an apply removed what
            the read needs. Read again.
        ConnectorError: The session has ended.
    """
    check_bound(max_staleness_s)
    check_live(spark)
    at = now_us() if now is None else now
    table = Table.existing(spark, paths.table_folder(warehouse, name))
    if max_staleness_s is None:
        path = paths.overrides(warehouse)
        bounds = seconds_at(path, DeltaLog(spark, path).newest_stored(), MAX_STALENESS)
        max_staleness_s = bound_in_force(table.layout.definition, bounds)
    read = _Read(table, warehouse)
    result = read.stored_rows(max_staleness_s, at)
    if result is None:
        result = read.merge_in_a_job(at, add_job or partial(_add_job, warehouse))
    if not allow_stale:
        of_table = (name, table.layout.definition.stream)
        blocked_rows = read.before.blocked_rows
        read.progress.check_age(*of_table, result.as_of, max_staleness_s, at, blocked_rows)
    return result


def _add_job(warehouse: str, job: Job) -> None:
    """Add a job to the history, if possible. A process may lack write access or `deltalake`."""
    with suppress(TableError, ImportError):
        History(warehouse).add_job(job)


class _Read:
    """A read of the newest version of a table, and of the changelog from which it was made."""

    def __init__(self, table: Table, warehouse: str) -> None:
        self._table, definition = table, table.layout.definition
        self._version, self.before = table.newest()
        path = paths.changelog(warehouse, definition.stream)
        self._changelog = ChangelogReader(table.spark, path, definition.stream)
        check_changelog(table, self.before, self._changelog.newest())
        self.progress = self._changelog.progress(with_frontier=False)

    def stored_rows(self, bound_s: float | None, now: int) -> SparkRead | None:
        """The table as it is. None: it is older than the bound."""
        before = self.before
        if not self.progress.suffices(before, bound_s, now):
            return None
        return SparkRead(
            self._shown(),
            self.progress.as_of(before),
            before.to_batch,
            before.apply_watermark,
            before.is_consistent_cut,
        )

    def merge_in_a_job(self, now: int, add_job: Callable[[Job], None]) -> SparkRead:
        """The table merged with the unapplied changes. The job is added in any case."""
        before, began = self.before, time.monotonic_ns()
        job = Job(
            *(JobKind.RUNTIME_MERGE, self._table.layout.definition.name, now, now),
            *(before.complete_to_batch, self.progress.ingest_batch),
            watermark_before=before.apply_watermark,
            watermark_after=before.apply_watermark,
        )

        def end_job(**outcome: Any) -> None:
            took = (time.monotonic_ns() - began) // 1000
            add_job(replace(job, ended_at=now + took, **outcome))

        try:
            merged = self._merge_one_version()
        except ConnectorError as error:
            end_job(error=error.problem)
            raise
        except Exception as error:
            end_job(error=cause_of(error))
            raise
        end_job(changes=merged.changes or 0)
        return merged

    def _merge_one_version(self) -> SparkRead:
        try:
            return self._merge()
        except TableError as error:
            if self._table.newest()[0] == self._version:
                raise
            # If an apply removed data during the read, the error looks as if the data had never
            # existed.
            raise table_changed(self._table.layout.definition.name, error.problem) from error

    def _merge(self) -> SparkRead:
        table, changelog, before, progress = (
            self._table,
            self._changelog,
            self.before,
            self.progress,
        )
        layout, batch, newest = table.layout, progress.ingest_batch, changelog.newest()
        blocked = None
        if newest is not None and layout.definition.block_rows:
            blocked = BlockedRows(table, changelog, before, newest, batch, horizon=progress.horizon)
        truncation = truncation_of(changelog, layout, before, batch, None)
        unapplied = not_truncated(self._unapplied(), layout, truncation.rank)
        new, blocked_from = not_merged(unapplied, before), None
        changes = None
        if blocked is None:
            changes = analyze(new, layout, before, checkpointed)
        if changes is None or changes.statistics.unreadable:
            # The next apply makes dead letters of the changes that the table cannot hold.
            selected, statistics, blocked_from = select_changes(
                new, layout, before, blocked, lambda letters: None
            )
            rows = flatten_entries(selected, layout, all_plain=statistics.all_plain)
            changes = FlatChanges(checkpointed(rows), statistics)
        merged = changes.statistics.changes - changes.statistics.unreadable
        shown = self._shown()
        if truncation.is_new and truncation.rank is not None:
            merged += 1
            shown = truncated_view(table, changes, before, self._version, truncation.rank)
        elif merged:
            shown = merged_view(table, changes, before, self._version, checkpointed)
        # The changes lack batches that the changelog deleted during the read. Only this check
        # detects that.
        check_changelog(table, before, changelog.newest())
        fresh_to = batch if blocked_from is None else blocked_from.batch - 1
        times = (before.as_of, progress.freshness.time_of(fresh_to))
        highest = max(before.highest_applied, changes.statistics.highest, truncation.at)
        low, blocking = progress.consistent_to, blocked.blocking if blocked else before.blocked_rows
        is_cut = low is not None and highest < low and not blocking
        is_cut = is_cut and not is_unconfirmed(progress.losses, layout.definition.name)
        return SparkRead(
            shown, max(filter(None, times), default=None), batch, low, is_cut, changes=merged
        )

    def _unapplied(self) -> DataFrame:
        """The changes after the last batch of which the table contains every change."""
        source, after = self._table.layout.definition.source, self.before.complete_to_batch
        to = self.progress.ingest_batch
        recent = self._changelog.recent_changes(source, after=after, to=to)
        if recent:
            return recent.rows()
        return self._changelog.changes(source, after=after, to=to, pinned=True)

    def _shown(self) -> DataFrame:
        return self._table.rows(self._version).drop(*BOOKKEEPING)


def plain_rows(rows: DataFrame) -> tuple[dict[str, str], Iterator[tuple[Any, ...]]]:
    """The rows as `lake.plain_table` returns them, and Delta's type name of each column.

    A time is an integer in microseconds, a DATE is an integer in days. A map is a list of pairs. In
    lists and records, times and dates are those of Python.
    """
    types = {
        field.name: "map" if isinstance(field.dataType, MapType) else str(field.dataType.typeName())
        for field in rows.schema.fields
    }
    kinds = [field.dataType for field in rows.schema.fields]
    plain = rows.selectExpr(
        *(
            f"unix_date({name})" if isinstance(kind, DateType) else _as_plain(kind, name, 0)
            for kind, name in zip(kinds, (f"`{name}`" for name in types), strict=True)
        )
    )
    return types, (
        tuple(_plain(kind, value) for kind, value in zip(kinds, row, strict=True))
        for row in plain.toLocalIterator()
    )


def _as_plain(kind: DataType, value: str, depth: int) -> str:
    """A value as SQL, with numbers in place of times: Python's own stop short of some years."""
    match kind:
        case TimestampType():
            return f"unix_micros({value})"
        case TimestampNTZType():
            return micros(value)
        case MapType():
            return f"map_entries({value})"
        case ArrayType():
            item = f"p{depth}"
            return f"transform({value}, {item} -> {_as_plain(kind.elementType, item, depth + 1)})"
        case StructType():
            fields = (
                f"'{field.name}', {_as_plain(field.dataType, f'{value}.`{field.name}`', depth)}"
                for field in kind.fields
            )
            return f"CASE WHEN {value} IS NOT NULL THEN named_struct({', '.join(fields)}) END"
        case _:
            return value


def _plain(kind: DataType, value: Any) -> Any:
    """The Python value of a column."""
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(kind, MapType):
        return value and [(name, _plain(kind.valueType, cell)) for name, cell in value]
    return value if isinstance(value, int) else _plain_part(kind, value)


def _plain_part(kind: DataType, value: Any) -> Any:
    match kind:
        case _ if value is None:
            return None
        case ArrayType():
            return [_plain_part(kind.elementType, item) for item in value]
        case StructType():
            parts = zip(kind.fields, value, strict=True)
            return {field.name: _plain_part(field.dataType, item) for field, item in parts}
        case TimestampType():
            return EPOCH + timedelta(microseconds=value)
        case TimestampNTZType():
            return EPOCH.replace(tzinfo=None) + timedelta(microseconds=value)
        case _:
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
        A `Snapshot`: `cut`, with its low watermark in microseconds and the version of each table,
        and `rows`, the rows of each table.

    Raises:
        TableError: No such cut was recorded, for example because the tables belong to different
            streams. Or the cut has expired, or the table of the cuts is damaged.
        ConfigError: There is no name, or `low_watermark` is not allowed.
        ConnectorError: The session has ended.
    """
    if not names:
        raise argument_invalid("names", names, "the name of at least one table")
    check_time("low_watermark", low_watermark)
    check_live(spark)
    cut, is_newest = _newest_cut(spark, warehouse, names, low_watermark)
    at = now_us() if now is None else now
    for name in names:
        _check_kept(spark, warehouse, name, cut, at, is_newest=is_newest)
    rows = {name: _rows_at(spark, warehouse, name, cut.versions[name]) for name in names}
    return Snapshot(cut, rows)


def _newest_cut(
    spark: SparkSession, warehouse: str, names: Collection[str], low_watermark: int | None
) -> tuple[CutRecord, bool]:
    """The newest cut of these tables, and whether it is the newest one of its stream."""
    cuts, row = _cuts(spark, paths.cuts(warehouse)), None
    if cuts is not None:
        wanted = cuts.where(
            F.col("table").isin(*names)
            & (F.col("low_watermark") <= (MAX_LONG if low_watermark is None else low_watermark))
        )
        has_attempts = "attempt_id" in cuts.columns  # those of an older release lack them
        attempt = (F.col("attempt_id") if has_attempts else F.lit(None)).cast("string")
        tables = F.collect_list(F.struct("table", "version", attempt.alias("attempt")))
        together = wanted.groupBy(*_OF_CUT).agg(tables.alias("tables"))
        newest_first = [F.desc("low_watermark"), F.desc("to_batch"), F.desc("recorded_at")]
        row = together.where(F.size("tables") == len(set(names))).orderBy(*newest_first).first()
    if cuts is None or row is None:
        raise cut_missing(" and ".join(names))
    cut = CutRecord(
        **{name: row[name] for name in _OF_CUT},
        versions={line["table"]: line["version"] for line in row["tables"]},
        attempts={line["table"]: line["attempt"] for line in row["tables"] if line["attempt"]},
    )
    newest = cuts.where(F.col("stream") == cut.stream).agg(F.max("recorded_at")).first()
    return cut, newest is not None and newest[0] == cut.recorded_at


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
    """Raise `TableError` if the files at the cut may be deleted, or the table was made again."""
    path, version = paths.table(warehouse, name), cut.versions[name]
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
            if not cut.is_state(name, TableState.from_json(recorded.stored)):
                raise cut_of_another_table(name, cut)
    if recorded is None or (is_old and not is_newest):
        cause = "It has expired: old versions are kept for snapshot_retention"
        raise cut_expired(name, view_of_time(cut.low_watermark), cause)


def _rows_at(spark: SparkSession, warehouse: str, name: str, version: int) -> DataFrame:
    reader = spark.read.format("delta").option("versionAsOf", version)
    return reader.load(paths.table(warehouse, name)).drop(*BOOKKEEPING)
