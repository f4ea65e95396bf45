"""Publishes the definitions of tables, and reads them (EVO-1).

A bridge publishes the columns of the tables of its source on the same topic (SRC-5).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from confluent_kafka import KafkaError, TopicPartition

from connector.config.source_tables import FollowedTable
from connector.errors import ConnectorError, TopicError
from connector.errors.kafka import definition_of_another_table, record_unreadable
from connector.errors.producers import records_undelivered
from connector.kafka import client, topics
from connector.kafka.client import record_of, records_between
from connector.kafka.sending import SendError, SendQueue, text_of
from connector.tables.published import BRIDGE_KEY, SOURCE_PREFIX, PublishedTable, tables_topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from connector.config.settings import KafkaConfig
    from connector.validation import KafkaRecord

OnUnreadable = Callable[[TopicError], None]
"""Receives the error of a record that cannot be read. It names the key and the offset."""

_Read = TypeVar("_Read")

READ_TIMEOUT_S: Final = 30.0
PUBLISH_TIMEOUT_S: Final = 30.0


def published_tables(kafka: KafkaConfig, topic: str) -> dict[str, PublishedTable]:
    """Read the newest published definition of each table of a change topic, by name.

    For example: `published_tables(kafka, "orders")["orders"].version`.

    Args:
        kafka: The brokers and client settings.
        topic: The name of the change topic.

    Returns:
        The definitions. Records of earlier versions are left out, and so is a table whose newest
        record cannot be read, with a warning.

    Raises:
        TopicError: There is no topic `<topic>.tables`, or it is not suitable.
        BrokerError: No broker answers.
    """
    return _read(kafka, topics.describe(kafka, tables_topic(topic)), _log)


def _log(error: TopicError) -> None:
    client.log.warning("%s", error)


def _read(
    kafka: KafkaConfig, facts: topics.TopicFacts, on_unreadable: OnUnreadable
) -> dict[str, PublishedTable]:
    newest = _newest(kafka, facts).items()
    of_bridges = SOURCE_PREFIX.encode(), BRIDGE_KEY.encode()
    records = [record for key, record in newest if not key.startswith(of_bridges)]
    return _readable(facts.topic, records, PublishedTable.from_value, on_unreadable)


def _readable(
    topic: str,
    records: Iterable[KafkaRecord],
    read: Callable[[bytes], _Read],
    on_unreadable: OnUnreadable,
) -> dict[str, _Read]:
    """Read the values of records by their keys."""
    readable: dict[str, _Read] = {}
    for record in records:
        key = (record.key or b"").decode(errors="replace")
        try:
            readable[key] = read(record.value or b"")
        except ValueError as error:
            name = f"{record.position.offset} (key {key!r})"
            on_unreadable(record_unreadable(topic, name, str(error)))
    return readable


def _newest(kafka: KafkaConfig, facts: topics.TopicFacts) -> dict[bytes, KafkaRecord]:
    """Read the newest record of each key, without keys whose newest record has no value."""
    topics.check_compacted(facts)
    newest: dict[bytes, KafkaRecord] = {}
    begin, end = topics.beginning_offsets(kafka, facts)[0], topics.end_offsets(kafka, facts)[0]
    if begin >= end:
        return newest
    offsets = {0: (begin, end)}
    for record in records_between(
        *(kafka, facts.topic, facts.topic_id, offsets), timeout_s=READ_TIMEOUT_S
    ):
        newest[record.key or b""] = record
    return {key: record for key, record in newest.items() if record.value}


def source_tables(
    kafka: KafkaConfig, topic: str, on_unreadable: OnUnreadable = _log
) -> dict[str, FollowedTable]:
    """Read the newest columns of each table of the source of a change topic, by its name there, as
    a bridge has published them (SRC-5). A table whose newest record cannot be read is left out.

    Raises `TopicError` if the topic `<topic>.tables` is not suitable, and `BrokerError`. Without
    that topic, there are none.
    """
    try:
        facts = topics.describe(kafka, tables_topic(topic))
    except TopicError as error:
        if error.code != "TOPIC_MISSING":
            raise
        return {}
    return _of_sources(facts.topic, _newest(kafka, facts), on_unreadable)


def _of_sources(
    topic: str, newest: Mapping[bytes, KafkaRecord], on_unreadable: OnUnreadable
) -> dict[str, FollowedTable]:
    records = [r for key, r in newest.items() if key.startswith(SOURCE_PREFIX.encode())]
    tables = _readable(topic, records, FollowedTable.from_value, on_unreadable)
    return {key.removeprefix(SOURCE_PREFIX): table for key, table in tables.items()}


class SourceTablesWatch:
    """Notices tables of a source that are published while it is open. Not thread-safe.
    `on_unreadable` receives an error for each record that cannot be read, and for a topic that
    cannot be read: it is read again from its beginning by the next calls of `newest`.

    It raises `TopicError` and `BrokerError` when it is made.
    """

    def __init__(
        self, kafka: KafkaConfig, topic: str, on_unreadable: Callable[[ConnectorError], None]
    ) -> None:
        self._kafka, self._topic, self._on_unreadable = kafka, topic, on_unreadable
        self._client = client.consumer(kafka, client.LastError(), {"group.id": client.READER})
        self._is_behind, self._reported = False, ""
        try:
            self._begin()
        except BaseException:
            self._client.close()
            raise

    def _begin(self) -> None:
        """Read all records, and go on behind them."""
        self._facts = topics.create_tables_topic(self._kafka, self._topic)
        end = topics.end_offsets(self._kafka, self._facts)[0]
        self._tables = source_tables(self._kafka, self._topic, self._on_unreadable)
        self._client.assign([TopicPartition(self._facts.topic, 0, end)])
        self._is_behind = False

    def newest(self) -> dict[str, FollowedTable]:
        """Return the tables that were not returned before. It waits only to begin again."""
        if self._is_behind:
            try:
                self._begin()
            except ConnectorError as failure:
                self._report(failure)
        records: dict[bytes, KafkaRecord] = {}
        for message in self._client.consume(1_000, 0):
            if (error := message.error()) is None:
                self._reported = ""
                record = record_of(message, self._facts.topic, self._facts.topic_id)
                if record.value:
                    records[record.key or b""] = record
            elif error.code() not in (
                KafkaError._PARTITION_EOF,
                KafkaError.GROUP_AUTHORIZATION_FAILED,  # this read needs no group
            ):
                self._is_behind = True
                what = f"read {self._facts.topic}"
                self._report(client.explain(error, self._kafka, what, "Read"))
        newest = _of_sources(self._facts.topic, records, self._on_unreadable)
        tables, self._tables = self._tables | newest, {}
        return tables

    def _report(self, error: ConnectorError) -> None:
        if self._reported != (text := str(error)):
            self._reported = text
            self._on_unreadable(error)

    def close(self) -> None:
        """Close the client."""
        self._client.close()


def publish_source_tables(kafka: KafkaConfig, topic: str, tables: Mapping[str, bytes]) -> None:
    """Publish the columns of tables of a source, and wait until Kafka has them.

    The topic `<topic>.tables` is created if it does not exist. Raises `TopicError`, `DeliveryError`
    and `BrokerError` as `publish_tables` does.
    """
    facts = topics.create_tables_topic(kafka, topic)
    topics.check_compacted(facts)
    _send(kafka, facts, {f"{SOURCE_PREFIX}{table}": value for table, value in tables.items()})


def publish_claim(kafka: KafkaConfig, topic: str, claim: bytes) -> None:
    """Publish the claim of a bridge on a change topic. Raises as `publish_source_tables` does."""
    facts = topics.create_tables_topic(kafka, topic)
    topics.check_compacted(facts)
    _send(kafka, facts, {BRIDGE_KEY: claim})


def publish_tables(
    kafka: KafkaConfig,
    topic: str,
    tables: Sequence[PublishedTable],
    *,
    take_over: bool = False,
    on_unreadable: OnUnreadable = _log,
) -> dict[str, TopicError]:
    """Publish the definitions of tables of a change topic, except those of which the topic has this
    version or a newer one.

    The topic `<topic>.tables` is created if it does not exist.

    Args:
        kafka: The brokers and client settings.
        topic: The name of the change topic.
        tables: The definitions.
        take_over: Replace a definition of another table of the same name, and a newer version.
        on_unreadable: Receives an error for each record of the topic that cannot be read. It counts
            as none for its key.

    Returns:
        The errors of those that were not published, by name: the topic has a definition of a table
        of another warehouse.

    Raises:
        TopicError: The topic is not suitable, or cannot be created.
        DeliveryError, BrokerError: They were not all published.
    """
    facts = topics.create_tables_topic(kafka, topic)
    published, new = _read(kafka, facts, on_unreadable), list[PublishedTable]()
    refused: dict[str, TopicError] = {}
    for table in tables:
        name = table.definition.name
        last = published.get(name)
        if last is not None and last.table_id != table.table_id and not take_over:
            ids = last.table_id, table.table_id
            refused[name] = definition_of_another_table(facts.topic, name, *ids)
        elif last is None or (last != table if take_over else last.version < table.version):
            new.append(table)
    if new:
        _send(kafka, facts, {table.definition.name: table.to_value() for table in new})
    return refused


def _send(kafka: KafkaConfig, facts: topics.TopicFacts, values: Mapping[str, bytes]) -> None:
    failures: list[str] = []

    def answer(_: str, error: SendError | None) -> None:
        if error is not None:
            failures.append(text_of(error))

    queue = SendQueue[str](kafka, facts, answer)
    try:
        for name, value in values.items():
            queue.put(name, name.encode(), value, 0, [])
        deadline = time.monotonic() + PUBLISH_TIMEOUT_S
        while queue.backlog and not failures and time.monotonic() < deadline:
            queue.poll(0.5, push=True)
        if queue.backlog or failures:
            raise records_undelivered(facts.topic, len(values), failures[0] if failures else "")
    finally:
        queue.close(1, "the definition was not published in time")
