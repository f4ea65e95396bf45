"""Reads the commits of a Delta table from its log (TBL-10, TBL-14, RUN-3).

Every commit of lowmark has the state of its table as JSON in `userMetadata`, also commits of
maintenance. A commit without it was made by another program. If it changes no row, the state before
it stays in force: `connector.state.other_commits` says which commits these are.

This is the only reader of commits. `connector.spark` passes a function that reads files with
Hadoop, and `connector.lake` one that reads them with deltalake.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from connector.state.damage import Foreign, log_damaged, reading
from connector.state.log_damage import (
    IS_EMPTY,
    IS_MISSING,
    IS_NO_JSON,
    LogDamage,
    actions_in,
    commit_file,
)
from connector.state.maintenance_schedule import CommitCount
from connector.state.other_commits import TableForm, changes_no_row

_RESTORE: Final = "RESTORE"
_SEARCHED: Final = 200
"""Up to this many commits are searched for the last good version."""
_NEVER: Final = 2**63
"""Greater than any version."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit: its version, its time (microseconds), Delta's name of the operation, and the
    metadata of lowmark that is in force at its version. None: another program changed rows.

    `is_own`: lowmark made the commit. If it did not, `stored` is that of the version before it, or
    of the version that it restored.

    `files` counts the files that it added and removed. `added` are the added files as Delta's JSON.
    `removed` are the paths of the files that it removed, or in which it marked rows as deleted.
    """

    version: int
    committed_at: int
    operation: str
    stored: Mapping[str, Any] | None
    files: CommitCount
    added: tuple[str, ...]
    removed: frozenset[str]
    is_own: bool
    form: TableForm
    keeps_rows: bool
    restores: int
    """The version that the commit restored. `_NEVER`: it is no restore."""

    @property
    def added_rows(self) -> int:
        """The number of rows of the files that it added, without those in which it marked rows."""
        adds = (json.loads(action)["add"] for action in self.added)
        new = (add.get("stats") or "{}" for add in adds if add["path"] not in self.removed)
        return sum(json.loads(stats).get("numRecords", 0) for stats in new)

    @property
    def description(self) -> str:
        """The version and the operation, for an error that names the table before."""
        return f" (version {self.version}, {self.operation})"


class Commits:
    """The commits of the table at `path`.

    `read` returns the content of a file of the log by its name, or None if there is no such file.
    """

    def __init__(self, path: str, read: Callable[[str], str | bytes | None]) -> None:
        self.path, self._content = path, read
        # The last commit of another program, with the metadata in force, and whose it is.
        self._remembered: tuple[Commit, Mapping[str, Any], Commit] | None = None

    def at(self, version: int) -> Commit | None:
        """A commit. None: it does not exist, or no longer exists. Raises `TableError` if its file
        is damaged.

        A restore to a version of lowmark, as remedies suggest, has the metadata of that version.
        """
        commit = self._alone(version)
        if commit is None or commit.is_own:
            return commit
        return replace(commit, stored=self._in_force(commit)[0])

    def foreign(self, version: int) -> Foreign | None:
        """The commit that changed rows, if that is why a version has no metadata in force."""
        commit = self._alone(version)
        stored, culprit = (None, None) if commit is None else self._in_force(commit)
        if culprit is None or stored is not None:
            return None
        before = islice(self.back_from(culprit.version - 1), _SEARCHED)
        good = next((commit.version for commit in before if commit.stored is not None), None)
        return Foreign(culprit.description, good)

    def rollback(self, version: int) -> Foreign | None:
        """The commit that brought back a state before later applies, for example a RESTORE, and the
        newest version that has them. None: no apply is missing at `version`.

        Delta remembers the number of the last apply, and refuses the same number again.
        """
        commits = [*islice(self.back_from(version), _SEARCHED)]
        applies = [(commit.stored or {}).get("apply_number", 0) for commit in commits]
        for later, commit, apply in zip(commits, commits[1:], applies[1:], strict=False):
            if apply > applies[0]:
                return Foreign(later.description, commit.version)
        return None

    def _alone(self, version: int) -> Commit | None:
        """A commit as `at`, with its own metadata only."""
        content = self._content(commit_file(version))
        if content is None:
            return None
        lines = [line for line in _lines(content) if line.strip()]
        if not (actions := actions_in(lines)):
            damage = LogDamage(commit_file(version), IS_NO_JSON if lines else IS_EMPTY)
            raise log_damaged(self.path, damage)
        with reading(self.path, f"Commit {version}"):
            return _commit(version, actions, lines)

    def _in_force(self, newest: Commit) -> tuple[Mapping[str, Any] | None, Commit]:
        """The metadata in force at a commit, and the commit that has it. Without any, it is the
        commit that changed rows.
        """
        commit, formed, remembered = newest, list[Commit](), self._remembered
        stored: Mapping[str, Any] | None
        while not commit.is_own:
            if remembered is not None and remembered[0] == commit:
                stored, base = remembered[1:]
                break
            if commit.restores < commit.version:
                restored = self.at(commit.restores)
                stored, base = None if restored is None else restored.stored, commit
                break
            before = self._alone(commit.version - 1) if commit.keeps_rows else None
            if before is None:
                return None, commit
            formed += [commit] if commit.form.is_given else []
            commit = before
        else:
            stored, base = commit.stored, commit
        if stored is None:
            return None, base
        if formed:
            form = self._form_at(base.version)
            for commit in formed:
                if not commit.form.is_that_of(form):
                    return None, commit
        self._remembered = (newest, stored, base)
        return stored, base

    def _form_at(self, version: int) -> TableForm:
        """The form of the table at a version: that beside its commit, or else that of the newest
        commits that have it.
        """
        form = TableForm.from_checksum(self._content(f"{version:020}.crc"))
        while not form.is_whole and version >= 0 and (commit := self._alone(version)) is not None:
            form, version = form.or_else(commit.form), version - 1
        return form

    def back_from(self, version: int) -> Iterator[Commit]:
        """A commit and those before it, the newest first, until one is missing."""
        while version >= 0 and (commit := self.at(version)) is not None:
            yield commit
            version -= 1

    def of_lowmark(self, version: int) -> Iterator[Commit]:
        """The commits of lowmark up to a version, the newest first, without restores."""
        while version >= 0 and (commit := self._alone(version)) is not None:
            if commit.is_own:
                yield commit
            version -= 1

    def changed_between(self, after: int, to: int) -> dict[str, str | None]:
        """The paths of files that the versions `(after, to]` removed, or in which they marked rows
        as deleted. Each has the newest action that adds it, as JSON, or None if it is gone.

        Raises `TableError` if one of these commits is missing.
        """
        changed: dict[str, str | None] = {}
        for version in range(after + 1, to + 1):
            commit = self.existing(version)
            changed |= dict.fromkeys(commit.removed)
            for action in commit.added:
                path = json.loads(action)["add"]["path"]
                if path in commit.removed:
                    changed[path] = action
        return changed

    def existing(self, version: int) -> Commit:
        """A commit that must exist. Raises `TableError` if it is missing or damaged."""
        commit = self.at(version)
        if commit is None:
            raise log_damaged(self.path, LogDamage(commit_file(version), IS_MISSING))
        return commit


def user_metadata(stored: Mapping[str, Any]) -> str:
    """The `userMetadata` of a commit with `stored`."""
    return json.dumps({"lowmark": stored}, separators=(",", ":"))


def stored_in(info: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The metadata of lowmark in Delta's `commitInfo`. None: it has none."""
    text = info.get("userMetadata")
    try:
        metadata = json.loads(text) if isinstance(text, str) else None
    except (RecursionError, ValueError):
        return None
    stored = metadata.get("lowmark") if isinstance(metadata, dict) else None
    return stored if isinstance(stored, dict) else None


