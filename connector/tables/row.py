"""Converts a change to a row: key columns, typed columns, and cells without a column (TBL-9,
TBL-22).
"""

from __future__ import annotations

from collections.abc import Mapping

from connector.records.model import DataChange, SetCell
from connector.records.ordering import OrderBy
from connector.records.rejection import Reason, Rejection
from connector.tables.column_names import UNMAPPED, unmapped_name
from connector.tables.definition import TableDefinition
from connector.tables.values import Unreadable, read_value


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
