"""Jobs, the bound that they recommend, and cuts, which are told from their revisions; on disk as in
memory.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from connector.errors import TableError
from connector.lake import jobs as lake_history
from connector.lake import small_tables
from connector.lake.jobs import History, batches
from connector.state.jobs import (
    RECOMMENDED_OVER_S,
    SUMMED,
    CutRecord,
    Job,
    JobKind,
    JobSum,
    Period,
    keeps_bound,
    p95_s,
    recommended_bound_s,
    sums_by,
    thinned_out,
)
from connector.state.stream_progress import Progress
from tests.unit.warehouses import commit

S = 1_000_000
DAY = 24 * 60 * 60 * S
CUT = CutRecord(
    "s",
    low_watermark=50,
    to_batch=3,
    revision=0,
    merged=10,
    recorded_at=1,
    versions={"one": 4, "other": 7},
)


def apply_of(seconds: float, *, ended_at: int = 8 * DAY, error: str = "") -> Job:
    return Job(JobKind.APPLY, "one", ended_at - int(seconds * S), ended_at, error=error)


def test_the_bound_is_recommended_from_the_applies_of_a_week() -> None:
    """TBL-19, JOB-4: twice the p95, in whole minutes, and the buffer."""
    p95 = p95_s([second * S for second in range(1, 101)])
    assert p95 == 95
    assert recommended_bound_s(p95, 420) == (4 + 7) * 60
    assert recommended_bound_s(p95, 0) == 4 * 60
    assert recommended_bound_s(p95_s([]), 10) is None
    assert recommended_bound_s(p95_s([S // 10]), 10) == 70


def test_applies_keep_a_bound_whose_half_they_fit_in() -> None:
    """JOB-4: they begin at half of it at the latest."""
    assert keeps_bound(30.0, 60)
    assert not keeps_bound(30.1, 60)
    assert keeps_bound(None, 1)


def test_a_job_lasts_from_its_start_to_its_end() -> None:
    """TBL-19: in seconds; a week of them says how long they take."""
    assert apply_of(2.5).duration_s == 2.5
    assert RECOMMENDED_OVER_S * S == 7 * DAY


def test_only_successful_applies_count_for_the_duration(tmp_path: Path) -> None:
    """TBL-19: failed applies, runtime merges, old ones and those of other tables do not count."""
    others = [
        apply_of(9999, error="full"),
        apply_of(9999, ended_at=DAY - 1),
        replace(apply_of(9999), kind=JobKind.RUNTIME_MERGE),
    ]
    history = History(str(tmp_path))
    for job in [apply_of(3), *others, replace(apply_of(9999), table="other"), apply_of(4)]:
        history.add_job(job)
    assert sorted(history.durations_us("one", since=DAY)) == [3 * S, 4 * S]


def test_a_late_change_revises_a_cut() -> None:
    """TBL-17: a later batch that changed a table at the same low watermark is a revision; one that
    changed nothing is the same state.
    """
    later = replace(CUT, to_batch=4)
    assert CUT.follows(None) == CUT
    assert CUT.follows(CUT) is None
    assert later.follows(CUT) is None
    assert replace(later, merged=11).follows(CUT) == replace(later, merged=11, revision=1)
    assert replace(later, merged=11).follows(replace(CUT, revision=5)) == replace(
        later, merged=11, revision=6
    )
    assert replace(later, low_watermark=60).follows(replace(CUT, revision=5)) == replace(
        later, low_watermark=60
    )
    assert replace(later, versions={"one": 4, "new": 1}).follows(CUT) is not None


def test_a_record_of_no_later_batch_revises_nothing() -> None:
    """TBL-17: two processes that record one cut, in either order."""
    assert replace(CUT, merged=11).follows(CUT) is None
    assert replace(CUT, merged=11, to_batch=2).follows(CUT) is None
    new_table = replace(CUT, to_batch=4, versions={"one": 4, "other": 7, "new": 1})
    assert new_table.follows(replace(CUT, revision=5)) == replace(new_table, revision=5), (
        "another table is no revision"
    )


def test_jobs_are_read_as_they_were_written(tmp_path: Path) -> None:
    """TBL-17, TBL-19, TBL-22"""
    history = History(str(tmp_path))
    assert history.jobs("one") == []
    assert history.newest_cut("s") is None
    jobs = [
        replace(apply_of(1, ended_at=at), table=name, watermark_after=after)
        for at, name, after in ((1, "o'ne", None), (2, "o'ne", 5), (3, "x", 6))
    ]
    for job in jobs:
        history.add_job(job)
    assert history.jobs("o'ne") == [jobs[1], jobs[0]]
    assert history.jobs("o'ne", limit=1) == [jobs[1]]
    merge = replace(jobs[1], kind=JobKind.RUNTIME_MERGE, ended_at=9)
    history.add_job(merge)
    assert history.jobs("o'ne", limit=1) == [merge]
    assert history.jobs("o'ne", limit=1, kinds=(JobKind.APPLY, JobKind.REBUILD)) == [jobs[1]]

    cuts = [
        CUT,
        replace(CUT, to_batch=4, merged=11, revision=1, recorded_at=2),
        replace(CUT, stream="other", recorded_at=3),
    ]
    for cut in cuts:
        history.add_cut(cut)
    assert history.cuts("s") == [cuts[1], cuts[0]]
    assert history.newest_cut("s") == cuts[1]


def test_cuts_are_forgotten_by_the_versions_that_they_name(tmp_path: Path) -> None:
    """TBL-23: one table that has left it too long ago is enough; never another stream's, never the
    one that stays.
    """
    history = History(str(tmp_path))
    history.forget_cuts("s", {"one": 9})
    cuts = [
        replace(CUT, low_watermark=50 + n, recorded_at=n, versions={"one": n, "other": 10 * n})
        for n in range(1, 6)
    ]
    other = replace(CUT, stream="s'2")
    for cut in (*cuts, other):
        history.add_cut(cut)
    history.forget_cuts("s", {"one": 3, "other": 20}, cuts[0])
    assert history.cuts("s") == [cuts[4], cuts[3], cuts[2], cuts[0]]
    history.forget_cuts("s", {"other": 41, "gone": 9})
    assert history.cuts("s") == [cuts[4]]
    assert history.cuts("s'2") == [other]


M, H = 60 * S, 3_600 * S
NOW = 100 * H


@pytest.mark.parametrize(
    ("recorded", "gone"),
    [
        ([], []),
        ([0, H - 1, H, 2 * H - 1, 2 * H], [0, H]),
        ([0, 1, 2, H - 1], [0, 1, 2]),
        ([5, 5, 9, 9], [5]),
        ([NOW - 7 * H, NOW - 7 * H + 50 * M], [NOW - 7 * H]),
        ([NOW - 6 * H, NOW - 6 * H + 50 * M], []),
        ([NOW - 70 * M, NOW - 70 * M + 10], [NOW - 70 * M]),
        ([NOW - 60 * M, NOW - 60 * M + 10, NOW - 10, NOW], []),
        ([NOW, NOW + M, NOW + M + 1], []),
        ([7], []),
    ],
)
def test_old_cuts_are_thinned(recorded: list[int], gone: list[int]) -> None:
    """TBL-23: after an hour, the newest one of ten minutes is kept, and after six, that of an hour;
    a single one, and younger ones, are.
    """
    assert thinned_out(recorded, NOW) == set(gone)


@given(st.lists(st.integers(0, 200 * M)), st.lists(st.integers(0, 300 * M), min_size=1))
def test_how_often_cuts_are_thinned_does_not_matter(recorded: list[int], nows: list[int]) -> None:
    """TBL-23: cuts that were thinned meanwhile are those that were thinned at the end; at most one
    of each hour is left of the oldest ones, never none, and the newest one of all stays.
    """
    kept, last = set(recorded), max(nows)
    for now in sorted(nows):
        kept -= thinned_out(kept, now)
    assert kept == set(recorded) - thinned_out(recorded, last)
    assert {at // H for at in kept} == {at // H for at in recorded}
    old = [at for at in kept if at // H < (last - 6 * H) // H]
    assert len(old) == len({at // H for at in old})
    assert not recorded or max(recorded) in kept


def test_a_thinned_cut_leaves_with_all_its_tables(tmp_path: Path) -> None:
    """TBL-23: in one commit, with those whose versions are too old. Other streams keep theirs."""
    history = History(str(tmp_path))
    at = (5 * S, 15 * S, 25 * S, H, NOW - 20, NOW - 10, NOW)
    cuts = [
        replace(CUT, low_watermark=n, recorded_at=time, versions={"one": n, "other": 10 * n})
        for n, time in enumerate(at)
    ]
    for cut in (*cuts, replace(cuts[0], stream="s2"), replace(cuts[1], stream="s2")):
        history.add_cut(cut)
    log = tmp_path / "_connector/cuts/_delta_log"
    commits = len([*log.glob("*.json")])
    history.forget_cuts("s", {"one": 1}, cuts[-1], NOW)
    assert history.cuts("s") == [cuts[n] for n in (6, 5, 4, 3, 2)]
    assert len([*log.glob("*.json")]) == commits + 1
    history.forget_cuts("s", {"one": 1}, cuts[-1], NOW)
    assert len([*log.glob("*.json")]) == commits + 1, "nothing to do is no commit"
    history.forget_cuts("s", {"other": 30}, cuts[2])
    assert history.cuts("s") == [cuts[n] for n in (6, 5, 4, 3, 2)]
    assert len(history.cuts("s2")) == 2


def test_the_history_is_bounded_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TBL-23: by age and number of its rows; few files, of rows and of the log, however many jobs
    there were.
    """
    monkeypatch.setattr(small_tables, "TIDY_EVERY", 20)
    monkeypatch.setattr(small_tables, "OLD_VERSIONS_KEPT_H", 0)
    monkeypatch.setattr(
        small_tables, "_KEPT", dict.fromkeys(small_tables._KEPT, "interval 0 seconds")
    )
    monkeypatch.setattr(lake_history, "MAX_JOBS", 30)
    history, folder = History(str(tmp_path)), tmp_path / "_connector" / "jobs"
    history.add_job(apply_of(1, ended_at=1))
    for number in range(17):
        history.add_job(apply_of(1, ended_at=40 * DAY + number))
    assert len(history.jobs("one")) == 18
    history.add_job(apply_of(1, ended_at=40 * DAY + 17))
    assert [job.ended_at - 40 * DAY for job in history.jobs("one")] == list(range(17, -1, -1)), (
        "the one of the first day is gone"
    )
    for number in range(18, 50):
        history.add_job(apply_of(1, ended_at=40 * DAY + number))
        assert len(list(folder.glob("*.parquet"))) <= 24
        assert len(list((folder / "_delta_log").iterdir())) <= 30
    ages = [job.ended_at - 40 * DAY for job in history.jobs("one")]
    assert ages == list(range(49, 49 - len(ages), -1))
    assert 30 <= len(ages) <= 50


