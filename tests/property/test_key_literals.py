"""Values of keys in the SQL with which rows are looked up (SUB-6)."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from connector.lake.plain_table import open_table
from connector.lake.row_states import _literal
from connector.lake.small_files import arrow_type
from connector.tables.keys import KEY_TYPES
from connector.tables.values import DataType

VALUES: dict[DataType, list[Any]] = {
    DataType.STRING: ["", "a", "it's", "''", 'a"b', "é\n\\"],
    DataType.BYTES: [b"", b"a", b"\x00\xff", b"'"],
    DataType.BOOL: [True, False],
    DataType.INT64: [0, -1, 2**63 - 1, -(2**63)],
    DataType.NUMERIC: [Decimal("0.000000001"), Decimal(-99999999999999999999999999999)],
    DataType.DATE: [date(1, 1, 1), date(9999, 12, 31)],
    DataType.TIMESTAMP: [-1, 0, 253_402_300_799_999_999],
}


def test_each_type_of_a_key_has_values() -> None:
    assert set(VALUES) == set(KEY_TYPES)


@pytest.mark.parametrize("type_", VALUES)
def test_a_value_of_a_key_finds_its_row_and_no_other(tmp_path: Path, type_: DataType) -> None:
    """SUB-6, nothing_invented: a Decimal is not written as 1E-9, which a query does not read."""
    values = VALUES[type_]
    column = pa.array(values, arrow_type(type_))
    write_deltalake(str(tmp_path), pa.table({"k": column, "n": pa.array(range(len(values)))}))
    table = open_table(str(tmp_path))
    for number, value in enumerate(values):
        assert list(table.select(["n"], f"k = {_literal(type_, value)}")) == [(number,)]
