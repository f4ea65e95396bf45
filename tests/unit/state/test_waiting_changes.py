"""Changes above the low watermark wait for heartbeats, and reports say so (TBL-10, OPS-5)."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from connector import cli
from connector.config.parse import parse
from connector.config.settings import ConnectorConfig
from connector.events import Event, ignore
from connector.lake.changelog_changes import undefined_sources, waiting_changes
from connector.services import status
from connector.services.process import recorded, status_of_pipeline
from connector.services.run import report_waiting_changes
from connector.state.stream_progress import BatchCounts, Progress, StreamRules
from connector.state.table_state import TableState
from connector.warehouse import table_slot
from connector.watermarks.freshness import EndOffsets
from connector.watermarks.frontier import BatchClaims
from tests.unit.warehouses import commit, log_table

TYPES = {
    "kind": "string",
    "table": "string",
    "ingest_batch": "int64",
    "commit_timestamp": "int64",
    "slot": "int64",
}
WATERMARK = 50
APPLIED = TableState(
    apply_number=1, to_batch=2, complete_to_batch=1, apply_watermark=WATERMARK, highest_applied=49
)


@pytest.fixture
def config(tmp_path: Path) -> ConnectorConfig:
    document: dict[str, Any] = {
        "warehouse": str(tmp_path),
        "kafka": {"bootstrap_servers": "127.0.0.1:1"},
        "streams": {"s": {"partitions": ["p0"]}},
        "tables": {"t": {"stream": "s", "source": "src"}, "u": {"stream": "s"}},
    }
    return parse(document, {})


def row(source: str, batch: int, committed: int, kind: str = "change") -> dict[str, Any]:
    slot = table_slot(source)
    values = (kind, source, batch, committed, slot)
    return dict(zip(TYPES, values, strict=True))


ROWS = [
    row("src", 1, 60),  # an earlier batch, applied
    row("src", 2, 49),  # below the low watermark, applied
    row("src", 2, 50),
    row("src", 2, 51),
    row("src", 3, 52),  # a batch that no apply has read
    row("u", 2, 60),  # of another table
    row("src", 2, 60, "rejected"),
]


def log(warehouse: Path, *, ago_s: int = 0, unknown_tables: int = 0) -> None:
    """A changelog of two batches in which the low watermark is 50, read so long ago."""
    now = time.time_ns() // 1000 - ago_s * 1_000_000
    claims = BatchClaims(1, {"p0": {0: WATERMARK}})
    counts = BatchCounts(changes=3, claims=claims, read_at=now, unknown_tables=unknown_tables)
    progress, roots = Progress(), frozenset({"p0"})
    for batch in (1, 2):
        asked = EndOffsets(now, {0: batch})
        progress = progress.after(batch, counts, {0: batch}, asked, StreamRules(roots=roots))
    metadata = {
        "stream": "s",
        "progress": progress.to_json(),
        "frontier": progress.frontier.to_json(),
        "ingest_batch": 2,
        "end_offsets": {"0": 2},
    }
    assert progress.low_watermark == WATERMARK
    commit(warehouse / "streams/s/changelog", ROWS, TYPES, metadata)
    log_table(warehouse, "t", APPLIED)


def test_only_changes_that_the_last_apply_deferred_wait(
    config: ConnectorConfig, tmp_path: Path
) -> None:
    log(tmp_path)
    of = config.tables["t"]
    assert waiting_changes(config.warehouse, of, APPLIED) == 2
    assert waiting_changes(config.warehouse, of, replace(APPLIED, complete_to_batch=2)) == 0
    assert waiting_changes(config.warehouse, of, replace(APPLIED, apply_watermark=51)) == 1
    assert waiting_changes(config.warehouse, of, replace(APPLIED, apply_watermark=None)) == 0


def test_the_end_of_a_run_reports_the_changes_that_wait(
    config: ConnectorConfig, tmp_path: Path
) -> None:
    log(tmp_path)
    events: list[Event] = []
    report_waiting_changes(config, events.append)
    assert [(one.level, one.code, dict(one.fields)) for one in events] == [
        ("warning", "CHANGES_WAIT", {"table": "t", "stream_partition": "p0"})
    ]
    assert events[0].line.startswith(
        "table t: 2 changes wait for a heartbeat of stream partition p0: call producer.reached"
    )
    log_table(tmp_path, "t", replace(APPLIED, apply_watermark=60, complete_to_batch=2))
    events.clear()
    report_waiting_changes(config, events.append)
    assert events == []


@pytest.mark.parametrize(("ago_s", "is_said"), [(0, False), (20, True)])
def test_the_status_says_it_when_heartbeats_are_overdue(
    config: ConnectorConfig, tmp_path: Path, ago_s: int, is_said: bool
) -> None:
    """OPS-5: between two heartbeats of a producer, changes always wait."""
    log(tmp_path, ago_s=ago_s)
    result = status(config)
    assert result.errors == {}
    table = result.tables["t"]
    hint = "2 changes wait for a heartbeat of stream partition p0: call producer.reached"
    assert any(hint in one for one in table.hints) is is_said
    assert (table.waiting_changes, table.to_json()["waiting_changes"]) == (2, 2)


def test_the_delay_of_a_stream_is_reported_with_its_duration(
    config: ConnectorConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log(tmp_path, ago_s=20)
    (tmp_path / "connector.toml").write_text(
        f'warehouse = "{tmp_path}"\n[kafka]\nbootstrap_servers = "127.0.0.1:1"\n[streams.s]\n'
    )
    assert cli.invoke(["--config", str(tmp_path / "connector.toml"), "status"]) == 0
    shown = capsys.readouterr().out
    assert "p0 in Kafka partition 0: the last new heartbeat came 2" in shown
    assert " ago, complete below 1970-01-01T00:00:00.000050Z" in shown
    assert "since" not in shown


def test_the_source_tables_without_a_definition_are_named(
    config: ConnectorConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """TBL-7, OPS-5: one of them may be misspelt."""
    log(tmp_path, unknown_tables=3)
    assert undefined_sources(config.warehouse, "s", [], 2) == ("src", "u")
    assert undefined_sources(config.warehouse, "s", ["src"], 2) == ("u",)
    assert undefined_sources(config.warehouse, "s", [], 103) == (), "only the newest batches"
    del config.tables["u"]  # type: ignore[attr-defined]
    result = status(config).streams["s"]
    assert result.undefined_sources == ("u",)
    assert result.to_json()["undefined_sources"] == ["u"]
    (tmp_path / "connector.toml").write_text(
        f'warehouse = "{tmp_path}"\n[kafka]\nbootstrap_servers = "127.0.0.1:1"\n[streams.s]\n'
        "[tables.src]\nstream = 's'\n"
    )
    assert cli.invoke(["--config", str(tmp_path / "connector.toml"), "status"]) == 0
    assert "of source tables without a table definition (of late: u)" in capsys.readouterr().out


def test_the_changelog_is_not_searched_if_each_source_table_has_a_definition(
    config: ConnectorConfig, tmp_path: Path
) -> None:
    log(tmp_path)
    del config.tables["u"]  # type: ignore[attr-defined]
    assert status(config).streams["s"].undefined_sources == ()


def test_hints_have_the_commands_that_help(
    config: ConnectorConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """OPS-5."""
    file = tmp_path / "connector.toml"
    file.write_text(
        f'warehouse = "{tmp_path}"\n[kafka]\nbootstrap_servers = "127.0.0.1:1"\n[streams.s]\n'
        "[tables.t]\nstream = 's'\nsource = 'src'\n"
    )
    assert cli.invoke(["--config", str(file), "status"]) == 0
    assert "run: connector run\n" in capsys.readouterr().out
    log(tmp_path, ago_s=20)
    with recorded(config, ignore, once=False):
        while not status_of_pipeline(config, "s", 0).is_running:
            time.sleep(0.01)
        assert cli.invoke(["--config", str(file), "status"]) == 0
    shown = capsys.readouterr().out
    assert "run: connector partitions list --stream s\n" in shown
    assert "run: connector run\n" not in shown
