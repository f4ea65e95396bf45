"""Looks at the files of a Delta table before it is used, and explains errors of deltalake.

An object store is not looked at: it shows whole files only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote
from uuid import uuid4

from connector import warehouse as paths
from connector.errors import TableError
from connector.errors.spark import deltalake_missing
from connector.errors.tables import files_unreadable, warehouse_has_file
from connector.lake.stores import options_of, warehouse_with
from connector.state.damage import (
    data_file_damaged,
    explained,
    log_damaged,
    log_missing,
    or_move_away,
)
from connector.state.log_damage import IS_EMPTY, MAGIC, is_parquet, log_damage
from connector.state.store_errors import store_error

if TYPE_CHECKING:
    from deltalake import DeltaTable

_DELETION_VECTOR: Final = re.compile(r"deletion_vector_[0-9a-f-]{36}\.bin")

PROBE_BYTES: Final = 64 * 1024
"""More than a small table needs for a row and its commit."""
_WRITTEN: Final = set[str]()
"""The object stores in which this process has written a file, each with its options."""


def opened(path: str, version: int | None = None) -> DeltaTable:
    """The Delta table at a path, in its newest or a given version. Raises the errors of deltalake,
    and `TableError` if a commit was damaged that deltalake would read as an empty one.
    """
    from deltalake import DeltaTable

    check_log(path, version)
    return DeltaTable(path, version=version, storage_options=options_of(path))


def open_existing(path: str, version: int | None = None) -> DeltaTable | None:
    """The Delta table at a path. None: there is no table. Raises `TableError`."""
    with explaining(path, "read"):
        from deltalake.exceptions import TableNotFoundError

        with suppress(TableNotFoundError):
            return opened(path, version)
    check_missing(path)
    return None


def check_missing(path: str) -> None:
    """Raise `TableError` if a local folder has files but no Delta log, or is a file. Every table of
    lowmark has a log before its first file, so this is damage, and not a killed first commit.
    """
    from deltalake import DeltaTable

    folder = Path(path)
    if "://" in path:
        return
    try:
        nearest = _nearest(folder)
        names = nearest.iterdir() if nearest == folder and nearest.is_dir() else ()
        has_files = any(below.name != "_delta_log" for below in names)
    except OSError as error:
        raise table_error(path, "read", error) from error
    if not nearest.is_dir():
        raise warehouse_has_file(path, str(nearest))
    # Another process may have made the table meanwhile.
    if has_files and not DeltaTable.is_deltatable(path, options_of(path)):
        raise log_missing(path)


def check_writable(path: str) -> None:
    """Raise `TableError` if a row and its commit cannot be written. It tries a file without a name,
    or an object store once in a process. deltalake would print the stacks of its threads.
    """
    if (warehouse := warehouse_with(path)) is not None:
        store = f"{warehouse} {sorted((options_of(path) or {}).items())}"
        if store not in _WRITTEN:
            check_store(warehouse)
            _WRITTEN.add(store)
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
        raise table_error(path, "written", named) from error


def check_store(warehouse: str) -> None:
    """Raise `TableError` if the object store of a warehouse cannot be listed, or a file cannot be
    written, read and deleted in it (STO-4). Most are a `TableError`, whose code says why.
    """
    from deltalake._internal import DeltaFileSystemHandler
    from deltalake.exceptions import DeltaError

    path, name = paths.probe(warehouse), str(uuid4())
    try:
        files: Any = DeltaFileSystemHandler(path, options_of(path), None)
        files.get_file_info_selector("", True)
        file = files.open_output_stream(name)
        file.write(b"lowmark")
        file.close()
        files.open_input_file(name).read(1)
        files.delete_file(name)
    except (DeltaError, OSError, ValueError) as error:
        problem = f"The warehouse {warehouse} cannot be used"
        raise (
            store_error(str(error), problem, path=path) or table_error(path, "used", error)
        ) from error


def has_streams(warehouse: str) -> bool:
    """Whether a warehouse in an object store has streams, and this user may list them."""
    from deltalake._internal import DeltaFileSystemHandler
    from deltalake.exceptions import DeltaError

    with suppress(DeltaError, OSError, ValueError):
        files: Any = DeltaFileSystemHandler(paths.streams_folder(warehouse), options_of(warehouse))
        return bool(files.get_file_info_selector("", True))
    return False


def _nearest(folder: Path) -> Path:
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def check_files(path: str, delta: DeltaTable | None = None, text: str = "") -> None:
    """Raise `TableError` if a file of a local table is damaged: of its log, or one that the log
    names. `delta` is the version that is open; None: the newest one.

    `text` is that of an error of a library, which may name the file of a deletion vector.
    """
    check_log(path, with_contents=True, with_history=True)
    if "://" in path or not Path(path, "_delta_log").is_dir():
        return
    for file, size in _named_files(path, delta):
        if not Path(file).exists():
            raise data_file_damaged(path, file)
        if (what := _fault_of(file, size)) is not None:
            raise data_file_damaged(path, file, what)
    if (name := _DELETION_VECTOR.search(text)) is not None:
        vectors = f"{path}/{name[0]}"
        if not Path(vectors).exists():
            raise data_file_damaged(path, vectors)
        raise data_file_damaged(path, vectors, "cannot be read: it marks rows as deleted")


def check_log(
    path: str,
    version: int | None = None,
    *,
    with_contents: bool = False,
    with_history: bool = False,
) -> None:
    """Raise `TableError` if the log of a local table lacks a commit that a version needs (None: the
    newest one), or has an empty one, which Delta's libraries read as one without changes.

    Only names and sizes are looked at, or also files (`with_contents`) and older commits
    (`with_history`).
    """
    if "://" in path:
        return
    log = Path(path, "_delta_log")

    def read(name: str) -> bytes:
        try:
            return (log / name).read_bytes()
        except FileNotFoundError:  # a clean-up has removed it meanwhile
            return b""

    damage = None
    # A folder is not listed in one step: while others commit, a file can be missing in the list.
    for _ in range(3):
        before, content = damage, read if with_contents else None
        try:
            files = _Sizes({file.name: file for file in os.scandir(log) if file.is_file()})
            damage = log_damage(files, content, version, with_history=with_history)
        except OSError:
            return  # there is no log, or the library that opens it names the cause
        if damage is None:
            return
        if damage == before:
            raise log_damaged(path, damage)


class _Sizes(Mapping[str, int]):
    """The sizes of files by name, each looked up when asked: a log can have 100,000 files."""

    def __init__(self, files: Mapping[str, os.DirEntry[str]]) -> None:
        self._files = files

    def __getitem__(self, name: str) -> int:
        return self._files[name].stat().st_size

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, name: object) -> bool:
        return name in self._files


def _named_files(path: str, delta: DeltaTable | None) -> Iterator[tuple[str, int]]:
    """The data files that the log names, each with its size. None if the log cannot be read."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        added = (delta or DeltaTable(path)).get_add_actions()
    except (DeltaError, OSError, ValueError):
        return
    names, sizes = added.column("path").to_pylist(), added.column("size_bytes").to_pylist()
    for name, size in zip(names, sizes, strict=True):
        file = f"{path}/{name}"
        yield (file if Path(file).exists() else f"{path}/{unquote(name)}"), size


