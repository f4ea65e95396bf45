"""Decodes upsert topics: a key, and a row or nothing (SRC-4).

The table has the name of the topic. A key with fields gives the key columns. Another key is one
column with the name of the declared key column, or `key`. A value that is no row is the cell
`value`. A record without a value deletes the row.

A key that is JSON is its value, so `"abc"` is abc, and `{"id":7}` is `{"id": 7}`. A key that is no
JSON is its text. A topic has one form of keys, so that two keys are not one row:

    topic has               key            effect
    keys that are no JSON   "abc"          poison: it may be another row than abc
    keys without fields     {"id":7}       poison
    keys with fields        7, abc         poison
"""

from __future__ import annotations

from typing import Final

from msgspec import Raw

from connector.sources import doubts
from connector.sources.columns import source_name
from connector.sources.model import Commit, Event, ForeignRecord, Row, Skipped
from connector.sources.records import KEY, UNREADABLE, VALUE, Fields, Format, poison_of
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
        self._with_text = set[str]()
        self._with_quotes = set[str]()

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
        self._check_form(table, key)
        row = None if record.value is None else self._rows.format.fields(record.value, VALUE)
        plan = self._rows.plan(table, key, None if row is None else row.schema)
        values = self._rows.key(key, plan)
        if row is None:
            return Row(table=table, commit=commit, key=values, deleted=True)
        cells = self._rows.cells(table, row.values, plan)
        if cells.get(_DELETED) == b"true":
            self._rows.tables.doubt(doubts.deleted_rows(table))
        return Row(table=table, commit=commit, key=values, cells=cells)

    def _check_form(self, table: str, key: Fields) -> None:
        """Raise ValueError for a key of another form than those of the table before."""
        before = self._rows.tables.tables.get(table)
        if before is not None and before.key:
            has_fields = [part.name for part in before.key] != [KEY]
            if has_fields and key.form != "fields":
                raise ValueError("the key of the table has fields, and this key has none")
            if not has_fields and [*key.values] != [KEY]:
                raise ValueError("the key of the table has no fields, and this key has some")
        if key.form == "text":
            if table in self._with_quotes and table not in self._with_text:
                self._rows.tables.doubt(doubts.keys_in_quotes(table))
            self._with_text.add(table)
        elif key.form == "value" and _is_text(key.values[KEY]):
            if table in self._with_text:
                raise ValueError("its key is JSON text in quotes, and other keys are text without")
            self._with_quotes.add(table)


def _is_text(value: object) -> bool:
    """Whether a key without fields is a text of Avro, or of JSON."""
    return isinstance(value, str) or (isinstance(value, bytes | Raw) and bytes(value)[:1] == b'"')


_DELETED: Final = "__deleted"
"""The field that Debezium's `ExtractNewRecordState` adds to deleted rows."""
