"""Small real git repositories for tests, and a model of the rows that their changes make."""

from __future__ import annotations

import os
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from connector import DataChange, DeleteFamily, SetCell
from examples.demo.history import Commit, list_commits, read_commits

START = 1_600_000_000


class Repository:
    """A work tree. Commits are a minute apart from `START` on, unless `date` is given."""

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

    def history(self) -> list[Commit]:
        return list(read_commits(self.folder, list_commits(self.folder)))


def rows_of(changes: Iterable[DataChange]) -> dict[bytes, dict[str, object]]:
    """The sequential model: the rows of a table after the changes, one after another."""
    cells: dict[bytes, dict[bytes, bytes]] = defaultdict(dict)
    for change in changes:
        row = cells[change.row_key]
        for entry in change.entries:
            match entry:
                case DeleteFamily():
                    row.clear()
                case SetCell(qualifier=qualifier, value=value):
                    row[qualifier] = value
    return {
        key: {
            "mode": row[b"mode"].decode(),
            "blob": row[b"blob"].decode(),
            "size": int(row[b"size"]) if b"size" in row else None,
        }
        for key, row in cells.items()
        if row
    }
