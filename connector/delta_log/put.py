"""The log of a table on a local disk. A commit is put if its file is absent, by a hard link: it is
there as a whole or not at all, and never replaces another one.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

_NO_LINKS: Final = frozenset(
    {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
)


class LinksUnsupportedError(Exception):
    """The disk has no hard links."""


class LocalFolder:
    """The files of a log at a local path. Every method but `read` and `has` raises `OSError`.

    Hadoop keeps a checksum beside each file that it writes, in a hidden file. It goes with the
    file, and before the file is written again: Hadoop would find that the two differ.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def read(self, name: str) -> bytes | None:
        """The content of a file. None: there is no such file."""
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            return None

    def mark(self, name: str) -> tuple[int, ...] | None:
        """A mark that tells the content of a file from another one. None: there is no such file."""
        try:
            status = (self._path / name).stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns

    def has(self, name: str) -> bool:
        """Whether there is a file."""
        return (self._path / name).exists()

    def names(self) -> list[str]:
        """The names of all files. Empty: there is no log."""
        try:
            return os.listdir(self._path)
        except FileNotFoundError:
            return []

    def put(self, name: str, content: bytes) -> bool:
        """Write a file, unless there is one. Returns whether there was none."""
        if self.has(name):
            return False
        self._unlink(f".{name}.crc")  # of a commit that was deleted by hand
        beside = self._beside(name, content)
        try:
            os.link(beside, self._path / name)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno in _NO_LINKS:
                raise LinksUnsupportedError from error
            raise
        finally:
            beside.unlink(missing_ok=True)
        return True

    def write(self, name: str, content: bytes) -> None:
        """Write a file in place of an older one. A reader finds the old content or the new one."""
        beside = self._beside(name, content)
        try:
            self._unlink(f".{name}.crc")
            beside.replace(self._path / name)
        except OSError:
            beside.unlink(missing_ok=True)
            raise

    def delete(self, name: str) -> None:
        """Delete a file, if there is one."""
        self._unlink(name)
        self._unlink(f".{name}.crc")

    def table_files(self) -> set[str]:
        """All files of the table but its log, below its folder, with `/` between names."""
        root, files = self._path.parent, set[str]()
        for folder, folders, names in os.walk(root):
            if Path(folder) == root and self._path.name in folders:
                folders.remove(self._path.name)
            below = os.path.relpath(folder, root).replace(os.sep, "/")
            files |= {name if below == "." else f"{below}/{name}" for name in names}
        return files

    def delete_of_table(self, name: str) -> None:
        """Delete a file of `table_files`, if it is there."""
        path = self._path.parent / name
        path.unlink(missing_ok=True)
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)

    def _unlink(self, name: str) -> None:
        with suppress(FileNotFoundError):
            (self._path / name).unlink()

    def _beside(self, name: str, content: bytes) -> Path:
        beside = self._path / f".{name}.{uuid4().hex}.tmp"
        try:
            beside.write_bytes(content)
        except OSError:
            beside.unlink(missing_ok=True)
            raise
        return beside
