"""Apply is killed between any two of its steps, and run again; what is remembered of deleted rows
survives, and no more than that.

Whether an apply writes whole buckets or single rows is drawn, and every other one may do without
Spark: nobody may see a difference (TBL-13).
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from itertools import cycle, repeat
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from connector.config.settings import VersionRetention
from connector.errors import TableError
from connector.records.model import DataChange, DeleteFamily, Heartbeat
from connector.records.ordering import OrderBy
from connector.records.rejection import Reason
from connector.spark.apply import merge
from connector.spark.apply.apply import apply
from connector.spark.apply.statistics import BatchStatistics
from connector.spark.reader import read_table
from connector.spark.storage.files import Files
from connector.spark.storage.table import Table
from connector.state import apply_level, maintenance_schedule
from connector.state.stream_progress import Cut
from connector.tables.definition import Column, TableDefinition, Versions
from connector.tables.keys import Key, KeyForm, KeyPart
from connector.tables.values import DataType
from tests.changes import change
from tests.examples import tries
from tests.property.histories import history
from tests.spark import streams
from tests.spark.streams import (
    STREAM,
    CrashError,
    Stream,
    account,
    copied,
    crash_at,
    definition,
    rows_by_key,
    shown,
)
from tests.spark.test_cut import ANNOUNCED, S

STEPS = ("letters published", "tombstones written", "table committed")


@pytest.fixture(autouse=True)
def either_way(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = Random(f"{seed}/ways")

    def is_sparse(table: Table, seen: BatchStatistics, files: Files | None) -> bool:
        return table.has_vectors and bool(seen.buckets) and rng.random() < 0.5

    monkeypatch.setattr(sys.modules["connector.spark.apply.apply"], "is_sparse", is_sparse)
    monkeypatch.setattr(streams, "WITHOUT_SPARK", cycle((True, False)))


def delete(row: str, at: int) -> DataChange:
    return change(DeleteFamily("f"), at=at, row_key=row.encode())


def tombstones(spark: SparkSession, stream: Stream, name: str = "accounts") -> set[tuple[str, int]]:
    """Row and apply number of every entry, whether it counts or not."""
    rows = (
        spark.read.format("delta")
        .load(f"{stream.folder}/tables/{name}/tombstones")
        .select("id", "_apply_number")
        .collect()
    )
    return {(row["id"], row["_apply_number"]) for row in rows}


def nasty(name: str, **others: Any) -> TableDefinition:
    """For generated histories: bytes, some of them in columns."""
    columns = (Column("c0", "f", b"", DataType.BYTES), Column("c1", "f", b"q", DataType.BYTES))
    return definition(
        name, key=Key((KeyPart("id", DataType.BYTES),), KeyForm.ROW_KEY), columns=columns, **others
    )


def test_newest_wins_after_a_crash_at_any_step(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    """TBL-10, TBL-12, MRG-1 to MRG-9: nothing_invented, deletes_stay_deleted: generated histories,
    in batches, each apply killed first.
    """
    rng, stream = Random(seed), Stream(spark, tmp_path)
    wanted = [nasty("latest"), nasty("all", versions=Versions.ALL, keep_unmapped=False)]
    deliveries = [
        d for n in tries(150, quick=40) for d in history(rng, rows=(b"%d.1" % n, b"%d.2" % n))
    ]
    rng.shuffle(deliveries)
    for part in range(2):
        stream.topic.send(*(delivery.change for delivery in deliveries[part::2]))
        stream.ingest()
        with pytest.raises(CrashError):
            stream.apply(stream.table(wanted[part]), crash_at(rng.choice(STEPS)))
        for each in wanted:
            stream.apply(stream.table(each))
    for each in wanted:
        got, want = shown(stream.table(each)), stream.truth(each)
        assert got == want


@pytest.fixture(scope="module")
def deleted(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Stream:
    """Batch 1, applied: rows a, b and c. Batch 2, not yet: a and b are deleted, and a change of c
    does not fit. Batch 3 is to come.
    """
    stream = Stream(spark, tmp_path_factory.mktemp("deleted"))
    stream.topic.send(
        *(account(row, at, name="first", amount="1") for at, row in enumerate("abc", start=10))
    )
    stream.ingest()
    stream.apply(stream.table())
    stream.topic.send(delete("a", 20), delete("b", 21), account("c", 22, amount="much"))
    stream.ingest()
    return stream


@pytest.mark.parametrize("step", [pytest.param(STEPS[0], marks=pytest.mark.systems), *STEPS[1:]])
def test_deletes_stay_deleted_after_a_crash_at_every_step_of_apply(
    spark: SparkSession, tmp_path: Path, deleted: Stream, step: str
) -> None:
    """TBL-2, TBL-9, TBL-12, TBL-14: the same table, the same letters; a late older change finds
    what was remembered.
    """
    stream = copied(deleted, tmp_path / "copy")
    with pytest.raises(CrashError):
        stream.apply(stream.table(), crash_at(step))
    rows_before = shown(stream.table())
    again = stream.apply(stream.table())
    assert (again is None) == (step == "table committed")
    assert set(rows_before) == ({"c"} if step == "table committed" else {"a", "b", "c"})

    stream.topic.send(account("a", 15, name="late"), account("b", 30, name="new"))
    stream.ingest()
    table = stream.table()
    stream.apply(table)
    assert shown(table) == stream.truth()
    assert set(shown(table)) == {"b", "c"}
    assert {letter.reason for letter in stream.one_letter_each().values()} == {
        Reason.UNREADABLE_VALUE
    }
    assert len(stream.one_letter_each()) == 1
    assert (table.table_state().apply_number, table.table_state().letters) == (3, 1)


def test_resumable_after_a_death_while_changelog_and_table_were_made(
    spark: SparkSession, tmp_path: Path
) -> None:
    """TBL-2, TBL-12: an incomplete first commit, which Delta reads as a table, is written again."""
    stream = Stream(spark, tmp_path)
    for path in (
        stream.path,
        f"{tmp_path}/tables/accounts/data",
        f"{tmp_path}/tables/accounts/tombstones",
    ):
        log = Path(path) / "_delta_log"
        (log / "_staged_commits").mkdir(parents=True)
        (log / ".00000000000000000000.json.0c5b.tmp").write_bytes(b'{"commitInfo":')
    stream.topic.send(account("a", 10, name="Ada"), account("b", 11, name="Bob"), delete("b", 12))
    stream.ingest()
    stream.apply(stream.table())
    assert shown(stream.table()) == stream.truth()
    assert set(shown(stream.table())) == {"a"}


@pytest.mark.long
def test_tombstones_of_a_failed_attempt_do_not_count_and_are_removed(
    spark: SparkSession, tmp_path: Path, deleted: Stream
) -> None:
    """TBL-12: nothing_invented: an entry counts once a commit names its attempt; others go once
    their number is taken, not before.
    """
    stream = copied(deleted, tmp_path / "copy")
    stream.apply(stream.table())
    table = stream.table()
    before = table.table_state()
    invented = (
        spark.read.format("delta")
        .load(f"{stream.folder}/tables/accounts/tombstones")
        .selectExpr("'c' AS id", "_state", "_bucket")
    )
    for earlier in (replace(before, apply_number=before.apply_number - 1), before):
        table.add_tombstones(invented, earlier, attempt="dead")
    assert {("c", before.apply_number), ("c", before.apply_number + 1)} <= tombstones(spark, stream)

    def of_c() -> set[int]:
        return {number for row, number in tombstones(spark, stream) if row == "c"}

    stream.topic.send(account("c", 12, name="same time"))
    stream.ingest()
    stream.apply(table)
    assert shown(table) == stream.truth()
    assert "c" in shown(table)
    assert of_c() == {before.apply_number, before.apply_number + 1}
    after = table.table_state()
    table.add_tombstones(invented, after, attempt="dead")
    table.vacuum_tombstones(lambda act: act())
    assert of_c() == {after.apply_number + 1}, "another process may be about to commit it"
    assert (table.table_state().vacuumed_to, table.table_state().attempt_ids) == (
        after.apply_number,
        {},
    )

    stream.topic.send(account("a", 16, name="late"))
    stream.ingest()
    stream.apply(stream.table())
    assert shown(table) == stream.truth()
    table.vacuum_tombstones(lambda act: act())
    assert {row for row, _ in tombstones(spark, stream)} == {"a", "b"}


@pytest.mark.long
def test_a_commit_names_a_bounded_number_of_attempts(
    spark: SparkSession, tmp_path: Path, deleted: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TBL-12: deletes_stay_deleted: attempts are swept when there are many of them; what they
    remembered counts on.
    """
    monkeypatch.setattr(maintenance_schedule, "MOST_ATTEMPTS", 1)
    stream = copied(deleted, tmp_path / "copy")
    table: Table = stream.table()
    stream.apply(table)
    for at in (40, 41, 42):
        stream.topic.send(account("d", at - 30, name="late"), delete("d", at))
        stream.ingest()
        stream.apply(table)
        assert len(table.table_state().attempt_ids) <= 2
        table.compact(lambda act: act())
        assert table.table_state().attempt_ids == {}
    stream.topic.send(account("a", 17, name="late"), account("d", 17, name="late"))
    stream.ingest()
    stream.apply(table)
    assert table.table_state().vacuumed_to > 0
    assert set(shown(table)) == set(stream.truth()) == {"c"}


