"""Rows of the changelog as values."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import Row

from connector.records.ordering import OrderPosition


def order_position(row: Row) -> str:
    return str(OrderPosition(**row["order_position"].asDict()))


def bytes_of(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


RECORD: Final = """named_struct('stream_partition', stream_partition, 'kafka_partitions',
kafka_partitions, 'data_change', named_struct(
    'table', table, 'row_key', row_key, 'change_type', change_type, 'source_cluster_id',
    source_cluster_id,
    'commit_timestamp', commit_timestamp, 'tie_breaker', tie_breaker, 'resume_token', resume_token,
    'estimated_low_watermark', timestamp_micros(estimated_low_watermark), 'entries', entries,
    'transaction', transaction,
    'change_sequence_number', change_sequence_number, 'row_image', row_image,
    'write_stream', write_stream),
    'heartbeat', heartbeat, 'child_partitions', child_partitions, 'release', release)"""
"""A change as a record of the schema."""
