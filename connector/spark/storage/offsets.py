"""Ranges of Kafka offsets of an ingest batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Offsets = Mapping[int, int]
"""The offset of the next record by Kafka partition. A Kafka partition that is missing has the
offset 0.
"""


@dataclass(frozen=True, slots=True)
class BatchRange:
    """The offsets of one micro-batch. For each Kafka partition, `start` is included and `end` is
    not.
    """

    start: Offsets
    end: Offsets

    def __post_init__(self) -> None:
        assert all(self.start.get(k, 0) <= end for k, end in self.end.items()), (
            self.start,
            self.end,
        )

    @property
    def records(self) -> int:
        """The number of offsets. There are at most as many records."""
        return sum(end - self.start.get(k, 0) for k, end in self.end.items())


def same(left: Offsets, right: Offsets) -> bool:
    """Whether two positions are equal. A missing Kafka partition has the offset 0."""
    return all(left.get(k, 0) == right.get(k, 0) for k in {*left, *right})
