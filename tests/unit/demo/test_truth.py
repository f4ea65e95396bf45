"""The truth of the demo, and that the capture's changes lead to it, on the histories that
repositories really have.
"""

from __future__ import annotations

import ast
import inspect
from typing import TYPE_CHECKING

import pytest

from connector.demo import capture, truth
from connector.demo.repository import find_history
from tests.unit.git_repository import START, Repository, capture_of, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from connector.records.model import DataChange


def assert_agree(folder: Path) -> dict[bytes, truth.Row]:
    """The changes, applied in order, are the truth; returns it."""
    rows = rows_of(
        change for transaction in capture_of(folder).transactions() for change in transaction
    )
    expected = truth.files(folder, find_history(folder).head)
    assert rows == expected
    return expected


def plain(repository: Repository) -> None:
    repository.write("a", "one\n")
    repository.write("folder/b", "two\n")
    repository.commit("first")
    repository.write("a", "changed\n")
    repository.commit("second")


def renames_and_returns(repository: Repository) -> None:
    plain(repository)
    repository.git("mv", "folder", "moved")
    repository.commit("a whole folder moves")
    repository.git("rm", "--quiet", "a")
    repository.commit("deleted")
    repository.write("a", "one\n")
    repository.commit("it comes back")


def modes(repository: Repository) -> None:
    plain(repository)
    repository.write("a", "changed\n", executable=True)
    repository.commit("only the mode")
    (repository.folder / "link").symlink_to("a")
    repository.write("becomes-link", "folder/b")
    repository.commit("a link, and a file that will be one")
    (repository.folder / "becomes-link").unlink()
    (repository.folder / "becomes-link").symlink_to("folder/b")
    repository.commit("the same bytes, as a link")


def file_becomes_folder(repository: Repository) -> None:
    plain(repository)
    (repository.folder / "a").unlink()
    repository.write("a/inner", "one\n")
    repository.commit("a is a folder now")
    (repository.folder / "a" / "inner").unlink()
    (repository.folder / "a").rmdir()
    repository.write("a", "and a file again\n")
    repository.commit()


def odd_paths(repository: Repository) -> None:
    for path in (
        b"\xff\xfe not utf-8",
        b"new\nline",
        b"tab\t",
        b'"quoted" \\ back',
        b":colon",
        b" ",
        "ünï/ç🚀".encode(),
        b"-rf",
        b"d/" * 300 + b"deep",
    ):
        repository.write(path, path)
    repository.commit("every byte but NUL and the slash")
    repository.write(b":colon", "again")
    repository.commit(":100644 looks like a raw line")


def submodules(repository: Repository) -> None:
    plain(repository)
    first, second = "1" * 40, "2" * 40
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{first},vendor/library")
    repository.git("commit", "--quiet", "-m", "a submodule")
    repository.git("update-index", "--cacheinfo", f"160000,{second},vendor/library")
    repository.git("update-index", "--cacheinfo", f"160000,{first},a")
    repository.git("commit", "--quiet", "-m", "moves on, and a file becomes one")


def merges(repository: Repository) -> None:
    plain(repository)
    repository.git("checkout", "--quiet", "-b", "side")
    repository.write("side", "1")
    repository.commit("on the side")
    repository.write("a", "from the side\n")
    repository.commit("on the side again")
    repository.git("checkout", "--quiet", "main")
    repository.write("main", "2")
    repository.commit("on main")
    repository.git(
        "merge", "--quiet", "--no-ff", "-m", "merge of two lines\nthat have a second one", "side"
    )


def empty_commits(repository: Repository) -> None:
    repository.commit("a root with no files")
    repository.commit("nothing")
    plain(repository)
    repository.commit("nothing again")


def ends_empty(repository: Repository) -> None:
    plain(repository)
    repository.git("rm", "--quiet", "-r", ".")
    repository.commit("all gone")


