"""Things taken together as far as they fit."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from connector.dead_letters.batching import in_batches


@given(st.lists(st.integers(0, 12)), st.integers(1, 5), st.integers(1, 20))
def test_batches_have_all_in_order_and_as_many_as_fit(
    sizes: list[int], at_most: int, at_most_bytes: int
) -> None:
    found = list(in_batches(sizes, lambda size: size, at_most=at_most, at_most_bytes=at_most_bytes))
    assert [one for some in found for one in some] == sizes
    for some in found:
        assert 0 < len(some) <= at_most
        assert len(some) == 1 or sum(some) <= at_most_bytes
    for some, following in pairwise(found):
        assert len(some) == at_most or sum(some) + following[0] > at_most_bytes


def test_a_full_batch_does_not_wait_for_what_follows() -> None:
    taken: list[int] = []
    batches = in_batches(
        (taken.append(one) or one for one in range(9)), lambda _: 1, at_most=3, at_most_bytes=100
    )
    assert (next(batches), taken) == ([0, 1, 2], [0, 1, 2])
