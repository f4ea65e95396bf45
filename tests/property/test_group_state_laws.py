"""A state in pieces, as a group stores it (SUB-3)."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.watermarks.reader_state import MAX_PIECE_BYTES, from_pieces, is_piece, to_pieces

STATES = st.binary(max_size=300) | st.builds(
    lambda seed, size: random.Random(seed).randbytes(size), st.integers(), st.integers(0, 12_000)
)


@given(STATES, st.integers(1, 4), st.sampled_from(["", "id"]))
def test_pieces_are_small_and_have_the_whole_state(state: bytes, count: int, other: str) -> None:
    """SUB-3: other texts may follow them."""
    pieces = to_pieces(state, count)
    if pieces is None:
        assert len(state) > 0.75 * count * (MAX_PIECE_BYTES - 100)
        return
    assert len(pieces) <= count
    assert all(len(one) <= MAX_PIECE_BYTES and one.isascii() and is_piece(one) for one in pieces)
    texts = dict.fromkeys(range(count + 2), other) | dict(enumerate(pieces))
    assert from_pieces(texts) == state


@given(STATES, STATES, st.data())
def test_pieces_of_two_states_are_none(one: bytes, other: bytes, data: st.DataObject) -> None:
    """SUB-3: as well as a missing piece, a damaged one, and texts of others."""
    left, right = to_pieces(one, 9), to_pieces(other, 9)
    assert left is not None
    assert right is not None
    mixed = dict(enumerate(left))
    at = data.draw(st.integers(0, len(left) - 1))
    text = data.draw(st.sampled_from([right[min(at, len(right) - 1)], "", "id", left[at][:-1]]))
    if text == left[at]:
        return
    mixed[at] = text
    try:
        found = from_pieces(mixed)
    except ValueError:
        return
    assert found == (other if len(right) == 1 and at == 0 and text == right[0] else one)


@pytest.mark.parametrize("text", ["transactions.v1 0 999999 00000000 ", "transactions.v1 0 1 0 x"])
def test_a_head_alone_is_no_state(text: str) -> None:
    """SUB-3."""
    with pytest.raises(ValueError, match=r"piece|state"):
        from_pieces({0: text})
