"""The tables of a pipeline that are stopped: the warnings about them, and the error at the end
(RUN-3).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from connector import warehouse as paths
from connector.errors import ConnectorError, TableError
from connector.errors.tables import tables_stopped
from connector.events import OnEvent, info, warning
from connector.services.warehouses import check_logs, naming_damage, warehouse_of

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig
    from connector.spark.open_tables import TablePorts

_AGAIN_EVERY_S: Final = 3600.0


class StoppedTables:
    """Says once that a table is stopped, and again each hour. Any thread may call it."""

    def __init__(self, on_event: OnEvent) -> None:
        self._on_event, self._lock = on_event, threading.Lock()
        self._warned: dict[str, tuple[str, float]] = {}

    def ports(
        self, config: ConnectorConfig, is_refused: Callable[[str], bool] = lambda name: False
    ) -> TablePorts:
        """`is_refused` says whether no pipeline may begin in which this table is stopped."""
        from connector.spark.open_tables import TablePorts

        @contextmanager
        def opening(name: str) -> Iterator[None]:
            check_logs(config, [], [name])
            yield

        @contextmanager
        def applying(name: str) -> Iterator[None]:
            with naming_damage(config, [config.tables[name].stream], [name]):
                yield

        def on_stopped(name: str, error: ConnectorError) -> None:
            if is_refused(name):
                raise error
            self._warn(warehouse_of(config), name, error)

        return TablePorts(opening, applying, on_stopped, self._goes_on)

    def _warn(self, warehouse: str, name: str, error: ConnectorError) -> None:
        with self._lock:
            problem, warned_at = self._warned.get(name, ("", 0.0))
            now = time.monotonic()
            if problem == error.problem and now - warned_at < _AGAIN_EVERY_S:
                return
            self._warned[name] = (error.problem, now)
        good, version = error.fields.get("last_good"), ""
        if good is None and (good := _last_good(warehouse, name)) is not None:
            version = f". Its last good version is {good}"
        text = f"its applies are stopped, and the others go on: {error}{version}"
        fields = {**error.fields, "table": name, "error": error.code, "last_good": good}
        self._on_event(warning("TABLE_STOPPED", text, **fields))

    def _goes_on(self, name: str) -> None:
        with self._lock:
            self._warned.pop(name, None)
        self._on_event(info("TABLE_GOES_ON", "its applies go on", table=name))


def error_of(stopped: Mapping[str, ConnectorError]) -> ConnectorError | None:
    """The error at the end of a run: that of a table, or one that names several. None: no table is
    stopped.
    """
    if len(stopped) < 2:
        return next(iter(stopped.values()), None)
    causes = "; ".join(f"{name}: {error.problem}" for name, error in stopped.items())
    remedies = "; ".join(f"{name}: {error.remedy}" for name, error in stopped.items())
    return tables_stopped(", ".join(stopped), causes, remedies)


def _last_good(warehouse: str, name: str) -> int | None:
    """The newest version of a table that lowmark committed. None: it cannot be found out."""
    from connector.lake.plain_table import newest_own_version

    with suppress(TableError):
        return newest_own_version(paths.table(warehouse, name))
    return None
