"""A table under people and processes that do not keep to the rules, and under values that do not
fit.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connector.errors import TableError, WriterConflictError
from connector.records.model import DeleteFamily
from connector.records.ordering import OrderBy
from connector.records.rejection import Reason
from connector.spark.storage.table import Table
from connector.tables.definition import Column, TableDefinition, Versions
from connector.tables.keys import Key, KeyForm, KeyPart
from connector.tables.values import DataType, Encoding
from tests.changes import change
from tests.spark.streams import COLUMNS, Stream, account, copied, definition, shown, versions


@pytest.fixture(scope="module")
def applied(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Stream:
    """Batches 1 and 2 are applied, so that there is a graveyard; batch 3 is not."""
    stream = Stream(spark, tmp_path_factory.mktemp("applied"))
    stream.topic.send(account("a", 1, name="Ada", amount="1"), account("b", 2, name="Bob"))
    stream.ingest()
    stream.apply(stream.table())
    stream.topic.send(change(DeleteFamily("f"), at=5, row_key=b"b"))
    stream.ingest()
    stream.apply(stream.table())
    stream.topic.send(
        account("a", 7, amount="2"), account("b", 3, name="late"), account("c", 8, name="Cid")
    )
    stream.ingest()
    return stream


@pytest.fixture
def stream(applied: Stream, tmp_path: Path) -> Stream:
    return copied(applied, tmp_path / "copy")


@pytest.mark.parametrize(
    "step", [pytest.param("letters published", marks=pytest.mark.long), "tombstones written"]
)
def test_a_second_writer_changes_nothing(stream: Stream, step: str) -> None:
    """TBL-14, TBL-12: two apply at once; the later one is refused, and what it remembered does not
    count.
    """
    first, second = stream.table(), stream.table()

    def overtaken(reached: str) -> None:
        if reached == step:
            stream.apply(first)

    with pytest.raises(WriterConflictError, match=r"Another pro(cess|gram)"):
        stream.apply(second, overtaken)
    assert shown(first) == stream.truth()
    assert first.table_state().apply_number == 3
    assert stream.apply(stream.table()) is None


@pytest.mark.systems
def test_a_commit_of_another_program_is_noticed_and_can_be_restored(
    spark: SparkSession, stream: Stream
) -> None:
    """TBL-14, RUN-3: restoring our last version repairs it. One before later applies does not."""
    path = f"{stream.folder}/tables/accounts/data"
    table, ours = stream.table(), versions(spark, path)
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 'a'")
    with pytest.raises(TableError, match=r"DELETE.*RESTORE"):
        stream.apply(table)
    with pytest.raises(TableError, match=r"DELETE.*RESTORE"):
        stream.table()
    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {ours}")
    table = stream.table()
    stream.apply(table)
    assert shown(table) == stream.truth()

    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {ours}")
    good = versions(spark, path) - 1
    with pytest.raises(TableError, match=rf"{good + 1}, RESTORE\).*VERSION AS OF {good}\)"):
        stream.apply(stream.table())
    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {good}")
    stream.topic.send(account("z", 90, name="z"))
    stream.ingest()
    stream.apply(stream.table())
    assert shown(stream.table()) == stream.truth()


def test_deletes_stay_deleted_or_it_is_an_error(spark: SparkSession, stream: Stream) -> None:
    """TBL-12: other tombstones, or none, are noticed before a late change restores a row."""
    tombstones = f"{stream.folder}/tables/accounts/tombstones"
    spark.sql(f"DELETE FROM delta.`{tombstones}`")
    with pytest.raises(TableError, match=r"tombstone.*DELETE"):
        stream.apply(stream.table())
    shutil.rmtree(tombstones)
    with pytest.raises(TableError, match=r"tombstone.*is missing"):
        stream.apply(stream.table())
    assert set(shown(stream.table())) == {"a"}


def test_tables_of_other_programs_are_not_changed(spark: SparkSession, tmp_path: Path) -> None:
    """TBL-8: a folder of other files, a table of another program."""
    (tmp_path / "accounts" / "data").mkdir(parents=True)
    (tmp_path / "accounts" / "data" / "notes.txt").write_text("mine")
    spark.range(3).write.format("delta").save(f"{tmp_path}/numbers/data")
    for name in ("accounts", "numbers"):
        with pytest.raises(TableError):
            Table(spark, f"{tmp_path}/{name}", definition(name))
    assert (tmp_path / "accounts" / "data" / "notes.txt").read_text() == "mine"


BINARY_AMOUNT = Column("amount", "f", b"amount", DataType.INT64, Encoding.BINARY)
CHANGED = {
    "key": definition(key=Key((KeyPart("id", DataType.BYTES),), KeyForm.ROW_KEY)),
    "key name": definition(key=Key((KeyPart("row", DataType.STRING),), KeyForm.ROW_KEY)),
    "source": definition(source="other"),
    "stream": definition(stream="other"),
    "a column's cell": definition(columns=(replace(COLUMNS[0], qualifier=b"other"), COLUMNS[1])),
    "a column's type": definition(columns=(COLUMNS[0], replace(COLUMNS[1], type=DataType.STRING))),
    "a column's encoding": definition(columns=(COLUMNS[0], BINARY_AMOUNT)),
    "unmapped cells": definition(keep_unmapped=False),
    "order": definition(order=OrderBy.SEQUENCE_NUMBER),
    "versions": definition(versions=Versions.ALL),
}


@pytest.mark.parametrize("changed", CHANGED.values(), ids=CHANGED.keys())
def test_a_changed_definition_is_refused(applied: Stream, changed: TableDefinition) -> None:
    """TBL-8: the rows that are there were made under the old one."""
    with pytest.raises(TableError, match="accounts"):
        applied.table(changed)


def test_another_staleness_is_no_other_table(applied: Stream) -> None:
    """TBL-8."""
    assert applied.table(definition(max_staleness_s=60)).table_state().apply_number == 2


@pytest.mark.long
def test_nothing_is_applied_from_another_changelog(
    spark: SparkSession, stream: Stream, applied: Stream
) -> None:
    """TBL-5, TBL-10: created again, removed, or restored to an older version: batch numbers would
    mean other changes. By default, `tests/unit/services/test_other_changelog.py` shows it.
    """
    moved = copied(applied, stream.folder / "moved")
    spark.sql(f"RESTORE TABLE delta.`{moved.path}` TO VERSION AS OF 1")
    with pytest.raises(TableError, match="restored to batch 1"):
        moved.apply(moved.table())
    shutil.rmtree(stream.path)
    with pytest.raises(TableError, match="changelog"):
        stream.apply(stream.table())
    stream.topic.read = {}
    stream.ingest()
    with pytest.raises(TableError, match="replaced by another one"):
        stream.apply(stream.table())
    assert set(shown(stream.table())) == {"a"}


@pytest.mark.long
def test_poison_is_contained_in_the_table_that_cannot_hold_it(
    spark: SparkSession, stream: Stream
) -> None:
    """TBL-9, MRG-2, DLQ-1: a value or key that does not fit, or no number, makes the change, whole,
    a letter of that table alone. By default, `test_apply_steps.py` shows it.
    """
    accounts, names = stream.table(), stream.table(definition("names", columns=COLUMNS[:1]))
    numbers = definition(
        "numbers", key=Key((KeyPart("n", DataType.INT64),), KeyForm.DELIMITED), columns=COLUMNS[:1]
    )
    numbered = definition("numbered", order=OrderBy.SEQUENCE_NUMBER, columns=COLUMNS[:1])
    stream.topic.send(
        account("a", 9, name="Eve", amount="much"),
        replace(account("7", 10, name="Seven"), change_sequence_number="7"),
    )
    stream.topic.send(change(at=11, row_key=b"x", table="elsewhere"))
    stream.ingest()
    for table in (accounts, names, stream.table(numbers), stream.table(numbered)):
        stream.apply(table)
    assert shown(accounts)["a"]["name"] == "Ada"
    assert shown(names)["a"]["name"] == "Eve"
    for table in (accounts, names):
        assert shown(table) == stream.truth(table.layout.definition)
    assert shown(stream.table(numbers)) == stream.truth(numbers) != {}
    assert shown(stream.table(numbered)).keys() == {"7"}
    letters = stream.one_letter_each()
    reasons = {
        "accounts": Reason.UNREADABLE_VALUE,
        "numbers": Reason.UNREADABLE_VALUE,
        "numbered": Reason.MISSING_SEQUENCE_NUMBER,
    }
    assert {id_.rpartition("-")[2]: letter.reason for id_, letter in letters.items()} == reasons
    [letter] = [letter for letter in letters.values() if letter.table == "accounts"]
    assert "amount" in letter.detail
    assert "much" in letter.detail
    number, offset = letter.position.kafka_partition, letter.position.offset
    assert (letter.key, letter.value) == stream.topic.records[number][offset]
