"""The log of a table without Delta: commits by put-if-absent, those of others, damage and kills at
every access to the disk (ENG-5). `tests/spark/test_own_log.py` compares it with Delta.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from connector.delta_log.checkpoint import checkpoint_file, removed_in
from connector.delta_log.log import CHECKSUMS_KEPT, Log, NotNewestError
from connector.delta_log.put import LinksUnsupportedError, LocalFolder
from connector.state.log_damage import commit_file
from tests.examples import tries

PROTOCOL = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["deletionVectors"],
    "writerFeatures": ["deletionVectors", "invariants", "appendOnly"],
}
METADATA = {
    "id": "1",
    "format": {"provider": "parquet", "options": {}},
    "schemaString": '{"type":"struct","fields":[]}',
    "partitionColumns": [],
    "configuration": {"delta.enableDeletionVectors": "true", "lowmark.buckets": "1"},
    "createdTime": 1,
}
APP = "lowmark/t"
VECTOR, VECTOR_FILE = (
    "ab^-aqEH.-t@S}K{vb[*k^",
    "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin",
)
"""The example of Delta's protocol."""


class KilledError(Exception):
    """The process is gone."""


class Disk(LocalFolder):
    """A folder whose process is killed at access `killed_at`, before or behind it."""

    def __init__(self, path: Path, killed_at: int = -1, *, is_behind: bool = False) -> None:
        super().__init__(str(path))
        self.left, self.is_behind = killed_at, is_behind

    def access(self, name: str, *arguments: Any) -> Any:
        is_last, self.left = self.left == 0, self.left - 1
        if is_last and not self.is_behind:
            raise KilledError
        result = getattr(LocalFolder, name)(self, *arguments)
        if is_last:
            raise KilledError
        return result

    def put(self, name: str, content: bytes) -> bool:
        return bool(self.access("put", name, content))

    def write(self, name: str, content: bytes) -> None:
        self.access("write", name, content)

    def delete(self, name: str) -> None:
        self.access("delete", name)


def add(path: str, **others: object) -> dict[str, Any]:
    file = {"path": path, "partitionValues": {"b": None}, "size": 7, "modificationTime": 1}
    return {"add": {**file, "dataChange": True, "stats": '{"numRecords":2}', **others}}


def gone(path: str, at: int = 2**62, **others: object) -> dict[str, Any]:
    return {"remove": {"path": path, "deletionTimestamp": at, "dataChange": True, **others}}


def vector(number: int) -> dict[str, Any]:
    where = {"storageType": "u", "pathOrInlineDv": VECTOR, "offset": number}
    return {"deletionVector": {**where, "sizeInBytes": 3, "cardinality": 1}}


def made(path: Path, *actions: dict[str, Any], version: int = 0, **metadata: Any) -> Path:
    """A log of one commit of Delta, or one more commit."""
    path.mkdir(exist_ok=True)
    begun = [{"protocol": PROTOCOL}, {"metaData": {**METADATA, **metadata}}]
    lines = [json.dumps(action) for action in (*(begun if version == 0 else ()), *actions)]
    (path / commit_file(version)).write_text("\n".join(lines))
    return path


def put(log: Log, number: int, *actions: dict[str, Any], at: int | None = None) -> None:
    version = log.state().version if at is None else at
    log.commit(version, [*map(json.dumps, actions)], "{}", app_id=APP, number=number)


def paths(log: Log) -> set[str]:
    return {file.path for file in log.state().added}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made(tmp_path / "_delta_log", add("a"))


def test_a_commit_takes_the_next_number_once(folder: Path) -> None:
    first, second = (Log(Disk(folder)) for _ in range(2))
    assert (first.state().version, second.state().version) == (0, 0)
    put(first, 1, add("b"), gone("a"))
    with pytest.raises(NotNewestError):
        put(second, 1, add("c"), at=0)
    assert paths(second) == paths(first) == {"b"}
    put(second, 1, add("c"))  # the number was used
    assert second.state().version == 1
    put(second, 2, add("c"))
    assert paths(first) == {"b", "c"}
    assert (
        sorted(Disk(folder).names())
        == [f"{version:020}.{kind}" for version in range(3) for kind in ("crc", "json")][1:]
    )


def test_a_foreign_commit_between_two_looks_is_never_replaced(folder: Path) -> None:
    """nothing_lost: it came between the last look and the put."""

    class Raced(Disk):
        def put(self, name: str, content: bytes) -> bool:
            if name == commit_file(1):
                made(folder, add("foreign"), version=1)
            return super().put(name, content)

    log = Log(Raced(folder))
    with pytest.raises(NotNewestError):
        put(log, 1, add("b"))
    assert paths(log) == {"a", "foreign"}
    put(log, 1, add("b"))
    assert paths(Log(Disk(folder))) == {"a", "b", "foreign"}


