"""Which letters a filter means (DLQ-8)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.dead_letters.filter import (
    GROUPINGS,
    LetterFilter,
    bytes_of_text,
    grouped,
    is_short_for,
    is_whole,
    table_of,
    text_of_bytes,
)
from connector.dead_letters.ledger import LetterState, LetterStatus
from connector.records.codec import Schemas, encode, frame
from connector.records.model import DataChange, Heartbeat, SetCell
from connector.records.rejection import Reason
from tests.unit.dead_letters.test_envelope import letter

OPEN = LetterStatus(LetterState.OPEN, 1, 1)
USERS = frame(
    encode(
        DataChange(
            stream_partition="p",
            table="users",
            row_key=b"k",
            commit_timestamp=1,
            entries=(SetCell("f", b"q", b"v"),),
        ),
        4,
    ),
    None,
)
SUBJECT = letter(
    reason=Reason.INVALID, rule="FAMILY", key=b"u#1", value=USERS, first_failed_at=1000
)


@pytest.mark.parametrize(
    ("meant", "not_meant"),
    [
        ({"ids": frozenset({SUBJECT.id, "x"})}, {"ids": frozenset({"x"})}),
        (
            {"reasons": frozenset({Reason.INVALID, Reason.TOO_LATE})},
            {"reasons": frozenset({Reason.TOO_LATE})},
        ),
        ({"rule": "FAMILY"}, {"rule": "ROW_KEY"}),
        ({"states": frozenset()}, {"states": frozenset({LetterState.PARKED})}),
        ({"table": "users"}, {"table": "orders"}),
        ({"key_prefix": b"u#"}, {"key_prefix": b"o#"}),
        ({"since": 1000}, {"since": 1001}),
        ({"until": 1001}, {"until": 1000}),
        ({"kafka_partition": 3}, {"kafka_partition": 0}),
        ({"offsets": (17, 17)}, {"offsets": (0, 16)}),
        ({"ingest_batch": 7}, {"ingest_batch": 6}),
        ({"attempts": (1, 9)}, {"attempts": (2, 9)}),
    ],
    ids=lambda given: next(iter(given)),
)
def test_each_part_of_a_filter_bounds_what_it_names(
    meant: dict[str, object], not_meant: dict[str, object]
) -> None:
    """DLQ-8: reason, table, key prefix, time, Kafka partition and offset range, attempt, state."""
    assert LetterFilter(**meant).matches(SUBJECT, OPEN, Schemas())  # type: ignore[arg-type]
    assert not LetterFilter(**not_meant).matches(SUBJECT, OPEN, Schemas())  # type: ignore[arg-type]
    assert not LetterFilter(**meant | {"reasons": frozenset({Reason.TOO_LARGE})}).matches(
        SUBJECT, OPEN, Schemas()
    )  # type: ignore[arg-type]


def test_only_open_letters_are_meant_unless_others_are_asked_for() -> None:
    assert LetterFilter().matches(SUBJECT, OPEN, Schemas())
    discarded = LetterStatus(LetterState.DISCARDED, 0, 0)
    assert not LetterFilter().matches(SUBJECT, discarded, Schemas())
    assert LetterFilter(ids=frozenset({SUBJECT.id})).matches(SUBJECT, discarded, Schemas())
    assert LetterFilter(states=frozenset()).matches(SUBJECT, discarded, Schemas())
    only_open = LetterFilter(ids=frozenset({SUBJECT.id}), states=frozenset({LetterState.OPEN}))
    assert not only_open.matches(SUBJECT, discarded, Schemas())


def test_a_filter_that_leaves_nothing_out_says_so() -> None:
    assert (LetterFilter().has_conditions, str(LetterFilter())) == (False, "all")
    assert not LetterFilter(states=frozenset({LetterState.PARKED})).has_conditions
    text = LetterFilter(
        reasons=frozenset({Reason.INVALID}), table="t", key_prefix=b"\x1b", since=0, offsets=(1, 2)
    )
    assert text.has_conditions
    assert (
        str(text)
        == "reason=INVALID table=t key-prefix=base64:Gw== since=1970-01-01T00:00:00.000000Z"
        " offsets=1..2"
    )


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"ids": frozenset({"b", "a"}), "states": frozenset()}, "id=a id=b"),
        ({"states": frozenset({LetterState.PARKED, LetterState.OPEN})}, "state=open state=parked"),
        ({"reasons": frozenset({Reason.INVALID}), "rule": "FAMILY"}, "reason=INVALID rule=FAMILY"),
        (
            {"until": 0, "kafka_partition": 0, "ingest_batch": 1},
            "until=1970-01-01T00:00:00.000000Z kafka-partition=0 ingest-batch=1",
        ),
        ({"table": "", "attempts": (1, 9)}, "table= attempts=1..9"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_filter_as_text_names_its_conditions(given: dict[str, object], text: str) -> None:
    """DLQ-11: which filter."""
    assert str(LetterFilter(**given)) == text  # type: ignore[arg-type]


def test_the_table_is_that_of_a_table_letter_or_what_the_bytes_say() -> None:
    heartbeat = frame(encode(Heartbeat("p", 1, b""), 4), None)
    result = [
        table_of(one, Schemas())
        for one in (
            letter(table="eu", value=USERS),
            SUBJECT,
            letter(),
            letter(value=heartbeat),
            letter(value=None),
        )
    ]
    assert result == ["eu", "users", None, None, None]


def test_letters_are_counted_by_what_they_have_in_common() -> None:
    """DLQ-8: each group with its first, its last, and examples."""
    later = [letter(first_failed_at=number, attempt=number) for number in range(2000, 2005)]
    (first, group), (second, _) = grouped(
        ((one, OPEN) for one in (SUBJECT, *later)), ("reason", "rule"), Schemas()
    )
    assert (first, second) == (("UNKNOWN_FRAMING", ""), ("INVALID", "FAMILY"))
    assert (group.letters, group.oldest, group.newest, len(group.examples)) == (5, 2000, 2004, 2)


@pytest.mark.parametrize(
    ("by", "text"),
    list(
        zip(
            GROUPINGS,
            ("INVALID", "FAMILY", "open", "users", "u#1", "3", "1970-01-01", "1"),
            strict=True,
        )
    ),
)
def test_everything_that_letters_can_be_counted_by_has_a_text(by: str, text: str) -> None:
    assert GROUPINGS[by](SUBJECT, OPEN, Schemas()) == text


@pytest.mark.parametrize("by", GROUPINGS)
def test_a_missing_value_is_counted_as_text(by: str) -> None:
    """DLQ-8: groups lie in order, also of letters without a key, and of those that nothing can be
    read of.
    """
    groups = dict(
        grouped([(letter(key=None, value=None), OPEN), (SUBJECT, OPEN)], (by,), Schemas())
    )
    assert all(isinstance(text, str) for (text,) in groups)
    assert sum(group.letters for group in groups.values()) == 2


def test_too_many_groups_are_counted_together() -> None:
    """Memory is bounded, whatever the keys are."""

    groups = dict(
        grouped(
            ((letter(key=b"%d" % (number % 20)), OPEN) for number in range(40)),
            ("key",),
            Schemas(),
            at_most=5,
        )
    )
    assert len(groups) == 6
    assert groups["…",].letters == 30
    assert groups["0",].letters == 2, "a group that is known goes on being counted"


@pytest.mark.parametrize(
    ("data", "text"), [(b"u#1", "u#1"), (b"\xff", "base64:/w=="), ("é".encode(), "é")]
)
def test_bytes_are_text_and_back(data: bytes, text: str) -> None:
    assert (text_of_bytes(data), bytes_of_text(text)) == (text, data)


IDS = st.builds(
    "{}-{}-{}{}".format,
    st.text("aB3-_", min_size=22, max_size=22),
    st.integers(0, 20),
    st.integers(0, 2000),
    st.sampled_from(["", "-t", "-eu-2-7"]),
)


@given(IDS, IDS, st.integers(1, 22))
def test_a_whole_id_is_whole_and_a_short_one_begins_it(whole: str, other: str, size: int) -> None:
    """DLQ-8: the id is cut, or only its topic id."""
    assert is_whole(whole)
    assert not is_whole(whole[:size])
    for short in (whole[:size], whole[:size] + whole[22:]):
        assert is_short_for(short, whole)
        if is_short_for(short, other):
            assert other.startswith(short) or other[:size] + other[22:] == short


def test_the_rest_of_an_id_is_not_cut_after_a_short_topic_id() -> None:
    assert not is_short_for("Ab-3-1", "AbCdEfGhIjKlMnOpQrStUv-3-17")
    assert not is_short_for("Ab-3-17", "AbCdEfGhIjKlMnOpQrStUv-13-17")
    assert not is_short_for("", "AbCdEfGhIjKlMnOpQrStUv-3-17")
    assert is_short_for("-3-17", "AbCdEfGhIjKlMnOpQrStUv-3-17")
