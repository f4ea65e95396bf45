"""The merge algebra keeps its promises on generated histories, for both meanings of a cell and both
orders.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from connector.records.ordering import OrderBy, OrderPosition
from connector.tables.definition import Versions
from connector.tables.merge import EMPTY, RowState, exists, expire, join, lift, normal, visible
from connector.tables.retention import NONE_READ, is_too_late
from tests.examples import examples
from tests.property import model
from tests.property.histories import Delivery, histories, history
from tests.property.invariants import RULE, joined_in_a_tree, newest_wins

ROW = (b"r1",)
every_table = pytest.mark.parametrize(
    ("order_by", "versions"),
    [(order_by, versions) for order_by in OrderBy for versions in Versions],
)
each_meaning = pytest.mark.parametrize("versions", list(Versions))
rngs = st.randoms(use_true_random=False)


def state_of(
    deliveries: list[Delivery], versions: Versions, order_by: OrderBy = OrderBy.COMMIT
) -> RowState:
    state = EMPTY
    for delivery in deliveries:
        state = join(state, lift(delivery.change, delivery.position, order_by, versions))
    return state


@every_table
@examples(40)
@given(deliveries=histories(), rng=rngs)
def test_any_delivery_gives_what_the_source_had(
    order_by: OrderBy, versions: Versions, deliveries: list[Delivery], rng: Random
) -> None:
    """MRG-4, MRG-1, MRG-2: shuffled, repeated, in batches, joined in random trees: always the
    sequential model's rows.
    """
    newest_wins(RULE, rng, deliveries, order_by, versions)


@every_table
def test_any_delivery_gives_what_the_source_had_many_times(
    order_by: OrderBy, versions: Versions, seed: int
) -> None:
    """MRG-4: the same on many larger histories, without shrinking."""
    rng = Random(seed)
    for _ in range(400):
        newest_wins(RULE, rng, history(rng, changes=12), order_by, versions)


@every_table
@examples(30)
@given(deliveries=histories(distinct_ranks=True), rng=rngs)
def test_order_of_arrival_does_not_matter(
    order_by: OrderBy, versions: Versions, deliveries: list[Delivery], rng: Random
) -> None:
    """MRG-4: had the changes arrived at each other's places, each once or more often, the rows
    would be the same.
    """
    changes = list({delivery.change: None for delivery in deliveries})
    elsewhere = [
        Delivery(change, OrderPosition(9, 0, offset))
        for offset, change in enumerate(rng.sample(changes, len(changes)))
    ]
    assert model.replay(elsewhere, order_by, versions) == model.replay(
        deliveries, order_by, versions
    )
    newest_wins(RULE, rng, elsewhere, order_by, versions)


@each_meaning
@examples(60)
@given(deliveries=histories(rows=ROW, distinct_ranks=True))
def test_redelivery_at_another_offset_changes_nothing(
    versions: Versions, deliveries: list[Delivery]
) -> None:
    """MRG-4: a change that is delivered at two offsets has two positions and one effect."""
    once = list({delivery.change: delivery for delivery in deliveries}.values())
    assert visible(state_of(once, versions)) == visible(state_of(deliveries, versions))


@each_meaning
@examples(60)
@given(deliveries=histories(rows=ROW), cuts=st.tuples(st.integers(0, 9), st.integers(0, 9)))
def test_join_is_a_semilattice(
    versions: Versions, deliveries: list[Delivery], cuts: tuple[int, int]
) -> None:
    """MRG-4, MRG-7: idempotent, commutative, associative, with the empty state as its neutral
    element.
    """
    i, j = sorted(cuts)
    a, b, c = (
        state_of(part, versions) for part in (deliveries[:i], deliveries[i:j], deliveries[j:])
    )
    assert join(a, a) == a
    assert join(a, EMPTY) == a == join(EMPTY, a)
    assert join(a, b) == join(b, a)
    assert join(a, join(b, c)) == join(join(a, b), c)


@each_meaning
@examples(60)
@given(
    deliveries=histories(rows=ROW, changes=9),
    cuts=st.tuples(st.integers(0, 12), st.integers(0, 12)),
)
def test_join_is_a_semilattice_on_normal_states(
    versions: Versions, deliveries: list[Delivery], cuts: tuple[int, int]
) -> None:
    """MRG-4, MRG-9: overlapping states that were normalised at different times still agree, once
    normal.
    """
    i, j = cuts
    a, b, c = (
        normal(state_of(part, versions))
        for part in (deliveries[:i], deliveries[j:], deliveries[i // 2 :])
    )
    assert join(a, b) == join(b, a)
    assert join(a, join(b, c)) == join(join(a, b), c)
    assert normal(join(a, a)) == a


@each_meaning
@examples(80)
@given(deliveries=histories(rows=ROW, changes=9), cut=st.integers(0, 12))
def test_normalising_never_shows(versions: Versions, deliveries: list[Delivery], cut: int) -> None:
    """MRG-9: not now, not after any later join; and it does not matter when it was done."""
    now, later = state_of(deliveries[:cut], versions), state_of(deliveries[cut:], versions)
    assert visible(normal(now)) == visible(now)
    assert normal(normal(now)) == normal(now)
    assert visible(join(normal(now), later)) == visible(join(now, later))
    assert normal(join(normal(now), normal(later))) == normal(join(now, later))


@each_meaning
@examples(60)
@given(deliveries=histories(rows=ROW, changes=9))
def test_a_normal_state_holds_nothing_in_vain(
    versions: Versions, deliveries: list[Delivery]
) -> None:
    """MRG-9: no tombstone inside a newer, wider one; no value under a tombstone; without versions,
    one cell for each column.
    """
    state = normal(state_of(deliveries, versions))
    for tombstone, order in state.tombstones.items():
        assert not any(
            wider.contains(tombstone) and order < newer for wider, newer in state.tombstones.items()
        )
    covered = [
        cell.value
        for name, cell in state.cells.items()
        if any(
            order > cell.order and tombstone.covers(name, cell.cell_timestamp)
            for tombstone, order in state.tombstones.items()
        )
    ]
    assert covered == [None] * len(covered)
    assert versions is Versions.LATEST or not covered
    assert exists(state) == bool(visible(state))
    if versions is Versions.LATEST:
        assert len({(name.family, name.qualifier) for name in state.cells}) == len(state.cells)


@each_meaning
@examples(80)
@given(deliveries=histories(rows=ROW, changes=9), cut=st.integers(0, 12), horizon=st.integers(0, 8))
def test_an_expired_tombstone_has_nothing_left_to_hide(
    versions: Versions, deliveries: list[Delivery], cut: int, horizon: int
) -> None:
    """MRG-10, MRG-11, `deletes_stay_deleted`: a tombstone goes when nothing that it would have
    hidden can still be merged.
    """
    now = state_of(deliveries[:cut], versions)
    later = state_of(
        [delivery for delivery in deliveries[cut:] if not is_too_late(delivery.change, horizon)],
        versions,
    )
    expired = expire(now, horizon)
    assert visible(expired) == visible(now)
    assert visible(join(expired, later)) == visible(join(now, later))
    assert normal(expired) == expired == expire(expired, horizon)
    assert all(order.age >= horizon for order in expired.tombstones.values())
    assert expire(now, None) == normal(now)


@each_meaning
@examples(40)
@given(
    deliveries=histories(rows=ROW, changes=9),
    steps=st.lists(st.integers(0, 8), min_size=1, max_size=4),
    rng=rngs,
)
def test_expiry_in_steps_is_expiry_at_the_last_horizon(
    versions: Versions, deliveries: list[Delivery], steps: list[int], rng: Random
) -> None:
    """MRG-10: a table that expired at every batch shows what one shows that never did, late changes
    being turned away alike.
    """
    kept = forgetful = EMPTY
    for horizon in sorted(steps):
        rest = [
            delivery
            for delivery in rng.sample(deliveries, len(deliveries))
            if not is_too_late(delivery.change, horizon)
        ]
        batch = [state_of([delivery], versions) for delivery in rest[: rng.randint(0, 4)]]
        kept = joined_in_a_tree(RULE, rng, [kept, *batch])
        forgetful = expire(joined_in_a_tree(RULE, rng, [forgetful, *batch]), horizon)
        assert visible(forgetful) == visible(kept)


@examples(40)
@given(pauses=st.lists(st.integers(0, 40), min_size=1, max_size=60), retention=st.integers(1, 60))
def test_in_a_table_by_number_deletes_are_remembered_long_enough_and_not_for_ever(
    pauses: list[int], retention: int
) -> None:
    """MRG-12, `deletes_stay_deleted`: what is forgotten is older than the retention when the newest
    batch that the table holds was read.
    """
    horizons, read_at = NONE_READ, [0]
    for batch, pause in enumerate(pauses, start=1):
        read_at.append(read_at[-1] + pause * 1_000_000)
        horizons = horizons.after(batch, read_at[batch], retention)
    for complete_to in range(1, len(read_at)):
        horizon = horizons.horizon_of(complete_to)
        old = read_at[complete_to] - retention * 1_000_000
        assert horizon is not None
        assert all(read_at[batch] < old for batch in range(1, horizon))
        older = old - retention * 1_000_000 // 16 - max(pauses) * 1_000_000
        assert all(batch < horizon for batch in range(1, complete_to) if read_at[batch] < older)


@examples(30)
@given(deliveries=histories(rows=ROW))
@example(deliveries=[])
def test_all_versions_contain_the_newest_write_of_each_column(deliveries: list[Delivery]) -> None:
    """A column that `latest` shows is shown by `all` too, perhaps in a version with a greater cell
    timestamp.
    """
    latest, all_ = (
        visible(state_of(deliveries, versions)) for versions in (Versions.LATEST, Versions.ALL)
    )
    assert latest.keys() <= all_.keys()
