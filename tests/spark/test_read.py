"""Reads: as the table stands where that is fresh enough, else merged with everything that was
ingested; snapshots at one cut.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from connector.config.settings import ConnectorConfig, KafkaConfig
from connector.errors import StaleTableError, TableError, WriterConflictError
from connector.lake.jobs import History
from connector.lake.overrides import Overrides
from connector.records.model import DataChange, DeleteFamily, Heartbeat, Truncate
from connector.records.ordering import OrderBy
from connector.spark.apply import merge
from connector.spark.reader import SparkRead, plain_rows, read_snapshot, read_table
from connector.spark.status_view import register_status_view
from connector.spark.storage.changelog_reader import ChangelogReader
from connector.state.jobs import CutRecord, Job, JobKind
from connector.state.overrides import Override
from connector.state.stream_progress import Progress
from connector.tables.definition import Column, TableDefinition, Versions
from connector.tables.keys import Key, KeyForm, KeyPart
from connector.tables.values import DataType
from tests.changes import change, put
from tests.property.histories import COLUMNS, history, plain_entries
from tests.spark.streams import STREAM, CrashError, Stream, account, definition, rows_by_key, shown
from tests.spark.test_apply_steps import delete
from tests.spark.test_cut import ANNOUNCED

read_service = import_module("connector.services.read")
S = 1_000_000
MINUTE = 60 * S


class Clock(Stream):
    """A stream whose clock stands still unless it is set."""

    def now(self) -> int:
        return self.clock


def test_staleness_is_bounded_as_in_the_worked_example(spark: SparkSession, tmp_path: Path) -> None:
    """TBL-16, TBL-20: apply at 20:00, bound 10 minutes: at 20:05 the state of 20:00, at 20:15
    everything up to 20:15.
    """
    stream = Clock(spark, tmp_path)
    at_20_00 = stream.clock
    stream.topic.send(account("a", 1, amount="1"))
    stream.ingest()
    stream.apply(stream.table(definition(max_staleness_s=600)))

    def read(minutes: float, **others: object) -> SparkRead:
        return read_table(
            spark, str(tmp_path), "accounts", now=at_20_00 + int(minutes * MINUTE), **others
        )  # type: ignore[arg-type]

    stream.clock = at_20_00 + 4 * MINUTE
    stream.topic.send(account("a", 2, amount="2"), account("b", 2, amount="2"))
    stream.ingest()
    fresh = read(5)
    assert (set(rows_by_key(fresh.rows)), fresh.as_of, fresh.changes) == ({"a"}, at_20_00, None)
    assert read(10).changes is None, "exactly at the bound is fresh enough"
    assert read(5, max_staleness_s=0).changes == 2, "no bound: everything"

    overrides = Overrides(str(tmp_path))
    overrides.set(Override("max_staleness_s", "accounts", 60, 1, "me"))
    assert read(5).changes == 2, "an operator's bound outranks the declared one"
    overrides.set(Override("max_staleness_s", "accounts", None, 2, "me"))
    assert read(5).changes is None, "until it is unset"

    merged = read(10.001)
    assert rows_by_key(merged.rows) == stream.truth(), "the bound has passed"
    assert (merged.as_of, merged.changes, merged.to_batch) == (at_20_00 + 4 * MINUTE, 2, 2)
    assert set(shown(stream.table(definition(max_staleness_s=600)))) == {"a"}, (
        "a runtime merge moves nothing"
    )

    with pytest.raises(StaleTableError, match=r"0 s old, .* the bound is 600 s") as error:
        read(15)
    assert error.value.as_of == at_20_00 + 4 * MINUTE
    assert rows_by_key(read(15, allow_stale=True).rows) == stream.truth()

    stream.table(definition(max_staleness_s=300))
    assert read(5.001).changes == 2, "the bound that the configuration declares today"
    stream.table(definition(max_staleness_s=600))

    stream.clock = at_20_00 + 15 * MINUTE
    stream.process().refresh()
    again = read(15)
    assert (rows_by_key(again.rows), again.as_of) == (stream.truth(), at_20_00 + 15 * MINUTE)

    stream.clock = at_20_00 + 30 * MINUTE
    stream.topic.send(account("c", 3, amount="3"))
    stream.process().refresh()
    with pytest.raises(StaleTableError):
        read(30)


@pytest.mark.long
def test_a_runtime_merge_is_a_job_of_the_history(spark: SparkSession, tmp_path: Path) -> None:
    """JOB-1, TBL-19: what `read_table` did until it returned; a read of the table as it is is no
    job. By default, `tests/unit/state/test_jobs.py` shows it.
    """
    stream, history = Clock(spark, tmp_path), History(str(tmp_path))
    stream.topic.send(account("a", 1, amount="1"))
    stream.ingest()
    stream.apply(stream.table())

    def read(**others: object) -> SparkRead:
        return read_table(spark, str(tmp_path), "accounts", now=stream.clock, **others)  # type: ignore[arg-type]

    assert read().changes is None
    assert history.jobs("accounts") == []
    stream.topic.send(account("a", 2, amount="2"), account("b", 2, amount="2"))
    stream.ingest()
    assert read().changes == 2
    (job,) = history.jobs("accounts")
    assert (job.kind, job.from_batch, job.to_batch, job.changes, job.error) == (
        JobKind.RUNTIME_MERGE,
        1,
        2,
        2,
        "",
    )
    assert (job.started_at, job.ended_at > job.started_at) == (stream.clock, True)

    heard: list[Job] = []
    read(add_job=heard.append)
    assert [replace(one, ended_at=job.ended_at) for one in heard] == [job], (
        "in place of the history"
    )

    shutil.rmtree(tmp_path / "_connector/jobs")
    (tmp_path / "_connector/jobs").write_text("no folder")
    assert read().changes == 2, "a warehouse that cannot be written can be read"


ANYTHING = definition(
    "anything",
    # Names that a merge might want for itself.
    key=Key((KeyPart("changes", DataType.BYTES),), KeyForm.ROW_KEY),
    columns=(
        Column("count", "f", b"", DataType.BYTES),
        Column("highest", "g", b"q", DataType.BYTES),
    ),
)


def whole(row: str, at: int, amount: str) -> DataChange:
    made = account(row, at, amount=amount, name="n")
    return replace(made, entries=(DeleteFamily("f"), *made.entries))


def generated(rng: Random) -> list[DataChange]:
    return [
        delivery.change
        for n in range(60)
        for delivery in history(rng, rows=(b"%d.1" % n, b"%d.2" % n))
    ]


OF_GENERATED = {
    "anything": ANYTHING,
    "anything, all versions by number": replace(
        ANYTHING, order=OrderBy.SEQUENCE_NUMBER, versions=Versions.ALL
    ),
}


PLAIN = "plain, newer, two families and key columns"
OF_PLAIN = definition(
    "plain",
    key=Key(
        (KeyPart("rows", DataType.INT64), KeyPart("of_two", DataType.INT64)), KeyForm.DELIMITED, "."
    ),
    columns=COLUMNS,
    keep_unmapped=False,
)


def plain(rng: Random, later: int) -> list[DataChange]:
    """Generated changes of which each entry sets another column or deletes another family; some or
    all cover whole rows.
    """
    whole = rng.choice((0.2, 1))
    simplified = (
        (made, plain_entries(made, whole=rng.random() < whole)) for made in generated(rng)
    )
    return [
        replace(made, entries=entries, commit_timestamp=made.commit_timestamp + later)
        for made, entries in simplified
        if entries
    ]


ON_TOP = ["whole rows, newer", "partial, newer", PLAIN]
KINDS = [
    "late, with deletes",
    *(pytest.param(kind, marks=pytest.mark.long) for kind in (*ON_TOP, *OF_GENERATED)),
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_runtime_merge_shows_what_an_apply_would_leave(
    spark: SparkSession, tmp_path: Path, seed: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TBL-16: newest_wins, deletes_stay_deleted: each short way of the merge, and the long one,
    against the definition.
    """
    rng, stream = Random(seed), Stream(spark, tmp_path)
    wanted: TableDefinition = OF_PLAIN if kind == PLAIN else OF_GENERATED.get(kind, definition())
    rows = [f"r{n}" for n in range(12)]
    before = [whole(row, 100 + n, "1") for n, row in enumerate(rows)]
    before += [change(DeleteFamily("f"), at=200, row_key=row.encode()) for row in rows[:4]]
    after = {
        "whole rows, newer": [
            whole(row, 300 + rng.randrange(9), f"{rng.randrange(9)}")
            for row in [*rows[2:6], "x", "x"]
        ],
        "partial, newer": [
            *(account(row, 300, amount="7") for row in [*rows[2:6], "x"]),
            account("r5", 301, name="later"),
            *(change(DeleteFamily("f"), at=302, row_key=row) for row in (b"r6", b"r7", b"y")),
            account("r7", 303, amount="9"),
        ],
        "late, with deletes": [
            *(account(row, rng.randrange(90, 310), amount="8") for row in rows),
            *(
                change(DeleteFamily("f"), at=rng.randrange(90, 310), row_key=row.encode())
                for row in rows[6:9]
            ),
        ],
    }.get(kind, [])
    if kind == PLAIN:
        before, after = plain(rng, later=0), plain(rng, later=100)
    elif kind in OF_GENERATED:
        before, after = generated(rng), generated(rng)
    stream.topic.send(*before)
    stream.ingest()
    table = stream.table(wanted)
    stream.apply(table)
    stream.topic.send(*after)
    stream.ingest()
    monkeypatch.setattr(merge, "IN_ONE_TASK", 0 if kind == "partial, newer" else merge.IN_ONE_TASK)
    merged_on_read, merged = merge.merged_on_read, []
    monkeypatch.setattr(
        merge,
        "merged_on_read",
        lambda *args, **others: merged.append(kind) or merged_on_read(*args, **others),
    )
    reading = read_table(spark, str(tmp_path), wanted.name)
    assert reading.changes is not None
    assert bool(merged) == (kind in ON_TOP), "each kind tries another way"
    assert rows_by_key(reading.rows, wanted) == stream.truth(wanted)
    stream.apply(table)
    assert shown(table) == stream.truth(wanted)
    standing = read_table(spark, str(tmp_path), wanted.name)
    assert standing.changes is None, "nothing is missing: the table is shown as it stands"


