"""Releases and staged rows of write streams, as a reader hands them out (WRS-22)."""

from __future__ import annotations

from dataclasses import dataclass, field

from connector.records.model import DataChange, OffsetRange, Release
from connector.records.rejection import Position


@dataclass(frozen=True, slots=True)
class Released:
    """Staged rows of write streams got a commit timestamp. They are one transaction of the source.

    - `commit_timestamp` (µs) is that of the rows.
    - `ranges` are the offsets of the rows: of each write stream from `first` to `upto`, exclusive.
    - `stream_partition` is that of the release.
    - `position` is that of the copy that was handed out. Each Kafka partition has one.
    - `is_late`: it came behind the low watermark, as a `Late` does. Only a reader of whole
      transactions or of a range of commit time says so.
    - `number` is as in `WholeTransaction`.

    It does not say that tables show the rows. For example, ingest withholds a release while one of
    its rows is a dead letter.
    """

    commit_timestamp: int
    ranges: tuple[OffsetRange, ...]
    stream_partition: str
    position: Position
    is_late: bool = False
    number: int = field(default=0, compare=False)

    @property
    def record(self) -> Release:
        """The release itself. So a program that looks at `record` only need not look at types."""
        return Release(self.stream_partition, self.commit_timestamp, self.ranges)


@dataclass(frozen=True, slots=True)
class Staged:
    """A row of a write stream that waits for its release.

    - `change` has the commit timestamp 0. Its `write_stream` names the write stream and the offset.
    - `number` is as in `WholeTransaction`.
    """

    change: DataChange
    position: Position
    number: int = field(default=0, compare=False)

    @property
    def record(self) -> DataChange:
        """The change, as that of a record which is not staged."""
        return self.change


def released_of(release: Release, position: Position) -> Released:
    """Return the item of a release that was read at a position."""
    return Released(release.commit_timestamp, release.ranges, release.stream_partition, position)
