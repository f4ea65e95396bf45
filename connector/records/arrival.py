"""When a record arrived in Kafka, as far as its record timestamp can be believed (REC-25).

On a topic with `CreateTime`, the record timestamp is any number that a client wrote: in another
unit, negative, far in the future, or missing. Such a number must not decide anything. The Kafka
clients of lowmark apply this rule where they take a record, and `spark.ingest.source` repeats it in
SQL. A test compares both. So all other code gets times that are possible.
"""

from __future__ import annotations

from typing import Final

from connector.records.model import MAX_TIMESTAMP

EARLIEST_ARRIVAL: Final = 1_293_840_000_000_000
"""2011-01-01. Kafka did not exist before."""

MAX_AHEAD_US: Final = 300_000_000
"""How far the clock of a client may be ahead of the clock of the reader: 5 minutes."""


def arrival(milliseconds: int, *, by_broker: bool, read_at: int) -> int | None:
    """Return the time of arrival (µs) that a record timestamp says. None: it is not believed, and
    the time of reading is used instead.

    Args:
        milliseconds: The record timestamp, as Kafka has it.
        by_broker: Whether the broker wrote it (`LogAppendTime`). Its clock may be any time ahead.
        read_at: The time (µs) at which the reader asked Kafka. The record arrived before.
    """
    latest = MAX_TIMESTAMP if by_broker else read_at + MAX_AHEAD_US
    return milliseconds * 1000 if EARLIEST_ARRIVAL <= milliseconds * 1000 <= latest else None
