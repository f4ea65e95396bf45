"""The warehouse of a configuration, ready to be used by the packages that read and write tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from connector import warehouse as places
from connector.config.storage import LAKE_DEFAULTS, is_local
from connector.errors import (
    BrokerError,
    ConfigError,
    StreamHaltedError,
    TableError,
    TopicError,
)
from connector.lake.stores import remember

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig


def warehouse_of(config: ConnectorConfig) -> str:
    """The path or URI of the warehouse. From now on, its tables are opened with the storage
    settings of the configuration (STO-1).
    """
    if not is_local(config.warehouse):
        remember(config.warehouse, {**LAKE_DEFAULTS, **config.storage.lake_options()})
    return config.warehouse


def check_logs(config: ConnectorConfig, streams: Iterable[str], tables: Iterable[str]) -> None:
    """Raise `TableError` if a commit of these streams or tables, or of the tables beside them,
    is damaged (TBL-14). Spark would read an empty commit as one without changes.
    """
    from connector.lake.checks import check_log

    for path in _paths(warehouse_of(config), streams, tables):
        check_log(path, with_contents=True)


@contextmanager
def naming_damage(
    config: ConnectorConfig, streams: Iterable[str], tables: Iterable[str]
) -> Iterator[None]:
    """Raise the damage of a file of these streams and tables instead of an error that may come from
    it: Spark tells damage in many ways (TBL-14).
    """
    from connector.lake.checks import check_files

    try:
        yield
    except (BrokerError, ConfigError, StreamHaltedError, TopicError):
        raise
    except Exception as error:
        if isinstance(error, TableError) and error.code == "TABLE_DAMAGED":
            raise
        for path in _paths(warehouse_of(config), streams, tables):
            try:
                check_files(path, text=str(error))
            except TableError as damage:
                raise damage from error
        raise


def _paths(warehouse: str, streams: Iterable[str], tables: Iterable[str]) -> Iterator[str]:
    """The Delta tables of streams and tables, and the small tables that both need."""
    from connector.lake.plain_table import REBUILD, open_table

    for stream in streams:
        yield places.changelog(warehouse, stream)
    for table in tables:
        yield places.table(warehouse, table)
        with suppress(TableError):  # there is no table yet
            rebuild = open_table(places.table(warehouse, table)).properties.get(REBUILD, "")
            yield places.tombstones(places.table_folder(warehouse, table), rebuild)
    for small in (places.overrides, places.closed_partitions, places.released_transactions):
        yield small(warehouse)
    for small in (places.released_rows, places.jobs, places.cuts):
        yield small(warehouse)
