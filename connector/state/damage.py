"""Errors for files of a warehouse that are damaged, missing, foreign or refused, and for a full
disk (TBL-14).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from connector import warehouse as places
from connector.errors import ErrorCode, StorageError, TableError
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
        return StorageError(
            ErrorCode.DISK_FULL,
            f"The table at {path} cannot be {what}",
            f"The disk is full: {first_line}",
            "Free some space and try again. Nothing was changed",
            path=path,
        )
    if TOO_LARGE in text:
        return StorageError(
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


def data_file_missing(path: str, file: str) -> StorageError:
    """The error for a table at `path` whose log names `file`, which does not exist."""
    of_table = _OF_TABLE.search(path)
    return StorageError(
        ErrorCode.DATA_FILE_MISSING,
        f"A data file of {path} is missing",
        f"{file} does not exist, but the Delta log names it",
        _restored(path),
        path=path,
        **({"table": of_table[2]} if of_table else {}),
    )


def data_file_damaged(path: str, file: str, what: str) -> StorageError:
    """The error for a table at `path` whose log names a `file` that is damaged."""
    of_table = _OF_TABLE.search(path)
    return StorageError(
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


def log_damaged(path: str, damage: LogDamage) -> StorageError:
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
    return StorageError(
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
        ErrorCode.FOLDER_NOT_A_TABLE,
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
        ErrorCode.TOMBSTONES_UNUSABLE,
        f"The tombstone table of {table} {what}",
        "It remembers the deleted rows. Without it, late changes would bring them back",
        f"Restore {path} to its last state, or rebuild the table",
        table=table,
        path=path,
    )


@contextmanager
def reading(path: str, what: str = "The metadata of the newest commit") -> Iterator[None]:
    """Read the metadata of a commit of lowmark at `path`, or `what` else, in the block.

    Raises:
        TableError: A key is missing, or a value has a wrong type. Nothing was changed.
    """
    try:
        yield
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        missing = isinstance(error, KeyError)
        raise TableError(
            ErrorCode.COMMIT_UNREADABLE,
            f"{what} of {path} cannot be read",
            f"The key {error} is missing" if missing else str(error),
            "Use the release of lowmark that wrote the commit, or restore the Delta table to the"
            " last version that can be read" + or_move_away(path),
            path=path,
        ) from error


def check_owner(
    path: str, what: str, name: str, stored: Mapping[str, Any] | None, commit: str = ""
) -> None:
    """Raise `TableError` unless `stored`, the metadata of the newest commit at `path`, is that of
    this "stream" or "table". `commit` describes the commit.
    """
    if stored is not None and stored.get(what) == name:
        return
    otherwise = "rebuild it from the changelog" if what == "table" else "use another warehouse"
    raise TableError(
        ErrorCode.COMMIT_FOREIGN,
        f"The newest commit of {path}{commit} does not belong to {what} {name}",
        "Another program committed to the Delta table, or another table is in this folder. Only"
        " lowmark may commit",
        "Restore the Delta table to the last version that lowmark committed (RESTORE TABLE … TO"
        f" VERSION AS OF), or {otherwise}",
        path=path,
        **{what: name},
    )


def frontier_missing(path: str, stream: str, ingest_batch: int) -> TableError:
    """The error for a changelog at `path` without the frontier of a batch."""
    return TableError(
        ErrorCode.FRONTIER_MISSING,
        f"The changelog {path} has no frontier of batch {ingest_batch}",
        "Another program deleted rows or files of the changelog",
        "Restore the changelog to the last version that lowmark committed (RESTORE TABLE … TO"
        " VERSION AS OF)",
        stream=stream,
        path=path,
    )
