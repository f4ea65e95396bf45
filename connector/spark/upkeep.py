"""The maintenance of the streams and tables of a pipeline (TBL-15, JOB-3)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial

from connector.config.settings import ConnectorConfig
from connector.errors import WriterConflictError
from connector.events import OnEvent
from connector.spark.apply_loop import Applies
from connector.spark.cuts import Cuts
from connector.spark.ingest.ports import IngestPorts
from connector.spark.job_log import JobLog
from connector.spark.open_tables import OpenTables
from connector.spark.storage.maintenance import Maintained, Maintenance, Work
from connector.spark.storage.table import Table
from connector.spark.stream_ingest import StreamIngest
from connector.state.jobs import Job, JobKind
from connector.state.maintenance_schedule import LATE_PACES
from connector.state.overrides import pace_in_force


class Upkeep:
    """The work that is due for a stream: first the maintenance of its tables, then that of its
    changelog. Commits to a table are made between two of its applies.
    """

    def __init__(
        self,
        config: ConnectorConfig,
        streams: Mapping[str, StreamIngest],
        tables: OpenTables,
        applies: Applies,
        cuts: Cuts,
        job_log: JobLog,
        ports: Mapping[str, IngestPorts],
        on_event: OnEvent,
    ) -> None:
        self._config, self._streams, self._tables = config, streams, tables
        self._applies, self._cuts, self._job_log = applies, cuts, job_log
        self._ports, self._on_event = ports, on_event
        self._remembered: dict[str, tuple[Table | None, Maintenance]] = {}

    def run_due(self, stop: threading.Event, stream: str) -> None:
        """Run the maintenance of a stream that is due, unless `stop` is set."""
        for maintenance in self._of_stream(stream):
            if not stop.is_set():
                maintenance.after_round(self._ports[stream].now())

    def clean_table(self, stream: str, name: str, now: int) -> Work:
        """Delete old versions of a table. First, delete the rows of cuts that name them."""
        self._cuts.forget_old(stream, now)
        kept = self._cuts.versions_of(stream, name)
        return self._applies.between(name, partial(self._tables[name].clean, now, kept))

    def clean_table_log(self, stream: str, name: str, now: int) -> None:
        """Delete the log entries of old versions of a table."""
        self._tables[name].clean_log(now, self._cuts.versions_of(stream, name))

    def _of_stream(self, stream: str) -> Iterator[Maintenance]:
        for name, table in self._tables.going_on().items():
            if self._config.tables[name].stream == stream:
                yield self._same(
                    f"table {name}", table, partial(self._of_table, stream, name, table)
                )
        yield self._same(f"stream {stream}", None, partial(self._of_changelog, stream))

    def _same(self, what: str, table: Table | None, make: Callable[[], Maintenance]) -> Maintenance:
        """The maintenance of before, unless the table was opened again."""
        if what not in self._remembered or self._remembered[what][0] is not table:
            self._remembered[what] = (table, make())
        return self._remembered[what][1]

    def _of_table(self, stream: str, name: str, table: Table) -> Maintenance:
        maintained = Maintained(
            new_commits=table.new_commits,
            oldest_commit_at=table.log.oldest_commit_at,
            compact=lambda: table.compact(partial(self._applies.between, name)),
            clean=partial(self.clean_table, stream, name),
            clean_log=partial(self.clean_table_log, stream, name),
            checkpoint=table.checkpoint,
            is_wanted=table.is_vacuum_due,
            live_bytes=table.size_in_bytes,
        )
        job = Job(JobKind.CLEAN_UP, name, 0, 0)
        longest_s = self._config.streams[stream].retention.table_file_s
        return self._maintenance(job, maintained, table.versions_kept_s(), longest_s)

    def _of_changelog(self, stream: str) -> Maintenance:
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
            for name in self._tables.going_on().keys() & self._config.tables_of(stream):
                pace_s = pace_in_force(self._config.tables[name], bounds, paces)
                within_us = round(LATE_PACES * pace_s * 1_000_000)
                with suppress(WriterConflictError):  # it is altered meanwhile
                    if progress.is_late(self._tables[name].table_state(), now, within_us):
                        return True
        return False

    def _clean_changelog(self, stream: str, now: int) -> Work:
        ingest, covered, names = self._streams[stream], None, self._config.tables_of(stream)
        if not self._tables.is_stopped(names):  # a stopped table may need every batch
            # Of their commits: a position may be lost (ENG-7).
            states = [self._tables[name].committed()[1] for name in names]
            covered = min((state.needed_to_batch for state in states), default=None)
        ingest.remove_old_rows(covered, now)
        return ingest.changelog.clean()

    def _clean_changelog_log(self, stream: str, now: int) -> None:
        kept_s = self._config.streams[stream].retention.file_s
        self._streams[stream].changelog.log.clean(now - kept_s * 1_000_000)
