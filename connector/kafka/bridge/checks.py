"""Looks at the topics of a source, and changes nothing (SRC-5, SRC-8)."""

from __future__ import annotations

from contextlib import ExitStack
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Literal

from connector.errors import ConnectorError, TopicError
from connector.errors.sources import (
    source_foreign,
    source_too_wide,
    source_topic_missing,
    source_topic_replaced,
    source_transactions_split,
)
from connector.kafka import client, topics
from connector.kafka.bridge.reader import described, foreign_record, topics_of
from connector.kafka.bridge.session import decoder_of
from connector.kafka.bridge.status import reported_positions
from connector.kafka.client import records_between, windows_before
from connector.records.model import MAX_RESUME_TOKEN_BYTES
from connector.reports.bridge_status import ADD_KEY, PROVIDE_TRANSACTIONS, lost_promises
from connector.sources import doubts
from connector.sources.changes import location_of
from connector.sources.model import (
    Event,
    ForeignRecord,
    Poison,
    Row,
    Skipped,
    lacks_transaction,
)
from connector.sources.position import SourcePosition
from connector.sources.tables import KnownTables
from connector.text import FEW, counted, summarize_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from confluent_kafka.admin import AdminClient

    from connector.config.settings import ConnectorConfig, KafkaConfig, SourceConfig, StreamConfig
    from connector.kafka.topics import TopicFacts
    from connector.sources.columns import SourceTable
    from connector.sources.model import Decoder

SourceFinding = tuple[Literal["ok", "warning"], str] | ConnectorError
Decoded = tuple[ForeignRecord, Event]
MOST_TOPICS: Final = 20
"""So many topics are looked at."""
RECORDS_OF_EACH: Final = 200
"""So many newest records of each Kafka partition show the columns of tables, and doubts."""


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
    yield from _of_position(config, admin, stream, existing)
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


def _of_position(
    config: ConnectorConfig, admin: AdminClient, stream: StreamConfig, existing: list[str]
) -> Iterator[SourceFinding]:
    """Compare the topics with those that the bridge has read, and with the room of its position."""
    topics_of_source = described(admin, config.kafka, existing)
    try:
        reported = reported_positions(config, stream, admin)
    except TopicError:
        reported = []  # there is no change topic yet
    before = reported[-1].topic_ids if reported else {}
    for topic, (topic_id, _) in topics_of_source.items():
        if (was := before.get(topic, topic_id)) != topic_id:
            yield source_topic_replaced(topic, was, topic_id)
    counts = {topic: count for topic, (_, count) in topics_of_source.items()}
    if (size := size_of_position(counts)) > MAX_RESUME_TOKEN_BYTES:
        partitions = sum(counts.values())
        yield source_too_wide(stream.topic, partitions, size, MAX_RESUME_TOKEN_BYTES)


def size_of_position(kafka_partitions: Mapping[str, int]) -> int:
    """Return about how many bytes a resume token has for topics with so many Kafka partitions, if
    they have some billions of records.
    """
    ids = {topic: sha256(topic.encode()).hexdigest()[:22] for topic in kafka_partitions}
    starts = {
        topic: {n: int(ids[topic][:8], 16) * (n + 7) % 2**32 for n in range(count)}
        for topic, count in kafka_partitions.items()
    }
    return len(SourcePosition(starts=starts, topic_ids=ids).token())


def _of_records(
    config: ConnectorConfig,
    admin: AdminClient,
    stream: str,
    source: SourceConfig,
    existing: list[str],
) -> Iterator[SourceFinding]:
    """Read the newest records of each topic. The newest one shows whether they can be read."""
    name, compacted = f"streams.{stream}.source", list[str]()
    tables, newest = KnownTables(), list[Decoded]()
    shows_null = not source.format.is_debezium  # others need not be of Kafka Connect
    with ExitStack() as stack:
        decoder = decoder_of(source, config.registry, tables, stack)
        for topic in existing[:MOST_TOPICS]:
            facts = topics.describe(config.kafka, topic, admin)
            if "compact" in facts.cleanup_policy:
                compacted.append(topic)
            records = _newest_records(config, facts, RECORDS_OF_EACH)
            newest_of_topic, has_null = _decoded(decoder, tables, records)
            newest += newest_of_topic
            shows_null = shows_null or has_null
    yield from _of_newest(name, source, newest)
    if compacted and source.format.is_debezium:
        text = f"{name}: compaction may delete events of {', '.join(compacted[:FEW])} before they"
        yield "warning", f"{text} are read. Set cleanup.policy=delete"
    for text in doubts_of(tables, shows_null=shows_null):
        yield "warning", f"{name}: {text}"
    unreadable = [f"{location_of(r)}: {e.detail}" for r, e in newest if isinstance(e, Poison)]
    if unreadable and len(unreadable) == len(newest):
        yield source_foreign(stream, source.format, unreadable[0])
    elif unreadable:
        text = f"{name}: {len(unreadable)} of {len(newest)} newest records cannot be read, for"
        yield "warning", f"{text} example {unreadable[0]}. They become dead letters"
    else:
        read = f"the {counted(len(newest), 'newest record')} can be read"
        yield "ok", f"{name}: {counted(len(existing), 'topic')}, and {read}"


def _of_newest(name: str, source: SourceConfig, newest: list[Decoded]) -> Iterator[SourceFinding]:
    without_key = list[str]()
    without = ""
    for record, event in newest:
        if isinstance(event, Skipped) and event.rule == "NO_KEY":
            without_key.append(event.table or record.topic)
        elif source.transactions and lacks_transaction(event):
            without = f"{location_of(record)} has no transaction. {PROVIDE_TRANSACTIONS}"
    if without:
        yield "warning", f"{name}: {without}"
    if without_key:
        names = summarize_names(without_key)
        yield "warning", f"{name}: rows of {names} have no key, and are left out. {ADD_KEY}"


def _decoded(
    decoder: Decoder, tables: KnownTables, records: Iterator[ForeignRecord]
) -> tuple[list[Decoded], bool]:
    """Decode records. Return the newest one, if there are any, and whether one has NULL in a column
    with a default.
    """
    newest, shows_null = list[Decoded](), False
    for record in records:
        event = decoder.decode(record)
        shows_null = shows_null or shows_null_of_default(tables, event)
        if not newest or record.timestamp >= newest[0][0].timestamp:
            newest = [(record, event)]
    return newest, shows_null


def doubts_of(tables: KnownTables, *, shows_null: bool) -> Iterator[str]:
    """Yield what may not be the values of the source, after records were read. `shows_null`: one
    has NULL in a column with a default.
    """
    yield from tables.take_doubts()
    if tables.unsigned:
        yield doubts.unsigned_columns(tables.unsigned)
    if tables.defaults and not shows_null:
        of_tables = tables.defaults.items()
        yield doubts.replaced_nulls([f"{t}.{cell}" for t, cells in of_tables for cell in cells])


def shows_null_of_default(tables: KnownTables, event: Event) -> bool:
    """Return whether a row has NULL in a column with a default."""
    if not isinstance(event, Row):
        return False
    cells = event.cells
    return any(c in cells and cells[c] is None for c in tables.defaults.get(event.table, ()))


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
