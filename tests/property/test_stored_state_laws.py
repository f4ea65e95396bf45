"""The stored state of a row loses nothing that a later merge needs (TBL-12)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given

from connector.records.ordering import ChangeOrder, OrderBy, OrderPosition
from connector.tables.definition import Column, TableDefinition
from connector.tables.keys import Key, KeyPart
from connector.tables.merge import (
    EMPTY,
    CellName,
    RowState,
    Tombstone,
    join,
    lift,
    normal,
    visible,
)
from connector.tables.row import RowReader, row_of, state_of
from connector.tables.stored_definition import ColumnIds, tolerated
from connector.tables.stored_state import StateForm
from connector.tables.values import DataType
from tests.examples import examples
from tests.property.histories import COLUMNS, MARK, Delivery, batches, histories, history

ROW = (b"r1",)
Write = Callable[[TableDefinition, RowState], dict[str, Any]]


def written(table: TableDefinition, state: RowState) -> dict[str, Any]:
    return StateForm(table).write(state)


tables = pytest.mark.parametrize(
    "table",
    [
        pytest.param(
            TableDefinition(
                name="t",
                stream="s",
                source="t",
                key=Key((KeyPart("id", DataType.BYTES),)),
                columns=COLUMNS,
                order=order,
                keep_unmapped=keeps,
            ),
            id=f"{order}{'' if keeps else ', mapped only'}",
        )
        for order in OrderBy
        for keeps in (True, False)
    ],
)


def stored(
    table: TableDefinition,
    deliveries: Iterable[list[Delivery]],
    write: Write = written,
) -> dict[str, object] | None:
    """The row after all batches. Its state is stored and read again after each of them."""
    state = EMPTY
    for batch in deliveries:
        for one in batch:
            state = join(state, state_of(table, [(one.change, one.position)]))
        state = normal(state)
        row = row_of(table, ROW[0], visible(state))
        values = [None if row is None else row[column.name] for column in table.columns]
        state = StateForm(table).read(write(table, state), values)
    return row_of(table, ROW[0], visible(state))


def in_memory(table: TableDefinition, deliveries: Iterable[Delivery]) -> dict[str, object] | None:
    return row_of(table, ROW[0], visible(joined(table, deliveries)))


def joined(table: TableDefinition, deliveries: Iterable[Delivery]) -> RowState:
    state = EMPTY
    for one in deliveries:
        state = join(state, lift(one.change, one.position, table.order, table.versions))
    return state


@tables
@examples(100)
@given(deliveries=histories(rows=ROW))
def test_newest_wins_if_the_state_is_stored_after_each_change(
    table: TableDefinition, deliveries: list[Delivery]
) -> None:
    """newest_wins, deletes_stay_deleted"""
    assert stored(table, [[one] for one in deliveries]) == in_memory(table, deliveries)


@tables
def test_newest_wins_if_the_state_is_stored_after_each_batch(
    table: TableDefinition, seed: int
) -> None:
    """newest_wins, deletes_stay_deleted: many larger histories."""
    rng = Random(seed)
    for _ in range(400):
        deliveries = history(rng, changes=12, rows=ROW)
        assert stored(table, batches(rng, deliveries)) == in_memory(table, deliveries)


@tables
def test_a_state_is_read_back_as_it_was(table: TableDefinition, seed: int) -> None:
    """deletes_stay_deleted: a deletion is read as a deletion, and a cell that a deletion hid as a
    cell. A presence mark that a deletion hid is read as its deletion. Only the deletion of a column
    that has a newer cell is not stored, and nothing that a table without unmapped cells does not
    keep.
    """
    rng, seen = Random(seed), 0
    for _ in range(400):
        state = normal(joined(table, history(rng, changes=12, rows=ROW)))
        state = with_deleted_mark(RowReader(table).canonical(state))
        tombstones = {
            one: order
            for one, order in state.tombstones.items()
            if not is_of_column(one) or newest(state, one) < order
        }
        if not table.keep_unmapped:
            families = {column.family for column in table.columns}
            mapped = {*(column.cell for column in table.columns), MARK}
            tombstones = {
                one: order
                for one, order in tombstones.items()
                if (one.family, one.qualifier) in mapped
                or (one.qualifier is None and one.family in families)
            }
            cells = {name: it for name, it in state.cells.items() if name[:2] in mapped}
            state = RowState(cells, state.tombstones)
        row = row_of(table, ROW[0], visible(state))
        values = [None if row is None else row[column.name] for column in table.columns]
        read = StateForm(table).read(StateForm(table).write(state), values)
        assert read == RowState(state.cells, tombstones)
        seen += any(is_of_column(one) for one in read.tombstones)
    assert seen, "columns were deleted"


def with_deleted_mark(state: RowState) -> RowState:
    """The state with a deletion of the presence mark in the place of a mark that is hidden."""
    cells, name = dict(state.cells), CellName(*MARK, None)
    if name not in cells or cells[name].value is not None:
        return state
    order, deletion = cells.pop(name).order, Tombstone(*MARK, 0, 0)
    newest_deletion = max(order, state.tombstones.get(deletion, order))
    return RowState(cells, {**state.tombstones, deletion: newest_deletion})


def is_of_column(one: Tombstone) -> bool:
    return one.qualifier is not None and (one.start, one.end) == (0, 0)


def newest(state: RowState, of: Tombstone) -> ChangeOrder:
    """The order of the cell of a column, the least one if there is none."""
    assert of.qualifier is not None
    cell = state.cells.get(CellName(of.family, of.qualifier, None))
    return ChangeOrder((), OrderPosition(0, 0, 0), 0) if cell is None else cell.order


@pytest.mark.parametrize("lost", ["family_entries", "column_entries", "residual"])
def test_a_state_that_loses_a_part_is_noticed(lost: str, seed: int) -> None:
    """The law above can fail."""

    def write(table: TableDefinition, state: RowState) -> dict[str, Any]:
        whole = StateForm(table).write(state)
        kept = whole[lost]
        return {**whole, lost: None if lost == "residual" else [None] * len(kept)}

    rng, (table,) = Random(seed), tables.args[1][0].values
    found = [history(rng, changes=12, rows=ROW) for _ in range(200)]
    assert any(stored(table, [[d] for d in one], write) != in_memory(table, one) for one in found)


def test_a_value_that_does_not_fit_a_late_column_is_kept(seed: int) -> None:
    """TBL-8, EVO-3, nothing_lost: its register and its bytes, until a newer write."""
    column = Column("number", "f", b"q", DataType.INT64)
    table = replace(tables.args[1][0].values[0], columns=(column,))
    ids = ColumnIds({"number": 4}, 5, since={"number": 7}, families={"g": 0, "f": 1})
    form, rng, misfits = StateForm(table, ids), Random(seed), 0
    reader = RowReader(table, tolerated(table, ids))
    for _ in range(200):
        state = normal(joined(table, history(rng, changes=12, rows=ROW)))
        row = row_of(table, ROW[0], visible(state))
        stored_state = form.write(state, reader.misfits(state))
        assert len(stored_state["column_orders"]) in (0, 5)
        read = form.read(stored_state, [None if row is None else row["number"]])
        assert visible(read).keys() == visible(state).keys()
        misfits += bool(row and "f:q" in row["_unmapped"])  # type: ignore[operator]
    assert misfits
