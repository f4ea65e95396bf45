"""The columns of Kafka's records, of the records that they contain, and of a changelog, as Arrow
has them.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

_TIME: Final = pa.timestamp("us", "UTC")


def _struct(**fields: pa.DataType) -> pa.StructType:
    return pa.struct(list(fields.items()))


_HEADERS: Final = pa.list_(_struct(key=pa.string(), value=pa.binary()))

KAFKA: Final = pa.schema(
    {
        "kafka_partition": pa.int32(),
        "offset": pa.int64(),
        "record_timestamp": pa.int64(),
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": _HEADERS,
    }
)
"""Records of one topic. `record_timestamp` (µs) is the time of arrival (REC-25)."""

POSITION: Final = _struct(
    ingest_batch=pa.int64(), kafka_partition=pa.int32(), offset=pa.int64(), attempt=pa.int32()
)
_ENTRY: Final = _struct(
    kind=pa.string(),
    family=pa.string(),
    qualifier=pa.binary(),
    cell_timestamp=pa.int64(),
    range_start=pa.int64(),
    range_end=pa.int64(),
    value=pa.binary(),
)
_TRANSACTION: Final = _struct(
    server_transaction_id=pa.string(),
    record_sequence=pa.int64(),
    is_last_record_in_transaction_in_partition=pa.bool_(),
    number_of_records_in_transaction=pa.int32(),
    number_of_partitions_in_transaction=pa.int32(),
    transaction_tag=pa.string(),
    is_system_transaction=pa.bool_(),
)
_COLUMN_TYPE: Final = _struct(
    name=pa.string(),
    type=pa.string(),
    is_primary_key=pa.bool_(),
    ordinal_position=pa.int32(),
)
_OLD_CELL: Final = _struct(
    family=pa.string(), qualifier=pa.binary(), value=pa.binary(), cell_timestamp=pa.int64()
)
_ROW_IMAGE: Final = _struct(
    mod_type=pa.string(),
    value_capture_type=pa.string(),
    column_types=pa.list_(_COLUMN_TYPE),
    old_cells=pa.list_(_OLD_CELL),
)
_CHILD: Final = _struct(
    token=pa.string(),
    parent_partition_tokens=pa.list_(pa.string()),
    start_key=pa.binary(),
    end_key=pa.binary(),
)
_RANGE: Final = _struct(stream=pa.string(), first=pa.int64(), upto=pa.int64())

RECORD: Final = pa.schema(
    {
        "kind": pa.string(),
        "table": pa.string(),
        "commit_timestamp": _TIME,
        "row_key": pa.binary(),
        "stream_partition": pa.string(),
        "kafka_partitions": pa.int32(),
        "change_type": pa.string(),
        "source_cluster_id": pa.string(),
        "tie_breaker": pa.int64(),
        "resume_token": pa.binary(),
        "estimated_low_watermark": pa.int64(),
        "entries": pa.list_(_ENTRY),
        "transaction": _TRANSACTION,
        "change_sequence_number": pa.string(),
        "row_image": _ROW_IMAGE,
        "heartbeat": _struct(timestamp=pa.int64(), resume_token=pa.binary()),
        "child_partitions": _struct(
            start_timestamp=pa.int64(), record_sequence=pa.int64(), children=pa.list_(_CHILD)
        ),
        "write_stream": _struct(stream=pa.string(), offset=pa.int64()),
        "release": _struct(commit_timestamp=pa.int64(), ranges=pa.list_(_RANGE)),
    }
)
"""What a changelog has of the content of a valid record, one row a record. A column is null if the
record has no such field. `kind` is `change`, `staged`, `truncate` or `control`. The commit
timestamp of a staged change is null.
"""

CHANGELOG: Final = pa.schema(
    {
        "kind": pa.string(),
        "ingest_batch": pa.int64(),
        "kafka_partition": pa.int32(),
        "offset": pa.int64(),
        "table": pa.string(),
        "commit_timestamp": _TIME,
        "row_key": pa.binary(),
        "order_position": POSITION,
        "topic": pa.string(),
        "topic_id": pa.string(),
        "record_timestamp": _TIME,
        "ingest_time": _TIME,
        "headers": _HEADERS,
        **{name: RECORD.field(name).type for name in RECORD.names[4:17]},
        "reason": pa.string(),
        "rule": pa.string(),
        "letter_id": pa.string(),
        "key": pa.binary(),
        "value": pa.binary(),
        "frontier": pa.string(),
        "write_stream": RECORD.field("write_stream").type,
        "release": RECORD.field("release").type,
        "released_from": pa.int64(),
        "_hash": pa.int32(),
    }
)
"""The columns of a changelog, but for the slot, which is its partition column (TBL-4, ENG-10)."""
STATISTICS: Final = ("ingest_batch", "kafka_partition", "offset", "table", "commit_timestamp")
"""The columns of a changelog whose least and greatest values the log has for each file."""

OF_CHANGE: Final = (
    *("table", "row_key", "commit_timestamp", "tie_breaker", "transaction"),
    *("change_sequence_number", "entries", "order_position", "stream_partition", "change_type"),
    *("source_cluster_id", "ingest_batch"),
)
"""The columns of a change that an apply reads."""
