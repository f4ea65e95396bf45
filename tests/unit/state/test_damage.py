"""Files of a warehouse that are gone, foreign or refused are errors with a remedy that helps
(TBL-14, TBL-20).
"""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from connector import warehouse
from connector import warehouse as places
from connector.cli.remedies import command_for
from connector.errors import TableError
from connector.lake.audit import AuditLog
from connector.lake.checks import check_log
from connector.lake.jobs import History
from connector.lake.overrides import Overrides
from connector.lake.plain_table import open_table
from connector.lake.small_tables import as_arrow
from connector.lake.state_reader import progress_of
from connector.state.damage import data_file_damaged, explained, reading
from connector.state.incomplete_transactions import ReleaseTransaction
from connector.state.jobs import CutRecord, Job, JobKind
from connector.state.overrides import ClosePartition, Override
from connector.state.stream_progress import Progress
from connector.state.table_state import TableState
from connector.write_streams.releases import ReleaseRows
from tests.unit.warehouses import commit, log_table

SMALL = (
    *("overrides", "closed_partitions", "released_transactions", "released_rows"),
    *("jobs", "cuts", "audit_log"),
)
NOBODY = 65534


def readers(warehouse: str) -> dict[str, Callable[[], object]]:
    overrides, history = Overrides(warehouse), History(warehouse)
    return {
        "overrides": overrides.bounds,
        "closed_partitions": lambda: overrides.requests(ClosePartition, "s", above=0),
        "released_transactions": lambda: overrides.requests(ReleaseTransaction, "s", above=0),
        "released_rows": lambda: overrides.requests(ReleaseRows, "s", above=0),
        "jobs": lambda: history.jobs("t"),
        "cuts": lambda: history.newest_cut("s"),
        "audit_log": audit_log(warehouse).letters,
    }


def writers(warehouse: str) -> dict[str, Callable[[], object]]:
    overrides, history = Overrides(warehouse), History(warehouse)
    return {
        "overrides": lambda: overrides.set(Override("max_staleness_s", "t", 600, 1, "ann")),
        "closed_partitions": lambda: overrides.add(ClosePartition(1, "s", "p", "gone", 1, "ann")),
        "released_transactions": lambda: overrides.add(
            ReleaseTransaction(1, "s", "tx", "gone", 1, "ann", 5)
        ),
        "released_rows": lambda: overrides.add(ReleaseRows(1, "s", 5, "gone", 1, "ann", "w/a")),
        "jobs": lambda: history.add_job(Job(JobKind.APPLY, "t", 1, 2)),
        "cuts": lambda: history.add_cut(CutRecord("s", 50, 1, 0, 5, 1, {"t": 0})),
        "audit_log": lambda: audit_log(warehouse).add_letters(1, (), 1),
    }


def audit_log(warehouse: str) -> AuditLog:
    return AuditLog(warehouse, "s", "orders", "c", "id")


def data_files(path: Path) -> list[Path]:
    return [one for one in path.glob("*.parquet") if one.is_file()]


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("is_empty", [False, True], ids=["no log", "an empty log"])
def test_a_table_without_its_log_is_not_an_empty_table(
    tmp_path: Path, name: str, is_empty: bool
) -> None:
    """TBL-20, TBL-14: for readers and for writers, which would make it permanent."""
    path, warehouse = tmp_path / "_connector" / name, str(tmp_path)
    before = readers(warehouse)[name]()
    writers(warehouse)[name]()
    known = readers(warehouse)[name]()
    assert known != before
    shutil.move(path / "_delta_log", tmp_path / "kept")
    if is_empty:
        (path / "_delta_log").mkdir()
    for action in (readers(warehouse)[name], writers(warehouse)[name]):
        with pytest.raises(TableError, match="is not a Delta table") as caught:
            action()
        assert caught.value.code == "TABLE_DAMAGED"
        assert f"Or move the folder {path} away" in caught.value.remedy
    if is_empty:
        (path / "_delta_log").rmdir()
    shutil.copytree(tmp_path / "kept", path / "_delta_log")
    assert readers(warehouse)[name]() == known, "the first remedy helps"
    shutil.move(path, tmp_path / "away")
    assert readers(warehouse)[name]() == before, "the second one helps"
    writers(warehouse)[name]()
    assert readers(warehouse)[name]() == known


