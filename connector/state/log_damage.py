"""Finds damage in the log of a Delta table, from the names, sizes and contents of its files
(TBL-14).

Theory. A log has a file for each commit, `<version>.json`. A checkpoint contains all commits up to
its version. So a version needs the newest whole checkpoint before it, and every commit after that
checkpoint. Without a checkpoint, it needs every commit. Commits and checkpoints are written in one
step: a file of 0 bytes, or one that is cut, was damaged later, and is never the work of another
writer. Delta's libraries read an empty commit as one that changes nothing, and tell other damage in
many ways. So lowmark looks at the files itself.

Two files only help to read the log: `_last_checkpoint` names a checkpoint, and `<version>.crc` is a
checksum. They show that a checkpoint or commit existed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

LAST_CHECKPOINT: Final = "_last_checkpoint"
MAGIC: Final = b"PAR1"
"""Every Parquet file begins and ends with it."""
IS_EMPTY: Final = "has 0 bytes"
IS_MISSING: Final = "is missing"
_IS_NO_PARQUET: Final = "is cut, or its bytes were replaced"
IS_NO_JSON: Final = "is cut, or its bytes were replaced: a line of it is not an action as JSON"

_DIGITS: Final = 20
_COMMIT: Final = ".json"
_CHECKSUM: Final = ".crc"
_CHECKPOINT: Final = re.compile(
    r"(\d{20})\.checkpoint(?:\.\d{10}\.(?P<parts>\d{10})|\.[0-9a-f-]{36})?\.(?:parquet|json)"
)


@dataclass(frozen=True, slots=True)
class LogDamage:
    """A damaged or missing file of a log, and `what` is the matter with it. Without the files in
    `removable`, the rest of the log is the same table, or an older version of it (`is_older`).
    Empty: the file is needed.
    """

    file: str
    what: str
    removable: tuple[str, ...] = ()
    is_older: bool = False


def log_damage(
    sizes: Mapping[str, int],
    read: Callable[[str], bytes] | None = None,
    version: int | None = None,
    *,
    with_history: bool = False,
) -> LogDamage | None:
    """The first damage in a log that a `version` needs. None: the log is whole.

    `sizes` has the size of each file by its name. `version` None is the newest one. `read` returns
    the content of a file. Without it, only names and sizes count. `with_history` also reads the
    commits that a checkpoint contains.
    """
    commits = _numbers(_COMMIT, sizes)
    parts = _checkpoints(sizes)
    newest = max([*commits, *parts], default=-1)
    lost = max(_numbers(_CHECKSUM, sizes), default=-1)
    if lost > newest:
        return LogDamage(commit_file(lost), f"{IS_MISSING}, but its checksum is there")
    if newest < 0:
        return None  # there is no table
    last = newest if version is None else version
    # Only the newest whole one is needed, and only those after it are read.
    usable = sorted((number for number in parts if number <= last), reverse=True)
    base = next((number for number in usable if _is_whole(parts[number], sizes, read)), -1)
    if version is not None and base < 0 and 0 not in commits:
        return None  # the version has expired
    # The newest commit has the metadata of lowmark, also if a checkpoint contains it.
    needed = range(min(base + 1, last) if version is None else base + 1, last + 1)
    damage = _of_commits(needed, sizes, read)
    hint = _hint(read(LAST_CHECKPOINT)) if read and LAST_CHECKPOINT in sizes else -1
    if hint > newest and version is None and damage is None:
        what = f"names version {hint}, and the newest commit is version {newest}"
        return LogDamage(LAST_CHECKPOINT, what, (LAST_CHECKPOINT,), is_older=True)
    of_checkpoint = _of_checkpoint(sizes, parts, base, last, hint, read)
    if of_checkpoint is not None:
        return LogDamage(of_checkpoint.file, of_checkpoint.what) if damage else of_checkpoint
    if damage is not None or not with_history:
        return damage
    # Only the history needs the commits that a checkpoint contains.
    others = (number for number in sorted(commits, reverse=True) if number <= base)
    older = _of_commits(others, sizes, read)
    return older and LogDamage(older.file, older.what, (older.file,))


def _of_commits(
    numbers: Iterable[int], sizes: Mapping[str, int], read: Callable[[str], bytes] | None
) -> LogDamage | None:
    for file in map(commit_file, numbers):
        if file not in sizes:
            return LogDamage(file, IS_MISSING)
        if not sizes[file]:
            return LogDamage(file, IS_EMPTY)
        if read is not None and not _is_commit(read(file)):
            return LogDamage(file, IS_NO_JSON)
    return None


def actions_in(lines: Iterable[str | bytes]) -> list[dict[str, Any]]:
    """The actions of a commit from the lines of its file that are not empty. None at all: the file
    is damaged, because a line is not a JSON object, or there is no line.
    """
    try:
        actions = [json.loads(line) for line in lines]
    except (RecursionError, ValueError):
        return []
    return actions if all(isinstance(action, dict) for action in actions) else []


def _is_commit(content: bytes) -> bool:
    return bool(actions_in(line for line in content.split(b"\n") if line.strip()))


def is_parquet(content: bytes) -> bool:
    """Whether a file begins and ends as a Parquet file does."""
    return len(content) > 2 * len(MAGIC) and content.startswith(MAGIC) and content.endswith(MAGIC)


def _of_checkpoint(
    sizes: Mapping[str, int],
    parts: Mapping[int, list[str]],
    base: int,
    last: int,
    hint: int,
    read: Callable[[str], bytes] | None,
) -> LogDamage | None:
    """The damage of a checkpoint that readers use. `base` is the newest whole one, and `hint` the
    one that `_last_checkpoint` names, or -1.
    """
    newest = max((number for number in (*parts, hint) if number <= last), default=-1)
    if newest in (-1, base):
        return None
    files = sorted(parts.get(newest, []))
    removable = (*files, *([LAST_CHECKPOINT] if LAST_CHECKPOINT in sizes else []))
    if not files:
        return LogDamage(f"{newest:020}.checkpoint.parquet", IS_MISSING, removable)
    for file in files:
        if not sizes[file]:
            return LogDamage(file, IS_EMPTY, removable)
        if read is not None and not _is_content(file, read):
            return LogDamage(file, _IS_NO_PARQUET, removable)
    return LogDamage(files[0], "is a part of a checkpoint, and other parts are missing", removable)


def _checkpoints(sizes: Mapping[str, int]) -> dict[int, list[str]]:
    checkpoints: dict[int, list[str]] = {}
    for name in sizes:
        if "checkpoint" in name and (match := _CHECKPOINT.fullmatch(name)) is not None:
            checkpoints.setdefault(int(match[1]), []).append(name)
    return checkpoints


def _is_whole(
    files: list[str], sizes: Mapping[str, int], read: Callable[[str], bytes] | None
) -> bool:
    matches = [_CHECKPOINT.fullmatch(file) for file in files]
    parts = {int(match["parts"] or 1) for match in matches if match is not None}
    return len(files) >= min(parts) and all(
        sizes[file] > 0 and (read is None or _is_content(file, read)) for file in files
    )


def _is_content(file: str, read: Callable[[str], bytes]) -> bool:
    content = read(file)
    return _is_commit(content) if file.endswith(".json") else is_parquet(content)


def _hint(content: bytes) -> int:
    """The version of the checkpoint that `_last_checkpoint` names. -1: it names none."""
    try:
        version = json.loads(content)["version"]
    except (LookupError, RecursionError, TypeError, ValueError):
        return -1
    return version if isinstance(version, int) else -1


def _numbers(end: str, names: Iterable[str]) -> set[int]:
    """The versions of the files with this end. A log can have 100,000 files."""
    numbers = (name[:_DIGITS] for name in names if name[_DIGITS:] == end)
    return {int(number) for number in numbers if number.isdecimal()}


def commit_file(version: int) -> str:
    return f"{version:020}.json"
