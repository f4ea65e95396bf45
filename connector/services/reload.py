"""The configuration file of a running pipeline, which is read again when it changes (EVO-8)."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from connector import warehouse as paths
from connector.clock import now_us
from connector.config.reload import reload_faults
from connector.errors import ConfigError, ConnectorError, TableError
from connector.events import OnEvent, info, warning
from connector.services.load_config import DEFAULT_FILE, load_config
from connector.services.source_tables import SourceTables, followed
from connector.services.warehouses import warehouse_of

if TYPE_CHECKING:
    from connector.config.settings import ConnectorConfig
    from connector.lake.overrides import Overrides
    from connector.tables.definition import TableDefinition
    from connector.tables.stored_definition import ColumnIds

READ_EVERY_S = 10.0


class ConfigFile:
    """A configuration file, with environment variables over it.

    Args:
        path: The file. None: `connector.toml` in the current folder.
        environment: As for `load_config`.

    Raises:
        ConfigError: The file cannot be read, or a setting is wrong.
    """

    def __init__(
        self, path: str | Path | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self._path, self._environment = path, environment
        self._asked = threading.Event()
        self._content = self._read()
        self.config = load_config(path, environment)

    def ask(self) -> None:
        """Let the next look read the file, also if its content is the same. A signal handler may
        call it.
        """
        self._asked.set()

    @property
    def is_asked(self) -> bool:
        return self._asked.is_set()

    def changed(self) -> ConnectorConfig | None:
        """Return the new configuration, or None if the content is the same. Raises `ConfigError`
        once for each content.
        """
        content, is_asked = self._read(), self._asked.is_set()
        self._asked.clear()
        if content == self._content and not is_asked:
            return None
        self._content = content
        return load_config(self._path, self._environment)

    def _read(self) -> bytes | None:
        try:
            return Path(DEFAULT_FILE if self._path is None else self._path).read_bytes()
        except OSError:
            return None


class FixedConfig(ConfigFile):
    """A configuration without a file. Only the tables that follow from a source change."""

    def __init__(self, config: ConnectorConfig) -> None:
        self._asked, self.config = threading.Event(), config

    def changed(self) -> ConnectorConfig | None:
        if not self._asked.is_set():
            return None
        self._asked.clear()
        return followed(self.config)


def with_sources(
    file: ConfigFile | None, config: ConnectorConfig, stack: ExitStack, on_event: OnEvent
) -> tuple[ConfigFile, SourceTables]:
    """Store what bridges have published, and return the configuration with these tables as a file,
    and the tables to look at from now on. Raises `TopicError`, `BrokerError`, `TableError` and
    `ConfigError`.
    """
    sources = stack.enter_context(closing(SourceTables(config, on_event)))
    sources.store_new()
    file = file or FixedConfig(config)
    file.config = followed(config)
    return file, sources


@dataclass(frozen=True, slots=True)
class RefusedReload:
    """Why the running pipeline did not take a configuration: a text for each setting. `refused_at`
    is in microseconds.
    """

    refused_at: int
    faults: tuple[str, ...]


class Reloads:
    """Decides which new configurations a pipeline takes."""

    def __init__(
        self,
        file: ConfigFile,
        overrides: Overrides,
        on_event: OnEvent,
        sources: SourceTables | None = None,
    ) -> None:
        self._file, self._overrides, self._on_event = file, overrides, on_event
        self._sources = sources
        self._running = file.config
        self._before: ConnectorConfig | None = None
        self._refused: tuple[str, ...] = ()
        self._warehouse = warehouse_of(file.config)
        _store(self._warehouse, None)

    @property
    def is_asked(self) -> bool:
        return self._file.is_asked

    def look_at_sources(self) -> None:
        """Ask for a reload if a bridge has published new tables or columns (SRC-5). It does not
        wait. Raises `TableError`.
        """
        if self._sources is not None and self._sources.store_new():
            self._file.ask()

    def next_config(self) -> ConnectorConfig | None:
        """Return a new configuration that the pipeline can take. None: nothing is new.

        A configuration that it cannot take is a warning, and `status` shows it. Each call looks
        again at a refused one. Raises `TableError` if the overrides cannot be read.
        """
        if self._refused:  # its reason may have ended: a column was dropped, or a table can be read
            self._file.ask()
        try:
            new = self._file.changed()
        except ConfigError as error:
            self._refuse([error])
            return None
        if new is None:
            return None
        try:
            existing = self._existing(new)
        except TableError as error:
            self._refuse([error])
            return None
        if faults := reload_faults(self._running, new, existing, self._overrides.columns()):
            self._refuse(faults)
            return None
        self._refused = ()
        _store(self._warehouse, None)
        if new == self._running:
            return None
        self._before, self._running = self._running, new
        return new

    @property
    def is_new(self) -> bool:
        """Whether no pipeline with the newest configuration has begun yet."""
        return self._before is not None

    def began(self) -> None:
        """Report that a pipeline with the newest configuration runs, if it is a new one."""
        if self._before is not None:
            self._before = None
            self._on_event(info("RELOADED", "the configuration has changed, and is in force"))

    def go_back(self, error: ConnectorError) -> ConnectorConfig:
        """Refuse a new configuration with which no pipeline could begin, and return the old one.
        Raises `error` if there was no old one.
        """
        if self._before is None:
            raise error
        self._running, self._before = self._before, None
        self._refuse([error])
        self._refused = ()  # another try would stop the pipeline each time
        return self._running

    def _existing(self, config: ConnectorConfig) -> dict[str, tuple[TableDefinition, ColumnIds]]:
        """The tables of a configuration that are in the warehouse."""
        from connector.lake.state_reader import definition_of

        existing = {name: definition_of(self._warehouse, name) for name in config.tables}
        return {name: stored for name, stored in existing.items() if stored is not None}

    def _refuse(self, faults: Sequence[ConnectorError]) -> None:
        texts = tuple(str(fault) for fault in faults)
        if texts == self._refused:
            return
        self._refused = texts
        for text in texts:
            self._on_event(warning("RELOAD_REFUSED", f"the old configuration stays: {text}"))
        _store(self._warehouse, RefusedReload(now_us(), texts))


def refused_reload(config: ConnectorConfig) -> RefusedReload | None:
    """Why the pipeline of a warehouse did not take its newest configuration. None: it took it."""
    from connector.lake.stores import text_at
    from connector.stored import from_text

    text = text_at(paths.refused_reload(warehouse_of(config)))
    try:
        return from_text(RefusedReload, text) if text else None
    except ValueError:
        return None


def _store(warehouse: str, refused: RefusedReload | None) -> None:
    """Keep it where `status` finds it. An empty file: nothing is refused."""
    from connector.lake.checks import table_error
    from connector.lake.stores import text_at, write_at
    from connector.stored import to_stored

    path = paths.refused_reload(warehouse)
    if refused is None and not text_at(path):
        return
    try:
        write_at(path, "" if refused is None else json.dumps(to_stored(refused)))
    except OSError as error:
        failure: TableError = table_error(path, "written", error)
        raise failure from error
