"""What is kept beside the tables: every apply and runtime merge (TBL-19), and the cuts at which all tables of a stream stood (TBL-17)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

RECOMMENDED_OVER_S: Final = 7 * 24 * 60 * 60
"""The applies of so long say how long they take."""


class JobKind(StrEnum):
    """An apply moves a table; a rebuild puts another in its place; a runtime merge is worked out for one reader, and moves nothing.

    Maintenance, of a table or of a stream's changelog, changes no row: a compaction puts small files together, a clean-up removes those
    of old versions (JOB-1).
    """

    APPLY = "apply"
    REBUILD = "rebuild"
    RUNTIME_MERGE = "runtime_merge"
    COMPACTION = "compaction"
    CLEAN_UP = "clean_up"


MAINTENANCE: Final = (JobKind.COMPACTION, JobKind.CLEAN_UP)


@dataclass(frozen=True, slots=True)
class Job:
    """One apply, rebuild, runtime merge, or maintenance. Times and watermarks in microseconds.

    It took the batches after `from_batch` to `to_batch`; `changes` counts those it merged, `letters` those that it set aside. A
    watermark is what the table is complete below; None: not known. `error` is empty where all went well.

    Maintenance of a changelog has a `stream` and no table. `files` counts those that a compaction made fewer, or a clean-up removed,
    `bytes` those that it has rewritten, or freed. A clean-up leaves `live_bytes` of the newest version and, with old ones and logs,
    `disk_bytes` on disk.
    """

    kind: JobKind
    table: str
    started_at: int
    ended_at: int
    from_batch: int = 0
    to_batch: int = 0
    changes: int = 0
    letters: int = 0
    watermark_before: int | None = None
    watermark_after: int | None = None
    error: str = ""
    stream: str = ""
    files: int = 0
    bytes: int = 0
    live_bytes: int = 0
    disk_bytes: int = 0

    @property
    def duration_s(self) -> float:
        return (self.ended_at - self.started_at) / 1_000_000


@dataclass(frozen=True, slots=True)
class CutRecord:
    """All tables of a stream stood at the cut (`low_watermark`, `to_batch`) in these versions of their Delta tables (TBL-10, TBL-17).

    `revision` counts the earlier cuts of the same low watermark that late changes revised. `merged` counts the changes that the
    tables had merged by then, so that two records of one state can be told from a revision.
    """

    stream: str
    low_watermark: int
    to_batch: int
    revision: int
    merged: int
    recorded_at: int
    versions: Mapping[str, int]

    def follows(self, before: CutRecord | None) -> CutRecord | None:
        """This record with its revision, or None if it shows nothing that `before`, the newest one of the stream, does not."""
        if before is None or before.low_watermark != self.low_watermark:
            return self
        is_same = before.merged == self.merged and before.versions.keys() == self.versions.keys()
        if is_same or before.to_batch >= self.to_batch:
            return None
        return replace(self, revision=before.revision + (before.merged != self.merged))


def p95_s(durations_us: Iterable[int]) -> float | None:
    """The time within which 95 of 100 were done, of as many as took so many microseconds; None of none."""
    done = sorted(durations_us)
    return done[math.ceil(0.95 * len(done)) - 1] / 1_000_000 if done else None


def recommended_bound_s(p95: float | None, buffer_s: int) -> int | None:
    """The `max_staleness` that applies can keep of which 95 of 100 took at most `p95` seconds (TBL-19); None while nothing is known.

    `buffer_s` is added for what passes before an apply begins: ingest has to read what it takes (JOB-4).
    """
    return None if p95 is None else math.ceil(p95 * 2 / 60) * 60 + buffer_s


def keeps_bound(p95: float | None, bound_s: int) -> bool:
    """Whether applies of which 95 of 100 took at most `p95` seconds keep a bound: an apply begins at half of it at the latest, and
    the other half is left for it (JOB-4). True while nothing is known.
    """
    return p95 is None or 2 * p95 <= bound_s