def test_the_last_clean_up_of_a_changelog_is_the_last_one_without_an_error(tmp_path: Path) -> None:
    """TBL-19, JOB-1"""
    before, history = apply_of(3), History(str(tmp_path))
    history.add_job(before)
    assert history.newest(stream="s") == {}
    assert history.last_clean_up("one", "") is None
    after = replace(
        before,
        kind=JobKind.CLEAN_UP,
        table="",
        stream="s",
        ended_at=9 * DAY,
        files=3,
        bytes=7,
        live_bytes=1,
        disk_bytes=2,
    )
    failed = replace(after, started_at=after.started_at + 1, ended_at=10 * DAY, error="full")
    for job in (after, failed):
        history.add_job(job)
    assert history.jobs("one") == [before]
    assert history.newest(stream="s") == {JobKind.CLEAN_UP: failed}
    assert history.newest(table="one") == {}
    assert history.last_clean_up("", "s") == after.started_at


def test_a_history_that_lacks_a_column_was_made_by_another_program(tmp_path: Path) -> None:
    """TBL-14, JOB-1"""
    types = {"kind": "string", "table": "string"}
    write_deltalake(
        f"{tmp_path}/_connector/jobs",
        small_tables.as_arrow([{"kind": "apply", "table": "one"}], types),
    )
    with pytest.raises(TableError, match="It lacks the columns bytes, changes, ") as caught:
        History(str(tmp_path)).add_job(apply_of(3))
    assert caught.value.code == "COMMIT_FOREIGN"


