"""Reads the records of a source again that its bridge could not read (SRC-6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING

from connector.dead_letters.repair import Content
from connector.dead_letters.source_letters import ORDER_HEADER, AssignedOrder
from connector.records.codec import framed
from connector.records.model import DataChange
from connector.sources.changes import MISSING_VALUE, Changes
from connector.sources.model import (
    ForeignRecord,
    OnMissingValue,
    Poison,
    Released,
    Row,
    TruncatedTable,
)

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig, SourceConfig, StreamConfig
    from connector.dead_letters.envelope import DeadLetter
    from connector.sources.model import Decoder


def source_changes(
    config: ConnectorConfig,
    stream: StreamConfig,
    kafka_partitions: int,
    schemas: Mapping[int, str | None],
) -> Callable[[DeadLetter, Content], Content | str]:
    """Return `read_again` for the dead letters of a bridge, as the bridge would read them now.

    Nothing is read before its first call, which raises `BrokerError`, also if a needed schema
    cannot be read, and `TopicError`.

    Args:
        config: The configuration.
        stream: The stream of the letters.
        kafka_partitions: The number of Kafka partitions of its change topic.
        schemas: The schemas of the registry by id.
    """

    @cache
    def reading(source: SourceConfig) -> tuple[Decoder, Changes]:
        from connector.kafka.bridge.session import decoder_with
        from connector.kafka.bridge.tables import BridgeTables

        tables = BridgeTables(config, stream, lambda code, text: None)
        schema_of = schemas.get if source.format.is_avro else None
        on_missing = source.on_missing_value
        if on_missing is OnMissingValue.STOP:
            on_missing = OnMissingValue.LETTER
        changes = Changes(tables.definitions.get, on_missing_value=on_missing)
        return decoder_with(source, schema_of, tables.of_decoder), changes

    def change(letter: DeadLetter, content: Content) -> Content | str:
        if (source := stream.source) is None:
            return "the stream has no source"
        return read_again(letter, content, *reading(source), kafka_partitions)

    return change


def read_again(
    letter: DeadLetter,
    content: Content,
    decoder: Decoder,
    changes: Changes,
    kafka_partitions: int,
) -> Content | str:
    """Return the change of a letter with this content, or the reason why it has no change.

    It has the time that was assigned. It counts in its transaction if that was known. Otherwise a
    place between the transactions was assigned.
    """
    order = AssignedOrder.from_headers(content.headers)
    if order is None:
        return f"it has no valid header {ORDER_HEADER}"
    at = letter.position
    record = ForeignRecord(
        *(at.topic, at.kafka_partition, at.offset),
        *(letter.record_timestamp, content.key, content.value),
        is_moved=letter.rule == MISSING_VALUE,  # a value may be missing again
    )
    event = decoder.decode(record)
    if isinstance(event, TruncatedTable):
        return "it truncates a table: send a Truncate with a producer instead"
    if not isinstance(event, Row | Poison):
        return "it is no row"
    commit = event.commit
    is_counted = order.count > 0 and commit.transaction == order.transaction
    change = changes.change(
        Released(
            record,
            event,
            order.commit_timestamp,
            (is_counted and commit.sequence) or order.tie_breaker,
            order.count if is_counted else 0,
        )
    )
    if isinstance(change, Poison):
        return f"{change.rule}: {change.detail}"
    assert isinstance(change, DataChange)
    headers = tuple(header for header in content.headers if header[0] != ORDER_HEADER)
    return Content(change.row_key, framed(change, kafka_partitions), headers)
