"""Dead letters, from the commit that rejected their records (TBL-2, DLQ-4).

The JVM says which record is bad and why; `validation.validate_record` is asked again, for these alone, for the words a person needs.
Nothing here depends on when it runs, so a crash repeats a letter with the same id and the same content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pyspark.sql import DataFrame, Row

from connector.dead_letters.envelope import DeadLetter
from connector.records import codec
from connector.records.rejection import Position, Reason, Rejection
from connector.spark.storage.changelog_rows import bytes_of, order_position
from connector.validation import KafkaRecord

Explain = Callable[[KafkaRecord], object]
"""`validation.validate_record` with the stream's settings: a `Rejection`, or anything else if it finds no fault."""


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
    headers = tuple((name, bytes_of(value)) for name, value in row["headers"] or ())
    key, value = bytes_of(row["key"]), bytes_of(row["value"])
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
        order_position=order_position(row),
    )
