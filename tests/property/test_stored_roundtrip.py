"""What is stored is read back, and every field of a value is stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector import stored
from connector.dead_letters.blocked_rows import BlockingLetter
from connector.dead_letters.ledger import (
    ExternalDeadLetters,
    LedgerEntry,
    RepairNote,
    Sent,
    Totals,
    history_from_json,
    history_to_json,
    totals_from_json,
    totals_to_json,
)
from connector.records.model import MAX_INT, MAX_LONG
from connector.state.overrides import ClosePartition
from connector.state.stream_progress import Progress
from connector.state.table_state import TableState
from connector.stored import from_stored, to_stored
from connector.watermarks.freshness import FreshnessLog
from connector.watermarks.frontier import UNKNOWN, Frontier
from connector.watermarks.stream_partition import StreamPartition
from tests.examples import examples

TEXTS, NUMBERS = st.text(max_size=5), st.integers(0, MAX_LONG)
TIMES = st.integers(-(MAX_LONG + 1) * 1000, MAX_LONG * 1000)
ENTRIES = st.builds(
    LedgerEntry,
    at=TIMES,
    by=TEXTS,
    why=TEXTS,
    selection=TEXTS,
    attempt=st.integers(0, 9),
    attempts_since_reopen=st.integers(0, 9),
    repair_note=st.none() | st.builds(RepairNote, st.lists(TEXTS).map(tuple), TEXTS, TEXTS),
)
TOTALS = st.builds(
    Totals,
    open_since=st.none() | TIMES,
    closed=st.dictionaries(st.tuples(TEXTS, TEXTS), NUMBERS, max_size=3),
    sent=st.builds(Sent, TEXTS, st.dictionaries(st.integers(0, MAX_INT), NUMBERS, max_size=3)),
)


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


@pytest.mark.parametrize(
    "type_",
    [BlockingLetter, ClosePartition, ExternalDeadLetters, FreshnessLog, StreamPartition],
)
@given(data=st.data())
def test_a_value_without_a_form_of_its_own_comes_back(
    type_: type[Any], data: st.DataObject
) -> None:
    value = data.draw(st.from_type(type_))
    assert from_stored(type_, through_json(to_stored(value))) == value


@examples(30)
@given(st.from_type(Progress), st.from_type(TableState), st.from_type(Frontier))
def test_stored_commits_are_read_back(
    progress: Progress, table: TableState, frontier: Frontier
) -> None:
    """TBL-5, TBL-10"""
    later = {"a later release": {"adds": [1]}}
    of_frontier = through_json(frontier.to_json()) | later
    assert (
        Progress.from_json(through_json(progress.to_json()) | later, progress.frontier) == progress
    )
    assert TableState.from_json(through_json(table.to_json("t")) | later) == table
    assert Frontier.from_json(of_frontier) == frontier


@given(st.lists(ENTRIES, min_size=1, max_size=3).map(tuple), TOTALS)
def test_a_stored_ledger_is_read_back(history: tuple[LedgerEntry, ...], totals: Totals) -> None:
    """DLQ-11"""
    assert history_from_json(history_to_json(history)) == history
    assert totals_from_json(totals_to_json(totals)) == totals


@examples(20)
@given(st.from_type(Progress), st.from_type(Progress))
def test_every_field_is_stored(one: Progress, other: Progress) -> None:
    for field in fields(Progress):
        mixed = replace(one, **{field.name: getattr(other, field.name)})
        same = getattr(one, field.name) == getattr(other, field.name)
        is_stored = field.name != "frontier"  # it is stored beside the progress
        texts = {json.dumps({**known.to_json(), "low_watermark": 0}) for known in (one, mixed)}
        assert len(texts) == 1 + (is_stored and not same)


@pytest.mark.parametrize(
    "stored_value",
    [None, [], "x", {"count": "1"}, {"count": True}, {"count": 1.0}, {"read_to": {"x": 1}}],
)
def test_a_value_of_another_type_is_a_value_error(stored_value: Any) -> None:
    with pytest.raises(ValueError, match="Expected"):
        from_stored(ExternalDeadLetters, stored_value)


def unsorted(value: frozenset[str]) -> list[str]:
    return sorted(value, reverse=True)


def without_fields(value: Any) -> Any:
    return fields(value)[:-1]


@pytest.mark.parametrize(("name", "broken"), [("sorted", unsorted), ("fields", without_fields)])
def test_the_checks_notice_a_broken_form(
    name: str, broken: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The canary: sets in another order, and a last field that is forgotten."""
    frontier = replace(
        UNKNOWN, partitions={"p": StreamPartition(roots=frozenset({"a", "b"}), epochs={0: 1})}
    )
    before = frontier.to_json()
    monkeypatch.setattr(stored, name, broken, raising=False)
    assert frontier.to_json() != before


@pytest.mark.parametrize(
    "value",
    [
        ClosePartition(1, "s", "p", "gone", 1, None),  # type: ignore[arg-type]
        (ClosePartition("x", "s", "p", "gone", 1, "ann"),),  # type: ignore[arg-type]
        Progress(ends=(ClosePartition(1, "s", 5, "gone", 1, "ann"),)),  # type: ignore[arg-type]
        TableState(apply_number=None),  # type: ignore[arg-type]
    ],
)
def test_unreadable_state_is_not_written(value: object) -> None:
    """TBL-14: a commit with it would stop every later run."""
    with pytest.raises(TypeError, match="cannot be stored"):
        to_stored(value)
