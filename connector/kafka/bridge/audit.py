"""Reads what an audit of a source needs: its topics, the change topic and dead letters (SRC-7)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING

from connector.dead_letters.source_letters import AssignedOrder
from connector.errors import TopicError
from connector.kafka import client, topics
from connector.kafka.bridge.reader import described, foreign_record, topics_of
from connector.kafka.bridge.session import decoder_of
from connector.kafka.bridge.status import reported_positions
from connector.kafka.bridge.tables import BridgeTables
from connector.kafka.client import records_between
from connector.kafka.consume.decode import Decoder
from connector.kafka.dead_letters.topic import read_letters
from connector.kafka.topics import EARLIEST, LATEST, offsets_of
from connector.records.model import DataChange, Truncate
from connector.records.rejection import Rejection
from connector.sources.audit import SourceAudit, SourceTopicAudit
from connector.sources.changes import RECORD_HEADER
from connector.sources.compact import UNKNOWN_ORDER, Order, Orders

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig, StreamConfig
    from connector.sources.model import Event, ForeignRecord, TopicPartition
    from connector.validation import KafkaRecord


def audit_source(config: ConnectorConfig, stream: StreamConfig) -> tuple[SourceTopicAudit, ...]:
    """Account for every record of the topics of a source up to the position of its bridge: it is a
    change, a mark, a dead letter, or left out by a rule, once and at its place.

    It reads the topics of the source up to three times, and the change topic and its dead letters
    once. For a million records of the source it needs about 20 MB, and 200 MB for a million
    transactions. Raises `TopicError` and `BrokerError`.
    """
    source, kafka, admin = stream.source, config.kafka, client.admin(config.kafka)
    assert source is not None
    reported = reported_positions(config, stream, admin)  # before the changes that it covers
    changes, is_whole = _changes(config, stream)
    starts: Mapping[TopicPartition, int] = reported[-1].starts if reported else {}
    names = topics_of(admin, kafka, source)
    ids = {name: id_ for name, (id_, _) in described(admin, kafka, names).items()}
    existing = [partition for partition in starts if partition[0] in ids]
    first, ends = (offsets_of(admin, kafka, spec, existing) for spec in (EARLIEST, LATEST))
    with ExitStack() as stack:
        tables = BridgeTables(config, stream, lambda _code, _text: None).of_decoder
        decoder = decoder_of(source, config.registry, tables, stack)

        def read(
            topic: str,
            begins: Mapping[TopicPartition, int] = first,
            stops: Mapping[TopicPartition, int] = starts,
        ) -> Iterator[tuple[ForeignRecord, Event]]:
            ranges = {
                partition[1]: (begins[partition], stops[partition])
                for partition in existing
                if partition[0] == topic and begins[partition] < stops[partition]
            }
            for read_record in records_between(kafka, topic, ids[topic], ranges):
                record = foreign_record(read_record)
                yield record, decoder.decode(record)

        return SourceAudit(
            read,
            lambda topic: read(topic, {p: max(first[p], starts[p]) for p in existing}, ends),
            changes,
            _letters(config, stream, set(ids.values())),
            transactions=source.transactions,
            truncated={topic for (topic, _), begin in first.items() if begin},
            is_whole=is_whole,
        ).results(names)


def _changes(config: ConnectorConfig, stream: StreamConfig) -> tuple[Orders, bool]:
    """The order of each record that has a change in the change topic, and whether Kafka has all of
    the topic.
    """
    kafka, orders = config.kafka, Orders()
    facts = topics.describe(kafka, stream.topic)
    first, ends = topics.beginning_offsets(kafka, facts), topics.end_offsets(kafka, facts)
    ranges = {number: (first[number], end) for number, end in ends.items()}
    with closing(Decoder(config.registry, stream.limits)) as decoder:
        for record in records_between(kafka, facts.topic, facts.topic_id, ranges):
            if (at := dict(record.headers).get(RECORD_HEADER)) is None:
                continue
            with suppress(ValueError):
                topic, number, offset = at.decode().rsplit("/", 2)
                order = _order(decoder, record, facts.kafka_partitions)
                orders.add((topic, int(number)), int(offset), order)
    return orders, not any(first.values())


def _order(decoder: Decoder, record: KafkaRecord, kafka_partitions: int) -> Order:
    verdict = decoder.decode(record, kafka_partitions)
    change = None if isinstance(verdict, Rejection) else verdict.record
    if not isinstance(change, DataChange | Truncate):
        return UNKNOWN_ORDER
    transaction = change.transaction
    declared = 0 if transaction is None else transaction.number_of_records_in_transaction
    return Order(change.commit_timestamp, change.tie_breaker, declared)


def _letters(config: ConnectorConfig, stream: StreamConfig, topic_ids: set[str]) -> Orders:
    """The order of each record that has a dead letter."""
    orders = Orders()
    with suppress(TopicError):  # without the topic, there are none
        for letter, _ in read_letters(config.kafka, stream.topic):
            at, order = letter.position, AssignedOrder.from_headers(letter.headers)
            if at.topic_id in topic_ids:
                assigned = UNKNOWN_ORDER
                if order is not None:
                    assigned = Order(order.commit_timestamp, order.tie_breaker, order.count)
                orders.add((at.topic, at.kafka_partition), at.offset, assigned)
    return orders