@pytest.mark.parametrize("name", SMALL)
def test_a_first_row_that_was_killed_is_not_in_the_way(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`resumable`: the log is there before the first file, at each moment of the first write."""
    path, warehouse = tmp_path / "_connector" / name, str(tmp_path)
    before = readers(warehouse)[name]()
    (path / "_delta_log").mkdir(parents=True)
    assert readers(warehouse)[name]() == before, "killed before the log had a file"

    def killed(*_: Any, **__: Any) -> None:
        assert DeltaTable(path).version() == 0
        assert data_files(path) == []
        (path / "part-0.parquet").write_bytes(b"")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("deltalake.write_deltalake", killed)
        writers(warehouse)[name]()
    assert data_files(path), "killed before the commit of the row"
    assert readers(warehouse)[name]() == before
    writers(warehouse)[name]()
    assert readers(warehouse)[name]() != before


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("name", SMALL)
def test_a_limit_of_files_is_the_error_and_nothing_is_printed(
    tmp_path: Path, name: str, is_new: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """TBL-14: not a stack of a thread of a library."""
    warehouse = str(tmp_path)
    if not is_new:
        writers(warehouse)[name]()
    known = readers(warehouse)[name]()
    full = pytest.raises(TableError, match="size limit")
    with full as caught, files_up_to(256):
        writers(warehouse)[name]()
    assert caught.value.code == "DISK_FULL"
    assert readers(warehouse)[name]() == known
    assert capfd.readouterr().err == ""


@contextmanager
def without_rights(folder: Path) -> Iterator[None]:
    """As a user who may not write in the folder; an administrator may always."""
    user = os.geteuid()
    folder.chmod(0o555)
    if not user:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)
        folder.chmod(0o755)


@pytest.mark.parametrize("name", SMALL)
def test_a_folder_that_cannot_be_written_is_the_error_and_nothing_is_printed(
    tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """TBL-14."""
    refused = pytest.raises(TableError, match="The operating system refuses it")
    with refused as caught, without_rights(tmp_path):
        writers(str(tmp_path))[name]()
    assert caught.value.code == "WAREHOUSE_UNUSABLE"
    assert "access" in caught.value.remedy
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Unable to copy data to file: No space left on device (os error 28)", "DISK_FULL"),
        ("Disk quota exceeded", "DISK_FULL"),
        ("There is not enough space on the disk. (os error 112)", "DISK_FULL"),
        ("File too large (os error 27)", "DISK_FULL"),
        ("[Errno 30] Read-only file system: '/w'", "WAREHOUSE_UNUSABLE"),
        ("[Errno 13] Permission denied: '/w'", "WAREHOUSE_UNUSABLE"),
        ("Object at location /w/part-0.snappy.parquet not found: No such", "TABLE_DAMAGED"),
        ("Schema error: No field named stream.\nValid fields are t.a.", "COMMIT_FOREIGN"),
        ("something else", None),
    ],
)
def test_an_error_of_a_library_is_known_by_its_text(text: str, code: str | None) -> None:
    """TBL-14."""
    result = explained("/w/_connector/cuts", "read", text)
    assert (result and result.code) == code
    assert result is None or result.fields["path"] == "/w/_connector/cuts"


@pytest.mark.parametrize("line", ["Permission denied: '/w'", "Schema error: No field named t.a."])
def test_the_first_line_of_an_error_of_a_library_is_its_cause(line: str) -> None:
    """TBL-14: the others are of the library."""
    result = explained("/w/_connector/cuts", "read", f"{line}\nValid fields are t.b.\n\x1b[31m")
    assert result is not None
    assert line in result.cause
    assert "Valid" not in result.cause


@pytest.mark.parametrize("answer", ["permitted (os error 1)", "supported (os error 95)"])
def test_a_disk_without_hard_links_is_no_lack_of_rights(answer: str) -> None:
    """TBL-14: deltalake links a commit to its name. `answer` is that of the operating system."""
    parts = ("Generic LocalFileSystem error", "Unable to rename file", f"Operation not {answer}")
    result = explained("/w/_connector/jobs", "written", "\n  \x1b[31m↳\x1b[0m ".join(parts))
    assert result is not None
    assert result.code == "WAREHOUSE_UNUSABLE"
    assert "no hard links" in result.cause
    assert "ext4" in result.remedy


@pytest.mark.parametrize(
    ("missing", "is_damaged"),
    [([1], False), ([1, 1], True), ([2, 1, 1], True), ([2, 1], False), ([2, 1, 0], False)],
)
def test_a_commit_that_a_list_of_files_lacks_once_is_not_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: list[int], is_damaged: bool
) -> None:
    """TBL-14: a folder is not listed in one step, while others commit."""
    for apply in range(1, 5):
        log_table(tmp_path, "one", TableState(apply_number=apply))
    path, scandir, left = places.table(str(tmp_path), "one"), os.scandir, list(missing)

    def listed(folder: Path) -> Iterator[os.DirEntry[str]]:
        without = f"{left.pop(0):020}.json" if left else ""
        return (file for file in scandir(folder) if file.name != without)

    monkeypatch.setattr(os, "scandir", listed)
    with pytest.raises(TableError) if is_damaged else nullcontext():
        check_log(path)
    assert not left


def test_a_missing_data_file_is_named_without_spark(tmp_path: Path) -> None:
    """TBL-14: a table is rebuilt; a small table can be moved away."""
    warehouse = str(tmp_path)
    log_table(tmp_path, "one", TableState(apply_number=1))
    writers(warehouse)["cuts"]()
    for folder in (places.table(warehouse, "one"), places.cuts(warehouse)):
        for file in data_files(Path(folder)):
            file.unlink()
    with pytest.raises(TableError, match=r"A data file of .* is damaged or missing") as caught:
        list(open_table(places.table(warehouse, "one")).rows())
    assert caught.value.code == "TABLE_DAMAGED"
    assert command_for(caught.value) == "connector table rebuild one"
    with pytest.raises(TableError, match="snapshots can be read again") as caught:
        History(warehouse).newest_cut("s")
    assert command_for(caught.value) is None


@pytest.mark.parametrize("name", ["jobs", "cuts", "audit_log"])
def test_a_table_of_another_program_is_not_read_or_written(tmp_path: Path, name: str) -> None:
    """TBL-14, TBL-22."""
    path, warehouse = tmp_path / "_connector" / name, str(tmp_path)
    write_deltalake(path, as_arrow([{"x": "1"}], {"x": "string"}))
    for action in (readers(warehouse)[name], writers(warehouse)[name]):
        with pytest.raises(TableError, match="is not one of lowmark") as caught:
            action()
        assert caught.value.code == "COMMIT_FOREIGN"
        assert f"Or move the folder {path} away" in caught.value.remedy
    assert DeltaTable(path).version() == 0


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("jobs", {"kind": "apply", "table": "t", "ended_at": 2}),
        ("cuts", {"stream": "s", "table": "t", "recorded_at": 1, "version": 0}),
    ],
)
def test_a_row_of_another_program_is_an_error_with_a_remedy(
    tmp_path: Path, name: str, row: dict[str, Any]
) -> None:
    """TBL-14."""
    writers(str(tmp_path))[name]()
    types = {key: "string" if isinstance(value, str) else "int64" for key, value in row.items()}
    write_deltalake(
        tmp_path / "_connector" / name, as_arrow([row], types), mode="append", schema_mode="merge"
    )
    with pytest.raises(TableError, match=r"A row of .* cannot be read") as caught:
        [*History(str(tmp_path)).jobs("t"), *History(str(tmp_path)).cuts("s")]
    assert caught.value.code == "COMMIT_UNREADABLE"
    assert "away" in caught.value.remedy


def test_damaged_overrides_say_that_their_folder_can_be_moved_away(tmp_path: Path) -> None:
    """TBL-20: every read needs the bounds."""
    overrides, path = Overrides(str(tmp_path)), tmp_path / "_connector/overrides"
    overrides.set(Override("max_staleness_s", "one", 600, 1, "ann"))
    overrides.set(Override("apply_every_s", "one", 7, 2, "ann"))
    for text in ("{", ""):
        (path / "_delta_log/00000000000000000002.json").write_text(text)
        for action in (
            overrides.bounds,
            lambda: overrides.set(Override("apply_every_s", "one", 8, 3, "ann")),
        ):
            with pytest.raises(TableError) as caught:
                action()
            assert f"Or move the folder {path} away" in caught.value.remedy
    shutil.rmtree(path)
    assert overrides.bounds() == {}


STORED = TableState(apply_number=3, to_batch=2).to_json("accounts")


@pytest.mark.parametrize("value", ["x", 1.5, None, []])
def test_a_wrong_type_is_named_with_its_path(value: object) -> None:
    with pytest.raises(TableError, match="/w/t cannot be read") as caught, reading("/w/t"):
        TableState.from_json({**STORED, "apply_number": value})
    assert "apply_number" in str(caught.value)
    assert caught.value.fields == {"path": "/w/t"}


def test_a_missing_key_is_named() -> None:
    stored: dict[str, object] = {}
    with pytest.raises(TableError, match="The key 'progress' is missing"), reading("/w/t"):
        TableState.from_json(stored["progress"])  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [AttributeError, KeyError, RecursionError, TypeError, ValueError])
def test_an_unreadable_value_is_an_error_with_its_cause(error: type[Exception]) -> None:
    """TBL-14."""
    with pytest.raises(TableError) as caught, reading("/w/t"):
        raise error("a cause")
    assert caught.value.code == "COMMIT_UNREADABLE"
    assert "a cause" in str(caught.value)


def test_an_error_of_the_disk_is_not_one_of_metadata() -> None:
    with pytest.raises(OSError, match="full"), reading("/w/t"):
        raise OSError("full")


@pytest.mark.parametrize(
    ("path", "table", "remedy"),
    [
        (places.data("/w/tables/t"), "t", "rebuild the table from the changelog"),
        (places.changelog("/w", "s"), None, "move the folder /w/streams/s and those of the tables"),
    ],
)
def test_a_damaged_data_file_says_what_to_do_without_a_backup(
    path: str, table: str | None, remedy: str
) -> None:
    """TBL-14."""
    error = data_file_damaged(path, "a.parquet")
    assert error.fields.get("table") == table
    assert f"Restore the file from a backup. Without a backup, {remedy}" in str(error)


def test_a_form_that_can_be_read_is_left_alone() -> None:
    with reading("/w/t"):
        assert TableState.from_json(STORED).apply_number == 3


def test_a_frontier_that_is_missing_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    """TBL-14: other progress can still be read."""
    stored = {"stream": "s", "progress": Progress(ingest_batch=3).to_json()}
    row = {"ingest_batch": 3, "slot": -1}
    path = Path(warehouse.changelog(str(tmp_path), "s"))
    commit(path, [row], {"ingest_batch": "int64", "slot": "int64", "frontier": "string"}, stored)
    assert progress_of(str(tmp_path), "s").ingest_batch == 3
    with pytest.raises(TableError, match="has no frontier of batch 3") as caught:
        progress_of(str(tmp_path), "s", with_frontier=True)
    assert caught.value.fields == {"stream": "s", "path": str(path)}


@pytest.mark.parametrize("names", [None, 50], ids=["its checkpoint is gone", "beyond the log"])
def test_a_last_checkpoint_without_its_checkpoint_is_named_with_what_helps(
    tmp_path: Path, names: int | None
) -> None:
    """TBL-14: the error names the file, and the table can be read without it."""
    table = tmp_path / "tables/t/data"
    for number in range(3):
        write_deltalake(
            str(table), as_arrow([{"id": str(number)}], {"id": "string"}), mode="append"
        )
    DeltaTable(str(table)).create_checkpoint()
    log = table / "_delta_log"
    for checkpoint in log.glob("*.checkpoint.parquet"):
        checkpoint.unlink()
    if names is not None:
        (log / "_last_checkpoint").write_text(f'{{"version":{names},"size":9}}')
    with pytest.raises(TableError, match="is damaged") as damaged:
        open_table(str(table))
    assert damaged.value.code == "TABLE_DAMAGED"
    assert "_last_checkpoint" in damaged.value.remedy
    (log / "_last_checkpoint").unlink()
    assert open_table(str(table)).version == 2


def test_a_last_checkpoint_without_its_checkpoint_is_named_in_an_object_store() -> None:
    """TBL-14, STO-2: only the text of a library tells it there."""
    text = (
        "Kernel error: Invalid Checkpoint: Had a _last_checkpoint hint but didn't find any"
        " checkpoints"
    )
    error = explained("s3://b/w/tables/t/data", "read", text)
    assert error is not None
    assert "delete s3://b/w/tables/t/data/_delta_log/_last_checkpoint" in error.remedy
