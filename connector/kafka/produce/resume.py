"""Finds the position at which a producer continues: the newest resume token in the topic (REC-19).

A heartbeat is sent after all changes that it covers are acknowledged, and to every Kafka partition.
So it is enough to read the first Kafka partition. A data change does not cover earlier changes,
which may be lost in other Kafka partitions. With transactions, no earlier change is lost. Then the
newest record of all Kafka partitions counts. Each Kafka partition is read backwards from its end.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

from connector.errors.producers import resume_token_missing
from connector.kafka import topics
from connector.kafka.client import records_between, windows_before
from connector.kafka.consume.decode import Decoder
from connector.kafka.consume.start_offsets import ARRIVAL_MARGIN_S
from connector.records.model import ChildPartitions, DataChange, Heartbeat, Record, time_of
from connector.records.rejection import Rejection
from connector.watermarks.producer_epoch import epoch_of

if TYPE_CHECKING:
    from connector.config.settings import KafkaConfig, RegistryConfig
    from connector.validation import Limits

WINDOW: Final = 1000


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

    Only valid and committed records are read. Raises `TopicError` if there is no token, and
    `BrokerError`.
    """
    facts = topics.describe(kafka, topic)
    first, ends = topics.beginning_offsets(kafka, facts), topics.end_offsets(kafka, facts)
    if not in_transactions:
        ends = {0: ends[0]}
    tokens: dict[int, _Token] = {}
    epoch, in_order = 0, facts.timestamp_type == "LogAppendTime"
    with closing(Decoder(registry, limits)) as decoder:
        for windows in windows_before(ends, first, WINDOW):
            reached: dict[int, int] = {}
            for source in records_between(kafka, topic, facts.topic_id, windows):
                number, arrived_at = source.position.kafka_partition, source.record_timestamp
                reached.setdefault(number, arrived_at)
                verdict = decoder.decode(source, facts.kafka_partitions)
                if isinstance(verdict, Rejection):
                    continue
                if isinstance(verdict.record, Heartbeat | ChildPartitions):
                    epoch = max(epoch, epoch_of(source.headers) or 0)
                token = _token_of(verdict.record, arrived_at, stream_partition, in_transactions)
                if token is not None:
                    tokens[number] = token
            # A record that arrived before the newest known one cannot be newer. The times of
            # clients do not give the order of arrival (REC-25).
            arrivals = [token.arrived_at for token in tokens.values() if in_order]
            newest = max(arrivals, default=0) - ARRIVAL_MARGIN_S * 1_000_000
            for number in windows:
                if number in tokens or reached.get(number, newest) < newest:
                    del ends[number]
    if not tokens:
        raise resume_token_missing(topic, stream_partition)
    return Resumed(max(tokens.values()).value, epoch)


def _token_of(
    record: Record, arrived_at: int, stream_partition: str, in_transactions: bool
) -> _Token | None:
    """Return the resume token of a record of the stream partition. None: it has no valid one."""
    is_heartbeat = isinstance(record, Heartbeat)
    if not is_heartbeat and not (
        in_transactions and isinstance(record, DataChange) and not record.is_staged
    ):
        return None
    assert isinstance(record, DataChange | Heartbeat)
    if record.stream_partition != stream_partition or not record.resume_token:
        return None
    return _Token(time_of(record), is_heartbeat, arrived_at, record.resume_token)
