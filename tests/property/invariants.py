"""The merge laws as functions of a merge rule. `connector.tables.merge` must pass each check, and a
broken rule must fail it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Protocol

from connector.records.model import DataChange
from connector.records.ordering import OrderBy, OrderPosition
from connector.tables import merge
from connector.tables.definition import Versions
from connector.tables.merge import RowState
from tests.property import model
from tests.property.histories import Delivery, batches


class Lift(Protocol):
    def __call__(
        self, change: DataChange, position: OrderPosition, order_by: OrderBy, versions: Versions
    ) -> RowState: ...


@dataclass(frozen=True)
class MergeRule:
    """The functions that make a merge rule."""

    lift: Lift = merge.lift
    join: Callable[[RowState, RowState], RowState] = merge.join
    normal: Callable[[RowState], RowState] = merge.normal
    visible: Callable[[RowState], model.Visible] = merge.visible

    def but(self, **broken: object) -> MergeRule:
        return replace(self, **broken)  # type: ignore[arg-type]


RULE = MergeRule()


def merged(
    rule: MergeRule,
    rng: Random,
    deliveries: Sequence[Delivery],
    order_by: OrderBy,
    versions: Versions,
) -> dict[bytes, RowState]:
    """The state of each row, merged in a random way: shuffled, duplicated, in batches, joined in a
    random tree, sometimes normalised.
    """
    forest: dict[bytes, list[RowState]] = {}
    for batch in batches(rng, deliveries):
        of_batch: dict[bytes, list[RowState]] = {}
        for delivery in batch:
            state = rule.lift(delivery.change, delivery.position, order_by, versions)
            of_batch.setdefault(delivery.change.row_key, []).append(state)
        for row_key, states in of_batch.items():
            forest.setdefault(row_key, []).append(joined_in_a_tree(rule, rng, states))
    return {row_key: joined_in_a_tree(rule, rng, states) for row_key, states in forest.items()}


def joined_in_a_tree(rule: MergeRule, rng: Random, states: Sequence[RowState]) -> RowState:
    trees = list(states)
    often = rng.choice((0.0, 0.5, 1.0))
    while len(trees) > 1:
        one = trees.pop(rng.randrange(len(trees)))
        other = trees.pop(rng.randrange(len(trees)))
        tree = rule.join(one, other)
        trees.append(rule.normal(tree) if rng.random() < often else tree)
    return rule.normal(trees[0]) if rng.random() < often else trees[0]


def newest_wins(
    rule: MergeRule,
    rng: Random,
    deliveries: Sequence[Delivery],
    order_by: OrderBy,
    versions: Versions,
) -> None:
    """In whatever order deliveries are merged, the rows are those of the sequential model
    (MRG-4).
    """
    states = merged(rule, rng, deliveries, order_by, versions)
    seen = {row_key: rule.visible(state) for row_key, state in states.items()}
    expected = model.replay(deliveries, order_by, versions)
    assert {row_key: row for row_key, row in seen.items() if row} == expected