@pytest.mark.long
def test_columns_may_be_named_as_ours_are_named_inside(spark: SparkSession, tmp_path: Path) -> None:
    """TBL-7, TBL-8: any name but one that begins with _; and a key may be of several types, in
    order-preserving form.
    """
    names = {
        "apply": DataType.INT64,
        "attempt": DataType.STRING,
        "known": DataType.BOOL,
        "kept": DataType.STRING,
    }
    key = Key(tuple(KeyPart(name, type_) for name, type_ in names.items()), KeyForm.ORDERED)
    columns = tuple(
        Column(name, "f", name.encode(), DataType.STRING)
        for name in ("order", "entries", "x", "newest")
    )
    wanted = definition(key=key, columns=columns)
    stream = Stream(spark, tmp_path)
    for at in (10, 20):
        for number in range(4):
            row_key = key.write_key((number - 2, "a", True, ""))
            stream.topic.send(
                replace(account("-", at, order="1", x="2", elsewhere="3"), row_key=row_key)
            )
            if number % 2:
                stream.topic.send(replace(delete("-", at + 5), row_key=row_key))
        stream.ingest()
        stream.apply(stream.table(wanted))
        assert shown(stream.table(wanted)) == stream.truth(wanted)


@pytest.mark.long
def test_deletes_stay_deleted_after_their_tombstones_expired(
    spark: SparkSession, tmp_path: Path
) -> None:
    """MRG-10, MRG-11, TBL-12: what the horizon has passed leaves the graveyard, and a change that
    it would have stopped is too late.
    """
    stream = Stream(spark, tmp_path, replace(STREAM, delete_retention_s=10))
    stream.topic.send_everywhere(ANNOUNCED)
    stream.topic.send(*(account(row, 10 * S, amount="1") for row in "ab"), delete("a", 20 * S))
    stream.topic.send_everywhere(Heartbeat("p", 20 * S))
    stream.ingest()
    stream.apply(stream.table())
    assert tombstones(spark, stream) == {("a", 1)}

    for at in (100, 200):
        stream.topic.send(delete("b", at * S - 1))
        stream.topic.send_everywhere(Heartbeat("p", at * S))
        stream.ingest()
        table = stream.table()
        table.vacuum_tombstones(lambda act: act())
        stream.apply(table)
    assert tombstones(spark, stream) == {
        ("b", 2),
        ("b", 3),
    }, "the table covered a batch whose horizon lies above the deletion of a"
    assert stream.table().table_state().horizon == 190 * S + 1

    stream.topic.send(account("a", 15 * S, amount="2"), account("b", 195 * S, amount="3"))
    stream.ingest()
    stream.apply(stream.table())
    assert shown(stream.table()) == {}
    assert [letter.reason for letter in stream.letters] == [Reason.TOO_LATE]

    spark.sql(f"RESTORE TABLE delta.`{stream.folder}/tables/accounts/data` TO VERSION AS OF 1")
    stream.topic.send(account("c", 300 * S, amount="4"))
    stream.ingest()
    with pytest.raises(TableError, match="lacks deletes that the table needs"):
        stream.apply(stream.table())


