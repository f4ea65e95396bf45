"""The status of a table: its watermark, age, dead letters and applies (OPS-5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from connector.records.views import Flat, Hidden, Shown, Time, Viewed
from connector.reports.stream_status import NONE_OPEN, OpenLetters
from connector.state.jobs import Job, failed_maintenance, keeps_bound, p95_s, recommended_bound_s
from connector.state.pace import APPLY_EVERY_S
from connector.state.stream_progress import Progress
from connector.state.table_state import TableState
from connector.tables.definition import Column, TableDefinition
from connector.text import counted
from connector.watermarks.freshness import is_fresh
from connector.watermarks.frontier import Stall

HEARTBEATS_US: Final = 15_000_000
"""If changes wait so long for a heartbeat, a hint says so. Producers send one each second."""


@dataclass(frozen=True, slots=True)
class TableStatus(Viewed):
    """The status of a table after its last apply.

    upsert_stream_apply_watermark   the table has every change with a smaller commit timestamp;
                                    None: unknown
    inconsistent_since              since when the table is no consistent cut; None: it is one, or
                                    it is empty
    lagging_partition               the stream partition that delays the low watermark; None: the
                                    table is a consistent cut, or empty, and no change waits
    as_of                           the table has all that had arrived in Kafka at this time; None:
                                    unknown
    pending_batches                 the number of batches that are not completely applied; None:
                                    unknown, because the table was not made from this changelog
    waiting_changes                 the number of changes that the last apply deferred: they wait
                                    for a heartbeat of `lagging_partition`
    declared_max_staleness_s        the bound of the configuration; `max_staleness_s` is the bound
                                    in force
    letters                         the number of changes that ever became dead letters of this
                                    table (TBL-9)
    misfits                         by column, the number of values that it could not hold and is
                                    NULL for (EVO-11)
    blocked_rows, blocked_since     rows that wait for a dead letter, and since when the oldest one
                                    waits (DLQ-3)
    dead_letters                    open dead letters that may belong to this table, and withheld
                                    releases: without them it is incomplete (DLQ-7, WRS-18)
    last_job                        the last apply or rebuild; reads do not count
    p95_s                           of the applies of the last seven days;
                                    recommended_max_staleness_s follows from it (TBL-19)
    apply_every_s, due_at           the time from one apply to the next, and when the next one is
                                    due (JOB-2); None: at once
    lacks_lost_records              Kafka deleted records of its stream unread, and no person has
                                    confirmed the table since (RUN-7)
    definition_hints                the hints about its definition (EVO-2)
    cells_without_column            families and qualifiers of recent changes that no column shows
    column_to_add                   a column for one of them, if an operator can add one
    maintenance                     the last compaction and the last clean-up, of the table and its
                                    tombstone table (TBL-15)
    other_commits                   the operations of other programs since lowmark's newest commit:
                                    they changed no row (RUN-3)
    """

    name: Hidden[str]
    stream: str
    now: Hidden[int]
    apply: int
    to_batch: int
    pending_batches: int | None
    upsert_stream_apply_watermark: Time | None
    is_consistent_cut: bool
    inconsistent_since: Time | None
    lagging_partition: Stall | None
    as_of: Time | None
    declared_max_staleness_s: int | None
    max_staleness_s: int | None
    letters: int
    blocked_rows: int
    blocked_since: Time | None
    dead_letters: Flat[OpenLetters]
    last_job: Job | None
    p95_s: float | None
    recommended_max_staleness_s: int | None
    apply_every_s: float
    due_at: Time | None
    maintenance: tuple[Job, ...] = ()
    other_commits: tuple[str, ...] = ()
    lacks_lost_records: bool = False
    waiting_changes: int = 0
    misfits: Mapping[str, int] = field(default_factory=dict)
    misfit_texts: Hidden[tuple[str, ...]] = ()
    definition_hints: Hidden[tuple[str, ...]] = ()
    cells_without_column: Hidden[tuple[tuple[str, bytes], ...]] = ()
    column_to_add: Hidden[Column | None] = None

    @property
    def age_s(self) -> Shown[float | None]:
        """The age in seconds, on the clock of arrival in Kafka (TBL-16). None: unknown."""
        return None if self.as_of is None else (self.now - self.as_of) / 1_000_000

    @property
    def failed_job(self) -> Job | None:
        """The last apply or rebuild, if it failed. None, too: the table has had all that arrived in
        Kafka since then. An apply that finds nothing to do is no job.
        """
        job = self.last_job
        if job is None or not job.error or (self.as_of or 0) > job.ended_at:
            return None
        return job

    @property
    def is_complete(self) -> Shown[bool]:
        """Whether it is a consistent cut, no dead letter that may belong to it is open or being
        replayed, and no release is withheld. False if the table was not made from this changelog.
        """
        return (
            self.is_consistent_cut
            and self.pending_batches is not None
            and not self.dead_letters.count
            and not self.dead_letters.under_way
            and not self.dead_letters.withheld
        )

    @property
    def is_older_than_its_bound(self) -> bool:
        """Whether a read within the bound must merge or wait."""
        return bool(self.max_staleness_s) and not is_fresh(
            self.as_of, self.max_staleness_s or 0, self.now
        )

    @property
    def is_waiting(self) -> bool:
        """Whether changes wait for a heartbeat, and for longer than between two heartbeats."""
        return (
            bool(self.waiting_changes)
            and self.lagging_partition is not None
            and self.now - self.lagging_partition.since >= HEARTBEATS_US
        )

    @property
    def hints(self) -> Shown[list[str]]:
        """Problems of the table with their remedies."""
        return [
            *self._age_hints(),
            *self._completeness_hints(),
            *self.misfit_texts,
            *failed_maintenance(self.maintenance),
            *self.definition_hints,
        ]

    def _age_hints(self) -> Iterator[str]:
        if not self.apply:
            yield "nothing was applied yet"
        elif self.is_older_than_its_bound and self.pending_batches is not None:
            yield (
                "the table is older than max_staleness: reads merge the changes that are not"
                " applied yet, and fail if ingest is behind too"
            )
        if self.max_staleness_s and not keeps_bound(self.p95_s, self.max_staleness_s):
            yield (
                f"95 of 100 applies take up to {self.p95_s:.1f} s, more than half of max_staleness:"
                f" set max_staleness to at least {self.recommended_max_staleness_s} s"
            )
        elif self.max_staleness_s and self.apply_every_s > self.max_staleness_s:
            yield (
                f"an apply runs every {self.apply_every_s:g} s, which is more than max_staleness:"
                " reads between two applies merge"
            )
        if self.failed_job is not None:
            yield f"the last job failed: {self.failed_job.error}"

    def _completeness_hints(self) -> Iterator[str]:
        if self.is_waiting and self.lagging_partition is not None:
            yield text_of_waiting(self.waiting_changes, self.lagging_partition.stream_partition)
        if self.lacks_lost_records:
            yield (
                "the table is no consistent cut, because Kafka deleted records of its stream"
                " unread: reconcile it with the source, then confirm it"
            )
        if self.blocked_rows:
            rows = counted(self.blocked_rows, "row waits", "rows wait")
            yield f"{rows} for dead letters: repair and replay the dead letters, or discard them"
        if self.dead_letters.count:
            letters = counted(self.dead_letters.count, "dead letter")
            yield (
                f"the table is not complete without {letters}: list the dead letters of the stream"
            )
        if self.dead_letters.withheld:
            releases = counted(self.dead_letters.withheld, "withheld release")
            yield (
                f"the table is not complete without {releases}: list the write streams of the"
                " stream"
            )


def texts_of_misfits(definition: TableDefinition, misfits: Mapping[str, int]) -> Iterator[str]:
    """Yield for each column how many values its type does not hold."""
    effect = "kept in _unmapped" if definition.keep_unmapped else "dropped"
    for column in definition.columns:
        if count := misfits.get(column.name):
            values = counted(count, "value")
            lacks = f"{values} that {column.type} does not hold"
            yield f"{column.name}: {lacks}: shown as NULL, {effect}"


def is_at_low_watermark(table: TableState, progress: Progress) -> bool:
    """Return whether only a heartbeat brings the table further, not its next apply (ING-2)."""
    return (table.apply_watermark or 0) >= (progress.low_watermark or 0)


def text_of_waiting(changes: int, stream_partition: str) -> str:
    """Changes wait for the low watermark: of which stream partition, and the remedy."""
    wait = counted(changes, "change waits", "changes wait")
    return (
        f"{wait} for a heartbeat of stream partition {stream_partition}: call producer.reached in"
        " the producer, or send a heartbeat, or close the stream partition"
    )


@dataclass(frozen=True, slots=True)
class TablePace:
    """The bound and the pace in force. `buffer_s` is added to the recommended bound (JOB-4)."""

    max_staleness_s: int | None = None
    apply_every_s: float = APPLY_EVERY_S
    buffer_s: int = 0


@dataclass(frozen=True, slots=True)
class TableJobs:
    """The last apply or rebuild of a table, the durations of its applies of the last seven days
    (TBL-19), and its last compaction and clean-up.
    """

    last: Job | None = None
    durations_us: Sequence[int] = ()
    maintenance: Sequence[Job] = ()


def table_status(
    definition: TableDefinition,
    table: TableState,
    progress: Progress | None,
    now: int,
    *,
    pace: TablePace = TablePace(),
    jobs: TableJobs = TableJobs(),
    dead_letters: OpenLetters = NONE_OPEN,
    waiting_changes: int = 0,
) -> TableStatus:
    """Return the status of a table at the time `now` (µs).

    `progress` is that of its stream. None: the table was not made from the changelog that is there.
    `waiting_changes` is the number of changes that its last apply deferred.
    """
    p95 = p95_s(jobs.durations_us)
    is_inconsistent = bool(table.apply_number) and not table.is_consistent_cut
    stream = progress or Progress()
    waits = bool(waiting_changes) and is_at_low_watermark(table, stream)
    pending = None
    if progress is not None:
        pending = max(0, progress.ingest_batch - table.complete_to_batch)
    due_at = None
    if jobs.last is not None:
        due_at = jobs.last.started_at + int(pace.apply_every_s * 1_000_000)
    return TableStatus(
        name=definition.name,
        stream=definition.stream,
        now=now,
        apply=table.apply_number,
        to_batch=table.to_batch,
        pending_batches=pending,
        upsert_stream_apply_watermark=table.apply_watermark,
        is_consistent_cut=table.is_consistent_cut,
        inconsistent_since=table.inconsistent_since if is_inconsistent else None,
        lagging_partition=stream.frontier.lagging_partition if is_inconsistent or waits else None,
        as_of=stream.as_of(table),
        declared_max_staleness_s=definition.max_staleness_s,
        max_staleness_s=pace.max_staleness_s,
        letters=table.letters,
        blocked_rows=len({letter.row_key for letter in table.blocked_rows}),
        blocked_since=min((letter.since for letter in table.blocked_rows), default=None),
        dead_letters=dead_letters,
        last_job=jobs.last,
        p95_s=p95,
        recommended_max_staleness_s=recommended_bound_s(p95, pace.buffer_s),
        apply_every_s=pace.apply_every_s,
        due_at=due_at,
        maintenance=tuple(jobs.maintenance),
        waiting_changes=waiting_changes,
        lacks_lost_records=table.lacks_lost_records,
        misfits=table.misfits,
        misfit_texts=tuple(texts_of_misfits(definition, table.misfits)),
    )
