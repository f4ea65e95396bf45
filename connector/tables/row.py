"""Converts changes to a row: key columns, typed columns, and cells without a column (TBL-9,
TBL-22).

A table stores the values of its columns, and a change has bytes. Several bytes can be the same
value, for example `1.5` and `1.50`. Therefore the states of the rows of a table have *canonical*
bytes (`RowReader.canonical`). They can be joined and compared, whether they come from the table or
from changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from connector.records.model import MAX_LONG, DataChange, DeleteCells, SetCell
from connector.records.ordering import OrderBy, OrderPosition
from connector.records.rejection import Reason, Rejection
from connector.records.views import Json, view_of_bytes
from connector.tables.column_names import UNMAPPED, unmapped_name
from connector.tables.definition import Column, TableDefinition
from connector.tables.merge import EMPTY, Cell, CellName, RowState, join, lift
from connector.tables.nested import ValueType
from connector.tables.presence import PRESENCE_QUALIFIER
from connector.tables.stored_definition import tolerated
from connector.tables.values import VERBATIM, Unreadable, read_value, view_of_value, write_value


class RowReader:
    """Reads many rows of one table, for one apply: it remembers the values that it read."""

    def __init__(self, definition: TableDefinition, since: Sequence[int] = ()) -> None:
        """`since` is `tolerated` for the table. Without it, no column was added later."""
        self._definition = definition
        self._since = since or tolerated(definition)
        self._columns: dict[tuple[str, bytes], tuple[Column, dict[bytes, object]]] = {
            column.cell: (column, {}) for column in definition.columns
        }
        self._keys: dict[bytes, tuple[object, ...] | Unreadable] = {}
        self._mark = (definition.marks, PRESENCE_QUALIFIER)

    def key(self, row_key: bytes) -> tuple[object, ...] | Unreadable:
        key = self._keys.get(row_key)
        if key is None:
            key = self._keys[row_key] = self._definition.key.read_key(row_key)
        return key

    def fault(self, change: DataChange, ingest_batch: int = MAX_LONG) -> Rejection | None:
        """Return the reason why a change does not fit this table: `read_change`."""
        definition = self._definition
        if definition.order is OrderBy.SEQUENCE_NUMBER and change.change_sequence_number is None:
            return Rejection(Reason.MISSING_SEQUENCE_NUMBER, Reason.MISSING_SEQUENCE_NUMBER.cause)
        key = self.key(change.row_key)
        if isinstance(key, Unreadable):
            return Rejection(Reason.UNREADABLE_VALUE, key.detail)
        details = list[str]()
        for entry in change.entries:
            if not isinstance(entry, SetCell):
                continue
            value = self._value((entry.family, entry.qualifier), entry.value)
            if isinstance(value, Unreadable):
                column, _ = self._columns[entry.family, entry.qualifier]
                if ingest_batch <= self._since[self._definition.columns.index(column)]:
                    continue
                where = f"{value.expected} in column {column.name} ({unmapped_name(*column.cell)})"
                details.append(Unreadable(where, entry.value).detail)
        if not details:
            return None
        return Rejection(Reason.UNREADABLE_VALUE, "; ".join(dict.fromkeys(details)))

    def unreadable(self, change: DataChange) -> Iterator[str]:
        """Yield each column that a change leaves with a value that it cannot hold."""
        written = dict[tuple[str, bytes], bytes | None]()
        for entry in change.entries:
            if isinstance(entry, SetCell):
                written[entry.family, entry.qualifier] = entry.value
            elif isinstance(entry, DeleteCells) and not (entry.range_start or entry.range_end):
                written[entry.family, entry.qualifier] = None
        for cell, value in written.items():
            if value is not None and isinstance(self._value(cell, value), Unreadable):
                yield self._columns[cell][0].name

    def misfits(self, state: RowState) -> set[CellName]:
        """Return the cells with a value that their column cannot hold."""
        return {
            name
            for name, cell in state.cells.items()
            if cell.value is not None
            and isinstance(self._value((name.family, name.qualifier), cell.value), Unreadable)
        }

    def state(self, deliveries: Iterable[tuple[DataChange, OrderPosition]]) -> RowState:
        """Return the state of a row with these changes: `state_of`."""
        state, definition = EMPTY, self._definition
        for change, position in deliveries:
            lifted = lift(change, position, definition.order, definition.versions)
            state = lifted if state is EMPTY else join(state, lifted)
        return self.canonical(state)

    def canonical(self, state: RowState) -> RowState:
        """Return the state with the canonical bytes of each value that a column shows.

        For example, `007` in an INT64 column becomes `7`. The presence mark has no bytes. Other
        cells keep theirs.
        """
        cells = dict(state.cells)
        for name, cell in state.cells.items():
            if cell.value and (name.family, name.qualifier) == self._mark:
                cells[name] = cell._replace(value=b"")
            of_column = self._columns.get((name.family, name.qualifier))
            if of_column is None or cell.value is None or of_column[0].type in VERBATIM:
                continue
            column, _ = of_column
            value = self._value(column.cell, cell.value)
            if not isinstance(value, Unreadable):
                written = write_value(column.type, column.encoding, value)
                cells[name] = Cell(cell.order, cell.cell_timestamp, written)
        return RowState(cells, state.tombstones)

    def row(
        self, key: tuple[object, ...], cells: Mapping[tuple[str, bytes], bytes]
    ) -> dict[str, object] | None:
        """Return the row with these values of the key columns: `row_of`."""
        definition = self._definition
        row: dict[str, object] = {
            part.name: value for part, value in zip(definition.key.parts, key, strict=True)
        }
        rest = {cell: value for cell, value in cells.items() if cell != self._mark}
        for cell, (column, _) in self._columns.items():
            written = cells.get(cell)
            value = None if written is None else self._value(cell, written)
            row[column.name] = None if isinstance(value, Unreadable) else value
            if row[column.name] is not None:
                del rest[cell]
        if definition.keep_unmapped:
            row[UNMAPPED] = {unmapped_name(*cell): value for cell, value in rest.items()}
            return row if cells else None
        row[UNMAPPED] = None
        return row if len(rest) < len(cells) else None

    def _value(self, cell: tuple[str, bytes], written: bytes) -> object | Unreadable:
        """The value of the bytes of a cell. None: no column shows the cell."""
        of_column = self._columns.get(cell)
        if of_column is None:
            return None
        column, values = of_column
        value = values.get(written)
        if value is None:
            value = values[written] = read_value(column.type, column.encoding, written)
        return value


def read_change(definition: TableDefinition, change: DataChange) -> Rejection | None:
    """Return the reason why a change does not fit this table, or None if it fits.

    The first of these reasons is returned: the sequence number is missing in a table ordered by it;
    the key is not readable; columns cannot hold cells that the change sets, which are all named.
    Every cell is checked, also one that a later entry of the change replaces, unless its column has
    `on_unreadable = "null"`. The whole change becomes a dead letter (TBL-9, EVO-11).
    """
    return RowReader(definition).fault(change)


def state_of(
    definition: TableDefinition, deliveries: Iterable[tuple[DataChange, OrderPosition]]
) -> RowState:
    """Return the state of a row of this table with these changes, each at its order position."""
    return RowReader(definition).state(deliveries)


def is_same_row(first: Mapping[str, object] | None, second: Mapping[str, object] | None) -> bool:
    """Return whether two rows are equal. NaN equals NaN, and -0.0 differs from 0.0."""
    return bool(_comparable(first) == _comparable(second))


def _comparable(value: Any) -> Any:
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    if isinstance(value, Mapping):
        return {name: _comparable(item) for name, item in value.items()}
    return value


def view_of_row(definition: TableDefinition, row: Mapping[str, object]) -> Json:
    """Return a result of `row_of` in the form of the JSON view (REC-22)."""
    types: dict[str, ValueType] = {part.name: part.type for part in definition.key.parts}
    types |= {column.name: column.type for column in definition.columns}
    shown = {name: view_of_value(type_, row[name]) for name, type_ in types.items()}
    cells = row[UNMAPPED]
    if isinstance(cells, Mapping):
        return {**shown, UNMAPPED: {name: view_of_bytes(cell) for name, cell in cells.items()}}
    return {**shown, UNMAPPED: None}


def row_of(
    definition: TableDefinition, row_key: bytes, cells: Mapping[tuple[str, bytes], bytes]
) -> dict[str, object] | None:
    """Return the row that readers see, by column name, or None if there is no row.

    `cells` are the visible cells (`connector.tables.merge.visible`). A cell that does not fit its
    column stays unmapped. This can occur if the cell is older than the column (TBL-8). Without
    `keep_unmapped`, a row needs a cell that a column shows (TBL-7) or the presence mark (EVO-12).
    The key must be readable.
    """
    key = definition.key.read_key(row_key)
    assert not isinstance(key, Unreadable), key.detail
    return RowReader(definition).row(key, cells)
