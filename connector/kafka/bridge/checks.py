"""Checks of the topics of a source, which change nothing (SRC-8)."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from connector.kafka import client, topics
from connector.kafka.bridge.reader import (
    EARLIEST,
    LATEST,
    described,
    foreign_record,
    offsets_of,
    topics_of,
)
from connector.kafka.bridge.session import decoder_of
from connector.kafka.client import records_between
from connector.sources.changes import location_of
from connector.sources.model import ForeignRecord, Poison, lacks_transaction
from connector.sources.tables import KnownTables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka.admin import AdminClient

    from connector.config.settings import ConnectorConfig, SourceConfig
    from connector.sources.columns import SourceTable

MOST_TOPICS: Final = 20
"""So many topics are looked at."""
RECORDS_OF_EACH: Final = 200
"""So many newest records of each Kafka partition show the columns of tables."""


@dataclass(slots=True)
class SourceCheck:
    """The findings about the topics of a source.

    - `topics` are their names, and `compacted` those that are compacted.
    - `ends` is the number of Kafka partitions of the topic of transactions. 0: it does not exist.
    - `newest` is the number of newest records that were read, one of each topic. `unreadable` says
      which of them cannot be read, and why. `without_transaction` are rows that name none.
    """

    topics: list[str]
    compacted: list[str] = field(default_factory=list)
    ends: int = 0
    newest: int = 0
    unreadable: list[str] = field(default_factory=list)
    without_transaction: list[str] = field(default_factory=list)


def check_source(config: ConnectorConfig, source: SourceConfig) -> SourceCheck:
    """Look at the topics of a source, and at their newest records. Raises `BrokerError`, also if a
    topic must not be read.
    """
    kafka, admin = config.kafka, client.admin(config.kafka)
    names = topics_of(admin, kafka, source)
    check = SourceCheck(names)
    counts = described(admin, kafka, names)
    check.ends = counts.get(source.transactions, ("", 0))[1]
    with ExitStack() as stack:
        decoder = decoder_of(source, config.registry, KnownTables(), stack)
        for name in names[:MOST_TOPICS]:
            if "compact" in topics.describe(kafka, name, admin).cleanup_policy:
                check.compacted.append(name)
            for record in newest_records(config, admin, name, 1):
                check.newest += 1
                event = decoder.decode(record)
                if isinstance(event, Poison):
                    check.unreadable.append(f"{location_of(record)}: {event.detail}")
                elif lacks_transaction(event):
                    check.without_transaction.append(location_of(record))
                break
    return check


def tables_in(config: ConnectorConfig, source: SourceConfig, topic: str) -> list[SourceTable]:
    """Return the tables that the newest records of a topic show. Raises `TopicError` if there is no
    such topic, and `BrokerError`.
    """
    admin, shown = client.admin(config.kafka), KnownTables()
    topics.describe(config.kafka, topic, admin)
    with ExitStack() as stack:
        decoder = decoder_of(source, config.registry, shown, stack)
        for record in newest_records(config, admin, topic, RECORDS_OF_EACH):
            decoder.decode(record)
    return list(shown.tables.values())


def newest_records(
    config: ConnectorConfig, admin: AdminClient, topic: str, count: int
) -> Iterator[ForeignRecord]:
    """Yield the records at so many newest offsets of each Kafka partition of a topic."""
    (topic_id, kafka_partitions) = described(admin, config.kafka, [topic])[topic]
    partitions = [(topic, number) for number in range(kafka_partitions)]
    ends = offsets_of(admin, config.kafka, LATEST, partitions)
    first = offsets_of(admin, config.kafka, EARLIEST, partitions)
    ranges = {at[1]: (max(first[at], end - count), end) for at, end in ends.items()}
    for read in records_between(config.kafka, topic, topic_id, ranges):
        yield foreign_record(read)
