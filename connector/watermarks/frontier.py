"""The commit timestamp up to which a stream is complete: frontier, lineage and low watermark (WMK).
docs/explanation/watermarks.md has the theory.

A frontier contains facts that only grow: the greatest claim by stream partition and Kafka
partition, the lineage, and the Kafka partitions where each end was read. Two values do depend on
the reading order: the committed low watermark, which never decreases (`watermark_is_honest`), and
the times at which stream partitions advanced.

All times are microseconds. `now` is the clock of the reader. All other times are of the source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeVar

from connector.records.model import MAX_TIMESTAMP, ChildPartitions
from connector.records.views import Time, TimeOrNull
from connector.stored import from_stored, to_stored
from connector.watermarks.stream_partition import (
    KeyRange,
    StreamPartition,
    least,
)

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Announcement(NamedTuple):
    """An announcement of a root, as far as its parts were read (WMK-6).

    - `live` are the stream partitions that its parts name.
    - `read_in` has, for each Kafka partition where a part was read, the number of Kafka partitions
      that it was sent to.
    """

    live: frozenset[str]
    read_in: Mapping[int, int]

    def join(self, other: Announcement) -> Announcement:
        """Combine the parts of both."""
        return Announcement(self.live | other.live, least(self.read_in, other.read_in))


class Ended(NamedTuple):
    """A stream partition that has ended: its end, its roots and its parents.

    The roots and parents are kept, because records of its descendants may be read before those of
    its ancestors.
    """

    at: int
    roots: frozenset[str] = frozenset()
    parents: frozenset[str] = frozenset()

    def join(self, other: Ended | StreamPartition) -> Ended:
        """Combine the facts of both. If the other one has not ended, take only its roots and
        parents.
        """
        at = other.at if isinstance(other, Ended) else self.at
        return Ended(max(self.at, at), self.roots | other.roots, self.parents | other.parents)


class LastAdvance(NamedTuple):
    """The low watermark of a stream partition, and the time at which it was reached."""

    watermark: int
    at: int


class Stall(NamedTuple):
    """A stream partition whose low watermark does not move, its lagging Kafka partition, and the
    start of the stall (WMK-12).
    """

    stream_partition: str
    kafka_partition: int
    watermark: TimeOrNull
    since: Time


@dataclass(frozen=True, slots=True)
class LineageRecord:
    """A child-partitions record, and the Kafka partition where it was read."""

    kafka_partition: int
    kafka_partitions: int
    record: ChildPartitions


@dataclass(frozen=True, slots=True)
class BatchClaims:
    """The claims and the lineage of a batch.

    - `kafka_partitions` is the number of Kafka partitions of the topic, or a larger number that a
      record named (WMK-4).
    - `claims` has the greatest claim by stream partition and Kafka partition. It is 0 if records
      were read, but no claim.
    - `epochs` has the newest epoch of the producers in the same form (PUB-4). It counts for the
      stream partitions that have not ended.
    """

    kafka_partitions: int
    claims: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    lineage: tuple[LineageRecord, ...] = ()
    epochs: Mapping[str, Mapping[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Frontier:
    """The state of delivery of a stream. It is a value: `advance` and `join` return a new one.

    - `partitions` are the stream partitions that have not ended: the live ones, those that wait for
      their parents, and known parents without records.
    - `ended` are the other ones, until their end is older than the horizon.
    - `announcements` has those of roots that still have descendants in `partitions`, by root and
      start timestamp. For each Kafka partition, it has the two newest of a root.
    - `past_roots` has the newest start timestamp of each other root, until it is older than the
      horizon.
    - `last_advance` has an entry for each of `partitions` after `advance`.
    - `low_watermark` is `None` until it is known (WMK-6). It got its value at `low_advanced_at`.
    """

    kafka_partitions: int = 0
    partitions: Mapping[str, StreamPartition] = field(default_factory=dict)
    ended: Mapping[str, Ended] = field(default_factory=dict)
    announcements: Mapping[tuple[str, int], Announcement] = field(default_factory=dict)
    past_roots: Mapping[str, int] = field(default_factory=dict)
    last_advance: Mapping[str, LastAdvance] = field(default_factory=dict)
    low_watermark: int | None = None
    low_advanced_at: int = 0

    @property
    def waiting(self) -> frozenset[str]:
        """The stream partitions that wait for a parent. Until the parent has ended, it delays the
        low watermark.
        """
        unended = {name for name, partition in self.partitions.items() if not partition.has_ended}
        return frozenset(
            name
            for name, partition in self.partitions.items()
            if not unended.isdisjoint(partition.parents)
        )

    @property
    def live(self) -> Mapping[str, StreamPartition]:
        """The stream partitions that the low watermark depends on.

        These are all except the waiting ones, and except those that have ended and have no waiting
        child.
        """
        waiting = self.waiting
        awaited = frozenset[str]().union(*(self.partitions[name].parents for name in waiting))
        return {
            name: partition
            for name, partition in self.partitions.items()
            if name not in waiting and (not partition.has_ended or name in awaited)
        }

    @property
    def undeclared(self) -> list[str]:
        """The live stream partitions that no announcement names (WMK-8)."""
        return [name for name, partition in self.live.items() if not partition.roots]

    @property
    def lagging_partition(self) -> Stall | None:
        """The live stream partition with the least low watermark. It delays the low watermark
        (WMK-3).

        None: there are no live stream partitions.
        """
        k = self.kafka_partitions
        if not (live := self.live):
            return None
        name = min(live, key=lambda name: (live[name].low_watermark(k), name))
        return Stall(name, live[name].lagging_partition(k), *self.last_advance[name])

    def uncovered(self) -> tuple[str, KeyRange] | None:
        """Find a root whose live stream partitions leave a hole in the key space, or overlap
        (WMK-9).

        Return the root and the key range, or None. Roots that announced the same stream partition
        share the key space. They are not checked while one of their stream partitions waits,
        because then some of its parents may have ended already.
        """
        waiting = frozenset[str]().union(*(self.partitions[name].roots for name in self.waiting))
        ranged = [partition for partition in self.live.values() if partition.key_range is not None]
        for family in _families(partition.roots for partition in ranged if partition.roots):
            wrong = _hole_or_overlap(
                [
                    partition.key_range
                    for partition in ranged
                    if partition.key_range and partition.roots & family
                ]
            )
            if wrong is not None and waiting.isdisjoint(family):
                return min(family), wrong
        return None

    def is_stalled(self, now: int, stall_after: int) -> bool:
        """Return whether the low watermark is known and has not moved for `stall_after`
        (TBL-11).
        """
        return self.low_watermark is not None and now - self.low_advanced_at >= stall_after

    def stalls(self, now: int, stall_after: int) -> list[Stall]:
        """Return the live stream partitions whose low watermark has not moved for `stall_after`,
        the longest stall first (WMK-12).
        """
        stalled = [
            Stall(
                name, partition.lagging_partition(self.kafka_partitions), *self.last_advance[name]
            )
            for name, partition in self.live.items()
            if now - self.last_advance[name].at >= stall_after
        ]
        return sorted(stalled, key=lambda stall: (stall.since, stall.stream_partition))

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values. `from_json` is the inverse."""
        stored: dict[str, Any] = to_stored(replace(self, announcements={}))
        stored["announcements"] = [
            [root, start, *to_stored(announcement)]
            for (root, start), announcement in self.announcements.items()
        ]
        for name, partition in self.partitions.items():
            if (keys := partition.key_range) is not None:
                in_hex = [keys.start.hex(), None if keys.end is None else keys.end.hex()]
                stored["partitions"][name]["key_range"] = in_hex
            if not partition.epochs:
                stored["partitions"][name].pop("epochs", None)
        return stored

    @staticmethod
    def from_json(stored: Mapping[str, Any]) -> Frontier:
        partitions = {
            name: {**entry, "key_range": _bytes_of(entry["key_range"])}
            for name, entry in stored["partitions"].items()
        }
        announcements = {(root, start): entry for root, start, *entry in stored["announcements"]}
        return from_stored(
            Frontier, {**stored, "partitions": partitions, "announcements": announcements}
        )


