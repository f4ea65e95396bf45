"""Whole columns of cells are read as `connector.tables.values` reads each cell (TBL-7, TBL-13)."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest

from connector.engine import values as engine
from connector.engine.values import typed
from connector.tables.definition import Column
from connector.tables.nested import ValueType
from connector.tables.values import DataType, Encoding, Unreadable, read_value, write_value
from tests.examples import tries
from tests.property.spellings import COLUMNS, spellings, value_of

ODD = b"0123456789-+.:eETZ \n\x00\xff"
TIMES = (DataType.TIMESTAMP, DataType.DATETIME)


def damaged(rng: Random, cell: bytes) -> bytes:
    """The cell, or one with up to two bytes changed, added or removed."""
    content = bytearray(cell)
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        at = rng.randrange(len(content) + 1)
        content[at : at + rng.randrange(2)] = rng.choice((b"", bytes([rng.choice(ODD)])))
    return bytes(content)


def cells_of(rng: Random, type_: ValueType, encoding: Encoding, count: int) -> list[bytes]:
    values = (value_of(rng, type_) for _ in range(count))
    return [damaged(rng, cell) for value in values for cell in spellings(type_, encoding, value)]


def plain(type_: ValueType, array: pa.Array) -> list[Any]:
    """Values of Python, whose text shows each difference. Python's times end with the year 9999."""
    if type_ in TIMES:
        array = array.cast(pa.int64())
    return [repr(value) for value in array.to_pylist()]


def differs(column: Column, cells: list[bytes]) -> list[bytes]:
    """The cells that a column reads otherwise than the definition."""
    array, misfits = typed(column, pa.array(cells, pa.binary()))
    wanted = [read_value(column.type, column.encoding, cell) for cell in cells]
    form = (column.type, column.encoding)
    # Without zeros at the end, of which a decimal of Arrow has no room for many.
    fits = [
        None if isinstance(value, Unreadable) else read_value(*form, write_value(*form, value))
        for value in wanted
    ]
    stored = pa.array(fits, pa.int64() if column.type in TIMES else array.type)
    assert misfits.tolist() == [
        index for index, value in enumerate(wanted) if isinstance(value, Unreadable)
    ]
    both = zip(cells, plain(column.type, array), plain(column.type, stored), strict=True)
    return [cell for cell, got, want in both if got != want]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)
def test_a_column_is_read_as_each_of_its_cells(column: Column, seed: int) -> None:
    rng = Random(f"{seed}/{column.name}")
    cells = [
        *cells_of(rng, column.type, column.encoding, len(tries(3_000, quick=300))),
        *(b'["1.%s"]' % (b"0" * 60), b"1.%s" % (b"0" * 60)),
    ]
    assert differs(column, cells) == []
    assert differs(column, []) == []
    sliced = pa.array(cells, pa.binary()).slice(7, 20)
    of_slice, whole = typed(column, sliced)[0], typed(column, pa.array(cells, pa.binary()))[0]
    assert plain(column.type, of_slice) == plain(column.type, whole)[7:27]


@pytest.mark.parametrize(
    ("type_", "pattern", "cell"),
    [
        (DataType.INT64, r"-?[0-9]{1,18}|\+7", b"+7"),
        (DataType.DATE, r"[0-9]{4}-[0-9]{2}-[0-9]{2}", b"0000-01-01"),
        (DataType.TIME, r".*", b"24:00:00.000000"),
    ],
)
def test_a_usual_text_that_is_too_wide_is_noticed(
    monkeypatch: pytest.MonkeyPatch, type_: DataType, pattern: str, cell: bytes
) -> None:
    monkeypatch.setitem(engine._USUAL_TEXT, type_, pattern)
    with pytest.raises((AssertionError, pa.ArrowInvalid)):
        differs(Column("c", "f", b"q", type_), [cell])
