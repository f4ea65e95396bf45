"""The columns of a changelog, as they are stored and shown (TBL-4)."""

from __future__ import annotations

from typing import Final

from connector.records.ordering import OrderPosition
from connector.warehouse import CONTROL_SLOT, MIXED_SLOT, REJECTED_SLOT, STAGED_SLOT, TABLE_SLOTS

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
