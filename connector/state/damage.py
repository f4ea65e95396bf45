"""Errors for files of a warehouse that are damaged, missing, foreign or refused, and for a full
disk (TBL-14).
"""

from __future__ import annotations

import re
from typing import Final

from connector import warehouse as places
from connector.errors import ErrorCode, TableError
from connector.state.log_damage import LogDamage
from connector.state.store_errors import store_error

FULL: Final = (
    *("No space left on device", "Disk quota exceeded"),
    "There is not enough space on the disk",
)
"""Texts of errors that say that a disk is full."""
TOO_LARGE: Final = "File too large"
"""The text of an error that says that a file has reached a limit."""

_REFUSED: Final = ("Permission denied", "Read-only file system", "Operation not permitted")
_MISSING_FILE: Final = re.compile(r"Object at location (\S+\.parquet) not found")
_NO_COLUMN: Final = "No field named"
_OF_TABLE: Final = re.compile(r"(.*/tables/([^/]+))/(?:data|tombstones[^/]*)/*$")
_OF_STREAM: Final = re.compile(r"(.*/streams/[^/]+)/changelog/*$")
_WITHOUT: Final = {
    places.overrides(""): "the bounds and paces of the configuration apply then",
    places.closed_partitions(""): "requests that ingest has not taken yet are then lost",
    places.released_transactions(""): "requests that ingest has not taken yet are then lost",
    places.released_rows(""): "requests that ingest has not taken yet are then lost",
    places.jobs(""): "the history of jobs begins again then",
    places.cuts(""): "snapshots can be read again after the next cut",
    places.audit_log(""): "the next audit looks into Kafka again",
}


def or_move_away(path: str) -> str:
    """The end of a remedy for a damaged Delta table of the folder `_connector`: lowmark goes on
    without its content. It is empty for the other tables of a warehouse.
    """
    then = next((then for end, then in _WITHOUT.items() if path.rstrip("/").endswith(end)), None)
    return "" if then is None else f". Or move the folder {path} away: {then}"


def explained(path: str, what: str, text: str) -> TableError | None:
    """The error for a table at `path` that cannot be `what`, for example "read". `text` is that of
    the error of a library. None: it is not a known one.
    """
    first_line = text.partition("\n")[0]
    if "://" in path:
        problem = f"The table at {path} cannot be {what}"
        if (of_store := store_error(text, problem, path=path)) is not None:
            return of_store
    if any(sign in text for sign in FULL):
        return TableError(
            ErrorCode.DISK_FULL,
            f"The table at {path} cannot be {what}",
            f"The disk is full: {first_line}",
            "Free some space and try again. Nothing was changed",
            path=path,
        )
    if TOO_LARGE in text:
        return TableError(
            ErrorCode.DISK_FULL,
            f"The table at {path} cannot be {what}",
            "A file has reached the size limit of the process (ulimit -f) or of the file system",
            "Raise the limit and try again. Nothing was changed",
            path=path,
        )
    if any(sign in text for sign in _REFUSED):
        return TableError(
            ErrorCode.WAREHOUSE_UNUSABLE,
            f"The table at {path} cannot be {what}",
            f"The operating system refuses it: {first_line}",
            "Give the user of this process access to the folder, or mount the file system for"
            " writing",
            path=path,
        )
    if (missing := _MISSING_FILE.search(text)) is not None:
        return data_file_missing(path, missing[1])
    return foreign_table(path, first_line) if _NO_COLUMN in text else None


def data_file_missing(path: str, file: str) -> TableError:
    """The error for a table at `path` whose log names `file`, which does not exist."""
    of_table = _OF_TABLE.search(path)
    return TableError(
        ErrorCode.TABLE_DAMAGED,
        f"A data file of {path} is missing",
        f"{file} does not exist, but the Delta log names it",
        _restored(path),
        path=path,
        **({"table": of_table[2]} if of_table else {}),
    )


def data_file_damaged(path: str, file: str, what: str) -> TableError:
    """The error for a table at `path` whose log names a `file` that is damaged."""
    of_table = _OF_TABLE.search(path)
    return TableError(
        ErrorCode.TABLE_DAMAGED,
        f"A data file of {path} is damaged",
        f"{file} {what}",
        _restored(path),
        path=path,
        file=file,
        **({"table": of_table[2]} if of_table else {}),
    )


def _restored(path: str) -> str:
    """How a data file comes back."""
    rebuild = ". Without a backup, rebuild the table from the changelog"
    return (
        "Restore the file from a backup"
        + (rebuild if _OF_TABLE.search(path) else _begin_again(path))
        + or_move_away(path)
    )


def log_damaged(path: str, damage: LogDamage) -> TableError:
    """The error for a table at `path` whose log is damaged."""
    folder = f"{path.rstrip('/')}/_delta_log"
    remedy = (
        f"Move {' and '.join(damage.removable)} out of {folder}: the rest of the log says the same"
        if damage.removable
        else "Restore the file from a backup"
    )
    of_table = _OF_TABLE.search(path)
    without = (
        f". Without a backup, move the folder {of_table[1]} away: the pipeline makes the table"
        " again from the changelog"
        if of_table
        else _begin_again(path)
    )
    return TableError(
        ErrorCode.TABLE_DAMAGED,
        f"The Delta log of {path} is damaged",
        f"{folder}/{damage.file} {damage.what}",
        remedy + ("" if damage.removable else without + or_move_away(path)),
        path=path,
        file=f"{folder}/{damage.file}",
    )


def _begin_again(path: str) -> str:
    """The end of a remedy for a changelog without a backup. It is empty for other tables."""
    of_stream = _OF_STREAM.search(path)
    if of_stream is None:
        return ""
    return (
        f". Without a backup, move the folder {of_stream[1]} and those of the tables of this stream"
        " away: ingest begins again with the oldest record that Kafka has"
    )


def foreign_table(path: str, cause: str) -> TableError:
    """The error for a table at `path` that does not have the columns of one of lowmark."""
    return TableError(
        ErrorCode.COMMIT_FOREIGN,
        f"The table at {path} is not one of lowmark, or another program changed its columns",
        cause,
        f"Restore the last version that lowmark committed{or_move_away(path)}",
        path=path,
    )


def log_missing(path: str) -> TableError:
    """The error for a folder with files of a table, but without its Delta log."""
    again = " The pipeline makes a table of changes again from the changelog"
    return TableError(
        ErrorCode.TABLE_DAMAGED,
        f"{path} is not empty, and is not a Delta table",
        "Its folder _delta_log is missing or empty. A program removed it, or the files belong to"
        " another program",
        "Restore _delta_log from a backup"
        + (or_move_away(path) or f", or move the other files away.{again}"),
        path=path,
    )


def tombstones_unusable(path: str, table: str, what: str) -> TableError:
    """The error for the tombstone table of a `table`, at `path`. `what` is the matter with it."""
    return TableError(
        ErrorCode.TABLE_DAMAGED,
        f"The tombstone table of {table} {what}",
        "It remembers the deleted rows. Without it, late changes would bring them back",
        f"Restore {path} to its last state, or rebuild the table",
        table=table,
        path=path,
    )
