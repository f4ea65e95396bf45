"""Writes rows of Python values to a table (EVO-4, EVO-5)."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, Generic, TypeVar, cast, overload

from connector.clock import now_us
from connector.errors import ConnectorError, InvalidChangeError, argument_invalid
from connector.errors.write_streams import rows_refused
from connector.kafka import client
from connector.kafka.produce.producer import ChangeProducer
from connector.kafka.write_streams.queue import Append
from connector.kafka.write_streams.stream import WriteStream
from connector.records.model import SERVER_TIME, DataChange, Entry
from connector.tables.definition import TableDefinition, compatible, with_fixed
from connector.tables.published import PublishedTable
from connector.tables.row_entries import Missing, RowEntries, Unknown
from connector.text import counted
from connector.write_streams.model import StreamKind

LOOK_EVERY_S: Final = 1.0
RETRY_EVERY_S: Final = 30.0

_Answer = TypeVar("_Answer")
_Keyed = tuple[bytes, tuple[Entry, ...]]


class TableWriter(Generic[_Answer]):
    """Writes rows of a table as dicts, through a producer or a write stream.

    A row has the names of the columns, and values as `connector.values.cell_bytes` takes them. None
    is NULL. A row that was written exists, also if all its columns are NULL.

    With a producer, a method returns the commit timestamp (µs), for `ChangeProducer.reached`. With
    a write stream, it returns its `Append`.

    The published definition of the table is read before the first row (EVO-1). The family of the
    presence mark is that of the published definition, and a deletion is in its families, too. Until
    there is one that can be read, rows are written as the table was given, and the next row after
    30 seconds asks again.

    For a row with a field that is no column, it is read again, at most once a second. A column of
    the definition that was read last is used from the first row that has its field on, and
    `updated_schema` is the version of the definition. None: the table has the columns that were
    given.
    """

    @overload
    def __init__(
        self: TableWriter[int],
        target: ChangeProducer,
        table: TableDefinition,
        *,
        stream_partition: str,
        missing: Missing | str = ...,
        unknown: Unknown | str = ...,
    ) -> None: ...

    @overload
    def __init__(
        self: TableWriter[Append],
        target: WriteStream,
        table: TableDefinition,
        *,
        missing: Missing | str = ...,
        unknown: Unknown | str = ...,
    ) -> None: ...

    def __init__(
        self,
        target: ChangeProducer | WriteStream,
        table: TableDefinition,
        *,
        stream_partition: str = "",
        missing: Missing | str = Missing.KEEP,
        unknown: Unknown | str = Unknown.ERROR,
    ) -> None:
        """Prepare the columns of the table. Nothing is sent.

        Args:
            target: The producer, or a write stream of a session.
            table: The definition, for example `load_config("connector.toml").tables["orders"]`.
            stream_partition: The stream partition of the changes of a producer.
            missing: `"keep"`, `"null"` or `"default"`: what becomes of a column that a row lacks
                (`connector.tables.row_entries.Missing`).
            unknown: `"error"`, `"keep"` or `"drop"`: what becomes of a field that is no column.

        Raises:
            ConfigError: An argument is not allowed.
        """
        _check("missing", missing, Missing)
        _check("unknown", unknown, Unknown)
        if isinstance(target, ChangeProducer) != bool(stream_partition):
            allowed = "the name of a stream partition, with a producer, and only there"
            raise argument_invalid("stream_partition", stream_partition, allowed)
        self._target, self._stream_partition = target, stream_partition
        self._rows = RowEntries(table, Missing(missing), Unknown(unknown))
        self._last, self._looked_at = 0, -math.inf
        self._published: PublishedTable | None = None
        self.updated_schema: int | None = None

    @property
    def table(self) -> TableDefinition:
        return self._rows.definition

    @property
    def unknown_fields(self) -> Counter[str]:
        """How often a field that is no column was kept or dropped, by name."""
        return self._rows.unknown_fields

    def upsert(
        self, row: Mapping[str, object], *, commit_timestamp: int | None = None, **fields: Any
    ) -> _Answer:
        """Write one row.

        Args:
            row: The values by column. Each key column has one.
            commit_timestamp: The commit time of the source, in microseconds. None: now, and later
                than the one before. A pending or buffered write stream has none.
            fields: Further fields of `DataChange`, for example `tie_breaker`.

        Returns:
            The commit timestamp, or the `Append`.

        Raises:
            RowErrors: The row is refused, under the index 0. Nothing is sent.
            ConnectorError: As `ChangeProducer.send` or `WriteStream.append`.
        """
        return self._write([row], RowEntries.upsert, commit_timestamp, None, fields)

    def delete(self, key: object, *, commit_timestamp: int | None = None, **fields: Any) -> _Answer:
        """Delete one row.

        Args:
            key: The values of the key columns: a dict, a tuple in their order, or the only value.
            commit_timestamp: As for `upsert`.
            fields: As for `upsert`.

        Returns:
            As `upsert`.

        Raises:
            RowErrors: The key is refused, under the index 0. Nothing is sent.
            ConnectorError: As `ChangeProducer.send` or `WriteStream.append`.
        """
        return self._write(
            [key], lambda rows, key, _: rows.delete(key), commit_timestamp, None, fields
        )

    def append(
        self,
        rows: Iterable[Mapping[str, object]],
        *,
        offset: int | None = None,
        commit_timestamp: int | None = None,
        **fields: Any,
    ) -> _Answer:
        """Write rows together, with one commit timestamp.

        Args:
            rows: The rows, as for `upsert`. A write stream takes 1 to 1,000.
            offset: The offset of the first row in the write stream (`WriteStream.append`). A
                producer has none.
            commit_timestamp: As for `upsert`.
            fields: As for `upsert`.

        Returns:
            As `upsert`.

        Raises:
            RowErrors: Rows are refused. `errors` has the error of each by its index. Nothing is
                sent.
            ConnectorError: As `ChangeProducer.send_many` or `WriteStream.append`.
        """
        if offset is not None and isinstance(self._target, ChangeProducer):
            raise argument_invalid("offset", offset, "None: a producer has no offsets")
        return self._write(rows, RowEntries.upsert, commit_timestamp, offset, fields)

    def _write(
        self,
        rows: Iterable[Any],
        make: Callable[[RowEntries, Any, int], _Keyed],
        commit_timestamp: int | None,
        offset: int | None,
        fields: Mapping[str, Any],
    ) -> _Answer:
        is_staged = (
            isinstance(self._target, WriteStream) and self._target.kind is not StreamKind.COMMITTED
        )
        if commit_timestamp is None and not is_staged:
            commit_timestamp = self._last = max(now_us(), self._last + 1)
        cell_timestamp = SERVER_TIME if commit_timestamp is None else commit_timestamp
        changes: list[DataChange] = []
        errors: dict[int, InvalidChangeError] = {}
        given = list(rows)
        self._take_published(given)
        for index, row in enumerate(given):
            try:
                changes.append(
                    self._change(*make(self._rows, row, cell_timestamp), commit_timestamp, fields)
                )
            except InvalidChangeError as error:
                error.in_batch(index)
                errors[index] = error
        if errors:
            raise rows_refused(
                self.table.name,
                counted(len(errors), "row"),
                "; ".join(str(error) for error in list(errors.values())[:3]),
                errors,
            )
        if isinstance(self._target, WriteStream):
            return cast("_Answer", self._target.append(changes, offset))
        if len(changes) == 1:
            self._target.send(changes[0])
        else:
            self._target.send_many(changes)
        return cast("_Answer", commit_timestamp)

    def _take_published(self, rows: Iterable[Any]) -> None:
        """Read the published definition if it is time to. Take from it the columns of fields that
        are no columns yet. If it was read, take the families of the table, too.
        """
        unknown = self._rows.unknown(row for row in rows if isinstance(row, Mapping))
        age = time.monotonic() - self._looked_at
        is_read = (unknown and age >= LOOK_EVERY_S) or (
            self._published is None and age >= RETRY_EVERY_S
        )
        if is_read:
            self._published = self._read_published() or self._published
            self._looked_at = time.monotonic()
        if self._published is None:
            return
        existing = self._published.definition
        new = [column for column in existing.columns if column.name in unknown]
        if not (new or is_read):
            return
        table = with_fixed(existing, self.table)
        cells = {column.cell for column in table.columns}
        new = [column for column in new if column.cell not in cells]
        if new and not compatible(existing, table):
            table = replace(table, columns=(*table.columns, *new))
            self.updated_schema = self._published.version
        families = [column.family for column in existing.columns]
        self._rows = self._rows.with_definition(table, families)

    def _read_published(self) -> PublishedTable | None:
        try:
            published = self._target.published_tables().get(self.table.name)
        except ConnectorError as error:
            level = logging.INFO if error.code == "TOPIC_MISSING" else logging.WARNING
            client.log.log(level, "the published definitions were not read: %s", error)
            return None
        is_same = published is not None and published.definition.source == self.table.source
        return published if is_same else None

    def _change(
        self,
        row_key: bytes,
        entries: tuple[Entry, ...],
        commit_timestamp: int | None,
        fields: Mapping[str, Any],
    ) -> DataChange:
        if isinstance(self._target, WriteStream):
            return self._target.row(
                table=self.table.source,
                row_key=row_key,
                entries=entries,
                commit_timestamp=commit_timestamp,
                **fields,
            )
        assert commit_timestamp is not None
        return DataChange(
            stream_partition=self._stream_partition,
            table=self.table.source,
            row_key=row_key,
            commit_timestamp=commit_timestamp,
            entries=entries,
            **fields,
        )


def _check(name: str, value: str, choices: type[Missing | Unknown]) -> None:
    allowed = [str(choice) for choice in choices]
    if value not in allowed:
        raise argument_invalid(name, value, f"one of {', '.join(allowed)}")