@pytest.mark.long
def test_changes_of_which_a_table_keeps_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """TBL-7, TBL-16: they are read, and applied, as others are; here there is not even a register
    for them. By default, `test_a_runtime_merge_shows_what_an_apply_would_leave` shows it.
    """
    stream, wanted = Stream(spark, tmp_path), definition(versions=Versions.ALL, keep_unmapped=False)
    table = stream.table(wanted)
    stream.topic.send(account("a", 1, unmapped="x"))
    stream.ingest()
    reading = read_table(spark, str(tmp_path), wanted.name)
    assert (reading.rows.count(), reading.changes) == (0, 1)
    stream.apply(table)
    assert shown(table) == {}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("versions", Versions)
@pytest.mark.long
def test_a_row_of_many_cells_is_looked_at_once(
    spark: SparkSession, tmp_path: Path, versions: Versions
) -> None:
    """TBL-13: 400 cells of one row, versions of a column or not mapped to any, are merged in
    seconds, not each with each.
    """
    stream, wanted = Stream(spark, tmp_path), definition(versions=versions)
    stream.topic.send(account("z", 1, name="z"))
    stream.ingest()
    stream.apply(stream.table(wanted))
    cells = (
        put("v", qualifier=b"name" if versions is Versions.ALL else b"u%d" % at, cell_timestamp=at)
        for at in range(1, 401)
    )
    stream.topic.send(change(*cells, at=10, row_key=b"a"))
    stream.ingest()
    assert rows_by_key(read_table(spark, str(tmp_path), wanted.name).rows, wanted) == stream.truth(
        wanted
    )
    stream.apply(stream.table(wanted))
    assert shown(stream.table(wanted)) == stream.truth(wanted)


