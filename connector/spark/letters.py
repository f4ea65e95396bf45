"""Dead letters, from the commit that rejected their records (TBL-2, DLQ-4).

The JVM says which record is bad and why; `validation.judge` is asked again, for these alone, for the words a person needs.
Nothing here depends on when it runs, so a crash repeats a letter with the same id and the same content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import to_avro

from connector import codec
from connector.deadletter import DeadLetter, Position, Reason, Rejection
from connector.model import DataChange
from connector.ordering import OrderPosition
from connector.tables import TableDefinition, read_change
from connector.validation import KafkaRecord

Explain = Callable[[KafkaRecord], object]
"""`validation.judge` with the stream's settings: a `Rejection`, or anything else if it finds no fault."""


def rejected_letters(rows: DataFrame, explain: Explain) -> Iterator[DeadLetter]:
    """A letter for each of the rejected rows of a batch, in the order of Kafka partition and offset; one Spark task's worth in memory."""
    columns = (
        "topic",
        "topic_id",
        "kafka_partition",
        "offset",
        "headers",
        "key",
        "value",
        "reason",
        "rule",
        "ingest_batch",
        "order_position",
    )
    times = ("unix_micros(record_timestamp) AS record_timestamp", "unix_micros(ingest_time) AS ingest_time")
    ordered = rows.orderBy("kafka_partition", "offset").selectExpr(*columns, *times)
    return (_letter(row, explain) for row in ordered.toLocalIterator())


def _letter(row: Row, explain: Explain) -> DeadLetter:
    position = Position(row["topic"], row["topic_id"], row["kafka_partition"], row["offset"])
    headers = tuple((name, _bytes(value)) for name, value in row["headers"] or ())
    key, value = _bytes(row["key"]), _bytes(row["value"])
    verdict = explain(KafkaRecord(position, row["record_timestamp"], key, value, headers))
    reason = Reason(row["reason"])
    same = isinstance(verdict, Rejection) and verdict.reason is reason
    return DeadLetter(
        position=position,
        key=key,
        value=value,
        headers=headers,
        reason=reason,
        rule=row["rule"] or "",
        # The settings may have changed since the batch was judged: then the reason stands, and its cause explains it.
        detail=verdict.detail if same and isinstance(verdict, Rejection) else reason.cause,
        attempt=row["order_position"]["attempt"],
        first_failed_at=row["ingest_time"],
        record_timestamp=row["record_timestamp"],
        schema_id=codec.schema_id(value),
        ingest_batch=row["ingest_batch"],
        order_position=_order_position(row),
    )


def _order_position(row: Row) -> str:
    return str(OrderPosition(**row["order_position"].asDict()))


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


_RECORD: Final = """named_struct('stream_partition', stream_partition, 'kafka_partitions', kafka_partitions, 'data_change', named_struct(
    'table', table, 'row_key', row_key, 'change_type', change_type, 'source_cluster_id', source_cluster_id,
    'commit_timestamp', commit_timestamp, 'tie_breaker', tie_breaker, 'resume_token', resume_token,
    'estimated_low_watermark', timestamp_micros(estimated_low_watermark), 'entries', entries, 'transaction', transaction,
    'change_sequence_number', change_sequence_number, 'row_image', row_image),
    'heartbeat', heartbeat, 'child_partitions', child_partitions)"""


def table_letters(changes: DataFrame, definition: TableDefinition) -> Iterator[DeadLetter]:
    """A letter for each change that the table cannot hold, with the table in its id (TBL-9). `changes` are changelog rows.

    The value is the record encoded again from the changelog, single-object framed: what is in there is all that was on the
    wire, and Avro's writers spell it in one way. The first failure is dated by the ingest of the change, which never changes.
    """
    columns = ("topic", "topic_id", "kafka_partition", "offset", "headers", "row_key", "ingest_batch", "order_position")
    body = to_avro(F.expr(_RECORD), codec.READER_SCHEMA).alias("body")
    times = (F.expr(f"unix_micros({name})").alias(name) for name in ("record_timestamp", "ingest_time"))
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
        key=bytes(row["row_key"]),
        value=value,
        headers=tuple((name, _bytes(header)) for name, header in row["headers"] or ()),
        reason=reason,
        rule="",
        detail=fault.detail if fault else reason.cause,
        attempt=row["order_position"]["attempt"],
        first_failed_at=row["ingest_time"],
        record_timestamp=row["record_timestamp"],
        schema_id=codec.schema_id(value),
        ingest_batch=row["ingest_batch"],
        order_position=_order_position(row),
        table=definition.name,
    )
