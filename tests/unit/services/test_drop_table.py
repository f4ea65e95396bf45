"""Tables that the configuration does not have any more (OPR-3)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from connector import cli
from connector.config.settings import ConnectorConfig
from connector.errors import ConfigError, TableError
from connector.lake import stores
from connector.lake.overrides import Overrides
from connector.lake.stores import files_at
from connector.records.views import view
from connector.services import drop_table, load_config, orphaned_tables, set_max_staleness
from connector.services.drop_table import OrphanedTable
from connector.tables.alterations import ColumnOverride

SETTINGS = """
warehouse = "w"
[kafka]
bootstrap_servers = "127.0.0.1:1"
[streams.s]
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ConnectorConfig:
    """A warehouse with the folders of two tables, of which the configuration has one."""
    monkeypatch.chdir(tmp_path)
    for name in ("kept", "old"):
        for file in ("data/_delta_log/0.json", "data/0.parquet", "tombstones/0.parquet"):
            (tmp_path / "w/tables" / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "w/tables" / name / file).write_text("12345")
    (tmp_path / "connector.toml").write_text(f'{SETTINGS}[tables.kept]\nstream = "s"\n')
    return load_config("connector.toml", {})


def with_table(tmp_path: Path, name: str) -> ConnectorConfig:
    (tmp_path / "other.toml").write_text(f'{SETTINGS}[tables.{name}]\nstream = "s"\n')
    return load_config(tmp_path / "other.toml", {})


def test_a_table_without_a_section_is_named_and_dropped(
    config: ConnectorConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """OPR-3: with the settings that operators made, so that a new table does not get them."""
    old = OrphanedTable("old", 3, 15)
    set_max_staleness(with_table(tmp_path, "old"), "old", 60)
    overrides = Overrides(config.warehouse)
    overrides.alter(ColumnOverride("old", "a", None, 1, "me"))
    assert orphaned_tables(config) == [old]
    assert cli.invoke(["table", "drop", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == view(old)
    assert cli.invoke(["table", "drop"]) == 0
    assert "1 table without a section" in capsys.readouterr().err
    assert drop_table(config, "old") == old
    assert (orphaned_tables(config), overrides.bounds(), overrides.columns()) == ([], {}, {})
    assert [path.name for path in (tmp_path / "w/tables").iterdir()] == ["kept"]


@pytest.mark.parametrize("name", ["kept", "none", "../tables/kept", "", "old/data"])
def test_only_a_table_without_a_section_is_dropped(
    config: ConnectorConfig, tmp_path: Path, name: str
) -> None:
    """OPR-3, nothing_lost."""
    before = sorted((tmp_path / "w").rglob("*"))
    with pytest.raises(ConfigError):
        drop_table(config, name)
    assert sorted((tmp_path / "w").rglob("*")) == before


def test_a_table_that_was_dropped_in_part_is_dropped_again(
    config: ConnectorConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPR-3: a file that cannot be deleted is an error, and the next call goes on."""

    class Refusing:
        """Files of which only some can be deleted."""

        def __init__(self, path: str) -> None:
            self.get_file_info = files_at(path).get_file_info

        def delete_dir(self, path: str) -> None:
            (tmp_path / "w/tables" / path / "data/0.parquet").unlink()
            raise PermissionError("not yours")

    with monkeypatch.context() as patch:
        patch.setattr(stores, "files_at", Refusing)
        with pytest.raises(TableError) as raised:
            drop_table(config, "old")
    assert (raised.value.code, raised.value.cause) == ("TABLE_UNDELETABLE", "not yours")
    assert drop_table(config, "old").files == 2
    assert orphaned_tables(config) == []


def test_a_warehouse_without_tables_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "connector.toml").write_text(SETTINGS)
    assert orphaned_tables(load_config("connector.toml", {})) == []