def wild_dates(repository: Repository) -> None:
    for number, date in enumerate(
        (START, START - 86_400, 0, 4_102_444_800, 1, 253402300799, START)
    ):
        repository.write("a", str(number))
        repository.commit(f"at {date}", date=date)
        repository.write(f"b{number}")
        repository.commit(f"after {date}", date=date)


def odd_texts(repository: Repository) -> None:
    repository.write("first")
    repository.commit()
    for number, message in enumerate(
        (
            b"",
            b"\n\n  leading blanks \t\nsecond line  \n\nbody",
            b"caf\xe9 in no encoding",
            "x\n" * 5000,
            "é" * 5000,
        )
    ):
        repository.write(f"file{number}")
        repository.commit(message, GIT_AUTHOR_NAME=f"Zoë the {number}.")
    repository.write("latin")
    repository.git("-c", "i18n.commitEncoding=ISO-8859-1", "add", "latin")
    repository.git(
        "-c",
        "i18n.commitEncoding=ISO-8859-1",
        "commit",
        "--quiet",
        "--file=-",
        stdin=b"caf\xe9 cr\xe8me",
    )
    repository.write("says-utf8")
    repository.git("add", "says-utf8")
    repository.git(
        "-c", "i18n.commitEncoding=utf8", "commit", "--quiet", "--file=-", stdin="café".encode()
    )


def broken_commits(repository: Repository) -> None:
    plain(repository)
    bob = b"committer Bob <b@b> 1600000000 +0000\n"
    ada = b"author Ada <a@b> 1600000000 +0000\n"
    repository.raw_commit(ada + b"committer Bob <b@b> 99999999999999 +0000\n")
    repository.raw_commit(ada + b"committer Bob <b@b> 99999999999999999999999999 +0000\n")
    repository.raw_commit(ada + b"committer Bob <b@b> -5 +0000\n")
    repository.raw_commit(ada + b"committer Bob <b@b>\n")
    repository.raw_commit(ada + b"committer Bob <b@b> when?\n")
    repository.raw_commit(b"author <a@b> 1600000000 +0000\n" + bob)
    repository.raw_commit(b"author    Spaces  All   <a@b> 1600000000 +0000\n" + bob)
    repository.raw_commit(b"author no mail\n" + bob)
    repository.raw_commit(b"author Ada <a<b>@b> 1600000000 +0000\n" + bob)
    repository.raw_commit(ada + bob + b"encoding no-such-encoding\n", b"\xff\xfe\n")
    repository.raw_commit(
        ada + bob + b"gpgsig -----BEGIN\n author Eve <e@e> 1 +0000\n \n -----END\n", b"signed\n"
    )
    repository.raw_commit(ada + bob, b"")
    repository.raw_commit(ada + bob, b"form\x0cfeed \x0b\n\x0c\nnot blank to git\n")
    repository.raw_commit(ada + bob, b"cut\0here\n")
    repository.write("a", "after all of them\n", executable=True)
    repository.commit("back to normal")


def old_modes(repository: Repository) -> None:
    plain(repository)
    blob = bytes.fromhex(repository.git("rev-parse", "HEAD:a"))
    for mode in (b"100664", b"100644", b"100775", b"100755"):
        tree = repository.git(
            "hash-object", "-t", "tree", "-w", "--stdin", "--literally", stdin=mode + b" a\0" + blob
        )
        repository.clock += 60
        repository.git(
            "reset",
            "--quiet",
            "--soft",
            repository.git("commit-tree", tree, "-p", "HEAD", "-m", mode),
        )


