"""Exports of the golden table with every type, and comparisons with it (OPR-1, OPR-3)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from connector import cli
from connector.config.settings import ConnectorConfig
from connector.errors import ConnectorError
from connector.services import export, load_config, read, reconcile
from connector.services.rows import reconcile as reconcile_module
from connector.services.rows.reconcile import Difference, Reconciled
from tests.golden.make_typed_table import FOLDER

FORMATS = ("parquet", "csv", "jsonl")
SETTINGS = """
warehouse = "w"
[kafka]
bootstrap_servers = "127.0.0.1:1"
[streams.s]
[tables.typed]
stream = "s"
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ConnectorConfig:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w/tables/typed").mkdir(parents=True)
    (tmp_path / "w/tables/typed/data").symlink_to(FOLDER)
    (tmp_path / "connector.toml").write_text(SETTINGS)
    return load_config("connector.toml", {})


def exported(config: ConnectorConfig, file: Path) -> Path:
    with read(config, "typed", allow_stale=True) as rows:
        assert export(config, "typed", rows, file).rows == 36
    assert [each.name for each in file.parent.glob(".*")] == []
    return file


def compared(
    config: ConnectorConfig, against: Path, **options: Any
) -> tuple[Reconciled, list[Difference]]:
    found: list[Difference] = []
    return reconcile(config, "typed", against, on_difference=found.append, **options), found


@pytest.mark.parametrize("format_", FORMATS)
def test_an_export_has_the_rows_of_the_table(
    config: ConnectorConfig, tmp_path: Path, format_: str
) -> None:
    """OPR-1, OPR-3: every type with its extreme values, NULL, and empty text."""
    result, found = compared(config, exported(config, tmp_path / f"x.{format_}"))
    assert found == []
    assert result.is_equal
    assert (result.rows, result.other_rows, result.not_compared) == (36, 36, ())


def test_only_a_file_is_replaced_and_a_link_stays(config: ConnectorConfig, tmp_path: Path) -> None:
    """OPR-3: no device, pipe or folder is lost."""
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "link.csv").symlink_to("copy.csv")
    (tmp_path / "copy.csv").write_text("old")
    before = sorted((path, path.lstat().st_mode) for path in tmp_path.iterdir())
    for name in ("pipe.csv", "folder.csv", "/", "/nowhere/x.csv", "/proc/x.csv"):
        assert cli.invoke(["export", "typed", str(tmp_path / name), "--format", "csv"]) == 1
    exported(config, tmp_path / "link.csv")
    assert sorted((path, path.lstat().st_mode) for path in tmp_path.iterdir()) == before
    assert compared(config, tmp_path / "copy.csv")[0].is_equal


def test_two_exports_to_one_file_do_not_mix(config: ConnectorConfig, tmp_path: Path) -> None:
    """OPR-3: the file is whole, although the other one goes on after it."""
    file = tmp_path / "x.csv"

    def other(_: int) -> None:
        with read(config, "typed", allow_stale=True) as rows:
            export(config, "typed", rows, file)

    with read(config, "typed", allow_stale=True) as rows:
        export(config, "typed", rows, file, on_rows=other)
    assert [each.name for each in tmp_path.glob("*x.csv*")] == ["x.csv"]
    assert compared(config, file)[0].is_equal


Row = dict[str, Any]
Edit = Callable[[list[Row]], None]


def without_one(rows: list[Row]) -> None:
    del rows[4]


def with_another(rows: list[Row]) -> None:
    rows.append({**rows[4], "region": "new"})


def with_one_twice(rows: list[Row]) -> None:
    rows.append(rows[4])


def with_other_values(rows: list[Row]) -> None:
    rows[4] = {**rows[4], "bool": not rows[4]["bool"], "numeric": "0.000000007"}


def rows_of(file: Path) -> list[Row]:
    return [json.loads(line) for line in file.read_text().split("\n") if line]


def write(file: Path, rows: list[Row]) -> None:
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.mark.parametrize(
    ("edit", "kind", "columns"),
    [
        (without_one, "extra", ()),
        (with_another, "missing", ()),
        (with_one_twice, "repeated", ()),
        (with_other_values, "different", ("bool", "numeric")),
    ],
)
def test_each_difference_is_named(
    config: ConnectorConfig, tmp_path: Path, edit: Edit, kind: str, columns: tuple[str, ...]
) -> None:
    """OPR-1: with its key, and the columns that differ."""
    file = exported(config, tmp_path / "x.jsonl")
    rows = rows_of(file)
    region = "new" if kind == "missing" else rows[4]["region"]
    key = (region, rows[4]["number"])
    edit(rows)
    write(file, rows)
    result, found = compared(config, file)
    assert found == [Difference(kind, key, columns)]
    assert (getattr(result, kind), result.is_equal) == (1, False)