def _lines(content: str | bytes) -> Sequence[str | bytes]:
    """The lines of a commit. Other line separators, as U+2028, are part of a line."""
    return content.split("\n") if isinstance(content, str) else content.split(b"\n")


def _restored_version(info: Mapping[str, Any]) -> int:
    """The version that a commit restored. `_NEVER`: it is no restore."""
    restored = str((info.get("operationParameters") or {}).get("version"))
    is_known = info.get("operation") == _RESTORE and restored.isdecimal()
    return int(restored) if is_known else _NEVER


def _commit(
    version: int, actions: Sequence[Mapping[str, Any]], lines: Sequence[str | bytes]
) -> Commit:
    infos = (action["commitInfo"] for action in actions if "commitInfo" in action)
    info: Mapping[str, Any] = next(infos, {})
    stored = stored_in(info)
    at = int(info.get("timestamp", 0)) * 1000
    added, removed = (
        {
            action[kind]["path"]: action[kind].get("size") or 0
            for action in actions
            if kind in action
        }
        for kind in ("add", "remove")
    )
    # If rows of a file were marked as deleted, the commit removes the file and adds it.
    removed_only, added_only = removed.keys() - added.keys(), added.keys() - removed.keys()
    files = CommitCount(
        *(at, len(added_only), len(removed_only), sum(removed[path] for path in removed_only)),
        added_bytes=sum(added[path] for path in added_only),
    )
    adds = tuple(
        line if isinstance(line, str) else line.decode()
        for line, action in zip(lines, actions, strict=True)
        if "add" in action
    )
    operation = str(info.get("operation", ""))
    return Commit(
        *(version, at, operation, stored, files, adds, frozenset(removed)),
        is_own=stored is not None,
        form=TableForm.from_actions(actions),
        keeps_rows=operation != _RESTORE and changes_no_row(actions),
        restores=_restored_version(info),
    )
