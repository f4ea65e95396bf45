"""Applies, maintenance, rebuilds and reads of one table meet, in orders drawn from the seed (TBL-12
to TBL-16, TBL-21).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import DataFrame, SparkSession

from connector.config.settings import ConnectorConfig, KafkaConfig
from connector.errors import WriterConflictError
from connector.lake.plain_table import open_table
from connector.records.ordering import OrderBy
from connector.spark.apply.statistics import BatchStatistics
from connector.spark.job_log import JobLog
from connector.spark.pipeline import Pipeline
from connector.spark.reader import read_table
from connector.spark.storage.files import Files
from connector.spark.storage.table import Table
from connector.state.jobs import CutRecord
from connector.tables.definition import TableDefinition, Versions
from connector.tables.keys import Key, KeyForm, KeyPart
from connector.tables.values import DataType
from tests.property.histories import history
from tests.spark.streams import (
    CrashError,
    Stream,
    crash_at,
    definition,
    merge_every_other,
    rows_by_key,
    shown,
)
from tests.spark.test_apply_steps import STEPS, nasty
from tests.spark.test_cut import Bank
from tests.spark.test_rebuild import rebuilt

BATCHES = 6
TABLES = (
    nasty("latest"),
    nasty("kept", keep_unmapped=True),
    nasty("numbered", order=OrderBy.SEQUENCE_NUMBER),
    nasty("all", versions=Versions.ALL, keep_unmapped=False),
    nasty("all_kept", versions=Versions.ALL, keep_unmapped=True),
    nasty("all_numbered", versions=Versions.ALL, order=OrderBy.SEQUENCE_NUMBER, keep_unmapped=True),
)


def meanwhile(step: str, act: Callable[[], object]) -> Callable[[str], None]:
    """What another process does once an apply has come to a step."""

    def on_step(reached: str) -> None:
        if reached == step:
            act()

    return on_step


@pytest.mark.long
@pytest.mark.usefixtures("compacts_at_once")
@pytest.mark.parametrize("wanted", TABLES, ids=lambda wanted: wanted.name)
def test_newest_wins_while_others_write_to_the_table(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    wanted: TableDefinition,
) -> None:
    """nothing_lost, nothing_invented, deletes_stay_deleted, resumable: who comes second is refused,
    rows read before stay.
    """
    rng, stream = Random(f"{seed}/{wanted.name}"), Stream(spark, tmp_path)

    def is_sparse(table: Table, seen: BatchStatistics, files: Files | None) -> bool:
        return table.has_vectors and bool(seen.buckets) and rng.random() < 0.8

    monkeypatch.setattr(sys.modules["connector.spark.apply.apply"], "is_sparse", is_sparse)
    deliveries = [d for n in range(12) for d in history(rng, rows=(b"%d.1" % n, b"%d.2" % n))]
    rng.shuffle(deliveries)
    going_on, read = stream.table(wanted), list[tuple[DataFrame, dict[object, dict[str, object]]]]()
    for batch in range(BATCHES):
        stream.topic.send(*(delivery.change for delivery in deliveries[batch::BATCHES]))
        stream.ingest()
        truth = stream.truth(wanted)
        if batch:
            read.append((read_table(spark, str(tmp_path), wanted.name).rows, truth))
        others = (
            lambda: stream.table(wanted).compact(lambda act: act()),
            lambda: stream.apply(stream.table(wanted)),
        )
        table, step = rng.choice((going_on, stream.table(wanted))), rng.choice(STEPS[:2])
        on_step = rng.choice((crash_at(step), *(meanwhile(step, other) for other in others)))
        with suppress(CrashError, WriterConflictError):
            stream.apply(table, on_step)
        if rng.random() < 0.7:
            going_on = stream.table(wanted)
            stream.apply(going_on)
            assert shown(going_on) == truth
        if rng.random() < 0.3:
            stream.table(wanted).compact(lambda act: act())
    for rows, truth in read:
        assert rows_by_key(rows, wanted) == truth
    if rng.random() < 0.5:
        rebuilt(stream, wanted)
    stream.apply(stream.table(wanted))
    assert shown(stream.table(wanted)) == stream.truth(wanted)


class Meeting:
    """Two applies wait at their first step until the other is there, if it comes soon. One of them
    may be killed at a step.
    """

    def __init__(self, crash: str = "") -> None:
        self._barrier, self._crash, self.times = threading.Barrier(2), crash, 0

    def __call__(self, step: str) -> None:
        if step.endswith(STEPS[0]):
            with suppress(threading.BrokenBarrierError):
                self.times += self._barrier.wait(5) == 0
        if step == self._crash:
            raise CrashError(step)


def pipeline(
    stream: Stream,
    tables: tuple[TableDefinition, ...],
    cuts: list[CutRecord],
    on_step: Callable[[str], None],
) -> Pipeline:
    """A new one, as after a restart, that applies what was ingested."""
    kafka, by_name = KafkaConfig("127.0.0.1:1"), {table.name: table for table in tables}
    config = ConnectorConfig(
        str(stream.folder), kafka, streams={"s": stream.config}, tables=by_name
    )
    job_log = JobLog(
        *(lambda job: None, cuts.append),
        *(lambda name: cuts[-1] if cuts else None, lambda name: cuts[::-1]),
    )
    return Pipeline(
        *(stream.spark, config, {"s": stream.process()._ports}, job_log),
        merge_every_other,
        on_step=on_step,
    )


@pytest.mark.long
def test_newest_wins_in_two_tables_that_are_applied_at_once(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    """JOB-3, nothing_lost, nothing_invented, deletes_stay_deleted, resumable: one of them killed at
    a step leaves the other alone.
    """
    rng, stream, tables = Random(f"{seed}/at once"), Stream(spark, tmp_path), TABLES[:2]
    deliveries = [d for n in range(6) for d in history(rng, rows=(b"%d.1" % n, b"%d.2" % n))]
    rng.shuffle(deliveries)
    met, killed = 0, 0
    for batch in range(4):
        stream.topic.send(*(delivery.change for delivery in deliveries[batch::4]))
        stream.ingest()
        meeting = Meeting(
            f"table {rng.choice(tables).name}: {rng.choice(STEPS)}" if batch % 2 else ""
        )
        try:
            pipeline(stream, tables, [], meeting)._applies.all()
        except CrashError:
            killed += 1
        met += meeting.times
        if batch % 2 == 0:
            assert [shown(stream.table(wanted)) for wanted in tables] == [
                stream.truth(wanted) for wanted in tables
            ]
    assert killed == 2
    assert met >= 2
    pipeline(stream, tables, [], Meeting())._applies.all()
    assert [shown(stream.table(wanted)) for wanted in tables] == [
        stream.truth(wanted) for wanted in tables
    ]


@pytest.mark.long
def test_cut_is_consistent_in_two_tables_that_are_applied_at_once(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    """JOB-3, TBL-10, TBL-17: whatever is killed, what is recorded as one cut is the bank at that
    moment, in both tables.
    """
    rng = Random(f"{seed}/cuts at once")
    bank, cuts = Bank(spark, tmp_path, rng), list[CutRecord]()
    key = Key((KeyPart("id", DataType.BYTES),), KeyForm.ROW_KEY)
    tables = (definition(key=key), definition("copy", key=key))
    for turn in range(4):
        bank.simulation.turn()
        bank.ingest(everything=turn == 3)
        crash = f"table {rng.choice(tables).name}: {rng.choice(STEPS)}" if turn % 2 else ""
        with suppress(CrashError):
            pipeline(bank.stream, tables, cuts, Meeting(crash))._applies.all()
    bank.simulation.finish()
    bank.ingest(everything=True)
    pipeline(bank.stream, tables, cuts, Meeting())._applies.all()
    assert cuts
    for cut in cuts:
        assert cut.versions.keys() == {"accounts", "copy"}
        for name, version in cut.versions.items():
            table = open_table(f"{tmp_path}/tables/{name}/data", version)
            rows = [dict(zip(table.types, row, strict=True)) for row in table.rows()]
            assert {row["id"]: row["amount"] for row in rows} == bank.simulation.at(
                cut.low_watermark
            )
    assert bank.simulation.at(cuts[-1].low_watermark) == bank.simulation.at(
        bank.simulation.clock + 1
    )
