"""The order of changes is total, agrees with the source, and is the same after a round trip."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from connector.records.ordering import (
    ChangeOrder,
    OrderBy,
    OrderPosition,
    change_order,
    sections_of,
    sequence_number,
)
from tests.examples import examples
from tests.property.histories import Delivery, histories, history

SECTION = st.one_of(
    st.integers(0, 2**64 - 1), st.sampled_from((0, 1, 9, 10, 15, 16, 2**63 - 1, 2**63, 2**64 - 1))
)
NUMBERS = st.lists(SECTION, min_size=1, max_size=4)
SMALL = st.integers(0, 3)
POSITIONS = st.builds(OrderPosition, SMALL, SMALL, SMALL, SMALL)
ORDERS = st.builds(ChangeOrder, st.tuples(SMALL, SMALL, SMALL), POSITIONS, SMALL)


@given(ORDERS, ORDERS, ORDERS)
def test_order_is_total(a: ChangeOrder, b: ChangeOrder, c: ChangeOrder) -> None:
    """MRG-1: of two orders exactly one is smaller, or they are one; and order is transitive."""
    assert (a < b) + (b < a) + (a == b) == 1
    assert not (a <= b <= c) or a <= c


@examples(50)
@given(histories(), st.sampled_from(OrderBy))
def test_no_two_entries_have_one_order(deliveries: list[Delivery], order_by: OrderBy) -> None:
    """MRG-1, MRG-2: however equal two changes are, position and index tell their entries apart."""
    orders = [
        change_order(delivery.change, delivery.position, order_by, index)
        for delivery in deliveries
        for index in range(len(delivery.change.entries))
    ]
    assert len(set(orders)) == len(orders)
    assert all(one < other for one, other in pairwise(sorted(orders)))


@examples(50)
@given(st.randoms(use_true_random=False), st.sampled_from(OrderBy))
def test_arrival_never_beats_the_source(rng: Random, order_by: OrderBy) -> None:
    """MRG-3: where the source's own order differs, positions may be exchanged without
    consequence.
    """
    (one, *_), (other, *_) = history(rng), history(rng)
    straight = (
        change_order(one.change, one.position, order_by),
        change_order(other.change, other.position, order_by),
    )
    crossed = (
        change_order(one.change, other.position, order_by),
        change_order(other.change, one.position, order_by),
    )
    if straight[0].rank != straight[1].rank:
        assert (straight[0] < straight[1]) == (crossed[0] < crossed[1])


@given(NUMBERS, NUMBERS)
def test_sequence_numbers_compare_like_lists_of_numbers(a: list[int], b: list[int]) -> None:
    """REC-10: section by section, unsigned, a missing section counting as 0."""
    padded = [[*sections, 0, 0, 0, 0][:4] for sections in (a, b)]
    numbers = [sections_of(sequence_number(*sections)) for sections in (a, b)]
    assert (numbers[0] < numbers[1]) == (padded[0] < padded[1])
    assert (numbers[0] == numbers[1]) == (padded[0] == padded[1])


@given(NUMBERS, st.randoms(use_true_random=False))
def test_spelling_of_a_sequence_number_does_not_matter(sections: list[int], rng: Random) -> None:
    """REC-10: upper or lower case, leading zeros, trailing sections of 0."""
    spelt = [
        rng.choice((f"{section:x}", f"{section:X}", f"{section:016x}")) for section in sections
    ]
    spelt += ["0"] * rng.randint(0, 4 - len(spelt))
    assert sections_of("/".join(spelt)) == sections_of(sequence_number(*sections))


@given(st.builds(OrderPosition, *(st.integers(0, 2**63 - 1),) * 4))
def test_a_position_survives_as_text(position: OrderPosition) -> None:
    """MRG-3: the changelog keeps `order_position` as text."""
    assert OrderPosition.parse(str(position)) == position


@given(POSITIONS, POSITIONS)
def test_a_later_attempt_comes_after_the_first_at_the_same_place(
    position: OrderPosition, other: OrderPosition
) -> None:
    """MRG-3, DLQ-10: a replay keeps its letter's place among all others, and beats only the
    attempts before it.
    """
    replayed = position._replace(attempt=position.attempt + 1)
    assert position < replayed
    if other[:3] != position[:3]:
        assert (other < position) == (other < replayed)


@given(st.randoms(use_true_random=False))
def test_fields_without_an_order_do_not_change_the_order(rng: Random) -> None:
    """MRG-1: stream partition, cluster, token and row image have no say."""
    delivery = history(rng)[0]
    dressed = replace(
        delivery.change, stream_partition="another", resume_token=b"t", estimated_low_watermark=3
    )
    for order_by in OrderBy:
        assert change_order(dressed, delivery.position, order_by) == change_order(
            delivery.change, delivery.position, order_by
        )
