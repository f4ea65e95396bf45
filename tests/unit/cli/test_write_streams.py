"""`connector write-streams`: requests of an operator, without Kafka (WRS-18, WRS-23)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from connector import cli
from connector.cli.parameters import MOMENT
from connector.cli.write_streams import request_of
from connector.errors import WriteStreamError
from connector.lake.overrides import Overrides
from connector.records.model import ChildPartition, ChildPartitions, OffsetRange, Release
from connector.reports.write_stream_status import release_status
from connector.services import load_config, release_rows
from connector.services.wait import (
    check_not_withheld,
    is_released,
    lag_of_ingest,
    lag_of_table,
)
from connector.services.write_streams import WriteStreamList, lost_ranges
from connector.state.stream_progress import Progress
from connector.watermarks.advance import advance
from connector.watermarks.frontier import (
    UNKNOWN,
    BatchClaims,
    LineageRecord,
)
from connector.write_streams.model import StreamEntry, StreamKind, StreamState
from connector.write_streams.releases import NO_RELEASES, ReleaseProgress, ReleaseRows
from tests.unit.cli.test_remedies import parses
from tests.unit.warehouses import log_progress

SETTINGS = """
warehouse = "w"
[kafka]
bootstrap_servers = "127.0.0.1:1"
[streams.s]
"""
C = 1_714_500_000_000_000
TIME = "2024-04-30T18:00:00.000000Z"
REQUEST = ReleaseRows(1, "s", C, "x", C, "ann", "w/a")


def releases(found: int, horizon: int | None = None, *, is_read: bool = True) -> ReleaseProgress:
    """A release of ten rows, of which `found` are in the changelog."""
    release = Release("p", C, (OffsetRange("w/a", 0, 10),))
    known = NO_RELEASES.logged(1, C, ("w/a",), (release,), {0: 5}, None)
    return known.completed(1, {0: found}, {0: 5 if is_read else 4}, horizon)[0]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "connector.toml").write_text(SETTINGS)
    return tmp_path / "w"


def log(folder: Path, known: ReleaseProgress, **others: int) -> None:
    log_progress(folder, "s", Progress(ingest_batch=1, staged=10, releases=known, **others))  # type: ignore[arg-type]


def test_a_request_is_stored_with_its_author_time_and_reason(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """WRS-18, WMK-8: it names the write stream and the commit timestamp of the release."""
    log(folder, releases(9))
    why = ["--why", "row 3 has no key"]
    assert cli.invoke(["write-streams", "release", "w/a", "--without-rejected", *why]) == 0
    (request,) = Overrides(str(folder)).requests(ReleaseRows, "s", above=0)
    assert (request.number, request.stream) == (1, "s")
    assert (request.write_stream, request.commit_timestamp) == ("w/a", C)
    assert (request.reason, bool(request.made_by), request.made_at > C) == (why[1], True, True)
    assert MOMENT.convert(TIME, None, None) == C
    again = release_rows(load_config(), "s", "w/a", commit_timestamp=C, why="again", by="ann")
    assert again.made_by == "ann"
    numbers = [one.number for one in Overrides(str(folder)).requests(ReleaseRows, "s", above=0)]
    assert numbers == [1, 2]
    assert Overrides(str(folder)).requests(ReleaseRows, "s", above=2) == []
    assert Overrides(str(folder)).requests(ReleaseRows, "other", above=0) == []
    assert "connector write-streams list --stream s" in capsys.readouterr().err


@pytest.mark.parametrize("known", [NO_RELEASES, releases(9, is_read=False), releases(10, C + 1)])
def test_only_a_release_that_lacks_rejected_rows_is_released_without_them(
    folder: Path, known: ReleaseProgress, capsys: pytest.CaptureFixture[str]
) -> None:
    """WRS-18: not one that still waits for ingest, and not one that is too late."""
    log(folder, known)
    code = cli.invoke(
        ["write-streams", "release", "--stream", "s", "w/a", "--without-rejected", "--why", "x"]
    )
    assert code == 1
    said = capsys.readouterr().err
    assert "RELEASE_UNKNOWN" in said
    assert "connector write-streams list --stream s" in said
    assert Overrides(str(folder)).requests(ReleaseRows, "s", above=0) == []


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--again", "--without-rejected", "--why", "x"],
        ["--without-rejected"],
        ["--without-rejected", "--why", " "],
        ["--again", "--why", "x"],
    ],
)
def test_a_release_needs_its_kind_and_its_reason(folder: Path, options: list[str]) -> None:
    assert cli.invoke(["write-streams", "release", "--stream", "s", "w/a", *options]) == 2
    assert not folder.exists()


def test_a_wait_needs_no_timeout_and_a_timeout_a_wait(folder: Path) -> None:
    assert cli.invoke(["write-streams", "commit", "--stream", "s", "w/a", "--timeout", "5s"]) == 2
    assert not folder.exists()


def test_a_request_names_one_release(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """WRS-18: two flushes of one write stream are withheld. A request that fits both is refused,
    and kept for none. The commit timestamp says which one.
    """
    flushes = [Release("p", C + n, (OffsetRange("w/a", 5 * n, 5 * n + 5),)) for n in (0, 1)]
    alone = Release("q", C, (OffsetRange("w/b", 0, 5),))
    known = NO_RELEASES.logged(1, C, ("w/a", "w/b"), [*flushes, alone], {0: 5}, None)
    known, _ = known.completed(1, {}, {0: 5}, None)
    log(folder, known)
    releases = [release_status(one) for one in known.open]
    listed = WriteStreamList("s", 0, 1, {}, [], releases)
    lines = [request_of(one, listed) for one in releases]
    assert [line.partition(" --without-rejected --why '…' ")[2] for line in lines] == [
        f"--stream s --commit-timestamp {TIME} w/a",
        "--stream s w/b",
        f"--stream s --commit-timestamp {TIME.replace('.000000Z', '.000001Z')} w/a",
    ]
    assert all(map(parses, lines))
    call = ["write-streams", "release", "--stream", "s", "w/a", "--without-rejected", "--why", "x"]
    assert cli.invoke(call) == 1
    said = capsys.readouterr().err
    assert "RELEASE_UNKNOWN" in said
    assert TIME in said
    assert Overrides(str(folder)).requests(ReleaseRows, "s", above=0) == []
    other = TIME.replace(".000000Z", ".000001Z")
    assert cli.invoke([*call, "--commit-timestamp", TIME.replace("18:00", "18:01")]) == 1
    assert "RELEASE_UNKNOWN" in capsys.readouterr().err
    assert cli.invoke([*call, "--commit-timestamp", other]) == 0
    (request,) = Overrides(str(folder)).requests(ReleaseRows, "s", above=0)
    assert (request.write_stream, request.commit_timestamp) == ("w/a", C + 1)


def test_the_status_is_not_complete_with_a_withheld_release(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """WRS-18, DLQ-7: for people and programs, without Kafka."""
    log(folder, releases(9))
    assert cli.invoke(["status", "--json"]) == 0
    stream = json.loads(capsys.readouterr().out)["streams"]["s"]
    assert (stream["withheld_releases"], stream["open_dead_letters"]) == (1, 0)
    assert stream["write_streams"]["releases"][0]["commit_timestamp"] == TIME
    assert cli.invoke(["status"]) == 0
    shown = capsys.readouterr().out
    assert "withheld" in shown
    assert "run: connector write-streams list --stream s" in shown


# ── --wait ────────────────────────────────────────────────────────────────────────────────────────


def entry(end: int = 10, changed_at: int = C) -> StreamEntry:
    return StreamEntry(StreamKind.PENDING, StreamState.COMMITTED, end, end, changed_at)


def test_a_commit_is_shown_once_all_its_rows_are_released() -> None:
    """WRS-23: an empty write stream has no rows, and ingest forgets old ones."""
    assert is_released(releases(10), {"w/a": entry(), "w/empty": entry(0)}, C)
    assert not is_released(releases(9), {"w/a": entry()}, C)
    assert not is_released(releases(10), {"w/a": entry(), "w/b": entry()}, C)
    assert is_released(releases(10), {"w/a": entry(), "w/b": entry(changed_at=C - 1)}, C)
    requested = releases(9).requested([REQUEST])
    assert is_released(requested.completed(2, {0: 9}, {0: 5}, None)[0], {"w/a": entry()}, C)


@pytest.mark.parametrize(
    ("known", "horizon", "is_read", "code"),
    [
        (releases(9), None, False, "RELEASE_WITHHELD"),
        (releases(10, C + 1), C + 1, False, "RELEASE_TOO_LATE"),
        (NO_RELEASES, C + 1, True, "RELEASE_TOO_LATE"),
        (NO_RELEASES, C + 1, False, None),
        (NO_RELEASES, C, True, None),
        (releases(9, is_read=False), None, True, None),
        (releases(9).requested([REQUEST]), None, True, None),
    ],
)
def test_a_withheld_release_ends_the_waiting(
    folder: Path, known: ReleaseProgress, horizon: int | None, is_read: bool, code: str | None
) -> None:
    """WRS-18, WRS-20, WRS-23: one below the horizon that ingest does not know is a dead letter."""
    assert folder.name == "w"
    stream = load_config().streams["s"]
    progress = Progress(ingest_batch=1, releases=known, horizon=horizon)
    try:
        check_not_withheld(stream, progress, {"w/a": entry()}, C, is_read=is_read)
    except WriteStreamError as error:
        assert (error.code, error.fields["stream"]) == (code, "s")
    else:
        assert code is None


def test_a_commit_whose_write_stream_ingest_forgot_is_not_released_again() -> None:
    """WRS-20, WRS-21: its rows were released, or their payload was removed."""
    lost = (OffsetRange("w/a", 0, 10),)
    assert lost_ranges({"w/a": entry()}, NO_RELEASES, entry().changed_at) == lost
    assert lost_ranges({"w/a": entry()}, NO_RELEASES, entry().changed_at + 1) == ()
    assert lost_ranges({"w/a": entry()}, releases(10), entry().changed_at + 1) == ()
    assert lost_ranges({"w/a": entry()}, releases(9), entry().changed_at + 1) == lost


def test_the_cause_of_a_wait_for_a_commit_is_named() -> None:
    """WRS-23: the Kafka partitions that ingest has not read, or the stream partition that delays
    the low watermark.
    """
    one = lag_of_ingest({0: 5, 1: 2}, {0: 5, 1: 3})
    assert one.waits_for.startswith("ingest to read 1 offset of Kafka partition 1; ")
    assert one[1:] == (1, None, None)
    some = lag_of_ingest({0: 5}, {0: 6, 1: 3})
    assert some.waits_for.startswith("ingest to read 4 offsets of the Kafka partitions 1, 0; ")
    assert some[1:] == (1, None, None)
    assert lag_of_ingest({0: 5}, {0: 5})[1:] == (None, None, None)
    announced = ChildPartitions("p", 1, 0, (ChildPartition("p"),))
    lineage = tuple(LineageRecord(k, 2, announced) for k in (0, 1))
    heard = BatchClaims(2, {"p": {0: C + 1, 1: C}}, lineage)
    frontier = advance(UNKNOWN, heard, now=C + 10, horizon=None, roots=frozenset(), ends=[])
    progress = Progress(ingest_batch=1, frontier=frontier)
    held = lag_of_table("t", progress, C)
    assert held[1:] == (1, "t", "p")
    assert "Stream partition p delays it in Kafka partition 1" in held.waits_for
    assert lag_of_table("t", progress, C - 1)[1:] == (None, "t", None)
    assert lag_of_table("t", Progress(), C)[1:] == (None, "t", None)


def test_the_status_counts_the_staged_and_the_released_rows(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """WRS-18."""
    log(folder, releases(10))
    assert cli.invoke(["status"]) == 0
    said = capsys.readouterr().out
    assert "0 changes and 10 released rows by ingest batch 1" in said
    assert "10 staged rows ingested, 10 released" in said
