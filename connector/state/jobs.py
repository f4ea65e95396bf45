"""Jobs: batches, applies, rebuilds, runtime merges, maintenance and audits (TBL-19, JOB-1), their
sums by hour or day, and the consistent cuts of all tables of a stream (TBL-17).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from connector.errors import TableError
from connector.errors.tables import cut_expired
from connector.records.views import OrNull, Shown, Time, Viewed, view_of_time
from connector.state.maintenance_schedule import HOUR_US, MINUTE_US
from connector.state.table_state import TableState

RECOMMENDED_OVER_S: Final = 7 * 24 * 60 * 60
"""The period of the applies whose durations count for the recommended `max_staleness`."""
CUTS_KEPT: Final = ((HOUR_US, 10 * MINUTE_US), (6 * HOUR_US, HOUR_US))
"""Of cuts that are so old, one is kept for each such period."""


def text_of_misfits(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """Return the `misfits` of a job from those of the table before and after it."""
    new = {name: count - before.get(name, 0) for name, count in after.items()}
    return ", ".join(f"{name} {count:,}" for name, count in sorted(new.items()) if count > 0)


class JobKind(StrEnum):
    """The kind of a job.

    - An apply merges changes into a table.
    - A rebuild replaces a table.
    - A runtime merge is computed for one reader, and changes no table.
    - A compaction combines small files, and a clean-up removes files of old versions. They are
      maintenance of a table or of a changelog, and change no row (JOB-1).
    - An audit checks a stream.
    - A batch adds records to a changelog. It is not stored as a job: its commit has its figures.
    """

    APPLY = "apply"
    REBUILD = "rebuild"
    RUNTIME_MERGE = "runtime_merge"
    COMPACTION = "compaction"
    CLEAN_UP = "clean_up"
    AUDIT = "audit"
    BATCH = "batch"


MAINTENANCE: Final = (JobKind.COMPACTION, JobKind.CLEAN_UP)


@dataclass(frozen=True, slots=True)
class Job(Viewed):
    """One job. Times and watermarks are in microseconds.

    - It used the batches after `from_batch` up to `to_batch`.
    - `changes` is the number of merged changes. It is 0, too, if executors were lost just after the
      commit. `letters` is the number of changes that became dead letters. Of a batch, these are the
      changes that it logged, and the records that it rejected.
    - `watermark_before` and `watermark_after`: the table had every change with a smaller commit
      timestamp. None: unknown.
    - `misfits` names the columns that could not hold values of the merged changes, with the number
      of these values, for example `credit 1, limit 2` (EVO-11).
    - `error` is empty if the job succeeded. Of an audit, it is what the audit has proved wrong.
    - `stream` is set for batches, audits, and maintenance of a changelog. Then `table` is empty.
    - `files` is by how many files a compaction reduced their number, or the number of files that a
      clean-up removed. `bytes` is the number of bytes that were rewritten or removed.
    - `live_bytes` is the size of the newest version after a clean-up. `disk_bytes` also includes
      old versions and logs.
    - `rows_read` is the number of offsets of a batch, and of rows that an audit read.
    - `rows_written` and `bytes_written` are those of the files that a batch or an apply added.
      `deletes` is the number of rows that an apply removed.
    - `bytes_read` is what an apply read of the files of changelog and table.
    - `cpu_us` is the processor time of an apply: that of its tasks on executors, and of the Python
      thread that ran it.
    """

    kind: JobKind
    table: str
    started_at: Time
    ended_at: Time
    from_batch: int = 0
    to_batch: int = 0
    changes: int = 0
    letters: int = 0
    watermark_before: Time | None = None
    watermark_after: Time | None = None
    misfits: OrNull[str] = ""
    error: OrNull[str] = ""
    stream: str = ""
    files: int = 0
    bytes: int = 0
    live_bytes: int = 0
    disk_bytes: int = 0
    rows_read: int = 0
    bytes_read: int = 0
    rows_written: int = 0
    bytes_written: int = 0
    deletes: int = 0
    cpu_us: int = 0

    @property
    def duration_s(self) -> Shown[float]:
        return (self.ended_at - self.started_at) / 1_000_000


class Period(StrEnum):
    """The period of a sum of jobs, in UTC."""

    HOUR = "hour"
    DAY = "day"


_PERIOD_US: Final = {Period.HOUR: 3_600_000_000, Period.DAY: 86_400_000_000}
SUMMED: Final = (
    *("changes", "letters", "deletes", "rows_read", "bytes_read", "rows_written"),
    *("bytes_written", "cpu_us"),
)


FIGURES: Final[Mapping[JobKind, tuple[str, ...]]] = {
    JobKind.BATCH: ("changes", "letters", "rows_read", "rows_written", "bytes_written"),
    JobKind.APPLY: tuple(name for name in SUMMED if name != "rows_read"),
    JobKind.REBUILD: ("changes", "letters"),
    JobKind.RUNTIME_MERGE: ("changes",),
    JobKind.AUDIT: ("rows_read",),
    JobKind.COMPACTION: (),
    JobKind.CLEAN_UP: (),
}
"""The figures of `SUMMED` that a kind of job has. The others are 0, and say nothing."""


@dataclass(frozen=True, slots=True)
class JobSum(Viewed):
    """The sum of the jobs of a kind that ended in the period from `since` on (JOB-1).

    `jobs` is their number, and `failed` that of those with an error. The other fields are sums of
    the fields of `Job`.
    """

    since: Time
    kind: JobKind
    jobs: int = 0
    failed: int = 0
    duration_us: int = 0
    changes: int = 0
    letters: int = 0
    deletes: int = 0
    rows_read: int = 0
    bytes_read: int = 0
    rows_written: int = 0
    bytes_written: int = 0
    cpu_us: int = 0

    def knows(self, name: str) -> bool:
        """Return whether a figure is known. A job that failed has none, and an apply of an older
        release only its counts: one that was measured took some time.
        """
        if name not in FIGURES[self.kind] or self.jobs == self.failed:
            return False
        is_count = name in ("changes", "letters")
        return is_count or self.kind is not JobKind.APPLY or self.cpu_us > 0

    def with_job(self, job: Job) -> JobSum:
        """Return the sum with one more job."""
        return replace(
            self,
            jobs=self.jobs + 1,
            failed=self.failed + bool(job.error),
            duration_us=self.duration_us + job.ended_at - job.started_at,
            **{name: getattr(self, name) + getattr(job, name) for name in SUMMED},
        )


def sums_by(period: Period, jobs: Iterable[Job]) -> list[JobSum]:
    """Return the sums of jobs by period and kind, the newest period first."""
    sums = dict[tuple[int, JobKind], JobSum]()
    for job in jobs:
        since = job.ended_at - job.ended_at % _PERIOD_US[period]
        key = (since, job.kind)
        sums[key] = sums.get(key, JobSum(*key)).with_job(job)
    kinds = list(JobKind)
    return sorted(sums.values(), key=lambda row: (-row.since, kinds.index(row.kind)))


@dataclass(frozen=True, slots=True)
class CutRecord:
    """A consistent cut: the versions of the Delta tables of a stream at (`low_watermark`,
    `to_batch`) (TBL-10, TBL-17).

    Late changes may revise a cut. `revision` is the number of earlier cuts with the same low
    watermark. `merged` is the number of changes that the tables had merged. So two records of the
    same state are not taken for a revision. `attempts` has for each table the id of the apply that
    made its version. It is empty in the records of an older release.
    """

    stream: str
    low_watermark: int
    to_batch: int
    revision: int
    merged: int
    recorded_at: int
    versions: Mapping[str, int]
    attempts: Mapping[str, str] = field(default_factory=dict)

    def is_state(self, name: str, table: TableState) -> bool:
        """Return whether the version of a table that has this state is that of the cut. If it is
        not, the table was made again after the cut was recorded, and its versions were counted from
        0 again. The watermark of the version may be older than that of the cut (ENG-7).
        """
        if self.attempts:
            return table.attempt_id == self.attempts.get(name)
        return table.is_consistent_cut and table.apply_watermark == self.low_watermark

    def follows(self, before: CutRecord | None) -> CutRecord | None:
        """Return this record with its revision, or None if it shows nothing new.

        `before` is the newest record of the stream.
        """
        if before is None or before.low_watermark != self.low_watermark:
            return self
        is_same = before.merged == self.merged and before.versions.keys() == self.versions.keys()
        # Otherwise a table was made again, or is that of a backup: its version is another one.
        if before.attempts == self.attempts and (is_same or before.to_batch >= self.to_batch):
            return None
        return replace(self, revision=before.revision + (before.merged != self.merged))


def thinned_out(recorded: Iterable[int], now: int) -> set[int]:
    """Return which cuts of a stream are not kept, of those that were recorded at these times (µs):
    all but the newest one of each period of `CUTS_KEPT` (TBL-23). The newest cut stays.
    """
    times, gone = set(recorded), set[int]()
    for age, period in CUTS_KEPT:
        newest = {at // period: at for at in sorted(times)}
        old = (now - age) // period
        gone |= {at for at in times if at // period < old and newest[at // period] != at}
    return gone


def cut_of_another_table(name: str, cut: CutRecord) -> TableError:
    """The error for a cut that names a version of a table that was made again since."""
    cause = (
        "The table was made again after this cut was recorded: its version"
        f" {cut.versions[name]} is another state now"
    )
    return cut_expired(name, str(view_of_time(cut.low_watermark)), cause)


def failed_maintenance(jobs: Sequence[Job]) -> list[str]:
    """Return a hint for each kind of maintenance whose last job failed."""
    return [
        f"the last {job.kind.value.replace('_', '-')} failed and will be repeated: {job.error}"
        for job in jobs
        if job.error
    ]


def p95_s(durations_us: Iterable[int]) -> float | None:
    """Return the 95th percentile in seconds. None: there are no durations."""
    done = sorted(durations_us)
    return done[math.ceil(0.95 * len(done)) - 1] / 1_000_000 if done else None


def recommended_bound_s(p95: float | None, buffer_s: int) -> int | None:
    """Return the `max_staleness` that applies can keep, if 95 of 100 take at most `p95` seconds
    (TBL-19).

    `buffer_s` is added for the time before an apply starts, because ingest must first read the
    changes (JOB-4). None: unknown.
    """
    return None if p95 is None else math.ceil(p95 * 2 / 60) * 60 + buffer_s


def keeps_bound(p95: float | None, bound_s: int) -> bool:
    """Return whether applies keep a bound, if 95 of 100 take at most `p95` seconds. True if `p95`
    is unknown.

    An apply starts after at most half of the bound. It has the other half to complete (JOB-4).
    """
    return p95 is None or 2 * p95 <= bound_s
