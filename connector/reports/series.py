"""Series and their samples, and the series of a producer (MET-1). Those of a pipeline are in
`metrics`, whose imports a producer does not need.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Literal, NamedTuple

BUCKETS_S: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""The upper bounds of the buckets of durations."""

ACKNOWLEDGEMENT_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
"""The upper bounds of the buckets of the times that Kafka needs to acknowledge a message."""

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Series:
    """The declaration of a series. A counter is exported with the suffix `_total`."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


@dataclass(frozen=True, slots=True)
class Histogram:
    """Durations in seconds: the number in each bucket up to one of `bounds`, and above."""

    counts: tuple[int, ...] = (0,) * (len(BUCKETS_S) + 1)
    sum: float = 0.0
    bounds: tuple[float, ...] = BUCKETS_S

    def with_values(self, durations: Iterable[float]) -> Histogram:
        """Return the histogram with these durations, too."""
        counts, total, bounds = list(self.counts), self.sum, self.bounds
        for seconds in durations:
            counts[bisect_left(bounds, seconds)] += 1
            total += seconds
        return Histogram(tuple(counts), total, bounds)

    def with_value(self, seconds: float) -> Histogram:
        return self.with_values((seconds,))

    @property
    def cumulative(self) -> list[tuple[str, float]]:
        """The buckets as OpenMetrics has them."""
        bounds = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        return list(zip(bounds, accumulate(self.counts), strict=True))


class Sample(NamedTuple):
    """A value of a series, with the values of its labels."""

    series: Series
    value: float | Histogram
    labels: tuple[str, ...] = ()


NO_DURATIONS: Final = Histogram()


def _of_producer(kind: Kind, name: str, text: str) -> Series:
    return Series(f"lowmark_producer_{name}", kind, ("topic",), text)


NO_ACKNOWLEDGEMENTS: Final = Histogram(
    (0,) * (len(ACKNOWLEDGEMENT_BUCKETS_S) + 1), 0.0, ACKNOWLEDGEMENT_BUCKETS_S
)
QUEUED: Final = _of_producer(
    "gauge",
    "queued_messages",
    "Messages in Kafka's client without a result. A control record has one for each Kafka"
    " partition.",
)
ACKNOWLEDGED: Final = _of_producer(
    "histogram",
    "acknowledgement_seconds",
    "Time from the queue of Kafka's client to the acknowledgement of a message.",
)
FAILED: Final = _of_producer(
    "counter", "failed_messages", "Messages that Kafka refused, or whose outcome is unknown."
)
DELIVERED: Final = _of_producer(
    "counter", "delivered_records", "Acknowledged records that the program sent."
)
UNDELIVERED: Final = _of_producer(
    "gauge", "undelivered_records", "Failed records that the program has to send again."
)
STORED: Final = _of_producer(
    "gauge", "outbox_records", "Records in the outbox that Kafka has not acknowledged."
)
STORED_AGE: Final = _of_producer(
    "gauge",
    "outbox_oldest_age_seconds",
    "Age of the oldest of them. Those of an earlier process count from the start of this one.",
)
PRODUCER_SERIES: Final = (QUEUED, ACKNOWLEDGED, FAILED, DELIVERED, UNDELIVERED, STORED, STORED_AGE)
"""All series of a producer, in the order of the reference page."""
