"""How far the bridge of a stream is, from its heartbeats (SRC-8)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from connector.errors import BrokerError, TopicError
from connector.kafka import client, topics
from connector.kafka.bridge.reader import described, topics_of
from connector.kafka.bridge.session import WAITING_HEADER
from connector.kafka.client import records_between, windows_before
from connector.kafka.consume.decode import Decoder
from connector.kafka.topics import EARLIEST, LATEST, offsets_of
from connector.records.model import Heartbeat
from connector.records.rejection import Rejection
from connector.reports.bridge_status import BridgeStatus, lost_promises, text_of_waiting
from connector.sources.changes import STREAM_PARTITION
from connector.sources.model import Waiting
from connector.sources.position import SourcePosition, by_partition
from connector.stored import from_text

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from connector.config.settings import ConnectorConfig, SourceConfig, StreamConfig
    from connector.sources.model import TopicPartition
    from connector.validation import KafkaRecord

WINDOW: Final = 1_000
_LEAST_S: Final = 2.0
"""Over less time, a rate says nothing."""


class Reported(NamedTuple):
    """A heartbeat of a bridge: its time, when it arrived (µs), the ids of the topics that it has
    read, and what the bridge waits for.
    """

    timestamp: int
    arrived_at: int
    starts: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str]
    waiting: Waiting | None


def bridge_status(
    config: ConnectorConfig, stream: StreamConfig, now: int, *, timeout_s: float
) -> BridgeStatus:
    """Return the status of the bridge of a stream with a source. If Kafka does not answer within
    `timeout_s`, it is not known.
    """
    source = stream.source
    assert source is not None
    status = BridgeStatus(
        format=source.format, lost_promises=lost_promises(source.format, source.transactions)
    )
    try:
        admin = client.admin(config.kafka, timeout_s)
        reported = reported_positions(config, stream, admin)
        lag = _lag(config, source, admin, reported[-1].starts if reported else {})
    except (BrokerError, TopicError) as error:
        return replace(status, problem=error.problem)
    if not reported:
        return replace(status, is_known=True, lag=lag)
    newest, oldest = reported[-1], reported[0]
    seconds = (newest.arrived_at - oldest.arrived_at) / 1e6
    records = sum(newest.starts.values()) - sum(oldest.starts.values())
    waiting = next(
        (r.waiting for r in reversed(reported) if r.waiting and r.timestamp == newest.timestamp),
        None,
    )
    return replace(
        status,
        is_known=True,
        lag=lag,
        records_per_s=records / seconds if seconds >= _LEAST_S and records >= 0 else None,
        position_time=newest.timestamp,
        heartbeat_at=newest.arrived_at,
        waiting="" if waiting is None else text_of_waiting(waiting, now),
        lacking=waiting.transaction if waiting and waiting.can_be_skipped else "",
    )


def reported_positions(
    config: ConnectorConfig, stream: StreamConfig, admin: AdminClient
) -> list[Reported]:
    """Return the newest heartbeats of a bridge, in order. Raises `TopicError` and `BrokerError`."""
    kafka, facts = config.kafka, topics.describe(config.kafka, stream.topic, admin)
    first = topics.beginning_offsets(kafka, facts)
    ends = {0: topics.end_offsets(kafka, facts)[0]}
    with closing(Decoder(config.registry, stream.limits)) as decoder:
        for window in windows_before(ends, first, WINDOW):
            read = records_between(kafka, facts.topic, facts.topic_id, window)
            if reported := list(_heartbeats(decoder, facts.kafka_partitions, read)):
                return reported
    return []


def _heartbeats(
    decoder: Decoder, kafka_partitions: int, records: Iterator[KafkaRecord]
) -> Iterator[Reported]:
    for source in records:
        verdict = decoder.decode(source, kafka_partitions)
        record = None if isinstance(verdict, Rejection) else verdict.record
        if not isinstance(record, Heartbeat) or record.stream_partition != STREAM_PARTITION:
            continue
        header = dict(source.headers).get(WAITING_HEADER)
        try:
            position = SourcePosition.parse(record.resume_token)
            waiting = from_text(Waiting, header.decode()) if header else None
        except ValueError:
            continue
        times, starts = (record.timestamp, source.record_timestamp), by_partition(position.starts)
        yield Reported(*times, starts, position.topic_ids, waiting)


def _lag(
    config: ConnectorConfig,
    source: SourceConfig,
    admin: AdminClient,
    starts: Mapping[TopicPartition, int],
) -> int:
    kafka = config.kafka
    existing = described(admin, kafka, topics_of(admin, kafka, source))
    partitions = [(name, k) for name, (_, count) in existing.items() for k in range(count)]
    ends = offsets_of(admin, kafka, LATEST, partitions)
    first = offsets_of(admin, kafka, EARLIEST, partitions)
    return sum(max(0, end - max(starts.get(p, 0), first[p])) for p, end in ends.items())
