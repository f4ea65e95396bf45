"""The status of streams and tables, from their newest commits and the totals of ledgers (OPS-5,
TBL-20).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from connector import warehouse as paths
from connector.clock import now_us
from connector.config.storage import is_local
from connector.dead_letters.ledger import NONE_SENT
from connector.errors import BrokerError, TableError, TopicError, check_time
from connector.records.views import Shown, Time, Viewed
from connector.reports.definition_status import (
    cells_without_column,
    column_to_add,
    definition_hints,
)
from connector.reports.pipeline_status import PipelineStatus, pipeline_status
from connector.reports.reasons import Reason, reasons_of
from connector.reports.stream_status import (
    NONE_OPEN,
    OpenLetters,
    StreamStatus,
    open_letters,
    stream_status,
)
from connector.reports.table_status import TableJobs, TablePace, TableStatus, table_status
from connector.services.process import status_of_bridge, status_of_pipeline
from connector.services.reload import refused_reload
from connector.services.source_tables import followed_tables
from connector.services.warehouses import warehouse_of
from connector.state.erased_keys import EraseKey, unfinished
from connector.state.jobs import MAINTENANCE, RECOMMENDED_OVER_S, Job, JobKind
from connector.state.overrides import bound_in_force, pace_in_force
from connector.state.stream_progress import NORMAL_US, Progress
from connector.state.table_state import TableState
from connector.tables.definition import TableDefinition

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig, StreamConfig
    from connector.lake.state_reader import LoggedProgress
    from connector.reports.bridge_status import BridgeStatus
    from connector.reports.headroom import Headroom

ASK_TIMEOUT_S: Final = 1.0
_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class StatusReport(Viewed):
    """The status of the streams and tables of a configuration at the time `at` (microseconds).

    A stream or table that cannot be read is in `errors`, by its path, for example `tables.orders`.
    `reload_refused` says why the running pipeline did not take the newest configuration (EVO-8).
    `pipelines` has the pipeline of each stream (RUN-1). The free space is that of the disks of a
    local warehouse, and of the brokers of this machine (RUN-7). None: they are elsewhere, or Kafka
    does not answer.
    """

    at: Time
    streams: dict[str, StreamStatus] = field(default_factory=dict)
    tables: dict[str, TableStatus] = field(default_factory=dict)
    errors: dict[str, TableError] = field(default_factory=dict)
    reload_refused: list[str] = field(default_factory=list)
    pipelines: dict[str, PipelineStatus] = field(default_factory=dict)
    warehouse_free_bytes: int | None = None
    broker_free_bytes: int | None = None

    @property
    def reasons(self) -> Shown[list[Reason]]:
        """Why a person is needed, the most urgent first."""
        return reasons_of(
            self.pipelines, self.streams, self.tables, self.errors, self.reload_refused
        )


class _Reader:
    """Reads the status of each stream and table into a report."""

    def __init__(self, config: ConnectorConfig, at: int) -> None:
        from connector.kafka.local.folder import free_bytes
        from connector.lake.jobs import History
        from connector.lake.overrides import Overrides

        self._config, self._warehouse = config, warehouse_of(config)
        self._history, self._is_away = History(self._warehouse), False
        self.report = StatusReport(
            at,
            warehouse_free_bytes=warehouse_free_bytes(config),
            broker_free_bytes=self._ask(lambda: free_bytes(config.kafka, ASK_TIMEOUT_S)),
        )
        self._overrides = overrides = Overrides(self._warehouse)
        self._bounds = self._try("settings", overrides.bounds) or {}
        self._paces = self._try("settings", overrides.paces) or {}
        self._columns = self._try("settings", overrides.columns) or {}

    def read(self) -> None:
        from connector.lake.state_reader import logged_progress_of, table_state_of

        states = {
            name: self._try(
                f"tables.{name}", partial(table_state_of, self._warehouse, table.stream, name)
            )
            for name, table in self._config.tables.items()
        }
        for name, stream in self._config.streams.items():
            self.report.pipelines[name] = self._process(status_of_pipeline, name)
            read = partial(logged_progress_of, self._warehouse, name, with_frontier=True)
            if (logged := self._try(f"streams.{name}", read)) is not None:
                of_stream = {table: states[table] for table in self._config.tables_of(name)}
                self._read_stream(stream, logged, of_stream)
        if (refused := refused_reload(self._config)) is not None and any(
            pipeline.is_running is not False and (pipeline.since or 0) <= refused.refused_at
            for pipeline in self.report.pipelines.values()
        ):
            self.report.reload_refused.extend(refused.faults)

    def _process(
        self, read: Callable[[ConnectorConfig, str, int], PipelineStatus], stream: str
    ) -> PipelineStatus:
        for error in self.report.errors.values():
            if error.code == "STORE_UNREACHABLE":  # do not wait for it again
                return pipeline_status(None, self.report.at, unreadable=error.problem)
        return read(self._config, stream, self.report.at)

    def _read_stream(
        self, stream: StreamConfig, logged: LoggedProgress, states: Mapping[str, TableState | None]
    ) -> None:
        path, progress = f"streams.{stream.name}", logged.progress
        readable = {table: state for table, state in states.items() if state is not None}
        letters, of_tables = open_letters_of(self._config, stream, progress, readable)
        jobs = self._newest_jobs(path, JobKind.AUDIT, stream=stream.name)
        last_audit = jobs.pop(JobKind.AUDIT, None)
        self.report.streams[stream.name] = stream_status(
            *(stream, progress, self.report.at),
            dead_letters=replace(
                letters,
                uncounted_tables=tuple(table for table in states if table not in readable),
            ),
            maintenance=list(jobs.values()),
            last_audit=last_audit,
            undefined_sources=self._undefined_sources(stream.name, progress),
            other_commits=self._other_commits(path, paths.changelog(self._warehouse, stream.name)),
        )
        erased = partial(self._overrides.requests, EraseKey, stream.name, above=0)
        self.report.streams[stream.name] = replace(
            self.report.streams[stream.name],
            unfinished_erasures=unfinished(self._try(path, erased) or ()),
            headroom=self._headroom(stream, progress),
            bridge=None if stream.source is None else self._bridge(stream),
        )
        for table, state in readable.items():
            of_table = self._try(f"tables.{table}", partial(logged.of_table, table, state))
            definition = self._config.tables[table]
            of_definition = self._table(definition, state, of_table, of_tables[table])
            self.report.tables[table] = self._with_hints(of_definition, definition)

    def _table(
        self,
        definition: TableDefinition,
        state: TableState,
        progress: Progress | None,
        dead_letters: OpenLetters,
    ) -> TableStatus:
        from connector.lake.changelog_changes import waiting_changes

        name, path = definition.name, f"tables.{definition.name}"
        kinds, since = (JobKind.APPLY, JobKind.REBUILD), self.report.at - RECOMMENDED_OVER_S * 10**6
        last = self._try(path, partial(self._history.jobs, name, limit=1, kinds=kinds))
        durations = self._try(path, partial(self._history.durations_us, name, since=since))
        waiting = None
        if progress is not None:
            waiting = self._try(path, partial(waiting_changes, self._warehouse, definition, state))
        return table_status(
            *(definition, state, progress, self.report.at),
            pace=TablePace(
                bound_in_force(definition, self._bounds),
                pace_in_force(definition, self._bounds, self._paces),
                self._config.streams[definition.stream].buffer_s,
            ),
            jobs=TableJobs(
                last[0] if last else None,
                durations or (),
                list(self._newest_jobs(path, table=name).values()),
            ),
            dead_letters=dead_letters if progress else replace(dead_letters, is_known=False),
            waiting_changes=waiting or 0,
        )

    def _with_hints(self, status: TableStatus, declared: TableDefinition) -> TableStatus:
        """The status with the hints about the definition (EVO-2)."""
        from connector.lake.changelog_changes import recent_cells
        from connector.lake.state_reader import definition_of

        name, path = declared.name, f"tables.{declared.name}"
        stored = self._try(path, partial(definition_of, self._warehouse, name))
        cells, batch = None, status.to_batch + (status.pending_batches or 0)
        if batch and status.pending_batches is not None:
            of_source = (self._warehouse, declared.stream, declared.source, batch)
            cells = self._try(path, partial(recent_cells, *of_source))
        overrides = self._columns.get(name, ())
        definition = (declared, stored and stored[0], overrides, cells or ())
        return replace(
            status,
            definition_hints=definition_hints(*definition),
            other_commits=self._other_commits(path, paths.table(self._warehouse, name)),
            cells_without_column=cells_without_column(*definition),
            column_to_add=column_to_add(declared, stored, overrides, cells or ()),
        )

    def _bridge(self, stream: StreamConfig) -> BridgeStatus:
        """The status of the bridge of a stream, from its heartbeats in Kafka (SRC-8), and from its
        record (RUN-1).
        """
        from connector.kafka.bridge.status import bridge_status

        tables = self._try(f"streams.{stream.name}", lambda: followed_tables(self._config)) or {}
        defaults = {
            table.section["source"]: table.with_default
            for table in tables.get(stream.name, ())
            if table.with_default
        }
        status = bridge_status(self._config, stream, self.report.at, timeout_s=ASK_TIMEOUT_S)
        process = self._process(status_of_bridge, stream.name)
        return replace(status, missing_defaults=defaults, process=process)

    def _headroom(self, stream: StreamConfig, progress: Progress) -> tuple[Headroom, ...] | None:
        """Kafka is not asked if ingest was at the end of the topic within the last minute."""
        newest = progress.freshness.newest
        if newest and self.report.at - newest < NORMAL_US and not progress.freshness.behind:
            return ()
        return self._ask(lambda: headroom_of(self._config, stream, timeout_s=ASK_TIMEOUT_S))

    def _ask(self, read: Callable[[], _Read]) -> _Read | None:
        """Ask Kafka. None: it does not answer, and is not asked again, or refuses."""
        if self._is_away:
            return None
        try:
            return read()
        except (BrokerError, TopicError, TableError) as error:
            self._is_away = error.code == "BROKER_UNREACHABLE"
            return None

    def _undefined_sources(self, stream: str, progress: Progress) -> tuple[str, ...]:
        from connector.lake.changelog_changes import undefined_sources

        if not progress.unknown_tables:
            return ()
        sources = [table.source for table in self._config.tables_of(stream).values()]
        read = partial(undefined_sources, self._warehouse, stream, sources, progress.ingest_batch)
        return self._try(f"streams.{stream}", read) or ()

    def _other_commits(self, path: str, table: str) -> tuple[str, ...]:
        from connector.lake.plain_table import other_commits

        return self._try(path, partial(other_commits, table)) or ()

    def _newest_jobs(self, path: str, *others: JobKind, **owner: str) -> dict[JobKind, Job]:
        """The newest maintenance of each kind, and the newest job of `others`."""
        kinds = (*MAINTENANCE, *others)
        return self._try(path, partial(self._history.newest, kinds, **owner)) or {}

    def _try(self, path: str, read: Callable[[], _Read]) -> _Read | None:
        for error in self.report.errors.values():
            if error.code == "STORE_UNREACHABLE":
                self.report.errors[path] = error  # each further read would wait for the same store
                return None
        try:
            return read()
        except TableError as error:
            self.report.errors[path] = error
            return None


def status(config: ConnectorConfig, *, now: int | None = None) -> StatusReport:
    """Report how far each stream is ingested and complete, and how old each table is. Of a table
    that was not made from the changelog that is there, only its own commit is reported.

    It reads the warehouse. It asks Kafka for the state of dead letters, if there ever was one, for
    the position of a bridge, if the stream has a source, and for the headroom, if ingest was not at
    the end of the topic within the last minute. A broker of this machine is asked for its folder.
    For example: `status(config).tables["orders"].age_s`.

    `now` is the time in microseconds that ages are counted to. None: the clock. Raises
    `ConfigError` if it is not a time. A stream or table that cannot be read is in `errors`.
    """
    check_time("now", now)
    reader = _Reader(config, now_us() if now is None else now)
    reader.read()
    return reader.report


def headroom_of(
    config: ConnectorConfig, stream: StreamConfig, *, timeout_s: float
) -> tuple[Headroom, ...]:
    """Return until when Kafka keeps the first records that the changelog of a stream lacks (RUN-7).

    Raises `BrokerError`, also if Kafka does not answer within about `timeout_s`, `TopicError`, and
    `TableError` if the changelog cannot be read.
    """
    from connector.kafka import client, topics
    from connector.kafka.probe_offsets import headrooms
    from connector.lake.state_reader import logged_ends

    admin = client.admin(config.kafka, timeout_s)
    facts = topics.describe(config.kafka, stream.topic, admin)
    ends = topics.high_watermarks(config.kafka, facts)
    return headrooms(config.kafka, facts, logged_ends(warehouse_of(config), stream.name), ends)


def warehouse_free_bytes(config: ConnectorConfig) -> int | None:
    """Return the free space of the disk of a warehouse. None: it is not local, or not there yet."""
    warehouse = warehouse_of(config)
    with suppress(OSError):
        return shutil.disk_usage(warehouse).free if is_local(warehouse) else None
    return None


def open_letters_of(
    config: ConnectorConfig,
    stream: StreamConfig,
    progress: Progress,
    tables: Mapping[str, TableState],
) -> tuple[OpenLetters, dict[str, OpenLetters]]:
    """Return the open dead letters of a stream, and those that are, or may be, of each of its
    tables, with the withheld releases (WRS-18). They are counted from commits and the totals of the
    ledger: no topic is scanned (DLQ-7). Kafka is asked only if there ever was a dead letter.

    Raises `TableError` if the warehouse cannot be read.
    """
    letters, of_tables = _letters_of(config, stream, progress, tables)
    withheld = len(progress.releases.withheld)
    return replace(letters, withheld=withheld), {
        name: replace(of_table, withheld=withheld) for name, of_table in of_tables.items()
    }


def _letters_of(
    config: ConnectorConfig,
    stream: StreamConfig,
    progress: Progress,
    tables: Mapping[str, TableState],
) -> tuple[OpenLetters, dict[str, OpenLetters]]:
    rejected = sum(progress.rejected.values())
    external = progress.external_dead_letters
    if not rejected + sum(state.letters for state in tables.values()) + external.count:
        return NONE_OPEN, dict.fromkeys(tables, NONE_OPEN)
    from connector.kafka import client, topics
    from connector.kafka.dead_letters.ledger_topic import read_totals
    from connector.lake.state_reader import batch_with

    since = [progress.rejected_since, external.since]
    since += [state.dead_letters_since for state in tables.values()]
    first = min(filter(None, since), default=None)
    try:
        admin = client.admin(config.kafka, timeout_s=ASK_TIMEOUT_S)
        topic_id = topics.describe(config.kafka, stream.topic, admin).topic_id
        totals = read_totals(config.kafka, stream.topic)
    except (BrokerError, TopicError) as error:
        problem = error.problem if error.code == "KAFKA_ACCESS_DENIED" else ""
        return open_letters(rejected, tables, external, "", None, first, problem=problem)
    sent = NONE_SENT if totals is None else totals.sent
    under_way = (
        sent.topic_id == topic_id
        and batch_with(warehouse_of(config), stream.name, sent.ends) is None
    )
    return open_letters(rejected, tables, external, topic_id, totals, first, under_way=under_way)
