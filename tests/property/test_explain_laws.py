"""SUB-6: the explanation of a row names the entries that make the row, and for each other entry one
that it loses to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.records.model import SetCell
from connector.records.ordering import ChangeOrder, OrderBy, rank_of
from connector.tables import explain as explained
from connector.tables.definition import Versions
from connector.tables.explain import Explanation, Outcome, SetEntry, explain
from connector.tables.merge import Cell, RowState, expire, greatest, join, visible
from connector.tables.row import state_of
from tests.examples import examples, tries
from tests.property import model
from tests.property.histories import Delivery, histories, history, table, truncations

ROW = b"r1"
every_table = pytest.mark.parametrize(
    ("order_by", "versions"),
    [(order_by, versions) for order_by in OrderBy for versions in Versions],
)
Explain = Callable[[Sequence[Delivery], RowState, OrderBy, Versions], Explanation]


def of(deliveries: Sequence[Delivery]) -> list[explained.Delivery]:
    return [explained.Delivery(one.change, one.position) for one in deliveries]


def usual(
    deliveries: Sequence[Delivery], state: RowState, order_by: OrderBy, versions: Versions
) -> Explanation:
    return explain(of(deliveries), state, table(order_by, versions))


def check(
    how: Explain, deliveries: Sequence[Delivery], order_by: OrderBy, versions: Versions
) -> None:
    """The winners are the row of the model; and an entry, together with the one that it lost to,
    leaves no more than that one alone.
    """
    row = model.replay(deliveries, order_by, versions).get(ROW, {})
    found = how(deliveries, state_of(table(order_by, versions), of(deliveries)), order_by, versions)
    every = {entry.order: entry for column in found.columns for entry in column.entries}
    assert len(every) == sum(
        isinstance(entry, SetCell) for one in deliveries for entry in one.change.entries
    )
    by_order = _single_entries(deliveries, order_by, versions)
    assert {
        (column.family, column.qualifier): column.winner.value
        for column in found.columns
        if column.winner is not None
    } == row
    assert {
        (one.entry.family, one.entry.qualifier): one.entry.value
        for one in every.values()
        if one.outcome is Outcome.WON
    } == row
    for one in every.values():
        assert one.outcome is not Outcome.REMOVED, "everything is known here"
        assert (one.lost_to is None) is (one.outcome is Outcome.WON)
        if one.lost_to is not None:
            pair = [by_order[order] for order in sorted((one.order, one.lost_to))]
            alone = [by_order[one.lost_to]]
            assert model.replay(pair, order_by, versions) == model.replay(
                alone, order_by, versions
            ), one
            assert (one.outcome is Outcome.DELETED) is not isinstance(
                by_order[one.lost_to].change.entries[0], SetCell
            )
    orders = {order for one in every.values() for order in (one.lost_to, one.order) if order} - {
        one.order for one in every.values() if one.lost_to is not None
    }
    deciding = [one for order, one in by_order.items() if order in orders]
    assert model.replay(deciding, order_by, versions).get(ROW, {}) == row


def _single_entries(
    deliveries: Sequence[Delivery], order_by: OrderBy, versions: Versions
) -> dict[ChangeOrder, Delivery]:
    """Each entry as a change of its own, in order, by its order."""
    found = [
        (write.order, replace(one, change=replace(one.change, entries=(write.entry,))))
        for one in deliveries
        for write in explained._writes(
            explained.Delivery(one.change, one.position), table(order_by, versions)
        )
    ]
    return dict(sorted(found, key=lambda pair: pair[0]))


@every_table
@examples(60)
@given(deliveries=histories(rows=(ROW,), changes=9))
def test_the_winners_make_the_row_of_the_model(
    order_by: OrderBy, versions: Versions, deliveries: list[Delivery]
) -> None:
    """SUB-6, MRG-4, MRG-7."""
    check(usual, deliveries, order_by, versions)


@every_table
def test_the_winners_make_the_row_of_the_model_many_times(
    order_by: OrderBy, versions: Versions, seed: int
) -> None:
    """SUB-6: the same on many larger histories, without shrinking."""
    rng = Random(seed)
    for _ in tries(300):
        check(usual, history(rng, changes=12, rows=(ROW,)), order_by, versions)


@every_table
@examples(60)
@given(deliveries=histories(rows=(ROW,), changes=9), rng=st.randoms(use_true_random=False))
def test_a_truncation_hides_what_is_older(
    order_by: OrderBy, versions: Versions, deliveries: list[Delivery], rng: Random
) -> None:
    """SUB-6, EVO-13: the winners are the row of the model. Each hidden entry counts for the oldest
    truncation that is newer.
    """
    definition, truncates = table(order_by, versions), truncations(rng)
    state = state_of(definition, of(deliveries))
    found = explain(of(deliveries), state, definition, truncates)
    row = model.replay(deliveries, order_by, versions, truncates).get(ROW, {})
    winners = {
        (column.family, column.qualifier): column.winner.value
        for column in found.columns
        if column.winner is not None
    }
    assert winners == row
    entries = [entry for column in found.columns for entry in column.entries]
    rank = greatest(*(rank_of(each, order_by) for each in truncates))
    older = [entry for entry in entries if rank is not None and entry.order.rank < rank]
    assert [entry for entry in entries if entry.outcome is Outcome.TRUNCATED] == older
    assert sum(truncation.hides for truncation in found.truncations) == len(older)
    for truncation in found.truncations:
        assert truncation.truncate in truncates
        assert truncation.hides > 0
    assert all(rank is None or deletion.order.rank >= rank for deletion in found.deletions)


@every_table
@examples(60)
@given(
    deliveries=histories(rows=(ROW,), changes=9), cut=st.integers(0, 12), horizon=st.integers(0, 8)
)
def test_the_winners_are_those_of_the_table_also_if_the_changelog_lost_its_first_batches(
    order_by: OrderBy, versions: Versions, deliveries: list[Delivery], cut: int, horizon: int
) -> None:
    """SUB-6: the state of the table decides; changes that left the changelog are winners without an
    entry.
    """
    stored = expire(state_of(table(order_by, versions), of(deliveries[:cut])), horizon)
    later = [
        one
        for one in deliveries[cut:]
        if order_by is OrderBy.SEQUENCE_NUMBER or one.change.commit_timestamp >= horizon
    ]
    state = join(stored, state_of(table(order_by, versions), of(later)))
    found = usual(later, state, order_by, versions)
    assert {
        (column.family, column.qualifier): column.winner.value
        for column in found.columns
        if column.winner is not None
    } == visible(state)
    for column in found.columns:
        won = [entry for entry in column.entries if entry.outcome is Outcome.WON]
        assert len(won) <= 1
        assert not won or (column.winner is not None and column.winner.order == won[0].order)


def by_arrival(
    deliveries: Sequence[Delivery], state: RowState, order_by: OrderBy, versions: Versions
) -> Explanation:
    """The last delivery of a column wins."""
    found = usual(deliveries, state, order_by, versions)
    columns = []
    for column in found.columns:
        last = max(column.entries, key=lambda entry: entry.order.position)
        winner = Cell(last.order, last.entry.cell_timestamp, last.entry.value)
        columns.append(replace(column, winner=column.winner and winner))
    return replace(found, columns=tuple(columns))


def without_deletions(
    deliveries: Sequence[Delivery], state: RowState, order_by: OrderBy, versions: Versions
) -> Explanation:
    """No deletion covers anything."""
    return usual(deliveries, RowState(state.cells), order_by, versions)


def blaming(
    choose: Callable[[list[ChangeOrder], SetEntry], ChangeOrder],
) -> Explain:
    """Names another entry as the one that an entry lost to."""

    def found(
        deliveries: Sequence[Delivery], state: RowState, order_by: OrderBy, versions: Versions
    ) -> Explanation:
        right = usual(deliveries, state, order_by, versions)
        orders = sorted(_single_entries(deliveries, order_by, versions))
        columns = (
            replace(
                column,
                entries=tuple(
                    entry
                    if entry.lost_to is None
                    else replace(entry, lost_to=choose(orders, entry))
                    for entry in column.entries
                ),
            )
            for column in right.columns
        )
        return replace(right, columns=tuple(columns))

    return found


BROKEN: dict[str, Explain] = {
    "by arrival": by_arrival,
    "without deletions": without_deletions,
    "lost to the newest of all": blaming(lambda orders, entry: orders[-1]),
    "lost to the oldest of all": blaming(lambda orders, entry: orders[0]),
}


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("versions", list(Versions))
def test_a_wrong_explanation_is_noticed(how: str, versions: Versions, seed: int) -> None:
    """A canary of SUB-6."""
    rng = Random(seed)
    for _ in range(300):
        deliveries = history(rng, changes=12, rows=(ROW,))
        try:
            check(BROKEN[how], deliveries, OrderBy.COMMIT, versions)
        except AssertionError:
            return
    pytest.fail("300 histories did not show it")
