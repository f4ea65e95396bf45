"""Looks at the folder of a Delta table before it is used, and explains errors of deltalake."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from connector.errors import ErrorCode, TableError
from connector.lake.stores import options_of
from connector.state.damage import explained, log_missing, or_move_away

PROBE_BYTES: Final = 64 * 1024
"""More than a small table needs for a row and its commit."""


def check_missing(path: str) -> None:
    """Raise `TableError` if the table at a local path is not simply one that was not made yet: its
    folder has files but no Delta log, or there is a file in the place of a folder.

    Every table of lowmark has a log before its first file. So files without a log are damage, and
    not a first commit that was killed.
    """
    from deltalake import DeltaTable

    folder = Path(path)
    if "://" in path:
        return
    try:
        nearest = next((one for one in (folder, *folder.parents) if one.exists()), folder)
        has_files = nearest == folder and any(
            below.name != "_delta_log" for below in folder.iterdir()
        )
    except NotADirectoryError:
        has_files = False
    except OSError as error:
        raise trouble(path, "read", error) from error
    if not nearest.is_dir():
        raise TableError(
            ErrorCode.WAREHOUSE_UNUSABLE,
            f"{path} cannot be a table",
            f"{nearest} is not a folder",
            "Move this file away, or set warehouse to another path",
            path=path,
        )
    # Another process may have made the table meanwhile.
    if has_files and not DeltaTable.is_deltatable(path, options_of(path)):
        raise log_missing(path)


def check_writable(path: str) -> None:
    """Raise `TableError` if a row and its commit cannot be written to the table at a local path.

    It writes a file without a name. Without this check, deltalake prints the stacks of its threads
    on standard error if a disk is full.
    """
    if "://" in path:
        return
    folder = path
    try:
        for below in ("", "_delta_log"):
            nearest = _nearest(Path(path, below))
            folder = str(nearest)
            if not nearest.is_dir():
                check_missing(path)
            with TemporaryFile(dir=nearest) as probe:
                probe.write(bytes(PROBE_BYTES))
                probe.flush()
    except OSError as error:
        named = OSError(error.errno, error.strerror, folder)
        raise trouble(path, "written", named) from error


def _nearest(folder: Path) -> Path:
    return next(one for one in (folder, *folder.absolute().parents) if one.exists())


def trouble(path: str, what: str, error: Exception) -> TableError:
    """The error for a table that cannot be `what`, for example "read"."""
    text = str(error)
    return explained(path, what, text) or TableError(
        ErrorCode.TABLE_UNREADABLE,
        f"The table at {path} cannot be {what}",
        text.partition("\n")[0],
        "Check the path, its permissions, its files and the free space on the disk, and try again"
        + or_move_away(path),
        path=path,
    )
