"""Dead letters of rejected records, made from the commit that rejected them (TBL-2, DLQ-4).

The rows have the reason of each rejection. `validation.validate_record` runs again for these
records, and gives the explanation for users. The result does not depend on time. So after a crash,
the same dead letter has the same id and the same content.
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
"""`validation.validate_record` with the stream's settings. It returns a `Rejection`, or another
value if it finds no error.
"""


def rejected_letters(rows: DataFrame, explain: Explain) -> Iterator[DeadLetter]:
    """A dead letter for each rejected row of a batch, ordered by Kafka partition and offset.

    The rows of one Spark task are in memory at a time.
    """
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
    times = (
        "unix_micros(record_timestamp) AS record_timestamp",
        "unix_micros(ingest_time) AS ingest_time",
    )
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
        # The settings may have changed since the batch was validated. Then the reason stays, and
        # its cause is the explanation.
        detail=verdict.detail if same and isinstance(verdict, Rejection) else reason.cause,
        attempt=row["order_position"]["attempt"],
        first_failed_at=row["ingest_time"],
        record_timestamp=row["record_timestamp"],
        schema_id=codec.schema_id(value),
        ingest_batch=row["ingest_batch"],
        order_position=order_position(row),
    )
