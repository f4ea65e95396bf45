"""List the stream partitions of a stream, and close one that does not end by itself (WMK-8,
WMK-12).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from connector.clock import now_us
from connector.config.settings import find_stream
from connector.errors import ConfigError, ErrorCode, argument_invalid, check_note
from connector.records.views import view_of_time
from connector.reports.stream_status import PartitionStatus, partition_statuses
from connector.services.load_config import who
from connector.services.warehouses import warehouse_of
from connector.state.overrides import ClosePartition
from connector.text import nearest

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig


@dataclass(frozen=True, slots=True)
class PartitionList:
    """The stream partitions of a stream that have not ended, those first that delay the low
    watermark.

    Attributes:
        stream: The name of the stream.
        now: The time of the report, in microseconds.
        low_watermark: The stream is complete below it; None: unknown.
        ingest_batch: The batch that the report is of.
        partitions: One status for each partition.
    """

    stream: str
    now: int
    low_watermark: int | None
    ingest_batch: int
    partitions: list[PartitionStatus]


@dataclass(frozen=True, slots=True)
class Closing:
    """A request to close a partition. `is_new` is False if an earlier request waits for ingest:
    then it is that one.
    """

    request: ClosePartition
    is_new: bool


def partitions(config: ConnectorConfig, stream: str | None = None) -> PartitionList:
    """List the stream partitions that have not ended. Without `stream`: those of the only stream of
    the configuration.

    For example: `[one.name for one in partitions(config, "orders").partitions if one.is_stalled]`.
    Raises `ConfigError` if there is no such stream, `TableError` if the warehouse cannot be read.
    """
    from connector.lake.state_reader import progress_of

    of, now = find_stream(config, stream), now_us()
    progress = progress_of(warehouse_of(config), of.name, with_frontier=True)
    found = partition_statuses(progress.frontier, now, of.stall_after_s)
    return PartitionList(of.name, now, progress.low_watermark, progress.ingest_batch, found)


def close_partition(
    config: ConnectorConfig, stream: str, name: str, *, why: str, by: str | None = None
) -> Closing:
    """Close a stream partition: it no longer delays the low watermark. A closed partition cannot
    come back.

    Ingest closes it with its next batch, within ten seconds (90 in an object store) if there is
    nothing to read, or when it runs again. Records that the partition still sends are late, and
    are applied. For example:
    `close_partition(config, "orders", "p7", why="the shard was deleted")`.

    Args:
        config: It has the stream.
        stream: The name or topic of the stream.
        name: The stream partition.
        why: The reason. It is kept with the request.
        by: The person or program that asks. None: the user and the host of this process.

    Returns:
        The request.

    Raises:
        ConfigError: There is no such stream, or no such partition that has not ended, or `why` or
            `by` is not a text, or an empty one.
        TableError: The warehouse cannot be read or written.
    """
    from connector.lake.overrides import Overrides
    from connector.lake.state_reader import progress_of

    by = who() if by is None else by
    if not isinstance(name, str):
        raise argument_invalid("name", name, "the name of a stream partition")
    check_note("why", why)
    check_note("by", by)
    of, overrides = find_stream(config, stream), Overrides(warehouse_of(config))
    progress = progress_of(warehouse_of(config), of.name, with_frontier=True)
    frontier = progress.frontier
    known = {*frontier.partitions, *of.partitions} - frontier.ended.keys()
    if name not in known:
        cause = (
            f"It ended at {view_of_time(frontier.ended[name].at)}" if name in frontier.ended else ""
        )
        remedy = (
            nearest(name, known)
            or "List the stream partitions of the stream to see the active ones"
        )
        raise ConfigError(
            ErrorCode.STREAM_PARTITION_UNKNOWN,
            f'Stream {of.name} has no active stream partition "{name}"',
            cause,
            remedy,
            stream=of.name,
        )
    asked = (
        request
        for request in overrides.ends(of.name, above=progress.closed_to)
        if request.stream_partition == name
    )
    if (before := next(asked, None)) is not None:
        return Closing(before, is_new=False)
    request = ClosePartition(progress.closed_to + 1, of.name, name, why, now_us(), by)
    overrides.add_closed(request)
    return Closing(request, is_new=True)
