"""Finds the position at which a producer continues: the newest resume token in the topic (REC-19).

A heartbeat is sent after all changes that it covers are acknowledged, and to every Kafka partition.
So it is enough to read the first Kafka partition. A data change says nothing about earlier changes,
which may be lost in other Kafka partitions. With transactions, no earlier change is lost. Then the
newest record of all Kafka partitions counts. Each Kafka partition is read backwards from its end,
in growing windows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from connector.errors.producers import resume_token_missing
from connector.kafka import topics
from connector.kafka.consume.consumer import ChangeConsumer
from connector.kafka.consume.decode import ConsumerRecord
from connector.kafka.consume.options import StreamSettings
from connector.kafka.consume.start_offsets import ARRIVAL_MARGIN_S, positions_at
from connector.records.model import ChildPartitions, DataChange, Heartbeat
from connector.watermarks.producer_epoch import epoch_of

if TYPE_CHECKING:
    from connector.config.settings import KafkaConfig, RegistryConfig
    from connector.validation import Limits

WINDOW: Final = 1000
GROWTH: Final = 10


class Resumed(NamedTuple):
    """The newest resume token with its time (µs), and the newest epoch of the control records that
    were read on the way (PUB-4). The epoch is 0 if none had one.
    """

    at: int
    token: bytes
    epoch: int


def newest_token(
    kafka: KafkaConfig,
    topic: str,
    stream_partition: str,
    *,
    registry: RegistryConfig | None,
    limits: Limits,
    in_transactions: bool,
) -> Resumed:
    """Return the resume token of the newest heartbeat of a stream partition. `in_transactions`: or
    of the newest change.

    Only valid and committed records are read. Raises `TopicError` if there is no token, and all
    exceptions of `ChangeConsumer`.
    """
    facts = topics.describe(kafka, topic)
    first, ends = topics.beginning_offsets(kafka, facts), topics.end_offsets(kafka, facts)
    found: dict[int, ConsumerRecord] = {}
    unread = list(ends) if in_transactions else [0]
    window, epoch, in_order = WINDOW, 0, facts.timestamp_type == "LogAppendTime"
    while unread:
        starts = {number: max(first[number], ends[number] - window) for number in unread}
        reached: dict[int, int] = {}
        with ChangeConsumer(
            kafka,
            topic,
            start=positions_at(facts, starts, first),
            kafka_partitions=starts,
            bounded=True,
            stream=StreamSettings(registry, limits),
        ) as consumer:
            for received in consumer:
                if not isinstance(received, ConsumerRecord):
                    continue  # a release has no token
                reached.setdefault(received.position.kafka_partition, received.record_timestamp)
                if isinstance(received.record, Heartbeat | ChildPartitions):
                    epoch = max(epoch, epoch_of(received.source.headers) or 0)
                if _order(received.record, stream_partition, in_transactions):
                    found[received.position.kafka_partition] = received
        # A record that arrived before the newest known one cannot be newer. The times of clients
        # say nothing about the order of arrival (REC-25).
        arrivals = [received.record_timestamp for received in found.values() if in_order]
        newest = max(arrivals, default=0) - ARRIVAL_MARGIN_S * 1_000_000
        unread = [
            n
            for n in unread
            if n not in found and starts[n] > first[n] and reached.get(n, newest) >= newest
        ]
        window *= GROWTH
    if not found:
        raise resume_token_missing(topic, stream_partition)
    last = max(
        found.values(),
        key=lambda received: (
            _order(received.record, stream_partition, in_transactions),
            received.record_timestamp,
        ),
    )
    assert isinstance(last.record, DataChange | Heartbeat)
    at = (
        last.record.timestamp
        if isinstance(last.record, Heartbeat)
        else last.record.commit_timestamp
    )
    return Resumed(at, last.record.resume_token, epoch)


def _order(record: object, stream_partition: str, in_transactions: bool) -> tuple[int, ...]:
    """Return how new the resume token of a record is. Empty: the record has no valid token.

    A heartbeat comes after the changes with the same time.
    """
    match record:
        case Heartbeat() if record.stream_partition == stream_partition and record.resume_token:
            return record.timestamp, True
        case DataChange() if (
            in_transactions and record.stream_partition == stream_partition and record.resume_token
        ):
            return record.commit_timestamp, False
    return ()
