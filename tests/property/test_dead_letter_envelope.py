"""A letter is the original record, untouched, and reading it back gives what was known."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from connector.dead_letters.envelope import DeadLetter, from_record, letter_id, to_headers
from connector.records.rejection import Headers
from connector.text import MAX_DETAIL_BYTES, truncate_utf8
from tests.property.strategies import HEADERS, POSITIONS, dead_letters


@given(dead_letters())
def test_reading_a_letter_back_gives_the_same_letter(letter: DeadLetter) -> None:
    """DLQ-1."""
    assert from_record(letter.key, letter.value, to_headers(letter)) == letter


@given(dead_letters())
def test_the_original_headers_stay_first_and_byte_for_byte(letter: DeadLetter) -> None:
    """DLQ-1: whatever they are called; the last of a name is ours."""
    headers = to_headers(letter)
    assert headers[: len(letter.headers)] == letter.headers
    assert dict(headers)["connector.dlq.id"] == letter.id.encode()
    assert dict(headers)["__connect.errors.offset"] == str(letter.position.offset).encode()


@given(dead_letters())
def test_a_letter_that_is_rejected_again_keeps_both_blocks(letter: DeadLetter) -> None:
    """DLQ-1: a dead letter among the records of a topic is a record like any other."""
    again = DeadLetter(
        **{name: getattr(letter, name) for name in DeadLetter.__slots__}
        | {"headers": to_headers(letter)}
    )
    assert from_record(again.key, again.value, to_headers(again)) == again


@given(st.none() | st.binary(), HEADERS, POSITIONS, st.integers(1, 2**50))
def test_a_record_of_others_goes_by_its_own_coordinates(
    value: bytes | None, headers: Headers, at: object, arrival: int
) -> None:
    """DLQ-1."""
    letter = from_record(b"k", value, headers, at=at, record_timestamp=arrival)  # type: ignore[arg-type]
    assert (letter.id, letter.value, letter.headers) == (letter_id(at), value, headers)  # type: ignore[arg-type]


@given(st.text() | st.text(min_size=400).map(lambda text: text * 5))
def test_a_detail_is_cut_at_a_whole_character(detail: str) -> None:
    """DLQ-6."""
    shortened = truncate_utf8(detail)
    assert len(shortened.encode()) <= MAX_DETAIL_BYTES
    assert shortened == detail or detail.startswith(shortened.removesuffix("…"))
    assert truncate_utf8(shortened) == shortened
