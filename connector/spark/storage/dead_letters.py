"""Dead letters, made of the rows of the changelog (TBL-2, TBL-9, DLQ-4).

`validation.validate_record` runs again for rejected records, and gives the explanation for users.
After a crash, the same dead letter has the same id and the same content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import to_avro

from connector.dead_letters.envelope import DeadLetter
from connector.records import codec
from connector.records.model import CONTROL_KEY, Mutation, Truncate
from connector.records.ordering import OrderPosition
from connector.records.rejection import Position, Reason, Rejection
from connector.tables.definition import TableDefinition
from connector.tables.row import read_change
from connector.validation import KafkaRecord

Explain = Callable[[KafkaRecord], object]
"""`validation.validate_record` with the stream's settings. It returns a `Rejection`, or another
value if it finds no error.
"""
_COLUMNS: Final = (
    *("topic", "topic_id", "kafka_partition", "offset", "headers", "ingest_batch"),
    "order_position",
)
_TIMES: Final = ("record_timestamp", "ingest_time")
_RECORD: Final = """named_struct('stream_partition', stream_partition, 'kafka_partitions',
kafka_partitions, 'data_change', CASE WHEN kind = 'change' THEN named_struct(
    'table', table, 'row_key', row_key, 'change_type', change_type, 'source_cluster_id',
    source_cluster_id,
    'commit_timestamp', commit_timestamp, 'tie_breaker', tie_breaker, 'resume_token', resume_token,
    'estimated_low_watermark', timestamp_micros(estimated_low_watermark), 'entries', entries,
    'transaction', transaction,
    'change_sequence_number', change_sequence_number, 'row_image', row_image,
    'write_stream', write_stream) END,
    'heartbeat', heartbeat, 'child_partitions', child_partitions, 'release', release,
    'truncate', CASE WHEN kind = 'truncate' THEN named_struct(
    'table', table, 'commit_timestamp', commit_timestamp, 'tie_breaker', tie_breaker,
    'transaction', transaction, 'change_sequence_number', change_sequence_number) END)"""
"""A change or truncation as a record of the schema."""


def rejected_letters(rows: DataFrame, explain: Explain) -> Iterator[DeadLetter]:
    """A dead letter for each rejected row of a batch, ordered by Kafka partition and offset.

    The rows of one Spark task are in memory at a time.
    """
    ordered = _ordered(rows, *map(F.col, ("key", "value", "reason", "rule")))
    return (_rejected_letter(row, explain) for row in ordered.toLocalIterator())


def _rejected_letter(row: Row, explain: Explain) -> DeadLetter:
    key, value = _bytes(row["key"]), _bytes(row["value"])
    record = KafkaRecord(_position(row), row["record_timestamp"], key, value, _headers(row))
    verdict, reason = explain(record), Reason(row["reason"])
    # The settings may have changed since the batch was validated. Then the reason stays, and its
    # cause is the explanation.
    same = isinstance(verdict, Rejection) and verdict.reason is reason
    detail = verdict.detail if same and isinstance(verdict, Rejection) else reason.cause
    return _letter(row, key, value, reason, detail, rule=row["rule"] or "")


def table_letters(changes: DataFrame, definition: TableDefinition) -> Iterator[DeadLetter]:
    """A dead letter for each change that the table cannot hold, with the table in its id (TBL-9),
    and for each truncation without the number by which the table is ordered (MRG-2).

    The value is the record, encoded again with single-object framing. The changelog has all its
    fields, and Avro encodes them in one way only. A repeated apply makes the same dead letter.
    """
    body = to_avro(F.expr(_RECORD), codec.SCHEMA).alias("body")
    key = F.coalesce(F.col("row_key"), F.lit(CONTROL_KEY)).alias("row_key")
    ordered = _ordered(changes, key, body)
    return (_table_letter(row, definition) for row in ordered.toLocalIterator())


def _table_letter(row: Row, definition: TableDefinition) -> DeadLetter:
    value = codec.frame(bytes(row["body"]), None)
    decoded = codec.decode(value, codec.Schemas())
    assert isinstance(decoded, codec.ChangeRecord), decoded
    assert isinstance(decoded.record, Mutation)
    if isinstance(decoded.record, Truncate):
        missing = Reason.MISSING_SEQUENCE_NUMBER
        fault: Rejection | None = Rejection(missing, missing.cause)
    else:
        fault = read_change(definition, decoded.record)
    reason = fault.reason if fault else Reason.UNREADABLE_VALUE
    detail = fault.detail if fault else reason.cause
    return _letter(row, _bytes(row["row_key"]), value, reason, detail, table=definition.name)


def _ordered(rows: DataFrame, *columns: Column) -> DataFrame:
    times = (F.expr(f"unix_micros({name})").alias(name) for name in _TIMES)
    return rows.orderBy("kafka_partition", "offset").select(*_COLUMNS, *times, *columns)


def _letter(
    row: Row, key: bytes | None, value: bytes | None, reason: Reason, detail: str, **others: str
) -> DeadLetter:
    return DeadLetter(
        position=_position(row),
        key=key,
        value=value,
        headers=_headers(row),
        reason=reason,
        detail=detail,
        attempt=row["order_position"]["attempt"],
        first_failed_at=row["ingest_time"],
        record_timestamp=row["record_timestamp"],
        schema_id=codec.schema_id(value),
        ingest_batch=row["ingest_batch"],
        order_position=str(OrderPosition(**row["order_position"].asDict())),
        **{"rule": "", **others},
    )


def _position(row: Row) -> Position:
    return Position(row["topic"], row["topic_id"], row["kafka_partition"], row["offset"])


def _headers(row: Row) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((name, _bytes(value)) for name, value in row["headers"] or ())


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
