"""A committed batch of a changelog, its ranges of Kafka offsets, and its stored form (TBL-5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from connector.state.accepted_losses import NOTHING_LOST, AcceptLoss
from connector.state.overrides import ClosePartition
from connector.stored import from_stored, to_stored
from connector.watermarks.freshness import EndOffsets
from connector.write_streams.releases import ReleaseRows

Offsets = Mapping[int, int]
"""The offset of the next record by Kafka partition. A Kafka partition that is missing has the
offset 0.
"""


@dataclass(frozen=True, slots=True)
class BatchRange:
    """The offsets of one micro-batch. In each Kafka partition, `end` is the next offset."""

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
        return sum(end - begin for begin, end in self.by_partition.values())

    @property
    def by_partition(self) -> dict[int, tuple[int, int]]:
        """The first offset and the next offset of each Kafka partition."""
        return {k: (self.start.get(k, 0), end) for k, end in self.end.items()}

    def first(self) -> BatchRange:
        """The first offset of each Kafka partition."""
        ranges = self.by_partition.items()
        return BatchRange(self.start, {k: min(start + 1, end) for k, (start, end) in ranges})


def same(left: Offsets, right: Offsets) -> bool:
    """Whether two positions are equal. A missing Kafka partition has the offset 0."""
    return all(left.get(k, 0) == right.get(k, 0) for k in {*left, *right})


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """A committed batch: its number in the changelog, which is not Spark's (MRG-3), its offsets,
    and the state of the topic at that time.

    A batch without records keeps the offsets of the batch before, so that Spark continues there.
    `closed_partitions` are those that operators close with this batch (WMK-8), and `row_releases`
    their requests to release rows (WRS-18). `losses` are the decisions about lost records that it
    takes (RUN-7). In another changelog (`changelog_id`), batch numbers
    have another meaning. The batches up to `trimmed_to` have only their rejected rows left, and
    those of open write streams (TBL-15, WRS-21). Changes with a commit timestamp (µs) below
    `trimmed_below` may be deleted.
    """

    ingest_batch: int
    offsets: BatchRange
    topic_id: str
    kafka_partitions: int
    asked: EndOffsets
    changelog_id: str
    writer: str
    closed_partitions: tuple[ClosePartition, ...] = ()
    trimmed_to: int = 0
    trimmed_below: int = 0
    row_releases: tuple[ReleaseRows, ...] = ()
    losses: tuple[AcceptLoss, ...] = NOTHING_LOST

    @staticmethod
    def from_json(stored: Mapping[str, Any]) -> LoggedBatch | None:
        """Read the metadata of a commit. None: the changelog has no batch."""
        if not stored["ingest_batch"]:
            return None
        start, end, asked = (
            from_stored(dict[int, int], stored[name])
            for name in ("start_offsets", "end_offsets", "topic_end_offsets")
        )
        return LoggedBatch(
            int(stored["ingest_batch"]),
            BatchRange(start, end),
            str(stored["topic_id"]),
            int(stored["kafka_partitions"]),
            EndOffsets(int(stored["topic_read_at"]), asked),
            str(stored["changelog_id"]),
            str(stored["writer"]),
            closed_partitions=from_stored(
                tuple[ClosePartition, ...], stored.get("closed_partitions", ())
            ),
            trimmed_to=int(stored.get("trimmed_to", 0)),
            trimmed_below=int(stored.get("trimmed_below", 0)),
            row_releases=from_stored(tuple[ReleaseRows, ...], stored.get("row_releases", ())),
            losses=from_stored(tuple[AcceptLoss, ...], stored.get("losses", ())),
        )

    def to_json(self) -> dict[str, Any]:
        """Convert to metadata of the commit of the batch, which trims nothing."""
        return {
            "ingest_batch": self.ingest_batch,
            "start_offsets": to_stored(self.offsets.start),
            "end_offsets": to_stored(self.offsets.end),
            "topic_id": self.topic_id,
            "kafka_partitions": self.kafka_partitions,
            "topic_read_at": self.asked.at,
            "topic_end_offsets": to_stored(self.asked.ends),
            "changelog_id": self.changelog_id,
            "writer": self.writer,
            "closed_partitions": to_stored(self.closed_partitions),
            "row_releases": to_stored(self.row_releases),
            "losses": to_stored(self.losses),
        }
