"""Keeps the state of one table of lowmark in memory, and commits to its log (ENG-5).

A table of lowmark has one writer, which refuses row changes of others. So a commit needs no
conflict resolution: it is made for one version, and takes the next number if no other commit has.
Before, the commits of others are read. If another one is faster, nothing was committed.
"""

from __future__ import annotations

import json
import re
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from connector.delta_log.actions import Action, FileId, State, lines_of
from connector.delta_log.checkpoint import (
    checkpoint_file,
    checkpoint_of,
    checkpoints_in,
    protecting,
    read_checkpoint,
    removed_after,
    removed_in,
)
from connector.delta_log.checksum import checksum_file, checksum_of
from connector.delta_log.put import LocalFolder
from connector.state.log_damage import LAST_CHECKPOINT, commit_file

_ENGINE: Final = "lowmark"
CHECKSUMS_KEPT: Final = 20
CHECKPOINT_EVERY: Final = 100
"""In commits."""
_LISTED: Final = 2_000
"""More files are not listed beside a commit."""
_COMMIT: Final = re.compile(r"(\d{20})\.json")


class NotNewestError(Exception):
    """Another program has committed since the version that a commit was made for. Nothing was
    committed.
    """


class LogFileMissingError(Exception):
    """A file of the log is missing that a checkpoint needs. Its text is the name."""


