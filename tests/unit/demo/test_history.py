"""The changes of a git history, one by one, and that they lead to the tree of each commit."""

from __future__ import annotations

import ast
import inspect
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from connector import DeleteFamily, SetCell
from examples.demo import compare, history
from examples.demo.history import list_commits, read_commits
from tests.unit.demo.histories import HISTORIES, merges, plain, renames_and_returns, submodules
from tests.unit.git_repository import START, Repository, rows_of


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


def check_agreement(repository: Repository) -> None:
    """The changes up to each commit are its tree."""
    changes = []
    for commit in repository.history():
        changes += commit.changes
        assert rows_of(changes) == compare.tree(repository.folder, commit.id)
    assert rows_of(changes) == compare.tree(repository.folder, "HEAD")


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
def test_changes_up_to_each_commit_are_its_tree(
    history: Callable[[Repository], None], repository: Repository
) -> None:
    history(repository)
    check_agreement(repository)


def test_tree_is_what_git_shows(repository: Repository) -> None:
    """Not an agreement of two functions of the demo, but plain values."""
    plain(repository)
    blob = repository.git("rev-parse", "HEAD:a")
    assert compare.tree(repository.folder, "HEAD")[b"a"] == {
        "mode": "100644",
        "blob": blob,
        "size": 8,
    }


def test_truth_and_source_share_no_code() -> None:
    """An error of a shared line would be in both, and not be seen."""

    def imported(module: object) -> set[str]:
        nodes = ast.walk(ast.parse(inspect.getsource(module)))  # type: ignore[arg-type]
        return {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}

    assert "examples.demo.history" not in imported(compare)
    assert not {name for name in imported(history) if name.startswith("examples")}


def test_new_content_writes_the_whole_row_and_a_mode_only_itself(repository: Repository) -> None:
    """REC-6, MRG-8"""
    plain(repository)
    repository.write("a", "changed\n", executable=True)
    repository.commit("only the mode")
    *_, content, mode = repository.history()
    deletion, *cells = content.changes[0].entries
    assert deletion == DeleteFamily("f")
    assert [cell.qualifier for cell in cells if isinstance(cell, SetCell)] == [
        b"mode",
        b"blob",
        b"size",
    ]
    assert mode.changes[0].entries == (SetCell("f", b"mode", b"100755", mode.timestamp),)


def test_a_commit_is_a_transaction_with_right_numbers(repository: Repository) -> None:
    """REC-24: a rename deletes one row and writes another at one commit timestamp"""
    plain(repository)
    repository.git("mv", "a", "z")
    repository.commit("renamed")
    commit = repository.history()[-1]
    assert [change.row_key for change in commit.changes] == [b"a", b"z"]
    assert {change.commit_timestamp for change in commit.changes} == {commit.timestamp}
    assert [
        (
            transaction.server_transaction_id,
            transaction.record_sequence,
            transaction.is_last_record_in_transaction_in_partition,
            transaction.number_of_records_in_transaction,
            transaction.number_of_partitions_in_transaction,
        )
        for change in commit.changes
        if (transaction := change.transaction) is not None
    ] == [(commit.id, 0, True, 2, 2), (commit.id, 1, True, 2, 2)]


def test_commit_timestamps_rise_and_are_not_in_the_future(repository: Repository) -> None:
    """REC-15, REC-24: as those of a database, although dates in a history may be any"""
    for number, date in enumerate((START, START - 86_400, 0, 253402300799, START)):
        repository.write("a", str(number))
        repository.commit(date=date)
    timestamps = [commit.timestamp for commit in repository.history()]
    assert timestamps == sorted(set(timestamps))
    assert timestamps[:3] == [START * 1_000_000 + step for step in range(3)]
    assert START * 1_000_000 < timestamps[3] <= time.time_ns() // 1000


def test_bare_shallow_and_sha256_repositories_are_read_too(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository", "--object-format=sha256")
    merges(repository)
    repository.git("clone", "--quiet", "--bare", ".", str(tmp_path / "bare"))
    source = f"file://{repository.folder}"
    repository.git("clone", "--quiet", "--depth=1", source, str(tmp_path / "shallow"))
    head = compare.tree(repository.folder, "HEAD")
    for folder in (tmp_path / "bare", tmp_path / "shallow", repository.folder / "folder"):
        commits = read_commits(folder, list_commits(folder))
        assert rows_of(change for commit in commits for change in commit.changes) == head


def test_settings_of_the_user_and_replaced_objects_change_nothing(repository: Repository) -> None:
    renames_and_returns(repository)
    submodules(repository)
    before = repository.history()
    for setting in ("diff.ignoreSubmodules=all", "diff.renames=copies", "color.ui=always"):
        repository.git("config", *setting.split("="))
    repository.git("replace", "--graft", repository.git("rev-parse", "HEAD"))
    assert repository.history() == before
    check_agreement(repository)


def test_a_folder_without_history_and_a_damaged_repository_are_errors(
    tmp_path: Path, repository: Repository
) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        list_commits(tmp_path / "absent")
    with pytest.raises(subprocess.CalledProcessError):
        list_commits(repository.folder)
    renames_and_returns(repository)
    tree = repository.git("rev-parse", "HEAD~2^{tree}")
    (repository.folder / ".git" / "objects" / tree[:2] / tree[2:]).unlink()
    with pytest.raises(subprocess.CalledProcessError):
        repository.history()


def test_a_read_that_stops_early_leaves_no_process(repository: Repository) -> None:
    renames_and_returns(repository)
    commits = read_commits(repository.folder, list_commits(repository.folder))
    next(commits)
    commits.close()  # type: ignore[attr-defined]
    left = subprocess.run(["pgrep", "-f", str(repository.folder)], capture_output=True, check=False)
    assert left.stdout == b""
