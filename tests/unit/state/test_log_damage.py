"""TBL-14: the first damage in a Delta log is found from its files, and only if a version needs the
file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.state.damage import log_damaged
from connector.state.log_damage import LogDamage, log_damage

COMMIT = b'{"commitInfo":{"operation":"WRITE"}}\n{"add":{"path":"a.parquet"}}\n'
CHECKPOINT = b"PAR1 rows and footer PAR1"
HINT = "_last_checkpoint"


def commit(version: int) -> str:
    return f"{version:020}.json"


def checkpoint(version: int) -> str:
    return f"{version:020}.checkpoint.parquet"


def log(newest: int, *checkpoints: int, cleaned_below: int = 0) -> dict[str, bytes]:
    """The files of a log by name, as Delta writes them."""
    files = {commit(version): COMMIT for version in range(cleaned_below, newest + 1)}
    files |= {f"{version:020}.crc": b"{}" for version in range(cleaned_below, newest + 1)}
    files |= {checkpoint(version): CHECKPOINT for version in checkpoints}
    if checkpoints:
        files[HINT] = json.dumps({"version": max(checkpoints), "size": 9}).encode()
    return files


def result(
    files: Mapping[str, bytes], version: int | None = None, *, with_history: bool = False
) -> LogDamage | None:
    sizes = {name: len(content) for name, content in files.items()}
    return log_damage(sizes, files.__getitem__, version, with_history=with_history)


@st.composite
def logs(draw: st.DrawFn) -> tuple[dict[str, bytes], int, list[int]]:
    """A whole log, its newest version, and its checkpoints."""
    newest = draw(st.integers(0, 12))
    checkpoints = draw(st.lists(st.integers(0, newest), max_size=3, unique=True).map(sorted))
    cleaned_below = draw(st.integers(0, checkpoints[0])) if checkpoints else 0
    return log(newest, *checkpoints, cleaned_below=cleaned_below), newest, checkpoints


DAMAGES = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) * 2 // 3],
    "zeros": lambda content: bytes(len(content)),
    "other bytes": lambda content: b"\xff" * len(content),
    "missing": lambda content: None,
}


@given(logs(), st.sampled_from(sorted(DAMAGES)), st.data())
def test_damage_is_found_if_a_needed_file_has_it(
    whole: tuple[dict[str, bytes], int, list[int]], what: str, data: st.DataObject
) -> None:
    """Of the newest checkpoint, the commits after it, and the newest commit. The history needs each
    commit that is there. The removal of removable files leaves a log without damage.
    """
    files, newest, checkpoints = whole
    assert result(files) is result(files, with_history=True) is None
    base = checkpoints[-1] if checkpoints else -1
    needed = {commit(version) for version in range(base + 1, newest + 1)} | {commit(newest)}
    needed |= {checkpoint(base)} if checkpoints else set()
    file = data.draw(st.sampled_from(sorted(files)))
    content = DAMAGES[what](files[file])
    damaged = {name: old for name, old in files.items() if name != file}
    damaged |= {} if content is None else {file: content}
    damage = result(damaged)
    assert (damage is not None) == (file in needed)
    if damage is not None:
        assert damage.file == file
        left = {name: old for name, old in damaged.items() if name not in damage.removable}
        assert not damage.removable or result(left) is None
    elif file.endswith(".json") and content is not None:
        older = result(damaged, with_history=True)
        assert older is not None
        assert (older.file, older.removable) == (file, (file,))
    else:
        assert result(damaged, with_history=True) is None


@given(logs(), st.data())
def test_names_and_sizes_show_an_empty_or_missing_commit(
    whole: tuple[dict[str, bytes], int, list[int]], data: st.DataObject
) -> None:
    """Delta's libraries read an empty commit as one that changes nothing."""
    files, newest, checkpoints = whole
    sizes = {name: len(content) for name, content in files.items()}
    assert log_damage(sizes) is None
    needed = range(checkpoints[-1] + 1 if checkpoints else 0, newest + 1)
    if needed:
        file = commit(data.draw(st.sampled_from(needed)))
        without = {name: size for name, size in sizes.items() if name != file}
        for damaged in (without, {**sizes, file: 0}):
            damage = log_damage(damaged)
            assert damage is not None
            assert damage.file == file


