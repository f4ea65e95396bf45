"""The changes that a table lacks, against all changes one by one (MET-1, MET-3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from connector.records.model import MAX_LONG
from connector.state import unapplied as unapplied_module
from connector.state.table_state import TableState
from connector.state.unapplied import NOTHING_COUNTED, TableChanges, Unapplied
from tests.examples import examples


class Logged(NamedTuple):
    batch: int
    committed: int
    arrived: int
    is_delete: bool


BATCHES = st.lists(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 99), st.booleans()), max_size=3),
    min_size=1,
    max_size=8,
)
STATES = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3), st.integers(1, 10)), min_size=8)


def changes_of(logged: Sequence[Logged]) -> TableChanges:
    deletes = [change for change in logged if change.is_delete]
    return TableChanges(
        len(logged),
        min((change.arrived for change in deletes), default=None),
        max((change.committed for change in deletes), default=0),
    )


@examples(300, quick=30)
@given(batches=BATCHES, states=STATES, at_once=st.integers(1, 3))
def test_a_delete_counts_until_its_batch_has_no_unapplied_delete(
    batches: list[list[tuple[int, int, bool]]], states: list[tuple[int, int, int]], at_once: int
) -> None:
    """MET-1, MET-3: whenever the states of the table come."""
    # A table goes forward.
    completes, mores, lows = (sorted(values) for values in zip(*states, strict=True))
    unapplied, state, logged = NOTHING_COUNTED, TableState(), list[list[Logged]]()
    for number, of_batch in enumerate(batches, 1):
        logged.append([Logged(number, *fields) for fields in of_batch])
        if number % at_once and number < len(batches):
            continue
        counted = {
            new: changes_of(logged[new - 1]) for new in range(unapplied.counted_to + 1, number + 1)
        }
        complete, more, low = completes[number - 1], mores[number - 1], lows[number - 1]
        state = TableState(
            complete_to_batch=complete, to_batch=complete + more, apply_watermark=low
        )
        unapplied = unapplied.after(number, counted, since=0).without(state)
    pending = [of_batch for of_batch in logged if of_batch and of_batch[0].batch > complete]
    assert unapplied.changes == sum(map(len, pending))
    times = [
        changes_of(of_batch).deletes_since
        for of_batch in pending
        if any(c.is_delete and not state.covers(c.batch, c.committed) for c in of_batch)
    ]
    assert unapplied.deletes_since == min((at for at in times if at is not None), default=None)


def test_batches_of_another_process_count_as_if_they_had_a_delete() -> None:
    """MET-3: the number of their changes is unknown until they are applied."""
    begun = NOTHING_COUNTED.after(5, {}, since=70).without(TableState(complete_to_batch=3))
    assert (begun.changes, begun.deletes_since) == (None, 70)
    later = begun.after(6, {6: TableChanges(4, 90, 8)}, since=0)
    assert (later.changes, later.deletes_since) == (None, 70)
    low = TableState(complete_to_batch=4, to_batch=6, apply_watermark=MAX_LONG)
    assert later.without(low).deletes_since == 70, "some of their changes are deferred"
    applied = later.without(TableState(complete_to_batch=5, to_batch=5))
    assert (applied.changes, applied.deletes_since) == (4, 90)
    assert NOTHING_COUNTED.after(5, {}, since=70).without(TableState(complete_to_batch=5)) == (
        Unapplied(5)
    )
    gap = applied.after(9, {9: TableChanges(1), 8: TableChanges(1)}, since=80)
    assert (gap.changes, gap.deletes_since) == (None, 80), "7 was not counted"
    assert [number for number, _ in gap.batches] == [6, 7, 8, 9]


def test_a_table_that_is_stopped_for_long_needs_a_bounded_memory() -> None:
    """MET-1: the oldest batches are counted together."""
    most = unapplied_module.MAX_BATCHES
    unapplied = NOTHING_COUNTED
    for batch in range(1, most + 51):
        unapplied = unapplied.after(batch, {batch: TableChanges(2, 100 + batch, batch)}, since=0)
    assert len(unapplied.batches) == most
    assert (unapplied.changes, unapplied.deletes_since) == (2 * most + 100, 101)
    assert unapplied.without(TableState(complete_to_batch=51)).deletes_since == 152
    assert unapplied.without(TableState(complete_to_batch=most + 50)).deletes_since is None
