"""The name of a load, and what is refused before Kafka is asked (PUB-6)."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from connector import cli
from connector.config.parse import parse
from connector.config.settings import ConnectorConfig
from connector.errors import ConfigError, ConnectorError
from connector.events import Event
from connector.records.ordering import OrderBy
from connector.services import alter_table, load
from connector.services.rows.files import describe_file
from connector.services.rows.load import LoadOptions, RejectedRow, name_of
from connector.tables.definition import Column
from connector.tables.values import DataType

LIMITS = (10_000, 1_000_000)


@pytest.fixture
def config(tmp_path: Path) -> ConnectorConfig:
    document: dict[str, Any] = {
        "warehouse": str(tmp_path / "w"),
        "kafka": {"bootstrap_servers": "127.0.0.1:1"},
        "streams": {"s": {}},
        "tables": {
            "t": {
                "stream": "s",
                "key": {"columns": [{"name": "id", "type": "INT64"}], "form": "delimited"},
                "columns": [{"name": "name", "family": "f", "type": "STRING"}],
            }
        },
    }
    return parse(document, {})


def test_the_name_of_a_write_stream_follows_from_the_contents_of_the_files(
    config: ConnectorConfig, tmp_path: Path
) -> None:
    """PUB-6: the contents of the files in their order, the table, its columns, the time, and the
    limits of the size of a record: they decide which rows have an offset.
    """
    for name, text in (("a", "id\n1\n"), ("copy", "id\n1\n"), ("b", "id\n2\n")):
        (tmp_path / f"{name}.csv").write_text(text)
    a, copy, b = (describe_file(tmp_path / f"{name}.csv", None) for name in ("a", "copy", "b"))
    table = config.tables["t"]
    name = name_of(table, [a, b], 5, "", LIMITS)
    assert name_of(table, [copy, b], 5, "", LIMITS) == name
    assert name_of(replace(table, max_staleness_s=60), [a, b], 5, "", LIMITS) == name
    others = [
        name_of(table, [b, a], 5, "", LIMITS),
        name_of(table, [a], 5, "", LIMITS),
        name_of(table, [a, b], 6, "", LIMITS),
        name_of(table, [a, b], None, "", LIMITS),
        name_of(table, [a, b], 5, "NULL", LIMITS),
        name_of(replace(table, name="u"), [a, b], 5, "", LIMITS),
        name_of(replace(table, columns=()), [a, b], 5, "", LIMITS),
        name_of(table, [a, b], 5, "", (1_000, 1_000_000)),
        name_of(table, [a, b], 5, "", (10_000, 2_000_000)),
    ]
    assert len({name, *others}) == 1 + len(others)


def test_a_pipe_is_refused(config: ConnectorConfig, tmp_path: Path) -> None:
    """PUB-6: its rows would be read for the name of the load, and be gone then."""
    os.mkfifo(tmp_path / "rows.jsonl")
    with pytest.raises(ConnectorError, match="It is a pipe or a device") as caught:
        load(config, "t", [tmp_path / "rows.jsonl"], as_of=1)
    assert caught.value.code == "FILE_UNREADABLE"


@pytest.mark.parametrize(
    "arguments",
    [
        {"files": []},
        {"files": "a.csv"},
        {"as_of": 0},
        {"as_of": 2**62},
    ],
)
def test_arguments_are_checked_first(arguments: dict[str, Any], config: ConnectorConfig) -> None:
    with pytest.raises(ConfigError, match="The argument") as caught:
        load(config, "t", **{"files": ["none.csv"], **arguments})
    assert caught.value.code == "ARGUMENT_INVALID"


@pytest.mark.parametrize(
    "option", [{"file_format": "xml"}, {"max_changes_per_s": 0}, {"session": "a/b"}]
)
def test_options_are_checked(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="The argument") as caught:
        LoadOptions(**option)
    assert caught.value.code == "ARGUMENT_INVALID"


def test_a_table_ordered_by_sequence_number_is_refused(
    config: ConnectorConfig, tmp_path: Path
) -> None:
    table = replace(config.tables["t"], order=OrderBy.SEQUENCE_NUMBER)
    with pytest.raises(ConnectorError) as caught:
        load(replace(config, tables={"t": table}), "t", [tmp_path / "none.csv"])
    assert caught.value.code == "TABLE_NOT_LOADABLE"


def test_the_columns_of_all_files_are_checked_before_kafka_is_asked(
    config: ConnectorConfig, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n")
    (tmp_path / "b.csv").write_text("id,nome\n1,a\n")
    events: list[Event] = []
    with pytest.raises(ConnectorError) as caught:
        load(config, "t", [tmp_path / "a.csv", tmp_path / "b.csv"], on_event=events.append)
    assert caught.value.code == "FILE_INVALID"
    assert [(event.code, event.fields) for event in events] == [
        ("COLUMNS_ABSENT", {"columns": ["name"]})
    ]


def test_the_columns_of_operators_are_known(config: ConnectorConfig, tmp_path: Path) -> None:
    """EVO-2: a file may have a column that an operator added."""
    (tmp_path / "a.csv").write_text("id,note,nome\n1,x,y\n")
    with pytest.raises(ConnectorError) as caught:
        load(config, "t", [tmp_path / "a.csv"])
    assert "note" in str(caught.value)
    alter_table(config, "t", add=Column("note", "f", b"note", DataType.STRING))
    with pytest.raises(ConnectorError) as caught:
        load(config, "t", [tmp_path / "a.csv"])
    assert "nome" in caught.value.problem + caught.value.cause
    assert "note" not in caught.value.problem


def test_a_wrong_call_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["load", "t", "a.csv", "--wait", "--no-commit"]) == 2
    assert "do not use --wait with --no-commit" in capsys.readouterr().err
    assert cli.invoke(["load", "t"]) == 2


def test_a_rejected_row_as_text_is_its_location_and_the_reason() -> None:
    row = RejectedRow("a.csv", 7, "id", "no value", None)
    assert str(row) == "a.csv, line 7, column id: no value"
    assert (
        str(replace(row, file="a.parquet", column="", unit="row")) == "a.parquet, row 7: no value"
    )
