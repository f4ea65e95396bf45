"""A commit of another program, or a stored form that cannot be read, is an error with a remedy
(TBL-14).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from connector.errors import ErrorCode, TableError
from connector.state.damage import or_move_away


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
        ErrorCode.COMMIT_FOREIGN,
        f"The changelog {path} has no frontier of batch {ingest_batch}",
        "Another program deleted rows or files of the changelog",
        "Restore the changelog to the last version that lowmark committed (RESTORE TABLE … TO"
        " VERSION AS OF)",
        stream=stream,
        path=path,
    )
