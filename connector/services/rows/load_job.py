"""Appends the rows of files to a pending write stream, and commits it (PUB-6, WRS-15).

1  if the write stream is committed, there is no work
2  check the time of the rows, or that the table is empty
3  append the rows in the order of the files, each at its offset; what is there is not sent again
4  finalize, check again, and commit: all rows become visible together
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from connector.clock import now_us
from connector.errors import (
    ConnectorError,
    ErrorCode,
    InvalidChangeError,
    OffsetError,
    RowErrors,
)
from connector.services.events import OnEvent, info, warning
from connector.services.rows.files import (
    FileFormat,
    FileRow,
    RowFile,
    check_unchanged,
    csv_rows,
    json_rows,
)
from connector.services.rows.load_checks import check_as_of, check_empty
from connector.services.rows.load_report import (
    LoadOptions,
    LoadProgress,
    LoadReport,
    RejectedRow,
    place_of,
)
from connector.services.rows.values import Convert, Misfit, RowMaker, of_arrow, of_json
from connector.services.wait import wait_for_load
from connector.state.rate import RateLimit
from connector.text import counted
from connector.write_streams.model import (
    MAX_APPEND_ROWS,
    Catalog,
    StreamEntry,
    StreamKind,
    StreamState,
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
_FEW: Final = 3


@dataclass(slots=True)
class _Row:
    """A row of an append, and where it comes from."""

    file: RowFile
    row: FileRow
    change: DataChange


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
    columns = [repr(definition.key), *map(repr, definition.columns)]
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
            self._say_others(catalog)
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
            wait_for_load(
                self.config, self.stream, self.definition.name, self.write_stream, self.on_event
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

    # ── checks ────────────────────────────────────────────────────────────────────────────────────

    def _check_may_load(self) -> None:
        """Raises as `load` does."""
        if self.as_of is not None:
            check_as_of(self.config, self.stream, self.as_of)
        else:
            check_empty(self.config, self.stream, self.definition, self.write_stream)

    def _say_others(self, catalog: Catalog) -> None:
        """Say which loads of this session are not complete: the files may have been changed."""
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

    # ── rows ──────────────────────────────────────────────────────────────────────────────────────

    def _append_all(self, session: WriteSession) -> StreamEntry:
        """Append the rows that the write stream lacks, and finalize it. Return its record.

        If an earlier call finalized it, the rows are only checked before the commit.
        """
        for text in session.warnings:
            self.on_event(warning("TOPIC_SETTING", text))
        stream = session.stream(self.name, kind=StreamKind.PENDING)
        retention_us = self.stream.staging_retention_s * 1_000_000
        if stream.state is StreamState.DISCARDED or is_expired(
            stream.entry, now_us(), retention_us
        ):
            raise self._ended(stream.state)
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
        if self.rejected and not self.options.skip_rejected:
            raise self._rows_rejected()
        stream.finalize()
        return stream.entry

    def _check_rows(self, session: WriteSession, stream: WriteStream) -> None:
        """Tell the rows that an earlier call left out. Raise if they may not be left out."""
        for chunk in self._chunks(stream):
            for one in chunk:
                try:
                    session.check_row(one.change)
                except InvalidChangeError as error:
                    self._reject(one.file, one.row, Misfit("", error.problem))
                else:
                    self.rows += 1
        if self.rejected and not self.options.skip_rejected:
            raise self._rows_rejected()

    def _chunks(self, stream: WriteStream) -> Iterator[list[_Row]]:
        """The rows in appends. Rows behind a rejected one are appended, too: so all are checked,
        and a call that skips the rejected ones has less to do.
        """
        most = min(MAX_APPEND_ROWS, self.limit.at_once if self.limit else MAX_APPEND_ROWS)
        chunk: list[_Row] = []
        size = 0
        for file, row in self._rows():
            made = self._change(stream, file, row.values)
            if isinstance(made, Misfit):
                self._reject(file, row, made)
                continue
            chunk.append(_Row(file, row, made))
            size += _size_of(made)
            if len(chunk) == most or size >= APPEND_BYTES:
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk

    def _rows(self) -> Iterator[tuple[RowFile, FileRow]]:
        names, keys = self.maker.names, self.maker.key_names
        for file in self.files:
            if file.format is FileFormat.CSV:
                rows = csv_rows(file, names, keys, self.options.null)
            elif file.format is FileFormat.JSONL:
                rows = json_rows(file, names)
            else:
                from connector.services.rows.parquet import parquet_rows

                rows = parquet_rows(file, names, self.maker.types, keys)
            for row in rows:
                yield file, row

    def _change(
        self, stream: WriteStream, file: RowFile, values: Sequence[object] | Misfit
    ) -> DataChange | Misfit:
        made = values if isinstance(values, Misfit) else self.maker.make(values, _convert(file))
        if isinstance(made, Misfit):
            return made
        row_key, entries = made
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
            None if isinstance(values, Misfit) else self.maker.view(values, _convert(file)),
            "row" if file.format is FileFormat.PARQUET else "line",
        )
        self.rejected += 1
        if len(self.first_rejected) < _FEW:
            self.first_rejected.append(rejected)
        self.on_rejected(rejected)

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    def _commit(self) -> int:
        from connector.services.write_streams import commit_write_streams

        self._check_may_load()
        return commit_write_streams(
            self.config, self.stream.name, [self.write_stream], as_of=self.as_of
        )

    def _rows_rejected(self) -> ConnectorError:
        shown = "; ".join(map(place_of, self.first_rejected))
        further = self.rejected - len(self.first_rejected)
        return ConnectorError(
            ErrorCode.ROWS_REJECTED,
            f"{counted(self.rejected, 'row')} cannot be published. Nothing was committed",
            f"{shown}{f'; and {further:,} more' if further else ''}",
            "Correct these rows in the files and load all of it again. Or load the same files"
            " without these rows (`skip_rejected`), and load them later once they are corrected",
            table=self.definition.name,
            rejected=self.rejected,
        )

    def _ended(self, state: StreamState) -> ConnectorError:
        is_discarded = state is StreamState.DISCARDED
        return ConnectorError(
            ErrorCode.LOAD_ENDED,
            f"An earlier load of these rows, {self.write_stream}, cannot be continued",
            "It was discarded"
            if is_discarded
            else "It had no append for the staging retention of the stream",
            "Load the files with another name of the session. It begins with the first row",
            table=self.definition.name,
            write_stream=self.write_stream,
        )


def _convert(file: RowFile) -> Convert:
    return of_arrow if file.format is FileFormat.PARQUET else of_json


def _size_of(change: DataChange) -> int:
    return len(change.row_key) + sum(len(getattr(one, "value", b"")) for one in change.entries)
