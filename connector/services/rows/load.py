"""Loads existing rows into a table, through a pending write stream (PUB-6, REC-23)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from connector.clock import now_us
from connector.config.settings import find_table
from connector.errors import ConnectorError, ErrorCode, argument_invalid
from connector.records.ordering import OrderBy
from connector.services.events import OnEvent, log_event, warning
from connector.services.rows.files import FileFormat, csv_columns, describe_file, placed
from connector.services.rows.load_job import LoadJob
from connector.services.rows.load_report import (
    LoadOptions,
    LoadProgress,
    LoadReport,
    RejectedRow,
)

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig


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
        on_progress: Is called after each append.
        on_rejected: Receives each row that cannot be published, also if an earlier call did.

    Returns:
        The result.

    Raises:
        ConfigError: There is no such table, or an argument is not allowed.
        ConnectorError: Rows cannot be published (`ROWS_REJECTED`), a file cannot be read or was
            changed, `as_of` is below the horizon, or the table is not empty. Nothing is committed.
        WriterConflictError: Another session of this name was opened.
        WriteStreamError, DeliveryError, TopicError, BrokerError, TableError: As for
            `WriteSession` and `commit_write_streams`.
    """
    definition, options = find_table(config, table), options or LoadOptions()
    paths = [] if isinstance(files, str | Path) else [Path(path) for path in files]
    if not paths:
        raise argument_invalid("files", files, "a list of one or more paths")
    if as_of is not None and not 0 < as_of <= now_us():
        allowed = "a time in microseconds that is not in the future"
        raise argument_invalid("as_of", as_of, allowed)
    if definition.order is not OrderBy.COMMIT:
        raise ConnectorError(
            ErrorCode.TABLE_NOT_LOADABLE,
            f"{definition.name} is ordered by change sequence numbers",
            "Rows of a file have no such numbers, so it is not known which changes are newer",
            "Publish the rows as changes, each with its change sequence number",
            table=definition.name,
        )
    file_format = FileFormat(options.file_format) if options.file_format else None
    found = [describe_file(path, file_format) for path in paths]
    job = LoadJob(config, definition, found, as_of, options, on_event, on_progress, on_rejected)
    _check_columns(job)
    return job.run()


def _check_columns(job: LoadJob) -> None:
    """Raise `ConnectorError` if the columns of a file are not those of the table. Say which ones
    it does not have.
    """
    maker = job.maker
    for file in job.files:
        if file.format is FileFormat.JSONL:
            continue
        if file.format is FileFormat.CSV:
            names = csv_columns(file)
        else:
            from connector.services.rows.parquet import parquet_columns

            names = parquet_columns(file, maker.names, maker.types, maker.key_names)
        places = placed(file.path, names, maker.names, maker.key_names)
        missing = [name for name, at in zip(maker.names, places, strict=True) if at is None]
        if missing:
            text = f"{file.path} does not have {', '.join(missing)}: NULL in all of its rows"
            job.on_event(warning("COLUMNS_ABSENT", text, columns=missing))
