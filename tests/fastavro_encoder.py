"""The reference for our encoder and decoder: records as data of the newest schema, which fastavro
encodes (REC-20).
"""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any, Final

import fastavro

from connector.records.codec import SCHEMA
from connector.records.model import (
    DataChange,
    DeleteCells,
    DeleteFamily,
    Entry,
    Heartbeat,
    Record,
    Release,
    SetCell,
    Truncate,
)

_PARSED: Final = fastavro.parse_schema(json.loads(SCHEMA))


def encode_with_fastavro(record: Record, kafka_partitions: int, claim: int | None = None) -> bytes:
    """Return the Avro body of a record, without framing. `claim` replaces the estimate of a
    change.
    """
    body, datum = BytesIO(), to_datum(record, kafka_partitions)
    if claim is not None:
        datum["data_change"]["estimated_low_watermark"] = claim
    fastavro.schemaless_writer(body, _PARSED, datum, strict=True)
    return body.getvalue()


def to_datum(record: Record, kafka_partitions: int) -> dict[str, Any]:
    """Convert a record to a datum of the newest schema for an Avro library. Times are integers."""
    datum: dict[str, Any] = {
        "stream_partition": record.stream_partition,
        "kafka_partitions": kafka_partitions,
        "data_change": None,
        "heartbeat": None,
        "child_partitions": None,
        "release": None,
        "truncate": None,
    }
    if isinstance(record, DataChange):
        datum["data_change"] = _change_datum(record)
    elif isinstance(record, Release):
        ranges = [_fields(range_) for range_ in record.ranges]
        datum["release"] = {"commit_timestamp": record.commit_timestamp, "ranges": ranges}
    elif isinstance(record, Truncate):
        transaction = record.transaction
        datum["truncate"] = {
            "table": record.table,
            "commit_timestamp": record.commit_timestamp,
            "tie_breaker": record.tie_breaker,
            "transaction": None if transaction is None else _fields(transaction),
            "change_sequence_number": record.change_sequence_number,
        }
    elif isinstance(record, Heartbeat):
        datum["heartbeat"] = {"timestamp": record.timestamp, "resume_token": record.resume_token}
    else:
        datum["child_partitions"] = {
            "start_timestamp": record.start_timestamp,
            "record_sequence": record.record_sequence,
            "children": [
                {
                    "token": child.token,
                    "parent_partition_tokens": list(child.parent_partition_tokens),
                    "start_key": child.start_key,
                    "end_key": child.end_key,
                }
                for child in record.children
            ],
        }
    return datum


def _change_datum(change: DataChange) -> dict[str, Any]:
    image, row = change.row_image, change.write_stream
    return {
        "table": change.table,
        "row_key": change.row_key,
        "change_type": change.change_type.value,
        "source_cluster_id": change.source_cluster_id,
        "commit_timestamp": change.commit_timestamp,
        "tie_breaker": change.tie_breaker,
        "resume_token": change.resume_token,
        "estimated_low_watermark": change.estimated_low_watermark,
        "entries": [_entry_datum(entry) for entry in change.entries],
        "transaction": None if change.transaction is None else _fields(change.transaction),
        "change_sequence_number": change.change_sequence_number,
        "row_image": (
            None
            if image is None
            else {
                "mod_type": image.mod_type.value,
                "value_capture_type": image.value_capture_type,
                "column_types": [_fields(column) for column in image.column_types],
                "old_cells": [_fields(cell) for cell in image.old_cells],
            }
        ),
        "write_stream": None if row is None else _fields(row),
    }


def _entry_datum(entry: Entry) -> dict[str, Any]:
    datum: dict[str, Any] = {"kind": "DELETE_FAMILY", "family": entry.family}
    datum |= {"qualifier": b"", "cell_timestamp": 0, "range_start": 0, "range_end": 0, "value": b""}
    match entry:
        case SetCell():
            datum |= {
                "kind": "SET_CELL",
                "qualifier": entry.qualifier,
                "cell_timestamp": entry.cell_timestamp,
                "value": entry.value,
            }
        case DeleteCells():
            datum |= {
                "kind": "DELETE_CELLS",
                "qualifier": entry.qualifier,
                "range_start": entry.range_start,
                "range_end": entry.range_end,
            }
        case DeleteFamily():
            pass
    return datum


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a flat dataclass. Its attributes have the names of the Avro fields."""
    return {name: getattr(value, name) for name in value.__slots__}