def test_a_put_whose_answer_was_lost_is_no_conflict(folder: Path) -> None:
    class Twice(Disk):
        def put(self, name: str, content: bytes) -> bool:
            super().put(name, content)
            return super().put(name, content)

    log = Log(Twice(folder))
    put(log, 1, add("b"))
    assert (log.state().version, paths(log)) == (1, {"a", "b"})


@pytest.mark.parametrize("is_behind", [False, True])
def test_resumable_after_a_kill_at_every_access(tmp_path: Path, *, is_behind: bool) -> None:
    """A commit is there as a whole, or not at all, and the next process goes on."""
    for killed_at in count():
        folder = made(tmp_path / f"{killed_at}", add("a"))
        log = Log(Disk(folder, killed_at, is_behind=is_behind))
        try:
            put(log, 1, add("b"), gone("a"))
            log.checkpoint(every=1)
        except KilledError:
            pass
        else:
            assert killed_at > 3
            return
        again = Log(Disk(folder))
        assert (again.state().version, paths(again)) in ((0, {"a"}), (1, {"b"}))
        if again.state().version == 0:
            put(again, 1, add("b"), gone("a"))
        put(again, 2, add("c"))
        again.checkpoint(every=1)
        for log in (again, Log(Disk(folder))):
            assert (log.state().version, paths(log)) == (2, {"b", "c"})


def test_a_file_is_known_by_its_path_and_its_vector(folder: Path) -> None:
    """The actions of a commit have no order, and paths are encoded as URIs."""
    log = Log(Disk(folder))
    put(log, 1, add("p=%C3%A9/x"))
    put(log, 2, add("p=é/x", **vector(1)), gone("p=é/x"))
    put(log, 3, gone("p=%C3%A9/x", **vector(1)), add("p=%C3%A9/x", **vector(2)))
    assert [file.vector for file in log.state().added if file.path == "p=é/x"] == [f"u{VECTOR}@2"]
    assert len(Log(Disk(folder)).state().added) == 2


