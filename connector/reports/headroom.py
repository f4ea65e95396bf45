"""How long Kafka keeps the records that ingest lacks (RUN-7)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from connector.records.views import Time
from connector.text import duration

DAY_US: Final = 86_400_000_000


class Headroom(NamedTuple):
    """The first record of a Kafka partition that ingest lacks, when it arrived, and from when on
    Kafka may delete it, according to the `retention.ms` of the topic. With `retention.bytes`, Kafka
    may delete it earlier.
    """

    kafka_partition: int
    offset: int
    arrived_at: Time
    deleted_at: Time

    def left_s(self, now: int) -> float:
        """Return the seconds that are left at the time `now` (µs)."""
        return max(0, self.deleted_at - now) / 1_000_000

    def is_low(self, now: int) -> bool:
        """Return whether less than a day is left, or less than half of a retention below two days:
        otherwise each record of such a topic would be one to warn about.
        """
        return self.deleted_at - now < min(DAY_US, (self.deleted_at - self.arrived_at) // 2)

    def describe(self, now: int) -> str:
        """Return how long the record is kept, and what to do, as one sentence."""
        return (
            f"Kafka may delete the first record that ingest lacks in {duration(self.left_s(now))}"
            f" (offset {self.offset} of Kafka partition {self.kafka_partition}). Let ingest catch"
            " up, or raise the retention of the topic"
        )


def least(headrooms: Iterable[Headroom]) -> Headroom | None:
    """Return the one that Kafka may delete first, if there is one."""
    return min(headrooms, key=lambda headroom: headroom.deleted_at, default=None)


def least_low(headrooms: Iterable[Headroom], now: int) -> Headroom | None:
    """Return the one that Kafka may delete first, of those that are low at the time `now` (µs)."""
    return least(headroom for headroom in headrooms if headroom.is_low(now))
