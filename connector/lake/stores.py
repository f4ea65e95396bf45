"""The options with which deltalake opens the tables of a warehouse (STO-1). Every function takes a
path, and finds the options by its start. Without options, deltalake uses the environment.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_OPTIONS: Final = dict[str, dict[str, str]]()
_LOCK: Final = threading.Lock()


def remember(warehouse: str, options: Mapping[str, str]) -> None:
    """Use these options for all tables of a warehouse, in this process, from now on."""
    with _LOCK:
        _OPTIONS[warehouse.rstrip("/")] = dict(options)


def warehouse_with(path: str) -> str | None:
    """The warehouse that has this path. None: its options are not known, or it is a local one."""
    if "://" not in path:
        return None
    with _LOCK:
        around = [warehouse for warehouse in _OPTIONS if f"{path}/".startswith(f"{warehouse}/")]
    return max(around, key=len, default=None)


def options_of(path: str) -> dict[str, str] | None:
    """The options of the warehouse that has this path. None: none are known."""
    warehouse = warehouse_with(path)
    return None if warehouse is None else dict(_OPTIONS[warehouse])


def reader_of(folder: str) -> Callable[[str], bytes | None]:
    """A function that reads a small file of a folder by its name. It returns None if there is no
    such file, and raises `OSError` if it cannot be read.
    """
    local, in_store = _local(folder), list[Any]()

    def read(name: str) -> bytes | None:
        try:
            if local is not None:
                return Path(local, name).read_bytes()
            if not in_store:
                in_store.append(_in_store(folder))
            file = in_store[0].open_input_file(name)
            return bytes(file.read(file.size()))
        except FileNotFoundError:
            return None

    return read


def text_at(path: str) -> str | None:
    """The text of a small file of a warehouse. None: there is no file, or it cannot be read."""
    folder, _, name = path.rpartition("/")
    try:
        content = reader_of(folder)(name)
        return None if content is None else content.decode()
    except (OSError, ValueError):
        return None


def write_at(path: str, text: str, *, mode: int = 0o644, makes_folder: bool = True) -> None:
    """Write a small file of a warehouse. A reader finds the old text or the new one. `mode` are the
    rights of a local file. `makes_folder`: its folder may be missing. Raises `OSError`.
    """
    folder, _, name = path.rpartition("/")
    if (local := _local(folder)) is None:
        # Not with `files_at`: pyarrow hands bytes over as a buffer, which deltalake refuses.
        with closing(_in_store(folder).open_output_stream(name)) as file:
            file.write(text.encode())
        return
    if makes_folder:
        Path(local).mkdir(parents=True, exist_ok=True)
    written = Path(local, f".{name}.new")
    with open(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w") as file:
        file.write(text)
    written.replace(Path(local, name))


def _in_store(folder: str) -> Any:
    from deltalake._internal import DeltaFileSystemHandler

    return DeltaFileSystemHandler(folder, options_of(folder), None)


def files_at(path: str) -> FileSystem:
    """The files below a folder of a warehouse, with paths that begin there."""
    from pyarrow.fs import LocalFileSystem, PyFileSystem, SubTreeFileSystem

    if (local := _local(path)) is not None:
        return SubTreeFileSystem(local, LocalFileSystem())
    from deltalake.fs import DeltaStorageHandler

    return PyFileSystem(DeltaStorageHandler(path, options_of(path)))


def _local(path: str) -> str | None:
    """A path of this machine, without the form of a URI. None: it is in a store."""
    if path.startswith("file://"):
        return unquote(path.removeprefix("file://"))
    return None if "://" in path else path
