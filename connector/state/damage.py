"""Errors for files of a warehouse that are damaged, missing, foreign or refused, and for a full
disk (TBL-14).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from connector import warehouse as paths
from connector.errors import TableError
from connector.errors.tables import (
    checkpoint_lost,
    columns_foreign,
    commit_foreign,
    commit_unreadable,
    delta_log_missing,
    disk_full,
    file_damaged,
    links_unsupported,
    table_access_refused,
)
from connector.state.log_damage import LogDamage
from connector.state.store_errors import store_error


class Foreign(NamedTuple):
    """The newest commit of another program that changed rows, as text, and the last good version
    before it. None: it is not known.
    """

    commit: str
    last_good: int | None


_FULL: Final = (
    *("No space left on device", "Disk quota exceeded"),
    "There is not enough space on the disk",
)
_TOO_LARGE: Final = "File too large"
_REFUSED: Final = ("Permission denied", "Read-only file system", "Operation not permitted")
_NO_LINKS: Final = re.compile(
    r"Unable to (?:rename|copy) file.*(?:Operation not (?:permitted|supported)|not implemented)",
    re.DOTALL,
)
"""Of deltalake, which links a commit to its name."""
_MISSING_FILE: Final = re.compile(r"Object at location (\S+\.parquet) not found")
_LOST_CHECKPOINT: Final = "_last_checkpoint hint"
_NO_COLUMN: Final = "No field named"
_OF_TABLE: Final = re.compile(r"(.*/tables/([^/]+))/(?:data|tombstones[^/]*)/*$")
_OF_STREAM: Final = re.compile(r"(.*/streams/[^/]+)/changelog/*$")
_WITHOUT: Final = {
    paths.overrides(""): "the bounds and paces of the configuration apply then",
    paths.closed_partitions(""): "requests that ingest has not taken yet are then lost",
    paths.released_transactions(""): "requests that ingest has not taken yet are then lost",
    paths.released_rows(""): "requests that ingest has not taken yet are then lost",
    paths.accepted_losses(""): "requests that ingest has not taken yet are then lost",
    paths.jobs(""): "the history of jobs begins again then",
    paths.cuts(""): "snapshots can be read again after the next cut",
    paths.audit_log(""): "the next audit looks into Kafka again",
}


def or_move_away(path: str) -> str:
    """The end of a remedy for a damaged Delta table of the folder `_connector`: lowmark goes on
    without its content. It is empty for the other tables of a warehouse.
    """
    then = next((then for end, then in _WITHOUT.items() if path.rstrip("/").endswith(end)), None)
    return "" if then is None else f". Or move the folder {path} away: {then}"


def explained(path: str, use: str, text: str) -> TableError | None:
    """The error for a table at `path` that cannot be `use`, for example "read". `text` is that of
    the error of a library. None: it is not a known one.
    """
    first_line = text.partition("\n")[0]
    if "://" in path:
        problem = f"The table at {path} cannot be {use}"
        if (of_store := store_error(text, problem, path=path)) is not None:
            return of_store
        if _LOST_CHECKPOINT in text:
            return checkpoint_lost(path, first_line)
    if (cause := cause_of_full_disk(text)) is not None:
        return disk_full(f"The table at {path} cannot be {use}", cause, path=path)
    if _NO_LINKS.search(text) is not None:
        return links_unsupported(path, use)
    if any(sign in text for sign in _REFUSED):
        return table_access_refused(path, use, first_line)
    if (missing := _MISSING_FILE.search(text)) is not None:
        return data_file_damaged(path, missing[1])
    return foreign_table(path, first_line) if _NO_COLUMN in text else None


def cause_of_full_disk(text: str) -> str | None:
    """The limit that the text of an error names, in words. None: it names none."""
    if any(sign in text for sign in _FULL):
        return "The disk is full"
    if _TOO_LARGE in text:
        return "A file has reached the size limit of the process (ulimit -f) or of the file system"
    return None


def data_file_damaged(
    path: str, file: str, what: str = "does not exist, but the Delta log names it"
) -> TableError:
    """The error for a table at `path` whose log names a `file` that is damaged or missing."""
    of_table = _OF_TABLE.search(path)
    rebuild = ". Without a backup, rebuild the table from the changelog"
    otherwise = (rebuild if of_table else _begin_again(path)) + or_move_away(path)
    return file_damaged(
        f"A data file of {path} is damaged or missing",
        *(path, file, what, f"Restore the file from a backup{otherwise}"),
        **({"table": of_table[2]} if of_table else {}),
    )


def log_damaged(path: str, damage: LogDamage) -> TableError:
    """The error for a table at `path` whose log is damaged."""
    folder = f"{path.rstrip('/')}/_delta_log"
    of_table = _OF_TABLE.search(path)
    if damage.removable:
        files = " and ".join(damage.removable)
        remedy = f"Move {files} out of {folder}: the rest of the log says the same"
        if damage.is_older:
            remedy = (
                f"Restore the missing commits from a backup. If {path} is an older copy of the"
                f" table, delete {folder}/{files}: it only helps to read the log"
            )
    else:
        again = (
            f". Without a backup, move the folder {of_table[1]} away: the pipeline makes the table"
            " again from the changelog"
            if of_table
            else _begin_again(path)
        )
        remedy = f"Restore the file from a backup{again}{or_move_away(path)}"
    problem, file = f"The Delta log of {path} is damaged", f"{folder}/{damage.file}"
    return file_damaged(problem, path, file, damage.what, remedy)


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
    return columns_foreign(path, cause, or_move_away(path))


def log_missing(path: str) -> TableError:
    """The error for a folder with files of a table, but without its Delta log."""
    again = " The pipeline makes a table of changes again from the changelog"
    return delta_log_missing(path, or_move_away(path) or f", or move the other files away.{again}")


@contextmanager
def reading(path: str, what: str = "The metadata of the newest commit") -> Iterator[None]:
    """Read the metadata of a commit of lowmark at `path`, or `what` else, in the block.

    Raises:
        TableError: A key is missing, or a value has a wrong type. Nothing was changed.
    """
    try:
        yield
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        cause = f"The key {error} is missing" if isinstance(error, KeyError) else str(error)
        raise commit_unreadable(path, what, cause, or_move_away(path)) from error


def check_owner(
    path: str,
    what: str,
    name: str,
    stored: Mapping[str, Any] | None,
    foreign: Callable[[], Foreign | None],
) -> None:
    """Raise `TableError` unless `stored`, which is in force at the newest commit, is of this
    "stream" or "table". `foreign` finds the commit that changed rows, for the error.
    """
    if stored is None or stored.get(what) != name:
        is_table = what == "table"
        otherwise = "rebuild it from the changelog" if is_table else "use another warehouse"
        commit, last_good = foreign() or ("", None)
        raise commit_foreign(
            *(path, commit, f"{what} {name}", f", or {otherwise}"), last_good, **{what: name}
        )
