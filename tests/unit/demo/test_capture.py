"""What the capture of a git history writes, change by change; that it ends in the truth is
tests/unit/demo/test_truth.py.
"""

from __future__ import annotations

import string
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from connector.demo.capture import GitCapture
from connector.demo.repository import NoHistoryError, find_history
from connector.errors import ConnectorError
from connector.records.model import DeleteCells, DeleteFamily, SetCell
from tests.unit.git_repository import NOW, START, Repository, capture_of

if TYPE_CHECKING:
    from pathlib import Path

    from connector.records.model import DataChange


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


def last_change(repository: Repository) -> DataChange:
    return list(repository.capture().transactions())[-1][-1]


def test_new_content_is_an_upsert_of_the_whole_row(repository: Repository) -> None:
    """REC-6"""
    repository.write("a")
    repository.commit("subject")
    deletion, *cells = last_change(repository).entries
    assert deletion == DeleteFamily("f")
    assert [cell.qualifier for cell in cells if isinstance(cell, SetCell)] == [
        b"mode",
        b"blob",
        b"size",
        b"author",
        b"time",
        b"subject",
    ]


def test_mode_alone_is_a_partial_update(repository: Repository) -> None:
    """MRG-8"""
    repository.write("a")
    repository.commit()
    repository.write("a", executable=True)
    repository.commit()
    entries = last_change(repository).entries
    assert [entry.qualifier for entry in entries if isinstance(entry, SetCell)] == [
        b"mode",
        b"author",
        b"time",
        b"subject",
    ]
    assert len(entries) == 4


def test_time_that_is_none_takes_the_old_one_away_in_a_partial_update(
    repository: Repository,
) -> None:
    """REC-7: the range [0, 0) is the whole column"""
    repository.write("a")
    repository.write("touched-by")
    repository.commit()
    repository.git("update-index", "--chmod=+x", "a")
    head, tree = repository.git("rev-parse", "HEAD"), repository.git("write-tree")
    content = (
        f"tree {tree}\nparent {head}\nauthor A <a> 1 +0000\ncommitter B <b> 99999999999999"
        " +0000\n\nx\n"
    )
    repository.git(
        "reset",
        "-q",
        "--soft",
        repository.git(
            "hash-object", "-t", "commit", "-w", "--stdin", "--literally", stdin=content.encode()
        ),
    )
    assert DeleteCells("f", b"time", 0, 0) in last_change(repository).entries


def test_deleted_file_is_a_deleted_row(repository: Repository) -> None:
    """REC-6"""
    repository.write("a")
    repository.commit()
    repository.git("rm", "-q", "a")
    repository.commit()
    assert last_change(repository).entries == (DeleteFamily("f"),)


def test_rename_deletes_one_row_and_writes_another_in_one_transaction(
    repository: Repository,
) -> None:
    repository.write("a")
    repository.commit()
    repository.git("mv", "a", "b")
    repository.commit()
    _, (gone, new) = repository.capture().transactions()
    assert (gone.row_key, new.row_key) == (b"a", b"b")
    assert gone.commit_timestamp == new.commit_timestamp


def test_transaction_numbers_its_changes(repository: Repository) -> None:
    """REC-24: one commit timestamp; the numbers agree with what is there"""
    for letter in string.ascii_lowercase[:20]:
        repository.write(f"{letter}/file")
    commit = repository.commit()
    (transaction,) = repository.capture().transactions()
    facts = [change.transaction for change in transaction if change.transaction is not None]
    partitions = {change.stream_partition for change in transaction}
    assert len({change.commit_timestamp for change in transaction}) == 1
    assert {fact.server_transaction_id for fact in facts} == {commit}
    assert [fact.record_sequence for fact in facts] == list(range(20))
    assert {
        (fact.number_of_records_in_transaction, fact.number_of_partitions_in_transaction)
        for fact in facts
    } == {(20, len(partitions))}
    assert (
        sum(fact.is_last_record_in_transaction_in_partition for fact in facts)
        == len(partitions)
        > 1
    )


def test_commit_timestamps_rise_and_stay_below_now_whatever_the_dates(
    repository: Repository,
) -> None:
    """REC-15, REC-24: as a database's commit clock would"""
    for number, date in enumerate((START, START - 86_400, 0, 4_102_444_800, 253402300799, START)):
        repository.write("a", str(number))
        repository.commit(date=date)
    timestamps = [
        transaction[0].commit_timestamp for transaction in repository.capture().transactions()
    ]
    assert timestamps == sorted(set(timestamps))
    assert timestamps[:3] == [START * 1_000_000 + step for step in range(3)]
    assert timestamps[3:] == [NOW - 2, NOW - 1, NOW]


