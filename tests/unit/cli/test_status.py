"""`connector status` on Delta tables that no Spark wrote (OPS-5)."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from connector import cli
from connector.lake.jobs import History
from connector.lake.state_reader import progress_of
from connector.records.model import ChildPartition, ChildPartitions
from connector.state.jobs import Job, JobKind
from connector.state.source_checks import BatchFindings, Ignored
from connector.state.stream_progress import BatchCounts, Progress, StreamRules
from connector.state.table_state import TableState
from connector.text import duration
from connector.watermarks.freshness import EndOffsets
from connector.watermarks.frontier import BatchClaims, LineageRecord
from connector.watermarks.producer_epoch import OlderProducer
from tests.unit.warehouses import log_progress, log_table

SETTINGS = """
warehouse = "warehouse"
[kafka]
bootstrap_servers = "127.0.0.1:1"
[streams.s]
[tables.one]
stream = "s"
max_staleness = "10m"
[tables.never]
stream = "s"
"""
HOSTILE = "p\x1b[2J\u202e"


@pytest.fixture
def warehouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stream of two batches, with a stray stream partition and rejected records; one of two
    tables was applied.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "connector.toml").write_text(SETTINGS)
    folder, now = tmp_path / "warehouse", time.time_ns() // 1000
    claims = BatchClaims(1, {HOSTILE: {0: 50}})
    counts = BatchCounts(
        changes=5,
        ignored_claims=2,
        claims=claims,
        read_at=now,
        rejected={"BAD_FRAMING": 2},
        findings=BatchFindings(
            ignored={HOSTILE: {Ignored.BACKWARDS: 2}},
            older_producers={HOSTILE: OlderProducer(0, 1, 2)},
        ),
    )
    one = Progress().after(1, counts, {0: 7}, EndOffsets(now, {0: 7}), StreamRules())
    log_progress(folder, "s", one)
    log_progress(
        folder,
        "s",
        one.after(
            2,
            replace(counts, rejected={}),
            {0: 9},
            EndOffsets(now, {0: 12}),
            StreamRules(),
        ),
    )
    log_table(
        folder,
        "one",
        TableState(
            apply_number=1,
            to_batch=1,
            complete_to_batch=1,
            highest_applied=60,
            inconsistent_since=now,
            as_of=now,
        ),
    )
    History(str(folder)).add_job(Job(JobKind.APPLY, "one", now - 2_000_000, now))
    return folder


def test_the_last_maintenance_is_printed(
    warehouse: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """TBL-15, JOB-1, OPS-5: the last compaction and clean-up, with what is on disk; a read or an
    apply is no maintenance.
    """
    now, history = time.time_ns() // 1000, History(str(warehouse))
    for files, ended_at in ((1, now - 600_000_000), (30, now - 60_000_000)):
        history.add_job(Job(JobKind.COMPACTION, "one", ended_at - 1, ended_at, files=files))
    history.add_job(
        Job(
            JobKind.CLEAN_UP,
            "one",
            now - 2,
            now - 1,
            files=4,
            bytes=2**20,
            live_bytes=3 * 2**20,
            disk_bytes=2**23,
        )
    )
    history.add_job(Job(JobKind.COMPACTION, "", now - 2, now - 1, stream="s", files=70))
    assert cli.invoke(["status"]) == 0
    shown = capsys.readouterr().out
    assert (
        "maintained: one: compaction 1m ago, 30 files fewer; clean-up 0s ago, 4 files removed, 1.0"
        " MiB freed" in shown
    )
    assert "then 8.0 MiB on disk, 3.0 MiB of the newest version" in shown
    assert "maintained      compaction 0s ago, 70 files fewer" in shown
    assert "maintained: never" not in shown
    assert [job["files"] for job in status(capsys)["tables"]["one"]["maintenance"]] == [30, 4]  # type: ignore[attr-defined]


def status(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, dict[str, object]]]:
    assert cli.invoke(["status", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_one_object_has_every_stream_and_table(
    warehouse: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """OPS-5, TBL-20"""
    found = status(capsys)
    stream, one, never = found["streams"]["s"], found["tables"]["one"], found["tables"]["never"]
    assert (stream["ingest_batch"], stream["changes"], stream["lag"]) == (2, 10, 3)
    assert (stream["open_dead_letters"], stream["is_ledger_known"], one["is_complete"]) == (
        2,
        False,
        False,
    ), "Kafka does not answer"
    assert stream["undeclared"] == [HOSTILE]
    assert stream["ignored_claims"] == 4, "ING-4"
    assert (
        one["pending_batches"],
        one["is_consistent_cut"],
        one["max_staleness_s"],
        one["p95_s"],
    ) == (1, False, 600, 2.0)
    assert one["recommended_max_staleness_s"] == 64, "JOB-4: a minute, and twice the trigger"
    assert (never["apply"], never["pending_batches"], never["age_s"]) == (0, 2, None)
    assert found["errors"] == {}


def test_a_person_sees_when_a_table_is_due(
    warehouse: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """JOB-2: a quarter of its bound after the start of its last apply; at once, if that has passed
    and something is pending.
    """
    monkeypatch.setenv("COLUMNS", "200")
    one = status(capsys)["tables"]["one"]
    assert (one["apply_every_s"], one["due_at"] is None) == (150, False)
    assert cli.invoke(["status"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.split()}
    assert "in 2m2" in rows["one"]
    assert " now" in rows["never"]


def test_reads_that_merge_do_not_hide_an_apply_that_failed(
    warehouse: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """OPS-5, JOB-1: they are in the history, and say nothing of the table."""
    now = time.time_ns() // 1000
    for kind, error in ((JobKind.APPLY, "disk full"), (JobKind.RUNTIME_MERGE, "")):
        now += 1
        History(str(warehouse)).add_job(Job(kind, "one", now - 1, now, error=error))
    one = status(capsys)["tables"]["one"]
    assert isinstance(one["last_job"], dict)
    assert (one["last_job"]["kind"], one["last_job"]["error"]) == ("apply", "disk full")
    assert "the last job failed: disk full" in str(one["hints"])


def test_a_job_that_ends_while_the_command_reads_is_not_in_the_future(
    warehouse: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """OPS-5: but the clock of another machine may be wrong, and a larger difference shows it."""
    now, history = time.time_ns() // 1000, History(str(warehouse))
    for ahead_s, shown in ((5, "apply 0s ago"), (120, "in the future")):
        ended_at = now + ahead_s * 1_000_000
        history.add_job(Job(JobKind.APPLY, "one", now, ended_at))
        assert cli.invoke(["status"]) == 0
        assert shown in capsys.readouterr().out


def test_a_changelog_that_was_taken_away_is_an_error(
    warehouse: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """OPS-5: a table that knows better does not stand as if nothing had ever been ingested."""
    shutil.rmtree(warehouse / "streams")
    assert cli.invoke(["status", "--json"]) == 1
    assert (
        "but the changelog was removed"
        in json.loads(capsys.readouterr().out)["errors"]["tables.one"]
    )
    assert cli.invoke(["read", "one", "--allow-stale"]) == 0
    assert "but the changelog was removed" in capsys.readouterr().err


def test_a_person_sees_no_name_unescaped(
    warehouse: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """DLQ-9: names of stream partitions come from outside."""
    assert cli.invoke(["status"]) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "\u202e" not in said
    name = "stream partition p\\x1b[2J\\u202e in Kafka partition 0"
    assert f"{name}: the last new heartbeat came " in said
    assert "rejected so far: 2 BAD_FRAMING" in said
    assert "two producers write stream partition p\\x1b[2J\\u202e" in said, "PUB-4"
    assert "of p\\x1b[2J\\u202e: 4 below an earlier claim" in said, "ING-4"
    assert "ignored claims  4: they did not move the low watermark" in said, "ING-4"
    assert "hint            the low watermark is unknown" in said
    assert "hint: never: nothing was applied yet" in said


def test_a_script_that_has_ended_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """WMK-12: the status says how old the last heartbeat is, and what to do if it was the last."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "connector.toml").write_text(SETTINGS)
    now = time.time_ns() // 1000
    ended_at = now - 7_200_000_000
    announced = LineageRecord(0, 1, ChildPartitions("p", 1, 0, (ChildPartition("p"),)))
    claims = BatchClaims(1, {"p": {0: ended_at}}, (announced,))
    stands = Progress().after(
        1, BatchCounts(claims=claims), {0: 7}, EndOffsets(ended_at, {0: 7}), StreamRules()
    )
    log_progress(tmp_path / "warehouse", "s", replace(stands, ingest_batch=3, late=2))
    assert cli.invoke(["status"]) == 0
    said = capsys.readouterr().out
    assert (
        "stalled         stream partition p in Kafka partition 0: the last new heartbeat came"
        in said
    )
    assert "; if its producer has ended for good, close it" in said
    assert "run: connector partitions list --stream s\n" in said
    assert "waits for" not in said, "the same line is not there twice"
    assert "2 changes came after the low watermark had passed their time." in said


