"""The job history of a pipeline, as it adds to it (JOB-1, TBL-17, TBL-19)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Final

from connector.errors import TableError
from connector.spark.apply.follow import DefinitionPorts
from connector.state.jobs import CutRecord, Job, JobKind
from connector.state.stream_progress import Progress
from connector.state.table_state import TableState
from connector.state.unapplied import BatchContents

JOBS_EVERY_S: Final = 5.0
"""How long the job of a successful apply waits for others: each addition is a commit."""

OnBatch = Callable[
    [str, Progress, Mapping[int, int] | None, float | None, Mapping[int, BatchContents]], None
]


@dataclass(frozen=True, slots=True)
class JobLog:
    """Functions that store jobs and cuts, because another package stores them (TBL-17, TBL-19).
    They are those of `lake.jobs.History`, and of `lake.overrides.Overrides` (TBL-20, JOB-2,
    TBL-23). Jobs of applies are added together, `JOBS_EVERY_S` later at most. `on_batch` is called
    with the progress of a stream at the start and after each batch, with the end offsets (None: as
    before), the seconds (None: at the start) and the contents of the batches. `on_table` is called
    with the state of a table at the start and after each apply (MET-1).
    """

    add_jobs: Callable[[Sequence[Job]], None]
    add_cut: Callable[[CutRecord], None]
    newest_cut: Callable[[str], CutRecord | None]
    cuts: Callable[[str], Sequence[CutRecord]]
    bounds: Callable[[], Mapping[str, int]] = dict
    paces: Callable[[], Mapping[str, int]] = dict
    definitions: DefinitionPorts = field(default_factory=DefinitionPorts)
    last_clean_up: Callable[[str, str], int | None] = lambda table, stream: None
    failed_maintenance: Callable[[str, str], Iterable[JobKind]] = lambda table, stream: ()
    forget_cuts: Callable[[str, Mapping[str, int], CutRecord | None, int], None] = (
        lambda stream, oldest, but, now: None
    )
    on_batch: OnBatch = lambda stream, progress, ends, seconds, contents: None
    on_table: Callable[[str, TableState], None] = lambda table, state: None


class WaitingJobs:
    """The jobs that wait for a commit of the history. Any thread may add one."""

    def __init__(self, add_jobs: Callable[[Sequence[Job]], None]) -> None:
        self._add_jobs, self._changing = add_jobs, threading.Lock()
        self._waiting = list[Job]()
        self._written = time.monotonic()

    def add(self, job: Job) -> None:
        """Add a job. Only that of a successful apply waits for others."""
        self._waiting.append(job)
        if job.kind is not JobKind.APPLY or job.error:
            self.write()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Add those that wait. An error of the block stays the one that is raised."""
        with suppress(TableError) if kind is not None else nullcontext():
            self.write()

    def write_due(self) -> None:
        if time.monotonic() >= self._written + JOBS_EVERY_S:
            self.write()

    def write(self) -> None:
        with self._changing:
            self._written, jobs = time.monotonic(), self._waiting[:]
            if jobs:
                self._add_jobs(jobs)
                del self._waiting[: len(jobs)]
