"""When maintenance begins, what it reports, and when it waits (TBL-15, TBL-23). No session is
needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.errors import TableError
from connector.errors.tables import columns_altered, files_changed
from connector.events import Event
from connector.spark.storage.maintenance import Maintained, Maintenance, Work
from connector.state import maintenance_schedule
from connector.state.jobs import MAINTENANCE, Job, JobKind
from connector.state.maintenance_schedule import REST_AT_MOST_US, CommitCount
from tests.examples import examples


class Kept:
    """Something that is maintained, by hand; `lines` and `jobs` are what came of it."""

    def __init__(
        self,
        last_clean: int | None = None,
        *,
        is_late: bool = False,
        jobs: Iterable[Job] = (),
    ) -> None:
        """`jobs` are those of earlier processes."""
        self.is_late, self.has_work = is_late, True
        self.commits: list[CommitCount] = []
        self.did: list[str] = []
        self.checkpoints = 0
        self.lines: list[str] = []
        self.jobs = list(jobs)
        self.error: Exception | None = None
        maintained = Maintained(
            new_commits=self._new_commits,
            oldest_commit_at=lambda: 0,
            compact=lambda: self._do("compact", Work(7, 70)),
            clean=lambda now: self._do("clean", Work(3, 30, 5, 50)) or Work(),
            clean_log=lambda now: self.did.append("log"),
            checkpoint=self._checkpoint,
            live_bytes=lambda: 1_000_000,
        )
        self.upkeep = Maintenance(
            *(Job(JobKind.CLEAN_UP, "t", 0, 0), maintained),
            retention_s=3600,
            last_clean=lambda: last_clean,
            last_failed=lambda: [kind for kind in MAINTENANCE if self.reason(kind)],
            add_job=self.jobs.append,
            on_event=self._show,
            is_late=lambda now: self.is_late,
        )

    def _new_commits(self) -> list[CommitCount]:
        commits, self.commits = self.commits, []
        return commits

    def _checkpoint(self) -> None:
        self.checkpoints += 1

    def _show(self, event: Event) -> None:
        """As a log does: it has no lines of progress."""
        if event.level != "debug":
            self.lines.append(event.line)

    def _do(self, what: str, work: Work) -> Work | None:
        self.did.append(what)
        if self.error is not None:
            raise self.error
        return work if self.has_work else None

    def reason(self, kind: JobKind) -> str:
        """The error that `status` shows of this kind. Empty: none."""
        return next((job.error for job in reversed(self.jobs) if job.kind is kind), "")

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
    assert kept.round(minute, CommitCount(3, 1, 0, 10)) == ["compact"]
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


def test_a_checkpoint_is_looked_for_behind_commits_alone() -> None:
    """ENG-5: not in the way of an apply, and not for nothing."""
    kept = Kept()
    kept.round(0)
    kept.round(1, CommitCount(1, 1))
    kept.round(2)
    assert kept.checkpoints == 1


def test_a_new_process_continues_the_maintenance_of_the_last_one() -> None:
    """TBL-23: what was removed before it began is looked for once its time has come, not at every
    start.
    """
    hour = maintenance_schedule.HOUR_US
    assert Kept(last_clean=10 * hour).round(10 * hour + hour - 1) == []
    assert Kept(last_clean=10 * hour).round(11 * hour) == ["clean"]
    assert Kept(last_clean=None).round(11 * hour) == ["clean"]


def test_old_files_go_also_after_a_clock_that_was_ahead() -> None:
    """TBL-23: in the process that saw the clock go back, and in the next one."""
    hour = maintenance_schedule.HOUR_US
    removed = CommitCount(hour, 0, 7)
    next_one, same = Kept(last_clean=10**6 * hour), Kept(last_clean=0)
    assert same.round(10**6 * hour, removed) == ["clean", *same.did[1:]]
    for kept in (next_one, same):
        kept.round(2 * hour, removed)
        assert kept.round(4 * hour, removed) == ["clean", "log"]


def test_failed_maintenance_is_reported_and_repeated() -> None:
    """TBL-15: no failure of maintenance reaches an apply; it is a job that failed. It is repeated
    without a new commit, and ends with an attempt that finds nothing to do.
    """
    kept = Kept()
    kept.error = TableError("TABLE_UNREADABLE", "a disk hiccup")
    assert kept.round(0, CommitCount(0, 1)) == ["compact"]
    assert kept.lines == ["table t: maintenance failed and will be repeated: a disk hiccup"]
    assert [(job.kind, job.error) for job in kept.jobs] == [(JobKind.COMPACTION, "a disk hiccup")]
    kept.error, kept.has_work = None, False
    assert kept.round(REST_AT_MOST_US - 1) == []
    assert kept.round(REST_AT_MOST_US) == ["compact"]
    assert [(job.kind, job.error, job.files) for job in kept.jobs[1:]] == [
        (JobKind.COMPACTION, "", 0)
    ]
    assert kept.round(3 * REST_AT_MOST_US) == []


@pytest.mark.parametrize("error", [columns_altered("t"), files_changed("w/t")])
def test_maintenance_that_meets_another_writer_says_nothing(error: Exception) -> None:
    """TBL-15, EVO-3: an apply was faster, or the columns were changed under it. This is no failure:
    it has changed nothing, and is tried again.
    """
    kept = Kept()
    kept.error = error
    assert kept.round(0, CommitCount(0, 1)) == ["compact"]
    assert (kept.lines, kept.jobs) == ([], [])
    kept.error = None
    assert kept.round(REST_AT_MOST_US) == ["compact"]
    assert [job.error for job in kept.jobs] == [""]


@dataclass(frozen=True)
class Round:
    """A round: the time since the one before in minutes, the new files, what an attempt comes to,
    and whether it is the first of a new process.
    """

    minutes: int
    files: int
    outcome: str
    is_new: bool


OUTCOMES = ("works", "nothing to do", "fails", "meets an apply")
ROUNDS = st.lists(
    st.builds(
        Round,
        st.integers(0, 30),
        st.sampled_from((0, 0, 1, maintenance_schedule.GAIN)),
        st.sampled_from(OUTCOMES),
        st.booleans(),
    ),
    max_size=20,
)


def check_reasons(before: str, did: list[str], outcome: str, kept: Kept, kind: JobKind) -> None:
    """Check what one round made of the reason of one kind of maintenance."""
    if {JobKind.COMPACTION: "compact", JobKind.CLEAN_UP: "clean"}[kind] not in did:
        assert kept.reason(kind) == before
    elif outcome == "meets an apply":
        assert kept.reason(kind) == before, "neither a failure nor the end of one"
    else:
        assert bool(kept.reason(kind)) == (outcome == "fails")


@examples(2_000, quick=300)
@given(ROUNDS)
def test_a_failure_of_maintenance_ends_with_the_next_attempt_that_does_not_fail(
    rounds: list[Round],
) -> None:
    """RUN-1, TBL-15: whatever each attempt comes to, in whatever process. Once attempts no longer
    fail, no reason is left after the longest rest, without a new commit.
    """
    kept, now = Kept(last_clean=0), 0
    quiet = [Round(11, 0, "nothing to do", False)] * 2
    for given_round in [*rounds, *quiet]:
        now += given_round.minutes * maintenance_schedule.MINUTE_US
        if given_round.is_new:
            kept = Kept(last_clean=0, jobs=kept.jobs)
        kept.has_work = given_round.outcome != "nothing to do"
        kept.error = {
            "fails": TableError("TABLE_UNREADABLE", "a disk hiccup"),
            "meets an apply": files_changed("w/t"),
        }.get(given_round.outcome)
        before = {kind: kept.reason(kind) for kind in MAINTENANCE}
        did = kept.round(now, *[CommitCount(now, 1)] * given_round.files)
        for kind in MAINTENANCE:
            # A conflict of the compaction ends the round.
            check_reasons(before[kind], did, given_round.outcome, kept, kind)
    assert [kept.reason(kind) for kind in MAINTENANCE] == ["", ""]


def test_the_law_notices_a_conflict_that_counts_as_a_failure() -> None:
    """The jobs of a compaction that met an apply, and found nothing to do after that."""
    failed = Job(JobKind.COMPACTION, "t", 0, 1, error="another process wrote")
    for outcome, before in (("meets an apply", ""), ("nothing to do", failed.error)):
        with pytest.raises(AssertionError):
            check_reasons(before, ["compact"], outcome, Kept(jobs=[failed]), JobKind.COMPACTION)


def test_maintenance_waits_while_applies_are_late() -> None:
    """TBL-15: for two minutes at most. Without compaction, the table would be delayed even more."""
    kept, minute, hour = Kept(is_late=True), maintenance_schedule.MINUTE_US, 3_600_000_000
    assert kept.round(0, CommitCount(0, 1, 0, 10)) == []
    assert kept.round(2 * minute - 1) == []
    assert kept.round(2 * minute) == ["compact"]
    assert kept.round(2 * hour) == ["log"]
    kept.is_late = False
    assert kept.round(2 * hour + 1) == ["clean"]
