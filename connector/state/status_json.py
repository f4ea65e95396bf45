"""Common parts of the reports of streams and tables: short lists of names, and JSON values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final

from connector.records.views import view_of_bytes, view_of_time
from connector.state.jobs import Job
from connector.state.open_dead_letters import OpenLetters
from connector.watermarks.frontier import Stall
from connector.watermarks.stream_partition import KeyRange

FEW: Final = 3
_TIMES: Final = frozenset(
    {
        "topic_read_at",
        "low_watermark",
        "horizon",
        "since",
        "watermark",
        "upsert_stream_apply_watermark",
        "inconsistent_since",
        "as_of",
        "ended_at",
        "blocked_since",
        "due_at",
    }
)


def failed_maintenance(jobs: Sequence[Job]) -> list[str]:
    """Return a hint for each kind of maintenance whose last job failed."""
    return [
        f"the last {job.kind.value.replace('_', '-')} failed and will be repeated: {job.error}"
        for job in jobs
        if job.error
    ]


def summarize_names(names: Sequence[str]) -> str:
    """Return the first names, and the number of further names."""
    more = len(names) - FEW
    return ", ".join(names[:FEW]) + (f" and {more} more" if more > 0 else "")


def view_of_job(job: Job) -> dict[str, Any]:
    """Convert a job to JSON values."""
    times = ("started_at", "ended_at", "watermark_before", "watermark_after")
    view: dict[str, Any] = {name: getattr(job, name) for name in Job.__dataclass_fields__}
    view |= {name: view_of_time(view[name]) for name in times if view[name] is not None}
    return {
        **view,
        "kind": job.kind.value,
        "duration_s": job.duration_s,
        "error": job.error or None,
    }


def view_of_range(keys: KeyRange) -> dict[str, Any]:
    """Convert a range of row keys to JSON values. Bytes are as in the JSON view (REC-22). A null
    end is after the last key.
    """
    return {
        "start_key": view_of_bytes(keys.start),
        "end_key": None if keys.end is None else view_of_bytes(keys.end),
    }


def view(status: Any) -> dict[str, Any]:
    """Return the fields of a report. Times are ISO 8601."""
    shown = {
        field.name: getattr(status, field.name)
        for field in fields(status)
        if field.name not in ("name", "now", "dead_letters")
    }
    return {
        name: view_of_time(value) if name in _TIMES and value is not None else value
        for name, value in shown.items()
    }


def view_of_letters(letters: OpenLetters) -> dict[str, Any]:
    since = None if letters.since is None else view_of_time(letters.since)
    return {
        "open_dead_letters": letters.count,
        "dead_letters_since": since,
        "is_ledger_known": letters.is_known,
        "replays_under_way": letters.under_way,
        "withheld_releases": letters.withheld,
    }


def view_of_stall(stall: Stall) -> dict[str, Any]:
    return {
        "stream_partition": stall.stream_partition,
        "kafka_partition": stall.kafka_partition,
        "watermark": view_of_time(stall.watermark) if stall.watermark else None,
        "since": view_of_time(stall.since),
    }
