"""The pipeline of one process: ingest of every stream, and apply and maintenance of every table
(OPS-4). A stop waits for the batch and the applies in flight. Nothing is interrupted.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from pyspark.sql import SparkSession

from connector import warehouse as paths
from connector.config.settings import ConnectorConfig
from connector.errors import BrokerError, ConnectorError, DeliveryError, WriterConflictError
from connector.events import OnEvent, ignore, info
from connector.spark.apply.base import check_start, copy_base, is_to_start
from connector.spark.apply_loop import Applies, AtVersion, Listener
from connector.spark.cluster import repeating
from connector.spark.failures import applying, explained
from connector.spark.ingest.ports import IngestPorts
from connector.spark.job_log import JobLog
from connector.spark.open_tables import NO_PORTS, OpenTables, TablePorts
from connector.spark.storage.delta_log import active
from connector.spark.storage.hadoop import read_text, write_text
from connector.spark.storage.logged_batch import BatchRange
from connector.spark.storage.maintenance import Maintained, Maintenance, Work
from connector.spark.storage.table import Table
from connector.spark.stream_ingest import StreamIngest
from connector.spark.turns import Turn
from connector.state.apply_level import MergeFew
from connector.state.jobs import CutRecord, Job, JobKind
from connector.state.maintenance_schedule import LATE_PACES, NEWEST_CUT_KEPT_US
from connector.state.overrides import pace_in_force
from connector.state.positions import from_text, to_text, up_to
from connector.state.stream_progress import Cut, Progress
from connector.state.unapplied import BatchContents
from connector.tables.definition import TableDefinition

CUTS_EVERY_S: Final = 10.0
"""How often the cut of a stream is recorded: each record is a commit."""


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
        self._cuts = {name: job_log.newest_cut(name) for name in config.streams}
        self._reached = dict[str, CutRecord]()
        self._recorded_at = dict.fromkeys(config.streams, -math.inf)
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
        self._upkeep: dict[str, tuple[Table | None, Maintenance]] = {}
        self._recording = threading.Lock()
        changelogs = {name: ingest.changelog for name, ingest in self._streams.items()}
        self._applies = Applies(
            *(spark, config, self._tables, changelogs, ports, job_log, merge_few),
            Listener(self._record, lambda event: self._on_event(event), on_step, table_ports),
            turn,
        )
        self._check_not_ahead()
        self._report()

    def _check_not_ahead(self) -> None:
        """Raise `TableError` if a table has later batches than its changelog. Otherwise ingest
        would give their numbers to other changes, which the table would then miss.
        """
        for name, table in self._tables.going_on().items():
            state = table.table_state()
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

    def _report(self) -> None:
        """Report the states that this process has found."""
        for name, table in self._tables.going_on().items():
            self._job_log.on_table(name, table.table_state())
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
            self._maintain(stop, stream)

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
                self._applies.run(stop, self._check, partial(self._maintain, stop))
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
            self._record_reached(at_once=True)

    def _check(self, *, again: bool = True) -> None:
        self._record_reached()
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

    def _upkeep_of(self, stream: str) -> Iterator[Maintenance]:
        """The maintenance of a stream: first that of its tables, then that of its changelog."""
        going_on = self._tables.going_on()
        for name in self._tables_of(stream):
            if (table := going_on.get(name)) is not None:
                of_table = partial(self._upkeep_of_table, stream, name, table)
                yield self._remembered(f"table {name}", table, of_table)
        of_stream = partial(self._upkeep_of_changelog, stream)
        yield self._remembered(f"stream {stream}", None, of_stream)

    def _remembered(
        self, what: str, table: Table | None, make: Callable[[], Maintenance]
    ) -> Maintenance:
        """The maintenance of before, unless the table was opened again."""
        if what not in self._upkeep or self._upkeep[what][0] is not table:
            self._upkeep[what] = (table, make())
        return self._upkeep[what][1]

    def _upkeep_of_table(self, stream: str, name: str, table: Table) -> Maintenance:
        maintained = Maintained(
            new_commits=table.new_commits,
            oldest_commit_at=table.log.oldest_commit_at,
            compact=lambda: table.compact(partial(self._applies.between, name)),
            clean=partial(self._clean_table, stream, name),
            clean_log=partial(self._clean_table_log, stream, name),
            checkpoint=table.checkpoint,
            is_wanted=table.is_vacuum_due,
            live_bytes=table.size_in_bytes,
        )
        job = Job(JobKind.CLEAN_UP, name, 0, 0)
        longest_s = self._config.streams[stream].retention.table_file_s
        return self._maintenance(job, maintained, table.versions_kept_s(), longest_s)

    def _upkeep_of_changelog(self, stream: str) -> Maintenance:
        ingest = self._streams[stream]
        maintained = Maintained(
            new_commits=ingest.changelog.log.new_commits,
            oldest_commit_at=ingest.changelog.log.oldest_commit_at,
            compact=ingest.compact,
            clean=partial(self._clean_changelog, stream),
            clean_log=partial(self._clean_changelog_log, stream),
            checkpoint=ingest.changelog.log.checkpoint,
        )
        job = Job(JobKind.CLEAN_UP, "", 0, 0, stream=stream)
        retention_s = self._config.streams[stream].retention.file_s
        return self._maintenance(job, maintained, retention_s)

    def _maintenance(
        self, job: Job, maintained: Maintained, retention_s: int, longest_s: int | None = None
    ) -> Maintenance:
        return Maintenance(
            job,
            maintained,
            retention_s=retention_s,
            longest_s=longest_s,
            last_clean=partial(self._job_log.last_clean_up, job.table, job.stream),
            last_failed=partial(self._job_log.failed_maintenance, job.table, job.stream),
            add_job=self._applies.add_job,
            on_event=self._on_event,
            is_late=self._is_late,
        )

    def _is_late(self, now: int) -> bool:
        """Whether a batch has waited too long for an apply of one of the tables."""
        bounds, paces = self._job_log.bounds(), self._job_log.paces()
        for stream, ingest in self._streams.items():
            progress = ingest.changelog.progress(with_frontier=False)
            for name in self._tables.going_on().keys() & set(self._tables_of(stream)):
                pace_s = pace_in_force(self._config.tables[name], bounds, paces)
                within_us = round(LATE_PACES * pace_s * 1_000_000)
                with suppress(WriterConflictError):  # it is altered meanwhile
                    if progress.is_late(self._tables[name].table_state(), now, within_us):
                        return True
        return False

    def _maintain(self, stop: threading.Event, stream: str) -> None:
        """Run the maintenance that is due. Its commits are made between two applies (TBL-15)."""
        for maintenance in self._upkeep_of(stream):
            if not stop.is_set():
                maintenance.after_round(self._ports[stream].now())

    def _clean_table(self, stream: str, name: str, now: int) -> Work:
        """Delete old versions of a table.

        First it deletes the rows of cuts that name these versions, and thins out others. The
        version that the newest cut of the stream needs stays.
        """
        self._record_again(stream)
        before = now - self._config.streams[stream].retention.snapshot_s * 1_000_000
        of_stream, going_on = set(self._tables_of(stream)), self._tables.going_on()
        versions = {
            name: table.log.version_at(before)
            for name, table in going_on.items()
            if name in of_stream
        }
        oldest = {table: version for table, version in versions.items() if version is not None}
        cuts = self._job_log.cuts(stream)
        for table in versions:  # reads of cuts that are deleted now may have begun
            named = [cut.versions[table] for cut in cuts if table in cut.versions]
            going_on[table].keep(named, now)
        self._job_log.forget_cuts(stream, oldest, self._kept_cut(stream, now), now)
        kept = self._kept_versions(stream, name)
        return self._applies.between(name, partial(self._tables[name].clean, now, kept))

    def _clean_table_log(self, stream: str, name: str, now: int) -> None:
        self._tables[name].clean_log(now, self._kept_versions(stream, name))

    def _kept_versions(self, stream: str, name: str) -> list[int]:
        """The older versions of a table that cuts of the stream name."""
        newest, _ = self._tables[name].newest()
        named = {cut.versions.get(name, newest) for cut in self._job_log.cuts(stream)}
        return sorted(version for version in named if version < newest)

    def _kept_cut(self, stream: str, now: int) -> CutRecord | None:
        """The newest cut, if each table was in it less than `NEWEST_CUT_KEPT_US` ago, or is."""
        cut, going_on = self._cuts[stream], self._tables.going_on()
        left = (
            going_on[name].superseded_at(version)
            for name, version in (cut.versions if cut else {}).items()
            if name in going_on
        )
        return cut if all(at is None or now - at < NEWEST_CUT_KEPT_US for at in left) else None

    def _clean_changelog(self, stream: str, now: int) -> Work:
        ingest, covered = self._streams[stream], None
        if not self._has_stopped(stream):  # a stopped table may need every batch
            # Of their commits: a position may be lost (ENG-7).
            states = [self._tables[name].committed()[1] for name in self._tables_of(stream)]
            covered = min((state.needed_to_batch for state in states), default=None)
        ingest.remove_old_rows(covered, now)
        return ingest.changelog.clean()

    def _clean_changelog_log(self, stream: str, now: int) -> None:
        kept_s = self._config.streams[stream].retention.file_s
        self._streams[stream].changelog.log.clean(now - kept_s * 1_000_000)

    def _step(self, what: str, step: str) -> None:
        self._on_step(f"{what}: {step}")

    def _tables_of(self, stream: str) -> list[str]:
        return [
            name for name, definition in self._config.tables.items() if definition.stream == stream
        ]

    def _lack_nothing_of(self, stream: str, batch: int, as_cut: bool) -> bool:
        """Whether no change up to an ingest batch waits, in any table that is not stopped."""
        going_on = self._tables.going_on()
        states = [
            going_on[name].table_state() for name in self._tables_of(stream) if name in going_on
        ]
        return all(state.lacks_nothing_of(batch, as_cut=as_cut) for state in states)

    def _has_stopped(self, stream: str) -> bool:
        """Whether a table of the stream is stopped."""
        return not self._tables.stopped.keys().isdisjoint(self._tables_of(stream))

    def _record(self, stream: str, cut: Cut, reached: Mapping[str, AtVersion]) -> None:
        """Record the cut if all tables of the stream are at it, or were in `reached` (TBL-17)."""
        if self._has_stopped(stream):
            return
        try:
            newest = {
                name: reached[name] if name in reached else self._tables[name].newest()
                for name in self._tables_of(stream)
            }
        except WriterConflictError:  # a table is altered meanwhile, which left the round
            return
        if (
            not newest
            or cut.low_watermark is None
            or not all(state.is_at(cut.low_watermark, cut.batch) for _, state in newest.values())
        ):
            return
        self._reached[stream] = _record_of(
            stream, cut.low_watermark, cut.batch, newest, self._ports[stream].now()
        )
        self._record_reached()

    def _record_reached(self, *, at_once: bool = False) -> None:
        """Record the newest cut of each stream, `at_once` or if the last one was recorded
        `CUTS_EVERY_S` ago.
        """
        now = time.monotonic()
        for stream in [*self._reached]:
            if not at_once and now < self._recorded_at[stream] + CUTS_EVERY_S:
                continue
            with self._recording:
                reached = self._reached.pop(stream, None)
                follows = None if reached is None else reached.follows(self._cuts[stream])
                if follows is not None:
                    self._add_cut(stream, follows)
                    self._recorded_at[stream] = now

    def _record_again(self, stream: str) -> None:
        """Record the newest cut with today's versions, if they show the same rows.

        Then the files of the versions recorded before can be deleted (TBL-15, TBL-17).
        """
        self._record_reached(at_once=True)  # the newest record is the one with the latest time
        recorded = self._cuts[stream]
        if self._has_stopped(stream):
            return
        newest = {name: self._tables[name].newest() for name in self._tables_of(stream)}
        if recorded is None or recorded.versions.keys() != newest.keys():
            return
        again = _record_of(
            stream, recorded.low_watermark, recorded.to_batch, newest, self._ports[stream].now()
        )
        if again.versions != recorded.versions and again.attempts == recorded.attempts:
            with self._recording:
                if self._cuts[stream] is not recorded or stream in self._reached:
                    return  # a round has ended meanwhile, and snapshots must not go back
                self._add_cut(stream, replace(again, revision=recorded.revision))

    def _add_cut(self, stream: str, cut: CutRecord) -> None:
        """Record a cut as the newest one: with the latest time, also if the clock went back."""
        if (before := self._cuts[stream]) is not None:
            cut = replace(cut, recorded_at=max(cut.recorded_at, before.recorded_at + 1))
        self._job_log.add_cut(cut)
        self._cuts[stream] = cut


def _record_of(
    stream: str, low_watermark: int, batch: int, tables: Mapping[str, AtVersion], now: int
) -> CutRecord:
    """The record of a cut that these tables show, without its revision."""
    return CutRecord(
        stream=stream,
        low_watermark=low_watermark,
        to_batch=batch,
        revision=0,
        merged=sum(state.merged for _, state in tables.values()),
        recorded_at=now,
        versions={name: version for name, (version, _) in tables.items()},
        attempts={name: state.attempt_id for name, (_, state) in tables.items()},
    )