@pytest.mark.systems
@pytest.mark.parametrize("many", [pytest.param(merge.MANY_CHANGES, marks=pytest.mark.long), 0])
def test_batches_that_are_deleted_during_a_read_are_not_missing_from_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    """nothing_lost, TBL-15, TBL-16: rows read before stay what they are, and a read that comes too
    late has to be made again.

    JOB-1: the history has both.
    """
    monkeypatch.setattr(merge, "MANY_CHANGES", many)
    stream = Stream(spark, tmp_path)
    stream.topic.send(account("a", 10, amount="1"), account("b", 10, amount="1"))
    stream.ingest()
    stream.apply(stream.table())
    for at in (20, 30):
        stream.topic.send(account("a", at, amount=str(at)), account("b", at - 15, name="late"))
        stream.ingest()

    def go_on() -> None:
        table = stream.table()
        stream.apply(table)
        stream.changelog().trim(
            table.table_state().complete_to_batch, before=stream.clock + 1_000_000 * S
        )

    before, expected = read_table(spark, str(tmp_path), "accounts").rows, stream.truth()
    going = ChangelogReader.progress
    with monkeypatch.context() as patch:

        def progress(changelog: ChangelogReader, *, with_frontier: bool = True) -> Progress:
            found = going(changelog, with_frontier=with_frontier)
            patch.setattr(ChangelogReader, "progress", going)
            go_on()
            return found

        patch.setattr(ChangelogReader, "progress", progress)
        with pytest.raises(WriterConflictError, match="changed table accounts during the read"):
            read_table(spark, str(tmp_path), "accounts")
    assert rows_by_key(before) == expected
    assert [job.error for job in History(str(tmp_path)).jobs("accounts")] == [
        "An apply changed table accounts during the read",
        "",
    ]


