"""A row without a value exists if it has a presence mark (EVO-12)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connector.errors import TableError
from connector.records.model import DataChange, DeleteCells, DeleteFamily, SetCell
from connector.records.ordering import OrderPosition
from connector.tables.definition import (
    Column,
    TableDefinition,
    Versions,
    check_compatible,
    compatible,
    with_fixed,
)
from connector.tables.explain import ROW_MARK, Delivery, Outcome, explain
from connector.tables.keys import Key, KeyPart
from connector.tables.merge import RowState, expire, join, lift, visible
from connector.tables.presence import PRESENCE_QUALIFIER, presence_mark
from connector.tables.row import read_change, row_of, state_of
from connector.tables.stored_definition import NO_IDS, assign_ids, from_properties, to_properties
from connector.tables.values import DataType
from tests.changes import change, put

NAME = Column("name", "f", b"name", DataType.STRING)
TABLE = TableDefinition(
    name="t", stream="s", source="t", key=Key((KeyPart("id", DataType.BYTES),)), columns=(NAME,)
)
MARK = presence_mark("f")
of_every_table = pytest.mark.parametrize(
    "table",
    [
        replace(TABLE, versions=versions, keep_unmapped=keeps)
        for versions in Versions
        for keeps in (True, False)
    ],
    ids=lambda table: f"{table.versions}, {table.keep_unmapped}",
)


def joined(table: TableDefinition, *changes: DataChange) -> RowState:
    deliveries = [(one, OrderPosition(1, 0, offset)) for offset, one in enumerate(changes)]
    return expire(state_of(table, deliveries), None)


def row(table: TableDefinition, *changes: DataChange) -> dict[str, object] | None:
    return row_of(table, b"row", visible(joined(table, *changes)))


def nulls(table: TableDefinition) -> dict[str, object]:
    """The row that has no value."""
    names = dict.fromkeys((column.name for column in table.columns), None)
    return {"id": b"row", **names, "_unmapped": {} if table.keep_unmapped else None}


@of_every_table
def test_a_row_of_nulls_exists(table: TableDefinition) -> None:
    """EVO-12: the mark is in no column and not in `_unmapped`, whatever the table keeps."""
    assert read_change(table, change(MARK)) is None
    assert row(table, change(MARK)) == nulls(table)
    keys_only = replace(table, columns=(), presence_family="f")
    assert row(keys_only, change(MARK)) == nulls(keys_only)


@of_every_table
def test_the_mark_is_ordered_and_deleted_as_any_cell(table: TableDefinition) -> None:
    """EVO-12, deletes_stay_deleted: a late insert does not bring a row back."""
    inserted, deleted = change(MARK, at=1), change(DeleteFamily("f"), at=2)
    again = change(MARK, at=3)
    assert row(table, inserted, deleted) is None
    assert row(table, deleted, inserted) is None
    assert row(table, again, deleted, inserted) == nulls(table)
    assert row(table, inserted, change(DeleteFamily("g"), at=2)) == nulls(table)
    assert row(table, inserted, change(DeleteCells("f", PRESENCE_QUALIFIER), at=2)) is None


@of_every_table
def test_a_mark_does_not_hide_a_value(table: TableDefinition) -> None:
    """EVO-12: a value alone makes a row, and a mark of another family is a cell like any other."""
    shown = {**nulls(table), "name": "Lee"}
    set_name = put("Lee", "f", b"name", cell_timestamp=5)
    assert row(table, change(set_name)) == shown
    assert row(table, change(set_name), change(MARK, at=2)) == shown
    elsewhere = row(table, change(presence_mark("g")))
    unmapped = {"g:\x00row": b""}
    assert elsewhere == ({**nulls(table), "_unmapped": unmapped} if table.keep_unmapped else None)


@of_every_table
def test_every_spelling_of_the_mark_is_the_mark(table: TableDefinition) -> None:
    """EVO-12: its value means nothing. A copy with another order is the same mark."""
    other = SetCell("f", PRESENCE_QUALIFIER, b"1", 7)
    assert row(table, change(other)) == nulls(table)
    position = OrderPosition(1, 0, 0)
    state = state_of(table, [(change(other), position)])
    assert visible(join(state, state)) == {("f", PRESENCE_QUALIFIER): b""}


def test_the_family_of_the_mark_is_fixed_when_the_table_is_made() -> None:
    """EVO-12: later columns do not move it, and another family is refused."""
    assert TABLE.marks == "f"
    assert replace(TABLE, columns=()).marks == "row"
    assert replace(TABLE, presence_family="p").marks == "p"
    stored, _ = from_properties(to_properties(TABLE, assign_ids(NO_IDS, TABLE)))
    assert stored.presence_family == "f"
    later = replace(TABLE, columns=(Column("first", "g", b"a", DataType.STRING), NAME))
    assert later.marks == "g"
    check_compatible(stored, later)
    assert with_fixed(stored, later).marks == "f"
    check_compatible(stored, replace(later, presence_family="f"))
    (difference,) = compatible(stored, replace(later, presence_family="g"))
    assert difference == "presence_family was f, is g"
    with pytest.raises(TableError, match="presence_family was f, is g"):
        check_compatible(stored, replace(later, presence_family="g"))


@of_every_table
def test_explain_names_the_mark(table: TableDefinition) -> None:
    """EVO-12, SUB-6"""
    inserted, deleted = change(MARK, at=1), change(DeleteFamily("f"), at=2)
    deliveries = [
        Delivery(one, OrderPosition(1, 0, offset)) for offset, one in enumerate((inserted, deleted))
    ]
    state = lift(inserted, deliveries[0].position, table.order, table.versions)
    (shown,) = explain(deliveries[:1], state, table).columns
    assert (shown.column, shown.entries[0].outcome) == (ROW_MARK, Outcome.WON)
    (shown,) = explain(deliveries, joined(table, inserted, deleted), table).columns
    assert (shown.column, shown.entries[0].outcome) == (ROW_MARK, Outcome.DELETED)
