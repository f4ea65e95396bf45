"""What a change would do to a row, and the newer change that does the same (DLQ-10, DLQ-13)."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given

from connector.dead_letters.effect import Effect, at_low_watermark, difference, effect
from connector.records.ordering import OrderBy, OrderPosition
from connector.tables.definition import TableDefinition, Versions
from connector.tables.merge import EMPTY, RowState, join, lift, visible
from tests.examples import examples
from tests.property.histories import Delivery, histories, history, table

TODAY = 10**12
every_table = pytest.mark.parametrize(
    ("order_by", "versions"),
    [(order_by, versions) for order_by in OrderBy for versions in Versions],
)


def same_today(of: TableDefinition, late: Delivery, others: list[Delivery]) -> None:
    before = EMPTY
    for delivery in others:
        before = join(before, lift(delivery.change, delivery.position, of.order, of.versions))
    after = with_change(of, before, late.change, late.position)
    entries = difference(of, before, late.change, late.position)
    what = effect(of, before, late.change, late.position)
    assert (what is Effect.IGNORED) == (visible(after) == visible(before))
    assert (what is Effect.INSERTED) == (bool(visible(after)) and not visible(before))
    assert (what is Effect.DELETED) == (bool(visible(before)) and not visible(after))
    if not entries:
        assert visible(after) == visible(before)
        return
    today = at_low_watermark(late.change, entries, TODAY)
    # A replay has an attempt of its own.
    attempt = 1 + max(delivery.position.attempt for delivery in (late, *others))
    replayed = late.position._replace(attempt=attempt)
    assert visible(with_change(of, before, today, replayed)) == visible(after)


def with_change(
    of: TableDefinition, before: RowState, change: object, position: OrderPosition
) -> RowState:
    return join(before, lift(change, position, of.order, of.versions))  # type: ignore[arg-type]


@every_table
@examples(60)
@given(deliveries=histories(rows=(b"r1",)))
def test_the_new_change_has_the_effect_of_the_late_change(
    order_by: OrderBy, versions: Versions, deliveries: list[Delivery]
) -> None:
    """DLQ-13, replay_is_safe: on the current row, in the current order of the table."""
    late, *others = deliveries
    same_today(
        table(order_by, versions), late, [other for other in others if other.change != late.change]
    )


@every_table
def test_the_difference_does_what_the_late_change_would_many_times(
    order_by: OrderBy, versions: Versions, seed: int
) -> None:
    """DLQ-13: the same on many larger histories, without shrinking."""
    rng = Random(seed)
    for _ in range(300):
        late, *others = history(rng, changes=12, rows=(b"r1",))
        same_today(
            table(order_by, versions),
            late,
            [other for other in others if other.change != late.change],
        )
