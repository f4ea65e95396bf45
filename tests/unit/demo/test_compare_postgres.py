"""The demo with PostgreSQL notices a wrong table and a wrong cut (SRC-12)."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from examples.demo_postgres import compare
from examples.demo_postgres.shop import State, row

ROWS = [
    {"id": 1, "balance": Decimal("1000.00"), "at": datetime(2026, 4, 1, 9, tzinfo=UTC)},
    {"id": 2, "balance": None, "at": datetime(2026, 4, 1, 9, 0, 0, 120000, tzinfo=UTC)},
]
JSON = """[
    {"id": 1, "balance": 1000, "at": "2026-04-01T09:00:00+00:00"},
    {"id": 2, "balance": null, "at": "2026-04-01T09:00:00.12+00:00"}
]"""


def true_state(text: str = JSON) -> State:
    rows = json.loads(text, parse_float=Decimal)
    return frozenset(("transfers", row(each)) for each in rows)


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """A warehouse in which a cut of one table is recorded."""
    data = tmp_path / "tables" / "transfers" / "data"
    write_deltalake(str(data), pa.Table.from_pylist([{**each, "_bucket": 0} for each in ROWS]))
    record_cut(tmp_path, watermark=10)
    return tmp_path


def record_cut(warehouse: Path, watermark: int, *, revision: int = 0) -> None:
    version = DeltaTable(str(warehouse / "tables" / "transfers" / "data")).version()
    cut = {"table": "transfers", "low_watermark": watermark, "revision": revision}
    cut |= {"version": version, "recorded_at": watermark}
    write_deltalake(
        str(warehouse / "_connector" / "cuts"), pa.Table.from_pylist([cut]), mode="append"
    )


def test_the_same_rows_are_equal(warehouse: Path) -> None:
    """SRC-12: a NULL, and zeros at the end of a number or of a time, are no difference."""
    ((watermark, cut),) = compare.cuts(warehouse)
    assert watermark == 10
    assert compare.row_differences(true_state(), compare.state(warehouse, cut)) == []
    assert compare.cut_differences(warehouse, {frozenset(), true_state()}) == (1, [])


@pytest.mark.parametrize(
    ("old", "new"), [("1000", "1000.01"), ('"id": 1', '"id": 3'), (".12", ".13"), ("null", "0")]
)
def test_another_value_is_a_difference(warehouse: Path, old: str, new: str) -> None:
    """A canary."""
    other = true_state(JSON.replace(old, new))
    ((_, cut),) = compare.cuts(warehouse)
    found = compare.row_differences(other, compare.state(warehouse, cut))
    assert [difference[:13] for difference in sorted(found)] == ["transfers has"] * 2
    assert compare.cut_differences(warehouse, {other})[1] != []


def test_a_cut_of_an_old_version_is_compared_as_it_was(warehouse: Path) -> None:
    """A canary: a later version that is no state of the source is found."""
    data = str(warehouse / "tables" / "transfers" / "data")
    write_deltalake(data, pa.Table.from_pylist([{**ROWS[0], "id": 7, "_bucket": 0}]), mode="append")
    record_cut(warehouse, watermark=20)
    number, different = compare.cut_differences(warehouse, {true_state()})
    assert number == 2
    assert [text[:13] for text in different] == ["the cut at 20"]
