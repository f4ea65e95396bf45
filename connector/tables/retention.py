"""How long deletes are remembered, and which changes are too late (MRG-10, MRG-11)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from connector.records.model import DataChange, Release, Truncate


def is_too_late(record: DataChange | Release | Truncate, horizon: int | None) -> bool:
    """Return whether a record is older than the horizon (µs) that the batch before committed.

    Such a change becomes a dead letter and is never merged (MRG-11). A release and a truncation are
    treated like it (WRS-20, EVO-13). A staged change has no time yet.
    """
    return horizon is not None and 0 < record.commit_timestamp < horizon


DELETE_RETENTION_S: Final = 2 * 24 * 60 * 60
"""How long a stream remembers deletes by default: two days, as in BigQuery."""


def next_horizon(
    before: int | None, low_watermark: int | None, delete_retention_s: int
) -> int | None:
    """Return the horizon (µs) of a batch, counted back from its low watermark.

    It is never below the horizon that was committed before, even if the setting changes (MRG-10).
    It is at least 0, the least time of a change.
    """
    if low_watermark is None:
        return before
    reached = max(0, low_watermark - delete_retention_s * 1_000_000)
    return reached if before is None else max(before, reached)


class BatchHorizon(NamedTuple):
    """Ingest batches up to `ingest_batch` were read by the time `at` (µs).

    A table that contains all of them may forget deletes of batches below `horizon`.
    """

    ingest_batch: int
    at: int
    horizon: int


@dataclass(frozen=True, slots=True)
class BatchHorizons:
    """The horizons of the batches of a stream, for tables ordered by sequence number (MRG-12).

    Such tables count the retention between ingest times. Only some batches are kept. Therefore a
    table remembers deletes longer, by about a sixteenth of the retention, and never shorter.
    """

    horizons: tuple[BatchHorizon, ...] = ()

    def after(self, ingest_batch: int, at: int, delete_retention_s: int) -> BatchHorizons:
        """Return the horizons after the next batch, `ingest_batch`, was read at `at` (µs)."""
        retention_us = delete_retention_s * 1_000_000
        last = self.horizons[-1] if self.horizons else BatchHorizon(0, 0, 0)
        # The clock may have been set back. Times of batches never decrease.
        at = max(at, last.at)
        if self.horizons and at - last.at < retention_us // _PER_RETENTION:
            return self
        passed = (batch.ingest_batch + 1 for batch in self.horizons if batch.at < at - retention_us)
        horizon = max(last.horizon, *passed, 0)
        return BatchHorizons(
            (*self.horizons, BatchHorizon(ingest_batch, at, horizon))[-2 * _PER_RETENTION :]
        )

    def horizon_of(self, complete_to_batch: int) -> int | None:
        """Return the horizon of a table that contains all batches up to `complete_to_batch`.

        It is `None` if the horizon is not kept any more.
        """
        return next(
            (
                batch.horizon
                for batch in reversed(self.horizons)
                if batch.ingest_batch <= complete_to_batch
            ),
            None,
        )


_PER_RETENTION: Final = 32
NONE_READ: Final = BatchHorizons()
"""No batch was read."""
