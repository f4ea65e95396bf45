"""When maintenance begins, what it reports, and when it waits (TBL-15, TBL-23). No session is
needed.
"""

from __future__ import annotations

from connector.errors import TableError
from connector.errors.tables import columns_altered
from connector.events import Event
from connector.spark.storage.maintenance import Maintained, Maintenance, Work
from connector.state import maintenance_schedule
from connector.state.jobs import Job, JobKind
from connector.state.maintenance_schedule import CommitCount


class Kept:
    """Something that is maintained, by hand; `lines` and `jobs` are what came of it."""

    def __init__(self, last_clean: int | None = None, *, is_late: bool = False) -> None:
        self.is_late = is_late
        self.commits: list[CommitCount] = []
        self.did: list[str] = []
        self.lines: list[str] = []
        self.jobs: list[Job] = []
        self.error: Exception | None = None
        maintained = Maintained(
            new_commits=self._new_commits,
            oldest_commit_at=lambda: 0,
            compact=lambda: self._do("compact", Work(7, 70)),
            clean=lambda now: self._do("clean", Work(3, 30, 5, 50)),
            clean_log=lambda now: self.did.append("log"),
            live_bytes=lambda: 1_000_000,
        )
        self.upkeep = Maintenance(
            *(Job(JobKind.CLEAN_UP, "t", 0, 0), maintained),
            retention_s=3600,
            last_clean=lambda: last_clean,
            add_job=self.jobs.append,
            on_event=self._show,
            is_late=lambda now: self.is_late,
        )

    def _new_commits(self) -> list[CommitCount]:
        commits, self.commits = self.commits, []
        return commits

    def _show(self, event: Event) -> None:
        """As a log does: it has no lines of progress."""
        if event.level != "debug":
            self.lines.append(event.line)

    def _do(self, what: str, work: Work) -> Work:
        self.did.append(what)
        if self.error is not None:
            raise self.error
        return work

    def round(self, now: int, *commits: CommitCount) -> list[str]:
        self.commits += commits
        self.did.clear()
        self.upkeep.after_round(now)
        return list(self.did)


def test_maintenance_begins_after_commits_with_work_for_it() -> None:
    """TBL-15, TBL-23: nothing is looked at where nothing happened; what is done is a job of the
    history (JOB-1), and said.
    """
    kept, minute, hour = Kept(), maintenance_schedule.MINUTE_US, maintenance_schedule.HOUR_US
    assert kept.round(0) == []
    assert kept.round(1, CommitCount(1, 1)) == ["compact"], "what an earlier process has left"
    assert kept.round(minute, *[CommitCount(2, 1)] * (maintenance_schedule.GAIN - 1)) == []
    assert kept.round(minute, CommitCount(3, 1, 100, 10)) == ["compact"]
    assert kept.round(hour + 2 * minute) == ["clean", "log"]
    assert kept.round(2 * hour) == []
    assert kept.round(3 * hour, *[CommitCount(3 * hour, 0)] * maintenance_schedule.LOG_EVERY) == [
        "clean",
        "log",
    ]
    assert kept.lines[0] == "table t: compaction reduced the number of files by 7"
    assert kept.lines[2] == "table t: 3 files of old versions were deleted"
    assert [
        (job.kind, job.table, job.files, job.bytes, job.live_bytes, job.disk_bytes)
        for job in kept.jobs[1:3]
    ] == [
        (JobKind.COMPACTION, "t", 7, 70, 0, 0),
        (JobKind.CLEAN_UP, "t", 3, 30, 5, 50),
    ]
    assert kept.jobs[2].ended_at >= kept.jobs[2].started_at == hour + 2 * minute


def test_a_new_process_continues_the_maintenance_of_the_last_one() -> None:
    """TBL-23: what was removed before it began is looked for once its time has come, not at every
    start.
    """
    hour = maintenance_schedule.HOUR_US
    assert Kept(last_clean=10 * hour).round(10 * hour + hour - 1) == []
    assert Kept(last_clean=10 * hour).round(11 * hour) == ["clean"]
    assert Kept(last_clean=None).round(11 * hour) == ["clean"]


def test_failed_maintenance_is_reported_and_repeated() -> None:
    """TBL-15: no failure of maintenance reaches an apply; it is a job that failed."""
    kept = Kept()
    kept.error = TableError("TABLE_UNREADABLE", "a disk hiccup")
    assert kept.round(0, CommitCount(0, 1)) == ["compact"]
    assert kept.lines == ["table t: maintenance failed and will be repeated: a disk hiccup"]
    assert [(job.kind, job.error) for job in kept.jobs] == [(JobKind.COMPACTION, "a disk hiccup")]
    kept.error = None
    later = maintenance_schedule.MINUTE_US
    assert kept.round(later, *[CommitCount(0, 1)] * maintenance_schedule.GAIN) == ["compact"]


def test_maintenance_that_meets_another_writer_says_nothing() -> None:
    """TBL-15, EVO-3: the columns were changed under it. The next apply opens the table again."""
    kept = Kept()
    kept.error = columns_altered("t")
    assert kept.round(0, CommitCount(0, 1)) == ["compact"]
    assert kept.lines == []


def test_maintenance_waits_while_applies_are_late() -> None:
    """TBL-15: for two minutes at most. Without compaction, the table would be delayed even more."""
    kept, minute, hour = Kept(is_late=True), maintenance_schedule.MINUTE_US, 3_600_000_000
    assert kept.round(0, CommitCount(0, 1, 100, 10)) == []
    assert kept.round(2 * minute - 1) == []
    assert kept.round(2 * minute) == ["compact"]
    assert kept.round(2 * hour) == ["log"]
    kept.is_late = False
    assert kept.round(2 * hour + 1) == ["clean"]
