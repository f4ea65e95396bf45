"""The pipeline of one process: ingest of every stream, and apply and maintenance of every table
(OPS-4). A stop waits for the batch and the applies in flight. Nothing is interrupted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

from pyspark.sql import SparkSession

from connector import warehouse as paths
from connector.config.settings import ConnectorConfig
from connector.errors import BrokerError, ConnectorError, DeliveryError
from connector.events import OnEvent, ignore, info
from connector.spark.apply.base import check_start, copy_base, is_to_start
from connector.spark.apply_loop import Applies, Listener
from connector.spark.cluster import repeating
from connector.spark.cuts import Cuts
from connector.spark.failures import applying, explained
from connector.spark.ingest.ports import IngestPorts
from connector.spark.job_log import JobLog
from connector.spark.open_tables import NO_PORTS, OpenTables, TablePorts
from connector.spark.storage.delta_log import active
from connector.spark.storage.hadoop import read_text, write_text
from connector.spark.storage.logged_batch import BatchRange
from connector.spark.storage.table import Table
from connector.spark.stream_ingest import StreamIngest
from connector.spark.turns import Turn
from connector.spark.upkeep import Upkeep
from connector.state.apply_level import MergeFew
from connector.state.jobs import Job, JobKind
from connector.state.positions import from_text, to_text, up_to
from connector.state.stream_progress import Progress
from connector.state.table_state import TableState
from connector.state.unapplied import BatchContents
from connector.tables.definition import TableDefinition


class Pipeline:
    """All streams and tables of a configuration. `merge_few` merges few changes without Spark
    (TBL-13). `on_step` is called after each step of an ingest batch or of an apply, with "stream
    NAME: STEP" or "table NAME: STEP". An error that it raises ends that batch or apply.
    """

    def __init__(
        self,
        spark: SparkSession,
        config: ConnectorConfig,
        ports: Mapping[str, IngestPorts],
        job_log: JobLog,
        merge_few: MergeFew | None = None,
        on_event: OnEvent = ignore,
        on_step: Callable[[str], None] = lambda step: None,
        table_ports: TablePorts = NO_PORTS,
    ) -> None:
        self._spark, self._config, self._ports = spark, config, ports
        self._job_log = job_log
        self._on_step = on_step
        self._on_event = on_event
        turn = Turn()
        self._streams = {
            name: StreamIngest(
                *(spark, config, stream, ports[name], on_event, job_log.bounds),
                on_step=partial(self._step, f"stream {name}"),
                on_batch=partial(self._batch_logged, name),
                lack_nothing_of=partial(self._lack_nothing_of, name),
                turn=turn,
            )
            for name, stream in config.streams.items()
        }
        for stream in self._streams:
            self._drop_later_positions(stream)
        self._tables = OpenTables(config.tables, self._check_start, self._open_table, table_ports)
        self.cuts = Cuts(config, self._tables, job_log, ports)
        changelogs = {name: ingest.changelog for name, ingest in self._streams.items()}
        self._applies = Applies(
            *(spark, config, self._tables, changelogs, ports, job_log, merge_few),
            Listener(self.cuts.reach, on_event, on_step, table_ports),
            turn,
        )
        self.upkeep = Upkeep(
            config,
            self._streams,
            self._tables,
            self._applies,
            self.cuts,
            job_log,
            ports,
            on_event,
        )
        states = {name: table.table_state() for name, table in self._tables.going_on().items()}
        self._check_not_ahead(states)
        self._report(states)

    def _check_not_ahead(self, states: Mapping[str, TableState]) -> None:
        """Raise `TableError` if a table has later batches than its changelog. Otherwise ingest
        would give their numbers to other changes, which the table would then miss.
        """
        for name, state in states.items():
            newest = self._streams[self._config.tables[name].stream].changelog.newest()
            if newest is not None and newest.changelog_id == state.changelog_id:
                state.check_changelog(name, newest.ingest_batch, newest.changelog_id)

    def _drop_later_positions(self, stream: str) -> None:
        """Remove the positions behind the end of the changelog. It is that of a backup, and its
        next batches will be others (ENG-7).
        """
        path = paths.positions(self._config.warehouse, stream)
        newest = self._streams[stream].changelog.newest()
        positions = from_text(read_text(self._spark, path))
        kept = up_to(positions, 0 if newest is None else newest.ingest_batch)
        if kept != positions:
            with explained(f"stream {stream}"):
                write_text(self._spark, path, to_text(kept))

    def _report(self, states: Mapping[str, TableState]) -> None:
        """Report the states that this process has found."""
        for name, state in states.items():
            self._job_log.on_table(name, state)
        for name, ingest in self._streams.items():
            if (newest := ingest.changelog.newest()) is not None:
                progress = ingest.changelog.progress()
                self._job_log.on_batch(name, progress, newest.offsets.end, None, {})

    @property
    def stopped(self) -> dict[str, ConnectorError]:
        """The tables that are stopped, each with its error (RUN-3)."""
        return self._applies.stopped

    def _check_start(self, name: str) -> None:
        """Check the base of a table before any table is made: an error leaves no empty one."""
        definition = self._config.tables[name]
        with applying(name):
            changelog = self._streams[definition.stream].changelog
            check_start(self._spark, self._config, definition, changelog)

    def _open_table(self, name: str) -> Table:
        """Open a table, or create it."""
        self._check_start(name)
        with active(self._spark):  # no query has run in this thread yet
            return self._opened(self._config.tables[name])

    def _opened(self, definition: TableDefinition) -> Table:
        changelog = self._streams[definition.stream].changelog
        retention = self._config.streams[definition.stream].retention
        folder = paths.table_folder(self._config.warehouse, definition.name)
        table = Table(self._spark, folder, definition, retention=retention)
        if is_to_start(table, definition, changelog):
            self._copy_base(table, definition)
            table = Table(self._spark, folder, definition, retention=retention)
        return table

    def _copy_base(self, table: Table, definition: TableDefinition) -> None:
        """Make a new table a copy of its base (EVO-9), and record the job."""
        name, ports = definition.name, self._ports[definition.stream]
        job = Job(JobKind.REBUILD, name, ports.now(), 0)
        on_step = partial(self._step, f"table {name}")
        state = copy_base(table.spark, table.folder, definition, on_step=on_step).table_state
        ended = replace(
            job,
            ended_at=ports.now(),
            to_batch=state.to_batch,
            watermark_after=state.apply_watermark,
        )
        self._job_log.add_jobs([ended])
        self._on_event(
            info("TABLE_COPIED", f"copied from table {definition.start_from}", table=name)
        )

    def run_once(self, stop: threading.Event | None = None) -> None:
        """Ingest every stream to its present end, then apply every table, unless `stop` is set. At
        the end, `stopped` has the tables that could not be applied.
        """
        stop = stop or threading.Event()
        for name, ingest in self._streams.items():
            if not stop.is_set():
                once = partial(self._ingest_once, ingest, stop)
                repeating(once, f"stream {name}", self._on_event, stop)
        self._apply_all(stop)
        for stream in self._streams:
            self.upkeep.run_due(stop, stream)

    def _ingest_once(self, ingest: StreamIngest, stop: threading.Event) -> None:
        if not ingest.is_at_end():
            ingest.start(once=True)
            ingest.wait(stop)
        ingest.take_requests()
        ingest.check_transactions(is_last=True)
        ingest.refresh()

    def run(self, stop: threading.Event, is_replaced: Callable[[], bool] = lambda: False) -> None:
        """Ingest and apply until `stop` is set. Then apply everything that was ingested, unless
        `is_replaced`: another pipeline goes on. `stopped` has the tables that could not be applied.
        """
        try:
            try:
                for name, ingest in self._streams.items():
                    start = partial(ingest.start, once=False)
                    repeating(start, f"stream {name}", self._on_event, stop)
                self._applies.run(stop, self._check, partial(self.upkeep.run_due, stop))
            finally:
                for ingest in self._streams.values():
                    ingest.stop()
            self._check(again=False)
        except (BrokerError, DeliveryError):
            # Kafka may be away for hours. Tables need not wait for it.
            with suppress(BrokerError, DeliveryError):
                self._apply_all(stop)
            raise
        if not is_replaced():
            self._apply_all()

    def _apply_all(self, stop: threading.Event | None = None) -> None:
        try:
            self._applies.all(stop)
        finally:
            self.cuts.record(at_once=True)

    def _check(self, *, again: bool = True) -> None:
        self.cuts.record()
        for ingest in self._streams.values():
            ingest.check(again=again)

    def _batch_logged(
        self,
        stream: str,
        progress: Progress,
        offsets: BatchRange | None,
        seconds: float,
        contents: Mapping[int, BatchContents],
    ) -> None:
        ends = None if offsets is None else offsets.end
        self._job_log.on_batch(stream, progress, ends, seconds, contents)
        self._applies.batch_logged(stream)

    def _step(self, what: str, step: str) -> None:
        self._on_step(f"{what}: {step}")

    def _lack_nothing_of(self, stream: str, batch: int, as_cut: bool) -> bool:
        """Whether no change up to an ingest batch waits, in any table that is not stopped."""
        going_on = self._tables.going_on()
        states = [
            going_on[name].table_state()
            for name in going_on.keys() & self._config.tables_of(stream)
        ]
        return all(state.lacks_nothing_of(batch, as_cut=as_cut) for state in states)
