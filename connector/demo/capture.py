"""The history of a git repository, as the change stream of a database with one row for each file.

It follows first parents, oldest commit first, so the final state is the tree of the last commit. A
commit is a transaction. The row key is the bytes of the path. Stream partitions are ranges of paths
(`lineage`). A new file, or a file with new content, is an upsert of the whole row. A change of the
mode alone writes only the mode and the columns of the commit (MRG-8). A removed file is a deleted
row. A rename is both.

All columns are in the family `f`: `mode` (six octal digits), `blob` (the object id in hexadecimal),
`size` (decimal; submodules have none). The last commit that changed the file gives `author`, `time`
(the committer's, binary) and `subject`.

Git converts text to UTF-8 from the encoding that the commit names. Remaining bytes that are not
UTF-8 become U+FFFD. A subject has at most 4,096 characters. An invalid time (before 1970, after the
year 9999, not a number) is left out. Paths of more than 4,096 bytes cannot be row keys (REC-14).
They are left out and counted.
"""

from __future__ import annotations

import os
import re
import struct
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Final

from connector.demo.lineage import Layout, holder, layout_at
from connector.demo.transaction import RowWrite, commit
from connector.errors import ConnectorError, ErrorCode
from connector.records.model import (
    MAX_ROW_KEY_BYTES,
    MAX_TIMESTAMP,
    DataChange,
    DeleteCells,
    DeleteFamily,
    Entry,
    SetCell,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

FILES_TABLE: Final = "files"
FAMILY: Final = "f"
MAX_SUBJECT_CHARACTERS: Final = 4096
DELETED_MODE: Final = b"000000"

_LOG: Final = (
    *(
        "-c",
        "log.diffMerges=separate",
        "log",
        "--first-parent",
        "-m",
        "--root",
        "--reverse",
        "--raw",
        "-z",
        "--no-abbrev",
    ),
    # Options that a user's configuration may contain and that would change the output:
    *(
        "--no-renames",
        "--no-color",
        "--no-show-signature",
        "--ignore-submodules=none",
        "--no-relative",
        "--no-ext-diff",
    ),
    *("--encoding=UTF-8", "--format=%H%n%ct%n%an%n%s"),
)
_SIZES: Final = ("cat-file", "--batch-check=%(objecttype) %(objectsize)")
_SIZES_AT_ONCE: Final = (
    500  # ids in flight: few enough that neither pipe fills up while we are still writing
)
_READ_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class _Commit:
    id: str
    time: bytes  # as git has it: decimal seconds, or nothing
    author: bytes
    subject: bytes


@dataclass(frozen=True, slots=True)
class _Difference:
    path: bytes
    old_mode: bytes
    mode: bytes
    old_blob: bytes
    blob: bytes


@dataclass(slots=True)
class GitCapture:
    """The changes of a history. `now` (µs) is the time when the capture starts. No commit timestamp
    is later.

    After `transactions` has ended, `paths_left_out` has the paths that are too long for row keys.
    """

    folder: Path
    head: str
    commits: int
    now: int
    paths_left_out: set[bytes] = field(default_factory=set)

    def transactions(self) -> Iterator[tuple[DataChange, ...]]:
        """The transactions in the order of their commit timestamps. A commit without a change has
        no transaction.

        One commit is in memory at a time. Raises `ConnectorError` if git cannot read the repository
        to the end.
        """
        commit_timestamp = 0
        with _git(self.folder, *_SIZES, stdin=subprocess.PIPE) as git:
            sizes = _Sizes(git)
            for index, (made_by, differences) in enumerate(_walk(self.folder, self.head)):
                # The dates in a history may go back, or be in the future. The commit times of a
                # database do not. Each later commit needs its own microsecond before `now`.
                latest = self.now - (self.commits - 1 - index)
                commit_timestamp = max(commit_timestamp + 1, min((_time(made_by) or 0), latest))
                assert commit_timestamp <= self.now, (
                    commit_timestamp,
                    self.now,
                    index,
                    self.commits,
                )
                writes = list(
                    self._writes(made_by, differences, sizes, layout_at(index, self.commits))
                )
                if writes:
                    yield commit(FILES_TABLE, made_by.id, commit_timestamp, writes)

    def _writes(
        self, made_by: _Commit, differences: Sequence[_Difference], sizes: _Sizes, layout: Layout
    ) -> Iterator[RowWrite]:
        written = [difference for difference in differences if difference.mode != DELETED_MODE]
        size_of = sizes.of([difference.blob for difference in written])
        last_commit = tuple(_last_commit(made_by))
        for difference in differences:
            if len(difference.path) > MAX_ROW_KEY_BYTES:
                self.paths_left_out.add(difference.path)
                continue
            entries = _entries(difference, size_of.get(difference.blob), last_commit)
            yield RowWrite(holder(layout, difference.path), difference.path, entries)


def _entries(
    difference: _Difference, size: bytes | None, last_commit: tuple[Entry, ...]
) -> tuple[Entry, ...]:
    if difference.mode == DELETED_MODE:
        return (DeleteFamily(FAMILY),)
    mode = SetCell(FAMILY, b"mode", difference.mode)
    if difference.blob == difference.old_blob and difference.old_mode != DELETED_MODE:
        return (mode, *last_commit)
    content: tuple[Entry, ...] = (
        DeleteFamily(FAMILY),
        mode,
        SetCell(FAMILY, b"blob", difference.blob),
    )
    return (
        (*content, *last_commit)
        if size is None
        else (*content, SetCell(FAMILY, b"size", size), *last_commit)
    )


def _last_commit(made_by: _Commit) -> Iterator[Entry]:
    yield SetCell(FAMILY, b"author", _text(made_by.author))
    time = _time(made_by)
    # A write of some columns keeps the others, so a missing time must be deleted.
    yield (
        DeleteCells(FAMILY, b"time")
        if time is None
        else SetCell(FAMILY, b"time", struct.pack(">q", time))
    )
    yield SetCell(FAMILY, b"subject", _text(made_by.subject, MAX_SUBJECT_CHARACTERS))


def _text(raw: bytes, characters: int | None = None) -> bytes:
    return raw.decode("utf-8", "replace")[:characters].encode()


def _time(made_by: _Commit) -> int | None:
    if not re.fullmatch(rb"[0-9]{1,20}", made_by.time):
        return None
    time = int(made_by.time) * 1_000_000
    return time if time <= MAX_TIMESTAMP else None


def _walk(folder: Path, head: str) -> Iterator[tuple[_Commit, list[_Difference]]]:
    """Each commit, oldest first, with the differences from its first parent."""
    with _git(folder, *_LOG, head) as git:
        assert git.stdout is not None
        tokens = _split_at_nul(git.stdout)
        made_by: _Commit | None = None
        differences: list[_Difference] = []
        for token in tokens:
            raw = token.lstrip(b"\n")
            if raw.startswith(b":"):
                old_mode, mode, old_blob, blob, _status = raw[1:].split(b" ")
                differences.append(_Difference(next(tokens), old_mode, mode, old_blob, blob))
                continue
            if made_by is not None:
                yield made_by, differences
            commit_id, time, author, subject = raw.split(b"\n", 3)
            made_by, differences = _Commit(commit_id.decode("ascii"), time, author, subject), []
        if made_by is not None:
            yield made_by, differences


def _split_at_nul(stream: IO[bytes]) -> Iterator[bytes]:
    rest = b""
    while block := stream.read(_READ_BYTES):
        *whole, rest = (rest + block).split(b"\0")
        yield from whole
    if rest:
        yield rest


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Reads sizes from one `git cat-file --batch-check`."""

    git: subprocess.Popen[bytes]

    def of(self, objects: Sequence[bytes]) -> dict[bytes, bytes]:
        """The decimal sizes of those objects that are blobs of this repository. Commits of
        submodules are not.
        """
        sizes: dict[bytes, bytes] = {}
        assert self.git.stdin is not None
        assert self.git.stdout is not None
        for start in range(0, len(objects), _SIZES_AT_ONCE):
            asked = objects[start : start + _SIZES_AT_ONCE]
            self.git.stdin.write(b"\n".join(asked) + b"\n")
            self.git.stdin.flush()
            for one in asked:
                kind, _, size = self.git.stdout.readline().rstrip(b"\n").partition(b" ")
                if kind == b"blob":
                    sizes[one] = size
        return sizes


@contextmanager
def _git(
    folder: Path, *arguments: str, stdin: int = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[bytes]]:
    """A git process, which ends with the block. Raises `ConnectorError` if it failed, unless the
    block has raised.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_") or name.startswith("GIT_CONFIG_")
    }
    environment |= {
        "LC_ALL": "C",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_OPTIONAL_LOCKS": "0",
    }
    with tempfile.TemporaryFile() as said:
        command = ["git", "-C", str(folder), *arguments]
        with subprocess.Popen(
            command, stdin=stdin, stdout=subprocess.PIPE, stderr=said, env=environment
        ) as process:
            try:
                yield process
            except BaseException:
                process.kill()
                raise
        if process.returncode:
            said.seek(0)
            cause = said.read(2000).decode("utf-8", "replace").strip()
            raise ConnectorError(
                ErrorCode.HISTORY_UNREADABLE,
                f"git could not read the history of {folder}",
                cause,
                f"Run `git -C {folder} fsck` to see what is wrong",
            )
