"""Definitions of tables from a file with records or schemas (SRC-5)."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from connector import cli
from connector.services import load_config
from connector.sources.columns import Shown, SourceTable, merged, table_name
from connector.sources.define import tables_of, toml_of
from connector.tables.values import DataType
from tests.foreign_records import (
    Typed,
    Writer,
    avro_envelope,
    connect_struct,
    decimal,
    definition_of,
    number,
    payload,
    text,
)
from tests.golden.test_debezium_rows import decoded
from tests.recorded_topics import recording
from tests.unit.sources.test_source_tables import HOSTILE

FIELDS = [
    number("id", 7),
    text("name", "Ann"),
    decimal("credit", 1, 12, 2),
    number("at", 1, "io.debezium.time.MicroTimestamp"),
    Typed(
        "tags",
        {"type": "array", "items": {"type": "string"}},
        {"type": "array", "items": "string"},
        [],
    ),
]
TYPES = {"name": "STRING", "credit": "NUMERIC", "at": "DATETIME", "tags": "ARRAY<STRING>"}


def envelope() -> dict[str, Any]:
    after = connect_struct(FIELDS, field="after")
    op = {"type": "string", "field": "op"}
    return {"type": "struct", "fields": [after, op], "name": "dbz.public.customers.Envelope"}


def avro() -> dict[str, Any]:
    return avro_envelope(FIELDS) | {"connect.name": "dbz.public.customers.Envelope"}


def recorded(name: str) -> list[str]:
    lines = []
    for record in recording(name).records:
        if (
            record.key is not None
            and record.value is not None
            and record.topic != "dbz.transaction"
        ):
            line = {"topic": record.topic, "key": record.key.decode()}
            lines.append(json.dumps(line | {"payload": record.value.decode()}))
    return lines


@pytest.mark.parametrize("name", ["json", "json-schema"])
def test_recorded_topics_have_the_tables_that_a_bridge_finds(name: str) -> None:
    """SRC-5: the lines of kcat -J, with records of real topics."""
    found = {table.source: table for table in tables_of(recorded(name))}
    beat = found.pop("public.beat")
    assert beat.key
    expected = decoded(name)[1]
    assert found.keys() == expected.keys()
    for source, table in expected.items():
        assert found[source] == table


@pytest.mark.parametrize("schema", [envelope(), avro()], ids=["connect", "avro"])
def test_a_schema_of_debezium_is_a_table(schema: dict[str, Any]) -> None:
    """SRC-5: a schema does not say which columns are the key."""
    (table,) = tables_of([json.dumps(schema)], ["id"])
    assert table.source == "public.customers"
    assert [(part.name, str(part.type)) for part in table.key] == [("id", "INT64")]
    assert {column.name: str(column.type) for column in table.columns} == TYPES
    (without,) = tables_of([json.dumps(schema)])
    assert without.key == ()


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("dbz.public.customers.Envelope", "public.customers"),
        ("dbz.public.customers.Value", "public.customers"),
        ("public.customers.Other", "public.customers.Other"),
        ("shop.Value", "shop.Value"),
    ],
)
def test_the_name_of_a_schema_of_debezium_has_the_prefix_of_its_topics(
    name: str, source: str
) -> None:
    """SRC-5: `Value` is the end of the name of a flattened row."""
    row = {"type": "struct", "name": name, "fields": [{"type": "int64", "field": "id"}]}
    given = envelope() | {"name": name} if name.endswith("Envelope") else row
    (table,) = tables_of([json.dumps(given)], ["id"])
    assert table.source == source


def test_values_without_keys_need_the_names_of_the_key_columns() -> None:
    """SRC-5: an event of Debezium, and a row."""
    (event,) = tables_of([json.dumps(payload("c", {"id": 7, "name": "Ann"}))], ["id"])
    nameless = payload("c", {"id": 7, "name": "Ann"}, schema=None, db=None)
    (alone,) = tables_of([json.dumps(nameless)], ["id"])
    (row,) = tables_of(["", '{"id":7,"name":"Ann"}'], ["id"])
    assert [table.source for table in (event, alone, row)] == [
        "public.customers",
        "customers",
        "table",
    ]
    for table in (event, alone, row):
        assert [part.name for part in table.key] == ["id"]
        assert [column.name for column in table.columns] == ["name"]


def test_a_line_that_is_neither_is_named() -> None:
    for line in ("{", "[]", '{"type":"struct","fields":[{"type":"int8"}]}'):
        with pytest.raises(ValueError, match="line 2: "):
            tables_of(["{}", line])


def sections(tables: list[SourceTable]) -> str:
    names: list[str] = []
    made = ""
    for table in tables:
        made += toml_of(table, "shop", names) + "\n"
        names.append(table_name(table.source, names).lower())
    return made


def test_sections_are_toml() -> None:
    """SRC-5: with any names of columns."""
    shown = [Shown(field, DataType.STRING) for field in (*HOSTILE, 'q"\\', "tab\t\x7f")]
    table = merged(None, "public.items", [Shown("id", DataType.INT64)], shown).table
    (section,) = tomllib.loads(sections([table]))["tables"].values()
    assert section.pop("stream") == "shop"
    assert SourceTable.from_section(section) == table


def test_the_command_prints_sections_that_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """SRC-5: `connector table define`."""
    monkeypatch.chdir(tmp_path)
    config = 'warehouse = "w"\n[kafka]\nbootstrap_servers = "127.0.0.1:1"\n[streams.shop]\n'
    Path("connector.toml").write_text(config)
    Path("records.txt").write_text("\n".join(recorded("json-schema")))
    assert cli.invoke(["table", "define", "--from", "records.txt"]) == 0
    printed = capsys.readouterr()
    assert "tables; add to connector.toml what you want to keep" in printed.err
    Path("connector.toml").write_text(config + printed.out)
    tables = load_config("connector.toml").tables
    expected = decoded("json-schema")[1]
    for name in ("customers", "labels", "order_lines"):
        assert tables[name] == definition_of(expected[f"public.{name}"], name, "shop")


def test_the_command_asks_for_a_key_and_names_a_wrong_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """SRC-5."""
    monkeypatch.chdir(tmp_path)
    config = 'warehouse = "w"\n[kafka]\nbootstrap_servers = "127.0.0.1:1"\n[streams.shop]\n'
    Path("connector.toml").write_text(config)
    Path("schema.json").write_text(json.dumps(envelope()), "utf-8-sig")  # with a byte order mark
    assert cli.invoke(["table", "define", "--from", "schema.json"]) == 2
    assert "public.customers: name its key columns with --key" in capsys.readouterr().err
    assert cli.invoke(["table", "define", "--from", "schema.json", "--key", "id"]) == 0
    Path("schema.json").write_text("{}\n}")
    assert cli.invoke(["table", "define", "--from", "schema.json"]) == 2
    assert "schema.json, line 2: " in capsys.readouterr().err


def test_writer_and_definer_agree() -> None:
    """SRC-5: a record with its schema, as the console consumer prints it."""
    writer = Writer("json with schema", FIELDS[:1], FIELDS)
    record = writer.event("c")
    assert record.key is not None
    assert record.value is not None
    line = {"key": json.loads(record.key), "value": json.loads(record.value)}
    (table,) = tables_of([json.dumps(line)])
    assert {column.name: str(column.type) for column in table.columns} == TYPES


def test_the_command_prints_no_name_that_another_table_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """SRC-5: the printed section would be refused, or replace the other one."""
    monkeypatch.chdir(tmp_path)
    config = 'warehouse = "w"\n[kafka]\nbootstrap_servers = "127.0.0.1:1"\n[streams.shop]\n'
    Path("connector.toml").write_text(f'{config}[tables.Table]\nstream = "shop"\n')
    Path("rows.txt").write_text('{"id":7}')
    assert cli.invoke(["table", "define", "--from", "rows.txt", "--key", "id"]) == 0
    (name,) = tomllib.loads(capsys.readouterr().out)["tables"]
    assert name == "table_2"
