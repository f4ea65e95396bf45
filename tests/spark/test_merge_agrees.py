"""The Spark form of the merge rule and `connector.tables.merge`, on the same generated
histories.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from random import Random
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from connector.records.model import DataChange, DeleteCells, DeleteFamily, Entry, SetCell
from connector.records.ordering import OrderBy, Rank
from connector.spark.apply.flatten import flatten_entries
from connector.spark.apply.lww_merge import (
    combine,
    registers_of_changes,
    registers_of_rows,
    registers_of_tombstones,
    rows_of,
)
from connector.spark.apply.merge import newest_order
from connector.spark.apply.truncation import IS_TOMBSTONE, not_truncated
from connector.spark.storage.layout import Layout, is_older
from connector.tables.column_names import unmapped_name
from connector.tables.definition import OnUnreadable, TableDefinition, Versions
from connector.tables.keys import Key, KeyForm, KeyPart
from connector.tables.merge import greatest, join, lift, truncate, visible
from connector.tables.row import row_of
from connector.tables.values import DataType
from tests.examples import tries
from tests.property.histories import COLUMNS, Delivery, history, plain_entries
from tests.spark.streams import plain

pytestmark = pytest.mark.usefixtures("compiled")

HISTORIES, FEWER = len(tries(1000, quick=250)), len(tries(400, quick=120))
ROUNDS = 3

CHANGES = """row_key binary, commit_timestamp_us bigint, tie_breaker bigint,
transaction struct<record_sequence: bigint>,
    change_sequence_number string,
    order_position struct<ingest_batch: bigint, kafka_partition: int, offset: bigint, attempt: int>,
    entries array<struct<kind: string, family: string, qualifier: binary, cell_timestamp: bigint,
    range_start: bigint,
        range_end: bigint, value: binary>>"""


def definition(**others: Any) -> TableDefinition:
    return TableDefinition(
        name="t",
        stream="s",
        source="t",
        key=Key((KeyPart("select", DataType.BYTES),), KeyForm.ROW_KEY),
        **{"columns": COLUMNS, **others},
    )


NUMBERS = tuple(replace(column, type=DataType.NUMERIC) for column in COLUMNS[:2]) + COLUMNS[2:]
"""Columns that cannot hold some of the values of histories, which are empty."""
TABLES = {
    "latest": (definition(), HISTORIES, ROUNDS),
    "latest, mapped only, by number": (
        definition(keep_unmapped=False, order=OrderBy.SEQUENCE_NUMBER),
        400,
        2,
    ),
    "latest, nulls": (
        definition(columns=NUMBERS, on_unreadable=OnUnreadable.NULL),
        FEWER,
        2,
    ),
    "keys, mapped only": (
        definition(columns=(), presence_family="f", keep_unmapped=False),
        FEWER,
        2,
    ),
    "all": (definition(versions=Versions.ALL), FEWER, 2),
    "all, mapped only, by number": (
        definition(versions=Versions.ALL, keep_unmapped=False, order=OrderBy.SEQUENCE_NUMBER),
        400,
        2,
    ),
}
"""Of each kind of table its definition, of how many histories it is made, and in how many rounds.
"""


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(name, marks=pytest.mark.long) if "mapped only" in name else name
        for name in TABLES
    ],
)
def test_newest_wins_in_spark_as_in_merge(spark: SparkSession, seed: int, table: str) -> None:
    """MRG-1, MRG-2, MRG-4 to MRG-10, TBL-7: whatever the batches, the rows are those of the
    definition, and the rest is buried.
    """
    rng = Random(seed)
    wanted, count, rounds = TABLES[table]
    layout, horizon = Layout(wanted, 4), 3
    deliveries = histories(rng, count)
    known, has_tombstones = in_rounds(
        spark, rng, layout, deliveries, has_residual=True, rounds=rounds, horizon=horizon
    )
    got = {bytes(row["select"]): shown(row.asDict(), wanted) for row in known.collect()}
    want = expected(deliveries, wanted)
    differing = [key for key in {*got, *want} if got.get(key) != want.get(key)]
    assert not differing, [
        (key, got.get(key), want.get(key), [d for d in deliveries if d.change.row_key == key])
        for key in differing[:2]
    ]
    assert known.count() == len(want)
    assert has_tombstones > 0
    remembered = (
        known.selectExpr("explode(_state.residual) AS x")
        .where("x.value IS NULL")
        .selectExpr(f"x.order.change.{layout.age} AS age")
    )
    assert {row["age"] for row in remembered.distinct().collect()} == {
        age for age in AGES[wanted.order] if age >= horizon
    }


AGES = {OrderBy.COMMIT: range(1, 7), OrderBy.SEQUENCE_NUMBER: range(4)}
"""The commit timestamps, or the ingest batches, of generated histories."""


@pytest.mark.parametrize(
    "table",
    [pytest.param(name, marks=pytest.mark.long) if name != "latest" else name for name in TABLES],
)
def test_truncations_delete_in_spark_as_in_merge(
    spark: SparkSession, seed: int, table: str
) -> None:
    """EVO-13, MRG-1, MRG-4: a new truncation removes what is older from stored rows. Later changes
    that are older do nothing.
    """
    rng = Random(seed)
    wanted, layout = TABLES[table][0], Layout(TABLES[table][0], buckets=4)
    ranks = {
        OrderBy.COMMIT: [(2, 0, 1), (4, 0, 0), (3, 1, 0)],
        OrderBy.SEQUENCE_NUMBER: [(0xA, 0, 0, 0), (0xFFF, 0xABC, 0, 0), (2**63, 0, 0, 0)],
    }[wanted.order]
    deliveries = histories(rng, 120)
    known, has_tombstones = in_rounds(
        spark, rng, layout, deliveries, has_residual=True, truncations=ranks
    )
    got = {bytes(row["select"]): shown(row.asDict(), wanted) for row in known.collect()}
    want = expected(deliveries, wanted, max(ranks))
    differing = [key for key in {*got, *want} if got.get(key) != want.get(key)]
    assert not differing, [
        (key, got.get(key), want.get(key), [d for d in deliveries if d.change.row_key == key])
        for key in differing[:2]
    ]
    assert 0 < len(want) < len(expected(deliveries, wanted))
    assert has_tombstones > 0
    assert known.where(f"NOT {is_older(newest_order(), max(ranks))}").count() == len(want)


def histories(rng: Random, count: int = HISTORIES) -> list[Delivery]:
    keys = ((b"%d.1" % number, b"%d.2" % number) for number in range(count))
    return [
        delivery
        for rows in keys
        for delivery in history(rng, distinct_ranks=rng.random() < 0.5, rows=rows)
    ]


def in_rounds(
    spark: SparkSession,
    rng: Random,
    layout: Layout,
    deliveries: Iterable[Delivery],
    *,
    has_residual: bool,
    rounds: int = ROUNDS,
    horizon: int | None = None,
    truncations: Sequence[Rank] = (),
) -> tuple[DataFrame, int]:
    """The table after all deliveries in a few rounds, and how many entries the graveyard has. The
    last round forgets below `horizon`. Each round may have a truncation.
    """
    batches: list[list[Delivery]] = [[] for _ in range(rounds)]
    for delivery in deliveries:
        batches[rng.randrange(rounds)].append(delivery)
    table = tombstones = None
    rank = None
    for number, batch in enumerate(batches, start=1):
        before, rank = rank, greatest(rank, *truncations[number - 1 : number])
        of_batch = not_truncated(changes(spark, batch), layout, rank)
        plain = all_are("_plain", flatten_entries(of_batch, layout, all_plain=True))
        flattened = flatten_entries(of_batch, layout, all_plain=plain)
        assert flattened.where("_unreadable").count() == 0
        assert has_residual or plain
        known = registers_of_changes(
            flattened, layout, 2, all_whole=all_are("_whole", flattened), has_residual=has_residual
        )
        if tombstones is not None:
            known = combine(known, registers_of_tombstones(tombstones, layout, 2), layout, "left")
        if table is None:
            table = rows_of(known, layout, has_residual=has_residual).limit(0)
        known = combine(known, registers_of_rows(table, layout, 2), layout, "full")
        forget_below = horizon if number == rounds else None
        is_new = rank != before
        rows = rows_of(
            *(known, layout),
            has_residual=has_residual,
            horizon=forget_below,
            truncated=rank if is_new else None,
        ).localCheckpoint()
        gone = rows.where(IS_TOMBSTONE if is_new else "_changed AND NOT _exists")
        table, tombstones = (
            rows.where("_exists"),
            gone if tombstones is None else tombstones.unionByName(gone),
        )
    assert table is not None
    assert tombstones is not None
    return table, tombstones.count()


def all_are(flag: str, flattened: DataFrame) -> bool:
    return flattened.where(f"NOT {flag}").count() == 0


def shown(row: Mapping[str, object], wanted: TableDefinition) -> dict[str, Any]:
    cells = {unmapped_name(*column.cell): row[column.name] for column in wanted.columns}
    unmapped = row["_unmapped"] or {}
    assert isinstance(unmapped, Mapping)
    assert wanted.keep_unmapped or not unmapped
    return {
        name: plain(value) for name, value in {**cells, **unmapped}.items() if value is not None
    }


def expected(
    deliveries: Iterable[Delivery], wanted: TableDefinition, rank: Rank | None = None
) -> dict[bytes, dict[str, Any]]:
    states = defaultdict(list)
    for delivery in deliveries:
        states[delivery.change.row_key].append(
            lift(delivery.change, delivery.position, wanted.order, wanted.versions)
        )
    rows = {
        key: row_of(wanted, key, visible(truncate(reduce(join, known), rank)))
        for key, known in states.items()
    }
    return {key: shown(row, wanted) for key, row in rows.items() if row is not None}


def changes(spark: SparkSession, deliveries: Iterable[Delivery]) -> DataFrame:
    rows = [_row(delivery.change, tuple(delivery.position)) for delivery in deliveries]
    place = (
        "order_position.ingest_batch",
        "order_position.kafka_partition",
        "order_position.offset",
    )
    return spark.createDataFrame(rows, CHANGES).selectExpr(
        "*", *place, "timestamp_micros(commit_timestamp_us) AS commit_timestamp"
    )


def _row(change: DataChange, position: tuple[int, ...]) -> tuple[object, ...]:
    transaction = (change.transaction.record_sequence,) if change.transaction else None
    entries = [_entry(entry) for entry in change.entries]
    return (
        change.row_key,
        change.commit_timestamp,
        change.tie_breaker,
        transaction,
        change.change_sequence_number,
        position,
        entries,
    )


def _entry(entry: Entry) -> tuple[object, ...]:
    match entry:
        case SetCell():
            return (
                "SET_CELL",
                entry.family,
                entry.qualifier,
                entry.cell_timestamp,
                0,
                0,
                entry.value,
            )
        case DeleteCells():
            return (
                "DELETE_CELLS",
                entry.family,
                entry.qualifier,
                0,
                entry.range_start,
                entry.range_end,
                b"",
            )
        case DeleteFamily():
            return ("DELETE_FAMILY", entry.family, b"", 0, 0, 0, b"")


@pytest.mark.long
def test_plain_changes_are_found_and_flattened_quickly(spark: SparkSession, seed: int) -> None:
    """MRG-1: the short form finds the plain changes, and says of them what the long one says. By
    default, `test_newest_wins_in_spark_as_in_merge` shows it.
    """
    layout = Layout(definition(), buckets=4)
    delivered = changes(spark, histories(Random(seed))).localCheckpoint()
    long, short = (
        flatten_entries(delivered, layout).where("_plain"),
        flatten_entries(delivered, layout, all_plain=True).where("_plain"),
    )
    assert 0 < long.count() < delivered.count()
    assert (long.exceptAll(short).count(), short.exceptAll(long).count()) == (0, 0)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.long
def test_newest_wins_where_all_changes_are_alike(
    spark: SparkSession, seed: int, whole: bool
) -> None:
    """MRG-1, TBL-13: the short ways for plain and for whole changes lead to the rows of the
    definition.
    """
    rng = Random(seed)
    wanted = definition(keep_unmapped=False)
    layout = Layout(wanted, buckets=4)
    simplified = (
        (delivery, plain_entries(delivery.change, whole=whole)) for delivery in histories(rng)
    )
    deliveries = [
        replace(delivery, change=replace(delivery.change, entries=entries))
        for delivery, entries in simplified
        if entries
    ]
    assert all_are(
        "_whole" if whole else "_plain",
        flatten_entries(changes(spark, deliveries), layout, all_plain=True),
    )
    known, has_tombstones = in_rounds(spark, rng, layout, deliveries, has_residual=False)
    want = expected(deliveries, wanted)
    assert {bytes(row["select"]): shown(row.asDict(), wanted) for row in known.collect()} == want
    assert known.count() == len(want)
    assert has_tombstones > 0
