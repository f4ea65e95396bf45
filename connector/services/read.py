"""Read a table: as its last apply left it, as a snapshot, or merged with the changes that are not
applied yet (TBL-16, TBL-17).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from connector import warehouse as paths
from connector.clock import now_us
from connector.config.settings import find_table
from connector.errors import TableError
from connector.errors.changelog import freshness_unknown
from connector.errors.tables import cut_expired, cut_missing
from connector.events import OnEvent, info, log_event, warning
from connector.records.views import view_of_time
from connector.reports.stream_status import NONE_OPEN, OpenLetters
from connector.services.local_spark import session_of
from connector.services.status import open_letters_of
from connector.services.warehouses import check_logs, naming_damage, warehouse_of
from connector.state.damage import reading
from connector.state.jobs import Job, cut_of_another_table
from connector.state.overrides import bound_in_force, check_bound
from connector.state.table_state import TableState
from connector.text import counted
from connector.watermarks.freshness import is_fresh

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from connector.config.settings import ConnectorConfig
    from connector.lake.jobs import History
    from connector.lake.plain_table import PlainTable


@dataclass(slots=True)
class TableRead:
    """Rows of a table, and how complete they are. Close it, or use it in a `with` statement: a
    merging read holds a Spark session.

    Attributes:
        columns: Delta's type of each column, by name, in their order.
        rows: An iterator over tuples of these columns: BYTES are `bytes`, NUMERIC `Decimal`, dates
            and times days and microseconds since 1970-01-01. In arrays and structs, dates and times
            are those of Python.
        as_of: Everything that had arrived in Kafka at this time (microseconds) is contained; None:
            unknown, or a snapshot.
        to_batch: The last ingest batch that is contained.
        cut: The low watermark, if the rows are a consistent cut at it; None: they are not.
        missing: Open dead letters that may belong to the table: the rows lack their changes. With
            `is_known` False and a `count` of 0, nothing is known of them.
        text: One sentence for people that says the same.
    """

    columns: Mapping[str, str]
    rows: Iterator[tuple[Any, ...]]
    as_of: int | None
    to_batch: int
    cut: int | None
    text: str
    missing: OpenLetters = NONE_OPEN
    _stack: ExitStack = field(default_factory=ExitStack)

    def close(self) -> None:
        """End the local Spark session, if there is one; no further row can be read then."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read(
    config: ConnectorConfig,
    table: str,
    *,
    spark: SparkSession | None = None,
    max_staleness_s: int | None = None,
    allow_stale: bool = False,
    snapshot: bool = False,
    on_event: OnEvent = log_event,
    memory: str | None = None,
) -> TableRead:
    """Read a table. Only a merge needs Java: it starts a local Spark session, unless you pass your
    own.

    For example: `with read(config, "orders", max_staleness_s=60) as orders: rows =
    list(orders.rows)`.

    Args:
        config: It has the table.
        table: The name of the table.
        spark: Your own session for a merge, which is neither changed nor stopped.
        max_staleness_s: The rows may be that old, in seconds; 0: contain every ingested change.
            None: the bound of the table.
        allow_stale: Return the rows also if they are older than the bound.
        snapshot: Return the newest state at which all tables of the stream are a consistent cut.
        on_event: Receives warnings, and an event before a merge.
        memory: Heap of the driver, for example `2g`. None: as configured in [spark].

    Returns:
        The rows, which are read while you iterate over them.

    Raises:
        ConfigError: There is no such table, or `max_staleness_s` is not allowed.
        StaleTableError: The rows would be older than the bound, also with a merge.
        TableError: The table, its changelog or its snapshot cannot be read. Or the table was not
            made from this changelog, and its last apply is not within the bound.
    """
    from connector.lake.overrides import Overrides

    definition = find_table(config, table)
    check_bound(max_staleness_s)
    bound = (
        bound_in_force(definition, Overrides(warehouse_of(config)).bounds())
        if max_staleness_s is None
        else max_staleness_s
    )
    opened: PlainTable | None = None
    result: TableRead | None
    if snapshot:
        opened, result = _snapshot(config, table)
    else:
        result = _as_applied(config, table, bound, on_event, allow_stale=allow_stale)
    if result is None:
        result = _merged(
            config, table, bound, spark, on_event, allow_stale=allow_stale, memory=memory
        )
    result.missing = _missing(config, table, opened)
    return result