@pytest.mark.long
def test_few_changes_replace_single_rows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TBL-13, TBL-18: the other rows stay in their files, unless the table is to be without
    deletion vectors.
    """
    monkeypatch.setattr(apply_level, "MIN_BYTES", 0)
    monkeypatch.setattr(sys.modules["connector.spark.apply.apply"], "is_sparse", merge.is_sparse)
    stream, without = Stream(spark, tmp_path), definition("without", deletion_vectors=False)
    stream.topic.send(*(account(f"r{n}", 10, name="first", amount="1") for n in range(9)))
    stream.ingest()
    for wanted in (definition(), without):
        stream.apply(stream.table(wanted))
    for at, changes in (
        (20, [account("r1", 20, amount="2"), account("new", 20, amount="2"), delete("r2", 20)]),
        (30, [whole("r1", 30), whole("r3", 30), whole("r3", 31)]),
        (
            40,
            [
                account("r1", 25, name="late"),
                account("r2", 40, amount="4"),
                account("r5", 40, amount="5"),
            ],
        ),
    ):
        stream.topic.send(*changes)
        stream.ingest()
        for wanted in (definition(), without):
            stream.apply(stream.table(wanted))
            assert shown(stream.table(wanted)) == stream.truth(wanted), at
    added = {
        name: [action for action in actions(tmp_path, name) if "add" in action]
        for name in ("accounts", "without")
    }
    assert any(action["add"].get("deletionVector") for action in added["accounts"])
    assert not any(action["add"].get("deletionVector") for action in added["without"])


def whole(row: str, at: int) -> DataChange:
    made = account(row, at, name="n", amount=str(at))
    return replace(made, entries=(DeleteFamily("f"), *made.entries))


def actions(folder: Path, table: str) -> list[dict[str, dict[str, object]]]:
    """What the table's newest commit did."""
    newest = max((folder / f"tables/{table}/data/_delta_log").glob("*.json"))
    return [json.loads(line) for line in newest.read_text().splitlines()]


