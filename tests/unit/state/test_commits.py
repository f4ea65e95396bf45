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


DELETE = [info(operation="DELETE"), {"remove": {"path": "a", "dataChange": True}}]
"""A commit of another program that changes rows."""


def restore(version: object) -> dict[str, Any]:
    return info(operation="RESTORE", operationParameters={"version": version})


def test_a_commit_has_its_time_its_metadata_and_its_files() -> None:
    """TBL-10, TBL-15: a file whose rows were marked is neither new nor gone."""
    add = {"add": {"path": "new", "size": 5}}
    marked = [{"remove": {"path": "old", "size": 3}}, {"add": {"path": "old", "size": 3}}]
    gone = [{"remove": {"path": "gone", "size": 2}}, {"remove": {"path": "of unknown size"}}]
    commit = log_of([info({"batch": 1}), add, *marked, *gone]).at(0)
    assert commit is not None
    assert (commit.version, commit.committed_at, commit.operation) == (0, 7000, "WRITE")
    assert commit.stored == {"batch": 1}
    assert [json.loads(action)["add"]["path"] for action in commit.added] == ["new", "old"]
    assert commit.removed == {"old", "gone", "of unknown size"}
    counts = commit.files
    assert (counts.at, counts.added, counts.removed) == (7000, 1, 2)
    assert (counts.removed_bytes, counts.added_bytes) == (2, 5)
    timeless = log_of([{"commitInfo": {}}]).at(0)
    assert timeless is not None
    assert timeless.committed_at == 0, "its time is not known"


@pytest.mark.parametrize(
    "text",
    [None, "", "x", "[]", "5", '{"other": {}}', '{"lowmark": 5}', '{"lowmark":' + "[" * 10**5],
)
def test_other_metadata_is_not_of_lowmark(text: str | None) -> None:
    """TBL-14."""
    assert stored_in({"userMetadata": text}) is None


def test_a_restore_has_the_metadata_of_the_restored_version() -> None:
    """TBL-14: a remedy says that you restore a table."""
    log = log_of([info({"batch": 1})], DELETE, [restore(0)], [restore("1")], [restore(2)])
    stored = [commit.stored for commit in log.back_from(4)]
    assert stored == [{"batch": 1}, None, {"batch": 1}, None, {"batch": 1}]
    assert [commit.version for commit in log.of_lowmark(4)] == [0]


def test_a_commit_that_takes_applies_back_is_named() -> None:
    """RUN-3: with the last good version, until lowmark has all applies again."""
    applies = [[info({"apply_number": number})] for number in range(3)]
    log = log_of(*applies, [restore(0)], optimize("a"), [restore(2)], *applies[2:])
    assert log.rollback(3) == log.rollback(4) == (" (version 3, RESTORE)", 2)
    assert [log.rollback(version) for version in (0, 2, 5, 6)] == [None] * 4


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


def optimize(*paths: str, data_change: object = False, **others: Any) -> list[dict[str, Any]]:
    """A commit that replaces the files at `paths`."""
    removed = [{"remove": {"path": path, "dataChange": data_change}} for path in paths]
    add = {"add": {"path": f"{'+'.join(paths)}", "size": 1, "dataChange": data_change}}
    return [info(operation="OPTIMIZE", **others), *removed, add]


METADATA = {
    "id": "1",
    "schemaString": '{"type":"struct","fields":[{"name":"id"}]}',
    "partitionColumns": ["_bucket"],
    "configuration": {"lowmark.table": "x", "delta.enableDeletionVectors": "true"},
}
PROTOCOL = {"minReaderVersion": 3, "writerFeatures": ["deletionVectors"]}
BEGUN = [info({"batch": 1}), {"metaData": METADATA}, {"protocol": PROTOCOL}]


def altered(**parts: Any) -> dict[str, Any]:
    return {"metaData": {**METADATA, **parts}}


def with_property(name: str, text: str) -> dict[str, Any]:
    return altered(configuration={**METADATA["configuration"], name: text})