@pytest.mark.parametrize("version", [0, 3])
def test_a_version_that_was_cleaned_is_not_damage(version: int) -> None:
    """TBL-23: it has expired."""
    files = log(9, 6, cleaned_below=4)
    assert result(files, version) is None


def test_an_older_version_does_not_need_later_commits() -> None:
    """TBL-17: a snapshot of a cut stays readable."""
    files = log(5) | {commit(5): b""}
    assert result(files, 4) is None
    assert result(files) == LogDamage(commit(5), "has 0 bytes")


def test_a_commit_that_a_checkpoint_contains_is_damage_for_the_history_only() -> None:
    files = log(5, 3) | {commit(1): b"x"}
    assert result(files) is None
    damage = result(files, with_history=True)
    assert damage is not None
    assert (damage.file, damage.removable) == (commit(1), (commit(1),))
    remedy = log_damaged("/w/tables/t/data", damage).remedy
    assert remedy.startswith(f"Move {commit(1)} out of /w/tables/t/data/_delta_log")


def test_a_checkpoint_in_parts_needs_all_of_them() -> None:
    parts = [f"{3:020}.checkpoint.{part:010}.{2:010}.parquet" for part in (1, 2)]
    files = log(5) | dict.fromkeys(parts, CHECKPOINT)
    files = {name: content for name, content in files.items() if name != commit(0)}
    assert result(files) is None
    del files[parts[1]]
    damage = result(files)
    assert damage is not None
    assert (damage.file, damage.removable) == (parts[0], ())


@pytest.mark.parametrize("checkpoints", [[], [3]])
def test_a_hint_beyond_the_newest_commit_is_damage(checkpoints: list[int]) -> None:
    """The commits up to it are lost, or the folder is an older copy. An older version stays
    readable.
    """
    files = log(5, *checkpoints) | {HINT: b'{"version":9,"size":9}'}
    damage = result(files)
    assert damage == LogDamage(
        HINT, "names version 9, and the newest commit is version 5", (HINT,), is_older=True
    )
    remedy = log_damaged("/w/tables/t/data", damage).remedy
    assert remedy.startswith("Restore the missing commits from a backup. If ")
    assert f"delete /w/tables/t/data/_delta_log/{HINT}" in remedy
    del files[HINT]
    assert result(files) is None
    assert result(log(5, 3) | {HINT: b'{"version":9,"size":9}'}, 4) is None


EMPTY, CUT = "has 0 bytes", "is cut, or its bytes were replaced"


@pytest.mark.parametrize(
    ("second", "is_read", "file", "what"),
    [
        (b"", True, 1, EMPTY),
        (b"", False, 1, EMPTY),
        (CHECKPOINT[:-1], True, 1, CUT),
        (None, True, 0, "is a part of a checkpoint, and other parts are missing"),
        (None, False, 0, "is a part of a checkpoint, and other parts are missing"),
    ],
)
def test_the_damage_of_a_checkpoint_has_its_name_and_its_kind(
    second: bytes | None, is_read: bool, file: int, what: str
) -> None:
    """TBL-14: with the content of the files, or by their sizes only."""
    parts = [f"{3:020}.checkpoint.{part:010}.{2:010}.parquet" for part in (1, 2)]
    files = log(5, cleaned_below=2) | dict.fromkeys(parts, CHECKPOINT)
    files |= {} if second is None else {parts[1]: second}
    if second is None:
        del files[parts[1]]
    sizes = {name: len(content) for name, content in files.items()}
    damage = log_damage(sizes, files.__getitem__ if is_read else None)
    assert damage is not None
    assert (damage.file, damage.what) == (parts[file], what)


def test_a_folder_without_commits_has_no_damage() -> None:
    """`resumable`: the process that made the log was killed before its first commit."""
    assert result({}) is None
    assert result({HINT: b""}) is None