@pytest.mark.long
def test_a_read_remembers_deletes_until_its_rows_are_asked_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    """deletes_stay_deleted, TBL-16: whatever is swept meanwhile."""
    stream = Stream(spark, tmp_path, replace(STREAM, delete_retention_s=10))
    stream.topic.send_everywhere(ANNOUNCED)
    stream.topic.send(
        account("a", 10 * S, amount="1"), delete("a", 20 * S), account("z", 25 * S, name="z")
    )
    stream.topic.send_everywhere(Heartbeat("p", 25 * S))
    stream.ingest()
    stream.apply(stream.table())
    stream.topic.send(account("a", 19 * S, amount="2"))
    stream.topic.send_everywhere(Heartbeat("p", 26 * S))
    stream.ingest()
    rows, expected = read_table(spark, str(tmp_path), "accounts").rows, stream.truth()
    for at in (100, 200, 300):
        stream.topic.send_everywhere(Heartbeat("p", at * S))
        stream.ingest()
        stream.apply(stream.table())
    assert rows_by_key(rows) == expected == {"z": expected["z"]}


def test_the_state_of_tables_is_readable_from_sql(spark: SparkSession, tmp_path: Path) -> None:
    """TBL-20: bounds and ages can be compared; a bound that was set outranks the declared one."""
    stream = Clock(spark, tmp_path)
    stream.topic.send_everywhere(ANNOUNCED, Heartbeat("p", 10 * S))
    stream.topic.send(account("a", 5 * S, amount="1"))
    stream.ingest()
    stream.apply(stream.table(definition("one", max_staleness_s=600)))
    stream.table(definition("other"))
    stream.topic.send(account("a", 15 * S, amount="2"))
    stream.ingest()
    register_status_view(spark, str(tmp_path), now=stream.clock + 400 * S)
    shown = (
        "name, unix_micros(upsert_stream_apply_watermark), is_consistent_cut, pending_batches, age"
        " < max_staleness, max_staleness IS NULL"
    )
    rows = spark.sql(f"SELECT {shown} FROM lowmark_tables ORDER BY name").collect()
    assert [tuple(row) for row in rows] == [
        ("one", 10 * S + 1, True, 1, True, False),
        ("other", None, False, 2, None, True),
    ]
    Overrides(str(tmp_path)).set(Override("max_staleness_s", "one", 300, 1, "me"))
    warehouse = os.path.relpath(tmp_path)
    register_status_view(spark, warehouse, now=stream.clock + 400 * S)
    assert [
        row[0]
        for row in spark.sql("SELECT name FROM lowmark_tables WHERE age > max_staleness").collect()
    ] == ["one"]
    for bound_s, amount in ((1000, "1"), (0, "2")):
        rows = read_table(
            spark, warehouse, "one", max_staleness_s=bound_s, now=stream.clock + 400 * S
        ).rows
        assert [(row["id"], row["amount"]) for row in rows.collect()] == [("a", int(amount))]


