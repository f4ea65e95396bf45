"""Which differences of a configuration a running pipeline takes (EVO-8)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from typing import Any, Final

from connector.config.settings import ConnectorConfig
from connector.errors import ConnectorError
from connector.errors.definitions import column_lost
from connector.errors.settings import reload_refused
from connector.tables.definition import TableDefinition, compatible

_TAKEN: Final = frozenset(
    {"columns", "max_staleness_s", "apply_every_s", "on_unreadable", "start_from"}
)
"""The settings of a table that may change."""
_BELOW: Final = frozenset({"streams", "tables"})


def reload_faults(
    running: ConnectorConfig,
    new: ConnectorConfig,
    dropped: Mapping[str, Collection[str]] | None = None,
) -> list[ConnectorError]:
    """Return why a running pipeline cannot take a configuration: an error for each setting. An
    empty list: it can. It takes new tables of existing streams, new columns, bounds and paces.

    `dropped` has the columns that operators dropped, by table.
    """
    return list(_faults(running, new, dropped or {}))


def _faults(
    running: ConnectorConfig, new: ConnectorConfig, dropped: Mapping[str, Collection[str]]
) -> Iterator[ConnectorError]:
    for name in _different(running, new, _BELOW):
        yield reload_refused(name)
    for kind in sorted(_BELOW):
        before, after = getattr(running, kind), getattr(new, kind)
        for name in before.keys() - after.keys():
            yield reload_refused(f"{kind}.{name}", "was removed")
    for name in new.streams.keys() - running.streams.keys():
        yield reload_refused(f"streams.{name}", "is new")
    for name, stream in running.streams.items():
        if name in new.streams:
            for setting in _different(stream, new.streams[name]):
                yield reload_refused(f"streams.{name}.{setting.removesuffix('_s')}")
    for name, table in running.tables.items():
        if name in new.tables:
            yield from _of_table(table, new.tables[name], dropped.get(name, ()))


def _of_table(
    running: TableDefinition, new: TableDefinition, dropped: Collection[str]
) -> Iterator[ConnectorError]:
    where = f"tables.{running.name}"
    for setting in _different(running, new, _TAKEN):
        yield reload_refused(f"{where}.{setting}")
    for difference in compatible(running, new):
        if difference.startswith("column "):
            yield reload_refused(f"{where}.columns", f"differs: {difference}")
    allowed = {name.lower() for name in dropped}
    declared = {column.name.lower() for column in new.columns}
    for column in running.columns:
        if column.name.lower() not in declared | allowed:
            yield column_lost(running.name, column.name)


def _different(first: Any, second: Any, but: Collection[str] = ()) -> Iterator[str]:
    """The names of the fields that differ. Their values may be secret."""
    for field in fields(first):
        name = field.name
        if name not in but and getattr(first, name) != getattr(second, name):
            yield name
