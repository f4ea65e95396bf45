"""Decodes upsert topics: a key, and a row or nothing (SRC-4).

The table has the name of the topic. A key with fields gives the key columns. Another key is one
column with the name of the declared key column, or `key`. A value that is no row is the cell
`value`. A record without a value deletes the row.
"""

from __future__ import annotations

from connector.sources.columns import source_name
from connector.sources.model import Commit, Event, ForeignRecord, Row, Skipped
from connector.sources.records import KEY, UNREADABLE, VALUE, Format, poison_of
from connector.sources.rows import RowReader
from connector.sources.tables import KnownTables


class UpsertDecoder:
    """Reads the records of upsert topics.

    Args:
        format: JSON or Avro.
        tables: The tables of the source. New columns are in its news.
    """

    def __init__(self, format: Format, tables: KnownTables) -> None:  # noqa: A002 - its word
        self._rows = RowReader(format, tables, has_zone=True)

    def decode(self, record: ForeignRecord) -> Event:
        """Return the event of a record. For data, it never raises."""
        table, commit = source_name(record.topic), Commit(time=record.timestamp)
        if record.key is None:
            return Skipped("NO_KEY", commit, table)
        if self._rows.tables.is_left_out(table):
            return Skipped("NOT_DECLARED", commit, table)
        try:
            return self._row(record, record.key, commit, table)
        except UNREADABLE as error:
            return poison_of(error, commit, table)

    def _row(self, record: ForeignRecord, raw_key: bytes, commit: Commit, table: str) -> Event:
        key = self._rows.format.fields(raw_key, KEY)
        if key is None:
            return Skipped("NO_KEY", commit, table)
        row = None if record.value is None else self._rows.format.fields(record.value, VALUE)
        plan = self._rows.plan(table, key, None if row is None else row.schema)
        values = self._rows.key(key, plan)
        if row is None:
            return Row(table=table, commit=commit, key=values, deleted=True)
        cells = self._rows.cells(table, row.values, plan)
        return Row(table=table, commit=commit, key=values, cells=cells)