@pytest.mark.long
def test_deletes_stay_deleted_between_ingest_times_where_numbers_decide(
    spark: SparkSession, tmp_path: Path
) -> None:
    """MRG-2, MRG-12, TBL-12, TBL-16: a newer commit with an older number is older; nothing is
    forgotten behind a change held back.
    """
    stream, wanted = (
        Stream(spark, tmp_path, replace(STREAM, delete_retention_s=60)),
        definition(order=OrderBy.SEQUENCE_NUMBER),
    )

    def ingest(watermark: int, *numbered: tuple[str, DataChange]) -> Table:
        stream.topic.send(
            *(replace(made, change_sequence_number=number) for number, made in numbered)
        )
        stream.topic.send_everywhere(Heartbeat("p", watermark * S))
        stream.ingest()
        return stream.table(wanted)

    stream.topic.send_everywhere(ANNOUNCED)
    table = ingest(
        20,
        ("10", delete("a", 10 * S)),
        ("9", account("a", 11 * S, amount="1")),
        ("1", account("b", 30 * S, amount="3")),
    )
    stream.apply(table)
    stream.clock += 100 * S
    whole = account("a", 12 * S, amount="2")
    table = ingest(20, ("F/FF", replace(whole, entries=(DeleteFamily("f"), *whole.entries))))
    assert rows_by_key(read_table(spark, str(tmp_path), "accounts").rows, wanted).keys() == {"b"}
    stream.apply(table)
    assert (shown(table), table.table_state().complete_to_batch, table.table_state().horizon) == (
        {},
        0,
        None,
    )
    table = ingest(40)
    stream.apply(table)
    assert shown(table) == stream.truth(wanted)
    assert table.table_state().horizon == 2
    assert {row for row, _ in tombstones(spark, stream)} == {"a"}
    stream.table(wanted).vacuum_tombstones(lambda act: act())
    assert tombstones(spark, stream) == set()