class Log:
    """The log of a table. Several threads may use it. Every method raises `OSError`, and
    `ValueError`, `KeyError` or `TypeError` for a damaged file.
    """

    def __init__(self, folder: LocalFolder) -> None:
        self._folder, self._lock = folder, threading.RLock()
        self._state, self._last, self._checkpoint = State(), b"", -1
        # The id of the newest commit. Empty: another process made it.
        self._transaction = ""
        # The id of the last commit whose checksum lists the files.
        self._listed = ""

    def state(self) -> State:
        """The state of the newest version. Do not keep it: the next call may change it."""
        with self._lock:
            self._refresh()
            return self._state

    def files(self, version: int) -> tuple[str, ...] | None:
        """The actions that add the files of `version`. None: it is not the newest one, or the
        writer does not know the table completely.
        """
        with self._lock:
            state = self.state()
            if state.version != version or state.not_known():
                return None
            return tuple(added.text for added in state.added.values())

    def commit(
        self,
        version: int,
        actions: Sequence[str],
        metadata: str,
        *,
        app_id: str | None = None,
        number: int = 0,
        is_blind: bool = False,
    ) -> None:
        """Commit actions that were made for `version`, with `metadata` of the user, under a number
        of the writer `app_id`. If it has committed this number or a greater one, nothing is
        committed. `is_blind`: no row was read for the actions, and none is removed.

        Raises `NotNewestError`.
        """
        with self._lock:
            self._refresh()
            state = self._state
            if state.version != version:
                raise NotNewestError
            assert not state.not_known(), state.not_known()
            if app_id is not None and state.newest_of(app_id) >= number:
                return
            now, id_ = time.time_ns() // 1_000_000, str(uuid.uuid4())
            info = {
                "timestamp": now,
                "operation": "WRITE",
                "operationParameters": {"mode": "Append"},
                "readVersion": version,
                "isolationLevel": "Serializable",
                "isBlindAppend": is_blind,
                "operationMetrics": {},
                "userMetadata": metadata,
                "engineInfo": _ENGINE,
                "txnId": id_,
            }
            lines = [_line("commitInfo", info)]
            if app_id is not None:
                used = {"appId": app_id, "version": number, "lastUpdated": now}
                lines.append(_line("txn", used))
            lines += actions
            content = "".join(f"{line}\n" for line in lines).encode()
            name = commit_file(version + 1)
            # A put that failed may have been done, for example if its answer was lost.
            if not self._folder.put(name, content) and self._folder.read(name) != content:
                raise NotNewestError
            state.commit(version + 1, lines)
            self._last, self._transaction = content, id_
            self._write_checksum()

    def list_files(self) -> None:
        """List the files of the newest version beside its commit, if this process made it. Delta
        then needs no Spark job to find them.
        """
        with self._lock:
            if not self._transaction:
                return
            state = self.state()
            if self._transaction in ("", self._listed) or len(state.added) > _LISTED:
                return
            content = checksum_of(state, self._transaction, lists_files=True)
            self._folder.write(checksum_file(state.version), content)
            self._listed = self._transaction

    def checkpoint(self, every: int = CHECKPOINT_EVERY) -> bool:
        """Write a checkpoint, if the newest one is `every` commits old. Returns whether it was
        written. Commits may be made meanwhile. Raises `LogFileMissingError` if the log lacks a
        commit since the checkpoint before.
        """
        with self._lock:
            self._refresh()
            state = self._state
            if state.version - self._checkpoint < every or state.not_known():
                return False
            parts = checkpoints_in(self._folder.names())
            self._checkpoint = max(parts, default=-1)
            if state.version - self._checkpoint < every:
                return False
            state = replace(state, added={**state.added}, transactions={**state.transactions})
            base = self._checkpoint
        removed = self._removed(base, parts.get(base, ()), state.version)
        protect = protecting(removed, state.files(), self._folder.table_files())
        content, count = checkpoint_of(state, protect, time.time_ns() // 1_000_000)
        self._folder.write(checkpoint_file(state.version), content)
        hint = {
            "version": state.version,
            "size": count,
            "sizeInBytes": len(content),
            "numOfAddFiles": len(state.added),
        }
        self._folder.write(LAST_CHECKPOINT, json.dumps(hint).encode())
        with self._lock:
            self._checkpoint = max(self._checkpoint, state.version)
        return True

    def removed(self) -> tuple[set[str], dict[FileId, Action]]:
        """The files of the newest version, also those of deletion vectors. And the files that were
        removed before, in this order, as far as the log has them. Raises `LogFileMissingError` if
        it lacks a commit since the newest checkpoint.
        """
        with self._lock:
            version, live = self.state().version, self._state.files()
            parts = checkpoints_in(self._folder.names())
        base = max((number for number in parts if number <= version), default=-1)
        return live, self._removed(base, parts.get(base, ()), version)

    def _removed(self, base: int, parts: Iterable[str], to: int) -> dict[FileId, Action]:
        """The files removed up to a version, from a checkpoint and the commits after it."""
        removed = dict[FileId, Action]()
        for name in parts:
            removed |= removed_in(self._needed(name))
        commits = (self._needed(commit_file(number)) for number in range(base + 1, to + 1))
        return removed_after(removed, map(lines_of, commits))

    def _needed(self, name: str) -> bytes:
        content = self._folder.read(name)
        if content is None:
            raise LogFileMissingError(name)
        return content

    def _write_checksum(self) -> None:
        """Write the checksum of the newest version, and delete the oldest one. The commit is made:
        a missing checksum costs its readers time only.
        """
        version = self._state.version
        with suppress(OSError):
            self._folder.write(checksum_file(version), checksum_of(self._state, self._transaction))
            self._folder.delete(checksum_file(version - CHECKSUMS_KEPT))

    def _refresh(self) -> None:
        """Read the commits behind the state. If its own commit is no longer there, or is another
        one, the log was cleaned or replaced, and is read from its beginning.
        """
        state = self._state
        if state.version < 0 or self._folder.read(commit_file(state.version)) != self._last:
            self._state, self._transaction = self._from_beginning(), ""
            state = self._state
        while (content := self._folder.read(commit_file(state.version + 1))) is not None:
            try:
                state.commit(state.version + 1, lines_of(content))
            except BaseException:
                self._state = State()
                raise
            self._last, self._transaction = content, ""

    def _from_beginning(self) -> State:
        """The state of the newest checkpoint, or else that before the first commit."""
        names = self._folder.names()
        parts = checkpoints_in(names)
        commits = {int(match[1]) for name in names if (match := _COMMIT.fullmatch(name))}
        state, self._last, self._checkpoint = State(), b"", -1
        for version in sorted(parts, reverse=True):
            checkpoint = read_checkpoint(version, parts[version], self._folder.read)
            content = self._folder.read(commit_file(version))
            if checkpoint is not None and content is not None:
                state, self._last, self._checkpoint = checkpoint, content, version
                break
        if state.version < 0 and commits and 0 not in commits:
            state.unknown = "a log without its beginning"
            state.version = min(commits) - 1
        return state


def _line(kind: str, action: object) -> str:
    return json.dumps({kind: action}, separators=(",", ":"), ensure_ascii=False)
