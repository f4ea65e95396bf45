"""Applies, maintenance, rebuilds and reads of one table meet, in orders drawn from the seed (TBL-12 to TBL-16, TBL-21)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import DataFrame, SparkSession

from connector.errors import WriterConflictError
from connector.ordering import OrderBy
from connector.spark.merging import Survey
from connector.spark.reader import read_table
from connector.spark.table import Table
from connector.tables import TableDefinition, Versions
from tests.property.histories import history
from tests.spark.streams import CrashError, Stream, crash_at, rows_by_key, shown
from tests.spark.test_apply_steps import STEPS, nasty
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
@pytest.mark.parametrize("wanted", TABLES, ids=lambda wanted: wanted.name)
def test_newest_wins_whoever_else_works_on_the_table(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, wanted: TableDefinition
) -> None:
    """nothing_lost, nothing_invented, deletes_stay_deleted, resumable: who comes second is refused, rows read before stay."""
    rng, stream = Random(f"{seed}/{wanted.name}"), Stream(spark, tmp_path)

    def is_sparse(table: Table, seen: Survey) -> bool:
        return table.has_vectors and bool(seen.buckets) and rng.random() < 0.8

    monkeypatch.setattr(sys.modules["connector.spark.apply"], "is_sparse", is_sparse)
    deliveries = [d for n in range(12) for d in history(rng, rows=(b"%d.1" % n, b"%d.2" % n))]
    rng.shuffle(deliveries)
    going_on, read = stream.table(wanted), list[tuple[DataFrame, dict[object, dict[str, object]]]]()
    for batch in range(BATCHES):
        stream.topic.send(*(delivery.change for delivery in deliveries[batch::BATCHES]))
        stream.ingest()
        truth = stream.truth(wanted)
        if batch:
            read.append((read_table(spark, str(tmp_path), wanted.name).rows, truth))
        others = (lambda: stream.table(wanted).compact(), lambda: stream.apply(stream.table(wanted)))
        table, step = rng.choice((going_on, stream.table(wanted))), rng.choice(STEPS[:2])
        on_step = rng.choice((crash_at(step), *(meanwhile(step, other) for other in others)))
        with suppress(CrashError, WriterConflictError):
            stream.apply(table, on_step)
        if rng.random() < 0.7:
            going_on = stream.table(wanted)
            stream.apply(going_on)
            assert shown(going_on) == truth
        if rng.random() < 0.3:
            stream.table(wanted).compact()
    for rows, truth in read:
        assert rows_by_key(rows, wanted) == truth
    if rng.random() < 0.5:
        rebuilt(stream, wanted)
    stream.apply(stream.table(wanted))
    assert shown(stream.table(wanted)) == stream.truth(wanted)