NEUTRAL = {
    "optimize": optimize("a", "b"),
    "vacuum": [info(operation="VACUUM END")],
    "property": [info(), with_property("owner", "me")],
    "delta's property": [info(), with_property("delta.autoOptimize.autoCompact", "true")],
    "description": [info(), altered(description="mine", name="x")],
    "the same form": [info(), {"metaData": METADATA}, {"protocol": PROTOCOL}],
    "the features of old tables": [
        info(),
        {
            "protocol": {
                "readerFeatures": ["variantType"],
                "writerFeatures": ["appendOnly", "invariants", "deletionVectors"],
            }
        },
    ],
    "a number of another writer": [info(), {"txn": {"appId": "nightly", "version": 7}}],
}
CHANGING = {
    "delete": DELETE,
    "append": [info(), {"add": {"path": "c", "dataChange": True}}],
    "a file without the mark": [info(), {"remove": {"path": "a"}}],
    "half an optimize": [*optimize("a"), {"add": {"path": "c", "dataChange": True}}],
    "a file twice": [info(), {"add": {"path": "a", "dataChange": False}}],
    "change data": [info(), {"cdc": {"path": "c", "dataChange": False}}],
    "an unknown action": [info(), {"other": {}}],
    "columns": [info(), altered(schemaString='{"type":"struct","fields":[]}')],
    "partitions": [info(), altered(partitionColumns=[])],
    "another table": [info(), altered(id="2")],
    "a property of lowmark": [info(), with_property("lowmark.table", "y")],
    "a removed property": [info(), altered(configuration={})],
    "names of columns": [info(), with_property("delta.columnMapping.mode", "name")],
    "a feature": [info(), {"protocol": {"writerFeatures": ["rowTracking"]}}],
    "a number of lowmark": [info(), {"txn": {"appId": "lowmark/t", "version": 7}}],
}


@pytest.mark.parametrize("commit", NEUTRAL.values(), ids=NEUTRAL.keys())
def test_a_commit_of_another_program_that_changes_no_row_has_the_metadata_before_it(
    commit: list[dict[str, Any]],
) -> None:
    """RUN-3: OPTIMIZE, VACUUM, and a property that is not lowmark's, also several in a row."""
    log = log_of(BEGUN, commit, [info(operation="VACUUM START")], commit)
    for version in (3, 1, 2, 3):
        newest = log.at(version)
        assert newest is not None
        assert (newest.stored, newest.is_own) == ({"batch": 1}, False)
        assert log.foreign(version) is None
    assert [own.version for own in log.of_lowmark(3)] == [0]


@pytest.mark.parametrize("commit", CHANGING.values(), ids=CHANGING.keys())
def test_a_commit_that_changes_rows_is_named_behind_others_that_do_not(
    commit: list[dict[str, Any]],
) -> None:
    """RUN-3, TBL-14: with the last good version."""
    log = log_of(BEGUN, optimize("a", "b"), commit, optimize("a+b"), [info()])
    for version in (4, 2, 3, 4):
        newest, foreign = log.at(version), log.foreign(version)
        assert newest is not None
        assert foreign is not None
        assert newest.stored is None
        assert foreign.commit.startswith(" (version 2, ")
        assert foreign.last_good == 1
    restored = log_of(BEGUN, optimize("a"), commit, [restore(1)], optimize("b")).at(4)
    assert restored is not None
    assert restored.stored == {"batch": 1}


def test_the_form_of_a_table_is_in_the_file_beside_its_commit_or_in_the_commits_before() -> None:
    """RUN-3: without both it is not known, and a commit that has one is of another program."""
    changed = [info(), with_property("lowmark.table", "y")]
    for commit, is_neutral in (([info(), altered(description="x")], True), (changed, False)):
        texts = ["\n".join(map(json.dumps, actions)) for actions in ([info({"batch": 1})], commit)]
        files = {f"{version:020}.json": text for version, text in enumerate(texts, 5)}
        checksum = {f"{5:020}.crc": json.dumps({"metadata": METADATA, "protocol": PROTOCOL})}
        begun = {f"{4:020}.json": "\n".join(map(json.dumps, BEGUN))}
        for others, is_known in ((checksum, True), (begun, True), ({}, False)):
            newest = Commits("/w/t", {**files, **others}.get).at(6)
            assert newest is not None
            assert (newest.stored is not None) == (is_neutral and is_known)


def test_a_commit_that_another_one_replaced_is_read_again() -> None:
    """TBL-14: a table was moved away and made again."""
    files = {f"{0:020}.json": json.dumps(info({"batch": 1})), f"{1:020}.json": json.dumps(info())}
    log = Commits("/w/t", files.get)
    stored = [log.at(1)]
    files[f"{0:020}.json"] = json.dumps(info({"batch": 2}))
    files[f"{1:020}.json"] = json.dumps(info(timestamp=8))
    stored.append(log.at(1))
    assert [commit.stored for commit in stored if commit] == [{"batch": 1}, {"batch": 2}]
