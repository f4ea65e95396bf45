"""A value of a row is compared as a value, whatever bytes a change has for it (TBL-7)."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from decimal import Context, Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest

from connector.dead_letters.effect import Effect, difference, effect
from connector.lake.row_states import RowStates
from connector.records.model import DataChange, SetCell
from connector.records.ordering import OrderPosition
from connector.records.views import EPOCH, MICROSECOND
from connector.tables.definition import Column, TableDefinition, Versions
from connector.tables.keys import KEY_TYPES, Key, KeyForm, KeyPart
from connector.tables.merge import RowState, join, lift, visible
from connector.tables.nested import RANGE_TYPES, ArrayType, RangeType, RecordType, ValueType
from connector.tables.row import is_same_row, row_of, state_of
from connector.tables.values import DataType, Unreadable, read_value, write_value
from tests.changes import change
from tests.property.spellings import COLUMNS, spelled, value_of

ROWS = 200
HERE, LATER = OrderPosition(1, 0, 0), OrderPosition(2, 0, 0)
every_table = pytest.mark.parametrize("versions", list(Versions))
every_column = pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)


def table(column: Column, versions: Versions = Versions.LATEST) -> TableDefinition:
    key = Key((KeyPart("id", DataType.BYTES),))
    return TableDefinition(
        name="t", stream="s", source="t", key=key, columns=(column,), versions=versions
    )


def setting(column: Column, value: bytes, *, at: int = 5) -> DataChange:
    """A change that sets a column."""
    return change(SetCell(*column.cell, value, 3), at=at)


def stored(states: RowStates, one: DataChange) -> RowState:
    """The state that is read from a table with this change: values of columns are Delta's."""
    of = states.definition
    state = lift(one, HERE, of.order, of.versions)
    order = next(iter(state.cells.values())).order
    as_stored: dict[str, Any] = {
        "change": dict(zip(OrderPosition._fields, HERE, strict=True))
        | {"commit_timestamp": order.rank[0], "tie_breaker": 0, "record_sequence": order.rank[2]}
    }
    found: dict[str, Any] = dict.fromkeys(
        (
            *("cell_timestamps", "column_entries", "column_orders", "family_entries"),
            *("family_orders", "mark_order", "mark_entry", "mark_timestamp"),
        )
    )
    values: list[Any] = []
    if of.versions is Versions.LATEST:
        by_cell = {(name.family, name.qualifier): cell for name, cell in state.cells.items()}
        cells = [by_cell.get(column.cell) for column in of.columns]
        found["column_entries"] = [cell and cell.order.entry_index for cell in cells]
        found["column_orders"] = [cell and 0 for cell in cells]
        found["cell_timestamps"] = [cell and cell.cell_timestamp for cell in cells]
        values = [
            None
            if cell is None or cell.value is None
            else as_delta(column.type, read_value(column.type, column.encoding, cell.value))
            for column, cell in zip(of.columns, cells, strict=True)
        ]
        residual = []
    else:
        residual = [
            {
                **name._asdict(),
                "range_start": None,
                "range_end": None,
                "value": cell.value,
                "order": {**as_stored, "entry_index": cell.order.entry_index},
            }
            for name, cell in state.cells.items()
        ]
    found |= {"orders": [as_stored["change"]], "residual": residual}
    return states._state(found, values)


def as_delta(type_: ValueType, value: Any) -> object:
    """A value as it comes from a Delta table."""
    assert not isinstance(value, Unreadable), value
    if type_ in RANGE_TYPES:
        return (value - EPOCH.date()).days if isinstance(value, date) else value
    return part_as_delta(type_, value)


def part_as_delta(type_: ValueType, value: Any) -> object:
    """A value within another one, whose times are no numbers."""
    match type_:
        case _ if value is None:
            return None
        case ArrayType():
            return [part_as_delta(type_.element, item) for item in value]
        case RecordType():
            return {name: part_as_delta(part, value[name]) for name, part in type_.fields}
        case RangeType():
            return part_as_delta(type_.record, value)
        case DataType.NUMERIC:
            return value.quantize(Decimal("1e-9"), context=Context(prec=38))
        case DataType.TIMESTAMP | DataType.DATETIME:
            at = EPOCH + value * MICROSECOND
            return at if type_ is DataType.TIMESTAMP else at.replace(tzinfo=None)
        case _:
            return value


