"""A Delta table that Spark wrote, with a deletion vector, read without a JVM (TBL-18, TBL-22,
OPS-10).

`delta_table` was written by Delta 4.4.0: ten rows in one file, of which a DELETE then marked those
with id 3, 5 and 6.
"""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from connector import cli
from connector.lake.plain_table import newest_stored, open_table

TABLE = Path(__file__).parent / "delta_table"


def test_deleted_rows_are_not_read() -> None:
    """TBL-18: readers that know deletion vectors see the state of the last commit."""
    assert sorted(row[0] for row in open_table(str(TABLE)).rows()) == [1, 2, 4, 7, 8, 9, 10]


def test_bookkeeping_columns_are_left_out() -> None:
    """TBL-22."""
    assert list(open_table(str(TABLE)).types) == [
        "id",
        "name",
        "raw",
        "yes",
        "ratio",
        "amount",
        "day",
        "moment",
        "_unmapped",
    ]


def test_the_newest_commit_says_as_of_when_it_is() -> None:
    """TBL-10."""
    assert open_table(str(TABLE)).stored == {"table": "files", "to_batch": 7}


def test_the_newest_commit_of_a_local_table_needs_no_list_of_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SCL-11: a list of 100,000 commits takes longer than all the rest."""
    listed = newest_stored(str(TABLE))
    monkeypatch.setattr(DeltaTable, "history", None)
    assert newest_stored(str(TABLE)) == listed == {"table": "files", "to_batch": 7}


def test_times_are_numbers(tmp_path: Path) -> None:
    """TBL-18: days of a DATE and microseconds of the others, since Python has not every year."""
    moment = datetime(1900, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
    rows = [(date(1, 1, 1), moment.replace(tzinfo=None), moment), (None, None, None)]
    types = {"d": pa.date32(), "local": pa.timestamp("us"), "at": pa.timestamp("us", "UTC")}
    columns = zip(*rows, strict=True)
    table = pa.table({n: pa.array(c, t) for c, (n, t) in zip(columns, types.items(), strict=True)})
    write_deltalake(str(tmp_path), table)
    read = open_table(str(tmp_path))
    assert read.types == {"d": "date", "local": "timestamp_ntz", "at": "timestamp"}
    micros = -2_208_988_799_999_999
    assert set(read.rows()) == {(-719_162, micros, micros), (None, None, None)}
    assert list(read.select(["at", "d"], "d < DATE '1970-01-01'", "3")) == [(micros, -719_162, 3)]


def test_the_columns_of_readers_have_arrow_types(tmp_path: Path) -> None:
    """TBL-22: without those of lowmark."""
    schema = open_table(str(TABLE)).arrow_schema()
    assert schema.names == list(open_table(str(TABLE)).types)
    assert (schema.field("id").type, schema.field("day").type) == (pa.int64(), pa.date32())


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    (tmp_path / "warehouse/tables/files").mkdir(parents=True)
    (tmp_path / "warehouse/tables/files/data").symlink_to(TABLE)
    text = (
        'warehouse = "warehouse"\n[kafka]\nbootstrap_servers ='
        ' "127.0.0.1:1"\n[streams.s]\n[tables.files]\nstream = "s"\n'
    )
    (tmp_path / "connector.toml").write_text(text)
    return tmp_path / "connector.toml"


def test_json_has_every_value_in_its_form(
    config_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """OPS-10, REC-22: bytes as text or base64, NUMERIC as text, NULL as null, times in ISO 8601."""
    assert cli.invoke(["--config", str(config_file), "read", "files", "--json"]) == 0
    said = capsys.readouterr()
    rows = {row["id"]: row for row in map(json.loads, said.out.splitlines())}
    assert rows[1] == {
        "id": 1,
        "name": "name 1",
        "raw": {"base64": "AP8b"},
        "yes": False,
        "ratio": "NaN",
        "amount": "-12345678901234567890123456789.123456789",
        "day": "0001-01-01",
        "moment": "1900-01-01T00:00:00.000001Z",
        "_unmapped": {"f:a": {"base64": "/w=="}, "f:%FF": "x"},
    }
    assert (
        rows[2]["name"],
        rows[2]["raw"],
        rows[2]["ratio"],
        rows[2]["amount"],
        rows[2]["_unmapped"],
    ) == (None, "text", 0.25, "2.5", {})
    assert (rows[4]["ratio"], rows[4]["moment"]) == ("Infinity", "9999-12-31T23:59:59.999999Z")
    assert "as of ingest batch 7" in said.err


def test_a_person_gets_a_table_of_the_first_rows(
    config_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.invoke(["--config", str(config_file), "read", "files", "--limit", "6"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[0].split() == [
        "id",
        "name",
        "raw",
        "yes",
        "ratio",
        "amount",
        "day",
        "moment",
        "_unmapped",
    ]
    assert len(said.out.splitlines()) == 8
    assert "the first 6 rows" in said.err


def test_a_limit_ends_the_rows(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        cli.invoke(["--config", str(config_file), "read", "files", "--json", "--limit", "2"]) == 0
    )
    assert len(capsys.readouterr().out.splitlines()) == 2
