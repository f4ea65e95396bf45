"""Looks for transactions that have not ended (OPS-5).

The client cannot list transactions or producers. But the last stable offset of a Kafka partition is
the offset of the first record of its oldest open transaction, and that record can be read.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from connector.kafka import client, topics
from connector.kafka.bounded_read import messages_between
from connector.records.codec import Schemas, decode
from connector.records.model import MAX_INT
from connector.records.rejection import Rejection
from connector.state.open_transactions import OpenTransaction

if TYPE_CHECKING:
    from connector.config.settings import KafkaConfig
    from connector.kafka.topics import TopicFacts


def open_transactions(kafka: KafkaConfig, facts: TopicFacts) -> list[OpenTransaction]:
    """Return the oldest open transaction of each Kafka partition that has one.

    Raises `BrokerError` and `TopicError`.
    """
    # The other way round, records that are committed between the two answers would look open.
    ends = topics.high_watermarks(kafka, facts)
    stable = topics.end_offsets(kafka, facts)
    held = {k: (stable[k], stable[k] + 1) for k, end in ends.items() if stable[k] < end}
    if not held:
        return []
    settings = {name: value for name, value in kafka.settings.items() if name != "isolation.level"}
    errors = client.LastError()
    further = {"group.id": "lowmark.reader", "isolation.level": "read_uncommitted"}
    found = []
    with closing(client.consumer(replace(kafka, settings=settings), errors, further)) as consumer:
        for message in messages_between(consumer, kafka, errors, held, facts.topic):
            number, offset = message.partition(), message.offset()
            assert number is not None
            assert offset is not None
            _, value, _, since = client.contents(message)
            decoded = decode(value, Schemas(), kafka_partitions=MAX_INT)
            name = "" if isinstance(decoded, Rejection) else decoded.record.stream_partition
            found.append(OpenTransaction(number, offset, ends[number] - offset, since, name))
    return found
