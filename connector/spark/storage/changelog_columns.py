"""The columns of a changelog, as they are computed, stored and shown (TBL-4)."""

from __future__ import annotations

from typing import Final

from connector.records.ordering import OrderPosition
from connector.spark.sql import constant
from connector.warehouse import CONTROL_SLOT, MIXED_SLOT, REJECTED_SLOT, STAGED_SLOT, TABLE_SLOTS

_COLUMNS: Final = (
    """CASE WHEN reason IS NOT NULL THEN 'rejected'
        WHEN data_change IS NOT NULL AND data_change.entries IS NULL THEN 'erased'
        WHEN data_change.commit_timestamp = 0
        THEN 'staged' WHEN data_change IS NOT NULL THEN 'change' WHEN truncate IS NOT NULL
        THEN 'truncate' ELSE 'control' END AS kind""",
    "{ingest_batch} AS ingest_batch",
    "partition AS kafka_partition",
    "offset",
    "coalesce(data_change.table, truncate.table) AS table",
    """timestamp_micros(coalesce(nullif(data_change.commit_timestamp, 0),
        truncate.commit_timestamp)) AS commit_timestamp""",
    "data_change.row_key AS row_key",
    """named_struct('ingest_batch', coalesce(first.ingest_batch, {ingest_batch}), 'kafka_partition',
        coalesce(first.kafka_partition, partition), 'offset', coalesce(first.offset, offset),
        'attempt', attempt) AS order_position""",
    "topic",
    "'{topic_id}' AS topic_id",
    "timestamp AS record_timestamp",
    "timestamp_micros({ingest_time}) AS ingest_time",
    "headers",
    "stream_partition",
    "kafka_partitions",
    "data_change.change_type AS change_type",
    "data_change.source_cluster_id AS source_cluster_id",
    "coalesce(data_change.tie_breaker, truncate.tie_breaker) AS tie_breaker",
    "data_change.resume_token AS resume_token",
    "data_change.estimated_low_watermark AS estimated_low_watermark",
    "data_change.entries AS entries",
    "coalesce(data_change.transaction, truncate.transaction) AS transaction",
    """coalesce(data_change.change_sequence_number, truncate.change_sequence_number)
        AS change_sequence_number""",
    "data_change.row_image AS row_image",
    "heartbeat",
    "child_partitions",
    "reason",
    "rule",
    """CASE WHEN reason IS NOT NULL THEN concat('{topic_id}-', partition, '-',
    offset) END AS letter_id""",
    "CASE WHEN reason IS NOT NULL THEN key END AS key",
    "CASE WHEN reason IS NOT NULL OR keeps_value THEN value END AS value",
    "cast(null AS string) AS frontier",
    "data_change.write_stream AS write_stream",
    "release",
    "cast(null AS bigint) AS released_from",
    """int(crc32(data_change.row_key) - shiftright(crc32(data_change.row_key), 31) * 4294967296L)
        AS _hash""",
    """CASE WHEN reason IS NOT NULL THEN {rejected} WHEN data_change IS NULL THEN {control}
         WHEN data_change.table IS NULL THEN {rejected}
         WHEN data_change.commit_timestamp = 0 THEN {staged}
         ELSE int(pmod(crc32(cast(data_change.table AS binary)), {slots})) END AS slot""",
)

_ALL_DIFFERENT: Final = (
    "row_key",
    "offset",
    "order_position.offset",
    "commit_timestamp",
    "estimated_low_watermark",
    "resume_token",
    "entries.list.element.cell_timestamp",
    "entries.list.element.value",
)
"""Columns that a dictionary would only make slower."""

_NEVER_SEARCHED: Final = (
    *(f"entries.list.element.{name}" for name in ("kind", "family", "qualifier", "value")),
    *(f"entries.list.element.{name}" for name in ("cell_timestamp", "range_start", "range_end")),
    *(f"order_position.{name}" for name in OrderPosition._fields),
    "topic_id",
    "record_timestamp",
    "ingest_time",
    "stream_partition",
    "kafka_partitions",
    "change_type",
    "source_cluster_id",
    "tie_breaker",
    "resume_token",
    "estimated_low_watermark",
)
"""Columns whose minimum and maximum are never used."""

PARQUET_SETTINGS: Final = {
    **{f"spark.hadoop.parquet.enable.dictionary#{column}": "false" for column in _ALL_DIFFERENT},
    **{
        f"spark.hadoop.parquet.column.statistics.enabled#{column}": "false"
        for column in _NEVER_SEARCHED
    },
}
"""Settings of the session with which a changelog is written a sixth faster. Delta passes only a
part of a writer's options to Parquet.
"""


PAYLOAD: Final = ("row_key", "_hash", "headers", "entries", "change_sequence_number", "row_image")
"""The columns that are removed from a staged row that expired (WRS-21)."""
ERASED: Final = (*PAYLOAD, "resume_token", "key", "value")
"""The columns that are removed from an erased row (OPR-2). `row_key` becomes a hash of the key."""


def columns_of_batch(ingest_batch: int, topic_id: str, ingest_time: int) -> list[str]:
    """The columns of a batch, as SQL expressions over validated rows."""
    values: dict[str, object] = {
        "ingest_batch": constant(ingest_batch, "partition"),
        "topic_id": topic_id,
        "ingest_time": constant(ingest_time, "partition"),
        "rejected": REJECTED_SLOT,
        "control": CONTROL_SLOT,
        "staged": STAGED_SLOT,
        "slots": TABLE_SLOTS,
    }
    return [column.format(**values) for column in _COLUMNS]


SLOT_OF_TABLE: Final = f"int(pmod(crc32(cast(`table` AS binary)), {TABLE_SLOTS}))"
"""The slot of the changes of a source table, as SQL: `warehouse.table_slot`."""
IS_STAGED: Final = """(kind IN ('staged', 'expired')
    OR (kind = 'erased' AND write_stream IS NOT NULL AND commit_timestamp IS NULL))"""
"""Whether a row is a staged row, or one that expired or was erased."""
OWN_SLOT: Final = f"""CASE WHEN slot <> {MIXED_SLOT} THEN slot
    WHEN kind IN ('control', 'truncate') THEN {CONTROL_SLOT}
    WHEN kind = 'rejected' OR `table` IS NULL THEN {REJECTED_SLOT}
    WHEN {IS_STAGED} THEN {STAGED_SLOT}
    ELSE {SLOT_OF_TABLE} END"""
"""The slot of a row if it is not in one of small batches, as SQL."""

ENTRIES: Final = (
    *("row_key", "entry.kind AS mod_type", "entry.family AS column_family"),
    *("entry.qualifier AS column", "entry.cell_timestamp", "entry.range_start"),
    *("entry.range_end", "entry.value", "commit_timestamp", "tie_breaker"),
    *("change_type = 'GARBAGE_COLLECTION' AS is_gc", "source_cluster_id", "table"),
    *("ingest_batch", "kafka_partition", "offset", "entry_index"),
)
"""The columns of Bigtable's change log, over rows with `entry` and `entry_index`."""
