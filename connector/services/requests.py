"""List what delays a stream: stream partitions and incomplete transactions. Request the end of one
(WMK-8, WMK-12, ING-2). Accept the loss of records that Kafka deleted unread (RUN-7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from connector.clock import now_us
from connector.config.settings import find_stream, find_table
from connector.errors.settings import (
    nothing_lost,
    nothing_to_confirm,
    stream_partition_unknown,
    transaction_unknown,
)
from connector.records.views import view_of_time
from connector.reports.stream_status import PartitionStatus, partition_statuses
from connector.services.load_config import who
from connector.services.warehouses import warehouse_of
from connector.state.accepted_losses import (
    AcceptLoss,
    Lost,
    is_unconfirmed,
    lost_between,
    offsets_of,
)
from connector.state.incomplete_transactions import IncompleteTransaction, ReleaseTransaction
from connector.state.overrides import ClosePartition
from connector.text import nearest, one_of

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig, StreamConfig
    from connector.state.stream_progress import Progress


@dataclass(frozen=True, slots=True)
class PartitionList:
    """The stream partitions of a stream that have not ended. `partitions` documents the fields."""

    stream: str
    now: int
    low_watermark: int | None
    ingest_batch: int
    partitions: list[PartitionStatus]


def partitions(config: ConnectorConfig, stream: str | None = None) -> PartitionList:
    """List the stream partitions that have not ended. Without `stream`: those of the only stream of
    the configuration.

    For example: `[entry.name for entry in partitions(config, "orders").partitions
    if entry.is_stalled]`.

    Returns:
        The report of ingest batch `ingest_batch` at the time `now` (µs). The stream is complete
        below `low_watermark` (µs; None: unknown). `partitions` has a status for each stream
        partition; those that delay the low watermark come first.

    Raises:
        ConfigError: There is no such stream.
        TableError: The warehouse cannot be read.
    """
    from connector.lake.state_reader import progress_of

    source, now = find_stream(config, stream), now_us()
    progress = progress_of(warehouse_of(config), source.name, with_frontier=True)
    statuses = partition_statuses(progress.frontier, now, source.stall_after_s)
    return PartitionList(source.name, now, progress.low_watermark, progress.ingest_batch, statuses)


def close_partition(
    config: ConnectorConfig, stream: str, name: str, *, why: str, by: str | None = None
) -> tuple[ClosePartition, bool]:
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
        why: The reason. It is stored with the request.
        by: The person or program that asks. None: the user and the host of this process.

    Returns:
        The request, and True. Or the earlier request that ingest has not taken yet, and False.

    Raises:
        ConfigError: There is no such stream, or no such partition that has not ended, or `why` or
            `by` cannot be stored.
        TableError: The warehouse cannot be read or written.
    """
    from connector.lake.overrides import Overrides
    from connector.lake.state_reader import progress_of

    source, overrides = find_stream(config, stream), Overrides(warehouse_of(config))
    progress = progress_of(warehouse_of(config), source.name, with_frontier=True)
    _check_active({*progress.frontier.partitions, *source.partitions}, progress, source.name, name)
    for request in overrides.requests(ClosePartition, source.name, above=progress.closed_to):
        if request.stream_partition == name:
            return request, False
    by = who() if by is None else by
    request = ClosePartition(progress.closed_to + 1, source.name, name, why, now_us(), by)
    overrides.add(request)
    return request, True


def incomplete_transactions(
    config: ConnectorConfig, stream: str | None = None
) -> list[IncompleteTransaction]:
    """The transactions that lack records, the oldest first, as the last check of ingest found them:
    at most 100. Without `stream`: those of the only stream of the configuration.

    For example:
    `[entry.server_transaction_id for entry in incomplete_transactions(config, "orders")]`.
    Raises `ConfigError` if there is no such stream, `TableError` if the warehouse cannot be read.
    """
    from connector.lake.state_reader import progress_of

    name = find_stream(config, stream).name
    return list(progress_of(warehouse_of(config), name).transactions.incomplete)


def release_transaction(
    config: ConnectorConfig,
    stream: str,
    server_transaction_id: str,
    *,
    commit_timestamp: int | None = None,
    why: str,
    by: str | None = None,
) -> ReleaseTransaction:
    """Have no table wait for an incomplete transaction any more. The tables then show the records
    that are there.

    Ingest takes the request within ten seconds (90 in an object store), or when it runs again. For
    example:
    `release_transaction(config, "orders", "tx-7", why="the record is lost at the source")`.

    Args:
        config: It has the stream.
        stream: The name or topic of the stream.
        server_transaction_id: The id of an incomplete transaction.
        commit_timestamp: Its commit timestamp, in microseconds. None: only one incomplete
            transaction has this id.
        why: The reason. It is stored with the request.
        by: The person or program that asks. None: the user and the host of this process.

    Returns:
        The request.

    Raises:
        ConfigError: There is no such stream, or not exactly one such incomplete transaction
            (`TRANSACTION_UNKNOWN`), or `why` or `by` cannot be stored.
        TableError: The warehouse cannot be read or written.
    """
    from connector.lake.overrides import Overrides
    from connector.lake.state_reader import progress_of

    source = find_stream(config, stream)
    check = progress_of(warehouse_of(config), source.name).transactions
    transaction = _incomplete(
        check.incomplete, source.name, server_transaction_id, commit_timestamp
    )
    by = who() if by is None else by
    request = ReleaseTransaction(
        *(check.released_to + 1, source.name, server_transaction_id, why, now_us(), by),
        commit_timestamp=transaction.commit_timestamp,
    )
    Overrides(warehouse_of(config)).add(request)
    return request


