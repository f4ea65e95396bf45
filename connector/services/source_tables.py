"""Tables that follow from a source: from the topic of a bridge to the warehouse and the
configuration (SRC-5).
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

from connector import warehouse as paths
from connector.config.source_tables import (
    FollowedTable,
    with_own_names,
    with_published,
    with_source_tables,
)
from connector.events import OnEvent, warning
from connector.services.warehouses import warehouse_of

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig
    from connector.errors import ConnectorError
    from connector.kafka.tables import SourceTablesWatch

_Tables = dict[str, dict[str, FollowedTable]]
"""Tables of sources by stream, and by their names at the source."""


def follows_sources(config: ConnectorConfig) -> bool:
    """Whether tables of a configuration follow from a source."""
    return any(s.source is not None and s.source.follows_tables for s in config.streams.values())


def followed(config: ConnectorConfig) -> ConnectorConfig:
    """Return a configuration with the tables of its sources that the warehouse knows.

    Raises `ConfigError` if a section of the user does not fit its table, and `TableError` if the
    warehouse cannot be read.
    """
    if not follows_sources(config):
        return config
    return with_source_tables(config, followed_tables(config))


def followed_tables(config: ConnectorConfig) -> dict[str, list[FollowedTable]]:
    """The tables of sources by stream, as the warehouse has them. Raises `TableError`."""
    return {stream: list(tables.values()) for stream, tables in _read(config).items()}


class SourceTables:
    """Stores what bridges publish about the tables of their sources in the warehouse.

    Use it as a context manager. It raises `BrokerError` and `TopicError` when it is made.
    """

    def __init__(self, config: ConnectorConfig, on_event: OnEvent) -> None:
        from connector.kafka.tables import SourceTablesWatch

        self._config, self._on_event = config, on_event
        self._watches: dict[str, SourceTablesWatch] = {}
        for name, stream in config.streams.items():
            if stream.source is not None and stream.source.follows_tables:
                warn = partial(self._warn, name)
                self._watches[name] = SourceTablesWatch(config.kafka, stream.topic, warn)

    def store_new(self) -> bool:
        """Store the tables that were published since the last call, and return whether there are
        any. It does not wait. Raises `TableError`.
        """
        from connector.lake.checks import table_error
        from connector.lake.stores import write_at

        published = {name: watch.newest() for name, watch in self._watches.items()}
        if not any(published.values()):
            return False
        before = _read(self._config)
        after = with_published(self._config, before, published)
        if after == before:
            return False
        self._warn_of_names(before, after, published)
        path = _path(self._config)
        stored = {
            stream: {source: table.to_value().decode() for source, table in tables.items()}
            for stream, tables in after.items()
        }
        try:
            write_at(path, json.dumps(stored))
        except OSError as error:
            raise table_error(path, "written", error) from error
        return True

    def _warn_of_names(self, before: _Tables, after: _Tables, published: _Tables) -> None:
        for stream, tables in published.items():
            for source, table in tables.items():
                name = after[stream][source].name
                if source not in before.get(stream, {}) and name != table.name:
                    text = f"another table is {table.name}: the table of {source} is {name}"
                    self._on_event(warning("SOURCE_TABLE_NAME", text, stream=stream))

    def _warn(self, stream: str, error: ConnectorError) -> None:
        self._on_event(warning(error.code, str(error), stream=stream))

    def close(self) -> None:
        for watch in self._watches.values():
            watch.close()


def _path(config: ConnectorConfig) -> str:
    return paths.source_tables(warehouse_of(config))


def _read(config: ConnectorConfig) -> _Tables:
    from connector.lake.checks import table_error
    from connector.lake.stores import reader_of

    path = _path(config)
    folder, _, name = path.rpartition("/")
    try:
        stored: dict[str, dict[str, str]] = json.loads(reader_of(folder)(name) or b"{}")
        return with_own_names(
            {
                stream: {s: FollowedTable.from_value(value) for s, value in tables.items()}
                for stream, tables in stored.items()
            }
        )
    except (OSError, ValueError) as error:
        raise table_error(path, "read", error) from error