def test_a_history_of_an_older_version_gets_the_columns_that_it_lacks(tmp_path: Path) -> None:
    """JOB-1: its jobs stay readable."""
    before, history = apply_of(3, ended_at=8 * DAY), History(str(tmp_path))
    old = {**asdict(before), "kind": "apply"}
    small_tables.append(f"{tmp_path}/_connector/jobs", [old], lake_history._JOBS)
    assert history.jobs("one") == [before]
    audited = Job(JobKind.AUDIT, "", 1, 9 * DAY, stream="s", error="lost", rows_read=7)
    history.add_job(audited)
    assert history.jobs() == [audited, before]
    assert history.newest((JobKind.AUDIT,), stream="s") == {JobKind.AUDIT: audited}
    assert history.newest((JobKind.AUDIT,), stream="other") == {}


@given(st.lists(st.tuples(st.sampled_from(JobKind), st.integers(0, 9 * DAY), st.integers(0, 99))))
def test_sums_by_hour_and_by_day_have_each_job_once(drawn: list[tuple[JobKind, int, int]]) -> None:
    """JOB-1: the sums of the hours of a day are the sum of the day."""
    jobs = [
        Job(kind, "one", max(0, at - 7), at, changes=n, cpu_us=n, error="x" * (n % 2))
        for kind, at, n in drawn
    ]
    hours, days = sums_by(Period.HOUR, jobs), sums_by(Period.DAY, jobs)
    for sums in (hours, days):
        for name in SUMMED:
            expected = sum(getattr(job, name) for job in jobs)
            assert sum(getattr(found, name) for found in sums) == expected, name
        assert sum(found.jobs for found in sums) == len(jobs)
        assert sum(found.failed for found in sums) == sum(bool(job.error) for job in jobs)
        assert sum(found.duration_us for found in sums) == sum(
            job.ended_at - job.started_at for job in jobs
        )
        assert [found.since for found in sums] == sorted((s.since for s in sums), reverse=True)
    for day in days:
        within = [h for h in hours if h.kind == day.kind and h.since - h.since % DAY == day.since]
        assert sum(hour.changes for hour in within) == day.changes
        assert sum(hour.cpu_us for hour in within) == day.cpu_us


