"""The Spark form of the merge rule and `connector.merge`, on the same generated histories."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import reduce
from random import Random

import pytest
from pyspark.sql import DataFrame, SparkSession

from connector.merge import join, lift, visible
from connector.model import DataChange, DeleteCells, DeleteFamily, SetCell
from connector.ordering import OrderBy
from connector.spark.registers import Layout, as_known_changes, as_known_states, merged, pivot
from connector.tables import Column, Key, KeyPart, TableDefinition, Versions, unmapped_name
from connector.values import ColumnType
from tests.property.histories import Delivery, history

HISTORIES = 2500
ROUNDS = 3

CHANGES = """row_key binary, commit_timestamp_us bigint, tie_breaker bigint, transaction struct<record_sequence: bigint>,
    order_position struct<ingest_batch: bigint, kafka_partition: int, offset: bigint, attempt: int>,
    entries array<struct<kind: string, family: string, qualifier: binary, cell_timestamp: bigint, range_start: bigint,
        range_end: bigint, value: binary>>"""

MAPPED = (("f", b""), ("f", b"q"), ("g", b"q"))


def definition(*, keep_unmapped: bool) -> TableDefinition:
    columns = tuple(Column(f"c{n}", family, qualifier, ColumnType.BYTES) for n, (family, qualifier) in enumerate(MAPPED))
    return TableDefinition(
        name="t", stream="s", source="t", key=Key((KeyPart("select", ColumnType.BYTES),)), columns=columns, keep_unmapped=keep_unmapped
    )


@pytest.mark.parametrize("keep_unmapped", [True, False])
def test_newest_wins_in_spark_as_in_merge(spark: SparkSession, seed: int, keep_unmapped: bool) -> None:
    """MRG-1, MRG-4 to MRG-9, TBL-7: whatever the batches, the rows are those of the definition, and the rest is buried."""
    rng = Random(seed)
    layout = Layout(definition(keep_unmapped=keep_unmapped), buckets=4)
    deliveries = [
        delivery for number in range(HISTORIES) for delivery in history(rng, distinct_ranks=True, rows=(b"%d.1" % number, b"%d.2" % number))
    ]
    rounds: list[list[Delivery]] = [[] for _ in range(ROUNDS)]
    for delivery in deliveries:
        rounds[rng.randrange(ROUNDS)].append(delivery)
    known: DataFrame | None = None
    for batch in rounds:
        pivoted = pivot(changes(spark, batch), layout)
        assert pivoted.where("_unreadable").count() == 0
        sides = [as_known_changes(pivoted, layout, with_rest=True)]
        if known is not None:
            sides.append(as_known_states(known.where("_exists"), layout, with_values=True))
            sides.append(as_known_states(known.where("NOT _exists"), layout, with_values=False))
        known = merged(reduce(DataFrame.unionByName, sides), layout, with_rest=True).localCheckpoint()
    assert known is not None
    got = {bytes(row["select"]): shown(row.asDict(), keep_unmapped) for row in known.where("_exists").collect()}
    want = expected(deliveries, keep_unmapped)
    differing = [key for key in {*got, *want} if got.get(key) != want.get(key)]
    assert not differing, [(key, got.get(key), want.get(key), [d for d in deliveries if d.change.row_key == key]) for key in differing[:2]]
    assert known.where("_exists").count() == len(want)
    assert known.count() >= len(want)


def shown(row: dict[str, object], keep_unmapped: bool) -> dict[str, bytes]:
    cells = {unmapped_name(*cell): row[f"c{n}"] for n, cell in enumerate(MAPPED)}
    unmapped = row["_unmapped"] or {}
    assert isinstance(unmapped, dict)
    assert keep_unmapped or not unmapped
    return {name: bytes(value) for name, value in {**cells, **unmapped}.items() if value is not None}  # type: ignore[call-overload]


def expected(deliveries: Iterable[Delivery], keep_unmapped: bool) -> dict[bytes, dict[str, bytes]]:
    states = defaultdict(list)
    for delivery in deliveries:
        states[delivery.change.row_key].append(lift(delivery.change, delivery.position, OrderBy.COMMIT, Versions.LATEST))
    rows = {key: visible(reduce(join, known)) for key, known in states.items()}
    kept = {key: {unmapped_name(*cell): v for cell, v in cells.items() if keep_unmapped or cell in MAPPED} for key, cells in rows.items()}
    return {key: cells for key, cells in kept.items() if cells}


def changes(spark: SparkSession, deliveries: Iterable[Delivery]) -> DataFrame:
    rows = [_row(delivery.change, tuple(delivery.position)) for delivery in deliveries]
    return spark.createDataFrame(rows, CHANGES).selectExpr("*", "timestamp_micros(commit_timestamp_us) AS commit_timestamp")


def _row(change: DataChange, position: tuple[int, ...]) -> tuple[object, ...]:
    transaction = (change.transaction.record_sequence,) if change.transaction else None
    return (change.row_key, change.commit_timestamp, change.tie_breaker, transaction, position, [_entry(entry) for entry in change.entries])


def _entry(entry: SetCell | DeleteCells | DeleteFamily) -> tuple[object, ...]:
    match entry:
        case SetCell():
            return ("SET_CELL", entry.family, entry.qualifier, entry.cell_timestamp, 0, 0, entry.value)
        case DeleteCells():
            return ("DELETE_CELLS", entry.family, entry.qualifier, 0, entry.range_start, entry.range_end, b"")
        case DeleteFamily():
            return ("DELETE_FAMILY", entry.family, b"", 0, 0, 0, b"")


def test_newest_wins_where_no_change_deletes_cells(spark: SparkSession, seed: int) -> None:
    """MRG-1: the short form for changes without DELETE_CELLS says what the long one says of them."""
    rng = Random(seed)
    layout = Layout(definition(keep_unmapped=True), buckets=4)
    deliveries = [delivery for number in range(HISTORIES) for delivery in history(rng, distinct_ranks=True, rows=(b"%d.1" % number,))]
    without = changes(spark, deliveries).where("NOT array_contains(entries.kind, 'DELETE_CELLS')").localCheckpoint()
    long, short = pivot(without, layout), pivot(without, layout, deletes_cells=False)
    assert without.count() > HISTORIES / 2
    assert (long.exceptAll(short).count(), short.exceptAll(long).count()) == (0, 0)
