"""Metadata that cannot be read is an error with a remedy (TBL-14)."""

from __future__ import annotations

from pathlib import Path

import pytest

from connector import warehouse
from connector.errors import TableError
from connector.lake.state_reader import progress_of
from connector.state.damage import reading
from connector.state.stream_progress import Progress
from connector.state.table_state import TableState
from tests.unit.warehouses import commit

STORED = TableState(apply_number=3, to_batch=2).to_json("accounts")


@pytest.mark.parametrize("value", ["x", 1.5, None, []])
def test_a_wrong_type_is_named_with_its_place(value: object) -> None:
    with pytest.raises(TableError, match="/w/t cannot be read") as caught, reading("/w/t"):
        TableState.from_json({**STORED, "apply_number": value})
    assert "apply_number" in str(caught.value)
    assert caught.value.fields == {"path": "/w/t"}


def test_a_missing_key_is_named() -> None:
    stored: dict[str, object] = {}
    with pytest.raises(TableError, match="The key 'progress' is missing"), reading("/w/t"):
        TableState.from_json(stored["progress"])  # type: ignore[arg-type]


def test_a_form_that_can_be_read_is_left_alone() -> None:
    with reading("/w/t"):
        assert TableState.from_json(STORED).apply_number == 3


def test_a_frontier_that_is_missing_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    """TBL-14: other progress can still be read."""
    stored = {"stream": "s", "progress": Progress(ingest_batch=3).to_json()}
    row = {"ingest_batch": 3, "slot": -1}
    path = Path(warehouse.changelog(str(tmp_path), "s"))
    commit(path, [row], {"ingest_batch": "int64", "slot": "int64", "frontier": "string"}, stored)
    assert progress_of(str(tmp_path), "s").ingest_batch == 3
    with pytest.raises(TableError, match="has no frontier of batch 3") as caught:
        progress_of(str(tmp_path), "s", with_frontier=True)
    assert caught.value.fields == {"stream": "s", "path": str(path)}
