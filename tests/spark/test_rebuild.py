"""A table is made anew from the changelog beside the old one, and takes its place: the same rows,
or the old ones until it is whole.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from connector.dead_letters.ledger import Ledger
from connector.errors import TableError, WriterConflictError
from connector.records.model import DeleteCells, Heartbeat, SetCell, Truncate
from connector.records.rejection import Position, Reason
from connector.spark.apply.rebuild import Rebuilt, covered_letters, rebuild
from connector.spark.apply.select import NO_RULES, LetterRules
from connector.spark.failures import applying
from connector.spark.reader import read_table
from connector.spark.storage.delta_log import DeltaLog
from connector.tables.definition import Column, TableDefinition, Versions
from connector.tables.stored_definition import ColumnIds, from_properties
from connector.tables.values import DataType
from tests.changes import change, put
from tests.examples import tries
from tests.property.histories import history
from tests.spark.streams import (
    COLUMNS,
    STREAM,
    CrashError,
    Stream,
    Topic,
    account,
    copied,
    crash_at,
    definition,
    rows_by_key,
    shown,
)
from tests.spark.test_apply_steps import STEPS, delete, nasty
from tests.spark.test_cut import ANNOUNCED, S


def rebuilt(
    stream: Stream,
    wanted: TableDefinition | None = None,
    *,
    on_step: Callable[[str], None] = lambda step: None,
    discarded: frozenset[str] = frozenset(),
    published: Callable[[str, int], Mapping[str, str] | None] = NO_RULES.published,
) -> Rebuilt:
    wanted, changelog = wanted or definition(), stream.changelog()
    cut = changelog.progress().cut(stream.clock, stream.config.stall_after_s)
    path = f"{stream.folder}/tables/{wanted.name}"
    known = (stream.spark, path, wanted, changelog, cut)
    rules = LetterRules(lambda: discarded, published=published)
    return rebuild(*known, publish=stream.publish, on_step=on_step, rules=rules)


@pytest.fixture(scope="module")
def grown(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Stream:
    """Two batches, applied: a row that stays, one that was deleted, and a letter. A third, not yet,
    with a late change of each.
    """
    stream = Stream(spark, tmp_path_factory.mktemp("grown"))
    stream.topic.send(
        account("a", 10, name="Ada", more="1"),
        account("b", 10, name="Bob"),
        account("c", 10, amount="3"),
    )
    stream.ingest()
    stream.apply(stream.table())
    stream.topic.send(delete("b", 20), account("c", 21, amount="much"))
    stream.ingest()
    stream.apply(stream.table())
    stream.topic.send(
        account("b", 15, name="late"), account("a", 5, amount="1"), account("d", 30, name="Dan")
    )
    stream.topic.send(account("d", 31, amount="x"))
    stream.ingest()
    return stream


@pytest.fixture
def stream(grown: Stream, tmp_path: Path) -> Stream:
    return copied(grown, tmp_path / "copy")


@pytest.mark.long
def test_a_rebuild_replaces_a_table_whose_data_files_are_gone(stream: Stream) -> None:
    """nothing_lost, TBL-21: the error of the apply names a file and the table to rebuild. By
    default, `test_a_missing_file_of_the_changelog_is_named` shows it.
    """
    gone = list(Path(stream.folder).glob("tables/accounts/data/_bucket=*/*.parquet"))
    for file in gone:
        file.unlink()
    with pytest.raises(TableError) as caught, applying("accounts"):
        stream.apply(stream.table())
    assert (caught.value.code, caught.value.fields["table"]) == ("TABLE_DAMAGED", "accounts")
    assert any(file.name in caught.value.cause for file in gone)

    rebuilt(stream)
    assert shown(stream.table()) == stream.truth()


def test_a_missing_file_of_the_changelog_is_named(stream: Stream) -> None:
    """nothing_lost: no rebuild is offered where the records of the changelog are missing."""
    for file in Path(stream.folder).glob("streams/*/changelog/slot=*/*.parquet"):
        file.unlink()
    missing = pytest.raises(TableError, match=r"A data file of .*/changelog is .*does not exist")
    with missing as caught, applying("accounts"):
        stream.apply(stream.table())
    assert "table" not in caught.value.fields


NEW_COLUMNS = (
    Column("c1", "f", b"q", DataType.BYTES),
    Column("number", "f", b"", DataType.NUMERIC),
    Column("other", "g", b"q", DataType.NUMERIC),
)


@pytest.mark.systems
def test_a_rebuilt_table_equals_the_old_one_and_columns_come_and_go(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    """TBL-21, TBL-8, MRG-3: generated histories: row for row, and in what is remembered; kept cells
    move into new columns, misfits stay where they are, and what comes behind is judged.
    """
    rng, stream, was = Random(seed), Stream(spark, tmp_path), nasty("all", keep_unmapped=True)
    wanted = replace(was, columns=NEW_COLUMNS)
    deliveries = [
        d for n in tries(80, quick=30) for d in history(rng, rows=(b"%d.1" % n, b"%d.2" % n))
    ]
    rng.shuffle(deliveries)
    for part in range(2):
        stream.topic.send(*(delivery.change for delivery in deliveries[part::3]))
        stream.ingest()
        stream.apply(stream.table(was))
    before = shown(stream.table(was))
    made = rebuilt(stream, was)
    assert shown(stream.table(was)) == before
    assert stream.table(was).table_state() == made.table_state
    assert (made.table_state.merged, made.table_state.apply_number) == (
        made.before.merged,
        made.before.apply_number + 1,
    )

    made, rows = rebuilt(stream, wanted), shown(stream.table(wanted))
    assert rows == stream.truth(wanted, judged_after=2)
    assert made.misfits == sum(
        name in ("f:", "g:q") for row in rows.values() for name in row["_unmapped"]
    )  # type: ignore[attr-defined]
    assert made.misfits > 0
    assert stream.letters == []

    stream.topic.send(*(delivery.change for delivery in deliveries[2::3]))
    stream.ingest()
    truth = stream.truth(wanted, judged_after=2)
    assert rows_by_key(read_table(spark, str(tmp_path), "all").rows, wanted) == truth
    stream.apply(stream.table(wanted))
    letters = len(stream.letters)
    assert letters > 0
    assert rebuilt(stream, wanted).letters == letters == len(stream.letters), (
        "none is published again"
    )
    assert shown(stream.table(wanted)) == truth


@pytest.mark.systems
@pytest.mark.parametrize(
    "step",
    [STEPS[1], *(pytest.param(step, marks=pytest.mark.long) for step in (STEPS[0], STEPS[2]))],
)
def test_a_rebuild_may_die_at_every_step(stream: Stream, seed: int, step: str) -> None:
    """TBL-21, TBL-12: deletes_stay_deleted: the old table is as it was, or the new one is whole;
    either goes on, rebuilt again or not.
    """
    before = shown(stream.table())
    with pytest.raises(CrashError):
        rebuilt(stream, on_step=crash_at(step))
    is_swapped = step == "table committed"
    assert shown(stream.table()) == (stream.truth() if is_swapped else before)

    if Random(seed).random() < 0.5:
        rebuilt(stream)
    stream.topic.send(account("b", 16, name="later"), account("d", 32, amount="4"))
    stream.ingest()
    table = stream.table()
    stream.apply(table)
    assert shown(table) == stream.truth()
    assert set(shown(table)) == {"a", "c", "d"}
    assert {letter.reason for letter in stream.one_letter_each().values()} == {
        Reason.UNREADABLE_VALUE
    }
    assert len(stream.one_letter_each()) == table.table_state().letters == 2


def test_an_apply_during_a_rebuild_is_noticed(stream: Stream) -> None:
    """TBL-14: the first one continues, the other is refused, in either order; nothing is
    interleaved.
    """
    running = stream.table()

    def at_the_last_step(intrude: Callable[[], object]) -> Callable[[str], None]:
        return lambda step: intrude() if step == "tombstones written" else None  # type: ignore[return-value]

    with pytest.raises(WriterConflictError, match="during the rebuild"):
        rebuilt(stream, on_step=at_the_last_step(lambda: stream.apply(running)))
    stream.topic.send(delete("a", 40), account("e", 40, name="Eve"))
    stream.ingest()
    with pytest.raises(WriterConflictError):
        stream.apply(running, at_the_last_step(lambda: rebuilt(stream)))
    with pytest.raises(WriterConflictError, match="was rebuilt in the meantime"):
        stream.apply(running)
    assert shown(stream.table()) == stream.truth()


@pytest.mark.long
def test_readers_never_see_a_wrong_row(spark: SparkSession, stream: Stream) -> None:
    """TBL-21, TBL-17: who opened the old table reads it to the end; its versions stay, each with
    what it remembers.
    """
    table = stream.table()
    version, _ = table.newest()
    before = shown(table)
    old, path = table.rows(version), f"{stream.folder}/tables/accounts/data"
    during = []
    rebuilt(stream, on_step=lambda step: during.append((step, shown(stream.table()))))
    assert during == [(step, before) for step in STEPS[:2]] + [(STEPS[2], stream.truth())]
    assert {row["id"] for row in old.collect()} == set(before)
    assert {
        row["id"]
        for row in spark.read.format("delta").option("versionAsOf", version).load(path).collect()
    } == set(before)


@pytest.mark.long
def test_a_damaged_table_can_be_rebuilt(spark: SparkSession, stream: Stream) -> None:
    """TBL-14, TBL-12: a rebuild removes the changes of another program to the table and its
    tombstones.
    """
    path = f"{stream.folder}/tables/accounts"
    spark.sql(f"RESTORE TABLE delta.`{path}/data` TO VERSION AS OF 1")
    spark.sql(f"DELETE FROM delta.`{path}/data` WHERE id = 'a'")
    shutil.rmtree(f"{path}/tombstones")
    with pytest.raises(TableError):
        stream.table()
    rebuilt(stream)
    stream.topic.send(account("b", 17, name="late"))
    stream.ingest()
    stream.apply(stream.table())
    assert shown(stream.table()) == stream.truth()


@pytest.mark.long
def test_the_new_table_is_not_below_the_old_one(spark: SparkSession, tmp_path: Path) -> None:
    """TBL-21, TBL-10, TBL-11: at its cut, held back what is above; but nothing goes that the old
    one showed past the watermark.
    """
    stream = Stream(spark, tmp_path, STREAM)
    stream.topic.send_everywhere(ANNOUNCED)
    stream.topic.send(account("a", 10 * S, amount="1"))
    stream.topic.send_everywhere(Heartbeat("p", 10 * S))
    stream.topic.send(account("a", 20 * S, amount="2"))
    stream.ingest()
    stream.apply(stream.table())
    made = rebuilt(stream)
    assert shown(stream.table())["a"]["amount"] == 1
    assert (made.table_state.is_consistent_cut, made.table_state.apply_watermark) == (
        True,
        10 * S + 1,
    )

    stream.apply(stream.table(), now=stream.clock + STREAM.stall_after_s * S)
    made = rebuilt(stream)
    assert shown(stream.table())["a"]["amount"] == 2
    assert not made.table_state.is_consistent_cut


def test_a_table_that_cannot_be_rebuilt_is_not_changed(spark: SparkSession, stream: Stream) -> None:
    """TBL-8, TBL-21: another key, another changelog, a table of another program."""
    for wanted in (definition(source="other"), definition("nowhere")):
        with pytest.raises(TableError):
            rebuilt(stream, wanted)
    before = shown(stream.table())
    shutil.rmtree(stream.path)
    stream.topic.read = {}
    stream.ingest()
    with pytest.raises(TableError, match="replaced by another one"):
        rebuilt(stream)
    assert shown(stream.table()) == before


def test_letters_are_covered_if_the_new_table_has_their_changes(
    spark: SparkSession, tmp_path: Path
) -> None:
    """RUN-6: not those that it rejects again, that wait for the watermark, or that the changelog
    does not have. A change that a truncation deletes is not rejected.
    """
    stream = Stream(spark, tmp_path, STREAM)
    wrong_name = SetCell("f", b"name", b"\xff", 0)
    stream.topic.send_everywhere(ANNOUNCED)
    stream.topic.send(
        change(wrong_name, at=5 * S, row_key=b"a"),
        account("b", 10 * S, amount="much"),
        change(wrong_name, at=11 * S, row_key=b"c"),
        account("d", 30 * S, amount="later"),
        account("e", 11 * S, amount="1"),
    )
    stream.topic.send_everywhere(Heartbeat("p", 20 * S))
    stream.ingest()
    stream.apply(stream.table(), now=stream.clock + STREAM.stall_after_s * S)
    letters = {letter.key: letter.position for letter in stream.letters}
    assert letters.keys() == {b"a", b"b", b"c", b"d"}
    stream.topic.send_everywhere(Truncate("p", "t", 8 * S), Heartbeat("p", 21 * S))
    stream.ingest()
    stream.apply(stream.table())

    lost = [replace(letters[b"b"], topic_id="other"), replace(letters[b"b"], offset=99)]

    def covered(made: Rebuilt) -> set[Position]:
        return set(covered_letters(stream.changelog(), made, [*letters.values(), *lost]))

    assert covered(rebuilt(stream)) == {letters[b"a"]}
    wanted = definition(columns=COLUMNS[:1], keep_unmapped=True)
    made = rebuilt(stream, wanted)
    assert covered(made) == {letters[b"a"], letters[b"b"]}
    assert (made.table_state.letters, [*made.table_state.covered_by.values()]) == (4, [2, 3])
    assert len(stream.one_letter_each()) == 4
    stream.topic.send_everywhere(Heartbeat("p", 40 * S))
    stream.ingest()
    assert covered(rebuilt(stream, wanted)) == {letters[key] for key in (b"a", b"b", b"d")}


def test_a_rebuild_counts_the_dead_letters_of_other_versions(
    spark: SparkSession, tmp_path: Path
) -> None:
    """RUN-6: a letter that the old table does not know stays counted. One that exists is not
    published again, and one that neither the topic nor the ledger has is.
    """
    topic_id, ledger = "t" * 22, Ledger()  # as long as those of Kafka
    stream = Stream(spark, tmp_path, topic=Topic(topic_id=topic_id))
    stream.topic.send(account("a", 5, amount="much"), account("b", 6, amount="more"))
    stream.ingest()
    stream.apply(stream.table())
    first, second = (letter.id for letter in stream.letters)
    topic = [first, f"{topic_id}-0-99-accounts"]

    def published(table: str, above: int) -> Mapping[str, str]:
        assert (table, above) == ("accounts", -1)
        return ledger.published_of(topic_id, table, topic)

    made = rebuilt(stream, published=published)
    assert [letter.id for letter in stream.letters] == [first, second, second]
    assert made.table_state.letters == 3
    assert [*made.table_state.covered_by.values()] == [1]


@pytest.mark.long
def test_a_value_that_a_new_column_cannot_hold_counts_in_a_table_with_all_versions(
    spark: SparkSession, tmp_path: Path
) -> None:
    """newest_wins, TBL-8, TBL-12: it makes no row, and hides what is older, or has a smaller cell
    timestamp; until it is deleted.
    """
    stream = Stream(spark, tmp_path, STREAM)
    old = definition(versions=Versions.ALL, keep_unmapped=False, columns=COLUMNS[:1])
    new = replace(old, columns=COLUMNS[:2])
    stream.topic.send(
        *(
            change(put("abc", qualifier=b"amount", cell_timestamp=5), at=100, row_key=row)
            for row in (b"a", b"b")
        )
    )
    stream.topic.send(account("c", 100, name="c"))
    stream.ingest()
    stream.apply(stream.table(old))
    cut = stream.changelog().progress().cut(stream.clock, STREAM.stall_after_s)
    rebuild(
        spark, f"{tmp_path}/tables/{old.name}", new, stream.changelog(), cut, publish=stream.publish
    )
    stream.topic.send(change(put("7", qualifier=b"amount", cell_timestamp=5), at=50, row_key=b"a"))
    stream.topic.send(change(put("7", qualifier=b"amount", cell_timestamp=1), at=200, row_key=b"b"))
    stream.ingest()
    stream.apply(stream.table(new))
    assert shown(stream.table(new)) == stream.truth(new, judged_after=1)
    stream.topic.send(change(DeleteCells("f", b"amount", 5, 6), at=300, row_key=b"b"))
    stream.ingest()
    stream.apply(stream.table(new))
    assert shown(stream.table(new)) == stream.truth(new, judged_after=1)
    assert shown(stream.table(new))["b"]["amount"] == 7


@pytest.mark.long
def test_columns_of_a_table_that_nothing_was_ingested_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    """TBL-8: there is no row to rebuild, but there are columns; their ids are never used again."""
    stream = Stream(spark, tmp_path)
    stream.table()
    rebuilt(stream, definition(columns=COLUMNS[:1]))
    rebuilt(stream)
    assert from_properties(DeltaLog(spark, f"{tmp_path}/tables/accounts/data").properties())[
        1
    ] == ColumnIds({"name": 0, "amount": 2}, 3, families={"f": 0}, version=3)