@pytest.mark.parametrize(
    ("without_spark", "most"), [pytest.param(False, 10, marks=pytest.mark.long), (True, 0)]
)
def test_a_small_apply_is_few_jobs_and_leaves_nothing_in_memory(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    without_spark: bool,
    most: int,
) -> None:
    """TBL-13: with Spark, the changes are looked at once, the files are those that are known, and
    the rows that were kept for the merge are released. Without Spark there is no job, also where
    the first tombstone is written.
    """
    monkeypatch.setattr(apply_level, "MIN_BYTES", 0)
    monkeypatch.setattr(sys.modules["connector.spark.apply.apply"], "is_sparse", merge.is_sparse)
    stream, context = Stream(spark, tmp_path), spark.sparkContext._jsc.sc()  # type: ignore[attr-defined]
    stream.topic.send(
        *(account(f"r{n}", 10, name="first", amount="1") for n in range(9)), delete("r8", 11)
    )
    stream.ingest()
    table = stream.table()
    stream.without_spark = repeat(without_spark)
    jobs = context.dagScheduler().numTotalJobs()
    stream.apply(table)  # there is no tombstone table yet
    assert without_spark is (context.dagScheduler().numTotalJobs() == jobs)
    for at, changes in (
        (20, [whole("r1", 20), delete("r4", 20)]),
        (30, [account("r1", 25, name="late"), account("r4", 22, amount="2")]),
    ):
        stream.topic.send(*changes)
        stream.ingest()
        jobs, stored = context.dagScheduler().numTotalJobs(), _stored(context)
        stream.apply(table)
        assert context.dagScheduler().numTotalJobs() - jobs <= most, at
        assert _stored(context) <= stored, at
        assert shown(table) == stream.truth(), at


def _stored(context: Any) -> set[str]:
    """The names of what is kept in memory."""
    return set(context.getPersistentRDDs().keys().toList().mkString(",").split(","))


def test_watermark_is_honest_a_table_does_not_go_back_to_an_older_cut(
    spark: SparkSession, tmp_path: Path
) -> None:
    """TBL-10, TBL-19: a round that waited changes nothing, and counts no letter again."""
    stream, cuts = Stream(spark, tmp_path), list[Cut]()
    for at, amount in ((10, "1"), (11, "much")):
        stream.topic.send(account("a", at, amount=amount))
        stream.topic.send_everywhere(Heartbeat("p", at))
        stream.ingest()
        cuts.append(stream.changelog().progress().cut(stream.clock, 300, None))
        stream.apply(stream.table())
    table, published = stream.table(), len(stream.letters)
    before = table.newest()
    changelog, source = stream.changelog(), table.layout.definition.source
    assert apply(table, changelog, source, cuts[0], publish=stream.publish) is None
    assert (table.newest(), len(stream.letters)) == (before, published)
    assert before[1].letters == published == 1


@pytest.mark.long
def test_an_apply_that_removes_nothing_writes_no_tombstone(
    spark: SparkSession, tmp_path: Path
) -> None:
    """TBL-12: a late change could have removed its row, and did not."""
    stream = Stream(spark, tmp_path)
    stream.topic.send(account("a", 10, name="Ada"), account("b", 11, name="Bob"), delete("b", 12))
    stream.ingest()
    stream.apply(stream.table())
    log = tmp_path / "tables/accounts/tombstones/_delta_log"
    stream.topic.send(account("a", 9, name="late", amount="1"))
    stream.ingest()
    table = stream.table()
    table.vacuum_tombstones(lambda act: act())
    commits, before = len(list(log.glob("*.json"))), table.table_state()
    stream.apply(table)
    assert shown(table) == stream.truth()
    assert len(list(log.glob("*.json"))) == commits
    assert table.table_state().attempt_ids.items() <= before.attempt_ids.items()


