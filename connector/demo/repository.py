"""Finds the git repository that the demo captures, and its commit.

The commit is resolved once. A commit that is made during the demo changes the branch, but not the
demo.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from connector.errors import ConnectorError, ErrorCode

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class History:
    """The history that ends at `head` (a full commit id), along first parents, with `commits`
    commits.

    `is_shallow`: the commits before the oldest one were never fetched. The oldest one then counts
    as the first commit, with all its files.
    """

    folder: Path
    head: str
    commits: int
    is_shallow: bool


class NoHistoryError(ConnectorError):
    """There is no git program, no repository at the path, or no commit in the repository."""


def find_history(folder: Path) -> History:
    """The history of the repository at or above `folder`, which may be bare. Raises
    `NoHistoryError`.
    """
    if shutil.which("git") is None:
        raise NoHistoryError(
            ErrorCode.GIT_MISSING,
            "There is no git on this machine",
            "PATH has no git program",
            "Install git 2.25 or newer",
        )
    if not folder.is_dir():
        raise NoHistoryError(
            ErrorCode.REPOSITORY_MISSING,
            f"There is no folder {folder}",
            "",
            "Name the folder of a git repository",
        )
    head = _answer(folder, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    if head is None:
        raise _no_commit(folder)
    commits = _answer(folder, "rev-list", "--count", "--first-parent", head)
    if commits is None:
        raise NoHistoryError(
            ErrorCode.HISTORY_UNREADABLE,
            f"The history of {folder} cannot be read",
            "git rev-list failed",
            f"Run `git -C {folder} fsck` to see what is wrong",
        )
    return History(
        folder,
        head,
        int(commits),
        _answer(folder, "rev-parse", "--is-shallow-repository") == "true",
    )


def _no_commit(folder: Path) -> NoHistoryError:
    done = _git(folder, "rev-parse", "--git-dir")
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return NoHistoryError(
            ErrorCode.REPOSITORY_MISSING,
            f"{folder} is not in a git repository",
            said[0] if said else "git gives no reason",
            "Name the folder of a git repository",
        )
    return NoHistoryError(
        ErrorCode.HISTORY_EMPTY,
        f"The repository at {folder} has no commits",
        "Its HEAD names no commit",
        "Make a commit first",
    )


def _answer(folder: Path, *arguments: str) -> str | None:
    done = _git(folder, *arguments)
    return None if done.returncode else done.stdout.decode("ascii").strip()


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    # A git hook that starts this program has its own repository in the environment. That is not the
    # requested one.
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_") or name.startswith("GIT_CONFIG_")
    }
    environment |= {"LC_ALL": "C", "GIT_NO_REPLACE_OBJECTS": "1"}
    return subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, check=False, env=environment
    )
