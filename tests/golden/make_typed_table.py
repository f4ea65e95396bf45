"""Writes the golden table with every type: `python -m tests.golden.make_typed_table`.

It is a table of lowmark in four buckets, with a column for each type. A second
apply replaces single rows: files have deletion vectors. `expected` has its rows.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from connector import jars
from connector.records.model import DataChange, DeleteFamily, Heartbeat, SetCell
from connector.records.views import EPOCH
from connector.spark.session import start_session
from connector.state import apply_level
from connector.tables.definition import Column, TableDefinition
from connector.tables.keys import Key, KeyForm, KeyPart
from connector.tables.nested import ValueType, type_of
from connector.tables.values import (
    BIGNUMERIC_MAX,
    BIGNUMERIC_MIN,
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
    DataType,
    Encoding,
    write_value,
)
from tests.changes import change, unmapped_cell
from tests.spark.streams import Stream, shown

FOLDER: Final = Path(__file__).parent / "typed_table"
TYPED: Final[dict[str, tuple[ValueType, Encoding]]] = {
    **{type_.value.lower(): (type_, Encoding.TEXT) for type_ in DataType},
    "float64_binary": (DataType.FLOAT64, Encoding.BINARY),
    "timestamp_binary": (DataType.TIMESTAMP, Encoding.BINARY),
    "array": (type_of("ARRAY<NUMERIC>"), Encoding.TEXT),
    "record": (type_of("RECORD<at TIMESTAMP, spans ARRAY<RANGE<DATETIME>>>"), Encoding.TEXT),
    "range": (type_of("RANGE<DATE>"), Encoding.TEXT),
}
TABLE: Final = TableDefinition(
    name="typed",
    stream="s",
    source="t",
    key=Key(
        (KeyPart("region", DataType.STRING), KeyPart("number", DataType.INT64)), KeyForm.DELIMITED
    ),
    columns=tuple(
        Column(name, "f", name.encode(), type_, encoding)
        for name, (type_, encoding) in TYPED.items()
    ),
    buckets=4,
)
ROWS: Final = 40
REPLACED: Final = range(0, ROWS, 5)
DELETED: Final = range(1, ROWS, 10)
_LARGEST: Final = "99999999999999999999999999999.999999999"
_VALUES: Final[dict[str, tuple[Any, ...]]] = {
    "string": ("", "Grüße 你好 \U0001f600", "a\tb'c\"d", None),
    "bytes": (b"", b"\x00\xff", bytes(range(256)), None),
    "bool": (True, False, None),
    "int64": (0, -(2**63), 2**63 - 1, None),
    "float64": (
        0.1,
        float("nan"),
        float("inf"),
        float("-inf"),
        -0.0,
        5e-324,
        1.7976931348623157e308,
    ),
    "numeric": (
        Decimal(0),
        Decimal(_LARGEST),
        Decimal(f"-{_LARGEST}"),
        Decimal("0.000000001"),
        None,
    ),
    "bignumeric": (BIGNUMERIC_MIN, BIGNUMERIC_MAX, "0", "-0.5", None),
    "datetime": (TIMESTAMP_MIN, -1, 0, TIMESTAMP_MAX, None),
    "time": ("00:00:00.000000", "23:59:59.999999", None),
    "array": ([], [Decimal(_LARGEST), None], None),
    "record": (
        {"at": TIMESTAMP_MIN, "spans": [{"start": TIMESTAMP_MIN, "end": None}, None]},
        {"at": None, "spans": None},
        None,
    ),
    "range": ({"start": date(1, 1, 1), "end": date(9999, 12, 31)}, None),
    "date": (date(1, 1, 1), date(1969, 12, 31), date(2024, 2, 29), date(9999, 12, 31), None),
    "timestamp": (TIMESTAMP_MIN, -1, 0, 1_714_475_984_123_456, TIMESTAMP_MAX, None),
    "json": ('{"a": [1, 2.50, null]}', "[]", '"text"', None),
    "float64_binary": (float("nan"), -1.5, None),
    "timestamp_binary": (TIMESTAMP_MAX, TIMESTAMP_MIN, None),
}


def row(number: int, shift: int = 0) -> dict[str, Any]:
    """The row with this number. `shift` gives other values."""
    values = {name: of_type[(number + shift) % len(of_type)] for name, of_type in _VALUES.items()}
    unmapped = {"f:note": b"\xff%d" % number, "g:%FF": b""} if number % 3 == 0 else {}
    return {"region": "eu" if number % 2 else "", "number": number, **values, "_unmapped": unmapped}


def expected() -> list[dict[str, Any]]:
    """The rows of the table after both applies, in the order of `number`."""
    return [row(n, 1 if n in REPLACED else 0) for n in range(ROWS) if n not in DELETED]


def comparable(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a reader in one order, in a form in which equal values are equal: a NaN is equal to
    itself, -0.0 differs from 0.0, and times are numbers. No cells without a column may be null.
    """
    plain = (
        {
            name: _cells(value) if name == "_unmapped" else _plain(value)
            for name, value in row.items()
        }
        for row in rows
    )
    return sorted(plain, key=lambda row: str(list(row.values())[:2]))


