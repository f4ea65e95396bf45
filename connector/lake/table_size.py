"""The size of a table's newest version, from its log, without a JVM (SCL-6)."""

from __future__ import annotations

from typing import NamedTuple

from connector.lake.checks import check_missing, opened, trouble


class TableSize(NamedTuple):
    """Bytes and number of the files of a version, and its number of buckets."""

    size_bytes: int
    files: int
    buckets: int


def table_size(path: str) -> TableSize | None:
    """The size of the table at a path or URI. None: there is no table. Raises `TableError` if it
    cannot be read.
    """
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        delta = opened(path)
        sizes = delta.get_add_actions().column("size_bytes").to_pylist()
        buckets = int(delta.metadata().configuration.get("lowmark.buckets") or 1)
    except TableNotFoundError:
        check_missing(path)
        return None
    except (DeltaError, OSError, ValueError) as error:
        raise trouble(path, "read", error) from error
    return TableSize(sum(sizes), len(sizes), buckets)
