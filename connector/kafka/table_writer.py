"""Writes rows of Python values to a table (EVO-4, EVO-5)."""

from __future__ import annotations

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
from connector.tables.definition import Column, TableDefinition, compatible, with_fixed
from connector.tables.row_entries import Missing, RowEntries, Unknown
from connector.text import counted
from connector.write_streams.model import StreamKind

LOOK_EVERY_S: Final = 1.0

_Answer = TypeVar("_Answer")
_Keyed = tuple[bytes, tuple[Entry, ...]]


class TableWriter(Generic[_Answer]):
    """Writes rows of a table as dicts, through a producer or a write stream.

    A row has the names of the columns, and values as `connector.values.cell_bytes` takes them. None
    is NULL. A row that was written exists, also if all its columns are NULL.

    With a producer, a method returns the commit timestamp (µs), for `ChangeProducer.reached`. With
    a write stream, it returns its `Append`.

    The published definitions are read before the first row (EVO-1). The family of the presence mark
    is that of the published definition, and a deletion is in its families, too. If they cannot be
    read, rows are written as the table was given.

    For a row with a field that is no column, they are read again, at most once a second. New
    columns of the table are used from then on, also for this row, and `updated_schema` is the
    version of their definition. None: the table has the columns that were given.
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
        self._last, self._look_at = 0, -math.inf
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
        """Read the published definition before the first row, and if a row has fields that are no
        columns. Take from it what decides the existing rows, and the columns of such fields.
        """
        unknown = self._rows.unknown(row for row in rows if isinstance(row, Mapping))
        is_first, now = math.isinf(self._look_at), time.monotonic()
        if not (unknown or is_first) or now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY_S
        try:
            published = self._target.published_tables().get(self.table.name)
        except ConnectorError as error:
            client.log.info("the published definitions were not read: %s", error)
            return
        if published is None or published.definition.source != self.table.source:
            return
        existing = published.definition
        table, new = with_fixed(existing, self.table), list[Column]()
        if not compatible(existing, table):
            cells = {column.cell for column in table.columns}
            new = [c for c in existing.columns if c.name in unknown and c.cell not in cells]
        if new:
            table = replace(table, columns=(*table.columns, *new))
            self.updated_schema = published.version
        families = [column.family for column in existing.columns]
        self._rows = self._rows.with_definition(table, families)

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
