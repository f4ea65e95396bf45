"""What the replay tool knows of a row without a JVM is what the pipeline knows of it (DLQ-9,
DLQ-10, DLQ-13).
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from connector.lake.row_states import RowStates
from connector.records.ordering import OrderBy, OrderPosition
from connector.tables.definition import Column, Versions
from connector.tables.keys import Key, KeyForm, KeyPart
from connector.tables.merge import join, lift, visible
from connector.tables.row import RowReader
from connector.tables.values import DataType
from tests.examples import tries
from tests.property.histories import history
from tests.spark.streams import Stream, account, definition

BYTES = Key((KeyPart("id", DataType.BYTES),), KeyForm.ROW_KEY)
COLUMNS = (
    Column("q", "f", b"q", DataType.BYTES),
    Column("e", "f", b"", DataType.BYTES),
    Column("g", "g", b"q", DataType.BYTES),
)
ROWS = len(tries(120, quick=40))


@pytest.mark.parametrize(
    "versions", [Versions.LATEST, pytest.param(Versions.ALL, marks=pytest.mark.long)]
)
def test_states_without_a_jvm_are_those_of_the_merge(
    spark: SparkSession, tmp_path: Path, seed: int, versions: Versions
) -> None:
    """DLQ-10: rows, buried rows and pending changes; and what any further change would do to
    each.
    """
    rng = Random(seed)
    order = rng.choice(list(OrderBy))
    wanted = definition(key=BYTES, columns=COLUMNS, versions=versions, order=order)
    stream = Stream(spark, tmp_path / "w")
    deliveries = [
        found for n in range(ROWS) for found in history(rng, distinct_ranks=True, rows=(b"%d" % n,))
    ]
    canonical = RowReader(wanted).canonical
    rng.shuffle(deliveries)
    third = len(deliveries) // 3
    for number, batch in enumerate(
        (deliveries[:third], deliveries[third : 2 * third], deliveries[2 * third :])
    ):
        stream.topic.send(*(delivery.change for delivery in batch))
        stream.ingest()
        if number < 2:
            stream.apply(stream.table(wanted))

    known, found = (
        stream.states(wanted),
        RowStates(str(stream.folder), wanted).states_of(
            [*(b"%d" % n for n in range(ROWS)), b"nobody"]
        ),
    )
    assert not visible(found.pop(b"nobody"))
    known = {key: canonical(state) for key, state in known.items()}
    assert {key: visible(state) for key, state in found.items()} == {
        key: visible(state) for key, state in known.items()
    }
    for further in (delivery for n in range(ROWS) for delivery in history(rng, rows=(b"%d" % n,))):
        late = canonical(lift(further.change, OrderPosition(99, 0, 0), order, versions))
        key = further.change.row_key
        assert visible(join(found[key], late)) == visible(join(known[key], late)), (key, further)


@pytest.mark.long
def test_typed_values_come_back_as_the_bytes_they_were(spark: SparkSession, tmp_path: Path) -> None:
    """TBL-7: keys of several parts and types, values of each type. By default,
    `test_states_without_a_jvm_are_those_of_the_merge` shows it.
    """
    parts = (
        KeyPart("day", DataType.DATE),
        KeyPart("n", DataType.INT64),
        KeyPart("at", DataType.TIMESTAMP),
    )
    key = Key(parts, form=KeyForm.DELIMITED)
    types = {
        DataType.STRING: b"it's",
        DataType.BYTES: b"\xff\x00",
        DataType.BOOL: b"true",
        DataType.INT64: b"-7",
        DataType.FLOAT64: b"0.5",
        DataType.NUMERIC: b"12.5",
        DataType.DATE: b"9999-12-31",
        DataType.TIMESTAMP: b"0001-01-01T00:00:00.000000Z",
        DataType.JSON: b'{"a": 1}',
    }
    columns = tuple(Column(type_.lower(), "f", type_.encode(), type_) for type_ in types)
    wanted = definition(key=key, columns=columns)
    row_key = b"2024-02-29#5#2024-02-29T12:00:00.000000Z"
    stream = Stream(spark, tmp_path / "w")
    change = account(
        row_key.decode(),
        5,
        **{
            type_.value: value.decode("latin-1")
            for type_, value in types.items()
            if type_ != "BYTES"
        },
    )
    stream.topic.send(change)
    stream.ingest()
    stream.apply(stream.table(wanted))
    (state,) = RowStates(str(stream.folder), wanted).states_of([row_key]).values()
    assert visible(state) == {
        ("f", type_.encode()): value for type_, value in types.items() if type_ != "BYTES"
    }
