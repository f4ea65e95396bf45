"""How old a state is, measured on one clock: arrival in Kafka (TBL-16).
docs/explanation/staleness.md has the theory.

The last ingest batch identifies a state of the stream, and each batch includes all earlier ones.
Therefore it is enough to store two lists: for the newest batches, the newest time that each covers;
and the times whose end offsets no batch has reached.

All times are microseconds of the clock of the process that asks Kafka. Offsets are high watermarks,
not last stable offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

MAX_PENDING: Final = 16
MAX_CONTAINED: Final = 64


class EndOffsets(NamedTuple):
    """The end offset of every Kafka partition at a time."""

    at: int
    ends: Mapping[int, int]

    def is_contained(self, ends: Mapping[int, int]) -> bool:
        """Return whether all these records were read, if reading reached `ends`."""
        return all(ends.get(k, 0) >= end for k, end in self.ends.items())


class Contained(NamedTuple):
    """The newest time whose end offsets are within the batches up to `ingest_batch`."""

    ingest_batch: int
    at: int


@dataclass(frozen=True, slots=True)
class FreshnessLog:
    """The freshness of the states of a stream: times that batches cover, and times that are not
    reached yet.

    `behind` is the number of offsets between the newest batch and the newest end offsets.
    """

    contained: tuple[Contained, ...] = ()
    behind: int = 0
    pending: tuple[EndOffsets, ...] = ()

    def after(
        self,
        ingest_batch: int,
        ends: Mapping[int, int],
        answer: EndOffsets,
        *,
        is_whole: bool = True,
    ) -> FreshnessLog:
        """Return the log after `ingest_batch`, the newest batch, was read up to `ends`, and Kafka
        answered `answer`.

        If there are too many times, some are dropped. Then a state may look older than it is, but
        never younger. Without `is_whole`, a change that is below `ends` is not visible yet, so the
        state covers none of the times (WRS-18).
        """
        moments = [*self.pending, answer]
        covered = [moment for moment in moments if is_whole and moment.is_contained(ends)]
        reached = max((moment.at for moment in covered), default=None)
        pending = [moment for moment in moments if moment not in covered]
        if len(pending) > MAX_PENDING:
            pending = [*pending[:-1:2], pending[-1]]
        behind = sum(max(0, end - ends.get(k, 0)) for k, end in answer.ends.items())
        if reached is None:
            return FreshnessLog(self.contained, behind, tuple(pending))
        before = tuple(moment for moment in self.contained if moment.ingest_batch < ingest_batch)
        return FreshnessLog(
            (*before, Contained(ingest_batch, max(reached, self.time_of(ingest_batch) or 0)))[
                -MAX_CONTAINED:
            ],
            behind,
            tuple(pending),
        )

    def time_of(self, ingest_batch: int) -> int | None:
        """Return the freshness of the state after `ingest_batch`, as a time. None: it is not stored
        any more.
        """
        return next(
            (
                moment.at
                for moment in reversed(self.contained)
                if moment.ingest_batch <= ingest_batch
            ),
            None,
        )

    @property
    def newest(self) -> int | None:
        """The time of the last answer of Kafka. None: Kafka was never asked."""
        return max(
            (*(moment.at for moment in self.contained), *(moment.at for moment in self.pending)),
            default=None,
        )


NONE_ASKED: Final = FreshnessLog()
"""Kafka was not asked. No state has an age."""


def is_fresh(as_of: int | None, max_staleness_s: float, now: int) -> bool:
    """Return whether the state of this time is at most so old. A state exactly at the bound is
    fresh (TBL-16).
    """
    return as_of is not None and now - as_of <= max_staleness_s * 1_000_000