@pytest.mark.systems
def test_cut_is_consistent_for_all_tables_of_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    """TBL-10, TBL-17: a snapshot reads the versions of one cut, whatever was applied since."""
    stream, history_ = Stream(spark, tmp_path, STREAM), History(str(tmp_path))
    tables = {name: stream.table(definition(name)) for name in ("one", "other")}
    with pytest.raises(TableError, match="There is no consistent cut of one"):
        read_snapshot(spark, str(tmp_path), "one")
    stream.topic.send_everywhere(ANNOUNCED)
    for at in (10, 20):
        stream.topic.send(account("a", at * S, amount=str(at)))
        stream.topic.send_everywhere(Heartbeat("p", at * S))
        progress = stream.ingest()
        for table in tables.values():
            stream.apply(table)
        newest = {name: table.newest() for name, table in tables.items()}
        assert all(book.is_at(at * S + 1, progress.ingest_batch) for _, book in newest.values())
        versions = {name: version for name, (version, _) in newest.items()}
        history_.add_cut(
            CutRecord("s", at * S + 1, progress.ingest_batch, 0, at, stream.clock, versions)
        )

    snapshot = read_snapshot(spark, str(tmp_path), "one", "other")
    assert (
        snapshot.cut,
        {row["amount"] for rows in snapshot.rows.values() for row in rows.collect()},
    ) == (history_.newest_cut("s"), {20})
    earlier = read_snapshot(spark, str(tmp_path), "one", low_watermark=15 * S)
    assert [row["amount"] for row in earlier.rows["one"].collect()] == [10]
    with pytest.raises(TableError, match="one and missing"):
        read_snapshot(spark, str(tmp_path), "one", "missing")


def test_rows_are_the_same_with_and_without_spark(spark: SparkSession) -> None:
    """OPS-10: `connector read` prints the same whether Spark read the rows or not."""
    types, rows = plain_rows(
        spark.sql(
            "SELECT timestamp'1900-01-01 00:00:00.000001' AS t, date'0001-01-02' AS d, X'00ff' AS"
            " b, map('f:q', X'01') AS m, 1.5D AS x, 3L AS n, cast(2.50 AS decimal(38, 9)) AS a,"
            " true AS y, cast(null AS string) AS s"
        )
    )
    assert list(types.values()) == [
        "timestamp",
        "date",
        "binary",
        "map",
        "double",
        "long",
        "decimal",
        "boolean",
        "string",
    ]
    row = next(rows)
    assert (row[:4], row[4:6], str(row[6]), row[7:]) == (
        (-2208988799999999, -719161, b"\x00\xff", [("f:q", b"\x01")]),
        (1.5, 3),
        "2.500000000",
        (True, None),
    )


def test_batches_that_do_not_change_a_table_need_no_merge(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TBL-16: heartbeats and changes of other tables are contained at once. A truncation is not."""
    stream, merges = Stream(spark, tmp_path), list[object]()
    config = ConnectorConfig(
        *(str(tmp_path), KafkaConfig("127.0.0.1:1"), None),
        *({"s": STREAM}, {"accounts": definition()}),
    )

    def refuse(*arguments: object, **options: object) -> None:
        merges.append(arguments)
        raise CrashError

    monkeypatch.setattr(read_service, "_merged", refuse)

    def rows() -> dict[object, object]:
        with read_service.read(config, "accounts", max_staleness_s=0) as found:
            assert found.to_batch == stream.changelog().progress().ingest_batch
            names = list(found.columns)
            return {row[names.index("id")]: row[names.index("name")] for row in found.rows}

    stream.topic.send(account("a", 1, name="x"))
    stream.ingest()
    stream.apply(stream.table())
    assert rows() == {"a": "x"}
    stream.topic.send_everywhere(Heartbeat("p", 8))
    stream.ingest()
    other = change(put("y", qualifier=b"name"), at=9, row_key=b"a", table="other")
    stream.topic.send(other)
    stream.ingest()
    assert rows() == {"a": "x"}
    assert merges == []
    for record in (Truncate("p", "t", 10), account("b", 11, name="y")):
        stream.topic.send_everywhere(record)
        stream.ingest()
        with pytest.raises(CrashError):
            rows()
        stream.apply(stream.table())
    assert rows() == {"b": "y"}
    assert len(merges) == 2
