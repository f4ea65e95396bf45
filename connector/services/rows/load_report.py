"""The values that a load takes, returns and tells (PUB-6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from connector.errors import argument_invalid
from connector.records.views import Hidden
from connector.services.rows.files import FileFormat
from connector.state.pace import check_rate
from connector.text import one_of
from connector.write_streams.model import check_name


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
    """A row that cannot be published.

    Attributes:
        file: The path of the file.
        line: The number of the line, or in a Parquet file of the row, from 1.
        column: The column whose value does not fit; empty if it is not one column alone.
        reason: Why it cannot be published.
        row: The values by column, as JSON that can be loaded once it is corrected. None: they are
            not known.
        unit: `line` or `row`: the things that `line` counts.
    """

    file: str
    line: int
    column: str
    reason: str
    row: Mapping[str, Any] | None
    unit: Hidden[str] = "line"


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far a load is. `rows` were appended; `repeated` of them by an earlier call."""

    rows: int
    repeated: int
    rejected: int


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The result of a load.

    Attributes:
        table: The name of the table.
        write_stream: The name of the write stream of the rows.
        rows: The rows of the write stream.
        repeated: Those of them that an earlier call had appended.
        rejected: The rows that were left out.
        commit_timestamp: The commit timestamp of the rows (µs). None: they are not committed.
        was_committed: Whether an earlier call had committed them, so that this one did nothing.
    """

    table: str
    write_stream: str
    rows: int
    repeated: int
    rejected: int
    commit_timestamp: int | None
    was_committed: bool = False


def place_of(row: RejectedRow) -> str:
    """The place of a rejected row and the reason, in one line."""
    column = f", column {row.column}" if row.column else ""
    return f"{row.file}, {row.unit} {row.line}{column}: {row.reason}"
