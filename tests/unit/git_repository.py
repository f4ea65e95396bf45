"""Tiny real git repositories for tests, and a model of what their changes amount to."""

from __future__ import annotations

import os
import struct
import subprocess
from collections import defaultdict
from typing import TYPE_CHECKING

from connector.demo.capture import GitCapture
from connector.demo.repository import find_history
from connector.records.model import DataChange, DeleteCells, DeleteFamily, SetCell

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

NOW = 1_800_000_000_000_000
START = 1_600_000_000


class Repository:
    """A work tree. Commits are a minute apart from `START` on, unless told otherwise."""

    def __init__(self, folder: Path, *options: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.clock = START
        self.git("init", "--quiet", "--initial-branch=main", *options)

    def git(self, *arguments: str | bytes, stdin: bytes = b"", **environment: str) -> str:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        who = {
            "GIT_AUTHOR_NAME": "Ada",
            "GIT_AUTHOR_EMAIL": "a@b",
            "GIT_COMMITTER_NAME": "Bob",
            "GIT_COMMITTER_EMAIL": "b@b",
        }
        dates = {"GIT_AUTHOR_DATE": f"{START} +0000", "GIT_COMMITTER_DATE": f"{self.clock} +0100"}
        done = subprocess.run(
            ["git", "-C", self.folder, "-c", "protocol.file.allow=always", *arguments],
            input=stdin,
            capture_output=True,
            check=False,
            env=clean
            | who
            | dates
            | {"HOME": str(self.folder), "GIT_CONFIG_NOSYSTEM": "1"}
            | environment,
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        return done.stdout.decode(errors="replace").strip()

    def write(
        self, path: str | bytes, content: str | bytes = "content\n", *, executable: bool = False
    ) -> None:
        target = os.path.join(os.fsencode(self.folder), os.fsencode(path))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        os.chmod(target, 0o755 if executable else 0o644)

    def commit(
        self, subject: str | bytes = "a change", *, date: int | None = None, **environment: str
    ) -> str:
        """Everything in the work tree. `date`: the committer's, in seconds."""
        self.clock += 60
        if date is not None:
            environment["GIT_COMMITTER_DATE"] = f"@{date} +0000"
        self.git("add", "--all")
        message = subject.encode() if isinstance(subject, str) else subject
        self.git(
            "commit",
            "--quiet",
            "--allow-empty",
            "--allow-empty-message",
            "--file=-",
            stdin=message,
            **environment,
        )
        return self.git("rev-parse", "HEAD")

    def raw_commit(self, headers: bytes, message: bytes = b"raw\n") -> str:
        """A commit object as it comes, on top of HEAD with the same files; `headers` after tree and
        parent.
        """
        self.write("touched-by", headers + message)
        self.git("add", "--all")
        parent = self.git("rev-parse", "HEAD")
        content = (
            f"tree {self.git('write-tree')}\nparent {parent}\n".encode() + headers + b"\n" + message
        )
        commit = self.git(
            "hash-object", "-t", "commit", "-w", "--stdin", "--literally", stdin=content
        )
        self.git("reset", "--quiet", "--hard", commit)
        return commit

    def capture(self, now: int = NOW) -> GitCapture:
        return capture_of(self.folder, now)


def capture_of(folder: Path, now: int = NOW) -> GitCapture:
    history = find_history(folder)
    return GitCapture(history.folder, history.head, history.commits, now)


def rows_of(changes: Iterable[DataChange]) -> dict[bytes, dict[str, object]]:
    """The sequential model: what a table holds once the changes were applied one after another."""
    cells: dict[bytes, dict[bytes, bytes]] = defaultdict(dict)
    for change in changes:
        row = cells[change.row_key]
        for entry in change.entries:
            match entry:
                case DeleteFamily():
                    row.clear()
                case DeleteCells(qualifier=qualifier):
                    row.pop(qualifier, None)
                case SetCell(qualifier=qualifier, value=value):
                    row[qualifier] = value
    return {key: _typed(row) for key, row in cells.items() if row}


def _typed(row: dict[bytes, bytes]) -> dict[str, object]:
    return {
        "mode": row[b"mode"].decode(),
        "blob": row[b"blob"].decode(),
        "size": int(row[b"size"]) if b"size" in row else None,
        "author": row[b"author"].decode(),
        "time": struct.unpack(">q", row[b"time"])[0] if b"time" in row else None,
        "subject": row[b"subject"].decode(),
    }
