"""Commits and discards write streams of any session of a topic (WRS-14, WRS-15).

`connector.services.commit_write_streams` and `discard_write_streams` are their public forms.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from connector.clock import now_us
from connector.errors import BrokerError, ConnectorError, argument_invalid
from connector.errors.kafka import arguments_exclude
from connector.errors.write_streams import commit_failed, committer_busy
from connector.kafka import topics
from connector.kafka.produce.control_records import HeldRelease
from connector.kafka.transactions import Failure, TransactionClient, TransactionMessage
from connector.kafka.write_streams import catalog as catalogs
from connector.kafka.write_streams.messages import Encoding
from connector.records.model import ChildPartition, ChildPartitions, Release
from connector.validation import Limits
from connector.watermarks.producer_epoch import ProducerEpoch
from connector.write_streams.model import (
    STAGING_RETENTION_S,
    Catalog,
    StreamEntry,
    StreamKind,
    StreamState,
    check_stream_names,
    commit_id,
)
from connector.write_streams.rules import (
    Fault,
    commit,
    commit_fault,
    discard_fault,
    recorded_commit,
    refused,
)

if TYPE_CHECKING:
    from connector.config.settings import KafkaConfig, RegistryConfig
    from connector.kafka.produce.producer import ChangeProducer
    from connector.records.model import OffsetRange

_Prepared = tuple[int, list[TransactionMessage], Mapping[str, StreamEntry]]
"""The answer, the messages of a release, and the new records of write streams. If both are empty,
the answer is final.
"""

MAX_RETRY_S: Final = 300.0
_LIMITS: Final = Limits(max_record_bytes=1_000_000_000)
"""A release has no other limit than that of its topic."""
_MAX_PAUSE_S: Final = 5.0


def commit_streams(
    kafka: KafkaConfig,
    topic: str,
    streams: Iterable[str],
    *,
    through: ChangeProducer | None = None,
    as_of: int | None = None,
    registry: RegistryConfig | None = None,
    staging_retention_s: int = STAGING_RETENTION_S,
) -> int:
    """Commit finalized pending write streams: all their rows become visible together, or none.

    Without `through` and `as_of`, the commit timestamp is the present time. It is tried again for
    `MAX_RETRY_S`, beside other committers or if its outcome is unknown. A broker that does not
    answer the first attempt is an error at once.

    Returns the commit timestamp, and raises, as `commit_write_streams` does.
    """
    names = check_stream_names(streams)
    if as_of is not None:
        _check_as_of(as_of, through)
    encoding = Encoding(topics.describe(kafka, topic), registry, _LIMITS)
    retention, name = staging_retention_s * 1_000_000, f"write-commit/{uuid.uuid4().hex}"
    with ExitStack() as holds:
        release: HeldRelease | None = None

        def prepare(catalog: Catalog) -> _Prepared:
            nonlocal release
            recorded = recorded_commit(catalog.streams, names)
            if recorded is not None:
                return recorded, [], {}
            _check("committed", catalog, names, commit_fault, retention)
            # It stays the same when the transaction is tried again.
            if release is None and through is not None:
                release = holds.enter_context(through.hold_release())
            elif release is None:
                release = HeldRelease(name, now_us() if as_of is None else as_of, [])
            entries, ranges = commit(catalog.streams, names, release.commit_timestamp)
            released = _release(encoding, release, ranges, is_own=through is None)
            return release.commit_timestamp, released, entries

        return _transact(kafka, topic, prepare)


def discard_streams(
    kafka: KafkaConfig,
    topic: str,
    streams: Iterable[str],
    *,
    staging_retention_s: int = STAGING_RETENTION_S,
) -> None:
    """Discard pending or buffered write streams. Raises as `discard_write_streams` does."""
    names = check_stream_names(streams)

    def prepare(catalog: Catalog) -> _Prepared:
        _check("discarded", catalog, names, discard_fault, staging_retention_s * 1_000_000)
        entries = {
            name: replace(catalog.streams[name], state=StreamState.DISCARDED)
            for name in names
            if catalog.streams[name].state is not StreamState.DISCARDED
        }
        return 0, [], entries

    _transact(kafka, topic, prepare)


def release_again(
    kafka: KafkaConfig,
    topic: str,
    ranges: Iterable[OffsetRange],
    commit_timestamp: int,
    *,
    registry: RegistryConfig | None = None,
) -> int:
    """Release the ranges of a release again, with the present time as their commit timestamp
    (WRS-20).

    It is for a release that was too late. Return the new commit timestamp (µs). If one of the
    pending write streams has another one than `commit_timestamp` already, it is that one, and
    nothing is sent.

    Raises `WriteStreamError` if the catalog does not have one of the write streams, and as
    `commit_streams` does.
    """
    wanted = tuple(ranges)
    names = sorted({range_.stream for range_ in wanted})
    encoding = Encoding(topics.describe(kafka, topic), registry, _LIMITS)
    release = HeldRelease(f"write-commit/{uuid.uuid4().hex}", now_us(), [])

    def prepare(catalog: Catalog) -> _Prepared:
        if missing := {name: Fault.NOT_FOUND for name in names if name not in catalog.streams}:
            raise refused("released", missing)
        pending = {
            name: catalog.streams[name]
            for name in names
            if catalog.streams[name].kind is StreamKind.PENDING
        }
        others = {entry.commit_timestamp for entry in pending.values()} - {commit_timestamp}
        if others:
            return max(others), [], {}
        entries = {
            name: replace(entry, commit_timestamp=release.commit_timestamp)
            for name, entry in pending.items()
        }
        released = _release(encoding, release, wanted, is_own=True)
        return release.commit_timestamp, released, entries

    return _transact(kafka, topic, prepare)


def _check_as_of(as_of: int, through: ChangeProducer | None) -> None:
    if not 0 < as_of <= now_us():
        raise argument_invalid("as_of", as_of, "a time in microseconds that is not in the future")
    if through is not None:
        raise arguments_exclude("as_of", "through", "Each of them gives the commit timestamp")


def _check(
    action: str,
    catalog: Catalog,
    names: list[str],
    fault_of: Callable[..., object],
    retention: int,
) -> None:
    now = now_us()
    faults = {name: fault_of(catalog.streams.get(name), now, retention) for name in names}
    if refusals := {name: fault for name, fault in faults.items() if fault is not None}:
        raise refused(action, refusals)  # type: ignore[arg-type]


def _release(
    encoding: Encoding, held: HeldRelease, ranges: Sequence[OffsetRange], *, is_own: bool
) -> list[TransactionMessage]:
    """Return the messages of a release. `is_own`: its stream partition begins and ends with it."""
    if not ranges:
        return []
    name, time_ = held.stream_partition, held.commit_timestamp
    release = Release(name, time_, tuple(ranges))
    if not is_own:
        return encoding.everywhere(release, held.headers)
    headers = ProducerEpoch(now_us()).on([])
    begin = ChildPartitions(name, max(1, time_ - 1), 0, (ChildPartition(name),))
    end = ChildPartitions(name, time_ + 1, 0, ())
    return [
        message
        for record in (begin, release, end)
        for message in encoding.everywhere(record, headers)
    ]


def _transact(
    kafka: KafkaConfig,
    topic: str,
    prepare: Callable[[Catalog], _Prepared],
) -> int:
    """Read the catalog, and commit what `prepare` makes of it, until it is committed.

    `prepare` decides again for each attempt, so an unknown outcome is read from the catalog.
    """
    catalog_facts = catalogs.describe(kafka, topic)
    facts = topics.describe(kafka, topic)
    client = TransactionClient(kafka, commit_id(topic), facts.max_message_bytes)
    deadline, pause_s = time.monotonic() + MAX_RETRY_S, 0.05
    is_unknown = False
    try:
        while True:
            failure: Failure | None
            try:
                client.start()
                catalog = catalogs.read(
                    kafka, catalog_facts, is_complete=True, topic_id=facts.topic_id
                )
            except BrokerError as error:
                if not is_unknown:
                    raise
                failure = Failure(str(error), is_unknown=True)
            else:
                is_unknown = False
                answer, released, entries = prepare(catalog)
                messages = [*released, *catalogs.records_of(catalog_facts.topic, entries)]
                failure = client.commit(messages) if messages else None
                if failure is None:
                    return answer
                is_unknown = failure.is_unknown
            is_hopeless = failure.is_permanent and not is_unknown
            if is_hopeless or time.monotonic() > deadline:
                raise _not_committed(topic, failure, is_unknown=is_unknown)
            # Another committer may be between its start and its commit.
            time.sleep(pause_s * (1 + random.random()))
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
    finally:
        client.close()


def _not_committed(topic: str, failure: Failure, *, is_unknown: bool) -> ConnectorError:
    if failure.is_fenced and not is_unknown:
        return committer_busy(topic, failure.cause)
    return commit_failed(topic, failure.cause, "unknown" if is_unknown else "not taken")
