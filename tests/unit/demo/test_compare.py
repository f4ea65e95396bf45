"""Each difference is seen, so that the demo can fail."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connector import DeadLetter, Reason
from connector.records.rejection import Position
from examples.demo.compare import Row, letter_differences, row_differences
from examples.demo.publish import BadRecord

TRUTH: dict[bytes, Row] = {
    b"a": {"mode": "100644", "blob": "1", "size": 1},
    b"b": {"mode": "160000", "blob": "2", "size": None},
}
A: Row = {"mode": "100644", "blob": "1", "size": 1, "_unmapped": None}
B: Row = {"mode": "160000", "blob": "2", "size": None, "_unmapped": []}


def differences(*rows: tuple[bytes, Row]) -> list[str]:
    return row_differences(TRUTH, [(path, dict(row)) for path, row in rows])


def test_an_equal_table_has_no_difference() -> None:
    assert differences((b"b", B), (b"a", A)) == []


@pytest.mark.parametrize(
    ("rows", "difference"),
    [
        ([(b"b", B)], "b'a' is missing"),
        ([(b"a", A), (b"b", B), (b"c", A)], "b'c' should not exist"),
        ([(b"a", A), (b"b", B), (b"b", B)], "b'b' is in the table 2 times"),
        ([(b"a", A | {"size": 2}), (b"b", B)], "b'a' is {'mode': '100644', 'blob': '1', 'size': 2"),
        ([(b"a", A), (b"b", B | {"size": 0})], "b'b' is {"),
        ([(b"a", A | {"_unmapped": [("f:x", b"x")]}), (b"b", B)], "b'a' is {"),
        ([(b"a", {"mode": "100644", "_unmapped": None}), (b"b", B)], "b'a' is {"),
    ],
    ids=["missing", "invented", "twice", "value", "not null", "unmapped cell", "missing column"],
)
def test_each_difference_of_a_row_is_named(rows: list[tuple[bytes, Row]], difference: str) -> None:
    """nothing_lost, nothing_invented, newest_wins"""
    (found,) = differences(*rows)
    assert found.startswith(difference)


BAD = BadRecord(1, 7, Reason.UNKNOWN_FRAMING, b"k", b"\xff")
LETTER = DeadLetter(
    position=Position("demo", "id", 1, 7),
    key=b"k",
    value=b"\xff",
    headers=(),
    reason=Reason.UNKNOWN_FRAMING,
    rule="",
    detail="why",
    attempt=0,
    first_failed_at=1,
    record_timestamp=1,
    schema_id=None,
    ingest_batch=1,
    order_position="1/1/7/0",
)


def test_letters_of_the_bad_records_are_no_difference() -> None:
    """poison_is_contained"""
    assert letter_differences([BAD], [LETTER]) == []


@pytest.mark.parametrize(
    "letters",
    [
        [],
        [LETTER, LETTER],
        [LETTER, replace(LETTER, position=Position("demo", "id", 1, 8))],
        [replace(LETTER, reason=Reason.UNDECODABLE)],
        [replace(LETTER, key=None)],
        [replace(LETTER, value=b"\xfe")],
    ],
    ids=["missing", "twice", "another record", "reason", "key", "value"],
)
def test_each_difference_of_a_letter_is_reported(letters: list[DeadLetter]) -> None:
    """DLQ-1, DLQ-2"""
    assert letter_differences([BAD], letters)
