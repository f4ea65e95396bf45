"""Dead letters of changes that one table cannot hold (TBL-9)."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import to_avro

from connector.dead_letters.envelope import DeadLetter
from connector.records import codec
from connector.records.model import DataChange
from connector.records.rejection import Position, Reason
from connector.spark.storage.changelog_rows import RECORD, bytes_of, order_position
from connector.tables.definition import TableDefinition
from connector.tables.row import read_change


def table_letters(changes: DataFrame, definition: TableDefinition) -> Iterator[DeadLetter]:
    """A dead letter for each change that the table cannot hold, with the table in its id (TBL-9).

    `changes` are rows of the changelog. The value is the record, encoded again from the changelog
    with single-object framing. The changelog has all fields of the record, and Avro encodes them in
    one way only. The first failure has the ingest time of the change, so a repeated apply makes the
    same dead letter.
    """
    columns = (
        "topic",
        "topic_id",
        "kafka_partition",
        "offset",
        "headers",
        "row_key",
        "ingest_batch",
        "order_position",
    )
    body = to_avro(F.expr(RECORD), codec.SCHEMA).alias("body")
    times = (
        F.expr(f"unix_micros({name})").alias(name) for name in ("record_timestamp", "ingest_time")
    )
    found = changes.orderBy("kafka_partition", "offset").select(*columns, *times, body)
    return (_table_letter(row, definition) for row in found.toLocalIterator())


def _table_letter(row: Row, definition: TableDefinition) -> DeadLetter:
    value = codec.frame(bytes(row["body"]), None)
    decoded = codec.decode(value, codec.Schemas())
    assert isinstance(decoded, codec.ChangeRecord), decoded
    assert isinstance(decoded.record, DataChange)
    fault = read_change(definition, decoded.record)
    reason = fault.reason if fault else Reason.UNREADABLE_VALUE
    return DeadLetter(
        position=Position(row["topic"], row["topic_id"], row["kafka_partition"], row["offset"]),
        key=bytes_of(row["row_key"]),
        value=value,
        headers=tuple((name, bytes_of(header)) for name, header in row["headers"] or ()),
        reason=reason,
        rule="",
        detail=fault.detail if fault else reason.cause,
        attempt=row["order_position"]["attempt"],
        first_failed_at=row["ingest_time"],
        record_timestamp=row["record_timestamp"],
        schema_id=codec.schema_id(value),
        ingest_batch=row["ingest_batch"],
        order_position=order_position(row),
        table=definition.name,
    )