@pytest.mark.usefixtures("compacts_at_once")
def test_recent_changes_are_read_from_the_files_of_their_commits(
    spark: SparkSession, tmp_path: Path
) -> None:
    """TBL-4, TBL-13, ENG-10: nothing_lost: as the changelog has them, also once they were put
    together; not if that was long ago.
    """
    stream = Stream(spark, tmp_path, without_jobs=cycle((True, False)))
    for part in range(3):
        stream.topic.send(
            *(account(f"r{n}", 10 * part + n + 1) for n in range(4)),
            replace(account("x", 1), table="other"),
        )
        stream.ingest()
    changelog = stream.changelog()
    changelog.update_progress(changelog.progress())
    for after, to in ((0, 3), (1, 2), (2, 3), (3, 3)):
        recent = changelog.recent_changes("t", after=after, to=to)
        assert recent is not None
        assert 0 <= recent.count - 4 * (to - after) <= to - after
        assert sorted(recent.rows().collect()) == sorted(
            changelog.changes("t", after=after, to=to).collect()
        )
    rewritten = changelog.rewrite()
    assert rewritten is not None
    changelog.commit_rewritten(rewritten)
    stream.topic.send(account("late", 100))
    stream.ingest()
    for after in (1, 3):
        recent = stream.changelog().recent_changes("t", after=after, to=4)
        assert recent is not None
        assert sorted(recent.rows().drop("slot").collect()) == sorted(
            changelog.changes("t", after=after, to=4).drop("slot").collect()
        )
    stream.changelog(VersionRetention(file_s=0)).declare()
    assert stream.changelog().recent_changes("t", after=2, to=4) is None
    assert stream.changelog().recent_changes("t", after=3, to=4) is not None


@pytest.mark.usefixtures("compacts_at_once")
@pytest.mark.parametrize("is_longer_later", [False, True])
def test_files_that_are_gone_are_not_read_as_recent_changes(
    spark: SparkSession, tmp_path: Path, *, is_longer_later: bool
) -> None:
    """ENG-10: resumable: a stream was idle for its retention, which may be longer since, when the
    apply goes on.
    """
    stream = Stream(spark, tmp_path, without_jobs=repeat(True))
    for at in range(1, 5):
        stream.topic.send(account("a", at))
        stream.ingest()
    changelog = stream.changelog(VersionRetention(file_s=1))
    changelog.declare()
    rewritten = changelog.rewrite()
    assert rewritten is not None
    changelog.commit_rewritten(rewritten)
    time.sleep(1.5)
    assert changelog.clean().files
    if is_longer_later:
        stream.changelog(VersionRetention()).declare()
    table = stream.table()
    stream.apply(table)
    assert shown(table) == stream.truth()


@pytest.mark.parametrize("without_spark", [False, True])
def test_a_table_that_rejects_most_changes_stops_before_its_letters(
    spark: SparkSession, tmp_path: Path, *, without_spark: bool
) -> None:
    """RUN-6: nothing is published and nothing applied; the error names the commonest cause. With
    the corrected definition, or a greater ratio, the table goes on, with every letter once.
    """
    stream = Stream(spark, tmp_path, without_spark=repeat(without_spark))
    for number in range(1_000):
        amount = "1" if number % 5 < 2 else "much"
        stream.topic.send(account(f"r{number}", 10 + number, amount=amount))
    stream.topic.send_everywhere(Heartbeat("p", 5_000))
    stream.ingest()
    before = stream.table().newest()
    for _ in range(2):
        with pytest.raises(TableError) as stopped:
            stream.apply(stream.table())
        assert (stopped.value.code, stream.letters) == ("TABLE_REJECTS_CHANGES", [])
        assert "600 of the next 1000" in stopped.value.problem
        assert "UNREADABLE_VALUE: expected INT64 in" in stopped.value.cause
        assert "much" not in str(stopped.value)
        assert stream.table().newest() == before
    stream.config = replace(stream.config, max_dead_letter_ratio=0.6)
    stream.apply(stream.table())
    assert len({letter.id for letter in stream.letters}) == len(stream.letters) == 600
    assert len(shown(stream.table())) == 400
