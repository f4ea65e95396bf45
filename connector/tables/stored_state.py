"""The state of a row as the column `_state` of a table stores it (TBL-12).

Decisions 0005 and 0013 define the form: a register for each column, the newest deletion of each
family with a column, and a residual for everything else. A register without a value is a cell that
a deletion hid, or a deletion of the whole column: both win against older writes of the column. A
table with `versions = all` has a residual only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from connector.records.ordering import ChangeOrder, OrderBy, OrderPosition
from connector.tables.definition import TableDefinition, Versions
from connector.tables.merge import Cell, CellName, RowState, Tombstone
from connector.tables.values import write_value

_RANK: Final = ("commit_timestamp", "tie_breaker", "record_sequence")
_SECTION_BYTES: Final = 8


def families_of(definition: TableDefinition) -> list[str]:
    """Return the families with a column, in the order of the columns."""
    return list(dict.fromkeys(column.family for column in definition.columns))


def read_state(
    definition: TableDefinition, stored: Mapping[str, Any], values: Iterable[Any]
) -> RowState:
    """Return the state of a row. `values` are those of the columns, as `tables.values` has them.
    They are empty if all versions are kept.

    The cells of columns have the canonical bytes of their values. A cell has a timestamp, also if a
    deletion hid its value. A write without a value and a timestamp is the deletion of its column.
    """
    is_latest = definition.versions is Versions.LATEST
    # The order is null if no column and no family of the row was written by it.
    orders = [order and read_order(definition.order, order) for order in stored["orders"] or ()]
    cells: dict[CellName, Cell] = {}
    tombstones: dict[Tombstone, ChangeOrder] = {}
    columns = definition.columns if is_latest else ()
    for n, (column, value) in enumerate(zip(columns, values, strict=True)):
        if (index := _at(stored["column_entries"], n)) is not None:
            order = orders[stored["column_orders"][n]]._replace(entry_index=index)
            at = _at(stored["cell_timestamps"], n)
            if value is None and at is None:
                tombstones[Tombstone(*column.cell, 0, 0)] = order
                continue
            as_bytes = None if value is None else write_value(column.type, column.encoding, value)
            cells[CellName(*column.cell, None)] = Cell(order, at or 0, as_bytes)
    for n, family in enumerate(families_of(definition)):
        if (index := _at(stored["family_entries"], n)) is not None:
            order = orders[stored["family_orders"][n]]._replace(entry_index=index)
            tombstones[Tombstone(family, None, 0, 0)] = order
    for one in stored["residual"] or ():
        order = read_order(definition.order, one["order"]["change"])
        order = order._replace(entry_index=one["order"]["entry_index"])
        family, qualifier = one["family"], one["qualifier"]
        if qualifier is None:
            tombstones[Tombstone(family, None, 0, 0)] = order
        elif one["range_start"] is not None:
            name = Tombstone(family, bytes(qualifier), one["range_start"], one["range_end"])
            tombstones[name] = order
        elif one["value"] is None and one["cell_timestamp"] is None:
            tombstones[Tombstone(family, bytes(qualifier), 0, 0)] = order
        else:
            as_bytes = None if one["value"] is None else bytes(one["value"])
            at = one["cell_timestamp"] or 0
            cells[CellName(family, bytes(qualifier), None if is_latest else at)] = Cell(
                order, at, as_bytes
            )
    return RowState(cells, tombstones)


def _at(stored: list[int | None] | None, index: int) -> int | None:
    return stored[index] if stored is not None and index < len(stored) else None


def read_order(order_by: OrderBy, stored: Mapping[str, Any]) -> ChangeOrder:
    """Return the order of a change, with the entry index 0. It is the inverse of `write_order`."""
    position = OrderPosition(*(stored[name] for name in OrderPosition._fields))
    if order_by is OrderBy.COMMIT:
        return ChangeOrder(tuple(stored[name] for name in _RANK), position, 0)
    number = bytes(stored["sequence_number"])
    starts = range(0, len(number), _SECTION_BYTES)
    sections = (number[start : start + _SECTION_BYTES] for start in starts)
    return ChangeOrder(tuple(map(int.from_bytes, sections)), position, 0)


def write_state(definition: TableDefinition, state: RowState) -> dict[str, Any]:
    """Return the value of `_state` for a normal state, without the values of the columns. The table
    keeps the latest version of a cell.
    """
    cells, tombstones = dict(state.cells), dict(state.tombstones)
    orders = _Orders(definition.order)
    registers = [
        _written(cells, tombstones, CellName(*column.cell, None)) for column in definition.columns
    ]
    deletions = [
        tombstones.pop(Tombstone(family, None, 0, 0), None) for family in families_of(definition)
    ]
    stored = {
        "column_orders": [one and orders.index(one[0]) for one in registers],
        "column_entries": [one and one[0].entry_index for one in registers],
        "cell_timestamps": [one and one[1] for one in registers],
        "family_orders": [one and orders.index(one) for one in deletions],
        "family_entries": [one and one.entry_index for one in deletions],
    }
    residual = list(_residual(definition, cells, tombstones))
    return {"orders": orders.stored, **stored, "residual": residual or None}


class _Orders:
    """The orders of the changes that wrote a row, each once."""

    def __init__(self, order_by: OrderBy) -> None:
        self._order_by = order_by
        self._indexes: dict[tuple[object, ...], int] = {}
        self.stored: list[dict[str, Any]] = []

    def index(self, order: ChangeOrder) -> int:
        change = order[:2]
        if change not in self._indexes:
            self._indexes[change] = len(self.stored)
            self.stored.append(write_order(self._order_by, order))
        return self._indexes[change]


def write_order(order_by: OrderBy, order: ChangeOrder) -> dict[str, Any]:
    """Return the stored form of the order of a change."""
    if order_by is OrderBy.COMMIT:
        rank: dict[str, Any] = dict(zip(_RANK, order.rank, strict=True))
    else:
        rank = {"sequence_number": b"".join(n.to_bytes(_SECTION_BYTES) for n in order.rank)}
    return {**rank, **order.position._asdict()}


def _written(
    cells: dict[CellName, Cell], tombstones: dict[Tombstone, ChangeOrder], name: CellName
) -> tuple[ChangeOrder, int | None] | None:
    """Take the newest write of a column: its order and cell timestamp, None for a deletion."""
    cell = cells.pop(name, None)
    deleted = tombstones.pop(Tombstone(name.family, name.qualifier, 0, 0), None)
    if cell is not None and (deleted is None or cell.order > deleted):
        return cell.order, cell.cell_timestamp
    return None if deleted is None else (deleted, None)


def _residual(
    definition: TableDefinition,
    cells: dict[CellName, Cell],
    tombstones: dict[Tombstone, ChangeOrder],
) -> Iterator[dict[str, Any]]:
    """The elements of the residual, in the order of their names."""
    mapped, keeps = {column.cell for column in definition.columns}, definition.keep_unmapped

    def element(family: str, order: ChangeOrder, **others: Any) -> dict[str, Any]:
        change = {"change": write_order(definition.order, order), "entry_index": order.entry_index}
        names = ("qualifier", "range_start", "range_end", "cell_timestamp", "value")
        return {"family": family, **dict.fromkeys(names), "order": change, **others}

    whole = {
        CellName(one.family, one.qualifier, None)
        for one in tombstones
        if one.qualifier is not None and (one.start, one.end) == (0, 0)
    }
    for name in sorted({*cells, *whole}) if keeps else ():
        value = cells[name].value if name in cells else None
        written = _written(cells, tombstones, name)
        assert written is not None, name
        order, at = written
        value = None if at is None else value
        yield element(name.family, order, qualifier=name.qualifier, cell_timestamp=at, value=value)
    for one, order in sorted(tombstones.items(), key=lambda item: (item[1], repr(item[0]))):
        if one.qualifier is None:
            if keeps:
                yield element(one.family, order)
        elif (keeps or (one.family, one.qualifier) in mapped) and (one.start, one.end) != (0, 0):
            yield element(
                one.family,
                order,
                qualifier=one.qualifier,
                range_start=one.start,
                range_end=one.end,
            )
