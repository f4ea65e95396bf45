"""Columns that are added and dropped while the table has rows: the same table as if they had been
there from the start (EVO-3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from connector.errors import TableError, WriterConflictError
from connector.records.model import DataChange
from connector.spark.apply.alter import Survey, alter, new_reader_features, survey
from connector.spark.reader import read_table
from connector.spark.sql import literal_rows, typed, written
from connector.spark.storage.table import Table
from connector.tables.alterations import Alteration, alteration
from connector.tables.definition import Column, TableDefinition, Versions
from connector.tables.merge import visible
from connector.tables.row import row_of
from connector.tables.values import DataType, Encoding, Unreadable, read_value, write_value
from tests.examples import tries
from tests.property.histories import history
from tests.spark.streams import (
    CrashError,
    Stream,
    account,
    crash_at,
    definition,
    rows_by_key,
    shown,
    versions,
)
from tests.spark.test_apply_steps import delete, nasty

NUMBER = Column("number", "f", b"q", DataType.NUMERIC)
OTHER = Column("other", "g", b"q", DataType.NUMERIC)
STEPS = ("values read", "tombstones written", "table committed")


def wanted_alteration(stream: Stream, table: Table, *columns: Column) -> Alteration:
    """To exactly these columns, defined after the newest batch."""
    existing, ids = table.layout.definition, table.layout.ids
    assert ids is not None
    newest = stream.changelog().newest()
    made = alteration(
        existing,
        ids,
        replace(existing, columns=columns),
        [column.name for column in existing.columns],
        0 if newest is None else newest.ingest_batch,
    )
    assert made is not None
    return made


def altered(stream: Stream, was: TableDefinition, *columns: Column) -> TableDefinition:
    """Alter the table of a restarted process. Returns its definition."""
    table = stream.table(was)
    alter(table, wanted_alteration(stream, table, *columns))
    return table.layout.definition


def spelt(rows: Mapping[object, Mapping[str, object]]) -> dict[object, dict[str, object]]:
    """The rows with canonical numbers in `_unmapped`: a dropped column leaves such ones."""

    def canonical(name: str, value: bytes) -> bytes:
        read = read_value(DataType.NUMERIC, Encoding.TEXT, value)
        if name not in ("f:q", "g:q") or isinstance(read, Unreadable):
            return value
        return write_value(DataType.NUMERIC, Encoding.TEXT, read)

    return {
        key: {
            **row,
            "_unmapped": {name: canonical(name, cell) for name, cell in row["_unmapped"].items()},  # type: ignore[attr-defined]
        }
        for key, row in rows.items()
    }


@pytest.mark.parametrize(
    ("kept", "vectors", "changes"),
    [
        (Versions.LATEST, True, 2),
        pytest.param(Versions.LATEST, False, 3, marks=pytest.mark.systems),
        pytest.param(Versions.ALL, True, 3, marks=pytest.mark.long),
    ],
)
def test_columns_come_and_go_as_if_they_had_always_been_there(
    spark: SparkSession, tmp_path: Path, seed: int, kept: Versions, vectors: bool, changes: int
) -> None:
    """EVO-3, TBL-8, newest_wins, deletes_stay_deleted: generated histories: columns of an old and
    of a new family are added, one is dropped and added again, between batches with late changes.
    """
    rng, stream = Random(seed), Stream(spark, tmp_path)
    first = nasty("all", versions=kept, deletion_vectors=vectors)
    first = replace(first, columns=first.columns[:1])
    c0 = first.columns[0]
    steps = [(c0,), (c0, NUMBER, OTHER), (OTHER,), (c0, NUMBER)][: changes + 1]
    deliveries = [
        d for n in tries(80, quick=10) for d in history(rng, rows=(b"%d.1" % n, b"%d.2" % n))
    ]
    rng.shuffle(deliveries)
    wanted, in_force = stream.table(first).layout.definition, dict[int, TableDefinition]()
    for part, columns in enumerate(steps):
        if part:
            wanted = altered(stream, wanted, *columns)
            table = stream.table(wanted)
            assert spelt(shown(table)) == spelt(truth(stream, wanted, in_force))
        stream.topic.send(*(delivery.change for delivery in deliveries[part :: len(steps)]))
        batch = stream.ingest().ingest_batch
        in_force[batch] = wanted
        expected = spelt(truth(stream, wanted, in_force))
        if part == 2:  # with a column that was added, and without one that was dropped
            read = read_table(spark, str(tmp_path), "all").rows
            assert spelt(rows_by_key(read, wanted)) == expected
        stream.apply(stream.table(wanted))
        assert spelt(shown(stream.table(wanted))) == expected
    assert any(row["_unmapped"] for row in expected.values())
    assert stream.table(wanted).table_state().definition_version == len(steps)


def truth(
    stream: Stream, wanted: TableDefinition, in_force: Mapping[int, TableDefinition]
) -> dict[object, dict[str, object]]:
    """The table that the model makes of the changes that the definition of their batch accepted."""
    states = stream.states(wanted, in_force=lambda batch: in_force[batch])
    rows = {key: row_of(wanted, key, visible(state)) for key, state in states.items()}
    return {key: row for key, row in rows.items() if row is not None}


def noted(row: str, note: str | None) -> DataChange:
    return account(row, 10, name=row) if note is None else account(row, 10, name=row, note=note)


@pytest.fixture
def notes(spark: SparkSession, tmp_path: Path) -> Stream:
    """4 of 10 rows have `f:note`, one of them no number."""
    stream = Stream(spark, tmp_path)
    values = ["1", "2", "n/a", "4", *[None] * 6]
    stream.topic.send(*(noted(f"r{n}", value) for n, value in enumerate(values)))
    stream.ingest()
    stream.apply(stream.table())
    return stream


NOTE = Column("note", "f", b"note", DataType.STRING)


@pytest.mark.parametrize(
    ("type_", "misfits"),
    [pytest.param(DataType.STRING, 0, marks=pytest.mark.long), (DataType.INT64, 1)],
)
def test_worked_example_of_an_added_column(
    notes: Stream, spark: SparkSession, type_: DataType, misfits: int
) -> None:
    """EVO-3, nothing_lost: one commit shows the values, and rows without a value stay where they
    are. A value that does not fit stays in `_unmapped`, and is counted.
    """
    table = notes.table()
    before = versions(spark, table.path)
    wanted = wanted_alteration(notes, table, *table.layout.columns, replace(NOTE, type=type_))
    counted = survey(table, wanted)
    assert new_reader_features(table, wanted) == ()
    assert counted == replace(counted, rows=4, all_rows=10, misfits={"note": misfits})
    assert counted.values == {"note": 4 - misfits}
    assert 0 < counted.size < table.size_in_bytes()
    assert versions(spark, table.path) == before
    assert alter(table, wanted) == counted
    assert versions(spark, table.path) == before + 1
    rows = shown(table)
    assert sum(row["note"] is not None for row in rows.values()) == 4 - misfits
    unmapped = {key: row["_unmapped"] for key, row in rows.items() if row["_unmapped"]}
    assert unmapped == ({"r2": {"f:note": b"n/a"}} if misfits else {})
    notes.topic.send(noted("r9", "9"), account("r2", 9, note="5"))
    notes.ingest()
    notes.apply(table)
    assert shown(table)["r9"]["note"] == ("9" if type_ is DataType.STRING else 9)


@pytest.mark.parametrize(
    "step", [STEPS[1], *(pytest.param(step, marks=pytest.mark.systems) for step in STEPS[::2])]
)
def test_an_alteration_may_die_at_every_step(notes: Stream, step: str) -> None:
    """EVO-3, resumable: the table has the old columns, or the new ones with all values."""
    notes.topic.send(delete("r0", 20))
    notes.ingest()
    notes.apply(notes.table())
    table = notes.table()
    wanted = wanted_alteration(notes, table, NOTE)
    with pytest.raises(CrashError):
        alter(table, wanted, on_step=crash_at(step))
    begun = notes.table(wanted.definition)
    is_altered = step == "table committed"
    assert begun.layout.columns == (wanted.definition if is_altered else definition()).columns
    if not is_altered:
        alter(begun, wanted_alteration(notes, begun, NOTE))
    notes.topic.send(account("r0", 15, note="late"), account("r0", 15, name="late"))
    notes.topic.send(account("r1", 15, name="new"))
    notes.ingest()
    notes.apply(begun)
    assert shown(begun) == notes.truth(wanted.definition)
    assert len(shown(begun)) == 9


def test_a_process_with_the_old_columns_writes_nothing(notes: Stream) -> None:
    """EVO-3, TBL-14: it writes nothing."""
    old, table = notes.table(), notes.table()
    alter(table, wanted_alteration(notes, table, NOTE))
    notes.topic.send(account("r1", 15, name="new"))
    notes.ingest()
    with pytest.raises(WriterConflictError, match="columns of table accounts were changed"):
        notes.apply(old)


def test_a_name_comes_back_with_its_type_only(notes: Stream) -> None:
    """EVO-3: older files still have the dropped column."""
    name, amount = notes.table().layout.columns
    wanted = altered(notes, definition(), name)
    with pytest.raises(TableError, match="Choose another name"):
        wanted_alteration(notes, notes.table(wanted), name, replace(amount, type=DataType.STRING))
    altered(notes, wanted, name, amount)


VALUES = {
    DataType.STRING: ["", "é"],
    DataType.BYTES: [b"", b"\xff"],
    DataType.BOOL: [True, False],
    DataType.INT64: [0, -1, 2**63 - 1, -(2**63)],
    DataType.FLOAT64: [0.1, -1e300, 5e-324, float("inf"), float("-inf"), -0.0, 1e7],
    DataType.NUMERIC: [
        "0",
        "-0.000000001",
        "0.00001",
        "-0.00002",
        "123.5",
        f"-{'9' * 29}.{'9' * 9}",
    ],
    DataType.DATE: ["0001-01-01", "1969-12-31", "9999-12-31"],
    DataType.TIMESTAMP: [
        "0001-01-01T00:00:00Z",
        "1969-12-31T23:59:59.999999Z",
        "2024-02-29T12:34:56.7Z",
        "9999-12-31T23:59:59.999999Z",
    ],
    DataType.JSON: ["[1, 2]"],
}


def test_written_values_are_read_again(spark: SparkSession) -> None:
    """EVO-3: what a dropped column leaves is its value, for every type and encoding."""
    cells = []
    for type_, values in VALUES.items():
        for encoding in Encoding:
            if encoding is Encoding.BINARY and type_ in (DataType.NUMERIC, DataType.JSON):
                continue
            for value in values:
                as_text = isinstance(value, str)
                read = (
                    read_value(type_, Encoding.TEXT, value.encode())
                    if as_text and type_ is not DataType.STRING
                    else value
                )
                cells.append((type_, encoding, write_value(type_, encoding, read)))
    names = [f"v{n}" for n in range(len(cells))]
    rows = literal_rows(
        spark, [[cell for _, _, cell in cells]], ", ".join(f"{name} binary" for name in names)
    )
    row = rows.selectExpr(
        *(
            f"{written(type_, encoding, typed(type_, encoding, name))} AS {name}"
            for name, (type_, encoding, _) in zip(names, cells, strict=True)
        )
    ).first()
    assert row is not None
    for (type_, encoding, cell), again in zip(cells, row, strict=True):
        value = read_value(type_, encoding, bytes(again))
        assert not isinstance(value, Unreadable), (type_, encoding, cell, again)
        assert write_value(type_, encoding, value) == cell


def test_nothing_to_move_is_one_commit_of_properties(spark: SparkSession, tmp_path: Path) -> None:
    """EVO-3: an empty table, and one without unmapped cells, are not read."""
    stream = Stream(spark, tmp_path)
    table = stream.table()
    counted = alter(table, wanted_alteration(stream, table, *table.layout.columns, NOTE))
    assert counted == Survey(0, 0, 0, {"note": 0}, {"note": 0})
    stream.topic.send(account("a", 1, name="Ada", note="x"))
    stream.ingest()
    stream.apply(table)
    assert shown(table) == stream.truth(table.layout.definition)
