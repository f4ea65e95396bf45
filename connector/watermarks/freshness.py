"""How old a state is, on one clock: arrival in Kafka (TBL-16).

Theory. Before it reads, ingest asks Kafka for the end of every Kafka partition. What it is told at a moment is all that had
arrived by then, open transactions included; so a state that contains all of it is no older than that moment. A state of the
stream is named by its last ingest batch, and what one batch contains all later ones do. So it suffices to keep, for the
newest batches, the newest moment that each contains, and the moments whose ends no batch has reached yet.

All times are microseconds of the clock of the process that asks; offsets are high watermarks, not last stable offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

MAX_PENDING: Final = 16
MAX_CONTAINED: Final = 64


class EndOffsets(NamedTuple):
    """The end of every Kafka partition, as Kafka told it at a moment."""

    at: int
    ends: Mapping[int, int]

    def is_contained(self, ends: Mapping[int, int]) -> bool:
        """Whether all of it was read up to `ends`."""
        return all(ends.get(k, 0) >= end for k, end in self.ends.items())


class Contained(NamedTuple):
    """The newest moment whose ends lie within the batches up to `ingest_batch`."""

    ingest_batch: int
    at: int


@dataclass(frozen=True, slots=True)
class FreshnessLog:
    """The moments that say how old a stream's states are: those that its batches contain, and those still to be reached.

    `behind` counts the offsets between the newest batch and the ends that Kafka told last.
    """

    contained: tuple[Contained, ...] = ()
    pending: tuple[EndOffsets, ...] = ()
    behind: int = 0

    def after(self, ingest_batch: int, ends: Mapping[int, int], asked: EndOffsets) -> FreshnessLog:
        """What is known once `ingest_batch`, the newest, has been read up to `ends`, and Kafka was asked again.

        Of many moments some are forgotten. That makes a state look older than it is, never younger.
        """
        known = [*self.pending, asked]
        reached = max((moment.at for moment in known if moment.is_contained(ends)), default=None)
        pending = [moment for moment in known if not moment.is_contained(ends)]
        if len(pending) > MAX_PENDING:
            pending = [*pending[:-1:2], pending[-1]]
        behind = sum(max(0, end - ends.get(k, 0)) for k, end in asked.ends.items())
        if reached is None:
            return FreshnessLog(self.contained, tuple(pending), behind)
        before = tuple(moment for moment in self.contained if moment.ingest_batch < ingest_batch)
        return FreshnessLog(
            (*before, Contained(ingest_batch, max(reached, self.of(ingest_batch) or 0)))[-MAX_CONTAINED:], tuple(pending), behind
        )

    def of(self, ingest_batch: int) -> int | None:
        """How old the state of the batches up to `ingest_batch` is, as the moment it contains; None if that is not known any more."""
        return next((moment.at for moment in reversed(self.contained) if moment.ingest_batch <= ingest_batch), None)

    @property
    def newest(self) -> int | None:
        """When Kafka was asked last; None if never."""
        return max((*(moment.at for moment in self.contained), *(moment.at for moment in self.pending)), default=None)

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it; `from_json` reads it."""
        return {
            "contained": [list(moment) for moment in self.contained],
            "behind": self.behind,
            "pending": [[moment.at, {str(k): end for k, end in moment.ends.items()}] for moment in self.pending],
        }

    @staticmethod
    def from_json(stored: Mapping[str, Any]) -> FreshnessLog:
        return FreshnessLog(
            tuple(Contained(*moment) for moment in stored["contained"]),
            tuple(EndOffsets(at, {int(k): end for k, end in ends.items()}) for at, ends in stored["pending"]),
            stored["behind"],
        )


NONE_ASKED: Final = FreshnessLog()
"""Nothing was asked yet: no state has an age."""


def is_fresh(as_of: int | None, max_staleness_s: float, now: int) -> bool:
    """Whether a state as of that moment is at most so old; exactly at the bound it is (TBL-16)."""
    return as_of is not None and now - as_of <= max_staleness_s * 1_000_000
