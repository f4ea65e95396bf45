"""Tables that follow from a source, in the warehouse and in the configuration (SRC-5)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from connector import warehouse
from connector.config.source_tables import FollowedTable
from connector.errors import TableError
from connector.lake.stores import text_at, write_at
from connector.services import load_config
from connector.services.reload import FixedConfig

SECTION = {
    "source": "public.customers",
    "key": {"form": "ordered", "columns": [{"name": "id", "type": "INT64"}]},
    "columns": [{"name": "name", "family": "f", "type": "STRING"}],
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "connector.toml"
    path.write_text(
        'warehouse = "w"\n[kafka]\nbootstrap_servers = "h:1"\n[streams.shop.source]\n'
        'format = "debezium-json"\ntopics = ["dbz.public.*"]\n'
    )
    return path


def store(folder: Path, *tables: FollowedTable) -> None:
    stored = {"shop": {table.section["source"]: table.to_value().decode() for table in tables}}
    write_at(warehouse.source_tables(str(folder / "w")), json.dumps(stored))


def test_a_configuration_has_the_tables_that_the_warehouse_knows(file: Path) -> None:
    assert load_config(file, {}).tables == {}
    store(file.parent, FollowedTable("customers", SECTION))
    config = load_config(file, {})
    assert config.tables["customers"].source == "public.customers"
    assert load_config(file, {}, source_tables=False).tables == {}


def test_tables_that_were_stored_with_one_name_have_names_of_their_own(file: Path) -> None:
    """SRC-5: no error stops the other tables."""
    other = {**SECTION, "source": "crm.customers"}
    store(file.parent, FollowedTable("customers", SECTION), FollowedTable("Customers", other))
    tables = load_config(file, {}).tables.values()
    assert {table.source: table.name for table in tables} == {
        "crm.customers": "Customers",
        "public.customers": "public_customers",
    }


def test_a_stored_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = f"{tmp_path}/a/b.json"
    write_at(path, "first")
    write_at(path, "2")
    assert Path(path).stat().st_mode & 0o133 == 0, "no other user writes it, and it is no program"
    assert text_at(path) == "2"
    assert [entry.name for entry in (tmp_path / "a").iterdir()] == ["b.json"]


def test_a_damaged_file_is_an_error(file: Path) -> None:
    write_at(warehouse.source_tables(str(file.parent / "w")), "{")
    with pytest.raises(TableError, match=r"source_tables\.json"):
        load_config(file, {})


def test_a_configuration_without_a_file_follows_its_source(file: Path) -> None:
    """EVO-8."""
    fixed = FixedConfig(load_config(file, {}))
    store(file.parent, FollowedTable("customers", SECTION))
    assert fixed.changed() is None
    fixed.ask()
    changed = fixed.changed()
    assert changed is not None
    assert set(changed.tables) == {"customers"}