HISTORIES = [
    *(plain, renames_and_returns, modes, file_becomes_folder, odd_paths, submodules, merges),
    *(empty_commits, ends_empty, wild_dates, odd_texts, broken_commits, old_modes),
]


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
def test_changes_in_order_are_the_truth(
    history: Callable[[Repository], None], tmp_path: Path
) -> None:
    repository = Repository(tmp_path / "repository")
    history(repository)
    assert_agree(repository.folder)


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
def test_changes_up_to_each_commit_are_its_tree(
    history: Callable[[Repository], None], tmp_path: Path
) -> None:
    """TBL-17: what a snapshot between two commits has to equal"""
    repository = Repository(tmp_path / "repository")
    history(repository)
    changes: list[DataChange] = []
    for transaction in capture_of(repository.folder).transactions():
        changes += transaction
        facts = transaction[0].transaction
        assert facts is not None
        found = {
            path: {name: row[name] for name in ("mode", "blob", "size")}
            for path, row in rows_of(changes).items()
        }
        assert found == truth.tree(repository.folder, facts.server_transaction_id)


def test_bare_repositories_give_the_same(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository")
    merges(repository)
    repository.git("clone", "--quiet", "--bare", ".", str(tmp_path / "bare"))
    assert assert_agree(tmp_path / "bare") == assert_agree(repository.folder)


def test_folders_inside_stand_for_the_whole_repository(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository")
    plain(repository)
    assert assert_agree(repository.folder / "folder").keys() == {b"a", b"folder/b"}


def test_object_ids_may_be_sha256(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository", "--object-format=sha256")
    renames_and_returns(repository)
    assert {len(str(row["blob"])) for row in assert_agree(repository.folder).values()} == {64}


def test_oldest_commit_of_a_shallow_clone_counts_as_the_first(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository")
    renames_and_returns(repository)
    repository.git(
        "clone", "--quiet", "--depth=2", f"file://{repository.folder}", str(tmp_path / "shallow")
    )
    history = find_history(tmp_path / "shallow")
    assert (history.is_shallow, history.commits) == (True, 2)
    rows = assert_agree(tmp_path / "shallow")
    assert rows[b"moved/b"]["subject"] == "deleted"


def test_replaced_objects_are_not_followed(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository")
    plain(repository)
    head = repository.git("rev-parse", "HEAD")
    repository.git("replace", "--graft", head)
    assert find_history(repository.folder).commits == 2
    assert assert_agree(repository.folder)[b"folder/b"]["subject"] == "first"


def test_settings_of_the_user_do_not_change_what_is_captured(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository")
    submodules(repository)
    before = assert_agree(repository.folder)
    settings = (
        *(
            "diff.ignoreSubmodules=all",
            "diff.renames=copies",
            "diff.relative=true",
            "log.showSignature=true",
            "log.showRoot=false",
        ),
        *(
            "log.diffMerges=combined",
            "color.ui=always",
            "core.quotePath=false",
            "i18n.logOutputEncoding=UTF-16",
            "format.pretty=oneline",
        ),
    )
    for setting in settings:
        repository.git("config", *setting.split("="))
    assert assert_agree(repository.folder) == before


def test_rows_say_what_git_shows(tmp_path: Path) -> None:
    """Not an agreement of two programs of ours, but plain values."""
    repository = Repository(tmp_path / "repository")
    merges(repository)
    rows = truth.files(repository.folder, find_history(repository.folder).head)
    assert rows[b"side"] == {
        "mode": "100644",
        "blob": repository.git("rev-parse", "HEAD:side"),
        "size": 1,
        "author": "Ada",
        "time": repository.clock * 1_000_000,
        "subject": "merge of two lines that have a second one",
    }
    assert (rows[b"main"]["subject"], rows[b"folder/b"]["subject"]) == ("on main", "first")


def test_truth_and_capture_share_no_code() -> None:
    """An error in a shared line would be made twice, and seen by nobody."""

    def imported(module: object) -> set[str]:
        nodes = ast.walk(ast.parse(inspect.getsource(module)))  # type: ignore[arg-type]
        return {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}

    ours = {name for name in imported(truth) if name.startswith("connector")}
    assert ours == {"connector.errors", "connector.demo.bank"}
    assert not any("truth" in name for name in imported(capture))
