"""From the events of a source to change records (SRC-2, SRC-7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from connector.errors import InvalidChangeError
from connector.errors.records import source_table_truncated, source_value_missing
from connector.records.model import (
    DataChange,
    DeleteCells,
    Entry,
    SetCell,
    Transaction,
    Truncate,
    with_data,
)
from connector.sources.model import (
    ForeignRecord,
    OnMissingValue,
    OnTruncate,
    Poison,
    Released,
    Row,
    TruncatedTable,
)
from connector.tables.definition import Column, TableDefinition
from connector.tables.presence import presence_mark
from connector.tables.row_entries import RowEntries
from connector.tables.values import DataType, Encoding, Unreadable, read_value, write_value
from connector.values import cell_bytes

STREAM_PARTITION: Final = "source"
"""The stream partition of the changes of a bridge."""

RECORD_HEADER: Final = "connector.source"
"""The Kafka header with the foreign record: its topic, Kafka partition and offset."""
POSITION_HEADER: Final = "connector.source.position"
"""The Kafka header with the position in the log of the source."""

MISSING_VALUE: Final = "MISSING_VALUE"
"""The rule of a dead letter whose row has a value that is in no event."""

Headers = list[tuple[str, bytes]]


class Changes:
    """Makes the changes of a bridge. `definition_of` returns the definition of a table of the
    source, or None.
    """

    def __init__(
        self,
        definition_of: Callable[[str], TableDefinition | None],
        *,
        on_truncate: OnTruncate = OnTruncate.DELETE,
        on_missing_value: OnMissingValue = OnMissingValue.LETTER,
    ) -> None:
        self._definition_of = definition_of
        self._on_truncate, self._on_missing_value = on_truncate, on_missing_value
        self._tables: dict[str, _Table] = {}

    def change(self, released: Released) -> DataChange | Truncate | Poison:
        """Return the change of an event. `Poison`: it has none, and becomes a dead letter (SRC-6).

        Raises:
            ConnectorError: A table was truncated, or a row lacks a value, and the settings say that
                the bridge stops then.
        """
        event = released.event
        if isinstance(event, Poison):
            return event
        if isinstance(event, TruncatedTable):
            if self._on_truncate is OnTruncate.STOP:
                raise source_table_truncated(event.table, location_of(released.record))
            at = released.commit_timestamp, released.tie_breaker, _transaction(released)
            return Truncate(STREAM_PARTITION, event.table, *at)
        missing = ", ".join(event.missing)
        if missing and self._on_missing_value is OnMissingValue.STOP:
            raise source_value_missing(event.table, missing, location_of(released.record))
        if missing and self._on_missing_value is OnMissingValue.LETTER:
            detail = f"no event has the value of {missing}: PostgreSQL does not send a large value"
            detail += f" that did not change. Set REPLICA IDENTITY FULL for {event.table}"
            return Poison(MISSING_VALUE, detail, event.commit, event.table)
        definition = self._definition_of(event.table)
        if definition is None:
            detail = f"table {event.table} has no definition"
            return Poison("NO_DEFINITION", detail, event.commit, event.table)
        table = self._tables.get(event.table)
        if table is None or table.definition is not definition:
            table = self._tables[event.table] = _Table(definition)
        try:
            return table.change(released, event)
        except InvalidChangeError as error:
            return Poison(error.rule, str(error), event.commit, event.table)


def headers(released: Released) -> Headers:
    """Return the Kafka headers of a change: the foreign record, and the position in the log."""
    position = released.event.commit.log_position.encode()
    return [(RECORD_HEADER, location_of(released.record).encode()), (POSITION_HEADER, position)]


def location_of(record: ForeignRecord) -> str:
    """Return where a foreign record is: topic, Kafka partition and offset."""
    return f"{record.topic}/{record.kafka_partition}/{record.offset}"


class _Cell(NamedTuple):
    """A cell of a table, and how its bytes are adapted to the column. None: as they are."""

    cell: SetCell
    deletion: DeleteCells
    adapt: Callable[[bytes], bytes] | None


class _Table:
    """Makes the changes of one table."""

    def __init__(self, definition: TableDefinition) -> None:
        self.definition = definition
        self._rows = RowEntries(definition)
        self._mark = presence_mark(definition.marks)
        columns = {column.name: column for column in definition.columns}
        columns |= {c.qualifier.decode("utf-8", "replace"): c for c in definition.columns}
        self._cells = {name: _cell(*c.cell, _adapted(c)) for name, c in columns.items()}

    def change(self, released: Released, row: Row) -> DataChange:
        """Return the change of a row. Raises `InvalidChangeError`."""
        row_key, deletions = self._rows.delete(row.key)
        timestamp = released.commit_timestamp
        entries: list[Entry] = []
        if row.deleted or row.whole:
            entries += deletions
        if not row.deleted:
            cells = self._cells
            for name, value in row.cells.items():
                cell = cells.get(name) or self._unmapped(name)
                if value is not None:
                    if cell.adapt is not None:
                        value = cell.adapt(value)
                    entries.append(with_data(cell.cell, value, timestamp))
                elif not row.whole:
                    entries.append(cell.deletion)
            entries.append(self._mark)
        return DataChange(
            stream_partition=STREAM_PARTITION,
            table=row.table,
            row_key=row_key,
            commit_timestamp=timestamp,
            entries=tuple(entries),
            tie_breaker=released.tie_breaker,
            transaction=_transaction(released),
        )

    def _unmapped(self, name: str) -> _Cell:
        """The cell of a field without a column, in the family of the presence mark."""
        cell = _cell(self.definition.marks, name.encode("utf-8", "surrogatepass"), None)
        if len(self._cells) < MAX_CELLS:
            self._cells[name] = cell
        return cell


MAX_CELLS: Final = 10_000
"""The most cells of a table that are prepared."""


def _cell(family: str, qualifier: bytes, adapt: Callable[[bytes], bytes] | None) -> _Cell:
    return _Cell(SetCell(family, qualifier, b""), DeleteCells(family, qualifier), adapt)


def _transaction(released: Released) -> Transaction | None:
    commit, count = released.event.commit, released.count
    if not count:
        return None
    return Transaction(commit.transaction, commit.sequence, number_of_records_in_transaction=count)


def _adapted(column: Column) -> Callable[[bytes], bytes] | None:
    """How text becomes a cell of a binary column, or of a TIMESTAMP column for which the source has
    local times: they are in UTC. None: the text is the cell.
    """
    type_, encoding = column.type, column.encoding

    def in_utc(text: bytes) -> bytes:
        if text[-1:] == b"Z":
            return text
        try:
            return cell_bytes(type_, text.decode())
        except (InvalidChangeError, UnicodeDecodeError):
            return text

    def in_binary(text: bytes) -> bytes:
        text = in_utc(text) if type_ is DataType.TIMESTAMP else text
        value = read_value(type_, Encoding.TEXT, text)
        return text if isinstance(value, Unreadable) else write_value(type_, encoding, value)

    if encoding is Encoding.BINARY:
        return in_binary
    return in_utc if type_ is DataType.TIMESTAMP else None
