"""The warehouse of a configuration: its storage settings, its damage, and the streams and tables
that a call of this process works on.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from connector import warehouse as paths
from connector.config.storage import LAKE_DEFAULTS, is_local
from connector.errors import (
    BrokerError,
    ConfigError,
    ConnectorError,
    TableError,
    TopicError,
)
from connector.errors.changelog import already_running
from connector.lake.stores import remember

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig


_Work = tuple[str, str, str | None]
"""A warehouse, a stream, and a table. None: all tables."""

_NAMES_ITS_CAUSE: Final = {
    *("TABLE_DAMAGED", "REJECTED_RATIO_EXCEEDED", "DISK_FULL", "BUCKET_MISSING"),
    *("STORE_ACCESS_DENIED", "STORE_NOT_CONDITIONAL", "STORE_UNREACHABLE"),
}
"""The codes of errors that do not come from a damaged file, or name it."""

_IN_USE: Final = set[_Work]()
_LOCK: Final = threading.Lock()


def warehouse_of(config: ConnectorConfig) -> str:
    """The path or URI of the warehouse, which is opened with its settings from now on (STO-1)."""
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
    """Raise the damage of a file instead of the error of Spark that it causes (TBL-14)."""
    from connector.lake.checks import check_files

    try:
        yield
    except (BrokerError, ConfigError, TopicError):
        raise
    except Exception as error:
        if isinstance(error, ConnectorError) and error.code in _NAMES_ITS_CAUSE:
            raise
        for path in _paths(warehouse_of(config), streams, tables):
            try:
                check_files(path, text=str(error))
            except TableError as damage:
                raise damage from error
        raise


def _paths(warehouse: str, streams: Iterable[str], tables: Iterable[str]) -> Iterator[str]:
    """The Delta tables of streams and tables, and the small tables that both need."""
    from connector.lake.plain_table import open_table
    from connector.tables.stored_definition import REBUILD_PROPERTY

    for stream in streams:
        yield paths.changelog(warehouse, stream)
    for table in tables:
        yield paths.table(warehouse, table)
        with suppress(TableError):  # there is no table yet
            rebuild = open_table(paths.table(warehouse, table)).properties.get(REBUILD_PROPERTY, "")
            yield paths.tombstones(paths.table_folder(warehouse, table), rebuild)
    for small in (paths.overrides, paths.closed_partitions, paths.released_transactions):
        yield small(warehouse)
    for small in (paths.released_rows, paths.accepted_losses, paths.erased_keys):
        yield small(warehouse)
    for small in (paths.jobs, paths.cuts):
        yield small(warehouse)


@contextmanager
def only_use(
    config: ConnectorConfig, streams: Iterable[str], table: str | None = None
) -> Iterator[None]:
    """Hold streams, or one table of a stream, until the block ends.

    Two queries of one stream would delete each other's checkpoint. A rebuild and an apply would
    refuse each other's commits.

    Raises:
        WriterConflictError: Another call of this process holds one of them.
    """
    where = config.warehouse if "://" in config.warehouse else os.path.realpath(config.warehouse)
    wanted: set[_Work] = {(where, stream, table) for stream in streams}
    with _LOCK:
        for _, stream, _ in sorted(wanted, key=str):
            for other in _IN_USE:
                if other[:2] == (where, stream) and (table is None or other[2] in (None, table)):
                    work = (
                        f"Ingest of stream {stream}" if table is None else f"A rebuild of {table}"
                    )
                    owner = "runs the stream" if other[2] is None else f"rebuilds {other[2]}"
                    raise already_running(work, owner, stream)
        _IN_USE.update(wanted)
    try:
        yield
    finally:
        with _LOCK:
            _IN_USE.difference_update(wanted)