def test_a_comparison_in_many_parts_is_the_same(
    config: ConnectorConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """OPR-1: memory is bounded by the rows that are compared at once."""
    file, rng = exported(config, tmp_path / "x.jsonl"), Random(seed)
    rows = [{**row, "int64": rng.randrange(9)} for row in rows_of(file) if rng.random() < 0.8]
    write(file, rows)
    results = []
    for at_once in (250_000, 1):
        monkeypatch.setattr(reconcile_module, "_AT_ONCE", at_once)
        result, found = compared(config, file)
        results.append((result, sorted(found, key=repr)))
    assert results[0] == results[1]
    assert results[0][0].extra == 36 - len(rows)
    assert results[0][0].different > 0


def test_a_large_copy_is_compared_in_parts(
    config: ConnectorConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPR-1: memory is bounded, also if only the copy has the rows."""
    file, parts = exported(config, tmp_path / "x.jsonl"), list[set[int]]()
    row, of_buckets = rows_of(file)[4], reconcile_module._of_buckets
    write(file, [{**row, "region": f"new{number}"} for number in range(200)])
    monkeypatch.setattr(reconcile_module, "_AT_ONCE", 10)

    def counted(mine: Any, others: Any, wanted: set[int]) -> Any:
        parts.append(wanted)
        return of_buckets(mine, others, wanted)

    monkeypatch.setattr(reconcile_module, "_of_buckets", counted)
    result, _ = compared(config, file)
    assert (result.missing, result.extra) == (200, 36)
    assert len(parts) >= 20


def test_a_table_is_compared_with_another_delta_table(
    config: ConnectorConfig, tmp_path: Path
) -> None:
    """OPR-1: also one that has a part of the columns."""
    whole = pq.read_table(exported(config, tmp_path / "x.parquet"))
    names = ["region", "number", "string", "timestamp", "date", "record", "bignumeric"]
    write_deltalake(tmp_path / "copy", whole.select(names))
    result, found = compared(config, tmp_path / "copy")
    assert result.is_equal, found
    assert "int64" in result.not_compared
    write_deltalake(tmp_path / "copy", whole.select(names).slice(1), mode="overwrite")
    result, found = compared(config, tmp_path / "copy")
    assert [difference.kind for difference in found] == ["extra"]


def test_a_copy_that_the_table_could_not_hold_is_refused(
    config: ConnectorConfig, tmp_path: Path
) -> None:
    """OPR-1: the error names the row."""
    file = tmp_path / "x.csv"
    file.write_text("region,number,bool\nr,1,maybe\n")
    with pytest.raises(ConnectorError) as raised:
        compared(config, file)
    assert raised.value.code == "FILE_INVALID"
    assert "x.csv, line 2, column bool" in raised.value.problem
    pq.write_table(pa.table({"region": ["r"], "number": ["1"]}), tmp_path / "x.parquet")
    with pytest.raises(ConnectorError, match="number"):
        compared(config, tmp_path / "x.parquet")


def test_the_commands(
    config: ConnectorConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """OPR-1, OPR-3: exit code 1 where the rows are not equal."""
    file = tmp_path / "x.csv"
    assert cli.invoke(["export", "typed", str(file)]) == 0
    assert "36 rows of typed as of ingest batch" in capsys.readouterr().err
    assert cli.invoke(["reconcile", "typed", "--against", str(file)]) == 0
    assert "equal: 36 rows" in capsys.readouterr().err
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    assert cli.invoke(["reconcile", "typed", "--against", str(file), "--json"]) == 1
    difference, result = map(json.loads, capsys.readouterr().out.splitlines())
    assert difference["kind"] == "extra"
    assert (result["extra"], result["is_equal"]) == (1, False)
    assert cli.invoke(["export", "typed", str(tmp_path / "x.txt")]) == 1
    assert cli.invoke(["export", "typed", str(tmp_path / "none/x.csv")]) == 1
    assert "cannot be written" in capsys.readouterr().err
