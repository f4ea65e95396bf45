"""Loads existing rows into a table, through a pending write stream (PUB-6, REC-23, WRS-15).

1  if the write stream is committed, there is no work
2  check the time of the rows, or that the table is empty
3  append the rows in the order of the files, each at its offset; what is there is not sent again
4  finalize, check again, and commit: all rows become visible together
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from connector import warehouse as warehouse_paths
from connector.clock import now_us
from connector.config.settings import find_table
from connector.errors import InvalidChangeError, OffsetError, RowErrors, argument_invalid
from connector.errors.records import load_ended, rows_rejected, table_not_loadable
from connector.events import OnEvent, info, log_event, warning
from connector.records.ordering import OrderBy
from connector.records.views import Hidden
from connector.services.rows.files import (
    FileFormat,
    FileRow,
    RowFile,
    check_unchanged,
    describe_file,
    file_columns,
    file_rows,
)
from connector.services.rows.load_checks import check_as_of, check_empty
from connector.services.rows.values import Convert, Misfit, RowMaker, of_arrow, of_json
from connector.services.wait import wait_for_commit
from connector.services.warehouses import warehouse_of
from connector.state.pace import RateLimit, check_rate
from connector.tables.alterations import with_overrides
from connector.tables.definition import with_fixed
from connector.tables.stored_definition import from_properties
from connector.text import FEW, counted, one_of
from connector.write_streams.model import (
    MAX_APPEND_ROWS,
    Catalog,
    StreamEntry,
    StreamKind,
    StreamState,
    check_name,
)
from connector.write_streams.rules import is_expired

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig
    from connector.kafka import WriteSession, WriteStream
    from connector.records.model import DataChange
    from connector.tables.definition import TableDefinition

APPEND_BYTES: Final = 4 * 1024 * 1024
TRANSACTION_ROWS: Final = 10_000
MAX_NAME_LENGTH: Final = 64


def load(
    config: ConnectorConfig,
    table: str,
    files: Iterable[str | Path],
    *,
    as_of: int | None = None,
    options: LoadOptions | None = None,
    on_event: OnEvent = log_event,
    on_progress: Callable[[LoadProgress], None] = lambda progress: None,
    on_rejected: Callable[[RejectedRow], None] = lambda row: None,
) -> LoadReport:
    """Publish existing rows of a table as a backfill. Nothing is visible before all of it is there.

    The process may be killed at any time. The next call with the same files goes on after the last
    row that Kafka has, and a call after the commit does nothing. For example:
    `load(config, "orders", ["orders.parquet"], as_of=exported_at).rows`.

    Args:
        config: It has the table.
        table: The name of the table. Its order must be by commit.
        files: CSV with the column names in the first line, JSON lines, or Parquet. Columns that
            they do not have are NULL.
        as_of: The time (µs) at which the rows were exported. Changes that are newer keep their
            values. None: the table must be empty, and the time is that of the commit.
        options: The session, the format of the files, the rate, and when the call returns. None:
            the defaults.
        on_event: Receives events.
        on_progress: Receives the number of `rows`, of `repeated` and of `rejected` ones after each
            append.
        on_rejected: Receives each row that cannot be published, also if an earlier call did.

    Returns:
        The `write_stream` with its `rows`: `repeated` were appended by an earlier call, `rejected`
        were left out. Without a `commit_timestamp` (µs), they are not committed. `was_committed`:
        an earlier call committed them, and this one did nothing.

    Raises:
        ConfigError: There is no such table, or an argument is not allowed.
        ConnectorError: Rows cannot be published (`ROWS_REJECTED`), a file cannot be read or was
            changed, `as_of` is below the horizon, or the table is not empty. Nothing is committed.
        WriterConflictError: Another session of this name was opened.
        WriteStreamError, DeliveryError, TopicError, BrokerError, TableError: As for
            `WriteSession` and `commit_write_streams`.
    """
    definition, options = _as_stored(config, find_table(config, table)), options or LoadOptions()
    paths = [] if isinstance(files, str | Path) else [Path(path) for path in files]
    if not paths:
        raise argument_invalid("files", files, "a list of one or more paths")
    if as_of is not None and not 0 < as_of <= now_us():
        allowed = "a time in microseconds that is not in the future"
        raise argument_invalid("as_of", as_of, allowed)
    if definition.order is not OrderBy.COMMIT:
        raise table_not_loadable(definition.name)
    described = [describe_file(path, options.file_format) for path in paths]
    job = LoadJob(config, definition, described, as_of, options, on_event, on_progress, on_rejected)
    _check_columns(job)
    return job.run()


def _as_stored(config: ConnectorConfig, definition: TableDefinition) -> TableDefinition:
    """The definition with the columns of operators (EVO-2), and what an existing table fixed."""
    from connector.lake.overrides import Overrides
    from connector.lake.plain_table import newest_stored, open_table

    overrides = Overrides(warehouse_of(config)).columns().get(definition.name, ())
    definition = with_overrides(definition, overrides)
    path = warehouse_paths.table(warehouse_of(config), definition.name)
    if newest_stored(path) is None:
        return definition
    existing, _ = from_properties(open_table(path, table=definition.name).properties)
    return with_fixed(existing, definition)


def _check_columns(job: LoadJob) -> None:
    """Raise `ConnectorError` if a file has wrong columns. Warn of those that it does not have."""
    maker = job.maker
    for file in job.files:
        columns = file_columns(file, maker.names, maker.types, maker.key_names)
        if columns is None:
            continue
        if missing := [name for name in maker.names if name not in columns]:
            text = f"{file.path} does not have {', '.join(missing)}: NULL in all of its rows"
            job.on_event(warning("COLUMNS_ABSENT", text, columns=missing))


@dataclass(slots=True)
class _Row:
    """A row of an append, and where it comes from."""

    file: RowFile
    row: FileRow
    change: DataChange


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How rows are loaded.

    Attributes:
        session: The name of the write session. None: one for the table. Give each parallel worker
            its own.
        file_format: `csv`, `jsonl` or `parquet`. None: the end of each file name says it.
        null: The text of a CSV field without a value. A field in quotes always has one.
        max_changes_per_s: The limit of rows a second, without bursts.
        skip_rejected: Whether to commit without the rows that cannot be published.
        commit: False: finalize the write stream only. Commit it with others later
            (`commit_write_streams`, with the same `as_of`).
        wait: Whether to return only when the table contains the rows.

    Raises:
        ConfigError: A value is not allowed.
    """

    session: str | None = None
    file_format: str | None = None
    null: str = ""
    max_changes_per_s: float | None = None
    skip_rejected: bool = False
    commit: bool = True
    wait: bool = False

    def __post_init__(self) -> None:
        if self.session is not None:
            check_name("session", self.session)
        if self.file_format is not None and self.file_format not in list(FileFormat):
            allowed = f"one of {one_of(FileFormat)}, or None"
            raise argument_invalid("file_format", self.file_format, allowed)
        check_rate(self.max_changes_per_s)


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """A row that cannot be published. As text, it is its location and the reason, in one line.

    - `line` is the number of the `unit` (`line`, or in Parquet `row`) in the file, from 1.
    - `column` is the column whose value does not fit. It is empty if there is not exactly one.
    - `row` has the values by column, as JSON that can be loaded once it is corrected. None: they
      are not known.
    """

    file: str
    line: int
    column: str
    reason: str
    row: Mapping[str, Any] | None
    unit: Hidden[str] = "line"

    def __str__(self) -> str:
        column = f", column {self.column}" if self.column else ""
        return f"{self.file}, {self.unit} {self.line}{column}: {self.reason}"


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """The progress of a load: appended `rows`, of which an earlier call appended `repeated`."""

    rows: int
    repeated: int
    rejected: int


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The result of a load. `load` documents the fields."""

    table: str
    write_stream: str
    rows: int
    repeated: int
    rejected: int
    commit_timestamp: int | None
    was_committed: bool = False


def name_of(
    definition: TableDefinition,
    files: Sequence[RowFile],
    as_of: int | None,
    null: str,
    size_limits: tuple[int, int],
) -> str:
    """Return the name of the write stream of a load within its session.

    It follows from the table and its columns, the contents of the files in their order, `as_of`,
    and all else that decides which rows are rejected: a row that an earlier call left out has no
    offset. The names of the files do not matter.
    """
    columns = [repr(definition.key), *map(repr, definition.columns), definition.marks]
    contents = [[file.format, file.size, file.digest] for file in files]
    text = json.dumps(
        [3, definition.name, definition.source, columns, contents, as_of, null, size_limits]
    )
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass
class LoadJob:
    """One call of `load`, with its arguments, and how far it is."""

    config: ConnectorConfig
    definition: TableDefinition
    files: list[RowFile]
    as_of: int | None
    options: LoadOptions
    on_event: OnEvent
    on_progress: Callable[[LoadProgress], None]
    on_rejected: Callable[[RejectedRow], None]

    def __post_init__(self) -> None:
        rate = self.options.max_changes_per_s
        self.stream = self.config.streams[self.definition.stream]
        self.maker = RowMaker(self.definition, self.as_of)
        self.session = self.options.session or f"load-{self.definition.name}"[:MAX_NAME_LENGTH]
        self.limit = None if rate is None else RateLimit(rate)
        self.rows = self.repeated = self.rejected = 0
        self.first_rejected: list[RejectedRow] = []

    @cached_property
    def name(self) -> str:
        """The name of the write stream in its session. It asks Kafka for the size limits."""
        from connector.kafka import topics

        facts = topics.describe(self.config.kafka, self.stream.topic)
        limits = self.stream.limits.max_record_bytes, facts.max_message_bytes
        return name_of(self.definition, self.files, self.as_of, self.options.null, limits)

    @property
    def write_stream(self) -> str:
        return f"{self.session}/{self.name}"

    def run(self) -> LoadReport:
        from connector.kafka import Batching, WriteSession, topics
        from connector.kafka.write_streams import catalog as catalogs

        kafka, topic = self.config.kafka, self.stream.topic
        catalog = catalogs.read(
            kafka,
            catalogs.describe(kafka, topic),
            is_complete=False,
            topic_id=topics.describe(kafka, topic).topic_id,
        )
        entry = catalog.streams.get(self.write_stream)
        if entry is None or entry.state is not StreamState.COMMITTED:
            self._check_may_load()
            self._report_others(catalog)
            with WriteSession(
                kafka,
                topic,
                self.session,
                batching=Batching(transaction_rows=TRANSACTION_ROWS),
                limits=self.stream.limits,
                registry=self.config.registry,
                staging_retention_s=self.stream.staging_retention_s,
            ) as session:
                entry = self._append_all(session)
        timestamp = entry.commit_timestamp or None
        was_committed = entry.state is StreamState.COMMITTED
        if was_committed:
            self.rows = self.repeated = entry.end
            text = f"these rows were committed before, as {self.write_stream}"
            self.on_event(info("LOADED_BEFORE", text, write_stream=self.write_stream))
        elif self.options.commit:
            timestamp = self._commit()
        if self.options.wait and timestamp is not None and entry.end:
            wait_for_commit(
                *(self.config, self.stream, {self.write_stream: entry}, timestamp, self.on_event),
                tables=[self.definition.name],
            )
        return LoadReport(
            self.definition.name,
            self.write_stream,
            self.rows,
            self.repeated,
            self.rejected,
            timestamp,
            was_committed,
        )

    def _check_may_load(self) -> None:
        if self.as_of is not None:
            check_as_of(self.config, self.stream, self.as_of)
        else:
            check_empty(self.config, self.stream, self.definition, self.write_stream)

    def _report_others(self, catalog: Catalog) -> None:
        """Warn of loads of this session that are not complete: the files may have been changed."""
        for name, entry in catalog.streams.items():
            if (
                name.startswith(f"{self.session}/")
                and name != self.write_stream
                and entry.state is StreamState.OPEN
                and entry.kind is StreamKind.PENDING
            ):
                self.on_event(
                    warning(
                        "LOAD_INCOMPLETE",
                        f"an earlier load of this session, {name}, is not complete, and had other"
                        " files, another time or other size limits: if the files were changed"
                        f" since, it has {counted(entry.end, 'row')} of before the change. They are"
                        " not visible, and this load begins with its first row",
                        write_stream=name,
                    )
                )

    def _append_all(self, session: WriteSession) -> StreamEntry:
        """Append the rows that the write stream lacks, and finalize it. Return its record.

        If an earlier call finalized it, the rows are only checked before the commit.
        """
        for text in session.warnings:
            self.on_event(warning("TOPIC_SETTING", text))
        stream = session.stream(self.name, kind=StreamKind.PENDING)
        retention_us = self.stream.staging_retention_s * 1_000_000
        if stream.state is StreamState.DISCARDED:
            raise load_ended(self.definition.name, self.write_stream, "It was discarded")
        if is_expired(stream.entry, now_us(), retention_us):
            cause = "It had no append for the staging retention of the stream"
            raise load_ended(self.definition.name, self.write_stream, cause)
        if stream.state is not StreamState.OPEN:
            if stream.state is StreamState.FINALIZED and self.options.commit:
                self._check_rows(session, stream)
            self.rows = self.repeated = stream.entry.end
            return stream.entry
        self.repeated = stream.next_offset()
        if self.repeated:
            text = f"{counted(self.repeated, 'row')} are there from an earlier call"
            self.on_event(info("LOAD_CONTINUED", text, rows=self.repeated))
        for chunk in self._chunks(stream):
            self._append(stream, chunk)
            self.on_progress(LoadProgress(self.rows, min(self.rows, self.repeated), self.rejected))
        session.flush()
        for file in self.files:
            check_unchanged(file)
        if not self.rows and not self.rejected:
            self.on_event(warning("FILES_EMPTY", "the files have no rows: nothing is loaded"))
        self._check_rejected()
        stream.finalize()
        return stream.entry

    def _check_rows(self, session: WriteSession, stream: WriteStream) -> None:
        """Report the rows that an earlier call left out. Raise if they may not be left out."""
        for chunk in self._chunks(stream):
            for row in chunk:
                try:
                    session.check_row(row.change)
                except InvalidChangeError as error:
                    self._reject(row.file, row.row, Misfit("", error.problem))
                else:
                    self.rows += 1
        self._check_rejected()

    def _chunks(self, stream: WriteStream) -> Iterator[list[_Row]]:
        """The rows in appends. Rows behind a rejected one are appended, too: so all are checked,
        and a call that skips the rejected ones has less to do.
        """
        most = min(MAX_APPEND_ROWS, self.limit.at_once if self.limit else MAX_APPEND_ROWS)
        chunk: list[_Row] = []
        size = 0
        for file, row in self._rows():
            change = self._change(stream, file, row.values)
            if isinstance(change, Misfit):
                self._reject(file, row, change)
                continue
            chunk.append(_Row(file, row, change))
            size += _size_of(change)
            if len(chunk) == most or size >= APPEND_BYTES:
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk

    def _rows(self) -> Iterator[tuple[RowFile, FileRow]]:
        maker, null = self.maker, self.options.null
        for file in self.files:
            for row in file_rows(file, maker.names, maker.types, maker.key_names, null):
                yield file, row

    def _change(
        self, stream: WriteStream, file: RowFile, values: Sequence[object] | Misfit
    ) -> DataChange | Misfit:
        if isinstance(values, Misfit):
            return values
        content = self.maker.make(values, convert_of(file))
        if isinstance(content, Misfit):
            return content
        row_key, entries = content
        try:
            return stream.row(table=self.definition.source, row_key=row_key, entries=entries)
        except InvalidChangeError as error:
            return Misfit("", error.problem)

    def _append(self, stream: WriteStream, chunk: list[_Row]) -> None:
        """Append rows at the next offset, without those that are too large."""
        while chunk:
            changes = [row.change for row in chunk]
            try:
                if self.rows + len(chunk) > self.repeated:
                    self._pace(len(chunk))
                stream.append(changes, self.rows)
            except RowErrors as error:
                for index, fault in error.errors.items():
                    row = chunk[index]
                    self._reject(row.file, row.row, Misfit("", fault.problem))
                chunk = [row for index, row in enumerate(chunk) if index not in error.errors]
            except OffsetError as error:
                if error.code != "OFFSET_OVERLAP":  # an earlier call had other limits
                    raise
                chunk = chunk[error.expected - self.rows :]
                self.rows = error.expected
            else:
                self.rows += len(chunk)
                return

    def _pace(self, rows: int) -> None:
        if self.limit is not None and (wait_s := self.limit.wait_s(time.monotonic(), rows)):
            time.sleep(wait_s)

    def _reject(self, file: RowFile, row: FileRow, misfit: Misfit) -> None:
        values = row.values
        rejected = RejectedRow(
            str(file.path),
            row.number,
            misfit.column,
            misfit.detail,
            None if isinstance(values, Misfit) else self.maker.view(values, convert_of(file)),
            "row" if file.format is FileFormat.PARQUET else "line",
        )
        self.rejected += 1
        if len(self.first_rejected) < FEW:
            self.first_rejected.append(rejected)
        self.on_rejected(rejected)

    def _commit(self) -> int:
        from connector.services.write_streams import commit_write_streams

        self._check_may_load()
        return commit_write_streams(
            self.config, self.stream.name, [self.write_stream], as_of=self.as_of
        )

    def _check_rejected(self) -> None:
        """Raise `ConnectorError` if rows were rejected and may not be left out."""
        if self.rejected and not self.options.skip_rejected:
            examples = [str(row) for row in self.first_rejected]
            if (further := self.rejected - len(examples)) > 0:
                examples.append(f"and {further:,} more")
            rows = counted(self.rejected, "row")
            raise rows_rejected(self.definition.name, self.rejected, rows, "; ".join(examples))


def convert_of(file: RowFile) -> Convert:
    """How the values of a file become values of columns."""
    return of_arrow if file.format is FileFormat.PARQUET else of_json


def _size_of(change: DataChange) -> int:
    return len(change.row_key) + sum(len(getattr(entry, "value", b"")) for entry in change.entries)
