"""What commits and the ledger store: literal examples are read, and written again byte for byte
(`docs/reference/on-disk-format.md`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from connector.dead_letters.ledger import (
    history_from_json,
    history_to_json,
    totals_from_json,
    totals_to_json,
)
from connector.state.stream_progress import Progress
from connector.state.table_state import TableState
from connector.watermarks.frontier import UNKNOWN, Frontier

LINES = (Path(__file__).parent / "stored_forms.v1.tsv").read_text("utf-8").splitlines()
EXAMPLES = dict(line.split("\t") for line in LINES)


def as_text(stored: object) -> str:
    return json.dumps(stored, separators=(",", ":"))


def progress_again(text: str) -> str:
    stored = json.loads(text)
    of_frontier = replace(UNKNOWN, low_watermark=stored["low_watermark"])
    return as_text(Progress.from_json(stored, of_frontier).to_json())


def frontier_again(text: str) -> str:
    return as_text(Frontier.from_json(json.loads(text)).to_json())


AGAIN: dict[str, Callable[[str], str]] = {
    "table commit": lambda text: as_text(
        TableState.from_json(json.loads(text)).to_json("accounts")
    ),
    "progress": progress_again,
    "frontier": frontier_again,
    "history": lambda text: history_to_json(history_from_json(text.encode())).decode(),
    "progress with findings": progress_again,
    "progress with transactions": progress_again,
    "frontier with epochs": frontier_again,
    "totals": lambda text: totals_to_json(totals_from_json(text.encode())).decode(),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_stored_form_stays(name: str) -> None:
    """TBL-5, TBL-10, DLQ-11"""
    assert AGAIN.keys() == EXAMPLES.keys()
    assert AGAIN[name](EXAMPLES[name]) == EXAMPLES[name]


@pytest.mark.parametrize("name", ["table commit", "progress", "frontier"])
def test_what_is_stored_has_the_types_of_json(name: str) -> None:
    """A commit that was read again is compared with what was to be written: a tuple is no list."""
    stored = json.loads(EXAMPLES[name])
    written = {
        "table commit": lambda: TableState.from_json(stored).to_json("accounts"),
        "progress": lambda: {
            **Progress.from_json(stored, UNKNOWN).to_json(),
            "low_watermark": stored["low_watermark"],
        },
        "frontier": lambda: Frontier.from_json(stored).to_json(),
    }
    assert written[name]() == stored