@every_table
@every_column
def test_a_table_stores_the_row_that_the_change_describes(
    column: Column, versions: Versions, seed: int, tmp_path: Path
) -> None:
    """SUB-6, DLQ-9: 200 rows for each type. The same change from the table and from the changelog
    can be joined, and gives the same row.
    """
    rng = Random(f"{seed}{column.name}")
    of = table(column, versions)
    states = RowStates(str(tmp_path), of)
    for _ in range(ROWS):
        one = setting(column, rng.choice(spelled(rng, column.type, column.encoding)))
        from_table, from_change = stored(states, one), state_of(of, [(one, HERE)])
        assert visible(from_table) == visible(from_change)
        assert visible(join(from_table, from_change)) == visible(from_table), "one is the other"
        rows = [row_of(of, one.row_key, visible(state)) for state in (from_table, from_change)]
        assert is_same_row(*rows), rows


@every_table
@every_column
def test_the_same_value_in_other_bytes_changes_nothing(
    column: Column, versions: Versions, seed: int, tmp_path: Path
) -> None:
    """DLQ-10, DLQ-13: a replay with a newer order and the value that is there is ignored."""
    rng = Random(f"{seed}{column.name}")
    of = table(column, versions)
    states = RowStates(str(tmp_path), of)
    for _ in range(ROWS):
        bytes_ = spelled(rng, column.type, column.encoding)
        one = setting(column, rng.choice(bytes_))
        newer = setting(column, rng.choice(bytes_), at=9)
        before = stored(states, one)
        assert effect(of, before, newer, LATER) is Effect.IGNORED, (one, newer)
        assert difference(of, before, newer, LATER) == (), (one, newer)


@every_column
def test_another_value_changes_the_row_and_keeps_its_bytes(
    column: Column, seed: int, tmp_path: Path
) -> None:
    """DLQ-13: another table may read the same cell as text, so a forced replay sends the bytes."""
    rng = Random(f"{seed}{column.name}")
    of = table(column)
    states = RowStates(str(tmp_path), of)
    for _ in range(ROWS):
        one, other = (spelled(rng, column.type, column.encoding) for _ in range(2))
        before = stored(states, setting(column, rng.choice(one)))
        newer = setting(column, rng.choice(other), at=9)
        is_same = one[0] == other[0]
        assert effect(of, before, newer, LATER) is (Effect.IGNORED if is_same else Effect.CHANGED)
        expected = () if is_same else newer.entries
        assert difference(of, before, newer, LATER) == expected


@every_column
def test_every_spelling_is_read_as_the_canonical_one(column: Column, seed: int) -> None:
    """The tests above compare what they say they compare."""
    rng = Random(f"{seed}{column.name}")
    for _ in range(ROWS):
        canonical, *others = spelled(rng, column.type, column.encoding)
        for other in others:
            value = read_value(column.type, column.encoding, other)
            assert not isinstance(value, Unreadable), other
            assert write_value(column.type, column.encoding, value) == canonical
            assert other != canonical


@pytest.mark.parametrize("form", [KeyForm.DELIMITED, KeyForm.ORDERED])
@pytest.mark.parametrize("type_", KEY_TYPES)
def test_a_key_from_a_table_is_the_key_of_the_change(
    type_: DataType, form: KeyForm, seed: int, tmp_path: Path
) -> None:
    """SUB-6, DLQ-9: 200 keys of each type. Only the canonical bytes are a key."""
    rng = Random(f"{seed}{type_}{form}")
    key = Key((KeyPart("id", type_),), form)
    states = RowStates(str(tmp_path), replace(table(COLUMNS[0]), key=key))
    for _ in range(ROWS):
        value = value_of(rng, type_)
        if form is KeyForm.DELIMITED and value in ("", b""):
            continue  # which is no row key
        row_key = key.write_key((value,))
        assert states._key((as_delta(type_, value),)) == key.read_key(row_key)