def lost_records(config: ConnectorConfig, stream: str) -> Lost:
    """The records that Kafka deleted before they were read, by Kafka partition: the first offset,
    and the next one that is left. Raises as `accept_loss`.
    """
    source = find_stream(config, stream)
    if not (lost := deleted_unread(config, source)):
        raise nothing_lost(source.name)
    return lost


def deleted_unread(config: ConnectorConfig, stream: StreamConfig) -> Lost:
    """The same. It may be empty."""
    from connector.kafka import topics
    from connector.lake.state_reader import logged_ends

    facts = topics.describe(config.kafka, stream.topic)
    read_to = logged_ends(warehouse_of(config), stream.name)
    return lost_between(read_to, topics.beginning_offsets(config.kafka, facts))


def accept_loss(
    config: ConnectorConfig, stream: str, *, why: str, by: str | None = None
) -> AcceptLoss:
    """Have ingest go on behind records that Kafka deleted before they were read.

    Ingest takes the request when it starts again. It covers the records that are lost now. Until
    each table of the stream is confirmed, it is no consistent cut. For example:
    `accept_loss(config, "orders", why="sent again with a new stream")`.

    Args:
        config: It has the stream.
        stream: The name or topic of the stream.
        why: The reason. It is stored with the request.
        by: The person or program that asks. None: the user and the host of this process.

    Returns:
        The request. Its `lost` has the offsets by Kafka partition.

    Raises:
        ConfigError: There is no such stream, or no record of it is lost, or `why` or `by` cannot be
            stored.
        TopicError: There is no such topic.
        TableError: The warehouse cannot be read or written.
        BrokerError: Kafka does not answer.
    """
    from connector.lake.overrides import Overrides

    name, lost = find_stream(config, stream).name, lost_records(config, stream)
    by = who() if by is None else by
    request = AcceptLoss(1, name, "", offsets_of(lost), why, now_us(), by)
    Overrides(warehouse_of(config)).add(request)
    return request


def confirm_table(
    config: ConnectorConfig, table: str, *, why: str, by: str | None = None
) -> AcceptLoss:
    """Declare that a table is right, although records of its stream were lost. Its next applies
    can be consistent cuts again.

    Ingest takes the request within ten seconds (90 in an object store), or when it runs again. For
    example: `confirm_table(config, "orders", why="reconciled with the source")`. `by` and the
    result are those of `accept_loss`. Raises `ConfigError` if there is no such table, or if none of
    its records is lost or all losses are confirmed, `TableError` if the warehouse cannot be read or
    written.
    """
    from connector.lake.overrides import Overrides
    from connector.lake.state_reader import progress_of

    stream = find_table(config, table).stream
    if not is_unconfirmed(progress_of(warehouse_of(config), stream).losses, table):
        raise nothing_to_confirm(table)
    by = who() if by is None else by
    request = AcceptLoss(1, stream, table, "{}", why, now_us(), by)
    Overrides(warehouse_of(config)).add(request)
    return request


def _check_active(declared: set[str], progress: Progress, stream: str, name: str) -> None:
    """Raise `ConfigError` if a stream partition has ended, or does not exist."""
    ended = progress.frontier.ended
    active = declared - ended.keys()
    if name not in active:
        cause = f"It ended at {view_of_time(ended[name].at)}" if name in ended else ""
        remedy = nearest(name, active) or "List the stream partitions to see the active ones"
        raise stream_partition_unknown(stream, name, cause, remedy)


def _incomplete(
    transactions: Sequence[IncompleteTransaction],
    stream: str,
    server_transaction_id: str,
    commit_timestamp: int | None,
) -> IncompleteTransaction:
    of_id = [
        transaction
        for transaction in transactions
        if transaction.server_transaction_id == server_transaction_id
    ]
    selected = [
        transaction
        for transaction in of_id
        if commit_timestamp in (None, transaction.commit_timestamp)
    ]
    if len(selected) == 1:
        return selected[0]
    if of_id:
        times = one_of({str(view_of_time(transaction.commit_timestamp)) for transaction in of_id})
        cause, remedy = f"Those of this id are of these times: {times}", "Name one of these times"
    else:
        ids = {transaction.server_transaction_id for transaction in transactions}
        cause = "It is complete, or its id is another one"
        remedy = nearest(server_transaction_id, ids) or "List the incomplete transactions"
    raise transaction_unknown(stream, server_transaction_id, cause, remedy)
