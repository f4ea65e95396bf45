"""What the demo takes for input, where it puts its folder, and the configuration it writes
there.
"""

from __future__ import annotations

import fcntl
import tomllib
from typing import TYPE_CHECKING

import pytest

import connector
from connector.config.parse import parse
from connector.demo import source
from connector.demo.folder import demo_folder
from connector.demo.repository import NoHistoryError
from connector.demo.settings import QUERY_SCRIPT, STREAM, configuration
from connector.demo.source import choose_input
from connector.errors import ConnectorError
from connector.tables.values import Unreadable, read_value
from tests.unit.git_repository import NOW, Repository

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository(tmp_path / "repository")
    made.write("a")
    made.write("b")
    made.commit()
    return made


def test_short_history_has_the_bank_beside_it(repository: Repository) -> None:
    chosen = choose_input(repository.folder, now=NOW, seed=1)
    assert [one.table for one in chosen.sources] == ["files", "accounts"]
    assert chosen.operations
    assert [
        change.row_key for transaction in chosen.sources[0].transactions for change in transaction
    ] == [b"a", b"b"]


def test_bank_opens_when_the_history_has_ended(repository: Repository) -> None:
    """Else the low watermark would not pass through the history alone."""
    repository.write("a", "from the future")
    repository.commit(date=4_102_444_800)
    files, accounts = choose_input(repository.folder, now=NOW, seed=1).sources
    assert (
        max(transaction[0].commit_timestamp for transaction in files.transactions) < accounts.begins
    )
    assert (
        min(transaction[0].commit_timestamp for transaction in accounts.transactions)
        == accounts.begins
    )


def test_long_history_stands_alone_and_is_told_in_full(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "ENOUGH_CHANGES", 3)
    for number in range(5):
        repository.write("a", str(number))
        repository.commit()
    chosen = choose_input(repository.folder, now=NOW, seed=1)
    assert [one.table for one in chosen.sources] == ["files"]
    assert not chosen.operations
    assert sum(map(len, chosen.sources[0].transactions)) == 7, (
        "none of those looked at first is lost"
    )


def test_named_repository_without_history_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NoHistoryError):
        choose_input(tmp_path, now=NOW, seed=1)


def test_checkout_without_history_falls_back_to_the_bank_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an archive of the sources, or an installed package inside somebody's repository."""
    Repository(tmp_path).commit()
    (tmp_path / "lib" / "connector").mkdir(parents=True)
    monkeypatch.setattr(connector, "__file__", str(tmp_path / "lib" / "connector" / "__init__.py"))
    chosen = choose_input(None, now=NOW, seed=1)
    assert [one.table for one in chosen.sources] == ["accounts"]
    assert chosen.history is None
    assert "to capture its history" in chosen.notes[0]


def test_shallow_clone_is_mentioned(repository: Repository, tmp_path: Path) -> None:
    repository.write("c")
    repository.commit()
    repository.git(
        "clone", "--quiet", "--depth=1", f"file://{repository.folder}", str(tmp_path / "shallow")
    )
    assert any(
        "shallow" in note for note in choose_input(tmp_path / "shallow", now=NOW, seed=1).notes
    )


def test_configuration_is_accepted_and_maps_every_source(repository: Repository) -> None:
    """OPS-1"""
    chosen = choose_input(repository.folder, now=NOW, seed=1)
    config = parse(
        tomllib.loads(configuration(chosen.sources, "127.0.0.1:9092", "/some/broker", 60)), {}
    )
    assert set(config.tables) == {"files", "accounts"}
    assert set(config.streams[STREAM].partitions) == {one.root for one in chosen.sources}
    for one in chosen.sources:
        columns = {
            (column.family, column.qualifier): column for column in config.tables[one.table].columns
        }
        column = columns[one.unreadable.family, one.unreadable.qualifier]
        assert isinstance(
            read_value(column.type, column.encoding, one.unreadable.value), Unreadable
        )


def test_query_script_is_python() -> None:
    compile(QUERY_SCRIPT, "query.py", "exec")


def test_folder_of_somebody_else_is_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(ConnectorError, match="not empty"), demo_folder(tmp_path, {}):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConnectorError, match="cannot be used"),
        demo_folder(tmp_path / "file" / "below", {}),
    ):
        pass


def test_next_demo_takes_the_last_ones_place_in_the_cache(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    (tmp_path / "lowmark").mkdir()
    (tmp_path / "lowmark" / "demo-of-somebody-else").mkdir()
    with demo_folder(None, environment) as first:
        first.config.touch()
    with demo_folder(None, environment) as second:
        assert not first.root.exists()
        with demo_folder(None, environment) as third:
            assert second.root.exists(), "it is at work"
            assert third.root != second.root
    assert (tmp_path / "lowmark" / "demo-of-somebody-else").exists()


def test_folder_is_held_while_the_demo_is_at_work(tmp_path: Path) -> None:
    with (
        demo_folder(tmp_path / "new", {}) as folder,
        (folder.root / ".lowmark-demo").open() as mark,
        pytest.raises(BlockingIOError),
    ):
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
