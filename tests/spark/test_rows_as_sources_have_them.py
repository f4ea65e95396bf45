"""Rows of NULLs, and values that no type holds, through ingest, applies and reads (EVO-11,
EVO-12).
"""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connector.records.model import DataChange, DeleteCells, DeleteFamily
from connector.records.rejection import Reason
from connector.reports.table_status import table_status
from connector.spark.reader import read_table
from connector.spark.storage.table import Table
from connector.tables.definition import Column, OnUnreadable, TableDefinition, Versions
from connector.tables.presence import presence_mark
from connector.tables.values import DataType
from tests.changes import change, put
from tests.spark.streams import COLUMNS, Stream, definition, rows_by_key, shown
from tests.spark.test_rebuild import rebuilt

CREDIT = Column("credit", "f", b"credit", DataType.NUMERIC)


def fresh(stream: Stream, wanted: TableDefinition) -> dict[object, dict[str, object]]:
    """The rows of a fresh read, which merges what is not applied."""
    return rows_by_key(read_table(stream.spark, str(stream.folder), wanted.name).rows, wanted)


def row(row_key: str, at: int, *deleted: str, **values: str) -> DataChange:
    """A change with the presence mark: the whole row as its source has it."""
    cells = [put(value, qualifier=column.encode()) for column, value in values.items()]
    first = [DeleteFamily(family) for family in deleted]
    return change(*first, presence_mark("f"), *cells, at=at, row_key=row_key.encode())


@pytest.mark.parametrize("keeps", [pytest.param(True, marks=pytest.mark.long), False])
def test_worked_example_4_a_table_of_key_columns_only(
    spark: SparkSession, tmp_path: Path, keeps: bool
) -> None:
    """EVO-12: three inserts and one delete are two rows, without Spark and with it, after an apply
    and in a fresh read, and after a rebuild.
    """
    labels = definition("labels", columns=(), keep_unmapped=keeps)
    assert labels.marks == "row"
    for name, way in (("without", cycle((True,))), ("with", cycle((False,)))):
        stream = Stream(spark, tmp_path / name, without_spark=way)
        inserted = [change(presence_mark("row"), at=1, row_key=key) for key in (b"a", b"b", b"c")]
        stream.topic.send(*inserted)
        stream.ingest()
        stream.apply(stream.table(labels))
        assert shown(stream.table(labels)).keys() == {"a", "b", "c"}
        deleted = change(DeleteFamily("row"), at=3, row_key=b"b")
        late = change(presence_mark("row"), at=2, row_key=b"b")
        stream.topic.send(deleted, late)
        stream.ingest()
        assert fresh(stream, labels).keys() == {"a", "c"}
        stream.apply(stream.table(labels))
        assert shown(stream.table(labels)) == stream.truth(labels)
        assert shown(stream.table(labels)).keys() == {"a", "c"}
    rebuilt(stream, labels)
    assert shown(stream.table(labels)).keys() == {"a", "c"}


@pytest.mark.long
@pytest.mark.parametrize(
    "versions", [Versions.LATEST, pytest.param(Versions.ALL, marks=pytest.mark.long)]
)
def test_a_row_of_nulls_stays_until_its_family_is_deleted(
    spark: SparkSession, tmp_path: Path, versions: Versions
) -> None:
    """EVO-12, newest_wins, deletes_stay_deleted: in a fresh read, and after the apply. A row that
    never had the mark exists as long as it has a value (MRG-7). By default,
    `test_merge_agrees.py` shows it.
    """
    wanted = definition(versions=versions)
    stream = Stream(spark, tmp_path)
    unmarked = change(put("Una", qualifier=b"name"), at=1, row_key=b"unmarked")
    stream.topic.send(row("nulls", 1), row("a", 1, name="Ada"), unmarked)
    stream.ingest()
    stream.apply(stream.table(wanted))
    assert shown(stream.table(wanted)) == stream.truth(wanted)
    assert shown(stream.table(wanted))["nulls"]["name"] is None

    steps = [
        [
            change(DeleteCells("f", b"name"), at=2, row_key=b"a"),
            change(DeleteCells("f", b"name"), at=2, row_key=b"unmarked"),
        ],
        [row("a", 3, "f"), row("new", 3)],
        [change(DeleteFamily("f"), at=4, row_key=b"a"), row("nulls", 4, amount="1")],
        [row("a", 3, name="late")],
    ]
    expected = [{"nulls", "a"}, {"nulls", "a", "new"}, {"nulls", "new"}, {"nulls", "new"}]
    for changes, keys in zip(steps, expected, strict=True):
        stream.topic.send(*changes)
        stream.ingest()
        assert fresh(stream, wanted) == stream.truth(wanted)
        stream.apply(stream.table(wanted))
        assert shown(stream.table(wanted)) == stream.truth(wanted)
        assert shown(stream.table(wanted)).keys() == keys


