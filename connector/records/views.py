"""Bytes, times and Avro values in the form of the JSON view (REC-22)."""

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
    {
        "commit_timestamp",
        "estimated_low_watermark",
        "timestamp",
        "start_timestamp",
        "cell_timestamp",
        "range_start",
        "range_end",
    }
)


def view_of_bytes(value: bytes) -> str | Json:
    """Return text if the bytes are printable UTF-8. Otherwise return `{"base64": "…"}`."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    return text if text.isprintable() else {"base64": base64.b64encode(value).decode()}


def view_of_time(timestamp: int) -> str | int:
    """Return ISO 8601 in UTC with six decimals for the years 1970 to 9999. Otherwise return the
    microseconds.
    """
    if not 0 <= timestamp <= MAX_TIMESTAMP:
        return timestamp
    return (
        (EPOCH + timestamp * MICROSECOND).isoformat(timespec="microseconds").replace("+00:00", "Z")
    )


def view_of_datum(datum: Any, name: str = "") -> Any:
    """Return a decoded datum in the form of the JSON view, with Avro field names and without nulls.

    The datum may break the rules of a record.
    """
    if isinstance(datum, Mapping):
        return {
            field: view_of_datum(value, field)
            for field, value in datum.items()
            if value is not None
        }
    if isinstance(datum, list):
        return [view_of_datum(item) for item in datum]
    if isinstance(datum, bytes):
        return view_of_bytes(datum)
    return view_of_time(datum) if name in _TIMES and isinstance(datum, int) and datum else datum
