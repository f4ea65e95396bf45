"""TBL-14: every reader without a JVM reports a damaged file of a warehouse as damage, with its
name and a remedy that helps.

Each file of the log of each Delta table, and a data file that the log names, is damaged in each
way, in a log with and without a checkpoint. tests/spark/test_damaged_warehouse.py does the same for
readers with a JVM.
"""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable

from connector import warehouse as places
from connector.config.settings import ConnectorConfig, KafkaConfig
from connector.errors import TableError
from connector.events import log_event
from connector.lake.audit import open_logged
from connector.lake.changelog_changes import waiting_changes
from connector.lake.jobs import History
from connector.lake.overrides import Overrides
from connector.lake.plain_table import open_table
from connector.lake.state_reader import logged_progress_of, table_state_of
from connector.services import explain, rebuild, run
from connector.services.read import _as_applied, _snapshot
from connector.services.validate_config import validate_config
from connector.state.overrides import ClosePartition
from tests.golden.make_warehouse import FOLDER, TABLE
from tests.spark.streams import STREAM

DAMAGES: dict[str, Callable[[Path], object]] = {
    "0 bytes": lambda file: file.write_bytes(b""),
    "cut": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "other bytes": lambda file: file.write_bytes(bytes(range(1, 256)) * 40),
    "missing": lambda file: file.unlink(),
}
FOUND = {"TABLE_DAMAGED"}


def config(warehouse: Path) -> ConnectorConfig:
    nobody = KafkaConfig("127.0.0.1:1")
    return ConnectorConfig(str(warehouse), nobody, None, {"s": STREAM}, {"accounts": TABLE})


def of_status(warehouse: Path) -> object:
    """What it reads. It would wait for Kafka to count dead letters."""
    overrides, history = Overrides(str(warehouse)), History(str(warehouse))
    table = table_state_of(str(warehouse), "s", "accounts")
    logged = logged_progress_of(str(warehouse), "s", with_frontier=True)
    waiting = waiting_changes(str(warehouse), TABLE, table)
    settings = (
        overrides.bounds(),
        overrides.paces(),
        overrides.requests(ClosePartition, "s", above=-1),
    )
    return logged, table, waiting, settings, history.jobs("accounts")


def of_read(warehouse: Path) -> object:
    found = _as_applied(config(warehouse), "accounts", 10**9, log_event, allow_stale=False)
    assert found is not None
    return sorted(map(repr, found.rows))


def of_snapshot(warehouse: Path) -> object:
    return sorted(map(repr, _snapshot(config(warehouse), "accounts")[1].rows))


def of_explain(warehouse: Path) -> object:
    found = explain(config(warehouse), "accounts", b"c", ask_kafka=False)
    return found.row, [(one.change, one.order) for one in found.changes]


def of_audit(warehouse: Path) -> object:
    logged = open_logged(str(warehouse), "s")
    assert logged is not None
    return [dict(step) for step in logged.steps()], sorted(logged.rejected(0))


def of_validate(warehouse: Path) -> object:
    """What it says of the warehouse. There is no Kafka."""
    for found in validate_config(config(warehouse)):
        if isinstance(found.error, TableError):
            raise found.error
        if "the changelog is kept" in found.text:
            break  # Kafka comes next
    return None


READERS: dict[str, tuple[Callable[[Path], object], ...]] = {
    "streams/s/changelog": (of_status, of_explain, of_audit, of_validate),
    "tables/accounts/data": (of_status, of_read, of_snapshot, of_explain, of_validate),
    "tables/accounts/tombstones": (of_explain, of_validate),
    "_connector/overrides": (of_status, of_validate),
    "_connector/closed_partitions": (of_status, of_validate),
    "_connector/jobs": (of_status, of_validate),
    "_connector/cuts": (of_snapshot, of_validate),
}
"""The readers of each Delta table."""


LOGS = [("commits", path) for path in READERS] + [("checkpoint", path) for path in [*READERS][:2]]
CASES = [
    pytest.param(*log, what, marks=[] if what in ("cut", "missing") else pytest.mark.long)
    for log in LOGS
    for what in DAMAGES
]