def test_a_job_of_which_nothing_is_known_adds_nothing() -> None:
    """JOB-1."""
    empty = {"since": 0, "kind": JobKind.APPLY, "jobs": 1}
    assert sums_by(Period.DAY, [Job(JobKind.APPLY, "t", 5, 5)]) == [JobSum(**empty)]
    assert {getattr(JobSum(**empty), name) for name in (*SUMMED, "failed", "duration_us")} == {0}


def test_a_sum_knows_the_figures_of_its_kind_of_jobs_that_did_not_fail() -> None:
    """JOB-1: an apply of an older release has only its counts."""

    def known(kind: JobKind, **of: int) -> set[str]:
        sums = JobSum(0, kind, jobs=2, **of)
        return {name for name in SUMMED if sums.knows(name)}

    assert known(JobKind.RUNTIME_MERGE) == known(JobKind.RUNTIME_MERGE, failed=1) == {"changes"}
    assert known(JobKind.RUNTIME_MERGE, failed=2) == known(JobKind.COMPACTION) == set()
    assert known(JobKind.APPLY) == {"changes", "letters"}
    assert known(JobKind.APPLY, cpu_us=1) == {*SUMMED} - {"rows_read"}


def test_batches_are_read_from_the_log_of_the_changelog(tmp_path: Path) -> None:
    """JOB-1: no row is stored for a batch. Its counts are those after it, less those before."""
    types = {"kind": "string"}
    path = tmp_path / "streams/s/changelog"

    def log(kind: str, batch: int, of_progress: int, changes: int, rejected: int) -> None:
        progress = Progress(of_progress, changes=changes, rejected={"A": rejected}).to_json()
        stored = {
            "commit": kind,
            "stream": "s",
            "ingest_batch": batch,
            "topic_read_at": 5,
            "start_offsets": {"0": batch * 10 - 10},
            "end_offsets": {"0": batch * 10} | ({"1": 4} if batch == 3 else {}),  # one was added
            "progress": progress,
        }
        commit(path, [{"kind": "change"}] * batch, types, stored)

    log("batch", 1, 1, 4, 0)
    log("batch", 2, 1, 4, 0)  # records were rejected, so the progress follows
    log("progress", 2, 2, 9, 3)
    log("renewed", 2, 2, 9, 3)
    log("batch", 3, 3, 9, 3)
    found = list(batches(str(tmp_path), "s"))
    assert [(b.to_batch, b.changes, b.letters, b.rows_read, b.rows_written) for b in found] == [
        (3, 0, 0, 14, 3),
        (2, 5, 3, 10, 2),
        (1, 4, 0, 10, 1),
    ]
    assert all(b.bytes_written > 0 and (b.stream, b.started_at) == ("s", 5) for b in found)
    assert list(batches(str(tmp_path), "s", since=found[0].ended_at + 1)) == []
    assert list(batches(str(tmp_path), "other")) == []
