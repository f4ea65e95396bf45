"""Loads existing rows into a table, through a pending write stream (PUB-6, REC-23)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from connector.clock import now_us
from connector.config.settings import find_table
from connector.errors import ConnectorError, ErrorCode, argument_invalid
from connector.records.ordering import OrderBy
from connector.services.events import OnEvent, log_event, warning
from connector.services.rows.files import FileFormat, RowFile, csv_columns, describe_file, placed
from connector.services.rows.load_job import LoadJob
from connector.services.rows.load_report import LoadProgress, LoadReport, RejectedRow
from connector.services.rows.values import RowMaker
from connector.state.rate import RateLimit, check_rate
from connector.text import one_of
from connector.write_streams.model import check_name

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig, StreamConfig
    from connector.tables.definition import TableDefinition

_NAME_LENGTH: Final = 64


def load(
    config: ConnectorConfig,
    table: str,
    files: Iterable[str | Path],
    *,
    as_of: int | None = None,
    session: str | None = None,
    file_format: str | None = None,
    null: str = "",
    max_changes_per_s: float | None = None,
    skip_rejected: bool = False,
    commit: bool = True,
    wait: bool = False,
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
        session: The name of the write session. None: one for the table. Give each parallel worker
            its own.
        file_format: `csv`, `jsonl` or `parquet`. None: the end of each file name says it.
        null: The text of a CSV field without a value. A field in quotes always has one.
        max_changes_per_s: The limit of rows a second, without bursts.
        skip_rejected: Whether to commit without the rows that cannot be published.
        commit: False: finalize the write stream only. Commit it with others later
            (`commit_write_streams`, with the same `as_of`).
        wait: Whether to return only when the table contains the rows.
        on_event: Receives events.
        on_progress: Is called after each append.
        on_rejected: Receives each row that cannot be published, also if an earlier call did.

    Returns:
        The result.

    Raises:
        ConfigError: There is no such table, or an argument is not allowed.
        ConnectorError: Rows cannot be published (`ROWS_REJECTED`), a file cannot be read or was
            changed, `as_of` is below the horizon, or the table is not empty. Nothing is committed.
        WriterConflictError: Another session of this name was opened.
        WriteStreamError, DeliveryError, TopicError, BrokerError, RegistryError, TableError: As for
            `WriteSession` and `commit_write_streams`.
    """
    definition = find_table(config, table)
    paths = _checked(files, as_of, file_format, null, max_changes_per_s)
    session = check_name("session", session or f"load-{table}"[:_NAME_LENGTH])
    _check_definition(definition)
    found = [
        describe_file(path, FileFormat(file_format) if file_format else None) for path in paths
    ]
    maker = RowMaker(definition, as_of)
    _check_columns(found, maker, on_event)
    stream = config.streams[definition.stream]
    job = LoadJob(
        config,
        stream,
        definition,
        found,
        maker,
        as_of,
        session,
        name_of(definition, found, as_of, null, _size_limits(config, stream)),
        null,
        None if max_changes_per_s is None else RateLimit(max_changes_per_s),
        skip_rejected,
        on_event,
        on_progress,
        on_rejected,
    )
    return job.run(commit=commit, wait=wait)


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


def _size_limits(config: ConnectorConfig, stream: StreamConfig) -> tuple[int, int]:
    """The limits of the bytes of a record: that of the stream, and that of its topic."""
    from connector.kafka import topics

    facts = topics.describe(config.kafka, stream.topic)
    return stream.limits.max_record_bytes, facts.max_message_bytes


def _checked(
    files: object, as_of: object, file_format: object, null: object, max_changes_per_s: object
) -> list[Path]:
    """Return the paths of the files. Raises `ConfigError` for an argument that is not allowed."""
    if isinstance(files, str | bytes | Path) or not isinstance(files, Iterable):
        raise argument_invalid("files", files, "a list of paths")
    paths = list(files)
    if not paths or not all(isinstance(path, str | Path) for path in paths):
        raise argument_invalid("files", paths, "a list of one or more paths")
    if as_of is not None and not (type(as_of) is int and 0 < as_of <= now_us()):
        allowed = "a time in microseconds that is not in the future"
        raise argument_invalid("as_of", as_of, allowed)
    if file_format is not None and file_format not in list(FileFormat):
        raise argument_invalid("file_format", file_format, f"one of {one_of(FileFormat)}, or None")
    if not isinstance(null, str):
        raise argument_invalid("null", null, "text")
    check_rate(max_changes_per_s)
    return [Path(path) for path in paths]


def _check_definition(definition: TableDefinition) -> None:
    if definition.order is not OrderBy.COMMIT:
        raise ConnectorError(
            ErrorCode.TABLE_NOT_LOADABLE,
            f"{definition.name} is ordered by change sequence numbers",
            "Rows of a file have no such numbers, so it is not known which changes are newer",
            "Publish the rows as changes, each with its change sequence number",
            table=definition.name,
        )


def _check_columns(files: Iterable[RowFile], maker: RowMaker, on_event: OnEvent) -> None:
    """Raise `ConnectorError` if the columns of a file are not those of the table. Say which ones
    it does not have.
    """
    for file in files:
        if file.format is FileFormat.JSONL:
            continue
        if file.format is FileFormat.CSV:
            found = csv_columns(file)
        else:
            from connector.services.rows.parquet import check_types, parquet_columns

            found = parquet_columns(file)
            check_types(file, maker.names, maker.types, maker.key_names)
        places = placed(file.path, found, maker.names, maker.key_names)
        missing = [name for name, at in zip(maker.names, places, strict=True) if at is None]
        if missing:
            text = f"{file.path} does not have {', '.join(missing)}: NULL in all of its rows"
            on_event(warning("COLUMNS_ABSENT", text, columns=missing))
