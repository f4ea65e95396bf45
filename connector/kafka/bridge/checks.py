"""Looks at the topics of a source, and changes nothing (SRC-5, SRC-8)."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Literal

from connector.errors import ConnectorError, TopicError
from connector.errors.kafka import (
    source_foreign,
    source_topic_missing,
    source_transactions_split,
)
from connector.kafka import client, topics
from connector.kafka.bridge.reader import described, foreign_record, topics_of
from connector.kafka.bridge.session import decoder_of
from connector.kafka.client import records_between, windows_before
from connector.reports.bridge_status import ADD_KEY, PROVIDE_TRANSACTIONS, lost_promises
from connector.sources.changes import location_of
from connector.sources.model import ForeignRecord, Poison, Skipped, lacks_transaction
from connector.sources.tables import KnownTables
from connector.text import FEW, counted, summarize_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka.admin import AdminClient

    from connector.config.settings import ConnectorConfig, KafkaConfig, SourceConfig, StreamConfig
    from connector.kafka.topics import TopicFacts
    from connector.sources.columns import SourceTable

SourceFinding = tuple[Literal["ok", "warning"], str] | ConnectorError
MOST_TOPICS: Final = 20
"""So many topics are looked at."""
RECORDS_OF_EACH: Final = 200
"""So many newest records of each Kafka partition show the columns of tables."""


def source_findings(config: ConnectorConfig, stream: StreamConfig) -> Iterator[SourceFinding]:
    """Check whether the bridge of a stream would work here and now. Yield a level and a text, or an
    error. `validate_config` yields these findings, too. Raises `BrokerError`, also if a topic must
    not be read.
    """
    if (source := stream.source) is None:
        return
    name, admin = f"streams.{stream.name}.source", client.admin(config.kafka)
    if lost := lost_promises(source.format, source.transactions):
        yield "warning", f"{name}: {lost}"
    elif not source.heartbeats:
        text = "without a heartbeat table, the low watermark stays where it is while the database"
        remedy = "Set heartbeat.action.query in Debezium, and heartbeats here"
        yield "warning", f"{name}: {text} is silent. {remedy}"
    existing = topics_of(admin, config.kafka, source)
    for pattern in source.topics:
        if not any(source.matches(pattern, topic) for topic in existing):
            text = f"{name}: no topic is {pattern} yet, or Kafka does not show it to this user"
            yield "warning", f"{text} (right: Read). The bridge reads it when it appears"
    yield from _of_transactions(config.kafka, admin, source, name, existing)
    yield from _of_records(config, admin, stream.name, source, existing)


def _of_transactions(
    kafka: KafkaConfig, admin: AdminClient, source: SourceConfig, name: str, existing: list[str]
) -> Iterator[SourceFinding]:
    topic = source.transactions
    if topic and topic not in existing:
        text = f"{name}: there is no topic {topic} yet: no transaction is published"
        yield "warning", text
    elif topic and (partitions := described(admin, kafka, [topic])[topic][1]) > 1:
        yield source_transactions_split(topic, partitions)


def _of_records(
    config: ConnectorConfig,
    admin: AdminClient,
    stream: str,
    source: SourceConfig,
    existing: list[str],
) -> Iterator[SourceFinding]:
    """Read the newest record of each topic."""
    name, count, without = f"streams.{stream}.source", 0, ""
    compacted, unreadable, without_key = list[str](), list[str](), list[str]()
    with ExitStack() as stack:
        decoder = decoder_of(source, config.registry, KnownTables(), stack)
        for topic in existing[:MOST_TOPICS]:
            facts = topics.describe(config.kafka, topic, admin)
            if "compact" in facts.cleanup_policy:
                compacted.append(topic)
            if (record := next(_newest_records(config, facts, 1), None)) is not None:
                count += 1
                if isinstance(event := decoder.decode(record), Poison):
                    unreadable.append(f"{location_of(record)}: {event.detail}")
                elif isinstance(event, Skipped) and event.rule == "NO_KEY":
                    without_key.append(event.table or topic)
                elif source.transactions and lacks_transaction(event):
                    without = f"{location_of(record)} has no transaction. {PROVIDE_TRANSACTIONS}"
    if without:
        yield "warning", f"{name}: {without}"
    if without_key:
        tables = summarize_names(without_key)
        yield "warning", f"{name}: rows of {tables} have no key, and are left out. {ADD_KEY}"
    if compacted and source.format.is_debezium:
        text = f"{name}: compaction may delete events of {', '.join(compacted[:FEW])} before they"
        yield "warning", f"{text} are read. Set cleanup.policy=delete"
    if unreadable and len(unreadable) == count:
        yield source_foreign(stream, source.format, unreadable[0])
    elif unreadable:
        text = f"{name}: {len(unreadable)} of {count} newest records cannot be read, for example"
        yield "warning", f"{text} {unreadable[0]}. They become dead letters"
    else:
        read = f"the {counted(count, 'newest record')} can be read"
        yield "ok", f"{name}: {counted(len(existing), 'topic')}, and {read}"


def tables_in(config: ConnectorConfig, source: SourceConfig, topic: str) -> list[SourceTable]:
    """Return the tables that the newest records of a topic show. Raises `TopicError` if there is no
    such topic, and `BrokerError`.
    """
    try:
        facts, shown = topics.describe(config.kafka, topic), KnownTables()
    except TopicError as error:
        if error.code != "TOPIC_MISSING":
            raise
        raise source_topic_missing(topic) from error
    with ExitStack() as stack:
        decoder = decoder_of(source, config.registry, shown, stack)
        for record in _newest_records(config, facts, RECORDS_OF_EACH):
            decoder.decode(record)
    return list(shown.tables.values())


def _newest_records(
    config: ConnectorConfig, facts: TopicFacts, count: int
) -> Iterator[ForeignRecord]:
    """Yield the records at so many newest offsets of each Kafka partition of a topic."""
    kafka = config.kafka
    first, ends = topics.beginning_offsets(kafka, facts), topics.end_offsets(kafka, facts)
    ranges = next(windows_before(ends, first, count), {})
    return map(foreign_record, records_between(kafka, facts.topic, facts.topic_id, ranges))
