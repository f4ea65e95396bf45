"""The low watermark of one reader of a stream (SUB-2), and the check of its range (SUB-1, SUB-5).

A reader gives each record to `add`, and calls `advance` after some records. It gets the new low
watermark when there is one. The rules are those of ingest: `connector.watermarks.frontier`.

A reader of some Kafka partitions has a low watermark of these Kafka partitions only. Then the
frontier counts them, in ascending order, as its Kafka partitions from 0 on.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

from connector.errors import argument_invalid
from connector.records.model import ChildPartitions, DataChange, Record, Release, Truncate
from connector.watermarks.advance import advance
from connector.watermarks.frontier import (
    UNKNOWN,
    BatchClaims,
    Frontier,
    LineageRecord,
    Stall,
    is_claim,
)

REMEMBERED_US: Final = 7 * 86_400_000_000
"""How long the end of a stream partition is remembered, counted back from the low watermark. A
topic keeps its records at most as long (REC-2).
"""


@dataclass(frozen=True, slots=True)
class Watermark:
    """The low watermark of the Kafka partitions that a consumer reads, after it has advanced.

    - `low_watermark` (µs): each change of these Kafka partitions with a smaller commit timestamp
      came before, if the watermarks of the source are true. A later one is late.
    - `lagging_partition` has the `stream_partition` that delays the low watermark, the
      `kafka_partition` where its watermark is least, this `watermark`, and the time `since` when it
      has it. None: no stream partition is live.
    """

    low_watermark: int
    lagging_partition: Stall | None = None


class WatermarkTracker:
    """The frontier of one reader, and the claims that it has read since the last `advance`."""

    def __init__(
        self,
        *,
        roots: frozenset[str] = frozenset(),
        max_clock_skew_s: int = 300,
        only: frozenset[int] | None = None,
        frontier: Frontier = UNKNOWN,
    ) -> None:
        """Start with the frontier of everything that was read before.

        The low watermark is unknown until each of `roots` has sent a record (WMK-6). `only` are the
        Kafka partitions that are read. None: all of the topic.
        """
        self.frontier = frontier
        self._roots, self._skew = roots, max_clock_skew_s * 1_000_000
        self._only = None if only is None else sorted(only)
        self._kafka_partitions = frontier.kafka_partitions
        self._claims: dict[str, dict[int, int]] = {}
        self._lineage: list[LineageRecord] = []

    @property
    def low_watermark(self) -> int | None:
        return self.frontier.low_watermark

    @property
    def has_news(self) -> bool:
        """Whether `advance` may change something."""
        return bool(self._claims or self._lineage)

    @property
    def lagging_partition(self) -> Stall | None:
        """The live stream partition with the least low watermark, and its Kafka partition."""
        stall = self.frontier.lagging_partition
        if stall is None or self._only is None:
            return stall
        return stall._replace(kafka_partition=self._only[stall.kafka_partition])

    def restart(self, only: frozenset[int]) -> None:
        """Start again with other Kafka partitions, and with nothing known."""
        self.frontier, self._only = UNKNOWN, sorted(only)
        self._kafka_partitions, self._claims, self._lineage = 0, {}, []

    def add(
        self, record: Record, kafka_partition: int, kafka_partitions: int, arrival: int
    ) -> None:
        """Take the claims of an accepted record. A replay of a dead letter has none (DLQ-10).

        `kafka_partitions` is the number that the record names (REC-24). `arrival` is its record
        timestamp (µs).
        """
        k, named = self._counted(kafka_partition), self._counted(kafka_partitions)
        self._kafka_partitions = max(self._kafka_partitions, named)
        if isinstance(record, ChildPartitions):
            self._lineage.append(LineageRecord(k, named, record))
            return
        if isinstance(record, Release | Truncate):
            return  # it makes no claim (WRS-11, EVO-13)
        if isinstance(record, DataChange) and record.is_staged:
            return
        if isinstance(record, DataChange):
            claim = record.estimated_low_watermark
            if not is_claim(claim, arrival, self._skew):
                claim = 0
        else:
            claim = record.timestamp + 1
        by_kafka_partition = self._claims.setdefault(record.stream_partition, {})
        by_kafka_partition[k] = max(by_kafka_partition.get(k, 0), claim)

    def advance(self, now: int, kafka_partitions: int) -> Watermark | None:
        """Take the claims into the frontier. Return the low watermark if it has advanced.

        `now` is the clock of the reader (µs). `kafka_partitions` is the number of the topic.
        """
        self._kafka_partitions = max(self._kafka_partitions, self._counted(kafka_partitions))
        before = self.frontier
        if not self._kafka_partitions:
            return None  # a consumer group has given no Kafka partition yet
        if not self.has_news and self._kafka_partitions == before.kafka_partitions:
            return None
        batch = BatchClaims(self._kafka_partitions, self._claims, tuple(self._lineage))
        low = before.low_watermark
        horizon = None if low is None else low - REMEMBERED_US
        self.frontier = advance(before, batch, now=now, horizon=horizon, roots=self._roots)
        self._claims, self._lineage = {}, []
        if self.frontier.low_watermark is None or self.frontier.low_watermark == low:
            return None
        return Watermark(self.frontier.low_watermark, self.lagging_partition)

    def _counted(self, number: int) -> int:
        """Return how many of the Kafka partitions below `number` are read."""
        return number if self._only is None else bisect_left(self._only, number)


def check_range(start_commit: int | None, end_commit: int | None, now: int) -> None:
    """Raise `ConfigError` if a range of commit time (µs) begins in the future, or ends before it
    begins.
    """
    if start_commit is None:
        return
    if end_commit is not None and end_commit < start_commit:
        raise argument_invalid("start_commit", start_commit, f"at or before the end {end_commit}")
    if start_commit > now:
        allowed = f"at most {now}, the present time. A range may only end in the future"
        raise argument_invalid("start_commit", start_commit, allowed)
