"""Job history and cuts on disk: Delta tables under `_connector/` in the warehouse, kept and read without a JVM (TBL-17, TBL-19, TBL-22).

    _connector/jobs   a row for each job
    _connector/cuts   a row for each table of a cut; the rows of one cut are one commit

Whoever asks in SQL finds plain Delta tables; times and watermarks are microseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any, Final

from connector.history import CutRecord, Job, JobKind
from connector.lake.rows import append, quoted, select

_JOBS: Final = {
    **dict.fromkeys(("kind", "table", "error"), "string"),
    **dict.fromkeys(("started_at", "ended_at", "from_batch", "to_batch", "changes", "letters"), "int64"),
    **dict.fromkeys(("watermark_before", "watermark_after"), "int64"),
}
_CUTS: Final = {
    **dict.fromkeys(("stream", "table"), "string"),
    **dict.fromkeys(("low_watermark", "to_batch", "revision", "merged", "recorded_at", "version"), "int64"),
}


class History:
    """What is kept beside the tables of a warehouse. Every method raises `TableError` where it cannot be kept or read."""

    def __init__(self, warehouse: str) -> None:
        self._jobs = f"{warehouse}/_connector/jobs"
        self._cuts = f"{warehouse}/_connector/cuts"

    def add_job(self, job: Job) -> None:
        """Keep a job."""
        append(self._jobs, [{**asdict(job), "kind": job.kind.value}], _JOBS)

    def add_cut(self, cut: CutRecord) -> None:
        """Keep a cut."""
        common = {name: value for name, value in asdict(cut).items() if name != "versions"}
        append(self._cuts, [{**common, "table": table, "version": version} for table, version in cut.versions.items()], _CUTS)

    def jobs(self, table: str, *, since: int = 0, limit: int | None = None, kinds: Collection[JobKind] = tuple(JobKind)) -> list[Job]:
        """The jobs of a table, of some kinds, that ended at or after `since` (microseconds), the newest first."""
        wanted = ", ".join(quoted(kind.value) for kind in kinds)
        condition = f'"table" = {quoted(table)} AND kind IN ({wanted}) AND ended_at >= {since} ORDER BY ended_at DESC'
        rows = select(self._jobs, condition if limit is None else f"{condition} LIMIT {limit}")
        return [Job(**{**row, "kind": JobKind(row["kind"])}) for row in rows]

    def durations_us(self, table: str, *, since: int) -> list[int]:
        """How long each apply of a table took that ended well, at or after `since` (microseconds)."""
        condition = f"\"table\" = {quoted(table)} AND kind = '{JobKind.APPLY.value}' AND error = '' AND ended_at >= {since}"
        return [row["duration"] for row in select(self._jobs, condition, "ended_at - started_at AS duration")]

    def cuts(self, stream: str, *, since: int = 0) -> list[CutRecord]:
        """The cuts of a stream that were recorded at or after `since` (microseconds), the newest first."""
        return self._found(f"stream = {quoted(stream)} AND recorded_at >= {since}")

    def newest_cut(self, stream: str) -> CutRecord | None:
        """The newest cut of a stream; None if none was recorded."""
        of_stream = f"stream = {quoted(stream)}"
        newest = f"(SELECT max(recorded_at) FROM t WHERE {of_stream})"  # noqa: S608, names are quoted
        found = self._found(f"{of_stream} AND recorded_at = {newest}")
        return found[0] if found else None

    def _found(self, condition: str) -> list[CutRecord]:
        rows = select(self._cuts, f"{condition} ORDER BY recorded_at DESC, to_batch DESC, low_watermark DESC")
        by_cut = groupby(rows, key=lambda row: {**row, "table": "", "version": 0})
        return [_cut(common, list(of_cut)) for common, of_cut in by_cut]


def _cut(common: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> CutRecord:
    fields = {name: value for name, value in common.items() if name not in ("table", "version")}
    return CutRecord(**fields, versions={row["table"]: row["version"] for row in rows})
