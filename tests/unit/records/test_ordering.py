from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from itertools import combinations

import pytest

from connector.errors import InvalidChangeError
from connector.records.ordering import (
    ChangeOrder,
    OrderBy,
    OrderPosition,
    change_order,
    sections_of,
    sequence_number,
)
from tests.changes import change, put

HERE = OrderPosition(7, 0, 123)


def order(
    at: int = 1,
    tie_breaker: int = 0,
    record_sequence: int | None = None,
    position: OrderPosition = HERE,
    entry_index: int = 0,
) -> ChangeOrder:
    both = change(
        put("a"), put("b"), at=at, tie_breaker=tie_breaker, record_sequence=record_sequence
    )
    return change_order(both, position, OrderBy.COMMIT, entry_index)


def test_each_part_decides_only_where_the_parts_before_are_equal() -> None:
    """MRG-1: commit timestamp, tie breaker, record sequence, ingest position, index of the
    entry.
    """
    rising = [
        order(1, 9, 9, OrderPosition(9, 9, 9, 9), 1),
        order(2, -5, 9, OrderPosition(9, 9, 9, 9), 1),
        order(2, 7, None, OrderPosition(9, 9, 9, 9), 1),
        order(2, 7, 1, OrderPosition(1, 9, 9, 9), 1),
        order(2, 7, 1, OrderPosition(2, 0, 9, 9), 1),
        order(2, 7, 1, OrderPosition(2, 1, 8, 9), 1),
        order(2, 7, 1, OrderPosition(2, 1, 9, 0), 0),
        order(2, 7, 1, OrderPosition(2, 1, 9, 0), 1),
        order(2, 7, 1, OrderPosition(2, 1, 9, 1), 0),
    ]
    assert all(one < other for one, other in combinations(rising, 2))


def test_a_change_without_transaction_is_ordered_as_record_sequence_0() -> None:
    """MRG-1."""
    assert order(record_sequence=None) == order(record_sequence=0)


def test_the_sequence_number_replaces_the_commit_timestamp() -> None:
    """MRG-2: an older commit with a larger number wins."""
    larger = change(at=1, change_sequence_number="B")
    smaller = change(at=9, tie_breaker=9, record_sequence=9, change_sequence_number="a")
    assert change_order(larger, HERE, OrderBy.SEQUENCE_NUMBER) > change_order(
        smaller, HERE, OrderBy.SEQUENCE_NUMBER
    )
    assert change_order(larger, HERE, OrderBy.COMMIT) < change_order(smaller, HERE, OrderBy.COMMIT)


def test_equal_sequence_numbers_are_decided_by_arrival() -> None:
    """MRG-2, MRG-3: however they are spelt."""
    first = change_order(
        change(change_sequence_number="0a/0"), OrderPosition(1, 0, 0), OrderBy.SEQUENCE_NUMBER
    )
    second = change_order(
        change(change_sequence_number="A"), OrderPosition(1, 0, 1), OrderBy.SEQUENCE_NUMBER
    )
    assert first < second
    assert first.rank == second.rank


def test_a_change_without_sequence_number_must_not_come_here() -> None:
    """MRG-2: it is a dead letter before."""
    with pytest.raises(AssertionError):
        change_order(change(), HERE, OrderBy.SEQUENCE_NUMBER)


def test_retention_counts_commits_or_with_sequence_numbers_batches() -> None:
    """MRG-10, MRG-12."""
    numbered = change(at=5, change_sequence_number="ABC")
    assert change_order(numbered, HERE, OrderBy.COMMIT).age == 5
    assert change_order(numbered, HERE, OrderBy.SEQUENCE_NUMBER).age == 7


