"""What commits and the ledger store: literal examples are read, and written again byte for byte
(`docs/reference/on-disk-format.md`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path

import pytest

from connector.dead_letters.ledger import (
    history_from_json,
    history_to_json,
    totals_from_json,
    totals_to_json,
)
from connector.records.model import (
    SERVER_TIME,
    ChangeType,
    ChildPartition,
    ColumnType,
    DataChange,
    DeleteCells,
    OldCell,
    RowImage,
    SetCell,
    Transaction,
)
from connector.reports.audit import WriteStreamAudit
from connector.reports.stream_status import OpenLetters
from connector.state.incomplete_transactions import IncompleteTransaction, TransactionCheck
from connector.state.maintenance_schedule import CommitCount
from connector.state.source_checks import KeyPlacement, SourceChecks
from connector.state.stream_progress import BatchCounts, Progress
from connector.state.table_state import TableState
from connector.watermarks.frontier import UNKNOWN, Frontier
from connector.write_streams.model import LastAppend, SessionEntry, StreamEntry, StreamState
from connector.write_streams.releases import (
    OpenRelease,
    ReleaseProgress,
    ReleaseRows,
    StagedStream,
)

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
def test_stored_values_have_the_types_of_json(name: str) -> None:
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


EMPTY: dict[type, dict[str, object]] = {
    BatchCounts: {},
    CommitCount: {},
    DataChange: {"change_type": ChangeType.USER, "source_cluster_id": "default"},
    ColumnType: {},
    ChildPartition: {},
    DeleteCells: {},
    IncompleteTransaction: {},
    KeyPlacement: {},
    LastAppend: {},
    OldCell: {},
    OpenLetters: {"is_known": True},
    OpenRelease: {},
    Progress: {},
    ReleaseProgress: {},
    ReleaseRows: {},
    RowImage: {},
    SessionEntry: {"number": 1},
    SetCell: {"cell_timestamp": SERVER_TIME},
    SourceChecks: {},
    StagedStream: {},
    StreamEntry: {"state": StreamState.OPEN},
    TableState: {"definition_version": 1},
    Transaction: {
        "number_of_records_in_transaction": 1,
        "number_of_partitions_in_transaction": 1,
    },
    TransactionCheck: {},
    WriteStreamAudit: {"is_whole": True},
}
"""The values of absent keys that are not the empty ones of their types: 0, false, an empty text, an
empty list or map, null, and objects without keys.
"""


@pytest.mark.parametrize("type_", EMPTY, ids=lambda type_: type_.__name__)
def test_an_absent_key_has_the_value_of_nothing(type_: type) -> None:
    """TBL-5: readers use the default of a key that is absent. So does a new stream or table."""
    if issubclass(type_, tuple):
        defaults = dict(type_._field_defaults)  # type: ignore[attr-defined]
    else:
        defaults = {
            field.name: field.default_factory()
            if callable(field.default_factory)
            else field.default
            for field in fields(type_)
        }
    given = {name: one for name, one in defaults.items() if one is not MISSING}
    assert {name: one for name, one in given.items() if not is_empty(one)} == EMPTY[type_]


def is_empty(value: object) -> bool:
    if is_dataclass(value):
        return all(is_empty(getattr(value, field.name)) for field in fields(value))
    return not value
