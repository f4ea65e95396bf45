"""The rows that the tables must have, computed independently: the code that makes the changes
shares nothing with this module.

- Files: the tree of a commit as `git ls-tree` lists it. For the last commit, also a walk back
  through the history. It reads raw commit and tree objects, and compares the trees itself.
  `capture` never reads a tree, and uses `git log`.
- Accounts: the sums of the generated operations. The changes have balances, which are not used
  here.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import IO, TYPE_CHECKING, Final

from connector.demo.bank import Close, Open, Operation, Transfer
from connector.errors import ConnectorError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

_LAST_SECOND: Final = 253402300799  # of the year 9999
_BLANKS: Final = b" \t\r\n"  # the white space of git
_TREES_KEPT: Final = 20_000
_AT_ONCE: Final = (
    100  # requests under way: few enough that git never waits for us to read while we still write
)

Row = dict[str, object]
_Tree = dict[bytes, tuple[str, bytes]]  # name -> mode in git's canonical form, object id


@dataclass(frozen=True, slots=True)
class _Listed:
    mode: str
    blob: str
    size: int | None


def files(folder: Path, head: str) -> dict[bytes, Row]:
    """The rows of the table `files` by path: mode, blob, size, and author, time (µs) and subject of
    the last commit that changed the file.

    It includes every file of the tree, with a path of any length. Raises `ConnectorError` if git
    cannot read the repository.
    """
    listed = dict(_list_tree(folder, head))
    commits: dict[str, Row] = {}
    rows: dict[bytes, Row] = {}
    with _Objects.open(folder) as objects:
        for path, commit in _last_commits(folder, head, objects, set(listed)):
            if commit not in commits:
                commits[commit] = _describe(folder, objects, commit)
            rows[path] = {
                "mode": listed[path].mode,
                "blob": listed[path].blob,
                "size": listed[path].size,
                **commits[commit],
            }
    assert rows.keys() == listed.keys(), "the walk has to find a commit for every file of the tree"
    return rows


def tree(folder: Path, commit: str) -> dict[bytes, Row]:
    """The files of a commit's tree by path, as `git ls-tree` lists them: mode, blob and size.
    Raises `ConnectorError` as `files` does.
    """
    return {
        path: {"mode": one.mode, "blob": one.blob, "size": one.size}
        for path, one in _list_tree(folder, commit)
    }


def accounts(operations: Iterable[Operation]) -> dict[bytes, Row]:
    """The rows of the table `accounts` by account: owner, and the sum of all payments in and
    out.
    """
    rows: dict[bytes, Row] = {}
    paid: dict[bytes, int] = {}
    for operation in operations:
        match operation:
            case Open(account, owner, deposit):
                rows[account] = {"owner": owner}
                paid[account] = deposit
            case Transfer(source, target, amount):
                paid[source] -= amount
                paid[target] += amount
            case Close(account, heir):
                paid[heir] += paid.pop(account)
                del rows[account]
    return {account: {"balance": paid[account], **row} for account, row in rows.items()}


def deposits(operations: Iterable[Operation]) -> int:
    """The sum of all deposits when accounts were opened. Transfers and closings do not change
    it.
    """
    return sum(operation.deposit for operation in operations if isinstance(operation, Open))


def _list_tree(folder: Path, head: str) -> Iterator[tuple[bytes, _Listed]]:
    with _plumbing(folder, ["ls-tree", "-r", "-l", "-z", "--full-tree", head]) as (_, answers):
        for line in answers.read().split(b"\0"):
            if line:
                facts, _, path = line.partition(b"\t")
                mode, _kind, blob, size = facts.decode("ascii").split()
                yield path, _Listed(mode, blob, int(size) if size.isdecimal() else None)


def _last_commits(
    folder: Path, head: str, objects: _Objects, remaining: set[bytes]
) -> Iterator[tuple[bytes, str]]:
    """For each path the newest commit, along first parents, that changed it from the state of the
    commit before.
    """
    newer: tuple[str, bytes] | None = None
    with _plumbing(folder, ["rev-list", "--first-parent", head]) as (_, ids):
        while remaining and (
            commits := [line.decode("ascii").strip() for line in islice(ids, _AT_ONCE)]
        ):
            for commit, tree in zip(commits, objects.roots(commits), strict=True):
                if newer is not None:
                    yield from _settle(objects, newer, tree, remaining)
                newer = commit, tree
        if newer is not None:
            yield from _settle(objects, newer, None, remaining)


def _settle(
    objects: _Objects, newer: tuple[str, bytes], before: bytes | None, remaining: set[bytes]
) -> Iterator[tuple[bytes, str]]:
    commit, tree = newer
    for path in _changed_paths(objects, tree, before):
        if path in remaining:
            remaining.remove(path)
            yield path, commit


def _changed_paths(objects: _Objects, tree: bytes, before: bytes | None) -> Iterator[bytes]:
    """The paths of `tree` that are missing in the tree `before`, or that differ there."""
    level: list[tuple[bytes, bytes, bytes | None]] = [(b"", tree, before)] if tree != before else []
    while level:
        trees = objects.read_trees(
            {one for _, new, old in level for one in (new, old) if one is not None}
        )
        below: list[tuple[bytes, bytes, bytes | None]] = []
        for prefix, new, old in level:
            was = trees[old] if old is not None else {}
            for name, (mode, entry) in trees[new].items() - was.items():
                was_mode, was_entry = was.get(name, ("", b""))
                if mode != "040000":
                    yield prefix + name
                elif entry != was_entry:
                    below.append(
                        (prefix + name + b"/", entry, was_entry if was_mode == "040000" else None)
                    )
        level = below


@dataclass(slots=True)
class _Objects:
    """Raw objects, from one `git cat-file --batch`."""

    requests: IO[bytes]
    answers: IO[bytes]
    trees: dict[bytes, _Tree] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def open(cls, folder: Path) -> Iterator[_Objects]:
        with _plumbing(folder, ["cat-file", "--batch"]) as (requests, answers):
            yield cls(requests, answers)

    def read(self, names: Sequence[str]) -> Iterator[tuple[bytes, bytes]]:
        """The id and the content of each object. An object may have any name that git accepts."""
        for start in range(0, len(names), _AT_ONCE):
            asked = names[start : start + _AT_ONCE]
            self.requests.write("".join(f"{name}\n" for name in asked).encode("ascii"))
            self.requests.flush()
            for name in asked:
                answer = self.answers.readline().split()
                if len(answer) != 3:
                    raise ConnectorError(
                        ErrorCode.HISTORY_INCOMPLETE,
                        f"The object {name} is missing from the repository",
                        "The clone is partial or damaged",
                        "Use a full clone",
                    )
                yield bytes.fromhex(answer[0].decode("ascii")), self.answers.read(int(answer[2]))
                self.answers.read(1)

    def roots(self, commits: Sequence[str]) -> list[bytes]:
        """The ids of the commits' trees. Their content is cached."""
        found = [
            (tree, _parse_tree(content, len(tree)))
            for tree, content in self.read([f"{commit}^{{tree}}" for commit in commits])
        ]
        self.trees.update(found)
        return [tree for tree, _ in found]

    def read_trees(self, ids: set[bytes]) -> dict[bytes, _Tree]:
        if len(self.trees) > _TREES_KEPT:
            for tree in list(self.trees)[: _TREES_KEPT // 2]:
                del self.trees[tree]
        for tree, content in self.read([tree.hex() for tree in ids if tree not in self.trees]):
            self.trees[tree] = _parse_tree(content, len(tree))
        return {tree: self.trees[tree] for tree in ids}


def _parse_tree(content: bytes, id_bytes: int) -> _Tree:
    """Parse a tree: a sequence of mode in octal digits, space, name, NUL, id."""
    entries = re.findall(rb"([0-7]+) ([^\0]+)\0(.{%d})" % id_bytes, content, re.DOTALL)
    return {name: (_canonical(mode), entry) for mode, name, entry in entries}


@cache
def _canonical(mode: bytes) -> str:
    """The mode in the form that git uses today. There are five modes. Old forms count as one of
    them.
    """
    bits = int(mode, 8)
    match bits >> 12:
        case 0o10:
            return "100755" if bits & 0o100 else "100644"
        case 0o12:
            return "120000"
        case 0o04:
            return "040000"
        case _:
            return "160000"


def _describe(folder: Path, objects: _Objects, commit: str) -> Row:
    """Author, time and subject from the raw commit object."""
    ((_, raw),) = objects.read([commit])
    head, _, message = raw.partition(b"\0")[0].partition(b"\n\n")
    lines = head.split(b"\n")
    author = next((line[len(b"author ") :] for line in lines if line.startswith(b"author ")), b"")
    committer = next(
        (line[len(b"committer ") :] for line in lines if line.startswith(b"committer ")), b""
    )
    encoding = next(
        (line[len(b"encoding ") :] for line in lines if line.startswith(b"encoding ")), b"UTF-8"
    )
    if encoding.upper() not in {b"UTF-8", b"UTF8"}:
        # Git and its libraries define the encodings and their names.
        with _plumbing(
            folder,
            ["show", "-s", "--no-show-signature", "--encoding=UTF-8", "--format=%an%n%s", commit],
        ) as (_, answers):
            name, subject, *_ = answers.read().split(b"\n")
    else:
        name = author[: author.find(b"<") if b"<" in author else 0].rstrip(_BLANKS)
        subject = _subject(message)
    return {
        "author": name.decode(errors="replace"),
        "time": _microseconds(committer),
        "subject": subject.decode(errors="replace")[:4096],
    }


def _subject(message: bytes) -> bytes:
    """The first paragraph, as one line."""
    lines = [line.rstrip(_BLANKS) for line in message.split(b"\n")]
    while lines and not lines[0]:
        lines.pop(0)
    return b" ".join(lines[: lines.index(b"")] if b"" in lines else lines)


def _microseconds(person: bytes) -> int | None:
    found = re.search(rb"> *([0-9]+)( [-+][0-9]+)?$", person)
    if found is None or len(found[1]) > 20 or int(found[1]) > _LAST_SECOND:
        return None
    return int(found[1]) * 10**6


@contextmanager
def _plumbing(folder: Path, arguments: list[str]) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Standard input and output of a git process, which ends with the block."""
    kept = {
        name: value for name, value in os.environ.items() if re.match("GIT_CONFIG_|(?!GIT_)", name)
    }
    settings = {"LC_ALL": "C", "GIT_NO_REPLACE_OBJECTS": "1", "GIT_NO_LAZY_FETCH": "1"}
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            ["git", *arguments],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=kept | settings,
        ) as git,
    ):
        assert git.stdin is not None
        assert git.stdout is not None
        try:
            yield git.stdin, git.stdout
        finally:
            # A reader may stop before git has written everything. A git that failed has printed its
            # error before it closed its output.
            git.kill()
            git.wait()
        errors.seek(0)
        said = errors.read().decode(errors="replace")
        if "fatal:" in said:
            raise ConnectorError(
                ErrorCode.HISTORY_UNREADABLE,
                f"git {arguments[0]} failed in {folder}",
                said.strip(),
                "Run `git fsck` to see what is wrong",
            )
