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
    from connector.config.settings import KafkaConfig

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


def publish_table(
    kafka: KafkaConfig, topic: str, table: PublishedTable, *, take_over: bool = False
) -> bool:
    """Publish the definition of a table, unless the topic has this version or a newer one.

    The topic is created if it does not exist.

    Args:
        kafka: The brokers and client settings.
        topic: The name of the change topic.
        table: The definition.
        take_over: Replace a definition of another table of this name.

    Returns:
        Whether it was published.

    Raises:
        TopicError: The topic has a definition of a table of another warehouse, or it is not
            suitable.
        DeliveryError, BrokerError: It was not published.
    """
    facts, name = topics.create_tables_topic(kafka, topic), table.definition.name
    last = _read(kafka, facts).get(name)
    if last is not None and last.table_id != table.table_id and not take_over:
        raise definition_of_another_table(facts.topic, name, last.table_id, table.table_id)
    if last is not None and last.table_id == table.table_id and last.version >= table.version:
        return False
    failures: list[str] = []

    def answer(_: str, error: SendError | None) -> None:
        if error is not None:
            failures.append(text_of(error))

    queue = SendQueue[str](kafka, facts, answer)
    try:
        queue.put(name, name.encode(), table.to_value(), 0, [])
        deadline = time.monotonic() + PUBLISH_TIMEOUT_S
        while queue.backlog and not failures and time.monotonic() < deadline:
            queue.poll(0.5, push=True)
        if queue.backlog or failures:
            raise records_undelivered(facts.topic, 1, failures[0] if failures else "")
    finally:
        queue.close(1, "the definition was not published in time")
    return True
