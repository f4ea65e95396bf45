"""Checks of the topics of a source, which change nothing (SRC-8)."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from connector.kafka import client, topics
from connector.kafka.bridge.reader import EARLIEST, LATEST, described, offsets_of, topics_of
from connector.kafka.bridge.session import decoder_of
from connector.kafka.client import records_between
from connector.sources.changes import location_of
from connector.sources.model import ForeignRecord, Poison
from connector.sources.tables import KnownTables

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig, SourceConfig

MOST_TOPICS: Final = 20
"""So many topics are looked at."""


@dataclass(slots=True)
class SourceCheck:
    """What the topics of a source look like.

    - `topics` are their names, and `compacted` those that are compacted.
    - `ends` is the number of Kafka partitions of the topic of transactions. 0: it does not exist.
    - `newest` is the number of newest records that were read, one of each topic. `unreadable` says
      which of them cannot be read, and why.
    """

    topics: list[str]
    compacted: list[str] = field(default_factory=list)
    ends: int = 0
    newest: int = 0
    unreadable: list[str] = field(default_factory=list)


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
            facts = topics.describe(kafka, name, admin)
            if "compact" in facts.cleanup_policy:
                check.compacted.append(name)
            partitions = [(name, number) for number in range(counts[name][1])]
            ends = offsets_of(admin, kafka, LATEST, partitions)
            first = offsets_of(admin, kafka, EARLIEST, partitions)
            filled = {number: end for (_, number), end in ends.items() if end > first[name, number]}
            ranges = {number: (end - 1, end) for number, end in list(filled.items())[:1]}
            for read in records_between(kafka, name, facts.topic_id, ranges):
                at = read.position
                record = ForeignRecord(
                    *(name, at.kafka_partition, at.offset, read.record_timestamp),
                    *(read.key, read.value),
                )
                check.newest += 1
                event = decoder.decode(record)
                if isinstance(event, Poison):
                    check.unreadable.append(f"{location_of(record)}: {event.detail}")
    return check
