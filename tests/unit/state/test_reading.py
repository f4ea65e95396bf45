"""Metadata that cannot be read is an error with a remedy (TBL-14)."""

from __future__ import annotations

import pytest

from connector.errors import TableError
from connector.state.reading import reading
from connector.state.table_state import TableState

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
