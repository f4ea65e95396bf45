"""Publishes the definitions of tables, and reads them (EVO-1)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from connector.errors.kafka import definition_of_another_table, record_unreadable
from connector.errors.producers import records_undelivered
from connector.kafka import topics
from connector.kafka.client import records_between
from connector.kafka.sending import SendError, SendQueue, text_of
from connector.tables.published import PublishedTable, tables_topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from connector.config.settings import KafkaConfig
    from connector.errors import TopicError

READ_TIMEOUT_S: Final = 30.0
PUBLISH_TIMEOUT_S: Final = 30.0


def published_tables(kafka: KafkaConfig, topic: str) -> dict[str, PublishedTable]:
    """Read the newest published definition of each table of a change topic, by name.

    For example: `published_tables(kafka, "orders")["orders"].version`.

    Args:
        kafka: The brokers and client settings.
        topic: The name of the change topic.

    Returns:
        The definitions. Records of earlier versions are left out.

    Raises:
        TopicError: There is no topic `<topic>.tables`, or a record is not one of lowmark.
        BrokerError: No broker answers.
    """
    return _read(kafka, topics.describe(kafka, tables_topic(topic)))


def _read(kafka: KafkaConfig, facts: topics.TopicFacts) -> dict[str, PublishedTable]:
    topics.check_compacted(facts)
    tables: dict[str, PublishedTable] = {}
    begin, end = topics.beginning_offsets(kafka, facts)[0], topics.end_offsets(kafka, facts)[0]
    if begin >= end:
        return tables
    offsets = {0: (begin, end)}
    for record in records_between(
        *(kafka, facts.topic, facts.topic_id, offsets), timeout_s=READ_TIMEOUT_S
    ):
        name = (record.key or b"").decode(errors="replace")
        if not record.value:
            tables.pop(name, None)
            continue
        try:
            tables[name] = PublishedTable.from_value(record.value)
        except ValueError as error:
            offset = str(record.position.offset)
            raise record_unreadable(facts.topic, offset, str(error)) from None
    return tables


def publish_tables(
    kafka: KafkaConfig, topic: str, tables: Sequence[PublishedTable], *, take_over: bool = False
) -> dict[str, TopicError]:
    """Publish the definitions of tables of a change topic, except those of which the topic has this
    version or a newer one.

    The topic `<topic>.tables` is created if it does not exist.

    Args:
        kafka: The brokers and client settings.
        topic: The name of the change topic.
        tables: The definitions.
        take_over: Replace a definition of another table of the same name.

    Returns:
        The errors of those that were not published, by name: the topic has a definition of a table
        of another warehouse.

    Raises:
        TopicError: The topic is not suitable, or cannot be created.
        DeliveryError, BrokerError: They were not all published.
    """
    facts = topics.create_tables_topic(kafka, topic)
    published, new = _read(kafka, facts), list[PublishedTable]()
    refused: dict[str, TopicError] = {}
    for table in tables:
        name = table.definition.name
        last = published.get(name)
        if last is not None and last.table_id != table.table_id and not take_over:
            ids = last.table_id, table.table_id
            refused[name] = definition_of_another_table(facts.topic, name, *ids)
        elif last is None or last.table_id != table.table_id or last.version < table.version:
            new.append(table)
    if new:
        _send(kafka, facts, new)
    return refused


def _send(kafka: KafkaConfig, facts: topics.TopicFacts, tables: Sequence[PublishedTable]) -> None:
    failures: list[str] = []

    def answer(_: str, error: SendError | None) -> None:
        if error is not None:
            failures.append(text_of(error))

    queue = SendQueue[str](kafka, facts, answer)
    try:
        for table in tables:
            name = table.definition.name
            queue.put(name, name.encode(), table.to_value(), 0, [])
        deadline = time.monotonic() + PUBLISH_TIMEOUT_S
        while queue.backlog and not failures and time.monotonic() < deadline:
            queue.poll(0.5, push=True)
        if queue.backlog or failures:
            raise records_undelivered(facts.topic, len(tables), failures[0] if failures else "")
    finally:
        queue.close(1, "the definition was not published in time")