@pytest.mark.parametrize(
    ("larger", "smaller"),
    [
        ("7B", "77"),
        ("FFF/ABC", "FFF/B"),
        ("ABC", "BA/FFFFFFFF"),
        ("FFF/ABC", "ABC"),
        ("8000000000000000", "7FFFFFFFFFFFFFFF"),
        ("fff/abc", "FFF/ABB"),
        ("0/0/0/1", "0"),
        (
            "FFFFFFFFFFFFFFFF/FFFFFFFFFFFFFFFF/FFFFFFFFFFFFFFFF/FFFFFFFFFFFFFFFF",
            "FFFFFFFFFFFFFFFF/FFFFFFFFFFFFFFFF/FFFFFFFFFFFFFFFF",
        ),
    ],
)
def test_sequence_numbers_of_the_field(larger: str, smaller: str) -> None:
    """REC-10: BigQuery's examples, unsigned numbers, sections that are missing."""
    assert sections_of(larger) > sections_of(smaller)


def test_missing_sections_count_as_0() -> None:
    """REC-10."""
    assert sections_of("1") == sections_of("1/0/0/0") == (1, 0, 0, 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "1/",
        "/1",
        "1//2",
        "G",
        "0x1",
        "-1",
        "+1",
        " 1",
        "1\n",
        "1 ",
        "1/2/3/4/5",
        "0" * 17,
        "\u0661",
        "1_0",
    ],
)
def test_invalid_texts_of_sequence_numbers(text: str) -> None:
    """REC-10: 1 to 4 sections of 1 to 16 hexadecimal digits, nothing else."""
    with pytest.raises(InvalidChangeError) as caught:
        change(change_sequence_number=text)
    assert caught.value.rule == "INVALID_SEQUENCE_NUMBER"


def test_an_invalid_sequence_number_is_shown_with_the_required_form() -> None:
    """REC-10, REC-14: field, limit and value."""
    limit = "1 to 4 sections of 1 to 16 hexadecimal digits, separated by /"
    for made, shown, wanted in (
        (lambda: change(change_sequence_number="0x1"), "'0x1'", limit),
        (sequence_number, "()", "made of 1 to 4 parts"),
        (
            lambda: sequence_number(-1),
            "-1",
            "made of integers from 0 to 2^64 - 1 and times with a zone, from 1970 on",
        ),
    ):
        with pytest.raises(InvalidChangeError) as caught:
            made()
        error = caught.value
        assert (error.rule, error.field) == ("INVALID_SEQUENCE_NUMBER", "change_sequence_number")
        assert error.problem == f"change_sequence_number is {shown}, but must be {wanted}"


def test_sequence_number_of_a_time_is_its_milliseconds() -> None:
    """REC-10: BigQuery's example; whatever the zone, cut down."""
    moment = datetime(2024, 4, 30, 11, 19, 44, tzinfo=UTC)
    assert sequence_number(moment) == "18F2EBB6480"
    assert sequence_number(moment.astimezone(timezone(timedelta(hours=-7)))) == "18F2EBB6480"
    assert sequence_number(moment + timedelta(microseconds=999)) == "18F2EBB6480"
    assert sequence_number(moment, 255, 0, 2**64 - 1) == "18F2EBB6480/FF/0/FFFFFFFFFFFFFFFF"


NAIVE = datetime(2024, 4, 30)  # noqa: DTZ001
BEFORE_1970 = datetime(1969, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "parts",
    [(), (1, 2, 3, 4, 5), (-1,), (2**64,), (True,), (1.5,), ("7B",), (NAIVE,), (BEFORE_1970,)],
)
def test_invalid_parts_of_sequence_numbers(parts: tuple[int, ...]) -> None:
    """REC-10."""
    with pytest.raises(InvalidChangeError):
        sequence_number(*parts)


def test_position_as_text() -> None:
    """MRG-3."""
    assert str(OrderPosition(7, 0, 123)) == "7/0/123/0"
    assert OrderPosition.parse("7/0/123/2") == OrderPosition(7, 0, 123, 2)


@pytest.mark.parametrize(
    "text",
    ["", "7/0/123", "7/0/123/0/0", "07/0/1/0", "-1/0/1/0", "7/0/1/0 ", "a/0/1/0", "7/0/1/0\n"],
)
def test_invalid_texts_of_order_positions(text: str) -> None:
    """MRG-3: one way to write it."""
    with pytest.raises(ValueError, match="order position"):
        OrderPosition.parse(text)
