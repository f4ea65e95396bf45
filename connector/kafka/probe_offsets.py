"""Which offsets a reader of committed transactions can see: for the audit those without changelog
rows (TBL-6), to check a configuration the newest ones (OPS-1), and those that open transactions
hide (OPS-5), and how long Kafka keeps those that ingest lacks (RUN-7).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from connector.clock import now_us
from connector.kafka import client, topics
from connector.kafka.client import messages_between, records_between
from connector.kafka.schema_registry import RegistryClient
from connector.records.codec import Schemas, confluent_id, decode
from connector.records.model import MAX_INT
from connector.records.rejection import Rejection
from connector.reports.audit import Range, Ranges, TopicCheck, common, without
from connector.reports.headroom import Headroom
from connector.state.stream_progress import OpenTransaction

if TYPE_CHECKING:
    from connector.config.settings import KafkaConfig, RegistryConfig
    from connector.kafka.topics import TopicFacts

NEAR: Final = 10_000
"""Offsets that are not farther apart are read in one pass. For a larger distance, a new start is
faster.
"""

NEWEST_OF_EACH: Final = 4
"""How many offsets of each Kafka partition are read. One record may be damaged, and markers of
transactions use offsets too.
"""
TIMEOUT_S: Final = 10.0
_SMALL: Final = {"queued.min.messages": "1000", "queued.max.messages.kbytes": "4096"}
"""The settings of a client that reads a few records here and there."""


def visible_offsets(
    kafka: KafkaConfig, topic: str, topic_id: str, offsets: Mapping[int, Ranges]
) -> dict[int, TopicCheck]:
    """Read these offsets of each Kafka partition. They must have been written once.

    Missing offsets are gone: retention deleted them, or the brokers lost them. Raises `TopicError`
    if there is no topic with this id, or if it is compacted, because compaction deletes records
    between others. Raises `BrokerError`.
    """
    facts = topics.describe(kafka, topic)
    topics.check_identity(topic_id, facts)
    topics.check(facts)
    first, end = topics.beginning_offsets(kafka, facts), topics.end_offsets(kafka, facts)
    existing = {
        number: common(ranges, [Range(first.get(number, 0), end.get(number, 0))])
        for number, ranges in offsets.items()
    }
    visible: dict[int, list[Range]] = {number: [] for number in offsets}
    errors = client.LastError()
    with closing(client.consumer(kafka, errors, {"group.id": client.READER, **_SMALL})) as consumer:
        for spans in zip_longest(*(_spans(number, ranges) for number, ranges in existing.items())):
            together = {number: (start, stop) for number, start, stop in filter(None, spans)}
            for message in messages_between(consumer, kafka, errors, together, topic):
                number, offset = client.coordinates(message)
                _add(visible[number], offset)
    return {
        number: TopicCheck(
            common(visible[number], existing[number]), without(ranges, existing[number])
        )
        for number, ranges in offsets.items()
    }


def open_transactions(kafka: KafkaConfig, facts: TopicFacts) -> list[OpenTransaction]:
    """Return the oldest open transaction of each Kafka partition that has one (OPS-5).

    The client cannot list transactions or producers. But the last stable offset of a Kafka
    partition is the offset of the first record of its oldest open transaction, and that record can
    be read. Raises `BrokerError` and `TopicError`.
    """
    # The other way round, records that are committed between the two answers would look open.
    ends = topics.high_watermarks(kafka, facts)
    stable = topics.end_offsets(kafka, facts)
    hidden = {k: (stable[k], stable[k] + 1) for k, end in ends.items() if stable[k] < end}
    if not hidden:
        return []
    settings = {name: value for name, value in kafka.settings.items() if name != "isolation.level"}
    transactions = []
    for record in records_between(
        replace(kafka, settings=settings),
        facts.topic,
        facts.topic_id,
        hidden,
        further={"isolation.level": "read_uncommitted"},
    ):
        number, offset = record.position.kafka_partition, record.position.offset
        decoded = decode(record.value, Schemas(), kafka_partitions=MAX_INT)
        name = "" if isinstance(decoded, Rejection) else decoded.record.stream_partition
        count, since = ends[number] - offset, record.record_timestamp
        transactions.append(OpenTransaction(number, offset, count, since, name))
    return transactions


def first_arrivals(
    kafka: KafkaConfig, facts: TopicFacts, first: Mapping[int, int], *, at_most: int | None = None
) -> dict[int, int]:
    """Return the time of arrival (µs), by Kafka partition, of the first record from the offset
    `first` on whose record timestamp is believed, among `at_most` offsets. None: among all.
    """
    arrivals: dict[int, int] = {}
    ends = topics.end_offsets(kafka, facts)
    errors = client.LastError()
    with closing(client.consumer(kafka, errors, {"group.id": client.READER, **_SMALL})) as consumer:
        for number, offset in first.items():
            end = ends[number] if at_most is None else min(ends[number], offset + at_most)
            ranges = {number: (offset, end)}
            for message in messages_between(consumer, kafka, errors, ranges, facts.topic):
                if (arrived := client.arrival_of(message, now_us())) is not None:
                    arrivals[number] = arrived
                    break
    return arrivals


def headrooms(
    kafka: KafkaConfig, facts: TopicFacts, read_to: Mapping[int, int], ends: Mapping[int, int]
) -> tuple[Headroom, ...]:
    """Return the headroom of each Kafka partition that ingest has read to less than its end offset
    (RUN-7). A topic without a retention has none. Raises `BrokerError`.
    """
    behind = [number for number, end in ends.items() if read_to.get(number, 0) < end]
    if facts.retention_ms < 0 or not behind:
        return ()
    first = topics.beginning_offsets(kafka, facts)
    unread = {number: max(read_to.get(number, 0), first[number]) for number in behind}
    return tuple(
        Headroom(number, unread[number], arrived, arrived + facts.retention_ms * 1000)
        for number, arrived in first_arrivals(kafka, facts, unread).items()
    )


def _spans(number: int, ranges: Ranges) -> Iterator[tuple[int, int, int]]:
    """Yield the ranges to read: Kafka partition, first offset, and end offset (exclusive)."""
    if not ranges:
        return
    start, stop = ranges[0]
    for following in ranges[1:]:
        if following.start - stop > NEAR:
            yield number, start, stop
            start = following.start
        stop = following.stop
    yield number, start, stop


def _add(ranges: list[Range], offset: int) -> None:
    """Add an offset. The offsets of a Kafka partition come in order."""
    start = ranges.pop().start if ranges and ranges[-1].stop == offset else offset
    ranges.append(Range(start, offset + 1))


def newest_records(
    kafka: KafkaConfig, topic: str, registry: RegistryConfig | None
) -> tuple[int, list[str]]:
    """Return how many records are at the newest offsets of all Kafka partitions, and which of them
    cannot be read, as texts. Nothing is written, and no position is stored.

    Raises `TopicError` if there is no such topic, `BrokerError` if no record arrives in time, and
    `BrokerError` if a schema is needed and the registry does not answer.
    """
    facts = topics.describe(kafka, topic)
    first, ends = topics.beginning_offsets(kafka, facts), topics.end_offsets(kafka, facts)
    ranges = {
        number: (max(first[number], end - NEWEST_OF_EACH), end) for number, end in ends.items()
    }
    by_id, count, unreadable = dict[int, str | None](), 0, list[str]()
    for record in records_between(
        kafka, topic, facts.topic_id, ranges, further=_SMALL, timeout_s=TIMEOUT_S
    ):
        schema_id = confluent_id(record.value)
        if schema_id is not None and registry is not None and schema_id not in by_id:
            with RegistryClient(registry) as schemas:
                by_id[schema_id] = schemas.schema(schema_id)
        decoded = decode(record.value, Schemas(by_id), kafka_partitions=facts.kafka_partitions)
        count += 1
        if isinstance(decoded, Rejection):
            at = record.position
            text = f"that at offset {at.offset} of Kafka partition {at.kafka_partition}"
            unreadable.append(f"{text} ({decoded.detail})")
    return count, unreadable
