"""The values that a load returns and tells (PUB-6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
    unit: str = "line"


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