def plain_version(
    config: ConnectorConfig, table: str, *, snapshot: bool
) -> tuple[PlainTable, TableRead]:
    """Open a version of a table: that of its last apply, or of the newest cut of its stream. It can
    be read several times. Raises as `read` does.
    """
    from connector.lake.plain_table import open_table

    find_table(config, table)
    if snapshot:
        return _snapshot(config, table)
    opened = open_table(paths.table(warehouse_of(config), table), table=table)
    state = _state_of(config, opened, table)
    return opened, _plain_read(table, opened, state, state.as_of)


def _state_of(config: ConnectorConfig, table: PlainTable, name: str) -> TableState:
    from connector.lake.state_reader import state_of_version

    return state_of_version(warehouse_of(config), config.tables[name].stream, name, table)


def _as_applied(
    config: ConnectorConfig, name: str, bound: int | None, on_event: OnEvent, *, allow_stale: bool
) -> TableRead | None:
    """The table without a JVM, if that will do (TBL-16)."""
    from connector.lake.changelog_changes import has_changes
    from connector.lake.plain_table import open_table
    from connector.lake.state_reader import logged_progress_of

    now = now_us()
    table = open_table(paths.table(warehouse_of(config), name), table=name)
    state = _state_of(config, table, name)
    logged = logged_progress_of(warehouse_of(config), config.tables[name].stream)
    try:
        progress = logged.of_table(name, state)
    except TableError as error:  # a table may be read where its changelog is not
        is_proved = bound is None or (bound > 0 and is_fresh(state.as_of, bound, now))
        if not allow_stale and not is_proved:
            wanted = f"is at most {bound:g} s old" if bound else "has every ingested change"
            raise freshness_unknown(name, wanted, error.problem, error.remedy) from error
        on_event(warning("CHANGELOG_DIFFERS", str(error), table=name))
        return _plain_read(name, table, state, state.as_of)
    if not progress.suffices(state, bound, now):
        after, to = state.complete_to_batch, progress.ingest_batch
        definition = config.tables[name]
        if state.blocked_rows or has_changes(warehouse_of(config), definition, after=after, to=to):
            return None
        # A table has all batches that do not change it.
        state = replace(state, complete_to_batch=to, to_batch=to)
    as_of = progress.as_of(state)
    if not allow_stale:
        progress.check_age(name, config.tables[name].stream, as_of, bound, now, state.blocked_rows)
    return _plain_read(name, table, state, as_of)


def _plain_read(name: str, table: PlainTable, state: TableState, as_of: int | None) -> TableRead:
    cut = state.apply_watermark if state.is_consistent_cut else None
    text = (
        f"{name} as of ingest batch {state.to_batch} (version {table.version} of the Delta"
        f" table){_completeness(as_of, cut)}"
    )
    return TableRead(table.types, table.rows(), as_of, state.to_batch, cut, text)


def _snapshot(config: ConnectorConfig, name: str) -> tuple[PlainTable, TableRead]:
    """The table at the newest cut of its stream, without a JVM (TBL-17)."""
    from connector.lake.jobs import History
    from connector.lake.plain_table import open_table

    cut = next(
        (
            cut
            for cut in History(warehouse_of(config)).cuts(config.tables[name].stream)
            if name in cut.versions
        ),
        None,
    )
    if cut is None:
        raise cut_missing(f"table {name}", name)
    try:
        path = paths.table(warehouse_of(config), name)
        table = open_table(path, version=cut.versions[name], table=name)
    except TableError as error:
        if error.code not in ("TABLE_MISSING", "TABLE_UNREADABLE"):
            raise
        cause = f"It may have expired: {error.cause}"
        raise cut_expired(name, str(view_of_time(cut.low_watermark)), cause) from error
    with reading(path):
        state = TableState.from_json(table.stored)
    if not cut.is_state(name, state):
        raise cut_of_another_table(name, cut)
    revised = f", revision {cut.revision}" if cut.revision else ""
    text = f"{name} at {view_of_time(cut.low_watermark)}, ingest batch {cut.to_batch}{revised}"
    return table, TableRead(table.types, table.rows(), None, cut.to_batch, cut.low_watermark, text)