def _cells(cells: Any) -> Any:
    """A map of cells, which some readers have as a list of pairs."""
    pairs = cells.items() if isinstance(cells, Mapping) else cells or ()
    return sorted((name, bytes(cell)) for name, cell in pairs)


def _plain(value: Any) -> Any:
    match value:
        case float():
            return "NaN" if math.isnan(value) else value.hex()
        case Decimal():
            return f"{value:.9f}"
        case datetime():
            moment = value.replace(tzinfo=UTC) if value.tzinfo is None else value
            return (moment - EPOCH) // timedelta(microseconds=1)
        case date():
            return (value - EPOCH.date()).days
        case Mapping():
            return {name: _plain(part) for name, part in value.items()}
        case list():
            return [_plain(item) for item in value]
        case _:
            return value


def set_row(number: int, at: int, shift: int = 0) -> DataChange:
    """A change that sets all cells of a row, and no other."""
    cells = [DeleteFamily("f"), DeleteFamily("g")]
    values = row(number, shift)
    for name, (type_, encoding) in TYPED.items():
        if values[name] is not None:
            value = write_value(type_, encoding, values[name])
            cells.append(SetCell("f", name.encode(), value))
    for name, value in values["_unmapped"].items():
        cells.append(SetCell(*unmapped_cell(name), value))
    return change(*cells, at=at, row_key=TABLE.key.write_key((values["region"], number)))


def delete_row(number: int, at: int) -> DataChange:
    """A change that deletes a row."""
    return change(
        *(DeleteFamily("f"), DeleteFamily("g")),
        at=at,
        row_key=TABLE.key.write_key((row(number)["region"], number)),
    )


def main() -> None:
    store = jars.JarStore.from_environment(os.environ)
    apply_level.MIN_BYTES = 0  # type: ignore[misc]  # a table this small has its buckets rewritten
    with tempfile.TemporaryDirectory() as scratch:
        spark = start_session(jars.fetch("spark", store), scratch=Path(scratch), cores="2")
        stream = Stream(spark, Path(scratch) / "warehouse")
        table = stream.table(TABLE)
        stream.topic.send(*(set_row(n, 10) for n in range(ROWS)))
        stream.topic.send_everywhere(Heartbeat("p", 30))
        stream.ingest()
        stream.apply(table)
        stream.topic.send(*(set_row(n, 40, 1) for n in REPLACED))
        stream.topic.send(*(delete_row(n, 41) for n in DELETED))
        stream.topic.send_everywhere(Heartbeat("p", 60))
        stream.ingest()
        stream.apply(table)
        rows = comparable(shown(table).values())
        assert rows == comparable(expected()), "the maker is wrong"
        assert rows == comparable(stream.truth(TABLE).values()), "the maker is wrong"
        assert not stream.letters, stream.letters
        spark.stop()
        shutil.rmtree(FOLDER, ignore_errors=True)
        shutil.copytree(Path(scratch) / "warehouse/tables/typed/data", FOLDER)
    for path in FOLDER.rglob(".*.crc"):  # of Hadoop, for one file each
        path.unlink()


if __name__ == "__main__":
    main()
