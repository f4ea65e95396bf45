"""SUB-6: the explanation of a row and the table agree, for histories of every kind."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from connector.config.settings import ConnectorConfig, KafkaConfig
from connector.dead_letters.effect import Effect, effect
from connector.lake.row_states import RowStates
from connector.records.model import ChildPartition, ChildPartitions, Heartbeat, SetCell
from connector.records.ordering import OrderBy, OrderPosition
from connector.services.rows.explain import explain
from connector.tables.definition import Column, Versions
from connector.tables.explain import Outcome
from connector.tables.keys import Key, KeyForm, KeyPart
from connector.tables.row import is_same_row
from connector.tables.values import DataType
from connector.warehouse import table_slot
from tests.changes import change
from tests.examples import tries
from tests.property import spellings
from tests.property.histories import history
from tests.spark.streams import STREAM, Stream, definition, shown

KEY = Key((KeyPart("id", DataType.BYTES),), KeyForm.ROW_KEY)
COLUMNS = (
    Column("q", "f", b"q", DataType.BYTES),
    Column("e", "f", b"", DataType.BYTES),
    Column("g", "g", b"q", DataType.BYTES),
)
ROWS = len(tries(200, quick=40))
TYPED_ROWS = len(tries(40, quick=15))


@pytest.mark.parametrize(
    "versions", [Versions.ALL, pytest.param(Versions.LATEST, marks=pytest.mark.long)]
)
def test_the_explanation_makes_the_row_of_the_table(
    spark: SparkSession, tmp_path: Path, seed: int, versions: Versions
) -> None:
    """SUB-6: many rows, two batches of three applied, some changes above the low watermark."""
    rng = Random(seed)
    order = rng.choice(list(OrderBy))
    wanted = definition(key=KEY, columns=COLUMNS, versions=versions, order=order)
    stream = Stream(spark, tmp_path / "w")
    table = stream.table(wanted)
    stream.topic.send_everywhere(ChildPartitions("p", 1, 0, (ChildPartition("p"),)))
    deliveries = [
        found for n in range(ROWS) for found in history(rng, distinct_ranks=True, rows=(b"%d" % n,))
    ]
    rng.shuffle(deliveries)
    third = len(deliveries) // 3
    for number in range(3):
        batch = deliveries[number * third : (number + 1) * third]
        stream.topic.send(*(delivery.change for delivery in batch))
        stream.topic.send_everywhere(Heartbeat("p", 3 + number))
        stream.ingest()
        if number < 2:
            stream.apply(table)

    config = ConnectorConfig(
        str(stream.folder), KafkaConfig("127.0.0.1:1"), None, {"s": STREAM}, {"accounts": wanted}
    )
    applied, merged = shown(table), stream.truth(wanted)
    for key in (b"%d" % n for n in range(ROWS)):
        found = explain(config, "accounts", key, ask_kafka=False)
        assert found.applied_row == applied.get(key), found
        assert found.row == merged.get(key), found
        assert found.is_confirmed is True, found
        won = {
            (column.family, column.qualifier): entry.entry.value
            for column in found.explanation.columns
            for entry in column.entries
            if entry.outcome is Outcome.WON
        }
        row = found.row or {}
        for column in COLUMNS:
            assert won.get(column.cell) == row.get(column.name), found


@pytest.mark.parametrize(
    "versions", [Versions.LATEST, pytest.param(Versions.ALL, marks=pytest.mark.long)]
)
def test_other_bytes_of_a_value_are_the_value_that_the_table_has(
    spark: SparkSession, tmp_path: Path, seed: int, versions: Versions
) -> None:
    """SUB-6, DLQ-10, TBL-7: every type in each encoding, in canonical and in other spellings. The
    changelog gives the row of the table, and a replay with the same values is ignored.
    """
    rng = Random(seed)
    wanted = definition(columns=spellings.COLUMNS, versions=versions)
    stream = Stream(spark, tmp_path / "w")
    table = stream.table(wanted)
    stream.topic.send_everywhere(ChildPartitions("p", 1, 0, (ChildPartition("p"),)))
    newest: dict[bytes, dict[Column, list[bytes]]] = {b"%d" % n: {} for n in range(TYPED_ROWS)}
    for number in range(2):  # the second batch is not applied
        for key, values in newest.items():
            some = rng.sample(spellings.COLUMNS, 6) if number else spellings.COLUMNS
            values |= {one: spellings.spelled(rng, one.type, one.encoding) for one in some}
            cells = [SetCell(*one.cell, rng.choice(values[one]), number) for one in some]
            stream.topic.send(change(*cells, at=3 + number, row_key=key))
        stream.topic.send_everywhere(Heartbeat("p", 3 + number))
        stream.ingest()
        if number == 0:
            stream.apply(table)
    assert not stream.letters

    config = ConnectorConfig(
        str(stream.folder), KafkaConfig("127.0.0.1:1"), None, {"s": STREAM}, {"accounts": wanted}
    )
    merged, states = stream.truth(wanted), RowStates(str(stream.folder), wanted).states_of(newest)
    for key, values in newest.items():
        found = explain(config, "accounts", key, ask_kafka=False)
        assert is_same_row(found.row, merged[key.decode()]), found
        assert found.is_confirmed is True, found
        cells = [SetCell(*one.cell, rng.choice(known), 9) for one, known in values.items()]
        replayed = change(*cells, at=9, row_key=key)
        assert effect(wanted, states[key], replayed, OrderPosition(9, 0, 0)) is Effect.IGNORED


def test_the_slot_of_a_table_is_that_of_spark(spark: SparkSession) -> None:
    """TBL-4: for names of every length up to the limit."""
    names = ["x" * length for length in range(1, 129)] + [f"orders-{n}.v" for n in range(50)]
    rows = spark.createDataFrame([(name,) for name in names], "name string")
    found = rows.selectExpr("name", "int(pmod(crc32(cast(name AS binary)), 16)) AS slot").collect()
    assert {row["name"]: row["slot"] for row in found} == {name: table_slot(name) for name in names}
