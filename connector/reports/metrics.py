"""The metrics of a running pipeline: a declaration of each series, and their samples from what the
pipeline has in memory (MET-1). Ages are counted to the time of the scrape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from connector.config.settings import StreamConfig
from connector.records.rejection import Reason
from connector.reports.bridge_status import BridgeStatus
from connector.reports.headroom import Headroom
from connector.reports.series import NO_DURATIONS, Histogram, Kind, Sample, Series
from connector.reports.stream_status import NONE_OPEN, OpenLetters
from connector.state.jobs import FIGURES, MAINTENANCE, Job, JobKind
from connector.state.stream_progress import Progress
from connector.state.table_state import TableState
from connector.state.unapplied import NOTHING_COUNTED, BatchContents, TableChanges, Unapplied
from connector.watermarks.freshness import EndOffsets

MAX_STREAM_PARTITIONS: Final = 1_000
"""So many live stream partitions of a stream have a series of their own, the oldest first."""

SERIES: Final[list[Series]] = []
"""All series of a pipeline, in the order of the reference page."""


def _series(kind: Kind, name: str, text: str, labels: str = "") -> Series:
    SERIES.append(Series(f"lowmark_{name}", kind, tuple(labels.split()), text))
    return SERIES[-1]


_gauge, _counter = partial(_series, "gauge"), partial(_series, "counter")
_histogram = partial(_series, "histogram")

RUNNING = _gauge("running", "1 while the pipeline ingests and applies, else 0.")
LAST_ERROR_AGE = _gauge("last_error_age_seconds", "Time since the last error of a code.", "reason")
WARNINGS = _counter("warnings", "Warnings in the log, by code.", "reason")
FREE_BYTES = _gauge("warehouse_free_bytes", "Free space of the disk of a local warehouse.")
BROKER_FREE_BYTES = _gauge(
    "broker_free_bytes", "Free space of the disk of the brokers of this machine."
)
HEAP_USED = _gauge("jvm_heap_used_bytes", "Used heap of the Spark driver.")
HEAP_MAX = _gauge("jvm_heap_max_bytes", "Largest heap of the Spark driver.")
GC_SECONDS = _counter("jvm_gc_seconds", "Time of the garbage collections of the Spark driver.")

REFRESH_AGE = _gauge(
    "stream_refresh_age_seconds",
    "Time since Kafka last answered about lag, dead letters and bridge. It is asked every 30 s.",
    "stream",
)
LAG = _gauge("stream_lag_offsets", "Offsets that were not ingested.", "stream kafka_partition")
LAG_SECONDS = _gauge(
    "stream_lag_seconds", "What arrived in Kafka so long ago, or before, was ingested.", "stream"
)
HEADROOM = _gauge(
    "stream_headroom_seconds",
    "Time until Kafka may delete the first record that ingest lacks.",
    "stream kafka_partition",
)
RETENTION = _gauge(
    "stream_retention_seconds", "How long the topic keeps records, if not for ever.", "stream"
)
CHANGES = _counter("stream_changes", "Changes in the changelog.", "stream")
CONTROL = _counter("stream_control_records", "Control records, such as heartbeats.", "stream")
REJECTED = _counter("stream_rejected_records", "Records that ingest rejected.", "stream reason")
LATE = _counter("stream_late_changes", "Changes below the low watermark at ingest.", "stream")
IGNORED_CLAIMS = _counter("stream_ignored_claims", "Watermark claims without effect.", "stream")
STREAM_WRITTEN = _counter(
    "stream_written_bytes",
    "Bytes of the files that batches of this process added to the changelog.",
    "stream",
)
UNDEFINED = _counter(
    "stream_undefined_changes", "Changes of source tables that no definition names.", "stream"
)
BATCHES = _histogram("batch_duration_seconds", "Duration of ingest batches.", "stream")
LOW_WATERMARK_AGE = _gauge(
    "stream_low_watermark_age_seconds", "Age of the low watermark.", "stream"
)
HELD = _gauge(
    "stream_low_watermark_held_seconds",
    "Time since the stream partition that delays the low watermark advanced.",
    "stream stream_partition",
)
STALLED = _gauge(
    "stream_stalled_partitions", "Stream partitions without progress for stall_after.", "stream"
)
PARTITIONS = _gauge("stream_live_partitions", "Live stream partitions.", "stream")
ADVANCE_AGE = _gauge(
    "stream_partition_advance_age_seconds",
    "Time since a heartbeat or claim advanced a stream partition: the 1,000 oldest of a stream.",
    "stream stream_partition",
)
INCOMPLETE = _gauge("stream_incomplete_transactions", "Transactions that lack records.", "stream")
HIDING = _gauge("stream_open_transactions", "Open transactions that hide records.", "stream")
OPEN_LETTERS = _gauge(
    "stream_open_dead_letters", "Dead letters that were not replayed or discarded.", "stream"
)
LETTER_AGE = _gauge(
    "stream_oldest_dead_letter_age_seconds", "Age of the oldest open dead letter.", "stream"
)
WITHHELD = _gauge("stream_withheld_releases", "Withheld releases of write streams.", "stream")
AUDIT_AGE = _gauge("stream_audit_age_seconds", "Time since the last audit ended.", "stream")
AUDIT_FAILED = _gauge(
    "stream_audit_is_failed", "1 if the last audit proved that something is wrong.", "stream"
)
BRIDGE_LAG = _gauge("bridge_lag_offsets", "Source records that are not published.", "stream")
BRIDGE_AGE = _gauge("bridge_heartbeat_age_seconds", "Age of its newest heartbeat.", "stream")

TABLE_AGE = _gauge(
    "table_age_seconds", "The table has what arrived in Kafka so long ago, or before.", "table"
)
TABLE_BOUND = _gauge("table_bound_seconds", "The max_staleness in force, if any.", "table")
TABLE_CUT = _gauge("table_is_consistent_cut", "1 if the table is a consistent cut.", "table")
TABLE_WATERMARK_AGE = _gauge(
    "table_apply_watermark_age_seconds", "Age of the apply watermark.", "table"
)
STOPPED = _gauge("table_is_stopped", "1 while an error of the table stops its applies.", "table")
PENDING = _gauge(
    "table_pending_batches", "Batches whose upserts and deletes are not all applied.", "table"
)
PENDING_CHANGES = _gauge(
    "table_pending_changes",
    "Changes of the batches that the table has not wholly, without rows of write streams. Left out"
    " while batches from before the start of the process are pending.",
    "table",
)
DELETE_AGE = _gauge(
    "table_oldest_unapplied_delete_age_seconds",
    "Time since the oldest delete that is not applied arrived in Kafka, or 0. A delete is a change"
    " that sets no cell, or a truncation. A pending batch from before the start of the process"
    " counts as if it had one.",
    "table",
)
MERGED = _counter("table_merged_changes", "Changes that were merged into the table.", "table")
REMOVED = _counter("table_removed_rows", "Rows that applies of this process removed.", "table")
WRITTEN_ROWS = _counter(
    "table_written_rows",
    "Rows of the files that applies of this process added: those that are new or changed. A large"
    " apply also writes the other rows of its buckets.",
    "table",
)
WRITTEN = _counter(
    "table_written_bytes", "Bytes of the files that applies of this process added.", "table"
)
TABLE_LETTERS = _counter(
    "table_dead_letters", "Changes that became dead letters of the table.", "table"
)
TABLE_OPEN = _gauge(
    "table_open_dead_letters", "Open dead letters that may belong to the table.", "table"
)
BLOCKED = _gauge("table_blocked_rows", "Rows that wait for a dead letter.", "table")
MISFITS = _counter("table_misfits", "Values that their column could not hold.", "table")
LIVE_BYTES = _gauge("table_live_bytes", "Size of the newest version at the last clean-up.", "table")
DISK_BYTES = _gauge(
    "table_disk_bytes", "Size with old versions and logs at the last clean-up.", "table"
)

JOBS = _histogram("job_duration_seconds", "Duration of applies and maintenance.", "kind")
JOB_CPU = _counter(
    "job_cpu_seconds", "Processor time of applies, on executors and in Python.", "kind"
)
FAILED_JOBS = _counter("failed_jobs", "Applies and maintenance that failed.", "kind")
MAINTENANCE_FAILING = _gauge(
    "maintenance_is_failing",
    "1 if the last compaction or clean-up of a table, or of the changelog of a stream, failed.",
    "stream table",
)


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """A stream: its newest progress, the offsets that ingest has read to, the last answers of
    Kafka, and the last audit. `is_low`: the headroom was low at the last answer. `written` are the
    bytes that batches of this process added.
    """

    config: StreamConfig
    progress: Progress | None = None
    read_to: Mapping[int, int] = field(default_factory=dict)
    batches: Histogram = NO_DURATIONS
    asked: EndOffsets | None = None
    refreshed_at: int | None = None
    letters: OpenLetters = NONE_OPEN
    bridge: BridgeStatus | None = None
    audit: Job | None = None
    headroom: tuple[Headroom, ...] = ()
    retention_ms: int = -1
    is_low: bool = False
    written: int = 0

    def with_headroom(
        self, headroom: tuple[Headroom, ...], retention_ms: int, at: int
    ) -> StreamFigures:
        """Return the figures after the headroom was asked for at the time `at` (µs)."""
        is_low = any(of_partition.is_low(at) for of_partition in headroom)
        return replace(self, headroom=headroom, retention_ms=retention_ms, is_low=is_low)

    def answered(
        self, asked: EndOffsets, letters: OpenLetters, bridge: BridgeStatus | None
    ) -> StreamFigures:
        """Return the figures after Kafka was asked."""
        progress, letters = self.progress, letters if letters.is_known else self.letters
        if progress is not None:
            progress = progress.refreshed(self.read_to, asked, progress.open_transactions)
        return replace(
            self,
            progress=progress,
            asked=asked,
            refreshed_at=asked.at,
            letters=letters,
            bridge=bridge,
        )

    def samples(self, now: int) -> Iterator[Sample]:
        """Yield the samples at the time `now` (µs)."""
        name = self.config.name
        of_stream = (name,)
        if self.refreshed_at is not None:
            yield Sample(REFRESH_AGE, _age(self.refreshed_at, now), of_stream)
        if self.audit is not None:
            yield Sample(AUDIT_AGE, _age(self.audit.ended_at, now), of_stream)
            yield Sample(AUDIT_FAILED, int(bool(self.audit.error)), of_stream)
        if self.asked is not None:
            for number, end in self.asked.ends.items():
                yield Sample(LAG, max(0, end - self.read_to.get(number, 0)), (name, str(number)))
            for of_partition in self.headroom:
                number = of_partition.kafka_partition
                if self.read_to.get(number, 0) <= of_partition.offset:
                    yield Sample(HEADROOM, of_partition.left_s(now), (name, str(number)))
            if self.retention_ms >= 0:
                yield Sample(RETENTION, self.retention_ms / 1000, of_stream)
            yield from self._asked_samples(now)
        yield Sample(BATCHES, self.batches, of_stream)
        yield Sample(STREAM_WRITTEN, self.written, of_stream)
        if self.progress is not None:
            yield from self._progress_samples(self.progress, now)

    def _asked_samples(self, now: int) -> Iterator[Sample]:
        of_stream = (self.config.name,)
        yield Sample(OPEN_LETTERS, self.letters.count, of_stream)
        yield Sample(LETTER_AGE, _age(self.letters.since or now, now), of_stream)
        yield Sample(WITHHELD, self.letters.withheld, of_stream)
        if self.bridge is not None and self.bridge.is_known:
            yield Sample(BRIDGE_LAG, self.bridge.lag, of_stream)
            if self.bridge.heartbeat_at:
                yield Sample(BRIDGE_AGE, _age(self.bridge.heartbeat_at, now), of_stream)

    def _progress_samples(self, progress: Progress, now: int) -> Iterator[Sample]:
        name = self.config.name
        of_stream = (name,)
        if (read_at := progress.freshness.time_of(progress.ingest_batch)) is not None:
            yield Sample(LAG_SECONDS, _age(read_at, now), of_stream)
        for series, value in (
            (CHANGES, progress.changes),
            (CONTROL, progress.control),
            (LATE, progress.late),
            (IGNORED_CLAIMS, progress.ignored_claims),
            (UNDEFINED, progress.unknown_tables),
            (INCOMPLETE, len(progress.transactions.incomplete)),
            (HIDING, len(progress.open_transactions)),
        ):
            yield Sample(series, value, of_stream)
        for reason in {*Reason, *progress.rejected}:
            # A rate counts from the first sample, so it needs the zero before the first rejection.
            yield Sample(REJECTED, progress.rejected.get(reason, 0), (name, reason))
        yield from self._watermark_samples(progress, now)

    def _watermark_samples(self, progress: Progress, now: int) -> Iterator[Sample]:
        name, frontier = self.config.name, progress.frontier
        if progress.low_watermark is not None:
            yield Sample(LOW_WATERMARK_AGE, _age(progress.low_watermark, now), (name,))
        if (lagging := frontier.lagging_partition) is not None:
            labels = (name, lagging.stream_partition)
            yield Sample(HELD, _age(lagging.since, now), labels)
        stalls = frontier.stalls(now, self.config.stall_after_s * 1_000_000)
        yield Sample(STALLED, len(stalls), (name,))
        live = frontier.live
        yield Sample(PARTITIONS, len(live), (name,))
        advanced = sorted((frontier.last_advance[partition].at, partition) for partition in live)
        for at, partition in advanced[:MAX_STREAM_PARTITIONS]:
            yield Sample(ADVANCE_AGE, _age(at, now), (name, partition))


@dataclass(frozen=True, slots=True)
class TableFigures:
    """A table: its newest state, the bound in force, open dead letters, the last clean-up, whether
    it is stopped, what the jobs of this process removed and wrote, and the changes that it lacks.
    """

    stream: str
    source: str
    state: TableState | None = None
    bound_s: int | None = None
    letters: OpenLetters = NONE_OPEN
    cleaned: Job | None = None
    is_stopped: bool = False
    removed: int = 0
    written: int = 0
    written_rows: int = 0
    unapplied: Unapplied = NOTHING_COUNTED

    def with_batches(
        self, progress: Progress, batches: Mapping[int, BatchContents], now: int
    ) -> TableFigures:
        """Return the figures after batches of the stream, up to `progress`, were logged."""
        as_of = None if self.state is None else progress.as_of(self.state)
        changes = {
            number: contents.tables.get(self.source, TableChanges())
            for number, contents in batches.items()
        }
        unapplied = self.unapplied.after(progress.ingest_batch, changes, as_of or now)
        return replace(self, unapplied=unapplied).with_state(self.state)

    def with_state(self, state: TableState | None) -> TableFigures:
        """Return the figures with the newest state. None: unknown."""
        unapplied = self.unapplied if state is None else self.unapplied.without(state)
        return replace(self, state=state, unapplied=unapplied)

    def with_job(self, job: Job) -> TableFigures:
        """Return the figures after a job of the table."""
        is_cleaned = job.kind is JobKind.CLEAN_UP and not job.error
        return replace(
            self,
            cleaned=job if is_cleaned else self.cleaned,
            removed=self.removed + job.deletes,
            written=self.written + job.bytes_written,
            written_rows=self.written_rows + job.rows_written,
        )

    def samples(self, name: str, progress: Progress | None, now: int) -> Iterator[Sample]:
        """Yield the samples of the table of this name at the time `now` (µs). `progress` is that of
        its stream.
        """
        labels = (name,)
        yield Sample(STOPPED, int(self.is_stopped), labels)
        if self.bound_s:
            yield Sample(TABLE_BOUND, self.bound_s, labels)
        if self.cleaned is not None:
            yield Sample(LIVE_BYTES, self.cleaned.live_bytes, labels)
            yield Sample(DISK_BYTES, self.cleaned.disk_bytes, labels)
        state = self.state
        if state is None:
            return
        if progress is not None:
            if (as_of := progress.as_of(state)) is not None:
                yield Sample(TABLE_AGE, _age(as_of, now), labels)
            pending = max(0, progress.ingest_batch - state.complete_to_batch)
            yield Sample(PENDING, pending, labels)
        if self.unapplied.changes is not None:
            yield Sample(PENDING_CHANGES, self.unapplied.changes, labels)
        yield Sample(DELETE_AGE, _age(self.unapplied.deletes_since or now, now), labels)
        if state.apply_watermark is not None:
            yield Sample(TABLE_WATERMARK_AGE, _age(state.apply_watermark, now), labels)
        for series, value in (
            (TABLE_CUT, int(state.is_consistent_cut)),
            (MERGED, state.merged),
            (REMOVED, self.removed),
            (WRITTEN_ROWS, self.written_rows),
            (WRITTEN, self.written),
            (TABLE_LETTERS, state.letters),
            (TABLE_OPEN, self.letters.count),
            (BLOCKED, len({letter.row_key for letter in state.blocked_rows})),
            (MISFITS, sum(state.misfits.values())),
        ):
            yield Sample(series, value, labels)


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """The process: whether the pipeline runs, the codes of warnings and errors, and what jobs did.

    `errors` has the time of the last error by code. `failing` has, for each stream and table,
    of which one is empty, the kinds of maintenance whose last job failed.
    """

    is_running: bool = False
    warnings: Mapping[str, int] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)
    jobs: Mapping[JobKind, Histogram] = field(default_factory=dict)
    failed: Mapping[JobKind, int] = field(default_factory=dict)
    cpu_us: Mapping[JobKind, int] = field(default_factory=dict)
    failing: Mapping[tuple[str, str], frozenset[JobKind]] = field(default_factory=dict)
    usage: Mapping[Series, float] = field(default_factory=dict)

    def with_warning(self, code: str) -> ProcessFigures:
        """Return the figures after a warning."""
        return replace(self, warnings={**self.warnings, code: self.warnings.get(code, 0) + 1})

    def with_error(self, code: str, at: int) -> ProcessFigures:
        """Return the figures after an error at this time (µs)."""
        return replace(self, errors={**self.errors, code: at})

    def with_job(self, job: Job) -> ProcessFigures:
        """Return the figures after a job."""
        jobs, failed, failing = dict(self.jobs), dict(self.failed), dict(self.failing)
        jobs[job.kind] = jobs.get(job.kind, NO_DURATIONS).with_value(job.duration_s)
        failed[job.kind] = failed.get(job.kind, 0) + bool(job.error)
        if job.kind in MAINTENANCE:
            others = failing.get((job.stream, job.table), frozenset()) - {job.kind}
            failing[job.stream, job.table] = others | ({job.kind} if job.error else set())
        cpu_us = {**self.cpu_us, job.kind: self.cpu_us.get(job.kind, 0) + job.cpu_us}
        return replace(self, jobs=jobs, failed=failed, failing=failing, cpu_us=cpu_us)

    def samples(self, now: int) -> Iterator[Sample]:
        """Yield the samples at the time `now` (µs)."""
        yield Sample(RUNNING, int(self.is_running))
        for reason, count in self.warnings.items():
            yield Sample(WARNINGS, count, (reason,))
        for reason, at in self.errors.items():
            yield Sample(LAST_ERROR_AGE, _age(at, now), (reason,))
        for series, value in self.usage.items():
            yield Sample(series, value)
        for kind in (JobKind.APPLY, JobKind.REBUILD, *MAINTENANCE):
            yield Sample(JOBS, self.jobs.get(kind, NO_DURATIONS), (kind.value,))
            if "cpu_us" in FIGURES[kind]:
                yield Sample(JOB_CPU, self.cpu_us.get(kind, 0) / 1_000_000, (kind.value,))
            yield Sample(FAILED_JOBS, self.failed.get(kind, 0), (kind.value,))
        for owner, kinds in self.failing.items():
            yield Sample(MAINTENANCE_FAILING, int(bool(kinds)), owner)


def _age(since: int, now: int) -> float:
    return max(0, now - since) / 1_000_000
