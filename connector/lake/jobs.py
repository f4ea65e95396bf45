"""Job history and cuts as Delta tables, without a JVM (TBL-17, TBL-19, TBL-22). `_connector/jobs`
has a row for each job, and `_connector/cuts` one for each table of a cut, which is one commit.

Times and watermarks are in microseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from typing import Any, Final

from connector import warehouse as paths
from connector.lake.checks import open_existing
from connector.lake.plain_table import open_table
from connector.lake.small_tables import append, delete, quoted, select
from connector.state.commits import Commit
from connector.state.damage import reading
from connector.state.jobs import MAINTENANCE, CutRecord, Job, JobKind, thinned_out
from connector.stored import from_stored

_JOBS: Final = {
    **dict.fromkeys(("kind", "table", "error"), "string"),
    **dict.fromkeys(
        ("started_at", "ended_at", "from_batch", "to_batch", "changes", "letters"), "int64"
    ),
    **dict.fromkeys(("watermark_before", "watermark_after"), "int64"),
    **dict.fromkeys(("stream", "misfits"), "string"),
    **dict.fromkeys(("files", "bytes", "live_bytes", "disk_bytes"), "int64"),
}
_ADDED: Final = dict.fromkeys(
    ("rows_read", "bytes_read", "rows_written", "bytes_written", "deletes", "cpu_us"), "int64"
)
"""Columns that the history of an older version lacks."""
_CUTS: Final = {
    **dict.fromkeys(("stream", "table"), "string"),
    **dict.fromkeys(
        ("low_watermark", "to_batch", "revision", "merged", "recorded_at", "version"), "int64"
    ),
}
_OF_TABLE: Final = ("table", "version", "attempt_id")
"""The columns of cuts that differ by table."""
_ADDED_TO_CUTS: Final = {"attempt_id": "string"}
"""Columns that the cuts of an older version lack."""

JOBS_KEPT_US: Final = 30 * 86_400_000_000
MAX_JOBS: Final = 50_000
"""Only the newest jobs are kept, for thirty days at most."""


class History:
    """The jobs and cuts of a warehouse. Every method raises `TableError`."""

    def __init__(self, warehouse: str) -> None:
        self._jobs = paths.jobs(warehouse)
        self._cuts = paths.cuts(warehouse)

    def add_job(self, job: Job) -> None:
        """Add a job."""
        self.add_jobs([job])

    def add_jobs(self, jobs: Sequence[Job]) -> None:
        """Add jobs, at least one, in one commit."""
        append(
            self._jobs,
            [{**asdict(job), "kind": job.kind.value} for job in jobs],
            _JOBS,
            lambda: self._jobs_to_forget(max(job.ended_at for job in jobs)),
            added=_ADDED,
        )

    def add_cut(self, cut: CutRecord) -> None:
        """Add a cut."""
        of_tables = ("versions", "attempts")
        common = {name: value for name, value in asdict(cut).items() if name not in of_tables}
        append(
            self._cuts,
            [
                {
                    **common,
                    "table": table,
                    "version": version,
                    "attempt_id": cut.attempts.get(table),
                }
                for table, version in cut.versions.items()
            ],
            _CUTS,
            added=_ADDED_TO_CUTS,
        )

    def jobs(
        self,
        table: str | None = None,
        *,
        limit: int | None = None,
        kinds: Collection[JobKind] = tuple(JobKind),
        since: int = 0,
    ) -> list[Job]:
        """The jobs of a table (None: of all tables and streams), of some kinds, that ended at
        `since` or later, the newest first.
        """
        wanted = ", ".join(quoted(kind.value) for kind in kinds) or "''"
        of_table = "true" if table is None else f'"table" = {quoted(table)}'
        condition = f"{of_table} AND kind IN ({wanted}) AND ended_at >= {since}"
        ordered = f"{condition} ORDER BY ended_at DESC"
        rows = select(self._jobs, ordered if limit is None else f"{ordered} LIMIT {limit}")
        return [self._job(row) for row in rows]

    def newest(
        self, kinds: Collection[JobKind] = MAINTENANCE, *, table: str = "", stream: str = ""
    ) -> dict[JobKind, Job]:
        """The newest job of each of these kinds, of a table or a stream (JOB-1)."""
        owner = _owner_condition(table, stream)
        newest = {}
        for kind in kinds:
            condition = f"{owner} AND kind = {quoted(kind.value)} ORDER BY ended_at DESC LIMIT 1"
            for row in select(self._jobs, condition):
                newest[kind] = self._job(row)
        return newest

    def failed_maintenance(self, table: str, stream: str) -> list[JobKind]:
        """The kinds of maintenance of `table`, or if empty, of the changelog, whose newest job
        failed.
        """
        newest = self.newest(table=table, stream=stream)
        return [kind for kind, job in newest.items() if job.error]

    def last_clean_up(self, table: str, stream: str) -> int | None:
        """When the last successful clean-up of `table`, or if empty, of the changelog began."""
        owner = _owner_condition(table, stream)
        condition = f"{owner} AND kind = {quoted(JobKind.CLEAN_UP.value)} AND error = ''"
        rows = select(self._jobs, condition, "max(started_at) AS newest")
        return rows[0]["newest"] if rows else None

    def durations_us(self, table: str, *, since: int) -> list[int]:
        """The durations of the successful applies of a table since `since`, in microseconds."""
        condition = (
            f"\"table\" = {quoted(table)} AND kind = '{JobKind.APPLY.value}' AND error = '' AND"
            f" ended_at >= {since}"
        )
        return [
            row["duration"]
            for row in select(self._jobs, condition, "ended_at - started_at AS duration")
        ]

    def cuts(self, stream: str) -> list[CutRecord]:
        """The cuts of a stream, the newest first."""
        return self._cuts_where(f"stream = {quoted(stream)}")

    def newest_cut(self, stream: str) -> CutRecord | None:
        """The newest cut of a stream. None: no cut was recorded."""
        of_stream = f"stream = {quoted(stream)}"
        newest = f"(SELECT max(recorded_at) FROM t WHERE {of_stream})"  # noqa: S608, names are quoted
        cuts = self._cuts_where(f"{of_stream} AND recorded_at = {newest}")
        return cuts[0] if cuts else None

    def forget_cuts(
        self,
        stream: str,
        oldest: Mapping[str, int],
        but: CutRecord | None = None,
        thinned_at: int | None = None,
    ) -> None:
        """Remove the cuts of a stream with a version below `oldest`, except `but`, and those that
        are thinned out at `thinned_at` (µs), in one commit (TBL-23).
        """
        cuts = self.cuts(stream)
        times = {
            cut.recorded_at
            for cut in cuts
            if any(version < oldest.get(name, 0) for name, version in cut.versions.items())
        }
        if thinned_at is not None:
            times |= thinned_out((cut.recorded_at for cut in cuts), thinned_at)
        if but is not None:
            times.discard(but.recorded_at)
        if times:
            listed = ", ".join(map(str, sorted(times)))
            delete(self._cuts, f"stream = {quoted(stream)} AND recorded_at IN ({listed})")

    def _jobs_to_forget(self, now: int) -> str:
        """The SQL condition of jobs that are too old, or too many."""
        of_many = f"true ORDER BY ended_at DESC LIMIT 1 OFFSET {MAX_JOBS}"
        newest_of_many = max(
            (row["ended_at"] for row in select(self._jobs, of_many, "ended_at")), default=0
        )
        return f"ended_at <= {max(now - JOBS_KEPT_US, newest_of_many)}"

    def _cuts_where(self, condition: str) -> list[CutRecord]:
        rows = select(
            self._cuts, f"{condition} ORDER BY recorded_at DESC, to_batch DESC, low_watermark DESC"
        )
        by_cut = groupby(
            rows, key=lambda row: {name: row[name] for name in row if name not in _OF_TABLE}
        )
        return [self._cut(common, list(of_cut)) for common, of_cut in by_cut]

    def _job(self, row: Mapping[str, Any]) -> Job:
        with reading(self._jobs, "A row"):
            # Rows of an older version have no values in added columns.
            return from_stored(Job, {k: value for k, value in row.items() if value is not None})

    def _cut(self, common: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> CutRecord:
        with reading(self._cuts, "A row"):
            versions = {row["table"]: row["version"] for row in rows}
            attempts = {row["table"]: row["attempt_id"] for row in rows if row.get("attempt_id")}
            return from_stored(CutRecord, {**common, "versions": versions, "attempts": attempts})


def batches(warehouse: str, stream: str, *, since: int = 0) -> Iterator[Job]:
    """The batches of a stream that were committed at `since` or later, the newest first, as far as
    the log of its changelog has them (JOB-1). Raises `TableError`.
    """
    path = paths.changelog(warehouse, stream)
    if open_existing(path) is None:
        return
    later: tuple[Job, int, int] | None = None  # and all changes and rejected records up to it
    newest = dict[int, tuple[int, int]]()
    for commit in open_table(path).commits():
        with reading(path, f"Commit {commit.version}"):
            if (stored := commit.stored) is None or "progress" not in stored:
                continue
            progress = stored["progress"]
            counts = progress["changes"], sum(progress["rejected"].values())
            newest.setdefault(progress["ingest_batch"], counts)
            if later is not None:
                yield _with_counts(*later, counts)
                later = None
            if commit.committed_at < since:
                return
            batch = stored["ingest_batch"]
            if stored.get("commit") == "batch" and batch in newest:
                later = (_batch_of(stream, commit, stored), *newest.pop(batch))
    if later is not None and later[0].to_batch == 1:
        yield _with_counts(*later, (0, 0))


def _batch_of(stream: str, commit: Commit, stored: Mapping[str, Any]) -> Job:
    start, end = stored["start_offsets"], stored["end_offsets"]
    return Job(
        *(JobKind.BATCH, "", min(stored["topic_read_at"], commit.committed_at)),
        *(commit.committed_at, stored["ingest_batch"] - 1, stored["ingest_batch"]),
        stream=stream,
        rows_read=sum(offset - start.get(number, 0) for number, offset in end.items()),
        rows_written=commit.added_rows,
        bytes_written=commit.files.added_bytes,
    )


def _with_counts(batch: Job, changes: int, rejected: int, before: tuple[int, int]) -> Job:
    return replace(batch, changes=changes - before[0], letters=rejected - before[1])


def _owner_condition(table: str, stream: str) -> str:
    """The SQL condition of the jobs of a table. Without a table, those of a stream's changelog."""
    return (
        f'"table" = {quoted(table)}' if table else f"\"table\" = '' AND stream = {quoted(stream)}"
    )
