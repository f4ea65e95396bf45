"""`connector partitions`: who holds the low watermark, and the wish that somebody ends (WMK-8,
WMK-12).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from connector import cli
from connector.lake.overrides import Overrides
from connector.lake.state_reader import progress_of
from connector.records.model import ChildPartition, ChildPartitions
from connector.state.overrides import ClosePartition
from connector.state.stream_progress import BatchCounts, Progress, StreamRules
from connector.watermarks.freshness import EndOffsets
from connector.watermarks.frontier import BatchClaims, LineageRecord
from tests.unit.warehouses import log_progress

SETTINGS = """
warehouse = "w"
[kafka]
bootstrap_servers = "127.0.0.1:1"
[streams.s]
partitions = ["root", "mistyped"]
"""
HOSTILE = "p\x1b[2J\u202e"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that is announced and waits for two parents, of which one has ended, and one that nobody
    announced.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "connector.toml").write_text(SETTINGS)
    children = (ChildPartition("left", (), b"", b"m"), ChildPartition("right", (), b"m\xff", None))
    merged = ChildPartitions("left", 40, 1, (ChildPartition("both", ("left", "right")),))
    lineage = (
        LineageRecord(0, 1, ChildPartitions("root", 1, 0, children)),
        LineageRecord(0, 1, merged),
    )
    claims = BatchClaims(1, {"left": {0: 30}, "right": {0: 20}, HOSTILE: {0: 5}}, lineage)
    counts = BatchCounts(changes=1, claims=claims, read_at=7)
    log_progress(
        tmp_path / "w",
        "s",
        Progress().after(1, counts, {0: 7}, EndOffsets(7, {0: 7}), StreamRules()),
    )
    return tmp_path / "w"


def test_each_stream_partition_has_its_watermark_and_what_it_waits_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """WMK-7, WMK-8, WMK-9, WMK-12"""
    assert cli.invoke(["partitions", "list", "--json"]) == 0
    found = {
        row["stream_partition"]: row
        for row in map(json.loads, capsys.readouterr().out.splitlines())
    }
    assert list(found) == [HOSTILE, "right", "left", "both"]
    assert found["right"] == {
        "stream_partition": "right",
        "low_watermark": "1970-01-01T00:00:00.000020Z",
        "kafka_partition": 0,
        "since": "1970-01-01T00:00:00.000007Z",
        "is_stalled": True,
        "is_declared": True,
        "roots": ["root"],
        "key_range": {"start_key": {"base64": "bf8="}, "end_key": None},
        "waits_for": [],
        "is_over": False,
    }
    assert (found["left"]["is_over"], found["both"]["waits_for"]) == (True, ["left", "right"])
    assert found[HOSTILE]["is_declared"] is False


def test_a_person_sees_no_name_unescaped(capsys: pytest.CaptureFixture[str]) -> None:
    """DLQ-9"""
    assert cli.invoke(["partitions", "list", "--stream", "s"]) == 0
    said = capsys.readouterr().out
    assert "p\\x1b[2J\\u202e" in said
    assert "m\\xff to last" in said
    assert not {"\x1b", "\u202e"} & set(said)


def test_a_request_to_close_is_stored_with_its_author_time_and_reason(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """WMK-8: also of a root that the configuration names and that never speaks; asked for twice it
    is one wish.
    """
    for name in (HOSTILE, "mistyped", HOSTILE):
        assert cli.invoke(["partitions", "close", name, "--why", "gone"]) == 0
    assert "\x1b" not in capsys.readouterr().err
    overrides = Overrides(str(folder)).requests(ClosePartition, "s", above=0)
    assert [
        (override.number, override.stream_partition, override.reason) for override in overrides
    ] == [
        (1, HOSTILE, "gone"),
        (2, "mistyped", "gone"),
    ]
    assert all("@" in override.made_by and override.made_at for override in overrides)
    assert Overrides(str(folder)).requests(ClosePartition, "s", above=1) == overrides[1:]
    assert Overrides(str(folder)).requests(ClosePartition, "other", above=0) == []


def test_a_misspelt_stream_partition_is_not_closed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """WMK-8, WMK-9: a name has one life, so an unknown name is not ended in advance."""
    assert cli.invoke(["partitions", "close", "--stream", "s", "rihgt", "--why", "gone"]) == 1
    assert "Did you mean right?" in capsys.readouterr().err
    assert cli.invoke(["partitions", "close", "--stream", "s", "right"]) == 2
    assert cli.invoke(["partitions", "close", "--stream", "s", "right", "--why", " "]) == 2
    assert Overrides(str(folder)).requests(ClosePartition, "s", above=0) == []


def test_a_stream_partition_that_has_ended_is_not_closed_again(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.invoke(["partitions", "close", "--stream", "s", "right", "--why", "gone"]) == 0
    overrides = Overrides(str(folder)).requests(ClosePartition, "s", above=0)
    before = progress_of(str(folder), "s", with_frontier=True)
    log_progress(
        folder,
        "s",
        before.after(
            2,
            BatchCounts(claims=BatchClaims(1)),
            {0: 7},
            EndOffsets(9, {0: 7}),
            StreamRules(),
            overrides,
        ),
    )
    assert cli.invoke(["partitions", "close", "--stream", "s", "right", "--why", "gone"]) == 1
    assert "It ended at" in capsys.readouterr().err
