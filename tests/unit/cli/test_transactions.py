"""`connector transactions`: what lacks records, and the wish that nothing waits for it (ING-2)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from connector import cli
from connector.lake.overrides import Overrides
from connector.state.incomplete_transactions import (
    ReleaseTransaction,
    TransactionCheck,
    TransactionGap,
)
from connector.state.stream_progress import Progress
from connector.watermarks.frontier import Frontier
from tests.unit.warehouses import log_progress

SETTINGS = """
warehouse = "w"
[kafka]
bootstrap_servers = "127.0.0.1:1"
[streams.s]
incomplete_transactions = "wait"
incomplete_after = "1h"
"""
HOSTILE = "t\x1b[2J\u202e"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "connector.toml").write_text(SETTINGS)
    found = [TransactionGap(20, HOSTILE, 2), TransactionGap(30, "tx-7", 1)]
    check = TransactionCheck(declared=5).after(41, found, 50)
    progress = Progress(ingest_batch=1, transactions=check, frontier=Frontier(low_watermark=41))
    log_progress(tmp_path / "w", "s", progress)
    return tmp_path / "w"


def test_incomplete_transactions_are_listed_with_the_number_of_missing_records(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """ING-2, DLQ-9: the names for programs are stable, and a person sees no id unescaped."""
    assert cli.invoke(["transactions", "list", "--stream", "s", "--json"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["server_transaction_id"] == HOSTILE
    assert second == {
        "commit_timestamp": "1970-01-01T00:00:00.000030Z",
        "server_transaction_id": "tx-7",
        "missing": 1,
        "found_at": "1970-01-01T00:00:00.000050Z",
        "is_released": False,
    }
    assert cli.invoke(["transactions", "list"]) == 0
    shown = capsys.readouterr()
    assert "t\\x1b[2J\\u202e" in shown.out
    assert not {"\x1b", "\u202e"} & set(shown.out + shown.err)
    assert "2 incomplete transactions" in shown.err


def test_a_release_is_stored_with_its_author_time_and_reason(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for id_ in ("tx-7", HOSTILE):
        assert cli.invoke(["transactions", "release", id_, "--why", "lost"]) == 0
    assert "\x1b" not in capsys.readouterr().err
    overrides = Overrides(str(folder))
    requests = overrides.requests(ReleaseTransaction, "s", above=0)
    assert [(one.number, one.server_transaction_id, one.reason) for one in requests] == [
        (1, "tx-7", "lost"),
        (2, HOSTILE, "lost"),
    ]
    assert all("@" in one.made_by and one.made_at for one in requests)
    assert overrides.requests(ReleaseTransaction, "s", above=1) == requests[1:]
    assert overrides.requests(ReleaseTransaction, "other", above=0) == []


def test_a_request_names_one_transaction(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """ING-2: the source used an id again. A request that fits both is refused."""
    check = TransactionCheck(declared=5).after(
        41, [TransactionGap(20, "tx", 2), TransactionGap(30, "tx", 1)], 50
    )
    log_progress(folder, "s", Progress(ingest_batch=2, transactions=check))
    call = ["transactions", "release", "--stream", "s", "tx", "--why", "lost"]
    assert cli.invoke(call) == 1
    said = capsys.readouterr().err
    assert "TRANSACTION_UNKNOWN" in said
    assert "1970-01-01T00:00:00.000020Z" in said
    assert "transactions list --stream s" in said
    assert cli.invoke([*call, "--commit-timestamp", "1970-01-01T00:00:00.000021Z"]) == 1
    assert "TRANSACTION_UNKNOWN" in capsys.readouterr().err
    assert cli.invoke([*call, "--commit-timestamp", "1970-01-01T00:00:00.000030Z"]) == 0
    (request,) = Overrides(str(folder)).requests(ReleaseTransaction, "s", above=0)
    assert [one.is_released for one in check.released([request]).incomplete] == [False, True]


def test_nothing_else_is_released(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A slip of the pen, and a request without a reason."""
    assert cli.invoke(["transactions", "release", "--stream", "s", "tx-8", "--why", "lost"]) == 1
    said = capsys.readouterr().err
    assert "Did you mean tx-7?" in said
    assert "transactions list --stream s" in said
    assert cli.invoke(["transactions", "release", "--stream", "s", "tx-7"]) == 2
    assert cli.invoke(["transactions", "release", "--stream", "s", "tx-7", "--why", " "]) == 2
    assert Overrides(str(folder)).requests(ReleaseTransaction, "s", above=0) == []
