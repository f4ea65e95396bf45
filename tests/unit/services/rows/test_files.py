"""Files of rows: each place that cannot be read is named, and each row has its number (PUB-6)."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.errors import ConnectorError
from connector.services.rows.files import (
    FileFormat,
    FileRow,
    RowFile,
    check_unchanged,
    csv_columns,
    csv_rows,
    describe_file,
    json_rows,
)
from connector.services.rows.parquet import parquet_columns, parquet_rows
from connector.services.rows.values import UNMAPPED_MISFIT, Misfit, of_arrow, of_json
from connector.tables.nested import type_of
from connector.tables.values import DataType, Encoding, Unreadable, write_value

NAMES, KEYS = ("id", "name", "n"), ("id",)
TYPES = (DataType.STRING, DataType.STRING, DataType.INT64)


def written(folder: Path, name: str, content: bytes) -> RowFile:
    path = folder / name
    path.write_bytes(content)
    return describe_file(path, None)


def of_csv(file: RowFile, null: str = "") -> list[FileRow]:
    return list(csv_rows(file, NAMES, KEYS, null))


# ── CSV ───────────────────────────────────────────────────────────────────────────────────────────


def test_csv_rows_have_the_numbers_of_their_first_lines(tmp_path: Path) -> None:
    content = b'\xef\xbb\xbfn,id\r\n1,a\r\n\r\n2,"b\nc"\r\n,"d""e"\r\n'
    file = written(tmp_path, "a.csv", content)
    assert csv_columns(file) == ["n", "id"]
    assert of_csv(file) == [
        (2, ["a", None, "1"]),
        (4, ["b\nc", None, "2"]),
        (6, ['d"e', None, None]),
    ]


def test_the_text_of_a_csv_field_without_a_value_can_be_chosen(tmp_path: Path) -> None:
    file = written(tmp_path, "a.csv", b"id,name\na,\nb,\\N\n")
    assert of_csv(file, "\\N") == [(2, ["a", "", None]), (3, ["b", None, None])]


_FIELDS = st.sampled_from(["", "NULL", "a", ",", '"', "\n", 'b"', " ", '""', "\r\n"])


@given(
    rows=st.lists(
        st.lists(st.none() | _FIELDS | st.text('a,"\nN', max_size=4), min_size=3, max_size=3)
    ),
    null=st.sampled_from(["", "NULL", "\\N", "a"]),
    quoted=st.booleans(),
)
def test_csv_as_postgresql_writes_it_keeps_null_and_text_apart(
    rows: list[list[str | None]],
    null: str,
    quoted: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """PUB-6: NULL is written without quotes, and the same text with quotes."""

    def written_field(value: str | None) -> str:
        if value is None:
            return null
        is_plain = not quoted and value != null and not set(value) & set('",\r\n')
        return value if is_plain else '"' + value.replace('"', '""') + '"'

    lines = ["id,name,n", *(",".join(map(written_field, row)) for row in rows)]
    content = "".join(line + "\n" for line in lines).encode()
    file = written(tmp_path_factory.mktemp("csv"), "a.csv", content)
    assert [row.values for row in of_csv(file, null)] == rows


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (b"id,n\na,1\nb\n", "line 3: there are 1 fields, but the first line names 2"),
        (b"id,n\na,1\nb,1,2\n", "line 3: there are 3 fields"),
        (b'id,n\na,"1\nb,2\n', "line 2: it is not CSV"),
        (b'id,n\na,"1"x\n', "line 2: it is not CSV"),
        (b"id,n\na,1\nb,\xff\n", "line 3: byte 3 is not UTF-8"),
        (b"", "line 1: there are no column names"),
    ],
)
def test_csv_that_cannot_be_read_is_named_by_its_line(
    content: bytes, where: str, tmp_path: Path
) -> None:
    file = written(tmp_path, "a.csv", content)
    with pytest.raises(ConnectorError) as caught:
        csv_columns(file)
        of_csv(file)
    assert caught.value.code == "FILE_INVALID"
    assert caught.value.problem.startswith(f"{file.path}, {where}")


@pytest.mark.parametrize(
    ("header", "problem", "cause"),
    [
        (b"id,n,id\n", "'id' more than once", ""),
        (b"id,nane\n", "'nane', which the table does not have", "did you mean name?"),
        (b"n,name\n", "does not have the key column 'id'", ""),
    ],
)
def test_columns_that_are_not_those_of_the_table_are_refused(
    header: bytes, problem: str, cause: str, tmp_path: Path
) -> None:
    file = written(tmp_path, "a.csv", header)
    with pytest.raises(ConnectorError) as caught:
        of_csv(file)
    assert caught.value.code == "FILE_INVALID"
    assert problem in caught.value.problem
    assert cause in caught.value.cause


# ── JSON lines ────────────────────────────────────────────────────────────────────────────────────


def test_json_rows(tmp_path: Path) -> None:
    """Rows that `connector read --json` prints are read. Cells without a column are refused."""
    content = (
        b'{"id": "a", "n": 1.5, "_unmapped": {}}\n\n{"n": null, "id": "b"}\n'
        b'{"id": "c", "id": "d"}\n{"id": "e", "nane": 1}\n{"id": "f", "_unmapped": {"f:x": "1"}}\n'
    )
    assert list(json_rows(written(tmp_path, "a.jsonl", content), NAMES)) == [
        (1, ["a", None, Decimal("1.5")]),
        (3, ["b", None, None]),
        (4, Misfit("id", "the name is there more than once")),
        (5, Misfit("nane", "the table has no such column; did you mean name?")),
        (6, UNMAPPED_MISFIT),
    ]


@pytest.mark.parametrize(
    ("line", "where"),
    [
        (b'{"id": ', "it is not JSON"),
        (b'{"id": NaN}', "it is not JSON (NaN is not a number; write it as text)"),
        (b"[1]", "it is not a JSON object"),
        (b'{"id": "\xff"}', "byte 9 is not UTF-8"),
        (b"[" * 100_000, "it is not JSON"),
    ],
)
def test_json_that_cannot_be_read_is_named_by_its_line(
    line: bytes, where: str, tmp_path: Path
) -> None:
    file = written(tmp_path, "a.ndjson", b'{"id": "a"}\n' + line + b"\n")
    rows = json_rows(file, NAMES)
    assert next(rows).number == 1
    with pytest.raises(ConnectorError) as caught:
        next(rows)
    assert caught.value.code == "FILE_INVALID"
    assert caught.value.problem.startswith(f"{file.path}, line 2: {where}")


def test_a_number_with_thousands_of_digits_is_read_at_once(tmp_path: Path) -> None:
    file = written(tmp_path, "a.jsonl", b'{"id": "a", "n": ' + b"9" * 100_000 + b"}")
    assert list(json_rows(file, NAMES)) == [(1, ["a", None, Decimal("9" * 100_000)])]


# ── Parquet ───────────────────────────────────────────────────────────────────────────────────────


def parquet(folder: Path, columns: dict[str, Any], **options: Any) -> RowFile:
    path = folder / "a.parquet"
    pq.write_table(pa.table(columns), path, **options)
    return describe_file(path, None)


def test_parquet_rows_are_numbered_over_row_groups(tmp_path: Path) -> None:
    ids = pa.array([f"r{n}" for n in range(12_000)]).dictionary_encode()
    file = parquet(tmp_path, {"n": list(range(12_000)), "id": ids}, row_group_size=700)
    assert parquet_columns(file, NAMES, TYPES, KEYS) == ["n", "id"]
    rows = list(parquet_rows(file, NAMES, TYPES, KEYS))
    assert [row.number for row in rows] == list(range(1, 12_001))
    assert tuple(rows[0].values) == ("r0", None, 0)
    assert tuple(rows[-1].values) == ("r11999", None, 11_999)


def test_times_of_parquet_are_integers(tmp_path: Path) -> None:
    moment = datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)
    columns = {
        "day": pa.array([date(1970, 1, 2), None]),
        "at": pa.array([moment, None], pa.timestamp("us", "Europe/Rome")),
        "ns": pa.array([-1, 1_001], pa.timestamp("ns", "UTC")),
        "ms": pa.array([2**53, None], pa.timestamp("ms", "UTC")),
    }
    file = parquet(tmp_path, columns)
    types = (DataType.DATE, DataType.TIMESTAMP, DataType.TIMESTAMP, DataType.TIMESTAMP)
    parquet_columns(file, list(columns), types, ("day",))
    rows = list(parquet_rows(file, list(columns), types, ("day",)))
    assert [tuple(row.values) for row in rows] == [(1, -1, -1, 2**53 * 1000), (None, None, 1, None)]


@pytest.mark.parametrize(
    ("type_", "column", "wanted"),
    [
        (DataType.TIMESTAMP, pa.array([datetime(2024, 1, 1)]), "a timestamp with a time zone"),  # noqa: DTZ001
        (DataType.TIMESTAMP, pa.array([5]), "a timestamp with a time zone"),
        (DataType.INT64, pa.array(["5"]), "an integer"),
        (DataType.NUMERIC, pa.array([5.5]), "a decimal or an integer"),
        (DataType.STRING, pa.array([b"5"]), "text"),
        (DataType.JSON, pa.array([["5"]]), "text"),
    ],
)
def test_a_parquet_column_of_another_type_is_refused(
    type_: DataType, column: Any, wanted: str, tmp_path: Path
) -> None:
    file = parquet(tmp_path, {"id": ["a"], "c": column})
    with pytest.raises(ConnectorError, match=wanted) as caught:
        parquet_columns(file, ("id", "c"), (DataType.STRING, type_), KEYS)
    assert caught.value.code == "FILE_INVALID"


TEXT_7 = {
    **dict.fromkeys((DataType.STRING, DataType.JSON, DataType.BIGNUMERIC), b"7"),
    DataType.TIME: None,
}
"""The text 7. It can be in a column of text that is loaded as TIME, but is no time."""
ARROW_VALUES: dict[str, tuple[Any, dict[DataType, Any]]] = {
    str(values.type): (values, loaded)
    for values, loaded in [
        *(
            (pa.array(["7"], type_), TEXT_7)
            for type_ in (
                pa.string(),
                pa.large_string(),
                pa.string_view(),
                pa.dictionary(pa.int32(), pa.string()),
                pa.dictionary(pa.int8(), pa.large_string()),
                pa.json_(pa.string()),
                pa.json_(pa.large_string()),
            )
        ),
        *(
            (pa.array([b"\0a"], type_), {DataType.BYTES: b"\0a"})
            for type_ in (
                pa.binary(),
                pa.large_binary(),
                pa.binary_view(),
                pa.binary(2),
                pa.dictionary(pa.int32(), pa.binary()),
            )
        ),
        (pa.array([uuid.UUID(int=5).bytes], pa.uuid()), {DataType.BYTES: uuid.UUID(int=5).bytes}),
        (
            pa.ExtensionArray.from_storage(
                pa.opaque(pa.string_view(), "inet", "PostgreSQL"), pa.array(["7"], pa.string_view())
            ),
            TEXT_7,
        ),
        (pa.array([True]), {DataType.BOOL: b"true"}),
        *(
            (
                pa.array([7], type_),
                {
                    DataType.INT64: b"7",
                    DataType.FLOAT64: b"7.0",
                    **dict.fromkeys((DataType.NUMERIC, DataType.BIGNUMERIC), b"7"),
                },
            )
            for type_ in (
                pa.int8(),
                pa.int16(),
                pa.int32(),
                pa.int64(),
                pa.uint8(),
                pa.uint16(),
                pa.uint32(),
                pa.uint64(),
            )
        ),
        (
            pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1], pa.int8())),
            {
                DataType.INT64: b"1",
                DataType.FLOAT64: b"1.0",
                **dict.fromkeys((DataType.NUMERIC, DataType.BIGNUMERIC), b"1"),
            },
        ),
        *(
            (pa.array([1.5], type_), {DataType.FLOAT64: b"1.5"})
            for type_ in (pa.float16(), pa.float32(), pa.float64())
        ),
        *(
            (
                pa.array([Decimal("-1.50")], type_),
                dict.fromkeys((DataType.NUMERIC, DataType.BIGNUMERIC), b"-1.5"),
            )
            for type_ in (
                pa.decimal32(5, 2),
                pa.decimal64(12, 2),
                pa.decimal128(38, 9),
                pa.decimal256(76, 20),
            )
        ),
        *(
            (pa.array([date(1969, 12, 31)], type_), {DataType.DATE: b"1969-12-31"})
            for type_ in (pa.date32(), pa.date64())
        ),
        *(
            (
                pa.array(
                    [datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)], pa.timestamp(unit, zone)
                ),
                {DataType.TIMESTAMP: b"1969-12-31T23:59:59.000000Z"}
                if zone
                else {DataType.DATETIME: b"1969-12-31T23:59:59.000000"},
            )
            for unit in ("s", "ms", "us", "ns")
            for zone in ("UTC", "+02:00", "Europe/Berlin", None)
        ),
        *(
            (pa.array([time(9, 5)], type_), {DataType.TIME: b"09:05:00.000000"})
            for type_ in (pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"))
        ),
        *(
            (pa.array([1], type_), {})
            for type_ in (
                pa.duration("s"),
                pa.duration("ns"),
            )
        ),
        *(
            (pa.array(value, type_), {})
            for value, type_ in (
                ([["7"]], pa.list_(pa.string())),
                ([["7"]], pa.large_list(pa.string())),
                ([["7"]], pa.list_(pa.string(), 1)),
                ([["7"]], pa.list_view(pa.string())),
                ([{"a": "7"}], pa.struct({"a": pa.string()})),
                ([[("a", "7")]], pa.map_(pa.string(), pa.string())),
            )
        ),
        (pa.nulls(1), dict.fromkeys(DataType, b"")),
    ]
}
"""For each Arrow type that a Parquet file can have: a value, and its bytes in each type of a table
that takes it.
"""


@pytest.mark.parametrize("name", ARROW_VALUES)
def test_each_arrow_type_is_loaded_exactly_or_refused_with_its_name(
    name: str, tmp_path: Path
) -> None:
    """PUB-6: for example, text that Arrow keeps as a view, in a dictionary or as an extension."""
    values, loaded = ARROW_VALUES[name]
    columns = pa.concat_arrays([values, pa.nulls(1, values.type)])
    file = parquet(tmp_path, {"id": ["a", "b"], "c": columns})
    stored = pq.read_schema(file.path).field("c").type
    for wanted in DataType:
        names, types = ("id", "c"), (DataType.STRING, wanted)
        if wanted not in loaded:
            with pytest.raises(ConnectorError) as caught:
                parquet_columns(file, names, types, KEYS)
            assert caught.value.code == "FILE_INVALID", wanted
            assert f"has the column 'c' as {stored}" in caught.value.problem, wanted
            continue
        parquet_columns(file, names, types, KEYS)
        rows = [row.values for row in parquet_rows(file, names, types, KEYS)]
        assert not isinstance(rows[0], Misfit), wanted
        assert not isinstance(rows[1], Misfit), wanted
        assert rows[1][1] is None, wanted
        if loaded[wanted] is None:
            assert isinstance(of_arrow(wanted, rows[0][1]), Unreadable)
        elif loaded[wanted]:
            value = of_arrow(wanted, rows[0][1])
            assert write_value(wanted, Encoding.TEXT, value) == loaded[wanted]


@pytest.mark.parametrize("damage", ["footer", "data"])
def test_the_error_of_unreadable_parquet_has_the_location(damage: str, tmp_path: Path) -> None:
    file = parquet(tmp_path, {"id": [f"r{n}" for n in range(20_000)]}, compression="none")
    content = bytearray(file.path.read_bytes())
    if damage == "footer":
        content = content[:-100]
    else:
        content[4:2_000] = bytes(1_996)
    file.path.write_bytes(content)
    with pytest.raises(ConnectorError, match="it is not Parquet that can be read") as caught:
        list(parquet_rows(file, NAMES, TYPES, KEYS))
    assert caught.value.code == "FILE_INVALID"
    where = "the footer" if damage == "footer" else "the rows from 1 on"
    assert f"{file.path}, {where}: " in caught.value.problem


# ── files ─────────────────────────────────────────────────────────────────────────────────────────


def test_the_format_follows_from_the_file_name_unless_it_is_given(tmp_path: Path) -> None:
    assert written(tmp_path, "a.CSV", b"id\n").format is FileFormat.CSV
    assert written(tmp_path, "a.json", json.dumps({}).encode()).format is FileFormat.JSONL
    (tmp_path / "a.dat").write_bytes(b"id\n")
    assert describe_file(tmp_path / "a.dat", FileFormat.CSV).format is FileFormat.CSV
    with pytest.raises(ConnectorError) as caught:
        describe_file(tmp_path / "a.dat", None)
    assert caught.value.code == "FILE_UNREADABLE"
    with pytest.raises(ConnectorError) as caught:
        describe_file(tmp_path / "none.csv", None)
    assert caught.value.code == "FILE_UNREADABLE"


def test_a_file_that_grows_is_noticed(tmp_path: Path) -> None:
    file = written(tmp_path, "a.csv", b"id\na\n")
    check_unchanged(file)
    with file.path.open("ab") as more:
        more.write(b"b\n")
    with pytest.raises(ConnectorError) as caught:
        check_unchanged(file)
    assert caught.value.code == "FILE_INVALID"


NESTED_VALUES = {
    "ARRAY<NUMERIC>": (pa.array([[Decimal("1.50"), None]]), b'["1.5",null]'),
    "ARRAY<ARRAY<INT64>>": (pa.array([[[1]]], pa.list_(pa.large_list(pa.int8()))), b"[[1]]"),
    "ARRAY<BYTES>": (pa.array([[b"\xff"]]), b'["/w=="]'),
    "RECORD<a TIMESTAMP, b DATETIME, c TIME>": (
        pa.array(
            [{"a": datetime(2026, 1, 31, 9, tzinfo=UTC), "c": time(9)}],
            pa.struct({"a": pa.timestamp("us", "UTC"), "c": pa.time64("us")}),
        ),
        b'{"a":"2026-01-31T09:00:00.000000Z","b":null,"c":"09:00:00.000000"}',
    ),
    "RANGE<DATE>": (
        pa.array(
            [{"start": date(2026, 1, 31), "end": None}],
            pa.struct({"start": pa.date32(), "end": pa.date32()}),
        ),
        b'{"start":"2026-01-31","end":null}',
    ),
}


@pytest.mark.parametrize("text", NESTED_VALUES)
def test_values_with_parts_are_loaded_from_parquet(text: str, tmp_path: Path) -> None:
    """EVO-6, PUB-6: lists and structs of parts that fit; others are refused by their type."""
    type_, (values, written) = type_of(text), NESTED_VALUES[text]
    file = parquet(tmp_path, {"id": ["a"], "c": values})
    names, types = ("id", "c"), (DataType.STRING, type_)
    parquet_columns(file, names, types, KEYS)
    (row,) = parquet_rows(file, names, types, KEYS)
    assert not isinstance(row.values, Misfit)
    assert write_value(type_, Encoding.TEXT, of_arrow(type_, row.values[1])) == written
    for other in ("ARRAY<BOOL>", "RECORD<x INT64>", "RANGE<TIMESTAMP>", "INT64"):
        with pytest.raises(ConnectorError, match="The column of the table is"):
            parquet_columns(file, names, (DataType.STRING, type_of(other)), KEYS)


@pytest.mark.parametrize(
    ("text", "given", "written"),
    [
        ("ARRAY<INT64>", [1, "2", None], b"[1,2,null]"),
        ("ARRAY<INT64>", "[1]", b"[1]"),
        ("ARRAY<NUMERIC>", [Decimal("1.50")], b'["1.5"]'),
        ("RECORD<a BYTES>", {"a": "/w=="}, b'{"a":"/w=="}'),
        ("BIGNUMERIC", Decimal("1E+30"), b"1" + b"0" * 30),
        ("BIGNUMERIC", "1.50", b"1.5"),
        ("TIME", "09:00:00", b"09:00:00.000000"),
        ("DATETIME", "2026-01-31T09:00:00", b"2026-01-31T09:00:00.000000"),
        *(("ARRAY<INT64>", bad, None) for bad in ([1.5], {"a": 1}, "[1", 5)),
        *(("TIME", 5, None), ("DATETIME", 5, None), ("BIGNUMERIC", "NaN", None)),
    ],
)
def test_values_of_new_types_are_loaded_from_text(text: str, given: Any, written: Any) -> None:
    """EVO-6, PUB-6: from CSV, and from JSON lines."""
    type_ = type_of(text)
    value = of_json(type_, given)
    if written is None:
        assert isinstance(value, Unreadable)
    else:
        assert write_value(type_, Encoding.TEXT, value) == written
