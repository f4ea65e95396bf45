"""Differences are found, one by one: a demo that cannot fail proves nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connector.dead_letters.envelope import DeadLetter
from connector.demo.compare import SentPoison, letter_differences, row_differences
from connector.demo.poison import Poison
from connector.records.rejection import Position, Reason

TRUTH: dict[bytes, dict[str, object]] = {
    b"a": {"size": 1, "author": "Ada"},
    b"b": {"size": None, "author": ""},
}
COLUMNS = ("path", "size", "author", "_unmapped")
GOOD: list[tuple[object, ...]] = [(b"b", None, "", None), (b"a", 1, "Ada", [])]


def differences(rows: list[tuple[object, ...]], columns: tuple[str, ...] = COLUMNS) -> list[str]:
    return list(row_differences("files", "path", TRUTH, columns, rows))


def test_equal_tables_have_no_difference() -> None:
    assert differences(GOOD) == []


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (GOOD[:1], "files a: the row is missing"),
        ([*GOOD, (b"c", 1, "Eve", None)], "files c: the row should not exist"),
        ([*GOOD, GOOD[0]], "files b: the table has the row 2 times"),
        ([GOOD[0], (b"a", 2, "Ada", None)], "files a: size is 2, not 1"),
        ([GOOD[0], (b"a", None, "Ada", None)], "files a: size is None, not 1"),
        ([GOOD[1], (b"b", None, None, None)], "files b: author is None, not ''"),
        ([GOOD[1], (b"b", 0, "", None)], "files b: size is 0, not None"),
        ([GOOD[0], (b"a", 1, "Ada", [("f:poisoned", b"x")])], "files a: _unmapped is"),
    ],
    ids=[
        "missing",
        "invented",
        "twice",
        "another value",
        "null",
        "null, not empty",
        "zero, not null",
        "a cell that nobody wrote",
    ],
)
def test_each_difference_is_named(rows: list[tuple[object, ...]], said: str) -> None:
    """nothing_lost, nothing_invented, newest_wins"""
    (found,) = differences(rows)
    assert found.startswith(said)


def test_missing_column_is_a_difference_of_every_row() -> None:
    assert differences([(b"a", 1), (b"b", None)], ("path", "size")) == [
        "files a: author is '(no such column)', not 'Ada'",
        "files b: author is '(no such column)', not ''",
    ]


def test_text_keys_are_compared_as_their_bytes() -> None:
    assert (
        list(
            row_differences(
                "accounts", "account", {"ä".encode(): {"n": 1}}, ("account", "n"), [("ä", 1)]
            )
        )
        == []
    )


POISON = Poison("rubbish", b"k", b"\xff", (("h", None), ("h", b"\xff")), Reason.UNKNOWN_FRAMING)
AT = Position("t", "id", 1, 7)
LETTER = DeadLetter(
    position=AT,
    key=b"k",
    value=b"\xff",
    headers=(("h", None), ("h", b"\xff")),
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


def letters(*found: DeadLetter) -> list[str]:
    return list(letter_differences([SentPoison(POISON, AT)], found))


def test_poison_that_came_back_as_it_was_is_no_difference() -> None:
    """poison_is_contained"""
    assert letters(LETTER) == []


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ((), "dead letter id-1-7 (rubbish): it is missing"),
        ((LETTER, LETTER), "dead letter id-1-7: it exists twice"),
        (
            (LETTER, replace(LETTER, position=replace(AT, offset=8))),
            "dead letter id-1-8: the record was not bad, but was rejected",
        ),
        ((replace(LETTER, reason=Reason.UNDECODABLE),), "dead letter id-1-7 (rubbish): reason is"),
        ((replace(LETTER, key=None),), "dead letter id-1-7 (rubbish): key is None"),
        ((replace(LETTER, value=b"\xfe"),), "dead letter id-1-7 (rubbish): value is"),
        (
            (replace(LETTER, headers=LETTER.headers[:1]),),
            "dead letter id-1-7 (rubbish): headers is",
        ),
    ],
)
def test_each_difference_of_a_letter_is_named(found: tuple[DeadLetter, ...], said: str) -> None:
    """DLQ-1, DLQ-2"""
    (difference,) = letters(*found)
    assert difference.startswith(said)


def test_letter_of_a_table_has_another_id() -> None:
    """TBL-9"""
    assert SentPoison(replace(POISON, table="files"), AT).id == "id-1-7-files"
