"""Tables that follow from a source: from the topic of a bridge to the warehouse and the
configuration (SRC-5).
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

from connector import warehouse as paths
from connector.config.source_tables import FollowedTable, with_source_tables
from connector.events import OnEvent, warning
from connector.services.warehouses import warehouse_of

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig
    from connector.errors import ConnectorError
    from connector.kafka.tables import SourceTablesWatch


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
    return {
        stream: [FollowedTable.from_value(value) for value in tables.values()]
        for stream, tables in _read(config).items()
    }


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
        after = before | {
            name: before.get(name, {}) | {s: t.to_value().decode() for s, t in tables.items()}
            for name, tables in published.items()
        }
        if after == before:
            return False
        path = _path(self._config)
        try:
            write_at(path, json.dumps(after))
        except OSError as error:
            raise table_error(path, "written", error) from error
        return True

    def _warn(self, stream: str, error: ConnectorError) -> None:
        self._on_event(warning(error.code, str(error), stream=stream))

    def close(self) -> None:
        for watch in self._watches.values():
            watch.close()


def _path(config: ConnectorConfig) -> str:
    return paths.source_tables(warehouse_of(config))


def _read(config: ConnectorConfig) -> dict[str, dict[str, str]]:
    """The values of the records, by stream and table of the source."""
    from connector.lake.checks import table_error
    from connector.lake.stores import reader_of

    path = _path(config)
    folder, _, name = path.rpartition("/")
    try:
        stored: dict[str, dict[str, str]] = json.loads(reader_of(folder)(name) or b"{}")
        return stored
    except (OSError, ValueError) as error:
        raise table_error(path, "read", error) from error
