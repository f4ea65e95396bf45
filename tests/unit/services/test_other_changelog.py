"""A changelog that a table was not made from says nothing of the table (TBL-16, OPS-5)."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from connector import warehouse as places
from connector.cli.remedies import command_for
from connector.config.parse import parse
from connector.config.settings import ConnectorConfig
from connector.errors import TableError
from connector.events import Event
from connector.lake.jobs import History
from connector.lake.plain_table import open_table
from connector.services import read, status
from connector.state.jobs import CutRecord
from connector.state.stream_progress import BatchCounts, Progress, StreamRules
from connector.state.table_state import TableState
from connector.watermarks.freshness import EndOffsets
from tests.unit.warehouses import log_progress, log_table

S = 1_000_000
TABLE = TableState(
    apply_number=1,
    to_batch=1,
    complete_to_batch=1,
    changelog_id="old",
    apply_watermark=50,
    highest_applied=40,
)


@pytest.fixture
def now() -> int:
    return time.time_ns() // 1000


@pytest.fixture
def config(tmp_path: Path, now: int) -> ConnectorConfig:
    """A table of the changelog `old` that is 100 seconds old, and the changelog `new` of one batch,
    which has everything up to now.
    """
    log_table(tmp_path, "t", replace(TABLE, as_of=now - 100 * S))
    counts = BatchCounts(changes=5, read_at=now, rejected={"BAD_FRAMING": 2})
    log_progress(
        tmp_path,
        "s",
        Progress().after(1, counts, {0: 7}, EndOffsets(now, {0: 7}), StreamRules()),
        changelog_id="new",
    )
    document: dict[str, Any] = {
        "warehouse": str(tmp_path),
        "kafka": {"bootstrap_servers": "127.0.0.1:1"},
        "streams": {"s": {}},
        "tables": {"t": {"stream": "s"}},
    }
    return parse(document, {})


@pytest.mark.parametrize("bound", [0, 0.5, 60])
def test_a_bound_that_only_another_changelog_would_prove_is_an_error(
    config: ConnectorConfig, bound: Any
) -> None:
    """TBL-16: the other changelog has no later batch, and was read a moment ago."""
    events: list[Event] = []
    with pytest.raises(TableError, match="It is not known whether table t") as caught:
        read(config, "t", max_staleness_s=bound, on_event=events.append)
    assert caught.value.code == "CHANGELOG_REPLACED"
    assert "replaced by another one" in caught.value.cause
    assert "allow_stale" in caught.value.remedy
    assert command_for(caught.value) is None
    assert events == []


@pytest.mark.parametrize(
    "options",
    [
        {"max_staleness_s": 0, "allow_stale": True},
        {"max_staleness_s": 3600},
        {},
    ],
)
def test_a_read_reports_only_the_commit_of_the_table(
    config: ConnectorConfig, now: int, options: dict[str, Any]
) -> None:
    """TBL-16, DLQ-7: how old the table is; nothing of dead letters."""
    events: list[Event] = []
    with read(config, "t", on_event=events.append, **options) as found:
        assert list(found.rows) == [("a",)]
        assert found.as_of == now - 100 * S
        assert (found.missing.count, found.missing.is_known) == (0, False)
    assert [event.code for event in events] == ["CHANGELOG_DIFFERS"]


def test_a_bound_is_not_proved_without_the_changelog(config: ConnectorConfig) -> None:
    """TBL-16."""
    shutil.rmtree(Path(config.warehouse, "streams"))
    with pytest.raises(TableError, match="the changelog was removed"):
        read(config, "t", max_staleness_s=0)
    assert read(config, "t", max_staleness_s=3600).as_of is not None


def test_the_table_of_its_own_changelog_is_as_new_as_that(
    config: ConnectorConfig, now: int
) -> None:
    """TBL-16."""
    path = Path(config.warehouse)
    log_progress(path, "s", Progress(ingest_batch=1), changelog_id="old")
    with read(config, "t", max_staleness_s=0) as found:
        assert found.as_of == now - 100 * S
        assert found.missing.is_known


def test_the_status_of_the_table_is_that_of_its_own_commit(
    config: ConnectorConfig, now: int
) -> None:
    """OPS-5, TBL-20: the stream is that of the changelog that is there."""
    found = status(config)
    assert found.streams["s"].ingest_batch == 1
    assert found.errors["tables.t"].code == "CHANGELOG_REPLACED"
    table = found.tables["t"]
    assert (table.pending_batches, table.as_of) == (None, now - 100 * S)
    assert not table.is_complete
    assert not table.dead_letters.is_known
    assert found.to_json()["tables"]["t"]["pending_batches"] is None


def test_the_letters_of_a_table_that_cannot_be_read_are_not_none(config: ConnectorConfig) -> None:
    """DLQ-7, OPS-5: only the commit of the table knows them."""
    shutil.rmtree(Path(places.table(config.warehouse, "t"), "_delta_log"))
    found = status(config)
    stream = found.streams["s"]
    assert found.errors["tables.t"].code == "TABLE_DAMAGED"
    assert stream.dead_letters.uncounted_tables == ("t",)
    assert "tables that cannot be read may have more open dead letters: t" in stream.hints


def cut(low_watermark: int) -> CutRecord:
    return CutRecord("s", low_watermark, 1, 0, 5, low_watermark, {"t": 0})


def test_a_snapshot_is_not_a_version_of_a_table_that_was_made_again(
    config: ConnectorConfig,
) -> None:
    """TBL-17: the versions of the new table are counted from 0 again."""
    history = History(config.warehouse)
    history.add_cut(cut(50))
    assert read(config, "t", snapshot=True).cut == 50
    history.add_cut(cut(60))
    with pytest.raises(TableError, match="made again") as caught:
        read(config, "t", snapshot=True)
    assert caught.value.code == "CUT_MISSING"


def test_a_snapshot_stays_readable_while_later_applies_are_at_no_cut(
    config: ConnectorConfig, now: int
) -> None:
    """TBL-17: the state of a version is that of its own commit, not that of the newest one."""
    History(config.warehouse).add_cut(cut(50))
    later = replace(TABLE, apply_number=2, inconsistent_since=60, apply_watermark=60, as_of=now)
    for _ in range(2):
        log_table(Path(config.warehouse), "t", later)
    found = read(config, "t", snapshot=True)
    assert (found.cut, len(list(found.rows))) == (50, 1)


def test_the_state_of_an_open_table_is_not_that_of_a_commit_that_follows(
    config: ConnectorConfig, monkeypatch: pytest.MonkeyPatch, now: int
) -> None:
    """TBL-16: rows of one version with the state of a newer one would be older than they say."""
    version = DeltaTable.version

    def version_before_a_commit(delta: DeltaTable) -> int:
        monkeypatch.undo()
        log_table(Path(config.warehouse), "t", replace(TABLE, apply_number=2, to_batch=2))
        return version(delta)

    monkeypatch.setattr(DeltaTable, "version", version_before_a_commit)
    found = open_table(places.table(config.warehouse, "t"))
    assert (len(list(found.rows())), found.version) == (1, 0)
    assert found.stored["to_batch"] == 1
    assert [one.version for one in found.commits()] == [0]