def _fault_of(file: str, size: int) -> str | None:
    """The damage of a Parquet file, in words. None: it is whole. `size` is what the log says."""
    with suppress(OSError), Path(file).open("rb") as content:
        length = content.seek(0, os.SEEK_END)
        if not length:
            return IS_EMPTY
        if length != size:
            return f"has {length} bytes, but the log says {size}"
        content.seek(0)
        begin = content.read(len(MAGIC))
        content.seek(-len(MAGIC) - 1, os.SEEK_END)
        if not is_parquet(begin + content.read()):
            return "does not begin and end as a Parquet file"
    return None


def table_error(
    path: str, use: str, error: Exception, delta: DeltaTable | None = None
) -> TableError:
    """The error for a table that cannot be `use`, for example "read". Damage of its files is the
    cause before the text of a library: each library tells it in another way.
    """
    text = str(error)
    if (explanation := explained(path, use, text)) is not None:
        return explanation
    try:
        check_files(path, delta, text)
    except TableError as damage:
        return damage
    return files_unreadable(path, use, text.partition("\n")[0], or_move_away(path))


@contextmanager
def explaining(path: str, use: str) -> Iterator[None]:
    """Raise `TableError` for an error of deltalake or of files: the table cannot be `use`."""
    try:
        from deltalake.exceptions import DeltaError
    except ImportError as error:
        raise deltalake_missing(str(error)) from error
    try:
        yield
    except (DeltaError, OSError, ValueError) as error:
        raise table_error(path, use, error) from error
