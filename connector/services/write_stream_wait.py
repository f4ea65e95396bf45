"""Following a commit of write streams until the tables show its rows (WRS-23)."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from connector.clock import now_us
from connector.errors import ErrorCode, StreamStateError
from connector.records.views import view_of_time
from connector.services.events import OnEvent, info
from connector.services.warehouses import warehouse_of
from connector.text import counted, summarize_names
from connector.write_streams.releases import ReleaseProgress, Withheld

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig, StreamConfig
    from connector.lake.overrides import Overrides
    from connector.state.stream_progress import Progress
    from connector.state.table_state import TableState
    from connector.write_streams.model import StreamEntry

LOOK_EVERY_S: Final = 1.0
SAY_EVERY_S: Final = 15.0


def wait_for_rows(
    config: ConnectorConfig,
    of: StreamConfig,
    entries: Mapping[str, StreamEntry],
    commit_timestamp: int,
    timeout_s: float | None,
    on_event: OnEvent,
) -> None:
    """Return once every table of the stream shows the rows of a commit.

    Args:
        config: It has the tables.
        of: The stream.
        entries: The write streams of the commit, by name, as the catalog has them.
        commit_timestamp: That of the commit (µs).
        timeout_s: How long to wait. None: for ever.
        on_event: Receives `WAITING`, with what is waited for.

    Raises:
        StreamStateError: The release of the commit is withheld, or `timeout_s` has passed.
        TableError: The warehouse cannot be read.
        TopicError, BrokerError: Kafka cannot be asked for the end of the topic.
    """
    from connector.kafka import topics
    from connector.lake.overrides import Overrides
    from connector.lake.state_reader import batch_with, logged_ends, progress_of, table_state_of

    ends = topics.end_offsets(config.kafka, topics.describe(config.kafka, of.topic))
    tables = [name for name, table in config.tables.items() if table.stream == of.name]
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    said_at, batch = time.monotonic(), None
    while True:
        behind: list[str] = []
        if batch is None:
            # In this order: the progress has everything that the batch has.
            is_read = batch_with(warehouse_of(config), of.name, ends) is not None
            progress = progress_of(warehouse_of(config), of.name)
            forgotten = now_us() - 2 * of.staging_retention_s * 1_000_000 if is_read else 0
            if is_released(progress.releases, entries, forgotten):
                batch = progress.ingest_batch
            elif not requested(
                Overrides(warehouse_of(config)), of.name, progress, entries, commit_timestamp
            ):
                check_not_withheld(of, progress, entries, commit_timestamp, is_read=is_read)
        if batch is not None:
            states = {name: table_state_of(warehouse_of(config), name) for name in tables}
            behind = [
                name for name, state in states.items() if not _has(state, batch, commit_timestamp)
            ]
            if not behind:
                return
        is_over = deadline is not None and time.monotonic() >= deadline
        if is_over or time.monotonic() - said_at > SAY_EVERY_S:
            if behind:
                progress = progress_of(warehouse_of(config), of.name, with_frontier=True)
                lag = lag_of_table(behind[0], progress, commit_timestamp)
            else:
                lag = lag_of_ingest(logged_ends(warehouse_of(config), of.name), ends)
            if is_over:
                raise _not_shown(of, commit_timestamp, timeout_s or 0, lag)
            said_at = time.monotonic()
            on_event(info("WAITING", f"waiting for {lag.waits_for}"))
        time.sleep(LOOK_EVERY_S)


class Lag(NamedTuple):
    """The cause why a commit is not shown yet, with its Kafka partition, table and stream
    partition. None: the cause has none.
    """

    waits_for: str
    kafka_partition: int | None = None
    table: str | None = None
    stream_partition: str | None = None


def lag_of_ingest(logged: Mapping[int, int], ends: Mapping[int, int]) -> Lag:
    """Return which Kafka partitions ingest has not read up to `ends`, those with the most offsets
    first. `logged` are the end offsets of the changelog.
    """
    left = {k: end - logged.get(k, 0) for k, end in ends.items() if end > logged.get(k, 0)}
    if not left:
        return Lag("ingest; check that the pipeline runs")
    most = sorted(left, key=lambda k: (-left[k], k))
    noun = "Kafka partition" if len(most) == 1 else "the Kafka partitions"
    names = summarize_names([str(k) for k in most])
    return Lag(
        f"ingest to read {counted(sum(left.values()), 'offset')} of {noun} {names}; check that the"
        " pipeline runs",
        kafka_partition=most[0],
    )


def lag_of_table(table: str, progress: Progress, commit_timestamp: int) -> Lag:
    """Return why a table does not show a commit whose rows are released. `progress` has its
    frontier.
    """
    low, delays = progress.low_watermark, progress.frontier.lagging_partition
    if low is None or low > commit_timestamp:
        return Lag(f"table {table} to be applied; check that the pipeline runs", table=table)
    waits_for = f"table {table}, and for the low watermark to pass the commit"
    if delays is None:
        return Lag(waits_for, table=table)
    return Lag(
        f"{waits_for}. Stream partition {delays.stream_partition} delays it in Kafka partition"
        f" {delays.kafka_partition}: let it send heartbeats, or close it if it sends no more"
        " records",
        delays.kafka_partition,
        table,
        delays.stream_partition,
    )


def requested(
    overrides: Overrides,
    stream: str,
    progress: Progress,
    names: Collection[str],
    commit_timestamp: int,
) -> bool:
    """Return whether an operator asked to release the rows of a commit of these write streams
    without the rejected ones, and ingest has not taken the request yet.
    """
    asked = overrides.row_releases(stream, above=progress.releases.requests_to)
    return any(
        one.commit_timestamp == commit_timestamp and one.write_stream in names for one in asked
    )


def is_released(
    releases: ReleaseProgress, entries: Mapping[str, StreamEntry], forgotten: int
) -> bool:
    """Return whether all rows of committed write streams are released.

    Ingest forgets a write stream that had no row for long. One without an append since `forgotten`
    (µs) that ingest does not know was released before.
    """
    for name, entry in entries.items():
        known = releases.streams.get(name)
        if not entry.end or (known is None and entry.changed_at < forgotten):
            continue
        # A release without the rejected rows counts for all offsets of its ranges.
        if known is None or known.released != ((0, entry.end),):
            return False
    return True


def check_not_withheld(
    of: StreamConfig,
    progress: Progress,
    entries: Mapping[str, StreamEntry],
    commit_timestamp: int,
    *,
    is_read: bool,
) -> None:
    """Raise `StreamStateError` if the release of a commit of these write streams does not become
    visible without an operator.

    `is_read`: ingest has read all copies of the release. If it is not known then, and below the
    horizon, it became a dead letter.
    """
    open_ = [
        one
        for one in progress.releases.open
        if one.commit_timestamp == commit_timestamp
        and not entries.keys().isdisjoint(one.write_streams)
    ]
    asked = view_of_time(commit_timestamp)
    if any(one.withheld is Withheld.ROWS and not one.without_rejected for one in open_):
        raise StreamStateError(
            ErrorCode.RELEASE_WITHHELD,
            f"The release of {asked} of stream {of.name} is withheld: no table shows its rows",
            "Some of its rows were rejected, or were never sent. The commit itself is done",
            "Repair and replay the dead letters, or release it without the rejected rows",
            stream=of.name,
            commit_timestamp=asked,
            write_streams=tuple(entries),
        )
    is_below = progress.horizon is not None and commit_timestamp < progress.horizon
    is_rejected = is_read and not open_ and is_below
    if is_rejected or any(one.withheld is Withheld.TOO_LATE for one in open_):
        raise StreamStateError(
            ErrorCode.RELEASE_TOO_LATE,
            f"The release of {asked} of stream {of.name} is too late: no table shows its rows",
            "Its commit timestamp is below the horizon. The commit itself is done",
            "Release it again, with a new commit timestamp. For a backfill, export the rows again",
            stream=of.name,
            commit_timestamp=asked,
            write_streams=tuple(entries),
        )


def _has(table: TableState, batch: int, commit_timestamp: int) -> bool:
    """Rows that wait for dead letters are not waited for."""
    return table.covers(batch, commit_timestamp) or (
        bool(table.blocked_rows) and table.to_batch >= batch
    )


def _not_shown(
    of: StreamConfig, commit_timestamp: int, timeout_s: float, lag: Lag
) -> StreamStateError:
    return StreamStateError(
        ErrorCode.ROWS_NOT_SHOWN,
        f"After {timeout_s:g} s, not every table of stream {of.name} shows the rows of the commit"
        f" of {view_of_time(commit_timestamp)}",
        f"The commit is done. It waits for {lag.waits_for}",
        "Commit the same write streams again to go on waiting",
        stream=of.name,
        table=lag.table,
        stream_partition=lag.stream_partition,
        kafka_partition=lag.kafka_partition,
    )
