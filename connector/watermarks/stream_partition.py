"""The known facts about one stream partition: its claims, key range, parents and end (WMK-1,
WMK-7).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, NamedTuple

from connector.records.model import MAX_TIMESTAMP, ChildPartitions
from connector.records.views import Named

UNBOUNDED: Final = MAX_TIMESTAMP + 1


class KeyRange(NamedTuple):
    """Row keys from `start` up to, and without, `end`. An `end` of None means: up to the last
    key.
    """

    start: Annotated[bytes, Named("start_key")]
    end: Annotated[bytes | None, Named("end_key")]

    def __str__(self) -> str:
        return f"[{self.start!r}, {'end' if self.end is None else repr(self.end)})"


@dataclass(frozen=True, slots=True)
class StreamPartition:
    """The known facts about a stream partition that has not ended.

    - `claims` has the greatest claim for each Kafka partition. It is 0 if records were read, but no
      claim.
    - `start`: none of its changes is older (µs). If its parents name several, this is the least.
    - `roots` are the roots that it descends from. Without roots, it is undeclared (WMK-8).
    - `introduced_at` is the start timestamp of the announcement that first named it, or of the end
      of its parents. Only a later announcement can end it by omitting it.
    - `parents`: it waits for those that have not ended (WMK-7).
    - `ended_in` has, for each Kafka partition in which its end was read, the number of Kafka
      partitions that the end was sent to. `ends_at` is the time of the end (µs).
    - `epochs` has the newest epoch of its producers for each Kafka partition (PUB-4). A Kafka
      partition without an epoch is left out.
    """

    claims: Mapping[int, int] = field(default_factory=dict)
    start: int = 0
    roots: frozenset[str] = frozenset()
    introduced_at: int = UNBOUNDED
    key_range: KeyRange | None = None
    parents: frozenset[str] = frozenset()
    ended_in: Mapping[int, int] = field(default_factory=dict)
    ends_at: int = 0
    epochs: Mapping[int, int] = field(default_factory=dict)

    @property
    def has_ended(self) -> bool:
        """Whether its end was read in every Kafka partition that it may have written to."""
        return is_read_everywhere(self.ended_in)

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
            if self.has_ended
            else self.watermark(self.lagging_partition(kafka_partitions))
        )

    def join(self, other: StreamPartition) -> StreamPartition:
        """Combine the facts of both."""
        ranges = sorted(filter(None, (self.key_range, other.key_range)), key=repr)
        return StreamPartition(
            claims=_greatest(self.claims, other.claims),
            start=min(filter(None, (self.start, other.start)), default=0),
            roots=self.roots | other.roots,
            introduced_at=min(self.introduced_at, other.introduced_at),
            key_range=ranges[-1] if ranges else None,
            parents=self.parents | other.parents,
            ended_in=least(self.ended_in, other.ended_in),
            ends_at=max(self.ends_at, other.ends_at),
            epochs=_greatest(self.epochs, other.epochs),
        )


def is_read_everywhere(read_in: Mapping[int, int]) -> bool:
    """Return whether a control record was read in every Kafka partition that it was sent to.

    `read_in` has, for each Kafka partition where it was read, the number of Kafka partitions that
    it was sent to. Those that were added since do not count (WMK-7).
    """
    count = 1
    while all(k in read_in for k in range(count)):
        sent_to = max(read_in[k] for k in range(count))
        if sent_to <= count:
            return True
        count = sent_to
    return False


def least(first: Mapping[int, int], other: Mapping[int, int]) -> dict[int, int]:
    """Return the lesser value of both maps for each key."""
    return {
        k: min(values[k] for values in (first, other) if k in values)
        for k in sorted({*first, *other})
    }


def _greatest(first: Mapping[int, int], other: Mapping[int, int]) -> dict[int, int]:
    return {k: max(first.get(k, 0), other.get(k, 0)) for k in sorted({*first, *other})}


def parents_in(record: ChildPartitions) -> set[str]:
    """Return the parents in a child-partitions record. An announcement has no parents."""
    return {parent for child in record.children for parent in child.parent_partition_tokens}
