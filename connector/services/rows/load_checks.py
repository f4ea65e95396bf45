"""Checks whether rows may be loaded into a table (PUB-6, WRS-15)."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from connector import warehouse as paths
from connector.errors import TableError
from connector.errors.records import as_of_too_old, table_not_empty
from connector.records.model import DataChange, Release
from connector.records.rejection import Rejection
from connector.records.views import view_of_time
from connector.services.warehouses import warehouse_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from connector.config.settings import ConnectorConfig, StreamConfig
    from connector.lake.plain_table import PlainTable
    from connector.tables.definition import TableDefinition


def check_as_of(config: ConnectorConfig, stream: StreamConfig, as_of: int) -> None:
    """Raise `ConnectorError` if `as_of` is below the horizon of a stream. Also `TableError`."""
    from connector.lake.state_reader import progress_of

    horizon = progress_of(warehouse_of(config), stream.name).horizon
    if horizon is not None and as_of < horizon:
        raise as_of_too_old(stream.name, str(view_of_time(as_of)), str(view_of_time(horizon)))


def check_empty(
    config: ConnectorConfig, stream: StreamConfig, definition: TableDefinition, write_stream: str
) -> None:
    """Raise `ConnectorError` if a table has rows, or if changes of it wait in the changelog or in
    the topic. Rows of `write_stream` do not count.

    Also raises `TableError`, `TopicError` and `BrokerError`.
    """
    from connector.lake.state_reader import progress_of, table_state_of

    table = _opened(paths.table(warehouse_of(config), definition.name))
    if table is not None and next(iter(table.query("SELECT 1 FROM t LIMIT 1")), None):
        raise table_not_empty(definition.name, "It has rows")
    changelog = _opened(paths.changelog(warehouse_of(config), stream.name))
    state = table_state_of(warehouse_of(config), stream.name, definition.name)
    applied_to = state.complete_to_batch
    if changelog is not None and _has_changes(changelog, definition.source, applied_to):
        raise table_not_empty(definition.name, "The changelog has changes that are not applied yet")
    staged, released, has_changes = _unread(config, stream, definition.source)
    if has_changes:
        raise table_not_empty(definition.name, "The topic has changes that are not ingested yet")
    progress = progress_of(warehouse_of(config), stream.name)
    waiting = {part.stream for release in progress.releases.open for part in release.ranges}
    waiting = (waiting | released) - {write_stream}
    if waiting and changelog is not None:
        staged |= _staged_streams(changelog, definition.source)
    if waiting & staged:
        raise table_not_empty(
            definition.name, f"The rows of {min(waiting & staged)} are about to be visible"
        )


def _opened(path: str) -> PlainTable | None:
    from connector.lake.plain_table import open_table

    try:
        return open_table(path)
    except TableError as error:
        if error.code != "TABLE_MISSING":
            raise
        return None


def _has_changes(changelog: PlainTable, source: str, after: int) -> bool:
    from connector.lake.changelog_changes import visible_changes

    changes = visible_changes(changelog, "1", source, f"ingest_batch > {after}")
    return next(iter(changes), None) is not None


def _staged_streams(changelog: PlainTable, source: str) -> set[str]:
    from connector.lake.small_tables import quoted
    from connector.warehouse import STAGED_SLOT, in_slot

    if "write_stream" not in changelog.types:
        return set()
    query = (
        f"SELECT DISTINCT write_stream['stream'] FROM t WHERE {in_slot(STAGED_SLOT)}"  # noqa: S608
        f" AND kind = 'staged' AND \"table\" = {quoted(source)}"
    )
    return {row[0] for row in changelog.query(query)}


def _unread(
    config: ConnectorConfig, stream: StreamConfig, source: str
) -> tuple[set[str], set[str], bool]:
    """The write streams with rows of a source table, the released write streams, and whether there
    is a change of the table, in the part of the topic that is not ingested yet.
    """
    staged, released = set[str](), set[str]()
    for record in _unread_records(config, stream):
        if isinstance(record, Release):
            released |= {part.stream for part in record.ranges}
        elif isinstance(record, DataChange) and record.table == source:
            if not record.is_staged:
                return staged, released, True
            assert record.write_stream is not None
            staged.add(record.write_stream.stream)
    return staged, released, False


def _unread_records(config: ConnectorConfig, stream: StreamConfig) -> Iterator[object]:
    from connector.kafka import topics
    from connector.kafka.client import records_between
    from connector.kafka.consume.decode import Decoder
    from connector.lake.state_reader import logged_ends

    facts = topics.describe(config.kafka, stream.topic)
    logged = logged_ends(warehouse_of(config), stream.name)
    begins = topics.beginning_offsets(config.kafka, facts)
    ends = topics.end_offsets(config.kafka, facts)
    ranges = {number: (max(begins[number], logged.get(number, 0)), ends[number]) for number in ends}
    with closing(Decoder(config.registry, stream.limits)) as decoder:
        for record in records_between(config.kafka, facts.topic, facts.topic_id, ranges):
            decoded = decoder.decode(record, facts.kafka_partitions)
            if not isinstance(decoded, Rejection):
                yield decoded.record
