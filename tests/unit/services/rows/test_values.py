"""Values of files become cells of columns, or the reason why they cannot (PUB-6)."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from connector.records.model import SERVER_TIME, DeleteFamily, SetCell
from connector.services.rows.values import Misfit, RowMaker, of_arrow, of_json
from connector.tables.definition import Column, TableDefinition
from connector.tables.keys import Key, KeyForm, KeyPart
from connector.tables.values import DataType, Encoding, Unreadable

KEY = Key((KeyPart("id", DataType.INT64), KeyPart("day", DataType.DATE)), KeyForm.DELIMITED)
DEFINITION = TableDefinition(
    name="orders",
    stream="s",
    source="shop.orders",
    key=KEY,
    columns=(
        Column("name", "f", b"name", DataType.STRING),
        Column("amount", "g", b"amount", DataType.INT64, Encoding.BINARY),
    ),
)


def test_a_row_is_an_upsert_of_all_its_families() -> None:
    """REC-23: the families are deleted first, so that a value that the export does not have is
    gone. The row key is that of the key columns, and each cell has the encoding of its column.
    """
    made = RowMaker(DEFINITION, as_of=77).make(["7", "2024-04-30", "Lee", "5"], of_json)
    assert made == (
        b"7#2024-04-30",
        [
            DeleteFamily("f"),
            DeleteFamily("g"),
            SetCell("f", b"\x00row", b"", 0),
            SetCell("f", b"name", b"Lee", 77),
            SetCell("g", b"amount", b"\0\0\0\0\0\0\0\5", 77),
        ],
    )
    made = RowMaker(DEFINITION, as_of=None).make(["7", "2024-04-30", None, "5"], of_json)
    assert not isinstance(made, Misfit)
    assert made[1][3:] == [SetCell("g", b"amount", b"\0\0\0\0\0\0\0\5", SERVER_TIME)]


@pytest.mark.parametrize(
    ("values", "column", "detail"),
    [
        ([None, "2024-04-30", "Lee", "5"], "id", "a key column has no value"),
        (["07", None, "Lee", "5"], "day", "a key column has no value"),
        (["x", "2024-04-30", "Lee", "5"], "id", "expected INT64"),
        (["7", "2024-04-31", "Lee", "5"], "day", "expected DATE"),
        (["7", "2024-04-30", "Lee", "5.0"], "amount", "expected INT64"),
        (["7", "2024-04-30", "L\ud800", "5"], "name", "value is"),
    ],
)
def test_a_row_that_cannot_be_published_is_a_value(
    values: list[Any], column: str, detail: str
) -> None:
    made = RowMaker(DEFINITION, as_of=77).make(values, of_json)
    assert isinstance(made, Misfit)
    assert made.column == column
    assert detail in made.detail


def test_a_row_of_nulls_exists() -> None:
    """EVO-12: its presence mark says so. The mark has a family of its own, or that of the table."""
    made = RowMaker(DEFINITION, as_of=77).make(["7", "2024-04-30", None, None], of_json)
    assert not isinstance(made, Misfit)
    deletes = [DeleteFamily("f"), DeleteFamily("g")]
    assert made[1] == [*deletes, SetCell("f", b"\x00row", b"", 0)]
    keys_only = replace(DEFINITION, columns=(), presence_family="p")
    made = RowMaker(keys_only, as_of=77).make(["7", "2024-04-30"], of_json)
    assert not isinstance(made, Misfit)
    assert made[1] == [DeleteFamily("p"), SetCell("p", b"\x00row", b"", 0)]


def test_a_row_key_that_cannot_be_made_is_a_value() -> None:
    """A part with the delimiter in it, and a row key that is too long."""
    key = Key((KeyPart("a", DataType.STRING), KeyPart("b", DataType.STRING)), KeyForm.DELIMITED)
    definition = TableDefinition(
        name="t", stream="s", source="t", key=key, columns=DEFINITION.columns
    )
    for part, detail in (("x#y", "without '#'"), ("x" * 5000, "1 to 4096 bytes")):
        made = RowMaker(definition, None).make([part, "b", "Lee", None], of_json)
        assert isinstance(made, Misfit)
        assert (made.column, detail in made.detail) == ("a, b", True), made


@pytest.mark.parametrize(
    ("type_", "value", "expected"),
    [
        (DataType.INT64, 7, 7),
        (DataType.INT64, "7", 7),
        (DataType.INT64, Decimal("7.0"), None),
        (DataType.INT64, True, None),
        (DataType.FLOAT64, 7, 7.0),
        (DataType.FLOAT64, Decimal("7.5"), 7.5),
        (DataType.FLOAT64, Decimal("1e999"), None),
        (DataType.FLOAT64, 2**53 + 1, 2.0**53),
        (DataType.FLOAT64, 10**400, None),
        (DataType.NUMERIC, Decimal("7.5"), Decimal("7.5")),
        (DataType.NUMERIC, "7.5", Decimal("7.5")),
        (DataType.BOOL, True, True),
        (DataType.BOOL, 1, None),
        (DataType.STRING, "a", "a"),
        (DataType.STRING, 5, None),
        (DataType.BYTES, "base64:AAE=", b"\0\1"),
        (DataType.BYTES, {"base64": "AAE="}, b"\0\1"),
        (DataType.BYTES, {"base64": "?"}, None),
        (DataType.DATE, "2024-04-30", date(2024, 4, 30)),
        (DataType.TIMESTAMP, 5, None),
        (DataType.JSON, {"a": [Decimal("1.50"), None]}, '{"a":[1.50,null]}'),
        (DataType.JSON, '{"a": 1}', '{"a": 1}'),
        (DataType.JSON, "not JSON", None),
    ],
)
def test_values_of_json(type_: DataType, value: object, expected: object) -> None:
    found = of_json(type_, value)
    assert isinstance(found, Unreadable) if expected is None else found == expected


def test_values_of_arrow_in_years_that_python_does_not_have() -> None:
    assert of_arrow(DataType.DATE, 0) == date(1970, 1, 1)
    assert isinstance(of_arrow(DataType.DATE, 10**8), Unreadable)
    assert of_arrow(DataType.NUMERIC, 5) == Decimal(5)
    assert of_arrow(DataType.FLOAT64, 2**53 + 1) == 2.0**53


def test_the_view_of_a_row_can_be_loaded_again() -> None:
    maker = RowMaker(DEFINITION, 77)
    view = maker.view([7, 19843, None, 5], of_arrow)
    assert view == {"id": 7, "day": "2024-04-30", "name": None, "amount": 5}
    values = list(view.values())
    assert maker.make(values, of_json) == maker.make([7, 19843, None, 5], of_arrow)
