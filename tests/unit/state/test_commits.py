"""The commits of a Delta log as values (TBL-10, TBL-14). How Hadoop and deltalake read their files
is tested in `tests/spark/test_delta_log.py` and `tests/golden`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from connector.errors import TableError
from connector.state.commits import Commits, stored_in, user_metadata


def log_of(*commits: list[dict[str, Any]] | str) -> Commits:
    """A log with these commits from version 0 on: the actions of each, or the text of its file."""
    texts = [
        one if isinstance(one, str) else "\n".join(map(json.dumps, one)) + "\n" for one in commits
    ]
    files = {f"{version:020}.json": text for version, text in enumerate(texts)}
    return Commits("/w/t", files.get)


def info(stored: dict[str, Any] | None = None, **others: Any) -> dict[str, Any]:
    metadata = {} if stored is None else {"userMetadata": user_metadata(stored)}
    return {"commitInfo": {"timestamp": 7, "operation": "WRITE", **metadata, **others}}


def restore(version: object) -> dict[str, Any]:
    return info(operation="RESTORE", operationParameters={"version": version})


def test_a_commit_has_its_time_its_metadata_and_its_files() -> None:
    """TBL-10, TBL-15: a file whose rows were marked is neither new nor gone."""
    add = {"add": {"path": "new", "size": 5}}
    marked = [{"remove": {"path": "old", "size": 3}}, {"add": {"path": "old", "size": 3}}]
    commit = log_of([info({"batch": 1}), add, *marked, {"remove": {"path": "gone", "size": 2}}]).at(
        0
    )
    assert commit is not None
    assert (commit.version, commit.committed_at, commit.operation) == (0, 7000, "WRITE")
    assert commit.stored == {"batch": 1}
    assert [json.loads(action)["add"]["path"] for action in commit.added] == ["new", "old"]
    assert commit.removed == {"old", "gone"}
    counts = commit.files
    assert (counts.at, counts.added, counts.removed) == (7000, 1, 1)
    assert (counts.removed_bytes, counts.added_bytes) == (2, 5)


@pytest.mark.parametrize(
    "text",
    [None, "", "x", "[]", "5", '{"other": {}}', '{"lowmark": 5}', '{"lowmark":' + "[" * 10**5],
)
def test_other_metadata_is_not_of_lowmark(text: str | None) -> None:
    """TBL-14."""
    assert stored_in({"userMetadata": text}) is None


def test_a_restore_has_the_metadata_of_the_restored_version() -> None:
    """TBL-14: a remedy says that you restore a table."""
    log = log_of([info({"batch": 1})], [info()], [restore(0)], [restore("1")], [restore(2)])
    stored = [commit.stored for commit in log.back_from(4)]
    assert stored == [{"batch": 1}, None, {"batch": 1}, None, {"batch": 1}]
    assert [commit.version for commit in log.of_lowmark(4)] == [0]


@pytest.mark.parametrize("version", [1, 2, 9, None, "x", -1])
def test_a_restore_to_no_earlier_version_is_of_another_program(version: object) -> None:
    """TBL-14: also if it names itself."""
    commit = log_of([info({"batch": 1})], [restore(version)]).at(1)
    assert commit is not None
    assert commit.stored is None


def test_commits_are_read_back_to_the_first_that_is_missing() -> None:
    """TBL-23: a clean-up removes the oldest ones."""
    names = [f"{version:020}.json" for version in (2, 3)]
    log = Commits("/w/t", dict.fromkeys(names, json.dumps(info({"a": 1})).encode()).get)
    assert [commit.version for commit in log.back_from(3)] == [3, 2]
    with pytest.raises(TableError, match="is damaged") as caught:
        log.changed_between(0, 3)
    assert caught.value.cause.endswith(f"{1:020}.json is missing")


def test_files_that_changed_have_their_newest_action() -> None:
    """TBL-15: a compaction drops the groups of files that changed meanwhile."""
    marked = {"add": {"path": "a", "size": 1, "deletionVector": {}}}
    log = log_of(
        [info({}), {"add": {"path": "a", "size": 1}}, {"add": {"path": "b", "size": 1}}],
        [info({}), {"remove": {"path": "a"}}, marked],
        [info({}), {"remove": {"path": "b"}}, {"add": {"path": "c", "size": 1}}],
    )
    assert log.changed_between(0, 2) == {"a": json.dumps(marked), "b": None}


@pytest.mark.parametrize(
    ("content", "code"),
    [
        *((content, "TABLE_DAMAGED") for content in ("", '{"commitInfo":{"tim', "x", "5")),
        ('{"add":{}}', "COMMIT_UNREADABLE"),
    ],
)
def test_a_damaged_commit_is_an_error(content: str, code: str) -> None:
    """TBL-14: it is not the commit of another program."""
    with pytest.raises(TableError) as caught:
        log_of(content).at(0)
    assert caught.value.code == code