def test_worked_example_6_a_value_that_no_type_holds(spark: SparkSession, tmp_path: Path) -> None:
    """EVO-11: NULL in the column, the value in `_unmapped`, and the other columns go on. With
    `letter`, later changes with such a value are letters, and the kept values stay where they are.
    """
    columns = (*COLUMNS, CREDIT)
    letter = definition(columns=columns)
    null = definition(columns=columns, on_unreadable=OnUnreadable.NULL)
    stream = Stream(spark, tmp_path)

    def apply(wanted: TableDefinition, *changes: DataChange) -> tuple[Table, dict[str, object]]:
        stream.topic.send(*changes)
        stream.ingest()
        table = stream.table(wanted)
        assert stream.apply(table) is not None
        return table, shown(table)["a"]

    apply(letter, row("a", 1, name="Ada", credit="1.5"))
    table, shown_row = apply(letter, row("a", 2, name="Lee", credit="NaN"))
    assert (shown_row["name"], shown_row["credit"] is None) == ("Ada", False)
    assert [one.reason for one in stream.letters] == [Reason.UNREADABLE_VALUE]

    for number, name in enumerate(("Bo", "Cy")):  # one with Spark, one without
        table, shown_row = apply(null, row("a", 3 + number, name=name, credit="NaN"))
        assert (shown_row["name"], shown_row["credit"]) == (name, None)
        assert shown_row["_unmapped"] == {"f:credit": b"NaN"}
        assert table.table_state().misfits == {"credit": number + 1}
    status = table_status(null, table.table_state(), None, 0)
    assert "credit: 2 values that NUMERIC does not hold: shown as NULL, kept in _unmapped" in (
        status.hints
    )
    assert len(stream.letters) == 1

    for at in (5, 8):
        table, shown_row = apply(null, row("a", at, credit=f"{at}"))
        assert (shown_row["credit"], shown_row["_unmapped"]) == (at, {})
        table, shown_row = apply(null, row("a", at + 2, credit="oops"))
        assert shown_row["_unmapped"] == {"f:credit": b"oops"}
        table, shown_row = apply(null, row("a", at + 1, credit="3"), row("b", 1))
        assert shown_row["_unmapped"] == {"f:credit": b"oops"}, "an older value changes nothing"

    table, shown_row = apply(letter, row("b", 11, credit="NaN"), row("a", 11, name="Di"))
    assert (shown_row["name"], shown_row["credit"]) == ("Di", None)
    assert shown_row["_unmapped"] == {"f:credit": b"oops"}
    assert len(stream.letters) == 2
    table, shown_row = apply(letter, row("a", 12, credit="4"))
    assert (shown_row["credit"], shown_row["_unmapped"]) == (4, {})
    assert len(stream.letters) == 2


def test_one_column_is_null_and_another_makes_letters(spark: SparkSession, tmp_path: Path) -> None:
    """EVO-11: the setting of a column outranks that of its table. The letter names every value that
    a column cannot hold. Without `_unmapped`, the value is dropped and counted.
    """
    null = Column(*("amount", "f", b"amount", DataType.INT64), on_unreadable=OnUnreadable.NULL)
    strict = Column("ratio", "f", b"ratio", DataType.FLOAT64)
    wanted = definition(columns=(null, strict, CREDIT), keep_unmapped=False)
    stream = Stream(spark, tmp_path)
    for number in range(2):
        stream.topic.send(
            row("a", 1 + number, amount="x", ratio="1"),
            row("b", 1 + number, amount="x", ratio="y", credit="z"),
        )
        stream.ingest()
        stream.apply(table := stream.table(wanted))
        found = shown(table)
        assert found == {
            "a": {"id": "a", "amount": None, "ratio": 1.0, "credit": None, "_unmapped": None}
        }
        assert table.table_state().misfits == {"amount": number + 1}
        detail = stream.letters[-1].detail
        assert [value in detail for value in ("'x'", "'y'", "'z'")] == [False, True, True]
    assert len(stream.letters) == 2
