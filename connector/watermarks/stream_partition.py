"""The known facts about one stream partition: its claims, key range, parents and end (WMK-1,
WMK-7).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from connector.records.model import MAX_TIMESTAMP

UNBOUNDED: Final = MAX_TIMESTAMP + 1


class KeyRange(NamedTuple):
    """Row keys from `start` up to, and without, `end`. An `end` of None means: up to the last
    key.
    """

    start: bytes
    end: bytes | None

    def __str__(self) -> str:
        return f"[{self.start!r}, {'end' if self.end is None else repr(self.end)})"


@dataclass(frozen=True, slots=True)
class StreamPartition:
    """The known facts about a stream partition that has not ended.

    - `claims` has the greatest claim for each Kafka partition. It is 0 if records were read, but no
      claim.
    - `start`: none of its changes is older (µs).
    - `roots` are the roots that it descends from. Without roots, it is undeclared (WMK-8).
    - `introduced_by` is the announcement that first named it, as (start timestamp, record
      sequence), or the end of its parents. Only a later announcement can end it by omitting it.
    - `parents`: it waits for those that have not ended (WMK-7).
    - `ended_in` are the Kafka partitions in which its end was read, and `ends_at` is the time of
      the end (µs).
    - `end_expected_in`: the end must be read in the first so many Kafka partitions. The record of
      the end has this number. It is 0 if the end is only known from announcements that omit the
      stream partition.
    - `epochs` has the newest epoch of its producers for each Kafka partition (PUB-4). A Kafka
      partition without an epoch is left out.
    """

    claims: Mapping[int, int] = field(default_factory=dict)
    start: int = 0
    roots: frozenset[str] = frozenset()
    introduced_by: tuple[int, int] = (UNBOUNDED, 0)
    key_range: KeyRange | None = None
    parents: frozenset[str] = frozenset()
    ended_in: frozenset[int] = frozenset()
    end_expected_in: int = 0
    ends_at: int = 0
    epochs: Mapping[int, int] = field(default_factory=dict)

    def has_ended(self, kafka_partitions: int) -> bool:
        """Return whether its end was read in every Kafka partition that it may have written to.

        These are the first `end_expected_in` Kafka partitions, or all.
        """
        return bool(self.ended_in) and self.ended_in.issuperset(
            range(self.end_expected_in or kafka_partitions)
        )

    def watermark(self, kafka_partition: int) -> int:
        """W[p, k]: the watermark in one Kafka partition. It is 0 if it is not known."""
        end = self.ends_at if kafka_partition in self.ended_in else 0
        return max(self.start, end, self.claims.get(kafka_partition, 0))

    def lagging_partition(self, kafka_partitions: int) -> int:
        """The Kafka partition with its least watermark."""
        return min(range(kafka_partitions), key=self.watermark)

    def low_watermark(self, kafka_partitions: int) -> int:
        """The least watermark of all Kafka partitions. If it has ended, the time of its end."""
        return (
            max(self.start, self.ends_at)
            if self.has_ended(kafka_partitions)
            else self.watermark(self.lagging_partition(kafka_partitions))
        )

    def join(self, other: StreamPartition) -> StreamPartition:
        """Combine the facts of both."""
        ranges = sorted(filter(None, (self.key_range, other.key_range)), key=repr)
        return StreamPartition(
            claims=_greatest(self.claims, other.claims),
            start=max(self.start, other.start),
            roots=self.roots | other.roots,
            introduced_by=min(self.introduced_by, other.introduced_by),
            key_range=ranges[-1] if ranges else None,
            parents=self.parents | other.parents,
            ended_in=self.ended_in | other.ended_in,
            end_expected_in=max(self.end_expected_in, other.end_expected_in),
            ends_at=max(self.ends_at, other.ends_at),
            epochs=_greatest(self.epochs, other.epochs),
        )


def _greatest(one: Mapping[int, int], other: Mapping[int, int]) -> dict[int, int]:
    return {k: max(one.get(k, 0), other.get(k, 0)) for k in sorted({*one, *other})}
