"""Waits until tables show records of a topic: replays (DLQ-14), and commits of write streams and
loads (WRS-23, PUB-6). Rows that wait for dead letters are not waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from connector.clock import now_us
from connector.errors.write_streams import release_too_late, release_withheld, rows_not_shown
from connector.events import OnEvent, info
from connector.records.views import view_of_time
from connector.services.warehouses import warehouse_of
from connector.text import counted, summarize_names
from connector.write_streams.releases import ReleaseProgress, ReleaseRows, Withheld

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig, StreamConfig
    from connector.lake.overrides import Overrides
    from connector.state.stream_progress import Progress
    from connector.state.table_state import TableState
    from connector.write_streams.model import StreamEntry

CHECK_EVERY_S: Final = 1.0
REPORT_EVERY_S: Final = 15.0


def wait_for_replays(
    config: ConnectorConfig,
    stream: StreamConfig,
    are_rejected_again: Callable[[], bool],
    on_event: OnEvent,
) -> bool:
    """Wait until every table of a stream contains what is in its topic now, and return True. Return
    False as soon as replays are rejected again: `are_rejected_again` is called when all is
    ingested, and at the end, because tables reject, too.

    Ctrl-C ends the waiting, and nothing else. Raises `TableError` if the warehouse cannot be read,
    `TopicError`, `BrokerError`.
    """
    from connector.lake.state_reader import batch_with

    ends = _end_offsets(config, stream)

    def ingested() -> int | None:
        return batch_with(warehouse_of(config), stream.name, ends)

    for tables in ([], [*config.tables_of(stream.name)]):
        _wait(config, stream, tables, ends, ingested, on_event)
        if are_rejected_again():
            return False
    on_event(info("REPLAYS_APPLIED", f"all tables of {stream.name} contain the replayed changes"))
    return True


def wait_for_commit(
    config: ConnectorConfig,
    stream: StreamConfig,
    entries: Mapping[str, StreamEntry],
    commit_timestamp: int,
    on_event: OnEvent,
    *,
    tables: Collection[str] | None = None,
    timeout_s: float | None = None,
) -> None:
    """Return once tables show the rows of a commit.

    Args:
        config: It has the tables.
        stream: The stream.
        entries: The write streams of the commit, by name, as the catalog has them.
        commit_timestamp: That of the commit (µs).
        on_event: Receives `WAITING`, with the cause of the wait.
        tables: The tables. None: all tables of the stream.
        timeout_s: How long to wait. None: for ever.

    Raises:
        WriteStreamError: The release of the commit is withheld, or `timeout_s` has passed.
        TableError: The warehouse cannot be read.
        TopicError, BrokerError: Kafka cannot be asked for the end of the topic.
    """
    from connector.lake.overrides import Overrides
    from connector.lake.state_reader import batch_with, progress_of

    warehouse, ends = warehouse_of(config), _end_offsets(config, stream)

    def released() -> int | None:
        # In this order: the progress has everything that the batch has.
        is_read = batch_with(warehouse, stream.name, ends) is not None
        progress = progress_of(warehouse, stream.name)
        forgotten = now_us() - 2 * stream.staging_retention_s * 1_000_000 if is_read else 0
        if is_released(progress.releases, entries, forgotten):
            return progress.ingest_batch
        if not requested(Overrides(warehouse), stream.name, progress, entries, commit_timestamp):
            check_not_withheld(stream, progress, entries, commit_timestamp, is_read=is_read)
        return None

    tables = [*config.tables_of(stream.name)] if tables is None else tables
    lag = _wait(config, stream, tables, ends, released, on_event, commit_timestamp, timeout_s)
    if lag is not None:
        raise rows_not_shown(
            stream.name,
            f"{timeout_s:g}",
            str(view_of_time(commit_timestamp)),
            lag.waits_for,
            table=lag.table,
            stream_partition=lag.stream_partition,
            kafka_partition=lag.kafka_partition,
        )


def _wait(
    config: ConnectorConfig,
    stream: StreamConfig,
    tables: Collection[str],
    ends: Mapping[int, int],
    batch_of: Callable[[], int | None],
    on_event: OnEvent,
    commit_timestamp: int | None = None,
    timeout_s: float | None = None,
) -> Lag | None:
    """Return None once all tables contain the batch that `batch_of` returns, and the cut of
    `commit_timestamp`, if there is one. Return what is waited for if `timeout_s` has passed.

    `batch_of` is called every second, until it does not return None. `ends` are the end offsets
    that ingest must reach. `on_event` receives `WAITING` every 15 seconds.
    """
    from connector.lake.state_reader import logged_ends, progress_of, table_state_of

    warehouse, batch = warehouse_of(config), None
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    reported_at = time.monotonic()
    while True:
        batch = batch_of() if batch is None else batch
        behind = None
        if batch is not None:
            states = ((name, table_state_of(warehouse, stream.name, name)) for name in tables)
            lagging = (name for name, state in states if not _shows(state, batch, commit_timestamp))
            if (behind := next(lagging, None)) is None:
                return None
        is_over = deadline is not None and time.monotonic() >= deadline
        if is_over or time.monotonic() - reported_at > REPORT_EVERY_S:
            if behind is None:
                lag = lag_of_ingest(logged_ends(warehouse, stream.name), ends)
            else:
                progress = progress_of(warehouse, stream.name, with_frontier=True)
                lag = lag_of_table(behind, progress, commit_timestamp)
            if is_over:
                return lag
            reported_at = time.monotonic()
            on_event(info("WAITING", f"waiting for {lag.waits_for}"))
        time.sleep(CHECK_EVERY_S)


def _shows(table: TableState, batch: int, commit_timestamp: int | None) -> bool:
    if table.blocked_rows and table.to_batch >= batch:
        return True
    if commit_timestamp is None:
        return table.complete_to_batch >= batch
    return table.covers(batch, commit_timestamp)


def _end_offsets(config: ConnectorConfig, stream: StreamConfig) -> Mapping[int, int]:
    from connector.kafka import topics

    return topics.end_offsets(config.kafka, topics.describe(config.kafka, stream.topic))


class Lag(NamedTuple):
    """The cause why a commit is not shown yet, and where it is, as far as it has a location."""

    waits_for: str
    kafka_partition: int | None = None
    table: str | None = None
    stream_partition: str | None = None


def lag_of_ingest(logged: Mapping[int, int], ends: Mapping[int, int]) -> Lag:
    """Return the Kafka partitions that ingest has not read to `ends`, the longest lag first."""
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


def lag_of_table(table: str, progress: Progress, commit_timestamp: int | None) -> Lag:
    """Return why a table lacks a batch or a released commit. `progress` has its frontier."""
    low, delays = progress.low_watermark, progress.frontier.lagging_partition
    if commit_timestamp is None or low is None or low > commit_timestamp:
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
    return any(
        request.commit_timestamp == commit_timestamp and request.write_stream in names
        for request in overrides.requests(ReleaseRows, stream, above=progress.releases.requests_to)
    )


def is_released(
    releases: ReleaseProgress, entries: Mapping[str, StreamEntry], forgotten: int
) -> bool:
    """Return whether all rows of committed write streams are released.

    Ingest forgets a write stream that had no row for long. One without an append since `forgotten`
    (µs) that ingest does not know was released before.
    """
    for name, entry in entries.items():
        staged = releases.streams.get(name)
        if not entry.end or (staged is None and entry.changed_at < forgotten):
            continue
        # A release without the rejected rows counts for all offsets of its ranges.
        if staged is None or staged.released != ((0, entry.end),):
            return False
    return True


def check_not_withheld(
    stream: StreamConfig,
    progress: Progress,
    entries: Mapping[str, StreamEntry],
    commit_timestamp: int,
    *,
    is_read: bool,
) -> None:
    """Raise `WriteStreamError` if the release of a commit of these write streams does not become
    visible without an operator.

    `is_read`: ingest has read all copies of the release. If it is not known then, and below the
    horizon, it became a dead letter.
    """
    releases = [
        release
        for release in progress.releases.open
        if release.commit_timestamp == commit_timestamp
        and not entries.keys().isdisjoint(release.write_streams)
    ]
    names, at = summarize_names(list(entries)), str(view_of_time(commit_timestamp))
    if any(
        release.withheld is Withheld.ROWS and not release.without_rejected for release in releases
    ):
        raise release_withheld(stream.name, names, at)
    is_below = progress.horizon is not None and commit_timestamp < progress.horizon
    is_rejected = is_read and not releases and is_below
    if is_rejected or any(release.withheld is Withheld.TOO_LATE for release in releases):
        raise release_too_late(stream.name, names, at)
