"""Readers of other projects find the rows that `connector read` finds (SCL-9).

`typed_table` was written by `make_typed_table`: four buckets, every type, deletion vectors.
`delta_table` is that of test_plain_read.py.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaProtocolError

from connector.services import load_config, read
from connector.tables.column_names import BOOKKEEPING
from connector.tables.values import DataType
from tests.golden.make_typed_table import FOLDER, TYPED, comparable, expected
from tests.golden.make_warehouse import FOLDER as WAREHOUSE

DELTA_TABLE = FOLDER.parent / "delta_table"
Row = Mapping[str, Any]


def by_polars(path: Path) -> Iterable[Row]:
    rows = pl.scan_delta(str(path)).drop(*BOOKKEEPING).collect()
    return rows.iter_rows(named=True)


def by_duckdb(path: Path) -> Iterable[Row]:
    with duckdb.connect() as connection:
        connection.execute(f"LOAD '{delta_extension()}'")
        # In a zone west of it, the first moment of the year 1 is in no year that Python has.
        connection.execute("SET TimeZone = 'UTC'")
        found = connection.execute(
            f"SELECT * EXCLUDE ({', '.join(BOOKKEEPING)}) FROM delta_scan('{path}')"
        )
        names = [column[0] for column in found.description or ()]
        for row in found.fetchall():
            yield dict(zip(names, row, strict=True))


def by_deltalake(path: Path) -> Iterable[Row]:
    query = QueryBuilder().register("t", DeltaTable(path)).execute("SELECT * FROM t")
    for batch in query:
        columns = {
            name: batch.column(place).to_pylist()
            for place, name in enumerate(batch.schema.names)
            if name not in BOOKKEEPING
        }
        for values in zip(*columns.values(), strict=True):
            yield dict(zip(columns, values, strict=True))


def delta_extension() -> Path:
    """The file of DuckDB's Delta extension, which a package brings."""
    found = importlib.util.find_spec("duckdb_ext")
    assert found is not None
    (folder,) = found.submodule_search_locations or ()
    (extension,) = Path(folder).rglob(f"v{duckdb.__version__}/*/delta.duckdb_extension")
    return extension


READERS = {"polars": by_polars, "duckdb": by_duckdb, "deltalake": by_deltalake}
"""DuckDB's and deltalake's kernels are other code than that with which Spark wrote the tables."""


def by_lowmark(folder: Path, path: Path, name: str) -> list[dict[str, Any]]:
    """As `connector read` finds them: a table in a warehouse of its own."""
    (folder / "warehouse/tables" / name).mkdir(parents=True)
    (folder / "warehouse/tables" / name / "data").symlink_to(path)
    config_file = folder / "connector.toml"
    config_file.write_text(
        'warehouse = "warehouse"\n[kafka]\nbootstrap_servers ='
        f' "127.0.0.1:1"\n[streams.s]\n[tables.{name}]\nstream = "s"\n'
    )
    with read(load_config(config_file), name, allow_stale=True) as found:
        return comparable(dict(zip(found.columns, row, strict=True)) for row in found.rows)


ACCOUNTS = WAREHOUSE / "tables/accounts/data"
PATHS = {"typed": FOLDER, "files": DELTA_TABLE, "accounts": ACCOUNTS}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", PATHS)
def test_another_reader_finds_the_same_rows(name: str, reader: str, tmp_path: Path) -> None:
    """SCL-9, TBL-18."""
    ours = by_lowmark(tmp_path, PATHS[name], name)
    assert comparable(READERS[reader](PATHS[name])) == ours
    assert ours, "there are rows to compare"


def test_the_table_has_what_readers_may_not_know(tmp_path: Path) -> None:
    """SCL-9: the comparison is of every type, of several buckets, and of deletion vectors in some
    of them.
    """
    assert by_lowmark(tmp_path, FOLDER, "typed") == comparable(expected())
    files = DeltaTable(FOLDER).get_add_actions(flatten=True)
    assert set(files.column("partition._bucket").to_pylist()) == {0, 1, 2, 3}
    actions = [
        json.loads(line)
        for commit in sorted((FOLDER / "_delta_log").glob("*.json"))
        for line in commit.read_text().splitlines()
    ]
    assert any(action.get("add", {}).get("deletionVector") for action in actions)
    assert {type_ for type_, _ in TYPED.values()} > set(DataType)


@pytest.mark.parametrize("path", [FOLDER, DELTA_TABLE], ids=["typed", "files"])
def test_a_reader_without_deletion_vectors_refuses_the_table(path: Path) -> None:
    """SCL-9: it does not show rows that were deleted."""
    with pytest.raises(DeltaProtocolError, match="deletionVectors"):
        DeltaTable(path).to_pyarrow_table()


@pytest.mark.parametrize("path", [FOLDER, DELTA_TABLE], ids=["typed", "files"])
def test_a_count_by_metadata_has_deleted_rows_and_a_query_has_not(path: Path) -> None:
    """SCL-9: as docs/howto/read-a-table.md says."""
    rows = len(list(by_polars(path)))
    query = QueryBuilder().register("t", DeltaTable(path)).execute("SELECT count(*) FROM t")
    assert query.read_all().column(0).to_pylist() == [rows]
    assert pl.scan_delta(str(path)).select(pl.len()).collect().item() == rows
    assert DeltaTable(path).count() > rows