UNKNOWN: Final = Frontier()
"""No record was read."""


def join(first: Frontier, other: Frontier) -> Frontier:
    """Combine the facts of both. The operation is commutative, associative and idempotent.

    It draws no conclusions. `advance` does this.
    """
    ended = _joined(first.ended, other.ended, Ended.join)
    for partitions in (first.partitions, other.partitions):
        ended |= {
            name: ended[name].join(partitions[name]) for name in partitions.keys() & ended.keys()
        }
    past_roots = _joined(first.past_roots, other.past_roots, max)
    return Frontier(
        kafka_partitions=max(first.kafka_partitions, other.kafka_partitions),
        partitions={
            name: first.partitions.get(name, NOTHING).join(other.partitions.get(name, NOTHING))
            for name in sorted({*first.partitions, *other.partitions} - ended.keys())
        },
        ended=ended,
        announcements={
            (root, start): announcement
            for (root, start), announcement in _joined(
                first.announcements, other.announcements, Announcement.join
            ).items()
            if start > past_roots.get(root, 0)
        },
        past_roots=past_roots,
        last_advance=_joined(first.last_advance, other.last_advance, max),
        low_watermark=max(
            (low for low in (first.low_watermark, other.low_watermark) if low is not None),
            default=None,
        ),
        low_advanced_at=max(first.low_advanced_at, other.low_advanced_at),
    )


def is_claim(watermark: int, arrival: int, max_clock_skew: int) -> bool:
    """Return whether the estimated low watermark of a change is a claim.

    It is not a claim if it is a sentinel (WMK-5), or too far after the record's arrival (REC-15).
    """
    return 0 < watermark <= min(MAX_TIMESTAMP, arrival + max_clock_skew)


NOTHING: Final = StreamPartition()


def _families(related: Iterable[frozenset[str]]) -> list[frozenset[str]]:
    """Group the roots. Roots that occur in the same set are in the same group."""
    families: list[frozenset[str]] = []
    for roots in related:
        touched = [family for family in families if family & roots]
        families = [*(family for family in families if not family & roots), roots.union(*touched)]
    return families


def _hole_or_overlap(ranges: list[KeyRange]) -> KeyRange | None:
    """Return the first part of the key space that no range covers, or that two ranges cover."""
    covered: bytes | None = b""
    for start, end in sorted(ranges, key=lambda keys: keys.start):
        if covered is None or start < covered:
            return KeyRange(
                start, min((key for key in (covered, end) if key is not None), default=None)
            )
        if start > covered:
            return KeyRange(covered, start)
        covered = end
    return None if covered is None else KeyRange(covered, None)


def _joined(
    first: Mapping[_Key, _Value],
    other: Mapping[_Key, _Value],
    join_values: Callable[[_Value, _Value], _Value],
) -> dict[_Key, _Value]:
    both = {key: join_values(first[key], other[key]) for key in first.keys() & other.keys()}
    return {**first, **other, **both}


def _bytes_of(in_hex: list[str | None] | None) -> list[bytes | None] | None:
    return (
        None if in_hex is None else [key if key is None else bytes.fromhex(key) for key in in_hex]
    )
