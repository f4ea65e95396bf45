"""Bytes, times and Avro values as JSON shows them (REC-22)."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from connector.records.model import MAX_TIMESTAMP

Json = dict[str, Any]
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
_TIMES: Final = frozenset(
    {"commit_timestamp", "estimated_low_watermark", "timestamp", "start_timestamp", "cell_timestamp", "range_start", "range_end"}
)


def view_of_bytes(value: bytes) -> str | Json:
    """Text where the bytes are UTF-8 of printable characters only, else `{"base64": "…"}`."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    return text if text.isprintable() else {"base64": base64.b64encode(value).decode()}


def view_of_time(timestamp: int) -> str | int:
    """ISO 8601 in UTC with six decimals from 1970 to 9999, else the microseconds as they are."""
    if not 0 <= timestamp <= MAX_TIMESTAMP:
        return timestamp
    return (EPOCH + timestamp * MICROSECOND).isoformat(timespec="microseconds").replace("+00:00", "Z")


def view_of_datum(datum: Any, name: str = "") -> Any:
    """A decoded datum with its Avro field names, also one that is no legal record: nulls left out, bytes and times as above."""
    if isinstance(datum, Mapping):
        return {field: view_of_datum(value, field) for field, value in datum.items() if value is not None}
    if isinstance(datum, list):
        return [view_of_datum(item) for item in datum]
    if isinstance(datum, bytes):
        return view_of_bytes(datum)
    return view_of_time(datum) if name in _TIMES and isinstance(datum, int) and datum else datum
