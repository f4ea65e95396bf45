"""The streams and tables that a call of this process works on: two calls would harm each other."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from connector.errors import ErrorCode, WriterConflictError

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig

_Work = tuple[str, str, str | None]
"""A warehouse, a stream, and a table. None: all tables."""

_IN_USE: Final = set[_Work]()
_LOCK: Final = threading.Lock()


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
        for _, stream, of in sorted(wanted, key=str):
            for other in _IN_USE:
                if other[:2] == (where, stream) and (of is None or other[2] in (None, of)):
                    raise _refused(stream, of, other[2])
        _IN_USE.update(wanted)
    try:
        yield
    finally:
        with _LOCK:
            _IN_USE.difference_update(wanted)


def _refused(stream: str, table: str | None, other: str | None) -> WriterConflictError:
    return WriterConflictError(
        ErrorCode.ALREADY_RUNNING,
        f"Stream {stream} cannot run" + (" twice" if other is None else "")
        if table is None
        else f"Table {table} cannot be rebuilt",
        "Another call in this process "
        + ("runs its stream" if other is None else f"rebuilds table {other}"),
        "Wait until that call has returned. It goes on unharmed",
        stream=stream,
        **({} if table is None else {"table": table}),
    )