def unknown_tables() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Each names what is not known, with the protocol and the metadata."""
    for feature in ("rowTracking", "columnMapping", "v2Checkpoint", "inCommitTimestamp", "new"):
        writer = [*PROTOCOL["writerFeatures"], feature]  # type: ignore[misc]
        yield f"the feature {feature}", {"writerFeatures": writer}, {}
    yield "the protocol 4, 7", {"minReaderVersion": 4}, {}
    yield "the protocol 3, 8", {"minWriterVersion": 8}, {}
    for name, value in (
        ("delta.enableChangeDataFeed", "true"),
        ("delta.appendOnly", "true"),
        ("delta.constraints.c", "x > 0"),
        ("delta.checkpointPolicy", "v2"),
        ("delta.setTransactionRetentionDuration", "interval 1 hour"),
        ("delta.checkpoint.writeStatsAsJson", "false"),
    ):
        properties = {**METADATA["configuration"], name: value}  # type: ignore[dict-item]
        yield f"the property {name} = {value}", {}, {"configuration": properties}
    column = '{"name":"x","metadata":{"delta.generationExpression":"1"}}'
    schema = f'{{"type":"struct","fields":[{column}]}}'
    yield "a column with a rule of Delta", {}, {"schemaString": schema}


UNKNOWN = [*unknown_tables()]


@pytest.mark.parametrize(
    ("what", "protocol", "metadata"), UNKNOWN, ids=[what for what, *_ in UNKNOWN]
)
def test_a_table_with_something_unknown_is_refused(
    tmp_path: Path, what: str, protocol: dict[str, Any], metadata: dict[str, Any]
) -> None:
    folder = made(tmp_path / "_delta_log", {"protocol": {**PROTOCOL, **protocol}}, **metadata)
    log = Log(Disk(folder))
    assert log.state().not_known() == what
    assert log.files(0) is None
    assert not log.checkpoint(every=0)
    with pytest.raises(AssertionError):
        put(log, 1, add("b"))


@pytest.mark.parametrize(
    ("action", "what"),
    [
        ({"domainMetadata": {"domain": "d"}}, "the action domainMetadata"),
        (add("b", baseRowId=1), "a file with baseRowId"),
    ],
)
def test_an_unknown_action_between_two_commits_is_noticed(
    folder: Path, action: dict[str, Any], what: str
) -> None:
    log = Log(Disk(folder))
    put(log, 1, add("c"))
    made(folder, action, version=2)
    assert log.state().not_known() == what
    assert Log(Disk(folder)).state().not_known() == what


def test_a_log_that_was_replaced_is_read_again(folder: Path) -> None:
    """As an older copy of the warehouse, with another commit under the same number."""
    log = Log(Disk(folder))
    put(log, 1, add("b"))
    made(folder, add("other"), gone("a"), version=1)
    assert paths(log) == {"other"}
    for file in folder.iterdir():
        file.unlink()
    assert log.state().version == -1
    made(folder, add("new"))
    assert paths(log) == {"new"}


def test_a_log_without_its_beginning_is_not_known(folder: Path) -> None:
    log = Log(Disk(folder))
    put(log, 1, add("b"))
    put(log, 2, add("c"))
    (folder / commit_file(0)).unlink()
    assert Log(Disk(folder)).state().not_known()
    assert not log.state().not_known()


@pytest.mark.parametrize("content", ["", "{", "5", '{"add":{}}', '{"add":5}'])
def test_a_damaged_commit_is_an_error_each_time(folder: Path, content: str) -> None:
    log = Log(Disk(folder))
    put(log, 1, add("b"))
    (folder / commit_file(2)).write_text(content)
    for _ in range(2):
        with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
            log.state()
    (folder / commit_file(2)).unlink()
    assert paths(log) == {"a", "b"}


@pytest.mark.parametrize("separator", ["\u2028", "\x85", "\x1e", "é"])
def test_keys_with_any_line_separator_stay_in_their_line(folder: Path, separator: str) -> None:
    log = Log(Disk(folder))
    stats = json.dumps({"numRecords": 1, "minValues": {"id": separator}}, ensure_ascii=False)
    put(log, 1, add("b", stats=stats))
    log.commit(1, [json.dumps(add("c", stats=stats), ensure_ascii=False)], "{}")
    assert [json.loads(text) for text in Log(Disk(folder)).files(2) or ()] == [
        json.loads(text) for text in log.files(2) or ()
    ]


def test_a_checkpoint_has_what_is_in_force(folder: Path) -> None:
    """Also what was removed, as long as VACUUM keeps it, over several checkpoints."""
    log = Log(Disk(folder))
    exist(folder, "a", "b", "c")
    put(log, 1, add("b", **vector(1)), gone("a"))
    assert log.checkpoint(every=2)
    assert not log.checkpoint(every=2)
    put(log, 2, add("c"), gone("b", at=5, **vector(1)))
    put(log, 3, add("d", tags={"t": "1"}))
    assert log.checkpoint(every=2)
    for version in range(3):
        (folder / commit_file(version)).unlink()
    again = Log(Disk(folder))
    assert [json.loads(text)["add"]["path"] for text in again.files(3) or ()] == ["c", "d"]
    state = again.state()
    assert (state.newest_of(APP), state.metadata, state.protocol) == (3, METADATA, PROTOCOL)
    assert state.added.keys() == log.state().added.keys()
    put(again, 4, gone("c"))
    assert again.checkpoint(every=1)
    assert set(removed_paths(folder, 4)) == {"a", "c"}
    assert json.loads((folder / "_last_checkpoint").read_text())["version"] == 4


def test_the_checkpoint_after_a_failed_one_has_what_was_removed_before(folder: Path) -> None:
    disk = Disk(folder)
    log = Log(disk)
    exist(folder, "a", "b")
    put(log, 1, add("b"), gone("a"))
    disk.left = 0
    with pytest.raises(KilledError):
        log.checkpoint(every=2)
    put(log, 2, add("c"), gone("b"))
    assert log.checkpoint(every=2)
    assert set(removed_paths(folder, 2)) == {"a", "b"}


def exist(folder: Path, *names: str) -> None:
    """Make files of the table."""
    for name in names:
        (folder.parent / name).parent.mkdir(exist_ok=True)
        (folder.parent / name).touch()


@pytest.mark.parametrize(
    ("existing", "listed"),
    [
        ([], []),
        (["a"], [("a", 2)]),
        (["live"], []),
        ([VECTOR_FILE], [("a", 2)]),
        (["a", "live", "other"], [("a", 2)]),
    ],
)
def test_a_checkpoint_lists_the_removed_files_that_vacuum_would_find(
    folder: Path, existing: list[str], listed: list[tuple[str, int]]
) -> None:
    """TBL-23: and no others. A table with a commit each second removes 600,000 a day, most of them
    with the same file and another vector.
    """
    log = Log(Disk(folder))
    put(log, 1, add("a", **vector(1)), add("live", **vector(1)), gone("a"))
    put(log, 2, add("a", **vector(2)), gone("a", at=2**62 + 1, **vector(1)), add("live"))
    put(log, 3, gone("a", at=2**62 + 2, **vector(2)), gone("live", **vector(1)))
    exist(folder, *existing)
    assert log.checkpoint(every=1)
    ids = removed_in((folder / checkpoint_file(3)).read_bytes())
    assert sorted(f"{id_.path} {id_.vector}" for id_ in ids) == [
        f"{path} u{VECTOR}@{number}" for path, number in listed
    ]


def removed_paths(folder: Path, version: int) -> list[str]:
    content = (folder / checkpoint_file(version)).read_bytes()
    return [file.path for file in removed_in(content)]


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" * 9])
def test_a_damaged_checkpoint_is_not_used(folder: Path, content: bytes) -> None:
    log = Log(Disk(folder))
    put(log, 1, add("b"))
    log.checkpoint(every=1)
    (folder / f"{1:020}.checkpoint.parquet").write_bytes(content)
    assert paths(Log(Disk(folder))) == {"a", "b"}


def test_only_the_newest_checksums_stay(folder: Path) -> None:
    log = Log(Disk(folder))
    for number in range(1, CHECKSUMS_KEPT + 4):
        put(log, number, add(f"f{number}"))
    checksums = sorted(name for name in Disk(folder).names() if name.endswith(".crc"))
    assert [int(name[:20]) for name in checksums] == [*range(4, CHECKSUMS_KEPT + 4)]
    last = json.loads((folder / checksums[-1]).read_text())
    assert last["numFiles"] == len(log.state().added)
    assert "allFiles" not in last


def test_files_are_listed_beside_an_own_commit_alone(folder: Path) -> None:
    """Delta lists those of its own commits."""
    log = Log(Disk(folder))
    log.list_files()
    put(log, 1, add("b", **vector(1)))
    log.list_files()
    made(folder, add("c"), version=2)
    log.list_files()
    (checksum,) = (name for name in Disk(folder).names() if name.endswith(".crc"))
    listed = json.loads((folder / checksum).read_text())["allFiles"]
    assert [file["path"] for file in listed] == ["a", "b"]
    assert not any(file["dataChange"] for file in listed)


@pytest.mark.parametrize("act", ["write", "delete", "put"])
def test_the_checksum_of_hadoop_goes_with_its_file(folder: Path, act: str) -> None:
    (folder / "x").write_bytes(b"old")
    (folder / ".x.crc").write_bytes(b"of the old one")
    disk = LocalFolder(str(folder))
    if act == "put":  # only the file was deleted by hand
        (folder / "x").unlink()
        assert disk.put("x", b"new")
    else:
        disk.write("x", b"new") if act == "write" else disk.delete("x")
    assert sorted(disk.names()) == [commit_file(0), *([] if act == "delete" else ["x"])]


def test_a_disk_without_links_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", refuse)
    log = Log(LocalFolder(str(folder)))
    with pytest.raises(LinksUnsupportedError):
        put(log, 1, add("b"))
    assert sorted(LocalFolder(str(folder)).names()) == [commit_file(0)]


def test_state_in_memory_is_that_of_the_files(tmp_path: Path, seed: int) -> None:
    """ENG-5: over drawn sequences of commits of two processes, checkpoints and clean-ups."""
    from random import Random

    for number in tries(40):
        rng = Random(f"{seed}/{number}")
        folder = made(tmp_path / f"{number}", add("a"))
        logs, truth, applied = [Log(Disk(folder)), Log(Disk(folder))], {"a"}, 0
        for step in range(30):
            log = rng.choice(logs)
            if rng.random() < 0.1:
                logs[rng.randrange(2)] = Log(Disk(folder))
            elif rng.random() < 0.2:
                log.checkpoint(every=rng.randrange(1, 4))
            elif rng.random() < 0.1:
                names = Disk(folder).names()
                oldest = [int(name[:20]) for name in names if name.endswith(".parquet")]
                for name in names:
                    if name[0] == "0" and int(name[:20]) < max(oldest, default=0):
                        (folder / name).unlink()
            else:
                removed = {path for path in truth if rng.random() < 0.3}
                applied += 1
                put(log, applied, *map(gone, sorted(removed)), add(f"f{step}"))
                truth = truth - removed | {f"f{step}"}
            assert paths(rng.choice(logs)) == truth, (number, step)
        assert [paths(log) for log in (*logs, Log(Disk(folder)))] == [truth] * 3
