"""`connector spool` (PUB-3)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from connector.cli import invoke
from connector.kafka.produce.spool_file import SpoolFile, Write
from connector.kafka.topics import TopicFacts
from connector.records.spooled import SpooledRecord

FACTS = TopicFacts("t", "AAAAAAAAAAAAAAAAAAAAAA", 2, 1, "delete", "LogAppendTime", 10**9, 1_000_000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A spool that has lost its records 2 and 3 of 4."""
    found = tmp_path / "a spool"
    file = SpoolFile(found)
    file.bind(FACTS)
    records = [
        (number, SpooledRecord(0, "p", number * 1_000_000, 0, b"k", b"v", b"")) for number in (1, 4)
    ]
    file.write(Write(records, 1, 5))
    file.close()
    return found


def test_a_spool_is_shown(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["spool", "show", str(path)]) == 1
    shown = capsys.readouterr().out
    assert "topic:   t (no producer uses it)" in shown
    assert "records: 2, 206 bytes" in shown
    assert "oldest:  1970-01-01T00:00:01" in shown
    assert "missing: 2 records (numbers 2 to 3)" in shown
    file = SpoolFile(path)
    try:
        assert invoke(["spool", "show", str(path), "--json"]) == 1
    finally:
        file.close()
    found = json.loads(capsys.readouterr().out)
    assert (found["is_in_use"], found["records"], found["newest"]) == (True, 2, 4_000_000)


def test_a_loss_is_accepted_once(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["spool", "accept", str(path)]) == 0
    assert "accepted: 2 records (numbers 2 to 3)" in capsys.readouterr().err
    assert invoke(["spool", "show", str(path)]) == 0
    assert invoke(["spool", "accept", str(path)]) == 0
    assert "there is no loss to accept" in capsys.readouterr().err


def test_a_file_of_which_nothing_can_be_read_is_kept(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path.write_bytes(b"no database" * 1000)
    assert invoke(["spool", "show", str(path)]) == 1
    assert "SPOOL_UNREADABLE" in capsys.readouterr().err
    assert invoke(["spool", "accept", str(path)]) == 0
    assert "nothing could be read" in capsys.readouterr().err
    assert Path(f"{path}.damaged").read_bytes().startswith(b"no database")


def test_a_spool_that_does_not_exist_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["spool", "show", str(tmp_path / "x")]) == 1
    assert "There is no spool at" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]
