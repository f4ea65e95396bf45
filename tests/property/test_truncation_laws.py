"""Truncations keep the laws of the merge: they are the greatest of their ranks, and a filter of
states that distributes over their join (EVO-13).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.records.model import Truncate
from connector.records.ordering import OrderBy, Rank, rank_of
from connector.tables import merge
from connector.tables.definition import Versions
from connector.tables.merge import EMPTY, RowState, expire, greatest, join, lift, normal, visible
from connector.tables.retention import is_too_late
from tests.examples import examples
from tests.property import model
from tests.property.histories import Delivery, batches, histories, history, truncations

every_table = pytest.mark.parametrize(
    ("order_by", "versions"),
    [(order_by, versions) for order_by in OrderBy for versions in Versions],
)
rngs = st.randoms(use_true_random=False)
TruncateState = Callable[[RowState, Rank | None], RowState]


def merged(
    rng: Random,
    deliveries: Sequence[Delivery],
    truncates: Sequence[Truncate],
    order_by: OrderBy,
    versions: Versions,
    truncate: TruncateState = merge.truncate,
) -> dict[bytes, model.Visible]:
    """The rows of a table that merges all in any batches, with repetitions, as an apply does: what
    is stored is truncated once, by the apply with a new truncation.
    """
    rank, rows = None, dict[bytes, RowState]()
    for batch in batches(rng, [*deliveries, *truncates]):
        ranks = [rank_of(one, order_by) for one in batch if isinstance(one, Truncate)]
        newest = greatest(rank, *ranks)
        if newest != rank:
            rows = {row_key: truncate(state, newest) for row_key, state in rows.items()}
        rank = newest
        for one in batch:
            if isinstance(one, Delivery):
                state = truncate(lift(one.change, one.position, order_by, versions), rank)
                row_key = one.change.row_key
                rows[row_key] = normal(join(rows.get(row_key, EMPTY), state))
    shown = {row_key: visible(state) for row_key, state in rows.items()}
    return {row_key: cells for row_key, cells in shown.items() if cells}


@every_table
@examples(60)
@given(deliveries=histories(changes=9), rng=rngs)
def test_any_delivery_gives_what_the_source_had(
    order_by: OrderBy, versions: Versions, deliveries: list[Delivery], rng: Random
) -> None:
    """EVO-13, MRG-4, `newest_wins`: truncations and changes in any order, repeated, in batches."""
    truncates = truncations(rng)
    expected = model.replay(deliveries, order_by, versions, truncates)
    assert merged(rng, deliveries, truncates, order_by, versions) == expected


@every_table
def test_any_delivery_gives_what_the_source_had_many_times(
    order_by: OrderBy, versions: Versions, seed: int
) -> None:
    """EVO-13: the same on many larger histories, without shrinking."""
    rng = Random(seed)
    for _ in range(400):
        deliveries, truncates = history(rng, changes=12), truncations(rng)
        expected = model.replay(deliveries, order_by, versions, truncates)
        assert merged(rng, deliveries, truncates, order_by, versions) == expected


def at_equality_too(state: RowState, rank: Rank | None) -> RowState:
    """A transaction that truncates and fills a table leaves it empty."""
    kept = merge.truncate(state, rank)
    if rank is None:
        return kept
    return RowState({name: cell for name, cell in kept.cells.items() if cell.order.rank > rank})


def by_time(state: RowState, rank: Rank | None) -> RowState:
    """The tie breaker and the record sequence do not count."""
    return merge.truncate(
        state, None if rank is None else (*rank[:1], *[-(2**63)] * 3)[: len(rank)]
    )


def never(state: RowState, rank: Rank | None) -> RowState:
    return state


def once(state: RowState, rank: Rank | None) -> RowState:
    """Late changes bring rows back."""
    return state if len(state.cells) < 2 else merge.truncate(state, rank)


@pytest.mark.parametrize("broken", [at_equality_too, by_time, never, once])
def test_a_broken_truncation_is_noticed(broken: TruncateState, seed: int) -> None:
    """The check can fail."""
    rng = Random(seed)
    for _ in range(2_000):
        deliveries, truncates = history(rng), truncations(rng)
        expected = model.replay(deliveries, OrderBy.COMMIT, Versions.LATEST, truncates)
        of = (deliveries, truncates, OrderBy.COMMIT, Versions.LATEST)
        if merged(rng, *of, truncate=broken) != expected:
            return
    pytest.fail("no history showed the fault")


def state_of(deliveries: Sequence[Delivery], versions: Versions) -> RowState:
    state = EMPTY
    for one in deliveries:
        state = join(state, lift(one.change, one.position, OrderBy.COMMIT, versions))
    return state


RANKS = st.tuples(st.integers(1, 7), st.integers(-1, 3), st.integers(0, 2))


@pytest.mark.parametrize("versions", list(Versions))
@examples(80)
@given(
    deliveries=histories(rows=(b"r1",), changes=9),
    cut=st.integers(0, 12),
    ranks=st.tuples(RANKS, RANKS),
    horizon=st.integers(0, 8),
)
def test_truncating_distributes_over_join_and_commutes_with_normal_and_expire(
    versions: Versions,
    deliveries: list[Delivery],
    cut: int,
    ranks: tuple[Rank, Rank],
    horizon: int,
) -> None:
    """EVO-13, MRG-7, MRG-9, MRG-10, `deletes_stay_deleted`: so it does not matter when the states
    are truncated, normalised and expired. A rank never expires.
    """
    rank, other = ranks
    truncate = merge.truncate
    a, b = state_of(deliveries[:cut], versions), state_of(deliveries[cut:], versions)
    assert truncate(join(a, b), rank) == join(truncate(a, rank), truncate(b, rank))
    assert truncate(truncate(a, rank), other) == truncate(a, greatest(rank, other))
    assert truncate(a, None) == a
    assert normal(truncate(normal(a), rank)) == normal(truncate(a, rank))
    in_time = [one for one in deliveries[cut:] if not is_too_late(one.change, horizon)]
    later = truncate(state_of(in_time, versions), rank)
    kept = join(truncate(a, rank), later)
    assert visible(join(truncate(expire(a, horizon), rank), later)) == visible(kept)
    assert visible(join(expire(truncate(a, rank), horizon), later)) == visible(kept)


def test_a_transaction_may_truncate_a_table_and_fill_it_again() -> None:
    """EVO-13: at equality, the change of a row stays."""
    rank = rank_of(Truncate("p", "t", 5), OrderBy.COMMIT)
    assert rank == (5, 0, 0)
    assert greatest(rank, None, (4, 9, 9)) == rank
    assert greatest(None, None) is None
