"""Tries an object store with a small Delta table of its own: `_connector/probe` (STO-4). It has no
rows, so deltalake writes no data file: where one is refused, it prints the stacks of its threads on
standard error.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from connector import warehouse as places
from connector.lake.checks import check_writable, opened, trouble
from connector.lake.stores import options_of, warehouse_with
from connector.state.store_errors import store_error

if TYPE_CHECKING:
    from deltalake import DeltaTable

_TIDY_EVERY: Final = 100
_KEPT: Final = {"delta.logRetentionDuration": "interval 1 hours"}
_WRITTEN: Final = set[tuple[str, ...]]()
"""The warehouses, each with its options, to which this process has committed."""
_LOCK: Final = threading.Lock()


def probe_store(warehouse: str) -> None:
    """Check that a store can be listed, read and written. It leaves one commit.

    Raises:
        TableError: It cannot. Most are a `StorageError`, whose code says why.
    """
    from deltalake.exceptions import CommitFailedError, DeltaError

    path = places.probe(warehouse)
    try:
        _commit(_table(path))
    except CommitFailedError:
        return  # another process commits at the same time
    except (DeltaError, OSError, ValueError) as error:
        problem = f"The warehouse {warehouse} cannot be used"
        raise (
            store_error(str(error), problem, path=path) or trouble(path, "used", error)
        ) from error


def check_table_writable(path: str) -> None:
    """Raise `TableError` if a row and its commit cannot be written to the table at a path. An
    object store is asked once in a process.
    """
    warehouse = warehouse_with(path)
    if warehouse is None:
        check_writable(path)
        return
    options = options_of(path) or {}
    key = (warehouse, *(f"{name}={value}" for name, value in sorted(options.items())))
    with _LOCK:
        if key in _WRITTEN:
            return
        probe_store(warehouse)
        _WRITTEN.add(key)


def _table(path: str) -> DeltaTable:
    from deltalake import DeltaTable, Field, Schema
    from deltalake.exceptions import TableNotFoundError
    from deltalake.schema import PrimitiveType

    try:
        return opened(path)
    except TableNotFoundError:
        columns = Schema([Field("probe", PrimitiveType("long"))])
        made = {"configuration": _KEPT, "mode": "ignore", "storage_options": options_of(path)}
        return DeltaTable.create(path, columns, **made)  # type: ignore[arg-type]


def _commit(table: DeltaTable) -> None:
    from deltalake import CommitProperties

    table.alter.set_table_description(
        "Commits are tried here.", commit_properties=CommitProperties(max_commit_retries=0)
    )
    if table.version() % _TIDY_EVERY == 0:
        table.create_checkpoint()
        table.cleanup_metadata()