@pytest.fixture(scope="module")
def warehouse(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the golden warehouse; with a checkpoint, there are commits before and behind it."""
    folder = Path(tmp_path_factory.mktemp("damaged")) / "w"
    shutil.copytree(FOLDER, folder)
    if request.param == "checkpoint":
        for path in [*READERS][:2]:
            newest = DeltaTable(folder / path).version()
            DeltaTable(folder / path, version=newest - 1).create_checkpoint()
    return folder


@contextmanager
def damaged(file: Path, what: str) -> Iterator[None]:
    content = file.read_bytes()
    DAMAGES[what](file)
    try:
        yield
    finally:
        file.write_bytes(content)


def files_of(table: Path, what: str) -> list[Path]:
    """The files of its log, of the checksums only the newest one, and a data file.

    If the newest commit of a log without checksums is missing, the log is the one before: nothing
    shows the commit.
    """
    *_, newest = sorted(table.glob("_delta_log/*.json"))
    has_checksum = newest.with_suffix(".crc").exists()
    log = [
        file
        for file in sorted((table / "_delta_log").iterdir())
        if (file.suffix != ".crc" or file.stem == newest.stem)
        and (file != newest or has_checksum or what != "missing")
    ]
    data = sorted(file for file in table.rglob("*.parquet") if file.parent != newest.parent)
    return [*log, *data[:1]]


def outcome(reader: Callable[[Path], object], warehouse: Path) -> object:
    try:
        return reader(warehouse)
    except TableError as error:
        return error


@contextmanager
def moved_away(*paths: Path) -> Iterator[None]:
    for path in paths:
        path.rename(path.with_name(f"{path.name}.away"))
    try:
        yield
    finally:
        for path in paths:
            path.with_name(f"{path.name}.away").rename(path)


@pytest.mark.parametrize(("warehouse", "path", "what"), CASES, indirect=["warehouse"])
def test_damage_is_reported_as_damage(warehouse: Path, path: str, what: str) -> None:
    """A reader that does not need the file reads what it read before. So does every reader, once
    the remedy of the error was followed.
    """
    before = {reader: reader(warehouse) for reader in READERS[path]}
    told = set()
    for file, (reader, sound) in itertools.product(
        files_of(warehouse / path, what), before.items()
    ):
        with damaged(file, what):
            found = outcome(reader, warehouse)
            if not isinstance(found, TableError):
                assert found == sound, (file, reader)
                continue
            told.add(reader)
            assert found.code in FOUND, (file, reader, str(found))
            assert str(file) in found.cause, (file, reader, str(found))
            assert "ther program" not in str(found)
            if (
                removable := re.search("^Move (.+) out of (.+): the rest", found.remedy)
            ) is not None:
                files = (Path(removable[2], name) for name in removable[1].split(" and "))
                with moved_away(*files):
                    assert outcome(reader, warehouse) == sound, str(found)
            elif path.startswith("_connector"):
                assert f"Or move the folder {warehouse / path} away" in found.remedy
                with moved_away(warehouse / path):
                    helped = outcome(reader, warehouse)
                code = helped.code if isinstance(helped, TableError) else None
                assert code in (None, "CUT_MISSING"), "made again with the next cut"
            else:
                assert "from a backup. Without a backup, " in found.remedy
    assert told or what == "missing", "no reader needs a file of this table"
    assert {reader: reader(warehouse) for reader in READERS[path]} == before, "a backup helps"


@pytest.mark.parametrize("what", ["0 bytes", "cut", "other bytes"])
@pytest.mark.parametrize("path", READERS)
def test_nothing_starts_on_a_damaged_log(tmp_path: Path, path: str, what: str) -> None:
    """nothing_lost: Spark would read an empty commit as one without changes. No Kafka is asked. Of
    a run, a damaged table stops only itself (RUN-3).
    """
    shutil.copytree(FOLDER, tmp_path / "w")
    file = max((tmp_path / "w" / path / "_delta_log").glob("*.json"))
    DAMAGES[what](file)
    again = partial(rebuild, table="accounts")
    for start in (again,) if path.startswith("tables/") else (run, again):
        with pytest.raises(TableError) as caught:
            start(config(tmp_path / "w"))
        assert caught.value.code == "TABLE_DAMAGED"
        assert str(file) in caught.value.cause


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_deletion_vector_is_named(tmp_path: Path, what: str) -> None:
    """TBL-18: without it, rows would be read that are deleted."""
    table = tmp_path / "tables/files/data"
    shutil.copytree(FOLDER.parent / "delta_table", table)
    (vectors,) = table.glob("*.bin")
    with damaged(vectors, what), pytest.raises(TableError) as caught:
        list(open_table(str(table)).rows())
    assert caught.value.code in FOUND
    assert str(vectors) in caught.value.cause
    assert "rebuild the table" in caught.value.remedy


def test_an_empty_commit_in_the_middle_is_not_read_as_one_without_changes(tmp_path: Path) -> None:
    """nothing_lost: its rows would be missing from every read without a word."""
    shutil.copytree(FOLDER, tmp_path / "w")
    log = Path(places.changelog(str(tmp_path / "w"), "s"), "_delta_log")
    (log / "00000000000000000002.json").write_bytes(b"")
    with pytest.raises(TableError, match="has 0 bytes") as caught:
        of_audit(tmp_path / "w")
    assert caught.value.code == "TABLE_DAMAGED"
