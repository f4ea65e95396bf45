"""TBL-14: a damaged file of a warehouse is told as damage by every reader without a JVM, with its
name and a remedy that helps.

Each file of the log of each Delta table, and a data file that the log names, is damaged in each way,
in a log with and without a checkpoint. A reader that does not need the file reads what it read
before. tests/spark/test_damaged_warehouse.py does the same for readers with a JVM.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from deltalake import DeltaTable

from connector import warehouse as places
from connector.config.settings import ConnectorConfig, KafkaConfig
from connector.errors import ErrorCode, TableError
from connector.lake.changelog_reader import open_logged
from connector.lake.changelog_changes import waiting_changes
from connector.lake.jobs import History
from connector.lake.overrides import Overrides
from connector.lake.plain_table import open_table
from connector.lake.state_reader import logged_progress_of, table_state_of
from connector.services import explain
from connector.services.events import log_event
from connector.services.read import _as_applied, _snapshot
from connector.services.validate_config import validate_config
from tests.golden.make_warehouse import FOLDER, TABLE
from tests.spark.streams import STREAM

TABLES = (
    *("streams/s/changelog", "tables/accounts/data", "tables/accounts/tombstones"),
    *("_connector/overrides", "_connector/closed_partitions", "_connector/jobs"),
    "_connector/cuts",
)
DAMAGES: dict[str, Callable[[Path], object]] = {
    "0 bytes": lambda file: file.write_bytes(b""),
    "cut": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "other bytes": lambda file: file.write_bytes(bytes(range(1, 256)) * 40),
    "zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "missing": lambda file: file.unlink(),
}
FOUND = {ErrorCode.TABLE_DAMAGED, ErrorCode.DATA_FILE_MISSING}


def config(warehouse: Path) -> ConnectorConfig:
    nobody = KafkaConfig("127.0.0.1:1")
    return ConnectorConfig(str(warehouse), nobody, None, {"s": STREAM}, {"accounts": TABLE})


def of_status(warehouse: Path) -> object:
    """What it reads. It would wait for Kafka to count dead letters."""
    overrides, history = Overrides(str(warehouse)), History(str(warehouse))
    table = table_state_of(str(warehouse), "accounts")
    logged = logged_progress_of(str(warehouse), "s", with_frontier=True)
    waiting = waiting_changes(str(warehouse), TABLE, table)
    settings = overrides.bounds(), overrides.paces(), overrides.ends("s", above=-1)
    return logged, table, waiting, settings, history.jobs("accounts")


def of_read(warehouse: Path) -> object:
    found = _as_applied(config(warehouse), "accounts", 10**9, log_event, allow_stale=False)
    assert found is not None
    return sorted(map(repr, found.rows))


def of_snapshot(warehouse: Path) -> object:
    return sorted(map(repr, _snapshot(config(warehouse), "accounts").rows))


def of_explain(warehouse: Path) -> object:
    return explain(config(warehouse), "accounts", b"c", ask_kafka=False).changes


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


READERS: dict[str, Callable[[Path], object]] = {
    "status": of_status,
    "read": of_read,
    "read --snapshot": of_snapshot,
    "explain": of_explain,
    "audit": of_audit,
    "validate": of_validate,
}


@pytest.fixture(scope="module", params=[False, True], ids=["commits", "checkpoint"])
def warehouse(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A copy of the golden warehouse; with a checkpoint, there are commits before and behind it."""
    folder = Path(tmp_path_factory.mktemp("damaged")) / "w"
    shutil.copytree(FOLDER, folder)
    if request.param:
        for path in TABLES[:2]:
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


def files_of(table: Path) -> list[Path]:
    """The files of its log, and one of each kind that the log names."""
    named = [sorted(table.rglob(f"*.{kind}"))[:1] for kind in ("c000.*.parquet", "bin")]
    return [*sorted((table / "_delta_log").iterdir()), *(file for one in named for file in one)]


def outcome(reader: Callable[[Path], object], warehouse: Path) -> object:
    try:
        return reader(warehouse)
    except TableError as error:
        return error


@pytest.mark.parametrize("what", DAMAGES)
@pytest.mark.parametrize("path", TABLES)
def test_damage_is_told_as_damage(warehouse: Path, path: str, what: str) -> None:
    before = {name: reader(warehouse) for name, reader in READERS.items()}
    told = 0
    for file in files_of(warehouse / path):
        for name, reader in READERS.items():
            with damaged(file, what):
                found = outcome(reader, warehouse)
                if not isinstance(found, TableError):
                    assert found == before[name], (file, name)
                    continue
                told += 1
                assert found.code in FOUND, (file, name, str(found))
                assert str(file) in found.cause, (file, name, str(found))
                assert "other program" not in str(found)
                if (removable := re.search(r"^Move (.+) out of (.+): the rest", found.remedy)):
                    away = warehouse.parent / "away"
                    away.mkdir()
                    names = removable[1].split(" and ")
                    for one in names:
                        shutil.move(f"{removable[2]}/{one}", away / one)
                    helped = outcome(reader, warehouse)
                    for one in names:
                        shutil.move(away / one, f"{removable[2]}/{one}")
                    away.rmdir()
                    assert helped == before[name], (file, name, str(found))
                elif path.startswith("_connector"):
                    assert f"Or move the folder {warehouse / path} away" in found.remedy
                    shutil.move(warehouse / path, warehouse.parent / "away")
                    helped = outcome(reader, warehouse)
                    shutil.move(warehouse.parent / "away", warehouse / path)
                    # Snapshots are there again after the next cut.
                    is_cut = isinstance(helped, TableError) and helped.code == ErrorCode.CUT_MISSING
                    assert is_cut or not isinstance(helped, TableError), (file, name)
                else:
                    assert "from a backup. Without a backup, " in found.remedy
            if isinstance(found, TableError):
                assert reader(warehouse) == before[name], "a backup helps"
    assert told, "no reader needs a file of this table"


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
    assert caught.value.code == ErrorCode.TABLE_DAMAGED
