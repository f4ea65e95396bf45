"""List the write streams of a stream; finalize, commit, discard and release them as an operator
(WRS-23).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from connector.clock import now_us
from connector.config.settings import find_stream
from connector.errors.write_streams import release_unknown
from connector.events import OnEvent, log_event
from connector.records.model import OffsetRange
from connector.records.views import view_of_time
from connector.reports.write_stream_status import (
    ReleaseStatus,
    SessionStatus,
    WriteStreamStatus,
    dead_sessions,
    release_status,
    write_stream_statuses,
)
from connector.services.load_config import who
from connector.services.rows.load_checks import check_as_of
from connector.services.wait import wait_for_commit
from connector.services.warehouses import warehouse_of
from connector.text import nearest, one_of
from connector.write_streams.model import StreamState, check_stream_names
from connector.write_streams.releases import OpenRelease, ReleaseProgress, ReleaseRows, Withheld
from connector.write_streams.rules import Fault, fault_error

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig, StreamConfig
    from connector.kafka import ChangeProducer
    from connector.state.stream_progress import Progress
    from connector.write_streams.model import Catalog, StreamEntry


@dataclass(frozen=True, slots=True)
class WriteStreamList:
    """The write streams of a stream. `list_write_streams` documents the fields."""

    stream: str
    now: int
    ingest_batch: int
    write_streams: dict[str, WriteStreamStatus]
    sessions: list[SessionStatus]
    releases: list[ReleaseStatus]


def list_write_streams(config: ConnectorConfig, stream: str | None = None) -> WriteStreamList:
    """List the write streams of the catalog, with what ingest knows of them. Without `stream`:
    those of the only stream of the configuration.

    For example: `[entry.name for entry in list_write_streams(config, "orders").write_streams
    .values() if entry.state == "open"]`.

    Returns:
        The report of ingest batch `ingest_batch` (0: nothing was ingested) at the time `now` (µs).
        `write_streams` has a status for each write stream, by name, without the changes of open
        transactions. `sessions` have probably died: their stream partition delays the low
        watermark. `releases` are not complete; they may be of write streams that the catalog does
        not have any more.

    Raises:
        ConfigError: There is no such stream.
        TopicError: There is no catalog, or it cannot be read.
        BrokerError: No broker answers.
        TableError: The warehouse cannot be read.
    """
    from connector.lake.overrides import Overrides
    from connector.lake.state_reader import progress_of

    source, now = find_stream(config, stream), now_us()
    catalog = _catalog(config, source, is_complete=False)
    progress = progress_of(warehouse_of(config), source.name, with_frontier=True)
    requests = Overrides(warehouse_of(config)).requests(
        ReleaseRows, source.name, above=progress.releases.requests_to
    )
    releases = progress.releases.requested(requests)
    statuses = write_stream_statuses(catalog, releases, now, _retention(source))
    return WriteStreamList(
        source.name,
        now,
        progress.ingest_batch,
        {status.name: status for status in statuses},
        dead_sessions(catalog, progress.frontier, now, source.stall_after_s * 1_000_000),
        [release_status(release) for release in releases.open],
    )


def finalize_write_stream(config: ConnectorConfig, stream: str, name: str) -> int:
    """Finalize a write stream whose session is lost. This ends the session: if its process is still
    alive, its next call raises `WriterConflictError`. The stream partitions of the session end,
    too, so they no longer delay the low watermark.

    This may take a transaction time-out (60 s). For example:
    `finalize_write_stream(config, "orders", "job-7/rows")`.

    Args:
        config: It has the stream.
        stream: The name or topic of the stream.
        name: The name of the write stream, such as `job/rows`.

    Returns:
        The number of rows. A repeated call returns it, too. It does nothing if the session has no
        live stream partition.

    Raises:
        WriteStreamError: There is no such write stream, or it is discarded or expired.
        ConfigError: There is no such stream, or the name cannot be one.
        WriterConflictError: The session is opened again at the same time.
        TopicError, BrokerError: As for `WriteSession`.
    """
    from connector.kafka.write_streams.session import WriteSession

    source, (name,) = find_stream(config, stream), check_stream_names([name])
    catalog = _catalog(config, source, is_complete=True)
    entry = catalog.streams.get(name)
    if entry is None:
        raise fault_error(Fault.NOT_FOUND, name)
    session, _, short = name.partition("/")
    owner = catalog.sessions.get(session)
    if entry.state is not StreamState.OPEN and (owner is None or not owner.announced):
        if entry.state is StreamState.DISCARDED:
            raise fault_error(Fault.DISCARDED, name)
        return entry.end
    with WriteSession(
        config.kafka,
        source.topic,
        session,
        registry=config.registry,
        staging_retention_s=source.staging_retention_s,
    ) as opened:
        return opened.stream(short, kind=entry.kind).finalize()


def commit_write_streams(
    config: ConnectorConfig,
    stream: str,
    names: Iterable[str],
    *,
    through: ChangeProducer | None = None,
    as_of: int | None = None,
    wait: bool = False,
    timeout_s: float | None = None,
    on_event: OnEvent = log_event,
) -> int:
    """Commit finalized pending write streams: all their rows become visible together, or none.

    For example: `commit_write_streams(config, "orders", ["w1/rows", "w2/rows"], wait=True)`.

    Args:
        config: It has the stream.
        stream: The name or topic of the stream.
        names: 1 to 1,000 names of write streams of any sessions, such as `job/rows`.
        through: A producer of this process. The commit timestamp is one of a live stream partition
            of this producer, so the release is not late. None: the release may be late.
        as_of: The commit timestamp (µs) of a backfill, at most the time of its export. Newer
            changes keep their values. The release is late by design. None: now.
        wait: Whether to wait until every table of the stream shows the rows.
        timeout_s: How long to wait. None: for ever.
        on_event: Receives the causes of the wait.

    Returns:
        The commit timestamp (µs). If exactly these write streams were committed before, that of
        this commit.

    Raises:
        WriteStreamError: A write stream cannot be committed, or `through` has no live stream
            partition: nothing was committed. Or, with `wait`, the rows are committed, and their
            release is withheld (`RELEASE_WITHHELD`, `RELEASE_TOO_LATE`), or not shown after
            `timeout_s` (`ROWS_NOT_SHOWN`).
        ConfigError: There is no such stream, or an argument is not allowed.
        ConnectorError: `as_of` is below the horizon of the stream (`AS_OF_TOO_OLD`).
        TableError: The warehouse cannot be read. It is read with `as_of` and `wait` only.
        WriterConflictError: Other commits of the topic went on for five minutes.
        DeliveryError: The outcome is unknown. Commit again.
        TopicError, BrokerError: As for `WriteSession`.
    """
    from connector.kafka.write_streams.commit import commit_streams

    source, names = find_stream(config, stream), check_stream_names(names)
    if as_of is not None:
        check_as_of(config, source, as_of)
    commit_timestamp = commit_streams(
        *(config.kafka, source.topic, names),
        through=through,
        as_of=as_of,
        registry=config.registry,
        staging_retention_s=source.staging_retention_s,
    )
    if wait:
        streams = _catalog(config, source, is_complete=True).streams
        entries = {name: streams[name] for name in names}
        wait_for_commit(config, source, entries, commit_timestamp, on_event, timeout_s=timeout_s)
    return commit_timestamp


def discard_write_streams(config: ConnectorConfig, stream: str, names: Iterable[str]) -> None:
    """Discard pending or buffered write streams: their rows without a release never become visible.
    They must be finalized or expired. A repeated discard changes nothing.

    For example: `discard_write_streams(config, "orders", ["w1/rows"])`.

    Raises:
        WriteStreamError: A write stream cannot be discarded. Nothing was discarded.
        ConfigError: There is no such stream, or a name cannot be one.
        WriterConflictError, DeliveryError, TopicError, BrokerError: As for `commit_write_streams`.
    """
    from connector.kafka.write_streams.commit import discard_streams

    source = find_stream(config, stream)
    retention_s = source.staging_retention_s
    discard_streams(config.kafka, source.topic, names, staging_retention_s=retention_s)


def release_rows(
    config: ConnectorConfig,
    stream: str,
    name: str,
    *,
    commit_timestamp: int | None = None,
    why: str,
    by: str | None = None,
) -> ReleaseRows:
    """Release the rows of a withheld release that are there, without those that were rejected.

    Ingest takes the request within ten seconds (90 in an object store), or when it runs again. A
    rejected row of the release that is replayed later never becomes visible. For example:
    `release_rows(config, "orders", "nightly/rows", why="row 12 has no valid key")`.

    Args:
        config: It has the stream.
        stream: The name or topic of the stream.
        name: A write stream of the release, such as `job/rows`.
        commit_timestamp: That of the release, in microseconds. None: the write stream has only one
            such release.
        why: The reason. It is stored with the request.
        by: The person or program that asks. None: the user and the host of this process.

    Returns:
        The request.

    Raises:
        ConfigError: There is no such stream, or no release of the write stream that is withheld
            because rows were rejected, or several (`RELEASE_UNKNOWN`), or an argument is not
            allowed.
        TableError: The warehouse cannot be read or written.
    """
    from connector.lake.overrides import Overrides
    from connector.lake.state_reader import progress_of

    (name,) = check_stream_names([name])
    source = find_stream(config, stream)
    releases = progress_of(warehouse_of(config), source.name).releases
    release = find_withheld(source.name, releases, name, commit_timestamp, Withheld.ROWS)
    by = who() if by is None else by
    request = ReleaseRows(
        releases.requests_to + 1, source.name, release.commit_timestamp, why, now_us(), by, name
    )
    Overrides(warehouse_of(config)).add(request)
    return request


def release_again(
    config: ConnectorConfig, stream: str, name: str, *, commit_timestamp: int | None = None
) -> int:
    """Give the rows of a release that was too late a new commit timestamp: the present time.

    It is for a release that is withheld because it is too late, and for a commit whose release
    became a dead letter for that reason. The rows then win over changes that are older than now.
    For example: `release_again(config, "orders", "nightly/rows")`.

    Args:
        config: It has the stream.
        stream: The name or topic of the stream.
        name: A write stream of the release, such as `job/rows`. All write streams of the release
            get the new commit timestamp.
        commit_timestamp: That of the release, in microseconds. None: the write stream has only one
            such release.

    Returns:
        The new commit timestamp (µs).

    Raises:
        ConfigError: There is no such stream, or no release of the write stream that is too late,
            or several (`RELEASE_UNKNOWN`), or an argument is not allowed.
        TableError: The warehouse cannot be read.
        WriterConflictError, DeliveryError, TopicError, BrokerError: As for
            `commit_write_streams`.
    """
    from connector.kafka.write_streams import commit
    from connector.lake.state_reader import progress_of

    (name,) = check_stream_names([name])
    source = find_stream(config, stream)
    progress = progress_of(warehouse_of(config), source.name)
    ranges, at = _rejected_commit(config, source, progress, name, commit_timestamp)
    if not ranges:
        release = find_withheld(
            source.name, progress.releases, name, commit_timestamp, Withheld.TOO_LATE
        )
        ranges, at = release.ranges, release.commit_timestamp
    return commit.release_again(config.kafka, source.topic, ranges, at, registry=config.registry)


def find_withheld(
    stream: str,
    releases: ReleaseProgress,
    name: str,
    commit_timestamp: int | None,
    reason: Withheld,
) -> OpenRelease:
    """Return the release withheld for a reason. Raises `ConfigError` unless exactly one is."""
    withheld = [release for release in releases.withheld if release.withheld is reason]
    of_stream = [release for release in withheld if name in release.write_streams]
    selected = [
        release for release in of_stream if commit_timestamp in (None, release.commit_timestamp)
    ]
    if len(selected) == 1:
        return selected[0]
    if of_stream:
        times = one_of({str(view_of_time(release.commit_timestamp)) for release in of_stream})
        cause = f"Such releases of it are of these times: {times}"
        raise release_unknown(stream, name, cause, "Name the commit timestamp of one of them")
    names = {other for release in withheld for other in release.write_streams}
    cause = f"Such releases are of these write streams: {one_of(names)}"
    remedy = nearest(name, names) or "List the write streams of the stream"
    raise release_unknown(stream, name, cause, remedy)


def _rejected_commit(
    config: ConnectorConfig,
    source: StreamConfig,
    progress: Progress,
    name: str,
    commit_timestamp: int | None,
) -> tuple[tuple[OffsetRange, ...], int]:
    """Return the ranges of the commit of a write stream, and its commit timestamp, if its release
    became a dead letter because it was below the horizon. Without ranges: there is no such commit.
    """
    if progress.horizon is None or (commit_timestamp or 0) >= progress.horizon:
        return (), 0
    streams = _catalog(config, source, is_complete=True).streams
    committed = committed_with(streams, name)
    at = committed[name].commit_timestamp if committed else 0
    is_open = any(
        release.commit_timestamp == at and name in release.write_streams
        for release in progress.releases.open
    )
    if at >= progress.horizon or commit_timestamp not in (None, at) or is_open:
        return (), 0
    return lost_ranges(committed, progress.releases, now_us() - 2 * _retention(source)), at


def committed_with(streams: Mapping[str, StreamEntry], name: str) -> dict[str, StreamEntry]:
    """Return a write stream and the pending ones that were committed together with it, sorted by
    name. Empty: it was not committed.

    A commit is known by the names that were committed together (WRS-14), because two commits may
    have one commit timestamp.
    """
    of_set = streams[name].commit_set if name in streams else ""
    return {
        other: entry
        for other, entry in sorted(streams.items())
        if of_set and entry.commit_set == of_set
    }


def lost_ranges(
    committed: Mapping[str, StreamEntry], releases: ReleaseProgress, forgotten: int
) -> tuple[OffsetRange, ...]:
    """Return the ranges of a commit whose release ingest does not know. Empty: its rows were
    released, or ingest forgot its write streams.

    Ingest forgets a write stream that had no row for long, when its rows were released or their
    payload was removed (WRS-21): one without an append since `forgotten` (µs) that it does not
    know.
    """
    staged = releases.streams
    if all(
        staged[name].released if name in staged else entry.changed_at < forgotten
        for name, entry in committed.items()
    ):
        return ()
    return tuple(OffsetRange(name, 0, entry.end) for name, entry in committed.items() if entry.end)


def _catalog(config: ConnectorConfig, source: StreamConfig, *, is_complete: bool) -> Catalog:
    from connector.kafka import topics
    from connector.kafka.write_streams import catalog

    facts = catalog.describe(config.kafka, source.topic)
    topic_id = topics.describe(config.kafka, source.topic).topic_id
    return catalog.read(config.kafka, facts, is_complete=is_complete, topic_id=topic_id)


def _retention(source: StreamConfig) -> int:
    return source.staging_retention_s * 1_000_000