def test_stream_partitions_that_may_fill_a_hole_in_the_key_space_are_named(
    warehouse: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """WMK-9: to people and to programs."""
    children = (ChildPartition("left", (), None, b"m"), ChildPartition(HOSTILE))
    claims = BatchClaims(1, {}, (LineageRecord(0, 1, ChildPartitions("root", 1, 0, children)),))
    stands = Progress().after(
        1, BatchCounts(claims=claims), {0: 7}, EndOffsets(1, {0: 7}), StreamRules()
    )
    log_progress(warehouse, "s", replace(stands, ingest_batch=3))
    found = status(capsys)["streams"]["s"]
    assert found["uncovered"] == {"root": "root", "start_key": "m", "end_key": None}
    assert found["without_key_range"] == [HOSTILE]
    assert cli.invoke(["status"]) == 0
    assert (
        "no key range of the root root covers [b'm', end); announce these stream partitions with a"
        " key range: p\\x1b[2J\\u202e" in capsys.readouterr().out
    )


def test_an_unreadable_table_hides_no_other_one(
    warehouse: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """OPS-5"""
    log_table(warehouse, "never", TableState(apply_number=1))
    next((warehouse / "tables/never/data/_delta_log").glob("*.json")).write_text("{")
    assert cli.invoke(["status", "--json"]) == 1
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert (set(found["tables"]), set(found["errors"])) == ({"one"}, {"tables.never"})
    assert "error:" in said.err


def test_a_warehouse_that_is_still_empty_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "connector.toml").write_text(SETTINGS)
    found = status(capsys)
    assert found["streams"]["s"]["hints"] == ["nothing was ingested yet"]
    assert (found["streams"]["s"]["lag"], found["tables"]["one"]["apply"]) == (None, 0)


def test_watching_is_for_people(warehouse: Path) -> None:
    assert cli.invoke(["status", "--json", "--watch"]) == 2


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.9, "0s"), (59, "59s"), (90, "1m30s"), (3601, "1h"), (86_400 * 2 + 3_600 * 4 + 5, "2d4h")],
)
def test_durations_are_short(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_the_headroom_is_unknown_without_kafka_and_needs_none_at_the_end(
    warehouse: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """RUN-7: Kafka is not asked if ingest was at the end of the topic within the last minute."""

    def headroom_and_free() -> tuple[object, object, int]:
        assert cli.invoke(["status", "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        free = shown["broker_free_bytes"], shown["warehouse_free_bytes"]
        return shown["streams"]["s"]["headroom"], *free

    headroom, broker, free = headroom_and_free()
    assert (headroom, broker) == (None, None), "ingest lacks three offsets, and Kafka is away"
    assert free > 0
    now = time.time_ns() // 1000
    progress = progress_of(str(warehouse), "s", with_frontier=True)
    counts = BatchCounts(claims=BatchClaims(1), read_at=now)
    at_end = progress.after(3, counts, {0: 12}, EndOffsets(now, {0: 12}), StreamRules())
    log_progress(warehouse, "s", at_end)
    assert headroom_and_free()[0] == []
