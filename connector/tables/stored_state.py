"""The state of a row as the column `_state` of a table stores it (TBL-12).

Decisions 0005 and 0013 define the form: a register for each column, the newest deletion of each
family with a column, and a residual for everything else. A register without a value is a cell that
a deletion hid, or a deletion of the whole column: both win against older writes of the column. A
table with `versions = all` has a residual only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from connector.records.ordering import ChangeOrder, OrderBy, OrderPosition
from connector.tables.definition import Column, TableDefinition, Versions
from connector.tables.merge import Cell, CellName, RowState, Tombstone
from connector.tables.stored_definition import NO_IDS, ColumnIds, assign_ids, families_of
from connector.tables.values import Unreadable, read_value, write_value

_RANK: Final = ("commit_timestamp", "tie_breaker", "record_sequence")
_SECTION_BYTES: Final = 8
_rank_of = itemgetter(*_RANK)
_position_of = itemgetter(*OrderPosition._fields)


class StateForm:
    """The stored form of the states of one table: its names are made once for many rows. `ids`
    None: those of a new table.
    """

    def __init__(self, definition: TableDefinition, ids: ColumnIds | None = None) -> None:
        self._definition, ids = definition, ids or assign_ids(NO_IDS, definition)
        columns = definition.columns if definition.versions is Versions.LATEST else ()
        self._registers = [
            (
                ids.by_name[column.name],
                (column, CellName(*column.cell, None), Tombstone(*column.cell, 0, 0)),
            )
            for column in columns
        ]
        self._families = [
            (ids.families[family], Tombstone(family, None, 0, 0))
            for family in families_of(definition)
        ]
        self._late = {column.cell for column in columns if ids.since.get(column.name)}

    def read(self, stored: Mapping[str, Any], values: Iterable[Any]) -> RowState:
        """Return the state of a row. `values` are those of the columns, as `tables.values` has
        them. They are empty if all versions are kept.

        The cells of columns have the canonical bytes of their values. A cell has a timestamp, also
        if a deletion hid its value. A write without a value and a timestamp is the deletion of its
        column.
        """
        order_by = self._definition.order
        # The order is null if no column and no family of the row was written by it.
        orders = [order and read_order(order_by, order) for order in stored["orders"] or ()]
        cells: dict[CellName, Cell] = {}
        tombstones: dict[Tombstone, ChangeOrder] = {}

        entries, at = stored["column_entries"] or (), stored["cell_timestamps"] or ()
        changes = stored["column_orders"]
        # A column that was added after the row was written is not in its state.
        for (n, (column, name, deletion)), value in zip(self._registers, values, strict=True):
            if n >= len(entries) or entries[n] is None:
                continue
            change = orders[changes[n]]
            order = ChangeOrder(change.rank, change.position, entries[n])
            timestamp = at[n] if n < len(at) else None
            if value is None and timestamp is None:
                tombstones[deletion] = order
                continue
            as_bytes = None if value is None else write_value(column.type, column.encoding, value)
            cells[name] = Cell(order, timestamp or 0, as_bytes)
        deleted = stored["family_entries"] or ()
        for n, family in self._families:
            if n < len(deleted) and (index := deleted[n]) is not None:
                change = orders[stored["family_orders"][n]]
                tombstones[family] = ChangeOrder(change.rank, change.position, index)
        for element in stored["residual"] or ():
            _read_element(self._definition, element, cells, tombstones)
        return RowState(cells, tombstones)

    def write(self, state: RowState) -> dict[str, Any]:
        """Return the value of `_state` for a normal state, without the values of the columns."""
        cells, tombstones = dict(state.cells), dict(state.tombstones)
        orders = _Orders(self._definition.order)
        misfits = {
            name: cells[name]
            for _, (column, name, _) in self._registers
            if column.cell in self._late and name in cells and not _fits(column, cells[name].value)
        }
        registers: list[tuple[ChangeOrder, int | None] | None] = [None] * _width(self._registers)
        for n, (_, name, deletion) in self._registers:
            registers[n] = _written(cells, tombstones, name, deletion)
        deletions: list[ChangeOrder | None] = [None] * _width(self._families)
        for n, family in self._families:
            deletions[n] = tombstones.pop(family, None)
        cells |= misfits
        stored = {
            "column_orders": [register and orders.index(register[0]) for register in registers],
            "column_entries": [register and register[0].entry_index for register in registers],
            "cell_timestamps": [register and register[1] for register in registers],
            "family_orders": [deletion and orders.index(deletion) for deletion in deletions],
            "family_entries": [deletion and deletion.entry_index for deletion in deletions],
        }
        residual = None
        if cells or tombstones:
            residual = list(_residual(self._definition, cells, tombstones)) or None
        return {"orders": orders.stored, **stored, "residual": residual}


def _width(slots: Sequence[tuple[int, object]]) -> int:
    return max((n + 1 for n, _ in slots), default=0)


def _fits(column: Column, value: bytes | None) -> bool:
    """Whether a column can hold the value. A cell from before the column may not fit (TBL-8)."""
    read = None if value is None else read_value(column.type, column.encoding, value)
    return not isinstance(read, Unreadable)


def _read_element(
    definition: TableDefinition,
    element: Mapping[str, Any],
    cells: dict[CellName, Cell],
    tombstones: dict[Tombstone, ChangeOrder],
) -> None:
    order = read_order(definition.order, element["order"]["change"])
    order = order._replace(entry_index=element["order"]["entry_index"])
    family, qualifier, at = element["family"], element["qualifier"], element["cell_timestamp"]
    if qualifier is None:
        tombstones[Tombstone(family, None, 0, 0)] = order
    elif element["range_start"] is not None:
        name = Tombstone(family, bytes(qualifier), element["range_start"], element["range_end"])
        tombstones[name] = order
    elif element["value"] is None and at is None:
        tombstones[Tombstone(family, bytes(qualifier), 0, 0)] = order
    else:
        is_latest = definition.versions is Versions.LATEST
        as_bytes = None if element["value"] is None else bytes(element["value"])
        name_of_cell = CellName(family, bytes(qualifier), None if is_latest else at or 0)
        cells[name_of_cell] = Cell(order, at or 0, as_bytes)


def read_order(order_by: OrderBy, stored: Mapping[str, Any]) -> ChangeOrder:
    """Return the order of a change, with the entry index 0. It is the inverse of `write_order`."""
    position = OrderPosition(*_position_of(stored))
    if order_by is OrderBy.COMMIT:
        return ChangeOrder(_rank_of(stored), position, 0)
    number = bytes(stored["sequence_number"])
    starts = range(0, len(number), _SECTION_BYTES)
    sections = (number[start : start + _SECTION_BYTES] for start in starts)
    return ChangeOrder(tuple(map(int.from_bytes, sections)), position, 0)


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
    cells: dict[CellName, Cell],
    tombstones: dict[Tombstone, ChangeOrder],
    name: CellName,
    deletion: Tombstone,
) -> tuple[ChangeOrder, int | None] | None:
    """Take the newest write of a column: its order and cell timestamp, None for a deletion."""
    cell = cells.pop(name, None)
    deleted = tombstones.pop(deletion, None)
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
        CellName(tombstone.family, tombstone.qualifier, None)
        for tombstone in tombstones
        if tombstone.qualifier is not None and (tombstone.start, tombstone.end) == (0, 0)
    }
    for name in sorted({*cells, *whole}) if keeps else ():
        value = cells[name].value if name in cells else None
        deletion = Tombstone(name.family, name.qualifier, 0, 0)
        written = _written(cells, tombstones, name, deletion)
        assert written is not None, name
        order, at = written
        value = None if at is None else value
        yield element(name.family, order, qualifier=name.qualifier, cell_timestamp=at, value=value)
    for tombstone, order in sorted(tombstones.items(), key=lambda item: (item[1], repr(item[0]))):
        if tombstone.qualifier is None:
            if keeps:
                yield element(tombstone.family, order)
        elif (keeps or (tombstone.family, tombstone.qualifier) in mapped) and (
            tombstone.start,
            tombstone.end,
        ) != (0, 0):
            yield element(
                tombstone.family,
                order,
                qualifier=tombstone.qualifier,
                range_start=tombstone.start,
                range_end=tombstone.end,
            )
