"""The open tables of a pipeline, and those that are stopped (RUN-3).

An error of a table stops its applies. Other tables and all ingest go on. The table is opened again
after a pause, and goes on if its cause is gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from connector.errors import ConfigError, ConnectorError, TableError, WriterConflictError
from connector.spark.failures import applying, lost_executor
from connector.spark.storage.table import Table

Done = TypeVar("Done")
_FIRST_PAUSE_S: Final = 10.0
_LONGEST_PAUSE_S: Final = 600.0
_SHARED: Final = frozenset(
    {
        *("BUCKET_MISSING", "DISK_FULL", "EXTRA_MISSING"),
        *("STORE_ACCESS_DENIED", "STORE_NOT_CONDITIONAL", "STORE_UNREACHABLE"),
    }
)
"""The codes of errors that every table has at the same time."""
_REPLACED: Final = "TABLE_CHANGED"
"""The code if a rebuild, or another process, made another table of it. Opened again, it goes on."""


@dataclass(frozen=True, slots=True)
class TablePorts:
    """Functions for tables by name. `opening` and `applying` raise the damage of a file in place of
    the error that it causes. `on_stopped` is called each time that a table cannot be opened or
    applied, and `on_going_on` when one that was stopped can. An error that it raises is raised.
    """

    opening: Callable[[str], AbstractContextManager[None]] = lambda name: nullcontext()
    applying: Callable[[str], AbstractContextManager[None]] = lambda name: nullcontext()
    on_stopped: Callable[[str, ConnectorError], None] = lambda name, error: None
    on_going_on: Callable[[str], None] = lambda name: None


NO_PORTS: Final = TablePorts()


class OpenTables:
    """The tables that `open_table` opens by name. One thread at a time may use one of them; several
    threads may use different ones.
    """

    def __init__(
        self,
        names: Collection[str],
        check: Callable[[str], None],
        open_table: Callable[[str], Table],
        ports: TablePorts,
    ) -> None:
        """`check` is called for each table before one is opened, and so made."""
        self._open_table, self._ports = open_table, ports
        self._tables: dict[str, Table] = {}
        self._pauses: dict[str, tuple[float, float]] = {}
        self.stopped: dict[str, ConnectorError] = {}
        """The tables that are stopped, and why."""
        for name in names:
            self.use(name, partial(check, name))
        for name in names:
            if name not in self.stopped:
                self.use(name, partial(self._open, name))

    def __getitem__(self, name: str) -> Table:
        return self._tables[name]

    def going_on(self) -> dict[str, Table]:
        """The tables that are not stopped."""
        tables = list(self._tables.items())
        return {name: table for name, table in tables if name not in self.stopped}

    def is_stopped(self, names: Collection[str]) -> bool:
        """Whether any of the tables is stopped."""
        return not self.stopped.keys().isdisjoint(names)

    def due(self) -> set[str]:
        """The stopped tables that are to be tried again now."""
        now = time.monotonic()
        return {name for name in list(self.stopped) if now >= self._pauses[name][0]}

    def use(self, name: str, act: Callable[[], Done]) -> Done | None:
        """Open a table if it is stopped, and call `act` with it. None: an error of the table has
        stopped it, or it was opened again. Every other error is raised.
        """
        done = None
        try:
            if name in self.stopped:
                self._open(name)
            try:
                with self._ports.applying(name):
                    done = act()
            except WriterConflictError as error:
                if error.code != _REPLACED:
                    raise
                self._open(name)
        except (ConfigError, TableError, WriterConflictError) as error:
            if error.code in _SHARED or lost_executor(error) is not None:
                raise
            self._stop(name, error)
            return None
        if self.stopped.pop(name, None) is not None:
            del self._pauses[name]
            self._ports.on_going_on(name)
        return done

    def _open(self, name: str) -> None:
        with self._ports.opening(name), applying(name):
            self._tables[name] = self._open_table(name)

    def _stop(self, name: str, error: ConnectorError) -> None:
        _, pause_s = self._pauses.get(name, (0.0, _FIRST_PAUSE_S))
        next_pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        self._pauses[name] = (time.monotonic() + pause_s, next_pause_s)
        self.stopped[name] = error
        self._ports.on_stopped(name, error)