def test_commits_that_change_nothing_are_no_transactions(repository: Repository) -> None:
    repository.commit("a root with no files")
    repository.write("a")
    repository.commit()
    repository.commit("empty")
    assert len(list(repository.capture().transactions())) == 1


def test_merge_is_one_transaction_with_all_that_it_brings(repository: Repository) -> None:
    repository.write("a")
    repository.commit()
    repository.git("checkout", "-q", "-b", "side")
    for number in range(3):
        repository.write(f"side{number}")
        repository.commit()
    repository.git("checkout", "-q", "main")
    repository.git("merge", "-q", "--no-ff", "-m", "merge", "side")
    first, merge = repository.capture().transactions()
    assert ([change.row_key for change in first], [change.row_key for change in merge]) == (
        [b"a"],
        [b"side0", b"side1", b"side2"],
    )


def test_paths_that_cannot_be_keys_are_left_out_and_counted(repository: Repository) -> None:
    """REC-14: a row key has at most 4,096 bytes"""
    blob = repository.git("hash-object", "-w", "--stdin", stdin=b"deep")
    longest, too_long = "d/" * 2047 + "ab", "d/" * 2047 + "abc"
    for path in (longest, too_long):
        repository.git("update-index", "--add", "--cacheinfo", f"100644,{blob},{path}")
    repository.git("commit", "-q", "-m", "deep")
    capture = repository.capture()
    (transaction,) = capture.transactions()
    assert [change.row_key for change in transaction] == [longest.encode()]
    assert transaction[0].transaction is not None
    assert transaction[0].transaction.number_of_records_in_transaction == 1
    assert capture.paths_left_out == {too_long.encode()}


def test_missing_and_empty_repositories_are_told_apart(
    tmp_path: Path, repository: Repository
) -> None:
    with pytest.raises(NoHistoryError, match="no commit"):
        find_history(repository.folder)
    (tmp_path / "plain").mkdir()
    with pytest.raises(NoHistoryError, match="not in a git repository"):
        find_history(tmp_path / "plain")
    with pytest.raises(NoHistoryError, match="no folder"):
        find_history(tmp_path / "absent")


def test_environment_of_a_git_hook_does_not_redirect_the_capture(
    tmp_path: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.write("a")
    head = repository.commit()
    other = Repository(tmp_path / "other")
    other.commit()
    monkeypatch.setenv("GIT_DIR", str(other.folder / ".git"))
    assert find_history(repository.folder).head == head
    assert len(list(capture_of(repository.folder).transactions())) == 1


def test_damaged_repository_is_an_error_with_gits_own_words(repository: Repository) -> None:
    for number in range(3):
        repository.write("a", str(number))
        repository.commit()
    middle = repository.git("rev-parse", "HEAD~1^{tree}")
    capture = repository.capture()
    (repository.folder / ".git" / "objects" / middle[:2] / middle[2:]).unlink()
    with pytest.raises(ConnectorError, match="could not read the history"):
        list(capture.transactions())


def test_capture_that_is_abandoned_leaves_no_process(repository: Repository) -> None:
    for number in range(50):
        repository.write("a", str(number))
        repository.commit()
    transactions = repository.capture().transactions()
    next(transactions)
    transactions.close()  # type: ignore[attr-defined]
    left = subprocess.run(
        ["pgrep", "-f", f"git -C {repository.folder}"], capture_output=True, check=False
    )
    assert left.stdout == b""


def fast_import(repository: Repository, commits: int, files_each: int) -> None:
    def stream() -> bytes:
        parts = []
        for number in range(commits):
            parts.append(
                f"commit refs/heads/main\ncommitter A <a@b> {START + number} +0000\ndata 4\nmany\n"
            )
            for file in range(files_each):
                content = f"{number} {file}"
                parts.append(
                    f"M 100644 inline folder{file}/file{number % 7}\ndata"
                    f" {len(content)}\n{content}\n"
                )
        return "".join(parts).encode()

    repository.git("fast-import", "--quiet", stdin=stream())


def test_histories_stream_at_thousands_of_changes_a_second(repository: Repository) -> None:
    fast_import(repository, commits=400, files_each=25)
    history = find_history(repository.folder)
    if sys.gettrace() is not None:
        pytest.skip("a tracer, such as that of make coverage, slows the capture down")
    begin = time.monotonic()
    count = sum(
        len(transaction)
        for transaction in GitCapture(
            history.folder, history.head, history.commits, NOW
        ).transactions()
    )
    assert count == 10_000
    assert count / (time.monotonic() - begin) > 2_000, (
        "far below what it does, so that a busy machine does not fail it"
    )
