"""What is known of one stream partition: its claims, its key range, its parents and its end (WMK-1, WMK-7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from connector.records.model import MAX_TIMESTAMP

UNBOUNDED: Final = MAX_TIMESTAMP + 1


class KeyRange(NamedTuple):
    """Row keys from `start` on, up to `end`, without it; None: to the last."""

    start: bytes
    end: bytes | None

    def __str__(self) -> str:
        return f"[{self.start!r}, {'end' if self.end is None else repr(self.end)})"


@dataclass(frozen=True, slots=True)
class StreamPartition:
    """What is known of a stream partition that is not over.

    `claims` has its greatest claim by Kafka partition, 0 where it spoke without one. None of its changes is older than `start`.
    `roots` are the roots that it descends from; none: it is undeclared (WMK-8). `introduced_by` is the announcement that first
    named it, as (start timestamp, record sequence), or the end of its parents; later announcements may leave it out. It waits for those
    `parents` that are not over (WMK-7). Its end, at `ends_at`, was read in the Kafka partitions `ended_in`, and is to be read in the
    first `end_expected_in`: the number that its end names, 0 where announcements have left it out and nothing else is known of its end.
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

    def has_ended(self, kafka_partitions: int) -> bool:
        """Whether its end was read in every Kafka partition that it may have written to: the first `end_expected_in`, or all."""
        return bool(self.ended_in) and self.ended_in.issuperset(range(self.end_expected_in or kafka_partitions))

    def watermark(self, kafka_partition: int) -> int:
        """W[p, k]: 0 while nothing is known."""
        end = self.ends_at if kafka_partition in self.ended_in else 0
        return max(self.start, end, self.claims.get(kafka_partition, 0))

    def lagging_partition(self, kafka_partitions: int) -> int:
        """The Kafka partition in which it claims least."""
        return min(range(kafka_partitions), key=self.watermark)

    def low_watermark(self, kafka_partitions: int) -> int:
        """The least that it claims in any Kafka partition; where its end is, once it has ended."""
        return (
            max(self.start, self.ends_at) if self.has_ended(kafka_partitions) else self.watermark(self.lagging_partition(kafka_partitions))
        )

    def join(self, other: StreamPartition) -> StreamPartition:
        """The knowledge of both."""
        claims = {k: max(self.claims.get(k, 0), other.claims.get(k, 0)) for k in sorted({*self.claims, *other.claims})}
        ranges = sorted(filter(None, (self.key_range, other.key_range)), key=repr)
        return StreamPartition(
            claims=claims,
            start=max(self.start, other.start),
            roots=self.roots | other.roots,
            introduced_by=min(self.introduced_by, other.introduced_by),
            key_range=ranges[-1] if ranges else None,
            parents=self.parents | other.parents,
            ended_in=self.ended_in | other.ended_in,
            end_expected_in=max(self.end_expected_in, other.end_expected_in),
            ends_at=max(self.ends_at, other.ends_at),
        )