def _merged(
    config: ConnectorConfig,
    name: str,
    bound: int | None,
    spark: SparkSession | None,
    on_event: OnEvent,
    *,
    allow_stale: bool,
    memory: str | None,
) -> TableRead:
    """The table merged with everything that was ingested, by Spark (TBL-16, TBL-19)."""
    from connector.lake.jobs import History
    from connector.spark import failures
    from connector.spark.cluster import watching
    from connector.spark.reader import plain_rows, read_table

    stream = config.tables[name].stream
    check_logs(config, [stream], [name])
    text = "changes are not applied yet: Spark merges them"
    on_event(info("MERGING", text, table=name))
    with ExitStack() as stack:
        started = session_of(config, spark, stack, on_event, memory=memory)
        stack.enter_context(watching(started))
        jobs: list[Job] = []
        # The job ends when the rows have been read.
        stack.callback(lambda: _add_jobs(History(warehouse_of(config)), jobs, on_event))
        with naming_damage(config, [stream], [name]), failures.reading(name):
            merged = read_table(
                *(started, warehouse_of(config), name),
                max_staleness_s=bound or 0,
                allow_stale=allow_stale,
                add_job=jobs.append,
            )
            types, plain = plain_rows(merged.rows)

        def rows() -> Iterator[tuple[Any, ...]]:
            with naming_damage(config, [stream], [name]), failures.reading(name):
                yield from plain

        cut = merged.low_watermark if merged.is_consistent_cut else None
        changes = "nothing left to merge"
        if merged.changes is not None:
            changes = f"{counted(merged.changes, 'change')} merged"
        text = (
            f"{name} as of ingest batch {merged.to_batch},"
            f" {changes}{_completeness(merged.as_of, cut)}"
        )
        return TableRead(
            types, rows(), merged.as_of, merged.to_batch, cut, text, _stack=stack.pop_all()
        )


def _add_jobs(history: History, jobs: Iterable[Job], on_event: OnEvent) -> None:
    """Add jobs to the history. If this fails, the rows are returned all the same (JOB-1)."""
    try:
        for job in jobs:
            history.add_job(replace(job, ended_at=now_us()))
    except TableError as error:
        on_event(warning("JOB_NOT_KEPT", str(error)))


def _missing(config: ConnectorConfig, name: str, snapshot: PlainTable | None) -> OpenLetters:
    """Open dead letters that may belong to the table (DLQ-7). A snapshot lacks what only a later
    rebuild has covered (RUN-6). Rows are returned also where these cannot be counted, for example
    because the changelog is another one.
    """
    from connector.lake.state_reader import logged_progress_of, table_state_of

    stream = config.streams[config.tables[name].stream]
    try:
        table = table_state_of(warehouse_of(config), stream.name, name)
        if snapshot is not None:
            table = replace(table, covered_by=_state_of(config, snapshot, name).covered_by)
        progress = logged_progress_of(warehouse_of(config), stream.name).of_table(name, table)
        return open_letters_of(config, stream, progress, {name: table})[1][name]
    except TableError:
        return OpenLetters(is_known=False)


def _completeness(as_of: int | None, cut: int | None) -> str:
    arrived = (
        "" if as_of is None else f"; with all changes that arrived before {view_of_time(as_of)}"
    )
    if cut is None:
        return f"{arrived}, not a consistent cut"
    return f"{arrived}, a consistent cut at {view_of_time(cut)}"
