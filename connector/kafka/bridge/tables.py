"""The tables of a source, as its bridge publishes them (SRC-5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from connector.config.source_tables import (
    FollowedTable,
    new_name,
    own_sections,
    with_own_names,
    with_source_tables,
)
from connector.kafka.tables import publish_source_tables, source_tables
from connector.sources.columns import Merged, SourceTable
from connector.sources.tables import KnownTables

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig, StreamConfig
    from connector.tables.definition import TableDefinition

Warn = Callable[[str, str], None]
"""Receives a code, and a sentence for those who operate the bridge."""


class BridgeTables:
    """The tables of the source of one stream. Not thread-safe.

    - `of_decoder` are the tables for the decoder.
    - `definitions` has the definition of the table that follows each table of the source. Without
      one, its rows cannot be changes.
    """

    def __init__(self, config: ConnectorConfig, stream: StreamConfig, warn: Warn) -> None:
        """Read what was published. Raises `TopicError` and `BrokerError`."""
        assert stream.source is not None
        self._config, self._stream, self._source = config, stream, stream.source
        self._warn = warn
        published = source_tables(
            config.kafka, stream.topic, lambda error: warn(error.code, str(error))
        )
        self._published = with_own_names({stream.name: published})[stream.name]
        self._names = {source: table.name for source, table in self._published.items()}
        self.of_decoder = KnownTables(
            (SourceTable.from_section(table.section) for table in self._published.values()),
            config.tables_of(stream.name).values(),
            only_declared=not self._source.follows_tables,
            overridden=self._overridden,
        )
        self.definitions = self._definitions(self._published)

    def publish_news(self) -> None:
        """Publish the tables with new columns, and wait until Kafka has them. Raises `ConfigError`,
        `DeliveryError`, `TopicError` and `BrokerError`.
        """
        for text in self.of_decoder.take_doubts():
            self._warn("SOURCE_VALUES", text)
        changed = {}
        for news in self.of_decoder.take_news():
            for text in news.warnings:
                self._warn("SOURCE_COLUMNS", text)
            changed[news.table.source] = self._followed(news)
        self._publish(changed)

    def has_read_again(self, source: str) -> None:
        """Register that a snapshot has sent rows of a table, with its new columns."""
        table = self._published.get(source)
        if table is not None and table.with_default:
            self._publish({source: replace(table, with_default=())})

    def _publish(self, tables: dict[str, FollowedTable]) -> None:
        tables = {name: t for name, t in tables.items() if t != self._published.get(name)}
        if tables:
            values = {name: table.to_value() for name, table in tables.items()}
            publish_source_tables(self._config.kafka, self._stream.topic, values)
            self._published |= tables
            self.definitions = self._definitions(self._published)

    def _followed(self, news: Merged) -> FollowedTable:
        before = self._published.get(news.table.source)
        fields = (*(before.with_default if before else ()), *news.with_default)
        section = news.table.section()
        return FollowedTable(self._name(news.table.source), section, tuple(dict.fromkeys(fields)))

    def _name(self, source: str) -> str:
        """The name of a table of ours. That of a new table is chosen when it is met, because a
        section of the user may say how its rows are read.
        """
        if source not in self._names:
            taken = self._names.values()
            self._names[source] = new_name(self._config, self._stream.name, source, taken)
        return self._names[source]

    def _overridden(self, table: SourceTable) -> TableDefinition | None:
        """The definition of a table that a section of the user overrides, also before the table is
        published.
        """
        followed = FollowedTable(self._name(table.source), table.section())
        if not own_sections(self._stream, followed):
            return None
        return self._definitions({table.source: followed}).get(table.source)

    def _definitions(self, followed: dict[str, FollowedTable]) -> dict[str, TableDefinition]:
        name = self._stream.name
        config = with_source_tables(self._config, {name: followed.values()})
        tables = config.tables_of(name).values()
        return {table.source: table for table in sorted(tables, key=lambda t: t.name, reverse=True)}
