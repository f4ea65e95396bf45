"""Converts changes to a row: key columns, typed columns, and cells without a column (TBL-9,
TBL-22).

A table stores the values of its columns, and a change has bytes. Several bytes can be the same
value, for example `1.5` and `1.50`. Therefore the states of the rows of a table have *canonical*
bytes (`canonical`). They can be joined and compared, whether they come from the table or from
changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from connector.records.model import DataChange, SetCell
from connector.records.ordering import OrderBy, OrderPosition
from connector.records.rejection import Reason, Rejection
from connector.tables.column_names import UNMAPPED, unmapped_name
from connector.tables.definition import TableDefinition
from connector.tables.merge import EMPTY, RowState, join, lift
from connector.tables.values import Unreadable, read_value, write_value


def read_change(definition: TableDefinition, change: DataChange) -> Rejection | None:
    """Return the reason why a change does not fit this table, or None if it fits.

    The first of these reasons is returned: the sequence number is missing in a table ordered by it;
    the key is not readable; a column cannot contain a cell that the change sets. Every cell is
    checked, also one that a later entry of the change replaces. The whole change becomes a dead
    letter (TBL-9).
    """
    if definition.order is OrderBy.SEQUENCE_NUMBER and change.change_sequence_number is None:
        return Rejection(Reason.MISSING_SEQUENCE_NUMBER, Reason.MISSING_SEQUENCE_NUMBER.cause)
    key = definition.key.read_key(change.row_key)
    if isinstance(key, Unreadable):
        return Rejection(Reason.UNREADABLE_VALUE, key.detail)
    columns = {column.cell: column for column in definition.columns}
    for entry in change.entries:
        column = (
            columns.get((entry.family, entry.qualifier)) if isinstance(entry, SetCell) else None
        )
        if column is not None and isinstance(entry, SetCell):
            value = read_value(column.type, column.encoding, entry.value)
            if isinstance(value, Unreadable):
                found = Unreadable(
                    f"{value.expected} in column {column.name} ({unmapped_name(*column.cell)})",
                    entry.value,
                )
                return Rejection(Reason.UNREADABLE_VALUE, found.detail)
    return None


def state_of(
    definition: TableDefinition, deliveries: Iterable[tuple[DataChange, OrderPosition]]
) -> RowState:
    """Return the state of a row of this table with these changes, each at its order position."""
    state = EMPTY
    for change, position in deliveries:
        state = join(state, lift(change, position, definition.order, definition.versions))
    return canonical(definition, state)


def canonical(definition: TableDefinition, state: RowState) -> RowState:
    """Return the state with the canonical bytes of each value that a column shows.

    For example, `007` in an INT64 column becomes `7`. Other cells keep their bytes.
    """
    columns = {column.cell: column for column in definition.columns}
    cells = dict(state.cells)
    for name, cell in state.cells.items():
        column = columns.get((name.family, name.qualifier))
        if column is not None and cell.value is not None:
            value = read_value(column.type, column.encoding, cell.value)
            if not isinstance(value, Unreadable):
                written = write_value(column.type, column.encoding, value)
                cells[name] = cell._replace(value=written)
    return RowState(cells, state.tombstones)


def is_same_row(one: Mapping[str, object] | None, other: Mapping[str, object] | None) -> bool:
    """Return whether two results of `row_of` are equal. A NaN is equal to itself, and -0.0 differs
    from 0.0.
    """
    first, second = (
        row and {name: repr(it) if isinstance(it, float) else it for name, it in row.items()}
        for row in (one, other)
    )
    return first == second


def row_of(
    definition: TableDefinition, row_key: bytes, cells: Mapping[tuple[str, bytes], bytes]
) -> dict[str, object] | None:
    """Return the row that readers see, by column name, or None if there is no row.

    `cells` are the visible cells (`connector.tables.merge.visible`). A cell that does not fit its
    column stays unmapped. This can occur if the cell is older than the column (TBL-8). Without
    `keep_unmapped`, a row needs a cell that a column shows (TBL-7). The key must be readable.
    """
    key = definition.key.read_key(row_key)
    assert not isinstance(key, Unreadable), key.detail
    row: dict[str, object] = {
        part.name: value for part, value in zip(definition.key.parts, key, strict=True)
    }
    rest = dict(cells)
    for column in definition.columns:
        cell = rest.get(column.cell)
        value = None if cell is None else read_value(column.type, column.encoding, cell)
        row[column.name] = None if isinstance(value, Unreadable) else value
        if row[column.name] is not None:
            del rest[column.cell]
    if definition.keep_unmapped:
        row[UNMAPPED] = {unmapped_name(*cell): value for cell, value in rest.items()}
        return row if cells else None
    row[UNMAPPED] = None
    return row if len(rest) < len(cells) else None
