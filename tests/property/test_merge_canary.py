"""The checks themselves are tried: rules that are broken in the ways in which people break them
must be noticed.
"""

from __future__ import annotations

from random import Random

import pytest

from connector.records.model import DataChange
from connector.records.ordering import OrderBy, OrderPosition
from connector.tables import merge
from connector.tables.definition import Versions
from connector.tables.merge import Cell, RowState, Tombstone, join, lift, normal, visible
from connector.tables.retention import is_too_late
from tests.property import model
from tests.property.histories import history
from tests.property.invariants import RULE, MergeRule, newest_wins


def join_by_arrival(one: RowState, other: RowState) -> RowState:
    """The later to arrive wins, as in a plain upsert."""
    return RowState({**one.cells, **other.cells}, {**one.tombstones, **other.tombstones})


def join_without_tombstones(one: RowState, other: RowState) -> RowState:
    """A delete hides what is there and is forgotten."""
    joined = normal(join(one, other))
    return RowState(joined.cells, {})


def lift_without_entry_index(
    change: DataChange, position: OrderPosition, order_by: OrderBy, versions: Versions
) -> RowState:
    """All entries of a change have one order: an upsert's deletes no longer come before its
    writes.
    """
    state = lift(change, position, order_by, versions)
    cells = {
        name: cell._replace(order=cell.order._replace(entry_index=0))
        for name, cell in state.cells.items()
    }
    return RowState(
        cells,
        {tombstone: order._replace(entry_index=0) for tombstone, order in state.tombstones.items()},
    )


def lift_without_tie_breaker(
    change: DataChange, position: OrderPosition, order_by: OrderBy, versions: Versions
) -> RowState:
    """Equal commit timestamps are decided by arrival."""
    state = lift(change, position, order_by, versions)
    cells = {
        name: cell._replace(order=cell.order._replace(rank=cell.order.rank[:1]))
        for name, cell in state.cells.items()
    }
    return RowState(
        cells,
        {
            tombstone: order._replace(rank=order.rank[:1])
            for tombstone, order in state.tombstones.items()
        },
    )


def lift_with_literal_ranges(
    change: DataChange, position: OrderPosition, order_by: OrderBy, versions: Versions
) -> RowState:
    """[0, 0) deletes nothing (the defect that REC-7 names)."""
    state = lift(change, position, order_by, versions)
    return RowState(
        state.cells,
        {
            tombstone: order
            for tombstone, order in state.tombstones.items()
            if tombstone.qualifier is None or tombstone.end
        },
    )


def normal_that_forgets_covered_cells(state: RowState) -> RowState:
    """Drops a cell under a bounded range: with `latest` an older write of the column comes back."""
    shown = normal(state)
    return RowState(
        {name: cell for name, cell in shown.cells.items() if cell.value is not None},
        shown.tombstones,
    )


def normal_that_forgets_wider_tombstones(state: RowState) -> RowState:
    """Takes a newer tombstone for one that makes an older, wider one superfluous."""

    def superfluous(tombstone: Tombstone) -> bool:
        order = state.tombstones[tombstone]
        return any(
            tombstone.contains(other) and order < newer for other, newer in state.tombstones.items()
        )

    return normal(
        RowState(
            state.cells,
            {name: order for name, order in state.tombstones.items() if not superfluous(name)},
        )
    )


def visible_by_cell_timestamp(state: RowState) -> model.Visible:
    """Deletes hide by cell timestamp, as HBase's tombstones do, whatever was committed when."""
    cells: dict[tuple[str, bytes], Cell] = {}
    for name, cell in state.cells.items():
        if (
            not any(tombstone.covers(name, cell.cell_timestamp) for tombstone in state.tombstones)
            and cell.value is not None
        ):
            cells[name.family, name.qualifier] = max(
                cell,
                cells.get((name.family, name.qualifier), cell),
                key=lambda cell: cell.cell_timestamp,
            )
    return {column: cell.value for column, cell in cells.items() if cell.value is not None}


BROKEN = {
    "join by arrival": (RULE.but(join=join_by_arrival), None),
    "deletes forgotten": (RULE.but(join=join_without_tombstones), None),
    "no entry index": (RULE.but(lift=lift_without_entry_index), None),
    "no tie breaker": (RULE.but(lift=lift_without_tie_breaker), None),
    "[0, 0) taken literally": (RULE.but(lift=lift_with_literal_ranges), None),
    "covered cells forgotten": (
        RULE.but(normal=normal_that_forgets_covered_cells),
        Versions.LATEST,
    ),
    "wider tombstones forgotten": (RULE.but(normal=normal_that_forgets_wider_tombstones), None),
    "deletes by cell timestamp": (RULE.but(visible=visible_by_cell_timestamp), None),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_rule_is_noticed(how: str, seed: int) -> None:
    """MRG-4: the check fails within 3,000 histories for a merge that is broken on purpose. Most
    need ten.
    """
    rule, only = BROKEN[how]
    for versions in Versions if only is None else (only,):
        assert _histories_until_noticed(rule, versions, Random(seed)) is not None, versions


def _histories_until_noticed(rule: MergeRule, versions: Versions, rng: Random) -> int | None:
    for number in range(3000):
        try:
            newest_wins(rule, rng, history(rng, changes=12), OrderBy.COMMIT, versions)
        except AssertionError:
            return number
    return None


def test_an_early_expiry_is_noticed(seed: int) -> None:
    """MRG-10, MRG-11: a tombstone that goes one microsecond too early lets some history bring a
    cell back.
    """
    rng = Random(seed)
    for _ in range(10_000):
        deliveries = history(rng, rows=(b"r1",))
        horizon = rng.randint(1, 6)
        states = [
            lift(d.change, d.position, OrderBy.COMMIT, Versions.LATEST)
            for d in deliveries
            if not is_too_late(d.change, horizon)
        ]
        cut = rng.randint(0, len(states))
        now, later = (_joined(part) for part in (states[:cut], states[cut:]))
        if visible(join(merge.expire(now, horizon + 1), later)) != visible(join(now, later)):
            return
    pytest.fail("10,000 histories did not show it")


def _joined(states: list[RowState]) -> RowState:
    state = merge.EMPTY
    for each in states:
        state = join(state, each)
    return state
