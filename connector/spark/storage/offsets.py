"""Ranges of Kafka offsets of an ingest batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Offsets = Mapping[int, int]
"""Kafka partition -> offset of the next record. A Kafka partition that is not in it stands at 0."""


@dataclass(frozen=True, slots=True)
class BatchRange:
    """The offsets of one micro-batch: of each Kafka partition, `start` is read and `end` is not."""

    start: Offsets
    end: Offsets

    def __post_init__(self) -> None:
        assert all(self.start.get(k, 0) <= end for k, end in self.end.items()), (self.start, self.end)

    @property
    def records(self) -> int:
        """How many offsets there are: at least as many as records."""
        return sum(end - self.start.get(k, 0) for k, end in self.end.items())


def same(left: Offsets, right: Offsets) -> bool:
    """Whether two positions are the same, Kafka partitions that one does not know standing at 0."""
    return all(left.get(k, 0) == right.get(k, 0) for k in {*left, *right})
