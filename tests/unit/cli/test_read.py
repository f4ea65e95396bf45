"""Reading a table without a JVM: what cannot be read is said (TBL-22); that what can be is right is
in tests/golden.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector import cli
from connector.cli.read import _report_missing, _view
from connector.errors import TableError
from connector.events import Event
from connector.lake.jobs import History
from connector.lake.plain_table import open_table
from connector.records.views import EPOCH
from connector.reports.stream_status import NONE_OPEN
from connector.services.read import _add_jobs, _completeness
from connector.state.jobs import Job, JobKind
from connector.tables.nested import ArrayType, RangeType, RecordType
from connector.tables.row import is_same_row
from connector.tables.values import DataType, Encoding, write_value
from tests.examples import examples
from tests.property.test_nested_laws import NESTED


def test_the_error_of_a_missing_table_has_the_command_that_helps(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="Start the pipeline"):
        open_table(str(tmp_path / "data"))


def test_a_file_at_the_path_of_a_table_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a table")
    with pytest.raises(TableError):
        open_table(str(tmp_path / "data"))


def test_a_merge_is_kept_where_the_warehouse_can_be_written(tmp_path: Path) -> None:
    """JOB-1: it ends when its rows are printed. If it cannot be stored, a warning names the cause,
    and the read succeeds.
    """
    history, job = History(str(tmp_path)), Job(JobKind.RUNTIME_MERGE, "one", 1, 2, changes=3)
    events: list[Event] = []
    _add_jobs(history, [job], events.append)
    (kept,) = history.jobs("one")
    assert (kept.kind, kept.started_at, kept.changes) == (job.kind, 1, 3)
    assert kept.ended_at > 2
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/_connector").write_text("no folder")
    _add_jobs(History(str(tmp_path / "taken")), [job], events.append)
    assert [event.level for event in events] == ["warning"]


def test_a_snapshot_has_no_other_bound(capsys: pytest.CaptureFixture[str]) -> None:
    """OPS-10: a wrong call"""
    for bound in (["--max-staleness", "1m"], ["--allow-stale"]):
        assert cli.invoke(["read", "accounts", "--snapshot", *bound]) == 2
        assert "do not use --max-staleness" in capsys.readouterr().err


def test_a_broken_log_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "data/_delta_log").mkdir(parents=True)
    (tmp_path / "data/_delta_log/00000000000000000000.json").write_text("{")
    with pytest.raises(TableError):
        open_table(str(tmp_path / "data"))


@given(
    st.decimals(
        allow_nan=False, allow_infinity=False, places=9, min_value=-(10**20), max_value=10**20
    )
)
def test_a_numeric_is_written_as_in_a_cell(number: Decimal) -> None:
    """OPS-10: NUMERIC as text, in the one form that it has."""
    assert _view("decimal(38,9)")(number).encode() == write_value(
        DataType.NUMERIC, Encoding.TEXT, number
    )


def test_a_cut_without_the_changes_of_dead_letters_is_not_called_the_state_of_the_source(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """DLQ-7, TBL-17: the two lines that a person sees do not contradict each other."""
    text = _completeness(None, 50)
    assert text == ", a consistent cut at 1970-01-01T00:00:00.000050Z"
    _report_missing(replace(NONE_OPEN, count=1, is_known=True, withheld=1), "orders")
    assert capsys.readouterr().err == (
        "the changes in 1 dead letter are not in these rows; to see them: connector dead-letters"
        " list --stream orders\n"
        "1 release of write streams may have rows that are not shown; to see why: connector"
        " write-streams list --stream orders\n"
    )


@examples(150)
@given(NESTED)
def test_a_value_with_parts_is_shown_as_in_a_cell(typed: tuple[Any, Any]) -> None:
    """EVO-6, REC-22: from the values that a table has, whose times are those of Python."""
    type_, value = typed
    assert _view("struct") is _view("array")
    shown, canonical = _view("struct")(_as_read(type_, value)), type_.view(value)
    assert is_same_row({"value": shown}, {"value": canonical})


def _as_read(type_: Any, value: Any) -> Any:
    match type_:
        case _ if value is None:
            return None
        case ArrayType():
            return [_as_read(type_.element, item) for item in value]
        case RecordType():
            return {name: _as_read(part, value[name]) for name, part in type_.fields}
        case RangeType():
            return _as_read(type_.record, value)
        case DataType.TIMESTAMP:
            return EPOCH + timedelta(microseconds=value)
        case DataType.DATETIME:
            return EPOCH.replace(tzinfo=None) + timedelta(microseconds=value)
        case _:
            return value
