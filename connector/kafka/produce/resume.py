"""Finds the position at which a producer continues: the newest resume token in the topic (REC-19).

A heartbeat is sent after all changes that it covers are acknowledged, and to every Kafka partition.
So it is enough to read the first Kafka partition. A data change does not cover earlier changes,
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
from connector.records.model import ChildPartitions, DataChange, Heartbeat, time_of
from connector.watermarks.producer_epoch import epoch_of

if TYPE_CHECKING:
    from connector.config.settings import KafkaConfig, RegistryConfig
    from connector.validation import Limits

WINDOW: Final = 1000
GROWTH: Final = 10


class Resumed(NamedTuple):
    """The newest resume token, and the newest epoch of the control records that were read on the
    way (PUB-4). The epoch is 0 if none had one.
    """

    token: bytes
    epoch: int


class _Token(NamedTuple):
    """A resume token. A newer one is greater: a heartbeat comes after the changes of its time."""

    time: int
    is_heartbeat: bool
    arrived_at: int
    value: bytes


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
    tokens: dict[int, _Token] = {}
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
                token = _token_of(received, stream_partition, in_transactions)
                if token is not None:
                    tokens[received.position.kafka_partition] = token
        # A record that arrived before the newest known one cannot be newer. The times of clients
        # do not give the order of arrival (REC-25).
        arrivals = [token.arrived_at for token in tokens.values() if in_order]
        newest = max(arrivals, default=0) - ARRIVAL_MARGIN_S * 1_000_000
        unread = [
            number
            for number in unread
            if number not in tokens
            and starts[number] > first[number]
            and reached.get(number, newest) >= newest
        ]
        window *= GROWTH
    if not tokens:
        raise resume_token_missing(topic, stream_partition)
    return Resumed(max(tokens.values()).value, epoch)


def _token_of(
    received: ConsumerRecord, stream_partition: str, in_transactions: bool
) -> _Token | None:
    """Return the resume token of a record of the stream partition. None: it has no valid one."""
    record = received.record
    is_heartbeat = isinstance(record, Heartbeat)
    if not is_heartbeat and not (in_transactions and isinstance(record, DataChange)):
        return None
    assert isinstance(record, DataChange | Heartbeat)
    if record.stream_partition != stream_partition or not record.resume_token:
        return None
    return _Token(time_of(record), is_heartbeat, received.record_timestamp, record.resume_token)
