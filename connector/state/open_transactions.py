"""Transactions in Kafka that have not ended. They hide the records behind them from every reader of
committed records (OPS-5).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from connector.records.views import Time, view_of_time
from connector.text import counted, duration

NORMAL_US: Final = 60_000_000
"""A transaction that is open for less is no problem."""


class OpenTransaction(NamedTuple):
    """The oldest open transaction of a Kafka partition.

    `first_offset` is that of its first record, which arrived at `since` (µs) and is of the
    `stream_partition`. Empty: it is no record of a known schema. `hidden` is the number of offsets
    from there to the end.
    """

    kafka_partition: int
    first_offset: int
    hidden: int
    since: Time
    stream_partition: str = ""

    def describe(self, now: int) -> str:
        """Return what is known of it, and what you can do, as one sentence."""
        of = (
            f"of stream partition {self.stream_partition}"
            if self.stream_partition
            else "not a record of a known schema"
        )
        return (
            f"an open transaction hides {counted(self.hidden, 'offset')} of Kafka partition"
            f" {self.kafka_partition}: its first record, at offset {self.first_offset}, arrived"
            f" {duration(max(0, now - self.since) / 1_000_000)} ago"
            f" ({view_of_time(self.since)}), and is {of}. End or restart its producer, or wait for"
            " its transaction.timeout.ms"
        )


def not_passed(
    known: Iterable[OpenTransaction], ends: Mapping[int, int]
) -> tuple[OpenTransaction, ...]:
    """Return those that hold reading up, if it has reached `ends`. One that reading has passed has
    ended, and one that reading has not reached hides nothing yet.
    """
    return tuple(one for one in known if ends.get(one.kafka_partition, 0) == one.first_offset)
