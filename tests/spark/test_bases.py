"""A table that begins as a copy of another one equals a table that was made from the whole
changelog, whatever comes late (EVO-9).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from connector.config.settings import ConnectorConfig, KafkaConfig
from connector.errors import TableError
from connector.lake.batch_counts import count_rows, count_table
from connector.lake.changelog_folds import fold_batches
from connector.lake.jobs import History
from connector.lake.letter_positions import logged_positions
from connector.lake.small_files import write_rows
from connector.records.model import DeleteFamily
from connector.services.tables import rebuild
from connector.spark.apply.base import copy_base, is_to_start
from connector.spark.apply.rebuild import covered_letters
from connector.spark.ingest.ports import IngestPorts
from connector.spark.job_log import JobLog
from connector.spark.pipeline import Pipeline
from connector.spark.storage.table import Table
from connector.state.jobs import JobKind
from connector.state.table_state import TableState
from connector.tables.definition import OnUnreadable, TableDefinition, Versions
from connector.tables.values import DataType
from tests.changes import change
from tests.examples import tries
from tests.property.histories import COLUMNS as CELLS
from tests.property.histories import history
from tests.spark.streams import (
    STREAM,
    CrashError,
    Stream,
    account,
    copied,
    crash_at,
    definition,
    shown,
)
from tests.spark.test_apply_steps import nasty

NUMBER = replace(CELLS[2], type=DataType.NUMERIC, on_unreadable=OnUnreadable.NULL)
"""A column that is NULL for some of the values that histories have."""
ALL = Versions.ALL
PAIRS = {
    "a new column": ({"columns": CELLS[:2], "keep_unmapped": True}, {"keep_unmapped": True}),
    "cells that are not kept": ({"keep_unmapped": True}, {"keep_unmapped": False}),
    "a new column with misfits": (
        {"columns": CELLS[:2], "keep_unmapped": True, "buckets": 4},
        {"columns": (NUMBER, *CELLS[:2]), "keep_unmapped": True, "presence_family": "f"},
    ),
    "all versions": (
        {"columns": CELLS[1:], "keep_unmapped": True, "versions": ALL, "presence_family": "f"},
        {"columns": CELLS[:2], "keep_unmapped": False, "versions": ALL},
    ),
}
"""Of each pair what the base and the new table have."""


def started(stream: Stream, wanted: TableDefinition, base: str) -> Table:
    """A new table that is a copy of the base."""
    wanted = replace(wanted, start_from=base)
    table = stream.table(wanted)
    assert is_to_start(table, wanted, stream.changelog())
    copy_base(stream.spark, table.folder, wanted)
    table = stream.table(wanted)
    assert not is_to_start(table, wanted, stream.changelog())
    return table


@pytest.mark.parametrize(
    "pair",
    [
        name if name == "a new column with misfits" else pytest.param(name, marks=pytest.mark.long)
        for name in PAIRS
    ],
)
def test_newest_wins_in_a_table_from_a_base(
    spark: SparkSession, tmp_path: Path, seed: int, pair: str
) -> None:
    """EVO-9, newest_wins, deletes_stay_deleted: generated histories, of which a third comes after
    the copy. Rows, and what later changes need, are those of a table from the whole changelog.
    """
    rng, stream = Random(seed), Stream(spark, tmp_path)
    of_base, of_new = PAIRS[pair]
    base, new = replace(nasty("base"), **of_base), replace(nasty("new"), **of_new)
    deliveries = [
        one for n in tries(60, quick=25) for one in history(rng, rows=(b"%d.1" % n, b"%d.2" % n))
    ]
    rng.shuffle(deliveries)
    for part in range(2):
        stream.topic.send(*(one.change for one in deliveries[part::3]))
        stream.ingest()
        stream.apply(stream.table(base))
    table = started(stream, new, "base")
    assert shown(table) == stream.truth(new)
    of_both = table.table_state(), stream.table(base).table_state()
    assert of_both[0].complete_to_batch == of_both[1].complete_to_batch == 2
    assert table.layout.buckets == 2
    stream.topic.send(*(one.change for one in deliveries[2::3]))
    stream.ingest()
    for way in (base, new):
        stream.apply(stream.table(way))
        assert shown(stream.table(way)) == stream.truth(way)
    assert stream.letters == []


@pytest.fixture(scope="module")
def trimmed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Stream:
    """A table with a deleted row, of which the changelog has only the newest batch."""
    stream = Stream(spark, tmp_path_factory.mktemp("trimmed"))
    stream.topic.send(account("4", 5, name="Four"), account("5", 10, name="Five", more="x"))
    stream.ingest()
    stream.apply(stream.table())
    stream.topic.send(change(DeleteFamily("f"), at=50, row_key=b"5"), account("6", 51, more="y"))
    stream.ingest()
    stream.apply(stream.table())
    stream.topic.send(account("6", 52, amount="6"))
    stream.ingest()
    stream.apply(stream.table())
    assert stream.changelog().trim(3, before=stream.clock + 10**12) == 2
    return stream


@pytest.fixture
def stream(trimmed: Stream, tmp_path: Path) -> Stream:
    return copied(trimmed, tmp_path / "copy")


MORE = replace(definition().columns[0], name="more", qualifier=b"more")
NEW = definition("accounts_eu", columns=(*definition().columns, MORE))


def test_worked_example_3_a_late_set_does_not_bring_a_row_back(stream: Stream) -> None:
    """EVO-9, deletes_stay_deleted: the changelog has no more what deleted the row, and the base
    has. Without a base, the error names the tables that qualify.
    """
    with pytest.raises(TableError, match=r"start from a table .*: accounts$") as caught:
        stream.apply(stream.table(NEW))
    assert caught.value.code == "CHANGELOG_TRIMMED"
    table = started(stream, NEW, "accounts")
    assert {key: row["more"] for key, row in shown(table).items()} == {"4": None, "6": "y"}
    stream.topic.send(account("5", 20, name="late"), account("7", 60, name="Seven"))
    stream.ingest()
    stream.apply(table)
    assert shown(table).keys() == {"4", "6", "7"}


def test_the_pipeline_copies_the_base_of_a_new_table(stream: Stream) -> None:
    """EVO-9: once, when it makes the table, and the history has it. A rebuild copies it again."""
    history = History(str(stream.folder))
    config = ConnectorConfig(
        str(stream.folder),
        KafkaConfig("127.0.0.1:1"),
        streams={"s": STREAM},
        tables={"accounts": definition(), NEW.name: replace(NEW, start_from="accounts")},
    )
    ports = IngestPorts(
        topic=lambda: stream.topic.facts,
        publish=stream.publish,
        now=stream.now,
        high_watermarks=dict,
        count_rows=count_rows,
        count_table=count_table,
        logged_positions=logged_positions,
        write_rows=write_rows,
        fold_batches=fold_batches,
        earliest=dict,
    )
    job_log = JobLog(history.add_jobs, history.add_cut, history.newest_cut, history.cuts)
    for _ in range(2):
        Pipeline(stream.spark, config, {"s": ports}, job_log)
        assert shown(stream.table(NEW)).keys() == {"4", "6"}
    (job,) = history.jobs(NEW.name)
    assert (job.kind, job.to_batch, job.error) == (JobKind.REBUILD, 3, "")

    report = rebuild(config, NEW.name, spark=stream.spark, start_from="accounts")
    assert (report.to_batch, report.dead_letters, report.misfits) == (3, 0, 0)
    assert shown(stream.table(NEW)).keys() == {"4", "6"}
    assert len(history.jobs(NEW.name)) == 2


def test_a_copy_counts_from_its_commit_on(stream: Stream) -> None:
    """EVO-9, resumable: a crash before the commit leaves a new table, which is copied then."""
    table = stream.table(NEW)
    wanted = replace(NEW, start_from="accounts")
    with pytest.raises(CrashError):
        copy_base(stream.spark, table.folder, wanted, on_step=crash_at("base read"))
    assert stream.table(NEW).table_state() == TableState()
    assert shown(stream.table(NEW)) == {}
    assert shown(started(stream, NEW, "accounts")).keys() == {"4", "6"}


@pytest.mark.long
def test_a_rebuild_from_a_base_is_not_older_than_the_table(stream: Stream) -> None:
    """EVO-9, watermark_is_honest: a base that lacks changes of the table is refused. By default,
    the law of bases shows it.
    """
    table = started(stream, NEW, "accounts")
    stream.topic.send(account("8", 70, name="Eight"))
    stream.ingest()
    stream.apply(table)
    wanted = replace(NEW, start_from="accounts")
    with pytest.raises(TableError, match="accounts lacks changes that accounts_eu has"):
        copy_base(stream.spark, table.folder, wanted)
    stream.apply(stream.table())
    made = copy_base(stream.spark, table.folder, wanted)
    assert made.table_state.apply_number == made.before.apply_number + 1
    assert shown(stream.table(NEW)).keys() == {"4", "6", "8"}


def test_a_copy_covers_the_letters_whose_changes_the_changelog_has(
    spark: SparkSession, tmp_path: Path
) -> None:
    """RUN-6, EVO-9: that of a change that left the changelog stays open."""
    stream = Stream(spark, tmp_path)
    base = definition(columns=definition().columns[:1], keep_unmapped=True)
    way = definition(NEW.name, keep_unmapped=True)
    for row in ("1", "2"):
        stream.topic.send(account(row, int(row), amount="much"))
        stream.ingest()
        for wanted in (base, way):
            stream.apply(stream.table(wanted))
    first, second = (letter.position for letter in stream.letters)
    assert stream.changelog().trim(2, before=stream.clock + 10**12) == 1
    made = copy_base(spark, stream.table(way).folder, replace(way, start_from=base.name))
    assert shown(stream.table(way)).keys() == {"1", "2"}
    assert covered_letters(stream.changelog(), made, [first, second]) == [second]
    state = made.table_state
    assert (state.letters, state.covered_by) == (2, {state.rebuild: 2})


def test_a_base_with_dead_letters_is_refused(stream: Stream) -> None:
    """EVO-9: another table may hold the change of the letter."""
    stream.topic.send(account("9", 80, amount="much"))
    stream.ingest()
    stream.apply(stream.table())
    table = stream.table(NEW)
    with pytest.raises(TableError, match="changes of it became dead letters"):
        copy_base(stream.spark, table.folder, replace(NEW, start_from="accounts"))
